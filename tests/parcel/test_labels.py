"""Labels: what a node compares, and what it cannot tell from them."""

from __future__ import annotations

import hmac
from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from formulas import RANDOMS
from hypothesis import given
from makers import World, entropy
from makers import rows as plain_rows

from tallystick import wire
from tallystick.parcel.header import LABELS_MAX, Header, TopicRef
from tallystick.parcel.labels import LABEL_BYTES, Labeller, Wanted, interest_labels
from tallystick.policy.content import read_interest, wanted_rows
from tallystick.policy.topic_code import TopicCode
from tallystick.trust.permit import LABELS_MAX as PERMIT_LABELS_MAX

SCHEMA = pa.schema([("speed", pa.float32()), ("road", pa.string()), ("gear", pa.int8())])
CODE = replace(TopicCode.read(["speed:4:0..200", "road:2"], SCHEMA), version=1)
KEY, OTHER = bytes(range(32)), bytes(32)


def draw(n: int, random: Random = Random(1)) -> bytes:
    return random.randbytes(n)


PLAIN = World().lane().seal(plain_rows(0, 3), now_ms=1, entropy=entropy(0))


def header(labels: tuple[bytes, ...], epoch: int = 7) -> Header:
    return replace(PLAIN.header, labels=labels, topics=(replace(PLAIN.header.topics[0], epoch=epoch),))


def rows(*speeds: float, road: str = "street") -> dict[str, Any]:
    return {"speed": pa.array(speeds, pa.float32()), "road": pa.array([road] * len(speeds))}


def wanted(text: str, keys: dict[int, bytes] | None = None, code: TopicCode = CODE) -> Wanted:
    interest = read_interest(text, SCHEMA)
    found = interest_labels(code, keys or {7: KEY}, interest, strings_max=32, false_positives_max=0.1, draw=draw)
    return Wanted(found)


def test_a_parcel_is_wanted_if_it_may_hold_a_wanted_row() -> None:
    labeller = Labeller(CODE, KEY)
    fast, slow = labeller.labels(rows(150.0, 152.0), draw), labeller.labels(rows(12.0), draw)
    asks = wanted("speed > 120 && road::street")
    assert asks.asks_for(header(fast))
    assert not asks.asks_for(header(slow))
    assert not asks.asks_for(header(labeller.labels(rows(150.0, road="motorway"), draw)))


def test_numbers_and_lengths_tell_nothing() -> None:
    labeller = Labeller(CODE, KEY)
    one, many = labeller.labels(rows(150.0), draw), labeller.labels(rows(100.0, 110.0, 120.0), draw)
    assert len(one) == len(many) == CODE.number <= LABELS_MAX
    assert {len(label) for label in one + many} == {2 + LABEL_BYTES}
    assert list(one) == sorted(one)
    narrow, wide = (
        interest_labels(CODE, {7: KEY}, read_interest(text, SCHEMA), strings_max=32, false_positives_max=0.1, draw=draw)
        for text in ("speed == 150 && road::street", "speed in 3..190")
    )
    assert len(narrow) == len(wide) == 32 <= PERMIT_LABELS_MAX


def test_other_topics_and_epochs_have_other_labels() -> None:
    mine, theirs = (set(Labeller(CODE, key).labels(rows(150.0), draw)) for key in (KEY, OTHER))
    assert mine.isdisjoint(theirs)
    asks = wanted("speed > 120")
    # Replayed in another topic (another key, the same epoch) they match nothing; the topics' tokens differ anyway.
    assert not asks.asks_for(header(tuple(theirs)))


def test_one_key_for_all_epochs_would_link_them() -> None:
    """Why there is one per epoch: under one key a subspace has the same labels for ever."""
    days = [set(Labeller(CODE, KEY).labels(rows(150.0), draw)) for _ in range(2)]
    assert len(days[0] & days[1]) == 6
    days = [set(Labeller(CODE, key).labels(rows(150.0), draw)) for key in (KEY, OTHER)]
    assert not days[0] & days[1]


