"""The caller's side: the same methods in process and over HTTP, each opening what comes back sealed.

`AuthorityClient` is what publishers, subscribers and commands are written against. Every request draws a nonce of
its own; the sealed answer opens only for that principal and that nonce, so an old answer, or another's, cannot be
slipped in; a request that is sent again carries the same nonce and gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tallystick import wire
from tallystick.authority import asks
from tallystick.authority.answers import (
    SHOW,
    AttributeAnswer,
    Caller,
    Draft,
    Erased,
    ListedAttribute,
    NamePage,
    Resolved,
    Rotation,
    answer_info,
)
from tallystick.authority.asks import Ask
from tallystick.authority.codec import ITEMS_MAX
from tallystick.authority.grant import Grant
from tallystick.authority.possession import (
    Enrolled,
    enrol_challenge_info,
    rekey_challenge_info,
    sign_enrolment,
    sign_rekey,
)
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed
from tallystick.ledger import entries
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.wire import Fields

if TYPE_CHECKING:
    from tallystick.authority.authority import Authority

T = TypeVar("T")

_POLL_SLACK_S = 10.0  # beyond the wait itself, for the answer to travel


@dataclass(frozen=True)
class Holder:
    """A principal with the keys that its requests and answers need."""

    instance: bytes
    principal: bytes
    signing_key: SigningKey = field(repr=False)
    sealing_key: hpke.PrivateKey = field(repr=False)


class Transport(Protocol):
    """How requests reach the authority; `Refused`, `Unavailable` or `Misuse` where they get nothing."""

    def ask(self, ask: Ask, caller: Caller, timeout_s: float | None = None) -> Any: ...


class InProcess:
    """The authority in this process; there is nobody to wait for, so a long poll is answered at once."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def ask(self, ask: Ask, caller: Caller, timeout_s: float | None = None) -> Any:
        return ask.serve(self._authority, caller)


