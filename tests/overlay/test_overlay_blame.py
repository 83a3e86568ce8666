"""What relays sign on the way convicts liars and nobody else: chains of virtual nodes, and the check of the ledger."""

from __future__ import annotations

from random import Random

import pytest
from hops import (
    LIARS,
    Sent,
    entropy,
    first_held,
    next_hop,
    published,
    redistribute,
    two_stories,
    wrong_commitments,
    wrong_shares,
)
from ledger_world import Bench
from overlay_ledger import OverlayWorld

from tallystick.carriers.overlay.redistribution import HeldShare, Hop, Threshold, reshare
from tallystick.ledger import entries
from tallystick.ledger.contracts import reputation
from tallystick.trust.shares import find_false

Held = dict[int, tuple[HeldShare, ...]]


def chains(threshold: Threshold, hops: int, seed: int) -> list[tuple[Hop, Held]]:
    """What honest relays hold before each hop of a chain, with f liars of every kind in each virtual node."""
    random = Random(seed)
    made = published(threshold, seed)
    hop, held, found = made.hop, first_held(made), []
    for _ in range(hops):
        hop = next_hop(hop, threshold)
        found.append((hop, held))
        bad = random.sample(range(1, threshold.count + 1), threshold.need - 1)
        liars = {index: random.choice([*LIARS.values()]) for index in bad}
        held = {index: one.held for index, one in redistribute(held, hop, random, liars).items()}
    return found


def signed_by(hop: Hop, held: Held, index: int) -> Sent:
    return reshare(held[index], hop, index, entropy("relay", hop.branch, index))


@pytest.mark.parametrize(("threshold", "hops"), [(Threshold(2, 3), 4), (Threshold(3, 5), 2)])
def test_nothing_that_an_honest_relay_signs_convicts_it_whoever_lied_before(threshold: Threshold, hops: int) -> None:
    for seed in range(4):
        for hop, held in chains(threshold, hops, seed):
            for index in held:
                shares, lists = signed_by(hop, held, index)
                assert shares.lineages, "an honest relay holds something"
                assert [find_false(shares, one) for one in lists.values()] == [None] * threshold.count
                assert signed_by(hop, held, index)[0].hash == shares.hash  # a resend is no second story


def test_what_liars_tell_on_the_way_is_proof_on_the_ledger() -> None:
    bench = Bench()
    overlay = OverlayWorld(bench.world)
    overlay.stand(bench)
    (hop, held), random = chains(Threshold(2, 3), 1, 1)[0], Random(2)
    teller, forger, other = overlay.edge
    sent = {index: signed_by(hop, held, index) for index in held}
    told = [two_stories(random, hop, sent[1], receiver).shares.sign(teller.key) for receiver in (1, 2)]
    bench.play((other, entries.two_sets(teller.id, teller.key.public.raw, told[0], told[1]), None))
    for liar, index, lie in ((forger, 2, wrong_shares), (other, 3, wrong_commitments)):
        shares, listed = lie(Random(5), hop, sent[index], 1)
        signed = shares.sign(liar.key), listed.sign(liar.key)
        bench.play((teller, entries.false_share(liar.id, liar.key.public.raw, *signed), None))
    assert [reputation.score(bench.state, one.id) for one in overlay.edge] == [90, 90, 90]
