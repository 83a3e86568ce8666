"""A small instance for tests of the ledger: root, operator, two tenants, a node, principals, and a bare state.

Keys are derived from names; the root's signatures are randomised, so two worlds differ in them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest

from tallystick import wire
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.block import Transaction, compose, parse
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import WHOLE, Result, execute, newest
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.state import State
from tallystick.ledger.contracts.topics import Binding, Terms
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.envelope import Envelope, check_evidence
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

NOW_MS = 1_791_000_000_000
NOW_S = NOW_MS // 1000
YEARS_MS = 10 * 365 * 86_400_000
HOSPITAL, HOME = b"tenant: hospital", b"tenant: the home"
ROLES = ("authority", "doctor", "monitor", "landlord", "sensor", "node", "stranger")  # of a world; see `World.row`
KIND_NAMES = {kind.value: kind.name.lower() for kind in EntryKind}


def seed(name: str) -> bytes:
    return sha256(b"test " + name.encode()).digest()


def token(name: str) -> bytes:
    return seed("topic " + name)[:16]


@dataclass
class Actor:
    """Somebody with a key and a certificate, who numbers its own transactions."""

    certificate: Certificate
    key: SigningKey
    number: int = 0
    name: str = "somebody"

    @property
    def id(self) -> bytes:
        return self.certificate.subject

    def sign(self, *written: bytes, number: int | None = None) -> Transaction:
        self.number = self.number + 1 if number is None else number
        return compose(self.certificate.instance, self.id, self.number, written, self.key)


# One line of a table: who signs, what, why it is refused (None: it is accepted), and which entry is at fault.
Written = bytes | Sequence[bytes]
Row = tuple[Actor, Written, str | None] | tuple[Actor, Written, str, int]


@dataclass
class World:
    """The actors of BPS 5.1: a hospital and a home provider on one node."""

    root: RootKey = field(default_factory=lambda: RootKey.from_seed(seed("root")))
    ledger_key: SigningKey = field(default_factory=lambda: SigningKey.from_seed(seed("ledger")))
    witnesses: tuple[str, ...] = ()
    quorum: int = 0
    ledger_keys: tuple[bytes, ...] = ()  # of a chain's validators, instead of `ledger_key`
    ledger_threshold: int = 1

    def __post_init__(self) -> None:
        self.trust = TrustFile(
            number=1,
            first=b"",
            name="test",
            roots=(self.root.public.raw,),
            threshold=1,
            ledger_keys=self.ledger_keys or (self.ledger_key.public.raw,),
            ledger_threshold=self.ledger_threshold,
            witnesses=self.witnesses,
            quorum=self.quorum,
        ).sign(self.root)
        self.instance = self.trust.instance
        self.authority = self.actor("authority", SubjectKind.AUTHORITY, ALL_TENANTS)
        self.node = self.actor("node", SubjectKind.NODE, ALL_TENANTS)
        self.doctor = self.actor("doctor", SubjectKind.PRINCIPAL, HOSPITAL)
        self.monitor = self.actor("monitor", SubjectKind.PRINCIPAL, HOSPITAL)
        self.landlord = self.actor("landlord", SubjectKind.PRINCIPAL, HOME)
        self.sensor = self.actor("sensor", SubjectKind.PRINCIPAL, HOME)
        self.stranger = self.actor("stranger", SubjectKind.PRINCIPAL, HOSPITAL)  # certified, and never enrolled

    def actor(self, name: str, kind: SubjectKind, tenant: bytes, issuer: Actor | None = None) -> Actor:
        """A certified actor; principals by the authority unless another issuer is named, the rest by the root."""
        key = SigningKey.from_seed(seed(name))
        return Actor(self.certify(key, kind, tenant, issuer), key, name=name)

    def certify(
        self,
        key: SigningKey,
        kind: SubjectKind,
        tenant: bytes,
        issuer: Actor | None = None,
        subject: bytes | None = None,
    ) -> Certificate:
        if issuer is None and kind is SubjectKind.PRINCIPAL:
            issuer = self.authority
        certificate = Certificate(
            instance=self.instance,
            kind=kind,
            subject=subject or subject_id(self.instance, key.public.raw),
            tenant=tenant,
            signing_key=key.public.raw,
            sealing_key=b"sealing key",
            not_before_ms=NOW_MS - YEARS_MS,
            not_after_ms=NOW_MS + YEARS_MS,
            issuer=issuer.id if issuer else ROOT_ID,
        )
        return certificate.sign(issuer.key if issuer else self.trust.root_signer(self.root))

    @property
    def principals(self) -> list[Actor]:
        return [self.doctor, self.monitor, self.landlord, self.sensor]

    def founding(self) -> list[Transaction]:
        """Everybody enrolled; the doctor owns the hospital and `heart`, the landlord the home and `air`."""
        return [
            self.authority.sign(
                entries.enrol(self.authority.certificate),
                entries.enrol(self.node.certificate),
                *(entries.enrol(actor.certificate) for actor in self.principals),
                entries.tenant(HOSPITAL, self.doctor.id),
                entries.tenant(HOME, self.landlord.id),
            ),
            self.doctor.sign(self.topic("heart", self.doctor, HOSPITAL)),
            self.landlord.sign(self.topic("air", self.landlord, HOME, partitions=4)),
        ]

    def bind(self, name: str, tenant: bytes, by: Actor | None = None) -> Binding:
        """An authority's binding of a topic's name, the operator's unless another is named."""
        authority = by or self.authority
        return entries.bind_topic(self.instance, tenant, authority.id, seed(f"word {name}"), authority.key)

    def topic(
        self,
        name: str,
        owner: Actor,
        tenant: bytes,
        *,
        partitions: int = 1,
        flags: int = 0,
        binding: Binding | None = None,
        terms: Terms = Terms(),
    ) -> bytes:
        """The entry that makes a topic: of version 2 where there is a binding."""
        return entries.topic(
            self.instance,
            binding.token if binding else token(name),
            tenant,
            owner.id,
            owner.key,
            nodes=[self.node.id],
            schema_hash=seed("schema " + name),
            partitions=partitions,
            flags=flags,
            binding=binding,
            terms=terms,
        )

    def row(self, role: str, may: str, written: bytes, reason: str) -> Row:
        """What becomes of it when `role` writes what only the roles named in `may` may write."""
        who: Actor = getattr(self, role)
        if role in may.split():
            return who, written, None
        return (who, written, "unknown-identity", WHOLE) if who is self.stranger else (who, written, reason, 0)


