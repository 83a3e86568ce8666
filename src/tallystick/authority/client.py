"""The caller's side: the same methods in process and over HTTP, each opening what comes back sealed.

`AuthorityClient` is what publishers, subscribers and commands are written against. Every request draws a nonce of
its own; the sealed answer opens only for that principal and that nonce, so an old answer, or another's, cannot be
slipped in; a request that is sent again carries the same nonce and gets the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tallystick import wire
from tallystick.authority.answers import (
    SHOW,
    AttributeAnswer,
    Caller,
    Draft,
    Erased,
    ListedAttribute,
    Names,
    Resolved,
    Rotation,
    answer_info,
)
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
from tallystick.runtime.entropy import Entropy
from tallystick.trust.certificate import BYTES_MAX as CERTIFICATE_BYTES_MAX
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.signed import Fields

if TYPE_CHECKING:
    from tallystick.authority.authority import Authority

NONCE_BYTES = 16
_POLL_SLACK_S = 10.0  # beyond the wait itself, for the answer to travel
_ITEMS_MAX = 1 << 20
_SEALED_BYTES_MAX = 64 << 20  # as much as the client takes at all


@dataclass(frozen=True)
class Holder:
    """A principal with the keys that its requests and answers need."""

    instance: bytes
    principal: bytes
    signing_key: SigningKey = field(repr=False)
    sealing_key: hpke.PrivateKey = field(repr=False)


class AuthorityClient(Protocol):
    """What a principal asks of its authority; `Refused`, `Unavailable` or `Misuse` where it gets nothing."""

    def invite(self) -> str: ...

    def revoke(self, principal: bytes) -> None: ...

    def rekey(self, key: SigningKey, sealing: hpke.PrivateKey) -> Certificate: ...

    def create_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> Draft: ...

    def propose_schema(self, token: bytes, schema: bytes) -> tuple[int, bytes]: ...

    def schemas(self, token: bytes) -> list[bytes]: ...

    def resolve_rights(
        self,
        pattern: str,
        principal: bytes,
        operations: int,
        *,
        allow: bool = True,
        host: str = "*",
        mode: int = SHOW,
    ) -> Resolved: ...

    def labels(self, token: bytes, code: bytes = b"") -> bytes: ...

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant: ...

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None: ...

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder: ...

    def erase(self, token: bytes, publisher: bytes, periods: list[int]) -> Erased: ...

    def rotate(self, token: bytes) -> Rotation: ...

    def declare_attributes(self, space: bytes) -> None: ...

    def attribute_space(self) -> bytes: ...

    def draft_attributes(self, principal: bytes, attributes: bytes, salt: bytes) -> tuple[bytes, ...]: ...

    def attribute_pseudonyms(self, principal: bytes, names: list[str]) -> tuple[bytes, ...]: ...

    def attributes(self, principal: bytes = b"") -> list[ListedAttribute]: ...

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer: ...

    def draft_policy(self, token: bytes, group: int, formula: bytes, salt: bytes) -> int: ...

    def topic_policies(self, token: bytes) -> list[tuple[int, int, bytes]]: ...

    def names(self, after: bytes = b"") -> Names: ...


class InProcess:
    """The authority in this process; there is nobody to wait for, so `keys` answers at once."""

    def __init__(self, authority: Authority, holder: Holder, entropy: Entropy) -> None:
        self._authority = authority
        self._holder = holder
        self._entropy = entropy

    def invite(self) -> str:
        caller = self._caller()
        return _open(self._holder, caller, self._authority.invite(caller)).decode()

    def revoke(self, principal: bytes) -> None:
        self._authority.revoke(self._caller(), principal)

    def rekey(self, key: SigningKey, sealing: hpke.PrivateKey) -> Certificate:
        def ask(*fields: bytes) -> tuple[bytes, bytes]:
            return self._authority.rekey(self._caller(), *fields)

        return _rekey(ask, self._holder, key, sealing, self._authority.certificate)

    def create_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> Draft:
        return self._authority.create_topic(self._caller(), name, schema, partitions, flags)

    def propose_schema(self, token: bytes, schema: bytes) -> tuple[int, bytes]:
        return self._authority.propose_schema(self._caller(), token, schema)

    def schemas(self, token: bytes) -> list[bytes]:
        caller = self._caller()
        return _texts(_open(self._holder, caller, self._authority.schemas(caller, token)))

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
        return self._authority.resolve_rights(self._caller(), pattern, principal, allow, operations, host, mode)

    def labels(self, token: bytes, code: bytes = b"") -> bytes:
        caller = self._caller()
        return _open(self._holder, caller, self._authority.labels(caller, token, code))

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        caller = self._caller()
        sealed = self._authority.permit(caller, operation, topic, first_epoch, interest)
        return _open_grant(self._holder, caller, sealed, self._authority.certificate)

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        caller = self._caller()
        sealed = self._authority.keys(caller, permit, seen)
        return None if sealed is None else Grant.decode(_open(self._holder, caller, sealed))

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        return _check_order(self._authority.undo(self._caller(), permit, undo_token), self._authority.certificate)

    def erase(self, token: bytes, publisher: bytes, periods: list[int]) -> Erased:
        return self._authority.erase(self._caller(), token, publisher, periods)

    def rotate(self, token: bytes) -> Rotation:
        return self._authority.rotate(self._caller(), token)

    def declare_attributes(self, space: bytes) -> None:
        self._authority.declare_attributes(self._caller(), space)

    def attribute_space(self) -> bytes:
        caller = self._caller()
        return _open(self._holder, caller, self._authority.attribute_space(caller))

    def draft_attributes(self, principal: bytes, attributes: bytes, salt: bytes) -> tuple[bytes, ...]:
        return tuple(self._authority.draft_attributes(self._caller(), principal, attributes, salt))

    def attribute_pseudonyms(self, principal: bytes, names: list[str]) -> tuple[bytes, ...]:
        return tuple(self._authority.attribute_pseudonyms(self._caller(), principal, names))

    def attributes(self, principal: bytes = b"") -> list[ListedAttribute]:
        def page(after: bytes) -> bytes:
            caller = self._caller()
            return _open(self._holder, caller, self._authority.attributes(caller, principal, after))

        return _all_attributes(page)

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer:
        caller = self._caller()
        sealed = self._authority.attribute_key(caller, known, first)
        return AttributeAnswer.decode(_open(self._holder, caller, sealed))

    def draft_policy(self, token: bytes, group: int, formula: bytes, salt: bytes) -> int:
        return self._authority.draft_policy(self._caller(), token, group, formula, salt)

    def topic_policies(self, token: bytes) -> list[tuple[int, int, bytes]]:
        caller = self._caller()
        return _listed_policies(_open(self._holder, caller, self._authority.topic_policies(caller, token)))

    def names(self, after: bytes = b"") -> Names:
        caller = self._caller()
        return Names.decode(_open(self._holder, caller, self._authority.names(caller, after)))

    def _caller(self) -> Caller:
        return Caller(self._holder.principal, self._entropy.bytes(NONCE_BYTES))


class OverHttp:
    """The authority behind its HTTP service; `certificate` is the one from enrolment."""

    def __init__(self, http: HttpClient, certificate: Certificate, holder: Holder, entropy: Entropy) -> None:
        self._http = http
        self._certificate = certificate
        self._holder = holder
        self._entropy = entropy

    def invite(self) -> str:
        caller = self._caller()
        return _open(self._holder, caller, self._ask("/v1/invites", caller).octets()).decode()

    def revoke(self, principal: bytes) -> None:
        self._ask("/v1/revoke", self._caller(), principal, length=0)

    def rekey(self, key: SigningKey, sealing: hpke.PrivateKey) -> Certificate:
        def ask(*fields: bytes) -> tuple[bytes, bytes]:
            answer = self._ask("/v1/rekey", self._caller(), *fields, length=2)
            return answer.octets(), answer.octets()

        return _rekey(ask, self._holder, key, sealing, self._certificate)

    def create_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> Draft:
        answer = self._ask("/v1/topics", self._caller(), name, schema, partitions, flags, length=8)
        return Draft(
            token=answer.octets(16),
            tenant=answer.octets(16),
            schema_hash=answer.octets(32),
            partitions=answer.number(),
            flags=answer.number(),
            nodes=_octets(answer),
            public=answer.octets(),
            rights=_octets(answer),
        )

    def propose_schema(self, token: bytes, schema: bytes) -> tuple[int, bytes]:
        answer = self._ask("/v1/schemas", self._caller(), token, schema, length=2)
        return answer.number(), answer.octets(32)

    def schemas(self, token: bytes) -> list[bytes]:
        caller = self._caller()
        answer = self._ask("/v1/topics/schemas", caller, token)
        return _texts(_open(self._holder, caller, answer.octets(at_most=_SEALED_BYTES_MAX)))

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
        fields = (pattern, principal, int(allow), operations, host, mode)
        answer = self._ask("/v1/rights/resolve", self._caller(), *fields, length=2)
        return Resolved(_octets(answer), _octets(answer))

    def labels(self, token: bytes, code: bytes = b"") -> bytes:
        caller = self._caller()
        return _open(self._holder, caller, self._ask("/v1/topics/labels", caller, token, code).octets())

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        caller = self._caller()
        place = (topic, b"") if isinstance(topic, str) else ("", topic)
        answer = self._ask("/v1/permits", caller, int(operation), *place, first_epoch, interest)
        return _open_grant(self._holder, caller, answer.octets(at_most=_SEALED_BYTES_MAX), self._certificate)

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        caller = self._caller()
        timeout_s = wait_ms / 1000 + _POLL_SLACK_S
        answer = self._ask("/v1/keys", caller, permit, seen, wait_ms, timeout_s=timeout_s)
        sealed = answer.octets(at_most=_SEALED_BYTES_MAX)
        return Grant.decode(_open(self._holder, caller, sealed)) if sealed else None

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        answer = self._ask("/v1/undo", self._caller(), permit, undo_token)
        return _check_order(answer.octets(), self._certificate)

    def erase(self, token: bytes, publisher: bytes, periods: list[int]) -> Erased:
        answer = self._ask("/v1/erase", self._caller(), token, publisher, periods, length=3)
        pairs = [Fields(item, "erased", 2) for item in answer.items(_ITEMS_MAX)]
        return Erased(tuple((pair.octets(16), pair.number()) for pair in pairs), _octets(answer), _octets(answer))

    def rotate(self, token: bytes) -> Rotation:
        answer = self._ask("/v1/rotate", self._caller(), token, length=2)
        return Rotation(answer.number(), answer.number())

    def declare_attributes(self, space: bytes) -> None:
        self._ask("/v1/attributes/declare", self._caller(), space, length=0)

    def attribute_space(self) -> bytes:
        return self._ask_sealed("/v1/attributes/space")

    def draft_attributes(self, principal: bytes, attributes: bytes, salt: bytes) -> tuple[bytes, ...]:
        return _octets(self._ask("/v1/attributes/draft", self._caller(), principal, attributes, salt))

    def attribute_pseudonyms(self, principal: bytes, names: list[str]) -> tuple[bytes, ...]:
        return _octets(self._ask("/v1/attributes/pseudonyms", self._caller(), principal, names))

    def attributes(self, principal: bytes = b"") -> list[ListedAttribute]:
        return _all_attributes(lambda after: self._ask_sealed("/v1/attributes/list", principal, after))

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer:
        return AttributeAnswer.decode(self._ask_sealed("/v1/attributes/key", known, first))

    def draft_policy(self, token: bytes, group: int, formula: bytes, salt: bytes) -> int:
        return self._ask("/v1/topics/policy", self._caller(), token, group, formula, salt).number()

    def topic_policies(self, token: bytes) -> list[tuple[int, int, bytes]]:
        return _listed_policies(self._ask_sealed("/v1/topics/policies", token))

    def _ask_sealed(self, path: str, *fields: object) -> bytes:
        caller = self._caller()
        answer = self._ask(path, caller, *fields)
        return _open(self._holder, caller, answer.octets(at_most=_SEALED_BYTES_MAX))

    def names(self, after: bytes = b"") -> Names:
        caller = self._caller()
        answer = self._ask("/v1/names", caller, after)
        return Names.decode(_open(self._holder, caller, answer.octets(at_most=_SEALED_BYTES_MAX)))

    def _ask(
        self, path: str, caller: Caller, *fields: object, length: int = 1, timeout_s: float | None = None
    ) -> Fields:
        body = wire.encode([caller.nonce, *fields])
        response = self._http.request("POST", path, body=body, timeout_s=timeout_s)
        return Fields.parse(response.body, f"answer of {path}", length)

    def _caller(self) -> Caller:
        return Caller(self._holder.principal, self._entropy.bytes(NONCE_BYTES))


class Enroller(Protocol):
    """The two requests of somebody who is not yet a principal."""

    def enrol(self, invite: str, name: str, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes: ...

    def confirm_enrolment(self, principal: bytes, challenge: bytes) -> Enrolled: ...


class HttpEnroller:
    """Enrolment over HTTP; the client sends without an identity."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def enrol(self, invite: str, name: str, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes:
        body = wire.encode([invite, name, signing_key, sealing_key, signature])
        response = self._http.request("POST", "/v1/enrol", body=body)
        return Fields.parse(response.body, "enrolment", 1).octets()

    def confirm_enrolment(self, principal: bytes, challenge: bytes) -> Enrolled:
        response = self._http.request("POST", "/v1/enrol/confirm", body=wire.encode([principal, challenge]))
        answer = Fields.parse(response.body, "enrolment", 4)
        certificate, authority = answer.octets(), answer.octets(at_most=CERTIFICATE_BYTES_MAX)
        return Enrolled(certificate, authority, _octets(answer), answer.text(1 << 18))