@pytest.mark.parametrize(
    ("labels", "epoch", "why"),
    [
        ((), 7, "it has no labels"),
        (Labeller(CODE, OTHER).labels(rows(12.0), draw), 8, "the permit was not made for this epoch"),
        (Labeller(replace(CODE, version=2), KEY).labels(rows(12.0), draw), 7, "nor for this version of the code"),
    ],
)
def test_what_cannot_be_compared_is_wanted(labels: tuple[bytes, ...], epoch: int, why: str) -> None:
    assert wanted("speed > 120").asks_for(header(labels, epoch)), why


def test_a_lane_of_several_topics_is_wanted_whatever_its_labels() -> None:
    found = header(Labeller(CODE, KEY).labels(rows(12.0), draw))
    assert not wanted("speed > 120").asks_for(found)
    more = replace(found, topics=(*found.topics, TopicRef(b"\xff" * 16, bytes(16), 1)))
    assert wanted("speed > 120").asks_for(more)
    assert more.label_place is None
    assert found.label_place == (7, 1)


def test_an_interest_that_the_code_tells_nothing_about_wants_everything() -> None:
    asks = wanted("gear > 2")
    assert not asks
    assert asks.asks_for(header(Labeller(CODE, KEY).labels(rows(12.0), draw)))
    assert asks.newest == (7, 1)  # what it was made for is known, so that nobody asks again
    assert Wanted(()).newest == (0, 0)
    assert wanted("speed > 120", {7: KEY, 9: KEY}).newest == (9, 1)


def test_under_codes_for_each_column_all_must_be_shared() -> None:
    code = replace(TopicCode.read(["speed:4:0..200", "gear:2:0..3"], SCHEMA, each=True), version=1)
    labeller, asks = Labeller(code, KEY), wanted("speed > 120 && gear == 2", code=code)
    fits = [(speed, gear) for speed in (12.0, 150.0) for gear in (1, 2)]
    columns = [{"speed": pa.array([speed], pa.float32()), "gear": pa.array([gear], pa.int8())} for speed, gear in fits]
    found = [asks.asks_for(header(labeller.labels(one, draw))) for one in columns]
    assert found == [False, False, False, True]


@given(RANDOMS)
def test_never_a_false_negative(random: Random) -> None:
    each = random.random() < 0.5
    texts = random.sample(["speed:4:0..200", "road:2", "gear:3:-4..4"], random.randint(1, 3))
    code = replace(TopicCode.read(texts, SCHEMA, each=each), version=3)
    batch = pa.record_batch(
        {
            "speed": pa.array([random.choice([random.uniform(0, 220), None]) for _ in range(40)], pa.float32()),
            "road": pa.array([random.choice(["street", "motorway", None]) for _ in range(40)]),
            "gear": pa.array([random.randint(-128, 127) for _ in range(40)], pa.int8()),
        }
    )
    text = random.choice(["speed > {0}", "road::street && speed <= {0}", "gear == {1} || speed > {0}", "gear >= {1}"])
    interest = read_interest(text.format(random.randint(0, 200), random.randint(-5, 5)), SCHEMA)
    asks = Wanted(
        interest_labels(code, {7: KEY}, interest, strings_max=16, false_positives_max=0.1, draw=random.randbytes)
    )
    labeller = Labeller(code, KEY)
    for group in code.group(dict(zip(batch.schema.names, batch.columns, strict=True))):
        part = batch.take(pa.array(group))
        labels = labeller.labels(dict(zip(part.schema.names, part.columns, strict=True)), random.randbytes)
        if wanted_rows(interest, part).any():
            assert asks.asks_for(header(labels))


