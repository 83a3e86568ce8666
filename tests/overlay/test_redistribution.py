"""Labelled verifiable redistribution: agreement without consensus, liars at every hop, what a subscriber opens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from random import Random

import hops
import pytest

from tallystick.carriers.overlay.redistribution import (
    ALONE,
    Contribution,
    HeldShare,
    Hop,
    ShareOpener,
    Threshold,
    check,
    combine,
    commitment_to,
    reshare,
    split,
)
from tallystick.crypto import group
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.trust.shares import ScalarShare, SentLineage, verify_share

SMALL, LARGE = Threshold(2, 3), Threshold(3, 5)


def names(held: tuple[HeldShare, ...]) -> set[bytes]:
    return {one.lineage.name for one in held}


def holds(one: HeldShare) -> None:
    """The share verifies against the commitments of its lineage."""
    points = [group.decode_point(point, "commitment") for point in one.lineage.commitments]
    verify_share(points, one.index, one.share)


@pytest.mark.parametrize("threshold", [SMALL, LARGE, Threshold(1, 1), Threshold(3, 4), Threshold(3, 3)])
def test_a_publishers_shares_verify_and_are_all_of_the_lineage_that_its_header_names(threshold: Threshold) -> None:
    made = hops.published(threshold)
    held = hops.first_held(made)
    assert len(held) == threshold.count
    for index, (one,) in held.items():
        assert one.index == index
        assert one.lineage == made.hop.origin
        holds(one)
        if threshold.need > 1:
            with pytest.raises(Forged):
                holds(replace(one, share=ScalarShare(one.share.value + 1, one.share.blind)))


def test_honest_relays_agree_in_whatever_order_sets_arrive() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = hops.first_held(made)
    sent = {index: reshare(one, hop, index, hops.entropy(index)) for index, one in held.items()}
    results = set()
    for order in permutations(sent):
        for receiver in (1, 2, 3):
            found = hops.received(hop, [hops.honest(sent[index], receiver) for index in order], receiver)
            assert not found.liars
            for one in found.held:
                holds(one)
            results.add(tuple(one.lineage for one in found.held))
    assert len(results) == 1
    assert [one.contributors for one in results.pop()] == [(1, 2), (1, 3), (2, 3)]


def test_the_smallest_lineage_that_all_contributors_sent_validly_is_taken() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = {index: one.held for index, one in hops.redistribute(hops.first_held(made), hop, Random(1), {}).items()}
    hop = hops.next_hop(hop, SMALL)
    sent = {index: reshare(one, hop, index, hops.entropy(index)) for index, one in held.items()}
    smallest, second, _ = sorted(names(held[1]))
    offers = {index: check(hop, hops.honest(one, 1), 1) for index, one in sent.items()}
    assert {one.lineage.parent for one in combine(hop, offers.values(), 1).held} == {smallest}
    # Lineages stand in the order of their names: the first share is the smallest one's.
    shifted = [bytes(64), *sent[2][1][1].encoded[1:]]
    offers[2] = check(hop, hops.relisted(sent[2][0], sent[2][1][1], shifted), 1)
    found = combine(hop, offers.values(), 1)
    parents = {one.lineage.contributors: one.lineage.parent for one in found.held}
    assert parents == {(1, 2): second, (1, 3): smallest, (2, 3): second}
    assert list(found.liars) == [2]


def test_a_lineage_off_the_publishers_commitment_or_the_plan_is_refused() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = {index: one.held for index, one in hops.redistribute(hops.first_held(made), hop, Random(1), {}).items()}
    hop = hops.next_hop(hop, SMALL)
    shares, lists = reshare(held[1][:1], hop, 1, bytes(32))
    lineage = shares.lineages[0].lineage
    for commitments in ((hops.random_points(Random(1), 1)[0], lineage.commitments[1]), lineage.commitments * 2):
        sent = shares.lineages[0]._replace(lineage=lineage._replace(commitments=commitments))
        false = replace(shares, lineages=(sent,))
        with pytest.raises(Malformed, match="begin with the publisher's commitment"):
            check(hop, hops.relisted(false, lists[1], [*lists[1].encoded]), 1)
    for contributors in ((1, 4), (1,), (1, 2, 3)):
        sent = shares.lineages[0]._replace(lineage=lineage._replace(contributors=contributors))
        with pytest.raises(Malformed, match="contributors that the plan has not"):
            check(hop, hops.relisted(replace(shares, lineages=(sent,)), lists[1], [*lists[1].encoded]), 1)


def test_virtual_nodes_may_differ_in_size() -> None:
    made = hops.published(SMALL)
    hop, held = made.hop, hops.first_held(made)
    for receivers in (LARGE, Threshold(1, 2), Threshold(3, 4), SMALL):
        hop = hops.next_hop(hop, receivers)
        found = hops.redistribute(held, hop, Random(1), {})
        held = {index: one.held for index, one in found.items()}
        assert all(names(one) == names(held[1]) for one in held.values())
    assert opened(held, hop, made.secret, Random(1), {}) == {}


def opened(
    held: Mapping[int, tuple[HeldShare, ...]], hop: Hop, secret: bytes, random: Random, liars: Mapping[int, hops.Liar]
) -> dict[int, str]:
    """The subscriber opens, and returns whom it names."""
    last, sent = hops.released(held, hop)
    opener = ShareOpener(last, commitment_to(secret, hops.LANE_KEY))
    offers = [liars[i](random, last, one, 1) if i in liars else hops.honest(one, 1) for i, one in sent.items()]
    random.shuffle(offers)
    for one in offers:
        try:
            found = opener.add(check(last, one, 1)) if one else None
        except Malformed:
            continue
        if found is not None:
            assert found == secret
            return {sender: fault.reason for sender, fault in opener.liars.items()}
    raise AssertionError("not opened")


@pytest.mark.parametrize("distance", [1, 2, 3, 4])
@pytest.mark.parametrize(("threshold", "seeds"), [(SMALL, 12), (LARGE, 2)])
def test_with_k_less_one_liars_in_every_virtual_node_the_subscriber_opens(
    threshold: Threshold, seeds: int, distance: int
) -> None:
    for seed in range(seeds):
        random = Random(seed)
        made = hops.published(threshold, seed)
        hop, held = made.hop, hops.first_held(made)
        for _ in range(distance - 1):
            liars = draw_liars(random, threshold)
            hop = hops.next_hop(hop, threshold)
            found = hops.redistribute(held, hop, random, liars)
            assert all(set(one.liars) <= set(liars) for one in found.values()), f"seed {seed}: an honest one is named"
            held = {index: one.held for index, one in found.items()}
            for index in held:
                assert len(held[index]) <= 10
                for one in held[index]:
                    holds(one)
            # Those that lie at the next hop hold what they hold; all of them were honest receivers here.
            assert set.intersection(*map(names, held.values())), f"seed {seed}: no lineage in common"
        liars = draw_liars(random, threshold)
        assert set(opened(held, hop, made.secret, random, liars)) <= set(liars)


def draw_liars(random: Random, threshold: Threshold) -> dict[int, hops.Liar]:
    indices = random.sample(range(1, threshold.count + 1), threshold.need - 1)
    return {index: random.choice(list(hops.LIARS.values())) for index in indices}


def test_two_stories_split_only_the_lineages_of_the_liar() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    found = hops.redistribute(hops.first_held(made), hop, Random(5), {2: hops.two_stories})
    assert all(len(one.held) == 3 and not one.liars for one in found.values())  # each story is valid by itself
    common = set.intersection(*(names(one.held) for one in found.values()))
    assert [one.lineage.contributors for one in found[1].held if one.lineage.name in common] == [(1, 3)]


def resent(erasables: Mapping[tuple[int, int], bytes]) -> bool:
    """Whether three receivers agree on a lineage, if what sender and receiver have by these secrets was sent."""
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = hops.first_held(made)
    found = []
    for receiver in (1, 2, 3):
        sent = [reshare(held[index], hop, index, erasables[index, receiver]) for index in (1, 2, 3)]
        found.append(names(hops.received(hop, [hops.honest(one, receiver) for one in sent], receiver).held))
    return bool(set.intersection(*found))


def test_a_fresh_polynomial_for_a_resend_breaks_agreement_and_the_same_bytes_do_not() -> None:
    random = Random(7)
    fresh = same = 0
    for run in range(10):
        again = {(index, receiver): random.random() < 0.5 for index in (1, 2, 3) for receiver in (1, 2, 3)}
        same += resent({at: hops.entropy(run, at[0]) for at in again})
        fresh += resent({at: hops.entropy(run, at[0], at[1] if lost else 0) for at, lost in again.items()})
    assert same == 10
    assert fresh < 5


def test_a_resend_is_byte_identical_and_another_branch_plan_or_secret_is_independent() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    (one,) = hops.first_held(made)[1]
    sent, lists = reshare([one], hop, 1, bytes(32))
    assert (sent, lists) == reshare([one], hop, 1, bytes(32))
    later, later_lists = reshare([one], replace(hop, attempt=1), 1, bytes(32))
    assert later.lineages == sent.lineages
    assert [one.encoded for one in later_lists.values()] == [one.encoded for one in lists.values()]
    others = [
        reshare([one], replace(hop, branch=b"another branch.."), 1, bytes(32)),
        reshare([one], replace(hop, plan=hop.plan + 1), 1, bytes(32)),
        reshare([one], hop, 1, b"\x01" * 32),
    ]
    assert len({sent.lineages[0].fresh, *(other[0].lineages[0].fresh for other in others)}) == 4
    again = split(hops.entropy("publisher", 0), hops.LANE_KEY, hops.PLAN, hops.branch(0), SMALL, attempt=1)
    assert again.hop.origin == made.hop.origin
    assert again.secret == made.secret


def test_one_scheduled_contributor_set_is_enough_where_nobody_lies() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    sent = [reshare(one, hop, index, bytes(32)) for index, one in hops.first_held(made).items()]
    found = combine(hop, [check(hop, hops.honest(one, 2), 2) for one in sent], 2, among=[(1, 3)])
    assert [one.lineage.contributors for one in found.held] == [(1, 3)]


def test_commitments_that_cancel_out_make_no_lineage() -> None:
    """A liar who hears the others first chooses a commitment that makes the sum neutral, which nobody takes."""
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = hops.first_held(made)
    true = reshare(held[1], hop, 1, bytes(32))
    weights = group.weights_at_zero((1, 2))
    ratio = -weights[0] * pow(weights[1], -1, group.ORDER)
    # It must know the honest polynomial to have valid shares for it: it has been given two of them.
    shares = [true[1][index].shares[0] for index in (1, 2)]
    slope = ScalarShare(shares[1].value - shares[0].value, shares[1].blind - shares[0].blind)
    own = held[2][0].share
    lists = ScalarShare(own.value + ratio * slope.value, own.blind + ratio * slope.blind)
    fresh = (group.commit(ratio * slope.value, ratio * slope.blind),)
    false = replace(true[0], sender=2, lineages=(SentLineage(held[2][0].lineage, fresh),))
    offer = hops.relisted(false, true[1][1], [lists.encode()])
    found = hops.received(hop, [hops.honest(true, 1), offer], 1)
    assert found.held == ()
    assert found.liars == {}


def test_what_does_not_fit_the_hop_is_refused() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    shares, lists = reshare(hops.first_held(made)[1], hop, 1, bytes(32))
    assert check(hop, Contribution(shares, lists[2]), 2)
    sent = shares.lineages[0]
    false = [
        (replace(shares, lane_key=bytes(32)), 2),
        (replace(shares, plan=4), 2),
        (replace(shares, attempt=1), 2),
        (replace(shares, branch=bytes(16)), 2),
        (replace(shares, sender=4), 2),
        (replace(shares, lineages=()), 2),
        (replace(shares, lineages=(sent._replace(fresh=()),)), 2),
        (replace(shares, lineages=(sent._replace(lineage=sent.lineage._replace(contributors=(2,))),)), 2),
        (replace(shares, lineages=(sent._replace(lineage=sent.lineage._replace(parent=bytes(32))),)), 2),
        (shares, 1),
    ]
    for one, index in false:
        with pytest.raises(Malformed):
            check(hop, Contribution(one, replace(lists[2], set_hash=one.hash)), index)
    with pytest.raises(Malformed, match="another set"):
        check(hop, Contribution(shares, replace(lists[2], set_hash=bytes(32))), 2)
    other = hops.published(SMALL, "other")
    with pytest.raises(Malformed, match="publisher's commitments"):
        check(made.hop, Contribution(other.shares, other.lists[1]), 1)
    with pytest.raises(Misuse):
        replace(hop, receivers=Threshold(4, 8))


def test_a_commitment_off_the_subgroup_is_named_and_its_lineage_dropped() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    sent = {index: reshare(one, hop, index, bytes(32)) for index, one in hops.first_held(made).items()}
    shares, lists = sent[3]
    two = bytes.fromhex("ec" + "ff" * 30 + "7f")  # the point of order two
    poisoned = group.add(group.Point(shares.lineages[0].fresh[0]), group.Point(two))
    false = replace(shares, lineages=(shares.lineages[0]._replace(fresh=(poisoned,)),))
    offers = [hops.honest(sent[1], 1), hops.honest(sent[2], 1), hops.relisted(false, lists[1], [*lists[1].encoded])]
    found = hops.received(hop, [*offers], 1)
    assert [one.lineage.contributors for one in found.held] == [(1, 2)]
    assert {sender: fault.reason for sender, fault in found.liars.items()} == {3: "malformed"}


def test_the_subscriber_verifies_singly_only_on_failure_and_names_who_lied() -> None:
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    held = {index: one.held for index, one in hops.redistribute(hops.first_held(made), hop, Random(3), {}).items()}
    last, sent = hops.released(held, hop)
    offers = {index: check(last, hops.honest(one, 1), 1) for index, one in sent.items()}
    shifted = [ScalarShare(one.value + 1, one.blind).encode() for one in sent[2][1][1].shares]
    false = check(last, hops.relisted(sent[2][0], sent[2][1][1], shifted), 1)
    commitment = commitment_to(made.secret, hops.LANE_KEY)

    opener = ShareOpener(last, commitment)
    assert opener.add(offers[3]) is None
    assert opener.add(offers[3]) is None  # the same again is no second share
    assert opener.add(offers[1]) == made.secret

    opener = ShareOpener(last, commitment)
    assert opener.add(false) is None
    assert opener.add(offers[1]) is None
    assert list(opener.liars) == [2]
    assert opener.add(offers[2]) is None  # a liar is heard no more
    assert opener.add(offers[3]) == made.secret

    # A publisher that commits to another secret than it split convicts itself.
    opener = ShareOpener(last, commitment_to(bytes(32), hops.LANE_KEY))
    assert opener.add(offers[1]) is None
    with pytest.raises(Forged, match="publisher"):
        opener.add(offers[2])
    assert opener.liars == {}


def test_k_liars_in_one_virtual_node_cannot_be_survived() -> None:
    """The negative control: k of three, all with wrong shares, leave the honest one without a partner."""
    made = hops.published(SMALL)
    hop = hops.next_hop(made.hop, SMALL)
    found = hops.redistribute(hops.first_held(made), hop, Random(2), {1: hops.silent, 2: hops.silent})
    assert all(one.held == () for one in found.values())


def test_a_subscriber_gets_as_many_shares_as_there_are_contributor_sets_times_relays() -> None:
    made = hops.published(SMALL)
    hop, held = made.hop, hops.first_held(made)
    for _ in range(3):
        hop = hops.next_hop(hop, SMALL)
        held = {index: one.held for index, one in hops.redistribute(held, hop, Random(3), {}).items()}
    last, sent = hops.released(held, hop)
    assert last.receivers == ALONE
    assert sum(len(lists[1].encoded) for _, lists in sent.values()) == 9
