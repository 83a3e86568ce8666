"""The rules of the audit: functions from the tables `ledger` and `parcels` to findings, one for each kind of
misbehaviour (BPS 4.1 leaves the analysis to "a super administrator"; this is it).

What a principal did is judged by the ledger's own rights at that height (`entitled`), not by the reason that a node
gave; what a node did, by its operations, anchors and log, which must tell one story. A rule that needs a bound takes it
from `AuditSettings`. Honest traffic finds nothing: each rule has a test of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tallystick.pipeline.jobs.audit_findings import WARNING, evidence, place, rule
from tallystick.pipeline.jobs.audit_settings import AuditSettings

REPLAYED = ("duplicate", "stale", "future", "behind")
DENIED = ("no-right", "unknown-topic")  # what a node says to who has no right
_RESULT = ("rule", "severity", "principal", "token", "partition", "first_time", "last_time", "count", "evidence")


@dataclass(frozen=True)
class Audited:
    """What the rules look at: the tables, and the block time up to which they reach."""

    ledger: DataFrame
    parcels: DataFrame
    now: datetime
    settings: AuditSettings

    @property
    def operations(self) -> DataFrame:
        return self.ledger.where("kind = 'operation'")

    @property
    def anchors(self) -> DataFrame:
        return self.ledger.where("kind in ('anchor', 'notarise')")

    @property
    def writes(self) -> DataFrame:
        """Parcels that a node says it took."""
        return self.operations.where("operation = 'write' and reason is null and end > 0")

    @property
    def settled(self) -> datetime:
        """Before it, operations and anchors have had the time to meet."""
        return self.now - timedelta(seconds=self.settings.settle_s)


# --- principals ---


def unauthorised(audited: Audited) -> DataFrame:
    """Attempts at what the ledger gives no right to, whatever the guard stumbled over first."""
    settings = audited.settings
    found = _by_window(_attempts(audited), settings, "principal", "token")
    many = F.col("count") >= settings.unauthorised_many
    severity = F.when(many, WARNING).otherwise(rule("unauthorised").severity)
    found = found.where(F.col("count") >= settings.unauthorised_min)
    message = F.format_string("%d attempts without a right (%s)", "count", F.array_join("reasons", ", "))
    return _finding(found, "unauthorised", message, severity=severity)


def probing(audited: Audited) -> DataFrame:
    """One principal at several topics that it may not even describe."""
    settings = audited.settings
    found = _by_window(_attempts(audited), settings, "principal")
    found = found.where(F.size("tokens") >= settings.probing_topics_min)
    return _finding(found, "probing", F.format_string("tried %d topics without a right", F.size("tokens")))


def replay(audited: Audited) -> DataFrame:
    """Requests sent again, or dated wrongly: anybody may have sent those bytes, so nobody is named for most."""
    settings = audited.settings
    again = audited.operations.where(F.col("reason").isin(*REPLAYED))
    found = _by_window(again, settings, "principal", "token").where(F.col("count") >= settings.replay_min)
    message = F.format_string("%d requests again or misdated (%s)", "count", F.array_join("reasons", ", "))
    return _finding(found, "replay", message)


def flood(audited: Audited) -> DataFrame:
    """More refused requests than mistakes explain; without a name where nobody signed them."""
    settings = audited.settings
    refused = audited.operations.where("reason is not null")
    found = _by_window(refused, settings, "principal").where(F.col("count") >= settings.flood_min)
    message = F.format_string("%d refused requests (%s)", "count", F.array_join("reasons", ", "))
    return _finding(found, "flood", message)


def equivocation(audited: Audited) -> DataFrame:
    """Two signed parcels of one lane and sequence; both headers lie at the places named."""
    told = audited.ledger.where("kind = 'equivocation' or (kind = 'operation' and reason = 'equivocation')")
    found = told.groupBy("principal", "token").agg(*_span(audited.settings))
    return _finding(found, "equivocation", F.lit("signed two parcels of one sequence"))


def _attempts(audited: Audited) -> DataFrame:
    return audited.operations.where("reason is not null and entitled = false")


# --- groups ---


def offset_reset(audited: Audited) -> DataFrame:
    return _moved(audited, "offset-reset", F.col("end") < F.col("first"), "went back from offset %d to %d")


def offset_skip(audited: Audited) -> DataFrame:
    return _moved(audited, "offset-skip", F.col("end") > F.col("first"), "went on from offset %d to %d without reading")


def _moved(audited: Audited, name: str, which: Column, words: str) -> DataFrame:
    """Resets: a commit only goes forward, from where the group stands (ledger/contracts/groups.py)."""
    moved = audited.ledger.where("kind = 'reset-offset'").where(which)
    message = F.format_string(f"group %s {words}", F.substring("group", 1, 8), "first", "end")
    return _finding(_single(moved, F.abs(F.col("end") - F.col("first"))), name, message)


def retired_unread(audited: Audited) -> DataFrame:
    """Parcels whose bodies were given up before a group had read them."""
    marks = audited.ledger.where("kind = 'retire'").alias("mark")
    moves = audited.ledger.where("kind in ('commit-offset', 'reset-offset')").alias("move")
    before = F.expr(
        "mark.token = move.token and mark.partition = move.partition"
        " and struct(move.height, move.index) < struct(mark.height, mark.index)"
    )
    stood = (
        marks.join(moves, before)
        .groupBy("mark.height", "mark.index", "mark.time", "mark.token", "mark.partition", "mark.end", "move.group")
        .agg(F.max_by("move.end", F.struct("move.height", "move.index")).alias("stood"))
        .where(F.col("stood") < F.col("end"))
        .withColumn("principal", F.lit(None).cast("string"))
    )
    message = F.format_string(
        "group %s had read to %d, retired is below %d", F.substring("group", 1, 8), "stood", "end"
    )
    return _finding(_single(stood, F.col("end") - F.col("stood")), "retired-unread", message)


# --- lanes ---


def silent(audited: Audited) -> DataFrame:
    """Lanes that neither spoke nor closed for longer than heartbeats explain: between two parcels, or until now.

    Between two parcels the publisher's own times count where it tells them: a car without network seals its heartbeats
    and sends them later.
    """
    lane = Window.partitionBy("token", "partition", "publisher", "lane").orderBy("sequence")
    parcels = anchored(audited.parcels.where("found is null").withColumn("end", F.col("offset") + 1), audited.anchors)
    now = F.lit(audited.now)
    gap = _seconds("anchored_time", F.coalesce(F.lead("anchored_time").over(lane), now))
    sealed = _seconds("sealed", F.coalesce(F.lead("sealed").over(lane), now))
    went_on = audited.parcels.select("publisher", F.col("continues").alias("lane")).dropna().distinct()
    found = (
        parcels.withColumns(
            {
                "gap": F.least(gap, sealed),
                "is_last": F.lead("sequence").over(lane).isNull(),
                "last_time": F.coalesce(F.lead("anchored_time").over(lane), now),
            }
        )
        .where(f"kind != 'close' and gap > {audited.settings.silence_s}")
        .join(went_on.withColumn("went_on", F.lit(True)), ["publisher", "lane"], "left")
        .where("went_on is null or not is_last")  # another lane took over
        .withColumnsRenamed({"publisher": "principal", "anchored_height": "height", "anchored_index": "index"})
        .withColumn("time", F.col("anchored_time"))
    )
    message = F.format_string("lane %s: nothing for %d s after parcel %d", F.substring("lane", 1, 8), "gap", "sequence")
    return _finding(_single(found, F.lit(1), last=F.col("last_time")), "silent", message)


def gap(audited: Audited) -> DataFrame:
    """Rows that a publisher says it had to drop."""
    gaps = audited.parcels.where("kind = 'gap'").withColumn("end", F.col("offset") + 1)
    found = anchored(gaps, audited.anchors).withColumnsRenamed(
        {"publisher": "principal", "anchored_height": "height", "anchored_index": "index", "anchored_time": "time"}
    )
    message = F.format_string("lane %s: rows dropped before parcel %d", F.substring("lane", 1, 8), "sequence")
    return _finding(_single(found, F.lit(1)), "gap", message)


# --- nodes ---


def let_in(audited: Audited) -> DataFrame:
    """Served, though the ledger gave no right."""
    served = audited.operations.where("reason is null and entitled = false")
    found = _by_window(served, audited.settings, "author", "token", "principal")
    message = F.format_string("%d times served principal %s without a right", "count", F.substring("principal", 1, 8))
    return _finding(_of_node(found), "let-in", message)


def turned_away(audited: Audited) -> DataFrame:
    """Refused for want of a right that the ledger gives."""
    refused = audited.operations.where(F.col("reason").isin(*DENIED) & F.col("entitled"))
    found = _by_window(refused, audited.settings, "author", "token", "principal")
    message = F.format_string("%d times refused principal %s its right", "count", F.substring("principal", 1, 8))
    return _finding(_of_node(found), "turned-away", message)


def framing(audited: Audited) -> DataFrame:
    """Accusations whose evidence is not the operator's signed request for this act."""
    empty = audited.operations.where("evidence = 'nothing'")
    found = _by_window(empty, audited.settings, "author", "principal")
    message = F.format_string("%d accusations of principal %s prove nothing", "count", F.substring("principal", 1, 8))
    return _finding(_of_node(found), "framing", message)


