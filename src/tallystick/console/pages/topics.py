"""*Topics*: those that the viewer owns or may describe; of each what the ledger says, and where, and its history.

Whoever lacks the right to describe a topic is told what is told of one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote
from typing import Any

from tallystick import wire
from tallystick.client.schemas import LOST
from tallystick.client.spans import show_keeping, show_ms
from tallystick.client.words import decode, describe
from tallystick.console.layout import command, facts, heading, lines, part
from tallystick.console.marks import bad, checked, code, short, soft, warning, when
from tallystick.console.page import Page
from tallystick.console.pages.groups import TopicTraffic, anchors, group_names
from tallystick.console.schemas import ask_columns
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Misuse, Refused
from tallystick.ledger.contracts.access import INDEXES, RIGHTS, indexed
from tallystick.ledger.contracts.anchors import RETIRED
from tallystick.ledger.contracts.attributes import POLICIES
from tallystick.ledger.contracts.epochs import EPOCHS, ERASURES, LAST_EPOCHS, End
from tallystick.ledger.contracts.identity import TENANTS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.contracts.retention import EARLIER, RELEASED
from tallystick.ledger.contracts.state import NO_HISTORY, Table
from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED, SCHEMAS, TOPICS, TopicRow
from tallystick.ledger.engine import HistoryItem
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right
from tallystick.wire import is_identifier

_LOOKED_MAX = 2_000  # operations that one page looks through for refusals
_EPOCHS_SHOWN = 20
_RULES = (EntryKind.GRANT, EntryKind.WITHDRAW)


# Which topics.


def owned(visit: Visit) -> Callable[[TopicRow], bool]:
    """Whether the viewer owns a topic, or administers its tenant."""
    me, own = visit.viewer.identity.principal, visit.viewer.identity.tenant
    tenant = visit.mirror.row(TENANTS(own))
    is_admin = tenant is not None and tenant.owner == me
    return lambda row: row.owner == me or (is_admin and row.tenant == own)


def visible_topics(visit: Visit) -> dict[bytes, TopicRow]:
    """Those that the viewer owns or may describe, by name."""
    described = set(indexed(visit.mirror.row(INDEXES(visit.viewer.identity.principal)), Right.DESCRIBE))
    is_own = owned(visit)
    found = [(token, row) for (token,), row in visit.recent.rows(TOPICS) if token in described or is_own(row)]
    return dict(sorted(found, key=lambda one: visit.viewer.topic_name(one[0])))


def find_topic(visit: Visit, text: str) -> bytes:
    """The token of a topic that the viewer owns or may describe. Raises `Refused`, in the same words whatever lacks."""
    names = visit.viewer.names
    called = [] if names is None else [token for token, name in names.topics if name == text]
    found = [bytes.fromhex(text)] if is_identifier(text) else called
    visible = [token for token in visible_topics(visit) if token in found]
    if len(visible) > 1:
        raise Misuse(f'{len(visible)} topics are called "{text[:80]}"', hint="name one by its token, from the list")
    if not visible:
        hint = "the list of topics has those that there are for you; the owner of another grants describe on it"
        none = f'there is no topic "{text[:80]}" that you own or may describe'
        raise Refused(none, reason="unknown-topic", hint=hint)
    return visible[0]


def show_topics(visit: Visit) -> Html:
    wanted, called, every = visit.query.get("name", "").casefold(), visit.viewer.topic_name, visible_topics(visit)
    found = [one for one in every if wanted in called(one).casefold() or one.hex().startswith(wanted)]
    lead = (
        f"{many(len(every), 'topic')} that you own or may describe. The ledger has tokens; names are the authority's."
    )
    form = visit.filters(visit.field("name", "name contains", placeholder="name or token"))
    none = "No topic fits." if every else "No topics that you own or may describe; tally topic create makes one."
    columns = ["topic", "tenant", "partitions", "parcels anchored", "newest anchor", "policy", ""]
    rows = lines(columns, [_line(visit, one, every[one]) for one in visit.part_of(found)], none, numbers=(2, 3))
    return join(heading("Topics", lead), form, rows, visit.ways_on(len(found)))


def _line(visit: Visit, token: bytes, row: TopicRow) -> list[object]:
    known = anchors(visit.recent, token, range(row.partitions))
    newest = when(max(anchor.time_ms for anchor in known)) if known else soft("none yet")
    tenant = "own" if row.tenant == visit.viewer.identity.tenant else tag("span", "other ", short(row.tenant))
    closed = any(policy.commitment for _, policy in visit.mirror.scan(POLICIES, token))
    size, state = amount(sum(anchor.size for anchor in known)), warning("closed") if row.closed else None
    return [visit.topic(token), tenant, row.partitions, size, newest, "yes" if closed else "no", state]


# One topic.


def show_topic(visit: Visit) -> Html:
    token = find_topic(visit, visit.parameters["token"])
    row = visit.mirror.row(TOPICS(token))
    assert row is not None
    return join(
        heading(f"Topic {visit.viewer.topic_name(token)}", _ways(visit, token)),
        facts(_facts(visit, token, row)),
        part("Schema and closed columns", *_columns(visit, token, row)),
        part("Rights", _rights(visit, token)),
        part("Permits that stand", _permits(visit, token)),
        TopicTraffic(visit, {token: row}).tables(),
        part("Retired", _marks(visit, token, row)),
        part("Epochs", _epochs(visit, token)),
        part("Erased", _erasures(visit, token)) if row.flags & ERASABLE else None,
        part("What you may do", *_commands(visit, token, row)),
    )


def _ways(visit: Visit, token: bytes) -> Html:
    path = f"topics/{token.hex()}"
    ways = [(", ", visit.link(name, f"{path}/{name}")) for name in ("records", "lanes")]
    history = visit.link(f"history: {_operations(visit, token)}", f"{path}/history")
    return join(history, ways, ", ", visit.link("flow", "", topic=token.hex()))


def _operations(visit: Visit, token: bytes) -> str:
    return many((visit.mirror.row(HISTORIES(token)) or NO_HISTORY).operations, "operation")


def _facts(visit: Visit, token: bytes, row: TopicRow) -> list[tuple[str, object]]:
    words = ((ERASABLE, "erasable"), (PADDED, "padded"), (CLEAR, "clear"))
    earlier = [
        f"; {show_keeping(*kept)} for what was anchored by {wire.show_time(until_ms)}"
        for until_ms, kept in visit.mirror.row(EARLIER(token)) or []
    ]
    own = " (your own)" if row.tenant == visit.viewer.identity.tenant else " (another)"
    return [
        ("token", code(token)),
        ("tenant", join(short(row.tenant), own)),
        ("owner", visit.principal(row.owner)),
        ("made at height", visit.block(row.created)),
        ("closed at height", visit.block(row.closed) if row.closed else None),
        ("partitions", f"{row.partitions}, {many(row.replicas, 'replica')}"),
        ("kept", show_keeping(row.keep_ms, row.keep_parcels) + "".join(earlier)),
        ("pace of anchors", show_ms(row.anchor_pace_ms) if row.anchor_pace_ms else None),
        ("flags", ", ".join(word for bit, word in words if row.flags & bit) or None),
    ]


def _columns(visit: Visit, token: bytes, row: TopicRow) -> list[object]:
    said = ask_columns(visit, token, is_own=owned(visit)(row))
    rows, closed = list[list[object]](), list[list[object]]()
    for (_, version), schema in visit.mirror.scan(SCHEMAS, token)[::-1]:
        found = said.schemas.get(version)
        text = soft("not told") if found is None else tag("span", str(found), " ", checked("hash fits"))
        rows.append([version, visit.block(schema.height), code(schema.hash.hex()[:16]), text])
    newest = said.schemas.get(row.version)
    groups = () if newest is None else newest.groups
    for (_, group), policy in visit.mirror.scan(POLICIES, token):
        names = ", ".join(groups[group]) if group < len(groups) else f"group {group}"
        held = said.policies.get(group) if policy.commitment else None
        formula: object = soft("not told" if policy.commitment else "lifted")
        if held is not None:
            formula = tag("span", held, " ", checked("commitment fits")) if held else warning(LOST)
        closed.append([names, policy.version, visit.block(policy.height), formula])
    trouble = tag("p", warning("not told"), f" {said.trouble}") if said.trouble else None
    forged = [tag("p", bad("does not hold"), f" {one}") for one in said.forged]
    versions = lines(["version", "height", "hash", "columns"], rows[:LINES], "No schema.", numbers=(0, 1))
    policies = lines(["columns", "version", "height", "who opens them"], closed, "", numbers=(1, 2)) if closed else None
    return [forged, trouble, versions, policies or soft("No column has a policy.")]


def _rights(visit: Visit, token: bytes) -> Html:
    first = visit.skip
    found = visit.mirror.scan(RIGHTS, token, most=first + LINES + 1)[first:]
    rows = []
    for (_, principal), row in found[:LINES]:
        height = _height_of_change(visit, token, principal, row.changed_ms)
        since = tag("span", visit.block(height), " ", when(row.changed_ms))
        for allow, operations, host in row.rules or [[1, 0, ""]]:
            words = ", ".join(one.name.lower() for one in Right if operations & one and one.name)
            said = (words if allow else bad(f"not {words}")) if words else soft("none any more")
            rows.append([visit.principal(principal), said, "anywhere" if host == "*" else host, since])
    shown = lines(["principal", "may", "from", "last change"], rows, "Nobody was granted a right.")
    return join(shown, visit.ways_on(first + len(found)))


def _height_of_change(visit: Visit, token: bytes, principal: bytes, time_ms: int) -> int:
    """Of the block that changed these rules: the ledger keeps its time, and several blocks may have the same."""
    found = height = visit.recent.height_at(time_ms)
    while height < visit.head.height and visit.mirror.block(height + 1).time_ms == time_ms:
        height += 1
        entries = visit.mirror.block_entries(height)
        if any(item.kind in _RULES and item.fields[1:3] == [token, principal] for item in entries):
            found = height
    return found


def _permits(visit: Visit, token: bytes) -> Html:
    found = sorted(visit.recent.live_permits({token}), key=lambda one: -one[1].height)
    rows = []
    for identifier, row in found[:LINES]:
        what, who = Operation(row.operation).name.lower(), visit.principal(row.principal)
        rows.append([what, who, visit.block(row.height), wire.show_time(row.not_after_ms), short(identifier)])
    columns = ["to", "principal", "issued at", "not after", "permit"]
    return lines(columns, rows, "Nobody holds a permit.", numbers=(2,), more=len(found) - LINES)


def _marks(visit: Visit, token: bytes, row: TopicRow) -> Html:
    marks: dict[str, Table[Any]] = {"retired by its carrier": RETIRED, "released by the owner": RELEASED}
    rows = [
        [number, word, mark.below, visit.block(mark.height)]
        for number in range(row.partitions)
        for word, table in marks.items()
        if (mark := visit.mirror.row(table(token, number))) is not None
    ]
    columns = ["partition", "what", "below offset", "height"]
    none = "Nothing was retired or released: all parcels are kept."
    return lines(columns, rows[:LINES], none, numbers=(0, 2, 3))


def _epochs(visit: Visit, token: bytes) -> Html:
    last, to_come, rows = visit.mirror.row(LAST_EPOCHS(token)) or 0, 0, list[list[object]]()
    for number in range(last, 0, -1):
        row, before = visit.mirror.row(EPOCHS(token, number)), visit.mirror.row(EPOCHS(token, number - 1))
        assert row is not None  # numbers are announced one by one
        if row.begins_ms(before) > visit.head.time_ms:
            to_come += 1
        elif len(rows) < _EPOCHS_SHOWN:
            how = tag("span", End(row.how).name.lower(), " ", when(row.end_ms)) if row.end_ms else soft("nothing yet")
            rows.append([number, when(row.begins_ms(before)), how, code(row.key_hash.hex()[:16])])
        else:
            break
    shown = lines(["epoch", "began", "ended by", "hash of its key"], rows, "No epoch began yet.", numbers=(0,))
    return join(soft(f"{to_come} more are announced, to begin later.") if to_come else None, shown)


def _erasures(visit: Visit, token: bytes) -> Html:
    found = visit.mirror.scan(ERASURES, token)
    rows = [
        [visit.principal(publisher), period, visit.block(row.height), when(row.time_ms)]
        for (_, publisher, period), row in found[:LINES]
    ]
    columns = ["publisher", "period", "height", "time"]
    return lines(columns, rows, "Nothing was erased.", numbers=(1, 2), more=len(found) - LINES)


def _commands(visit: Visit, token: bytes, row: TopicRow) -> list[Html]:
    identity = visit.viewer.identity
    is_own = row.tenant == identity.tenant and visit.viewer.knows(token)
    name = quote(visit.viewer.topic_name(token) if is_own else token.hex())  # another tenant's never by its name
    names = group_names(visit)
    groups = [quote(names.get(group) or group.hex()) for group, _ in visit.recent.groups({token})[:3]]
    found = [f"group reset {group} {name} --to earliest" for group in groups]
    if owned(visit)(row):
        found += [f"right grant {name} PRINCIPAL read", f"topic rotate {name}"]
        found += [f"erase {name} PUBLISHER --all-periods --yes"] if row.flags & ERASABLE else []
    else:
        found.append(f"subscribe {name}")
    return [command(f"tally {one} --home {quote(str(identity.home))}") for one in found]


# Its history.


def show_history(visit: Visit) -> Html:
    token = find_topic(visit, visit.parameters["token"])
    count = f" {_operations(visit, token)} up to height {visit.head.height}: each extends a chain that "
    known = "the state root covers, and the whole ledger was replayed here. "
    lead = join(checked("complete"), count, known, visit.link("the topic", f"topics/{token.hex()}"))
    only = visit.query.get("only", "")
    if only not in ("", "refused"):
        raise Misuse(f"only {only[:40]!r} is unknown", hint="choose one of the list")
    form = visit.filters(visit.choice("only", "show", {"": "all operations", "refused": "refused only"}))
    found, older = _newest(visit, token, refused=only == "refused")
    none = "None was refused among those looked through here." if only else "Nothing happened to it yet."
    shown = lines(["place", "time", "operator", "operation"], [_operation(visit, one) for one in found], none)
    return join(heading(f"History of {visit.viewer.topic_name(token)}", lead), form, shown, visit.pager(None, older))


def _newest(visit: Visit, token: bytes, *, refused: bool) -> tuple[list[HistoryItem], dict[str, object] | None]:
    """A page of them, newest first, and where to go on."""
    before, most = visit.before, _LOOKED_MAX if refused else LINES
    looked = visit.mirror.history(token, most + 1, before)
    found = [item for item in looked[:most] if not refused or decode(item.entry)["reason"]]
    last = found[LINES - 1] if len(found) > LINES else looked[most - 1] if len(looked) > most else None
    return found[:LINES], None if last is None else {"before": f"{last.height}/{last.index}"}


def _operation(visit: Visit, item: HistoryItem) -> list[object]:
    fields = decode(item.entry)
    words, place = describe(fields, visit.viewer), visit.entry(item.height, item.index)
    time = when(visit.mirror.block(item.height).time_ms)
    return [place, time, visit.principal(fields["operator"]), bad(words) if fields["reason"] else words]


PAGES = (
    Page("topics", "Topics", show_topics, in_menu=True),
    Page("topics/{token}", "Topic", show_topic),
    Page("topics/{token}/history", "History", show_history),
)
