"""Somebody on the network: what goes to an address is passed on to another, and noted."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

DRIVER, TAPPED = "127.0.0.1", "127.0.0.2"  # where a driver listens, and where executors are told that it does


class Tap:
    """Between `TAPPED` and `DRIVER` at one port; `heard` is what went by, both ways."""

    def __init__(self, port: int) -> None:
        self._port, self._parts, self._sockets = port, [b""], []  # type: ignore[var-annotated]
        self._server = socket.create_server((TAPPED, port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def heard(self) -> bytes:
        return b"".join(self._parts)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection((DRIVER, self._port))
                except OSError:  # the driver has gone
                    near.close()
                    continue
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self._parts.append(data)
                other.sendall(data)
        for either in (one, other):
            with suppress(OSError):
                either.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._server, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
