"""Attacks on a bus, seeded, with labels: frames of a benign drive come in, the same frames attacked go out.

It works on captures as on the simulated bus, since it reads nothing but frames. *Fabrication* adds frames. They go into
the gaps between honest ones, which keep their times, and no two overlap. *Suspension* takes a sender's frames away.
*Masquerade* does too, and sends others at their times: a field is changed, all other bits are the sender's. Nothing is
recomputed: a counter goes on, and a checksum over a changed field is wrong, as an attacker leaves it who does not know
the sum. Only *replay* repeats whole frames, whose sums are right.

Each family names the check that stops it; tests/detect/test_detect_attacks.py shows the attack found by it, and what is
found without it. What attackers find out later, and confirmed alerts, join as families of the next `VERSION`, so that a
figure says which attacks it was measured on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tallystick.errors import Misuse
from tallystick.fleet.detect.frames import Frames, joined

VERSION = 1
LOOK_US = 120_000_000  # before an attack, to choose what to attack
BIT_US = 2  # 500 kbit/s
FRAMES_MIN = 20  # of an identifier in that time, to be chosen
DISTINCT = 16  # values of a number
MOVES = 3  # at least so far during the attack; a lie about what rests is none
SMOOTHEST = 5  # the target is one of so many


@dataclass(frozen=True)
class Family:
    """What an attack does, the checks that stop it, and the version in which it came."""

    kind: str  # fabrication, suspension or masquerade
    stopped_by: tuple[str, ...]  # without all of them nobody finds it on the simulated bus
    since: int = 1


FAMILIES = {
    "flood": Family("fabrication", ("unknown",)),  # the most urgent identifier, as often as the bus has room
    "fuzzing": Family("fabrication", ("unknown", "schedule", "jump")),  # any identifier, any payload
    "replay": Family("fabrication", ("schedule", "jump")),  # a sender's earlier frames once more
    "targeted": Family("fabrication", ("schedule", "jump")),  # a false value after each frame of a sender
    "suspension": Family("suspension", ("silence",)),
    "constant": Family("masquerade", ("jump", "together")),  # a value far from the present one
    "ramp": Family("masquerade", ("together",)),  # drifts away from the true value
    "freeze": Family("masquerade", ("together",)),  # stays as it was
    "flag": Family("masquerade", ("alone",)),  # a bit says the opposite
}
EVERY_US = {"flood": 300, "fuzzing": 5_000}


@dataclass(frozen=True)
class Attack:
    """What is attacked, from `begin_us` until before `end_us`."""

    family: str
    begin_us: int
    end_us: int
    can_id: int = 0
    first_bit: int = 0  # on the wire, the highest bit of the first byte being 0
    bits: int = 8
    value: float = 0.0  # of a field, in its steps; of a ramp, steps in a second


def inject(
    family: str, frames: Frames, begin_us: int, seconds: float, seed: int = 0, **choice: Any
) -> tuple[Frames, npt.NDArray[np.bool_]]:
    """The frames attacked, and which of them the attacker sent: of a suspension none. `plan` says what was attacked."""
    return carry_out(plan(family, frames, begin_us, seconds, seed, **choice), frames, seed)


def plan(family: str, frames: Frames, begin_us: int, seconds: float, seed: int = 0, **choice: Any) -> Attack:
    """An attack on a target that suits it, by what the bus shows then and in the two minutes before.

    Any field of `Attack` can be given instead. Raises `Misuse` for an unknown family, or if nothing suits.
    """
    if family not in FAMILIES:
        raise Misuse(f'no family of attacks "{family}", expected one of {", ".join(FAMILIES)}')
    attack = Attack(family, begin_us, begin_us + round(seconds * 1e6))
    if "can_id" not in choice and family not in EVERY_US:
        seen = frames[(frames.ts >= begin_us - LOOK_US) & (frames.ts < attack.end_us)]
        targets = sorted(_targets(attack, seen))[:SMOOTHEST]
        if not targets:
            hint = "attack a time in which the car moves"
            raise Misuse(f"{family}: nothing to attack in the {len(seen)} frames around", hint=hint)
        can_id, first_bit, bits, value = targets[int(_chance(attack, seed).integers(len(targets)))][1:]
        attack = replace(attack, can_id=can_id, first_bit=first_bit, bits=bits, value=value)
    return replace(attack, **choice)


def carry_out(attack: Attack, frames: Frames, seed: int = 0) -> tuple[Frames, npt.NDArray[np.bool_]]:
    """The frames after the attack, and which of them the attacker sent."""
    during = (frames.ts >= attack.begin_us) & (frames.ts < attack.end_us)
    own = during & (frames.can_id == attack.can_id)
    match FAMILIES[attack.family].kind:
        case "suspension":
            return frames[~own], np.zeros(len(frames) - int(own.sum()), np.bool_)
        case "masquerade":
            word = frames.word.copy()
            word[own] = _lies(attack, frames[own])
            return Frames(frames.ts, frames.can_id, frames.length, word), own
    added = _sent(attack, frames, own, _chance(attack, seed))
    added = _between(frames[during], added[added.ts < attack.end_us])
    whole = joined([frames, added[added.ts < attack.end_us]])  # what found no gap in time is not sent
    order = np.argsort(whole.ts, kind="stable")
    return whole[order], order >= len(frames)


def _chance(attack: Attack, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, list(FAMILIES).index(attack.family)])


def _targets(attack: Attack, seen: Frames) -> Iterator[tuple[float, int, int, int, float]]:
    """What could be attacked: how unlike a target it is, identifier, first bit, bits, value."""
    for can_id in np.unique(seen.can_id).tolist():
        own = seen[seen.can_id == can_id]
        gaps, during = np.diff(own.ts), own.ts >= attack.begin_us
        if len(own) < FRAMES_MIN or during.sum() < 2:
            continue
        if attack.family in ("replay", "suspension"):  # of senders with a period
            if gaps.std() < gaps.mean() / 4:
                yield float(gaps.mean()), can_id, 0, 8, 0.0
            continue
        octets = own.word.astype(">u8").view(np.uint8).reshape(-1, 8).astype(np.int64)
        flips = np.unpackbits(octets.astype(np.uint8), axis=1).astype(bool)
        often = (flips[1:] != flips[:-1]).sum(0)
        for place in range(8 * int(own.length.max())) if attack.family == "flag" else ():
            below = often[place + 1] if place < 63 else 0  # of a number's bits, the lower flips more often
            if 2 <= often[place] <= len(own) / 50 and below <= 1.2 * often[place]:
                yield float(often[place] / len(own)), can_id, place, 1, 0.0
        for place in range(int(own.length.max())) if attack.family != "flag" else ():
            values = octets[:, place]
            low, high, change = int(values.min()), int(values.max()), np.abs(np.diff(values))
            if len(np.unique(values)) >= DISTINCT and (change > 0).mean() < 0.9 and np.ptp(values[during]) > MOVES:
                far = low if values[-1] > (low + high) / 2 else high
                end = 0.0 if values[-1] > 127 else 255.0  # far from the present value; a ramp stays where values go
                slope = 2e6 * (far - int(values[-1])) / (attack.end_us - attack.begin_us)
                value = slope if attack.family == "ramp" else end
                yield float(change.mean() / (high - low)), can_id, 8 * place, 8, value


def _put(
    attack: Attack, words: npt.NDArray[np.uint64], values: npt.NDArray[np.float64] | float
) -> npt.NDArray[np.uint64]:
    """The words with these values in the field; what does not fit is held at the end of its range."""
    shift, mask = np.uint64(64 - attack.first_bit - attack.bits), (1 << attack.bits) - 1
    raw = np.clip(np.rint(values), 0, mask).astype(np.uint64)
    return (words & ~(np.uint64(mask) << shift)) | (raw << shift)


def _lies(attack: Attack, own: Frames) -> npt.NDArray[np.uint64]:
    """What is sent in the name of the silenced sender."""
    shift, mask = np.uint64(64 - attack.first_bit - attack.bits), np.uint64((1 << attack.bits) - 1)
    true = ((own.word >> shift) & mask).astype(np.float64)
    match attack.family:
        case "constant":
            return _put(attack, own.word, attack.value)
        case "ramp":
            return _put(attack, own.word, true + attack.value * (own.ts - attack.begin_us) / 1e6)
        case "freeze":
            return _put(attack, own.word, true[:1])
    return _put(attack, own.word, float(mask) - true)


def _sent(attack: Attack, frames: Frames, own: npt.NDArray[np.bool_], chance: np.random.Generator) -> Frames:
    """What the attacker adds, at the times at which it would begin."""
    if attack.family == "replay":
        lasts = attack.end_us - attack.begin_us
        again = frames[
            (frames.can_id == attack.can_id) & (frames.ts >= attack.begin_us - lasts) & (frames.ts < attack.begin_us)
        ]
        return Frames(again.ts + lasts, again.can_id, again.length, again.word)
    if attack.family == "targeted":
        after = frames[own]
        return Frames(after.ts + 500, after.can_id, after.length, _put(attack, after.word, attack.value))
    ts = np.arange(attack.begin_us, attack.end_us, EVERY_US[attack.family])
    words = chance.integers(0, 1 << 64, len(ts), np.uint64)
    ids = chance.integers(0, 0x800, len(ts)) if attack.family == "fuzzing" else np.full(len(ts), attack.can_id)
    return Frames(
        ts, ids.astype(np.uint32), np.full(len(ts), 8, np.uint8), words if attack.family == "fuzzing" else words * 0
    )


def _between(honest: Frames, added: Frames) -> Frames:
    """The added frames, each in the first gap that is long enough; a frame's time is when it ends."""
    takes = [BIT_US * (47 + 8 * length) for length in honest.length.tolist()]
    ends = honest.ts.tolist()
    times, free, at = [], 0, 0
    for due, length in zip(added.ts.tolist(), added.length.tolist(), strict=True):
        lasts = BIT_US * (47 + 8 * length)
        free = max(free, due)
        while at < len(ends) and ends[at] - takes[at] < free + lasts:
            free = max(free, ends[at])
            at += 1
        free += lasts
        times.append(free)
    return Frames(np.array(times, np.int64), added.can_id, added.length, added.word)
