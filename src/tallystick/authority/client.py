"""The caller's side: the same methods in process and over HTTP, each opening what comes back sealed.

`AuthorityClient` is what publishers, subscribers and commands are written against. Every request draws a nonce of
its own; the sealed answer opens only for that principal and that nonce, so an old answer, or another's, cannot be
slipped in; a request that is sent again carries the same nonce and gets the same answer.

Over HTTP every answer to a signed request is signed by the authority over that request (`runtime.conversation` holds it
to that). In process nobody stands in between.

An owner builds and signs its entries itself, from what it asked for (`topic_entries` and what follows it); of an answer
it takes what it cannot know: a new topic's token, pseudonyms, versions, and which topics a pattern matches. Entries
that an answer suggests are built again and must come out the same. Of attributes and policies it draws the salts and
computes the commitments too. So it knows what it signs, and the authority can show nothing else for it later: a
commitment opens to one name and value, or to one formula.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from tallystick.authority import answers, asks, possession
from tallystick.authority.answers import (
    AttributeAnswer,
    BoundDraft,
    Caller,
    Draft,
    Erased,
    HeldPlace,
    ListedAttribute,
    ListedPolicy,
    NamePage,
    Resolved,
)
from tallystick.authority.asks import Ask
from tallystick.authority.codec import items, octets, read_opened, record, row
from tallystick.authority.grant import Grant
from tallystick.authority.mesh_messages import MeshAnswer, MeshRequest, MeshUpdatesPage, MeshUpdatesRequest, read_answer
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Misuse
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.topics import BINDING_CONTEXT, Terms, binding_statement
from tallystick.policy.formula import Formula
from tallystick.policy.space import AttributeSet
from tallystick.record.schema import schema_hash
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.mesh import MeshAuthority
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.wire import Fields, check_no_identifier

A = TypeVar("A")

_SCHEMAS = items(octets(at_most=1 << 20))
_HELD = items(record(HeldPlace))
_ATTRIBUTES = row(items(record(ListedAttribute)), octets(at_most=16))  # a page, and what to name for the next one
_POLICIES = items(record(ListedPolicy))


@dataclass(frozen=True)
class Holder:
    """A principal with the keys that its requests and answers need."""

    instance: bytes
    principal: bytes
    signing_key: SigningKey = field(repr=False)
    sealing_key: hpke.PrivateKey = field(repr=False)
    tenant: bytes


class Transport(Protocol):
    """How requests reach the authority, or the authority itself in this process, which answers a long poll at once.

    `Refused`, `Unavailable` or `Misuse` where they get nothing.
    """

    def answer(self, ask: Ask[A], caller: Caller) -> A: ...


class OverHttp:
    """The authority behind its HTTP service."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    def answer(self, ask: Ask[A], caller: Caller) -> A:
        # The operator's once: a tenant that was made without our hearing of it is made, and asking again says so.
        attempts_max = 1 if ask.by_operator else None
        body = ask.encode(caller.nonce)
        # Who enrols does not know the authority's key yet: what comes back is certified, and held to the trust file.
        response = self._http.request(
            "POST", ask.path, "", body, timeout_s=ask.timeout_s, attempts_max=attempts_max, vouched=ask.signed
        )
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
        signature = possession.sign_rekey(holder.instance, holder.principal, key, public)
        sealed, encoded = self._ask(asks.Rekey(key.public.raw, public, signature, b""))
        if sealed:
            info = possession.rekey_challenge_info(holder.instance, holder.principal)
            opened = hpke.open_(sealing, sealed, info)
            _, encoded = self._ask(asks.Rekey(key.public.raw, public, signature, opened))
        return _check_issued("rekey", encoded, self._certificate, holder.principal, key, public)

    def create_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> Draft:
        """The draft of a topic; its schema, partitions and flags are those asked for, whatever the answer says."""
        from tallystick.record.schema import Schema

        check_no_identifier(name, "topic")
        draft = self._ask(asks.DraftTopic(name, schema, partitions, flags))
        drafted_rules(draft)
        return replace(draft, schema_hash=Schema.decode(schema).hash, partitions=partitions, flags=flags)

    def bind_topic(self, name: str, schema: bytes, partitions: int = 1, flags: int = 0) -> BoundDraft:
        """The draft of a topic, checked to be what was asked for and bound to our tenant by this authority."""
        check_no_identifier(name, "topic")
        draft = self._ask(asks.BindTopic(name, schema, partitions, flags))
        if (draft.partitions, draft.flags, draft.schema_hash) != (partitions, flags, schema_hash(schema)):
            raise Forged("topic: the authority drafted another than was asked for", reason="wrong-topic")
        self._check_binding(draft)
        return draft

    def _check_binding(self, draft: BoundDraft) -> None:
        authority, tenant, binding = self._certificate, self._holder.tenant, draft.binding
        if (draft.token, draft.tenant, draft.authority) != (binding.token, tenant, authority.subject):
            raise Forged("topic: the authority's token is not bound to this tenant", reason="wrong-token")
        statement = binding_statement(self._holder.instance, tenant, authority.subject, binding.word)
        authority.verify_key.verify(BINDING_CONTEXT, binding.signature, statement)

    def propose_schema(self, token: bytes, schema: bytes) -> tuple[int, bytes]:
        """Hand in the next version of a schema. Returns its number and hash, as the caller's own text has them."""
        from tallystick.record.schema import Schema

        self._ask(asks.ProposeSchema(token, schema))
        proposed = Schema.decode(schema)
        return proposed.version, proposed.hash

    def schemas(self, token: bytes) -> list[bytes]:
        return list(read_opened(_SCHEMAS, self._ask_sealed(asks.ReadSchemas(token)), "schemas"))

    def resolve_rights(
        self,
        pattern: str,
        principal: bytes,
        operations: int,
        *,
        allow: bool = True,
        host: str = "*",
        mode: int = answers.SHOW,
    ) -> Resolved:
        """The topics that a pattern matches. The entries are of this rule on these topics, and no others."""
        resolved = self._ask(asks.ResolveRights(pattern, principal, int(allow), operations, host, mode))
        make = entries.withdraw if mode == answers.FORGET else entries.grant
        built = {make(token, principal, operations, allow=allow, host=host) for token in resolved.tokens}
        check_built(built, resolved.entries, "rights")
        return resolved

    def labels(self, token: bytes, code: bytes = b"") -> bytes:
        return self._ask_sealed(asks.AskLabels(token, code))

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        """The grant, its permit checked to be this authority's and the holder's own. By a name one asks for a topic of
        one's own tenant, and no other is taken."""
        place = (topic, b"") if isinstance(topic, str) else ("", topic)
        grant = Grant.decode(self._ask_sealed(asks.AskPermit(int(operation), *place, first_epoch, interest)))
        permit = Permit.decode(grant.permit)
        permit.verify(self._certificate)
        wanted = (self._holder.principal, operation, grant.token if isinstance(topic, str) else topic)
        if (permit.principal, permit.operation, permit.token) != wanted or permit.token != grant.token:
            raise Forged("grant: its permit is another's or for another topic")
        if isinstance(topic, str):
            self._check_own(topic, permit)
        return grant

    def _check_own(self, name: str, permit: Permit) -> None:
        if permit.tenant != self._holder.tenant:
            raise Forged(f'grant: topic "{name}" led to another tenant\'s', reason="wrong-tenant")

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        caller = self._caller()
        sealed = self._transport.answer(asks.AskKeys(permit, seen, wait_ms), caller)
        return Grant.decode(self._open(caller, sealed)) if sealed else None

    def mesh(self, request: MeshRequest) -> tuple[MeshAnswer, MeshAuthority]:
        """What a member of the mesh asks for, every certificate checked, and the key under which they hold."""
        sealed = request.seal(self._certificate, self._holder.principal)
        answer = read_answer(self._ask_sealed(asks.AskMesh(sealed)))
        authority = answer.check(self._certificate)
        leaves = request.epochs if request.operation == Operation.ADVERTISE else 0
        if (len(answer.secrets), len(answer.leaves)) != (request.epochs, leaves):
            raise Forged("mesh: the authority answered something else than was asked for", reason="wrong-answer")
        if request.lasting and not answer.is_place_of(request.lasting, authority.verify_key):
            raise Forged("mesh: the certificate is of another node", reason="wrong-answer")
        return answer, authority

    def mesh_updates(self, token: bytes) -> list[bytes]:
        """Updates for all members of a topic of one's own, and some for nobody, in no order."""
        found: list[bytes] = []
        end = bytes(16)
        while True:
            request = MeshUpdatesRequest(token, end).seal(self._certificate, self._holder.principal)
            page = MeshUpdatesPage.decode(self._ask_sealed(asks.AskMeshUpdates(request)))
            found += page.updates
            if page.end <= end:
                return sorted(found)
            end = page.end

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        order = UndoOrder.decode(self._ask(asks.Undo(permit, undo_token)))
        order.verify(self._certificate)
        if order.identifier != Permit.decode(permit).identifier:
            raise Forged("undo: the order is for another permit")
        return order

    def erase(self, token: bytes, publisher: bytes, periods: Sequence[int]) -> Erased:
        return self._ask(asks.Erase(token, publisher, tuple(periods)))

    def rotate(self, token: bytes) -> answers.Rotation:
        return self._ask(asks.Rotate(token))

    def declare_attributes(self, space: bytes) -> None:
        self._ask(asks.DeclareAttributes(space))

    def attribute_space(self) -> bytes:
        return self._ask_sealed(asks.ReadSpace())

    def draft_attributes(self, principal: bytes, attributes: bytes, salt: bytes) -> tuple[bytes, ...]:
        return self._ask(asks.DraftAttributes(principal, attributes, salt))

    def attribute_pseudonyms(self, principal: bytes, names: Sequence[str]) -> tuple[bytes, ...]:
        return self._ask(asks.AskPseudonyms(principal, tuple(names)))

    def attributes(self, principal: bytes = b"") -> list[ListedAttribute]:
        """Those of all pages."""
        found: list[ListedAttribute] = []
        after = b""
        while True:
            opened = self._ask_sealed(asks.ListAttributes(principal, after))
            page, after = read_opened(_ATTRIBUTES, opened, "attributes")
            found += page
            if not after:
                return found

    def attributes_held(self, principal: bytes) -> list[HeldPlace]:
        """What a principal holds, whoever granted it."""
        return list(read_opened(_HELD, self._ask_sealed(asks.ListHeld(principal)), "attributes"))

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer:
        return AttributeAnswer.decode(self._ask_sealed(asks.AskAttributeKey(known, first)))

    def draft_policy(self, token: bytes, group: int, formula: bytes, salt: bytes) -> int:
        return self._ask(asks.DraftPolicy(token, group, formula, salt))

    def topic_policies(self, token: bytes) -> list[ListedPolicy]:
        return list(read_opened(_POLICIES, self._ask_sealed(asks.ReadPolicies(token)), "policies"))

    def names(self, after: bytes = b"") -> NamePage:
        return NamePage.decode(self._ask_sealed(asks.ReadNames(after)))

    def _ask(self, ask: Ask[A]) -> A:
        return self._transport.answer(ask, self._caller())

    def _ask_sealed(self, ask: Ask[bytes]) -> bytes:
        caller = self._caller()
        return self._open(caller, self._transport.answer(ask, caller))

    def _open(self, caller: Caller, sealed: bytes) -> bytes:
        info = answers.answer_info(self._holder.instance, caller.principal, caller.nonce)
        return hpke.open_(self._holder.sealing_key, sealed, info)

    def _caller(self) -> Caller:
        return Caller(self._holder.principal, self._entropy.bytes(asks.NONCE_BYTES))


