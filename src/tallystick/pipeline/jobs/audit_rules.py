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
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tallystick.pipeline.jobs.audit_findings import ALARM, NOTICE, SCHEMA, WARNING
from tallystick.pipeline.jobs.registry import AuditSettings

REPLAYED = ("duplicate", "stale", "future", "behind")
DENIED = ("no-right", "unknown-topic")  # what a node says to somebody without a right
_RESOLVED = ("name", "topic")  # what `judge` adds to the columns of findings


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
    def attempts(self) -> DataFrame:
        """Operations that were refused and that no right of the ledger covers."""
        return self.operations.where("reason is not null and entitled = false")

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


Find = Callable[[Audited], DataFrame]
RULES: list[Find] = []


def judge(audited: Audited, names: DataFrame) -> DataFrame:
    """What all rules find, as one table, names resolved; `names` has (identifier, name)."""
    whole = reduce(lambda some, more: some.unionByName(more), [find(audited) for find in RULES])
    principals = names.withColumnsRenamed({"identifier": "principal"})
    topics = names.withColumnsRenamed({"identifier": "token", "name": "topic"})
    whole = whole.join(F.broadcast(principals), "principal", "left").join(F.broadcast(topics), "token", "left")
    return whole.select(*SCHEMA.names)


def rule(name: str, severity: str, next_: str) -> Callable[[Find], Find]:
    """Add a rule under its name. Its frame has the columns of findings that it knows, and its own name or severity
    where these differ from finding to finding."""

    def add(find: Find) -> Find:
        def findings(audited: Audited) -> DataFrame:
            frame = find(audited)
            usual = {"rule": F.lit(name), "severity": F.lit(severity), "next": F.lit(next_)}
            usual |= {column: F.lit(None).cast("string") for column in ("principal", "token")}
            usual |= {"partition": F.lit(None).cast("int")}
            whole = frame.withColumns({key: value for key, value in usual.items() if key not in frame.columns})
            return whole.select(*(column for column in SCHEMA.names if column not in _RESOLVED))

        RULES.append(findings)
        return findings

    return add


# --- principals ---


@rule("unauthorised", NOTICE, "ask the principal's tenant; revoke it if nobody knows why (tally principal revoke)")
def unauthorised(audited: Audited) -> DataFrame:
    """Attempts at what the ledger gives no right to, whatever the guard stumbled over first."""
    settings = audited.settings
    found = _by_window(audited, audited.attempts, "principal", "token").where(f"count >= {settings.unauthorised_min}")
    severity = F.when(F.col("count") >= settings.unauthorised_many, WARNING).otherwise(NOTICE)
    return _say(found.withColumn("severity", severity), "%d attempts without a right (%s)", "count", "reasons")


@rule("probing", WARNING, "revoke the principal unless its tenant explains it (tally principal revoke)")
def probing(audited: Audited) -> DataFrame:
    """One principal at several topics that it may not even describe."""
    topics = F.size(F.collect_set("token")).alias("topics")
    found = _by_window(audited, audited.attempts, "principal", extra=topics)
    found = found.where(f"topics >= {audited.settings.probing_topics_min}")
    return _say(found, "tried %d topics without a right", "topics")


@rule("replay", WARNING, "look for a recorder between clients and node, or a client whose clock is off (tally doctor)")
def replay(audited: Audited) -> DataFrame:
    """Requests sent again, or dated wrongly: anybody may have sent those bytes, so nobody is named for most."""
    again = audited.operations.where(F.col("reason").isin(*REPLAYED))
    found = _by_window(audited, again, "principal", "token").where(f"count >= {audited.settings.replay_min}")
    return _say(found, "%d requests again or misdated (%s)", "count", "reasons")


@rule("flood", WARNING, "limit the host in front of the node; revoke the principal where one is named")
def flood(audited: Audited) -> DataFrame:
    """More refused requests than mistakes explain; without a name where nobody signed them."""
    refused = audited.operations.where("reason is not null")
    found = _by_window(audited, refused, "principal").where(f"count >= {audited.settings.flood_min}")
    return _say(found, "%d refused requests (%s)", "count", "reasons")


@rule("equivocation", ALARM, "the principal is blacklisted: revoke it, and look for a clone of its machine")
def equivocation(audited: Audited) -> DataFrame:
    """Two signed parcels of one lane and sequence; both headers lie at the places named."""
    told = audited.ledger.where("kind = 'equivocation' or (kind = 'operation' and reason = 'equivocation')")
    return _say(told.groupBy("principal", "token").agg(*_span(audited)), "signed two parcels of one sequence")


# --- groups ---


@rule("offset-reset", NOTICE, "ask the group's owner: its members read rows a second time")
def offset_reset(audited: Audited) -> DataFrame:
    return _moved(audited, "`end` < `first`", "went back from offset %d to %d")


