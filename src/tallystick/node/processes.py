"""Processes that outlive whoever started them, as engines for trials do. Each is known by the file `pid` in its folder.

A number alone says little, since one day the system gives it to another process: it counts only while the command line
has the word `mark`, which no other process has.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from tallystick.errors import Misuse
from tallystick.runtime.sources import Clock

STOP_S = 20.0
LOG = "output.log"  # of daemons
_PID = "pid"
_PORTS = range(20_000, 32_000)
_PORT_MAX = 65_535
_turn = count(64 * os.getpid())  # processes begin at different places


def engines_folder() -> Path:
    """Where `make engines` puts what it fetches and builds."""
    return Path(os.environ.get("TALLY_ENGINES") or "~/.cache/tallystick/engines").expanduser()


def free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago, all different, and none that this process was given lately.

    They lie below those that the system hands out itself, or a connection somewhere could take one before its server
    does.
    """
    found: list[int] = []
    while len(found) < number:
        port = _PORTS[next(_turn) % len(_PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def ports_from(first: int, number: int) -> list[int]:
    """So many ports in a row from `first` on, or free ones anywhere if that is 0. Raises `Misuse` where one is taken or
    there is none."""
    if not first:
        return free_ports(number)
    hint = f"{number} ports in a row must be free: choose another --port, or leave it out"
    for port in range(first, first + number):
        if port > _PORT_MAX:
            raise Misuse(f"port {port}: there is no such port", hint=hint)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            raise Misuse(f"port {port}: {(error.strerror or str(error)).lower()}", hint=hint) from error
    return list(range(first, first + number))


def spawn(folder: Path, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None) -> int:
    """Start a process of its own session, and note its number; what it says is added to the file `log`."""
    with (folder / log).open("ab") as output, open(os.devnull) as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0)]
        actions += [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        pid = os.posix_spawnp(command[0], list(command), environment or os.environ, file_actions=actions, setsid=True)
    (folder / _PID).write_text(f"{pid}\n")
    return pid


def running(folder: Path, mark: str) -> int | None:
    """The process of `folder`, if it still runs."""
    try:
        pid = int((folder / _PID).read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    is_ours = mark.encode() in words or words == [b""]  # for a moment after its start a process has no command line
    return pid if is_ours and not has_ended(pid) else None


def has_ended(pid: int) -> bool:
    """Judge by its state alone, and let go of a child of ours that has ended."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return False
    except OSError:
        return True
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True


def end(folder: Path, mark: str, clock: Clock, how: signal.Signals = signal.SIGTERM) -> bool:
    """End the process of `folder`, with SIGKILL where it does not go. Returns whether there was one."""
    pid = running(folder, mark)
    if pid is None:
        return False
    os.kill(pid, how)
    deadline = clock.monotonic() + STOP_S
    while running(folder, mark) is not None:
        clock.pause(0.05)
        if clock.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return True


class Daemon:
    """A process of an engine, known by its folder and by the word `mark` of its command."""

    def __init__(self, folder: Path, mark: str, clock: Clock) -> None:
        self.folder, self._mark, self._clock = folder, mark, clock

    @property
    def pid(self) -> int | None:
        """The process that runs it, if one does."""
        return running(self.folder, self._mark)

    def kill(self) -> None:
        end(self.folder, self._mark, self._clock, signal.SIGKILL)

    def stop(self) -> bool:
        """End it in order. Returns whether it ran."""
        return end(self.folder, self._mark, self._clock)

    def output(self) -> str:
        """The last lines of what it wrote to its log."""
        return "\n".join((self.folder / LOG).read_text(errors="replace").splitlines()[-20:])


def read_ports(file: Path, what: str, hint: str) -> list[Any]:
    """Returns the ports that an engine's own file names. Raises `Misuse` where no `what` is in its folder."""
    try:
        ports: list[Any] = json.loads(file.read_text())["ports"]
    except (OSError, ValueError, KeyError):
        raise Misuse(f"{file.parent}: no {what} is here", hint=hint) from None
    return ports
