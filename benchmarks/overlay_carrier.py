"""`carrier_publish`, `carrier_fetch`: small parcels over an overlay of one virtual node, against the log carrier.

Both are processes on one machine, on one chain, as `tally overlay up` starts them: three relays, of which each publish
needs two signatures, and the node beside them, which stores by itself. The same client seals, spools, sends and has
promised; then it fetches, verifies in full and opens. The relays do the work of the log carrier each, and more: they
order, sign and store what they signed. Where all share two cores, as here, three times the work is three times slower
before anything else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import data
import harness

from tallystick.client.session import Session
from tallystick.errors import Unavailable
from tallystick.identity.folder import Identity

TALLY = [sys.executable, "-m", "tallystick.cli"]
EDGE, OVERLAY = "hub", "city"
TOPICS = ("travelling", "stored")


@dataclass(frozen=True)
class Amount:
    rounds: int = 7
    parcels: int = 64  # a run
    records: int = 64  # a parcel


QUICK = Amount(rounds=1, parcels=8)


def rows(amount: Amount) -> Iterator[harness.Row]:
    with tempfile.TemporaryDirectory() as folder, _trial(Path(folder)) as trial, ExitStack() as closing:
        ours, peer = (Way(trial, topic, closing) for topic in TOPICS)
        for act in ("publish", "fetch"):
            mine, theirs = (partial(getattr(way, act), amount) for way in (ours, peer))
            kind = {"unit": "ms/parcel", "waits": True, "scale": 1e3}
            case = harness.Case(f"carrier_{act}", mine, theirs, amount.parcels, **kind)  # type: ignore[arg-type]
            for result in harness.run([case], amount.rounds):
                yield asdict(result)


_columns = cache(data.columns)


class Way:
    """A publisher and a reader of one topic."""

    def __init__(self, trial: Path, topic: str, closing: ExitStack) -> None:
        self._topic = topic
        car, reader = (
            closing.enter_context(Session(Identity.load(trial / f"{topic}-{right}"))) for right in ("write", "read")
        )
        self._publisher = car.publisher(topic, batch_rows_max=Amount.records, heartbeat_s=3600.0)
        closing.callback(self._publisher.stop)
        self._subscriber = closing.enter_context(reader.subscriber(topic))
        self._subscriber.poll(0)

    def publish(self, amount: Amount) -> None:
        self._publisher.send(_columns(amount.parcels * amount.records))
        if left := self._publisher.flush(120):
            raise Unavailable(f"{self._topic}: {left} parcels were not stored")

    def fetch(self, amount: Amount) -> None:
        """What was stored first; by now it is anchored."""
        self._subscriber.seek(0, 0)
        found, until = 0, time.monotonic() + 120
        while found < amount.parcels * amount.records:
            found += sum(received.batch.rows for received in self._subscriber.poll(0))
            if time.monotonic() > until:
                raise Unavailable(f"{self._topic}: {found} records came")


def _tally(*words: object, stdin: str = "") -> str:
    done = subprocess.run([*TALLY, *map(str, words)], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: tally {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


@contextmanager
def _trial(folder: Path) -> Iterator[Path]:
    """An overlay, a topic that travels over it and one that does not, each with a writer and a reader."""
    trial, owner = folder / "trial", folder / "owner"
    command = [*TALLY, "overlay", "up", str(trial), "--nodes", EDGE, "--overlay", OVERLAY, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("error: tally overlay up did not come up")
        _tally("principal", "enrol", "-", "--home", owner, stdin=_tally("tenant", "create", "acme", trial))
        for topic in TOPICS:
            _tally("topic", "create", topic, "--schema", data.SCHEMA_TEXT, "--home", owner)
            urls = (trial / f"{EDGE}.urls").read_text().split() if topic == TOPICS[0] else []
            if urls:
                _tally("overlay", "entrust", topic, OVERLAY, EDGE, "--home", owner)
            for right in ("write", "read"):
                home = folder / f"{topic}-{right}"
                invite = _tally("principal", "invite", *urls, "--home", owner)
                _tally("principal", "enrol", "-", "--home", home, stdin=invite)
                if urls:
                    _tally("principal", "overlay", OVERLAY, EDGE, "--home", home)
                _tally("right", "grant", topic, home.name, right, "--home", owner)
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
