"""The requests of the authority: each is one dataclass. Its docstring, path and fields are the route and its
description; `answers` is what comes back, and `serve` what the authority does.

The first field of every signed request is its nonce, 16 bytes that the caller drew: sealed answers are bound to it, and
a request sent again with the same nonce is the same request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tallystick import wire
from tallystick.authority import codec
from tallystick.authority.answers import Caller
from tallystick.authority.codec import answered, items, number, octets, pairs, sealed, text
from tallystick.authority.settings import AuthorityLimits
from tallystick.errors import Malformed
from tallystick.policy.parse import TEXT_MAX
from tallystick.trust.certificate import BYTES_MAX as CERTIFICATE_BYTES_MAX
from tallystick.trust.permit import LAST_EPOCH, Operation
from tallystick.wire import Fields

if TYPE_CHECKING:
    from tallystick.authority.authority import Authority

NONCE_BYTES = 16
GROUP_MAX = 255  # of column groups, as the ledger's contract has it
_RECIPIENTS_MAX = 64  # of one backup
_REQUEST = "request_bytes_max"


class Ask:
    """A request. What it is answered with is a value for each of `answers`: one alone, several in order."""

    path: ClassVar[str]
    answers: ClassVar[Mapping[str, Any]]
    signed: ClassVar[bool] = True
    waits: ClassVar[bool] = False  # a long poll; its last field is the wait in milliseconds

    def serve(self, authority: Authority, caller: Caller) -> Any:
        raise NotImplementedError

    def encode(self, nonce: bytes) -> bytes:
        return wire.encode([*([nonce] if self.signed else ()), *codec.listed(self, codec.specs(self))])

    @classmethod
    def decode(cls, body: bytes, limits: AuthorityLimits) -> tuple[Self, bytes]:
        """The request, and its nonce where it is signed."""
        found = Fields.parse(body, f"request {cls.path}", len(codec.specs(cls)) + int(cls.signed))
        nonce = found.octets(NONCE_BYTES) if cls.signed else b""
        return cls(*codec.read(codec.specs(cls), found, limits)), nonce

    def encode_answer(self, answer: Any) -> bytes:
        return wire.encode(codec.listed(answer, self.answers))

    def decode_answer(self, body: bytes) -> Any:
        found = Fields.parse(body, f"answer of {self.path}", len(self.answers))
        values = codec.read(self.answers, found, AuthorityLimits())
        return values[0] if len(values) == 1 else values


# --- joining, and keys ---


@dataclass(frozen=True)
class Enrol(Ask):
    """Begin to enrol: show the invitation and the possession of the signing key."""

    path = "/v1/enrol"
    answers = answered(challenge=octets(about="sealed to the sealing key"))
    signed = False
    invite: str = text("the invitation", at_most=64)
    name: str = text("kept by the authority alone")
    signing_key: bytes = octets(about="Ed25519, 32 bytes")
    sealing_key: bytes = octets(about="X25519 and ML-KEM-768, 1,216 bytes")
    signature: bytes = octets(about='context "tallystick enrol 1"')

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.enrol(self.invite, self.name, self.signing_key, self.sealing_key, self.signature)


@dataclass(frozen=True)
class ConfirmEnrolment(Ask):
    """Show the opened challenge, and take the certificate home."""

    path = "/v1/enrol/confirm"
    answers = answered(
        certificate=octets(),
        authority=octets(about="the authority's certificate", at_most=CERTIFICATE_BYTES_MAX),
        nodes=items(bytes, "certificates of the nodes"),
        trust=text("trust.json", at_most=1 << 18),
    )
    signed = False
    principal: bytes = octets(about="16 bytes")
    challenge: bytes = octets(about="32 bytes, opened")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.confirm_enrolment(self.principal, self.challenge)


@dataclass(frozen=True)
class Invite(Ask):
    """An invitation to the caller's tenant."""

    path = "/v1/invites"
    answers = answered(invite=sealed())

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.invite(caller)


