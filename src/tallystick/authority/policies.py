"""Topic policies: what a topic's owner asks of whoever opens a column group, and the key pairs that carry it.

The owner drafts a formula here, signs a commitment to it and submits that itself; the policy counts from when the
ledger shows its version. Each version has a key pair for each attribute epoch: publishers get public halves, ahead of
time and without the formula; subscribers get the private half's seed under a capsule (`parcel/locks.py`). Pairs
and capsules are functions of the master key and their place, made once and kept.

Threat: a policy that silently falls away, by a row deleted or by a restore from an older backup, so that publishers go
on under yesterday's, or under none. For every grant of a publisher the newest version is asked of the ledger; where its
formula is not here, the grant says that there is a policy and gives no key for it: nothing is sealed for that group
until its owner sets the policy again. Threat: a public half exchanged in the store: what is kept opens at its own
place only, and whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick import wire
from tallystick.authority.answers import Caller, ListedPolicy, policy_commitment, policy_key_name
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attributes import DRAFT, LIVE, AttributeSpaces, is_same_or_wider
from tallystick.authority.core import Core
from tallystick.authority.grant import GrantPolicies, GrantTopicPolicy
from tallystick.authority.topics import TopicRecord, Topics
from tallystick.crypto import hpke
from tallystick.errors import Misuse
from tallystick.ledger.contracts.attributes import POLICIES
from tallystick.policy.check import check_policy
from tallystick.policy.formula import Formula
from tallystick.record.schema import Schema


@dataclass(frozen=True)
class Policy:
    """The newest version of a group's policy that the ledger shows."""

    token: bytes
    group: int
    version: int
    commitment: bytes  # empty where the policy was lifted
    content: bytes | None  # formula and salt, wrapped; None where lifted or lost
    state: int
    made: int  # the last attribute epoch for which there is a key pair
    begins_ms: int
    changed: int

    @property
    def place(self) -> list[bytes | int | str]:
        return ["policy", self.token, self.group, self.version, self.commitment]


_OF_GROUP = "SELECT * FROM policies WHERE token = ? AND column_group = ?"
_KEEP = "INSERT OR IGNORE INTO policies VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0)"


