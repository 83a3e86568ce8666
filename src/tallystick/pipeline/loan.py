"""What a driver lends its tasks, so that the identity's folder is on the driver's machine and nowhere else.

Threat: an identity that lies on every machine of a cluster, for whoever comes by. A loan holds what the tasks of one
query need and is in memory only. It does not hold the sealing key, so its holder gets nothing from the authority: no
key of another topic or of a later epoch, no new keys for the identity.

A `Loan` is for reading: the keys of the query's permit, without those destroyed by now; the attribute key, where the
authority has attributes; the secrets of share locks that what was planned needs; the seed that signs requests, without
which a node answers nobody; the way to Kafka, if the identity has one. At an overlay tasks that read need no way: they
ask the relays of the identity's edge over ordinary requests, one after the other, and hold what comes to its anchors as
always.

A `WritingLoan` opens nothing: it holds the public halves under which lane keys are wrapped, the keys of labels where
the topic has them, the permit, the seed that signs parcels and requests, and the identity's own way, if it has one;
certificates, trust file and newest checkpoint come along, and are public. It holds neither the undo token, nor the key
of the identity's own spool, nor a key of any other lane. A task draws the keys of the lanes that it opens itself and
keeps them on its own disk, wrapped under a key that comes from the seed.

Why the seed: permits name the key that signs parcels, and could name one drawn for a query; but a node takes a request
only from the enrolled key, so that it stays the principal's own doing (docs/decisions/0028).

Loans travel with each task, over the channel that `session` has checked. Spark neither logs nor shows what a partition
holds; a loan has no text form that could slip into an error. What a writing loan was made with counts until the write
ends. A permit that ends meanwhile, or an epoch that a revocation began meanwhile, ends the write: the next one has a
newer loan.

Left out: whoever runs code in an executor holds the seed and may act in the identity's name where the node alone
decides, until the identity is given new keys (`tally principal rekey`). Give a pipeline an identity of its own that may
read, and nothing else. What a writing task finds against the ledger lies with its lanes, on the executor's disk, and
its error names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Carrier
from tallystick.carriers.registry import Way, Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Held
from tallystick.client.session import HEAD_AGE_MAX_S, Session
from tallystick.client.ties import Ties, View
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Refused
from tallystick.identity.folder import Identity, Keys
from tallystick.identity.nodes import addresses
from tallystick.ledger.block import read_head
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation
from tallystick.trust.trustfile import TrustFile

EPOCH_S = 10.0  # an epoch that has begun by the task's clock begins for the node with its next block
_AGAIN = "run the job, or start the query, again: it borrows anew"


@dataclass(frozen=True, repr=False)
class Loan:
    """Plain values, as slices are."""

    instance: bytes
    permit: bytes  # its identifier
    grant: bytes
    attributes: bytes  # the attribute key, in the epochs that have begun; empty where there is none
    principal: bytes
    signing_seed: bytes
    nodes: tuple[tuple[str, bytes, bytes], ...]  # address, identifier, key
    way: Way | None = None  # past the node, if the identity has one
    shares: tuple[tuple[bytes, bytes], ...] = ()  # secrets of share locks, by the locks' names


@dataclass(frozen=True, repr=False)
class WritingLoan:
    """Plain values, as slices are."""

    certificate: bytes
    authority: bytes  # its certificate, and the nodes'
    nodes: tuple[bytes, ...]
    node_urls: tuple[str, ...]
    trust: str
    checkpoint: bytes  # the newest that the driver accepted
    signing_seed: bytes
    grant: bytes
    way: Way | None  # past the node, if the identity has one

    @property
    def place(self) -> str:
        """The name of a folder for what is sealed with this key under this permit's topic."""
        key, token = SigningKey.from_seed(self.signing_seed).public.raw, Grant.decode(self.grant).token
        return named_hash("tallystick spark lanes 1", key + token).hex()[:16]


def lend(
    session: Session, permit: bytes, grant: Grant, attributes: bytes, shares: tuple[tuple[bytes, bytes], ...] = ()
) -> Loan:
    """The loan of `grant`, everything that is held under the permit, of the attribute key, and of secrets that were
    shared."""
    identity, way = session.identity, session.way
    nodes = tuple((one.url, one.node, b"" if one.key is None else one.key.raw) for one in addresses(identity))
    grant = replace(grant, permit=b"", undo_token=b"", epochs=(), labels=None)  # what opens, and nothing else
    opening = (identity.instance, permit, grant.encode(), attributes)
    return Loan(*opening, identity.principal, identity.keys.signing_seed, nodes, way and way.for_reading, shares)


