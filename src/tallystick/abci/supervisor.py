"""A node and its application as a pair: the application listens first, the node is started, and again when it ends.

CometBFT ends whenever its application fails or goes away, and does not come back by itself; an application without its
node does nothing. So the process that serves the application owns the node: it starts it, starts it again after a pause
that doubles, and ends it. If this process is killed, the node notices that its application is gone, and ends too; or
hangs, when that happened in the middle of a block, and keeps its ports and files. So a node that has lost its
application is killed: by the watch here, and by the next process, which finds it by the file that names it.

That the process lives says little: a node whose application gave a wrong hash stays up and answers, without going on.
Whoever watches a chain watches heights.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tallystick.abci.server import Server
from tallystick.errors import Unavailable

log = logging.getLogger(__name__)

PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0  # before a node that ended is started again
STEADY_S = 60.0  # one that lived so long starts its pauses from the beginning
STOP_S = 10.0  # to end by itself
ALONE_S = 10.0  # a node that had connections and has none for so long hangs


@dataclass(frozen=True)
class PairStatistics:
    running: bool
    pid: int | None
    restarts: int


class Supervisor:
    """`command` starts the node; the address of the application is put behind it as `--proxy_app=…`.

    Beside `log_file` lies `<log file>.pid`, which names the node's process.
    """

    def __init__(self, server: Server, command: Sequence[str], log_file: Path, alone_s: float = ALONE_S) -> None:
        self._server, self._log_file, self._alone_s = server, log_file, alone_s
        self._pid_file = log_file.with_name(log_file.name + ".pid")
        self._command = [*command, f"--proxy_app={server.address}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._restarts = 0
        self._thread = threading.Thread(target=self._look_after, name="node", daemon=True)

    def start(self) -> None:
        self._server.start()
        self._end_leftover()
        self._process = self._spawn()
        self._thread.start()

    def stop(self) -> None:
        """End the node, then the application's server; may be called twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._process is not None:
            _end(self._process)
            self._process = None
        self._server.stop()

    def ask_to_stop(self) -> None:
        """Let `wait` return; from a signal handler, say. `stop` is still to be called."""
        self._stopping.set()

    def wait(self) -> None:
        """Return when it is to stop."""
        self._stopping.wait()

    def statistics(self) -> PairStatistics:
        process = self._process
        running = process is not None and process.poll() is None
        return PairStatistics(running, process.pid if process is not None and running else None, self._restarts)

    def _look_after(self) -> None:
        pause_s, started, connected = PAUSE_FIRST_S, time.monotonic(), 0.0
        while not self._stopping.is_set():
            assert self._process is not None
            try:
                code = self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                if self._server.statistics().connections:
                    connected = time.monotonic()
                elif connected and time.monotonic() - connected > self._alone_s:
                    log.warning("the node has lost its application and hangs; it is killed")
                    self._process.kill()
                continue
            connected = 0.0
            if time.monotonic() - started > STEADY_S:
                pause_s = PAUSE_FIRST_S
            log.warning("the node ended with code %d; it is started again in %.1f s", code, pause_s)
            if self._stopping.wait(pause_s):
                return
            pause_s, started = min(2 * pause_s, PAUSE_MAX_S), time.monotonic()
            self._restarts += 1
            self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            with self._log_file.open("ab") as out:
                process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                )
            self._pid_file.write_text(f"{process.pid}\n")
        except OSError as error:
            raise Unavailable(f"{self._command[0]}: it cannot be started: {error}") from error
        return process

    def _end_leftover(self) -> None:
        """The node of a process of ours that was killed; found by its number and its command line, or not at all."""
        ours, deadline = [word.encode() for word in self._command[:-1]], time.monotonic() + STOP_S
        with suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            while Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[: len(ours)] == ours:
                if time.monotonic() > deadline:
                    return  # the new one will say what it lacks
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
