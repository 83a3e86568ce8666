"""`prove`: the proofs of any rows of a table as files, for anybody to check offline with `tally verify`.

A row of `bronze`, or of any table that kept its provenance columns, says where it comes from: partition, offset, leaf.
For each parcel one task fetches it, checks its receipt under the trust file, opens it once, and proves all of its rows
that are wanted. What a proof holds is the row as it was sealed, never the row of the table; the two are compared, and
the manifest says where they differ. A table that somebody edited is thus found, column by column.

Proofs go back to the driver as bytes, a few kilobytes each, which writes them; on a cluster it lends its tasks the keys
that open (`loan`), and the identity stays with it. An alert (`detect`) is proved by its first and its last frame. Left
out: rows of other tables that were computed from several rows; they have no provenance columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tallystick.carriers.carrier import Fetch
from tallystick.errors import Misuse, Refused
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.prove import Prover, verify_proof
from tallystick.parcel.verify import verify_named
from tallystick.pipeline.access import Access, TopicKeys, admit, borrow, join
from tallystick.pipeline.columns import Projection
from tallystick.pipeline.jobs.ingest import BRONZE
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.session import Channel
from tallystick.record.schema import Schema
from tallystick.trust.receipt import Receipt
from tallystick.trust.trustfile import TrustFile

PLACE = ("_partition", "_offset", "_leaf")
PROVED, DIFFERS, FAILED = "proved", "differs", "failed"
MANIFEST = "manifest.json"
_RESULT = pa.schema(
    [
        *(("partition", pa.int32()), ("offset", pa.int64()), ("leaf", pa.int32()), ("group", pa.int32())),
        *(("parcel", pa.string()), ("status", pa.string()), ("message", pa.string()), ("proof", pa.binary())),
    ]
)
_ROWS_MAX = 10_000
_PARCEL_BYTES = 1  # a fetch gives at least one parcel, whatever it weighs


def run(run: JobRun) -> dict[str, Any]:
    table, facts = run.warehouse.table(run.options.get("table", BRONZE)), run.warehouse.facts()
    where, most = run.options.get("where"), run.options.get("most", _ROWS_MAX)
    out: Path = run.options["out"]
    if "topic" not in facts:
        raise Misuse(f"{run.warehouse.folder}: no topic was ingested here", hint="tally pipeline run ingest …")
    if out.exists() and any(out.iterdir()):
        raise Misuse(f"{out}: not empty", hint="name a new folder with --out")
    with closing(admit(str(run.home), facts["topic"])) as access, explained():
        if not access.session.anchors:
            raise Misuse("the mesh anchors nothing, and what is not anchored is not proved")
        rows = _ends(wanted(table.read(run.spark), where, most))
        proofs = prove_rows(rows, access, lent=not Channel.of_session(run.spark).is_local)
        return _write([one.asDict() for one in proofs.collect()], out, run)


def wanted(rows: DataFrame, where: str | None, most: int) -> DataFrame:
    """The rows of a table that a condition in SQL selects. Raises `Misuse` where there are none or too many, or where
    the table cannot be traced."""
    missing = [name for name in PLACE if name not in rows.columns]
    if missing:
        raise Misuse(f"the table has no column {missing[0]}: its rows cannot be traced to parcels")
    if where:
        try:
            rows = rows.where(where)
        except (AnalysisException, ParseException) as error:
            told = str(error).splitlines()[0]
            raise Misuse(f"--where: {told}", hint=f"columns are {', '.join(rows.columns)}") from error
    found = rows.limit(most + 1).count()
    if not found:
        raise Misuse("no row of the table is meant", hint="look at it first: spark.read.parquet(…).where(…)")
    if found > most:
        raise Misuse(f"more than {most} rows are meant", hint="say more exactly which with --where, or raise --most")
    return rows


def _ends(rows: DataFrame) -> DataFrame:
    """Of alerts the first and the last frame, held to the vehicle alone; any other rows as they are."""
    if "_last_offset" not in rows.columns:
        return rows
    last = rows.select("vin", *(F.col(f"_last{name}").alias(name) for name in PLACE))
    return rows.select("vin", *PLACE).unionByName(last).distinct()


def prove_rows(rows: DataFrame, access: Access, *, lent: bool) -> DataFrame:
    """A row for each proof (partition, offset, leaf, group, parcel, status, message, proof), a parcel opened once.

    Tasks work with what is lent to them, or else as the identity of `access`.
    """
    schema, identity = rows.schema, access.session.identity
    trust, authority = access.session.memory.trust.to_json(), identity.authority.encode()
    topic = access.session.node.state(TOPICS(access.token)).encode()
    own = partial(join, str(identity.home), access.token.hex(), access.permit)
    keys: Callable[[], TopicKeys] = partial(borrow, access.loan()) if lent else own

    def prove(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener, projection = _Opener(keys(), TrustFile.parse(trust), authority, topic), Projection(schema)
        share = list(batches)
        for shown in _by_parcel(pa.Table.from_batches(share)) if share else ():
            yield pa.RecordBatch.from_pylist(_prove_parcel(opener, projection, shown), schema=_RESULT)

    # The parcels of a table are dealt to tasks whole, so that none is opened twice. A place that somebody took out of
    # the table is no place.
    parcels = rows.na.fill(-1, subset=list(PLACE)).repartition(F.col("_partition"), F.col("_offset"))
    return parcels.mapInArrow(prove, from_arrow_schema(_RESULT))


def _by_parcel(table: pa.Table) -> Iterator[list[dict[str, Any]]]:
    """The rows of each parcel, in the order of their leaves."""
    rows = table.sort_by([(name, "ascending") for name in PLACE]).to_pylist()
    for _, of_parcel in groupby(rows, itemgetter("_partition", "_offset")):
        yield list(of_parcel)


@dataclass(frozen=True)
class _Opener:
    """What a task opens and proves with."""

    keys: TopicKeys
    trust: TrustFile
    authority: bytes  # its certificate
    topic: bytes  # the state proof of its row


def _prove_parcel(opener: _Opener, projection: Projection, shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        opened = _Opened(opener, shown[0]["_partition"], shown[0]["_offset"])
        provers = {group: opened.prover(group) for group in projection.groups(opened.schema)}
        sealed = {group: projection.apply(prover.batch.data, {}).to_pylist() for group, prover in provers.items()}
    except Refused as error:
        return [_result(row, 0, FAILED, f"{error.reason}: {error}") for row in shown]
    found = []
    for group, prover in provers.items():
        columns = [name for name in opened.schema.groups[group] if name in shown[0]]
        for row in shown:
            try:
                data = prover.prove(row["_leaf"]).encode()
                verify_proof(data, opener.trust)  # what we hand out we have checked
            except (Refused, Misuse) as error:
                found.append(_result(row, group, FAILED, str(error), opened.name))
                continue
            told = _differences(row, sealed[group][row["_leaf"]], columns, opened.name)
            found.append(_result(row, group, DIFFERS if told else PROVED, "; ".join(told), opened.name, data))
    return found


class _Opened:
    """A parcel that its receipt proves to lie at this place, and what its proofs need."""

    def __init__(self, opener: _Opener, partition: int, offset: int) -> None:
        self._opener, keys = opener, opener.keys
        node, token = keys.node, keys.token
        fetched = node.fetch(Fetch(token, partition, keys.permit, offset, bytes_max=_PARCEL_BYTES, end=offset + 1))
        if fetched.first != offset or not fetched.parcels:
            raise Refused(f"partition {partition} has no parcel at offset {offset}", reason="missing")
        parcel = Parcel.decode(fetched.parcels[0])
        self._receipt = Receipt.decode(node.receipt(token, partition, offset))
        anchored = self._receipt.verify(parcel.hash, token, opener.trust)
        if (anchored.partition, anchored.offset) != (partition, offset):
            raise Refused("the receipt is for another place", reason="wrong-place")
        self.name = parcel.hash
        self._verified = verify_named(parcel, parcel.hash)
        header = parcel.header
        self.schema: Schema = keys.schema(header.schema_version, header.schema_hash)
        self._permit = node.permit(header.topic(token).permit)

    def prover(self, group: int) -> Prover:
        opener = self._opener
        shown = (self._permit, opener.authority, self._receipt, opener.topic)
        return Prover(self._verified, opener.keys.ring, self.schema, group, *shown)


def _differences(row: dict[str, Any], sealed: dict[str, Any], columns: list[str], parcel: bytes) -> list[str]:
    """Where the table's row is not the sealed one, in words."""
    told = [
        f"{name}: sealed is {_show(sealed[name])}, the table has {_show(row[name])}"
        for name in columns
        if not _same(row[name], sealed[name])
    ]
    if row.get("_parcel") not in (None, parcel.hex()):
        told.append(f"_parcel: at this place lies {parcel.hex()[:16]}…, the table has {_show(row['_parcel'])}")
    return told


