"""What a query may say: `spark.read.format("tally").option(name, value)`, read once into a frozen value.

A name that is not known, or a value that makes no sense, is a `Misuse` that says what is expected: an option that was
misspelt and ignored would change what is verified without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self

from tallystick.errors import Misuse
from tallystick.parcel.parcel import RAW_BYTES_MAX
from tallystick.pipeline.session import Channel
from tallystick.wire import is_number

NAMES = (
    *("home", "topic", "schemaVersion", "verify", "onBad", "quarantinePath", "provenance", "heads", "partitionsMax"),
    *("startingOffsets", "endingOffsets", "startingHeight", "endingHeight", "startingTime", "endingTime"),
    *("maxParcelsPerTrigger", "maxBytesPerTrigger", "checkpointLocation", "keys", "channel", "interest", "closed"),
    *("read", "openedBytesMax"),
)
PARTITIONS_MAX = 256  # Spark partitions of one read, where the query does not say

ON_BAD = ("fail", "quarantine", "strict")

Rest = Literal["earliest", "latest"]


@dataclass(frozen=True)
class Edge:
    """Where reading begins or ends (first not read): for each partition an offset, else `rest`; or at a height or
    block time (ms), which stand for the first parcel anchored then or later."""

    offsets: tuple[tuple[int, int], ...] = ()
    rest: Rest = "earliest"
    height: int | None = None
    time_ms: int | None = None


Read = Callable[[str, str], Any]  # from the name and the value of an option


def _text(_name: str, value: str) -> str:
    return value


def _number(name: str, value: str, at_least: int = 1) -> int:
    if not is_number(value) or int(value) < at_least:
        raise Misuse(f'option {name}: "{value}" is not a number of at least {at_least}')
    return int(value)


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise Misuse(f'option {name}: "{value}" is unknown, expected {" or ".join(allowed)}')
        return value.lower()

    return read


def _is(wanted: str, *allowed: str) -> Read:
    return lambda name, value: _one_of(*allowed)(name, value) == wanted


def option(name: str, read: Read = _text, default: Any = None) -> Any:
    """A field that the option of this name sets."""
    return field(default=default, metadata={"option": name, "read": read})


@dataclass(frozen=True)
class CommonOptions:
    """What source and sink are both told."""

    home: str
    topic: str
    checkpoint: str | None = option("checkpointLocation")  # a stream's
    # Where tasks have theirs from: the driver lends them, or each opens `home`; with auto the master decides.
    keys: str = option("keys", _one_of("auto", "driver", "home"), "auto")
    # The query vouches for the network between driver and executors.
    is_channel_trusted: bool = option("channel", _is("trusted", "encrypted", "trusted"), False)

    @classmethod
    def read(cls, values: Mapping[str, str], **more: Any) -> Self:
        """What the values say by name, and `more`."""
        known = {one.metadata["option"]: one for one in fields(cls) if "option" in one.metadata}
        told = {one.name: one.metadata["read"](name, values[name]) for name, one in known.items() if name in values}
        return cls(values["home"], values["topic"], **told, **more)

    def over(self, channel: Channel | None) -> Self:
        """The same with `keys` settled: "driver" or "home". Raises `Misuse` unless the channel is fit for them, or the
        query vouches for it."""
        if channel is None:
            raise Misuse("the source knows nothing of its session", hint="tallystick.pipeline.register(spark)")
        if not self.is_channel_trusted:
            channel.check()
        return replace(self, keys="home" if channel.is_local else "driver") if self.keys == "auto" else self


@dataclass(frozen=True)
class Options(CommonOptions):
    start: Edge = Edge()
    end: Edge = Edge(rest="latest")
    schema_version: int | None = option("schemaVersion", _number)  # None: the newest
    fast: bool = option("verify", _is("fast", "full", "fast"), False)  # skip recomputing the leaves, and nothing else
    quarantine: str | None = option("quarantinePath")  # where bad parcels are told; None: the first one fails the query
    strict: bool = option("onBad", _is("strict", *ON_BAD), False)  # fail for what was done openly as well
    provenance: bool = option("provenance", _is("true", "false", "true"), False)
    heads: str | None = option("heads")
    partitions_max: int = option("partitionsMax", _number, PARTITIONS_MAX)
    parcels_max: int | None = option("maxParcelsPerTrigger", _number)  # a micro-batch's
    bytes_max: int | None = option("maxBytesPerTrigger", _number)
    opened_bytes_max: int = option("openedBytesMax", _number, RAW_BYTES_MAX)  # that a task holds open at once
    # Also what no anchor covers yet, on the carrier's word; None: only where the carrier anchors nothing.
    stored: bool | None = option("read", _is("stored", "anchored", "stored"))
    # For columns that the identity's attributes do not open; else the query fails.
    nulls_for_closed: bool = option("closed", _is("null", "null", "error"), True)
    interest: str = option("interest", default="")  # a formula over columns: only rows that satisfy it are read

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        values = named(given, NAMES)
        on_bad = _one_of(*ON_BAD)("onBad", values.get("onBad", "fail"))
        if (on_bad == "quarantine") != ("quarantinePath" in values):
            raise Misuse('onBad "quarantine" and quarantinePath go together', hint="give both, or neither")
        edges = {"start": _edge(values, "starting", "earliest"), "end": _edge(values, "ending", "latest")}
        return cls.read(values, **edges)

    def on(self, anchors: bool) -> Options:
        """The same with `stored` settled, for a carrier that anchors what it takes, or does not."""
        if self.stored is False and not anchors:
            raise Misuse("option read: the mesh anchors nothing", hint='leave it out, or set it to "stored"')
        return replace(self, stored=bool(self.stored) or not anchors)


def named(given: Mapping[str, str], names: Sequence[str], silent: Sequence[str] = (), to: str = "") -> dict[str, str]:
    """The options by their names, whatever the case in which they were given; those in `silent` are taken and not
    offered. Raises `Misuse` for one that is unknown, and where home or topic is missing."""
    known = {name.lower(): name for name in (*names, *silent, "path")}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in known:
            raise Misuse(f'option "{name}" is unknown{to}', hint="known are " + ", ".join(names))
        values[known[name.lower()]] = value
    values["topic"] = values.get("topic") or values.get("path", "")  # what `load(…)` was given
    for name in ("home", "topic"):
        if not values.get(name):
            raise Misuse(f'option "{name}" is missing', hint=f'.option("{name}", …); home is an identity folder')
    return values


def _edge(values: Mapping[str, str], which: str, default: Rest) -> Edge:
    offsets, height, time = (f"{which}{kind}" for kind in ("Offsets", "Height", "Time"))
    given = [name for name in (offsets, height, time) if name in values]
    if len(given) > 1:
        raise Misuse(f"options {given[0]} and {given[1]} exclude each other")
    if offsets in values:
        return _offsets(offsets, values[offsets], default)
    at = _number(height, values[height], 0) if height in values else None
    return Edge((), default, at, _time_ms(time, values[time]) if time in values else None)


def _offsets(name: str, text: str, default: Rest) -> Edge:
    if text in ("earliest", "latest"):
        return Edge(rest="earliest" if text == "earliest" else "latest")
    try:
        found = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError):
        found = {-1: 0}
    if any(partition < 0 or type(offset) is not int or offset < 0 for partition, offset in found.items()):
        hint = 'such as {"0": 12, "1": 7}'
        raise Misuse(f"option {name}: {text!r} is not earliest, latest, or offsets by partition", hint=hint)
    return Edge(tuple(sorted(found.items())), default)


def _time_ms(name: str, text: str) -> int:
    if is_number(text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        told = f'option {name}: "{text}" is neither milliseconds since 1970 nor ISO 8601'
        raise Misuse(told, hint="such as 2026-05-01T12:00Z") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
