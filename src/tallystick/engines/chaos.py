"""Faults for an overlay that runs in a folder: relays killed, stalled and restarted, by a schedule that a seed draws.

At most f relays of a virtual node are out of order at a time: that is what an overlay must bear, and more proves
nothing. The schedule keeps to it on paper. When its time has come, a fault is left out where another relay of the
virtual node is not back yet.

Threat: a process that has nothing to do with the overlay is hit, since a number in a file is out of date or was
written by somebody else. So only that is touched whose parent is the process that holds the folder's lock, and whose
command names the relay's own folder; and a signal goes to what was looked at (a pidfd), never to a number.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from random import Random

from tallystick.engines.overlay import TrialNode, TrialOverlay, TrialRelay, trouble_of
from tallystick.errors import Misuse, Unavailable
from tallystick.node.instance import Folders
from tallystick.runtime.sources import Clock

KINDS = ("kill", "stall", "restart")
GAP_S = (0.5, 6.0)  # between two faults of one virtual node, or of each of its f turns
STALL_S = (1.0, 12.0)  # some longer than a lease
BACK_S = 10.0  # until a relay that was ended is expected back
READY_S = 90.0  # in the end, for all
_LOOK_S = 0.5


@dataclass(frozen=True, order=True)
class Fault:
    at_s: float
    relay: str
    kind: str
    lasts_s: float


def draw_faults(seed: int, seconds: float, kinds: Sequence[str], nodes: Mapping[str, Sequence[str]]) -> list[Fault]:
    """A schedule over the relays of each virtual node, in order of time; everything is over after `seconds`.

    Of n relays, (n - 1) // 2 have a fault at a time at most.
    """
    found: list[Fault] = []
    for name, relays in sorted(nodes.items()):
        draw = Random(f"{seed} {name}")  # noqa: S311 (a schedule, repeatable by its seed)
        busy = dict.fromkeys(relays, 0.0)  # until when
        turns = [draw.uniform(*GAP_S) for _ in range((len(relays) - 1) // 2)]
        heapify(turns)
        while turns:
            now = heappop(turns)
            kind = draw.choice(sorted(kinds))
            lasts_s = draw.uniform(*STALL_S) if kind == "stall" else BACK_S
            relay = draw.choice([one for one in relays if busy[one] <= now])
            if now + lasts_s > seconds:
                continue
            found.append(Fault(round(now, 3), relay, kind, round(lasts_s, 3)))
            busy[relay] = now + lasts_s
            heappush(turns, now + lasts_s + draw.uniform(*GAP_S))
    return sorted(found)


Say = Callable[[float, str, str, str], None]  # seconds since the start, kind, relay, words


class Chaos:
    """Carries a schedule out, until `is_over`; `say` is told what happens."""

    def __init__(self, trial: TrialOverlay, clock: Clock, say: Say, is_over: Callable[[], bool]) -> None:
        self._trial, self._clock, self._say, self._is_over = trial, clock, say, is_over
        self._relays = {relay.name: (node, relay) for node in trial.nodes for relay in node.relays}
        self._stalled: set[str] = set()
        self._ended: dict[str, int] = {}  # processes that were told to end: they may still answer for a moment
        self._started = clock.monotonic()

    def run(self, faults: Sequence[Fault]) -> int:
        """Returns how many faults there were; in the end all relays are as they were. Raises `Unavailable` where one
        does not come back, or nobody starts it again."""
        find_keeper(self._trial)
        self._started = self._clock.monotonic()
        events = [(fault.at_s, fault.relay, fault.kind, fault.lasts_s) for fault in faults]
        heapify(events)
        done = 0
        try:
            while events and not self._is_over():
                at_s, relay, kind, lasts_s = heappop(events)
                while self._now() < at_s and not self._is_over():
                    self._clock.pause(min(_LOOK_S, at_s - self._now()))
                if self._is_over():
                    break
                if kind == "go on":
                    self._go_on(relay)
                elif self._strike(relay, kind):
                    done += 1
                    if kind == "stall":
                        heappush(events, (at_s + lasts_s, relay, "go on", 0.0))
        finally:
            for relay in sorted(self._stalled):
                self._go_on(relay)
        self._wait_for_all()
        return done

    def _strike(self, name: str, kind: str) -> bool:
        node, relay = self._relays[name]
        away = [one.name for one in node.relays if one is not relay and not self._is_well(one)]
        if len(away) >= _faults(node):
            self._say(self._now(), "none", name, f"{', '.join(away)} not back yet: {kind} is left out")
            return False
        number = {"kill": signal.SIGKILL, "stall": signal.SIGSTOP, "restart": signal.SIGTERM}[kind]
        with held(self._trial, relay) as process:
            if process is None:
                self._say(self._now(), "none", name, f"it does not run: {kind} is left out")
                return False
            pid, handle = process
            signal.pidfd_send_signal(handle, number)
        if kind == "stall":
            self._stalled.add(name)
        else:
            self._ended[name] = pid
        self._say(self._now(), kind, name, f"process {pid}")
        return True

    def _go_on(self, name: str) -> None:
        _, relay = self._relays[name]
        self._stalled.discard(name)
        with held(self._trial, relay) as process:
            if process is not None:
                signal.pidfd_send_signal(process[1], signal.SIGCONT)
                self._say(self._now(), "go on", name, f"process {process[0]}")

    def _is_well(self, relay: TrialRelay) -> bool:
        if relay.name in self._stalled or _holder(Folders(self._trial.place(relay)).node) == self._ended.get(
            relay.name
        ):
            return False
        return not trouble_of(relay.url)

    def _wait_for_all(self) -> None:
        deadline = self._clock.monotonic() + READY_S
        for _, relay in self._relays.values():
            while not self._is_well(relay):
                find_keeper(self._trial)
                if self._clock.monotonic() > deadline:
                    raise Unavailable(f"{relay.name} did not come back", hint=f"read {self._trial.place(relay)}")
                self._clock.pause(_LOOK_S)

    def _now(self) -> float:
        return self._clock.monotonic() - self._started


def _faults(node: TrialNode) -> int:
    return (len(node.relays) - 1) // 2


def find_keeper(trial: TrialOverlay) -> int:
    """The process that runs the overlay. Raises `Unavailable` where none does."""
    pid = _holder(trial.folder)
    if pid is None:
        raise Unavailable(f"{trial.folder}: its overlay does not run", hint=f"tally overlay up {trial.folder}")
    return pid


@contextmanager
def held(trial: TrialOverlay, relay: TrialRelay) -> Iterator[tuple[int, int] | None]:
    """The number of a relay's process and a handle of it, or None where it does not run. Raises `Misuse` where what is
    said to be the relay is some other process."""
    place = trial.place(relay)
    pid = _holder(Folders(place).node)
    if pid is None:
        yield None
        return
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        _check_ours(pid, str(place), find_keeper(trial))  # after it was opened: it cannot become another process now
        yield pid, handle
    finally:
        os.close(handle)


def _check_ours(pid: int, mark: str, parent: int) -> None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        words, above = [], 0
    if mark.encode() not in words or above != parent:
        hint = "only relays that tally overlay up runs are touched"
        raise Misuse(f"process {pid} is not the relay in {mark}", hint=hint)


def _holder(folder: Path) -> int | None:
    """The process that has claimed a folder (`node/instance.py`), if one has."""
    try:
        with (folder / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(lock.read())
    except (OSError, ValueError):
        pass
    return None
