"""A relay at work: its role on links, in a thread of its own, with whoever stores parcels at its side.

Other threads hand in what passed the guards (`propose`), ask its parts for something (`ask`), bring what clients sent
(`hear`) and tell of blocks (`moved`): all is noted, and the role, which belongs to the links' thread, takes it up in
its next turn. What the role delivers is given to `deliver` in that thread; it must be quick.

Links are between relays. Clients are in no plan: they come by the node's own requests, signed as all are, and collect
what there is for them (`mailboxes.py`). Who they are is the caller's to have checked. Threat: a client that sends
without end. Clients take turns, as peers do on links, and whoever fills the queue is told to come back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tallystick.carriers.overlay.bearings import LedgerBearings
from tallystick.carriers.overlay.frames import FRAME_BYTES_MAX
from tallystick.carriers.overlay.relay import OverlayRelay
from tallystick.carriers.storage import Place
from tallystick.errors import Unavailable, counted
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Effect, Event, Send
from tallystick.runtime.links import Links
from tallystick.runtime.mailboxes import Mailboxes
from tallystick.runtime.peers import LinkEnd, LinkLimits, LinkStatistics, PinnedPeer
from tallystick.runtime.queues import InputQueue
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.router import BUSY_S

log = logging.getLogger(__name__)

LIMITS = LinkLimits(
    frame_bytes_max=FRAME_BYTES_MAX,
    output_bytes_max=3 * FRAME_BYTES_MAX,  # the two longest blocks that one parcel may have for a relay, and the rest
)
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
        self._asked: deque[Callable[[float], list[Effect]]] = deque()
        self._heard, self._hearing = InputQueue(HEARD_BYTES_MAX), threading.Lock()
        self.mail = Mailboxes()
        self._links = Links(end, self, store, deliver=deliver, limits=limits)
        self._peers: dict[str, PinnedPeer] = {}
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
        self.ask(lambda now: self.relay.propose(place, parcel, now))

    def ask(self, what: Callable[[float], list[Effect]]) -> None:
        """From any thread: let the role do something, now."""
        self._asked.append(what)
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
        with suppress(Unavailable):  # with the next block
            peers = self._bearings.peers()
            if peers != self._peers:
                self._peers = peers
                self._links.set_peers(peers)

    def statistics(self) -> LinkStatistics:
        return self._links.statistics()

    def receive(self, event: Event, now: float) -> list[Effect]:
        """The role: the relay's, and what was handed in."""
        effects = self.relay.receive(event, now)
        for client, frame in self._turn():
            effects += self.relay.receive(Arrived(client, frame), now)
        while self._asked:
            with counted(self.relay.dropped):
                effects += self._asked.popleft()(now)
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
        except Exception as error:  # kept for whoever looks after this relay
            self.failure = error
            log.warning("the relay stopped", exc_info=not isinstance(error, Unavailable))
