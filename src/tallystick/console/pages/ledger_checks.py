"""*Ledger*, asked: rows of the state with the node's proof, consistency of any two heights, and a checkpoint that
somebody else was shown, held to the history that was replayed here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tallystick.console.layout import facts, fields, heading, lines, part
from tallystick.console.marks import bad, checked, code, cut
from tallystick.console.page import Download, Page
from tallystick.console.visit import LINES, Visit
from tallystick.crypto.merkle import verify_consistency
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger.contracts import execute
from tallystick.ledger.contracts.state import Key, Table
from tallystick.page.html import Html, join, tag
from tallystick.trust.notes import Checkpoint, Note, verify_checkpoint

# Of all contracts that are ever run, by name.
_CONTRACTS = [one for one in vars(execute).values() if isinstance(one, ModuleType)]
TABLES: dict[str, Table[Any]] = {
    one.family: one for contract in _CONTRACTS for one in vars(contract).values() if isinstance(one, Table)
}
_ASK_S = 5.0
_NOTE_CHARS_MAX = 8_192


def show_state(visit: Visit) -> Html:
    """The rows of one table, by key."""
    table = _table(visit.query.get("table") or "topic")
    form = visit.filters(visit.choice("table", "table", {name: name for name in sorted(TABLES)}))
    after = _octets(visit, "after")
    rows = visit.mirror.rows_after(table, after, LINES)
    listed = [
        [visit.link(code(_parts(table, key)), f"ledger/state/{key.hex()}"), code(cut(_plain(row), 200))]
        for key, row in rows
    ]
    shown = lines(["key", "row"], listed, "This table has no rows.")
    ways = visit.pager(None, {"after": rows[-1][0].hex()} if len(rows) == LINES else None)
    lead = f"As it was at height {visit.head.height}, computed here from all entries before."
    return join(heading("State of the ledger", lead), form, shown, ways)


def show_row(visit: Visit) -> Html | Download:
    """One row, and what the node proves of it."""
    key = _key(visit)
    row = visit.mirror.row(key)
    known = {"key": code(bytes(key)), "known by": checked(f"replayed to height {visit.head.height}")}
    told = fields(row._asdict() if row is not None and hasattr(row, "_asdict") else {"value": row})
    none = tag("p", "There is no such row: its absence follows from the replay.")
    parts = heading(f"Row of table {key.table.family}"), facts(known), part("Its fields", none if row is None else told)
    if "proof" not in visit.query:
        ways = visit.link("ask the node for its proof", visit.path, proof=1)
        return join(*parts, part("Proof", tag("p", ways, ", which anybody can check who holds the checkpoint.")))
    with visit.viewer.asking, visit.viewer.session.within(_ASK_S):
        proof = visit.viewer.session.node.state(key)
        head = visit.viewer.session.view.remember(proof.note, since=0)
    verify_map(head.state_root, key, proof.value, proof.proof)
    if visit.query["proof"] == "file":
        return Download("state.proof", proof.encode())
    proved = {
        "under": join("the checkpoint of height ", visit.block(min(head.height, visit.head.height))),
        "state root": code(head.state_root),
        "result": checked("the node's proof holds"),
        "file": visit.link("state.proof", visit.path, proof="file"),
    }
    return join(*parts, part("Proof", facts(proved)))


def show_consistency(visit: Visit) -> Html:
    """Two heights of our own history, or a checkpoint that somebody else was shown."""
    form = visit.filters(
        visit.field("old", "older height", placeholder=0, inputmode="numeric"),
        visit.field("new", "newer height", placeholder=visit.head.height, inputmode="numeric"),
        tag("input", type="hidden", name="compare", value="1"),
    )
    text = tag("textarea", visit.query.get("note", ""), name="note", rows=7, cols=70)
    label = tag("label", "a checkpoint that somebody else was shown, whole", text)
    pasted = tag("form", label, tag("button", "compare", type="submit"), method="get", class_="filters")
    found: list[object] = []
    if {"compare", "old", "new"} & visit.query.keys():
        found.append(part("From the older to the newer", _compare_heights(visit)))
    if visit.query.get("note"):
        found.append(part("That checkpoint", _compare_note(visit, visit.query["note"])))
    lead = "Does one checkpoint continue the other? An operator who shows two histories is found by comparing them."
    return join(heading("Consistency", lead), form, pasted, *found)


def _compare_heights(visit: Visit) -> Html:
    ends = {"old": "0", "new": str(visit.head.height)}  # where nothing was filled in
    heights = sorted(visit.height(visit.query.get(name) or end) for name, end in ends.items())
    old, new = map(visit.mirror.block, heights)
    with visit.viewer.asking, visit.viewer.session.within(_ASK_S):
        proof = [] if old.size == new.size else visit.viewer.session.node.consistency(old.size, new.size)
    verify_consistency(old.size, old.root, new.size, new.root, proof)
    told = {
        "older": join(visit.block(old.height), f", tree of {old.size}, root ", code(old.root)),
        "newer": join(visit.block(new.height), f", tree of {new.size}, root ", code(new.root)),
        "proof": [tag("div", code(one)) for one in proof] or "none is needed: the trees are of one size",
        "result": checked("the newer continues the older"),
    }
    return facts(told)


def _compare_note(visit: Visit, text: str) -> Html:
    if len(text) > _NOTE_CHARS_MAX:
        raise Misuse(f"the checkpoint: at most {_NOTE_CHARS_MAX} characters expected")
    data = (text.replace("\r\n", "\n").strip() + "\n").encode()
    shown = Checkpoint.decode(Note.decode(data).text)
    try:
        accepted = verify_checkpoint(data, visit.viewer.session.memory.trust)
    except Refused as error:
        return tag("p", bad("its signatures do not count"), f" {error}")
    if accepted.height > visit.head.height:
        newest = f"{visit.head.height} is the newest that was verified here"
        return tag("p", f"It is of height {accepted.height}, and {newest}.")
    ours = visit.mirror.block(accepted.height)
    same = (ours.size, ours.root, ours.state_root) == (accepted.size, accepted.root, accepted.state_root)
    result = checked("it is the one of this history") if same else bad("another history: the operator signed both")
    told = {"height": visit.block(ours.height), "its root": code(shown.root), "the root here": code(ours.root)}
    return facts({**told, "result": result})


def _table(name: str) -> Table[Any]:
    if name not in TABLES:
        raise Misuse(f"table {name[:40]!r} is unknown", hint=f"known are {', '.join(sorted(TABLES))}")
    return TABLES[name]


def _key(visit: Visit) -> Key[Any]:
    try:
        data = bytes.fromhex(visit.parameters["key"])
        table = TABLES[data.partition(b"/")[0].decode("ascii")]
        key: Key[Any] = table(*table.parts(data))
    except (ValueError, KeyError, OverflowError):
        key = None  # type: ignore[assignment]
    if key is None or key != data:
        raise Misuse("the address names no key of the state", hint="the page of the state lists them")
    return key


def _parts(table: Table[Any], key: bytes) -> str:
    return " ".join(part.hex() if isinstance(part, bytes) else str(part) for part in table.parts(key)) or table.family


def _plain(value: object) -> object:
    """Bytes in hexadecimal, whatever holds them."""
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "_asdict"):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value._asdict().items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(str(_plain(one)) for one in value) + "]"
    return value


def _octets(visit: Visit, name: str) -> bytes:
    try:
        return bytes.fromhex(visit.query.get(name, ""))
    except ValueError:
        raise Malformed(f"{name}: hexadecimal digits expected") from None


PAGES = (
    Page("ledger/state", "State", show_state),
    Page("ledger/state/{key}", "Row", show_row, live=False),
    Page("ledger/consistency", "Consistency", show_consistency, live=False),
)
