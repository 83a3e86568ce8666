"""The embedded ledger: operations per second by batch size (BPS Fig. 7), and a topic's history against a full scan.

    python benchmarks/ledger_bench.py

`bench_batch(n)` submits transactions of n operations, each in a block of its own with its own sync, from 200 operators
on 50 topics; composing and signing them is the node's work and not counted. The paper finds the best throughput at 512
and claims linear growth up to it; a signature, a block and a sync per transaction make the same shape here.
`bench_history()` asks for one topic's history while other topics make the chain grow: along the links the cost follows
the answer, by scanning it follows the chain (BPS 4.1).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path

from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts.access import Operation
from tallystick.ledger.contracts.operations import Role
from tallystick.ledger.engine import Query
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transaction import compose
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, Kind, subject_id
from tallystick.trust.signed import Signer
from tallystick.trust.trustfile import TrustFile

SIZES = (1, 8, 64, 256, 512, 1024, 4096)
TARGET_512 = 100_000  # operations a second
NOW_MS = 1_791_000_000_000
TOPICS, OPERATORS = 50, 200
TENANT = b"the only tenant."


def digest(name: str) -> bytes:
    return sha256(name.encode()).digest()


class Fleet:
    """An instance with a node, topics and vehicles, on a ledger in a folder."""

    def __init__(self, folder: str) -> None:
        self.root = RootKey.from_seed(digest("root"))
        self.ledger_key = SigningKey.from_seed(digest("ledger"))
        self.trust = TrustFile(
            number=1,
            first=b"",
            name="bench",
            roots=(self.root.public.raw,),
            threshold=1,
            ledger_keys=(self.ledger_key.public.raw,),
            ledger_threshold=1,
            witnesses=(),
            quorum=0,
        ).sign(self.root)
        self.numbers: dict[bytes, int] = {}
        self.authority_key, self.node_key, self.owner_key = (
            SigningKey.from_seed(digest(name)) for name in ("authority", "node", "owner")
        )
        by_root = self.trust.root_signer(self.root)
        authority = self.certify(self.authority_key, Kind.AUTHORITY, ALL_TENANTS, ROOT_ID, by_root)
        node = self.certify(self.node_key, Kind.NODE, ALL_TENANTS, ROOT_ID, by_root)
        self.authority, self.node = authority.subject, node.subject
        principals = [
            self.certify(key, Kind.PRINCIPAL, TENANT, self.authority, self.authority_key)
            for key in (self.owner_key, *(SigningKey.from_seed(digest(f"car {i}")) for i in range(OPERATORS)))
        ]
        self.owner, *self.operators = (certificate.subject for certificate in principals)
        self.tokens = [digest(f"topic {i}")[:16] for i in range(TOPICS)]
        self.ledger = SqliteLedger(str(Path(folder) / "ledger.db"), self.trust, self.ledger_key, NOW_MS)
        self.submit(self.authority, self.authority_key, [entries.enrol(c) for c in (authority, node, *principals)])
        self.submit(self.owner, self.owner_key, [self.topic(token) for token in self.tokens])
        self.ledger.flush(NOW_MS)

    def certify(self, key: SigningKey, kind: Kind, tenant: bytes, issuer: bytes, signer: Signer) -> Certificate:
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
                *(operator, Role.PUBLISHER, token, Operation.WRITE),
                time_ms=NOW_MS + i,
                request=digest(f"request {i}"),
                host="10.0.0.7",
                first=i,
                end=i + 1,
            )
            for i, token, operator in dealt
        ]


@contextmanager
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(folder)
        yield made
        made.ledger.close()


def bench_batch(n: int, operations: int = 20_000, rounds: int = 5) -> float:
    """Operations per second, stored and synced, in transactions of `n`: the best of `rounds` stretches."""
    with fleet() as made:
        written = made.operations(n, made.tokens)
        count = max(4, min(400, operations // n // rounds))
        best = 0.0
        for _ in range(rounds):
            transactions = [made.compose(made.node, made.node_key, written) for _ in range(count)]
            start = time.perf_counter()
            for data in transactions:
                made.ledger.submit(data, NOW_MS)
                made.ledger.flush(NOW_MS)
            best = max(best, count * n / (time.perf_counter() - start))
        return best


def bench_history(lengths: tuple[int, ...] = (20, 80, 320)) -> list[tuple[int, float, float]]:
    """(transactions in the chain, seconds along the links, seconds by a full scan) for one topic of 500 operations."""
    results = []
    with fleet() as made:
        quiet, *busy = made.tokens
        made.submit(made.node, made.node_key, made.operations(500, [quiet]))
        made.ledger.flush(NOW_MS)
        made_before = 0
        for length in lengths:
            for written in islice(cycle([made.operations(256, busy)]), length - made_before):
                made.submit(made.node, made.node_key, written)
                made.ledger.flush(NOW_MS)
            made_before = length
            start = time.perf_counter()
            linked = made.ledger.history(quiet, 1000)
            middle = time.perf_counter()
            scanned = [item for item in made.ledger.audit(Query(kind=35, most=1 << 40)) if item.fields[3] == quiet]
            end = time.perf_counter()
            assert len(linked) == len(scanned) == 500
            results.append((length, middle - start, end - middle))
    return results


def main() -> None:
    single = bench_batch(1)
    print(f"{'batch':>6}{'operations/s':>14}{'against 1':>11}")
    for n in SIZES:
        rate = single if n == 1 else bench_batch(n)
        print(f"{n:>6}{rate:>14,.0f}{rate / single:>11.1f}")
    print(f"\n{'chain':>6}{'links ms':>10}{'scan ms':>10}{'ratio':>7}")
    for length, linked, scanned in bench_history():
        print(f"{length:>6}{linked * 1e3:>10.1f}{scanned * 1e3:>10.1f}{scanned / linked:>7.0f}")


if __name__ == "__main__":
    main()
