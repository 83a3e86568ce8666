"""The socket server: a thread for each connection, messages in frames of unsigned varint and content.

Threat: one connection that stalls the others. CometBFT opens four and matches answers to questions by their order
within each, so one loop over all would let a slow query hold up a commit; here each connection reads, asks the
application and answers in a thread of its own. Back-pressure is the socket's: a connection that is being answered is
not read, the node's queue fills, and the node slows down.

Threat: somebody else on the machine who speaks to the application; whoever reaches the socket may finalise blocks. It
is a Unix socket in a folder that only its owner enters, or loopback where that is asked for; nothing else is bound.

One face for errors: an exception in `query` or `check_tx` is an answer with code `FAULT` and no detail; anywhere else
the node is told that the application failed, and stops, because an application that cannot say what a block did must
not go on. The detail goes to the log. Answers are written when the node asks to flush, as CometBFT's own server does.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.abci.application import Application
from tallystick.abci.messages import EXCEPTION, METHODS, ResponseCheckTx, ResponseException, ResponseQuery
from tallystick.abci.protobuf import Message, read_varint, write_varint
from tallystick.errors import Malformed, Misuse, Unavailable

log = logging.getLogger(__name__)

FAULT = 255  # the code of a query or check in which the application itself failed
_FLUSHED = 3  # number of the response before which all others are written
_LENGTH_DELIMITED = 2
_FORGIVEN: dict[str, Message] = {
    "query": ResponseQuery(code=FAULT, log="the application failed"),
    "check_tx": ResponseCheckTx(code=FAULT, log="the application failed"),
}


@dataclass(frozen=True)
class Limits:
    frame_bytes_max: int = 64 << 20  # a block of 4 MiB in a request, with room for larger ones
    write_bytes: int = 1 << 20  # answers that wait for a flush; more are written before it comes
    connections_max: int = 16  # four for each start of the node, and those of one that died a moment ago


@dataclass(frozen=True)
class ServerStatistics:
    connections: int
    requests: dict[str, int]  # by method, since the start
    faults: int  # exceptions of the application


class Server:
    """Serves one application; `start`, then `stop`.

    `address` is `tcp://127.0.0.1:PORT` (0: any), `unix://PATH`, or empty for a Unix socket in a fresh private folder.
    """

    def __init__(self, application: Application, address: str = "", limits: Limits = Limits()) -> None:
        self._application, self._limits = application, limits
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._requests: dict[str, int] = {}
        self._faults = 0
        self._stopping = False
        self._folder: str | None = None
        self._socket, self.address = self._bind(address)

    def start(self) -> None:
        threading.Thread(target=self._accept, name="abci-accept", daemon=True).start()

    def stop(self) -> None:
        """Close every connection; requests under way finish first, unanswered."""
        self._stopping = True
        _shut(self._socket)
        with self._lock:
            open_now, threads = list(self._connections), list(self._threads)
        for connection in open_now:
            _shut(connection)
        for thread in threads:
            thread.join()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def statistics(self) -> ServerStatistics:
        with self._lock:
            return ServerStatistics(len(self._connections), dict(self._requests), self._faults)

    def _bind(self, address: str) -> tuple[socket.socket, str]:
        if not address:
            self._folder = tempfile.mkdtemp(prefix="abci-")
            address = f"unix://{self._folder}/app.sock"
        scheme, _, rest = address.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme not in ("unix", "tcp"):
            raise Misuse(f"abci: {address}: expected tcp://127.0.0.1:PORT or unix://PATH")
        if scheme == "tcp" and host != "127.0.0.1":
            raise Misuse(f"abci: {address} is not on loopback", hint="node and application share a machine")
        bound = socket.socket(socket.AF_UNIX if scheme == "unix" else socket.AF_INET)
        try:
            if scheme == "unix":
                Path(rest).unlink(missing_ok=True)
                bound.bind(rest)
                os.chmod(rest, 0o600)
            else:
                bound.bind((host, int(port)))
                address = f"tcp://{host}:{bound.getsockname()[1]}"
            bound.listen(self._limits.connections_max)
        except (OSError, ValueError) as error:
            bound.close()
            raise Unavailable(f"abci: cannot listen on {address}: {error}") from error
        return bound, address

    def _accept(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if len(self._connections) >= self._limits.connections_max:  # only this thread adds to them
                log.warning("abci: more than %d connections, one is refused", self._limits.connections_max)
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="abci", daemon=True)
            with self._lock:
                self._connections.add(connection)
                self._threads.add(thread)
                thread.start()  # under the lock: `stop` waits for those that have begun

    def _serve(self, connection: socket.socket) -> None:
        answers = bytearray()
        try:
            with connection, connection.makefile("rb", buffering=256 * 1024) as stream:
                while (frame := _read_frame(stream, self._limits.frame_bytes_max)) is not None:
                    number, content = self._answer(frame)
                    answers += write_frame(number, content)
                    if number in (_FLUSHED, EXCEPTION) or len(answers) > self._limits.write_bytes:
                        connection.sendall(answers)
                        answers.clear()
                    if number == EXCEPTION:
                        return
        except (OSError, ValueError) as error:
            if not self._stopping:
                log.info("abci: a connection ended: %s", error)
        except Malformed as error:
            log.error("abci: a connection is closed: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._threads.discard(threading.current_thread())

    def _answer(self, frame: bytes) -> tuple[int, bytes]:
        """Number and content of the answer to a request."""
        number, content = _read_union(frame)
        if number not in METHODS:
            raise Malformed(f"abci: request {number} is unknown")
        name, kind, answer_number = METHODS[number]
        self._requests[name] = self._requests.get(name, 0) + 1
        if answer_number == _FLUSHED:
            return answer_number, b""
        request = kind.decode(content)
        try:
            response: Any = getattr(self._application, name)(request)
        except Exception:
            log.exception("abci: the application failed in %s", name)
            self._faults += 1
            if name not in _FORGIVEN:
                return EXCEPTION, ResponseException(f"application failed in {name}").encode()
            response = _FORGIVEN[name]
        return answer_number, response.encode()


def write_frame(number: int, content: bytes) -> bytes:
    """A member of the union of requests or of responses, in its frame."""
    union = write_varint(number << 3 | _LENGTH_DELIMITED) + write_varint(len(content)) + content
    return write_varint(len(union)) + union


def _read_union(frame: bytes) -> tuple[int, memoryview]:
    view = memoryview(frame)
    tag, position = read_varint(view, 0)
    size, position = read_varint(view, position)
    if tag & 7 != _LENGTH_DELIMITED or position + size != len(view):
        raise Malformed("abci: a frame holds exactly one request")
    return tag >> 3, view[position:]


def _read_frame(stream: Any, bytes_max: int) -> bytes | None:
    """The next frame's content, or None at the end of the stream."""
    size = shift = 0
    while True:
        byte = stream.read(1)
        if not byte:
            if shift:
                raise Malformed("abci: a frame is cut off")
            return None
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if shift > 63:
            raise Malformed("abci: a frame's length is no number")
    if size > bytes_max:
        raise Malformed(f"abci: a frame of {size} bytes, at most {bytes_max} expected")
    data: bytes = stream.read(size)
    if len(data) != size:
        raise Malformed("abci: a frame is cut off")
    return data


def _shut(which: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        which.shutdown(socket.SHUT_RDWR)
    which.close()