def broken_promise(audited: Audited) -> DataFrame:
    """A node's signed word for an offset that the anchor does not keep; the contract has checked it."""
    broken = audited.ledger.where("kind = 'broken-promise'")
    return _finding(
        _single(broken, F.lit(1)), "broken-promise", F.format_string("promised offset %d is not kept", "first")
    )


def late_anchor(audited: Audited) -> DataFrame:
    """Parcels whose anchor came later than the ledger's own bound."""
    late = anchored(audited.writes, audited.anchors).withColumn("late", _seconds("acted", F.col("anchored_time")))
    late = late.where(f"late > {audited.settings.anchor_s}")
    found = _by_window(late, audited.settings, "author", "token", "partition", extra=[F.max("late").alias("worst")])
    message = F.format_string("%d parcels were anchored up to %d s after they were taken", "count", "worst")
    return _finding(_of_node(found), "late-anchor", message)


def unanchored(audited: Audited) -> DataFrame:
    """Parcels that a node took, by its own operations, and did not anchor."""
    lost = anchored(audited.writes, audited.anchors).where(
        (F.col("time") < F.lit(audited.settled)) & F.col("anchored_time").isNull()
    )
    found = _by_window(lost, audited.settings, "author", "token", "partition", extra=[F.max("end").alias("end")])
    message = F.format_string("operations tell of parcels up to offset %d, no anchor reaches them", "end")
    return _finding(_of_node(found), "unanchored", message)


