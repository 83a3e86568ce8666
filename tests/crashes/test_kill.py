"""`kill -9` of node, authority and publisher under load, again and again, at moments that a seed chooses.

This shows that nothing depends on an orderly end: locks, half-written files, caches, sockets. It shows nothing about
syncing, since a killed process leaves its writes in the page cache; for that there is the seeded disk (tests/sim,
tests/carriers/log/test_log_crash.py).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stack import CHEAP, PASSPHRASE, READ, WRITE, python_path, wait_beyond, wait_until

from tallystick.authority.answers import key_hash
from tallystick.authority.authority import STORE_FILE
from tallystick.authority.operator import OperatorClient, operator_identity
from tallystick.authority.store import AuthorityStore
from tallystick.client.session import Session
from tallystick.errors import Refused, Unavailable
from tallystick.identity.enrol import enrol
from tallystick.ledger import entries
from tallystick.ledger.contracts.epochs import EPOCHS
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.fsck import fsck
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.instance import Folders, create_instance, open_node_keys
from tallystick.node.settings import NodeSettings
from tallystick.record.schema import Schema
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.certificate import Certificate
from tallystick.trust.trustfile import TrustFile

HERE = Path(__file__).parent


class Child:
    """A process that is started, killed and started again."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._command = [sys.executable, str(HERE / script), *arguments]
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> str:
        """Start it; its first line, which says that it serves."""
        more = {"PYTHONPATH": python_path(HERE.parent), "TALLY_PASSPHRASE": PASSPHRASE.decode()}
        self._process = subprocess.Popen(
            [*self._command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **more},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"{self._command} did not start"
        return line

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Instance:
    """Node and authority in processes of their own, on ports that stay the same."""

    def __init__(self, folder: Path) -> None:
        self.folders = Folders(folder)
        now_ms = int(SystemClock().now() * 1000)
        create_instance(folder, "test", PASSPHRASE, NodeSettings(), now_ms, SystemEntropy(), cost=CHEAP)
        self.node = Child("node_child.py", "node", str(folder))
        self.authority = Child("node_child.py", "authority", str(folder))
        self._node_port = self.node.start("0", "")
        self._authority_port = self.authority.start("0", self.node_url)

    @property
    def node_url(self) -> str:
        return f"http://127.0.0.1:{self._node_port}"

    def restart_node(self) -> None:
        self.node.kill()
        self.node.start(self._node_port, "")

    def restart_authority(self) -> None:
        self.authority.kill()
        self.authority.start(self._authority_port, self.node_url)

    @property
    def authority_url(self) -> str:
        return f"http://127.0.0.1:{self._authority_port}"

    @property
    def trust(self) -> TrustFile:
        return TrustFile.parse(self.folders.trust.read_text())

    def enrol(self, name: str, invite: str) -> Session:
        home, urls = self.folders.root / "homes" / name, (self.node_url,)
        clock, entropy = SystemClock(), SystemEntropy()
        identity = enrol(
            home,
            name,
            invite,
            trust=self.trust,
            authority_url=self.authority_url,
            node_urls=urls,
            clock=clock,
            entropy=entropy,
        )
        return Session(identity)

    def operator_http(self) -> HttpClient:
        certificate = Certificate.decode((self.folders.node / "authority.certificate").read_bytes())
        address = Address(self.authority_url, certificate.subject, certificate.verify_key)
        signer = operator_identity(self.folders.authority, PASSPHRASE)
        return HttpClient([address], signer, SystemClock(), SystemEntropy())

    def kill(self) -> None:
        self.authority.kill()
        self.node.kill()


def acknowledged(path: Path) -> set[int]:
    """The rows of every whole line: each was written and synced after the publisher was told."""
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return {int(number) for line in whole for number in line.split()}


def test_nothing_acknowledged_is_lost_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)
    instance = Instance(tmp_path)
    publisher, lives, told = Child("publisher_child.py"), 0, tmp_path / "told"
    try:
        with instance.operator_http() as http:
            operator = OperatorClient(http, SystemEntropy())
            owner = instance.enrol("owner", until_answered(lambda: operator.create_tenant("acme")))
            car, reader = (instance.enrol(name, operator.invite_to("acme")) for name in ("car", "reader"))
        token = make_topic(owner, car, reader)

        def start_publisher() -> None:
            nonlocal lives
            lives += 1
            publisher.kill()
            publisher.start(str(car.identity.home), str(told), str(lives * 1_000_000))

        start_publisher()
        victims = [instance.restart_node, instance.restart_authority, start_publisher] * 3
        chooser.shuffle(victims)
        for victim in victims:
            before = len(acknowledged(told))
            wait_beyond(lambda: len(acknowledged(told)), before, 60)  # the world goes on after each kill
            time.sleep(chooser.uniform(0.0, 0.3))  # the moment of the kill: the seed's
            victim()
            with suppress(Unavailable):
                owner.authority.rotate(token)
        publisher.kill()
        check_rows(reader, acknowledged(told))
        for session in (owner, car, reader):
            session.close()
    finally:
        publisher.kill()
        instance.kill()
    fsck(str(instance.folders.node / "ledger.sqlite"), instance.trust)
    check_authority(instance)


def until_answered(ask: Callable[[], str]) -> str:
    """The authority serves once it has followed the ledger."""
    answers: list[str] = []

    def asked() -> bool:
        with suppress(Unavailable, Refused):
            answers.append(ask())
        return bool(answers)

    wait_until(asked, 60)
    return answers[0]


def make_topic(owner: Session, car: Session, reader: Session, schema: str = "row int64 not null") -> bytes:
    token = owner.create_topic("brakes", Schema.parse(schema).encode(), 2)
    rights = [
        entries.grant(token, session.identity.principal, int(operations))
        for session, operations in ((car, WRITE), (reader, READ))
    ]
    owner.author.write(*rights)
    return token


def check_rows(reader: Session, expected: set[int]) -> None:
    """Everything acknowledged is read once, in the order of its lane; any finding would have been raised."""
    assert expected
    subscriber = reader.subscriber("brakes")
    found: Counter[int] = Counter()
    lanes: dict[bytes, int] = {}

    def all_read() -> bool:
        for received in subscriber.poll(200):
            assert received.sequence > lanes.get(received.lane, -1)
            lanes[received.lane] = received.sequence
            found.update(row["row"] for row in received.to_pylist())
        return expected <= set(found)

    wait_until(all_read, 60)
    assert [row for row, times in found.items() if times > 1] == []


def check_authority(instance: Instance) -> None:
    """What the ledger says was issued, the authority knows, and issued once."""
    trust, ledger_key = instance.trust, open_node_keys(instance.folders.node, instance.trust).ledger_key
    path = str(instance.folders.node / "ledger.sqlite")
    ledger = SqliteLedger(path, trust, ledger_key, int(SystemClock().now() * 1000))
    store = AuthorityStore(str(instance.folders.authority / STORE_FILE))
    try:
        permits = {identifier for (identifier,), _ in ledger.scan(PERMITS, most=10_000)}
        assert permits
        assert permits <= {row[0] for row in store.rows("SELECT id FROM permits")}
        rows = store.rows("SELECT token, epoch, public FROM epochs")
        known = {(token, epoch): public for token, epoch, public in rows}
        announced = ledger.scan(EPOCHS, most=10_000)
        assert announced
        for place, row in announced:
            assert key_hash(known[place]) == row.key_hash
        publics = [public for public in known.values() if public is not None]
        assert len(set(publics)) == len(publics)
    finally:
        store.close()
        ledger.close()
