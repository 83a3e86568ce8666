"""The unadvertise guard (EventGuard 4.6)."""

from __future__ import annotations

from tallystick.guards.live import Live
from tallystick.guards.retract import retract
from tallystick.guards.rules import Act, Rules
from tallystick.trust.permit import Operation, UndoOrder


def unadvertise(data: bytes, act: Act, rules: Rules, live: Live) -> UndoOrder:
    """Delete the advertisement that the order names; doing it twice is no fault."""
    return retract(data, act, rules, live, Operation.ADVERTISE)
