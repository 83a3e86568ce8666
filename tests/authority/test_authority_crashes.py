"""Crashes: whatever was granted is remembered, whatever was taken back or erased stays so."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from authority_world import READ, WRITE, Person, PromptClient, World
from crash_child import person
from stack import python_path

from tallystick.authority.answers import Caller, answer_info
from tallystick.authority.asks import Erase, Rotate, Undo
from tallystick.authority.grant import Grant
from tallystick.authority.store import AuthorityStore
from tallystick.crypto import hpke
from tallystick.errors import Unavailable
from tallystick.ledger.contracts.epochs import EPOCHS, ERASURES
from tallystick.ledger.contracts.permits import PERMITS, Status
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sqlite_vfs import DiskVFS
from tallystick.trust.permit import Operation, Permit

pytestmark = pytest.mark.crashes


class Crash(BaseException):
    """The process is gone."""


class CrashingClient(PromptClient):
    """Dies at one submission: before the ledger has it, or after."""

    def __init__(self, world: World, at: int, *, after: bool) -> None:
        super().__init__(world.ledger, world.clock)
        self._left, self._after = at, after

    def submit(self, transaction: bytes) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Crash
        super().submit(transaction)
        if self._left == 0:
            raise Crash


def _grant(world: World, who: Person, operation: Operation, token: bytes, nonce: bytes) -> Grant:
    sealed = world.ask_permit(Caller(who.id, nonce), operation, token)
    return Grant.decode(hpke.open_(who.holder.sealing_key, sealed, answer_info(world.instance, who.id, nonce)))


@pytest.mark.parametrize("after", [False, True], ids=["before the ledger has it", "after the ledger has it"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_crash_at_each_submission_loses_and_doubles_nothing(world: World, at: int, after: bool) -> None:
    owner, p, s = world.tenant(), world.member("P"), world.member("S")
    token = world.topic(owner, flags=ERASABLE)
    world.grant(owner, token, p, WRITE)
    world.grant(owner, token, s, READ)
    granted: list[Grant] = []

    def subscribe() -> None:
        granted.append(_grant(world, s, Operation.SUBSCRIBE, token, b"1" * 16))

    def advertise() -> None:
        granted.append(_grant(world, p, Operation.ADVERTISE, token, b"2" * 16))

    def erase() -> None:
        ask = Erase(token, p.id, (granted[1].erasure_keys[0].period,))
        world.authority.answer(ask, Caller(owner.id, b"3" * 16))

    def undo() -> None:
        world.authority.answer(Undo(granted[1].permit, granted[1].undo_token), Caller(p.id, b"4" * 16))

    def rotate() -> None:
        world.authority.answer(Rotate(token), Caller(owner.id, b"5" * 16))

    world.authority.core.ledger.client = CrashingClient(world, at, after=after)
    for step in (subscribe, advertise, erase, undo, rotate):
        try:
            step()
        except Crash:
            world.reopen()
            step()  # the caller tries again, with the nonce it had
    subscribed, advertised = (Permit.decode(one.permit).identifier for one in granted)
    issued = {identifier: row for (identifier,), row in world.ledger.scan(PERMITS)}
    assert issued.keys() == {subscribed, advertised}
    assert issued[subscribed].status == Status.ISSUED
    assert issued[advertised].status == Status.UNDONE
    period = granted[1].erasure_keys[0].period
    assert [place for place, _ in world.ledger.scan(ERASURES)] == [(token, p.id, period)]
    ended = [place for place, row in world.ledger.scan(EPOCHS) if row.end_ms]
    assert len(ended) == 1
    assert world.authority.statistics().outbox == 0
    update = world.again(s).client.keys(subscribed, 0)
    assert update is not None
    assert update.private_keys == granted[0].private_keys


def test_kill_9_at_random_points_forgets_nothing_that_was_told(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    told: list[str] = []
    for _ in range(3):
        told += _run_and_kill(tmp_path, lines=chance.randrange(1, 12), kill_after_s=chance.random() * 0.05)
    world = World(tmp_path)
    s, p = person(world, "S"), person(world, "P")
    assert s is not None
    assert p is not None
    store = world.authority.core.store
    status: dict[str, int] = dict(store.rows("SELECT hex(id), status FROM permits"))
    held = _private_halves(world, s)
    undone = {line.split()[1] for line in told if line.startswith("undone")}
    for line in told:
        match line.split():
            case ["permit", identifier]:
                expected = Status.UNDONE if identifier in undone else None
                found = Status(status[identifier.upper()])
                assert found is expected or (expected is None and found in (Status.ISSUED, Status.UNDONE))
            case ["erased", period]:
                row = store.row("SELECT erased, secret FROM erasure_keys WHERE period = ?", (int(period),))
                assert row == (1, None)
            case ["epoch", number, digest]:
                assert held[int(number)] == digest
    assert any(line.startswith("permit") for line in told)
    world.authority.close()
    world.ledger.close()


def _private_halves(world: World, s: Person) -> dict[int, str]:
    token = world.authority.core.keys.master.token(s.certificate.tenant, "brakes")
    grant = s.client.permit(Operation.SUBSCRIBE, token, first_epoch=1)
    return {number: hashlib.sha256(half).hexdigest() for number, half in grant.private_keys}


def _run_and_kill(folder: Path, lines: int, kill_after_s: float) -> list[str]:
    """Let the child tell `lines` facts, kill it a moment later; everything it told."""
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("crash_child.py")), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "PYTHONPATH": python_path(Path(__file__).parents[1])},
    )
    assert child.stdout is not None
    told = []
    for _ in range(lines):
        line = child.stdout.readline()
        assert line, child.stderr.read() if child.stderr else ""
        told.append(line)
    try:
        child.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate()
    return [line.strip() for line in (*told, *rest.splitlines(keepends=True)) if line.endswith("\n")]


@pytest.mark.parametrize("fate", range(12))
def test_a_disk_that_loses_what_was_not_synced_keeps_every_decision(fate: int, seed: int) -> None:
    """`kill -9` leaves the page cache in place; a power failure does not."""
    disk, chance = SeededDisk(seed + fate), random.Random(seed + fate)
    committed = 0
    for life in range(4):
        vfs = DiskVFS(f"authority-{fate}-{life}", disk)
        disk.power_off_after(chance.randint(1, 400))
        committed = _decide_until_the_power_fails(vfs, committed, chance)
        disk.crash()
        vfs.unregister()
    vfs = DiskVFS(f"authority-{fate}-last", disk)
    assert _found(AuthorityStore("authority.db", vfs.vfs_name)) in (committed, committed + 1)
    vfs.unregister()


def _decide_until_the_power_fails(vfs: DiskVFS, committed: int, chance: random.Random) -> int:
    """How many decisions are acknowledged in the end; one more may have reached the disk unacknowledged."""
    store = None
    try:
        store = AuthorityStore("authority.db", vfs.vfs_name)
        found = _found(store)
        assert found in (committed, committed + 1)
        committed = found
        while True:
            with store.transaction():
                store.insert("sent", number=committed, data=b"x" * chance.randrange(10_000))
                store.set_meta("version", committed.to_bytes(8, "big"))
            committed += 1
    except (apsw.Error, Unavailable):
        pass
    if store is not None:
        with contextlib.suppress(apsw.Error):
            store.close()
    return committed


def _found(store: AuthorityStore) -> int:
    numbers = [number for (number,) in store.rows("SELECT number FROM sent ORDER BY number")]
    assert numbers == list(range(len(numbers)))
    return len(numbers)
