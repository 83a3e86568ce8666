"""An instance to look at through the console: an owner, a car that published, a reader with the right, and a stranger
without; and a console of any of them, with a client that speaks as their browser would.

with ConsoleStack(tmp_path) as world:
    viewer = world.viewer(world.reader)
    with world.serving(viewer) as console:
        page = console.get("ledger")
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from actors import await_topic, publish
from stack import READ, WRITE, Stack

from tallystick.client.names import Names
from tallystick.client.session import Session
from tallystick.console.app import Console
from tallystick.console.door import Door
from tallystick.console.mirror import LedgerWay, Mirror
from tallystick.console.pages import PAGES
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import Refused
from tallystick.runtime.router import Request, Routes
from tallystick.runtime.sources import Entropy, SystemEntropy

TOPIC, SCHEMA = "brakes", "vin string, seq int64 not null, speed float32"
ROWS = 4  # one a parcel


class ConsoleStack(Stack):
    """A stack with people and a topic in it. `stranger` is of another tenant."""

    owner: Session
    car: Session
    reader: Session
    stranger: Session
    token: bytes

    def __enter__(self) -> ConsoleStack:
        super().__enter__()
        self.owner, self.stranger = self.tenant("acme"), self.tenant("rival")
        self.token = self.topic(self.owner, TOPIC, SCHEMA)
        await_topic(self, self.token)
        self.car, self.reader = self.principal("acme", "car"), self.principal("acme", "reader")
        self.grant(self.owner, self.token, self.car, WRITE)
        self.grant(self.owner, self.token, self.reader, READ)
        publish(self.car, TOPIC, range(ROWS))
        return self

    def mirror(self, session: Session, folder: Path | None = None) -> Mirror:
        """One that has not followed yet."""
        folder = folder or session.identity.home / "console"
        return Mirror(folder, session.identity.trust, lambda: int(session.clock.now() * 1000))

    @contextmanager
    def viewing(self, session: Session, warehouse: Path | None = None) -> Iterator[Viewer]:
        """A viewer that followed once and has the names, without its thread; the mirror is closed behind it."""
        with closing(self.mirror(session)) as mirror:
            viewer = Viewer(session, mirror, warehouse)
            look(viewer)
            yield viewer

    def serving(self, viewer: Viewer, *, live: bool = False, path: str = "") -> AbstractContextManager[Browser]:
        return serving(viewer, live=live, path=path)


@contextmanager
def serving(viewer: Viewer, *, live: bool = False, path: str = "", host: str = "127.0.0.1") -> Iterator[Browser]:
    """A console on a thread, with whoever was let in. A `live` one follows the ledger."""
    door = WatchedDoor(path or "/" + SystemEntropy().bytes(16).hex(), SystemEntropy())
    console = Console(viewer, door, host)
    thread = threading.Thread(target=console.run, name="console", daemon=True)
    thread.start()
    if live:
        viewer.start()
    try:
        yield Browser(console, door)
    finally:
        if live:
            viewer.stop()
        console.stop()
        thread.join()


def way(session: Session) -> LedgerWay:
    """To the ledger, as the session has it."""
    found: Any = SimpleNamespace(refresh=session.view.refresh, blocks=session.node.blocks)
    return found  # type: ignore[no-any-return]


def look(viewer: Viewer) -> None:
    """What the viewer's thread does now and then."""
    viewer.mirror.follow(way(viewer.session))
    viewer.names = Names(viewer.session)


def visit_of(viewer: Viewer, path: str, **query: object) -> Visit:
    """The visit that the request for an address makes."""
    routes: Routes[None] = Routes()
    for page in PAGES:
        routes.add("GET", f"/{page.path}", None)
    try:
        _, parameters = routes.find("GET", f"/{path}")
    except Refused:  # a page that is yet to be
        parameters = {}
    return Visit(viewer, "/base", path, parameters, {name: str(value) for name, value in query.items()})


