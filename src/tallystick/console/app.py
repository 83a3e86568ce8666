"""The console as an application: its routes, and how a request becomes a page.

A handler runs the page's function on a thread, since pages read a file and some ask the node. What goes wrong is a
page, too, which says what to do next. Only who was let in is told anything: everybody else, and whoever asks for what
is not there, gets one and the same sentence.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from urllib.parse import parse_qsl, unquote

from tallystick.console.door import HEADERS, POLL_HEADER, Door
from tallystick.console.layout import arriving, frame, heading, sentence, standing
from tallystick.console.mirror import WHO_IS_AWAY
from tallystick.console.page import Download, Page
from tallystick.console.pages import PAGES
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.page.html import Html, join, style, tag
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Handler, Request, Router
from tallystick.runtime.server import Server, ServerLimits

log = logging.getLogger(__name__)

LIMITS = ServerLimits(connections_max=64, address_connections_max=64, stop_s=3)  # one person, with some windows
POLL_S = 25.0  # until who waits for news is answered without any
_HTML = "text/html; charset=utf-8"

_STRANGER = Answer(
    403,
    b"this page is not there, or this browser was not let in: open the address that tally console printed last\n",
    "text/plain; charset=utf-8",
    {**HEADERS, "connection": "close"},
)


class _Router(Router):
    async def _answer(self, request: Request) -> tuple[str, Answer]:
        """A browser would save the bare refusal as a file of no bytes."""
        route, answer = await super()._answer(request)
        return route, replace(_STRANGER, reason=answer.reason) if answer.reason else answer


class Console:
    """Serves `viewer` to the one browser that `door` lets in."""

    def __init__(self, viewer: Viewer, door: Door, host: str = "127.0.0.1", port: int = 0) -> None:
        self._viewer, self._door = viewer, door
        router = _Router(body_bytes_max=0)
        router.add("GET", "/", door.exchange)
        for page in PAGES:
            router.add("GET", f"{door.path}/{page.path}", self._handler(page))
        for name, kind in (
            ("console.css", "text/css; charset=utf-8"),
            ("console.js", "text/javascript; charset=utf-8"),
            ("console.svg", "image/svg+xml"),
        ):
            router.add("GET", f"{door.path}/{name}", self._file(name, kind))
        # Whoever waits for news when the server stops is told what there is: else it would hold up the stop.
        self.server = Server(router, host, port, limits=LIMITS, on_stop=viewer.mirror.tell)
        door.host = self.server.url.removeprefix("http://")
        self.run, self.stop = self.server.run, self.server.stop
        self.url = f"{self.server.url}/?token={door.token}"

    def _file(self, name: str, kind: str) -> Handler:
        text = files("tallystick.console").joinpath(name).read_text(encoding="utf-8")
        body = (style() + text if name.endswith(".css") else text).encode()

        async def handle(request: Request) -> Answer:
            self._door.check(request)
            return Answer(body=body, content_type=kind, headers=HEADERS)

        return handle

    def _handler(self, page: Page) -> Handler:
        async def handle(request: Request) -> Answer:
            self._door.check(request)
            known = request.header(POLL_HEADER)
            if known is not None and not await self._changed(known.decode("latin-1")):
                return Answer(204, headers=HEADERS)
            return await asyncio.to_thread(self._show, page, request, is_poll=known is not None)

        return handle

    def _show(self, page: Page, request: Request, *, is_poll: bool) -> Answer:
        at, status = self._viewer.mirror.at, 200
        parameters = {name: unquote(value) for name, value in request.parameters.items()}
        visit = Visit(self._viewer, self._door.path, request.path.removeprefix(f"{self._door.path}/"), parameters)
        try:
            visit = replace(visit, query=_read(request.query))
            shown = page.show(visit) if at.head is not None else arriving(at)
        except TallystickError as error:
            status, shown = _status(error), _apology(error)
        except Exception:
            log.exception("the page %s failed", page.path)
            status, shown = 500, _apology(Unavailable("the console failed to make this page; its log says why"))
        if isinstance(shown, Download):
            name = {"content-disposition": f'attachment; filename="{shown.name}"'}
            return Answer(body=shown.data, content_type="application/octet-stream", headers={**HEADERS, **name})
        body = join(standing(self._viewer, at), shown)
        headers = {**HEADERS, "tally-version": str(at.version)}
        if is_poll:  # a page that cannot be shown is news as well
            return Answer(200, body.encode(), _HTML, headers)
        menu = [(one.path, one.title) for one in PAGES if one.in_menu and one.is_there(visit)]
        return Answer(status, frame(visit, page.title, menu, body, live=page.live).encode(), _HTML, headers)

    async def _changed(self, known: str) -> bool:
        """Wait for another version than the one that the page has. Returns False where none came in time."""
        mirror, news, loop = self._viewer.mirror, asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:  # called by the mirror's thread
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(news.set)

        with mirror.listening(wake), suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                while str(mirror.at.version) == known:
                    await news.wait()
                    news.clear()
        return str(mirror.at.version) != known


def _read(query: str) -> dict[str, str]:
    """What an address says behind its path. Raises `Malformed`."""
    try:
        return dict(parse_qsl(query, max_num_fields=16, errors="strict"))
    except ValueError as error:
        raise Malformed(f"the address: {error}") from None


def _status(error: TallystickError) -> int:
    if isinstance(error, Misuse | Malformed):
        return 400
    return 503 if isinstance(error, Unavailable) else 404 if isinstance(error, Refused) else 500


def _apology(error: TallystickError) -> Html:
    hint = error.hint or (WHO_IS_AWAY if isinstance(error, Unavailable) else None)
    soft = None if hint is None else tag("p", hint, class_="soft")
    return join(heading("That did not work"), tag("div", tag("p", sentence(error)), soft, class_="card"))
