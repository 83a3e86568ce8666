"""From evidence to the ledger: the entry by which a relay accuses whoever contradicted itself.

Threat: bait. Whoever brings what proves nothing pays for it (`ledger/contracts/blame.py`), so a liar sends what looks
like a contradiction and is none. So evidence is judged here as the contract judges it, before anybody signs the entry:
both objects are under the key by which the signer was known, and contradict each other.
"""

from __future__ import annotations

from typing import Protocol

from tallystick.carriers.overlay.relayed_keys import Evidence, verify
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JOINT_CONTEXT, JointPromise
from tallystick.trust.shares import Origin, ShareList, ShareSet, find_false


class Acquaintances(Protocol):
    """Whose key is whose."""

    def plan(self, version: int) -> Plan | None: ...

    def key_of(self, principal: bytes) -> VerifyKey | None: ...


def accuse(evidence: Evidence, around: Acquaintances) -> bytes:
    """The entry, which anybody may bring. Raises `Refused` where the ledger would."""
    first, second = evidence.objects
    signer = evidence.principal
    if evidence.reason == "two-origins":
        origins = Origin.decode(first), Origin.decode(second)
        key = _known(around.key_of(signer))
        _check(origins[0].contradicts(origins[1]) and origins[0].publisher == signer)
        _verify(key, *origins)
        return entries.two_origins(signer, key.raw, *origins)
    if evidence.reason == "two-orders":
        return _two_orders(signer, JointPromise.decode(first), JointPromise.decode(second), around)
    shares = ShareSet.decode(first)
    key = _sender_key(signer, shares.plan, around)
    if evidence.reason == "two-sets":
        other = ShareSet.decode(second)
        _check(shares.contradicts(other))
        _verify(key, shares, other)
        return entries.two_sets(signer, key.raw, shares, other)
    listed = ShareList.decode(second)
    number = find_false(shares, listed)
    is_other_length = len(listed.encoded) != len(shares.lineages)
    _check(listed.set_hash == shares.hash and (number is not None or is_other_length))
    _verify(key, shares, listed)
    return entries.false_share(signer, key.raw, shares, listed, number or 0)


def _two_orders(signer: bytes, one: JointPromise, other: JointPromise, around: Acquaintances) -> bytes:
    plan = around.plan(one.plan)
    place = None if plan is None else plan.place(signer)
    _check(one.contradicts(other) and place is not None and place[0].identifier == one.node)
    assert place is not None
    node, index = place
    key = VerifyKey(node.relays[index - 1].key)
    for promise in (one, other):
        key.verify(JOINT_CONTEXT, dict(promise.signatures).get(index, b""), promise.body)
    return entries.two_orders(signer, key.raw, index, one, other)


def _sender_key(signer: bytes, version: int, around: Acquaintances) -> VerifyKey:
    """That which the plan names, or a publisher's own."""
    plan = around.plan(version)
    place = None if plan is None else plan.place(signer)
    return _known(around.key_of(signer)) if place is None else VerifyKey(place[0].relays[place[1] - 1].key)


def _known(key: VerifyKey | None) -> VerifyKey:
    if key is None:
        raise Refused("accusation: the signer's key is not known", reason="unknown-principal")
    return key


def _check(is_proof: bool) -> None:
    if not is_proof:
        raise Refused("accusation: it proves nothing", reason="false-evidence")


def _verify(key: VerifyKey, *signed: Origin | ShareSet | ShareList) -> None:
    for one in signed:
        verify(one, key)
