"""The requests of the authority: each is one class. Its docstring, path and fields are the route and its description;
`answers` is what comes back, and `serve` what the authority does.

The first field of every signed request is its nonce, 16 bytes that the caller drew: sealed answers are bound to it, and
a request sent again with the same nonce is the same request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

from tallystick import wire
from tallystick.authority import codec
from tallystick.authority.answers import BoundDraft, Caller, Draft, Enrolled, Erased, Resolved, Rotation, RulesInForce
from tallystick.authority.codec import Identifier, Number, answered, items, number, octets, sealed, text
from tallystick.authority.mesh_messages import SEALED_REQUEST_BYTES, SEALED_UPDATES_BYTES
from tallystick.authority.settings import AuthorityLimits
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.policy.parse import TEXT_MAX
from tallystick.trust.permit import LAST_EPOCH, Operation
from tallystick.wire import Fields

if TYPE_CHECKING:
    from tallystick.authority.authority import Authority

A = TypeVar("A")

NONCE_BYTES = 16
GROUP_MAX = 255  # of column groups, as the ledger's contract has it
_RECIPIENTS_MAX = 64  # of one backup
_ENTRIES_MAX = 64  # that the operator writes at once
_POLL_SLACK_S = 10.0  # beyond the wait itself, for the answer to travel
_REQUEST = "request_bytes_max"

_TEXT = text(at_most=_REQUEST)  # in a list: as long as fits

_Name = Annotated[str, text()]
_FirstEpoch = Annotated[int, number("0: the current one", at_most=LAST_EPOCH)]
_After = Annotated[bytes, octets(about="empty, or what the last page ended with", at_most=16)]

ASKS: list[type[Ask[Any]]] = []  # every request, in the order of this page


@dataclass_transform(frozen_default=True)
class Ask(ABC, Generic[A]):
    """A request, a frozen dataclass. What it is answered with is a value for each of `answers`: one alone, several in
    order, or the dataclass that `answers` names."""

    path: ClassVar[str]
    answers: ClassVar[type | Mapping[str, codec.Spec]]
    signed: ClassVar[bool]
    by_operator: ClassVar[bool]

    def __init_subclass__(cls, *, path: str, signed: bool = True, by_operator: bool = False) -> None:
        cls.path, cls.signed, cls.by_operator = path, signed, by_operator
        ASKS.append(dataclass(frozen=True)(cls))

    @abstractmethod
    def serve(self, authority: Authority, caller: Caller) -> A:
        """Do what is asked; called by `Authority.answer`, which has checked that it may be and seals the answer."""

    @property
    def timeout_s(self) -> float | None:
        """How long the caller waits for the answer, where that is longer than for others."""
        return None

    @property
    def is_sealed(self) -> bool:
        return any(spec.is_sealed for spec in codec.specs(self.answers).values())

    def encode(self, nonce: bytes) -> bytes:
        return wire.encode([*([nonce] if self.signed else ()), *codec.plain(self)])

    @classmethod
    def decode(cls, body: bytes, limits: AuthorityLimits) -> tuple[Self, bytes]:
        """The request, and its nonce where it is signed."""
        found = Fields.parse(body, f"request {cls.path}", len(codec.specs(cls)) + int(cls.signed))
        nonce = found.octets(NONCE_BYTES) if cls.signed else b""
        return cls(*codec.read_all(cls, found, limits)), nonce

    def encode_answer(self, answer: A) -> bytes:
        values = codec.plain(answer)
        return wire.encode([values] if len(codec.specs(self.answers)) == 1 else values or [])

    def decode_answer(self, body: bytes) -> A:
        found = Fields.parse(body, f"answer of {self.path}", len(codec.specs(self.answers)))
        values = codec.read_all(self.answers, found)
        make: Any = self.answers if isinstance(self.answers, type) else _one_or_all
        answer: A = make(*values)
        return answer


def _one_or_all(*values: Any) -> Any:
    return values[0] if len(values) == 1 else values


# --- joining, and keys ---


class Enrol(Ask[bytes], path="/v1/enrol", signed=False):
    """Begin to enrol: show the invitation and the possession of the signing key."""

    answers = answered(challenge=octets(about="sealed to the sealing key"))
    invite: Annotated[str, text("the invitation", at_most=64)]
    name: Annotated[str, text("kept by the authority alone")]
    signing_key: Annotated[bytes, octets(about="Ed25519, 32 bytes")]
    sealing_key: Annotated[bytes, octets(about="X25519 and ML-KEM-768, 1,216 bytes")]
    signature: Annotated[bytes, octets(about='context "tallystick enrol 1"')]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.enrolment.begin(self.invite, self.name, self.signing_key, self.sealing_key, self.signature)


class ConfirmEnrolment(Ask[Enrolled], path="/v1/enrol/confirm", signed=False):
    """Show the opened challenge, and take the certificate home."""

    answers = Enrolled
    principal: Annotated[bytes, octets(about="16 bytes")]
    challenge: Annotated[bytes, octets(about="32 bytes, opened")]

    def serve(self, authority: Authority, caller: Caller) -> Enrolled:
        authority.settle(authority.enrolment.prepare(self.principal, self.challenge))
        return authority.enrolment.finish(self.principal)


class Invite(Ask[bytes], path="/v1/invites"):
    """An invitation to the caller's tenant."""

    answers = answered(invite=sealed())

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.enrolment.invite(caller).encode()


