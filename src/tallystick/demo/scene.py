"""A scene: an attack, what is expected of it, and how its outcome is observed.

`carry_out` returns what it saw. Its helpers raise `AttackSucceeded` as soon as something was taken that had to be
refused, and `NotObserved` where neither can be said: a defence that was not seen at work is not a defence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.errors import Refused, TallystickError, Unavailable

if TYPE_CHECKING:
    from tallystick.demo.stage import Stage


class Verdict(StrEnum):
    STOPPED = "stopped"
    SUCCEEDED = "SUCCEEDED"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Seen:
    """What came of an attack that was stopped."""

    happened: str
    evidence: str


@dataclass(frozen=True)
class Scene:
    attack: str
    expected: str
    carry_out: Callable[[Stage], Seen]


@dataclass(frozen=True)
class Performed:
    """A scene with its outcome."""

    attack: str
    expected: str
    verdict: Verdict
    happened: str
    evidence: str
    seconds: float


class AttackSucceeded(TallystickError):
    """Something was taken, shown or believed that had to be refused."""


class NotObserved(Unavailable):
    """What was to be observed did not come."""


def perform(scene: Scene, stage: Stage) -> Performed:
    """Carry a scene out; whatever goes wrong in it is its outcome, not the end of the demo."""
    began = stage.clock.monotonic()
    try:
        seen = scene.carry_out(stage)
        verdict, happened, evidence = Verdict.STOPPED, seen.happened, seen.evidence
    except AttackSucceeded as success:
        verdict, happened, evidence = Verdict.SUCCEEDED, str(success), "–"
    except (TallystickError, OSError) as error:
        verdict, happened, evidence = Verdict.UNCLEAR, f"not observed: {error}", "–"
    return Performed(scene.attack, scene.expected, verdict, happened, evidence, stage.clock.monotonic() - began)


def refusal(act: Callable[[], object], *reasons: str, of: str) -> str:
    """The reason for which `act` is refused, one of `reasons`."""
    try:
        act()
    except Refused as error:
        return expected(error.reason, *reasons, of=of)
    raise AttackSucceeded(f"{of}: taken")


def not_stored(outcome: Outcome, *reasons: str, of: str) -> str:
    """The reason for which a parcel was not stored, one of `reasons`."""
    if not isinstance(outcome, NotStored):
        raise AttackSucceeded(f"{of}: stored")
    return expected(outcome.reason, *reasons, of=of)


def expected(reason: str, *reasons: str, of: str) -> str:
    """A refusal for another reason says nothing about the defence that is shown."""
    if reason not in reasons:
        raise NotObserved(f"{of}: refused as {reason}, expected {' or '.join(reasons)}")
    return reason
