"""The protocol: what leaks is refused, labels by lot fall to chance, and figures are what a count by hand says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tallystick.errors import Misuse, Refused
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect.checks import HIT
from tallystick.fleet.detect.evaluate import (
    Case,
    DriveScore,
    Recording,
    Told,
    Watch,
    checks,
    evaluate,
    figures,
    hold_apart,
    of_captures,
    rates,
    recording,
    run,
    score,
    unlabelled,
    with_bases,
)
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.readers import HEADERS, Capture

SECOND = 1_000_000


@pytest.fixture(scope="module")
def drive() -> Frames:
    return simulate_bus(0, 0.5, seed=3)


def attacked(name: str, frames: Frames, begin_s: float, end_s: float) -> Recording:
    """A masquerade of the commonest identifier."""
    ids, counts = np.unique(frames.can_id, return_counts=True)
    after = (frames.ts - frames.ts[0]) / SECOND
    labels = (frames.can_id == ids[counts.argmax()]) & (after >= begin_s) & (after < end_s)
    word = np.where(labels, frames.word ^ np.uint64(0xFF << 40), frames.word)
    return recording(Capture(name, replace(frames, word=word), labels))


def hits(frames: Frames, places: Sequence[int], check: int = 0) -> Told:
    found = np.zeros(len(places), HIT)
    found["frame"], found["ts"], found["can_id"] = places, frames.ts[places], frames.can_id[places]
    found["check"], found["strength"] = check, 1
    return Told(found, found["ts"] + 1000)


# --- leaks ---


def test_a_calibration_that_shares_time_with_its_test_is_refused(drive: Frames) -> None:
    whole = attacked("brakes", drive, 10, 15)
    hold_apart([whole.part(0, 8)], whole.part(8))
    with pytest.raises(Refused, match="test brakes: its calibration brakes overlaps it in time") as refused:
        hold_apart([whole.part(0, 9)], whole.part(8))
    assert refused.value.reason == "leak"
    every_second = replace(whole, frames=whole.frames[::2], attack=whole.attack[::2])  # rows drawn, not times
    with pytest.raises(Refused, match="overlaps it in time"):
        hold_apart([every_second.benign()], whole)


def test_a_twin_under_another_name_is_refused_by_its_frames(drive: Frames) -> None:
    later = replace(drive, ts=drive.ts + 7_000 * SECOND)
    fabricated, twin = attacked("brakes", drive, 10, 15), attacked("lights_masquerade", later, 20, 25)
    with pytest.raises(Refused, match=r"calibration brakes has \d+ runs of 64 frames in common"):
        hold_apart([fabricated.benign()], twin)
    assert [one.base for one in with_bases([fabricated, twin])] == ["brakes", "brakes"]
    other = unlabelled("other", simulate_bus(0, 0.2, seed=4))
    assert with_bases([fabricated, other])[1].base == "other"
    hold_apart([other], twin)


def test_a_leaking_case_is_never_scored(drive: Frames) -> None:
    def nobody(_calibration: Sequence[Frames]) -> Watch:
        raise AssertionError("calibrated on the test")

    whole = attacked("brakes", drive, 10, 15)
    with pytest.raises(Refused, match="brakes"):
        run(Case("car", (whole.benign(),), (whole,)), nobody)


def test_limits_do_not_hang_on_the_test(drive: Frames) -> None:
    """The watch is made before the test is seen, and what it told stays told when the test goes on otherwise."""
    whole, watch = attacked("brakes", drive, 10, 15), checks([simulate_bus(0, 0.5, seed=5)])
    begun = whole.part(0, 12)
    told, again = watch(begun.frames).hits, watch(whole.frames).hits
    assert again[: len(told)].tobytes() == told.tobytes()


# --- labels by lot ---


def test_labels_by_lot_fall_to_chance(drive: Frames) -> None:
    whole = attacked("brakes", drive, 10, 15)
    knowing = score("car", whole, hits(whole.frames, np.flatnonzero(whole.attack).tolist()))
    assert rates(np.array(knowing.frame))["f1"] == 1.0
    by_lot = rates(np.array(knowing.shuffled))["f1"]
    assert by_lot is not None
    assert by_lot < 3 * whole.attack.mean()


# --- counts by hand ---


def test_a_score_is_what_a_count_by_hand_says(drive: Frames) -> None:
    whole = attacked("brakes", drive, 10, 15)
    right = np.flatnonzero(whole.attack)[:7].tolist()
    (own,) = whole.ids
    before = np.flatnonzero((whole.frames.can_id != own) & (whole.frames.ts < whole.origin + 3 * SECOND))[:1].tolist()
    found = score("car", whole, hits(whole.frames, [*before, *right]))
    assert found.frame == (7, 1, int(whole.attack.sum()) - 7)
    assert found.second == (1, 1, 4)
    assert (found.found, found.false_alarms) == (True, 1)
    assert found.delay_s == pytest.approx(0.001)
    silence = score("car", whole, hits(whole.frames, right, check=6))  # accuses no frame
    assert silence.frame == (0, 0, int(whole.attack.sum()))
    assert silence.second[0] == 1


def test_an_alert_that_names_somebody_else_finds_nothing(drive: Frames) -> None:
    whole = attacked("brakes", drive, 10, 15)
    during = (whole.frames.ts >= whole.spans[0][0]) & (whole.frames.ts <= whole.spans[0][1])
    others = np.flatnonzero(during & ~whole.attack)[:5].tolist()
    found = score("car", whole, hits(whole.frames, others))
    assert (found.found, found.delay_s, found.false_alarms) == (False, None, 0)


def counted(*frame: int) -> DriveScore:
    triple: tuple[int, int, int] = frame  # type: ignore[assignment]
    return DriveScore("car", "one", "fabrication", 36.0, True, 0.5, 1, triple, triple, triple)


def test_bands_hold_the_figure_and_grow_with_what_captures_differ_by() -> None:
    alike = figures("group", [counted(90, 10, 10)] * 4)
    assert alike["frame"]["f1"] == pytest.approx(0.9)
    assert alike["frame"]["low"] == alike["frame"]["high"] == pytest.approx(0.9)
    assert alike["false_alarms_per_hour"] == pytest.approx(100)
    apart = figures("group", [counted(90, 10, 10), counted(10, 90, 90)])["frame"]
    assert apart["low"] < apart["f1"] < apart["high"]
    assert figures("group", [counted(0, 0, 0)])["frame"]["precision"] is None


def write_road(path: Path, drive: Recording) -> None:
    frames = drive.frames
    rows = zip(frames.ts.tolist(), frames.can_id.tolist(), frames.word.tolist(), drive.attack.tolist(), strict=True)
    lines = [
        f"{ts / 1e6:.6f},{can_id & 0x1FFFFFFF:03X},{word.to_bytes(8).hex(',').upper()},{'Attack' if lied else 'Benign'}"
        for ts, can_id, word, lied in rows
    ]
    path.write_text("\n".join([next(iter(HEADERS)).decode(), *lines, ""]))


def test_twins_are_left_out_together_and_an_early_attack_is_in_no_calibration(tmp_path: Path) -> None:
    """Three files of two drives; in the second drive the attack begins after two seconds."""
    drives = [simulate_bus(0, 0.2, seed=seed) for seed in (6, 7)]
    write_road(tmp_path / "brakes.csv", attacked("brakes", drives[0], 8, 10))
    write_road(tmp_path / "brakes_masquerade.csv", attacked("brakes", drives[0], 8, 11))
    write_road(tmp_path / "lights.csv", attacked("lights", drives[1], 2, 5))
    first, second = of_captures(tmp_path)
    assert [one.name for one in first.tests] == ["brakes", "brakes_masquerade"]
    assert [one.kind for one in first.tests] == ["fabrication", "masquerade"]
    assert [one.base for one in first.calibration] == ["lights", "brakes"]
    assert [one.base for one in second.calibration] == ["brakes", "lights"]
    for case in (first, second):
        assert not any(one.attack.any() for one in case.calibration)
        for test in case.tests:
            hold_apart(case.calibration, test)
    assert second.calibration[1].times[1] < 3 * SECOND


# --- all of it ---


def test_the_simulated_cars_alone_give_every_group() -> None:
    lines: list[str] = []
    told = evaluate(None, True, lines.append)
    groups = {one["group"]: one for one in told["groups"]}
    assert list(groups) == ["simulated fabrication", "simulated suspension", "simulated masquerade"]
    assert [one["minutes"] for one in told["false_alarms"]] == [1, 2]
    assert lines
    for one in groups.values():
        if one["frame"]["f1"]:
            assert one["shuffled_f1"] < one["frame"]["f1"] / 2


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="no such folder"):
        evaluate(tmp_path / "nothing", True)


@pytest.mark.long
def test_the_shared_captures_are_split_by_base_drive_and_by_time(shared_data: Path) -> None:
    """As their README says: twins of ROAD left out together, all V40 files one trace, which is split by time."""
    for folder, drives, tests in (("can-road", 4, [2, 1, 1, 2]), ("can-daga", 1, [7, 7])):
        if not (shared_data / folder).is_dir():
            pytest.skip(f"{shared_data / folder} is not there")
        found = list(of_captures(shared_data / folder))
        assert [len(case.tests) for case in found] == tests
        assert {len(case.calibration) for case in found} == {drives}
        for case in found:
            for test in case.tests:
                hold_apart(case.calibration, test)
