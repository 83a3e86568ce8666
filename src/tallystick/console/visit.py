"""One request for a page: who asks, what the address says, and the addresses, links and forms of the answer.

The whole state of a page is in its address, so that a bookmark is a saved filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlencode

from tallystick.console.marks import short, soft, told
from tallystick.console.mirror import Mirror
from tallystick.console.recent import Recent
from tallystick.console.viewer import Viewer
from tallystick.errors import Misuse
from tallystick.ledger.block import Head
from tallystick.page.html import Html, tag
from tallystick.wire import is_number

LINES = 50  # of a long list on one page
_DIGITS_MAX = 18
_FOLLOW = "follow the links of the list"
_T = TypeVar("_T")


def read_number(text: str, what: str, hint: str | None = None) -> int:
    """A number of an address. Raises `Misuse`."""
    if not is_number(text) or len(text) > _DIGITS_MAX:
        raise Misuse(f"{what}: a number expected, found {text[:40]!r}", hint=hint)
    return int(text)


@dataclass(frozen=True)
class Visit:
    """One request for a page."""

    viewer: Viewer
    base: str  # what addresses begin with
    path: str  # behind it
    parameters: Mapping[str, str] = field(default_factory=dict)  # of the path
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def mirror(self) -> Mirror:
        return self.viewer.mirror

    @property
    def recent(self) -> Recent:
        return self.viewer.recent.look()

    @property
    def head(self) -> Head:
        """The checkpoint under which everything of the mirror lies. A page is asked for only when there is one."""
        head = self.viewer.mirror.at.head
        assert head is not None
        return head

    # What the address says. Each raises `Misuse` for what it cannot be.

    def number(self, name: str) -> int | None:
        text = self.query.get(name)
        return read_number(text, name, _FOLLOW) if text else None

    def height(self, text: str) -> int:
        """Of a block that was verified here."""
        height = read_number(text, "height", "heights are the numbers of the ledger's blocks")
        if height > self.head.height:
            hint = "a height to come is a page to come: open it again then"
            raise Misuse(f"no block {height} was verified here; the newest is {self.head.height}", hint=hint)
        return height

    @property
    def before(self) -> tuple[int, int] | None:
        """Height and index, below which a list begins."""
        text = self.query.get("before")
        if not text:
            return None
        height, _, index = text.partition("/")
        if not is_number(index) or len(index) > _DIGITS_MAX:
            raise Misuse(f"before: a place like 12/0 expected, found {text[:40]!r}", hint=_FOLLOW)
        return self.height(height), int(index)

    # Addresses and links.

    def href(self, path: str, **query: object) -> str:
        """The address of a page, with its state. What is None is left out."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return f"{self.base}/{path}" + (f"?{urlencode(given)}" if given else "")

    def here(self, **query: object) -> str:
        """The same page with another state."""
        return self.href(self.path, **{**self.query, **query})

    def link(self, text: object, path: str, **query: object) -> Html:
        return tag("a", text, href=self.href(path, **query))

    def topic(self, token: bytes) -> Html:
        """A topic by its name, where the authority told it, else by its token."""
        if not any(token):
            return soft("no topic")
        return self.link(self._named(token, self.viewer.topic_name(token)), f"topics/{token.hex()}")

    def principal(self, identifier: bytes) -> Html:
        """Who it is by name, where the authority told it, else by identifier; it leads to what the ledger says of
        them."""
        if not any(identifier):
            return soft("nobody known")
        name = self._named(identifier, self.viewer.principal_name(identifier))
        return self.link(name, "ledger", principal=identifier.hex())

    def _named(self, identifier: bytes, name: str) -> Html:
        return told(name, by="the authority") if self.viewer.knows(identifier) else short(identifier)

    def block(self, height: int) -> Html:
        return self.link(height, f"ledger/blocks/{height}")

    def entry(self, height: int, index: int) -> Html:
        return self.link(f"{height}/{index}", f"ledger/entries/{height}/{index}")

    # Forms.

    def filters(self, *fields: Html, button: str = "show") -> Html:
        """A form whose state becomes the page's address."""
        submit = tag("button", button, type="submit")
        return tag("form", fields, submit, action=self.href(self.path), method="get", class_="filters")

    def field(self, name: str, label: str, **attributes: object) -> Html:
        """A text field of `filters`, filled in from the address."""
        given = tag("input", name=name, value=self.query.get(name, ""), autocomplete="off", **attributes)
        return tag("label", label, given)

    def choice(self, name: str, label: str, options: Mapping[str, str]) -> Html:
        """A choice of `filters`, by value."""
        chosen = self.query.get(name, "")
        made = [tag("option", text, value=key, selected="" if key == chosen else None) for key, text in options.items()]
        return tag("label", label, tag("select", made, name=name))

    # Long lists.

    def pager(self, newer: Mapping[str, object] | None, older: Mapping[str, object] | None) -> Html | None:
        """The ways on through a long list; each is the query of the page there, None where it ends."""
        ways = {"newer": newer, "older": older}
        shown = [tag("a", text, href=self.here(**query)) for text, query in ways.items() if query is not None]
        return tag("nav", shown, class_="pager", aria_label="pages") if shown else None

    @property
    def skip(self) -> int:
        """How many rows of a list lie before the part that the address asks for."""
        return self.number("skip") or 0

    def part_of(self, found: Sequence[_T]) -> Sequence[_T]:
        """Those of a list that this page shows."""
        return found[self.skip : self.skip + LINES]

    def ways_on(self, count: int) -> Html | None:
        """The ways on through a list of so many rows, newest first."""
        newer = {"skip": max(0, self.skip - LINES) or None} if self.skip else None
        return self.pager(newer, {"skip": self.skip + LINES} if self.skip + LINES < count else None)


def alike(texts: Iterable[str], all_of_them: str) -> dict[str, str]:
    """What `Visit.choice` takes: all, or one of these."""
    return {"": all_of_them} | {text: text for text in texts}
