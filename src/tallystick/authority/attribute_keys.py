"""Attribute keys: what opens the locks that a principal satisfies, handed to that principal alone.

Threat: a key for what the caller does not hold. It is made of the attributes that the ledger shows for the caller at
this moment, for epochs that have begun, and sealed to the caller. Threat: pooling, with others or with one's own past.
Parts of keys with different randomness do not combine, and the randomness is that of holder *and* set of traits
(`crypto/abe/keys.py`): who lost an attribute gets another key, and no further parts for the old one. The holder is the
principal with its signing key, so new keys of a principal bring a new attribute key as well.

While the set stays, a further epoch is one group element. A key reaches back to the epoch that its holder asks for: who
holds an attribute now may open what was sealed for it before, as who may read a topic now may read its history.

Threat: a principal with thousands of traits that asks for its key again and again, 0.6 s of the authority's processor
each time. Parts are counted against a bucket of its own before any is made.
"""

from __future__ import annotations

from tallystick import wire
from tallystick.authority.answers import AttributeAnswer, Caller
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attribute_spaces import AttributeSpaces
from tallystick.authority.attributes import Attributes
from tallystick.authority.core import Core
from tallystick.authority.rates import Rates
from tallystick.authority.subjects import Subjects
from tallystick.crypto.symmetric import named_hash
from tallystick.policy.space import AttributeSet
from tallystick.policy.traits import traits_of


class AttributeKeys:
    def __init__(
        self,
        core: Core,
        subjects: Subjects,
        spaces: AttributeSpaces,
        attributes: Attributes,
        epochs: AttributeEpochs,
    ) -> None:
        self._core = core
        self._subjects = subjects
        self._spaces = spaces
        self._attributes = attributes
        self._epochs = epochs
        limits = core.limits
        self._rates = Rates(limits.attribute_parts_per_s, limits.attribute_parts_burst, limits.principals_max)

    def answer(self, caller: Caller, known: bytes, first: int) -> AttributeAnswer:
        """The caller's key for the epochs from `first` (0: the current one) that have begun, as many as fit.

        `known` is the identifier of the key that the caller has, or empty. Raises `Unavailable` beyond its share.
        """
        certificate, current = self._subjects.require_caller(caller), self._epochs.current()
        traits = self._traits(caller.principal)
        if current is None or not traits:
            return AttributeAnswer(b"", b"", (), current or 0)
        holder = caller.principal + certificate.signing_key
        identifier = named_hash("tallystick attribute key identifier 1", wire.encode([holder, sorted(traits)]))[:16]
        first = first or current
        epochs = range(first, min(current, first + self._core.limits.attribute_epochs_max - 1) + 1)
        self._charge(caller.principal, len(epochs) + (len(traits) if known != identifier else 0))
        if known != identifier:
            key = self._epochs.key.issue(holder, traits, epochs).encode()
            return AttributeAnswer(identifier, key, (), current)
        parts = tuple((epoch, self._epochs.key.refresh(holder, traits, epoch)) for epoch in epochs)
        return AttributeAnswer(identifier, b"", parts, current)

    def _charge(self, principal: bytes, parts: int) -> None:
        with self._core.store.lock:
            self._rates.charge(principal, self._core.clock.monotonic(), parts)

    def _traits(self, principal: bytes) -> frozenset[bytes]:
        held = self._attributes.held(principal)
        spaces = {tenant: self._spaces.require(tenant) for tenant in {one.tenant for one in held}}
        found = [traits_of(AttributeSet(((one.name, one.value),)), spaces[one.tenant]) for one in held]
        return frozenset().union(*found)
