"""Whatever comes over a link, no role raises (its driver would end) and its memory keeps its bounds.

Three kinds of frames: arbitrary bytes, good frames with bytes exchanged, and the worst, well-formed and truly signed by
relays, a publisher and a subscriber that write whatever they like into every field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from carrying_world import HonestCarrier, Routes, promised, sealed
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import INSTANCE
from sharing_world import (
    NOW,
    PUBLISHER,
    STRANGER,
    SUBSCRIBER,
    TOKEN,
    Around,
    Client,
    Honest,
    Lie,
    World,
    chain,
    key_of,
    relay_name,
    seeded,
)
from shelves import MemoryShelf
from test_catching_up import Party
from test_ordering import HERE, Ledger, Orderly

from tallystick import wire
from tallystick.carriers.overlay.carried import ContentMessage, name_carried
from tallystick.carriers.overlay.content_forwarding import ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease, OrderingLimits
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits, SharesMessage
from tallystick.carriers.overlay.share_ends import give_shares
from tallystick.carriers.storage import Place
from tallystick.crypto import group
from tallystick.errors import Malformed
from tallystick.runtime.effects import Arrived, Send, Woken
from tallystick.trust.promise import JointPromise
from tallystick.trust.shares import Complaint, Lineage, ScalarShare, SentLineage, ShareList, ShareSet

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "overlay_messages.json").read_text())
GOOD = [bytes.fromhex(one["bytes"]) for one in VECTORS["frames"]["good"].values()]
PLAN = chain((3, 3, 3))
NODES = [node.identifier for node in PLAN.nodes]
RELAYS = [relay.identifier for node in PLAN.nodes for relay in node.relays]
EVERYBODY = [*RELAYS, PUBLISHER, SUBSCRIBER, STRANGER]
LIMITS = ForwardingLimits(publisher_keys_max=6)
POINTS = [bytes(group.commit(1, at)) for at in range(4)] + [bytes(group.NEUTRAL), b"\xff" * 32]
PARCELS = sealed(8)
NUMBERS = [0, 1, 2, 3, 255, 1 << 16, 1 << 32, (1 << 63) - 1]


class Roles:
    """One of each that takes frames; the second relay of each virtual node, and a subscriber."""

    def __init__(self) -> None:
        self.secret = [
            Honest(relay_name(at, 2), Around({1: PLAN}, node, (SUBSCRIBER,) if at == 3 else ()), 1, LIMITS)
            for at, node in enumerate(NODES, start=1)
        ]
        self.client = Client(SUBSCRIBER, {1: PLAN}, NODES[-1], LIMITS)
        routes = [Routes({1: PLAN}, node, (SUBSCRIBER,) if node == NODES[-1] else ()) for node in NODES]
        self.content = [
            HonestCarrier(relay_name(at, 2), one, ContentLimits(bytes_max=1 << 16)) for at, one in enumerate(routes, 1)
        ]
        self.content[0].content.offer(promised(PLAN, PARCELS[0], 0), PARCELS[0], NOW)
        self.ordering = Orderly(relay_name(1, 2), Ledger({1: PLAN}, Lease(relay_name(1, 1), 1)), {})
        self.ordering.propose(PARCELS[0], NOW)
        full = MemoryShelf(RELAYS, {HERE: [one.encode() for one in PARCELS]})
        self.catching = Party(relay_name(1, 2), full)
        self.catching.role.want(Place(HERE.token, 1), 0, 8, full.tree(HERE).root(), NOW)

    @property
    def all(self) -> list[Any]:
        return [*self.secret, self.client, *self.content, self.ordering, self.catching]

    def tell(self, frame: bytes, sender: bytes, now: float) -> None:
        """Every role, also those that the frame is not for."""
        for role in self.all:
            role.receive(Arrived(sender.hex(), frame), now)

    def wake(self, now: float) -> None:
        for role in self.all:
            role.receive(Woken(), now)

    def check_bounds(self) -> None:
        for one in self.secret:
            lanes = one.forwarding._lanes
            assert len(lanes) <= LIMITS.publisher_keys_max  # there is one publisher
            assert all(len(lane.attempts) <= LIMITS.attempts_max + 1 for lane in lanes.values())
            came = [attempt.came for lane in lanes.values() for attempt in lane.attempts.values()]
            assert all(len(contributions) <= 3 for contributions in came)
            assert len(one.forwarding._alarms._times) <= len(lanes) * (LIMITS.attempts_max + 2)
        wanted = self.client.receiver._wanted
        assert len(wanted) <= LIMITS.publisher_keys_max
        assert all(len(lane.openers) <= LIMITS.attempts_max + 1 for lane in wanted.values())
        for carrier in self.content:
            errands = carrier.content._errands.values()
            assert len(errands) <= 1  # what f+1 relays promised
            assert sum(one.carried.size for one in errands) <= 1 << 16
        assert set(self.ordering.ordering._partitions) <= {HERE}
        heard = self.ordering.ordering._partition(HERE).heard
        limits = OrderingLimits()
        assert len(heard) <= limits.ahead_max
        assert all(len(stories) <= 3 * limits.stories_max for stories in heard.values())
        assert len(self.catching.role._errands) == 1, "what nobody proved is still wanted"

    def check_forgotten(self, now: float) -> None:
        later = now + LIMITS.keep_s + 1
        self.wake(later)
        self.wake(later + LIMITS.keep_s)
        assert not any(one.forwarding._lanes or +one.forwarding._of for one in self.secret)
        assert not self.client.receiver._wanted
        assert not any(one.content._errands for one in self.content)


@cache
def recorded() -> list[tuple[bytes, bytes]]:
    """What second relays hear of two lane keys, and from whom, while everybody is honest."""
    honest: Sequence[Lie] = [lambda _, send, now: [send]]
    world = World((3, 3, 3), 1, {(node, 2): honest for node in (1, 2, 3)})
    for number in range(2):
        world.publish(number)
    world.run(10)
    return [(bytes.fromhex(sender), frame) for one in world.liars for sender, frame in one.saw]


class Wild:
    """A sender that fills in what it likes, and signs it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        locks = [seeded("wild", number) for number in range(6)]
        fixed = PLAN, NODES[0], PUBLISHER
        self.given = [
            give_shares(*fixed, lock, int(NOW * 1000), (TOKEN,), seeded(lock), key_of(PUBLISHER)) for lock in locks
        ]
        self.origins = [one.origin for one in self.given]

    def draw(self) -> tuple[bytes, bytes]:
        """Sender and frame."""
        if self.random.random() < 0.3:
            return self.heard()
        sender = self.random.choice(EVERYBODY)
        return sender, self.random.choice([self.shares, self.given_frame, self.content, self.small, self.order])(sender)

    def one(self, *good: Any) -> Any:
        return self.random.choice(good)

    def number(self, *good: int) -> Any:
        return self.one(*good, *good, *good, self.random.choice(NUMBERS))

    def name(self, *good: bytes) -> Any:
        return self.one(*good, *good, *good, *NODES, self.random.randbytes(len(good[0])))

    def points(self, *counts: int) -> tuple[bytes, ...]:
        return tuple(self.random.choices(POINTS, k=self.one(*counts)))

    def heard(self) -> tuple[bytes, bytes]:
        """As it was, or with something else in the set or the list, signed again."""
        sender, data = self.one(*recorded())
        frame = OverlayFrame.decode(data)
        message = SharesMessage.decode(frame)
        if message.shares is None or message.listed is None or self.random.random() < 0.3:
            return sender, data
        shares, listed = ShareSet.decode(message.shares), ShareList.decode(message.listed)
        first, *rest = shares.lineages
        other = first._replace(lineage=first.lineage._replace(commitments=self.points(len(first.lineage.commitments))))
        blurred = first._replace(fresh=self.points(len(first.fresh)))
        kept = self.one((first, *rest), (other, *rest), (blurred, *rest), ())
        shares = replace(shares, lineages=kept, attempt=self.one(0, 0, 0, 1, 2)).sign(key_of(sender))
        encoded = self.one(listed.encoded, (ScalarShare(1, 2).encode(), *listed.encoded[1:]))[: len(kept)]
        mine = replace(listed, set_hash=shares.hash, encoded=encoded).sign(key_of(sender))
        return sender, message._replace(shares=shares.encode(), listed=mine.encode()).frame(frame.plan)

    def given_frame(self, sender: bytes) -> bytes:
        effect = self.one(*self.one(*self.given).effects)
        assert isinstance(effect, Send)
        data: bytes = effect.message
        return data

    def origin(self) -> Any:
        origin = self.one(*self.origins)
        if self.random.random() < 0.7:
            return origin
        changed = replace(
            origin,
            created_ms=self.number(origin.created_ms, origin.created_ms + 1),
            plan=self.number(1),
            edge=self.one(*NODES, bytes(16)),
            commitments=self.one(origin.commitments, self.points(1, 2, 3, 7)),
        )
        return changed.sign(key_of(PUBLISHER))

    def shares(self, sender: bytes) -> bytes:
        origin, key = self.origin(), key_of(sender)
        contributors = self.one((), (1,), (1, 2), (1, 3), (2, 3), (1, 2, 3), (7,))
        lineages = []
        for _ in range(self.one(0, 1, 1, 2)):
            commitments = self.one(origin.commitments, (*origin.commitments[:1], *self.points(1)), self.points(1, 2, 3))
            parent = self.one(origin.lane_key, self.random.randbytes(32))
            lineages.append(SentLineage(Lineage(contributors, parent, commitments), self.points(0, 1, 2)))
        lineages.sort(key=lambda one: one.lineage.name)
        lane_key, branch = self.name(origin.lane_key), self.one(*NODES, SUBSCRIBER)
        where = lane_key, self.number(1), branch, self.one(0, 1, 2, 3, 4, 255), self.one(1, 2, 3, 7)
        shares = ShareSet(*where, (*lineages,)).sign(key)
        values = [ScalarShare(self.random.randrange(9), self.random.randrange(9)).encode() for _ in lineages]
        listed = ShareList(self.one(shares.hash, bytes(32)), self.one(1, 2, 3, 7), (*values,)).sign(key)
        place = self.one(*NODES, sender, bytes(16))
        complained = lane_key, self.number(1), self.one(0, 1, 2, 255), place, self.one(0, 1, 2, 7), self.one(1, 2), ()
        complaint = Complaint(*complained).sign(key)
        parts = [self.one(None, part.encode()) for part in (complaint, shares, listed)]
        return SharesMessage(origin.encode(), *parts).frame(self.number(origin.plan))

    def promise(self, sender: bytes) -> Any:
        parcel = self.one(*PARCELS)
        place = PLAN.place(sender)
        what = self.one(INSTANCE, INSTANCE, bytes(32)), PLAN.overlay, self.number(1), self.one(*NODES)
        promise = JointPromise(
            *what,
            self.number(1, 2),
            self.one(TOKEN, HERE.token),
            self.one(0, 0, 1, 65535),
            self.number(0, 1, 2),
            parcel.hash,
            self.number(1),
            self.number(1),
            (),
        )
        promise = self.one(promise, replace(promised(PLAN, parcel, 0), height=self.number(1), signatures=()))
        index = self.one(1 if place is None else place[1], 1, 2, 3, 7)
        return promise.sign(index, key_of(sender))

    def content(self, sender: bytes) -> bytes:
        parcel = self.one(*PARCELS)
        promise = self.one(self.promise(sender), promised(PLAN, PARCELS[0], 0))
        front = self.one(parcel.encode_front(), PARCELS[0].encode_front(), b"", parcel.encode_front()[:9])
        body = self.one(None, bytes(parcel.body), bytes(PARCELS[0].body), b"")
        return ContentMessage(promise.encode(), front, self.one(None, b"", b"x"), body).frame(self.number(promise.plan))

    def small(self, sender: bytes) -> bytes:
        name = self.one(name_carried(promised(PLAN, PARCELS[0], 0)), bytes(32))
        kind, *content = self.one(
            (FrameKind.ASK, name, self.random.choices(range(66), k=self.one(0, 1, 3, 65))),
            (FrameKind.ACK, name),
            (FrameKind.TAKE_OVER, self.one(HERE.token, TOKEN), self.number(0), self.number(0)),
            (FrameKind.FETCH, self.one(HERE.token, TOKEN), self.number(0), self.number(0), PARCELS[0].hash),
            (FrameKind.ROUTE, b""),
            (FrameKind.STATE, None),
            (FrameKind.CATCH_UP, self.question(), None),
            (FrameKind.CATCH_UP, self.question(), [[self.one(*PARCELS).encode()], self.one([], [name]), []]),
        )
        return OverlayFrame(kind, self.number(1), wire.encode([1, *content])).encode()

    def question(self) -> bytes:
        place = self.one(HERE.token, TOKEN), self.number(0, 1)
        return wire.encode([1, *self.one((*place, self.number(0), self.number(8), self.number(0)), ([bytes(32)],))])

    def order(self, sender: bytes) -> bytes:
        parcel = self.one(None, None, self.one(*PARCELS).encode(), b"x")
        content = wire.encode([1, self.promise(sender).encode(), parcel])
        return OverlayFrame(FrameKind.ORDER, self.number(1), content).encode()


