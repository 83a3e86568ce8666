"""`python benchmarks/groups.py`: two groups of prime order for shares, and what a hop costs in the one that was chosen.

PyNaCl's edwards25519 against pymcl's G1 of BLS12-381, in microseconds of processor time, the least of some runs:
the numbers of docs/decisions/0056-a-group-for-shares.md. Then a relay's work for one lane key at one hop, by (k, n).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add

import pymcl

from tallystick.carriers.overlay.redistribution import (
    ALONE,
    Contribution,
    ShareOpener,
    Threshold,
    check,
    combine,
    commitment_to,
    reshare,
    split,
)
from tallystick.crypto import group
from tallystick.crypto.abe.sharing import ORDER as MCL_ORDER
from tallystick.crypto.signatures import SigningKey

VALUE, BLIND = 2**251 + 987654321, 2**250 + 123456789
SIGNER = SigningKey.from_seed(bytes(32))
MCL_BASE = pymcl.G1.hash(b"a second base")


def least_us(work: Callable[[], object], times: int = 100, rounds: int = 7) -> float:
    found = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - began) / times)
    return min(found) * 1e6


def mcl_scalar(value: int) -> pymcl.Fr:
    return pymcl.Fr(str(value % MCL_ORDER))


def mcl_commit(value: int, blind: int) -> pymcl.G1:
    return pymcl.g1 * mcl_scalar(value) + MCL_BASE * mcl_scalar(blind)


def mcl_at(points: list[pymcl.G1], index: int) -> pymcl.G1:
    return reduce(lambda total, point: total * mcl_scalar(index) + point, reversed(points))


def primitives() -> None:
    ours = [group.commit(VALUE + number, BLIND) for number in range(3)]
    theirs = [mcl_commit(VALUE + number, BLIND) for number in range(3)]
    encoded = [point.serialize() for point in theirs]
    parse = group.decode_point.__wrapped__  # without its cache
    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "multiply": (lambda: group.multiply(ours[0], VALUE), lambda: theirs[0] * mcl_scalar(VALUE)),
        "add": (lambda: group.add(*ours[:2]), lambda: add(*theirs[:2])),
        "parse a point": (lambda: parse(ours[0], ""), lambda: pymcl.G1.deserialize(encoded[0])),
        "commit": (lambda: group.commit(VALUE, BLIND), lambda: mcl_commit(VALUE, BLIND)),
        "verify a share, k = 2": (
            lambda: group.commit(VALUE, BLIND) == group.point_at([parse(one, "") for one in ours[:2]], 3),
            lambda: mcl_commit(VALUE, BLIND) == mcl_at([pymcl.G1.deserialize(one) for one in encoded[:2]], 3),
        ),
        "verify a share, k = 3": (
            lambda: group.commit(VALUE, BLIND) == group.point_at([parse(one, "") for one in ours], 5),
            lambda: mcl_commit(VALUE, BLIND) == mcl_at([pymcl.G1.deserialize(one) for one in encoded], 5),
        ),
    }
    print(f"{'':24}{'PyNaCl':>10}{'pymcl':>10}   microseconds")
    for name, (one, other) in rows.items():
        print(f"{name:24}{least_us(one):10.1f}{least_us(other):10.1f}")


def hop_costs(threshold: Threshold) -> tuple[list[float], int]:
    """Split, re-share, combine and open, in milliseconds, and the bytes of a signed set."""
    lane_key = bytes(32)
    made = split(bytes(32), lane_key, 1, bytes(16), threshold)
    held = {index: combine(made.hop, [Contribution(made.shares, one)], index).held for index, one in made.lists.items()}
    hop = replace(made.hop, before=ALONE, senders=threshold)
    for _ in range(2):  # after the second, every relay has held a lineage for each contributor set
        was_hop, was_held = hop, held
        sent = {index: reshare(one, hop, index, bytes([index]) * 32) for index, one in held.items()}
        offers = {
            to: [check(hop, Contribution(shares, lists[to]), to) for shares, lists in sent.values()] for to in held
        }
        held = {to: combine(hop, offers[to], to).held for to in held}
        hop = replace(hop, before=threshold)
    end = replace(hop, receivers=ALONE)
    final = [Contribution(one, lists[1]) for one, lists in (reshare(held[at], end, at, bytes(32)) for at in held)]

    def combined() -> None:
        group.decode_point.cache_clear()
        combine(was_hop, offers[1], 1)

    def opened() -> None:
        opener = ShareOpener(end, commitment_to(made.secret, lane_key))
        assert any(opener.add(one) for one in final)

    works: list[Callable[[], object]] = [
        lambda: split(bytes(32), lane_key, 1, bytes(16), threshold),
        lambda: reshare(was_held[1], was_hop, 1, bytes(32)),
        combined,
        opened,
    ]
    return [least_us(work, 2, 9) / 1000 for work in works], len(sent[1][0].sign(SIGNER).encode())


def hops() -> None:
    print(f"\n{'one lane key':14}{'split':>10}{'reshare':>10}{'combine':>10}{'open':>10}   milliseconds, set in bytes")
    for threshold in (Threshold(2, 3), Threshold(3, 5), Threshold(4, 7)):
        figures, size = hop_costs(threshold)
        shown = "".join(f"{figure:10.2f}" for figure in figures)
        print(f"({threshold.need}, {threshold.count}){'':8}{shown}{size:10}")


if __name__ == "__main__":
    primitives()
    hops()
