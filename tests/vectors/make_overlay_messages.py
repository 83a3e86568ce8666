"""Writes overlay_messages.json beside itself, with PYTHONPATH=tests:tests/overlay.

Origins, joint promises and the frames of kinds 2, 3, 4, 5, 8, 9, 10, 12 and 13 of docs/formats/overlay.md, good ones
with their fields and bad ones with the reason they must be refused for. Names and keys are those of
`sharing_world.py`: a chain of two virtual nodes of three relays. Shares come to the first relay of the first virtual
node from the publisher; content to the first of the second from the first of the first; questions and
acknowledgements to that one, which was offered the parcel, from the first of the second; orders and what belongs to
them to the second relay of the first virtual node from its first, which holds the lease under fence 1. That one knows
the parcels, and signed the first place of the first. Questions of a relay that catches up go from the second relay of
the first virtual node to its first, which has both parcels, in partition 0, and their publisher's permit; and answers
to one that has nothing and asked the second for both, in partition 1. Offers of an anchor go to the second relay of
the first virtual node, which keeps both parcels in partition 0, from its first, which holds the lease under fence 1;
nothing is anchored yet. Sealing draws its own randomness: a second run writes other bytes of the same things.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrying_world import promised, sealed
from makers import INSTANCE, World, token
from sharing_world import NOW, PUBLISHER, TOKEN, chain, key_of, relay_name, seeded

from tallystick import wire
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.overlay.carried import ContentMessage, name_carried
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.relayed_keys import SharesMessage
from tallystick.carriers.overlay.share_ends import give_shares
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.runtime.effects import Send
from tallystick.trust.promise import JointAnchor, JointPromise
from tallystick.trust.shares import NO_LINEAGE, Complaint, Origin

PATH = Path(__file__).parent / "overlay_messages.json"
PLAN = chain((3, 3))
PARCEL, OTHER = sealed(8)[0], sealed(8)[1]
PROMISE = promised(PLAN, PARCEL, 0)
NAME = name_carried(PROMISE)
BRAKES = token("brakes")
PERMIT = World().permit("car", "brakes")
QUESTION = wire.encode([1, BRAKES, 1, 0, 2, 0])
BOTH = [PARCEL.encode(), OTHER.encode()]
TREE = Tree([leaf_hash(PARCEL.hash), leaf_hash(OTHER.hash)])


def given() -> tuple[Origin, SharesMessage]:
    """A lane key, and what the first relay of the publisher's edge gets of it."""
    fixed = PLAN, PLAN.nodes[0].identifier, PUBLISHER, seeded("lock"), int(NOW * 1000)
    made = give_shares(*fixed, (TOKEN,), seeded("entropy"), key_of(PUBLISHER))
    effect = made.effects[0]
    assert isinstance(effect, Send)
    return made.origin, SharesMessage.decode(OverlayFrame.decode(effect.message))


ORIGIN, SHARES = given()
CONTENT = ContentMessage(PROMISE.encode(), PARCEL.encode_front(), None, bytes(PARCEL.body))
COMPLAINT = (
    Complaint(ORIGIN.lane_key, 1, 0, PLAN.nodes[1].identifier, 1, NO_LINEAGE, ())
    .sign(key_of(relay_name(2, 1)))
    .encode()
)


def frame(kind: int, *content: Any, plan: int = 1, version: int = 1) -> bytes:
    return wire.encode([1, kind, plan, wire.encode([version, *content])])


def offered(size: int = 2, signers: Sequence[int] = (1,), **change: Any) -> list[Any]:
    """The fields of a joint anchor, signed by these relays of the first virtual node."""
    where = INSTANCE, PLAN.overlay, 1, PLAN.nodes[0].identifier, 1, BRAKES, 0
    joint = replace(JointAnchor(*where, size, TREE.root(min(size, 2)), 0, ()), **change)
    for index in signers:
        joint = joint.sign(index, key_of(relay_name(1, index)))
    found: list[Any] = wire.decode(joint.encode())[1:]
    return found


