"""One protocol role on real TCP sockets: the twin of `network.Network`.

    links = Links(LinkEnd("a", host, port, seed=link_seed), role, store, deliver=print)
    links.set_peers({"b": PinnedPeer("b.example:7001", b_public)})
    await links.run()

Threat: whoever calls under a name that is not theirs, sends more than its part, announces more than fits, does not
read, or connects and finishes nothing; and peers that are merely away. Invariant: what reaches the role as from a name
came over TLS from who holds the key that the directory pins to that name now (`pinned_tls`), in the order in which it
was sent, nothing twice and nothing invented; what the role sends goes to that holder or nowhere. Everything that waits
is bounded (`queues`), and no peer makes the role or another peer wait: what does not fit is dropped, oldest first, and
counted. So messages may be lost, as `Send` says, and protocols send again.

Each side calls the other for what it has to say itself, when it first has something to say, so a pair of peers has two
connections, and a peer that is away costs a call now and then. The first frame each way says who speaks; nothing of
the application is sent or taken before both were checked. A peer that calls again takes the place of its own earlier
connection; one that breaks the framing is not let in again for a while, which grows.

The effects of one turn (a few messages, one from each peer that has any) are carried out together: what the role stores
is durable before anything leaves. Whoever is not in the directory is not let in at all: clients need another door.
Without TLS a name is a mere claim, which only a test on one machine may believe (`insecure=True`, loopback).

Left out: a peer that calls over and over costs a handshake each time, and turns are counted in messages, not bytes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from tallystick.errors import Misuse, Refused
from tallystick.runtime.address import is_loopback
from tallystick.runtime.connections import LinkConnection, hello, listen, refusal_reason
from tallystick.runtime.effects import Role
from tallystick.runtime.peers import LinkEnd, LinkLimits, LinkPeer, LinkStatistics, PinnedPeer
from tallystick.runtime.pinned_tls import PinnedTls, shows
from tallystick.runtime.queues import InputQueue
from tallystick.runtime.role_runner import RoleDriver, RoleRunner
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy


class Links(RoleDriver):
    """The role, its queues, and its connections. Everything but `stop` and `wake` belongs to the thread of `run`'s
    loop, or to the time before it."""

    def __init__(
        self,
        end: LinkEnd,
        role: Role,
        store: RoleStore | None = None,
        *,
        deliver: Callable[[Any], None] = lambda value: None,
        clock: Clock = SystemClock(),
        entropy: Entropy = SystemEntropy(),
        limits: LinkLimits = LinkLimits(),
    ) -> None:
        """Listens at once. A role that stores needs a store, from whose items the caller made it."""
        if end.seed is None and not (end.insecure and is_loopback(end.host)):
            raise Misuse(f'links of "{end.name}": a seed for TLS expected, or insecure=True on loopback')
        self._name, self._clock, self._entropy, self._limits = end.name, clock, entropy, limits
        self._tls = None if end.seed is None else PinnedTls(end.seed, entropy)
        self._calling_tls, self._called_tls = self._contexts([])
        self._peers: dict[str, LinkPeer] = {}
        self._input = InputQueue(limits.input_bytes_max)
        self._runner = RoleRunner(
            *(role, self._input, clock, store),
            send=self._send,
            heard=self._make_room,
            deliver=deliver,
            turn_messages_max=limits.turn_messages_max,
        )
        self._refused: Counter[str] = Counter()
        self._unsent: Counter[str] = Counter()
        self._opened: set[LinkConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: dict[asyncio.Task[None], None] = {}  # not known yet, oldest first
        self._failure: BaseException | None = None
        super().__init__(listen(end.host, end.port))

    def set_peers(self, peers: Mapping[str, PinnedPeer]) -> None:
        """Replace the directory. Whoever is not in it as before loses its connections and what waits; this party's own
        entry is passed over. Raises `Misuse` or `Malformed`, and changes nothing, if it cannot be one."""
        peers = {name: peer for name, peer in peers.items() if name != self._name}
        keys = [peer.key for peer in peers.values()]
        if self._tls is not None and len({*keys, self._tls.public}) <= len(keys):
            raise Misuse(f'links of "{self._name}": a key is pinned to two names')
        for peer in peers.values():
            if not is_loopback(peer.place[0]) and self._tls is None:
                raise Misuse(f'links of "{self._name}": no TLS, and {peer.address} is not on loopback')
        self._calling_tls, self._called_tls = self._contexts(keys)
        for name, old in list(self._peers.items()):
            if peers.get(name) != old.pinned:
                self._peers.pop(name).forget()
                self._input.forget(name)
        for name, pinned in peers.items():
            if name not in self._peers:
                self._peers[name] = LinkPeer(name, pinned, self._limits)
                self._begin_calling(self._peers[name])

    async def run(self) -> None:
        """Run the role until `stop`. Raises what the role, its store or `deliver` raised."""
        if self._stopping.is_set():
            return
        self._loop = asyncio.get_running_loop()
        self._spawn(self._runner.run())
        self._spawn(self._listen())
        for peer in self._peers.values():
            self._begin_calling(peer)
        try:
            await self._stopping.wait()
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure

    def wake(self, before: Callable[[], None] = lambda: None) -> None:
        """As `RoleDriver` does, once it runs. Until then nothing is called: the directory belongs to the loop's thread,
        which may be about to begin, and the role is woken when it does."""
        if self._loop is not None:
            super().wake(before)

    def statistics(self) -> LinkStatistics:
        peers = {name: peer.statistics(self._input.waiting(name)) for name, peer in self._peers.items()}
        return LinkStatistics(peers, dict(self._refused), dict(self._unsent), self._input.bytes)

    # --- messages ---

    def _send(self, to: str, message: Any) -> None:
        if not isinstance(message, bytes):
            raise Misuse(f'links of "{self._name}": messages are bytes, found {type(message).__name__}')
        if len(message) > self._limits.frame_bytes_max:
            self._unsent["oversized"] += 1
        elif to == self._name:
            self._input.put(to, message)
        elif (peer := self._peers.get(to)) is None:
            self._unsent["unknown"] += 1
        else:
            peer.send(message)

    def _take(self, peer: LinkPeer, message: bytes) -> None:
        peer.count(message)
        self._input.put(peer.name, message)
        self._runner.stir()
        if peer.heard is not None and self._input.must_pause(peer.name):
            peer.heard.pause()

    def _make_room(self, sender: str) -> None:
        peer = self._peers.get(sender)
        if peer is not None and peer.heard is not None and self._input.may_resume(sender):
            peer.heard.resume()

    # --- calling ---

    async def _call(self, peer: LinkPeer) -> None:
        """Connect whenever something waits, again and again, after pauses that double while it does not last."""
        pause_s = self._limits.pause_min_s
        while True:
            await peer.has_waiting.wait()
            began = self._clock.monotonic()
            if await self._converse(peer) and self._clock.monotonic() - began > pause_s:
                pause_s = self._limits.pause_min_s
            await self._clock.sleep(pause_s * (0.5 + self._entropy.bytes(1)[0] / 512))  # so that not all come at once
            pause_s = min(2 * pause_s, self._limits.pause_max_s)

    async def _converse(self, peer: LinkPeer) -> bool:
        """Returns when the connection has ended: whether there was one."""
        loop, connection = asyncio.get_running_loop(), self._connection()
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                tls, name = self._calling_tls, None if self._calling_tls is None else ""
                await loop.create_connection(lambda: connection, *peer.pinned.place, ssl=tls, server_hostname=name)
                self._check_key(connection, peer)
                connection.write(hello(self._name))
                if await connection.greeting != hello(peer.name):
                    raise Refused("link: another name expected", reason="wrong name")
            connection.when_room(peer.flush)
            peer.called = connection
            peer.flush()
            await connection.lost.wait()
        except (OSError, UnicodeError, Refused) as error:  # no host has such a name
            self._refused[refusal_reason(error)] += 1
            return False
        finally:
            peer.called = None
            connection.drop()
        return True

    # --- being called ---

    async def _listen(self) -> None:
        loop, knocked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, knocked.set)  # `sock_accept` loses a caller that comes as it is cancelled
        try:
            while True:
                await knocked.wait()
                knocked.clear()
                try:
                    caller, _ = self._socket.accept()
                except BlockingIOError:  # it is gone
                    continue
                except OSError:  # too many files are open, perhaps: who waits at the door must not keep the loop busy
                    loop.remove_reader(self._socket)
                    await self._clock.sleep(self._limits.pause_min_s)
                    loop.add_reader(self._socket, knocked.set)
                    continue
                await self._admit(caller)
        finally:
            loop.remove_reader(self._socket)

    async def _admit(self, caller: socket.socket) -> None:
        caller.setblocking(False)
        if len(self._callers) >= self._limits.handshakes_max:
            oldest = next(iter(self._callers))
            del self._callers[oldest]
            oldest.cancel()
            self._refused["crowded"] += 1
        task = self._spawn(self._welcome(caller))
        self._callers[task] = None

        def done(task: asyncio.Task[None]) -> None:
            self._callers.pop(task, None)
            if task.cancelled():  # perhaps before it began
                caller.close()

        task.add_done_callback(done)
        await asyncio.sleep(0)

    async def _welcome(self, caller: socket.socket) -> None:
        loop, connection, is_known = asyncio.get_running_loop(), self._connection(), False
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                await loop.connect_accepted_socket(lambda: connection, caller, ssl=self._called_tls)
                peer = self._identify(connection, await connection.greeting)
            is_known = True
        except (OSError, Refused) as error:
            self._refused[refusal_reason(error)] += 1
            return
        finally:
            if not is_known:
                connection.drop()
                caller.close()
        if peer.heard is not None and not peer.heard.lost.is_set():
            self._refused["replaced"] += 1
            peer.heard.drop()
        peer.heard = connection
        connection.admit(partial(self._take, peer), self._limits.frame_bytes_max, partial(self._fault, peer))
        connection.write(hello(self._name))

    def _identify(self, connection: LinkConnection, greeting: bytes) -> LinkPeer:
        """Whose connection it is. Raises `Refused`."""
        found = [peer for name, peer in self._peers.items() if hello(name) == greeting]
        if not found:
            raise Refused("link: nobody of this name", reason="unknown")
        self._check_key(connection, found[0])
        if self._clock.monotonic() < found[0].barred_until:
            raise Refused("link: barred for now", reason="barred")
        return found[0]

    def _fault(self, peer: LinkPeer) -> None:
        self._refused["malformed"] += 1
        peer.bar(self._clock.monotonic())

    # --- both ---

    def _check_key(self, connection: LinkConnection, peer: LinkPeer) -> None:
        if self._tls is not None and not shows(connection.transport, peer.pinned.key):
            raise Refused("link: the key of another", reason="wrong key")

    def _connection(self) -> LinkConnection:
        return LinkConnection(self._opened, self._limits.unread_s)

    def _contexts(self, keys: list[bytes]) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        return (None, None) if self._tls is None else self._tls.contexts(keys)

    def _begin_calling(self, peer: LinkPeer) -> None:
        if self._loop is not None:
            peer.calling = self._spawn(self._call(peer))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._stopping.set()

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        opened = list(self._opened)
        for connection in opened:
            connection.drop()
        for connection in opened:
            await connection.lost.wait()
        self._socket.close()
