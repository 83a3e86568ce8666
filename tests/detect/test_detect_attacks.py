"""Attacks: what each does to the frames, and the check that stops it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tallystick.errors import Misuse
from tallystick.fleet import bus
from tallystick.fleet.detect import attacks
from tallystick.fleet.detect.checks import CHECKS, begin, step
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import Profile, learn

LAYOUT = 1
BEGIN_US, SECONDS = 30_000_000, 10.0


@pytest.fixture(scope="module")
def drive() -> Frames:
    return bus.simulate_bus(LAYOUT, 1.0, seed=9)


@pytest.mark.parametrize("family", attacks.FAMILIES)
def test_an_attack_is_labelled_repeats_and_leaves_the_rest_alone(family: str, drive: Frames) -> None:
    attacked, by_attacker = attacks.inject(family, drive, BEGIN_US, SECONDS, seed=2)
    again, _ = attacks.inject(family, drive, BEGIN_US, SECONDS, seed=2)
    assert all(np.array_equal(getattr(attacked, one.name), getattr(again, one.name)) for one in fields(Frames))
    when = attacked.ts[by_attacker]
    assert ((when >= BEGIN_US) & (when <= BEGIN_US + (SECONDS + 0.1) * 1e6)).all()
    takes = attacks.BIT_US * (47 + 8 * attacked.length.astype(np.int64))
    assert (np.diff(attacked.ts) >= takes[1:]).all()  # none overlaps
    what = attacks.plan(family, drive, BEGIN_US, SECONDS, seed=2)
    own = (drive.can_id == what.can_id) & (drive.ts >= what.begin_us) & (drive.ts < what.end_us)
    match attacks.FAMILIES[family].kind:
        case "fabrication":
            assert by_attacker.sum() > 10
            assert np.array_equal(attacked[~by_attacker].ts, drive.ts)
            assert np.array_equal(attacked[~by_attacker].word, drive.word)
        case "suspension":
            assert not by_attacker.any()
            assert np.array_equal(attacked.ts, drive.ts[~own])
            assert own.any()
        case "masquerade":
            assert np.array_equal(attacked.ts, drive.ts)
            assert np.array_equal(by_attacker, own)
            mask = np.uint64(((1 << what.bits) - 1) << (64 - what.first_bit - what.bits))
            assert not ((attacked.word ^ drive.word) & ~mask).any()
            assert (attacked.word[own] != drive.word[own]).any()


def test_a_chosen_field_takes_the_chosen_value(drive: Frames) -> None:
    choice = {"can_id": int(drive.can_id[0]), "first_bit": 4, "bits": 12, "value": 0xABC}
    attacked, by_attacker = attacks.inject("constant", drive, BEGIN_US, SECONDS, **choice)
    assert set((attacked.word[by_attacker] >> np.uint64(48)) & np.uint64(0xFFF)) == {0xABC}


def test_what_cannot_be_attacked_is_refused(drive: Frames) -> None:
    with pytest.raises(Misuse, match="flood"):
        attacks.inject("flod", drive, BEGIN_US, SECONDS)
    with pytest.raises(Misuse, match="nothing to attack"):
        attacks.inject("freeze", drive, int(drive.ts[-1]) + 1, SECONDS)


# --- the check that stops it ---

TARGETS = {  # message and signal of the bus, and what is sent
    "flood": (),
    "fuzzing": (),
    "replay": ("VehicleSpeed", "Speed"),
    "targeted": ("VehicleSpeed", "Speed", 20_000),
    "suspension": ("BrakeState", "BrakePressure"),
    "constant": ("VehicleSpeed", "Speed", 20_000),
    "ramp": ("VehicleSpeed", "Speed", 300),  # steps of 0.01 km/h or more, in a second
    "freeze": ("VehicleSpeed", "Speed"),
    "flag": ("ClusterLamps", "NeutralLamp"),
}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return learn([bus.simulate_bus(LAYOUT, 1.5, seed) for seed in (1, 2)])


def _choice(family: str) -> dict[str, float]:
    if not TARGETS[family]:
        return {}
    name, signal, *value = TARGETS[family]
    message = next(one for one in bus.bus_messages(LAYOUT) if one.name == name)
    field = next(one for one in message.fields if one.name == signal)
    place = {"can_id": message.can_id, "first_bit": 64 - field.first_bit - field.bits, "bits": field.bits}
    return place | ({"value": float(value[0])} if value else {})


def _without(profile: Profile, checks: tuple[str, ...]) -> Profile:
    """The profile as if these checks had not been learnt."""
    senders, signals = profile.senders.copy(), profile.signals.copy()
    for column, check in {"slack": "schedule", "silence": "silence", "bits": "alone", "ties": "together"}.items():
        senders[column] = senders[column] if check not in checks else 0
    signals["limits"] = signals["limits"] if "jump" not in checks else -1
    return replace(profile, tables=profile.tables._replace(senders=senders, signals=signals))


def _told(profile: Profile, attacked: Frames, honest: Frames, off: tuple[str, ...] = ()) -> dict[str, float]:
    """The checks that speak of the attack and not without it, each with the seconds that it took."""
    found = []
    for frames in (attacked, honest):
        _, hits = step(profile, begin(profile), frames)
        hits = hits[(hits["ts"] >= BEGIN_US) & (hits["ts"] <= BEGIN_US + SECONDS * 1e6)]
        found.append({(int(one["ts"]), int(one["can_id"]), CHECKS[one["check"]]) for one in hits})
    told: dict[str, float] = {}
    for ts, _, check in sorted(found[0] - found[1]):
        if check not in off:
            told.setdefault(check, (ts - BEGIN_US) / 1e6)
    return told


@pytest.mark.parametrize("family", attacks.FAMILIES)
def test_the_named_check_finds_it_and_without_it_nobody_does(family: str, profile: Profile, drive: Frames) -> None:
    attacked, _ = attacks.inject(family, drive, BEGIN_US, SECONDS, seed=2, **_choice(family))
    stopped_by = attacks.FAMILIES[family].stopped_by
    told = _told(profile, attacked, drive)
    assert told.keys() & set(stopped_by), told
    assert min(told.values()) < 1.5
    assert not _told(_without(profile, stopped_by), attacked, drive, off=stopped_by)
