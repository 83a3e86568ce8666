"""Labelled verifiable redistribution: a secret passes through virtual nodes and stays split all the way.

Threat: in every virtual node up to k−1 relays pool what they see, send wrong shares or commitments, tell each
receiver another story, or say nothing. Promised: they learn nothing of the secret, all honest receivers have a
lineage in common, and the subscriber opens.

A polynomial of degree k−1 has the secret s as its value at zero, and relay i holds its value at i, with that of a
second, blinding polynomial. Both are fixed by commitments C₀ … C_{k−1}, one point for each coefficient. To send its
share on, a relay splits it again, by polynomials of its own for the next virtual node, and commits to them. The
constant of these is the share, whose commitment everybody computes from C: so nobody can re-share another value. A
receiver takes, for every set S of k senders, the smallest lineage that all of them sent validly, and sums up its
shares times Lagrange's weights. That is a share of a new polynomial with the same s, whose commitments are the same
sum; C₀ never changes, and has the publisher's signature. The new lineage is named by S, the old lineage and the new
commitments.

*Agreement.* Senders sign one final set for all receivers. What the members of an all-honest S sent is valid
everywhere and the same everywhere, so every receiver takes the same lineage and computes the same commitments: no
consensus is needed. A resend is byte-identical, because the polynomials are a PRF of the relay's erasable secret over
lane key, lineage, branch and plan version; a fresh polynomial would split the receivers. A liar can only make
lineages that contain it.

*Secrecy.* k−1 values of a polynomial say nothing of its constant, and honest relays' polynomials are independent.
tests/overlay/test_secrecy.py checks it by rank, with the commitments as equations.

*Why Pedersen.* Feldman's commitment to s is s·G, which every relay sees: a quantum computer takes s from it, years
later, and the share lock would be worth less than the hybrid locks beside it. A Pedersen commitment fits every s.
What a quantum computer can do is lie, while the shares travel: then the commitment to the derived secret, a hash,
does not fit, and nothing false is opened. Feldman would do in AND with a hybrid lock, for half the work.

Publisher and subscriber are virtual nodes of one (`ALONE`): the publisher holds s as its share and re-shares it, an
edge relay re-shares to a subscriber by a polynomial of degree zero, which is the share itself. So there is one way to
send and one to combine. Work on hostile input is bounded: at most 7 senders with 35 lineages each, each share
verified once. Left out: who signs, and when a set is final (the role's); refreshing shares of relays that stay.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from tallystick.crypto import group
from tallystick.crypto.group import NEUTRAL, ORDER, Point
from tallystick.crypto.symmetric import derive, extract
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.trust.plan import VirtualNode
from tallystick.trust.shares import COUNT_MAX, Lineage, ScalarShare, SentLineage, ShareList, ShareSet, verify_sent


@dataclass(frozen=True)
class Threshold:
    """How many relays a virtual node has, and how many shares it takes."""

    need: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.need <= self.count <= COUNT_MAX:
            raise Misuse(f"virtual node of {self.need} in {self.count}: at most {COUNT_MAX} expected")

    @classmethod
    def of(cls, node: VirtualNode) -> Threshold:
        return cls(node.need, len(node.relays))


ALONE = Threshold(1, 1)  # a publisher, a subscriber


@dataclass(frozen=True)
class Hop:
    """What the plan and the publisher's header say about one step of a lane key, the same for all who take part."""

    lane_key: bytes
    plan: int
    branch: bytes
    attempt: int
    before: Threshold | None  # of the virtual node that the senders heard from; None where the publisher sends
    senders: Threshold
    receivers: Threshold
    commitments: tuple[bytes, ...]  # the publisher's, whose lineage (`origin`) its signed header names

    @cached_property
    def origin(self) -> Lineage:
        """The lineage of the shares that the publisher gives out."""
        return Lineage((1,), Lineage((), self.lane_key, self.commitments[:1]).name, self.commitments)


@dataclass(frozen=True)
class HeldShare:
    """A verified share: of a relay at its index, or the publisher's own secret."""

    index: int
    lineage: Lineage
    share: ScalarShare


class Contribution(NamedTuple):
    """A sender's set and the receiver's list, their signatures verified; `check` returns one that fits the hop."""

    shares: ShareSet
    list: ShareList


class Combined(NamedTuple):
    held: tuple[HeldShare, ...]  # one for each contributor set that agreed on a lineage
    liars: dict[int, Refused]  # senders of what does not verify, and why


class Split(NamedTuple):
    """What a publisher gives out, unsigned: the set that it signs and each relay's list. The secret it keeps."""

    hop: Hop
    shares: ShareSet
    lists: dict[int, ShareList]
    secret: bytes


