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
        pa.field("entry", pa.binary()),  # as it was written, of those that are `OF_UPDATES`
    ]
)


# A fleet's updates, whose jobs read them again.
OF_UPDATES = (
    *(EntryKind.RELEASE_IMAGE, EntryKind.WITHDRAW_IMAGE, EntryKind.CAMPAIGN),
    *(EntryKind.REPORT_CAMPAIGN, EntryKind.STOP_CAMPAIGN, EntryKind.RESUME_CAMPAIGN),
)
# Which fields of an entry stand in its row as they are.
_TOKEN, _MOVE = (("token", 1),), (("group", 1), ("token", 3), ("partition", 4), ("first", 6), ("end", 7))
_PLAIN: dict[EntryKind, tuple[tuple[str, int], ...]] = {
    **dict.fromkeys(
        (EntryKind.ANCHOR, EntryKind.NOTARISE, EntryKind.JOINT_ANCHOR, EntryKind.RETIRE),
        (*_TOKEN, ("partition", 2), ("end", 3)),
    ),
    **dict.fromkeys((EntryKind.COMMIT_OFFSET, EntryKind.RESET_OFFSET), _MOVE),
    **dict.fromkeys((EntryKind.GROUP, EntryKind.JOIN, EntryKind.LEAVE), (("group", 1),)),
    **dict.fromkeys((EntryKind.GRANT, EntryKind.WITHDRAW), (*_TOKEN, ("principal", 2), ("host", 5))),
    **dict.fromkeys((EntryKind.GRANT_ATTRIBUTE, EntryKind.WITHDRAW_ATTRIBUTE), (("principal", 2),)),
    EntryKind.DROP_ATTRIBUTE: (("principal", 2),),
    EntryKind.ISSUE_PERMIT: (("token", 3), ("principal", 4)),
    **dict.fromkeys((EntryKind.REVOKE, EntryKind.LIFT), (("principal", 1),)),
    **dict.fromkeys((EntryKind.TOPIC, EntryKind.SCHEMA, EntryKind.CLOSE_TOPIC), _TOKEN),
    **dict.fromkeys((EntryKind.TOPIC_POLICY, EntryKind.ERASE, EntryKind.WRITE, EntryKind.ANNOUNCE_KEY), _TOKEN),
    EntryKind.ENTRUST: _TOKEN,
    EntryKind.LEASE: (*_TOKEN, ("partition", 2)),
    EntryKind.SUSPECT: (("principal", 3),),
    **dict.fromkeys((EntryKind.TWO_SETS, EntryKind.FALSE_SHARE), (("principal", 1),)),
    **dict.fromkeys((EntryKind.TWO_ORIGINS, EntryKind.TWO_ORDERS), (("principal", 1),)),
    **dict.fromkeys(OF_UPDATES, _TOKEN),
}


def name_of(kind: EntryKind) -> str:
    """As the column `kind` has it."""
    return kind.name.lower().replace("_", "-")


_KEPT = frozenset(map(name_of, OF_UPDATES))


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
    number = len(table.batches())
    replay = _load(table.folder, number - 1, first) if number else Replay(first)
    if replay.block is not None and replay.block.height >= head.height:
        if replay.block.height > head.height:
            told = f"ledger: the table has it to height {replay.block.height}, it shows {head.height}"
            raise Withheld(told, reason="rollback")
        replay.check_head(head)
    added, rows = 0, list[dict[str, Any]]()
    for block in _blocks(replay, source, head.height, rows):
        advance(block.height)
        is_last = block.height == head.height
        if is_last:
            replay.check_head(head)
        if rows and (is_last or len(rows) >= BATCH_ENTRIES):
            table.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(RealDisk(table.folder), f"_replay-{number}", replay.encode())
            table.write_rows(spark, rows, SCHEMA, {"height": block.height, "entries": len(rows)})
            for old in set(table.folder.glob("_replay-*")) - {table.folder / f"_replay-{number}"}:
                old.unlink()
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
                # Before the step: what an operation meant depends on the state that it found.
                shown = _Reader(replay.state, times).judge(data)
                step = replay.step(data)
                author, entries = step.transaction.author, step.transaction.entries
                facts = {"height": block.height, "time": as_us(block.time_ms), "author": author.hex(), "count": 1}
                for place, (row, entry) in enumerate(zip(shown, entries, strict=True), step.first):
                    kept = {"entry": entry} if row["kind"] in _KEPT else {}
                    rows.append({**facts, "index": place, "bytes": len(entry), **row, **kept})
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
        row: dict[str, Any] = {"kind": name_of(kind)}
        for name, at in _PLAIN.get(kind, ()):
            row[name] = fields[at].hex() if isinstance(fields[at], bytes) else fields[at]
        match kind:
            case EntryKind.OPERATION:
                row |= self._operation(author, fields)
            case EntryKind.BROKEN_PROMISE:
                promise = Promise.decode(fields[1])
                row |= {"principal": promise.node.hex(), "token": promise.token.hex(), "partition": promise.partition}
                row |= {"first": promise.offset, "end": promise.offset + 1, "acted": as_us(promise.time_ms)}
            case EntryKind.EQUIVOCATION:
                header = Header.decode(fields[3])
                row |= {"principal": fields[1].hex(), "token": header.topics[0].token.hex(), "first": header.sequence}
            case EntryKind.ENROL | EntryKind.REPLACE:
                row["principal"] = Certificate.decode(fields[1]).subject.hex()
            case _ if "group" in row:
                row["principal"] = author.hex()
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


def _load(folder: Path, number: int, first: TrustFile) -> Replay:
    """The replay as it was put down with a batch."""
    name = f"_replay-{number}"
    try:
        return Replay.decode(read_all(RealDisk(folder), name), first)
    except (Malformed, OSError, Unavailable) as error:
        hint = f"remove the folder {folder} and run the audit anew: it replays the ledger from its genesis"
        raise Misuse(f"{folder / name}: missing or damaged: {error}", hint=hint) from error


def as_us(time_ms: int) -> int:
    """A time as Arrow holds it. Spark's times end with the year 9999, so a later claim of a node becomes that."""
    return min(time_ms, _TIME_MS_MAX) * 1000
