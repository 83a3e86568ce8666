"""The subject `authority` of `make bench-abe`: what a new attribute epoch costs the authority that makes the keys.

A whole authority in this process over the embedded ledger, both in memory: every request reads the store, asks the
ledger for each attribute under proof, makes the key or the part, and seals the answer to its principal. Missing is what
HTTP adds. Principals hold ten attributes; the ledger has 8,192 more, so that proofs have some length.

    authority_refresh       one principal taken to the next epoch
    authority_issue         a whole key, as after a lost attribute
    authority_epoch_100k    processor seconds to take 100,000 principals to the next epoch, extrapolated from 64
    authority_policy        key pair, capsule and sealed seed of one topic policy for one epoch
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import cycle

import harness

from tallystick.authority.authority import Authority
from tallystick.authority.client import (
    AuthorityClient,
    Holder,
    enrol,
    grant_entries,
    policy_entry,
    topic_entries,
)
from tallystick.authority.settings import AuthoritySettings
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.settings import SETTINGS
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.policy.attribute import category
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.record.schema import Schema
from tallystick.runtime.sources import ManualClock, SeededEntropy
from tallystick.sim.instance import Instance
from tallystick.trust.certificate import Certificate, SubjectKind

HELD, PRINCIPALS, OTHERS = 10, 16, 8_192
TAKEN = 64  # principals taken to the next epoch, from which 100,000 are extrapolated
SPACE = AttributeSpace.of("acme", *(category(f"a{number}", ["x", "y"]) for number in range(HELD)))
POLICY = " && ".join(f"a{number}::x" for number in range(HELD))


class Ledger:
    """The embedded ledger, a block for each transaction."""

    def __init__(self, engine: SqliteLedger, clock: ManualClock) -> None:
        self.checkpoint, self.consistency = engine.checkpoint, engine.consistency
        self.blocks, self.state = engine.blocks, engine.state
        self._flush, self._submit, self._now = engine.flush, engine.submit, clock.now

    def states(self, keys: Sequence[bytes]) -> list[StateProof]:
        return [self.state(key) for key in keys]

    def submit(self, transaction: bytes) -> None:
        now_ms = int(self._now() * 1000)
        self._submit(transaction, now_ms)
        self._flush(now_ms)


class Tenant:
    """An authority with one tenant, whose owner grants."""

    def __init__(self, others: int) -> None:
        self.clock, self.entropy = ManualClock(), SeededEntropy("abe authority")
        now_ms = int(self.clock.now() * 1000)
        instance = Instance.create(now_ms)
        engine = SqliteLedger(":memory:", instance.trust, instance.node_keys.ledger_key, now_ms)
        self.ledger = Ledger(engine, self.clock)
        self.instance, self._number = instance.trust.instance, 0
        self.authority: Authority = instance.authority(self.ledger, self.clock, self.entropy, AuthoritySettings())
        self.act(
            instance.node_keys.key,
            instance.node_keys.certificate.subject,
            entries.enrol(instance.node_keys.certificate),
        )
        self.authority.work()
        self.owner = self.person(self.authority.enrolment.create_tenant("acme"))
        self.owner.declare_attributes(SPACE.encode())
        self.people = [self._insurer() for _ in range(PRINCIPALS)]
        self._fill(others)
        self.authority.work()

    def person(self, invite: str) -> AuthorityClient:
        key, sealing = SigningKey.from_seed(self.entropy.bytes(32)), hpke.PrivateKey.generate(self.entropy.bytes(32))
        enrolled = enrol(self.authority, self.instance, invite, "somebody", key, sealing)
        certificate = Certificate.decode(enrolled.certificate)
        assert certificate.kind is SubjectKind.PRINCIPAL
        self.tenant = certificate.tenant
        holder = Holder(self.instance, certificate.subject, key, sealing, certificate.tenant)
        return AuthorityClient(self.authority, self.authority.certificate, holder, self.entropy)

    def act(self, key: SigningKey, author: bytes, *group: bytes) -> None:
        self._number += 1
        number = int(self.clock.now() * 1_000_000) + self._number
        self.ledger.submit(compose(self.instance, author, number, list(group), key).data)

    def own(self, *group: bytes) -> None:
        self.act(self.owner._holder.signing_key, self.owner._holder.principal, *group)

    def _insurer(self) -> AuthorityClient:
        person = self.person(self.authority.enrolment.invite_to("acme"))
        held = SPACE.grant({f"a{number}": "x" for number in range(HELD)})
        salt = self.entropy.bytes(32)
        self.own(*grant_entries(self.owner, self.tenant, person._holder.principal, held, salt))
        return person

    def _fill(self, others: int) -> None:
        holder = self.people[0]._holder.principal
        most = SETTINGS["transaction_entries"].default  # of a principal
        for start in range(0, others, most):
            names = [sha256(b"%d" % number).digest() for number in range(start, min(start + most, others))]
            self.own(*(entries.grant_attribute(self.tenant, holder, name[:16], name) for name in names))

    def lock_topic(self) -> None:
        draft = self.owner.bind_topic("drives", Schema.parse("vin string").encode())
        self.own(*topic_entries(draft, self.owner._holder))
        self.authority.work()
        self.own(policy_entry(self.owner, draft.token, 0, parse(POLICY, SPACE), self.entropy.bytes(32)))
        self.authority.work()


def authority_cases(others: int = OTHERS) -> Iterator[harness.Rate | harness.Figure]:
    tenant = Tenant(others)
    known = [(person, person.attribute_key().identifier) for person in tenant.people]
    turn = cycle(known)

    def refresh() -> None:
        person, identifier = next(turn)
        assert person.attribute_key(identifier).parts

    def issue() -> None:
        assert next(turn)[0].attribute_key().key

    yield harness.Rate("authority_refresh", refresh, unit="principals/s")
    yield harness.Rate("authority_issue", issue, unit="principals/s")
    started = time.process_time()
    for _ in range(TAKEN):
        refresh()
    whole_s = 100_000 * (time.process_time() - started) / TAKEN
    yield harness.Figure("authority_epoch_100k", whole_s, None, "processor s", extrapolated=f"{TAKEN} principals")
    tenant.lock_topic()
    policies = tenant.authority.policies
    (row,) = tenant.authority.core.store.rows("SELECT token, column_group, version, commitment FROM policies")
    policy, formula = policies._newest(row[0], row[1]), parse(POLICY, SPACE)
    assert policy is not None
    yield harness.Rate("authority_policy", lambda: policies._draw(policy, 2, formula), unit="policies/s")