def test_a_labelled_header_stays_under_1024_bytes() -> None:
    """A switched frame carries it whole."""
    labels = Labeller(CODE, KEY).labels(rows(150.0), draw)
    parcel = World().lane().seal(plain_rows(0, 3), now_ms=1 << 42, entropy=entropy(0), labels=labels)
    assert len(parcel.encode_front()) < 1024


def test_padding_is_fresh_in_every_parcel() -> None:
    """What repeats is what is true: padding that repeated would say that it is none, or hide nothing."""
    labeller = Labeller(CODE, KEY)
    seen = Counter(label for _ in range(5) for label in labeller.labels(rows(150.0), draw))
    assert sorted(seen.values())[-6:] == [5] * 6  # six bits of string, six labels
    assert set(sorted(seen.values())[:-6]) == {1}
    assert repr(labeller) == "Labeller(…)"


def test_a_label_is_what_the_format_says() -> None:
    """docs/formats/parcel.md, by hand: HKDF-Expand with info = wire ["tallystick label 1", version, number, string]."""
    info = wire.encode(["tallystick label 1", 1, 0, b"010"])
    expected = b"\x01\x00" + hmac.digest(KEY, info + b"\x01", "sha256")[:8]
    assert Labeller(CODE, KEY).label(0, "010") == expected
    assert expected.hex() == "0100296af4287bc21e82"


# --- covering, and labels without a key ---

ROADS = ("street", "motorway", "track")
TEXTS = ("speed > 120", "speed > 60", "speed > 60 && speed < 100", "speed < 5", "road::street")


def clear_wanted(text: str, code: TopicCode = CODE) -> Wanted:
    interest = read_interest(text, SCHEMA)
    return Wanted(interest_labels(code, {7: None}, interest, strings_max=32, false_positives_max=0.1, draw=draw))


@pytest.mark.parametrize("code", [CODE, replace(CODE, each=True)])
def test_who_covers_another_wants_all_that_it_wants(code: TopicCode) -> None:
    labeller = Labeller(code, None)
    parcels = [
        header(labeller.labels(rows(float(speed), road=road), draw)) for speed in range(0, 250, 7) for road in ROADS
    ]
    asks = {text: clear_wanted(text, code) for text in TEXTS}
    covered = 0
    for one, other in product(asks.values(), repeat=2):
        if one.covers(other, clear=True):
            covered += one is not other
            assert all(one.asks_for(parcel) for parcel in parcels if other.asks_for(parcel))
    assert covered > 1
    assert asks["speed > 60"].covers(asks["speed > 60 && speed < 100"], clear=True)
    assert not asks["speed > 60 && speed < 100"].covers(asks["speed > 60"], clear=True)


def test_keyed_labels_cover_themselves_alone() -> None:
    wide, narrow = wanted("speed > 60"), wanted("speed > 60 && speed < 100")
    assert wide.covers(wide)
    assert not wide.covers(narrow, clear=True)  # they read as no strings
    nothing = Wanted(())
    assert nothing.covers(wide)
    assert not wide.covers(nothing)


def test_a_clear_label_is_what_the_format_says() -> None:
    assert Labeller(CODE, None).label(3, "011") == bytes([CODE.version, 3, 3, 0b01100000]) + bytes(6)
    plain = Labeller(CODE, None).labels(rows(150.0), draw)
    assert len(plain) < CODE.number  # they are not padded: nothing is hidden


@pytest.mark.parametrize("odd", [b"", b"\x00", bytes([57]) + bytes(7), b"\x01" + b"\xff" * 7, bytes(8), bytes(26)])
def test_what_is_no_clear_label_is_covered_by_itself_alone(odd: bytes) -> None:
    place, labeller = (7).to_bytes(4, "big"), Labeller(CODE, None)
    wide = Wanted([place + labeller.label(0, "0"), place + labeller.label(0, "1")])
    narrow = Wanted([place + bytes([CODE.version, 0]) + odd])
    assert not wide.covers(narrow, clear=True)
    assert narrow.covers(narrow, clear=True)
