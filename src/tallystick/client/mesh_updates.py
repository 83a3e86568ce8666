"""Keys of the mesh for those who run: an owner publishes updates, and a member takes what is its own and cares for its
node.

Threat: whoever sees who asks the authority, and when, sees who is on the mesh; and a member that cannot reach it drops
out. So a topic's owner asks for all: the authority seals to each member what it would answer that member
(authority/mesh_messages.py), all of one size, with some for nobody among them. The owner cannot
open them. It publishes them as rows of a topic of its own, over the mesh like any others: who reads that topic gets
all of them, tries each, and shows to nobody which was its own. How many there are tells the readers how many members
there are, at most.

`MeshCare` does what a member has to do from time to time. It needs the identity, which a node does not have: it runs
in a process of the identity's own (`tally mesh join --stay`), or in the node's where node.toml names the identity's
folder (`mesh_home`), and then whoever breaks into that node has the identity too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from tallystick.carriers.mesh.direct import give_kit
from tallystick.client.mesh_keyring import MeshKeyring
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.errors import CannotOpen, Refused, TallystickError, Unavailable
from tallystick.identity.choices import FILE as CHOICES
from tallystick.identity.choices import choice_of
from tallystick.runtime.sources import Clock

log = logging.getLogger(__name__)

FILE = "mesh-updates"  # in a member's folder: the name of the topic on which its later keys come
COLUMN = "update"
SCHEMA = f"{COLUMN} binary not null"  # of a topic for updates
CARE_S = 30.0  # from round to round: a notice is an hour
ROUND_S = 20.0  # that one may take


def publish_updates(session: Session, over: str, tokens: Iterable[bytes], timeout_s: float = 60.0) -> int:
    """Publish the updates of these topics on the topic `over`. Returns how many of them there are. Raises `Unavailable`
    where they do not leave in time.

    Whoever misses the keys of `over` itself misses all later ones, so let it be among the tokens."""
    rows = sorted(update for token in tokens for update in session.authority.mesh_updates(token))
    with session.publisher(over) as publisher:
        publisher.send([{COLUMN: update} for update in rows])
        if publisher.flush(timeout_s):
            raise Unavailable("the updates did not all leave", hint="they lie in the spool, and leave with the next")
    return len(rows)


def choose_updates(home: Path, topic: str) -> None:
    """Let later keys of the identity in `home` come over this topic."""
    temporary = home / f"{FILE}.new"
    temporary.write_text(topic)
    temporary.replace(home / FILE)


def updates_topic(home: Path) -> str:
    """Empty where there is none."""
    path = home / FILE
    return path.read_text().strip() if path.exists() else ""


class MeshCare:
    """The keys of the identity in a folder, and of its node, cared for: call `round` every now and then."""

    def __init__(self, home: Path, clock: Clock, give: Callable[[bytes], object] | None = None) -> None:
        """`give` hands a kit to the node, if not an ordinary request does."""
        self._home, self._clock, self._give_directly = home, clock, give
        self._stamp: tuple[int, ...] = ()
        self._session: Session | None = None
        self._subscriber: Subscriber | None = None

    def round(self) -> int:
        """Take what came over the mesh, ask for what is due, and give the node what it lacks. Returns how many updates
        were our own. Raises `Unavailable` where the node does not answer, or nobody has joined yet."""
        session = self._opened()
        keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
        updates = updates_topic(self._home)
        keyring.awaits_updates = bool(updates)
        with session.within(ROUND_S):
            taken = sum(_take(keyring, update) for update in self._came(session, updates)) if updates else 0
            keyring.keep_up()
            kit = keyring.kit().encode()
            if self._give_directly is not None:
                self._give_directly(kit)
            else:
                give_kit(session.node, kit)
        return taken

    def _opened(self) -> Session:
        """The session, opened anew where somebody joined, moved, or got new keys."""
        files = [self._home / name for name in ("identity.json", "mesh.json", CHOICES, FILE, "keys")]
        stamp = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
        if self._session is None or stamp != self._stamp:
            self.close()
            choice = choice_of(self._home, "mesh")
            self._stamp, self._session = stamp, Session.open(self._home, clock=self._clock, choice=choice)
        return self._session

    def _came(self, session: Session, topic: str) -> list[bytes]:
        try:
            if self._subscriber is None:
                self._subscriber = session.subscriber(topic, on_bad="report", threads=0)
            received = self._subscriber.poll(0)
        except TallystickError as error:
            log.warning("mesh: no updates can be read now: %s", error)
            return []
        rows = [row for one in received for row in one.to_pylist()]
        return [value for row in rows if isinstance(value := row.get(COLUMN), bytes)]

    def close(self) -> None:
        for one in (self._subscriber, self._session):
            if one is not None:
                one.close()
        self._subscriber = self._session = None


def _take(keyring: MeshKeyring, update: bytes) -> bool:
    try:
        keyring.receive(update)
    except (CannotOpen, Refused):  # another's, or one that came before
        return False
    return True
