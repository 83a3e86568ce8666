"""What a driver lends the tasks that write to a topic, so that they seal and sign without the identity's folder.

Threat: as of `loan`, of which this is the other direction. A writing loan opens nothing: it holds the public halves
under which lane keys are wrapped, the keys of labels where the topic has them, the permit, and the seed that signs
parcels and requests, and the way to Kafka, if the identity has one; certificates, trust file and newest checkpoint come
along, and are public. It holds neither the sealing key, nor the undo token, nor the key of the identity's own spool,
nor a key of any other lane. A task draws the keys of the lanes that it opens itself and keeps them on its own disk,
wrapped under a key that comes from the seed.

Why the seed: permits name the key that signs parcels, and could name one drawn for a query; but a node takes a request
only from the enrolled key, so that it stays the principal's own doing (docs/decisions/0028).

What a loan was made with counts until the write ends. A permit that ends meanwhile, or an epoch that a revocation began
meanwhile, ends the write: the next one has a newer loan. Left out: what a task finds against the ledger lies with its
lanes, on the executor's disk, and its error names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Carrier
from tallystick.carriers.registry import Way, own_way
from tallystick.carriers.remote import RemoteNode
from tallystick.client.grants import Held
from tallystick.client.session import HEAD_AGE_MAX_S, Session
from tallystick.client.ties import Ties, View
from tallystick.crypto import hpke
from tallystick.crypto.kdf import named_hash
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.ledger.block import read_head
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.client import HttpClient
from tallystick.runtime.clock import Clock, SystemClock
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.entropy import SystemEntropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Operation
from tallystick.trust.trustfile import TrustFile

EPOCH_S = 10.0  # an epoch that has begun by the task's clock begins for the node with its next block
_AGAIN = "run the job, or start the query, again: it borrows anew"


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


def lend(session: Session, held: Held) -> WritingLoan:
    """The loan of the identity of a session, for the topic of an advertise grant."""
    identity, head = session.identity, session.view.refresh()
    return WritingLoan(
        identity.certificate.encode(),
        identity.authority.encode(),
        tuple(node.encode() for node in identity.nodes),
        identity.node_urls,
        identity.trust.to_json(),
        head.note,
        identity.signing_seed,
        replace(held.grant, undo_token=b"").encode(),
        own_way(identity.home),
    )


class BorrowedWriter(Ties):
    """The `Ties` of whoever got a loan; `folder` holds what it learns of the ledger."""

    grants = None
    author = None  # a promise is broken long after the write was given up

    def __init__(self, loan: WritingLoan, folder: Path) -> None:
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self.identity = identity = _identity(loan, folder, self.entropy)
        signer = RequestSigner(identity.principal, identity.signing_key)
        self._http = HttpClient(addresses(identity), signer, self.clock, self.entropy)
        self.node = RemoteNode(self._http)
        self._direct = None if loan.way is None else loan.way.open(self.node, identity.principal)
        self.carrier: Carrier = self._direct or self.node
        memory = CheckpointMemory(identity.trust, RealDisk(folder / "ledger"))
        lent = read_head(loan.checkpoint, identity.trust)
        if memory.head is None or memory.head.height < lent.height:
            memory.accept(loan.checkpoint, self.node.consistency)
        self.view = View(self.node, memory, self.clock, HEAD_AGE_MAX_S)
        self.authority = _Lender(Grant.decode(loan.grant), self.clock)

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()
        self._http.close()


def _identity(loan: WritingLoan, folder: Path, entropy: SystemEntropy) -> Identity:
    return Identity(
        home=folder,
        name="",
        certificate=Certificate.decode(loan.certificate),
        authority=Certificate.decode(loan.authority),
        nodes=tuple(map(Certificate.decode, loan.nodes)),
        node_urls=loan.node_urls,
        authority_url="",
        trust=TrustFile.parse(loan.trust),
        signing_key=SigningKey.from_seed(loan.signing_seed),
        sealing_key=hpke.PrivateKey.generate(entropy.bytes(32)),  # nobody's: the authority seals to another
        signing_seed=loan.signing_seed,
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
