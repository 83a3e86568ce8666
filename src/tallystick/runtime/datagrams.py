"""One protocol role on a UDP socket: the twin of `links.Links` for roles that bring their own protection.

    datagrams = Datagrams(role, "127.0.0.1", 0, deliver=print)
    await datagrams.run()

`Send(to, data)` leaves as one datagram, and each that arrives is told to the role as it came. A party is named by its
numeric address ("192.0.2.1:7001", "[2001:db8::1]:7001"), or by a name that `set_names` gives it. Host names are not
looked up: that would take time, and tell others with whom this node speaks.

Threat: anybody can send to a UDP port, under any sender's address, as much as the line takes. So nothing is believed
here, neither senders nor content: the role checks. What waits for the role is bounded. Those to whom the role has sent
lately are apart from strangers, so a flood of strangers drowns strangers only; among those whom it knows, whoever has
more waiting than an equal part is dropped, so one that floods loses its own. What is too long is dropped unread. All of
it is counted, by reason and by sender, in a bounded table.

Left out: a sender who writes the address of a neighbour on its datagrams costs that neighbour its part of the queue.
What the kernel drops, before it is read here, nobody counts.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.effects import Role
from tallystick.runtime.queues import InputQueue
from tallystick.runtime.role_runner import RoleDriver, RoleRunner
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.sources import Clock, SystemClock
from tallystick.wire import is_number

OTHERS = "others"  # in the table of who was dropped, when it is full
_STRANGER_PARTS = 16  # one stranger may have this part of the strangers' room
_STRANGER_TURN = 4  # every so many takes a stranger comes first


@dataclass(frozen=True, slots=True)
class DatagramLimits:
    datagram_bytes_max: int = 1_200  # passes every path unsplit
    input_bytes_max: int = 4 << 20  # waiting for the role, from those to whom it has sent
    strangers_bytes_max: int = 256 << 10  # from others
    known_max: int = 1_024  # to whom it has sent, the latest
    turn_messages_max: int = 64  # for the role before the socket is looked after again
    read_max: int = 64  # datagrams that are read at once
    socket_bytes: int = 1 << 20  # what the kernel holds for us, if it lets us
    counted_max: int = 1_024  # senders of whom it is counted what was dropped


@dataclass(frozen=True, slots=True)
class DatagramStatistics:
    messages_in: int  # told to the role, or waiting for it
    bytes_in: int
    messages_out: int
    bytes_out: int
    dropped: Mapping[str, int]  # that came, by reason
    dropped_by: Mapping[str, int]  # the same, by sender
    unsent: Mapping[str, int]  # by reason


class DatagramQueue:
    """What waits for the role: from those it knows, one of each in turn, and now and then from a stranger."""

    def __init__(self, limits: DatagramLimits) -> None:
        self._limits = limits
        self._known: OrderedDict[str, None] = OrderedDict()
        self._near, self._far = InputQueue(limits.input_bytes_max), InputQueue(limits.strangers_bytes_max)
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._near) or bool(self._far)

    def know(self, name: str) -> None:
        """The role sent something there."""
        self._known[name] = None
        self._known.move_to_end(name)
        if len(self._known) > self._limits.known_max:
            self._known.popitem(last=False)

    def put(self, sender: str, message: bytes) -> str:
        """Returns why it was dropped, empty if it was not."""
        if sender in self._known:
            if self._near.must_pause(sender):
                return "flood"
            self._near.put(sender, message)
            return ""
        most = self._limits.strangers_bytes_max
        if self._far.bytes >= most or self._far.held(sender) >= most // _STRANGER_PARTS:
            return "strangers"
        self._far.put(sender, message)
        return ""

    def take(self) -> tuple[str, bytes] | None:
        self._turn = (self._turn + 1) % _STRANGER_TURN
        first, second = (self._near, self._far) if self._turn else (self._far, self._near)
        return first.take() or second.take()


class Datagrams(RoleDriver):
    """Listens at once. `deliver` is called in the loop's thread, and must be quick."""

    def __init__(
        self,
        role: Role,
        host: str = "127.0.0.1",
        port: int = 0,
        store: RoleStore | None = None,
        *,
        deliver: Callable[[Any], None],
        clock: Clock | None = None,
        limits: DatagramLimits = DatagramLimits(),
    ) -> None:
        self._limits, self._queue = limits, DatagramQueue(limits)
        super().__init__(_bind(host, port, limits.socket_bytes))
        self._is_six = self._socket.family == socket.AF_INET6
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._runner = RoleRunner(
            *(role, self._queue, clock or SystemClock(), store),
            send=self._send,
            heard=lambda sender: None,
            deliver=deliver,
            turn_messages_max=limits.turn_messages_max,
        )
        self._in, self._out, self._bytes_in, self._bytes_out = 0, 0, 0, 0
        self._dropped: Counter[str] = Counter()
        self._dropped_by: Counter[str] = Counter()
        self._unsent: Counter[str] = Counter()

    def set_names(self, addresses: Mapping[str, str]) -> None:
        """Let the role know parties by these names instead of their addresses."""
        self._addresses = dict(addresses)
        self._names = {address: name for name, address in addresses.items()}

    async def run(self) -> None:
        """Run the role until `stop`. Raises what the role, its store or `deliver` raised."""
        self._loop = loop = asyncio.get_running_loop()
        if self._stopping.is_set():
            return
        loop.add_reader(self._socket, self._read)
        running, stopping = loop.create_task(self._runner.run()), loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            loop.remove_reader(self._socket)
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
            self._socket.close()

    def statistics(self) -> DatagramStatistics:
        counts = self._in, self._bytes_in, self._out, self._bytes_out
        return DatagramStatistics(*counts, dict(self._dropped), dict(self._dropped_by), dict(self._unsent))

    # --- what leaves ---

    def _send(self, to: str, message: Any) -> None:
        if not isinstance(message, bytes):
            raise Misuse(f"datagrams: messages are bytes, found {type(message).__name__}")
        address = self._addresses.get(to, to)
        place = numeric_place(address, is_six=self._is_six)
        if place is None or len(message) > self._limits.datagram_bytes_max:
            self._unsent["oversized" if place else "unknown"] += 1
            return
        self._queue.know(self._names.get(address, address))
        try:
            self._socket.sendto(message, place)
        except BlockingIOError:  # the line is full, and whoever waits for an acknowledgement sends again
            self._unsent["congested"] += 1
        except OSError:
            self._unsent["unreachable"] += 1
        else:
            self._out += 1
            self._bytes_out += len(message)

    # --- what comes ---

    def _read(self) -> None:
        for _ in range(self._limits.read_max):
            try:
                data, source = self._socket.recvfrom(self._limits.datagram_bytes_max + 1)
            except BlockingIOError:
                break
            except OSError:  # what we sent earlier did not arrive, says the system
                self._unsent["unreachable"] += 1
                continue
            self._take(_named(source), data)
        if self._queue:
            self._runner.stir()

    def _take(self, address: str, data: bytes) -> None:
        sender = self._names.get(address, address)
        is_long = len(data) > self._limits.datagram_bytes_max
        if reason := "oversized" if is_long else self._queue.put(sender, data):
            self._dropped[reason] += 1
            is_counted = sender in self._dropped_by or len(self._dropped_by) < self._limits.counted_max
            self._dropped_by[sender if is_counted else OTHERS] += 1
            return
        self._in += 1
        self._bytes_in += len(data)


@lru_cache(maxsize=4096)
def numeric_place(address: str, *, is_six: bool = False) -> tuple[str, int] | None:
    """Host and port of a numeric address to which a datagram may go, to one machine and no more; else None."""
    host, _, port = address.rpartition(":")
    if not is_number(port) or not 0 < int(port) < 1 << 16 or (host.startswith("[") != host.endswith("]")):
        return None
    try:
        parsed = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    is_one = not (parsed.is_multicast or parsed.is_unspecified or str(parsed) == "255.255.255.255")
    is_fitting = (parsed.version == 6) == is_six == host.startswith("[")
    return (str(parsed), int(port)) if is_one and is_fitting else None


def _named(source: Any) -> str:
    host, port = source[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int, socket_bytes: int) -> socket.socket:
    """Raises `Misuse` for a host that is no numeric address, `Unavailable` where the port is taken."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError as error:
        raise Misuse(f'datagrams: a numeric address expected to listen at, found "{host}"') from error
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        with suppress(OSError):  # smaller ones do
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, socket_bytes)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, socket_bytes)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise Unavailable(f"datagrams: cannot listen at {host}:{port}: {error.strerror}") from error
    return made
