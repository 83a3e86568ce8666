"""Who carries which part, against every placement of bad relays; and the attack succeeding without the defence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations, product

import pytest
from blake3 import blake3

from tallystick.carriers.overlay.content import Parts, Strategy, carrier, gather, parts, sends
from tallystick.crypto.blocks import body_root
from tallystick.crypto.coding import Assembly, CodedBlock, CodedBody, encode
from tallystick.errors import Forged, Misuse

CODES = [(3, Parts(2, 3)), (5, Parts(3, 5))]
Bad = Sequence[frozenset[int]]  # by hop, indices


def one_at_each_hop(size: int, hops: int = 3) -> list[Bad]:
    return [tuple(frozenset({index}) for index in chosen) for chosen in product(range(size), repeat=hops)]


def most_at_each_hop(size: int, hops: int = 3) -> list[Bad]:
    each = [frozenset(chosen) for chosen in combinations(range(size), (size - 1) // 2)]
    return list(product(each, repeat=hops))


# --- one way for each part, and no second ---


def arrive(route: Callable[[int, int], int], bad: Bad, total: int) -> int:
    """How many parts come through, where part p goes only over `route(p, hop)`."""
    return sum(all(route(part, hop) not in at_hop for hop, at_hop in enumerate(bad)) for part in range(total))


@pytest.mark.parametrize(("size", "split"), CODES)
def test_parts_that_stay_at_their_index_are_cut_by_three_relays_at_different_indices(size: int, split: Parts) -> None:
    bad = (frozenset({0}), frozenset({1}), frozenset({2}))
    assert arrive(lambda part, _hop: part, bad, split.total) == split.total - 3 < split.needed


@pytest.mark.parametrize(("size", "split"), CODES)
def test_rotation_alone_only_moves_the_attack(size: int, split: Parts) -> None:
    came = {bad: arrive(lambda part, hop: carrier(part, hop, size), bad, split.total) for bad in one_at_each_hop(size)}
    assert came[frozenset({0}), frozenset({1}), frozenset({2})] == split.total - 1  # the attack above meets one part
    assert min(came.values()) == split.total - 3 < split.needed


def test_no_assignment_of_one_way_for_each_part_is_safe() -> None:
    for second, third in product(permutations(range(3)), repeat=2):
        ways = (range(3), second, third)
        assert min(arrive(lambda part, hop, w=ways: w[hop][part], bad, 3) for bad in one_at_each_hop(3)) == 0  # type: ignore[misc]


# --- the parts that are missing are asked for, and made anew ---


def collect(held: set[int], before: list[set[int]], silent: set[int], hop: int, split: Parts, first: int) -> set[int]:
    """Ask until there are enough, or nobody is left. A bad relay holds nothing and is silent."""
    while asked := gather(held, silent, hop, len(before), split, first=first):
        for relay, part in asked:
            if part in before[relay]:
                held.add(part)
            else:
                silent.add(relay)
    return held


def through(sizes: Sequence[int], bad: Bad, split: Parts) -> set[int]:
    """What a subscriber holds in the end. Bad relays take everything and send nothing."""
    before = [{part for part in range(split.total) if carrier(part, 0, sizes[0]) == at} for at in range(sizes[0])]
    for hop in range(len(sizes)):
        for relay in bad[hop]:
            before[relay] = set()
        if hop + 1 == len(sizes):
            break
        now: list[set[int]] = [set() for _ in range(sizes[hop + 1])]
        for relay in range(sizes[hop]):
            for after, part in sends(relay, hop, sizes, split):
                if part in before[relay]:
                    now[after].add(part)
        for part in range(split.total):
            own = now[carrier(part, hop + 1, sizes[hop + 1])]
            if part not in own:
                late = carrier(part, hop, sizes[hop])
                if len(collect(set(own), before, {late}, hop, split, part)) >= split.needed:
                    own.add(part)
        before = now
    return collect(set(), before, set(), len(sizes) - 1, split, 0)


@pytest.mark.parametrize(("size", "split"), CODES)
def test_three_bad_relays_of_three_hops_cut_nothing(size: int, split: Parts) -> None:
    for bad in one_at_each_hop(size):
        assert len(through([size] * 3, bad, split)) == split.needed, bad


@pytest.mark.parametrize(("size", "split"), CODES)
def test_neither_do_as_many_as_the_model_allows_at_every_hop(size: int, split: Parts) -> None:
    for bad in most_at_each_hop(size):
        assert len(through([size] * 3, bad, split)) == split.needed, bad


def test_nor_over_five_hops_or_where_sizes_differ() -> None:
    for bad in one_at_each_hop(3, 5):
        assert len(through([3] * 5, bad, Parts(2, 3))) == 2
    sizes = [3, 5, 3]
    split = parts(Strategy.CODED, 1 << 20, sizes, 0)
    for first, second, third in product(range(3), combinations(range(5), 2), range(3)):
        assert len(through(sizes, (frozenset({first}), frozenset(second), frozenset({third})), split)) == split.needed


def test_replicas_come_through_as_well() -> None:
    for bad in one_at_each_hop(3):
        assert len(through([3] * 3, bad, parts(Strategy.REPLICAS, 1 << 20, [3] * 3, 0))) == 1


@pytest.mark.parametrize(("size", "split"), CODES)
def test_one_more_than_the_model_allows_does_cut(size: int, split: Parts) -> None:
    too_many = frozenset(range(size - split.needed + 1))
    assert len(through([size] * 3, (frozenset(), too_many, frozenset()), split)) < split.needed


def test_a_relay_makes_its_block_anew_from_true_ones() -> None:
    """With real blocks: the carrier is silent, one of those asked lies, and the asker still comes to its own block."""
    body = bytes(blake3(b"body").digest(length=5_000))
    coded = encode(body, 3, 5)
    split, silent, own = Parts(3, 5), {carrier(4, 1, 5)}, 4
    assembly = Assembly(coded.coding, len(body), body_root(body))
    liar = carrier(0, 1, 5)
    while asked := gather(assembly.held, silent, 1, 5, split, first=own):
        for relay, part in asked:
            try:
                assembly.add(answer(coded, part, lies=relay == liar))
            except Forged:
                silent.add(relay)
    assert (sorted(assembly.held), silent) == ([1, 2, 3], {liar, carrier(4, 1, 5)})
    assert assembly.coded().block(bytes(32), own) == coded.block(bytes(32), own)


def answer(coded: CodedBody, part: int, *, lies: bool) -> CodedBlock:
    true = coded.block(bytes(32), part)
    return CodedBlock(true.parcel, part, bytes(len(true.data)), true.path) if lies else true


# --- how a body is divided ---


def test_small_parcels_are_replicated_and_large_ones_are_as_the_strategy_says() -> None:
    sizes = [3, 3, 3]
    assert {parts(strategy, 1000, sizes, 1000) for strategy in Strategy} == {Parts(1, 3)}
    assert parts(Strategy.REPLICAS, 1001, sizes, 1000) == Parts(1, 3)
    assert parts(Strategy.ONE_COPY, 1001, sizes, 1000) == Parts(1, 1)
    assert parts(Strategy.CODED, 1001, sizes, 1000) == Parts(2, 3)


@pytest.mark.parametrize(
    ("sizes", "split"), [([5], Parts(3, 5)), ([7], Parts(4, 7)), ([3, 5], Parts(3, 5)), ([3, 5, 7], Parts(8, 14))]
)
def test_the_code_is_the_leanest_that_the_smallest_majority_can_decode(sizes: list[int], split: Parts) -> None:
    assert parts(Strategy.CODED, 1 << 20, sizes, 0) == split


def test_a_body_that_would_make_blocks_too_large_has_more_of_them() -> None:
    split = parts(Strategy.CODED, 64 << 20, [3], 0)
    assert split == Parts(4, 6)
    with pytest.raises(Misuse, match="no code of at most 64"):
        parts(Strategy.CODED, 1 << 30, [3], 0)


def test_every_part_has_one_carrier_and_the_load_is_even() -> None:
    for hop in range(5):
        assert sorted(carrier(part, hop, 3) for part in range(6)) == [0, 0, 1, 1, 2, 2]
    assert [sends(relay, 0, [3, 3], Parts(2, 3)) for relay in range(3)] == [[(1, 0)], [(2, 1)], [(0, 2)]]