def _same(one: Any, other: Any) -> bool:
    """Equal, where a NaN equals a NaN and lists and structs go by their items."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _show(value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _result(
    row: dict[str, Any], group: int, status: str, message: str, parcel: bytes = b"", proof: bytes | None = None
) -> dict[str, Any]:
    place = {name.removeprefix("_"): row[name] for name in PLACE}
    facts = {"group": group, "parcel": parcel.hex() or None, "status": status, "message": message or None}
    return {**place, **facts, "proof": proof}


def _write(proofs: Iterable[dict[str, Any]], out: Path, run: JobRun) -> dict[str, Any]:
    """The proofs as files, and the manifest that lists them."""
    out.mkdir(parents=True, exist_ok=True)
    listed, counts = [], dict.fromkeys((PROVED, DIFFERS, FAILED), 0)
    for one in proofs:
        item: dict[str, Any] = {**one, "file": None}
        data = item.pop("proof")
        if data is not None:
            item["file"] = f"{one['partition']}-{one['offset']}-{one['leaf']}-{one['group']}.proof"
            item["sha256"] = sha256(data).hexdigest()
            (out / item["file"]).write_bytes(data)
        counts[one["status"]] += 1
        if one["status"] != PROVED:
            place = f"partition {one['partition']}, offset {one['offset']}, row {one['leaf']}"
            run.tell(f"warning: {place}: {one['message']}")
        listed.append(item)
    listed.sort(key=lambda item: (item["partition"], item["offset"], item["leaf"], item["group"]))
    facts = run.warehouse.facts()
    manifest = {"format": 1, "instance": facts["instance"], "token": facts["token"], **counts, "proofs": listed}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return {"folder": str(out), **counts}
