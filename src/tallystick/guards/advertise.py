"""The advertise guard (EventGuard 4.3)."""

from __future__ import annotations

from tallystick.guards.admit import admit
from tallystick.guards.rules import Act, Live, Rules
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


def advertise(data: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """Admit an advertise permit; its holder may publish from now on."""
    return admit(data, act, rules, live, Operation.ADVERTISE, Right.WRITE)
