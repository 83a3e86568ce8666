"""The table `findings`: what the rules of an audit found (audit_rules.py), how grave it is, and what to do next.

Severities: a *notice* may be a mistake, a *warning* wants somebody to look, an *alarm* is proved misbehaviour or a
record that contradicts another. A finding names its evidence by (height, index) on the ledger, where `tally audit` and
a replay find it again; the first ones, where there are many. Nothing here loads Spark.
"""

from __future__ import annotations

import pyarrow as pa

TABLE = "findings"
NOTICE, WARNING, ALARM = "notice", "warning", "alarm"
SEVERITIES = (ALARM, WARNING, NOTICE)

_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("rule", pa.string(), False),
        pa.field("severity", pa.string(), False),
        pa.field("principal", pa.string()),  # whose act it is: a pseudonym; null where nobody can be named
        pa.field("name", pa.string()),  # what it is called, where the auditor may know
        pa.field("token", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("first_time", _TIME),  # the window, in block time
        pa.field("last_time", _TIME),
        pa.field("count", pa.int64(), False),
        pa.field("evidence", pa.list_(pa.struct([("height", pa.int64()), ("index", pa.int32())])), False),
        pa.field("message", pa.string(), False),
        pa.field("next", pa.string(), False),
    ]
)
