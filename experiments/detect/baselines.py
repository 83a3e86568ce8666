"""The checks beside the detectors that others use, under one protocol: `fleet/detect/evaluate.py`.

Claim (issue "Intrusion detection on the CAN bus"): rules over a profile beat what is usual, and bigrams, entropy,
look-up and isolation forest are useless alone. Baselines, each with its limit where no calibration frame passes it:

    interval     a frame sooner after the last of its identifier than any was
    bigram       two identifiers that never followed each other
    entropy      of the identifiers in 100 ms, farther from its median than it ever was
    lookup       an identifier with a payload that was never seen
    range        a byte outside what its identifier's byte was seen to hold
    forest       isolation forest (Liu, Ting, Zhou 2008: 100 trees of 256 frames): identifier, interval, flips, bytes

Beside them `only CHECK` and `without CHECK`: the hits of one check alone, and of all others. The walk itself is the
same in both, so a check's say in what another sees stays. `network` is the network alone, of which
`benchmarks/detect.py` has the model.

Expected band: no baseline has a higher F1 per frame than the checks in any group of attacks, nor half of it on
masquerades. That a baseline *finds* an attack says little: one that cries all the time finds everything.

`python -m experiments.detect.baselines [--seed N] [--small]` writes build/experiments/detect/baselines.csv and .png.
The captures of `TALLY_DATA`, or of ../shared/data, are used where they are; `--small` is one simulated car.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments import results
from experiments.results import Plot
from tallystick.fleet.detect import network as networks
from tallystick.fleet.detect.checks import CHECKS, HIT
from tallystick.fleet.detect.evaluate import (
    Case,
    Detector,
    DriveScore,
    Told,
    Watch,
    cases,
    checks,
    grouped,
    hold_apart,
    score,
    watch_with,
)
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import learn

Floats = npt.NDArray[np.float64]
Scorer = Callable[[Frames], Floats]  # of each frame; more is stranger
WINDOW_US = 100_000
TREES, SAMPLE, DEPTH = 100, 256, 8
FIRST = 1 << 40  # microseconds, in place of an interval that is not known


@dataclass(frozen=True)
class Row:
    detector: str
    group: str
    tests: int
    found: int
    delay_s: float | None
    frame_f1: float | None
    frame_low: float
    frame_high: float
    second_f1: float | None
    false_alarms_per_hour: float


# --- baselines ---


def before(frames: Frames) -> npt.NDArray[np.int64]:
    """The place of each frame's predecessor of the same identifier; its own where there is none."""
    order = np.argsort(frames.can_id, kind="stable")
    ids, found = frames.can_id[order], np.arange(len(frames))
    same = np.flatnonzero(ids[1:] == ids[:-1])
    found[order[same + 1]] = order[same]
    return found


def gaps(frames: Frames) -> npt.NDArray[np.int64]:
    last = before(frames)
    return np.where(last == np.arange(len(frames)), FIRST, frames.ts - frames.ts[last])


def per_id(parts: Sequence[Frames], values: Sequence[Any], keep: Any, empty: Any) -> Callable[[Frames], Any]:
    """The least (or greatest) value of each identifier in the calibration, for the frames of a test."""
    ids, place = np.unique(np.concatenate([one.can_id for one in parts]), return_inverse=True)
    limits = np.full((len(ids) + 1, *values[0].shape[1:]), empty)
    keep.at(limits, place, np.concatenate(values))

    def of(frames: Frames) -> Any:
        at = np.minimum(np.searchsorted(ids, frames.can_id), len(ids) - 1)
        return limits[np.where(ids[at] == frames.can_id, at, len(ids))]

    return of


def interval(parts: Sequence[Frames]) -> Scorer:
    least = per_id(parts, [gaps(one) for one in parts], np.minimum, FIRST)
    return lambda frames: least(frames) / np.maximum(gaps(frames), 1) * (least(frames) < FIRST)


def octets(frames: Frames) -> npt.NDArray[np.uint8]:
    return frames.word.astype(">u8").view(np.uint8).reshape(-1, 8)


def value_range(parts: Sequence[Frames]) -> Scorer:
    values = [octets(one).astype(np.int64) for one in parts]
    low, high = per_id(parts, values, np.minimum, 255), per_id(parts, values, np.maximum, 0)
    return lambda frames: ((octets(frames) < low(frames)) | (octets(frames) > high(frames))).any(axis=1).astype(float)


def never_seen(keys: Callable[[Frames], npt.NDArray[np.uint64]]) -> Callable[[Sequence[Frames]], Scorer]:
    def fit(parts: Sequence[Frames]) -> Scorer:
        known = np.unique(np.concatenate([keys(one) for one in parts]))
        return lambda frames: (~np.isin(keys(frames), known)).astype(float)

    return fit


def pairs(frames: Frames) -> npt.NDArray[np.uint64]:
    ids = frames.can_id.astype(np.uint64)
    return np.concatenate([ids[:1], ids[:-1]]) << np.uint64(32) | ids


def payloads(frames: Frames) -> npt.NDArray[np.uint64]:
    return frames.word * np.uint64(0x9E3779B97F4A7C15) ^ frames.can_id * np.uint64(0xC2B2AE3D27D4EB4F)


def entropy(parts: Sequence[Frames]) -> Scorer:
    def of(frames: Frames) -> Any:
        window = (frames.ts - frames.ts[0]) // WINDOW_US
        keys, counts = np.unique(window << 32 | frames.can_id, return_counts=True)
        own, size = keys >> 32, np.bincount(window)
        share = counts / size[own]
        return np.bincount(own, -share * np.log2(share))[window]

    usual = np.median(np.concatenate([of(one) for one in parts]))
    return lambda frames: np.abs(of(frames) - usual)