class Bench:
    """Contracts on a plain dictionary: what an engine does, without one."""

    def __init__(self, world: World | None = None, *, founded: bool = True) -> None:
        self.world = world or World()
        self.stored = {k: v for k, v in identity.genesis(self.world.trust.to_json()).items() if v is not None}
        self.state = State(self.stored.get)
        self.height, self.time_ms = 1, NOW_MS
        for transaction in self.world.founding() if founded else []:
            self.accept(transaction)

    def run(self, transaction: Transaction) -> Result:
        """The result of `transaction` in a block of its own."""
        result = execute(self.state, parse(transaction.data), self.height, self.time_ms)
        for key, value in self.state.changes().items():
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        self.state.seal()
        self.height += 1
        return result

    def bring_into_force(self) -> None:
        """Activate every contract of this release, from the next block on."""
        found = newest().items()
        self.accept(self.world.authority.sign(*(entries.activate(*one, self.height + 1) for one in found)))

    def accept(self, transaction: Transaction) -> Result:
        result = self.run(transaction)
        assert result.accepted, (result.reason, result.index, result.message)
        return result

    def refuse(self, transaction: Transaction, reason: str, index: int | None = None) -> Result:
        before = dict(self.stored)
        result = self.run(transaction)
        assert result.reason == reason, result
        assert self.stored == before, f"a refusal that changed the state, {result}"
        assert index is None or result.index == index, result
        return result

    def play(self, *rows: Row) -> None:
        """Run a table in order, each row a transaction in a block of its own."""
        assert rows, "a table without rows"
        for number, (who, written, reason, *index) in enumerate(rows, 1):
            signed = who.sign(*([written] if isinstance(written, bytes) else written))
            try:
                if reason is None:
                    self.accept(signed)
                else:
                    self.refuse(signed, reason, *index)
            except AssertionError as fault:
                kinds = [wire.decode(entry)[0] for entry in signed.entries]
                what = ", ".join(KIND_NAMES.get(kind, str(kind)) for kind in kinds)
                expected = " ".join(map(str, [reason or "accepted", *index]))
                raise AssertionError(f"row {number}: {who.name}, {what}: {expected} expected, found {fault}") from fault


@pytest.fixture
def bench() -> Bench:
    """A founded bench, for a file of tests that imports this and `world`."""
    return Bench()


@pytest.fixture
def world(bench: Bench) -> World:
    return bench.world


def operation_batch(world: World, count: int, tokens: Sequence[bytes], operators: Sequence[bytes]) -> list[bytes]:
    """`count` accepted publishes, dealt over topics and operators."""
    return [
        entries.operation(
            operators[i % len(operators)],
            OperatorRole.PUBLISHER,
            tokens[i % len(tokens)],
            2,
            time_ms=NOW_MS + i,
            request=seed(f"request {i}"),
            host="10.0.0.7",
            first=i,
            end=i + 1,
        )
        for i in range(count)
    ]


def request(
    who: Actor,
    node: Actor,
    *,
    path: str = f"/v1/topics/{token('heart').hex()}/parcels",
    now: int = NOW_S,
    nonce: int = 0,
) -> Envelope:
    """A signed request of `who` to publish, as a node receives it."""
    target = {"method": "POST", "authority": "node", "path": path, "query": ""}
    chosen = nonce.to_bytes(16, "big")
    unsigned = Envelope(
        **target,
        digest=sha256(b"").digest(),
        node=node.id,
        principal=who.id,
        created=now,
        nonce=chosen,
        signature=b"",
    )
    signed = replace(unsigned, signature=who.key.sign_raw(unsigned.base))
    return check_evidence(signed.evidence(), lambda principal: who.key.public)


def refusal(who: Actor, envelope: Envelope, *, reason: str = "no-right", token_: bytes | None = None) -> bytes:
    return entries.operation(
        who.id,
        OperatorRole.PUBLISHER,
        token_ or token("heart"),
        Right.WRITE,
        time_ms=NOW_MS,
        request=envelope.base_hash,
        reason=reason,
        host="10.0.0.9",
        evidence=envelope.evidence(),
    )
