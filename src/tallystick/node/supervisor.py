"""Node and authority as two processes under one command; and a keeper for as many as an overlay has.

The supervisor holds neither's keys. It starts the node, then the authority, tells when both are ready, starts one that
died again (after a pause that doubles), and ends both when it is asked to end. Only the authority is handed the
passphrase: an untrusted node that held the keys would make the claim void. If the supervisor itself is killed, its
children notice that their standard input closed, and end.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from tallystick.errors import Unavailable
from tallystick.node.instance import PASSPHRASE_VARIABLE
from tallystick.runtime.sources import Clock

log = logging.getLogger(__name__)

READY_S = 60.0  # from the start of a process until it serves; opening a large ledger takes its time
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0  # before a process that died is started again
STEADY_S = 60.0  # one that lived so long starts its pauses from the beginning
STOP_S = 20.0  # to finish what is under way
_LOOK_S = 0.2
_WORDS_MAX = 1000  # bytes of why a process is not ready
_ANSWER_MAX = 1 << 20


class ChildFailed(Exception):
    """A process ended before it ever served, and has printed its own error line; or, with code 0, it was not waited
    for."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ended with code {code}")
        self.code = code


@dataclass
class Child:
    """A process of `tally`, and how it is started."""

    name: str
    arguments: list[str]
    with_passphrase: bool
    log: Path | None = None  # where its standard error goes; None: where ours goes
    steady_s: float = STEADY_S
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    url: str = field(default="", init=False)
    started: float = field(default=0.0, init=False)
    pause_s: float = field(default=PAUSE_FIRST_S, init=False)
    again_at: float = field(default=0.0, init=False)

    def start(self, clock: Clock, is_over: Callable[[], bool] = lambda: False) -> None:
        """Start, and wait until it says where it listens: that may take as long as its Kafka is away. Raises
        `ChildFailed` where it ends before, or where the wait `is_over`."""
        self.spawn(clock)
        self.wait_listening(is_over)

    def spawn(self, clock: Clock) -> None:
        """Start, and do not wait."""
        environment = dict(os.environ)
        if not self.with_passphrase:
            environment.pop(PASSPHRASE_VARIABLE, None)
        self.started = clock.monotonic()
        with nullcontext() if self.log is None else self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tallystick.cli", *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                start_new_session=True,  # an interrupt from the terminal reaches us alone, and we end them in order
            )

    def wait_listening(self, is_over: Callable[[], bool]) -> None:
        """Returns when it said where. Raises `ChildFailed` as `start` does."""
        assert self.process is not None
        assert self.process.stdout is not None
        while not select.select([self.process.stdout], [], [], _LOOK_S)[0]:
            if is_over():
                raise ChildFailed(0)
        line = self.process.stdout.readline()
        if not line:
            raise ChildFailed(self.process.wait())
        self.url = json.loads(line)["url"]

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # one that was stopped would not hear it

    def stop(self) -> None:
        if self.process is None:
            return
        self.ask_to_end()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %.0f s and is killed", self.name, STOP_S)
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Keeper:
    """Processes that are started, looked after and ended together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stopping = threading.Event()
        self._groups: list[tuple[Child, ...]] = []  # in the order of their start

    def stop(self) -> None:
        """End; may be called from a signal handler."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self, *children: Child) -> None:
        """Start these beside one another, and return when all say where they listen. Raises `ChildFailed` if one cannot
        be started at all, or after `stop`."""
        self._groups.append(children)
        for child in children:
            child.spawn(self._clock)
        for child in children:
            child.wait_listening(self._stopping.is_set)

    def pause(self, seconds: float = _LOOK_S) -> None:
        """Wait, while something goes on elsewhere. Raises `ChildFailed` after `stop`."""
        if self._stopping.wait(seconds):
            raise ChildFailed(0)

    def watch(self, also: Callable[[], None] = lambda: None) -> None:
        """Start again what dies, until `stop`; `also` is called from time to time."""
        while not self._stopping.wait(_LOOK_S):
            for group in self._groups:
                for child in group:
                    self._look_after(child)
            also()

    def end(self) -> None:
        """End all: what was started last first, and together what was started together."""
        while self._groups:
            group = self._groups.pop()
            for child in group:
                child.ask_to_end()
            for child in group:
                child.stop()

    def _look_after(self, child: Child) -> None:
        now = self._clock.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            if now - child.started > child.steady_s:
                child.pause_s = PAUSE_FIRST_S
            log.warning("%s ended with code %d; it is started again in %.0f s", child.name, code, child.pause_s)
            child.process, child.again_at = None, now + child.pause_s
            child.pause_s = min(2 * child.pause_s, PAUSE_MAX_S)
        elif now >= child.again_at:
            child.spawn(self._clock)  # where it listened before: its port is known by now

    def wait_ready(self, child: Child) -> None:
        """Returns when it serves, or after `stop`. Raises `ChildFailed` where it ends, or `Unavailable` where it does
        not come to serve."""
        deadline = self._clock.monotonic() + READY_S
        while not self._stopping.is_set() and not is_ready(child.url):
            assert child.process is not None
            code = child.process.poll()
            if code is not None:
                raise ChildFailed(code)
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"the {child.name} is not ready after {READY_S:.0f} s", hint=f"look at {child.url}/health/ready"
                )
            self._stopping.wait(_LOOK_S / 2)


class Supervisor(Keeper):
    """Node and authority."""

    def __init__(self, folder: Path, clock: Clock, port: int, authority_port: int, options: Sequence[str]) -> None:
        super().__init__(clock)
        up = ["up", str(folder), "--supervised", "--json", *options]
        self.node = Child("node", [*up, "--node-only", "--port", str(port)], with_passphrase=False)
        self.authority = Child(
            "authority", [*up, "--authority-only", "--authority-port", str(authority_port)], with_passphrase=True
        )

    def run(self, on_ready: Callable[[str, str], None]) -> None:
        """Run both until `stop`. Raises `ChildFailed` if a process cannot be started at all."""
        try:
            self.start(self.node)
            self._fix_port(self.node, "--port")
            self.authority.arguments += ["--node-url", self.node.url]
            self.start(self.authority)
            self._fix_port(self.authority, "--authority-port")
            for child in (self.node, self.authority):
                self.wait_ready(child)
            if not self.is_stopping:
                on_ready(self.node.url, self.authority.url)
            self.watch()
        finally:
            self.end()

    def _fix_port(self, child: Child, option: str) -> None:
        """A process that is started again listens where it listened first, port 0 or not."""
        place = child.arguments.index(option) + 1
        child.arguments[place] = child.url.rpartition(":")[2]


def is_ready(url: str) -> bool:
    """Whether the process that listens there serves."""
    return not trouble_at(url)


def trouble_at(url: str) -> str:
    """Why the process that listens there does not serve, in its own words if it has some; empty if it does."""
    return ask_at(url, "/health/ready")[0]


def ask_at(url: str, path: str) -> tuple[str, str]:
    """What the process that listens there says of itself: why it does not, or nothing; and its words."""
    # Only asked whether it serves: whose certificate it shows is the clients' to check.
    context = ssl._create_unverified_context() if url.startswith("https") else None  # noqa: S323
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=5, context=context) as answer:  # noqa: S310
            return "", answer.read(_ANSWER_MAX).decode(errors="replace")
    except HTTPError as error:
        with error:
            return error.read(_WORDS_MAX).decode(errors="replace").strip() or f"it answers {error.code}", ""
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        return f"it does not answer: {getattr(cause, 'strerror', None) or cause}", ""
