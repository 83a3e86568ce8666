"""A relay at work: its role on links, in a thread of its own, with whoever stores parcels at its side.

Other threads hand in what passed the guards (`propose`), bring what clients sent (`hear`) and tell of blocks (`moved`):
all is noted, and the role, which belongs to the links' thread, takes it up in its next turn. What the role delivers is
given to `deliver` in that thread; it must be quick.

Links are between relays. Clients are in no plan: they come by the node's own requests, signed as all are, and collect
what there is for them (`mailboxes.py`). Who they are is the caller's to have checked. Threat: a client that sends
without end. Clients take turns, as peers do on links, and whoever fills the queue is told to come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tallystick.carriers.overlay.bearings import LedgerBearings
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX
from tallystick.carriers.overlay.mailboxes import Mailboxes
from tallystick.carriers.overlay.relay import OverlayRelay
from tallystick.carriers.storage import Place
from tallystick.errors import Refused, Unavailable
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Effect, Event, Send
from tallystick.runtime.links import Links
from tallystick.runtime.peers import LinkEnd, LinkLimits, LinkStatistics
from tallystick.runtime.queues import InputQueue
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.router import BUSY_S

LIMITS = LinkLimits(frame_bytes_max=FRAME_BYTES_MAX)
HEARD_BYTES_MAX = 4 << 20  # of frames of clients that wait for the role
TURN_FRAMES_MAX = 64


class RelayStation:
    """`start` it, and `stop` it."""

    def __init__(
        self,
        end: LinkEnd,
        relay: OverlayRelay,
        bearings: LedgerBearings,
        store: RoleStore,
        deliver: Callable[[Any], None],
        limits: LinkLimits = LIMITS,
    ) -> None:
        """Listens at once."""
        self.relay, self._bearings = relay, bearings
        self._proposed: deque[tuple[Place, Parcel]] = deque()
        self._heard, self._hearing = InputQueue(HEARD_BYTES_MAX), threading.Lock()
        self.mail = Mailboxes()
        self._links = Links(end, self, store, deliver=deliver, limits=limits)
        self._set_peers()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self.failure: BaseException | None = None
        self.port = self._links.port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when its connections are closed."""
        self._links.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def propose(self, place: Place, parcel: Parcel) -> None:
        """From any thread: a new parcel that passed the publish guard here."""
        self._proposed.append((place, parcel))
        self._links.wake()

    def hear(self, client: bytes, frame: bytes) -> None:
        """From any thread: a client's frame. Raises `Unavailable` where too much of this client waits."""
        with self._hearing:
            if self._heard.must_pause(client.hex()):
                raise Unavailable("too many frames of this client wait", retry_after_s=BUSY_S)
            self._heard.put(client.hex(), frame)
        self._links.wake()

    def moved(self) -> None:
        """From any thread: there is a new block."""
        self._links.wake(self._set_peers)

    def _set_peers(self) -> None:
        self._peers = self._bearings.peers()
        self._links.set_peers(self._peers)

    def statistics(self) -> LinkStatistics:
        return self._links.statistics()

    def receive(self, event: Event, now: float) -> list[Effect]:
        """The role: the relay's, and what was handed in."""
        effects = self.relay.receive(event, now)
        for client, frame in self._turn():
            effects += self.relay.receive(Arrived(client, frame), now)
        while self._proposed:
            try:
                effects += self.relay.propose(*self._proposed.popleft(), now)
            except Refused as error:
                self.relay.dropped[error.reason] += 1
        return [effect for effect in effects if not self._is_mail(effect)]

    def _turn(self) -> list[tuple[str, bytes]]:
        """Some frames of clients, one after the other of each; the rest in the next turn."""
        with self._hearing:
            taken = [self._heard.take() for _ in range(TURN_FRAMES_MAX)]
            if self._heard:
                self._links.wake()
        return [one for one in taken if one is not None]

    def _is_mail(self, effect: Effect) -> bool:
        """Whether it is for a client: then it lies in its box."""
        if not isinstance(effect, Send) or effect.to in self._peers:
            return False
        self.mail.put(bytes.fromhex(effect.to), effect.message)
        return True

    def _run(self) -> None:
        try:
            asyncio.run(self._links.run())
        except BaseException as error:  # kept for whoever looks after this process
            self.failure = error
            raise
