"""Topics: their names, schemas, and the patterns by which rights are granted.

Names and schema texts stay here: node and ledger know tokens and hashes. A topic is the owner's act: the authority
derives the token, keeps the schema and a first key pair as a *draft*, and says which entries to sign; the topic is
live when the ledger shows it. Several principals may draft one name; whoever reaches the ledger first has it.

Threat: finding out which topics exist. A topic that the caller may not describe is answered exactly like one that
does not exist. (Within a tenant a name that is taken cannot be taken again, and that can be noticed.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tallystick.authority.answers import FORGET, REMEMBER, SHOW, Caller, Draft, Resolved
from tallystick.authority.core import Core
from tallystick.authority.epochs import Epochs
from tallystick.authority.subjects import Subjects
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import access, topics
from tallystick.ledger.contracts.state import State
from tallystick.ledger.contracts.topics import SCHEMAS, TOPICS, TopicRow
from tallystick.record.schema import Schema, check_successor
from tallystick.trust.certificate import ALL_TENANTS, Certificate
from tallystick.trust.promise import PARTITIONS_MAX
from tallystick.trust.right import Right

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PATTERN = re.compile(r"[A-Za-z0-9._/-]*\*?")


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
        return bool(self.flags & topics.ERASABLE)


class Topics:
    def __init__(self, core: Core, subjects: Subjects, epochs: Epochs) -> None:
        self._core, self._subjects, self._epochs = core, subjects, epochs

    def find(self, token: bytes) -> TopicRecord | None:
        row = self._core.store.row("SELECT * FROM topics WHERE token = ?", (token,))
        return None if row is None else TopicRecord(*row)

    def token_of(self, certificate: Certificate, topic: str | bytes) -> bytes:
        """The token that a caller means: by itself, or by a name in the caller's own tenant."""
        if isinstance(topic, bytes):
            return topic
        return self._core.master.token(certificate.tenant, topic)

    def require_owned(self, caller: Caller, token: bytes) -> TopicRecord:
        """The topic, if the caller owns it or its tenant; else as if it did not exist."""
        certificate, topic = self._subjects.require_caller(caller), self.find(token)
        if topic is None or topic.tenant != certificate.tenant:
            raise unknown(token)
        if topic.owner != certificate.subject and not self._subjects.is_admin(certificate):
            raise unknown(token)
        return topic

    def require_described(self, caller: Caller, token: bytes) -> TopicRecord:
        """The topic, if the caller owns it or may describe it; else as if it did not exist."""
        certificate, topic = self._subjects.require_caller(caller), self.find(token)
        if topic is not None and self.granted(certificate.subject, token) & Right.DESCRIBE:
            return topic
        return self.require_owned(caller, token)

    # --- requests ---

    def create(self, caller: Caller, name: str, schema: bytes, partitions: int, flags: int) -> Draft:
        certificate = self._subjects.require_caller(caller)
        self._check_new(name, schema, partitions, flags)
        parsed = Schema.decode(schema)
        if parsed.version != 1:
            raise Misuse(f"schema: version 1 expected for a new topic, found {parsed.version}")
        token = self._core.master.token(certificate.tenant, name)
        with self._core.store.transaction():
            existing = self.find(token)
            if existing is not None:
                self._deposit_again(certificate, existing, name, parsed)
                public = b""
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

    def _check_new(self, name: str, schema: bytes, partitions: int, flags: int) -> None:
        limits = self._core.limits
        if len(name) > limits.name_characters_max or not _NAME.fullmatch(name):
            raise Misuse(
                f"topic name: 1 to {limits.name_characters_max} letters, digits or ._/- expected",
                hint="it begins with a letter or a digit",
            )
        if len(schema) > limits.schema_bytes_max:
            raise Malformed(f"schema: {len(schema)} bytes, at most {limits.schema_bytes_max} expected")
        if not 1 <= partitions <= PARTITIONS_MAX or not 0 <= flags <= topics.ERASABLE | topics.PADDED:
            raise Misuse(f"topic: 1 to {PARTITIONS_MAX} partitions and known flags expected")

    def _draft(self, certificate: Certificate, token: bytes, name: str, schema: bytes) -> bytes:
        """Keep the draft. Returns the public half of its first epoch."""
        store, limits = self._core.store, self._core.limits
        wrapped = self._core.master.wrap_schema(token, 1, schema, self._core.entropy)
        drafted = store.scalar("SELECT public FROM drafts WHERE token = ? AND owner = ?", (token, certificate.subject))
        if drafted is not None:
            store.write(
                "UPDATE drafts SET schema = ? WHERE token = ? AND owner = ?", (wrapped, token, certificate.subject)
            )
            return bytes(drafted)
        if store.scalar("SELECT count(*) FROM topics WHERE tenant = ?", (certificate.tenant,)) >= limits.topics_max:
            raise Refused(f"the tenant has {limits.topics_max} topics already", reason="too-many-topics")
        if store.scalar("SELECT count(*) FROM drafts WHERE owner = ?", (certificate.subject,)) >= limits.drafts_max:
            raise Refused(
                f"{limits.drafts_max} topics were named and never made",
                reason="too-many-topics",
                hint="submit the entries of those topics first",
            )
        public, secret = self._epochs.draw(token)
        store.insert(
            "drafts", token=token, owner=certificate.subject, name=name, schema=wrapped, public=public, secret=secret
        )
        return public

    def _deposit_again(self, certificate: Certificate, topic: TopicRecord, name: str, schema: Schema) -> None:
        """Name and schema of a topic that a restored store knows from the ledger alone, from its owner."""
        missing = self.schema_text(topic.token, 1) is None
        if topic.owner != certificate.subject or not missing:
            raise Refused(f'topic "{name}" exists already', reason="topic-exists")
        self._keep_schema(topic.token, 1, schema)
        self._core.store.write("UPDATE topics SET name = ? WHERE token = ?", (name, topic.token))

    def propose_schema(self, caller: Caller, token: bytes, schema: bytes) -> tuple[int, bytes]:
        """Keep the next version's text. Returns its number and hash, for the owner to sign and submit."""
        topic, limits = self.require_owned(caller, token), self._core.limits
        if len(schema) > limits.schema_bytes_max:
            raise Malformed(f"schema: {len(schema)} bytes, at most {limits.schema_bytes_max} expected")
        new = Schema.decode(schema)
        if new.version > limits.schemas_max:
            raise Refused(f"a topic has at most {limits.schemas_max} schema versions", reason="too-many-schemas")
        if new.version <= topic.schema_version:  # a text that a restored store lacks
            if new.hash != self._ledger_hash(token, new.version):
                raise Misuse(f"schema version {new.version} exists already, with another content")
        else:
            old = self.schema_text(token, topic.schema_version)
            if old is None:
                raise Refused("the newest schema's text is not here", reason="schema-missing", hint="deposit it first")
            check_successor(Schema.decode(old), new)
        with self._core.store.transaction():
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
        with self._core.store.transaction():
            if mode == FORGET:
                self._core.store.write(
                    "DELETE FROM patterns WHERE tenant = ? AND author = ? AND pattern = ? AND principal = ?"
                    " AND allow = ? AND operations = ? AND host = ?",
                    place,
                )
                return
            count = self._core.store.scalar("SELECT count(*) FROM patterns WHERE tenant = ?", (certificate.tenant,))
            if count >= self._core.limits.patterns_max:
                raise Refused(f"the tenant has {count} patterns already", reason="too-many-patterns")
            self._core.store.write("INSERT OR IGNORE INTO patterns VALUES (?, ?, ?, ?, ?, ?, ?)", place)

    def _matching(self, certificate: Certificate, pattern: str) -> list[TopicRecord]:
        rows = self._core.store.rows("SELECT * FROM topics WHERE tenant = ? AND closed = 0", (certificate.tenant,))
        is_admin = self._subjects.is_admin(certificate)
        found = [TopicRecord(*row) for row in rows]
        return [
            topic
            for topic in found
            if matches(pattern, topic.name) and (is_admin or topic.owner == certificate.subject)
        ]

    def _expand(self, tenant: bytes, owner: bytes, token: bytes, name: str) -> list[bytes]:
        """The rules that remembered patterns make for a new topic: the tenant's, and its owner's own."""
        admin = self._core.store.scalar("SELECT owner FROM tenants WHERE id = ?", (tenant,))
        rows = self._core.store.rows(
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
        if core.certificate.tenant not in (ALL_TENANTS, found.tenant):
            return None  # another authority's
        old = self.find(token)
        if old is None:
            self._make_live(token, found)
        else:
            core.store.write(
                "UPDATE topics SET schema_version = ?, schema_hash = ?, closed = ? WHERE token = ?",
                (found.version, found.schema_hash, found.closed, token),
            )
            core.store.write(
                "UPDATE schemas SET changed = ? WHERE token = ? AND version > ? AND version <= ?",
                (core.touch(token), token, old.schema_version, found.version),
            )
        return self.find(token)

    def _make_live(self, token: bytes, found: TopicRow) -> None:
        core = self._core
        draft = core.store.row(
            "SELECT name, schema, public, secret FROM drafts WHERE token = ? AND owner = ?", (token, found.owner)
        )
        core.store.insert(
            "topics",
            token=token,
            tenant=found.tenant,
            owner=found.owner,
            name=draft[0] if draft else "",
            partitions=found.partitions,
            flags=found.flags,
            schema_version=found.version,
            schema_hash=found.schema_hash,
            closed=found.closed,
            version=core.next_version(),
        )
        if draft is not None:
            schema = Schema.decode(core.master.unwrap_schema(token, 1, draft[1]))
            self._keep_schema(token, 1, schema)
            self._epochs.adopt(token, draft[2], draft[3])
        core.store.write("DELETE FROM drafts WHERE token = ?", (token,))

    # --- schemas and rights ---

    def schema_text(self, token: bytes, version: int) -> bytes | None:
        """The text of the version that the ledger names, if it is here."""
        wrapped = self._core.store.scalar(
            "SELECT text FROM schemas WHERE token = ? AND version = ? AND hash = ?",
            (token, version, self._ledger_hash(token, version)),
        )
        return None if wrapped is None else self._core.master.unwrap_schema(token, version, wrapped)

    def schemas(self, topic: TopicRecord, seen: int = 0) -> list[bytes]:
        """All versions' texts; none where nothing is newer than `seen`."""
        newest = self._core.store.scalar(
            "SELECT max(changed) FROM schemas WHERE token = ? AND version <= ?", (topic.token, topic.schema_version)
        )
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
        wrapped = self._core.master.wrap_schema(token, version, schema.encode(), self._core.entropy)
        self._core.store.write(
            "INSERT OR REPLACE INTO schemas VALUES (?, ?, ?, ?, ?)",
            (token, version, schema.hash, wrapped, self._core.touch(token)),
        )


def matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def unknown(token: bytes) -> Refused:
    """The one answer for topics that do not exist and for those that the caller may not describe."""
    return Refused(
        f"topic {token.hex()} does not exist",
        reason="unknown-topic",
        hint="check the name, or ask the owner for the right to describe it",
    )
