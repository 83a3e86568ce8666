"""Loading eBPF from Python through the `bpf()` system call: maps, a small assembler, programs and where they hang. No
compiler, no library.

The kernel's verifier judges every program before it runs, so a mistake here is an error at start and not a hole.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from contextlib import suppress
from functools import partialmethod

from tallystick.errors import Unavailable

HASH, ARRAY = 1, 2  # kinds of maps
NO_PREALLOCATION = 1

_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _MAP_LOOKUP_BATCH, _LINK_CREATE = 0, 1, 2, 3, 5, 24, 28
_SCHED_CLS, _TCX_INGRESS = 3, 46
_ATTRIBUTE_BYTES = 128
_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280}.get(platform.machine(), -1)  # no call has the number -1
_libc = ctypes.CDLL(None, use_errno=True)

Attributes = ctypes.Array[ctypes.c_char]


def _attributes(layout: str, *values: int) -> Attributes:
    return ctypes.create_string_buffer(struct.pack(layout, *values), _ATTRIBUTE_BYTES)


def _bpf(command: int, attributes: Attributes) -> int:
    """Raises `OSError`."""
    done = int(_libc.syscall(_NUMBER, command, attributes, _ATTRIBUTE_BYTES))
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return done


def _refused(what: str, error: OSError) -> Unavailable:
    hint = "run as root, or choose the plane `packet`"
    return Unavailable(f"the kernel {what}: {error.strerror}", hint=hint)


class BpfMap:
    """A map of the kernel's; it lives as long as this, or a program that uses it."""

    def __init__(self, kind: int, key_bytes: int, value_bytes: int, size: int) -> None:
        """Raises `Unavailable` where this process may not."""
        flags = NO_PREALLOCATION if kind == HASH else 0
        try:
            self.fd = _bpf(_MAP_CREATE, _attributes("=5I", kind, key_bytes, value_bytes, size, flags))
        except OSError as error:
            raise _refused("makes no eBPF map", error) from error
        self._size = size
        self._key = ctypes.create_string_buffer(key_bytes)
        self._value = ctypes.create_string_buffer(value_bytes)
        places = ctypes.addressof(self._key), ctypes.addressof(self._value)
        self._both, self._key_alone = (_attributes("=IIQQ", self.fd, 0, places[0], one) for one in (places[1], 0))

    def put(self, key: bytes, value: bytes) -> None:
        """Raises `Unavailable` if the map is full."""
        self._key.raw, self._value.raw = key, value
        try:
            _bpf(_MAP_UPDATE, self._both)
        except OSError as error:
            raise Unavailable(f"the switch's table takes no more: {error.strerror}") from error

    def get(self, key: bytes) -> bytes | None:
        self._key.raw = key
        try:
            _bpf(_MAP_LOOKUP, self._both)
        except FileNotFoundError:
            return None
        return self._value.raw

    def items(self) -> list[tuple[bytes, bytes]]:
        """All of a hash map, in one call (Linux 5.6)."""
        sizes = len(self._key), len(self._value)
        keys, values = (ctypes.create_string_buffer(self._size * size) for size in sizes)
        next_batch = ctypes.c_uint64()
        places = [ctypes.addressof(one) for one in (next_batch, keys, values)]
        asked = _attributes("=4Q2I", 0, *places, self._size, self.fd)
        with suppress(FileNotFoundError):  # so the kernel says that these were the last
            _bpf(_MAP_LOOKUP_BATCH, asked)
        (count,) = struct.unpack_from("=I", asked, 32)
        found = ((one.raw[: count * size], size) for one, size in zip((keys, values), sizes, strict=True))
        columns = (struct.iter_unpack(f"{size}s", one) for one, size in found)
        return [(key, value) for (key,), (value,) in zip(*columns, strict=True)]

    def delete(self, key: bytes) -> None:
        self._key.raw = key
        _bpf(_MAP_DELETE, self._key_alone)

    def close(self) -> None:
        os.close(self.fd)


class Register(int):
    """A register by its number: in place of a number, what it holds is meant."""


class Stack(int):
    """A place on the stack, by its offset: where it is, is meant."""


RESULT, STACK = Register(0), Register(10)
_SIZES = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}


