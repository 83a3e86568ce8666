"""HTML that cannot be injected into: every text is escaped where it is put in, unless it is markup of ours already.

Threat: a topic, a vehicle or a reason that is called `<script>…`. `tag` escapes whatever is not `Html`, and the page's
own policy lets nothing run, load or be sent, should a text ever pass. No script is needed: the page is whole without.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

_VOID = frozenset({"br", "input", "link", "meta"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@cache
def style() -> str:
    """What all our pages look like."""
    return files("tallystick.page").joinpath("page.css").read_text(encoding="utf-8")


class Html(str):
    """Markup, made by `tag` alone."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`<name attributes>children</name>`. In names of attributes a trailing underscore is left out, and an inner one
    becomes a hyphen."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(*children)
    return Html(f"<{name}{given}>" if name in _VOID and not inner else f"<{name}{given}>{inner}</{name}>")


def join(*children: object) -> Html:
    """Children one after the other, texts escaped. A list stands for its items, None for nothing."""
    return Html("".join(_one(child) for child in children))


def _one(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, (list, tuple)):
        return str(join(*child))
    return escape(str(child), quote=True)


def page(title: str, *body: object) -> str:
    """A whole document that needs nothing but itself."""
    policy = tag("meta", http_equiv="Content-Security-Policy", content=_POLICY)
    return document(title, (policy, Html(f"<style>{style()}</style>")), *body)


def document(title: str, more: object, *body: object) -> str:
    """A whole document, for screens of any size and either scheme of colours; `more` is what its head has besides."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        more,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def table(columns: list[str], rows: list[list[Any]], *, numbers: tuple[int, ...] = ()) -> Html:
    """A table whose rows become cards on a narrow screen; `numbers` are the columns to align right."""

    def cell(place: int, value: Any) -> Html:
        whole = tag("div", value) if isinstance(value, (list, tuple)) else value  # in one piece beside its label
        return tag("td", whole, data_label=columns[place], class_="number" if place in numbers else None)

    head = [
        tag("th" if name else "td", name, class_="number" if place in numbers else None)
        for place, name in enumerate(columns)
    ]
    lines = [tag("tr", [cell(place, value) for place, value in enumerate(row)]) for row in rows]
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", lines))


def section(lead: str, cards: list[Html]) -> Html:
    """What a section says first, and its cards."""
    return tag("div", tag("p", lead, class_="lead"), tag("div", cards, class_="grid"))


def card(name: str, content: Html, *, wide: bool = False) -> Html:
    return tag("div", tag("h3", name), content, class_="card wide" if wide else "card")
