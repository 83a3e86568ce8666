"""Placement: the paper's phases with its numbers, seats that no operator holds twice, and failures that liars cannot
make up (000, appendix, "Replica placement framework")."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.placement import (
    OverlayPath,
    Placement,
    PlacementLimits,
    RelayOffer,
    apportion,
    phase_two,
    place,
    priorities,
)
from tallystick.errors import Misuse

# The paper's example as far as its text goes: all three paths meet at B1 and B2. Fig. 8 itself is not in the file.
PATHS = [
    OverlayPath("P", ("B1", "B2", "B3")),
    OverlayPath("P", ("B1", "B2", "B4")),
    OverlayPath("P", ("B1", "B2", "B5")),
]
NODES = ["B1", "B2", "B3", "B4", "B5"]
ROOMY = PlacementLimits()


def offers(count: int, operators: int = 8, latency_ms: int = 10) -> list[RelayOffer]:
    return [RelayOffer(f"r{at:02}", f"operator {at % operators}", f"host {at}", latency_ms + at) for at in range(count)]


def sizes(placed: Placement) -> dict[str, int]:
    return {node: len(seated) for node, seated in placed.seats.items()}


# --- phases one and two, as the paper has them ---


def test_the_worked_example_of_phase_one() -> None:
    """ρ = 2, 3 and 5 with ten replicas: two, three and five."""
    assert apportion(10, [2, 3, 5]) == [2, 3, 5]


def test_the_worked_example_of_phase_two_and_what_the_paper_observes_in_it() -> None:
    """With equal failures B1 and B2 get a batch from each of the three paths, and some nodes end with fewer than three:
    the paper's two observations. The variation takes two packs from B1."""
    spread = phase_two(PATHS, [2, 3, 5], {})
    assert spread == {"B1": 4, "B2": 4, "B3": 0, "B4": 1, "B5": 1}
    once = phase_two(PATHS, [2, 3, 5], {}, once=True)
    assert once == {"B1": 2, "B2": 2, "B3": 2, "B4": 2, "B5": 2}
    assert sum(once.values()) == sum(spread.values()) == 10


def test_priority_is_hops_times_share_of_failures_times_weight() -> None:
    paths = [OverlayPath("P", ("A", "B")), OverlayPath("P", ("A", "C", "D"), weight=Fraction(1, 2))]
    # With the prior of one failure each: path one has 4 + 1, path two 4 + 2 + 1, twelve in all.
    found = priorities(paths, {"A": 3, "C": 1})
    assert found == [2 * Fraction(5, 12), 3 * Fraction(7, 12) / 2]


def test_before_the_first_failure_replicas_go_by_hops_and_weight() -> None:
    assert priorities(PATHS, {}) == [3 * Fraction(1, 3)] * 3
    assert apportion(9, priorities(PATHS, {})) == [3, 3, 3]


def test_within_a_path_a_node_gets_its_share_of_the_failures() -> None:
    assert phase_two(PATHS[:1], [10], {"B1": 5, "B2": 2, "B3": 0}) == {"B1": 6, "B2": 3, "B3": 1}