class Revoke(Ask[None], path="/v1/revoke"):
    """Revoke a principal of the caller's tenant."""

    answers = answered()
    principal: Identifier

    def serve(self, authority: Authority, caller: Caller) -> None:
        authority.settle(authority.subjects.revoke(caller, self.principal))
        authority.work()


class Rekey(Ask[tuple[bytes, bytes]], path="/v1/rekey"):
    """Replace the caller's keys; its permits end. First without a challenge, then with the opened one."""

    answers = answered(
        challenge=octets(about="sealed to the new sealing key, or empty"),
        certificate=octets(about="of the new keys, or empty"),
    )
    signing_key: Annotated[bytes, octets(32, "the new one; Ed25519, 32 bytes")]
    sealing_key: Annotated[bytes, octets(about="the new one; X25519 and ML-KEM-768, 1,216 bytes")]
    signature: Annotated[bytes, octets(64, 'by the new signing key, context "tallystick rekey 1"')]
    challenge: Annotated[bytes, octets(about="empty, or 32 bytes, opened")]

    def serve(self, authority: Authority, caller: Caller) -> tuple[bytes, bytes]:
        enrolment, keys = authority.enrolment, (self.signing_key, self.sealing_key)
        sealed = enrolment.begin_rekey(caller, *keys, self.signature)
        if sealed is not None and not self.challenge:
            return sealed, b""
        if sealed is not None:
            authority.settle(enrolment.prepare_rekey(caller, *keys, self.challenge))
            authority.work()  # the permits of the old key end
        return b"", enrolment.finish_rekey(caller, self.signing_key)


# --- topics and rights ---


class DraftTopic(Ask[Draft], path="/v1/topics"):
    """Draft a topic: the owner signs and submits the entries itself."""

    answers = Draft
    name: _Name
    schema: Annotated[bytes, octets(about="version 1", at_most="schema_bytes_max")]
    partitions: Number
    flags: Annotated[int, number("1 erasable, 2 padded")]

    def serve(self, authority: Authority, caller: Caller) -> Draft:
        return authority.topics.create(caller, self.name, self.schema, self.partitions, self.flags)


class BindTopic(Ask[BoundDraft], path="/v1/topics/bindings"):
    """Draft a topic whose token is bound to the tenant; asked again it answers the same."""

    answers = BoundDraft
    name: _Name
    schema: Annotated[bytes, octets(about="version 1", at_most="schema_bytes_max")]
    partitions: Number
    flags: Annotated[int, number("1 erasable, 2 padded, 4 content may be matched in the clear; added")]

    def serve(self, authority: Authority, caller: Caller) -> BoundDraft:
        return authority.topics.bind(caller, self.name, self.schema, self.partitions, self.flags)


class ProposeSchema(Ask[tuple[int, bytes]], path="/v1/schemas"):
    """Hand in the next version of a topic's schema: the owner signs and submits the entry itself."""

    answers = answered(version=number(), schema_hash=octets(32))
    token: Identifier
    schema: Annotated[bytes, octets(at_most="schema_bytes_max")]

    def serve(self, authority: Authority, caller: Caller) -> tuple[int, bytes]:
        return authority.topics.propose_schema(caller, self.token, self.schema)


class ReadSchemas(Ask[bytes], path="/v1/topics/schemas"):
    """Every version of a topic's schema, for who owns the topic or may describe it."""

    answers = answered(schemas=sealed("wire [text, …], {}"))
    token: Identifier

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return wire.encode(authority.topics.schemas(authority.topics.require_described(caller, self.token)))


