"""A small instance for the tests of the authority: root, ledger on disk, one authority, principals as needed.

Everything is the real thing; only clock and entropy are seeded, Argon2id is cheap, and a block is made for each
transaction as it is submitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.authority import authority as front
from tallystick.authority.answers import Caller
from tallystick.authority.asks import AskPermit
from tallystick.authority.authority import Authority
from tallystick.authority.client import AuthorityClient, Holder, enrol, topic_entries
from tallystick.authority.settings import AuthorityLimits, AuthoritySettings
from tallystick.crypto import hpke
from tallystick.crypto.passphrase import Cost
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.state import State
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.record.schema import Schema
from tallystick.runtime.sources import Entropy, ManualClock, SeededEntropy
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

PASSPHRASE = b"correct horse battery staple"
CHEAP = Cost(memory_kib=64, iterations=1, lanes=1)
SCHEMA = Schema.parse("vin string not null, speed float32")
YEARS_MS = 10 * 365 * 86_400_000

READ = Right.READ | Right.DESCRIBE
WRITE = Right.WRITE | Right.DESCRIBE


class PromptClient:
    """The ledger in this process; makes a block for each transaction, as a node's driver would a moment later."""

    def __init__(self, ledger: SqliteLedger, clock: ManualClock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.checkpoint, self.consistency = ledger.checkpoint, ledger.consistency
        self.blocks, self.state = ledger.blocks, ledger.state

    def states(self, keys: Sequence[bytes]) -> list[StateProof]:
        return [self.state(key) for key in keys]

    def submit(self, transaction: bytes) -> None:
        now_ms = int(self.clock.now() * 1000)
        submitted = self.ledger.submit(transaction, now_ms)
        if submitted.height > self.ledger.height:
            self.ledger.flush(now_ms)


@dataclass
class Person:
    """A principal with its keys and its way to the authority."""

    holder: Holder
    client: AuthorityClient
    certificate: Certificate

    @property
    def id(self) -> bytes:
        return self.holder.principal


class World:
    """`entropy` replaces the seeded one, except for the keys of root, ledger and node, by which a folder that an
    earlier process left is found again.
    """

    def __init__(self, folder: Path, seed: int = 1, entropy: Entropy | None = None) -> None:
        self.folder = folder
        self.settings, self.limits = AuthoritySettings(), AuthorityLimits()
        seeded = SeededEntropy(seed)
        self.entropy: Entropy = entropy or seeded
        self.root, self.ledger_key, self.node_key = (
            RootKey.from_seed(seeded.bytes(32)),
            SigningKey.from_seed(seeded.bytes(32)),
            SigningKey.from_seed(seeded.bytes(32)),
        )
        self.trust = TrustFile(
            1, b"", "test", (self.root.public.raw,), 1, (self.ledger_key.public.raw,), 1, (), 0
        ).sign(self.root)
        self.clock = ManualClock()
        self.ledger = SqliteLedger(str(folder / "ledger.db"), self.trust, self.ledger_key, self.now_ms)
        self.clock.advance(max(0.0, self.ledger.block(self.ledger.height).time_ms / 1000 - self.clock.now()))
        self.ledger_client = PromptClient(self.ledger, self.clock)
        self._numbers = 0
        node = self._certify(SubjectKind.NODE, self.node_key.public.raw, bytes(32))
        self.node = node.subject
        if self.ledger.query(lambda state: state.get(b"identity/" + node.subject)) is None:
            self.submit(self.node_key, self.node, [entries.enrol(node)])
        if not (self.home / front.STORE_FILE).exists():
            request = front.create(self.home, PASSPHRASE, self.entropy, CHEAP)
            certificate = self._certify(SubjectKind.AUTHORITY, request.signing_key, request.sealing_key)
            front.install(self.home, certificate, self.trust)
        self.authority = self.open()
        self.authority_certificate = self.authority.certificate

    @property
    def home(self) -> Path:
        return self.folder / "authority"

    @property
    def instance(self) -> bytes:
        return self.trust.instance

    @property
    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    def _certify(self, kind: SubjectKind, signing_key: bytes, sealing_key: bytes) -> Certificate:
        return Certificate(
            self.instance,
            kind,
            subject_id(self.instance, signing_key),
            ALL_TENANTS,
            signing_key,
            sealing_key,
            self.now_ms,
            self.now_ms + YEARS_MS,
            ROOT_ID,
        ).sign(self.trust.root_signer(self.root))

    def open(self, home: Path | None = None, passphrase: bytes = PASSPHRASE) -> Authority:
        authority = front.open_authority(
            home or self.home,
            passphrase,
            self.ledger_client,
            self.clock,
            self.entropy,
            self.settings,
            self.limits,
        )
        authority.work()
        return authority

    def reopen(self) -> None:
        self.authority.close()
        self.authority = self.open()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a block at the end of it, and the authority at work."""
        self.clock.advance(seconds)
        self.ledger.flush(self.now_ms)
        self.authority.work()

    def submit(self, key: SigningKey, author: bytes, group: Sequence[bytes]) -> None:
        self._numbers += 1
        transaction = compose(self.instance, author, self.now_ms * 1000 + self._numbers, list(group), key)
        self.ledger_client.submit(transaction.data)

    def act(self, person: Person, *group: bytes) -> None:
        """Put a principal's own entries on the ledger; the authority takes notice."""
        self.submit(person.holder.signing_key, person.id, group)
        self.authority.work()

    def enrol(
        self, invite: str, name: str, key: SigningKey | None = None, sealing: hpke.PrivateKey | None = None
    ) -> Person:
        key = key or SigningKey.from_seed(self.entropy.bytes(32))
        sealing = sealing or hpke.PrivateKey.generate(self.entropy.bytes(32))
        enrolled = enrol(self.authority, self.instance, invite, name, key, sealing)
        certificate = Certificate.decode(enrolled.certificate)
        return self.person(Holder(self.instance, certificate.subject, key, sealing, certificate.tenant), certificate)

    def person(self, holder: Holder, certificate: Certificate) -> Person:
        return Person(
            holder,
            AuthorityClient(self.authority, self.authority_certificate, holder, self.entropy),
            certificate,
        )

    def again(self, person: Person) -> Person:
        """The same principal, speaking to the authority that is open now."""
        return self.person(person.holder, person.certificate)

    def tenant(self, name: str = "acme") -> Person:
        """A new tenant's owner."""
        return self.enrol(self.authority.enrolment.create_tenant(name), f"{name} owner")

    def member(self, name: str, tenant: str = "acme") -> Person:
        return self.enrol(self.authority.enrolment.invite_to(tenant), name)

    def ask_permit(self, caller: Caller, operation: Operation, token: bytes) -> bytes:
        """The sealed grant, for a request of this nonce."""
        return self.authority.answer(AskPermit(int(operation), "", token, 0, ""), caller)

    def topic(self, owner: Person, name: str = "brakes", flags: int = 0) -> bytes:
        draft = owner.client.create_topic(name, SCHEMA.encode(), flags=flags)
        self.act(owner, *topic_entries(draft, owner.holder))
        return draft.token

    def grant(self, owner: Person, token: bytes, person: Person, rights: int) -> None:
        self.act(owner, entries.grant(token, person.id, int(rights)))

    def withdraw(self, owner: Person, token: bytes, person: Person, rights: int) -> None:
        self.act(owner, entries.withdraw(token, person.id, int(rights)))


def epoch_value(token: bytes, epoch: int, state: State) -> Any:
    """What the ledger holds of an epoch."""
    return state.get(b"epoch/" + token + epoch.to_bytes(4, "big"))
