"""One root for a partition: who signs has computed it itself, whatever the holder and the others send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import pytest
from makers import INSTANCE
from sharing_world import NOW, chain, key_of, relay_name
from test_ordering import HERE, Ledger
from without import without

from tallystick import wire
from tallystick.carriers.overlay.anchoring import AGAIN_S, Anchoring
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.storage import Place
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.promise import JointAnchor

ANOTHER = Place(b"another topic..."[:16], 0)


def root(story: str, size: int) -> bytes:
    """Of so many parcels; a story that splits off differs from the fourth on."""
    names = [f"{number}" if number < 3 else f"{story}{number}" for number in range(size)]
    return Tree([leaf_hash(sha256(name.encode()).digest()) for name in names]).root()


@dataclass
class Edge:
    """A virtual node; each relay keeps so many parcels of a story, behind what is anchored."""

    size: int = 3
    kept: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = chain((self.size, 3))
        self.ledger = Ledger({1: self.plan}, Lease(relay_name(1, 1), 1))
        self.anchored_root = b""
        self.relays = {index: self._make(index) for index in range(1, self.size + 1)}

    def _make(self, index: int) -> Anchoring:
        name = relay_name(1, index)

        def root_at(place: Place, size: int) -> bytes | None:
            story, kept = self.kept.get(index, ("", 9))
            before = self.ledger.anchored_now
            if before and root(story, before) != self.anchored_root:
                return None
            return root(story, size) if size <= kept else None

        return Anchoring(name, INSTANCE, key_of(name), self.ledger, root_at)

    def offer(self, size: int, now: float = NOW, holder: int = 1) -> list[JointAnchor]:
        """What the ledger gets when the holder offers, and everybody answers."""
        return self.pass_on(holder, self.relays[holder].offer(HERE, size, now), now)

    def pass_on(self, sender: int, effects: Sequence[Effect], now: float = NOW) -> list[JointAnchor]:
        found = [one.value for one in effects if isinstance(one, Deliver)]
        for send in [one for one in effects if isinstance(one, Send)]:
            to, frame = bytes.fromhex(send.to)[1], OverlayFrame.decode(send.message)
            found += self.pass_on(to, self.relays[to].take(frame, relay_name(1, sender), now), now)
        return found

    def joint(self, size: int, story: str = "", **change: Any) -> JointAnchor:
        what = INSTANCE, self.plan.overlay, 1, self.plan.nodes[0].identifier, 1, *HERE, size, root(story, size), 0
        return replace(JointAnchor(*what, ()), **change)

    def bring(self, to: int, joint: JointAnchor, sender: bytes) -> list[Effect]:
        return self.relays[to].take(OverlayFrame(FrameKind.ANCHOR, joint.plan, joint.encode()), sender, NOW)


def signed(joint: JointAnchor, index: int, key: bytes = b"") -> JointAnchor:
    return joint.sign(index, key_of(key or relay_name(1, index)))


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_f_plus_one_relays_agree_and_it_is_told_once(size: int) -> None:
    edge = Edge(size)
    (agreed,) = edge.offer(5)
    agreed.verify(edge.plan)
    assert (agreed.size, agreed.root, agreed.before, agreed.fence) == (5, root("", 5), 0, 1)
    assert not edge.offer(5, NOW + AGAIN_S / 2)
    assert JointAnchor.of([*_entry(agreed)], INSTANCE, agreed.overlay, agreed.node) == agreed


def _entry(joint: JointAnchor) -> list[Any]:
    found: list[Any] = wire.decode(joint.encode_entry())
    return found


def test_a_root_that_nobody_else_comes_to_is_not_signed() -> None:
    """The holder has what the others have not, or says so."""
    edge = Edge(kept={2: ("", 4), 3: ("other ", 9)})
    assert not edge.offer(5)
    assert [edge.relays[index].dropped["other-tree"] for index in (2, 3)] == [1, 1]


def test_without_its_own_look_a_relay_signs_what_nobody_has() -> None:
    edge = Edge(kept={2: ("", 4), 3: ("other ", 9)})
    with without("the root that a relay computes itself"):
        assert edge.offer(5)


def test_one_that_is_behind_signs_when_it_has_all() -> None:
    edge = Edge(kept={2: ("", 4), 3: ("", 4)})
    assert not edge.offer(5)
    edge.kept[2] = "", 5
    assert not edge.offer(5, NOW + AGAIN_S / 2)  # not yet asked again
    assert edge.offer(5, NOW + AGAIN_S)


def test_answers_that_take_long_count_while_the_partition_grows() -> None:
    """An offer is not replaced by a larger one: else, where answers take longer than that, nothing is ever agreed."""
    edge = Edge()
    first = edge.relays[1].offer(HERE, 3, NOW)
    again = edge.relays[1].offer(HERE, 6, NOW + AGAIN_S)
    assert first == again
    assert [one.size for one in edge.pass_on(1, first)] == [3]


def test_an_offer_that_cannot_count_any_more_makes_room() -> None:
    edge = Edge()
    assert edge.relays[1].offer(HERE, 3, NOW)
    edge.ledger.lease_now = Lease(relay_name(1, 1), 3)  # lost, and taken again
    (agreed,) = edge.offer(6, NOW + AGAIN_S)
    assert (agreed.fence, agreed.size) == (3, 6)
    edge.ledger.anchored_now, edge.anchored_root = 6, root("", 6)
    (agreed,) = edge.offer(8, NOW + AGAIN_S)  # at once, since the one before is anchored
    assert (agreed.before, agreed.size) == (6, 8)


def test_what_the_ledger_did_not_take_is_brought_again() -> None:
    edge = Edge()
    (agreed,) = edge.offer(5)
    (again,) = edge.offer(7, NOW + AGAIN_S)
    assert again.body == agreed.body


@pytest.mark.parametrize(
    ("change", "signer", "sender", "reason"),
    [
        ({}, 3, relay_name(1, 3), "no-right"),  # one that does not hold the lease
        ({"fence": 2}, 1, relay_name(1, 1), "no-right"),
        ({"plan": 2}, 1, relay_name(1, 1), "misrouted"),
        ({"node": chain((3, 3)).nodes[1].identifier}, 1, relay_name(1, 1), "misrouted"),
        ({"node": b"no such node...."}, 1, relay_name(1, 1), "malformed"),
        ({}, 1, relay_name(2, 1), "misrouted"),  # of another virtual node
        ({}, 1, b"a client's name."[:16], "misrouted"),
        ({}, 2, relay_name(1, 1), "forged"),  # by another's hand alone
        ({"instance": bytes(32)}, 1, relay_name(1, 1), "other-tree"),
        ({"overlay": b"another overlay."}, 1, relay_name(1, 1), "other-tree"),
        ({"token": ANOTHER.token}, 1, relay_name(1, 1), "no-right"),  # that nobody leads
        ({"root": root("", 100)}, 1, relay_name(1, 1), "other-tree"),
        ({"root": bytes(32)}, 1, relay_name(1, 1), "other-tree"),
        ({"before": 1}, 1, relay_name(1, 1), "behind"),  # it has seen no such anchor
    ],
)
def test_offers_that_do_not_fit_are_dropped(change: dict[str, Any], signer: int, sender: bytes, reason: str) -> None:
    edge = Edge()
    assert not edge.bring(2, signed(edge.joint(5, **change), signer), sender)
    assert edge.relays[2].dropped == {reason: 1}


@pytest.mark.parametrize("data", [b"", b"junk", bytes(4096), b"\x80", b"\x8c" + bytes(60)])
def test_junk_is_dropped(data: bytes) -> None:
    edge = Edge()
    assert not edge.relays[2].take(OverlayFrame(FrameKind.ANCHOR, 1, data), relay_name(1, 1), NOW)
    assert edge.relays[2].dropped == {"malformed": 1}


@pytest.mark.parametrize(
    ("sender", "index", "key", "reason"),
    [
        (2, 2, relay_name(2, 2), "forged"),  # a stranger's key
        (2, 2, relay_name(1, 3), "forged"),  # another's key at its index
        (2, 3, relay_name(1, 3), "forged"),  # another's signature in its name
    ],
)
def test_signatures_of_strangers_do_not_count(sender: int, index: int, key: bytes, reason: str) -> None:
    edge = Edge()
    assert edge.relays[1].offer(HERE, 5, NOW)
    assert not edge.bring(1, signed(edge.joint(5), index, key), relay_name(1, sender))
    assert edge.relays[1].dropped == {reason: 1}


def test_one_relay_is_one_signature_however_many_it_brings() -> None:
    edge = Edge(5)
    assert edge.relays[1].offer(HERE, 5, NOW)
    crowd = edge.joint(5)
    for index in (2, 3, 4, 5):
        crowd = signed(crowd, index, relay_name(1, 2) if index > 2 else b"")
    for _ in range(5):
        assert not edge.bring(1, crowd, relay_name(1, 2))
    assert edge.bring(1, signed(edge.joint(5), 3), relay_name(1, 3))


def test_signatures_under_something_else_do_not_count() -> None:
    edge = Edge()
    assert edge.relays[1].offer(HERE, 5, NOW)
    for joint in (edge.joint(4), edge.joint(5, "other "), edge.joint(5, before=2)):
        assert not edge.bring(1, signed(joint, 2), relay_name(1, 2))
    assert edge.relays[1].dropped == {"late": 3}


def test_only_who_holds_the_lease_offers() -> None:
    edge = Edge()
    assert not edge.relays[2].offer(HERE, 5, NOW)
    assert not edge.relays[1].offer(ANOTHER, 5, NOW)
    edge.ledger.lease_now = Lease(relay_name(2, 1), 1)
    assert not edge.relays[1].offer(HERE, 5, NOW)


def test_a_fork_is_resolved_by_the_first_root_that_f_plus_one_sign() -> None:
    """The orderer gave two stories: who keeps the one that is not anchored signs nothing before it has the other."""
    edge = Edge(kept={1: ("", 5), 2: ("", 5), 3: ("other ", 5)})
    (agreed,) = edge.offer(5)
    assert dict(agreed.signatures).keys() == {1, 2}
    edge.ledger.anchored_now, edge.anchored_root = 5, agreed.root
    other = signed(edge.joint(5, "other "), 1)  # the holder is the liar, and asks the third for its root
    assert not edge.bring(3, other, relay_name(1, 1))
    assert not edge.bring(3, signed(edge.joint(5, "other ", before=5), 1), relay_name(1, 1))
    edge.kept = {3: ("", 8)}
    (agreed,) = edge.offer(8, NOW + AGAIN_S)
    assert agreed.before == 5
