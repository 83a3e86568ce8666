"""*Ledger*: blocks and entries in words, rows of the state with their proof, consistency of any two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.client.words import decode, describe
from tallystick.console.layout import facts, fields, heading, lines, part
from tallystick.console.marks import checked, code, when
from tallystick.console.page import Page
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Misuse
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import AuditItem, Query
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.wire import is_identifier


def show_entries(visit: Visit) -> Html:
    """The newest entries first, or those that the filters ask for."""
    kinds = {"": "all kinds"} | {kind.name.lower(): kind.name.lower().replace("_", " ") for kind in EntryKind}
    form = visit.filters(
        visit.choice("kind", "kind", kinds),
        visit.field("principal", "author or operator", placeholder="name or identifier"),
        visit.field("before", "below height", inputmode="numeric"),
    )
    found, ways = _found(visit)
    shown = lines(["height", "time", "author", "entry"], [_line(visit, one) for one in found], "No entries fit.")
    lead = "Every entry was replayed by the contracts' rules, from the genesis to the checkpoint above."
    more = visit.link("rows of its state", "ledger/state"), visit.link("compare checkpoints", "ledger/consistency")
    return join(heading("Ledger", lead), tag("p", more[0], " · ", more[1]), form, shown, ways)


def _found(visit: Visit) -> tuple[Sequence[AuditItem], Html | None]:
    kind, who = visit.query.get("kind"), visit.query.get("principal")
    if kind and kind.upper() not in EntryKind.__members__:
        raise Misuse(f"kind {kind[:40]!r} is unknown", hint="choose one of the list")
    query = Query(kind=EntryKind[kind.upper()] if kind else None, principal=_principal(visit, who) if who else None)
    below, end = visit.number("before"), visit.number("number")
    if end is None:
        end = visit.head.size if below is None else visit.mirror.block(min(below, visit.head.height)).first
    found, goes_on = visit.mirror.newest(LINES, end, query)
    older: dict[str, object] | None = {"number": goes_on, "skip": None} if goes_on else None
    if visit.skip + LINES < len(found):  # a transaction may hold hundreds
        older = {"number": end, "skip": visit.skip + LINES}
    return visit.part_of(found), visit.pager(None, older)


def _line(visit: Visit, item: AuditItem) -> list[object]:
    place = visit.entry(item.height, item.index)
    return [place, when(item.time_ms), visit.principal(item.author), in_words(visit, item)]


def in_words(visit: Visit, item: AuditItem) -> str:
    """One line, with names as far as they were told."""
    return describe(decode(item.entry), visit.viewer)


def show_block(visit: Visit) -> Html:
    height = visit.height(visit.parameters["height"])
    block = visit.mirror.block(height)
    told = {
        "time": when(block.time_ms),
        "transactions": many(block.count, "transaction") + f", tree of {block.size}",
        "tree root": code(block.root),
        "state root": code(block.state_root),
        "hash of the block before": code(block.previous),
        "how it is known": checked(f"replayed; under the checkpoint of height {visit.head.height}"),
    }
    every = visit.mirror.block_entries(height)[::-1]
    rows = [_line(visit, item) for item in visit.part_of(every)]
    beside = {"block before": height - 1, "next block": height + 1}
    ways = [visit.link(text, f"ledger/blocks/{n}") for text, n in beside.items() if 0 <= n <= visit.head.height]
    entries = lines(["place", "time", "author", "entry"], rows, "This block is empty: one is made at least so often.")
    listed = part("Entries", entries, visit.ways_on(len(every)))
    return join(heading(f"Block {height}"), facts(told), listed, part("Beside it", *ways))


def show_entry(visit: Visit) -> Html:
    height, index = visit.height(visit.parameters["height"]), visit.parameters["index"]
    item = next((one for one in visit.mirror.block_entries(height) if str(one.index) == index), None)
    if item is None:
        raise Misuse(f"block {height} has no entry {index}", hint="the block's page lists them")
    told = {"block": visit.block(height), "time": when(item.time_ms), "author": visit.principal(item.author)}
    return join(heading(in_words(visit, item)), facts(told), part("Its fields", fields(decode(item.entry))))


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