class OverHttp:
    """The authority behind its HTTP service."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def ask(self, ask: Ask, caller: Caller, timeout_s: float | None = None) -> Any:
        response = self._http.request("POST", ask.path, body=ask.encode(caller.nonce), timeout_s=timeout_s)
        return ask.decode_answer(response.body)


class AuthorityClient:
    """What a principal asks of its authority; `certificate` is the one from enrolment."""

    def __init__(self, transport: Transport, certificate: Certificate, holder: Holder, entropy: Entropy) -> None:
        self._transport, self._certificate = transport, certificate
        self._holder, self._entropy = holder, entropy

    def invite(self) -> str:
        return self._ask_sealed(asks.Invite()).decode()

    def revoke(self, principal: bytes) -> None:
        self._ask(asks.Revoke(principal))

    def rekey(self, key: SigningKey, sealing: hpke.PrivateKey) -> Certificate:
        """New keys; both requests, one if it was done before; the certificate is checked to be for these keys."""
        holder, public = self._holder, sealing.public.encode()
        fields = (key.public.raw, public, sign_rekey(holder.instance, holder.principal, key, public))
        sealed, encoded = self._ask(asks.Rekey(*fields, b""))
        if sealed:
            opened = hpke.open_(sealing, sealed, rekey_challenge_info(holder.instance, holder.principal))
            _, encoded = self._ask(asks.Rekey(*fields, opened))
        certificate = Certificate.decode(encoded)
        certificate.verify_issued_by(self._certificate)
        expected = (holder.principal, key.public.raw, public)
        if (certificate.subject, certificate.signing_key, certificate.sealing_key) != expected:
            raise Forged("rekey: the certificate is for other keys")
        return certificate

    def create_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> Draft:
        return _made(Draft, self._ask(asks.DraftTopic(name, schema, partitions, flags)))

    def propose_schema(self, token: bytes, schema: bytes) -> tuple[int, bytes]:
        version, schema_hash = self._ask(asks.ProposeSchema(token, schema))
        return version, schema_hash

    def schemas(self, token: bytes) -> list[bytes]:
        return list(_octets(wire.decode(self._ask_sealed(asks.ReadSchemas(token)), "schemas")))

    def resolve_rights(
        self,
        pattern: str,
        principal: bytes,
        operations: int,
        *,
        allow: bool = True,
        host: str = "*",
        mode: int = SHOW,
    ) -> Resolved:
        rule = asks.ResolveRights(pattern, principal, int(allow), operations, host, mode)
        return _made(Resolved, self._ask(rule))

    def labels(self, token: bytes, code: bytes = b"") -> bytes:
        return self._ask_sealed(asks.AskLabels(token, code))

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        """The grant, its permit checked to be this authority's and the holder's own."""
        place = (topic, b"") if isinstance(topic, str) else ("", topic)
        grant = Grant.decode(self._ask_sealed(asks.AskPermit(int(operation), *place, first_epoch, interest)))
        permit = Permit.decode(grant.permit)
        permit.verify(self._certificate)
        if permit.principal != self._holder.principal or permit.token != grant.token:
            raise Forged("grant: its permit is another's or for another topic")
        return grant

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        ask, caller = asks.AskKeys(permit, seen, wait_ms), self._caller()
        sealed = self._transport.ask(ask, caller, wait_ms / 1000 + _POLL_SLACK_S)
        return Grant.decode(self._open(caller, sealed)) if sealed else None

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        order = UndoOrder.decode(self._ask(asks.Undo(permit, undo_token)))
        order.verify(self._certificate)
        return order

    def erase(self, token: bytes, publisher: bytes, periods: list[int]) -> Erased:
        return _made(Erased, self._ask(asks.Erase(token, publisher, tuple(periods))))

    def rotate(self, token: bytes) -> Rotation:
        return _made(Rotation, self._ask(asks.Rotate(token)))

    def declare_attributes(self, space: bytes) -> None:
        self._ask(asks.DeclareAttributes(space))

    def attribute_space(self) -> bytes:
        return self._ask_sealed(asks.ReadSpace())

    def draft_attributes(self, principal: bytes, attributes: bytes, salt: bytes) -> tuple[bytes, ...]:
        return tuple(self._ask(asks.DraftAttributes(principal, attributes, salt)))

    def attribute_pseudonyms(self, principal: bytes, names: list[str]) -> tuple[bytes, ...]:
        return tuple(self._ask(asks.AskPseudonyms(principal, tuple(names))))

    def attributes(self, principal: bytes = b"") -> list[ListedAttribute]:
        """Those of all pages."""
        found: list[ListedAttribute] = []
        after = b""
        while True:
            fields = Fields.parse(self._ask_sealed(asks.ListAttributes(principal, after)), "attributes", 2)
            found += [ListedAttribute.of_fields(item) for item in fields.items(ITEMS_MAX)]
            after = fields.octets(at_most=16)
            if not after:
                return found

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer:
        return AttributeAnswer.decode(self._ask_sealed(asks.AskAttributeKey(known, first)))

    def draft_policy(self, token: bytes, group: int, formula: bytes, salt: bytes) -> int:
        version: int = self._ask(asks.DraftPolicy(token, group, formula, salt))
        return version

    def topic_policies(self, token: bytes) -> list[tuple[int, int, bytes]]:
        opened = self._ask_sealed(asks.ReadPolicies(token))
        items = Fields([wire.decode(opened, "policies")], "policies", 1).items(ITEMS_MAX)
        parts = [Fields(item, "policies", 3) for item in items]
        return [(part.number(), part.number(), part.octets(at_most=1 << 16)) for part in parts]

    def names(self, after: bytes = b"") -> NamePage:
        return NamePage.decode(self._ask_sealed(asks.ReadNames(after)))

    def _ask(self, ask: Ask) -> Any:
        return self._transport.ask(ask, self._caller())

    def _ask_sealed(self, ask: Ask) -> bytes:
        caller = self._caller()
        return self._open(caller, self._transport.ask(ask, caller))

    def _open(self, caller: Caller, sealed: bytes) -> bytes:
        info = answer_info(self._holder.instance, caller.principal, caller.nonce)
        return hpke.open_(self._holder.sealing_key, sealed, info)

    def _caller(self) -> Caller:
        return Caller(self._holder.principal, self._entropy.bytes(asks.NONCE_BYTES))


_NOBODY = Caller(b"", b"")  # who is not yet a principal


def enrol(
    service: Transport, instance: bytes, invite: str, name: str, key: SigningKey, sealing: hpke.PrivateKey
) -> Enrolled:
    """Enrol with both keys; the certificate is checked to be for them. `instance` is what one was told to join."""
    public = sealing.public.encode()
    signature = sign_enrolment(instance, invite, name, key, public)
    sealed = service.ask(asks.Enrol(invite, name, key.public.raw, public, signature), _NOBODY)
    principal = subject_id(instance, key.public.raw)
    challenge = hpke.open_(sealing, sealed, enrol_challenge_info(instance, principal))
    enrolled = _made(Enrolled, service.ask(asks.ConfirmEnrolment(principal, challenge), _NOBODY))
    certificate = Certificate.decode(enrolled.certificate)
    certificate.verify_issued_by(Certificate.decode(enrolled.authority))
    if (certificate.subject, certificate.signing_key, certificate.sealing_key) != (principal, key.public.raw, public):
        raise Forged("enrolment: the certificate is for other keys")
    return enrolled


def topic_entries(draft: Draft, holder: Holder, nodes: tuple[bytes, ...] = (), replicas: int = 1) -> list[bytes]:
    """The entries that make a drafted topic, signed by its owner, for the ledger."""
    create = entries.topic(
        holder.instance,
        draft.token,
        draft.tenant,
        holder.principal,
        holder.signing_key,
        nodes=nodes or draft.nodes,
        schema_hash=draft.schema_hash,
        partitions=draft.partitions,
        replicas=replicas,
        flags=draft.flags,
    )
    return [create, *draft.rights]


def _made(kind: type[T], answer: Any) -> T:
    """The answer as this kind: what came over the wire has its fields in order."""
    return answer if isinstance(answer, kind) else kind(*answer)


def _octets(items: object) -> tuple[bytes, ...]:
    if not isinstance(items, list) or not all(type(item) is bytes for item in items):
        raise Malformed("answer: expected byte strings")
    return tuple(items)
