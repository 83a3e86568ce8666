"""Whose console it is: the session that asks, the mirror that was replayed, and what the authority tells of names."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from tallystick.client.names import Names
from tallystick.client.session import Session
from tallystick.console.health import HealthDesk
from tallystick.console.mirror import PAUSE_S, Mirror
from tallystick.console.recent import Recent
from tallystick.errors import TallystickError

log = logging.getLogger(__name__)

NAMES_S = 10.0  # between questions for names; what is new has none until then


class Viewer:
    """One identity's view, with the thread that keeps its mirror up to date.

    `session` is for pages, one at a time (`asking`); the thread has a session of its own.
    """

    def __init__(
        self, session: Session, mirror: Mirror, warehouse: Path | None = None, scenes: Path | None = None
    ) -> None:
        """`scenes` is what a demo writes of its outcomes, as they come."""
        self.session, self.mirror, self.warehouse, self.scenes = session, mirror, warehouse, scenes
        self.identity, self.clock = session.identity, session.clock
        self.names: Names | None = None  # as the authority last told them; None before it did
        self.asking = threading.Lock()
        self.health = HealthDesk(self.identity, self.clock, session.entropy)
        self.recent = Recent(mirror)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._follow, name="mirror", daemon=True)]
        if scenes is not None:  # apart: a node that is away holds the other up
            self._threads.append(threading.Thread(target=self._watch, args=(scenes,), name="scenes", daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    def knows(self, identifier: bytes) -> bool:
        """Whether the authority told a name for this token or principal."""
        names = self.names
        return names is not None and (identifier in names.topic_names or identifier in names.principal_names)

    def topic_name(self, token: bytes) -> str:
        """The name that the authority told, else the token."""
        return token.hex() if self.names is None else self.names.topic_name(token)

    def principal_name(self, identifier: bytes) -> str:
        return identifier.hex() if self.names is None else self.names.principal_name(identifier)

    def _follow(self) -> None:
        names_asked_s = float("-inf")
        with Session.open(self.identity.home) as session:
            way = _Way(session)
            while not self._stop.is_set():
                try:
                    changed = self.mirror.follow(way)
                    self.recent.look()  # so that no page waits for it
                    now_s = self.clock.monotonic()
                    if self.names is None or (changed and now_s - names_asked_s > NAMES_S):
                        names_asked_s = now_s
                        self.names = Names(session)
                except TallystickError as error:
                    log.debug("no newer view: %s", error)
                except Exception:
                    log.exception("the mirror failed; it tries again")
                    self._stop.wait(NAMES_S)
                self._stop.wait(PAUSE_S)

    def _watch(self, file: Path) -> None:
        known = 0
        while not self._stop.wait(PAUSE_S):
            size = file.stat().st_size if file.exists() else 0
            if size != known:
                known = size
                self.mirror.tell()


class _Way:
    def __init__(self, session: Session) -> None:
        self.refresh, self.blocks = session.view.refresh, session.node.blocks