@dataclass(frozen=True)
class Revoke(Ask):
    """Revoke a principal of the caller's tenant."""

    path = "/v1/revoke"
    answers = answered()
    principal: bytes = octets(16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.revoke(caller, self.principal)


@dataclass(frozen=True)
class Rekey(Ask):
    """Replace the caller's keys; its permits end. First without a challenge, then with the opened one."""

    path = "/v1/rekey"
    answers = answered(
        challenge=octets(about="sealed to the new sealing key, or empty"),
        certificate=octets(about="of the new keys, or empty"),
    )
    signing_key: bytes = octets(32, "the new one; Ed25519, 32 bytes")
    sealing_key: bytes = octets(about="the new one; X25519 and ML-KEM-768, 1,216 bytes")
    signature: bytes = octets(64, 'by the new signing key, context "tallystick rekey 1"')
    challenge: bytes = octets(about="empty, or 32 bytes, opened")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.rekey(caller, self.signing_key, self.sealing_key, self.signature, self.challenge)


# --- topics and rights ---


@dataclass(frozen=True)
class DraftTopic(Ask):
    """Draft a topic: the owner signs and submits the entries itself."""

    path = "/v1/topics"
    answers = answered(
        token=octets(16),
        tenant=octets(16),
        schema_hash=octets(32),
        partitions=number(),
        flags=number(),
        nodes=items(bytes, "identifiers of the nodes"),
        public=octets(about="public half of epoch 1; empty where the topic exists"),
        rights=items(bytes, "grant entries of remembered patterns"),
    )
    name: str = text()
    schema: bytes = octets(about="version 1", at_most="schema_bytes_max")
    partitions: int = number()
    flags: int = number("1 erasable, 2 padded")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.create_topic(caller, self.name, self.schema, self.partitions, self.flags)


@dataclass(frozen=True)
class ProposeSchema(Ask):
    """Hand in the next version of a topic's schema: the owner signs and submits the entry itself."""

    path = "/v1/schemas"
    answers = answered(version=number(), schema_hash=octets(32))
    token: bytes = octets(16)
    schema: bytes = octets(at_most="schema_bytes_max")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.propose_schema(caller, self.token, self.schema)


@dataclass(frozen=True)
class ReadSchemas(Ask):
    """Every version of a topic's schema, for who owns the topic or may describe it."""

    path = "/v1/topics/schemas"
    answers = answered(schemas=sealed("wire [text, …], {}"))
    token: bytes = octets(16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.schemas(caller, self.token)


@dataclass(frozen=True)
class AskLabels(Ask):
    """The code of a topic's labels, for who may describe it; its owner declares another."""

    path = "/v1/topics/labels"
    answers = answered(code=sealed("that counts, or empty; {}"))
    token: bytes = octets(16)
    code: bytes = octets(about="empty: only show it")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.labels(caller, self.token, self.code)


@dataclass(frozen=True)
class ResolveRights(Ask):
    """Expand a pattern over the caller's topics into the entries still to be signed."""

    path = "/v1/rights/resolve"
    answers = answered(tokens=items(bytes), entries=items(bytes))
    pattern: str = text("a name, or the beginning of one and *")
    principal: bytes = octets(16)
    allow: int = number("1 allow, 0 deny", at_most=1)
    operations: int = number("1 read, 2 write, 4 describe, 8 delete, added", at_most=15, at_least=1)
    host: str = text("* or one host", at_most=64)
    mode: int = number("0 show, 1 remember for topics to come, 2 forget and withdraw", at_most=2)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        rule = self.principal, bool(self.allow), self.operations, self.host, self.mode
        return authority.resolve_rights(caller, self.pattern, *rule)


# --- permits and their keys ---


@dataclass(frozen=True)
class AskPermit(Ask):
    """A permit to subscribe or advertise, with its keys."""

    path = "/v1/permits"
    answers = answered(grant=sealed())
    operation: int = number("1 subscribe, 2 advertise", at_most=2, at_least=1)
    name: str = text("in the caller's tenant; empty: by token")
    token: bytes = octets(about="16 bytes; empty: by name", at_most=16)
    first_epoch: int = number("0: the current one", at_most=LAST_EPOCH)
    interest: str = text("to subscribe: what of the content is wanted; empty: everything", at_most=TEXT_MAX)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        if bool(self.name) == bool(self.token) or len(self.token) not in (0, 16):
            raise Malformed("permit: either a topic's name or its token of 16 bytes expected")
        wanted = Operation(self.operation), self.name or self.token, self.first_epoch, self.interest
        return authority.permit(caller, *wanted)


@dataclass(frozen=True)
class AskKeys(Ask):
    """What changed about a grant; waits for news."""

    path = "/v1/keys"
    answers = answered(update=sealed("{}; empty: nothing new"))
    waits = True
    permit: bytes = octets(16, "its identifier, 16 bytes")
    version: int = number("of the last grant or update")
    wait_ms: int = number()

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.keys(caller, self.permit, self.version) or b""


@dataclass(frozen=True)
class Undo(Ask):
    """Take a permit back."""

    path = "/v1/undo"
    answers = answered(order=octets(about="the signed undo order, for the guards"))
    permit: bytes = octets(about="the whole permit")
    undo_token: bytes = octets(32)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.undo(caller, self.permit, self.undo_token)


@dataclass(frozen=True)
class Erase(Ask):
    """Destroy erasure keys of a publisher on an erasable topic."""

    path = "/v1/erase"
    answers = answered(
        periods=pairs("[publisher, period] destroyed"),
        holders=items(bytes, "principals that were handed a key"),
        backups=items(bytes, "identifiers of backups that hold a key"),
    )
    token: bytes = octets(16)
    publisher: bytes = octets(16)
    periods: tuple[int, ...] = items(int, "empty: all", at_most="periods_max")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.erase(caller, self.token, self.publisher, list(self.periods))


@dataclass(frozen=True)
class Rotate(Ask):
    """Let a topic's next epoch begin."""

    path = "/v1/rotate"
    answers = answered(epoch=number(), begins_ms=number())
    token: bytes = octets(16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.rotate(caller, self.token)


# --- attributes and policies ---


@dataclass(frozen=True)
class DeclareAttributes(Ask):
    """Declare the attribute space of the caller's tenant; by the tenant's owner."""

    path = "/v1/attributes/declare"
    answers = answered()
    space: bytes = octets(about="as policy-locks.md has it", at_most=_REQUEST)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.declare_attributes(caller, self.space)


@dataclass(frozen=True)
class ReadSpace(Ask):
    """The attribute space of the caller's tenant."""

    path = "/v1/attributes/space"
    answers = answered(space=sealed())

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.attribute_space(caller)


@dataclass(frozen=True)
class DraftAttributes(Ask):
    """Draft attributes of a principal: the tenant's owner signs and submits the entries itself."""

    path = "/v1/attributes/draft"
    answers = answered(pseudonyms=items(bytes, "in the order of the set"))
    principal: bytes = octets(16)
    attributes: bytes = octets(about="an attribute set, as policy-locks.md has it", at_most=_REQUEST)
    salt: bytes = octets(32, "32 bytes, of the commitments")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.draft_attributes(caller, self.principal, self.attributes, self.salt)


@dataclass(frozen=True)
class AskPseudonyms(Ask):
    """What stands on the ledger for attributes of a principal; by the tenant's owner, to withdraw them."""

    path = "/v1/attributes/pseudonyms"
    answers = answered(pseudonyms=items(bytes, "in the order of the names"))
    principal: bytes = octets(16)
    names: tuple[str, ...] = items(str, "in full, or bare within the tenant's own space", at_most="attributes_max")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.attribute_pseudonyms(caller, self.principal, list(self.names))


@dataclass(frozen=True)
class ListAttributes(Ask):
    """What the caller's tenant granted, by its owner; what the caller holds itself, by anybody else."""

    path = "/v1/attributes/list"
    answers = answered(attributes=sealed("wire [[[principal, name, [value, …], not after ms], …], after], {}"))
    principal: bytes = octets(about="16 bytes; empty: all", at_most=16)
    after: bytes = octets(about="empty, or what the last page ended with", at_most=16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.attributes(caller, self.principal, self.after)


@dataclass(frozen=True)
class AskAttributeKey(Ask):
    """The caller's attribute key, or what takes the one it has to further epochs."""

    path = "/v1/attributes/key"
    answers = answered(key=sealed("wire [1, identifier, key, [[epoch, part], …], current epoch], {}"))
    known: bytes = octets(about="the identifier of the key that the caller has, or empty", at_most=16)
    first_epoch: int = number("0: the current one", at_most=LAST_EPOCH)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.attribute_key(caller, self.known, self.first_epoch)


@dataclass(frozen=True)
class DraftPolicy(Ask):
    """Draft the next policy of a column group: the topic's owner signs and submits the entry itself."""

    path = "/v1/topics/policy"
    answers = answered(version=number("to write on the ledger"))
    token: bytes = octets(16)
    group: int = number(at_most=GROUP_MAX)
    formula: bytes = octets(about="as policy-locks.md has it; empty: to lift the policy", at_most=_REQUEST)
    salt: bytes = octets(32, "32 bytes, of the commitment")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.draft_policy(caller, self.token, self.group, self.formula, self.salt)


@dataclass(frozen=True)
class ReadPolicies(Ask):
    """The policies of a topic, to its owner."""

    path = "/v1/topics/policies"
    answers = answered(policies=sealed("wire [[group, version, formula or empty where lost], …], {}"))
    token: bytes = octets(16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.topic_policies(caller, self.token)


@dataclass(frozen=True)
class ReadNames(Ask):
    """The names behind tokens and identifiers, as far as the caller may know them."""

    path = "/v1/names"
    answers = answered(names=sealed("wire [1, [[token, name], …], [[principal, name], …], after], {}"))
    after: bytes = octets(about="empty, or what the last page ended with", at_most=16)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        return authority.names(caller, self.after)


# --- the operator's ---


@dataclass(frozen=True)
class CreateTenant(Ask):
    """A new tenant; by the operator."""

    path = "/v1/operator/tenants"
    answers = answered(invite=text("for the principal that will own the tenant"))
    name: str = text()

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.require_operator(caller)
        return authority.create_tenant(self.name)


@dataclass(frozen=True)
class ListTenants(Ask):
    """All tenants; by the operator."""

    path = "/v1/operator/tenants/list"
    answers = answered(names=items(str))

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.require_operator(caller)
        return authority.tenants()


@dataclass(frozen=True)
class InviteTo(Ask):
    """An invitation to any tenant; by the operator."""

    path = "/v1/operator/invites"
    answers = answered(invite=text())
    tenant: str = text("its name")
    owns: int = number("1: the principal will own the tenant", at_most=1)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.require_operator(caller)
        return authority.invite_to(self.tenant, owns=bool(self.owns))


@dataclass(frozen=True)
class BeginBackup(Ask):
    """Back up the whole store, encrypted, to be fetched in parts; by the operator."""

    path = "/v1/operator/backup"
    answers = answered(identifier=octets(16), size=number("of the age file, in bytes"))
    recipients: tuple[str, ...] = items(str, "age recipients, as text", at_most=_RECIPIENTS_MAX)

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.require_operator(caller)
        return authority.begin_backup(list(self.recipients))


@dataclass(frozen=True)
class ReadBackup(Ask):
    """A part of the newest backup; with the last one the authority forgets it; by the operator."""

    path = "/v1/operator/backup/part"
    answers = answered(part=octets(about="of the age file, from the offset on", at_most=codec.SEALED_BYTES_MAX))
    identifier: bytes = octets(16)
    offset: int = number("in the age file")

    def serve(self, authority: Authority, caller: Caller) -> Any:
        authority.require_operator(caller)
        return authority.backup_part(self.identifier, self.offset)


ASKS: tuple[type[Ask], ...] = (
    *(Enrol, ConfirmEnrolment, Invite, Revoke, Rekey, DraftTopic, ProposeSchema, ReadSchemas, AskLabels, ResolveRights),
    *(AskPermit, AskKeys, Undo, Erase, Rotate, DeclareAttributes, ReadSpace, DraftAttributes, AskPseudonyms),
    *(ListAttributes, AskAttributeKey, DraftPolicy, ReadPolicies, ReadNames, CreateTenant, ListTenants, InviteTo),
    *(BeginBackup, ReadBackup),
)
