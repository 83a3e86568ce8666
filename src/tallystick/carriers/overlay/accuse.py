"""What a relay says against others: each thing once, and the entry by which evidence comes to the ledger.

Threat: bait. Whoever brings what proves nothing pays for it (`ledger/contracts/blame.py`), so a liar sends what looks
like a contradiction and is none. So evidence is judged here as the contract judges it, before anybody signs the entry:
both objects are under the key by which the signer was known, and contradict each other. A repetition is refused as
well, and so is a suspicion under a plan that is over: whoever lies again and again must not make an honest relay pay.
So a relay remembers what it said, of the same places as the contract: as much as `SAID_MAX`, the oldest goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tallystick.carriers.overlay.content_forwarding import Suspicion
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.crypto.signatures import SignedObject, VerifyKey
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.runtime.effects import Deliver, Effect
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.promise import JOINT_CONTEXT, JointPromise
from tallystick.trust.shares import Origin, ShareList, ShareSet, find_false

SAID_MAX = 4096


class Acquaintances(Protocol):
    """Whose key is whose."""

    def plan(self, version: int) -> Plan | None: ...

    def key_of(self, principal: bytes) -> VerifyKey | None: ...


class Accusations:
    """What one relay said, whichever of its parts found it."""

    def __init__(self) -> None:
        self._said: dict[tuple[object, ...], None] = {}  # the oldest first

    def sift(self, effects: Iterable[Effect], version: int) -> list[Effect]:
        """Without what was said before, and without suspicions under another plan than that in force."""
        return [one for one in effects if not isinstance(one, Deliver) or self._is_new(one.value, version)]

    def _is_new(self, value: object, version: int) -> bool:
        if isinstance(value, Evidence):
            return self._note(value.principal, *_misdeal(value))
        return not isinstance(value, Suspicion) or (value.plan == version and self._note(*value))

    def _note(self, *what: object) -> bool:
        if what in self._said:
            return False
        self._said[what] = None
        if len(self._said) > SAID_MAX:
            del self._said[next(iter(self._said))]
        return True


def _misdeal(evidence: Evidence) -> tuple[object, ...]:
    """The place that the contract convicts its signer for, once."""
    first = evidence.objects[0]
    if evidence.reason == "two-origins":
        return (Origin.decode(first).lane_key,)
    return (JointPromise if evidence.reason == "two-orders" else ShareSet).decode(first).place


def accuse(evidence: Evidence, around: Acquaintances) -> bytes:
    """The entry, which anybody may bring. Raises `Refused` where the ledger would."""
    signer, reason, (first, second) = evidence
    if reason == "two-orders":
        return _two_orders(signer, JointPromise.decode(first), JointPromise.decode(second), around)
    if reason == "two-origins":
        origins = Origin.decode(first), Origin.decode(second)
        _check(origins[0].contradicts(origins[1]) and origins[0].publisher == signer)
        return entries.two_origins(signer, _verified(around.key_of(signer), *origins), *origins)
    shares = ShareSet.decode(first)
    place = _place(signer, shares.plan, around)
    key = place[0].key(place[1]) if place else around.key_of(signer)  # that which the plan names, or a publisher's own
    if reason == "two-sets":
        other = ShareSet.decode(second)
        _check(shares.contradicts(other))
        return entries.two_sets(signer, _verified(key, shares, other), shares, other)
    listed = ShareList.decode(second)
    number = find_false(shares, listed)
    is_other_length = len(listed.encoded) != len(shares.lineages)
    _check(listed.set_hash == shares.hash and (number is not None or is_other_length))
    return entries.false_share(signer, _verified(key, shares, listed), shares, listed, number or 0)


def _two_orders(signer: bytes, one: JointPromise, other: JointPromise, around: Acquaintances) -> bytes:
    node, index = _place(signer, one.plan, around) or (None, 0)
    _check(one.contradicts(other) and node is not None and node.identifier == one.node)
    assert node is not None
    key = node.key(index)
    for promise in (one, other):
        key.verify(JOINT_CONTEXT, dict(promise.signatures).get(index, b""), promise.body)
    return entries.two_orders(signer, key.raw, index, one, other)


def _place(signer: bytes, version: int, around: Acquaintances) -> tuple[VirtualNode, int] | None:
    plan = around.plan(version)
    return None if plan is None else plan.place(signer)


def _check(is_proof: bool) -> None:
    if not is_proof:
        raise Refused("accusation: it proves nothing", reason="false-evidence")


def _verified(key: VerifyKey | None, *signed: SignedObject) -> bytes:
    """The key, in bytes, by which all of them are signed."""
    if key is None:
        raise Refused("accusation: the signer's key is not known", reason="unknown-principal")
    for one in signed:
        one.verify_by(key)
    return key.raw