class AskLabels(Ask[bytes], path="/v1/topics/labels"):
    """The code of a topic's labels, for who may describe it; its owner declares another."""

    answers = answered(code=sealed("that counts, or empty; {}"))
    token: Identifier
    code: Annotated[bytes, octets(about="empty: only show it")]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.labels.declare(caller, self.token, self.code)


class ResolveRights(Ask[Resolved], path="/v1/rights/resolve"):
    """Expand a pattern over the caller's topics into the entries still to be signed."""

    answers = Resolved
    pattern: Annotated[str, text("a name, or the beginning of one and *")]
    principal: Identifier
    allow: Annotated[int, number("1 allow, 0 deny", at_most=1)]
    operations: Annotated[int, number("1 read, 2 write, 4 describe, 8 delete, added", at_most=15, at_least=1)]
    host: Annotated[str, text("* or one host", at_most=64)]
    mode: Annotated[int, number("0 show, 1 remember for topics to come, 2 forget and withdraw", at_most=2)]

    def serve(self, authority: Authority, caller: Caller) -> Resolved:
        rule = self.principal, bool(self.allow), self.operations, self.host, self.mode
        return authority.topics.resolve(caller, self.pattern, *rule)


# --- permits and their keys ---


class AskPermit(Ask[bytes], path="/v1/permits"):
    """A permit to subscribe or advertise, with its keys."""

    answers = answered(grant=sealed())
    operation: Annotated[int, number("1 subscribe, 2 advertise", at_most=2, at_least=1)]
    name: Annotated[str, text("in the caller's tenant; empty: by token")]
    token: Annotated[bytes, octets(about="16 bytes; empty: by name", at_most=16)]
    first_epoch: _FirstEpoch
    interest: Annotated[str, text("to subscribe: what of the content is wanted; empty: everything", at_most=TEXT_MAX)]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        if bool(self.name) == bool(self.token) or len(self.token) not in (0, 16):
            raise Malformed("permit: either a topic's name or its token of 16 bytes expected")
        permits = authority.permits
        wanted = Operation(self.operation), self.name or self.token, self.first_epoch, self.interest
        try:
            identifier, place = permits.prepare(caller, *wanted)
        except Refused as error:
            if error.reason not in ("unknown-topic", "no-right"):
                raise
            authority.work()  # the topic, or the right, may be on the ledger for a moment only: look before saying no
            identifier, place = permits.prepare(caller, *wanted)
        try:
            authority.settle(place)
        except Refused:
            permits.abandon(caller, identifier)
            raise
        return permits.grant(caller, identifier)


class AskKeys(Ask[bytes | None], path="/v1/keys"):
    """What changed about a grant; waits for news."""

    answers = answered(update=sealed("{}; empty: nothing new"))
    permit: Annotated[bytes, octets(16, "its identifier, 16 bytes")]
    version: Annotated[int, number("of the last grant or update")]
    wait_ms: Number

    @property
    def timeout_s(self) -> float:
        return self.wait_ms / 1000 + _POLL_SLACK_S

    def serve(self, authority: Authority, caller: Caller) -> bytes | None:
        return authority.permits.update(caller, self.permit, self.version)


class AskMesh(Ask[bytes], path="/v1/mesh"):
    """What a member of the mesh needs: a topic's mesh keys, certificates of its publisher's keys and of its node."""

    answers = answered(answer=sealed("of one size, as mesh.md has it; {}"))
    request: Annotated[bytes, octets(SEALED_REQUEST_BYTES, "as mesh.md has it; sealed to the authority, of one size")]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.mesh.answer(caller, self.request, authority.work)


class AskMeshUpdates(Ask[bytes], path="/v1/mesh/updates"):
    """Mesh keys of coming epochs for all members of a topic, each sealed to one of them, for the owner to publish."""

    answers = answered(page=sealed("of one size, as mesh.md has it; {}"))
    request: Annotated[bytes, octets(SEALED_UPDATES_BYTES, "as mesh.md has it; sealed to the authority, of one size")]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.mesh.updates(caller, self.request)


class Undo(Ask[bytes], path="/v1/undo"):
    """Take a permit back."""

    answers = answered(order=octets(about="the signed undo order, for the guards"))
    permit: Annotated[bytes, octets(about="the whole permit")]
    undo_token: Annotated[bytes, octets(32)]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        order, place = authority.permits.undo(caller, self.permit, self.undo_token)
        authority.settle(place)
        return order


