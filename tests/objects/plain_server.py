"""The least web server that knows byte ranges, with nothing of ours in it: `python plain_server.py FOLDER [RATE]`.

It prints its port. A rate, in bytes a second, makes it slow.
"""

from __future__ import annotations

import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class RangeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder = Path()
    rate = float("inf")

    def do_GET(self) -> None:
        path = self.folder / self.path.removeprefix("/")
        wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]+)", self.headers.get("range", ""))
        if path.parent != self.folder or not path.is_file() or wanted is None:
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        with path.open("rb") as file:
            file.seek(int(wanted[1]))
            data = file.read(int(wanted[2]) + 1 - int(wanted[1]))
        time.sleep(len(data) / self.rate)
        self.send_response(206)
        self.send_header("content-length", str(len(data)))
        first = int(wanted[1])
        self.send_header("content-range", f"bytes {first}-{first + len(data) - 1}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(folder: Path, rate: float) -> None:
    handler = type("Handler", (RangeHandler,), {"folder": folder, "rate": rate})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