def enrol(
    service: Enroller, instance: bytes, invite: str, name: str, key: SigningKey, sealing: hpke.PrivateKey
) -> Enrolled:
    """Enrol with both keys; the certificate is checked to be for them. `instance` is what one was told to join."""
    public = sealing.public.encode()
    signature = sign_enrolment(instance, invite, name, key, public)
    sealed = service.enrol(invite, name, key.public.raw, public, signature)
    principal = subject_id(instance, key.public.raw)
    challenge = hpke.open_(sealing, sealed, enrol_challenge_info(instance, principal))
    enrolled = service.confirm_enrolment(principal, challenge)
    certificate = Certificate.decode(enrolled.certificate)
    certificate.verify_issued_by(Certificate.decode(enrolled.authority))
    if (certificate.subject, certificate.signing_key, certificate.sealing_key) != (principal, key.public.raw, public):
        raise Forged("enrolment: the certificate is for other keys")
    return enrolled


def _rekey(
    ask: Callable[[bytes, bytes, bytes, bytes], tuple[bytes, bytes]],
    holder: Holder,
    key: SigningKey,
    sealing: hpke.PrivateKey,
    authority: Certificate,
) -> Certificate:
    """Both requests of a rekeying, one if it was done before; the certificate is checked to be for these keys."""
    public = sealing.public.encode()
    fields = (key.public.raw, public, sign_rekey(holder.instance, holder.principal, key, public))
    sealed, encoded = ask(*fields, b"")
    if sealed:
        opened = hpke.open_(sealing, sealed, rekey_challenge_info(holder.instance, holder.principal))
        _, encoded = ask(*fields, opened)
    certificate = Certificate.decode(encoded)
    certificate.verify_issued_by(authority)
    expected = (holder.principal, key.public.raw, public)
    if (certificate.subject, certificate.signing_key, certificate.sealing_key) != expected:
        raise Forged("rekey: the certificate is for other keys")
    return certificate


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


