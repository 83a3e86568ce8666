"""What the subscribe and advertise guards share: admitting a permit.

EventGuard 4.2 and 4.3: a node checks the authority's signature on the permit. Beyond the paper: the permit names its
principal, and only that principal's own envelope may present it, so a copied permit is worth nothing; and the right
behind it is asked of the ledger, so a permit outlives its right by nothing.
"""

from __future__ import annotations

from tallystick.errors import Forged, Refused
from tallystick.guards.rules import Act, Live, Rules, check_principal, check_topic
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


def admit(data: bytes, act: Act, rules: Rules, live: Live, operation: Operation, right: Right) -> Permit:
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
    if rules.permit_ended(permit.identifier):
        raise Refused("permit: undone, revoked or never issued", reason="permit-ended")
    authority = rules.authority(permit.authority)
    if authority is None:
        raise Forged("permit: its authority is not known here", reason="unknown-authority")
    permit.verify(authority)
    live.add(permit)
    return permit
