"""The table `findings`: what each rule calls what it found, how grave it is, and what to do next.

Severities: a *notice* may be a mistake, a *warning* wants somebody to look, an *alarm* is proved misbehaviour or a
record that contradicts another. A finding names its evidence by (height, index) on the ledger, where `tally audit` and
a replay find it again; the first ones, where there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TABLE = "findings"
NOTICE, WARNING, ALARM = "notice", "warning", "alarm"
SEVERITIES = (ALARM, WARNING, NOTICE)

EVIDENCE = ArrayType(StructType([StructField("height", LongType()), StructField("index", IntegerType())]))
SCHEMA = StructType(
    [
        StructField("rule", StringType(), False),
        StructField("severity", StringType(), False),
        StructField("principal", StringType()),  # whose act it is: a pseudonym; null where nobody can be named
        StructField("name", StringType()),  # what it is called, where the auditor may know
        StructField("token", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("first_time", TimestampType()),  # the window, in block time
        StructField("last_time", TimestampType()),
        StructField("count", LongType(), False),
        StructField("evidence", EVIDENCE, False),
        StructField("message", StringType(), False),
        StructField("next", StringType(), False),
    ]
)


@dataclass(frozen=True)
class Rule:
    severity: str  # unless the rule itself says otherwise
    next: str


_LOG = Rule(ALARM, "keep the log and its findings, read the topic from another carrier, take the node out of service")
_LEDGER = Rule(
    ALARM, "write nothing more, keep both checkpoints (tally ledger status), ask the witnesses, call the operator"
)

RULES = {
    "unauthorised": Rule(NOTICE, "ask the principal's tenant; revoke it if nobody knows why (tally principal revoke)"),
    "probing": Rule(WARNING, "revoke the principal unless its tenant explains it (tally principal revoke)"),
    "replay": Rule(
        WARNING, "look for a recorder between clients and node, or a client whose clock is off (tally doctor)"
    ),
    "flood": Rule(WARNING, "limit the host in front of the node; revoke the principal where one is named"),
    "equivocation": Rule(ALARM, "the principal is blacklisted: revoke it, and look for a clone of its machine"),
    "offset-reset": Rule(NOTICE, "ask the group's owner: its members read rows a second time"),
    "offset-skip": Rule(
        WARNING, "ask the group's owner: its members never read these rows (tally group reset goes back)"
    ),
    "retired-unread": Rule(
        WARNING, "lengthen the node's retention, or look why the group is behind; the rows are gone"
    ),
    "silent": Rule(WARNING, "look at the publisher; where many went silent at once, at the node between"),
    "gap": Rule(NOTICE, "the publisher says itself that it dropped rows: give it a larger spool or a better link"),
    "let-in": Rule(
        ALARM, "the node served without a right: take it out of service, and rotate the topic (tally topic rotate)"
    ),
    "turned-away": Rule(
        ALARM, "the node refuses who has the right: take it out of service, or publish through another"
    ),
    "framing": Rule(ALARM, "the node accuses without proof: take it out of service; the principal's name is unharmed"),
    "broken-promise": Rule(
        ALARM, "take the node out of service; the publisher has the parcel in its spool and sends it again"
    ),
    "late-anchor": Rule(WARNING, "look at the node's load and disk; until the anchor comes there is only its word"),
    "unanchored": Rule(ALARM, "the node took parcels and never anchored them: ask their publishers for their promises"),
    "unaccounted": Rule(
        ALARM, "parcels are anchored that nobody is told to have published: read the log, take the node out"
    ),
}


def rule(name: str) -> Rule:
    if name.startswith("log-"):
        return _LOG
    return _LEDGER if name.startswith("ledger-") else RULES[name]


def finish(found: Sequence[DataFrame], names: DataFrame) -> DataFrame:
    """The findings of all rules as one table, names resolved; `names` has (identifier, name)."""
    whole = found[0]
    for one in found[1:]:
        whole = whole.unionByName(one)
    principals = names.withColumnsRenamed({"identifier": "principal"})
    topics = names.withColumnsRenamed({"identifier": "token", "name": "topic"})
    whole = whole.join(F.broadcast(principals), "principal", "left").join(F.broadcast(topics), "token", "left")
    return whole.select(*SCHEMA.names)


def evidence(most: int) -> Column:
    """The first places of a group of entries."""
    return F.slice(F.sort_array(F.collect_list(F.struct("height", "index"))), 1, most).alias("evidence")


def place() -> Column:
    """The one place of an entry."""
    return F.array(F.struct("height", "index"))