def _open(holder: Holder, caller: Caller, sealed: bytes) -> bytes:
    return hpke.open_(holder.sealing_key, sealed, answer_info(holder.instance, caller.principal, caller.nonce))


def _open_grant(holder: Holder, caller: Caller, sealed: bytes, authority: Certificate) -> Grant:
    """The grant, its permit checked to be this authority's and the holder's own."""
    grant = Grant.decode(_open(holder, caller, sealed))
    permit = Permit.decode(grant.permit)
    permit.verify(authority)
    if permit.principal != holder.principal or permit.token != grant.token:
        raise Forged("grant: its permit is another's or for another topic")
    return grant


def _check_order(data: bytes, authority: Certificate) -> UndoOrder:
    order = UndoOrder.decode(data)
    order.verify(authority)
    return order


def _all_attributes(page: Callable[[bytes], bytes]) -> list[ListedAttribute]:
    """The attributes of all pages."""
    found: list[ListedAttribute] = []
    after = b""
    while True:
        fields = Fields.parse(page(after), "attributes", 2)
        found += [ListedAttribute.of_fields(item) for item in fields.items(_ITEMS_MAX)]
        after = fields.octets(at_most=16)
        if not after:
            return found


def _listed_policies(opened: bytes) -> list[tuple[int, int, bytes]]:
    items = Fields([wire.decode(opened, "policies")], "policies", 1).items(_ITEMS_MAX)
    parts = [Fields(item, "policies", 3) for item in items]
    return [(part.number(), part.number(), part.octets(at_most=1 << 16)) for part in parts]


def _texts(opened: bytes) -> list[bytes]:
    return list(_octets(Fields([wire.decode(opened, "schemas")], "schemas", 1)))


def _octets(answer: Fields) -> tuple[bytes, ...]:
    items = answer.items(_ITEMS_MAX)
    if not all(type(item) is bytes for item in items):
        raise Malformed("answer: expected byte strings")
    return tuple(items)
