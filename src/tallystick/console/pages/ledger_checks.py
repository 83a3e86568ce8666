"""*Ledger*, asked: rows of the state with the node's proof, consistency of any two heights, and a checkpoint that
somebody else was shown, held to the history that was replayed here.
"""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

from tallystick.console.layout import facts, fields, heading, lines, part
from tallystick.console.marks import bad, checked, code, cut
from tallystick.console.page import Download, Page
from tallystick.console.visit import LINES, Visit
from tallystick.crypto.merkle import verify_consistency
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Misuse, Refused
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
    name = visit.query.get("table") or "topic"
    if name not in TABLES:
        raise Misuse(f"table {name[:40]!r} is unknown", hint=f"known are {', '.join(sorted(TABLES))}")
    table, after = TABLES[name], visit.query.get("after")
    found = visit.mirror.scan(table, most=LINES, after=_key(after) if after else b"")
    rows: list[list[object]] = []
    for parts, row in found:
        key = code(" ".join(map(_plain, parts)) or name)
        rows.append([visit.link(key, f"ledger/state/{table(*parts).hex()}"), code(cut(_plain(row), 200))])
    lead = f"As it was at height {visit.head.height}, computed here from all entries before."
    top = heading("State of the ledger", lead)
    form = visit.filters(visit.choice("table", "table", {one: one for one in sorted(TABLES)}))
    ways = visit.pager(None, {"after": table(*found[-1][0]).hex()} if len(found) == LINES else None)
    return join(top, form, lines(["key", "row"], rows, "This table has no rows."), ways)


def show_row(visit: Visit) -> Html | Download:
    """One row, and what the node proves of it."""
    key = _key(visit.parameters["key"])
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
    are_asked, note = {"compare", "old", "new"} & visit.query.keys(), visit.query.get("note")
    heights = part("From the older to the newer", _compare_heights(visit)) if are_asked else None
    shown = part("That checkpoint", _compare_note(visit, note)) if note else None
    lead = "Does one checkpoint continue the other? An operator who shows two histories is found by comparing them."
    return join(heading("Consistency", lead), form, visit.filters(label, button="compare"), heights, shown)


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


def _key(text: str) -> Key[Any]:
    """The key of the state that an address names."""
    with suppress(ValueError, KeyError, OverflowError):
        data = bytes.fromhex(text)
        table = TABLES[data.partition(b"/")[0].decode("ascii")]
        key: Key[Any] = table(*table.parts(data))
        if key == data:
            return key
    raise Misuse("the address names no key of the state", hint="the page of the state lists them")


def _plain(value: object) -> str:
    """Bytes in hexadecimal, whatever holds them."""
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "_asdict"):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value._asdict().items())
    return f"[{', '.join(map(_plain, value))}]" if isinstance(value, list | tuple) else str(value)


PAGES = (
    Page("ledger/state", "State", show_state),
    Page("ledger/state/{key}", "Row", show_row, live=False),
    Page("ledger/consistency", "Consistency", show_consistency, live=False),
)