class Erase(Ask[Erased], path="/v1/erase"):
    """Destroy erasure keys of a publisher on an erasable topic."""

    answers = Erased
    token: Identifier
    publisher: Identifier
    periods: Annotated[tuple[int, ...], items(number(), "empty: all", at_most="periods_max")]

    def serve(self, authority: Authority, caller: Caller) -> Erased:
        erased, place = authority.erasure.destroy(caller, self.token, self.publisher, self.periods)
        authority.settle(place)
        return erased


class Rotate(Ask[Rotation], path="/v1/rotate"):
    """Let a topic's next epoch begin."""

    answers = Rotation
    token: Identifier

    def serve(self, authority: Authority, caller: Caller) -> Rotation:
        authority.topics.require_owned(caller, self.token)
        with authority.core.store.transaction():
            authority.epochs.rekey(self.token)
        authority.settle(None)
        now_ms, announced = authority.core.now_ms, authority.epochs.announced(self.token)
        for epoch in announced:
            if epoch.begins_ms > now_ms:
                return Rotation(epoch.number, epoch.begins_ms)
        raise Unavailable("the topic has no epoch prepared", retry_after_s=1.0)


# --- attributes and policies ---


class DeclareAttributes(Ask[None], path="/v1/attributes/declare"):
    """Declare the attribute space of the caller's tenant; by the tenant's owner."""

    answers = answered()
    space: Annotated[bytes, octets(about="as policy-locks.md has it", at_most=_REQUEST)]

    def serve(self, authority: Authority, caller: Caller) -> None:
        authority.spaces.declare(caller, self.space)
        authority.work()  # the first epochs are announced


class ReadSpace(Ask[bytes], path="/v1/attributes/space"):
    """The attribute space of the caller's tenant."""

    answers = answered(space=sealed())

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.spaces.require(authority.subjects.require_caller(caller).tenant).encode()


class DraftAttributes(Ask[tuple[bytes, ...]], path="/v1/attributes/draft"):
    """Draft attributes of a principal: the tenant's owner signs and submits the entries itself."""

    answers = answered(pseudonyms=items(octets(), "in the order of the set"))
    principal: Identifier
    attributes: Annotated[bytes, octets(about="an attribute set, as policy-locks.md has it", at_most=_REQUEST)]
    salt: Annotated[bytes, octets(32, "32 bytes, of the commitments")]

    def serve(self, authority: Authority, caller: Caller) -> tuple[bytes, ...]:
        return authority.attributes.draft(caller, self.principal, self.attributes, self.salt)


class AskPseudonyms(Ask[tuple[bytes, ...]], path="/v1/attributes/pseudonyms"):
    """What stands on the ledger for attributes of a principal; by the tenant's owner, to withdraw them."""

    answers = answered(pseudonyms=items(octets(), "in the order of the names"))
    principal: Identifier
    names: Annotated[
        tuple[str, ...], items(_TEXT, "in full, or bare within the tenant's own space", at_most="attributes_max")
    ]

    def serve(self, authority: Authority, caller: Caller) -> tuple[bytes, ...]:
        return authority.attributes.pseudonyms(caller, self.principal, self.names)


class ListAttributes(Ask[bytes], path="/v1/attributes/list"):
    """What the caller's tenant granted, by its owner; what the caller holds itself, by anybody else."""

    answers = answered(attributes=sealed("wire [[[principal, name, [value, …], not after ms], …], after], {}"))
    principal: Annotated[bytes, octets(about="16 bytes; empty: all", at_most=16)]
    after: _After

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return wire.encode(codec.plain(authority.attributes.listed(caller, self.principal, self.after)))


class ListHeld(Ask[bytes], path="/v1/attributes/held"):
    """What a principal holds, whoever granted it; by itself or the owner of its tenant, to drop it."""

    answers = answered(held=sealed("wire [[tenant, pseudonym, name, [value, …], not after ms], …], {}"))
    principal: Identifier

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return wire.encode(codec.plain(authority.attributes.holding(caller, self.principal)))


class AskAttributeKey(Ask[bytes], path="/v1/attributes/key"):
    """The caller's attribute key, or what takes the one it has to further epochs."""

    answers = answered(key=sealed("wire [1, identifier, key, [[epoch, part], …], current epoch], {}"))
    known: Annotated[bytes, octets(about="the identifier of the key that the caller has, or empty", at_most=16)]
    first_epoch: _FirstEpoch

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.attributes.key(caller, self.known, self.first_epoch).encode()