@pytest.mark.parametrize("seed", range(2))
def test_what_liars_sign_raises_nothing_and_takes_bounded_memory(seed: int) -> None:
    roles, wild = Roles(), Wild(seed)
    now = NOW
    for number in range(300):
        sender, frame = wild.draw()
        roles.tell(frame, sender, now)
        if number % 20 == 0:
            now += wild.random.choice([0.0, 0.1, 0.6])
            roles.wake(now)
    roles.check_bounds()
    dropped = [sum(one.dropped.values()) for one in layers(roles)]
    assert all(dropped), "it was told"
    assert any(one.forwarding._lanes for one in roles.secret), "and took something"
    roles.check_forgotten(now)


def layers(roles: Roles) -> Sequence[Any]:
    return [
        *(one.forwarding for one in roles.secret),
        roles.client.receiver,
        *(one.content for one in roles.content),
        roles.ordering.ordering,
        roles.catching.role,
    ]


SHARED = Roles()
frames = st.one_of(
    st.builds(
        OverlayFrame, st.sampled_from(FrameKind), st.sampled_from([0, 1, 2, 1 << 40]), st.binary(max_size=64)
    ).map(OverlayFrame.encode),
    st.tuples(st.sampled_from(GOOD), st.integers(0, 1 << 16), st.integers(0, 3), st.binary(max_size=3)).map(
        lambda cut: exchanged(*cut)
    ),
)


def exchanged(good: bytes, at: int, length: int, new: bytes) -> bytes:
    at %= len(good)
    return good[:at] + new + good[at + length :]


@given(frame=frames, sender=st.sampled_from(EVERYBODY))
@settings(max_examples=200, deadline=None)
def test_bytes_that_nobody_wrote_raise_nothing(frame: bytes, sender: bytes) -> None:
    try:
        OverlayFrame.decode(frame)
    except Malformed:  # the driver drops it
        return
    SHARED.tell(frame, sender, NOW)
    SHARED.check_bounds()
