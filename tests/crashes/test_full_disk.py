"""A disk that is really full, under a node in a process of its own.

The node's folder lies on a small file system that the test fills: first up to the reserve, which the log leaves to the
ledger, then to the last byte. The seeded disk (tests/carriers/log/test_log_disk_full.py) tries every place at which
space can run out; this shows that the real system calls say what it says.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from actors import Hand, stored
from stack import wait_until
from test_kill import Instance, make_topic, until_answered

from tallystick import wire
from tallystick.authority.operator import OperatorClient
from tallystick.carriers.log.limits import LogLimits
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.errors import Unavailable
from tallystick.ledger import entries
from tallystick.ledger.fsck import fsck
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.right import Right

RESERVE = LogLimits().reserve_bytes
SIZE = RESERVE + (24 << 20)


@contextmanager
def small_file_system(folder: Path) -> Iterator[None]:
    """A tmpfs of `SIZE` bytes at `folder`; skips where nobody may mount one."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that leaves so many bytes free, or none at all; the node may be writing meanwhile."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 12):
            with suppress(OSError):
                while shutil.disk_usage(folder).free - piece >= leave:
                    file.write(bytes(piece))
    return ballast


class Rows:
    """A publisher by hand, and the rows of which it has a promise."""

    def __init__(self, session: Session) -> None:
        self._hand = Hand(session, "brakes")
        self.promised: list[int] = []
        self._next = 0

    def publish(self) -> None:
        """One parcel; what is refused is sent again the next time, as the spool would."""
        lane = self._hand.fork()
        parcel = self._hand.seal(self._next)
        try:
            stored(self._hand.send(parcel)[0])
        except Unavailable:
            self._hand.lane = lane  # nothing lies at this sequence: it is sealed anew
            raise
        self.promised.append(self._next)
        self._next += 1


def test_a_full_disk_is_told_survived_and_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "node"
    with small_file_system(home):
        instance = Instance(tmp_path)
        try:
            run(instance, home)
        finally:
            instance.kill()
        fsck(str(home / "ledger.sqlite"), instance.trust)


def run(instance: Instance, home: Path) -> None:
    with instance.operator_http() as http:
        operator = OperatorClient(http, SystemEntropy())
        owner = instance.enrol("owner", until_answered(lambda: operator.create_tenant("acme")))
        car, reader = (impatient(instance.enrol(name, operator.invite_to("acme"))) for name in ("car", "reader"))
    token = make_topic(owner, car, reader, "vin string, seq int64 not null, speed float32")
    rows = Rows(car)
    with reader.subscriber("brakes") as subscriber:
        rows.publish()
        ballast = fill(home, RESERVE - (1 << 20))
        with pytest.raises(Unavailable, match=r"disk full: .* kept in reserve"):
            rows.publish()
        # The reserve is the ledger's: rights are changed, what is stored is anchored and read, fetches are noted.
        owner.author.write(entries.grant(token, owner.identity.principal, int(Right.DESCRIBE)))
        found = read(subscriber, rows.promised, [])
        wait_until(lambda: any(entry[4] == Right.READ for entry in operations(owner, token)))

        ballast.unlink()
        rows.publish()
        ballast = fill(home, 0)
        with pytest.raises(Unavailable, match="disk full"):
            rows.publish()

        ballast.unlink()
        wait_until(lambda: published(rows), 60)
        owner.author.write(entries.grant(token, owner.identity.principal, int(Right.READ)))
        instance.restart_node()  # and what it wrote is what the next process finds
        wait_until(lambda: published(rows), 60)
        read(subscriber, rows.promised, found)
    for session in (owner, car, reader):
        session.close()


def impatient(session: Session) -> Session:
    """A full disk says to come back in five seconds; the test knows when."""
    conversation = session._node_http._conversation
    conversation._limits = replace(conversation._limits, attempts_max=1)
    return session


def operations(session: Session, token: bytes) -> list[list[object]]:
    return [wire.decode(entry, "entry") for _, _, entry in session.node.history(token)]


def published(rows: Rows) -> bool:
    try:
        rows.publish()
    except Unavailable:
        return False
    return True


def read(subscriber: Subscriber, promised: list[int], found: list[int]) -> list[int]:
    """Everything promised is read, once and in order; a finding would be raised."""

    def all_read() -> bool:
        with suppress(Unavailable):
            found.extend(row["seq"] for one in subscriber.poll(200) for row in one.to_pylist())
        return len(found) >= len(promised)

    wait_until(all_read, 60)
    assert found == promised
    return found
