"""Copies of groups' offsets in Kafka: what another notary wrote is told from what somebody else did."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tallystick.carriers.kafka.administration import GROUPS_AT_ONCE, Spot
from tallystick.carriers.kafka.reconcile import REFRESH_LOOKS, Drift, Offsets
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable

SPOT = Spot(b"g" * 16, Place(b"t" * 16, 0))


class Copies:
    """What Kafka keeps of offsets."""

    def __init__(self) -> None:
        self.offsets: dict[Spot, int] = {}
        self.asked: list[set[bytes]] = []
        self.written = 0
        self.in_use = False

    def group_offsets(self, spots: Collection[Spot]) -> dict[Spot, int]:
        self.asked.append({spot.group for spot in spots})
        return {spot: self.offsets[spot] for spot in spots if spot in self.offsets}

    def set_group_offsets(self, offsets: Mapping[Spot, int]) -> None:
        if self.in_use:
            raise Unavailable("somebody reads in the group's name")
        self.offsets.update(offsets)
        self.written += 1


def test_a_copy_follows_the_ledger_forward_and_back() -> None:
    kafka = Copies()
    copies = Offsets(kafka)  # type: ignore[arg-type]
    for offset in (0, 3, 7, 2, 5):
        assert copies.check({SPOT: offset}) == []
        assert kafka.offsets.get(SPOT, 0) == offset
    assert kafka.written == 4


def test_two_notaries_one_of_them_a_block_behind_accuse_nobody() -> None:
    kafka = Copies()
    first, second = Offsets(kafka), Offsets(kafka)  # type: ignore[arg-type]
    for ahead, behind in ((2, 0), (4, 2), (9, 4), (3, 9), (5, 3), (5, 5)):
        assert first.check({SPOT: ahead}) == []
        assert second.check({SPOT: behind}) == []
    assert kafka.offsets[SPOT] == 5


def test_what_nobody_of_ours_moved_is_told_once_and_put_back() -> None:
    kafka = Copies()
    copies = Offsets(kafka)  # type: ignore[arg-type]
    copies.check({SPOT: 5})
    for tampered in (9, 0):
        kafka.offsets[SPOT] = tampered
        assert copies.check({SPOT: 5}) == []  # another notary may be a block ahead
        what = f"group {'67' * 16}: {tampered} in partition 0 of topic {'74' * 16}, 5 on the ledger"
        assert copies.check({SPOT: 5}) == [Drift("offset-moved", what, SPOT.place.token)]
        assert kafka.offsets[SPOT] == 5
        assert copies.check({SPOT: 5}) == []


def test_a_group_in_use_by_others_is_told_once_and_put_back_when_it_can_be() -> None:
    kafka = Copies()
    copies = Offsets(kafka)  # type: ignore[arg-type]
    copies.check({SPOT: 5})
    kafka.offsets[SPOT], kafka.in_use = 9, True
    assert [len(copies.check({SPOT: 5})) for _ in range(4)] == [0, 1, 0, 0]
    kafka.in_use = False
    assert copies.check({SPOT: 5}) == []
    assert kafka.offsets[SPOT] == 5


def test_many_groups_have_their_turns() -> None:
    kafka = Copies()
    copies = Offsets(kafka)  # type: ignore[arg-type]
    spots = {Spot(number.to_bytes(16, "big"), SPOT.place): 1 for number in range(2 * GROUPS_AT_ONCE + 1)}
    for _ in range(3):
        copies.check(spots)
    assert kafka.offsets == spots
    assert max(map(len, kafka.asked)) == GROUPS_AT_ONCE


def test_copies_are_written_again_before_kafka_forgets_them() -> None:
    kafka = Copies()
    copies = Offsets(kafka)  # type: ignore[arg-type]
    for _ in range(REFRESH_LOOKS):
        copies.check({SPOT: 5})
    assert kafka.written == 2
