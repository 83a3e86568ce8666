"""`make bench-pages`: the tables of README, of pages under docs/ and of the guides, from the last results.

What lies in `build/bench` goes to `benchmarks/results`, which is committed, row by row; then every marked region of the
pages is written anew from there. So two pages cannot tell two numbers for one row, and the test suite holds the pages
to the committed results. A region is

    <!-- table: NAME -->              a table of `TABLES` below, or
    <!-- table: SUITE PATTERN … -->   the rows of a suite whose names match one of the patterns (`seal_*`)
    …
    <!-- end of table -->

Below each table stand commit, date, load and machine of the rows it was made of, and for what is extrapolated the rows
that it is extrapolated from. What was measured once, and is evidence of its time, stands between
`<!-- of its time: COMMIT, DATE -->` and the same end, and is left as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

import chain
import detect_tables
import harness
import isolation
import kafka_report
import sizing
from harness import ROOT, Row, number

RESULTS = ROOT / "benchmarks" / "results"
SUITES = (
    *("spine", "chain", "spark", "kafka", "abe", "isolation", "overlay", "mesh", "fabric", "ota", "detect"),
    "console",
)
PAGES = (
    *("README.md", "docs/benchmarks.md", "docs/sizing.md"),
    *("docs/guides/policies.md", "docs/guides/interests.md", "docs/detection.md"),
)
REGION = re.compile(r"<!-- table: (.+?) -->\n.*?<!-- end of table -->", re.DOTALL)


class Suite(dict[str, Row]):
    """The rows of a suite by name; remembers which were asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__((row["name"], row) for row in harness.read(folder, name))
        self._name, self.used = name, {}

    def __getitem__(self, name: str) -> Row:
        if name not in self:
            raise SystemExit(f"error: {self._name}.json has no row {name}\nhint: run its benchmark")
        self.used[name] = super().__getitem__(name)
        return self.used[name]

    def get(self, name: str, default: Row | None = None) -> Row | None:  # type: ignore[override]
        if name not in self:
            return default
        return self[name]

    def matching(self, patterns: Sequence[str]) -> list[Row]:
        found = [self[name] for name in self if any(fnmatch(name, pattern) for pattern in patterns)]
        if not found:
            raise SystemExit(f"error: {self._name}.json has no row that matches {' '.join(patterns)}")
        return found


# ── Tables that are more than a list of rows; those of sizing.md: sizing.py, of Kafka: kafka_report.py ───────────────

SUMMARY = {  # of README.md: each line has one row or two, "suite name"
    "seal from columns, against `orjson.dumps`": ("spine seal_columns_4096",),
    "seal from dicts, against `orjson.dumps`": ("spine seal_dicts_4096",),
    "open into Arrow with full verification, against `orjson.loads`": ("spine open_4096",),
    "publish through a node, against plain JSON lines": ("spine node_publish_4096",),
    "fetch from a node, against plain JSON lines": ("spine node_fetch_4096",),
    "publish, 64 records a parcel": ("spine node_publish_64",),
    "fetch, 64 records a parcel": ("spine node_fetch_64",),
    "publish; fetch, one parcel a request on both sides": ("spine node_publish_one_4096", "spine node_fetch_one_4096"),
    "the same, 64 records a parcel": ("spine node_publish_one_64", "spine node_fetch_one_64"),
    "ledger, 512 operations a transaction": ("spine ledger_batch_512",),
    "the same on CometBFT, one validator; four on the same two cores": ("chain ledger_1_512", "chain ledger_4_512"),
    "Spark, three columns with full verification, against `spark.read.json`": ("spark read_full_3",),
    "Spark, all columns; streaming": ("spark read_full_all", "spark stream"),
    "produce to Kafka from columns; from dicts, against one JSON record each": (
        *("kafka produce_columns_4096", "kafka produce_dicts_4096"),
    ),
    "fetch from Kafka into Arrow, against consuming and `orjson.loads`": ("kafka fetch_4096",),
    'Spark from Kafka, batch; streaming, against `format("kafka")` with `from_json`': (
        *("kafka spark_batch", "kafka spark_stream"),
    ),
    "a cached policy lock, against a topic lock; opening 50 attributes, against BSW07": (
        *("abe policy_lock", "abe decapsulate_50"),
    ),
    "attribute keys, 50 attributes, against BSW07": ("abe keygen_50",),
    "frames of a CAN bus watched at the edge, checks and network; by the Spark job": ["detect edge", "detect spark"],
}