class Assembler:
    """Instructions one after another, and names for places to jump to."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int | str, int]] = []
        self._places: dict[str, int] = {}

    def _emit(self, code: int, to: int = 0, source: int = 0, offset: int | str = 0, value: int = 0) -> None:
        self._code.append((code, to, source, offset, value))

    def _operate(self, code: int, to: int, what: int, place: str | int = 0) -> None:
        if isinstance(what, Register):
            self._emit(code | 0x08, to, what, place)
        else:
            self._emit(code, to, 0, place, what)

    def place(self, name: str) -> None:
        self._places[name] = len(self._code)

    # (register, number or register), and for jumps the place to go to
    move, add = partialmethod(_operate, 0xB7), partialmethod(_operate, 0x07)
    jump_if, jump_unless = partialmethod(_operate, 0x15), partialmethod(_operate, 0x55)
    jump_at_least = partialmethod(_operate, 0x35)

    def load(self, to: int, source: int, offset: int, size: int) -> None:
        self._emit(0x61 | _SIZES[size], to, source, offset)

    def store(self, to: Stack, source: int, size: int) -> None:
        self._emit(0x63 | _SIZES[size], STACK, source, to)

    def count(self, to: int, offset: int, source: int) -> None:
        """Add to eight bytes of memory, atomically."""
        self._emit(0xDB, to, source, offset)

    def jump(self, place: str) -> None:
        self._emit(0x05, offset=place)

    def call(self, helper: int, *arguments: int | BpfMap) -> None:
        """A helper of the kernel's. Its arguments go to registers 1 to 5; registers 0 to 5 are others afterwards."""
        for to, one in enumerate(arguments, start=1):
            if isinstance(one, BpfMap):
                self._emit(0x18, to, 1, 0, one.fd)
                self._emit(0)  # the upper half of the address, which the kernel fills in
            elif isinstance(one, Stack):
                self.move(to, STACK)
                self.add(to, int(one))
            else:
                self.move(to, one)
        self._emit(0x85, value=helper)

    def leave(self, result: int) -> None:
        self.move(RESULT, result)
        self._emit(0x95)

    def code(self) -> bytes:
        def distance(at: int, offset: int | str) -> int:
            return offset if isinstance(offset, int) else self._places[offset] - at - 1

        return b"".join(
            struct.pack("=BBhi", code, to | source << 4, distance(at, offset), value)
            for at, (code, to, source, offset, value) in enumerate(self._code)
        )


_CHECKS = 5  # a signal that comes while the verifier is at work ends it, so it is asked again


def load_program(code: bytes) -> int:
    """The descriptor of a program for traffic control. Raises `Unavailable`, with the verifier's last words."""
    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(1 << 20)
    places = ctypes.addressof(instructions), ctypes.addressof(licence)
    quiet, told_why = (0, 0, 0), (1, len(log), ctypes.addressof(log))
    for told in (*[quiet] * _CHECKS, told_why):  # it is asked for its log where it refuses
        try:
            return _bpf(_PROG_LOAD, _attributes("=IIQQIIQ", _SCHED_CLS, len(code) // 8, *places, *told))
        except OSError as error:
            refused = error
    said = log.value.decode(errors="replace").splitlines()[-3:]
    raise _refused(" ".join(["takes no eBPF program", *said]), refused) from refused


def attach_tcx(program: int, interface: int) -> int:
    """A link that lets every frame that arrives at an interface go through the program, until it is closed. Raises
    `OSError` on kernels before 6.6."""
    return _bpf(_LINK_CREATE, _attributes("=4I", program, interface, _TCX_INGRESS, 0))


# --- a little of rtnetlink, for kernels without TCX ---

_HEADER = struct.Struct("=IHHII")
_REQUEST, _ACK, _CREATE, _REPLACE = 0x1, 0x4, 0x400, 0x100
_ERROR = 2
_NEW_QDISC, _DEL_QDISC, _NEW_FILTER = 36, 37, 44
_CLSACT, _CLSACT_HANDLE, _INGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2
_KIND, _OPTIONS = 1, 2
_BPF_FD, _BPF_NAME, _BPF_FLAGS, _DIRECT = 6, 7, 8, 1
_EVERY_PROTOCOL = socket.htons(3)


def attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


class Netlink:
    """A socket to the kernel, in the network namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._sequence, self.close = 0, self._socket.close

    def ask(self, kind: int, flags: int, body: bytes) -> None:
        """Have it done. Raises `OSError`."""
        self._sequence += 1
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, kind, flags | _REQUEST | _ACK, self._sequence, 0) + body)
        answer = self._socket.recv(65_536)
        _size, answered, _flags, _sequence, _pid = _HEADER.unpack_from(answer)
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if answered != _ERROR or code:
            raise OSError(-code, os.strerror(-code))

    def attach_clsact(self, program: int, interface: int) -> None:
        """Let every frame that arrives at an interface go through a program, until `detach_clsact`."""
        place = struct.pack("=BxHiIII", 0, 0, interface, _CLSACT_HANDLE, _CLSACT, 0)
        self.ask(_NEW_QDISC, _CREATE | _REPLACE, place + attribute(_KIND, text("clsact")))
        options = attribute(_BPF_FD, struct.pack("=I", program))
        options += attribute(_BPF_NAME, text("tallystick")) + attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT))
        place = struct.pack("=BxHiIII", 0, 0, interface, 1, _INGRESS, 1 << 16 | _EVERY_PROTOCOL)
        body = place + attribute(_KIND, text("bpf")) + attribute(_OPTIONS, options)
        self.ask(_NEW_FILTER, _CREATE | _REPLACE, body)

    def detach_clsact(self, interface: int) -> None:
        place = struct.pack("=BxHiIII", 0, 0, interface, _CLSACT_HANDLE, _CLSACT, 0)
        with suppress(OSError):  # the interface may be gone
            self.ask(_DEL_QDISC, 0, place + attribute(_KIND, text("clsact")))