@rule("offset-skip", WARNING, "ask the group's owner: its members never read these rows (tally group reset goes back)")
def offset_skip(audited: Audited) -> DataFrame:
    return _moved(audited, "`end` > `first`", "went on from offset %d to %d without reading")


def _moved(audited: Audited, which: str, words: str) -> DataFrame:
    """Resets: a commit only goes forward, from where the group stands (ledger/contracts/groups.py)."""
    moved = audited.ledger.where("kind = 'reset-offset'").where(which)
    found = _single(moved, F.abs(F.col("end") - F.col("first")))
    return _say(found, f"group %s {words}", _short("group"), "first", "end")


@rule(
    "retired-unread",
    WARNING,
    "tally topic retain keeps rows longer; look why the group is behind, its rows are gone",
)
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
        .where("stood < `end`")
    )
    found = _single(stood, F.col("end") - F.col("stood"))
    return _say(found, "group %s had read to %d, retired is below %d", _short("group"), "stood", "end")


# --- lanes ---


@rule("silent", WARNING, "look at the publisher; where many went silent at once, at the node between")
def silent(audited: Audited) -> DataFrame:
    """Lanes that neither spoke nor closed for longer than heartbeats explain: between two parcels, or until now.

    Between two parcels the publisher's own times count where it tells them: a car without network seals its heartbeats
    and sends them later.
    """
    lane = Window.partitionBy("token", "partition", "principal", "lane").orderBy("sequence")
    now = F.lit(audited.now)
    gap = _seconds("time", F.coalesce(F.lead("time").over(lane), now))
    sealed = _seconds("sealed", F.coalesce(F.lead("sealed").over(lane), now))
    went_on = audited.parcels.select(F.col("publisher").alias("principal"), F.col("continues").alias("lane"))
    found = (
        _anchored_parcels(audited, "found is null")
        .withColumns(
            {
                "gap": F.least(gap, sealed),
                "is_last": F.lead("sequence").over(lane).isNull(),
                "last": F.coalesce(F.lead("time").over(lane), now),
            }
        )
        .where(f"kind != 'close' and gap > {audited.settings.silence_s}")
        .join(went_on.dropna().distinct().withColumn("went_on", F.lit(True)), ["principal", "lane"], "left")
        .where("went_on is null or not is_last")  # another lane took over
    )
    found = _single(found, F.lit(1)).withColumn("last_time", F.col("last"))
    return _say(found, "lane %s: nothing for %d s after parcel %d", _short("lane"), "gap", "sequence")


@rule("gap", NOTICE, "the publisher says itself that it dropped rows: give it a larger spool or a better link")
def gap(audited: Audited) -> DataFrame:
    """Rows that a publisher says it had to drop."""
    found = _single(_anchored_parcels(audited, "kind = 'gap'"), F.lit(1))
    return _say(found, "lane %s: rows dropped before parcel %d", _short("lane"), "sequence")


# --- nodes ---


@rule(
    "let-in",
    ALARM,
    "the node served without a right: take it out of service, and rotate the topic (tally topic rotate)",
)
def let_in(audited: Audited) -> DataFrame:
    """Served, though the ledger gave no right."""
    served = audited.operations.where("reason is null and entitled = false")
    found = _by_node(audited, served, "token", "principal")
    return _say(found, "%d times served principal %s without a right", "count", _short("other"))


@rule("turned-away", ALARM, "the node refuses who has the right: take it out of service, or publish through another")
def turned_away(audited: Audited) -> DataFrame:
    """Refused for want of a right that the ledger gives."""
    refused = audited.operations.where(F.col("reason").isin(*DENIED) & F.col("entitled"))
    found = _by_node(audited, refused, "token", "principal")
    return _say(found, "%d times refused principal %s its right", "count", _short("other"))


@rule("framing", ALARM, "the node accuses without proof: take it out of service; the principal's name is unharmed")
def framing(audited: Audited) -> DataFrame:
    """Accusations whose evidence is not the operator's signed request for this act."""
    found = _by_node(audited, audited.operations.where("evidence = 'nothing'"), "principal")
    return _say(found, "%d accusations of principal %s prove nothing", "count", _short("other"))


@rule(
    "broken-promise",
    ALARM,
    "take the node out of service; the publisher has the parcel in its spool and sends it again",
)
def broken_promise(audited: Audited) -> DataFrame:
    """A node's signed word for an offset that the anchor does not keep; the contract has checked it."""
    broken = audited.ledger.where("kind = 'broken-promise'")
    return _say(_single(broken, F.lit(1)), "promised offset %d is not kept", "first")