@given(st.integers(0, 500), st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_largest_remainder_gives_all_and_strays_less_than_one(count: int, weights: list[int]) -> None:
    given_ = apportion(count, weights)
    assert sum(given_) == count
    assert all(abs(got - Fraction(count * one, sum(weights))) < 1 for got, one in zip(given_, weights, strict=True))


def test_equal_remainders_are_served_in_order_and_no_weights_are_refused() -> None:
    assert apportion(4, [1, 1, 1]) == [2, 1, 1]
    for weights in ([0, 0], [2, -1]):
        with pytest.raises(Misuse, match="weights"):
            apportion(3, weights)


# --- phase three: seats ---


def test_sizes_are_odd_and_three_at_the_least_and_the_rest_is_spare() -> None:
    placed = place(PATHS, offers(22), {"B1": 9}, ROOMY, once=False)
    assert sizes(placed) == {"B1": 7, "B2": 3, "B3": 3, "B4": 3, "B5": 3}
    assert placed.held_back == {"B1": "no two relays of other operators and hosts are left"}
    assert len(placed.spare) == 3
    seated = [name for names in placed.seats.values() for name in names]
    assert len({*seated, *placed.spare}) == len(seated) + len(placed.spare) == 22


def test_ten_replicas_do_not_make_five_virtual_nodes() -> None:
    """The paper's own example has nodes of two, "in such cases, secret sharing cannot be enforced": refused here."""
    with pytest.raises(Misuse, match="10 relays do not seat 5 virtual nodes") as refused:
        place(PATHS, offers(10), {}, ROOMY, once=False)
    assert "more relays" in str(refused.value.hint)


@given(st.integers(15, 60), st.integers(3, 12), st.lists(st.integers(0, 30), min_size=5, max_size=5), st.booleans())
def test_no_virtual_node_has_an_operator_or_a_host_twice(
    count: int, operators: int, failed: list[int], once: bool
) -> None:
    relays = offers(count, operators)
    by_name = {one.name: one for one in relays}
    try:
        placed = place(PATHS, relays, dict(zip(NODES, failed, strict=True)), ROOMY, once=once)
    except Misuse:
        assert min(sum(one.operator == f"operator {at}" for one in relays) for at in range(operators)) < 5
        return
    for names in placed.seats.values():
        assert len(names) in (3, 5, 7)
        assert (
            len({by_name[name].operator for name in names}) == len({by_name[name].host for name in names}) == len(names)
        )


def test_the_same_relays_in_another_order_make_the_same_plan() -> None:
    relays, failed = offers(30), {"B2": 4, "B5": 1}
    shuffled = Random(7).sample(relays, len(relays))
    assert (
        place(PATHS, shuffled, failed, ROOMY, once=False).seats == place(PATHS, relays, failed, ROOMY, once=False).seats
    )


def test_quick_relays_of_small_operators_leave_no_node_short() -> None:
    """Quickest first would seat the small operators together, and leave two operators for the other nodes."""
    small = [RelayOffer(f"s{at}", f"small {at}", f"s{at}", 1) for at in range(5)]
    large = [RelayOffer(f"l{who}{at}", f"large {who}", f"l{who}{at}", 50) for who in "ab" for at in range(5)]
    placed = place(PATHS, [*small, *large], {}, ROOMY, once=False)
    assert sizes(placed) == dict.fromkeys(NODES, 3)
    assert all(sum(name.startswith("s") for name in names) == 1 for names in placed.seats.values())


def test_two_relays_on_one_host_are_not_of_one_virtual_node() -> None:
    relays = [RelayOffer(f"r{at}", f"operator {at}", f"host {at // 2}", 1) for at in range(6)]
    [names] = place([OverlayPath("P", ("B1",))], relays, {}, ROOMY, once=False).seats.values()
    assert names == ("r0", "r2", "r4")


# What one more pair breaks. Where B4 fails often it grows, and B2 sends to more.
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (PlacementLimits(latency_ms=58), "ms to"),
        (PlacementLimits(messages=40), "messages a second, at most 40"),
        (PlacementLimits(load=13), "messages a second for a relay in"),
        (PlacementLimits(fan_out=10), "output queues of a relay in"),
        (PlacementLimits(size=3), "relays in B"),
    ],
)
def test_a_node_grows_only_within_every_limit(limits: PlacementLimits, words: str) -> None:
    failed = {"B4": 40}
    free = place(PATHS, offers(24), failed, ROOMY, once=False)
    held = place(PATHS, offers(24), failed, limits, once=False)
    assert sum(sizes(held).values()) < sum(sizes(free).values())
    assert held.held_back
    assert any(words in why for why in held.held_back.values()), held.held_back


def test_a_limit_that_three_relays_break_already_is_named() -> None:
    with pytest.raises(Misuse, match=r"too many already: .* output queues of a relay in B2, at most 8"):
        place(PATHS, offers(24), {}, PlacementLimits(fan_out=8), once=False)
