"""The committed vectors of the overlay, good and bad, from docs/formats/overlay.md; and bytes that nobody wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import hops
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick import wire
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
from tallystick.crypto.signatures import SignedObject, SigningKey
from tallystick.errors import Malformed, Refused
from tallystick.trust.shares import Complaint, Lineage, ScalarShare, SentLineage, ShareList, ShareSet

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "overlay.json").read_text())
KINDS: dict[str, type[SignedObject]] = {"set": ShareSet, "list": ShareList, "complaint": Complaint}
SIGNER = SigningKey.from_seed(bytes.fromhex(VECTORS["seed"]))
unhex = bytes.fromhex


def read(kind: type[Any], text: str) -> Any:
    """Decoded, verified, and encoded again to the same bytes, also from its fields alone."""
    one = kind.decode(unhex(text))
    SIGNER.public.verify(one.context, one.signature, one.body)
    assert one.encode().hex() == text
    assert one.sign(SIGNER) == one
    return one


def contribution(vector: Any, receiver: int) -> Contribution:
    found = Contribution(read(ShareSet, vector["set"]), read(ShareList, vector["lists"][receiver - 1]))
    assert found.shares.hash.hex() == vector["hash"]
    return found


def test_group() -> None:
    assert group.blinding_base().hex() == VECTORS["group"]["blinding_base"]
    assert group.commit(3, 4).hex() == VECTORS["group"]["commitment_3_4"]
    for name, text in VECTORS["points_bad"].items():
        with pytest.raises(Malformed):
            group.decode_point(unhex(text), name)
    for text in VECTORS["scalars_bad"]:
        with pytest.raises(Malformed):
            group.decode_scalar(unhex(text), "scalar")


def test_a_lane_key_from_its_publisher_to_a_subscriber() -> None:
    lane_key, plan, branches = unhex(VECTORS["lane_key"]), VECTORS["plan"], list(map(unhex, VECTORS["branches"]))
    made = split(unhex(VECTORS["entropy"]), lane_key, plan, branches[0], Threshold(2, 3))
    assert made.secret.hex() == VECTORS["secret"]
    assert made.hop.origin.name.hex() == VECTORS["origin"]
    hop = replace(made.hop, branch=branches[1], before=ALONE, senders=made.hop.receivers)
    for index, (erasable, vector) in enumerate(zip(VECTORS["erasable"], VECTORS["sent"], strict=True), 1):
        first = combine(made.hop, [check(made.hop, contribution(VECTORS["published"], index), index)], index).held
        shares, lists = reshare(first, hop, index, unhex(erasable))
        assert shares.sign(SIGNER).encode().hex() == vector["set"]
        assert [one.sign(SIGNER).encode().hex() for one in lists.values()] == vector["lists"]
    found = combine(hop, [check(hop, contribution(vector, 1), 1) for vector in VECTORS["sent"]], 1)
    assert [one.share.encode().hex() for one in found.held] == [one["share"] for one in VECTORS["held"]]
    for held, vector in zip(found.held, VECTORS["held"], strict=True):
        assert held.lineage.name.hex() == vector["name"]
        assert wire.encode([1, *held.lineage]).hex() == vector["lineage"]
    last = replace(hop, branch=branches[2], before=hop.senders, senders=hop.receivers, receivers=ALONE)
    opener = ShareOpener(last, unhex(VECTORS["commitment"]))
    assert opener.add(check(last, contribution(VECTORS["released"], 1), 1)) is None
    assert commitment_to(unhex(VECTORS["secret"]), lane_key).hex() == VECTORS["commitment"]


def test_complaints() -> None:
    relay, subscriber = (read(Complaint, text) for text in VECTORS["complaints"])
    assert (relay.attempt, relay.index, relay.reason, relay.liars) == (2, 3, 1, (1, 2))
    assert (subscriber.attempt, subscriber.index, subscriber.reason, subscriber.liars) == (0, 0, 2, ())


@pytest.mark.parametrize("name", VECTORS["bad"])
def test_what_must_be_refused(name: str) -> None:
    kind, text = VECTORS["bad"][name]
    with pytest.raises(Malformed):
        KINDS[kind].decode(unhex(text))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_hostile_bytes_are_malformed_or_mean_what_they_say(data: st.DataObject) -> None:
    good = [(ShareSet, VECTORS["released"]["set"]), (ShareList, VECTORS["released"]["lists"][0])]
    kind, text = data.draw(st.sampled_from([*good, (Complaint, VECTORS["complaints"][0])]))
    body = bytearray(kind.decode(unhex(text)).body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        found = kind.decode(wire.encode([bytes(body), bytes(64)]))
    except Malformed:
        return
    assert wire.encode([1, *wire.listed(found)]) == body


def test_flipped_bits_in_what_a_liar_sends_never_harm_a_receiver() -> None:
    """Whatever fits the hop is combined without an error, and what is held afterwards verifies."""
    random = Random(11)
    made = hops.published(Threshold(2, 3))
    hop = hops.next_hop(made.hop, Threshold(2, 3))
    sent = {index: reshare(one, hop, index, bytes(32)) for index, one in hops.first_held(made).items()}
    honest = [hops.honest(sent[1], 1), hops.honest(sent[2], 1)]
    for _ in range(150):
        shares, listed = sent[3][0].sign(SIGNER), sent[3][1][1]
        body = bytearray(shares.body)
        body[random.randrange(len(body))] ^= 1 << random.randrange(8)
        share = bytearray(listed.encoded[0])
        if random.random() < 0.3:
            share[random.randrange(64)] ^= 1 << random.randrange(8)
        try:
            false = ShareSet.decode(wire.encode([bytes(body), bytes(64)]))
            ScalarShare.decode(bytes(share))
            offer = check(hop, hops.relisted(false, listed, [bytes(share)]), 1)
        except Refused:
            continue
        found = combine(hop, [*honest, offer], 1)
        assert (1, 2) in [one.lineage.contributors for one in found.held]
        for one in found.held:
            points = [group.decode_point(point, "commitment") for point in one.lineage.commitments]
            assert group.commit(*one.share) == group.point_at(points, 1)


def test_the_largest_set_fits_and_is_bounded() -> None:
    points = tuple(group.commit(1, at) for at in range(7))
    lineages = sorted(
        (
            SentLineage(Lineage(contributors, bytes(32), points[:4]), points[:6])
            for contributors in combinations(range(1, 8), 4)
        ),
        key=lambda one: one.lineage.name,
    )
    largest = ShareSet(bytes(32), 2**62, bytes(16), 255, 7, tuple(lineages)).sign(SIGNER)
    assert ShareSet.decode(largest.encode()).lineages == tuple(lineages)
    more = replace(largest, lineages=(*lineages, lineages[0])).sign(SIGNER)
    with pytest.raises(Malformed):
        ShareSet.decode(more.encode())