@rule("late-anchor", WARNING, "look at the node's load and disk; until the anchor comes there is only its word")
def late_anchor(audited: Audited) -> DataFrame:
    """Parcels whose anchor came later than the ledger's own bound."""
    late = anchored(audited.writes, audited.anchors).withColumn("late", _seconds("acted", F.col("anchored_time")))
    late = late.where(f"late > {audited.settings.anchor_s}")
    found = _by_node(audited, late, "token", "partition", extra=F.max("late").alias("worst"))
    return _say(found, "%d parcels were anchored up to %d s after they were taken", "count", "worst")


@rule("unanchored", ALARM, "the node took parcels and never anchored them: ask their publishers for their promises")
def unanchored(audited: Audited) -> DataFrame:
    """Parcels that a node took, by its own operations, and did not anchor."""
    lost = anchored(audited.writes, audited.anchors).where(
        (F.col("time") < F.lit(audited.settled)) & F.col("anchored_time").isNull()
    )
    found = _by_node(audited, lost, "token", "partition", extra=F.max("end").alias("end"))
    return _say(found, "operations tell of parcels up to offset %d, no anchor reaches them", "end")


@rule(
    "unaccounted", ALARM, "parcels are anchored that nobody is told to have published: read the log, take the node out"
)
def unaccounted(audited: Audited) -> DataFrame:
    """Anchored parcels that no operation tells of. A notary's partitions are left out: behind Kafka no guard stands."""
    places = ["token", "partition"]
    notarised = audited.anchors.where("kind = 'notarise'").select(*places).distinct()
    anchor = F.struct("height", "index", "time", F.col("author").alias("principal"), "end")
    newest = (
        audited.anchors.where(F.col("time") < F.lit(audited.settled))
        .join(notarised, places, "left_anti")
        .groupBy(*places)
        .agg(F.max_by(anchor, "end").alias("anchor"))
        .select(*places, "anchor.*")
    )
    told = audited.writes.groupBy(*places).agg(F.sum("count").alias("told"))
    found = newest.join(told, places, "left").withColumn("missing", F.col("end") - F.coalesce("told", F.lit(0)))
    found = _single(found.where("missing > 0"), F.col("missing"))
    return _say(found, "%d parcels are anchored, operations tell of %d fewer", "end", "missing")


@rule("log-", ALARM, "keep the log and its findings, read the topic from another carrier, take the node out of service")
def log(audited: Audited) -> DataFrame:
    """What the headers themselves showed: a log that is not what was anchored, or a lane that does not hold."""
    found = _anchored_parcels(audited, "found is not null").withColumns(
        {"rule": F.concat(F.lit("log-"), "found"), "principal": F.coalesce("principal", "anchored_author")}
    )
    return _say(_single(found, F.lit(1)), "offset %d: %s", "offset", "message")


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


def _anchored_parcels(audited: Audited, which: str) -> DataFrame:
    """Some of the parcels, with their publisher as principal and with the place and time of their anchor."""
    parcels = audited.parcels.where(which).withColumn("end", F.col("offset") + 1)
    return anchored(parcels, audited.anchors).withColumnsRenamed(
        {"publisher": "principal", "anchored_height": "height", "anchored_index": "index", "anchored_time": "time"}
    )


def _by_window(audited: Audited, frame: DataFrame, *keys: str, extra: Column | None = None) -> DataFrame:
    window = F.window("time", f"{audited.settings.window_s} seconds").alias("window")
    reasons = F.array_join(F.array_sort(F.collect_set("reason")), ", ").alias("reasons")
    return frame.groupBy(window, *keys).agg(*_span(audited), reasons, *([] if extra is None else [extra]))


def _by_node(audited: Audited, frame: DataFrame, *keys: str, extra: Column | None = None) -> DataFrame:
    """Findings about the author of the entries, not about the principal that they name."""
    found = _by_window(audited, frame, "author", *keys, extra=extra)
    return found.withColumnsRenamed({"principal": "other", "author": "principal"})


def _span(audited: Audited) -> list[Column]:
    """Of a group of entries: when, how many, and the first places."""
    places = F.sort_array(F.collect_list(F.struct("height", "index")))
    return [
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
        F.sum("count").alias("count"),
        F.slice(places, 1, audited.settings.evidence_max).alias("evidence"),
    ]


def _single(frame: DataFrame, count: Column) -> DataFrame:
    """One entry, one finding."""
    place = F.array(F.struct("height", "index"))
    return frame.withColumns(
        {"first_time": F.col("time"), "last_time": F.col("time"), "count": count, "evidence": place}
    )


def _say(frame: DataFrame, words: str, *columns: str | Column) -> DataFrame:
    return frame.withColumn("message", F.format_string(words, *columns))


def _short(column: str) -> Column:
    """The first digits of an identifier."""
    return F.substring(column, 1, 8)


def _seconds(start: str, end: Column) -> Column:
    """Whole seconds from a column of times to another."""
    return ((F.unix_micros(end) - F.unix_micros(start)) / 1_000_000).cast("long")
