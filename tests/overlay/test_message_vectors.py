"""The committed vectors of origins, joint promises and frames, good and bad, from docs/formats/overlay.md.

Frames go to the roles that read them, in the places that `make_overlay_messages.py` names.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from carrying_world import HonestCarrier, Routes, promised
from makers import INSTANCE, World
from sharing_world import NOW, PUBLISHER, Around, Honest, key_of, relay_name
from shelves import MemoryShelf
from test_ordering import HERE, Ledger, Orderly

from tallystick import wire
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.overlay.anchoring import Anchoring
from tallystick.carriers.overlay.carried import ContentMessage, name_carried
from tallystick.carriers.overlay.catching_up import CatchingUp
from tallystick.carriers.overlay.content_forwarding import ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.overlay.relayed_keys import SharesMessage
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Effect
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise
from tallystick.trust.shares import Origin

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "overlay_messages.json").read_text())
FRAMES, PROMISES, ORIGINS = VECTORS["frames"], VECTORS["promises"], VECTORS["origins"]
unhex = bytes.fromhex
PLAN = Plan.decode(unhex(VECTORS["plan"]))
PARCELS = [Parcel.decode(unhex(text)) for text in VECTORS["parcels"]]


def told(data: bytes) -> tuple[list[Effect], Counter[str]]:
    """What the role that a frame is for does with it, and what it drops."""
    kind = OverlayFrame.decode(data).kind
    if kind is FrameKind.SHARES:
        relay = Honest(relay_name(1, 1), Around({1: PLAN}, PLAN.nodes[0].identifier), 1)
        return list(relay.receive(Arrived(PUBLISHER.hex(), data), NOW)), relay.forwarding.dropped
    if kind in (FrameKind.CONTENT, FrameKind.ASK, FrameKind.ACK):
        here, sender = (1, 0) if kind is FrameKind.CONTENT else (0, 1)
        routes = Routes({1: PLAN}, PLAN.nodes[here].identifier, (b"S" * 16,) * here)
        carrier = HonestCarrier(relay_name(here + 1, 1), routes, ContentLimits())
        if not here:
            carrier.content.offer(promised(PLAN, PARCELS[0], 0), PARCELS[0], NOW)
        return list(carrier.receive(Arrived(relay_name(sender + 1, 1).hex(), data), NOW)), carrier.content.dropped
    if kind is FrameKind.CATCH_UP:
        permit = World().permit("car", "brakes")
        stored, blobs = [one.encode() for one in PARCELS], {permit_name(permit.identifier): permit.encode()}
        shelf = MemoryShelf([relay_name(1, 2)], {HERE: stored}, blobs)
        role = CatchingUp(relay_name(1, 1), shelf, lambda sender: True, lambda: 1)
        role.want(Place(HERE.token, 1), 0, 2, shelf.tree(HERE).root(), NOW)
        if wire.decode(OverlayFrame.decode(data).content)[-1] is not None:
            shelf.blobs.clear()
        return role.take(OverlayFrame.decode(data), relay_name(1, 2), NOW), role.dropped
    if kind is FrameKind.ANCHOR:
        kept = MemoryShelf(parcels={HERE: [one.encode() for one in PARCELS]})
        ledger, me = Ledger({1: PLAN}, Lease(relay_name(1, 1), 1)), relay_name(1, 2)
        anchoring = Anchoring(me, INSTANCE, key_of(me), ledger, kept.root_at)
        return anchoring.take(OverlayFrame.decode(data), relay_name(1, 1), NOW), anchoring.dropped
    ledger = Ledger({1: PLAN}, Lease(relay_name(1, 1), 1))
    orderly = Orderly(relay_name(1, 2), ledger, {})
    if kind is FrameKind.BRING:
        ledger.lease_now = Lease(relay_name(1, 2), 1)
        return list(orderly.receive(Arrived(relay_name(1, 1).hex(), data), NOW)), orderly.ordering.dropped
    orderly.propose(PARCELS[0], NOW)
    content = wire.encode([1, promised(PLAN, PARCELS[0], 0, (1,)).encode(), None])
    orderly.receive(Arrived(relay_name(1, 1).hex(), OverlayFrame(FrameKind.ORDER, 1, content).encode()), NOW)
    orderly.propose(PARCELS[1], NOW)
    return list(orderly.receive(Arrived(relay_name(1, 1).hex(), data), NOW)), orderly.ordering.dropped


@pytest.mark.parametrize("name", FRAMES["good"])
def test_frames(name: str) -> None:
    vector = FRAMES["good"][name]
    data, kind = unhex(vector["bytes"]), FrameKind(vector["kind"])
    frame = OverlayFrame.decode(data)
    assert (frame.kind, frame.plan, frame.encode()) == (kind, 1, data)
    assert wire.encode([1, *read(vector["fields"])]) == frame.content
    if kind in (FrameKind.SHARES, FrameKind.CONTENT):
        message = (SharesMessage if kind is FrameKind.SHARES else ContentMessage).decode(frame)
        assert message.frame(1) == data
    effects, dropped = told(data)
    assert not dropped
    assert bool(effects) is (kind is not FrameKind.ACK)


def read(fields: list[Any]) -> list[Any]:
    return [unhex(one) if isinstance(one, str) else read(one) if isinstance(one, list) else one for one in fields]


@pytest.mark.parametrize("name", FRAMES["bad"])
def test_frames_that_must_be_refused(name: str) -> None:
    reason, text = FRAMES["bad"][name]
    try:
        _, dropped = told(unhex(text))
    except Malformed as error:
        dropped = Counter([error.reason])
    assert dropped == {reason: 1}


def test_origins() -> None:
    for vector in ORIGINS["good"]:
        origin = Origin.decode(unhex(vector["bytes"]))
        VerifyKey(unhex(VECTORS["publisher_key"])).verify(origin.context, origin.signature, origin.body)
        assert origin.encode().hex() == vector["bytes"]
        assert wire.encode([1, *wire.listed(origin)]).hex() == origin.body.hex() == vector["body"]
        assert (origin.lane_key.hex(), origin.publisher) == (vector["lane_key"], PUBLISHER)


@pytest.mark.parametrize("name", ORIGINS["bad"])
def test_origins_that_must_be_refused(name: str) -> None:
    with pytest.raises(Malformed):
        Origin.decode(unhex(ORIGINS["bad"][name]))


def test_joint_promises() -> None:
    for vector in PROMISES["good"]:
        promise = JointPromise.decode(unhex(vector["bytes"]))
        promise.verify(PLAN)
        assert promise.encode().hex() == vector["bytes"]
        assert (promise.body.hex(), name_carried(promise).hex()) == (vector["body"], vector["name"])
        assert [[index, signature.hex()] for index, signature in promise.signatures] == vector["signatures"]
        assert (promise.instance, promise.token, promise.partition) == (INSTANCE, *HERE)


@pytest.mark.parametrize("name", PROMISES["bad"])
def test_joint_promises_that_must_be_refused(name: str) -> None:
    reason, text = PROMISES["bad"][name]
    with pytest.raises(Refused) as refused:
        JointPromise.decode(unhex(text)).verify(PLAN)
    assert refused.value.reason == reason
