"""What all pages share: the parts of which they are made, and the frame around them. Every text is escaped by `tag`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tallystick.console.marks import bad, checked, code, cut, short, soft, warning, when
from tallystick.console.mirror import Glance
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import TallystickError
from tallystick.page.html import Html, document, join, table, tag

_ITEMS_MAX, _OCTETS_MAX = 20, 2_000  # of a list, and of a text of bytes, among the fields of a thing

# Parts of pages.


def facts(pairs: Mapping[str, object] | Sequence[tuple[str, object]]) -> Html:
    """Names and what they are, under one another; what is None is left out."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in items if value is not None])


def fields(given: Mapping[str, Any]) -> Html:
    """What a thing of ours holds, whatever it is, for people: bounded, with names of fields as words."""
    return facts({name.removesuffix("_ms").replace("_", " "): _value(name, one) for name, one in given.items()})


def _value(name: str, value: Any) -> object:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return fields(value)
    if isinstance(value, list | tuple):
        shown = [tag("div", _value(name, item)) for item in value[:_ITEMS_MAX]]
        return [shown, left_out(len(value) - _ITEMS_MAX, "more")] if value else "–"
    if isinstance(value, bytes) and value:
        return code(value) if len(value) <= _OCTETS_MAX else short(value[:64])
    if name.endswith("_ms") and isinstance(value, int) and value:
        return when(value)
    return "–" if value in (None, b"", "") else cut(value, 1000)


def left_out(count: int, what: str) -> Html | None:
    """That more is there than is shown."""
    return soft(f"and {count:,} {what}") if count > 0 else None


def command(text: str) -> Html:
    """A command, filled in, to copy: the console itself changes nothing."""
    copy = tag("button", "copy", type="button", class_="copy", hidden="")
    return tag("p", tag("code", text), copy, class_="command")


def drawing(svg: Html, label: str, *more: object) -> Html:
    """A picture that is moved sideways where it is wider than the page, by keys too."""
    return tag("div", svg, more, class_="graph card", tabindex="0", role="group", aria_label=label)


def heading(title: str, lead: object = None) -> Html:
    return join(tag("h1", title), None if lead is None else tag("p", lead, class_="lead"))


def part(title: str, *content: object) -> Html:
    return tag("section", tag("h2", title), content)


def nothing(text: str, *next_step: object) -> Html:
    """Where there is nothing to show, why, and what would change that."""
    return tag("div", text, next_step, class_="card none")


def lines(
    columns: list[str], rows: Iterable[list[Any]], none: str, *, numbers: tuple[int, ...] = (), more: int = 0
) -> Html:
    """A table, and how many rows it leaves out; or a word where it has none."""
    found = list(rows)
    if not found:
        return nothing(none)
    return join(table(columns, found, numbers=numbers), left_out(more, "more, which this page does not list"))


# The frame.


def frame(visit: Visit, title: str, menu: Sequence[tuple[str, str]], body: Html, *, live: bool) -> str:
    """A whole document. `menu` are (path, title); a page that is `live` asks for its newer self."""
    viewer, base, identity = visit.viewer, visit.base, visit.viewer.identity
    here = visit.path.split("/")[0]
    ways = [tag("a", text, href=f"{base}/{path}", aria_current="page" if path == here else None) for path, text in menu]
    links = (
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
    return document(f"{title} – {identity.name} – tallystick", links, top, away, main)


def sentence(error: TallystickError | str) -> str:
    """What went wrong, as a sentence; one that begins with an address begins with it."""
    text = str(error).rstrip(".")
    return f"{text if '://' in text.split(' ')[0] else text[:1].upper() + text[1:]}."


def standing(viewer: Viewer, at: Glance) -> Html:
    """What every page begins with: how far the ledger was verified here, how old that is, and who vouches."""
    shown: list[object] = []
    if at.head is not None:
        mark = checked if at.trouble is None else warning
        known = mark(f"height {at.head.height}"), " of ", when(at.head.time_ms)
        vouched = at.head.vouched_by(viewer.session.memory.trust)
        shown.append(tag("p", known, ", replayed here from the genesis; ", vouched, class_="standing"))
    if (trouble := at.trouble) is not None:
        kind = "the node is away" if trouble.is_away else f"it does not hold: {trouble.reason}"
        since = " since ", when(trouble.since_ms)
        left = "What follows is what was verified before." if at.head is not None else None
        said = tag("p", bad(kind), since, ". ", sentence(trouble.message), " ", left)
        shown.append(tag("div", said, tag("p", trouble.hint, class_="soft"), class_="trouble", role="alert"))
    return join(shown)


def arriving(at: Glance) -> Html:
    """The page while nothing is verified yet."""
    if at.trouble is not None:
        return nothing("Nothing of the ledger was verified here yet.")
    done = at.replayed + 1
    bar = tag("progress", max=max(at.target, 1), value=min(done, at.target), aria_label="blocks replayed")
    how_far = f"block {done} of {at.target}" if at.target else "asking for the newest checkpoint"
    return tag("div", tag("p", "Replaying the ledger from its genesis: ", how_far, "."), bar, class_="card")