def good_frames() -> Any:
    ordered = promised(PLAN, OTHER, 1, (1,)).encode()
    found: dict[str, tuple[Any, ...]] = {
        "shares: all": (2, *SHARES),
        "shares: that it is there": (2, SHARES.origin, None, None, None),
        "shares: a complaint": (2, SHARES.origin, COMPLAINT, None, None),
        "content: whole": (3, *CONTENT),
        "content: that it is there": (3, *CONTENT[:2], None, None),
        "ask: one part": (4, NAME, [0]),
        "ask: two parts": (4, NAME, [2, 1]),
        "acknowledge": (5, NAME),
        "order": (8, ordered, None),
        "order: with the parcel": (8, ordered, OTHER.encode()),
        "take over": (9, BRAKES, 0, 0),
        "fetch": (10, BRAKES, 0, 0, PARCEL.hash),
        "catch up: parcels": (12, wire.encode([1, BRAKES, 0, 0, 2, 0]), None),
        "catch up: blobs": (12, wire.encode([1, [permit_name(PERMIT.identifier)]]), None),
        "catch up: an answer": (12, QUESTION, [BOTH, [], [PERMIT.encode()]]),
        "bring": (14, BRAKES, 0, OTHER.encode()),
        "anchor: an offer": (13, *offered()),
        "anchor: of a part, with another's signature": (13, *offered(1, (1, 3))),
    }
    for kind, *content in found.values():
        assert OverlayFrame(FrameKind(kind), 1, wire.encode([1, *content])).encode() == frame(kind, *content)
    return {
        name: {"kind": kind, "fields": shown(list(content)), "bytes": frame(kind, *content).hex()}
        for name, (kind, *content) in found.items()
    }