class DraftPolicy(Ask[int], path="/v1/topics/policy"):
    """Draft the next policy of a column group: the topic's owner signs and submits the entry itself."""

    answers = answered(version=number("to write on the ledger"))
    token: Identifier
    group: Annotated[int, number(at_most=GROUP_MAX)]
    formula: Annotated[bytes, octets(about="as policy-locks.md has it; empty: to lift the policy", at_most=_REQUEST)]
    salt: Annotated[bytes, octets(32, "32 bytes, of the commitment")]

    def serve(self, authority: Authority, caller: Caller) -> int:
        return authority.policies.draft(caller, self.token, self.group, self.formula, self.salt)


class ReadPolicies(Ask[bytes], path="/v1/topics/policies"):
    """The policies of a topic, to its owner."""

    answers = answered(policies=sealed("wire [[group, version, formula, salt; both empty where lost], …], {}"))
    token: Identifier

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return wire.encode(codec.plain(authority.policies.listed(caller, self.token)))


class ReadNames(Ask[bytes], path="/v1/names"):
    """The names behind tokens and identifiers, as far as the caller may know them."""

    answers = answered(names=sealed("wire [1, [[token, name], …], [[principal, name], …], after], {}"))
    after: _After

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.subjects.names(caller, self.after).encode()


# --- the operator's ---


class CreateTenant(Ask[str], path="/v1/operator/tenants", by_operator=True):
    """A new tenant; by the operator."""

    answers = answered(invite=text("for the principal that will own the tenant"))
    name: _Name

    def serve(self, authority: Authority, caller: Caller) -> str:
        return authority.enrolment.create_tenant(self.name)


class ListTenants(Ask[tuple[str, ...]], path="/v1/operator/tenants/list", by_operator=True):
    """All tenants; by the operator."""

    answers = answered(names=items(_TEXT))

    def serve(self, authority: Authority, caller: Caller) -> tuple[str, ...]:
        return authority.enrolment.tenants()


class InviteTo(Ask[str], path="/v1/operator/invites", by_operator=True):
    """An invitation to any tenant; by the operator."""

    answers = answered(invite=text())
    tenant: Annotated[str, text("its name")]
    owns: Annotated[int, number("1: the principal will own the tenant", at_most=1)]

    def serve(self, authority: Authority, caller: Caller) -> str:
        return authority.enrolment.invite_to(self.tenant, owns=bool(self.owns))


class BeginBackup(Ask[tuple[bytes, int]], path="/v1/operator/backup", by_operator=True):
    """Back up the whole store, encrypted, to be fetched in parts; by the operator."""

    answers = answered(identifier=octets(16), size=number("of the age file, in bytes"))
    timeout_s = 600.0  # a store of gigabytes is copied and encrypted before the answer comes
    recipients: Annotated[tuple[str, ...], items(_TEXT, "age recipients, as text", at_most=_RECIPIENTS_MAX)]

    def serve(self, authority: Authority, caller: Caller) -> tuple[bytes, int]:
        return authority.begin_backup(list(self.recipients))


class ReadBackup(Ask[bytes], path="/v1/operator/backup/part", by_operator=True):
    """A part of the newest backup; with the last one the authority forgets it; by the operator."""

    answers = answered(part=octets(about="of the age file, from the offset on", at_most=codec.SEALED_BYTES_MAX))
    identifier: Identifier
    offset: Annotated[int, number("in the age file")]

    def serve(self, authority: Authority, caller: Caller) -> bytes:
        return authority.backup_part(self.identifier, self.offset)


class ReadRules(Ask[RulesInForce], path="/v1/operator/rules", by_operator=True):
    """The ledger's settings and the versions of its contracts; by the operator."""

    answers = RulesInForce

    def serve(self, authority: Authority, caller: Caller) -> RulesInForce:
        return authority.rules()


class ChangeRules(Ask[None], path="/v1/operator/entries", by_operator=True):
    """Write entries that change the ledger's rules, in one transaction that the authority signs; by the operator."""

    answers = answered()
    entries: Annotated[
        tuple[bytes, ...], items(octets(), "settings, activations, pardons, hosts, overlays", at_most=_ENTRIES_MAX)
    ]

    def serve(self, authority: Authority, caller: Caller) -> None:
        authority.change_rules(self.entries)
