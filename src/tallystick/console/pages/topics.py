"""*Topics*: those that the viewer owns or may describe; of each what the ledger says, and where, and its history.

Whoever lacks the right to describe a topic is told what is told of one that does not exist.
"""

from __future__ import annotations

from shlex import quote

from tallystick import wire
from tallystick.client.spans import show_keeping, show_ms
from tallystick.client.words import decode, describe
from tallystick.console.layout import (
    LINES,
    bad,
    checked,
    choice,
    code,
    command,
    facts,
    field,
    filters,
    heading,
    height_link,
    lines,
    link,
    nothing,
    pager,
    part,
    principal_link,
    short,
    skipped,
    soft,
    told,
    topic_link,
    warning,
    ways_on,
    when,
)
from tallystick.console.page import Page
from tallystick.console.pages.groups import TopicTraffic, group_names
from tallystick.console.recent import recent
from tallystick.console.schemas import ask_columns
from tallystick.console.viewer import Visit
from tallystick.errors import Misuse, Refused
from tallystick.ledger.contracts.access import INDEXES, RIGHTS, indexed
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED
from tallystick.ledger.contracts.attributes import POLICIES
from tallystick.ledger.contracts.epochs import EPOCHS, ERASURES, LAST_EPOCHS, End
from tallystick.ledger.contracts.identity import TENANTS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import HISTORIES
from tallystick.ledger.contracts.retention import EARLIER, RELEASED
from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED, SCHEMAS, TOPICS, TopicRow
from tallystick.ledger.engine import HistoryItem
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import amount, many
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right
from tallystick.wire import is_identifier, is_number

_LOOKED_MAX = 2_000  # operations that one page looks through for refusals
_EPOCHS_SHOWN = 20
_RULES = (EntryKind.GRANT, EntryKind.WITHDRAW)


# Which topics.


def is_owner(visit: Visit, row: TopicRow) -> bool:
    """Whether the viewer owns the topic, or administers its tenant."""
    identity = visit.viewer.identity
    tenant = visit.mirror.row(TENANTS(row.tenant))
    return identity.principal in (row.owner, None if tenant is None else tenant.owner)


def visible_topics(visit: Visit) -> dict[bytes, TopicRow]:
    """Those that the viewer owns or may describe, by name."""
    described = set(indexed(visit.mirror.row(INDEXES(visit.viewer.identity.principal)), Right.DESCRIBE))
    tenant = visit.mirror.row(TENANTS(visit.viewer.identity.tenant))
    me, own = visit.viewer.identity.principal, visit.viewer.identity.tenant
    is_admin = tenant is not None and tenant.owner == me
    found = [
        (token, row)
        for (token,), row in recent(visit.mirror).rows(TOPICS)
        if token in described or row.owner == me or (is_admin and row.tenant == own)
    ]
    return dict(sorted(found, key=lambda one: visit.viewer.topic_name(one[0])))


def find_topic(visit: Visit, text: str) -> bytes:
    """The token of a topic that the viewer owns or may describe. Raises `Refused`, in the same words whatever lacks."""
    names = visit.viewer.names
    if is_identifier(text):
        found = [bytes.fromhex(text)]
    else:
        found = [] if names is None else [token for token, name in names.topics if name == text]
    every = visible_topics(visit)
    visible = [token for token in found if token in every]
    if len(visible) > 1:
        raise Misuse(f'{len(visible)} topics are called "{text[:80]}"', hint="name one by its token, from the list")
    if not visible:
        hint = "the list of topics has those that there are for you; the owner of another grants describe on it"
        raise Refused(
            f'there is no topic "{text[:80]}" that you own or may describe', reason="unknown-topic", hint=hint
        )
    return visible[0]


def show_topics(visit: Visit) -> Html:
    wanted = visit.query.get("name", "").casefold()
    every = visible_topics(visit)
    found = [
        (token, row)
        for token, row in every.items()
        if wanted in visit.viewer.topic_name(token).casefold() or token.hex().startswith(wanted)
    ]
    shown = found[skipped(visit) :][:LINES]
    lead = (
        f"{many(len(every), 'topic')} that you own or may describe. The ledger has tokens; names are the authority's."
    )
    form = filters(visit, field(visit, "name", "name contains", placeholder="name or token"))
    none = "No topic fits." if every else "No topics that you own or may describe; tally topic create makes one."
    columns = ["topic", "tenant", "partitions", "parcels anchored", "newest anchor", "policy", ""]
    rows = lines(columns, [_line(visit, *one) for one in shown], none, numbers=(2, 3))
    return join(heading("Topics", lead), form, rows, ways_on(visit, len(found)))


