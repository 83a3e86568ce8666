"""`audit`: misbehaviour from the ledger's operations, and from a topic's log held to its anchors.

1. the newest checkpoint is accepted, or the ledger itself is the finding;
2. its blocks are replayed into the table `ledger` (audit_ledger.py);
3. the headers of a topic that the auditor may read are proved into the table `parcels` (audit_parcels.py);
4. the rules are asked (audit_rules.py), names resolved as far as the auditor's authority tells them;
5. what they say now is a batch of the table `findings`: the newest batch is the state of knowledge.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.pandas.types import from_arrow_schema

from tallystick import wire
from tallystick.client.session import Session
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable, Withheld
from tallystick.identity.folder import first_trust_file
from tallystick.ledger.block import Head, read_head
from tallystick.pipeline.access import admit
from tallystick.pipeline.jobs import audit_ledger, audit_parcels
from tallystick.pipeline.jobs.audit_findings import ALARM, SCHEMA, SEVERITIES, TABLE
from tallystick.pipeline.jobs.audit_rules import Audited, judge
from tallystick.pipeline.jobs.registry import AuditSettings
from tallystick.pipeline.jobs.run import JobRun, explained
from tallystick.pipeline.jobs.warehouse import WarehouseTable
from tallystick.trust.trustfile import TrustFile

NAMES = "names"  # identifiers and what they are called, for a report that is made elsewhere
_EVERY_S = 10.0
_TOLD_HEIGHTS = 10_000
_ROWS_SMALL = 500_000
# For small tables most of the time goes into planning, shuffling and compiling, not into rows: one partition, so that
# rules that group, sort and join shuffle nothing, and plans that are interpreted as they stand. Half the time of all.
_SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# What to do about a ledger that cannot be believed.
_NEXT = "write nothing more, keep both checkpoints (tally ledger status), ask the witnesses, call the operator"
_KEY = ("rule", "severity", "principal", "token", "partition", "first_time", "count")
_NAMES_SCHEMA = pa.schema([("identifier", pa.string()), ("kind", pa.string()), ("name", pa.string())])


def run(run: JobRun) -> dict[str, Any]:
    settings = AuditSettings.of(run.options)
    with Session.open(run.home) as session:
        run.warehouse.claim(session.identity.instance)
        auditor = Auditor(run, session, settings)
        with run.warehouse.writing("audit"), explained():
            summary = auditor.round()
            while run.follow and not run.stop.wait(run.options.get("every_s", _EVERY_S)):
                run.tell(f"height {summary['height']}: {summary['findings']} findings")
                try:
                    summary = auditor.round()
                except Unavailable as error:  # a node that is away says nothing about anybody; the next round asks it
                    run.tell(f"note: no round: {error}")
            return summary


class Auditor:
    def __init__(self, run: JobRun, session: Session, settings: AuditSettings) -> None:
        self._run, self._session, self._settings = run, session, settings
        self._first = first_trust_file(session.identity.trust, run.options.get("genesis"))
        self._topic = run.topic or run.warehouse.facts().get("topic")

    def round(self) -> dict[str, Any]:
        """Take steps 1 to 5. What makes the ledger unbelievable is raised after it was written down."""
        run, tables = self._run, self._run.warehouse
        try:
            head = self._session.view.refresh()
            entries = audit_ledger.follow(
                tables.table(audit_ledger.TABLE), run.spark, self._session.node, self._first, head, self._advance
            )
        except (Forged, Malformed, Withheld) as error:
            self._write([_row(error.reason, str(error), [])], None)
            raise
        parcels = self._look_at_log()
        self._learn_names()
        counts = self._write(self._judge(head), head)
        return {
            "height": head.height,
            "entries": entries,
            "parcels": parcels,
            "findings": sum(counts.values()),
            **{f"{severity}s": counts.get(severity, 0) for severity in SEVERITIES},
            "vouched_by": head.vouched_by(self._session.memory.trust),
        }

    def _advance(self, height: int) -> None:
        if height and height % _TOLD_HEIGHTS == 0:
            self._run.tell(f"replayed to height {height}")

    def _look_at_log(self) -> int:
        """Bring the table of the topic's parcels up to date, where the auditor may read it. Returns how many were
        added."""
        if self._topic is None:
            self._run.tell("note: no topic is named, so no log is looked at; --topic names one")
            return 0
        home = str(self._session.identity.home)
        try:
            access = admit(home, self._topic)
        except (Refused, Misuse) as error:
            hint = f"; {error.hint}" if error.hint else ""
            self._run.tell(f'note: the log of topic "{self._topic}" is not looked at: {error}{hint}')
            return 0
        with closing(access):
            self._run.warehouse.claim(self._session.identity.instance, self._topic, access.token)
            table = self._run.warehouse.table(audit_parcels.TABLE)
            return audit_parcels.follow(table, self._run.spark, access, home, self._topic)

    def _learn_names(self) -> None:
        """Add the names that the authority tells this identity to the table, each once."""
        table, spark = self._run.warehouse.table(NAMES), self._run.spark
        known = {row["identifier"] for row in table.read(spark).collect()} if table.batches() else set()
        new = [row for row in names_told(self._session) if row["identifier"] not in known]
        if new:
            table.write_rows(spark, new, _NAMES_SCHEMA, {})

    def _judge(self, head: Head) -> list[dict[str, Any]]:
        """What the rules say now."""
        schemas = [*((one.TABLE, one.SCHEMA) for one in (audit_ledger, audit_parcels)), (NAMES, _NAMES_SCHEMA)]
        tables = {self._run.warehouse.table(name): schema for name, schema in schemas}
        small = sum(table.facts(n)["rows"] for table in tables for n in table.batches()) <= _ROWS_SMALL
        spark = self._small if small else self._run.spark
        frames = [_read(table, spark, schema) for table, schema in tables.items()]
        if small:
            frames = [frame.coalesce(1).cache() for frame in frames]
        audited = Audited(frames[0], frames[1], datetime.fromtimestamp(head.time_ms / 1000, UTC), self._settings)
        try:
            found = judge(audited, frames[2].select("identifier", "name")).toArrow()
            return list(found.to_pylist())
        finally:
            for frame in frames:
                frame.unpersist()

    @cached_property
    def _small(self) -> SparkSession:
        """A session with settings of its own, on the same engine."""
        spark = self._run.spark.newSession()
        for name, value in _SMALL.items():
            spark.conf.set(name, value)
        return spark

    def _write(self, at_hand: list[dict[str, Any]], head: Head | None) -> dict[str, int]:
        """The batch of this round: findings at hand, and those about the ledger as a whole that were kept. Returns how
        many of each severity are in it."""
        session, table = self._session, self._run.warehouse.table(TABLE)
        kept = [_contradiction(data, session.identity.trust) for data in session.memory.evidence()]
        known = {row["rule"] for row in kept}
        found = [*kept, *(row for row in at_hand if row["rule"] not in known)]
        counts = Counter(row["severity"] for row in found)
        facts: dict[str, Any] = {"counts": counts, "topic": self._topic, "says": _digest(found)}
        if self._run.follow and head is not None and facts["says"] == table.last().get("says"):
            return dict(counts)  # nothing new, also after a restart: a stream of rounds is no stream of batches
        if head is not None:  # what a report says of the ledger
            facts |= {"height": head.height, "time_ms": head.time_ms, "transactions": head.size}
            vouched_by = head.vouched_by(session.memory.trust)
            facts |= {"root": head.root.hex(), "cosigners": list(head.cosigners), "vouched_by": vouched_by}
        table.write_rows(self._run.spark, found, SCHEMA, facts)
        return dict(counts)


def _read(table: WarehouseTable, spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """A table, empty where it has no batch yet."""
    if table.batches():
        return table.read(spark)
    # `createDataFrame` would make this session the active one, in which whoever called us looks for its sources.
    columns = [lit(None).cast(field.dataType).alias(field.name) for field in from_arrow_schema(schema)]
    return spark.range(0).select(columns)


def _digest(found: list[dict[str, Any]]) -> str:
    """What tells findings from those of another round."""
    keys = sorted(repr([row.get(name) for name in _KEY]) for row in found)
    return named_hash("tallystick findings 1", "\n".join(keys).encode()).hex()[:16]


def _contradiction(data: bytes, trust: TrustFile) -> dict[str, Any]:
    """A contradiction as the checkpoint memory kept it: [reason, accepted note, the other note, or its size, …]."""
    reason, *notes = wire.decode(data, "evidence")
    heights = []
    for note in notes[:2]:
        with suppress(Refused, TypeError):
            heights.append(read_head(note, trust).height)
    return _row(reason, "two checkpoints of this ledger contradict each other", heights)


def _row(reason: str, message: str, heights: list[int]) -> dict[str, Any]:
    """A finding about the ledger as a whole; what it does not name is null."""
    evidence = [{"height": height, "index": None} for height in heights]
    facts = {"rule": f"ledger-{reason}", "severity": ALARM, "count": 1, "message": message}
    return {**facts, "evidence": evidence, "next": _NEXT}


def names_told(session: Session) -> list[dict[str, str]]:
    """Every name that the authority tells the identity of the session."""
    found: list[dict[str, str]] = []
    after = b""
    while True:
        page = session.authority.names(after)
        for kind, pairs in (("topic", page.topics), ("principal", page.principals)):
            found += [{"identifier": identifier.hex(), "kind": kind, "name": name} for identifier, name in pairs]
        after = page.after
        if not after:
            return found