@dataclass(frozen=True)
class Said:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def is_page(self) -> bool:
        """And no file."""
        return self.headers["content-type"].startswith("text/html")


class WatchedDoor(Door):
    """Keeps how each request was judged, as it was, by the site from which it came: "in" or "out"."""

    def __init__(self, path: str, entropy: Entropy) -> None:
        super().__init__(path, entropy)
        self.judged: list[tuple[bytes, str]] = []

    def check(self, request: Request) -> None:
        place, site = len(self.judged), request.header(b"sec-fetch-site") or b""
        self.judged.append((site, "out"))
        super().check(request)
        self.judged[place] = site, "in"


class Browser:
    """As much of a browser as a console asks for: it keeps the cookie, and says from where it asks."""

    def __init__(self, console: Console, door: WatchedDoor) -> None:
        self.console, self.door, self.cookie = console, door, ""

    def let_in(self) -> Browser:
        """Exchange the token for the cookie."""
        said = self.ask(self.console.url, cookie="")
        assert said.status == 303, said
        self.cookie = said.headers["set-cookie"].partition(";")[0]
        return self

    def get(self, path: str, poll: int | None = None, **query: object) -> Said:
        """A page of the console; with `poll`, what is newer than that version."""
        if not self.cookie:
            self.let_in()
        asked = f"{self.door.path}/{path}" + (f"?{urlencode(query)}" if query else "")
        return self.ask(asked, **({} if poll is None else {"tally-console": str(poll)}))

    def ask(self, url: str, method: str = "GET", **headers: str | None) -> Said:
        """Anything at all. Headers by name, with underscores; None leaves one out."""
        place = urlsplit(url)
        target = place.path + (f"?{place.query}" if place.query else "")
        given: dict[str, str | None] = {"sec-fetch-site": "same-origin", "cookie": self.cookie, "host": self.door.host}
        given |= {name.replace("_", "-").lower(): value for name, value in headers.items()}
        with closing(HTTPConnection(self.console.server.host, self.console.server.port, timeout=40)) as connection:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, found, answer.read())


_LINK = re.compile(r' href="([^"]*)"')
_FORM = re.compile(r'<form action="([^"]*)"[^>]*>(.*?)</form>')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


def crawl(browser: Browser, each: int = 1) -> dict[str, dict[str, Said]]:
    """Every page of the registry as far as links and buttons lead there from those without parameters, by the page's
    path, and what was answered: of a page at most `each` addresses with queries of the same names."""
    found: dict[str, dict[str, Said]] = {page.path: {} for page in PAGES}
    seen: Counter[tuple[str, ...]] = Counter()
    waiting = [page.path for page in PAGES if "{" not in page.path]
    while waiting:
        address = waiting.pop(0)
        path, _, query = address.partition("?")
        page = page_at(path)
        if page is None or address in found[page]:
            continue
        kind = (page, *sorted(name for name, _ in parse_qsl(query)))
        seen[kind] += 1
        if seen[kind] <= each:
            said = found[page][address] = browser.get(address)
            waiting += _ways_on(said, f"{browser.door.path}/")
    return found


def _ways_on(said: Said, base: str) -> list[str]:
    if not said.is_page:
        return []
    links = [unescape(link).partition("#")[0] for link in _LINK.findall(said.text)]
    for action, inner in _FORM.findall(said.text):
        fields = [(unescape(name), unescape(value)) for name, value in _HIDDEN.findall(inner)]
        links.append(unescape(action) + (f"?{urlencode(fields)}" if fields else ""))
    return [link.removeprefix(base) for link in links if link.startswith(base)]


def page_at(path: str) -> str | None:
    """The path in the registry of the page that is shown at an address."""
    routes: Routes[str] = Routes()
    for page in PAGES:
        routes.add("GET", f"/{page.path}", page.path)
    try:
        return routes.find("GET", f"/{path}")[0]
    except Refused:  # a style sheet
        return None
