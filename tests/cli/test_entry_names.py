"""Entries of the ledger in words."""

from __future__ import annotations

from tallystick.client.words import FIELDS, decode
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.topics import Binding, Terms
from tallystick.trust.campaign import Phase


def test_every_kind_of_entry_has_names_for_its_fields() -> None:
    assert set(FIELDS) == set(EntryKind)


def test_fields_are_those_that_the_writer_writes() -> None:
    written = [
        entries.notarise(bytes(16), 0, 2, bytes(32), before=1),
        entries.grant_attribute(bytes(16), bytes(16), bytes(16), bytes(32), 7),
        entries.withdraw_attribute(bytes(16), bytes(16), bytes(16)),
        entries.topic_policy(bytes(16), 1, 2, b""),
        entries.attribute_epoch(3, bytes(32), 4),
    ]
    kinds = ["notarise", "grant_attribute", "withdraw_attribute", "topic_policy", "attribute_epoch"]
    assert [decode(entry)["kind"] for entry in written] == kinds
    assert decode(written[1])["not_after_ms"] == 7
    assert (decode(written[3])["group"], decode(written[3])["version"]) == (1, 2)


def test_updates_are_told_in_words() -> None:
    token, image, name = bytes(16), b"\x01" * 32, b"\x02" * 16
    phases = [Phase(100_000, 20, 5, 1, 60_000), Phase(1_000_000, 200, 100, 3, 60_000)]
    written = [
        entries.release_image(token, image, bytes(32)),
        entries.withdraw_image(token, image),
        entries.campaign(token, name, [(token, image)], phases),
        entries.report_campaign(token, name, 1, 0, succeeded=7, failed=2, manifests=bytes(32)),
        entries.stop_campaign(token, name),
        entries.resume_campaign(token, name),
    ]
    told = [decode(entry) for entry in written]
    kinds = "release_image withdraw_image campaign report_campaign stop_campaign resume_campaign"
    assert [one["kind"] for one in told] == kinds.split()
    assert told[2]["phases"] == [[*one] for one in phases]
    assert (told[3]["succeeded"], told[3]["failed"]) == (7, 2)


def test_a_topic_of_either_version_has_names_for_its_fields() -> None:
    place, key = (bytes(32), bytes(16), bytes(16), bytes(16)), SigningKey.from_seed(bytes(32))
    binding, terms = Binding(bytes(16), bytes(32), bytes(64)), Terms(anchor_pace_ms=500)
    older = decode(entries.topic(*place, key, nodes=[], schema_hash=bytes(32)))
    newer = decode(entries.topic(*place, key, nodes=[], schema_hash=bytes(32), binding=binding, terms=terms))
    assert list(newer) == [*older, "binding", "keep", "anchor_pace_ms", "fees"]
    assert (newer["binding"], newer["keep"], newer["anchor_pace_ms"]) == ([*binding], [0, 0], 500)
