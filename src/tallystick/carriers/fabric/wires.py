"""What is plugged into a switch's ports: interfaces by packet sockets, or datagrams that stand for them.

Threat: a switch that takes an interface drops everything on it that is not the fabric's. On the interface through which
a machine is reached that is an outage. Invariant: an interface with an address, or with a default route, is refused
unless it is asked for by name a second time (`even_if_used`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tallystick.carriers.fabric.entries import FRAME_BYTES_MAX
from tallystick.carriers.fabric.route import ETHERTYPE_CONTROL, ETHERTYPE_PUBLICATION
from tallystick.errors import Misuse, Unavailable

BUFFER_BYTES = 4 << 20  # what may wait at a port while the switch is busy
BURST = 64  # frames that are taken from one port before the next has its turn

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ATTACH_FILTER, _FORCE_BUFFER = 26, 33  # SO_…
_PACKET, _IGNORE_OUTGOING = 263, 23  # SOL_PACKET, PACKET_…
_EVERY_PROTOCOL = 3
_REJECT = 0x0200  # a route of the kernel's own, which leads nowhere
_NET = Path("/proc/thread-self/net")  # of this thread's namespace, not of the process's


def check_unused(interface: str) -> None:
    """Raises `Misuse` if an interface has an address, or a default route goes through it, or it is not there."""
    used = "an address" if _has_address(interface) else "a default route" if _has_default_route(interface) else ""
    if used:
        hint = "name an interface without one, or take this one all the same: --even-if-used"
        raise Misuse(f"interface {interface!r} has {used}, and a switch drops all that is not the fabric's", hint=hint)


def _has_address(interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            fcntl.ioctl(asking.fileno(), _GET_ADDRESS, struct.pack("40s", interface.encode()[:15]))
            return True
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise Misuse(f"there is no interface {interface!r}") from error
    return any(line[-1] == interface for line in _lines("if_inet6"))


def _has_default_route(interface: str) -> bool:
    old = any(line[0] == interface and line[1] == line[7] == "0" * 8 for line in _lines("route"))
    new = (line for line in _lines("ipv6_route") if line[-1] == interface and line[0] == "0" * 32 and line[1] == "00")
    return old or any(not int(line[8], 16) & _REJECT for line in new)


def _lines(table: str) -> list[list[str]]:
    path = _NET / table
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def packet_wires(interfaces: Mapping[int, str], *, even_if_used: bool, only: int = 0) -> dict[int, socket.socket]:
    """By port, a socket on its interface that hears the fabric's frames, or those of one EtherType. Raises `Misuse`,
    and `Unavailable` where this process may not."""
    for name in () if even_if_used else interfaces.values():
        check_unused(name)
    return {port: _packet_wire(name, only) for port, name in interfaces.items()}


def _packet_wire(interface: str, only: int) -> socket.socket:
    try:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    except PermissionError as error:
        hint = "run as root or in a user namespace (unshare -Urn), or choose the plane `datagrams`"
        raise Unavailable("this process may not open packet sockets", hint=hint) from error
    if not only:
        _attach_filter(wire)
        wire.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)
    _enlarge(wire)
    wire.bind((interface, only or _EVERY_PROTOCOL))
    return wire


def _attach_filter(wire: socket.socket) -> None:
    """The kernel hands over the fabric's two kinds of frames alone, and none whose VLAN tag it took off."""
    program = [
        *((0x20, 0, 0, 0xFFFFF030), (0x15, 0, 4, 0)),  # is there a tag?
        *((0x28, 0, 0, 12), (0x15, 1, 0, ETHERTYPE_CONTROL), (0x15, 0, 1, ETHERTYPE_PUBLICATION)),
        *((0x06, 0, 0, 0x40000), (0x06, 0, 0, 0)),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    wire.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def datagram_wire(local: tuple[str, int], remote: tuple[str, int]) -> socket.socket:
    """A socket that stands for a link: each datagram is a frame. It hears nobody but the other end."""
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    _enlarge(wire)
    wire.bind(local)
    wire.connect(remote)
    return wire


def _enlarge(wire: socket.socket) -> None:
    try:
        wire.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, BUFFER_BYTES)
    except PermissionError:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)


class PortWires:
    """What is plugged into a switch, and a thread that hears it."""

    def __init__(self, wires: Mapping[int, socket.socket]) -> None:
        self._wires = dict(wires)
        self._waker, self._woken = socket.socketpair()
        self._thread: threading.Thread | None = None

    def start(self, receive: Callable[[int, bytes], None]) -> None:
        """Hand every frame to `receive`, with its port, until `close`."""
        self._thread = threading.Thread(target=self._run, args=(receive,), name="fabric switch", daemon=True)
        self._thread.start()

    def _run(self, receive: Callable[[int, bytes], None]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for port, wire in self._wires.items():
                selector.register(wire, selectors.EVENT_READ, (port, wire.recv))
            while True:
                for key, _events in selector.select():
                    if key.data is None:
                        return
                    port, take = key.data
                    for _ in range(BURST):
                        try:
                            frame = take(FRAME_BYTES_MAX + 1)
                        except OSError:  # nothing more, the link went down, or the other end is gone
                            break
                        receive(port, frame)

    def send(self, port: int, frame: bytes) -> None:
        """A full queue, a link that is down, another end that is gone: the frame is lost, as anywhere."""
        if wire := self._wires.get(port):
            with suppress(OSError):
                wire.send(frame)

    def close(self) -> None:
        if self._thread is not None:
            self._waker.send(b"x")
            self._thread.join()
        for wire in (*self._wires.values(), self._waker, self._woken):
            wire.close()
