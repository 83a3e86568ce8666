"""The subscribe guard (EventGuard 4.2), and what a live subscription allows: fetching (BPS 3.2)."""

from __future__ import annotations

from tallystick.errors import Refused
from tallystick.guards.admit import admit
from tallystick.guards.rules import Act, Live, Rules, check_principal, check_topic
from tallystick.trust.permit import Operation, Permit
from tallystick.trust.right import Right


def subscribe(data: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """Admit a subscribe permit; it is live from now on."""
    return admit(data, act, rules, live, Operation.SUBSCRIBE, Right.READ)


def fetch(token: bytes, partition: int, identifier: bytes, act: Act, rules: Rules, live: Live) -> Permit:
    """The live subscription, named by its permit's identifier, under which `act` may fetch from this partition."""
    check_principal(rules, act)
    topic = check_topic(rules, act, token, Right.READ)
    if not 0 <= partition < topic.partitions:
        raise Refused(f"no partition {partition}, the topic has {topic.partitions}", reason="unknown-partition")
    permit = live.get(identifier)
    if permit is None or permit.principal != act.principal:
        raise Refused("no live subscription under this permit", reason="not-subscribed", hint="subscribe first")
    permit.check_covers(Operation.SUBSCRIBE, token)
    permit.check_time(act.time_ms)
    return permit