def _line(visit: Visit, token: bytes, row: TopicRow) -> list[object]:
    at_hand = recent(visit.mirror)
    anchors = [at_hand.row(ANCHORS, token, number) for number in range(row.partitions)]
    known = [anchor for anchor in anchors if anchor is not None]
    newest = when(max(anchor.time_ms for anchor in known)) if known else soft("none yet")
    tenant = "own" if row.tenant == visit.viewer.identity.tenant else tag("span", "other ", short(row.tenant))
    closed = any(policy.commitment for _, policy in visit.mirror.scan(POLICIES, token))
    state = warning("closed") if row.closed else None
    size = amount(sum(anchor.size for anchor in known))
    return [topic_link(visit, token), tenant, row.partitions, size, newest, "yes" if closed else "no", state]


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
        part("What went", _marks(visit, token, row)),
        part("Epochs", _epochs(visit, token)),
        part("Erased", _erasures(visit, token)) if row.flags & ERASABLE else None,
        part("What you may do", *_commands(visit, token, row)),
    )


def _ways(visit: Visit, token: bytes) -> Html:
    history, path = visit.mirror.row(HISTORIES(token)), f"topics/{token.hex()}"
    operations = many(0 if history is None else history.operations, "operation")
    flow = link(visit, "flow", "", topic=token.hex())
    return join(
        link(visit, f"history: {operations}", f"{path}/history"),
        ", ",
        link(visit, "records", f"{path}/records"),
        ", ",
        flow,
    )


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
        ("owner", principal_link(visit, row.owner)),
        ("made at height", height_link(visit, row.created)),
        ("closed at height", height_link(visit, row.closed) if row.closed else None),
        ("partitions", f"{row.partitions}, {many(row.replicas, 'replica')}"),
        ("kept", show_keeping(row.keep_ms, row.keep_parcels) + "".join(earlier)),
        ("pace of anchors", show_ms(row.anchor_pace_ms) if row.anchor_pace_ms else None),
        ("flags", ", ".join(word for bit, word in words if row.flags & bit) or None),
    ]


def _columns(visit: Visit, token: bytes, row: TopicRow) -> list[object]:
    said = ask_columns(visit, token)
    rows: list[list[object]] = []
    for (_, version), schema in visit.mirror.scan(SCHEMAS, token)[::-1]:
        found = said.schemas.get(version)
        text = soft("not told") if found is None else tag("span", str(found), " ", checked("hash fits"))
        rows.append([version, height_link(visit, schema.height), code(schema.hash.hex()[:16]), text])
    closed: list[list[object]] = []
    newest = said.schemas.get(row.version)
    for (_, group), policy in visit.mirror.scan(POLICIES, token):
        names = (
            ", ".join(newest.groups[group]) if newest is not None and group < len(newest.groups) else f"group {group}"
        )
        formula: object = soft("lifted")
        if policy.commitment:
            formula = told(said.policies.get(group) or "formula not told", by="the authority")
        closed.append([names, policy.version, height_link(visit, policy.height), formula])
    trouble = tag("p", warning("not told"), f" {said.trouble}") if said.trouble else None
    forged = [tag("p", bad("does not hold"), f" {one}") for one in said.forged]
    versions = lines(["version", "height", "hash", "columns"], rows[:LINES], "No schema.", numbers=(0, 1))
    policies = lines(["columns", "version", "height", "who opens them"], closed, "", numbers=(1, 2)) if closed else None
    return [forged, trouble, versions, policies or soft("No column has a policy.")]


def _rights(visit: Visit, token: bytes) -> Html:
    first = skipped(visit)
    found = visit.mirror.scan(RIGHTS, token, most=first + LINES + 1)[first:]
    rows = []
    for (_, principal), row in found[:LINES]:
        height = _height_of_change(visit, token, principal, row.changed_ms)
        since = tag("span", height_link(visit, height), " ", when(row.changed_ms))
        for allow, operations, host in row.rules or [[1, 0, ""]]:
            words = ", ".join(one.name.lower() for one in Right if operations & one and one.name)
            said = (words if allow else bad(f"not {words}")) if words else soft("none any more")
            rows.append([principal_link(visit, principal), said, "anywhere" if host == "*" else host, since])
    shown = lines(["principal", "may", "from", "last change"], rows, "Nobody was granted a right.")
    return join(shown, ways_on(visit, first + len(found)))


def _height_of_change(visit: Visit, token: bytes, principal: bytes, time_ms: int) -> int:
    """Of the block that changed these rules: the ledger keeps its time, and several blocks may have the same."""
    heights = [recent(visit.mirror).height_at(time_ms)]
    while heights[-1] < visit.head.height and visit.mirror.block(heights[-1] + 1).time_ms == time_ms:
        heights.append(heights[-1] + 1)
    for height in heights[:0:-1]:
        entries = visit.mirror.block_entries(height)
        if any(item.kind in _RULES and item.fields[1:3] == [token, principal] for item in entries):
            return height
    return heights[0]


def _permits(visit: Visit, token: bytes) -> Html:
    found = sorted(recent(visit.mirror).live_permits({token}), key=lambda one: -one[1].height)
    rows = [
        [
            Operation(row.operation).name.lower(),
            principal_link(visit, row.principal),
            height_link(visit, row.height),
            wire.show_time(row.not_after_ms),
            short(identifier),
        ]
        for identifier, row in found[:LINES]
    ]
    shown = lines(["to", "principal", "issued at", "not after", "permit"], rows, "Nobody holds a permit.", numbers=(2,))
    return join(soft(f"The newest {LINES} of {amount(len(found))}.") if len(found) > LINES else None, shown)