def enrol(
    service: Transport, instance: bytes, invite: str, name: str, key: SigningKey, sealing: hpke.PrivateKey
) -> answers.Enrolled:
    """Enrol with both keys; the certificate is checked to be for them. `instance` is what one was told to join."""
    check_no_identifier(name, "principal")
    public = sealing.public.encode()
    signature = possession.sign_enrolment(instance, invite, name, key, public)
    sealed = service.answer(asks.Enrol(invite, name, key.public.raw, public, signature), answers.NOBODY)
    principal = subject_id(instance, key.public.raw)
    challenge = hpke.open_(sealing, sealed, possession.enrol_challenge_info(instance, principal))
    enrolled = service.answer(asks.ConfirmEnrolment(principal, challenge), answers.NOBODY)
    issuer = Certificate.decode(enrolled.authority)
    _check_issued("enrolment", enrolled.certificate, issuer, principal, key, public)
    return enrolled


def _check_issued(
    what: str, encoded: bytes, issuer: Certificate, principal: bytes, key: SigningKey, sealing_key: bytes
) -> Certificate:
    """The certificate, if this authority issued it for these keys."""
    certificate = Certificate.decode(encoded)
    certificate.verify_issued_by(issuer)
    expected = (principal, key.public.raw, sealing_key)
    if (certificate.subject, certificate.signing_key, certificate.sealing_key) != expected:
        raise Forged(f"{what}: the certificate is for other keys")
    return certificate


