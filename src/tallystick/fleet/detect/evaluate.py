"""How well attacks are found: one protocol for every detector, so that their figures stand beside each other.

Captures and simulated drives come in; figures of each group of attacks go out. What the protocol holds to:

- *No limit is set on test time.* A detector gets calibration frames first and gives a watch, which sees the test once,
  in slices of 20 ms.
- *Nothing of the test is in its calibration.* Captures that repeat one another's benign frames, as the masquerade of a
  fabricated attack does, are twins of one base drive; they are known by their frames, not by their names. A test is
  calibrated on the other base drives of its car, less the labelled frames, and on its own first `OWN_S`. Where nobody
  attacked one of the twins, the base drive is split by time, both ways. `hold_apart` refuses a leaking split by name.
- *Fabrication, masquerade and suspension stand apart*: they are different problems.
- *Found* is an attack whose identifier a hit names while it lasts. A frame is marked by the hits that accuse it, which
  those of *silence* and *clock* do not; a second is marked by any hit. A false alarm is an alert that begins and ends
  outside every attack and the second after it.
- *Bands* are the 5th and 95th percentile of a bootstrap over captures: wide where there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tallystick.errors import Misuse, Refused
from tallystick.fleet.bus import LAYOUTS, simulate_bus
from tallystick.fleet.detect.alerts import OpenAlerts, finish, gather
from tallystick.fleet.detect.attacks import FAMILIES, carry_out, plan
from tallystick.fleet.detect.checks import CHECKS, HIT, begin, step
from tallystick.fleet.detect.edge import slices
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import learn
from tallystick.fleet.detect.readers import Capture, read_capture
from tallystick.fleet.sources import SUFFIXES

OWN_S = 4.0  # of a test's own drive, where other drives calibrate it too
CALIBRATED = 0.6  # of a drive that is split by time
APART_S = 1.0  # between calibration and test of one drive: injected frames shift the others a little
SLICE_US = 20_000
ECHO_US = 1_000_000  # after an attack: what is told in this time is no false alarm
GAP_US = 2_000_000  # labelled frames farther from each other are two attacks
ENDINGS = (*SUFFIXES, ".parquet")
RUN = 64  # successive benign frames that two drives never share by chance
DRAWS = 1_000
NOBODY = [CHECKS.index("silence"), CHECKS.index("clock")]  # accuse no frame
MINUTES = (1, 2, 5, 10)  # of calibration; the last of a simulated test's
TEST_MIN = 2.0  # of a simulated test; the attack begins in its middle, and lasts a quarter
DRIVES, DRIVE_MIN = 60, 10  # benign simulated drives, and minutes of each


class Told(NamedTuple):
    """Hits as `checks.step` gives them, and when each was told."""

    hits: npt.NDArray[np.void]
    when: npt.NDArray[np.int64]


Watch = Callable[[Frames], Told]
Detector = Callable[[Sequence[Frames]], Watch]  # calibrates


@dataclass(frozen=True)
class Recording:
    """Frames of one drive and what is known of attacks in them."""

    name: str
    kind: str  # benign, fabrication, masquerade, suspension
    frames: Frames
    attack: npt.NDArray[np.bool_]
    spans: tuple[tuple[int, int], ...]  # begin and end of each attack
    ids: frozenset[int]  # whom an alert has to name
    base: str  # twins share one
    origin: int  # time at which the base drive began

    def part(self, from_s: float, to_s: float = np.inf) -> Recording:
        """The part between two times since the base drive's beginning, of a labelled one."""
        after = (self.frames.ts - self.origin) / 1e6
        inside = (after >= from_s) & (after < to_s)
        frames, attack = self.frames[inside], self.attack[inside]
        kind = self.kind if attack.any() else "benign"
        return replace(self, kind=kind, frames=frames, attack=attack, spans=spans_of(frames.ts[attack]))

    def benign(self) -> Recording:
        """Without the labelled frames."""
        return replace(self, frames=self.frames[~self.attack], attack=self.attack[~self.attack])

    @property
    def times(self) -> tuple[int, int]:
        return int(self.frames.ts[0]) - self.origin, int(self.frames.ts[-1]) - self.origin


class Case(NamedTuple):
    """What one calibration is tested on."""

    car: str
    calibration: tuple[Recording, ...]
    tests: tuple[Recording, ...]


