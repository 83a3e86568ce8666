"""*Ledger*: blocks and entries in words, rows of the state with their proof, consistency of any two checkpoints."""

from __future__ import annotations

from tallystick.client.words import decode, describe
from tallystick.console.layout import (
    LINES,
    checked,
    choice,
    code,
    facts,
    field,
    filters,
    heading,
    height_link,
    lines,
    link,
    pager,
    part,
    principal_link,
    when,
)
from tallystick.console.page import Page
from tallystick.console.viewer import Visit
from tallystick.errors import Misuse
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import AuditItem, Query
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.wire import is_identifier, is_number


def show_entries(visit: Visit) -> Html:
    """The newest entries first, or those that the filters ask for."""
    kinds = [("", "all kinds"), *((kind.name.lower(), kind.name.lower().replace("_", " ")) for kind in EntryKind)]
    form = filters(
        visit,
        choice(visit, "kind", "kind", kinds),
        field(visit, "principal", "author or operator", placeholder="name or identifier"),
        field(visit, "before", "below height", inputmode="numeric"),
    )
    found, ways = _found(visit)
    shown = lines(["height", "time", "author", "entry"], [_line(visit, one) for one in found], "No entries fit.")
    lead = "Every entry was replayed by the contracts' rules, from the genesis to the checkpoint above."
    more = link(visit, "rows of its state", "ledger/state"), link(visit, "compare checkpoints", "ledger/consistency")
    return join(heading("Ledger", lead), tag("p", more[0], " · ", more[1]), form, shown, ways)


def _found(visit: Visit) -> tuple[list[AuditItem], Html | None]:
    kind, who = visit.query.get("kind") or None, visit.query.get("principal") or None
    if kind is not None and kind.upper() not in EntryKind.__members__:
        raise Misuse(f"kind {kind[:40]!r} is unknown", hint="choose one of the list")
    query = Query(
        kind=None if kind is None else int(EntryKind[kind.upper()]),
        principal=None if who is None else _principal(visit, who),
    )
    below, end = _number(visit, "before"), _number(visit, "number")
    if end is None:
        newest = visit.mirror.block(visit.head.height)
        end = newest.size if below is None else visit.mirror.block(min(below, visit.head.height)).first
    found, goes_on = visit.mirror.newest(LINES, end, query)
    shown, more = _some(visit, found)
    older = {"number": end, **more} if more else {"number": goes_on, "skip": None} if goes_on else None
    return shown, pager(visit, None, older)


def _some(visit: Visit, found: list[AuditItem]) -> tuple[list[AuditItem], dict[str, object]]:
    """As many as a page has lines, and where it goes on: a transaction may hold hundreds."""
    skip = _number(visit, "skip") or 0
    end = skip + LINES
    return found[skip:end], {"skip": end} if end < len(found) else {}


def _line(visit: Visit, item: AuditItem) -> list[object]:
    place = link(visit, f"{item.height}/{item.index}", f"ledger/entries/{item.height}/{item.index}")
    return [place, when(item.time_ms), principal_link(visit, item.author), in_words(visit, item)]


def in_words(visit: Visit, item: AuditItem) -> str:
    """One line, with names as far as they were told."""
    return describe(decode(item.entry), visit.viewer)


def show_block(visit: Visit) -> Html:
    height = _height(visit)
    block = visit.mirror.block(height)
    told = {
        "time": when(block.time_ms),
        "transactions": many(block.count, "transaction") + f", tree of {block.size}",
        "tree root": code(block.root),
        "state root": code(block.state_root),
        "hash of the block before": code(block.previous),
        "how it is known": checked(f"replayed; under the checkpoint of height {visit.head.height}"),
    }
    shown, more = _some(visit, visit.mirror.block_entries(height)[::-1])
    rows = [_line(visit, item) for item in shown]
    ways = [
        link(visit, text, f"ledger/blocks/{number}")
        for text, number in (("block before", height - 1), ("next block", height + 1))
        if 0 <= number <= visit.head.height
    ]
    entries = lines(["place", "time", "author", "entry"], rows, "This block is empty: one is made at least so often.")
    way = pager(visit, None, more or None)
    return join(heading(f"Block {height}"), facts(told), part("Entries", entries, way), part("Beside it", join(*ways)))


def show_entry(visit: Visit) -> Html:
    height = _height(visit)
    found = [item for item in visit.mirror.block_entries(height) if str(item.index) == visit.parameters["index"]]
    if not found:
        raise Misuse(f"block {height} has no entry {visit.parameters['index']}", hint="the block's page lists them")
    item = found[0]
    fields = [
        (name.replace("_", " "), code(value) if isinstance(value, bytes) else str(value))
        for name, value in decode(item.entry).items()
    ]
    told = {
        "block": height_link(visit, height),
        "time": when(item.time_ms),
        "author": principal_link(visit, item.author),
    }
    return join(heading(in_words(visit, item)), facts(told), part("Its fields", facts(fields)))


def _height(visit: Visit) -> int:
    text = visit.parameters["height"]
    if not is_number(text) or int(text) > visit.head.height:
        raise Misuse(
            f"no block {text[:20]} was verified here; the newest is {visit.head.height}",
            hint="a height to come is a page to come: open it again then",
        )
    return int(text)


def _number(visit: Visit, name: str) -> int | None:
    text = visit.query.get(name) or None
    if text is None:
        return None
    if not is_number(text) or len(text) > 15:
        raise Misuse(
            f"{name}: a height expected, found {text[:40]!r}", hint="heights are the numbers in the first column"
        )
    return int(text)


def _principal(visit: Visit, text: str) -> bytes:
    if is_identifier(text):
        return bytes.fromhex(text)
    if visit.viewer.names is None:
        raise Misuse("no names were told yet", hint="write the identifier, or wait a moment")
    return visit.viewer.names.principal(text)


PAGES = (
    Page("ledger", "Ledger", show_entries, in_menu=True),
    Page("ledger/blocks/{height}", "Block", show_block),
    Page("ledger/entries/{height}/{index}", "Entry", show_entry),
)
