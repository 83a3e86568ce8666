"""Hits gathered to alerts: what a person or a table is told of them.

Hits come in as the checks gave them; alerts go out. Hits of one identifier are one alert while each comes within
`GAP_US` of the one before, and its strongest hit says which check spoke, of which field, and what was expected. All
hits of *unknown* are one alert together, whatever their identifiers: a flood of a million identifiers is one alert with
a count. So the open alerts are bounded by the identifiers of the profile. An alert that lasts is ended after `LONG_US`
and the next one begins, so that a long attack is told while it goes on.

Alerts do not depend on how hits are cut into batches: the open ones are the state, and alerts come in the order of
their last hits. A check may tell a hit up to `LATE_US` after its frame. Otherwise times go back only where the clock
leaps, which *clock* tells: that ends every open alert. Of a clock that is all wrong only the first hit in
`STRETCH_FRAMES` frames is told, at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tallystick.errors import Malformed
from tallystick.fleet.detect.checks import AGAIN_US, CHECKS, CLOCK, ORDER_US, UNKNOWN
from tallystick.fleet.schemas import schema

if TYPE_CHECKING:
    from tallystick.fleet.dbc import Dbc
    from tallystick.fleet.detect.profile import Profile

GAP_US = 2_000_000
LATE_US = 2 * AGAIN_US  # a first hit waits for its second, and a frame for the one that contends with it
LONG_US = 30_000_000
STRETCH_FRAMES = 100_000
OPEN_BYTES_MAX = 1 << 22  # of a state that is read back
_ALL = -1  # in place of an identifier


@dataclass(slots=True)
class Alert:
    ts_first: int
    ts_last: int
    can_id: int  # of the strongest hit, as are the next six
    check: int
    field: int
    seen: float
    low: float
    high: float
    strength: float
    frames: int  # hits: a frame that two checks found counts twice
    first_frame: int
    last_frame: int

    @property
    def key(self) -> int:
        return _ALL if self.check == UNKNOWN else self.can_id


ALERT = np.dtype(
    [
        (
            one.name,
            {"can_id": "<u4", "check": "u1", "field": "<i2"}.get(one.name, "<f8" if one.type == "float" else "<i8"),
        )
        for one in fields(Alert)
    ]
)


@dataclass(frozen=True)
class OpenAlerts:
    """Alerts that are not told yet, of one identifier the one that hits may join last."""

    alerts: tuple[Alert, ...] = ()
    stretch: int = -1  # of frames: the last one whose clock was told

    def to_bytes(self) -> bytes:
        return self.stretch.to_bytes(8, "little", signed=True) + _columns(self.alerts).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> OpenAlerts:
        """Raises `Malformed`."""
        if not 8 <= len(data) <= OPEN_BYTES_MAX or (len(data) - 8) % ALERT.itemsize:
            raise Malformed(f"open alerts: {len(data)} bytes are not a whole number of alerts")
        alerts = tuple(Alert(*row) for row in np.frombuffer(data, ALERT, offset=8).tolist())
        if any(one.check >= len(CHECKS) for one in alerts):
            raise Malformed("open alerts: of a check that does not exist")
        return cls(alerts, int.from_bytes(data[:8], "little", signed=True))


def gather(state: OpenAlerts, hits: npt.NDArray[Any], now_us: int) -> tuple[OpenAlerts, list[Alert]]:
    """Take these hits; `now_us` is the time of the last frame that was looked at. Returns what is open after them, and
    the alerts that no further hit can join."""
    alerts, ended, stretch = [replace(one) for one in state.alerts], [], state.stretch
    joinable = {one.key: one for one in alerts}
    for frame, ts, can_id, check, field, seen, low, high, strength in hits.tolist():
        if check == CLOCK and not -ORDER_US <= seen < 0:
            ended += _ordered(alerts)
            alerts, joinable = [], {}
        key = _ALL if check == UNKNOWN else can_id
        alert = joinable.get(key)
        if alert is None or ts - alert.ts_last > GAP_US or ts - alert.ts_first > LONG_US:
            alert = Alert(ts, ts, can_id, check, field, seen, low, high, strength, 0, frame, frame)
            if check != CLOCK:
                alerts.append(alert)
                joinable[key] = alert
            elif frame // STRETCH_FRAMES > stretch:
                ended.append(alert)
                stretch = frame // STRETCH_FRAMES
        alert.frames += 1
        alert.ts_first, alert.ts_last = min(alert.ts_first, ts), max(alert.ts_last, ts)
        alert.first_frame, alert.last_frame = min(alert.first_frame, frame), max(alert.last_frame, frame)
        if strength > alert.strength:
            alert.can_id, alert.check, alert.field, alert.seen = can_id, check, field, seen
            alert.low, alert.high, alert.strength = low, high, strength
    until = now_us - GAP_US - LATE_US
    ended += _ordered([one for one in alerts if one.ts_last < until])
    return OpenAlerts(tuple(one for one in alerts if one.ts_last >= until), stretch), ended


def finish(state: OpenAlerts) -> list[Alert]:
    """What is open when no more frames will come."""
    return _ordered(state.alerts)


def to_batch(
    alerts: Sequence[Alert], vin: str, profile: Profile, profile_hash: bytes, dbc: Dbc | None
) -> pa.RecordBatch:
    """As rows of the schema `alerts`; a bound that is not finite is null."""
    rows, arrow = _columns(alerts), schema("alerts").arrow
    told: dict[str, Any] = {name: rows[name] for name in ALERT.names or ()}
    for name in ("seen", "low", "high"):
        told[name] = pa.array(rows[name], mask=~np.isfinite(rows[name]))
    told["vin"] = pa.repeat(vin, len(rows))
    told["check"] = [CHECKS[one] for one in rows["check"]]
    told["signal"] = [name_signal(one.can_id, one.field, profile, dbc) for one in alerts]
    told["profile"] = pa.repeat(profile_hash.hex(), len(rows))
    return pa.RecordBatch.from_arrays([pa.array(told[one.name]).cast(one.type) for one in arrow], schema=arrow)


def name_signal(can_id: int, field: int, profile: Profile, dbc: Dbc | None) -> str:
    """What the DBC calls the signal that has most of the field's bits, else its bits; of a whole frame the message."""
    message = dbc.messages.get(can_id) if dbc is not None else None
    if field < 0:
        return message.name if message else "frame"
    first, count = profile.fields(can_id)[field][:2]
    bits = set(range(first, first + count))
    signals = message.signals if message else ()
    best = max(signals, key=lambda one: len(bits & one.wire_bits), default=None)
    return best.key if best is not None and bits & best.wire_bits else f"bits {first}-{first + count - 1}"


def _ordered(alerts: Sequence[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda one: (one.ts_last, one.first_frame, one.key))


def _columns(alerts: Sequence[Alert]) -> npt.NDArray[Any]:
    return np.array([astuple(one) for one in alerts], ALERT)
