"""Topics: their names, schemas, and the patterns by which rights are granted.

Names and schema texts stay here: node and ledger know tokens and hashes. A topic is the owner's act: the authority
derives the token, keeps the schema and a first key pair as a *draft*, and says which entries to sign; the topic is
live when the ledger shows it. Several principals may draft one name; whoever reaches the ledger first has it.

Threat: finding out which topics exist. A topic that the caller may not describe is answered exactly like one that
does not exist. (Within a tenant a name that is taken cannot be taken again, and that can be noticed.)
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from tallystick.authority.answers import FORGET, REMEMBER, SHOW, BoundDraft, Caller, Draft, Resolved
from tallystick.authority.core import Core
from tallystick.authority.epochs import Epochs
from tallystick.authority.subjects import Subjects
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import access, topics
from tallystick.ledger.contracts.state import State
from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED, SCHEMAS, TOPICS, TopicRow, bound_token
from tallystick.record.schema import Schema, check_successor
from tallystick.trust.certificate import ALL_TENANTS, Certificate
from tallystick.trust.permit import Operation
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.trust.right import Right
from tallystick.wire import check_no_identifier

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PATTERN = re.compile(r"[A-Za-z0-9._/-]*\*?")

NEEDED = {Operation.SUBSCRIBE: Right.READ | Right.DESCRIBE, Operation.ADVERTISE: Right.WRITE | Right.DESCRIBE}


@dataclass(frozen=True)
class TopicRecord:
    token: bytes
    tenant: bytes
    owner: bytes
    name: str
    partitions: int
    flags: int
    schema_version: int
    schema_hash: bytes
    closed: int
    due_ms: int
    version: int

    @property
    def erasable(self) -> bool:
        return bool(self.flags & ERASABLE)


class Topics:
    def __init__(self, core: Core, subjects: Subjects, epochs: Epochs) -> None:
        self._core, self._store, self._subjects, self._epochs = core, core.store, subjects, epochs

    def find(self, token: bytes) -> TopicRecord | None:
        row = self._store.row("SELECT * FROM topics WHERE token = ?", (token,))
        return None if row is None else TopicRecord(*row)

    def token(self, tenant: bytes, name: str) -> bytes:
        """The token that this name of a tenant leads to. A topic of version 1 is found if it is the tenant's own: who
        registered its token elsewhere has not got the name with it. Both tokens are derived for every name, so that
        it takes the same work whether there is such a topic or not."""
        first = self._first_token(tenant, name)
        bound = bound_token(self._core.keys.certificate.subject, self._core.keys.master.word(tenant, name))
        found = self.find(first)
        return first if found is not None and found.tenant == tenant else bound

    def _first_token(self, tenant: bytes, name: str) -> bytes:
        return self._core.keys.master.token(tenant, name)

    def require_owned(self, caller: Caller, token: bytes) -> TopicRecord:
        """The topic, if the caller owns it or its tenant. To others it does not exist."""
        certificate, topic = self._subjects.require_caller(caller), self.find(token)
        if topic is None or topic.tenant != certificate.tenant:
            raise unknown(token)
        if topic.owner != certificate.subject and not self._subjects.is_admin(certificate):
            raise unknown(token)
        return topic

    def require_described(self, caller: Caller, token: bytes) -> TopicRecord:
        """The topic, if the caller owns it or may describe it. To others it does not exist."""
        certificate, topic = self._subjects.require_caller(caller), self.find(token)
        if topic is not None and self.granted(certificate.subject, token) & Right.DESCRIBE:
            return topic
        return self.require_owned(caller, token)

    def require_right(self, granted: int, operation: Operation, token: bytes, asked: str | bytes) -> TopicRecord:
        """The topic, if what the ledger granted is enough; `asked` is how the caller named it."""
        found = self.find(token)
        if found is None or not granted & Right.DESCRIBE:
            raise unknown(asked)
        if granted & NEEDED[operation] != NEEDED[operation]:
            verb, right = ("publish", "write") if operation is Operation.ADVERTISE else ("subscribe", "read")
            raise Refused(
                f"no right to {verb} on topic {token.hex()}",
                reason="no-right",
                hint=f"the topic's owner grants it: tally right grant TOPIC PRINCIPAL {right}",
            )
        return found

    # --- requests ---

    def create(self, caller: Caller, name: str, schema: bytes, partitions: int, flags: int) -> Draft:
        """Draft a topic of version 1, as long as the ledger takes them."""
        certificate = self._subjects.require_caller(caller)
        self._check_new(name, partitions, flags, ERASABLE | PADDED)
        return self._create(certificate, self._first_token(certificate.tenant, name), name, schema, partitions, flags)

    def bind(self, caller: Caller, name: str, schema: bytes, partitions: int, flags: int) -> BoundDraft:
        """Draft a topic, and bind its token to the caller's tenant."""
        certificate, keys = self._subjects.require_caller(caller), self._core.keys
        self._check_new(name, partitions, flags, ERASABLE | PADDED | CLEAR)
        token = self.token(certificate.tenant, name)  # where a topic of version 1 has the name, it exists already
        draft = self._create(certificate, token, name, schema, partitions, flags)
        word = keys.master.word(certificate.tenant, name)
        authority = keys.certificate
        binding = entries.bind_topic(authority.instance, certificate.tenant, authority.subject, word, keys.signing)
        return BoundDraft(**vars(draft), **binding._asdict())

    def _create(
        self, certificate: Certificate, token: bytes, name: str, schema: bytes, partitions: int, flags: int
    ) -> Draft:
        parsed = self._decode(schema)
        if parsed.version != 1:
            raise Misuse(f"schema: version 1 expected for a new topic, found {parsed.version}")
        with self._store.transaction():
            existing, public = self.find(token), b""
            if existing is not None:
                self._deposit_again(certificate, existing, name, parsed)
            else:
                public = self._draft(certificate, token, name, schema)
        return Draft(
            token=token,
            tenant=certificate.tenant,
            schema_hash=parsed.hash,
            partitions=partitions,
            flags=flags,
            nodes=tuple(node.subject for node in self._subjects.nodes())[: topics.NODES_MAX],
            public=public,
            rights=tuple(self._expand(certificate.tenant, certificate.subject, token, name)),
        )

    def _decode(self, schema: bytes) -> Schema:
        most = self._core.limits.schema_bytes_max
        if len(schema) > most:
            raise Malformed(f"schema: {len(schema)} bytes, at most {most} expected")
        return Schema.decode(schema)

    def _check_new(self, name: str, partitions: int, flags: int, known_flags: int) -> None:
        limits = self._core.limits
        check_no_identifier(name, "topic")
        if len(name) > limits.name_characters_max or not _NAME.fullmatch(name):
            raise Misuse(
                f"topic name: 1 to {limits.name_characters_max} letters, digits or ._/- expected",
                hint="it begins with a letter or a digit",
            )
        if not 1 <= partitions <= PARTITIONS_MAX or not 0 <= flags <= known_flags:
            raise Misuse(f"topic: 1 to {PARTITIONS_MAX} partitions and known flags expected")

    def _draft(self, certificate: Certificate, token: bytes, name: str, schema: bytes) -> bytes:
        """Keep the draft. Returns the public half of its first epoch."""
        store, limits, place = self._store, self._core.limits, {"token": token, "owner": certificate.subject}
        wrapped = self._core.keys.master.wrap_schema(token, 1, schema, self._core.entropy)
        if store.update("drafts", place, schema=wrapped):
            return bytes(store.scalar("SELECT public FROM drafts WHERE token = ? AND owner = ?", (*place.values(),)))
        if store.scalar("SELECT count(*) FROM topics WHERE tenant = ?", (certificate.tenant,)) >= limits.topics_max:
            raise Refused(f"the tenant has {limits.topics_max} topics already", reason="too-many-topics")
        if store.scalar("SELECT count(*) FROM drafts WHERE owner = ?", (certificate.subject,)) >= limits.drafts_max:
            raise Refused(
                f"{limits.drafts_max} topics were named and never made",
                reason="too-many-topics",
                hint="submit the entries of those topics first",
            )
        public, secret = self._epochs.draw(token, 1)
        store.insert("drafts", **place, name=name, schema=wrapped, public=public, secret=secret)
        return public

    def _deposit_again(self, certificate: Certificate, topic: TopicRecord, name: str, schema: Schema) -> None:
        """Name and schema of a topic that a restored store knows from the ledger alone, from its owner."""
        if topic.owner != certificate.subject or self.schema_text(topic.token, 1) is not None:
            raise Refused(f'topic "{name}" exists already', reason="topic-exists")
        self._keep_schema(topic.token, 1, schema)
        self._store.write("UPDATE topics SET name = ? WHERE token = ?", (name, topic.token))

    def propose_schema(self, caller: Caller, token: bytes, schema: bytes) -> tuple[int, bytes]:
        """Keep the next version's text. Returns its number and hash, for the owner to sign and submit."""
        topic, limits = self.require_owned(caller, token), self._core.limits
        new = self._decode(schema)
        if new.version > limits.schemas_max:
            raise Refused(f"a topic has at most {limits.schemas_max} schema versions", reason="too-many-schemas")
        if new.version <= topic.schema_version:  # a text that a restored store lacks
            if new.hash != self._ledger_hash(token, new.version):
                raise Misuse(f"schema version {new.version} exists already, with another content")
        else:
            check_successor(Schema.decode(self.require_text(topic)), new)
        with self._store.transaction():
            self._keep_schema(token, new.version, new)
        return new.version, new.hash

    def resolve(
        self, caller: Caller, pattern: str, principal: bytes, allow: bool, operations: int, host: str, mode: int
    ) -> Resolved:
        """Expand a pattern over the caller's topics to the rules that are still to be granted or withdrawn."""
        certificate = self._subjects.require_caller(caller)
        if len(pattern) > self._core.limits.name_characters_max or not _PATTERN.fullmatch(pattern):
            raise Misuse("pattern: a topic name, or the beginning of one and *, expected")
        if mode not in (SHOW, REMEMBER, FORGET):
            raise Misuse("pattern: show, remember or forget expected")
        rule = [int(allow), operations, host]
        if mode != SHOW and pattern.endswith("*"):
            self._remember(certificate, pattern, principal, rule, mode)
        tokens = [topic.token for topic in self._matching(certificate, pattern)]
        if len(tokens) > self._core.limits.matches_max:
            raise Refused(
                f"the pattern matches {len(tokens)} topics, at most {self._core.limits.matches_max} at once",
                reason="too-many-topics",
                hint="use longer prefixes, one after the other",
            )
        make = entries.withdraw if mode == FORGET else entries.grant
        changes = [
            make(token, principal, operations, allow=allow, host=host)
            for token in tokens
            if (rule in self._rules(token, principal)) == (mode == FORGET)
        ]
        return Resolved(tuple(tokens), tuple(changes))

    def _remember(self, certificate: Certificate, pattern: str, principal: bytes, rule: list[Any], mode: int) -> None:
        place = (certificate.tenant, certificate.subject, pattern, principal, *rule)
        with self._store.transaction():
            if mode == FORGET:
                self._store.write(
                    "DELETE FROM patterns WHERE tenant = ? AND author = ? AND pattern = ? AND principal = ?"
                    " AND allow = ? AND operations = ? AND host = ?",
                    place,
                )
                return
            count = self._store.scalar("SELECT count(*) FROM patterns WHERE tenant = ?", (certificate.tenant,))
            if count >= self._core.limits.patterns_max:
                raise Refused(f"the tenant has {count} patterns already", reason="too-many-patterns")
            self._store.write("INSERT OR IGNORE INTO patterns VALUES (?, ?, ?, ?, ?, ?, ?)", place)

    def _matching(self, certificate: Certificate, pattern: str) -> list[TopicRecord]:
        rows = self._store.rows("SELECT * FROM topics WHERE tenant = ? AND closed = 0", (certificate.tenant,))
        is_admin = self._subjects.is_admin(certificate)
        found = [TopicRecord(*row) for row in rows]
        return [
            topic
            for topic in found
            if matches(pattern, topic.name) and (is_admin or topic.owner == certificate.subject)
        ]

    def _expand(self, tenant: bytes, owner: bytes, token: bytes, name: str) -> list[bytes]:
        """The rules that remembered patterns make for a new topic: the tenant's, and its owner's own."""
        admin = self._store.scalar("SELECT owner FROM tenants WHERE id = ?", (tenant,))
        rows = self._store.rows(
            "SELECT DISTINCT pattern, principal, allow, operations, host FROM patterns"
            " WHERE tenant = ? AND author IN (?, ?)",
            (tenant, owner, admin),
        )
        rules = {tuple(rule) for pattern, *rule in rows if matches(pattern, name)}
        return [
            entries.grant(token, principal, operations, allow=bool(allow), host=host)
            for principal, allow, operations, host in sorted(rules)
        ]

    # --- what the ledger says ---

    def apply(self, token: bytes) -> TopicRecord | None:
        """Take over what the ledger holds of a topic; a draft of it becomes live."""
        core = self._core
        found = core.ledger.row(TOPICS(token))
        if found is None:
            return None
        if core.keys.certificate.tenant not in (ALL_TENANTS, found.tenant):
            return None  # another authority's
        old = self.find(token)
        if old is None:
            self._make_live(token, found)
        else:
            newest = {"schema_version": found.version, "schema_hash": found.schema_hash, "closed": found.closed}
            core.store.update("topics", {"token": token}, **newest)
            core.store.write(
                "UPDATE schemas SET changed = ? WHERE token = ? AND version > ? AND version <= ?",
                (core.touch(token), token, old.schema_version, found.version),
            )
        return self.find(token)

    def _make_live(self, token: bytes, found: TopicRow) -> None:
        core = self._core
        drafted = "SELECT name, schema, public, secret FROM drafts WHERE token = ? AND owner = ?"
        draft = core.store.row(drafted, (token, found.owner))
        name, version = draft[0] if draft else "", core.next_version()
        shape = (found.partitions, found.flags, found.version, found.schema_hash, found.closed)
        record = TopicRecord(token, found.tenant, found.owner, name, *shape, due_ms=0, version=version)
        core.store.insert("topics", **asdict(record))
        if draft is not None:
            self._keep_schema(token, 1, Schema.decode(core.keys.master.unwrap_schema(token, 1, draft[1])))
            self._epochs.adopt(token, draft[2], draft[3])
        core.store.write("DELETE FROM drafts WHERE token = ?", (token,))

    # --- schemas and rights ---

    def schema_text(self, token: bytes, version: int) -> bytes | None:
        """The text of the version that the ledger names, if it is here."""
        wrapped = self._store.scalar(
            "SELECT text FROM schemas WHERE token = ? AND version = ? AND hash = ?",
            (token, version, self._ledger_hash(token, version)),
        )
        return None if wrapped is None else self._core.keys.master.unwrap_schema(token, version, wrapped)

    def require_text(self, topic: TopicRecord) -> bytes:
        """The text of the newest version. Raises `Refused` where a restored store lacks it."""
        text = self.schema_text(topic.token, topic.schema_version)
        if text is None:
            raise Refused(
                f"topic {topic.token.hex()}: its schema is not here",
                reason="schema-missing",
                hint="its owner hands it in again: tally topic schema",
            )
        return text

    def schemas(self, topic: TopicRecord, seen: int = 0) -> list[bytes]:
        """All versions' texts, or none where nothing is newer than `seen`."""
        known = "SELECT max(changed) FROM schemas WHERE token = ? AND version <= ?"
        newest = self._store.scalar(known, (topic.token, topic.schema_version))
        if newest is None or newest <= seen:
            return []
        texts = [self.schema_text(topic.token, version) for version in range(1, topic.schema_version + 1)]
        return [text for text in texts if text is not None]

    def granted(self, principal: bytes, token: bytes) -> int:
        """The operations that the ledger lets the principal do on the topic, proven."""
        return access.granted(State(self._core.ledger.raw), principal, token)

    def _rules(self, token: bytes, principal: bytes) -> list[Any]:
        row = self._core.ledger.row(access.RIGHTS(token, principal))
        return [] if row is None else row.rules

    def _ledger_hash(self, token: bytes, version: int) -> bytes:
        row = self._core.ledger.row(SCHEMAS(token, version))
        return b"" if row is None else row.hash

    def _keep_schema(self, token: bytes, version: int, schema: Schema) -> None:
        wrapped = self._core.keys.master.wrap_schema(token, version, schema.encode(), self._core.entropy)
        self._store.write(
            "INSERT OR REPLACE INTO schemas VALUES (?, ?, ?, ?, ?)",
            (token, version, schema.hash, wrapped, self._core.touch(token)),
        )


def matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def unknown(asked: str | bytes) -> Refused:
    """The one answer for topics that do not exist and for those that the caller may not describe.

    Threat: whoever guesses a name is told its token, and finds on the ledger whether there is such a topic and who
    writes to it. A topic that was asked for by name is refused by name.
    """
    named = f'"{asked}"' if isinstance(asked, str) else asked.hex()
    return Refused(
        f"topic {named} does not exist, or is not shown to this identity",
        reason="unknown-topic",
        hint="check the name, or ask the topic's owner for a right on it: tally right grant TOPIC PRINCIPAL read",
    )
