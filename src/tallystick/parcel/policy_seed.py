"""The private half of a topic policy, brought to whoever satisfies its formula.

A topic policy has one HPKE key pair for each column group, version and attribute epoch: publishers seal to its public
half as to any other, without knowing the formula. The private half is a seed, sealed once under the secret of a
capsule (`crypto/abe`). So a subscriber decapsulates once for each policy and epoch, however many publishers there are.

Threat: capsule and sealed seed of one place (topic, group, version, epoch) shown for another. The place is the context
of the capsule's secret, and the epoch is in the capsule: under another place the secret is another, and the seed does
not open.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto.abe.capsule import Capsule, decapsulate, encapsulate
from tallystick.crypto.abe.keys import AttributeKey, AttributePublicKey
from tallystick.crypto.symmetric import decrypt, encrypt
from tallystick.errors import CannotOpen
from tallystick.policy.formula import Formula


@dataclass(frozen=True)
class PolicyPlace:
    """Which policy of which topic a key pair serves."""

    instance: bytes
    token: bytes
    group: int
    version: int

    @property
    def context(self) -> bytes:
        return wire.encode([self.instance, self.token, self.group, self.version])


def seal_seed(
    public: AttributePublicKey, formula: Formula, epoch: int, place: PolicyPlace, seed: bytes, entropy: bytes
) -> tuple[bytes, bytes]:
    """The capsule, and the seed sealed under its secret. The same arguments give the same bytes."""
    capsule, secret = encapsulate(public, formula, epoch, place.context, entropy)
    return capsule.encode(), encrypt(secret, seed, place.context)


def open_seed(key: AttributeKey, capsule: bytes, sealed: bytes, epoch: int, place: PolicyPlace) -> bytes:
    """The seed of the private half; `CannotOpen` if the key does not satisfy the formula, or a place is another's."""
    parsed = Capsule.decode(capsule)
    if parsed.epoch != epoch:
        raise CannotOpen
    return decrypt(decapsulate(key, parsed, place.context), sealed, place.context)