def _marks(visit: Visit, token: bytes, row: TopicRow) -> Html:
    rows = [
        [number, word, mark.below, height_link(visit, mark.height)]
        for number in range(row.partitions)
        for word, mark in (
            ("retired by its carrier", visit.mirror.row(RETIRED(token, number))),
            ("released by the owner", visit.mirror.row(RELEASED(token, number))),
        )
        if mark is not None
    ]
    return lines(["partition", "what", "below offset", "height"], rows[:LINES], "All is there.", numbers=(0, 2, 3))


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
    found = visit.mirror.scan(ERASURES, token, most=LINES + 1)
    rows = [
        [principal_link(visit, publisher), period, height_link(visit, row.height), when(row.time_ms)]
        for (_, publisher, period), row in found[:LINES]
    ]
    shown = lines(["publisher", "period", "height", "time"], rows, "Nothing was erased.", numbers=(1, 2))
    return join(shown, soft(f"And more; these are the first {LINES}.") if len(found) > LINES else None)


def _commands(visit: Visit, token: bytes, row: TopicRow) -> list[Html]:
    identity = visit.viewer.identity
    is_own = row.tenant == identity.tenant and visit.viewer.knows(token)
    name = quote(visit.viewer.topic_name(token) if is_own else token.hex())  # another tenant's never by its name
    home = f"--home {quote(str(identity.home))}"
    names = group_names(visit)
    groups = [quote(names.get(group) or group.hex()) for group, _ in recent(visit.mirror).groups({token})[:3]]
    found = [f"tally group reset {group} {name} --to earliest {home}" for group in groups]
    if is_owner(visit, row):
        found += [f"tally right grant {name} PRINCIPAL read {home}", f"tally topic rotate {name} {home}"]
        found += [f"tally erase {name} PUBLISHER --all-periods --yes {home}"] if row.flags & ERASABLE else []
    else:
        found.append(f"tally subscribe {name} {home}")
    return [command(one) for one in found]


# Its history.


def show_history(visit: Visit) -> Html:
    token = find_topic(visit, visit.parameters["token"])
    name, history = visit.viewer.topic_name(token), visit.mirror.row(HISTORIES(token))
    count = 0 if history is None else history.operations
    lead = join(
        checked("complete"),
        f" {many(count, 'operation')} up to height {visit.head.height}: each extends a chain that the state root"
        " covers, and the whole ledger was replayed here. ",
        link(visit, "the topic", f"topics/{token.hex()}"),
    )
    only = visit.query.get("only", "")
    if only not in ("", "refused"):
        raise Misuse(f"only {only[:40]!r} is unknown", hint="choose one of the list")
    form = filters(visit, choice(visit, "only", "show", [("", "all operations"), ("refused", "refused only")]))
    found, older = _operations(visit, token, refused=only == "refused")
    rows = [_operation(visit, one) for one in found]
    none = nothing("None was refused among those looked through here." if only else "Nothing happened to it yet.")
    shown = lines(["place", "time", "operator", "operation"], rows, "") if rows else none
    return join(heading(f"History of {name}", lead), form, shown, pager(visit, None, older))


def _operations(visit: Visit, token: bytes, *, refused: bool) -> tuple[list[HistoryItem], dict[str, object] | None]:
    """A page of them, newest first, and where to go on."""
    before, most = _place(visit), _LOOKED_MAX if refused else LINES
    looked = visit.mirror.history(token, most + 1, before)
    found = [item for item in looked[:most] if not refused or decode(item.entry)["reason"]]
    last = found[LINES - 1] if len(found) > LINES else looked[most - 1] if len(looked) > most else None
    return found[:LINES], None if last is None else {"before": f"{last.height}/{last.index}"}


def _operation(visit: Visit, item: HistoryItem) -> list[object]:
    fields = decode(item.entry)
    words = describe(fields, visit.viewer)
    place = link(visit, f"{item.height}/{item.index}", f"ledger/entries/{item.height}/{item.index}")
    time = when(visit.mirror.block(item.height).time_ms)
    return [place, time, principal_link(visit, fields["operator"]), bad(words) if fields["reason"] else words]


def _place(visit: Visit) -> tuple[int, int] | None:
    text = visit.query.get("before") or None
    if text is None:
        return None
    height, _, index = text.partition("/")
    if not (is_number(height) and is_number(index) and len(text) <= 24) or int(height) > visit.head.height:
        raise Misuse(
            f"before {text[:40]!r}: a place such as 120/3 expected", hint="open the history from its beginning"
        )
    return int(height), int(index)


PAGES = (
    Page("topics", "Topics", show_topics, in_menu=True),
    Page("topics/{token}", "Topic", show_topic),
    Page("topics/{token}/history", "History", show_history),
)
