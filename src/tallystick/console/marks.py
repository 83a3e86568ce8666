"""How something is known, as a page says it. `checked` is for what was verified in this process, and nothing else is
green; `told` is for the word of node, authority or a table. Every text is escaped by `tag`."""

from __future__ import annotations

from tallystick import wire
from tallystick.page.html import Html, tag


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


def short(identifier: bytes) -> Html:
    """An identifier whose whole is one click, or a pointer, away."""
    text = identifier.hex()
    return tag("code", text[:12] + "…" if len(text) > 16 else text, title=text, class_="short")


def cut(value: object, most: int = 40) -> str:
    """So much of a text that anybody may have written."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def code(text: object) -> Html:
    return tag("code", text.hex() if isinstance(text, bytes) else text)


def when(time_ms: int) -> Html:
    """A time in UTC; its age goes on where scripts run."""
    return tag("time", wire.show_time(time_ms), data_ms=time_ms)
