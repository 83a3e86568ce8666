"""A server in a thread of this process, for tests that are both ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tallystick.runtime.server import Server


class ServerThread:
    """Serves until the end of the block.

    with ServerThread(router) as server:
        client = HttpClient([Address(server.url, node_id)], identity, clock, entropy)
    """

    def __init__(self, app: Callable[..., Any], **options: Any) -> None:
        self._server = Server(app, **options)
        self._thread = threading.Thread(target=self._server.run, name="tally-http", daemon=True)
        self.url = self._server.url
        self.port = self._server.port

    def __enter__(self) -> ServerThread:
        self._thread.start()  # the socket listens already: who connects early waits in its backlog
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join()
