"""Notaries share partitions without asking one another, and none stays without one."""

from __future__ import annotations

from collections import Counter

from tallystick.carriers.kafka.anchorer import PATIENCE_MS, Turns, rank
from tallystick.carriers.storage import Place

NODES = [bytes([number]) * 16 for number in range(3)]
PLACES = [Place(b"t" * 16, partition) for partition in range(300)]


def first(place: Place, nodes: list[bytes] = NODES) -> bytes:
    return next(node for node in nodes if rank(place, nodes, node) == 0)


def test_every_partition_has_one_that_judges_at_once_and_the_shares_are_even() -> None:
    due = {place: [node for node in NODES if Turns(node).is_due(place, NODES, 0)] for place in PLACES}
    assert all(len(nodes) == 1 for nodes in due.values())
    assert min(Counter(first(place) for place in PLACES).values()) > 70


def test_a_node_that_goes_moves_its_share_alone() -> None:
    left = NODES[:2]
    assert all(first(place, left) == first(place) for place in PLACES if first(place) in left)


def test_a_silent_one_is_waited_for_and_then_taken_over_for_good() -> None:
    place = next(place for place in PLACES if first(place) == NODES[0])
    second = next(node for node in NODES if rank(place, NODES, node) == 1)
    turns = Turns(second)
    assert not turns.is_due(place, NODES, 1_000)
    assert not turns.is_due(place, NODES, 1_000 + PATIENCE_MS - 1)
    assert turns.is_due(place, NODES, 1_000 + PATIENCE_MS)
    turns.wrote(place)
    assert turns.is_due(place, NODES, 9_000)  # without waiting again


def test_one_that_comes_back_has_its_share_again() -> None:
    place = next(place for place in PLACES if first(place) == NODES[0])
    second = next(node for node in NODES if rank(place, NODES, node) == 1)
    turns = Turns(second)
    turns.wrote(place)
    turns.followed(place)  # an anchor of the other's
    assert not turns.is_due(place, NODES, 9_000)


def test_a_notary_that_the_topic_does_not_name_waits_for_all_others() -> None:
    turns = Turns(b"x" * 16)
    assert not turns.is_due(PLACES[0], NODES, 0)
    assert turns.is_due(PLACES[0], NODES, len(NODES) * PATIENCE_MS)
