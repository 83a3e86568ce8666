"""The embedded ledger: operations per second by batch size (BPS Fig. 7), and a topic's history against a full scan.

`ledger_batch_N` submits transactions of N operations, each in a block of its own with its own sync, from 200 operators
on 50 topics; composing and signing them is the node's work and not counted. The paper finds the best throughput at 512
and claims linear growth up to it; a signature, a block and a sync per transaction make the same shape here.
`history_N` asks for one topic's history while other topics make the chain grow: along the links the cost follows the
answer, by scanning it follows the chain (BPS 4.1). `ledger_day_…` is what 10,000 vehicles write.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any

from harness import Case, Figure, Rate

from tallystick.crypto.signatures import RootKey, Signer, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.engine import Query
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

SIZES = (1, 8, 64, 256, 512, 1024, 4096)
TARGETS = {512: 100_000}  # operations a second
OPERATIONS, SINGLES = 8_192, 32  # a round, in batches and one by one
CHAINS = (20, 80, 320)  # transactions of 256 operations
VEHICLES, PARCEL_S = 10_000, 10
NOW_MS = 1_791_000_000_000
TOPICS, OPERATORS = 50, 200
TENANT = b"the only tenant."


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


class Fleet:
    """An instance with a node, topics and vehicles, on a ledger in a folder."""

    def __init__(
        self,
        folder: str,
        ledger_keys: tuple[bytes, ...] = (),
        open_ledger: Callable[[TrustFile], Any] | None = None,
    ) -> None:
        """On a chain `ledger_keys` are the validators', and `open_ledger` starts it for the trust file."""
        self.root = RootKey.from_seed(digest("root"))
        self.ledger_key = SigningKey.from_seed(digest("ledger"))
        self.trust = TrustFile(
            number=1,
            first=b"",
            name="bench",
            roots=(self.root.public.raw,),
            threshold=1,
            ledger_keys=ledger_keys or (self.ledger_key.public.raw,),
            ledger_threshold=2 * len(ledger_keys) // 3 + 1,
            witnesses=(),
            quorum=0,
        ).sign(self.root)
        self.numbers: dict[bytes, int] = {}
        self.authority_key, self.node_key, self.owner_key = (
            SigningKey.from_seed(digest(name)) for name in ("authority", "node", "owner")
        )
        by_root = self.trust.root_signer(self.root)
        authority = self.certify(self.authority_key, SubjectKind.AUTHORITY, ALL_TENANTS, ROOT_ID, by_root)
        node = self.certify(self.node_key, SubjectKind.NODE, ALL_TENANTS, ROOT_ID, by_root)
        self.authority, self.node = authority.subject, node.subject
        principals = [
            self.certify(key, SubjectKind.PRINCIPAL, TENANT, self.authority, self.authority_key)
            for key in (self.owner_key, *(SigningKey.from_seed(digest(f"car {i}")) for i in range(OPERATORS)))
        ]
        self.owner, *self.operators = (certificate.subject for certificate in principals)
        self.tokens = [digest(f"topic {i}")[:16] for i in range(TOPICS)]
        self.path = Path(folder) / "ledger.db"
        self.ledger = open_ledger(self.trust) if open_ledger is not None else self._open_sqlite()
        self.submit(self.authority, self.authority_key, [entries.enrol(c) for c in (authority, node, *principals)])
        self.submit(self.owner, self.owner_key, [self.topic(token) for token in self.tokens])
        self.ledger.flush(NOW_MS)

    def _open_sqlite(self) -> SqliteLedger:
        return SqliteLedger(str(self.path), self.trust, self.ledger_key, NOW_MS)

    def certify(self, key: SigningKey, kind: SubjectKind, tenant: bytes, issuer: bytes, signer: Signer) -> Certificate:
        subject = subject_id(self.trust.instance, key.public.raw)
        return Certificate(self.trust.instance, kind, subject, tenant, key.public.raw, b"", 0, 2 * NOW_MS, issuer).sign(
            signer
        )

    def topic(self, token: bytes) -> bytes:
        return entries.topic(
            *(self.trust.instance, token, TENANT, self.owner, self.owner_key),
            nodes=[self.node],
            schema_hash=digest("schema"),
        )

    def compose(self, author: bytes, key: SigningKey, written: list[bytes]) -> bytes:
        self.numbers[author] = self.numbers.get(author, 0) + 1
        return compose(self.trust.instance, author, self.numbers[author], written, key).data

    def submit(self, author: bytes, key: SigningKey, written: list[bytes]) -> None:
        self.ledger.submit(self.compose(author, key, written), NOW_MS)

    def operations(self, count: int, tokens: list[bytes]) -> list[bytes]:
        dealt = zip(range(count), cycle(tokens), cycle(self.operators), strict=False)
        return [
            entries.operation(
                *(operator, OperatorRole.PUBLISHER, token, Right.WRITE),
                time_ms=NOW_MS + i,
                request=digest(f"request {i}"),
                host="10.0.0.7",
                first=i,
                end=i + 1,
            )
            for i, token, operator in dealt
        ]


