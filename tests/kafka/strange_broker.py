"""A server on loopback that speaks Kafka's protocol as a broker of another age: it says which requests it knows and
who it is. Real bytes to the real client library, inside TLS where asked; nothing is stored."""

from __future__ import annotations

import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

KAFKA_0_10 = {0: 2, 1: 3, 2: 1, 3: 2, 8: 2, 9: 2, 10: 0, 15: 0, 16: 0, 18: 0, 19: 1, 20: 1}  # request: newest version
NO_KAFKA: Mapping[int, int] = {}  # hangs up on whoever asks
METADATA, OFFSETS_OF_GROUP, COORDINATOR, API_VERSIONS = 3, 9, 10, 18
NOT_COORDINATOR, UNSUPPORTED_VERSION = 16, 35


class StrangeBroker(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, versions: Mapping[int, int], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.versions, self.tls = versions, tls
        self.conversations = 0
        self.group_error, self.group_pause_s = NOT_COORDINATOR, 0.0  # whoever asks for a group's offsets is told so

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server_address[:2])


class _Conversation(socketserver.BaseRequestHandler):
    server: StrangeBroker

    def handle(self) -> None:
        self.server.conversations += 1
        with suppress(OSError):  # who does not trust us hangs up
            if self.server.tls is not None:
                self.request = self.server.tls.wrap_socket(self.request, server_side=True)
            with self.request.makefile("rwb") as line:
                while len(size := line.read(4)) == 4 and (
                    answer := self._answer(line.read(*struct.unpack(">i", size)))
                ):
                    line.write(struct.pack(">i", len(answer)) + answer)
                    line.flush()

    def _answer(self, request: bytes) -> bytes:
        kind, version, number = struct.unpack(">hhi", request[:8])
        if kind == API_VERSIONS and self.server.versions:
            return struct.pack(">i", number) + self._versions(version)
        if kind == METADATA and self.server.versions:
            return struct.pack(">i", number) + self._metadata()
        if kind == COORDINATOR and self.server.versions:
            return struct.pack(">ih", number, 0) + self._broker()
        if kind == OFFSETS_OF_GROUP and self.server.versions:
            time.sleep(self.server.group_pause_s)
            return struct.pack(">iih", number, 0, self.server.group_error)
        return b""

    def _versions(self, asked: int) -> bytes:
        known = self.server.versions
        error = UNSUPPORTED_VERSION if asked > known[API_VERSIONS] else 0
        listed = b"".join(struct.pack(">hhh", kind, 0, newest) for kind, newest in known.items())
        return struct.pack(">hi", error, len(known)) + listed

    def _metadata(self) -> bytes:
        """Version 2: one broker, which is the controller, and no topics."""
        return struct.pack(">i", 1) + self._broker() + struct.pack(">hhii", -1, -1, 1, 0)

    def _broker(self) -> bytes:
        host, port = str(self.server.server_address[0]).encode(), self.server.server_address[1]
        return struct.pack(">ih", 1, len(host)) + host + struct.pack(">i", port)


@contextmanager
def strange_broker(versions: Mapping[int, int], tls: ssl.SSLContext | None = None) -> Iterator[StrangeBroker]:
    """One that knows these requests."""
    with StrangeBroker(versions, tls) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
