"""Somebody who floods a server: `flood_child.py HOST:PORT SILENT JUNK`.

SILENT connections are opened, from several addresses, and nothing is said on them; JUNK threads send requests that are
nobody's, and bytes that are no request, as fast as they are answered. It prints `connected` when all are at work, and
goes on until its standard input closes or nobody listens any more; then it prints how many requests were answered.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from itertools import cycle

EACH = 200  # connections from one address
BODY = os.urandom(2_000)
JUNK = [
    b"POST /v1/topics/%s/parcels HTTP/1.1\r\nhost: %%s\r\ncontent-length: %d\r\n\r\n" % (b"0" * 32, len(BODY)) + BODY,
    b"POST /v1/undo HTTP/1.1\r\nhost: %s\r\ntally-node: 00\r\nsignature: tally=::\r\ncontent-length: 0\r\n\r\n",
    b"GET /v1/ledger/checkpoint HTTP/1.1\r\nhost: %s\r\ncontent-length: 0\r\n\r\n",
    os.urandom(600).replace(b"%", b"?"),
]


class Flood:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._to, self._host = (host, int(port)), address.encode()
        self.answered = 0

    def connect(self, number: int = 0) -> socket.socket:
        """The `number`th connection; an address has a share of a server's, so it comes from the next before that."""
        source = f"127.0.0.{2 + number // EACH}"
        return socket.create_connection(self._to, timeout=60, source_address=(source, 0))

    def send_junk(self) -> None:
        for junk in cycle(JUNK):
            try:
                with self.connect() as line:
                    line.sendall(junk.replace(b"%s", self._host))
                    self.answered += bool(line.recv(4096))
            except ConnectionRefusedError:
                return  # nobody listens any more
            except OSError:
                continue  # cut: a bound was reached


def main() -> None:
    flood, silent, junk = Flood(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    lines = [flood.connect(number) for number in range(silent)]
    threads = [threading.Thread(target=flood.send_junk, daemon=True) for _ in range(junk)]
    for thread in threads:
        thread.start()
    print("connected", flush=True)
    sys.stdin.read()
    for line in lines:
        line.close()
    print(flood.answered, flush=True)


if __name__ == "__main__":
    main()
