"""Each check on a little bus: what it finds, whom it blames, what it leaves alone; and any cut gives equal bits."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_bus import COUNT, EVENT, FLAG, PERIODS, SPEED, THIRD, TWIN, drive, frames, in_order, with_words

from tallystick.errors import Malformed
from tallystick.fleet.detect.checks import CHECKS, HIT, WatchState, begin, step
from tallystick.fleet.detect.frames import Frames, joined
from tallystick.fleet.detect.profile import Profile, learn

PROFILE = learn([drive(120, seed) for seed in range(3)], ["a", "b", "c"])
RUN = drive(20, 9)
Hits = npt.NDArray[np.void]


def hits_of(run: Frames, profile: Profile = PROFILE) -> Hits:
    return step(profile, begin(profile), run)[1]


def told(hits: Hits) -> Counter[tuple[int, str]]:
    return Counter((int(hit["can_id"]), CHECKS[hit["check"]]) for hit in hits)


def mixed(run: Frames, more: Frames) -> tuple[Frames, npt.NDArray[np.bool_]]:
    """Frames with others among them, and which those are."""
    both = joined([run, more])
    order = np.argsort(both.ts, kind="stable")
    return both[order], order >= len(run)


def test_a_benign_drive_is_quiet() -> None:
    assert told(hits_of(drive(120, 77))) == {}


def test_an_unknown_identifier_or_length_is_told_each_time() -> None:
    for odd in (frames(RUN.ts[500:510] + 1, 0x7FF, 0), frames(RUN.ts[500:510] + 1, SPEED, 0, length=7)):
        run, added = mixed(RUN, odd)
        hits = hits_of(run)
        assert set(hits["frame"][hits["check"] == CHECKS.index("unknown")]) == set(np.flatnonzero(added))
    assert told(hits_of(mixed(RUN, frames(RUN.ts[700], SPEED, 0, length=64))[0])) == {(SPEED, "unknown"): 1}


@pytest.mark.parametrize("lag_us", [-3_000, 2_500, 9_000])
def test_schedule_blames_the_intruder_wherever_it_comes(lag_us: int) -> None:
    """Before the honest frame or behind it, with the payload of the last honest one: time alone tells them apart."""
    own = RUN[RUN.can_id == TWIN]
    copies = own[300:400]
    run, added = mixed(RUN, Frames(copies.ts + lag_us, copies.can_id, copies.length, copies.word))
    hits = hits_of(run)
    blamed = hits["frame"][hits["check"] == CHECKS.index("schedule")]
    assert set(told(hits)) == {(TWIN, "schedule")}
    assert np.mean(added[blamed]) > 0.95
    assert len(blamed) > 95


def test_schedule_needs_two_frames_for_a_slot() -> None:
    """Some frames are lost, one is late, and the sender begins again at another time: nothing is told."""
    own = np.flatnonzero(RUN.can_id == TWIN)
    late = RUN.ts.copy()
    late[own[400]] += 7_000
    late[own[600:]] += 6_000
    run = in_order(Frames(late, RUN.can_id, RUN.length, RUN.word))
    assert told(hits_of(run[~np.isin(np.arange(len(run)), own[100:103])])) == {}


def test_a_single_contention_is_not_told() -> None:
    assert told(hits_of(mixed(RUN, frames(RUN.ts[RUN.can_id == TWIN][300] + 5_000, TWIN, 0))[0])) == {}


def test_rate_holds_an_identifier_without_a_period() -> None:
    flood = frames(RUN.ts[2000] + 1_000 * np.arange(80), EVENT, 0, 4)
    run, added = mixed(RUN, flood)
    hits = hits_of(run)
    assert set(told(hits)) == {(EVENT, "rate")}
    assert np.mean(added[hits["frame"]]) > 0.95
    assert len(hits) > 60


def test_a_jump_is_marked_until_the_true_value_returns() -> None:
    own = np.flatnonzero(RUN.can_id == SPEED)
    lie = own[500:1200]
    hits = hits_of(with_words(RUN, lie, np.uint64(0x8000 << 48)))
    jumps = hits[hits["check"] == CHECKS.index("jump")]
    assert set(jumps["frame"]) == set(lie)
    assert (jumps["seen"] == 0x8000).all()
    assert (jumps["high"] < 0x8000).all()
    assert (jumps["strength"] > 1).all()
    assert PROFILE.fields(SPEED)[jumps["field"][0]] == (0, 16, "number")


def test_honest_frames_between_injected_ones_stay_clean() -> None:
    own = RUN[RUN.can_id == SPEED]
    run, added = mixed(RUN, frames(own.ts[500:900] + 300, SPEED, np.uint64(0x8000 << 48)))
    hits = hits_of(run)
    assert set(hits["frame"]) == set(np.flatnonzero(added))


def test_alone_finds_a_flag_that_nobody_follows() -> None:
    own = np.flatnonzero(RUN.can_id == FLAG)
    flag = (RUN.word[own] >> np.uint64(59)) & np.uint64(1)
    steady = next(at for at in range(200, 900) if len(set(flag[at - 60 : at + 120])) == 1)
    lie = own[steady : steady + 80]
    hits = hits_of(with_words(RUN, lie, RUN.word[lie] ^ np.uint64(1 << 59)))
    assert set(told(hits)) == {(FLAG, "alone")}
    assert set(hits["frame"]) <= set(lie)
    assert len(set(hits["frame"])) > 50


@pytest.mark.parametrize("how", ["ramp", "freeze"])
def test_together_finds_a_number_that_its_partners_contradict(how: str) -> None:
    own = np.flatnonzero(RUN.can_id == THIRD)[100:]
    start = (RUN.word[own[0]] >> np.uint64(32)).astype(np.int64)
    value = start + np.arange(len(own)) * (20 if how == "ramp" else 0)
    hits = hits_of(with_words(RUN, own, value.astype(np.uint64) << np.uint64(32)))
    assert {check for _, check in told(hits)} == {"together"}
    assert set(hits["can_id"]) == {THIRD}


def test_silence_is_told_while_it_lasts() -> None:
    quiet = (RUN.can_id == SPEED) & (RUN.ts > 5_000_000) & (RUN.ts < 9_000_000)
    hits = hits_of(RUN[~quiet])
    assert told(hits) == {(SPEED, "silence"): 4}
    assert hits["ts"][0] < 5_000_000 + 20 * PERIODS[SPEED]


def test_a_clock_that_jumps_begins_the_watch_anew() -> None:
    for shift in (-3_000_000, 3_600_000_000):
        ts = RUN.ts.copy()
        ts[3000:] += shift
        assert told(hits_of(Frames(ts, RUN.can_id, RUN.length, RUN.word))) == {(int(RUN.can_id[3000]), "clock"): 1}


def test_a_frame_out_of_order_is_told_and_not_scored() -> None:
    order = np.arange(len(RUN))
    order[[800, 801]] = order[[801, 800]]
    assert {check for _, check in told(hits_of(RUN[order]))} == {"clock"}
    assert len(hits_of(RUN[order])) == 1


def test_a_million_identifiers_leave_nothing_behind() -> None:
    some = np.arange(1_000_000)
    flood = Frames(5 * some, some.astype(np.uint32) + 0x1000, np.full(len(some), 8, np.uint8), some.astype(np.uint64))
    state, hits = step(PROFILE, begin(PROFILE), flood)
    assert len(state.to_bytes()) == len(begin(PROFILE).to_bytes()) < 10_000
    assert len(hits) - len(some) < 100 * len(PERIODS)


def test_extreme_times_and_words_are_only_numbers() -> None:
    ends = np.array([-(2**63), 2**63 - 1, 0, -(2**63)], np.int64)
    hits = hits_of(
        Frames(ends, np.full(4, SPEED, np.uint32), np.full(4, 8, np.uint8), np.full(4, 2**64 - 1, np.uint64))
    )
    assert set(hits["check"]) <= {CHECKS.index("clock")}


def attacked() -> Frames:
    """A run with a bit of everything."""
    own = np.flatnonzero(RUN.can_id == SPEED)
    run = with_words(RUN, own[750:950], np.uint64(0x8000 << 48))
    run, _ = mixed(run, frames(RUN.ts[2000:2100] + 2, 0x7FF, 0))
    run, _ = mixed(run, frames(RUN.ts[RUN.can_id == COUNT][100:150] + 9_000, COUNT, 0))
    ts = run.ts.copy()
    ts[-500:] += 10_000_000
    return Frames(ts, run.can_id, run.length, run.word)[2000:5500]


ATTACKED = attacked()
WHOLE = step(PROFILE, begin(PROFILE), ATTACKED)


@given(st.lists(st.integers(0, len(ATTACKED)), max_size=12))
def test_any_cut_gives_equal_bits(cuts: list[int]) -> None:
    state, found = begin(PROFILE), [np.zeros(0, HIT)]
    at = [0, *sorted(cuts), len(ATTACKED)]
    for first, end in itertools.pairwise(at):
        held = state.to_bytes()
        after, hits = step(PROFILE, state, ATTACKED[first:end])
        assert state.to_bytes() == held  # the state handed in is a value
        found.append(hits)
        state = WatchState.from_bytes(after.to_bytes(), PROFILE)
    assert np.concatenate(found).tobytes() == WHOLE[1].tobytes()
    assert state.to_bytes() == WHOLE[0].to_bytes()
    assert len(WHOLE[1]) > 250


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(Malformed, match="bytes expected for this profile"):
        WatchState.from_bytes(begin(PROFILE).to_bytes() + b"\0", PROFILE)
