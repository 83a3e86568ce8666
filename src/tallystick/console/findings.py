"""What was found: by this identity's readers, by its memory of checkpoints, and by the audit of a warehouse.

The first two lie in the viewer's own folder, the third in tables that a job wrote. All of it is somebody's earlier
word. Only what can be held to the ledger here (`proved`) counts as checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from tallystick import wire
from tallystick.client.reader import OPEN_REASONS, Finding
from tallystick.console.viewer import Viewer
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger.block import Head, read_head
from tallystick.ledger.contracts.reputation import EQUIVOCATIONS
from tallystick.pipeline.jobs.audit_findings import ALARM, NOTICE, SCHEMA, SEVERITIES, WARNING
from tallystick.pipeline.jobs.rows import TableRows

FILES_MAX = 1000  # of a home's evidence that a page looks at, the newest
ROWS_MAX = 1000  # of a table
_DOUBTFUL = ("suspect", "silent", "cannot-open", "oversized", "stale-head")


@dataclass(frozen=True)
class Noted:
    """One finding, wherever it comes from."""

    name: str  # in addresses
    source: str  # "home", "memory" or "audit"
    severity: str
    reason: str
    message: str
    time_ms: int  # when it was kept, or happened; 0 where nobody knows
    token: bytes = b""
    partition: int | None = None
    offset: int | None = None
    principal: bytes = b""
    called: str = ""  # what the source calls the principal
    places: tuple[tuple[int, int | None], ...] = ()  # on the ledger: height and index
    next_step: str = ""
    file: Path | None = None
    data: bytes | None = None  # where it is no file of its own


def found(viewer: Viewer) -> tuple[list[Noted], list[Misuse]]:
    """All findings, the gravest first and of those the newest; and what could not be read."""
    troubles: list[Misuse] = []
    every = [*_of_home(viewer.identity.home / "evidence", troubles), *contradictions(viewer)]
    if viewer.warehouse is not None:
        try:
            every.extend(_of_warehouse(viewer.warehouse, viewer.identity.instance))
        except Misuse as error:
            troubles.append(error)
    return sorted(every, key=lambda one: (SEVERITIES.index(one.severity), -one.time_ms)), troubles


def _of_home(folder: Path, troubles: list[Misuse]) -> Iterator[Noted]:
    files = sorted(((path.stat().st_mtime_ns, path) for path in folder.glob("*") if path.is_file()), reverse=True)
    if len(files) > FILES_MAX:
        hint = f"tally inspect {quote(str(folder))} shows all"
        troubles.append(Misuse(f"{len(files)} findings lie in {folder}, the newest {FILES_MAX} are here", hint=hint))
    for changed_ns, path in files[:FILES_MAX]:
        try:
            yield _kept(path, changed_ns)
        except (Malformed, OSError) as error:
            hint = "it is no evidence any more: restore it from a copy, or remove it"
            troubles.append(Misuse(f"the file {path} is damaged: {error}", hint=hint))


@lru_cache(FILES_MAX)
def _kept(path: Path, changed_ns: int) -> Noted:
    """A file's finding without its evidence, which may hold whole parcels."""
    one = Finding.decode(path.read_bytes())
    severity = WARNING if one.reason in _DOUBTFUL else NOTICE if one.reason in OPEN_REASONS else ALARM
    name, time_ms, where = _name("home", path.name.encode()), changed_ns // 1_000_000, (one.partition, one.offset)
    return Noted(name, "home", severity, one.reason, one.message, time_ms, one.token, *where, one.publisher, file=path)


def contradictions(viewer: Viewer) -> list[Noted]:
    """Checkpoints that cannot both be true, as the memory kept them."""
    every = []
    for data in viewer.session.memory.evidence():
        with suppress(Refused, ValueError):
            reason, *rest = wire.decode(data, "contradiction")
            heads = _heads(viewer, rest)
            shown = " and ".join(f"height {head.height}, size {head.size}" for head in heads)
            told = f"two checkpoints that contradict each other: {shown or 'see the file'}"
            time_ms = max((head.time_ms for head in heads), default=0)
            every.append(Noted(_name("memory", data), "memory", ALARM, str(reason), told, time_ms, data=data))
    return every


def _heads(viewer: Viewer, notes: list[Any]) -> list[Head]:
    """Those of the notes that verify under the trust file."""
    heads = []
    for note in notes:
        with suppress(Refused):
            if isinstance(note, bytes) and len(note) > 32:
                heads.append(read_head(note, viewer.session.memory.trust))
    return heads


def _of_warehouse(folder: Path, instance: bytes) -> Iterator[Noted]:
    """Raises `Misuse` where there are no tables, or others', or damaged ones."""
    rows = TableRows(folder, instance)
    for name in ("findings", "campaign_findings", "ecu_findings"):
        with rows.table(name) as table:
            newest = table.batches()[-1:]
            if not newest and name == "findings":
                hint = f"tally pipeline run audit --warehouse {quote(str(folder))}"
                raise Misuse(f"{folder}: no audit was made yet", hint=hint)
            found = rows.read(name, SCHEMA, batches=newest).select(SCHEMA.names) if newest else SCHEMA.empty_table()
            first = found.slice(0, ROWS_MAX).to_pylist()
        yield from map(_of_row, first)
        if len(found) > ROWS_MAX:
            raise Misuse(f"{len(found):,} rows are in {name}, the first {ROWS_MAX:,} are here")


def _of_row(row: dict[str, Any]) -> Noted:
    return Noted(
        name=_name("audit", repr(sorted(row.items())).encode()),
        source="audit",
        severity=row["severity"] if row["severity"] in SEVERITIES else NOTICE,
        reason=row["rule"],
        message=row["message"] + (f", {row['count']:,} times" if row["count"] > 1 else ""),
        time_ms=(row["last_time"] or row["first_time"] or 0) // 1000,
        token=_identifier(row["token"]),
        partition=row["partition"],
        principal=_identifier(row["principal"]),
        called=row["name"] or "",
        places=tuple((place["height"], place["index"]) for place in row["evidence"]),
        next_step=row["next"],
    )


def _name(source: str, data: bytes) -> str:
    return f"{source}-{named_hash('tallystick console finding 1', data).hex()[:16]}"


def _identifier(text: str | None) -> bytes:
    return bytes.fromhex(text) if text is not None and wire.is_identifier(text) else b""


def proved(viewer: Viewer, one: Noted) -> str:
    """What of a finding holds by what was verified in this process, in words; empty where it is somebody's word."""
    if one.data is not None:
        heads = _heads(viewer, wire.decode(one.data)[1:])
        return "both signatures hold" if len({*heads}) == 2 else ""
    if one.file is not None and one.reason == "equivocation":
        finding = Finding.decode(one.file.read_bytes())
        if finding.sequence is not None and len(finding.lane) == len(finding.publisher) == 16:
            row = viewer.mirror.row(EQUIVOCATIONS(finding.publisher, finding.lane, finding.sequence))
            return "" if row is None else f"on the ledger, height {row.height}"
    return ""


def content(one: Noted) -> bytes | None:
    """The file to hand out, or None where there is none."""
    return one.file.read_bytes() if one.file is not None else one.data
