"""The unadvertise guard (EventGuard 4.6)."""

from __future__ import annotations

from tallystick.guards.retract import retract
from tallystick.guards.rules import Act, Live, Rules
from tallystick.trust.permit import Operation, UndoOrder


def unadvertise(data: bytes, act: Act, rules: Rules, live: Live) -> UndoOrder:
    """Delete the advertisement that the order names; doing it twice is no fault."""
    return retract(data, act, rules, live, Operation.ADVERTISE)
