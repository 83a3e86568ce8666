"""What the unsubscribe and unadvertise guards share: obeying an undo order.

EventGuard 4.5 and 4.6: the node checks the authority's signature on the order and deletes the entry it names. The
undo token itself was shown to the authority alone, so no node can fake an order, and another holder of a permit for
the same topic cannot obtain one. An order may be brought by the permit's holder or by the authority that signed it.
"""

from __future__ import annotations

from tallystick.errors import Forged, Refused
from tallystick.guards.rules import Act, Live, Rules
from tallystick.trust.permit import Operation, UndoOrder


def retract(data: bytes, act: Act, rules: Rules, live: Live, operation: Operation) -> UndoOrder:
    order = UndoOrder.decode(data)
    if order.instance != rules.instance:
        raise Refused("undo order: of another instance", reason="wrong-instance")
    if order.operation is not operation:
        raise Refused("undo order: it is for the other operation", reason="wrong-permit")
    if act.principal not in (order.principal, order.authority):
        raise Refused("undo order: it concerns another principal", reason="not-yours")
    authority = rules.authority(order.authority)
    if authority is None:
        raise Forged("undo order: its authority is not known here", reason="unknown-authority")
    order.verify(authority)
    permit = live.get(order.identifier)
    if permit is not None and (permit.token, permit.principal, permit.operation) != (
        order.token,
        order.principal,
        operation,
    ):
        raise Refused("undo order: it does not fit the permit it names", reason="wrong-permit")
    live.remove(order.identifier)
    return order
