"""*As it happens*: what somebody should know of, off the newest entries of the ledger.

The ledger is walked back from its end, so a page looks at no more than `LOOKED_MAX` entries, and offers the older ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tallystick.client.reader import LATE_S, is_late
from tallystick.client.words import decode
from tallystick.console.findings import contradictions
from tallystick.console.layout import heading, lines
from tallystick.console.marks import bad, soft, warning, when
from tallystick.console.page import Page
from tallystick.console.pages.ledger import in_words
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.reputation import STANDINGS
from tallystick.ledger.engine import AuditItem, Query
from tallystick.page.html import Html, join, tag
from tallystick.trust.promise import Promise
from tallystick.trust.right import Right

LOOKED_MAX = 600  # entries: some 25 ms
_AT_ONCE = 10  # transactions
_REASON = 5  # of an operation's fields

Place = tuple[int, int]  # height and index
Wanted = Callable[[list[str], AuditItem], bool]

_MISDEEDS = (EntryKind.SUSPECT, EntryKind.TWO_SETS, EntryKind.FALSE_SHARE, EntryKind.TWO_ORIGINS, EntryKind.TWO_ORDERS)

# By the name in the address: what it is called, how grave it is, and which entries are; of ends of epochs only some.
KINDS: dict[str, tuple[str, Callable[..., Html], tuple[EntryKind, ...]]] = {
    "refused": ("refused", warning, ()),
    "blacklisted": ("blacklisted", bad, ()),
    "lifted": ("lifted", soft, (EntryKind.LIFT,)),
    "equivocation": ("equivocation", bad, (EntryKind.EQUIVOCATION,)),
    "broken-promise": ("broken promise", bad, (EntryKind.BROKEN_PROMISE,)),
    "misdeed": ("misdeed in an overlay", bad, _MISDEEDS),
    "revoked": ("revoked", warning, (EntryKind.REVOKE, EntryKind.END_EPOCH)),
    "permit": ("permit undone or revoked", warning, (EntryKind.UNDO_PERMIT, EntryKind.REVOKE_PERMIT)),
    "erased": ("erased", warning, (EntryKind.ERASE,)),
    "late": ("late anchor", warning, ()),
    "activation": ("activation ended", warning, (EntryKind.WITHDRAW_ACTIVATION,)),
    "contradiction": ("the ledger contradicts itself", bad, ()),
}
_BY_ENTRY = {kind: name for name, (_, _, kinds) in KINDS.items() for kind in kinds}
_BLAMED = ("operator", "publisher", "relay", "signer", "principal", "subject")


def show_happenings(visit: Visit) -> Html:
    wanted = visit.query.get("kind") or ""
    if wanted and wanted not in KINDS:
        raise Misuse(f"kind {wanted[:40]!r} is unknown", hint="choose one of the list")
    before, reason = visit.before, visit.query.get("reason") or ""
    is_wanted = partial(_is_wanted, wanted, reason)
    found, last, looked = _walk(visit, before, is_wanted, query=_query(wanted, reason))
    rows = [_line(visit, item, kinds) for item, kinds in found]
    if before is None and not reason and wanted in ("", "contradiction"):
        rows = [*_contradictions(visit), *rows]
    form = visit.filters(
        visit.choice("kind", "kind", {"": "all"} | {key: one[0] for key, one in KINDS.items()}),
        visit.field("reason", "reason of refusal", placeholder="no-right"),
    )
    below = "" if before is None else f" below {before[0]}/{before[1]}"
    among = "" if last is None else f" newest {looked:,}"
    none = f"Nothing of this kind is among the{among} entries{below}; what comes is shown here at once."
    lead = (
        "What was refused, revoked, erased or proved against somebody, as the contracts' replay here gives it, newest "
        f"first. An anchor is late {LATE_S:.0f} s after the node says that it took the parcel."
    )
    shown = lines(["when", "what", "who", "topic", "entry"], rows, none)
    older = None if last is None else {"before": f"{last[0]}/{last[1]}"}
    return join(heading("As it happens", lead), form, shown, visit.pager(None, older))


def _query(wanted: str, reason: str) -> Query:
    """What the ledger's indexes tell of it, so that nothing else is walked through."""
    kinds = KINDS[wanted][2] if wanted else ()
    if reason or wanted == "refused":
        return Query(refused=True)
    return Query(kind=int(kinds[0])) if len(kinds) == 1 else Query()


