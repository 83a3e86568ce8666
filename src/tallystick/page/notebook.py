"""What values look like in a notebook: a title, facts, and the first rows of a table. Bounded, whatever is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tallystick.page.html import Html, join, table, tag

ROWS_MAX = 20
COLUMNS_MAX = 30
_TEXT_MAX = 200


def shown(title: str, facts: Mapping[str, object], *parts: Html | None) -> str:
    """A thing by its facts; those that are None are left out."""
    pairs = [[name, cell(value)] for name, value in facts.items() if value is not None]
    return join(tag("p", tag("b", title)), table(["", ""], pairs) if pairs else None, parts)


def rows(first: Sequence[Mapping[str, Any]], count: int) -> Html:
    """The first of `count` rows, and of their columns."""
    names = list(first[0])[:COLUMNS_MAX] if first else []
    shown = [[cell(row.get(name)) for name in names] for row in first[:ROWS_MAX]]
    left = [
        f"{more:,} more {what}"
        for more, what in ((count - len(shown), "rows"), (len(first[0]) - len(names) if first else 0, "columns"))
        if more > 0
    ]
    return join(table([cell(name) for name in names], shown), tag("p", ", ".join(left)) if left else None)


def items(title: str, texts: Sequence[str]) -> Html | None:
    """A list under its title, where it has any items."""
    if not texts:
        return None
    return join(tag("p", title), tag("ul", [tag("li", text[: 5 * _TEXT_MAX]) for text in texts[:ROWS_MAX]]))


def cell(value: object) -> str:
    """A value for people, cut where it is long."""
    if isinstance(value, (bytes, bytearray)):
        value = bytes(value[:_TEXT_MAX]).hex()
    text = "–" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
