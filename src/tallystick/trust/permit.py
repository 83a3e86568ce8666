"""Permits and undo orders: EventGuard's signed leave, made personal.

EventGuard 4.2 signs the token alone, so whoever copies a permit may use it. Ours names the principal and its key
and counts only together with that principal's own signature on what it does. The permit holds the hash of its
undo token (4.5, 4.6): a carrier with no authority in reach can check the token against it; where the authority is
in reach the token is shown to it alone, and it answers with an undo order that guards check.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from tallystick import wire
from tallystick.crypto.signatures import Signer, VerifyKey, split_signed
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Refused
from tallystick.trust.certificate import ALL_TENANTS, Certificate, SubjectKind
from tallystick.wire import Fields

PERMIT_CONTEXT = "tallystick permit 1"
UNDO_CONTEXT = "tallystick undo order 1"
LAST_EPOCH = (1 << 32) - 1  # a permit without a last epoch
LABELS_MAX = 256  # labels that cover an interest, in some epochs


class Operation(IntEnum):
    SUBSCRIBE = 1
    ADVERTISE = 2


@dataclass(frozen=True)
class Permit:
    instance: bytes
    identifier: bytes
    operation: Operation
    token: bytes
    tenant: bytes  # the tenant whose topic it is
    principal: bytes
    signing_key: bytes
    first_epoch: int
    last_epoch: int
    not_before_ms: int
    not_after_ms: int
    authority: bytes
    undo_hash: bytes
    labels: tuple[bytes, ...] = ()
    body: bytes = b""
    signature: bytes = b""

    def sign(self, signer: Signer) -> Permit:
        body = wire.encode(
            [
                1,
                self.instance,
                self.identifier,
                int(self.operation),
                self.token,
                self.tenant,
                self.principal,
                self.signing_key,
                self.first_epoch,
                self.last_epoch,
                self.not_before_ms,
                self.not_after_ms,
                self.authority,
                self.undo_hash,
                list(self.labels),
            ]
        )
        return replace(self, body=body, signature=signer.sign(PERMIT_CONTEXT, body))

    def encode(self) -> bytes:
        return wire.encode([self.body, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Permit:
        body, signature = split_signed(data, "permit")
        fields = Fields.parse(body, "permit", 15)
        fields.version(1)
        instance, identifier = fields.octets(32), fields.octets(16)
        operation = fields.number()
        if operation not in (1, 2):
            raise Malformed(f"permit: operation 1 or 2 expected, found {operation}")
        permit = cls(
            instance=instance,
            identifier=identifier,
            operation=Operation(operation),
            token=fields.octets(16),
            tenant=fields.octets(16),
            principal=fields.octets(16),
            signing_key=fields.octets(32),
            first_epoch=fields.number(LAST_EPOCH),
            last_epoch=fields.number(LAST_EPOCH),
            not_before_ms=fields.number(),
            not_after_ms=fields.number(),
            authority=fields.octets(16),
            undo_hash=fields.octets(32),
            labels=tuple(fields.items(LABELS_MAX)),
            body=body,
            signature=signature,
        )
        if not all(isinstance(label, bytes) and len(label) <= 32 for label in permit.labels):
            raise Malformed("permit: a label is at most 32 bytes")
        return permit

    def verify(self, authority: Certificate) -> None:
        """Raise `Forged` unless this authority, entitled to the topic's tenant, signed the permit."""
        _check_authority("permit", self.authority, self.tenant, self.instance, authority)
        authority.verify_key.verify(PERMIT_CONTEXT, self.signature, self.body)

    def check_covers(self, operation: Operation, token: bytes, epoch: int | None = None) -> None:
        """Raise `Refused` unless this is leave for `operation` on `token` (in `epoch`, if given)."""
        if self.operation is not operation or self.token != token:
            raise Refused("permit: it is for another operation or topic", reason="wrong-permit")
        if epoch is not None and not self.first_epoch <= epoch <= self.last_epoch:
            raise Refused(
                f"permit: epoch {epoch} is outside {self.first_epoch} to {self.last_epoch}",
                reason="wrong-epoch",
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
class UndoOrder:
    """The authority's word that a permit no longer counts: usb(w) and uad(w) of EventGuard 4.5 and 4.6."""

    instance: bytes
    identifier: bytes  # of the permit
    operation: Operation
    token: bytes
    tenant: bytes
    principal: bytes
    time_ms: int
    authority: bytes
    body: bytes = b""
    signature: bytes = b""

    def sign(self, signer: Signer) -> UndoOrder:
        body = wire.encode(
            [
                1,
                self.instance,
                self.identifier,
                int(self.operation),
                self.token,
                self.tenant,
                self.principal,
                self.time_ms,
                self.authority,
            ]
        )
        return replace(self, body=body, signature=signer.sign(UNDO_CONTEXT, body))

    def encode(self) -> bytes:
        return wire.encode([self.body, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> UndoOrder:
        body, signature = split_signed(data, "undo order")
        fields = Fields.parse(body, "undo order", 9)
        fields.version(1)
        instance, identifier = fields.octets(32), fields.octets(16)
        operation = fields.number()
        if operation not in (1, 2):
            raise Malformed(f"undo order: operation 1 or 2 expected, found {operation}")
        return cls(
            instance=instance,
            identifier=identifier,
            operation=Operation(operation),
            token=fields.octets(16),
            tenant=fields.octets(16),
            principal=fields.octets(16),
            time_ms=fields.number(),
            authority=fields.octets(16),
            body=body,
            signature=signature,
        )

    def verify(self, authority: Certificate) -> None:
        """Raise `Forged` unless this authority signed the order."""
        _check_authority("undo order", self.authority, self.tenant, self.instance, authority)
        authority.verify_key.verify(UNDO_CONTEXT, self.signature, self.body)


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
