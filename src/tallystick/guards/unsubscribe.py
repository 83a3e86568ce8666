"""The unsubscribe guard (EventGuard 4.5)."""

from __future__ import annotations

from tallystick.guards.retract import retract
from tallystick.guards.rules import Act, Live, Rules
from tallystick.trust.permit import Operation, UndoOrder


def unsubscribe(data: bytes, act: Act, rules: Rules, live: Live) -> UndoOrder:
    """Delete the subscription that the order names; doing it twice is no fault."""
    return retract(data, act, rules, live, Operation.SUBSCRIBE)