def summary(suites: dict[str, Suite]) -> str:
    lines = ["| | ratio or rate | target | |", "|---|--:|--:|---|"]
    for label, names in SUMMARY.items():
        rows = [suites[suite][name] for suite, name in (one.split() for one in names)]
        reached = (_with_unit(row, row["ours"] if _is_rate(row) else row["ratio"]) for row in rows)
        targets = (_with_unit(row, row["target"]) for row in rows if row["target"] is not None)
        met = dict.fromkeys("met" if row["met"] else "missed" for row in rows if row["met"] is not None)
        lines.append(f"| {label} | {'; '.join(reached)} | {'; '.join(targets)} | {'; '.join(met)} |")
    return "\n".join(lines)


def _is_rate(row: Row) -> bool:
    return bool(row["unit"].endswith("/s"))


def _with_unit(row: Row, value: float) -> str:
    return f"{number(value)}/s" if _is_rate(row) else f"{number(value)} ×"


def chains(found: Suite) -> str:
    sizes = (1, 64, 512, 4096)
    lines = [
        f"| entries/s, N a transaction | {' | '.join(f'{size:,}' for size in sizes)} | latency, ms"
        " | CPU, µs an entry at 512 | bytes an entry at 512 |",
        "|---|" + "--:|" * (len(sizes) + 3),
    ]
    engines = {"sqlite": "SQLite", "1": "one validator", "4": "four validators on the same cores"}
    for name, text in engines.items():
        rows = [found[f"ledger_{name}_{size}"] for size in sizes]
        rates = [f"{row['ours']:,.0f}{_aim(row)}" for row in rows]
        kinds = (f"latency_{name}", f"cpu_{name}_512", f"bytes_{name}_512")
        others = [number(found[kind]["ours"]) for kind in kinds]
        lines.append(f"| {text} | {' | '.join([*rates, *others])} |")
    return "\n".join(lines)


def _aim(row: Row) -> str:
    return "" if row["target"] is None else f" ({number(row['target'])}: {harness.judged(row)})"


def spark_costs(found: Suite) -> str:
    """Processor time a row of each kind of process, and together."""
    reads = ("3", "all")
    kinds = {
        "tasks": "tasks of the JVM",
        "compilers": "its compilers",
        "jvm": "the rest of it",
        "python": "Python",
        "node": "node",
    }
    lines = ["| ns of processor a row | `read_full_3` | peer | `read_full_all` | peer |", "|---|--:|--:|--:|--:|"]
    sums = [0.0] * 4
    for kind, text in kinds.items():
        rows = [found[f"cost_{kind}_{read}"] for read in reads]
        values = [value for row in rows for value in (row["ours"], row["peer"])]
        sums = [before + (value or 0) for before, value in zip(sums, values, strict=True)]
        lines.append(f"| {text} | {' | '.join(map(number, values))} |")
    return "\n".join([*lines, f"| together | {' | '.join(map(number, sums))} |"])