def split(entropy: bytes, lane_key: bytes, plan: int, branch: bytes, receivers: Threshold, attempt: int = 0) -> Split:
    """A publisher's new secret, split for the virtual node `branch`. The entropy serves for one lane key; another
    attempt with it splits the same secret by the same polynomials."""
    randoms = group.scalars(derive(entropy, "tallystick share split 1", lane_key))
    share = ScalarShare(next(randoms), next(randoms))
    held = HeldShare(1, Lineage((), lane_key, (group.commit(*share),)), share)
    hop = Hop(lane_key, plan, branch, attempt, None, ALONE, receivers, held.lineage.commitments)
    shares, lists = reshare([held], hop, 1, entropy)
    commitments = held.lineage.commitments + shares.lineages[0].fresh
    return Split(replace(hop, commitments=commitments), shares, lists, secret_of(share.value, lane_key))


def secret_of(scalar: int, lane_key: bytes) -> bytes:
    """The share lock's secret: what enters the lane key beside the other locks' secrets."""
    label = "tallystick share secret 1"
    return derive(extract(label.encode(), group.encode_scalar(scalar)), label, lane_key)


def commitment_to(secret: bytes, lane_key: bytes) -> bytes:
    """What the publisher signs, so that a subscriber knows the secret when it has it."""
    return derive(secret, "tallystick share commitment 1", lane_key)


def reshare(held: Iterable[HeldShare], hop: Hop, sender: int, erasable: bytes) -> tuple[ShareSet, dict[int, ShareList]]:
    """A sender's final set for a branch and its list for every receiver, unsigned. The same arguments give the same
    bytes; another attempt differs by its number alone."""
    lineages, lists = list[SentLineage](), {index: list[bytes]() for index in range(1, hop.receivers.count + 1)}
    for one in sorted(held, key=lambda one: one.lineage.name):
        randoms = group.scalars(polynomial_seed(erasable, hop, one.lineage))
        higher = [ScalarShare(next(randoms), next(randoms)) for _ in range(hop.receivers.need - 1)]
        values, blinds = zip(one.share, *higher, strict=True)
        lineages.append(SentLineage(one.lineage, tuple(group.commit(*pair) for pair in higher)))
        for index, shares in lists.items():
            shares.append(ScalarShare(group.value_at(values, index), group.value_at(blinds, index)).encode())
    made = ShareSet(hop.lane_key, hop.plan, hop.branch, hop.attempt, sender, tuple(lineages))
    return made, {index: ShareList(made.hash, index, tuple(shares)) for index, shares in lists.items()}


def polynomial_seed(erasable: bytes, hop: Hop, lineage: Lineage) -> bytes:
    """The same whenever the same is sent again."""
    return derive(erasable, "tallystick redistribution 1", hop.lane_key, lineage.name, hop.branch, hop.plan)


def check(hop: Hop, contribution: Contribution, index: int) -> Contribution:
    """The contribution, if set and list fit the hop and each other. Raises `Malformed`."""
    shares, listed = contribution
    if shares.place != (hop.lane_key, hop.plan, hop.branch, hop.attempt):
        raise Malformed("share set: for another lane key, plan version, branch or attempt", reason="stale")
    if listed.set_hash != shares.hash or listed.receiver != index or len(listed.encoded) != len(shares.lineages):
        raise Malformed("share list: for another set or receiver")
    if shares.sender > hop.senders.count:
        raise Malformed(f"share set: sender {shares.sender} of {hop.senders.count}")
    for lineage, fresh in shares.lineages:
        _check_lineage(hop, lineage, fresh)
    return contribution


def _check_lineage(hop: Hop, lineage: Lineage, fresh: tuple[bytes, ...]) -> None:
    if hop.before is None:
        if lineage != Lineage((), hop.lane_key, hop.commitments[:1]) or fresh != hop.commitments[1:]:
            raise Malformed("share set: not the publisher's commitments")
    elif (
        len(lineage.contributors) != hop.before.need
        or lineage.contributors[-1] > hop.before.count
        or (hop.before == ALONE and lineage != hop.origin)
    ):
        raise Malformed("share set: contributors that the plan has not")
    if len(lineage.commitments) != hop.senders.need or lineage.commitments[0] != hop.commitments[0]:
        raise Malformed("share set: a lineage that does not begin with the publisher's commitment")
    if len(fresh) != hop.receivers.need - 1:
        raise Malformed(f"share set: commitments for {hop.receivers.need} shares expected")


