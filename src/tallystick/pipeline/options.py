"""What a query may say: `spark.read.format("tally").option(name, value)`, read once into a frozen value.

A name that is not known, or a value that makes no sense, is a `Misuse` that says what is expected: an option that was
misspelt and ignored would change what is verified without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tallystick.errors import Misuse

NAMES = (
    *("home", "topic", "schemaVersion", "verify", "onBad", "quarantinePath", "provenance", "heads", "partitionsMax"),
    *("startingOffsets", "endingOffsets", "startingHeight", "endingHeight", "startingTime", "endingTime"),
    *("maxParcelsPerTrigger", "maxBytesPerTrigger", "checkpointLocation", "keys", "channel", "interest", "closed"),
    "read",
)
PARTITIONS_MAX = 256  # Spark partitions of one read, where the query does not say


@dataclass(frozen=True)
class Edge:
    """Where reading begins or ends (first not read): for each partition an offset, else `rest`; or at a height or
    block time (ms), which stand for the first parcel anchored then or later."""

    offsets: tuple[tuple[int, int], ...] = ()
    rest: Literal["earliest", "latest"] = "earliest"
    height: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True)
class Options:
    home: str
    topic: str
    start: Edge
    end: Edge
    schema_version: int | None = None  # None: the newest
    fast: bool = False  # skip recomputing the leaves, and nothing else
    quarantine: str | None = None  # where bad parcels are told; None: the first one fails the query
    provenance: bool = False
    heads: str | None = None
    partitions_max: int = PARTITIONS_MAX
    parcels_max: int | None = None  # a micro-batch's
    bytes_max: int | None = None
    checkpoint: str | None = None  # a stream's: looked at before Spark goes on from it
    stored: bool = False  # also what no anchor covers yet, on the carrier's word
    nulls_for_closed: bool = True  # for columns that the identity's attributes do not open; else the query fails
    interest: str = ""  # a formula over the topic's columns: only rows that satisfy it are read
    keys: str = "auto"  # whence tasks have theirs: the driver lends them, or each opens `home`; auto: as the master is
    is_channel_trusted: bool = False  # the query vouches for the network between driver and executors

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        known = {name.lower(): name for name in (*NAMES, "path")}
        values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise Misuse(f'option "{name}" is unknown', hint="known are " + ", ".join(NAMES))
            values[known[name.lower()]] = value
        if "path" in values:  # what `load(…)` was given
            values.setdefault("topic", values["path"])
        for name in ("home", "topic"):
            if not values.get(name):
                raise Misuse(f'option "{name}" is missing', hint=f'.option("{name}", …); home is an identity folder')
        on_bad = choice(values, "onBad", ("fail", "quarantine"))
        if (on_bad == "quarantine") != ("quarantinePath" in values):
            raise Misuse('onBad "quarantine" and quarantinePath go together', hint="give both, or neither")
        return cls(
            home=values["home"],
            topic=values["topic"],
            start=_edge(values, "starting", "earliest"),
            end=_edge(values, "ending", "latest"),
            schema_version=_number(values, "schemaVersion"),
            fast=choice(values, "verify", ("full", "fast")) == "fast",
            quarantine=values.get("quarantinePath"),
            provenance=choice(values, "provenance", ("false", "true")) == "true",
            heads=values.get("heads"),
            partitions_max=_number(values, "partitionsMax") or PARTITIONS_MAX,
            parcels_max=_number(values, "maxParcelsPerTrigger"),
            bytes_max=_number(values, "maxBytesPerTrigger"),
            checkpoint=values.get("checkpointLocation"),
            interest=values.get("interest", ""),
            stored=choice(values, "read", ("anchored", "stored")) == "stored",
            nulls_for_closed=choice(values, "closed", ("null", "error")) == "null",
            keys=choice(values, "keys", ("auto", "driver", "home")),
            is_channel_trusted=choice(values, "channel", ("encrypted", "trusted")) == "trusted",
        )


def choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """One of `allowed`, of which the first is the default."""
    value = values.get(name, allowed[0]).lower()
    if value not in allowed:
        raise Misuse(f'option {name}: "{values[name]}" is unknown, expected {" or ".join(allowed)}')
    return value


def _number(values: Mapping[str, str], name: str, at_least: int = 1) -> int | None:
    if name not in values:
        return None
    if not values[name].isdecimal() or int(values[name]) < at_least:
        raise Misuse(f'option {name}: "{values[name]}" is not a number of at least {at_least}')
    return int(values[name])


def _edge(values: Mapping[str, str], which: str, default: Literal["earliest", "latest"]) -> Edge:
    given = [name for name in (f"{which}Offsets", f"{which}Height", f"{which}Time") if name in values]
    if len(given) > 1:
        raise Misuse(f"options {given[0]} and {given[1]} exclude each other")
    offsets, rest = _offsets(values.get(f"{which}Offsets", default), f"{which}Offsets", default)
    time = values.get(f"{which}Time")
    return Edge(
        offsets, rest, _number(values, f"{which}Height", 0), None if time is None else _time_ms(time, f"{which}Time")
    )


def _offsets(
    text: str, name: str, default: Literal["earliest", "latest"]
) -> tuple[tuple[tuple[int, int], ...], Literal["earliest", "latest"]]:
    if text in ("earliest", "latest"):
        return (), "earliest" if text == "earliest" else "latest"
    try:
        found = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError):
        found = {-1: 0}
    if any(partition < 0 or type(offset) is not int or offset < 0 for partition, offset in found.items()):
        raise Misuse(
            f"option {name}: {text!r} is not earliest, latest, or offsets by partition",
            hint='such as {"0": 12, "1": 7}',
        )
    return tuple(sorted(found.items())), default


def _time_ms(text: str, name: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(
            f'option {name}: "{text}" is neither milliseconds since 1970 nor ISO 8601', hint="such as 2026-05-01T12:00Z"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