# --- entries that an owner signs ---


def drafted_rules(draft: Draft) -> list[tuple[bytes, bool, int, str]]:
    """What patterns that were remembered say about the new topic: principal, whether it may, operations, host. Raises
    `Forged` if anything but a rule of this topic is among them."""
    found = []
    for entry in draft.rights:
        fields = Fields.parse(entry, "right", 6)
        if (fields.number(), fields.octets(16)) != (int(EntryKind.GRANT), draft.token):
            raise _slipped_in("topic")
        found.append((fields.octets(16), bool(fields.number(1)), fields.number(15, 1), fields.text()))
    return found


def check_built(built: Collection[bytes], suggested: Sequence[bytes], what: str) -> None:
    """Raise `Forged` unless each entry that an answer suggests is one that we built ourselves."""
    if not set(built).issuperset(suggested):
        raise _slipped_in(what)


def _slipped_in(what: str) -> Forged:
    return Forged(
        f"{what}: the authority's answer has an entry to be signed that nobody asked for",
        reason="slipped-in",
        hint="nothing was signed; tell the authority's operator",
    )


def topic_entries(
    draft: Draft, holder: Holder, nodes: tuple[bytes, ...] = (), replicas: int = 1, terms: Terms = Terms()
) -> list[bytes]:
    """The entries that make a drafted topic, signed by its owner, for the ledger; `terms` are those of a bound one, and
    `drafted_rules` says whom they give a right."""
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
        binding=draft.binding if isinstance(draft, BoundDraft) else None,
        terms=terms,
    )
    rules = [
        entries.grant(draft.token, principal, operations, allow=allow, host=host)
        for principal, allow, operations, host in drafted_rules(draft)
    ]
    return [create, *rules]


