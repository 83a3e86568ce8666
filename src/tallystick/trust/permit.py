"""Permits and undo orders: EventGuard's signed leave, made personal.

EventGuard 4.2 signs the token alone, so whoever copies a permit may use it. Ours names the principal and its key
and counts only together with that principal's own signature on what it does. The permit holds the hash of its
undo token (4.5, 4.6): a carrier with no authority in reach can check the token against it; where the authority is
in reach the token is shown to it alone, and it answers with an undo order that guards check.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated

from tallystick.crypto.signatures import SignedObject, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Refused
from tallystick.trust.certificate import ALL_TENANTS, Certificate, SubjectKind
from tallystick.wire import Fields, Number, Octets16, Octets32, number

LAST_EPOCH = (1 << 32) - 1  # a permit without a last epoch
LABELS_MAX = 256  # labels that cover an interest, in some epochs


class Operation(IntEnum):
    SUBSCRIBE = 1
    ADVERTISE = 2


def _operation(fields: Fields) -> Operation:
    operation = fields.number()
    if operation not in (1, 2):
        raise Malformed(f"{fields.what}: operation 1 or 2 expected, found {operation}")
    return Operation(operation)


def _labels(fields: Fields) -> tuple[bytes, ...]:
    labels = fields.items(LABELS_MAX)
    if not all(isinstance(label, bytes) and len(label) <= 32 for label in labels):
        raise Malformed("permit: a label is at most 32 bytes")
    return tuple(labels)


_Epoch = Annotated[int, number(LAST_EPOCH)]


@dataclass(frozen=True)
class Permit(SignedObject):
    what = "permit"
    context = "tallystick permit 1"
    instance: Octets32
    identifier: Octets16
    operation: Annotated[Operation, _operation]
    token: Octets16
    tenant: Octets16  # the tenant whose topic it is
    principal: Octets16
    signing_key: Octets32
    first_epoch: _Epoch
    last_epoch: _Epoch
    not_before_ms: Number
    not_after_ms: Number
    authority: Octets16
    undo_hash: Octets32
    labels: Annotated[tuple[bytes, ...], _labels] = ()

    def verify(self, authority: Certificate) -> None:
        """Raise `Forged` unless this authority, entitled to the topic's tenant, signed the permit."""
        _check_authority("permit", self.authority, self.tenant, self.instance, authority)
        self.verify_by(authority.verify_key)

    def check_covers(self, operation: Operation, token: bytes, epoch: int | None = None) -> None:
        """Raise `Refused` unless this is leave for `operation` on `token` (in `epoch`, if given)."""
        if self.operation is not operation or self.token != token:
            raise Refused("permit: it is for another operation or topic", reason="wrong-permit")
        if epoch is not None and not self.first_epoch <= epoch <= self.last_epoch:
            raise Refused(
                f"permit: epoch {epoch} is outside {self.first_epoch} to {self.last_epoch}", reason="wrong-epoch"
            )

    def check_time(self, time_ms: int) -> None:
        """Raise `Refused` unless `time_ms` (block time) lies in the permit's validity."""
        if not self.not_before_ms <= time_ms < self.not_after_ms:
            raise Refused(
                f"permit: valid from {self.not_before_ms} to {self.not_after_ms}, not at {time_ms}",
                reason="permit-expired",
                hint="ask the authority for a new permit",
            )

    @cached_property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(self.signing_key)


@dataclass(frozen=True)
class UndoOrder(SignedObject):
    """The authority's word that a permit no longer counts: usb(w) and uad(w) of EventGuard 4.5 and 4.6."""

    what = "undo order"
    context = "tallystick undo order 1"
    instance: Octets32
    identifier: Octets16  # of the permit
    operation: Annotated[Operation, _operation]
    token: Octets16
    tenant: Octets16
    principal: Octets16
    time_ms: Number
    authority: Octets16

    def verify(self, authority: Certificate) -> None:
        """Raise `Forged` unless this authority signed the order."""
        _check_authority("undo order", self.authority, self.tenant, self.instance, authority)
        self.verify_by(authority.verify_key)


def undo_hash(undo_token: bytes) -> bytes:
    """What a permit shows of its undo token."""
    return named_hash("tallystick undo token 1", undo_token)


def _check_authority(what: str, named: bytes, tenant: bytes, instance: bytes, authority: Certificate) -> None:
    if authority.kind is not SubjectKind.AUTHORITY or authority.subject != named:
        raise Forged(f"{what}: not issued by the authority it names")
    if authority.tenant not in (ALL_TENANTS, tenant):
        raise Forged(f"{what}: its authority serves another tenant")
    if authority.instance != instance:
        raise Forged(f"{what}: of another instance", reason="wrong-instance")