def unaccounted(audited: Audited) -> DataFrame:
    """Anchored parcels that no operation tells of. A notary's partitions are left out: behind Kafka no guard stands."""
    places = ["token", "partition"]
    notarised = audited.anchors.where("kind = 'notarise'").select(*places).distinct()
    newest = (
        audited.anchors.where(F.col("time") < F.lit(audited.settled))
        .join(notarised, places, "left_anti")
        .groupBy(*places)
        .agg(F.max_by(F.struct("height", "index", "time", "author", "end"), "end").alias("anchor"))
        .select(*places, "anchor.*")
    )
    told = audited.writes.groupBy(*places).agg(F.sum("count").alias("told"))
    found = (
        newest.join(told, places, "left")
        .withColumn("missing", F.col("end") - F.coalesce("told", F.lit(0)))
        .where("missing > 0")
        .withColumn("principal", F.col("author"))
    )
    message = F.format_string("%d parcels are anchored, operations tell of %d fewer", "end", "missing")
    return _finding(_single(found, F.col("missing")), "unaccounted", message)


def log(audited: Audited) -> DataFrame:
    """What the headers themselves showed: a log that is not what was anchored, or a lane that does not hold."""
    bad = audited.parcels.where("found is not null").withColumn("end", F.col("offset") + 1)
    found = anchored(bad, audited.anchors).withColumns(
        {
            "height": F.col("anchored_height"),
            "index": F.col("anchored_index"),
            "time": F.col("anchored_time"),
            "principal": F.coalesce("publisher", "anchored_author"),
        }
    )
    name = F.concat(F.lit("log-"), F.col("found"))
    message = F.format_string("offset %d: %s", "offset", "message")
    return _finding(_single(found, F.lit(1)), "log-", message, name=name)