class _Sent:
    """A checked contribution, whose shares are verified when they are asked for, once."""

    def __init__(self, contribution: Contribution, index: int) -> None:
        shares, listed = contribution
        self._sender, self._index = shares.sender, index
        pairs = zip(shares.lineages, listed.shares, strict=True)
        self.offered = {one.lineage.name: (one, share) for one, share in pairs}
        self._verified: dict[bytes, tuple[Point, ...] | None] = {}
        self.fault: Refused | None = None

    def commitments(self, name: bytes) -> tuple[Point, ...] | None:
        """Those to the sender's polynomial, or None if its share is false."""
        if name not in self._verified:
            try:
                sent, share = self.offered[name]
                self._verified[name] = verify_sent(sent, self._sender, share, self._index)
            except Refused as fault:
                self._verified[name] = None
                self.fault = self.fault or fault
        return self._verified[name]


def combine(
    hop: Hop, contributions: Iterable[Contribution], index: int, among: Iterable[tuple[int, ...]] | None = None
) -> Combined:
    """What the receiver at `index` holds after this hop, in whatever order sets came.

    `contributions` are checked and of one attempt, one from a sender. `among` names the contributor sets to combine,
    each rising; left out, all of them.
    """
    sent = {one.shares.sender: _Sent(one, index) for one in contributions}
    held = []
    for contributors in combinations(sorted(sent), hop.senders.need) if among is None else among:
        if sent.keys() >= set(contributors):
            one = _combined({sender: sent[sender] for sender in contributors}, index)
            held += [one] if one else []
    return Combined(tuple(held), {sender: one.fault for sender, one in sent.items() if one.fault})


def _combined(sent: Mapping[int, _Sent], index: int) -> HeldShare | None:
    """The new share from exactly these contributors, if they agree on a lineage."""
    contributors = tuple(sent)
    weights = group.weights_at_zero(contributors)
    for name in sorted(set.intersection(*(set(one.offered) for one in sent.values()))):
        polynomials = [found for one in sent.values() if (found := one.commitments(name)) is not None]
        if len(polynomials) < len(sent):
            continue
        higher = [group.weighted(points, weights) for points in list(zip(*polynomials, strict=True))[1:]]
        if NEUTRAL in higher:  # a liar chose its commitments so; nobody would take this lineage
            continue
        offered = [one.offered[name] for one in sent.values()]
        # The constants sum up to the lineage's own constant, which needs no computing.
        new = Lineage(contributors, name, (offered[0][0].lineage.commitments[0], *higher))
        return HeldShare(index, new, _sum([share for _, share in offered], weights))
    return None


def _sum(shares: Iterable[ScalarShare], weights: Iterable[int]) -> ScalarShare:
    pairs = list(zip(shares, weights, strict=True))
    return ScalarShare(*(sum(share[at] * weight for share, weight in pairs) % ORDER for at in (0, 1)))


class ShareOpener:
    """A subscriber's end: sets come in from edge relays one by one, until some k of one lineage give the secret.

    Shares are verified singly only when a combination fails. Whoever sent a false one stands in `liars`, and nothing
    of it is used again.
    """

    def __init__(self, hop: Hop, commitment: bytes) -> None:
        self._hop, self._commitment = hop, commitment
        self._sent: dict[int, _Sent] = {}
        self.liars: dict[int, Refused] = {}

    def add(self, contribution: Contribution) -> bytes | None:
        """The secret, once it is known. The contribution is checked. Raises `Forged` if the publisher lied."""
        sender = contribution.shares.sender
        if sender in self._sent or sender in self.liars:
            return None
        new = self._sent[sender] = _Sent(contribution, 1)
        return next(filter(None, map(self._open, sorted(new.offered))), None)

    def _open(self, name: bytes) -> bytes | None:
        while True:
            holders = [sender for sender, one in self._sent.items() if name in one.offered][: self._hop.senders.need]
            if len(holders) < self._hop.senders.need:
                return None
            shares = [self._sent[sender].offered[name][1] for sender in holders]
            scalar = _sum(shares, group.weights_at_zero(tuple(holders))).value
            secret = secret_of(scalar, self._hop.lane_key)
            if hmac.compare_digest(commitment_to(secret, self._hop.lane_key), self._commitment):
                return secret
            for sender in holders:
                if self._sent[sender].commitments(name) is None:
                    fault = self._sent.pop(sender).fault
                    assert fault is not None
                    self.liars[sender] = fault
            if all(sender in self._sent for sender in holders):
                # True shares of the publisher's own commitments: it is the publisher that committed to another secret.
                raise Forged("share lock: the publisher's shares do not give the secret that it committed to")
