"""An alert in words and as series over time: a row of the schema `alerts`, the capture and the profile come in.

What its check looks at is drawn, with the band that was expected: values of the field that lied and of its partners, or
the time between frames, or how many frames came in a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tallystick.fleet.detect.alerts import name_signal
from tallystick.fleet.detect.fields import values_of
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import RATE_US, Profile

if TYPE_CHECKING:
    from tallystick.fleet.dbc import Dbc

AROUND_US = 5_000_000  # shown before and after an alert
IDENTIFIER = 0x1FFF_FFFF  # without the mark of 29 bits

# By check: what it means, and the unit of what was seen.
MEANINGS = {
    "unknown": ("this identifier, or a frame of it so long, never came in the calibration", "bytes"),
    "schedule": ("frames came out of their slots: somebody else sends them", "us from the slot"),
    "rate": ("more frames in a tenth of a second than ever", "frames"),
    "jump": ("the value changed farther than it ever did", ""),
    "alone": ("a bit changed, and those that always change with it did not follow", ""),
    "together": ("the value contradicts others that always go with it", ""),
    "silence": ("the sender is not heard any more", "us without a frame"),
    "clock": ("the clock went back or leapt; nothing is compared with what came before", "us"),
    "network": ("the network finds these frames unusual", ""),
}


@dataclass(frozen=True)
class Panel:
    """One series over time, and the band in which it was expected, where there is one."""

    name: str
    times: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    low: float | None = None
    high: float | None = None


def in_words(row: Mapping[str, Any]) -> list[str]:
    """A row of the schema `alerts`, in lines for people."""
    meaning, unit = MEANINGS[row["check"]]
    seen = "nothing" if row["seen"] is None else f"{row['seen']:.6g} {unit}".rstrip()
    when = f"{row['ts_first']:%Y-%m-%d %H:%M:%S.%f} to {row['ts_last']:%H:%M:%S.%f} UTC"
    return [
        f"vehicle {row['vin']}, identifier {row['can_id'] & IDENTIFIER:X}, {row['signal']}: {row['check']}",
        meaning,
        f"seen {seen}, expected {band(row['low'], row['high'])}",
        f"{when}, frames {row['first_frame']} to {row['last_frame']}: {row['frames']} hits, "
        f"the strongest {row['strength']:.3g} times its limit",
    ]


def band(low: float | None, high: float | None) -> str:
    """What was expected, in words."""
    if low is None or high is None:
        return "anything" if low == high else f"at least {low:.6g}" if high is None else f"at most {high:.6g}"
    return f"{low:.6g} to {high:.6g}"


def panels(row: Mapping[str, Any], frames: Frames, profile: Profile | None, dbc: Dbc | None) -> list[Panel]:
    """What to draw of an alert; a field that only a DBC names needs it again. Without the profile it is when frames
    came, and no values."""
    first, last = (round(row[name].timestamp() * 1e6) for name in ("ts_first", "ts_last"))
    shown = frames[(frames.ts >= first - AROUND_US) & (frames.ts <= last + AROUND_US)]
    own = shown[shown.can_id == row["can_id"]]
    numbers = range(0 if profile is None else len(profile.fields(row["can_id"])))
    named = [one for one in numbers if profile and name_signal(row["can_id"], one, profile, dbc) == row["signal"]]
    if profile is not None and named:
        mine = Panel(row["signal"], own.ts, _values(own, profile, row["can_id"], named[0]), row["low"], row["high"])
        return [mine, *(_partner(shown, profile, *one, dbc) for one in partners(profile, row["can_id"], named[0]))]
    if row["check"] in ("schedule", "silence"):
        gaps = np.diff(own.ts).astype(np.float64)
        if row["check"] == "schedule" and profile is None:
            return [Panel("us between frames", own.ts[1:], gaps)]
        period = 0 if row["check"] == "silence" or profile is None else _period(profile, row["can_id"])
        low, high = (None if row[name] is None else period + row[name] for name in ("low", "high"))
        return [Panel("us between frames", own.ts[1:], gaps, low, high)]
    windows, counts = np.unique((shown if row["check"] == "unknown" else own).ts // RATE_US, return_counts=True)
    high = row["high"] if row["check"] == "rate" else None
    return [Panel("frames in a tenth of a second", windows * RATE_US, counts.astype(np.float64), None, high)]


def partners(profile: Profile, can_id: int, field: int) -> list[tuple[int, int]]:
    """Identifiers and fields that vouch for this one: numbers that go with it, and bits that flip with its own."""
    senders = profile.senders
    sender, (first, width, _) = senders[np.searchsorted(profile.ids, can_id)], profile.fields(can_id)[field]
    found = []
    for tie in profile.tables.ties[sender["tie_first"] : sender["tie_first"] + sender["ties"]]:
        if tie["signal"] == sender["first"] + field:
            lines = profile.tables.lines[tie["first"] : tie["first"] + tie["partners"]]
            found += [
                (int(profile.ids[one["sender"]]), one["signal"] - senders[one["sender"]]["first"]) for one in lines
            ]
    owners = np.repeat(profile.ids, senders["bits"])
    for bit in profile.tables.bits[sender["bit_first"] : sender["bit_first"] + sender["bits"]]:
        if first <= bit["bit"] < first + width:
            for at in profile.tables.partners[bit["first"] : bit["first"] + bit["partners"]]["at"]:
                ends = np.cumsum([width for _, width, _ in profile.fields(owners[at])])
                found.append((int(owners[at]), int(np.searchsorted(ends, profile.tables.bits[at]["bit"], "right"))))
    return list(dict.fromkeys(found))


def _period(profile: Profile, can_id: int) -> int:
    return int(profile.senders[np.searchsorted(profile.ids, can_id)]["period"])


def _partner(shown: Frames, profile: Profile, can_id: int, field: int, dbc: Dbc | None) -> Panel:
    own = shown[shown.can_id == can_id]
    name = f"{name_signal(can_id, field, profile, dbc)} of {can_id & IDENTIFIER:X}"
    return Panel(name, own.ts, _values(own, profile, can_id, field))


def _values(own: Frames, profile: Profile, can_id: int, field: int) -> npt.NDArray[np.float64]:
    sender = profile.senders[np.searchsorted(profile.ids, can_id)]
    what = profile.signals[sender["first"] + field]
    return values_of(own.word, int(what["first_bit"]), int(what["bits"]), int(what["flip"]))