RULES: tuple[Callable[[Audited], DataFrame], ...] = (
    *(unauthorised, probing, replay, flood, equivocation, offset_reset, offset_skip, retired_unread, silent, gap),
    *(let_in, turned_away, framing, broken_promise, late_anchor, unanchored, unaccounted, log),
)


# --- what the rules share ---


def anchored(frame: DataFrame, anchors: DataFrame) -> DataFrame:
    """`frame` (token, partition, end) with the first anchor that covers `end`: its height, index, time and author.

    One sort for each partition instead of a join by range: anchors and ends in one order, and from each end the next
    anchor behind it.
    """
    facts = F.struct("height", "index", "time", "author")
    key = ("token", "partition", "end")
    marks = anchors.select(*key, facts.alias("anchor"), F.lit(None).alias("row"))
    rows = frame.select(*key, F.lit(None).alias("anchor"), F.struct(*frame.columns).alias("row"))
    order = Window.partitionBy("token", "partition").orderBy("end", F.col("anchor").isNotNull(), "anchor")
    ahead = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    both = rows.unionByName(marks.withColumn("row", F.lit(None).cast(rows.schema["row"].dataType)))
    return (
        both.withColumn("covers", F.first("anchor", ignorenulls=True).over(ahead))
        .where("row is not null")
        .select(
            "row.*",
            *(F.col(f"covers.{name}").alias(f"anchored_{name}") for name in ("height", "index", "time", "author")),
        )
    )


def _by_window(frame: DataFrame, settings: AuditSettings, *keys: str, extra: list[Column] | None = None) -> DataFrame:
    window = F.window("time", f"{settings.window_s} seconds").alias("window")
    return frame.groupBy(window, *keys).agg(
        *_span(settings),
        F.array_sort(F.collect_set("reason")).alias("reasons"),
        F.collect_set("token").alias("tokens") if "token" not in keys else F.lit(None).alias("tokens"),
        *(extra or []),
    )


def _span(settings: AuditSettings) -> list[Column]:
    return [
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
        F.sum("count").alias("count"),
        evidence(settings.evidence_max),
    ]


def _single(frame: DataFrame, count: Column, *, last: Column | None = None) -> DataFrame:
    """One entry, one finding."""
    return frame.withColumns(
        {
            "first_time": F.col("time"),
            "last_time": F.col("time") if last is None else last,
            "count": count,
            "evidence": place(),
        }
    )


def _of_node(frame: DataFrame) -> DataFrame:
    """Findings about the author of the entries, not about the principal that they name."""
    return frame.withColumnsRenamed({"principal": "other", "author": "principal"})


def _finding(
    frame: DataFrame, what: str, message: Column, *, severity: Column | None = None, name: Column | None = None
) -> DataFrame:
    known = rule(what)
    frame = frame.withColumns(
        {
            "rule": F.lit(what) if name is None else name,
            "severity": F.lit(known.severity) if severity is None else severity,
            "message": message,
            "next": F.lit(known.next),
        }
    )
    for column, type_ in (("principal", "string"), ("token", "string"), ("partition", "int")):
        if column not in frame.columns:
            frame = frame.withColumn(column, F.lit(None).cast(type_))
    return frame.select(*_RESULT, "message", "next")


def _seconds(start: str, end: Column) -> Column:
    """Whole seconds from a column of times to another."""
    return ((F.unix_micros(end) - F.unix_micros(start)) / 1_000_000).cast("long")
