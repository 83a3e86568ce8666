"""What a profile learns, how it travels, and that watching never changes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_bus import COUNT, EVENT, FLAG, SPEED, THIRD, TWIN, drive, frames, in_order

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.fleet.detect.checks import CHECKS, begin, step
from tallystick.fleet.detect.fields import cut, flips
from tallystick.fleet.detect.frames import Frames, joined
from tallystick.fleet.detect.profile import BYTES_MAX, Profile, learn, merge

DRIVES = [drive(60, seed) for seed in range(3)]
PROFILE = learn(DRIVES, ["one", "two", "three"])


def checks_of(profile: Profile, run: Frames) -> set[str]:
    return {CHECKS[hit["check"]] for hit in step(profile, begin(profile), run)[1]}


def test_it_knows_periods_kinds_and_how_long_it_looked() -> None:
    periods = dict(zip(PROFILE.ids.tolist(), PROFILE.senders["period"].tolist(), strict=True))
    assert abs(periods[SPEED] - 10_000) < 20
    assert abs(periods[TWIN] - 20_000) < 20
    assert periods[EVENT] == 0
    assert [kind for _, _, kind in PROFILE.fields(COUNT)][:3] == ["counter", "constant", "noise"]
    assert (0, 16, "number") in PROFILE.fields(SPEED)
    assert "state" in {kind for _, _, kind in PROFILE.fields(FLAG)}
    assert PROFILE.fields(0x7FF) == []
    assert PROFILE.off == {}
    assert 179 < PROFILE.seconds < 180
    assert {int(place) for place in PROFILE.tables.ties["signal"]} == {
        int(PROFILE.senders["first"][PROFILE.ids == can_id][0]) + PROFILE.fields(can_id).index(field)
        for can_id in (SPEED, TWIN, THIRD)
        for field in PROFILE.fields(can_id)
        if field[2] == "number"
    }


def test_bits_are_cut_where_flips_get_rarer() -> None:
    """A slow number of 16 bits beside a fast one of 8, and bits that never flip."""
    values = np.arange(4000, dtype=np.uint64)
    words = (values // np.uint64(3)) << np.uint64(48) | (values * np.uint64(7) % np.uint64(256)) << np.uint64(32)
    fields = list(cut(flips([words]), 64))
    assert fields[0][0] == 0
    assert sum(bits for _, bits in fields) == 64
    assert (0, 16) in fields
    assert [first for first, _ in fields] == np.cumsum([0, *(bits for _, bits in fields[:-1])]).tolist()


def test_too_short_a_calibration_names_the_checks_that_are_off() -> None:
    short = learn([drive(5)])
    assert set(short.off) == {"jump", "alone", "together"}
    assert "5.0 s of calibration" in short.off["jump"]
    assert set(learn([drive(1)]).off) == {"schedule", "rate", "silence", "jump", "alone", "together"}


def test_there_must_be_something_to_learn_from() -> None:
    with pytest.raises(Misuse, match="no frames"):
        learn([])
    with pytest.raises(Misuse, match="not in order"):
        learn([DRIVES[0][::-1]])
    many = np.repeat(np.arange(5000, dtype=np.uint32), 3)
    flood = Frames(np.arange(len(many)), many, np.full(len(many), 8, np.uint8), np.zeros(len(many), np.uint64))
    with pytest.raises(Misuse, match="5000 identifiers"):
        learn([flood])


def test_an_attack_in_the_calibration_is_taken_as_usual() -> None:
    """The limit of the method. Only what is seen once or twice is not taken over."""
    lies = frames(DRIVES[0].ts[5000:5100], 0x7FF, 0)
    assert checks_of(learn([in_order(joined([DRIVES[0], lies[:2]]))]), lies) >= {"unknown"}
    assert "unknown" not in checks_of(learn([in_order(joined([DRIVES[0], lies]))]), lies)


def test_a_repaired_bus_is_told_until_a_new_profile_is_learnt() -> None:
    new = in_order(joined([drive(60, 8), frames(np.arange(0, 60_000_000, 30_000), 0x444, 0)]))
    assert checks_of(PROFILE, new) == {"unknown"}
    assert checks_of(learn([*DRIVES, new]), new) == set()


def test_drift_is_found_against_a_held_profile_only() -> None:
    """Somebody lets one sender of the speed say a little more from drive to drive. Who learns anew is led along."""
    found, missed, led = [], [], PROFILE
    for number in range(16):
        run = drive(40, 100 + number, gain=1.001**number)
        found.append("together" in checks_of(PROFILE, run))
        missed.append("together" in checks_of(led, run))
        led = learn([run])
    assert not found[0]
    assert found[-1]
    assert not any(missed)


def test_merging_widens() -> None:
    other = learn([in_order(joined([drive(60, 5), frames(np.arange(0, 60_000_000, 30_000), 0x444, 0, 6)]))])
    both = merge([PROFILE, other])
    more = frames(np.arange(0, 600_000, 30_000), 0x444, 0, 6)
    assert checks_of(PROFILE, more) == {"unknown"}
    assert checks_of(both, more) == set()
    assert checks_of(both, drive(60, 6)) <= {"silence"}  # of the identifier that this drive does not have
    assert both.seconds == pytest.approx(PROFILE.seconds + other.seconds)
    assert set(both.off) == {"alone", "together"}
    at, was = (one.signals["limits"][one.senders["first"][one.ids == SPEED][0]] for one in (both, PROFILE))
    assert (at >= was).all()
    assert Profile.decode(both.encode()).encode() == both.encode()
    with pytest.raises(Misuse, match="no profiles"):
        merge([])


def test_it_travels_as_bytes() -> None:
    again = Profile.decode(PROFILE.encode())
    assert again.encode() == PROFILE.encode()
    assert again.sources == ("one", "two", "three")
    run = drive(10, 4)
    assert step(again, begin(again), run)[1].tobytes() == step(PROFILE, begin(PROFILE), run)[1].tobytes()


def test_other_versions_and_sizes_are_refused_by_name() -> None:
    fields = wire.decode(PROFILE.encode())
    with pytest.raises(Malformed, match="version 1 expected, found 2"):
        Profile.decode(wire.encode([2, *fields[1:]]))
    with pytest.raises(Malformed, match="at most"):
        Profile.decode(bytes(BYTES_MAX + 1))
    with pytest.raises(Malformed, match="another layout"):
        Profile.decode(wire.encode([*fields[:6], fields[6][:-1], *fields[7:]]))


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("senders", "first", -1),
        ("senders", "fields", 65),
        ("senders", "ties", 1000),
        ("senders", "period", -5),
        ("senders", "can_id", 0),
        ("signals", "bits", 0),
        ("signals", "first_bit", 63),
        ("signals", "around", np.nan),
        ("bits", "bit", 64),
        ("bits", "partners", 9),
        ("partners", "at", 10_000),
        ("lines", "sender", -1),
        ("lines", "slope", np.inf),
        ("ties", "signal", 1 << 30),
    ],
)
def test_numbers_that_reach_outside_a_table_are_refused(table: str, column: str, value: float) -> None:
    rows = getattr(PROFILE.tables, table).copy()
    rows[column] = value
    with pytest.raises(Malformed, match="outside its bounds"):
        Profile.decode(replace(PROFILE, tables=PROFILE.tables._replace(**{table: rows})).encode())


@given(st.data())
def test_hostile_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    """Bytes turned over in a profile, or any bytes at all: refused, or a profile that the checks can work with."""
    octets = bytearray(PROFILE.encode())
    for at in data.draw(st.lists(st.integers(0, len(octets) - 1), min_size=1, max_size=4)):
        octets[at] ^= data.draw(st.integers(1, 255))
    for hostile in (bytes(octets), data.draw(st.binary(max_size=64))):
        try:
            profile = Profile.decode(hostile)
        except Malformed:
            continue
        step(profile, begin(profile), DRIVES[0][:300])
