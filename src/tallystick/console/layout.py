"""What all pages share: the frame, and the parts of which pages are made.

A page says of everything how it is known. `checked` is for what was verified in this process, and nothing else is
green; `told` is for the word of node, authority or a table. A command to copy stands where one would act. Every text is
escaped by `tag`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from tallystick import wire
from tallystick.console.mirror import Glance
from tallystick.console.viewer import Viewer, Visit
from tallystick.errors import Misuse
from tallystick.page.html import Html, join, table, tag

LINES = 50  # of a long list on one page


# Addresses.


def href(visit: Visit, path: str, **query: object) -> str:
    """The address of a page, with its state. What is None is left out."""
    given = {name.rstrip("_"): str(value) for name, value in query.items() if value is not None}
    return f"{visit.base}/{path}" + (f"?{urlencode(given)}" if given else "")


def here(visit: Visit, **query: object) -> str:
    """The same page with another state."""
    return href(visit, visit.path, **{**visit.query, **query})


def link(visit: Visit, text: object, path: str, **query: object) -> Html:
    return tag("a", text, href=href(visit, path, **query))


def topic_link(visit: Visit, token: bytes) -> Html:
    """A topic by its name, where the authority told it, else by its token."""
    if not any(token):
        return tag("span", "no topic", class_="soft")
    return link(visit, _named(visit, token, visit.viewer.topic_name(token)), f"topics/{token.hex()}")


def principal_link(visit: Visit, identifier: bytes) -> Html:
    """Who it is by name, where the authority told it, else by identifier; it leads to what the ledger says of them."""
    if not any(identifier):
        return tag("span", "nobody known", class_="soft")
    name = visit.viewer.principal_name(identifier)
    return link(visit, _named(visit, identifier, name), "ledger", principal=identifier.hex())


def _named(visit: Visit, identifier: bytes, name: str) -> Html:
    return told(name, by="the authority") if visit.viewer.knows(identifier) else short(identifier)


def height_link(visit: Visit, height: int) -> Html:
    return link(visit, height, f"ledger/blocks/{height}")


# How something is known.


def checked(*text: object) -> Html:
    """What was verified in this process."""
    return tag("span", text, class_="mark good", title="verified here")


def told(*text: object, by: str) -> Html:
    """What somebody said, and nobody proved; `by` says whose word it is."""
    return tag("span", text, class_="told", title=f"the word of {by}, not proved")


def bad(*text: object) -> Html:
    return tag("span", text, class_="mark alarm")


def warning(*text: object) -> Html:
    return tag("span", text, class_="mark warning")


def soft(*text: object) -> Html:
    return tag("span", text, class_="soft")


# Parts of pages.


def short(identifier: bytes) -> Html:
    """An identifier whose whole is one click, or a pointer, away."""
    text = identifier.hex()
    return tag("code", text[:12] + "…" if len(text) > 16 else text, title=text, class_="short")


def code(text: object) -> Html:
    return tag("code", text.hex() if isinstance(text, bytes) else text)


def when(time_ms: int) -> Html:
    """A time in UTC; its age goes on where scripts run."""
    return tag("time", wire.show_time(time_ms), data_ms=time_ms)


def facts(pairs: Mapping[str, object] | Sequence[tuple[str, object]]) -> Html:
    """Names and what they are, under one another; what is None is left out."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in items if value is not None])


def command(text: str) -> Html:
    """A command, filled in, to copy: the console itself changes nothing."""
    copy = tag("button", "copy", type="button", class_="copy", hidden="")
    return tag("p", tag("code", text), copy, class_="command")


def heading(title: str, lead: object = None) -> Html:
    return join(tag("h1", title), None if lead is None else tag("p", lead, class_="lead"))


def part(title: str, *content: object) -> Html:
    return tag("section", tag("h2", title), content)


def nothing(text: str, *next_step: object) -> Html:
    """Where there is nothing to show, why, and what would change that."""
    return tag("div", text, next_step, class_="card none")


def lines(columns: list[str], rows: Iterable[list[Any]], none: str, *, numbers: tuple[int, ...] = ()) -> Html:
    """A table, or a word where it has no rows."""
    found = list(rows)
    return table(columns, found, numbers=numbers) if found else nothing(none)


def filters(visit: Visit, *fields: Html, button: str = "show") -> Html:
    """A form whose state becomes the page's address, so that a bookmark keeps it."""
    return tag(
        "form",
        fields,
        tag("button", button, type="submit"),
        action=href(visit, visit.path),
        method="get",
        class_="filters",
    )


