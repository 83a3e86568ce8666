"""Claims: what a principal says to relays about itself. It advertises, it subscribes, it takes one of these back.

Threat: relays that invent claims, alter them, keep them for later, or show a true one in the wrong place. So a claim is
whole in itself: the principal signs it, the authority's permit is inside, and with it the key that the signature needs.
It names the principal's edge, the virtual node to which the principal is linked. Relays find the way there in the plan,
which is the ledger's, and never in who handed them the claim: otherwise two colluders at two ends could draw a
subscriber's publications to the wrong one, just by being quicker (Fig. 4 keeps the last hop; we keep the edge).

Taking back brings the authority's undo order (EventGuard 4.5, 4.6) along. An order is final, and so is its effect: a
claim of an ended permit never counts again, and its holder needs a new permit. docs/formats/overlay.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tallystick import wire
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Refused
from tallystick.guards.route import ForwardedMessage, KeyOf, MessageKind, sign_message
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.wire import Fields

OPERATIONS = {
    MessageKind.SUBSCRIBE: Operation.SUBSCRIBE,
    MessageKind.UNSUBSCRIBE: Operation.SUBSCRIBE,
    MessageKind.ADVERTISE: Operation.ADVERTISE,
    MessageKind.UNADVERTISE: Operation.ADVERTISE,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """Well-formed, and its parts fit one another; whether its signatures hold, the guard says."""

    data: bytes  # as it came, and as it goes on
    message: ForwardedMessage
    edge: bytes  # the virtual node that the principal is linked to
    permit: Permit
    order: UndoOrder | None  # None where something is claimed, and not taken back

    @property
    def identifier(self) -> bytes:
        """That of the permit, by which the ledger knows whether it ended."""
        return self.permit.identifier

    @classmethod
    def decode(cls, data: bytes) -> Claim:
        """Raises `Refused`."""
        message = ForwardedMessage.decode(data)
        edge, permit, order = _read(message.content)
        operation = OPERATIONS.get(message.kind)
        is_undo = message.kind in (MessageKind.UNSUBSCRIBE, MessageKind.UNADVERTISE)
        if operation is None or is_undo != (order is not None):
            raise Malformed("claim: an undo order where something is taken back expected, and nowhere else")
        permit.check_covers(operation, permit.token)
        if not message.principal == message.signer == permit.principal:
            raise Refused("claim: it is another's permit", reason="not-yours")
        if order is not None and _named(order) != _named(permit):
            raise Refused("claim: the undo order is for another permit", reason="wrong-permit")
        return cls(data, message, edge, permit, order)


def sign_claim(
    kind: MessageKind, edge: bytes, permit: Permit, key: SigningKey, identifier: bytes, created_ms: int,
    order: UndoOrder | None = None,
) -> bytes:  # fmt: skip
    """The bytes of a claim at this edge by the permit's holder, whose key this is; `identifier` is fresh entropy."""
    content = wire.encode([1, edge, permit.encode(), order.encode() if order else None])
    return sign_message(kind, permit.principal, permit.principal, identifier, created_ms, content, key)


def holders_key(authority: Callable[[bytes], Certificate | None]) -> KeyOf:
    """For the routing guard: a claim is signed with the key in the permit, which an authority signed.

    All of the authority's signatures are checked on the way, before anything is remembered in the principal's name.
    """

    def key_of(message: ForwardedMessage) -> VerifyKey:
        _, permit, order = _read(message.content)
        certificate = authority(permit.authority)
        if certificate is None:
            raise Forged("permit: its authority is not known here", reason="unknown-authority")
        permit.verify(certificate)
        if order is not None:
            order.verify(certificate)
        return permit.verify_key

    return key_of


@lru_cache(maxsize=16)  # the guard reads again what was read just now
def _read(content: bytes) -> tuple[bytes, Permit, UndoOrder | None]:
    fields = Fields.parse(content, "claim", 4)
    fields.version(1)
    edge, permit, order = fields.octets(16), Permit.decode(fields.octets()), fields.optional_octets(wire.OCTETS_MAX)
    return edge, permit, None if order is None else UndoOrder.decode(order)


def _named(one: Permit | UndoOrder) -> tuple[object, ...]:
    return one.instance, one.identifier, one.operation, one.token, one.tenant, one.principal, one.authority