def shown(value: Any) -> Any:
    if isinstance(value, list):
        return [shown(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def bad_frames() -> Any:
    """{what is wrong: [reason, bytes]}."""
    order = promised(PLAN, OTHER, 1, (1,))
    alone = promised(PLAN, PARCEL, 0, (1,))
    elsewhere = replace(PROMISE, token=token("doors"), signatures=())
    for index in (1, 2):
        elsewhere = elsewhere.sign(index, key_of(relay_name(1, index)))
    forged = ORIGIN.sign(key_of(relay_name(1, 1))).encode()
    later = replace(order, plan=2).sign(1, key_of(relay_name(1, 1)))
    malformed = {
        "version 2": wire.encode([2, 5, 1, wire.encode([1, NAME])]),
        "kind 0": frame(0, NAME),
        "kind 15": frame(15, NAME),
        "bring to partition 65,536": frame(14, BRAKES, 1 << 16, OTHER.encode()),
        "a plan below zero": frame(5, NAME, plan=-1),
        "three fields": wire.encode([1, 5, wire.encode([1, NAME])]),
        "five fields": wire.encode([1, 5, 1, wire.encode([1, NAME]), None]),
        "content that is no bytes": wire.encode([1, 5, 1, [1, NAME]]),
        "a number in two bytes": bytes.fromhex("841801") + frame(5, NAME)[2:],
        "bytes behind it": frame(5, NAME) + b"\x00",
        "cut off": frame(5, NAME)[:-1],
        "nothing": b"",
        "shares of version 2": frame(2, *SHARES, version=2),
        "shares with four fields": frame(2, *SHARES[:3]),
        "shares without an origin": frame(2, None, *SHARES[1:]),
        "shares of another plan than the origin's": frame(2, *SHARES, plan=2),
        "shares with a list that is none": frame(2, *SHARES[:3], b"x"),
        "shares with a set of 16,385 bytes": frame(2, *SHARES[:2], bytes(16_385), SHARES.listed),
        "content of version 2": frame(3, *CONTENT, version=2),
        "content without a promise": frame(3, None, *CONTENT[1:]),
        "content of another plan than the promise's": frame(3, *CONTENT, plan=2),
        "content whose front is cut off": frame(3, CONTENT.promise, CONTENT.front[:-1], None, None),
        "content of a topic that the parcel has not": frame(3, elsewhere.encode(), *CONTENT[1:]),
        "ask for no part": frame(4, NAME, []),
        "ask for 65 parts": frame(4, NAME, [0] * 65),
        "ask for part 64": frame(4, NAME, [64]),
        "ask with a name of 31 bytes": frame(4, NAME[:31], [0]),
        "acknowledge of version 2": frame(5, NAME, version=2),
        "acknowledge with a name of 31 bytes": frame(5, NAME[:31]),
        "acknowledge two": frame(5, NAME, NAME),
        "order without the sender's signature": frame(8, promised(PLAN, OTHER, 1, (3,)).encode(), None),
        "order signed by a relay that there is not": frame(
            8, replace(order, signatures=(*order.signatures, (4, bytes(64)))).encode(), None
        ),
        "order with a field too many": frame(8, order.encode(), None, None),
        "take over with a token of 15 bytes": frame(9, BRAKES[:15], 0, 0),
        "take over of partition 65,536": frame(9, BRAKES, 1 << 16, 0),
        "take over without an offset": frame(9, BRAKES, 0),
        "fetch of partition 65,536": frame(10, BRAKES, 1 << 16, 0, PARCEL.hash),
        "fetch with a hash of 31 bytes": frame(10, BRAKES, 0, 0, PARCEL.hash[:31]),
        "fetch without a hash": frame(10, BRAKES, 0, 0),
        "catch up of version 2": frame(12, QUESTION, None, version=2),
        "catch up without a question": frame(12, None, None),
        "catch up with a field too many": frame(12, QUESTION, None, None),
        "catch up with a question of version 2": frame(12, wire.encode([2, BRAKES, 0, 0, 2, 0]), None),
        "catch up with a question of five fields": frame(12, wire.encode([1, BRAKES, 0, 0, 2]), None),
        "catch up with partition 65,536": frame(12, wire.encode([1, BRAKES, 1 << 16, 0, 2, 0]), None),
        "catch up with no blobs": frame(12, wire.encode([1, []]), None),
        "catch up with 65 blobs": frame(12, wire.encode([1, [NAME] * 65]), None),
        "catch up with a name of 31 bytes": frame(12, wire.encode([1, [NAME[:31]]]), None),
        "catch up with an answer of two fields": frame(12, QUESTION, [BOTH, []]),
        "catch up with 129 hashes": frame(12, QUESTION, [BOTH, [NAME] * 129, [PERMIT.encode()]]),
        "catch up without the permit": frame(12, QUESTION, [BOTH, [], []]),
        "catch up without a body": frame(12, QUESTION, [[PARCEL.encode_front(), BOTH[1]], [], [PERMIT.encode()]]),
    }
    anchor = offered()
    malformed |= {
        "anchor of version 2": frame(13, *anchor, version=2),
        "anchor without the size before": frame(13, *anchor[:9], anchor[10]),
        "anchor with a field too many": frame(13, *anchor, None),
        "anchor with a root of 31 bytes": frame(13, *anchor[:8], anchor[8][:31], *anchor[9:]),
        "anchor of partition 65,536": frame(13, *anchor[:6], 1 << 16, *anchor[7:]),
        "anchor of no virtual node": frame(13, *offered(node=bytes(16))),
        "anchor with no signature": frame(13, *anchor[:10], []),
    }
    unsigned = replace(PARCEL, signature=bytes(64)).encode()
    forged_permit = replace(PERMIT, last_epoch=1).sign(key_of(PUBLISHER)).encode()
    others = {
        "shares of an origin that another signed": ("forged", frame(2, forged, *SHARES[1:])),
        "content with one signature too few": ("forged", frame(3, alone.encode(), *CONTENT[1:])),
        "content that is another parcel": ("forged", frame(3, CONTENT.promise, OTHER.encode_front(), None, None)),
        "content with another body": ("altered", frame(3, *CONTENT[:3], bytes(OTHER.body))),
        "ask for what is not here": ("unknown", frame(4, bytes(32), [0])),
        "acknowledge what was not sent": ("unknown", frame(5, bytes(32))),
        "order of another plan": (
            "plan",
            frame(8, later.encode(), None),
        ),
        "order with a signature for another": ("forged", frame(8, replace(order, offset=2).encode(), None)),
        "fetch of what was not signed": ("unknown", frame(10, BRAKES, 0, 0, OTHER.hash)),
        "catch up with what was not asked for": (
            "unasked",
            frame(12, wire.encode([1, BRAKES, 1, 0, 1, 0]), [BOTH, [], []]),
        ),
        "catch up with nothing": ("not-found", frame(12, QUESTION, [[], [], []])),
        "catch up with parcels exchanged": ("forged", frame(12, QUESTION, [BOTH[::-1], [], [PERMIT.encode()]])),
        "catch up with too few": ("forged", frame(12, QUESTION, [BOTH[:1], [], [PERMIT.encode()]])),
        "catch up with another body": (
            "altered",
            frame(12, QUESTION, [[BOTH[0], OTHER.encode_front() + bytes(len(OTHER.body))], [], [PERMIT.encode()]]),
        ),
        "catch up with another signature": (
            "bad-signature",
            frame(12, QUESTION, [[unsigned, BOTH[1]], [], [PERMIT.encode()]]),
        ),
        "anchor of another plan": ("misrouted", frame(13, *offered(plan=2))),
        "anchor of another virtual node": ("misrouted", frame(13, *offered(node=PLAN.nodes[1].identifier))),
        "anchor under another fence": ("no-right", frame(13, *offered(fence=2))),
        "anchor that its sender did not sign": ("forged", frame(13, *offered(signers=(3,)))),
        "anchor with a signature for another": ("forged", frame(13, *anchor[:9], 1, anchor[10])),
        "anchor of another tree": ("other-tree", frame(13, *offered(root=bytes(32)))),
        "anchor of more than there is": ("other-tree", frame(13, *offered(size=3, root=TREE.root(2)))),
        "anchor behind one that nobody has seen": ("behind", frame(13, *offered(before=1))),
        "catch up with a forged permit": ("forged", frame(12, QUESTION, [BOTH, [], [forged_permit]])),
    }
    found = {name: ("version" if "version 2" in name else "malformed", data) for name, data in malformed.items()}
    return {name: [reason, data.hex()] for name, (reason, data) in (found | others).items()}


def bad_origins() -> Any:
    """{what is wrong: bytes}; all are malformed."""

    def changed(at: int, value: Any) -> bytes:
        fields = wire.decode(ORIGIN.body)
        fields[at] = value
        return of(wire.encode(fields))

    def of(body: bytes) -> bytes:
        return wire.encode([body, key_of(PUBLISHER).sign(Origin.context, body)])

    point = ORIGIN.commitments[0]
    found = {
        "version 2": changed(0, 2),
        "a publisher of 15 bytes": changed(1, bytes(15)),
        "a lock of 31 bytes": changed(2, bytes(31)),
        "made before time": changed(3, -1),
        "no topics": changed(6, []),
        "a topic twice": changed(6, [TOKEN, TOKEN]),
        "17 topics": changed(6, [bytes([one]) * 16 for one in range(17)]),
        "no commitments": changed(7, []),
        "eight commitments": changed(7, [point] * 8),
        "a commitment of 31 bytes": changed(7, [point[:31]]),
        "a field too many": of(wire.encode([*wire.decode(ORIGIN.body), None])),
        "no signature": wire.encode([ORIGIN.body]),
    }
    return {name: data.hex() for name, data in found.items()}


def bad_promises() -> Any:
    """{what is wrong: [reason, bytes]}; what is malformed by itself, or by the plan, and what is forged."""
    fields = wire.decode(PROMISE.encode())
    first, second = PROMISE.signatures

    def changed(at: int, value: Any) -> bytes:
        return wire.encode([*fields[:at], value, *fields[at + 1 :]])

    def signed(*pairs: tuple[int, bytes]) -> bytes:
        return changed(-1 % len(fields), [list(pair) for pair in pairs])

    elsewhere = replace(PROMISE, node=bytes(16), signatures=()).sign(1, key_of(relay_name(1, 1)))
    found = {
        "version 2": ("version", changed(0, 2)),
        "partition 65,536": ("malformed", changed(7, 1 << 16)),
        "a parcel of 31 bytes": ("malformed", changed(9, bytes(31))),
        "no signatures": ("malformed", signed()),
        "signatures out of order": ("malformed", signed(second, first)),
        "one index twice": ("malformed", signed(first, first)),
        "index 0": ("malformed", signed((0, first[1]), second)),
        "index 8": ("malformed", signed(first, (8, second[1]))),
        "a signature of 63 bytes": ("malformed", signed(first, (2, second[1][:63]))),
        "a relay that the plan has not": ("malformed", signed(first, (4, second[1]))),
        "of another plan": ("malformed", changed(3, 2)),
        "of a virtual node that the plan has not": ("malformed", elsewhere.encode()),
        "one signature too few": ("forged", signed(first)),
        "a signature of another relay": ("forged", signed(first, (2, first[1]))),
        "another height": ("forged", changed(10, 2)),
        "another fence": ("forged", changed(5, 2)),
    }
    return {name: [reason, data.hex()] for name, (reason, data) in found.items()}


def promise_vector(promise: JointPromise) -> Any:
    signatures = [[index, signature.hex()] for index, signature in promise.signatures]
    body, name = promise.body.hex(), name_carried(promise).hex()
    return {"bytes": promise.encode().hex(), "body": body, "name": name, "signatures": signatures}


def main() -> None:
    vectors = {
        "about": __doc__,
        "plan": PLAN.encode().hex(),
        "publisher_key": key_of(PUBLISHER).public.raw.hex(),
        "parcels": [PARCEL.encode().hex(), OTHER.encode().hex()],
        "origins": {
            "good": [{"bytes": ORIGIN.encode().hex(), "body": ORIGIN.body.hex(), "lane_key": ORIGIN.lane_key.hex()}],
            "bad": bad_origins(),
        },
        "promises": {
            "good": [promise_vector(PROMISE), promise_vector(promised(PLAN, OTHER, 1 << 40, (1, 2, 3)))],
            "bad": bad_promises(),
        },
        "frames": {"good": good_frames(), "bad": bad_frames()},
    }
    PATH.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