@dataclass(frozen=True)
class DriveScore:
    """What came of one test; counts are right, wrong and missed ones."""

    car: str
    name: str
    kind: str
    seconds: float
    found: bool | None  # None: there was nothing to find
    delay_s: float | None
    false_alarms: int
    frame: tuple[int, int, int]
    second: tuple[int, int, int]
    shuffled: tuple[int, int, int]  # frames, had their labels been drawn by lot


# --- recordings and splits ---


def recording(capture: Capture) -> Recording:
    """A capture with its attacks, by its labels; its name tells a masquerade."""
    frames, attack = capture.frames, capture.attack
    plain = unlabelled(capture.name, frames)
    if attack is None or not attack.any():
        return plain
    kind = "masquerade" if "masquerade" in capture.name else "fabrication"
    ids = frozenset(np.unique(frames.can_id[attack]).tolist())
    return replace(plain, kind=kind, attack=attack, spans=spans_of(frames.ts[attack]), ids=ids)


def spans_of(ts: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Begin and end of each attack, by the times of the labelled frames."""
    cuts = [0, *(np.flatnonzero(np.diff(ts) > GAP_US) + 1).tolist(), len(ts)]
    return tuple((int(ts[a]), int(ts[b - 1])) for a, b in pairwise(cuts) if b > a)


def unlabelled(name: str, frames: Frames) -> Recording:
    """A drive that nobody attacked."""
    if not len(frames):
        raise Misuse(f"{name}: holds no frames")
    return Recording(name, "benign", frames, np.zeros(len(frames), bool), (), frozenset(), name, int(frames.ts[0]))


def runs(drive: Recording) -> npt.NDArray[np.uint64]:
    """A fingerprint of every `RUN` successive benign frames, whatever their times."""
    frames = drive.frames[~drive.attack]
    mixed = frames.can_id * np.uint64(0x9E3779B97F4A7C15) ^ frames.word * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    total = np.concatenate([[np.uint64(0)], np.cumsum(mixed ^ mixed >> np.uint64(32))])
    return np.sort(total[RUN:] - total[:-RUN])


def shared(some: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many runs of one drive are in another too."""
    if not len(others):
        return 0
    return int((others[np.minimum(np.searchsorted(others, some), len(others) - 1)] == some).sum())


def hold_apart(calibration: Sequence[Recording], test: Recording) -> None:
    """Refuse, by name, a calibration that shares time or frames with its test."""
    known = runs(test)
    for one in calibration:
        (a, b), (c, d) = one.times, test.times
        if one.base == test.base and a <= d and c <= b:
            told = "overlaps it in time on one base drive"
        elif common := shared(runs(one), known):
            told = f"has {common} runs of {RUN} frames in common with it"
        else:
            continue
        raise Refused(f"test {test.name}: its calibration {one.name} {told}", reason="leak")


def with_bases(drives: Sequence[Recording]) -> list[Recording]:
    """The same recordings, twins with one base: that of the first whose frames they repeat."""
    found: list[tuple[Recording, npt.NDArray[np.uint64]]] = []
    for drive in drives:
        own = runs(drive)
        base = next((one.base for one, other in found if shared(own, other)), drive.base)
        found.append((replace(drive, base=base), own))
    return [one for one, _ in found]


def of_captures(folder: Path) -> Iterator[Case]:
    """The cases of a folder with captures of one car."""
    paths = sorted(one for one in folder.iterdir() if one.name.endswith(ENDINGS))
    drives = with_bases([recording(read_capture(path)) for path in paths])
    bases = list(dict.fromkeys(drive.base for drive in drives))
    for base in bases:
        own = [drive for drive in drives if drive.base == base]
        whole = next((drive for drive in own if drive.kind == "benign"), None)
        if whole is not None:
            seconds = whole.times[1] / 1e6
            long, short = seconds * CALIBRATED, seconds * (1 - CALIBRATED)
            for told, (a, b), (c, d) in (
                ("", (0.0, long), (long + APART_S, np.inf)),
                (" backwards", (short, np.inf), (0.0, short - APART_S)),
            ):
                tests = tuple(replace(one.part(c, d), name=one.name + told) for one in own)
                yield Case(folder.name, (whole.part(a, b),), tests)
            continue
        first = {drive.base: drive for drive in reversed(drives) if drive.base != base}  # of each, the fabricated one
        calm_s = min((one.spans[0][0] - one.origin) / 1e6 for one in own)
        own_s = min(OWN_S, calm_s) if first else calm_s
        others = tuple(first[one].benign() for one in bases if one in first)
        mine = [own[0].part(0.0, own_s)] if calm_s > 0 else []  # none where the attack is there from the first frame
        yield Case(folder.name, (*others, *mine), tuple(one.part(own_s) for one in own))


def simulated(layout: int, quick: bool = False) -> Case:
    """A simulated car: every family of attacks on a drive of its own."""
    minutes, test_minutes = (2, TEST_MIN / 2) if quick else (MINUTES[-1], TEST_MIN)
    tests = []
    for number, (family, told) in enumerate(FAMILIES.items()):
        clean = simulate_bus(layout, test_minutes, seed=100 + number)
        attack = plan(family, clean, int(clean.ts[len(clean) // 2]), test_minutes * 15, seed=number)
        frames, labels = carry_out(attack, clean, seed=number)
        ids = frozenset(np.unique(frames.can_id[labels]).tolist() or [attack.can_id])
        name, span = f"{family} {layout}", (attack.begin_us, attack.end_us)
        tests.append(Recording(name, told.kind, frames, labels, (span,), ids, name, int(clean.ts[0])))
    return Case("simulated", (unlabelled(f"drive {layout}", simulate_bus(layout, minutes, seed=1)),), tuple(tests))


# --- detectors and scores ---


def watch_with(state: Any, step: Callable[[Any, Frames], tuple[Any, Any]], slice_us: int = SLICE_US) -> Watch:
    """A watch that begins in a state and goes on by steps."""

    def watch(frames: Frames) -> Told:
        now, hits, when = state, [np.zeros(0, HIT)], [np.zeros(0, np.int64)]
        for part in slices(frames, slice_us):
            now, some = step(now, part)
            if len(some):
                hits.append(some)
                when.append(np.full(len(some), part.ts[-1]))
        return Told(np.concatenate(hits), np.concatenate(when))

    return watch


def checks(calibration: Sequence[Frames], slice_us: int = SLICE_US) -> Watch:
    """The detector that ships."""
    profile = learn(calibration)
    return watch_with(begin(profile), partial(step, profile), slice_us)


def score(car: str, test: Recording, told: Told) -> DriveScore:
    """Hold what was told to what is known."""
    (hits, when), ts = told, test.frames.ts
    marked = np.zeros(len(ts), bool)
    marked[hits["frame"][~np.isin(hits["check"], NOBODY)]] = True
    second = (ts - ts[0]) // 1_000_000
    said, attacked = np.zeros((2, int(second[-1]) + 1), bool)
    said[np.clip((hits["ts"] - ts[0]) // 1_000_000, 0, len(said) - 1)] = True
    attacked[second[test.attack]] = True
    named, delays = np.isin(hits["can_id"], list(test.ids)), []
    for a, b in test.spans:
        if test.kind == "suspension":
            attacked[second[(ts >= a) & (ts <= b)]] = True
        if (inside := named & (hits["ts"] >= a) & (hits["ts"] <= b)).any():
            delays.append(float(when[inside].min() - a) / 1e6)
    state, alerts = gather(OpenAlerts(), hits, int(ts[-1]))
    alerts += finish(state)
    false = sum(all(one.ts_last < a or one.ts_first > b + ECHO_US for a, b in test.spans) for one in alerts)
    by_lot = np.random.default_rng(0).permutation(test.attack)
    found = bool(delays) if test.spans else None
    return DriveScore(
        *(car, test.name, test.kind, float(ts[-1] - ts[0]) / 1e6, found, max(delays, default=None), false),
        *(_counts(test.attack, marked), _counts(attacked, said), _counts(by_lot, marked)),
    )


def _counts(actual: npt.NDArray[np.bool_], said: npt.NDArray[np.bool_]) -> tuple[int, int, int]:
    return int((actual & said).sum()), int((~actual & said).sum()), int((actual & ~said).sum())


def run(case: Case, detector: Detector) -> list[DriveScore]:
    """Every test of a case, after the split was held apart."""
    for test in case.tests:
        hold_apart(case.calibration, test)
    watch = detector([one.frames for one in case.calibration])
    return [score(case.car, test, watch(test.frames)) for test in case.tests]


# --- figures ---


def rates(counts: npt.NDArray[np.int64]) -> dict[str, float | None]:
    """Precision, recall and F1; None where there was nothing to count."""
    right, wrong, missed = (int(one) for one in counts)
    of = {"precision": right + wrong, "recall": right + missed, "f1": right + (wrong + missed) / 2}
    return {name: right / total if total else None for name, total in of.items()}


def with_band(counts: Sequence[tuple[int, int, int]], seed: int = 0) -> dict[str, float | None]:
    """The same of all captures together, and the band of F1 when captures are drawn again and again."""
    every = np.array(counts)
    drawn = np.random.default_rng(seed).integers(0, len(every), (DRAWS, len(every)))
    right, wrong, missed = every[drawn].sum(axis=1).T
    low, high = np.quantile(right / np.maximum(right + (wrong + missed) / 2, 1), (0.05, 0.95))
    return {**rates(every.sum(axis=0)), "low": float(low), "high": float(high)}


def figures(name: str, scores: Sequence[DriveScore]) -> dict[str, Any]:
    """What is told of a group of tests."""
    delays = [one.delay_s for one in scores if one.delay_s is not None]
    seconds, false = sum(one.seconds for one in scores), sum(one.false_alarms for one in scores)
    return {
        "group": name,
        "tests": len(scores),
        "found": sum(bool(one.found) for one in scores),
        "delay_s": float(np.median(delays)) if delays else None,
        "delay_s_max": max(delays, default=None),
        "frame": with_band([one.frame for one in scores]),
        "second": with_band([one.second for one in scores]),
        "shuffled_f1": rates(np.sum([one.shuffled for one in scores], axis=0))["f1"],
        "false_alarms": false,
        "seconds": seconds,
        "false_alarms_per_hour": false * 3600 / seconds,
    }


def grouped(scores: Sequence[DriveScore]) -> list[dict[str, Any]]:
    """Figures by car and kind of attack."""
    found: dict[str, list[DriveScore]] = {}
    for one in scores:
        found.setdefault(f"{one.car} {one.kind}", []).append(one)
    return [figures(name, some) for name, some in found.items()]


def false_alarms(quick: bool, tell: Callable[[str], object]) -> Iterator[dict[str, float]]:
    """On benign simulated driving, by the minutes of calibration."""
    minutes, layouts, drives, lasts = (
        (MINUTES[:2], LAYOUTS[:1], 1, 1) if quick else (MINUTES, LAYOUTS, DRIVES, DRIVE_MIN)
    )
    scores: dict[int, list[DriveScore]] = {one: [] for one in minutes}
    for layout in layouts:
        whole = simulate_bus(layout, max(minutes), seed=1)
        began = whole.ts[0]
        watches = {one: checks([whole[whole.ts - began < one * 60_000_000]], 1 << 62) for one in minutes}
        for number in range(layout, drives, len(layouts)):
            drive = unlabelled(f"drive {layout}", simulate_bus(layout, lasts, seed=1_000 + number))
            for one, watch in watches.items():
                scores[one].append(score("simulated", drive, watch(drive.frames)))
        tell(f"simulated car {layout}: {len(scores[minutes[0]])} benign drives")
    for one, some in scores.items():
        told = figures("", some)
        yield {"minutes": one, "hours": told["seconds"] / 3600, "per_hour": told["false_alarms_per_hour"]}


def cases(data: Path | None, quick: bool) -> Iterator[Case]:
    """Of the captures under a folder, each folder of it a car, and of the simulated cars."""
    if data is not None:
        if not data.is_dir():
            raise Misuse(f"{data}: there is no such folder", hint="name one with a folder of captures for each car")
        for folder in sorted({path.parent for path in data.rglob("*") if path.name.endswith(ENDINGS)}):
            yield from islice(of_captures(folder), 1 if quick else None)
    for layout in LAYOUTS[: 1 if quick else None]:
        yield simulated(layout, quick)


def evaluate(data: Path | None, quick: bool, tell: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """The whole protocol for the checks. `tell` is told what is being done."""
    scores: list[DriveScore] = []
    for case in cases(data, quick):
        tell(f"{case.car}: {', '.join(test.name for test in case.tests)}")
        scores += run(case, checks)
    return {
        "quick": quick,
        "groups": grouped(scores),
        "false_alarms": list(false_alarms(quick, tell)),
        "tests": [asdict(one) for one in scores],
    }