def labels(found: Suite) -> str:
    interests = {"rare": "speed > 140", "place": "lat > 52.1 && lon > 13.15", "half": "speed > 44"}
    lines = [
        "| interest | wants | bytes sent, joint | bytes sent, each"
        " | records opened for one wanted: none, joint, each |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, text in interests.items():
        sent = [found[f"labels_{code}_{name}_bytes"] for code in ("joint", "each")]
        excess = [found[f"labels_{code}_{name}_excess"] for code in ("joint", "each")]
        parts = (f"{100 * row['ours'] / row['peer']:.0f} %" for row in sent)
        opened = ", ".join(number(value) for value in (excess[0]["peer"], *(row["ours"] for row in excess)))
        lines.append(f"| `{text}` | {100 / excess[0]['peer']:.1f} % | {' | '.join(parts)} | {opened} |")
    return "\n".join(lines)


# name: suite, its table, and whether it says more than was measured
TABLES: dict[str, tuple[str, Callable[[Suite], str], bool]] = {
    "sizing fleet": ("spine", sizing.fleet, True),
    "sizing node": ("spine", sizing.node, False),
    "sizing ledger": ("spine", sizing.ledger_days, True),
    "sizing summary": ("spine", sizing.summary, True),
    "sizing chain": ("chain", chain.days, True),
    "chain engines": ("chain", chains, False),
    "spark costs": ("spark", spark_costs, False),
    "kafka throughput": ("kafka", kafka_report.throughput, False),
    "kafka processor": ("kafka", kafka_report.processor, False),
    "kafka others": ("kafka", kafka_report.others, False),
    "labels": ("abe", labels, False),
    "attacks found": ("detect", detect_tables.groups, False),
    "detectors": ("detect", detect_tables.detectors, False),
    "hostile tenant": ("isolation", isolation.attack_table, False),
}


# ── Regions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def region(name: str, folder: Path) -> str:
    """What a region of this name says, by the results of a folder."""
    suites = {suite: Suite(folder, suite) for suite in SUITES}
    extrapolates = False
    if name == "summary":
        text = summary(suites)
    elif name in TABLES:
        suite, table, extrapolates = TABLES[name]
        text = table(suites[suite])
    else:
        suite, *patterns = name.split()
        if suite not in suites or not patterns:
            raise SystemExit(f'error: a page asks for the table "{name}", which nobody makes')
        text = harness.table(suites[suite].matching(patterns))
    used = [row for suite in suites.values() for row in suite.used.values()]
    return f"{text}\n\n{_sources(used) if extrapolates else ''}{caption(used)}"


def _sources(rows: Iterable[Row]) -> str:
    """Several rows of one kind go under one name, `bytes_N`."""
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(row["extrapolated"] or row["name"] for row in rows):
        kinds.setdefault(re.sub(r"_\d+$", "_N", name), []).append(name)
    told = (f"`{kind if len(names) > 1 else names[0]}`" for kind, names in kinds.items())
    return f"Extrapolated from {', '.join(told)}. "


def caption(rows: Sequence[Row]) -> str:
    """Where and when the rows were measured."""
    commits, machines = (list(dict.fromkeys(row[key] for row in rows)) for key in ("commit", "machine"))
    dates, loads = ([f"{one}" for one in sorted({row[key] for row in rows} - {None})] for key in ("date", "load"))
    if any(row["load"] is None for row in rows):  # of results that were taken over from a page
        loads = [f"{_range(loads)}, of some not noted" if loads else "not noted"]
    told = f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}; {_range(dates)}; load {_range(loads)}"
    return f"*Measured at {told}; {'; '.join(machines)}.*"


def _range(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def rewritten(page: str, folder: Path) -> str:
    """The page's text with every region as the results of the folder have it."""

    def write(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n{region(found[1], folder)}\n<!-- end of table -->"

    return REGION.sub(write, page)


def main() -> None:
    for suite in SUITES:
        rows = [row for row in harness.read(harness.RESULTS, suite) if "commit" in row]  # older ones do not say whence
        if rows:
            harness.merge(RESULTS, suite, rows)
            print(f"{suite}: {len(rows)} rows taken from {harness.RESULTS.relative_to(ROOT)}", file=sys.stderr)
    for name in PAGES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = rewritten(before, RESULTS)
        path.write_text(after, encoding="utf-8")
        print(f"{name}: {'unchanged' if after == before else 'written'}", file=sys.stderr)


if __name__ == "__main__":
    main()