def _is_wanted(wanted: str, reason: str, kinds: list[str], item: AuditItem) -> bool:
    has_reason = not reason or ("refused" in kinds and item.fields[_REASON] == reason)
    return has_reason and bool(kinds) and wanted in ("", *kinds)


def _walk(
    visit: Visit, before: Place | None, is_wanted: Wanted, most: int = LOOKED_MAX, query: Query = Query()
) -> tuple[list[tuple[AuditItem, list[str]]], Place | None, int]:
    """What happened below a place, newest first; where to go on, None at the ledger's beginning; how much was seen."""
    found: list[tuple[AuditItem, list[str]]] = []
    looked, number = 0, None if before is None else visit.mirror.block(before[0]).size
    while number != 0:
        items, number = visit.mirror.newest(_AT_ONCE, number, query)
        for item in items:
            if before is not None and (item.height, item.index) >= before:
                continue
            looked += 1
            kinds = _kinds(visit, item)
            if is_wanted(kinds, item):
                found.append((item, kinds))
            if len(found) == LINES or looked == most:
                return found, (item.height, item.index), looked
    return found, None, looked


def _kinds(visit: Visit, item: AuditItem) -> list[str]:
    """The names of what an entry is; most are nothing that anybody need know of."""
    kind, fields = item.kind, item.fields
    if kind == EntryKind.OPERATION:
        _, operator, _, _, operation, reason, _, _, _, _, end, time_ms, *_ = fields
        if reason:
            return ["refused", *_blacklisted(visit, item, operator)]
        return ["late"] if operation == Right.WRITE and end and is_late(time_ms, item.time_ms) else []
    if kind == EntryKind.END_EPOCH:
        return ["revoked"] if fields[3] == End.REVOCATION else []
    name = _BY_ENTRY.get(EntryKind(kind))
    return [] if name is None else [name, *_blacklisted(visit, item, _blamed(decode(item.entry)))]


def _blacklisted(visit: Visit, item: AuditItem, principal: bytes) -> list[str]:
    """Whether this height put the principal on the blacklist, where it still is."""
    standing = visit.mirror.row(STANDINGS(principal)) if len(principal) == 16 else None
    return ["blacklisted"] if standing is not None and standing.blacklisted == item.height else []


def _blamed(entry: dict[str, Any]) -> bytes:
    """Whose misdeed, or whose matter, an entry is; empty where nobody is named."""
    if "promise" in entry:
        try:
            return Promise.decode(entry["promise"]).node
        except (Malformed, Refused):
            return b""
    return next((entry[name] for name in _BLAMED if name in entry), b"")


def _line(visit: Visit, item: AuditItem, kinds: list[str]) -> list[object]:
    entry = decode(item.entry)
    marks = [(show(name), " ") for name, show, _ in map(KINDS.__getitem__, kinds)]
    reason, token = entry.get("reason"), entry.get("token")
    alike = visit.here(kind="refused", reason=reason, before=None)
    why = [" ", tag("b", tag("a", reason, href=alike))] if reason else None
    what = tag("div", marks, why, tag("br"), soft(in_words(visit, item)))
    who, topic = visit.principal(_blamed(entry) or item.author), visit.topic(token) if token else "–"
    return [when(item.time_ms), what, who, topic, visit.entry(item.height, item.index)]


def _contradictions(visit: Visit) -> list[list[object]]:
    """What the mirror is shown now and does not hold, and what the memory kept of such."""
    trouble, rows = visit.mirror.at.trouble, list[list[object]]()
    if trouble is not None and not trouble.is_away:
        what = tag("div", bad(trouble.reason), tag("br"), soft(trouble.message))
        rows.append([when(trouble.since_ms), what, "the node", "–", "none"])
    for one in contradictions(visit.viewer):
        what = tag("div", bad(one.reason), tag("br"), soft(one.message))
        rows.append([when(one.time_ms), what, "the node", "–", visit.link("evidence", f"findings/{one.name}")])
    return rows


PAGES = (Page("happenings", "As it happens", show_happenings, in_menu=True),)
