"""A laboratory of network namespaces: hosts and switches in namespaces of their own, veth pairs between them.

Nothing has a name outside this process: a namespace lives as long as its descriptor is open, and the links in it with
it. Nothing is left over when a test is killed. No interface of the machine is touched.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tallystick.carriers.fabric.bpf import Netlink, attribute, text

T = TypeVar("T")

_NEW_NETWORK = 0x40000000
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE, _CREATE = 16, 20, 24, 0x600
_UP = 1
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str:
    """Why there can be no laboratory here; empty where there can."""
    try:
        Namespace().close()
    except OSError as error:
        return f"no network namespace can be made here ({error.strerror}): run as root, or under unshare -Urn"
    return ""


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class Namespace:
    def __init__(self) -> None:
        self.fd = -1
        _in_a_thread(self._make)

    def _make(self) -> None:
        _call("unshare", _NEW_NETWORK)
        for which in ("default", "all"):
            with suppress(OSError):  # so that nobody but the test speaks on its links
                Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")
        self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, work: Callable[[], T]) -> T:
        """Do this inside: sockets that it opens stay inside."""

        def inside() -> T:
            _call("setns", self.fd, _NEW_NETWORK)
            return work()

        return _in_a_thread(inside)

    def close(self) -> None:
        os.close(self.fd)


def _in_a_thread(work: Callable[[], T]) -> T:
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def connect(one: Namespace, name: str, other: Namespace, peer: str) -> None:
    """A veth pair between two namespaces, up at both ends."""

    def make() -> None:
        link = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        far = link + attribute(3, text(peer)) + attribute(28, struct.pack("=I", other.fd))
        kind = attribute(1, text("veth")) + attribute(2, attribute(1, far))
        _ask(_NEW_LINK, _CREATE, link + attribute(3, text(name)) + attribute(18, kind))

    one.run(make)
    ends = ((one, name), (other, peer))
    for where, end in ends:
        set_up(where, end)
    for where, end in ends:
        assert eventually(lambda where=where, end=end: is_running(where, end))  # type: ignore[misc]
        set_up(where, end)  # behind the kernel's lock, so that its queue works by now too


def is_running(where: Namespace, name: str) -> bool:
    """Whether the kernel has noticed that the other end is up: before that it drops what is sent."""

    def ask() -> bool:
        place = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asking:
            asking.send(struct.pack("=IHHII", 32, 18, 1, 1, 0) + place)
            answer = asking.recv(65_536)
        at, found = 32, {}
        while at < len(answer):
            length, kind = struct.unpack_from("=HH", answer, at)
            found[kind] = answer[at + 4 : at + length]
            at += length + -length % 4
        return found[16] == b"\x06"  # IFLA_OPERSTATE, IF_OPER_UP

    return where.run(ask)


def add_drain(where: Namespace, name: str) -> None:
    """An interface that drops all that is sent. Kernels have one or the other."""

    def make(kind: str) -> None:
        link = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        _ask(_NEW_LINK, _CREATE, link + attribute(3, text(name)) + attribute(18, attribute(1, text(kind))))

    try:
        where.run(lambda: make("dummy"))
    except OSError:
        where.run(lambda: make("ifb"))
    set_up(where, name)


def set_up(where: Namespace, name: str, *, up: bool = True) -> None:
    def change() -> None:
        index = socket.if_nametoindex(name)
        _ask(_NEW_LINK, 0, struct.pack("=BxHiII", 0, 0, index, _UP if up else 0, _UP))

    where.run(change)


def add_address(where: Namespace, name: str, address: str) -> None:
    def change() -> None:
        place = struct.pack("=BBBBi", socket.AF_INET, 24, 0, 0, socket.if_nametoindex(name))
        packed = socket.inet_aton(address)
        _ask(_NEW_ADDRESS, _CREATE, place + attribute(1, packed) + attribute(2, packed))

    where.run(change)


def add_default_route(where: Namespace, name: str) -> None:
    def change() -> None:
        place = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 254, 3, 253, 1, 0)
        _ask(_NEW_ROUTE, _CREATE, place + attribute(4, struct.pack("=i", socket.if_nametoindex(name))))

    where.run(change)


def _ask(kind: int, flags: int, body: bytes) -> None:
    netlink = Netlink()
    try:
        netlink.ask(kind, flags, body)
    finally:
        netlink.close()


class Tap:
    """A host's end of a link, or whatever sends and hears raw frames: what arrives, in order."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        with suppress(PermissionError):  # without root, the usual buffer has to do
            wire.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE: tests look later

    @classmethod
    def on(cls, where: Namespace, interface: str) -> Tap:
        def open_it() -> socket.socket:
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            wire.setsockopt(263, 23, 1)  # not what it sends itself
            wire.bind((interface, 3))
            return wire

        return cls(where.run(open_it))

    def send(self, frame: bytes) -> None:
        self.wire.send(frame)

    def hear(self, within_s: float = 2.0) -> bytes | None:
        """The next frame, or None if none comes."""
        self.wire.settimeout(within_s)
        try:
            return self.wire.recv(65_536)
        except TimeoutError:
            return None

    def heard(self) -> list[bytes]:
        """All that has arrived by now."""
        self.wire.setblocking(False)
        frames = []
        with suppress(BlockingIOError):
            while True:
                frames.append(self.wire.recv(65_536))
        return frames

    def close(self) -> None:
        self.wire.close()


class Bench:
    """One switch with a tap at each of its ports."""

    def __init__(self, ports: Iterable[int]) -> None:
        self.switch, self.outside = Namespace(), Namespace()
        self.interfaces = {port: f"p{port}" for port in ports}
        for port, name in self.interfaces.items():
            connect(self.switch, name, self.outside, f"t{port}")
        self.taps = {port: Tap.on(self.outside, f"t{port}") for port in self.interfaces}

    def close(self) -> None:
        for tap in self.taps.values():
            tap.close()
        self.switch.close()
        self.outside.close()


def eventually(holds: Callable[[], bool], within_s: float = 60.0) -> bool:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