class Batches:
    """Transactions of `size` operations for a ledger: composed beforehand, then submitted, each a block of its own."""

    def __init__(self, folder: str, size: int, count: int) -> None:
        self._fleet = Fleet(folder)
        self._written = self._fleet.operations(size, self._fleet.tokens)
        self.operations = size * count
        self._count = count
        self._waiting: list[bytes] = []

    def compose(self) -> None:
        node, key = self._fleet.node, self._fleet.node_key
        self._waiting = [self._fleet.compose(node, key, self._written) for _ in range(self._count)]

    def submit(self) -> None:
        for data in self._waiting:
            self._fleet.ledger.submit(data, NOW_MS)
            self._fleet.ledger.flush(NOW_MS)

    @property
    def height(self) -> int:
        return self._fleet.ledger.height

    def close(self) -> int:
        """The size of the ledger's file."""
        self._fleet.ledger.close()
        return self._fleet.path.stat().st_size


def batch_cases() -> Iterator[Rate]:
    """`ledger_batch_N`: operations a second, stored and synced, against transactions of one."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
            peer, ours = Batches(one, 1, SINGLES), Batches(many, size, _count(size))

            def compose(ours: Batches = ours, peer: Batches = peer) -> None:
                ours.compose()
                peer.compose()

            yield Rate(
                f"ledger_batch_{size}",
                ours.submit,
                ours.operations,
                "operations/s",
                waits=True,
                peer=peer.submit,
                peer_amount=peer.operations,
                before=compose,
                target=TARGETS.get(size),
            )
            ours.close()
            peer.close()


def core_cases() -> Iterator[Rate]:
    """`ledger_core_512`: as `ledger_batch_512`, by the processor's time alone: what the disk's sync leaves possible."""
    with tempfile.TemporaryDirectory() as folder:
        batches = Batches(folder, 512, _count(512))
        yield Rate("ledger_core_512", batches.submit, batches.operations, "operations/s", before=batches.compose)
        batches.close()


def _count(size: int) -> int:
    """Transactions a round."""
    return min(SINGLES, max(2, OPERATIONS // size))


def history_cases() -> Iterator[Case]:
    """`history_N`: one topic's 500 operations on a chain of N transactions, along the links against a full scan."""
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(folder)
        quiet, *busy = made.tokens
        made.submit(made.node, made.node_key, made.operations(500, [quiet]))
        made.ledger.flush(NOW_MS)
        others, length = made.operations(256, busy), 0

        def linked() -> None:
            assert len(made.ledger.history(quiet, 1000)) == 500

        def scanned() -> None:
            everything = made.ledger.audit(Query(kind=35, most=1 << 40))
            assert sum(item.fields[3] == quiet for item in everything) == 500

        for wanted in CHAINS:
            for _ in range(wanted - length):
                made.submit(made.node, made.node_key, others)
                made.ledger.flush(NOW_MS)
            length = wanted
            yield Case(f"history_{wanted}", linked, scanned, unit="ms/query", rounds_max=3, scale=1e3)
        made.ledger.close()


def size_cases() -> Iterator[Figure]:
    """`ledger_bytes_N`: what the ledger's file takes for an operation, N a transaction. From them a day of a fleet that
    sends a parcel every ten seconds: `each` with the hundred that a commit then finds, `minutes` with one entry for
    each vehicle and minute."""
    found = {}
    for size in (1, 16, 128, 512):
        found[size] = _operation_bytes(size)
        yield Figure(f"ledger_bytes_{size}", found[size], None, "bytes/entry")
    each, minutes = 24 * 3600 / PARCEL_S * found[128], 24 * 60 * found[512]
    for name, grown, source in (("each", each, "ledger_bytes_128"), ("minutes", minutes, "ledger_bytes_512")):
        yield Figure(f"ledger_day_{name}", VEHICLES * grown / (1 << 30), None, "GiB/day", extrapolated=source)


def _operation_bytes(size: int) -> float:
    """From two files of different length, so that what both hold does not count."""
    sizes = []
    for count in (64, 192):  # the index of mentions grows by 64 transactions
        with tempfile.TemporaryDirectory() as folder:
            batches = Batches(folder, size, count)
            batches.compose()
            batches.submit()
            sizes.append(batches.close())
    return (sizes[1] - sizes[0]) / 128 / size


def cases() -> Iterator[Case | Rate | Figure]:
    yield from batch_cases()
    yield from core_cases()
    yield from history_cases()
    yield from size_cases()