def lend_writing(session: Session, held: Held) -> WritingLoan:
    """The loan of the identity of a session, for the topic of an advertise grant."""
    identity, head = session.identity, session.view.refresh()
    return WritingLoan(
        certificate=identity.certificate.encode(),
        authority=identity.authority.encode(),
        nodes=tuple(node.encode() for node in identity.nodes),
        node_urls=identity.node_urls,
        trust=session.memory.trust.to_json(),
        checkpoint=head.note,
        signing_seed=identity.keys.signing_seed,
        grant=replace(held.grant, undo_token=b"").encode(),
        way=session.way,
    )


class Borrowed:
    """The way to node and brokers of whoever got a loan."""

    def __init__(self, principal: bytes, key: SigningKey, nodes: list[Address]) -> None:
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self._signer = RequestSigner(principal, key)
        self._http = HttpClient(nodes, self._signer, self.clock, self.entropy)
        self.node = RemoteNode(self._http)

    @classmethod
    def by(cls, loan: Loan) -> Borrowed:
        nodes = [Address(url, node, VerifyKey(key) if key else None) for url, node, key in loan.nodes]
        borrowed = cls(loan.principal, SigningKey.from_seed(loan.signing_seed), nodes)
        borrowed._go(loan.way, None)
        return borrowed

    def _go(self, way: Way | None, view: View | None) -> None:
        who = Wayfarer(self.node, self._signer.principal, self._signer.key, view, self.clock, self.entropy)
        self._direct = None if way is None else way.open(who)
        self.carrier: Carrier = self._direct or self.node
        self.sharing = None if self._direct is None else self._direct.sharing

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._http.close()


class BorrowedWriter(Borrowed, Ties):
    """The `Ties` of whoever got a writing loan; `folder` holds what it learns of the ledger."""

    grants = None
    author = None  # a promise is broken long after the write was given up

    def __init__(self, loan: WritingLoan, folder: Path) -> None:
        self.identity = identity = _identity(loan, folder)
        super().__init__(identity.principal, identity.signing_key, addresses(identity))
        memory = CheckpointMemory(identity.trust, RealDisk(folder / "ledger"))
        lent = read_head(loan.checkpoint, identity.trust)
        if memory.head is None or memory.head.height < lent.height:
            memory.accept(loan.checkpoint, self.node.consistency)
        asking = self.node.ask_another, len({one.node for one in addresses(identity)})
        self.view = View(self.node, memory, self.clock, HEAD_AGE_MAX_S, *asking)
        self._go(loan.way, self.view)
        self.authority = _Lender(Grant.decode(loan.grant), self.clock)


def _identity(loan: WritingLoan, folder: Path) -> Identity:
    sealing = hpke.PrivateKey.generate(SystemEntropy().bytes(32))  # nobody's: the authority seals to another
    return Identity(
        home=folder,
        name="",
        certificate=Certificate.decode(loan.certificate),
        authority=Certificate.decode(loan.authority),
        nodes=tuple(map(Certificate.decode, loan.nodes)),
        node_urls=loan.node_urls,
        authority_url="",
        trust=TrustFile.parse(loan.trust),
        keys=Keys(loan.signing_seed, sealing.encode()),
    )


class _Lender:
    """Stands for the authority: it has given one grant, and has no other."""

    def __init__(self, grant: Grant, clock: Clock) -> None:
        self._grant: Grant | None = grant
        self._clock, self._asked_at = clock, float("inf")

    def permit(self, operation: Operation, topic: str | bytes) -> Grant:
        grant, self._grant = self._grant, None
        if grant is None or operation is not Operation.ADVERTISE:
            raise Refused("the permit that the driver lent has ended", reason="permit-ended", hint=_AGAIN)
        return grant

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        """Asked for where the node refuses the epoch that the grant says is current."""
        self._asked_at = min(self._asked_at, self._clock.monotonic())
        if self._clock.monotonic() < self._asked_at + EPOCH_S:
            return None
        raise Refused("a new epoch began after the driver lent its keys", reason="epoch-over", hint=_AGAIN)