def forest(parts: Sequence[Frames]) -> Scorer:
    def features(frames: Frames) -> Floats:
        flips = np.bitwise_count(frames.word ^ frames.word[before(frames)])
        return np.column_stack([frames.can_id, np.log2(np.maximum(gaps(frames), 1)), flips, octets(frames)])

    chance = np.random.default_rng(0)
    known = np.concatenate([features(one) for one in parts])
    trees = [_grow(known[chance.choice(len(known), min(SAMPLE, len(known)), False)], chance) for _ in range(TREES)]

    def shallow(frames: Frames) -> Floats:
        columns, depth = np.ascontiguousarray(features(frames).T), np.zeros(len(frames))
        for tree in trees:
            _deepen(tree, columns, np.arange(len(frames)), depth)
        return -depth

    return shallow


Node = tuple[int, float, Any, Any] | float  # feature, threshold and both sides; of a leaf its depth


def _grow(rows: Floats, chance: np.random.Generator, depth: int = 0) -> Node:
    feature = int(chance.integers(rows.shape[1]))
    low, high = (rows[:, feature].min(), rows[:, feature].max()) if len(rows) > 1 else (0.0, 0.0)
    if depth == DEPTH or low == high:
        rest = len(rows)
        return depth + (2 * (np.log(rest - 1) + 0.5772) - 2 * (rest - 1) / rest if rest > 1 else 0.0)
    at = float(chance.uniform(low, high))
    left = rows[:, feature] < at
    return feature, at, _grow(rows[left], chance, depth + 1), _grow(rows[~left], chance, depth + 1)


def _deepen(tree: Node, columns: Floats, places: npt.NDArray[np.int64], depth: Floats) -> None:
    """Add to each frame's depth that of its leaf."""
    if not isinstance(tree, tuple):
        depth[places] += tree
        return
    feature, at, left, right = tree
    below = columns[feature][places] < at
    _deepen(left, columns, places[below], depth)
    _deepen(right, columns, places[~below], depth)


def limited(fit: Callable[[Sequence[Frames]], Scorer]) -> Detector:
    """A detector that marks each frame that is stranger than all of the calibration."""

    def calibrate(parts: Sequence[Frames]) -> Watch:
        scorer = fit(parts)
        limit = max(float(scorer(one).max()) for one in parts)

        def watch(frames: Frames) -> Told:
            places = np.flatnonzero(scorer(frames) > limit)
            hits = np.zeros(len(places), HIT)
            hits["frame"], hits["ts"], hits["can_id"] = places, frames.ts[places], frames.can_id[places]
            hits["check"], hits["strength"] = CHECKS.index("network"), 1
            return Told(hits, hits["ts"])

        return watch

    return calibrate


def network(body: Mapping[str, Any]) -> Detector:
    """The network alone, from the body of a model."""
    one = networks.BusNetwork(body)

    def calibrate(parts: Sequence[Frames]) -> Watch:
        profile = learn(parts)
        return watch_with(networks.begin(profile), partial(one.step, profile))

    return calibrate


BASELINES: dict[str, Detector] = {
    "interval": limited(interval),
    "bigram": limited(never_seen(pairs)),
    "entropy": limited(entropy),
    "lookup": limited(never_seen(payloads)),
    "range": limited(value_range),
    "forest": limited(forest),
}


# --- the same run for all ---


def scores(case: Case, detectors: dict[str, Detector]) -> Iterator[tuple[str, DriveScore]]:
    """Of every test: all checks, each alone, all but each, and the other detectors."""
    frames = [one.frames for one in case.calibration]
    watches = {"checks": checks(frames), **{name: one(frames) for name, one in detectors.items()}}
    for test in case.tests:
        hold_apart(case.calibration, test)
        for name, watch in watches.items():
            told = watch(test.frames)
            yield name, score(case.car, test, told)
            for number, check in enumerate(CHECKS[:-1] if name == "checks" else ()):
                for variant, kept in (
                    (f"only {check}", told.hits["check"] == number),
                    (f"without {check}", told.hits["check"] != number),
                ):
                    yield variant, score(case.car, test, Told(told.hits[kept], told.when[kept]))


def table(data: Path | None, small: bool, detectors: dict[str, Detector]) -> list[Row]:
    found: dict[str, list[DriveScore]] = {}
    for case in cases(data, small):
        for name, one in scores(case, detectors):
            found.setdefault(name, []).append(one)
    return [_row(name, told) for name, some in found.items() for told in grouped(some)]


def _row(name: str, told: dict[str, Any]) -> Row:
    counts = {key: told[key] for key in ("group", "tests", "found", "delay_s", "false_alarms_per_hour")}
    frame = {f"frame_{key}": told["frame"][key] for key in ("f1", "low", "high")}
    return Row(name, **counts, **frame, second_f1=told["second"]["f1"])


def data_folder() -> Path | None:
    folder = Path(os.environ.get("TALLY_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def run(_seed: int, small: bool = False) -> Iterator[Row]:
    yield from table(None if small else data_folder(), small, BASELINES)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""
    ours = {row.group: row for row in rows if row.detector == "checks"}
    missed = []
    for row in (one for one in rows if one.detector in BASELINES):
        share = 0.5 if "masquerade" in row.group else 1.0
        if (row.frame_f1 or 0.0) > share * (ours[row.group].frame_f1 or 0.0):
            missed.append(f"{row.group}: {row.detector} has an F1 of {row.frame_f1:.3f} a frame")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    groups = list(dict.fromkeys(row.group for row in rows))
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in ("checks", *BASELINES)}
    for row in (one for one in rows if one.detector in lines):
        lines[row.detector].append((groups.index(row.group), row.frame_f1 or 0.0))
    return Plot("The checks and the baselines", ", ".join(groups), "F1 per frame", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("detect", "baselines", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