def field(visit: Visit, name: str, label: str, **attributes: object) -> Html:
    """A text field of `filters`, filled in from the address."""
    given = tag("input", name=name, value=visit.query.get(name, ""), autocomplete="off", **attributes)
    return tag("label", label, given)


def choice(visit: Visit, name: str, label: str, options: Sequence[tuple[str, str]]) -> Html:
    """A choice of `filters` among (value, text)."""
    chosen = visit.query.get(name, "")
    made = [tag("option", text, value=value, selected="" if value == chosen else None) for value, text in options]
    return tag("label", label, tag("select", made, name=name))


def pager(visit: Visit, newer: Mapping[str, object] | None, older: Mapping[str, object] | None) -> Html | None:
    """The ways on through a long list; each is the query of the page there, None where it ends."""
    if newer is None and older is None:
        return None
    ways = [("newer", newer), ("older", older)]
    shown = [tag("a", text, href=here(visit, **query)) for text, query in ways if query is not None]
    return tag("nav", shown, class_="pager", aria_label="pages")


def skipped(visit: Visit) -> int:
    """How many rows of a list lie before the part that the address asks for. Raises `Misuse`."""
    text = visit.query.get("skip") or "0"
    if not wire.is_number(text) or len(text) > 12:
        raise Misuse(f"skip: a number expected, found {text[:40]!r}", hint="the list's own links have it")
    return int(text)


def ways_on(visit: Visit, count: int) -> Html | None:
    """The ways on through a list of so many rows, newest first."""
    at = skipped(visit)
    newer = {"skip": max(0, at - LINES) or None} if at else None
    return pager(visit, newer, {"skip": at + LINES} if at + LINES < count else None)


# The frame.


def frame(visit: Visit, title: str, menu: Sequence[tuple[str, str]], body: Html, *, live: bool) -> str:
    """A whole document. `menu` are (path, title); a page that is `live` asks for its newer self."""
    viewer, base, identity = visit.viewer, visit.base, visit.viewer.identity
    current = visit.path.split("/")[0]
    ways = [
        tag("a", text, href=f"{base}/{where}", aria_current="page" if where == current else None)
        for where, text in menu
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} – {identity.name} – tallystick"),
        tag("link", rel="icon", href=f"{base}/console.svg"),
        tag("link", rel="stylesheet", href=f"{base}/console.css"),
        tag("script", src=f"{base}/console.js", defer=""),
    )
    who = tag("p", tag("b", identity.name), soft(" at instance "), short(identity.instance), class_="who")
    skip = tag("a", "skip to the page", href="#live", class_="skip")
    top = tag("header", skip, who, tag("nav", ways, aria_label="subjects"))
    away = tag("p", id="away", role="status", hidden="")
    version = {"data_version": viewer.mirror.at.version, "data_live": "" if live else None}
    main = tag("main", body, id="live", tabindex="-1", **version)
    return f"<!doctype html>\n{tag('html', head, tag('body', top, away, main), lang='en')}\n"


def standing(viewer: Viewer, at: Glance) -> Html:
    """What every page begins with: how far the ledger was verified here, how old that is, and who vouches."""
    shown: list[object] = []
    if at.head is not None:
        mark = checked if at.trouble is None else warning
        known = mark(f"height {at.head.height}"), " of ", when(at.head.time_ms)
        shown.append(tag("p", known, ", replayed here from the genesis; ", viewer.vouched_by, class_="standing"))
    if (trouble := at.trouble) is not None:
        kind = "the node is away" if trouble.is_away else f"it does not hold: {trouble.reason}"
        since = " since ", when(trouble.since_ms)
        left = "What follows is what was verified before." if at.head is not None else None
        said = [bad(kind), since, ": ", trouble.message, "." if left else None, " ", left]
        hint = tag("p", trouble.hint, class_="soft") if trouble.hint else None
        shown.append(tag("div", tag("p", said), hint, class_="trouble", role="alert"))
    return join(shown)


def arriving(at: Glance) -> Html:
    """The page while nothing is verified yet."""
    if at.trouble is not None:
        return nothing("Nothing of the ledger was verified here yet.")
    done = at.replayed + 1
    bar = tag("progress", max=max(at.target, 1), value=min(done, at.target), aria_label="blocks replayed")
    how_far = f"block {done} of {at.target}" if at.target else "asking for the newest checkpoint"
    return tag("div", tag("p", "Replaying the ledger from its genesis: ", how_far, "."), bar, class_="card")