class Policies:
    def __init__(self, core: Core, topics: Topics, spaces: AttributeSpaces, epochs: AttributeEpochs) -> None:
        self._core, self._store, self._topics, self._spaces, self._epochs = core, core.store, topics, spaces, epochs

    # --- requests ---

    def draft(self, caller: Caller, token: bytes, group: int, encoded: bytes, salt: bytes) -> int:
        """Keep the formula of a group's next policy (empty: none is needed to lift it). Returns the version to
        write."""
        topic = self._topics.require_owned(caller, token)
        if group >= self._groups(topic):
            raise Misuse(f"the topic has {self._groups(topic)} column groups, there is no group {group}")
        known = self._core.ledger.row(POLICIES(token, group))
        version = 1 if known is None else known.version + 1
        if not encoded:
            return version
        self._check(encoded)
        commitment = policy_commitment(salt, token, group, version, encoded)
        drafted = Policy(token, group, version, commitment, None, DRAFT, 0, 0, 0)
        wrapped = self._core.keys.master.wrap_at(drafted.place, wire.encode([encoded, salt]), self._core.entropy)
        with self._store.transaction():
            drafts = "DELETE FROM policies WHERE token = ? AND column_group = ? AND state = ?"
            self._store.write(drafts, (token, group, DRAFT))
            self._store.write(_KEEP, (token, group, version, commitment, wrapped, DRAFT))
        return version

    def _check(self, encoded: bytes) -> None:
        """Raise `Misuse` unless keys can be made for the formula's attributes, and a capsule for the formula."""
        from tallystick.crypto.abe.capsule import CAPSULE_BYTES_MAX, capsule_bytes

        self._epochs.require_library()
        formula = Formula.decode(encoded)
        for attribute in formula.space.attributes:
            if not is_same_or_wider(self._spaces.declared(attribute), attribute):
                raise Misuse(
                    f'attribute "{attribute.name}" is not declared so', hint="its tenant declares it: tally attribute"
                )
        check_policy(formula)
        size = capsule_bytes(formula)
        if size > CAPSULE_BYTES_MAX:
            raise Misuse(f"the policy's capsule takes {size} bytes, at most {CAPSULE_BYTES_MAX} expected")

    def listed(self, caller: Caller, token: bytes) -> list[ListedPolicy]:
        """Every policy of a topic, to its owner."""
        topic = self._topics.require_owned(caller, token)
        newest = [self._newest(token, group) for group in range(self._groups(topic))]
        return [
            ListedPolicy(one.group, one.version, *((b"", b"") if one.content is None else self._opened(one)))
            for one in newest
            if one is not None and one.commitment
        ]

    # --- what a grant brings ---

    def for_publisher(self, topic: TopicRecord, tenant: bytes, seen: int) -> GrantPolicies | None:
        """Space, epochs and the public halves to seal to; what changed since `seen`."""
        found = [
            one for group in range(self._groups(topic)) for one in self._publics(self._newest(topic.token, group), seen)
        ]
        return self._granted(self._spaces.joined((tenant, topic.tenant), seen), found, seen)

    def _publics(self, policy: Policy | None, seen: int) -> list[GrantTopicPolicy]:
        if policy is None:
            return []
        if not policy.commitment:
            lifted = GrantTopicPolicy(policy.group, policy.version, 0, b"", b"", b"", policy.begins_ms)
            return [lifted] if policy.changed > seen else []
        self._make(policy)
        current = self._epochs.current() or 1
        epochs = {one.number: one for one in self._epochs.announced() if one.number >= current}
        found, has_current = [], False
        records = self._store.rows(
            "SELECT epoch, record, changed FROM policy_keys WHERE token = ? AND column_group = ? AND version = ?"
            " ORDER BY epoch",
            (policy.token, policy.group, policy.version),
        )
        for epoch, record, changed in records:
            has_current = has_current or epoch == current
            if epoch in epochs and max(changed, epochs[epoch].changed) > seen:
                public, _, _ = self._open(policy.token, policy.group, policy.version, epoch, record)
                begins_ms = max(policy.begins_ms, epochs[epoch].begins_ms)
                found.append(GrantTopicPolicy(policy.group, policy.version, epoch, public, b"", b"", begins_ms))
        if not has_current:  # the formula is lost, or there is nothing to make keys with
            found.append(GrantTopicPolicy(policy.group, policy.version, current, b"", b"", b"", policy.begins_ms))
        return found

    def for_subscriber(
        self, topic: TopicRecord, since_ms: int, seen: int, newest: int
    ) -> tuple[GrantPolicies | None, int]:
        """Capsules and sealed seeds of epochs that ended after `since_ms`, and the version that this brings the holder
        to: `newest`, or an earlier one where more are due."""
        most = self._core.limits.policy_keys_max
        rows = self._store.rows(
            "SELECT column_group, version, epoch, record, changed FROM policy_keys WHERE token = ? AND changed > ?"
            " ORDER BY changed LIMIT ?",
            (topic.token, seen, most),
        )
        epochs = {one.number: one for one in self._epochs.announced()}
        found = []
        for group, version, epoch, record, _ in rows:
            if epoch in epochs and epochs[epoch].ends_ms > since_ms:
                _, capsule, sealed = self._open(topic.token, group, version, epoch, record)
                found.append(GrantTopicPolicy(group, version, epoch, b"", capsule, sealed, epochs[epoch].begins_ms))
        reached = min(newest, rows[-1][4]) if len(rows) == most else newest
        return self._granted(b"", found, seen), reached

    def _granted(self, space: bytes, topics: list[GrantTopicPolicy], seen: int) -> GrantPolicies | None:
        now_ms = self._core.now_ms
        epochs = [one for one in self._epochs.announced() if one.ends_ms > now_ms and one.changed > seen]
        if not (space or topics or epochs):
            return None
        public = self._epochs.key.public.encode() if self._epochs.in_use else b""
        return GrantPolicies(public, space, tuple((one.number, one.begins_ms) for one in epochs), tuple(topics))

    # --- key pairs ---

    def tick(self) -> None:
        """Make the pairs of epochs that were announced since."""
        due = (LIVE, self._epochs.last())
        for row in self._store.rows("SELECT * FROM policies WHERE state = ? AND made < ?", due):
            with self._store.transaction():
                self._make(Policy(*row))

    def announce_all(self) -> None:
        """Announce every key that may still be sealed to; inside the caller's transaction."""
        kept = "SELECT token, column_group, version, epoch, record FROM policy_keys WHERE epoch >= ?"
        for token, group, version, epoch, record in self._store.rows(kept, (self._epochs.current() or 1,)):
            public, _, _ = self._open(token, group, version, epoch, record)
            self._core.announce_key(token, policy_key_name(group, version, epoch), public)

    def _make(self, policy: Policy) -> None:
        """The pairs of all epochs that are announced and still lack one."""
        if policy.content is None or not self._epochs.in_use:
            return
        due = range(policy.made + 1, self._epochs.last() + 1)
        if not due:
            return
        formula = Formula.decode(self._opened(policy)[0])
        for epoch in due:
            record = self._draw(policy, epoch, formula)
            public, _, _ = self._open(policy.token, policy.group, policy.version, epoch, record)
            self._core.announce_key(policy.token, policy_key_name(policy.group, policy.version, epoch), public)
            # A version for each: an answer that holds some of them says how far it got.
            self._store.write(
                "INSERT OR REPLACE INTO policy_keys VALUES (?, ?, ?, ?, ?, ?)",
                (policy.token, policy.group, policy.version, epoch, record, self._core.touch(policy.token)),
            )
        row = {"token": policy.token, "column_group": policy.group, "version": policy.version}
        self._store.update("policies", {**row, "commitment": policy.commitment}, made=due[-1])

    def _draw(self, policy: Policy, epoch: int, formula: Formula) -> bytes:
        """Public half, capsule and sealed seed, wrapped."""
        from tallystick.parcel.locks import PolicyPlace, seal_seed

        core = self._core
        seed, entropy = core.keys.master.policy_seeds(
            policy.token, policy.group, policy.version, epoch, policy.commitment + formula.encode()
        )
        place = PolicyPlace(core.instance, policy.token, policy.group, policy.version)
        capsule, sealed = seal_seed(self._epochs.key.public, formula, epoch, place, seed, entropy)
        public = hpke.PrivateKey.decode(seed).public.encode()
        where = _record_place(policy.token, policy.group, policy.version, epoch)
        return core.keys.master.wrap_at(where, wire.encode([public, capsule, sealed]), core.entropy)

    def _open(self, token: bytes, group: int, version: int, epoch: int, record: bytes) -> tuple[bytes, bytes, bytes]:
        """`CannotOpen` if the row was moved or altered."""
        plain = self._core.keys.master.unwrap_at(_record_place(token, group, version, epoch), record)
        public, capsule, sealed = wire.decode(plain, "policy key")
        return public, capsule, sealed

    def _opened(self, policy: Policy) -> tuple[bytes, bytes]:
        """Formula and salt of the ledger's commitment. Raises `CannotOpen` if the row was moved or altered."""
        assert policy.content is not None
        formula, salt = wire.decode(self._core.keys.master.unwrap_at(policy.place, policy.content), "policy")
        return formula, salt

    # --- what the ledger says ---

    def apply(self, token: bytes, group: int) -> None:
        """Take over the newest version that the ledger shows; a draft of it becomes live."""
        self._newest(token, group)

    def _newest(self, token: bytes, group: int) -> Policy | None:
        """The newest version that the ledger shows, its formula missing where it is not here."""
        found = self._core.ledger.row(POLICIES(token, group))
        if found is None:
            return None
        version, commitment, _ = found
        live = [Policy(*row) for row in self._store.rows(f"{_OF_GROUP} AND state = ?", (token, group, LIVE))]
        for policy in live:
            if (policy.version, policy.commitment) == (version, commitment):
                return policy
        for policy in live:
            self._make(policy)  # before it goes: publishers may have sealed under it until now
        return self._make_live(token, group, version, commitment)

    def _make_live(self, token: bytes, group: int, version: int, commitment: bytes) -> Policy:
        core, place = self._core, (token, group)
        core.store.write(
            "DELETE FROM policies WHERE token = ? AND column_group = ? AND NOT (version = ? AND commitment = ?)",
            (*place, version, commitment),
        )
        core.store.write(_KEEP, (*place, version, commitment, None, LIVE))
        made = (self._epochs.current() or 1) - 1
        values = {"state": LIVE, "made": made, "begins_ms": core.now_ms, "changed": core.touch(token)}
        core.store.update("policies", {"token": token, "column_group": group}, **values)
        return Policy(*(core.store.row(_OF_GROUP, place) or ()))

    def _groups(self, topic: TopicRecord) -> int:
        return len(Schema.decode(self._topics.require_text(topic)).groups)


def _record_place(token: bytes, group: int, version: int, epoch: int) -> list[bytes | int | str]:
    return ["policy key", token, group, version, epoch]
