"""Hits become alerts: what is one and what is two, whatever the cuts, within bounds, and named by a DBC."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Malformed
from tallystick.fleet.dbc import Dbc
from tallystick.fleet.detect import alerts
from tallystick.fleet.detect.alerts import GAP_US, LATE_US, LONG_US, STRETCH_FRAMES, Alert, OpenAlerts, finish, gather
from tallystick.fleet.detect.checks import CHECKS, CLOCK, HIT, JUMP, ORDER_US, UNKNOWN

S = 1_000_000


def hit(frame: int, ts: int, can_id: int = 7, check: int = JUMP, strength: float = 1.0) -> tuple[Any, ...]:
    return frame, ts, can_id, check, -1, 5.0, 0.0, 1.0, strength


def hits(*rows: tuple[Any, ...]) -> npt.NDArray[Any]:
    return np.array(list(rows), HIT)


def gather_all(found: npt.NDArray[Any], cuts: list[int], times: list[int]) -> list[Alert]:
    """Through these cuts between frames; the state goes through bytes at each, and none handed in changes."""
    state, told = OpenAlerts(), []
    for begin, end in zip([0, *cuts], [*cuts, len(times)], strict=True):
        before = state.to_bytes()
        now = times[end - 1] if end else 0
        mine = found[(found["frame"] >= begin) & (found["frame"] < end)]
        after, ended = gather(state, mine, now)
        assert state.to_bytes() == before
        told += ended
        state = OpenAlerts.from_bytes(after.to_bytes())
    return told + finish(state)


@given(st.data())
def test_any_cut_gives_the_same_alerts(data: st.DataObject) -> None:
    steps = data.draw(
        st.lists(st.sampled_from([0, 1000, S // 2, GAP_US, GAP_US + 1, 3 * S, -5 * S, -ORDER_US]), max_size=60)
    )
    times: list[int] = []
    rows: list[tuple[Any, ...]] = []
    now, since = 100 * S, 0
    for frame, step in enumerate(steps):
        times.append(now + step)
        if step < 0:  # the checks tell it
            rows.append((frame, now + step, 1, CLOCK, -1, step, 0.0, 0.0, 1.0))
        if step == -ORDER_US:  # a frame that is only late is not looked at
            continue
        now += step
        since = frame if step < 0 else since
        lately = [ts for ts in times[since:] if now - LATE_US <= ts <= now]
        drawn = st.tuples(st.sampled_from(lately), st.integers(1, 3), st.sampled_from([UNKNOWN, JUMP]))
        for ts, can_id, check in data.draw(st.lists(drawn, max_size=2)):
            rows.append((frame, ts, can_id, check, -1, 0.0, 0.0, 0.0, data.draw(st.sampled_from([1.0, 2.5]))))
    found = np.array(rows, HIT)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=8)))
    assert gather_all(found, cuts, times) == gather_all(found, [], times)


def test_hits_of_one_identifier_within_seconds_are_one_alert_and_the_strongest_names_it() -> None:
    found = hits(
        hit(1, S), hit(2, 2 * S, strength=4.0, check=CHECKS.index("rate")), hit(9, 2 * S, 8), hit(10, 4 * S + 1)
    )
    state, ended = gather(OpenAlerts(), found, 60 * S)
    assert [(one.can_id, one.frames, one.first_frame, one.last_frame) for one in ended] == [
        (7, 2, 1, 2),
        (8, 1, 9, 9),
        (7, 1, 10, 10),
    ]
    assert (ended[0].check, ended[0].strength) == (CHECKS.index("rate"), 4.0)
    assert state == OpenAlerts()


def test_an_alert_that_lasts_is_told_while_it_does() -> None:
    found = hits(*(hit(n, n * S) for n in range(100)))
    ended = gather(OpenAlerts(), found, 99 * S)[1]
    assert len(ended) == 3
    assert max(one.ts_last - one.ts_first for one in ended) == LONG_US


def test_a_flood_of_unknown_identifiers_is_one_alert_with_a_count() -> None:
    flood = hits(*(hit(n, n, n, UNKNOWN) for n in range(50_000)))
    state, ended = gather(OpenAlerts(), flood, 50_000)
    assert (len(state.alerts), ended) == (1, [])
    assert finish(state)[0].frames == 50_000


def test_a_clock_that_is_all_wrong_is_told_once_in_a_stretch() -> None:
    wrong = hits(*(hit(n * STRETCH_FRAMES // 100, -n * S, n, CLOCK) for n in range(250)))
    ended = gather(OpenAlerts(), wrong, 0)[1]
    assert [one.first_frame for one in ended] == [0, STRETCH_FRAMES, 2 * STRETCH_FRAMES]


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: b"", lambda data: data[:28] + b"\xff" + data[29:]]
)
def test_a_state_that_is_none_is_refused(change: Any) -> None:
    data = gather(OpenAlerts(), hits(hit(1, 1)), 1)[0].to_bytes()
    assert OpenAlerts.from_bytes(data).to_bytes() == data
    with pytest.raises(Malformed, match="open alerts"):
        OpenAlerts.from_bytes(change(data))


DBC = """
VERSION ""
BU_: A
BO_ 7 Brakes: 8 A
 SG_ Speed : 7|16@0+ (1,0) [0|0] "" A
 SG_ Pedal : 16|12@1+ (1,0) [0|0] "" A
CM_ SG_ 7 Speed "Vehicle.Speed";
"""


@pytest.mark.parametrize(
    ("field", "named", "plain"),
    [
        (-1, "Brakes", "frame"),
        (0, "Vehicle.Speed", "bits 3-15"),
        (1, "Brakes.Pedal", "bits 16-31"),
        (2, "", "bits 40-47"),
    ],
)
def test_a_signal_has_the_name_that_the_dbc_gives_its_bits(field: int, named: str, plain: str) -> None:
    pytest.importorskip("cantools", reason="cantools is not installed: pip install 'tallystick[fleet]'")
    profile: Any = SimpleNamespace(fields=lambda _can_id: [(3, 13, "number"), (16, 16, "number"), (40, 8, "state")])
    assert alerts.name_signal(7, field, profile, Dbc.parse(DBC)) == (named or plain)
    assert alerts.name_signal(7, field, profile, None) == plain


def test_rows_of_alerts_have_their_schema_and_no_infinite_bound() -> None:
    one = Alert(1, 2, 7, JUMP, -1, 5.0, float("-inf"), 3.0, 2.0, 4, 10, 20)
    profile: Any = SimpleNamespace(fields=lambda _can_id: [])
    row = alerts.to_batch([one], "VIN", profile, b"\x01" * 32, None).to_pylist()[0]
    assert (row["vin"], row["check"], row["signal"], row["low"], row["high"]) == ("VIN", "jump", "frame", None, 3.0)
    assert (row["frames"], row["first_frame"], row["profile"]) == (4, 10, "01" * 32)
    assert alerts.to_batch([], "VIN", profile, b"", None).num_rows == 0
