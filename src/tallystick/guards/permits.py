"""The guards of permits (EventGuard 4.2, 4.3, 4.5, 4.6), and what a live subscription allows: fetching (BPS 3.2).

Admitting, 4.2 and 4.3: a node checks the authority's signature on the permit. Beyond the paper: the permit names its
principal, and only that principal's own envelope may present it, so a copied permit is worth nothing; and the right
behind it is asked of the ledger, so a permit outlives its right by nothing. Whether it was undone or revoked is asked
whenever it is used: nobody has to show the node anything, and a right that returns brings no old permit back.

Obeying an undo order, 4.5 and 4.6: the node checks the authority's signature on the order and deletes the entry it
names. The undo token itself was shown to the authority alone, so no node can fake an order, and another holder of a
permit for the same topic cannot obtain one. An order may be brought by the permit's holder or by the authority that
signed it.
"""

from __future__ import annotations

from collections.abc import Callable

from tallystick.errors import Forged, Refused
from tallystick.guards.rules import Act, Live, Rules, check_carried, check_permit, check_principal, check_topic
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.right import Right


def subscribe(data: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """The subscribe guard (4.2): admit a subscribe permit, which is live from now on."""
    return _admit(data, act, rules, live, Operation.SUBSCRIBE, Right.READ)


def advertise(data: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """The advertise guard (4.3): admit an advertise permit, whose holder may publish from now on."""
    return _admit(data, act, rules, live, Operation.ADVERTISE, Right.WRITE)


def unsubscribe(data: bytes, act: Act, rules: Rules, live: Live) -> UndoOrder:
    """The unsubscribe guard (4.5): delete the subscription that the order names. Doing it twice is no fault."""
    return _retract(data, act, rules, live, Operation.SUBSCRIBE)


def unadvertise(data: bytes, act: Act, rules: Rules, live: Live) -> UndoOrder:
    """The unadvertise guard (4.6): delete the advertisement that the order names. Doing it twice is no fault."""
    return _retract(data, act, rules, live, Operation.ADVERTISE)


def fetch(token: bytes, partition: int, identifier: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """The live subscription, named by its permit's identifier, under which `act` may fetch from this partition."""
    check_principal(rules, act)
    topic = check_topic(rules, act, token, Right.READ)
    if not 0 <= partition < topic.partitions:
        raise Refused(f"no partition {partition}, the topic has {topic.partitions}", reason="unknown-partition")
    check_carried(rules, token, partition)
    permit = live.get(identifier)
    if permit is None or permit.principal != act.principal:
        raise Refused("no live subscription under this permit", reason="not-subscribed", hint="subscribe first")
    permit.check_covers(Operation.SUBSCRIBE, token)
    permit.check_time(act.time_ms)
    check_permit(rules, identifier)
    return permit


def is_live(rules: Rules, is_undone: Callable[[bytes], bool], permit: Permit, time_ms: int) -> bool:
    """Whether a permit that was admitted would be admitted still."""
    act = Act(permit.principal, "", b"", time_ms)
    right = Right.WRITE if permit.operation is Operation.ADVERTISE else Right.READ
    try:
        check_principal(rules, act)
        check_topic(rules, act, permit.token, right)
        check_permit(rules, permit.identifier)
        permit.check_time(time_ms)
    except Refused:
        return False
    return not is_undone(permit.identifier)


def _admit(data: bytes, act: Act, rules: Rules, live: Live, operation: Operation, right: Right) -> Permit:
    check_principal(rules, act)
    permit = Permit.decode(data)
    if permit.instance != rules.instance:
        raise Refused("permit: of another instance", reason="wrong-instance")
    if permit.principal != act.principal:
        raise Refused("permit: it was issued to another principal", reason="not-yours")
    permit.check_covers(operation, permit.token)
    permit.check_time(act.time_ms)
    topic = check_topic(rules, act, permit.token, right)
    if permit.tenant != topic.tenant:
        raise Refused("permit: the topic belongs to another tenant", reason="wrong-permit")
    check_carried(rules, permit.token)
    check_permit(rules, permit.identifier)
    authority = rules.authority(permit.authority)
    if authority is None:
        raise Forged("permit: its authority is not known here", reason="unknown-authority")
    permit.verify(authority)
    live.add(permit)
    return permit


def _retract(data: bytes, act: Act, rules: Rules, live: Live, operation: Operation) -> UndoOrder:
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
    named = (order.token, order.principal, operation)
    if permit is not None and (permit.token, permit.principal, permit.operation) != named:
        raise Refused("undo order: it does not fit the permit it names", reason="wrong-permit")
    live.remove(order.identifier)
    return order
