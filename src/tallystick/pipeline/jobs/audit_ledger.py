"""The table `ledger`: every entry of the ledger, replayed and proved before it is written down.

Threat: the node that is audited is the node that is asked. Its blocks are taken from it and nothing else: every
transaction goes through the contracts again (`ledger.fsck`), and the last block must be the one under a checkpoint
that continues the last one accepted, with the signatures and witnesses that the trust file demands. An entry that was
left out, slipped in, moved or altered, or a result that the rules do not give, ends the audit by name.

The replay knows the state in which each entry was written, and notes of an operation what follows from that alone:

    entitled   whether the rules of that height let the operator do this from that host; null where they had just
               changed, where nobody or no topic is named
    evidence   "proves" or "nothing": whether a signed request that came with a refusal is the operator's own, for
               this topic and act, addressed to the node that shows it; null where none came

Batches go on where the last one ended: the replay is put down beside the table (`_replay-N`) before its batch.
Left out: the times of blocks before the last one are the engine's word, except where the state holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable, Withheld
from tallystick.ledger.block import Block, Head
from tallystick.ledger.contracts import access, identity
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole, asked
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.contracts.state import NOBODY, State
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.fsck import Replay
from tallystick.parcel.header import Header
from tallystick.pipeline.jobs.warehouse import WarehouseTable
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.trust.certificate import Certificate
from tallystick.trust.envelope import check_evidence
from tallystick.trust.promise import Promise
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

TABLE = "ledger"
BATCH_ENTRIES = 200_000  # some 100 MB while they are gathered
RIGHT_SETTLES_MS = 2_000  # a right that changed so shortly before an act, or after it, says nothing about it
_HEIGHTS_AT_ONCE = 64
_TIME = pa.timestamp("us", "UTC")
_TIME_MS_MAX = 253_402_300_799_000

SCHEMA = pa.schema(
    [
        pa.field("height", pa.int64(), False),
        pa.field("index", pa.int32(), False),  # of the entry in its block
        pa.field("time", _TIME, False),  # of the block
        pa.field("author", pa.string(), False),
        pa.field("kind", pa.string(), False),
        pa.field("bytes", pa.int32(), False),
        pa.field("token", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("principal", pa.string()),  # whom the entry is about: operator, publisher, subject, promising node
        pa.field("group", pa.string()),
        pa.field("role", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("reason", pa.string()),  # of a refusal; null if it was accepted
        pa.field("host", pa.string()),
        pa.field("count", pa.int64(), False),
        pa.field("first", pa.int64()),  # an operation's offsets, a commit's old one, an equivocation's sequence
        pa.field("end", pa.int64()),  # and their end, a commit's new one, an anchor's size, a retirement's mark
        pa.field("acted", _TIME),  # an operation's own time, as the node tells it
        pa.field("entitled", pa.bool_()),
        pa.field("evidence", pa.string()),
    ]
)


class BlockSource(Protocol):
    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]: ...


def follow(
    table: WarehouseTable,
    spark: SparkSession,
    source: BlockSource,
    first: TrustFile,
    head: Head,
    advance: Callable[[int], None] = lambda _height: None,
) -> int:
    """Bring the table up to the accepted checkpoint `head`. Returns how many entries were added. `advance` hears of
    heights."""
    notes = Notes(table.folder, first)
    number = len(table.batches())
    replay = notes.load(number)
    if replay.block is not None and replay.block.height >= head.height:
        if replay.block.height > head.height:
            raise Withheld(
                f"ledger: the table has it to height {replay.block.height}, it shows {head.height}", reason="rollback"
            )
        replay.check_head(head)
    added, rows = 0, list[dict[str, Any]]()
    for block in _blocks(replay, source, head.height, rows):
        advance(block.height)
        is_last = block.height == head.height
        if is_last:
            replay.check_head(head)
        if rows and (is_last or len(rows) >= BATCH_ENTRIES):
            notes.save(number, replay)
            frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).coalesce(1)
            table.write(frame, {"height": block.height, "entries": len(rows)})
            notes.forget_before(number)
            added, number = added + len(rows), number + 1
            rows.clear()
    return added


def _blocks(replay: Replay, source: BlockSource, last: int, rows: list[dict[str, Any]]) -> Iterator[Block]:
    """Replay up to the height `last`, and put a row for each entry into `rows`."""
    times: dict[int, int] = {}
    while replay.height <= last:
        answer = source.blocks(replay.height, min(_HEIGHTS_AT_ONCE, last + 1 - replay.height))
        if not answer:
            raise Unavailable(f"the node does not show block {replay.height}, though its checkpoint is at {last}")
        for encoded, transactions in answer:
            block = Block.decode(encoded)
            times[block.height] = block.time_ms
            replay.begin(block)
            for data in transactions:
                reader = _Reader(replay.state, times)
                # Before the step: what an operation meant depends on the state that it found.
                shown = reader.judge(data)
                step = replay.step(data)
                author, entries = step.transaction.author, step.transaction.entries
                for place, (row, entry) in enumerate(zip(shown, entries, strict=True), step.first):
                    rows.append(
                        {
                            "height": block.height,
                            "index": place,
                            "time": as_us(block.time_ms),
                            "author": author.hex(),
                            "bytes": len(entry),
                            "count": 1,
                            **row,
                        }
                    )
            replay.end()
            yield block


class _Reader:
    """The entries of a transaction as rows, judged by the state in which they were written."""

    def __init__(self, state: State, times: dict[int, int]) -> None:
        self._state, self._times = state, times

    def judge(self, data: bytes) -> list[dict[str, Any]]:
        """Lenient: what is not well-formed is found by the replay, which comes next."""
        try:
            frame = next(wire.decode_each([data], "transaction"))
            author: bytes = wire.decode(frame[0], "transaction head")[2]
            return [self._row(author, fields) for fields in wire.decode_each(frame[2])]
        except (Malformed, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
            raise Forged(f"transaction: not well-formed: {error}", reason="damaged") from error

    def _row(self, author: bytes, fields: Sequence[Any]) -> dict[str, Any]:
        kind = EntryKind(fields[0])
        row: dict[str, Any] = {"kind": kind.name.lower().replace("_", "-")}
        match kind:
            case EntryKind.OPERATION:
                row |= self._operation(author, fields)
            case EntryKind.ANCHOR | EntryKind.NOTARISE | EntryKind.RETIRE:
                row |= {"token": fields[1].hex(), "partition": fields[2], "end": fields[3]}
            case EntryKind.COMMIT_OFFSET | EntryKind.RESET_OFFSET:
                group, _, token, partition, _, old, new = fields[1:]
                row |= {"group": group.hex(), "principal": author.hex(), "token": token.hex()}
                row |= {"partition": partition, "first": old, "end": new}
            case EntryKind.GROUP | EntryKind.JOIN | EntryKind.LEAVE:
                row |= {"group": fields[1].hex(), "principal": author.hex()}
            case EntryKind.BROKEN_PROMISE:
                promise = Promise.decode(fields[1])
                row |= {"principal": promise.node.hex(), "token": promise.token.hex(), "partition": promise.partition}
                row |= {"first": promise.offset, "end": promise.offset + 1, "acted": as_us(promise.time_ms)}
            case EntryKind.EQUIVOCATION:
                header = Header.decode(fields[3])
                row |= {"principal": fields[1].hex(), "token": header.topics[0].token.hex(), "first": header.sequence}
            case EntryKind.GRANT | EntryKind.WITHDRAW:
                row |= {"token": fields[1].hex(), "principal": fields[2].hex(), "host": fields[5]}
            case EntryKind.GRANT_ATTRIBUTE | EntryKind.WITHDRAW_ATTRIBUTE:
                row |= {"principal": fields[2].hex()}
            case EntryKind.ISSUE_PERMIT:
                row |= {"token": fields[3].hex(), "principal": fields[4].hex()}
            case EntryKind.ENROL | EntryKind.REPLACE:
                row |= {"principal": Certificate.decode(fields[1]).subject.hex()}
            case EntryKind.REVOKE | EntryKind.LIFT:
                row |= {"principal": fields[1].hex()}
            case (
                EntryKind.TOPIC
                | EntryKind.SCHEMA
                | EntryKind.CLOSE_TOPIC
                | EntryKind.TOPIC_POLICY
                | EntryKind.ERASE
                | EntryKind.WRITE
            ):
                row |= {"token": fields[1].hex()}
        return row

    def _operation(self, author: bytes, fields: Sequence[Any]) -> dict[str, Any]:
        _, operator, role, token, kind, reason, host, count, partition, first, end, time_ms, request, evidence = fields
        known = operator != NOBODY
        return {
            "principal": operator.hex() if known else None,
            "role": OperatorRole(role).name.lower(),
            "token": token.hex() if token != NOBODY else None,
            "operation": (Right(kind).name or "").lower(),
            "reason": reason or None,
            "host": host or None,
            "count": count,
            "partition": partition,
            "first": first,
            "end": end,
            "acted": as_us(time_ms),
            "entitled": self._entitled(operator, token, kind, host, time_ms) if known else None,
            "evidence": self._evidence(author, operator, token, kind, request, evidence) if evidence else None,
        }

    def _entitled(self, operator: bytes, token: bytes, kind: int, host: str, time_ms: int) -> bool | None:
        """BPS 3.2, as the guards ask: not blacklisted, DESCRIBE, then the right itself."""
        state = self._state
        if state.get(TOPICS(token)) is None:
            return None
        settled_ms = time_ms - RIGHT_SETTLES_MS
        if access.changed_ms(state, operator, token) > settled_ms:
            return None
        standing = state.row(STANDINGS(operator))
        if standing is not None and standing.blacklisted:
            return False if self._times.get(standing.blacklisted, 0) <= settled_ms else None
        return all(access.allowed(state, operator, token, right, host) for right in {Right.DESCRIBE, Right(kind)})

    def _evidence(
        self, author: bytes, operator: bytes, token: bytes, kind: int, request: bytes, evidence: bytes
    ) -> str:
        """What `operations._judge` asks of it, without freshness and repetition, which are no lie."""

        def resolve(principal: bytes) -> VerifyKey | None:
            found = identity.find(self._state, principal)
            return None if found is None else VerifyKey(found.key)

        try:
            envelope = check_evidence(evidence, resolve)
        except Refused:
            return "nothing"
        is_own = (envelope.base_hash, envelope.principal, envelope.node) == (request, operator, author)
        return "proves" if is_own and asked(envelope) == (token, kind) else "nothing"


class Notes:
    """Where the replay of each batch is put down, so that the next one goes on from there."""

    def __init__(self, folder: Path, first: TrustFile) -> None:
        self._folder, self._first = folder, first

    def load(self, batches: int) -> Replay:
        """The replay as it stood after that many batches."""
        if batches == 0:
            return Replay(self._first)
        name = _name(batches - 1)
        try:
            return Replay.decode(read_all(RealDisk(self._folder), name), self._first)
        except (Malformed, OSError, Unavailable) as error:
            hint = f"remove the folder {self._folder} and run the audit anew: it replays the ledger from its genesis"
            raise Misuse(f"{self._folder / name}: missing or damaged: {error}", hint=hint) from error

    def save(self, number: int, replay: Replay) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(RealDisk(self._folder), _name(number), replay.encode())

    def forget_before(self, number: int) -> None:
        for path in self._folder.glob("_replay-*"):
            if path.name != _name(number):
                path.unlink()


def _name(number: int) -> str:
    return f"_replay-{number}"


def as_us(time_ms: int) -> int:
    """A time as Arrow holds it; what a node claims beyond the year 9999, where Spark's end, is cut to that."""
    return min(time_ms, _TIME_MS_MAX) * 1000
