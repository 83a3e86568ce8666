"""What an audit takes for misbehaviour: its thresholds by name. Nothing here loads Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tallystick.errors import Misuse


def _setting(default: int, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


@dataclass(frozen=True)
class AuditSettings:
    window_s: int = _setting(300, "Acts of one principal are counted in windows of so many seconds.")
    unauthorised_min: int = _setting(1, "Attempts without a right, in a window.")
    # Nine proved attempts are the blacklist's; so many in one window are a purpose, not a mistake.
    unauthorised_many: int = _setting(9, "So many of them in a window are a warning, not a notice.")
    probing_topics_min: int = _setting(3, "Topics tried without a right, in a window.")
    replay_min: int = _setting(10, "Replayed, stale or postdated requests, in a window.")  # a retry makes one or two
    flood_min: int = _setting(100, "Refused requests of one principal, or of nobody known, in a window.")
    silence_s: int = _setting(120, "A lane without parcel, heartbeat or closing for so long is silent.")  # 4 heartbeats
    anchor_s: int = _setting(60, "From an accepted parcel to its anchor, at most.")  # the ledger's own `anchor_ms`
    settle_s: int = _setting(30, "How far a node's operations and anchors may be apart.")
    evidence_max: int = _setting(16, "Places on the ledger that one finding names.")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if type(value) is not int or value < 1:
                raise Misuse(f"{one.name}: a number from 1 expected, found {value!r}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> AuditSettings:
        """The settings among a run's options."""
        names = [one.name for one in fields(cls)]
        return cls(**{name: options[name] for name in names if options.get(name) is not None})