def grant_entries(
    authority: AuthorityClient, tenant: bytes, principal: bytes, held: AttributeSet, salt: bytes, not_after_ms: int = 0
) -> list[bytes]:
    """The entries that give `principal` these attributes of `tenant`; the salt has 32 fresh random bytes."""
    pseudonyms = authority.draft_attributes(principal, held.encode(), salt)
    if len(set(pseudonyms)) != len(held.values):
        raise _slipped_in("attributes")
    return [
        entries.grant_attribute(
            tenant, principal, pseudonym, answers.attribute_commitment(salt, principal, name, value), not_after_ms
        )
        for pseudonym, (name, value) in zip(pseudonyms, held.values, strict=True)
    ]


def withdraw_entries(authority: AuthorityClient, tenant: bytes, principal: bytes, names: list[str]) -> list[bytes]:
    """The entries that take attributes back, by full or bare names."""
    pseudonyms = authority.attribute_pseudonyms(principal, names)
    if len(pseudonyms) != len(names):
        raise _slipped_in("attributes")
    return [entries.withdraw_attribute(tenant, principal, pseudonym) for pseudonym in pseudonyms]


def drop_entries(authority: AuthorityClient, principal: bytes, names: Sequence[str]) -> list[bytes]:
    """The entries by which a holder, or the owner of its tenant, lets go of attributes, by their full names."""
    held = {one.name: one for one in authority.attributes_held(principal)}
    if missing := sorted(set(names) - held.keys()):
        raise Misuse(
            f'the principal holds no attribute "{missing[0]}"', hint="names in full, as tally attribute held shows them"
        )
    return [entries.drop_attribute(held[name].tenant, principal, held[name].pseudonym) for name in names]


def policy_entry(authority: AuthorityClient, token: bytes, group: int, formula: Formula | None, salt: bytes) -> bytes:
    """The entry that sets the policy of a column group, or lifts it; the salt has 32 fresh random bytes."""
    encoded = b"" if formula is None else formula.encode()
    version = authority.draft_policy(token, group, encoded, salt)
    commitment = answers.policy_commitment(salt, token, group, version, encoded) if encoded else b""
    return entries.topic_policy(token, group, version, commitment)
