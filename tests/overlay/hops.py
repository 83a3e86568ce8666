"""Chains of virtual nodes on the real code: what every relay holds after each hop, with liars among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from random import Random

from tallystick.carriers.overlay.redistribution import (
    ALONE,
    Combined,
    Contribution,
    HeldShare,
    Hop,
    Split,
    Threshold,
    check,
    combine,
    reshare,
    split,
)
from tallystick.crypto import group
from tallystick.errors import Refused
from tallystick.trust.shares import Lineage, ScalarShare, SentLineage, ShareList, ShareSet

LANE_KEY = b"\x11" * 32
PLAN = 3
Sent = tuple[ShareSet, dict[int, ShareList]]
Liar = Callable[[Random, Hop, Sent, int], Contribution | None]  # what it tells one receiver


def entropy(*words: object) -> bytes:
    return sha256(repr(words).encode()).digest()


def branch(number: int) -> bytes:
    return number.to_bytes(16, "big")


def published(threshold: Threshold, seed: object = 0) -> Split:
    return split(entropy("publisher", seed), LANE_KEY, PLAN, branch(0), threshold)


def first_held(made: Split) -> dict[int, tuple[HeldShare, ...]]:
    """What the relays of the publisher's edge hold."""
    return {
        index: combine(made.hop, [check(made.hop, Contribution(made.shares, one), index)], index).held
        for index, one in made.lists.items()
    }


def next_hop(hop: Hop, receivers: Threshold) -> Hop:
    number = int.from_bytes(hop.branch, "big") + 1
    return replace(hop, branch=branch(number), before=hop.senders, senders=hop.receivers, receivers=receivers)


def honest(sent: Sent, receiver: int) -> Contribution:
    return Contribution(sent[0], sent[1][receiver])


def received(hop: Hop, offers: list[Contribution | None], index: int) -> Combined:
    """What a receiver makes of what came: contributions that do not fit are dropped."""
    good = []
    for one in offers:
        try:
            good += [check(hop, one, index)] if one else []
        except Refused:
            continue
    return combine(hop, good, index)


def redistribute(
    held: Mapping[int, tuple[HeldShare, ...]], hop: Hop, random: Random, liars: Mapping[int, Liar]
) -> dict[int, Combined]:
    """One hop: every sender's set reaches every receiver, in an order of its own."""
    sent = {index: reshare(held[index], hop, index, entropy("relay", hop.branch, index)) for index in held}
    found = {}
    for receiver in range(1, hop.receivers.count + 1):
        offers = [
            liars[index](random, hop, one, receiver) if index in liars else honest(one, receiver)
            for index, one in sent.items()
        ]
        random.shuffle(offers)
        found[receiver] = received(hop, offers, receiver)
    return found


def released(held: Mapping[int, tuple[HeldShare, ...]], hop: Hop) -> tuple[Hop, dict[int, Sent]]:
    """What edge relays give a subscriber."""
    last = next_hop(hop, ALONE)
    return last, {index: reshare(one, last, index, entropy("edge", index)) for index, one in held.items()}


def silent(random: Random, hop: Hop, sent: Sent, receiver: int) -> None:
    return None


def relisted(shares: ShareSet, listed: ShareList, encoded: list[bytes]) -> Contribution:
    return Contribution(shares, replace(listed, set_hash=shares.hash, encoded=tuple(encoded)))


def wrong_shares(random: Random, hop: Hop, sent: Sent, receiver: int) -> Contribution:
    shares, listed = sent[0], sent[1][receiver]
    false = [
        ScalarShare(one.value + random.choice((0, 1)), one.blind + random.choice((0, 1))).encode()
        for one in listed.shares
    ]
    return relisted(shares, listed, false)


def random_points(random: Random, count: int) -> tuple[bytes, ...]:
    return tuple(group.commit(random.getrandbits(250), random.getrandbits(250)) for _ in range(count))


def wrong_commitments(random: Random, hop: Hop, sent: Sent, receiver: int) -> Contribution:
    """Points that are none of its polynomial's, for some of its lineages."""
    shares, listed = sent[0], sent[1][receiver]
    lineages = [
        one._replace(fresh=random_points(random, len(one.fresh))) if random.random() < 0.7 else one
        for one in shares.lineages
    ]
    return relisted(replace(shares, lineages=tuple(lineages)), listed, list(listed.encoded))


def two_stories(random: Random, hop: Hop, sent: Sent, receiver: int) -> Contribution:
    """To each receiver valid shares of a polynomial of its own: what a fresh one per send would be."""
    shares = sent[0]
    kept = [HeldShare(shares.sender, one.lineage, _constant(sent, at)) for at, one in enumerate(shares.lineages)]
    other, lists = reshare(kept, hop, shares.sender, entropy("story", receiver, random.random()))
    return Contribution(other, lists[receiver])


def invented(random: Random, hop: Hop, sent: Sent, receiver: int) -> Contribution:
    """Lineages that nobody made, from the publisher's commitment and points of its own, beside a true one."""
    shares, listed = sent[0], sent[1][receiver]
    if not shares.lineages:
        return Contribution(shares, listed)
    made = [(shares.lineages[0], listed.encoded[0])]
    for one, encoded in list(zip(shares.lineages, listed.encoded, strict=True))[1:]:
        points = (one.lineage.commitments[0], *random_points(random, len(one.lineage.commitments) - 1))
        made.append((SentLineage(Lineage(one.lineage.contributors, bytes(32), points), one.fresh), encoded))
    made.sort(key=lambda one: one[0].lineage.name)
    return relisted(replace(shares, lineages=tuple(one for one, _ in made)), listed, [encoded for _, encoded in made])


def _constant(sent: Sent, at: int) -> ScalarShare:
    """The sender's own share, from what it sent to all."""
    need = len(sent[0].lineages[at].fresh) + 1
    indices = tuple(range(1, need + 1))
    weights = group.weights_at_zero(indices)
    shares = [sent[1][index].shares[at] for index in indices]
    value = sum(one.value * weight for one, weight in zip(shares, weights, strict=True))
    blind = sum(one.blind * weight for one, weight in zip(shares, weights, strict=True))
    return ScalarShare(value % group.ORDER, blind % group.ORDER)


LIARS: dict[str, Liar] = {
    "silent": silent,
    "wrong shares": wrong_shares,
    "wrong commitments": wrong_commitments,
    "two stories": two_stories,
    "invented lineages": invented,
}
