"""The embedded engine: blocks by count and time, crashes, edits of the file, witnesses' lag."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from ledger_world import NOW_MS, World, operation_batch, seed, token

from tallystick import wire
from tallystick.crypto.signatures import RootVerifyKey, SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import read_head
from tallystick.ledger.contracts import access
from tallystick.ledger.engine import Query
from tallystick.ledger.fsck import fsck
from tallystick.ledger.sqlite import LedgerSettings, SqliteLedger
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sqlite_vfs import DiskVFS
from tallystick.trust.notes import Algorithm, Note, NoteSigner
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
WORLD = World()
FOUNDING = WORLD.founding()


def ledger_at(path: Path, world: World = WORLD, settings: LedgerSettings = LedgerSettings()) -> SqliteLedger:
    return SqliteLedger(str(path), world.trust, world.ledger_key, NOW_MS, settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    ledger = ledger_at(path)
    for transaction in FOUNDING:
        ledger.submit(transaction.data, NOW_MS)
    ledger.flush(NOW_MS)
    yield ledger
    ledger.close()


def batch(count: int) -> bytes:
    return WORLD.node.sign(*operation_batch(WORLD, count, [HEART, AIR], [WORLD.monitor.id])).data


# --- blocks ---


def test_a_block_is_made_when_enough_entries_wait_or_the_window_has_passed(ledger: SqliteLedger) -> None:
    height = ledger.height
    ledger.submit(batch(511), NOW_MS)
    assert ledger.tick(NOW_MS + 49) is None
    ledger.submit(batch(1), NOW_MS + 49)
    made = ledger.tick(NOW_MS + 49)
    assert made is not None
    assert (made.height, made.count) == (height + 1, 2)
    ledger.submit(batch(1), NOW_MS + 60)
    assert ledger.tick(NOW_MS + 109) is None
    assert ledger.tick(NOW_MS + 110) is not None


def test_empty_blocks_keep_the_time_and_time_never_falls(ledger: SqliteLedger) -> None:
    assert ledger.tick(NOW_MS + 4_999) is None
    empty = ledger.tick(NOW_MS + 5_000)
    assert empty is not None
    assert (empty.count, empty.time_ms) == (0, NOW_MS + 5_000)
    ledger.submit(batch(1), NOW_MS)
    assert ledger.flush(NOW_MS).time_ms == NOW_MS + 5_000, "the clock went back, block time does not"


def test_a_block_that_would_grow_too_large_is_made_first(path: Path) -> None:
    ledger = ledger_at(path, settings=LedgerSettings(block_bytes_max=4_096))
    for transaction in FOUNDING:
        ledger.submit(transaction.data, NOW_MS)
    assert ledger.height > 0
    ledger.close()


def test_waiters_are_woken_by_the_block(ledger: SqliteLedger) -> None:
    placed = ledger.submit(batch(3), NOW_MS)
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(ledger.wait(placed, timeout_s=30).height))
    waiter.start()
    ledger.flush(NOW_MS)
    waiter.join(30)
    assert found == [placed.height]


def test_who_waits_goes_on_when_everybody_has_heard_of_the_block(ledger: SqliteLedger) -> None:
    """Or whoever has just got a right would be judged by a cache that does not know of it."""
    placed = ledger.submit(batch(3), NOW_MS)

    def ask_while_others_hear(*_: object) -> None:
        with pytest.raises(Unavailable, match="is not made yet"):
            ledger.wait(placed, timeout_s=0.05)

    ledger.on_block(ask_while_others_hear)
    ledger.flush(NOW_MS)
    assert ledger.wait(placed, timeout_s=30).height == placed.height


def test_a_refusal_names_its_entry_and_keeps_nothing_of_the_others(ledger: SqliteLedger) -> None:
    good = WORLD.doctor.sign(entries.grant(HEART, WORLD.sensor.id, Right.READ))
    bad = WORLD.doctor.sign(*good.entries, entries.lift(WORLD.sensor.id))
    for _ in range(2):
        with pytest.raises(Refused, match=r"^entry 1: ") as refused:
            ledger.submit(bad.data, NOW_MS)
        assert refused.value.reason == "not-operator"
    assert ledger.submit(good.data, NOW_MS) == ledger.submit(good.data, NOW_MS)


def test_statistics_tell(ledger: SqliteLedger) -> None:
    ledger.submit(batch(5), NOW_MS)
    with pytest.raises(Refused):
        ledger.submit(WORLD.doctor.sign(entries.lift(WORLD.doctor.id)).data, NOW_MS)
    told = ledger.statistics()
    assert (told.height, told.transactions, told.waiting_entries, told.refusals) == (
        1,
        3,
        5,
        {"other": 0, "not-operator": 1},
    )


# --- opening ---


def test_it_goes_on_after_it_was_closed(path: Path, ledger: SqliteLedger) -> None:
    ledger.submit(batch(9), NOW_MS)
    ledger.flush(NOW_MS)
    before = ledger.checkpoint()
    ledger.submit(batch(2), NOW_MS)
    ledger.close()
    again = ledger_at(path)
    assert again.checkpoint() == before, "what was not in a block is gone, and nobody was told otherwise"
    again.submit(batch(1), NOW_MS)
    again.flush(NOW_MS)
    again.close()
    assert fsck(str(path), WORLD.trust).transactions == 5


def test_a_file_of_a_newer_format_is_refused_by_name(path: Path, ledger: SqliteLedger) -> None:
    ledger.close()
    edit(path, "UPDATE meta SET value = 2 WHERE name = 'format'")
    with pytest.raises(Malformed, match="format 1 expected, found 2"):
        ledger_at(path)


def test_the_wrong_key_and_the_wrong_instance_are_misuse(path: Path, ledger: SqliteLedger) -> None:
    ledger.close()
    with pytest.raises(Misuse, match="not one of the trust file's"):
        SqliteLedger(str(path), WORLD.trust, SigningKey.from_seed(seed("other")), NOW_MS)
    other = World(ledger_key=SigningKey.from_seed(seed("other")))
    with pytest.raises(Misuse, match="another instance"):
        ledger_at(path, other)


def test_a_second_writer_is_stopped(path: Path, ledger: SqliteLedger) -> None:
    second = ledger_at(path)
    ledger.submit(batch(1), NOW_MS)
    ledger.flush(NOW_MS)
    placed = second.submit(batch(1), NOW_MS)
    with pytest.raises(Unavailable):
        second.flush(NOW_MS)
    with pytest.raises(Unavailable, match="was not stored"):
        second.wait(placed, timeout_s=0)
    second.close()


# --- edits of the file ---


def edit(path: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    db = apsw.Connection(str(path))
    db.execute(statement, values)
    db.close()


def test_an_administrator_who_edits_a_right_is_found(path: Path, ledger: SqliteLedger) -> None:
    """By the next opening, by fsck, and while it runs by every proof of that right."""
    key = b"right/" + HEART + WORLD.sensor.id
    forged = wire.encode([NOW_MS, [[1, 15, "*"]]])
    edit(path, "INSERT INTO state VALUES (?, ?)", (key, forged))
    rights = ledger.query(lambda s: access.allowed(s, WORLD.sensor.id, HEART, Right.READ, "x"))
    assert rights, "the attack: the file is believed by whoever reads it without proof"
    with pytest.raises(Forged):
        ledger.state(key).verify(WORLD.trust)
    ledger.close()
    with pytest.raises(Forged, match="state"):
        ledger_at(path)
    with pytest.raises(Forged, match="state: "):
        fsck(str(path), WORLD.trust)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM transactions WHERE number = 2",
        "DELETE FROM blocks WHERE height = 1",
        "DELETE FROM mentions WHERE first = 3",
        "UPDATE mentions SET numbers = CAST(numbers || x'0000000000000001' AS BLOB) WHERE first = 3",
        "UPDATE mentions SET numbers = x'00' WHERE first = 3",
        "DELETE FROM state WHERE key = (SELECT min(key) FROM state)",
        "INSERT INTO mentions VALUES (x'00', 1, x'0000000000000001')",
        "INSERT INTO transactions SELECT 9, x'00', 9, 0, 0, kinds, principals, result, data FROM transactions LIMIT 1",
        "UPDATE transactions SET refused = 1 WHERE number = 3",
        "UPDATE transactions SET height = 1 WHERE number = 3",
        "UPDATE transactions SET first = 1 WHERE number = 3",
        "UPDATE transactions SET kinds = x'01' WHERE number = 3",
        "UPDATE transactions SET principals = x'' WHERE number = 3",
        "UPDATE meta SET value = 9 WHERE name = 'indexed'",
        "UPDATE meta SET value = replace(value, 'a', 'b') WHERE name = 'genesis'",
        "UPDATE blocks SET note = (SELECT note FROM blocks WHERE height = 0) WHERE height = 1",
        "UPDATE blocks SET data = (SELECT data FROM blocks WHERE height = 0) WHERE height = 1",
    ],
)
def test_every_edit_is_found_by_fsck(path: Path, ledger: SqliteLedger, statement: str) -> None:
    ledger.submit(batch(2), NOW_MS)
    ledger.flush(NOW_MS)
    ledger.audit(Query(principal=WORLD.node.id))
    ledger.submit(batch(2), NOW_MS)
    ledger.flush(NOW_MS)
    ledger.close()
    fsck(str(path), WORLD.trust)
    edit(path, statement)
    with pytest.raises(Forged):
        fsck(str(path), WORLD.trust)


def remember_good(monkeypatch: pytest.MonkeyPatch, kind: type[VerifyKey] | type[RootVerifyKey]) -> None:
    """Verify the same signature under the same key once: a thousand runs of fsck differ in a byte each."""
    verify = kind.verify
    good: set[tuple[bytes, str, bytes, bytes]] = set()

    def remembering(self: Any, context: str, signature: bytes, message: bytes) -> None:
        what = (self.raw, context, bytes(signature), bytes(message))
        if what not in good:
            verify(self, context, signature, message)
            good.add(what)

    monkeypatch.setattr(kind, "verify", remembering)


def test_every_byte_of_a_block_and_of_a_transaction_counts(
    path: Path, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_good(monkeypatch, VerifyKey)
    remember_good(monkeypatch, RootVerifyKey)
    ledger.submit(batch(2), NOW_MS)
    ledger.flush(NOW_MS)
    ledger.close()
    db = apsw.Connection(str(path))
    db.pragma("synchronous", "OFF")
    cells = [("blocks", "height", 2, column) for column in ("data", "note")] + [
        ("transactions", "number", 3, column) for column in ("leaf", "kinds", "principals", "result", "data")
    ]
    flipped = 0
    for table, name, row, column in cells:
        read = f"SELECT {column} FROM {table} WHERE {name} = {row}"
        write = f"UPDATE {table} SET {column} = ? WHERE {name} = {row}"
        original = db.execute(read).get
        for position in range(len(original)):
            changed = bytearray(original)
            changed[position] ^= 1
            db.execute(write, (bytes(changed),))
            with pytest.raises(Forged):
                fsck(str(path), WORLD.trust)
            flipped += 1
        db.execute(write, (original,))
    db.close()
    assert flipped > 800
    fsck(str(path), WORLD.trust)


def test_fsck_makes_nothing_and_knows_other_files(tmp_path: Path, path: Path, ledger: SqliteLedger) -> None:
    with pytest.raises(Misuse, match="cannot be opened"):
        fsck(str(tmp_path / "no such.db"), WORLD.trust)
    assert not (tmp_path / "no such.db").exists()
    (tmp_path / "junk.db").write_bytes(b"junk" * 2000)
    with pytest.raises(Forged):
        fsck(str(tmp_path / "junk.db"), WORLD.trust)
    other = World(ledger_key=SigningKey.from_seed(seed("other")))
    with pytest.raises(Forged, match="genesis"):
        fsck(str(path), other.trust)
    assert fsck(str(path), WORLD.trust).state_keys > 10


def test_fsck_and_opening_go_by_the_newest_trust_file_too(path: Path, ledger: SqliteLedger) -> None:
    second = replace(WORLD.trust, number=2, first=WORLD.instance, name="renamed", signatures=()).sign(WORLD.root)
    ledger.submit(WORLD.doctor.sign(entries.trust(second.to_json())).data, NOW_MS)
    ledger.flush(NOW_MS)
    ledger.close()
    assert fsck(str(path), second).transactions == 4
    again = SqliteLedger(str(path), second, WORLD.ledger_key, NOW_MS)
    again.close()
    with pytest.raises(Misuse, match="begins with the first trust file"):
        SqliteLedger(str(path.with_name("new.db")), second, WORLD.ledger_key, NOW_MS)


# --- crashes ---


def on_disk(vfs: DiskVFS) -> SqliteLedger:
    return SqliteLedger("ledger.db", WORLD.trust, WORLD.ledger_key, NOW_MS, vfs=vfs.vfs_name)


def acknowledged_until_the_power_fails(ledger: SqliteLedger) -> int:
    """Transactions whose block was acknowledged."""
    acknowledged = 0
    with suppress(Unavailable):
        for group in [[t.data for t in FOUNDING], *([batch(3)] for _ in range(40))]:
            for data in group:
                ledger.submit(data, NOW_MS)
            ledger.flush(NOW_MS)
            acknowledged += len(group)
    with suppress(Unavailable):
        ledger.close()
    return acknowledged


def test_nothing_acknowledged_is_lost_in_a_crash() -> None:
    interrupted = 0
    for number in range(20):
        disk = SeededDisk(number)
        vfs = DiskVFS(f"ledger-crash-{number}", disk)
        ledger = on_disk(vfs)
        disk.power_off_after(10 + 47 * number)
        acknowledged = acknowledged_until_the_power_fails(ledger)
        disk.crash()
        ledger = on_disk(vfs)
        stored = ledger.statistics().transactions
        ledger.close()
        assert acknowledged <= stored <= acknowledged + 3, f"seed {number}"
        assert fsck("ledger.db", WORLD.trust, vfs=vfs.vfs_name).transactions == stored
        vfs.unregister()
        interrupted += acknowledged < 43
    assert interrupted >= 10, "most rounds must lose the power on the way"


def test_a_full_disk_refuses_and_the_ledger_goes_on_when_there_is_room() -> None:
    disk = SeededDisk(1)
    vfs = DiskVFS("ledger-full", disk)
    ledger = on_disk(vfs)
    for transaction in FOUNDING:
        ledger.submit(transaction.data, NOW_MS)
    ledger.flush(NOW_MS)
    before = ledger.checkpoint()
    disk.fill(1024)
    data = batch(100)
    placed = ledger.submit(data, NOW_MS)
    with pytest.raises(Unavailable):
        ledger.flush(NOW_MS)
    with pytest.raises(Unavailable, match="was not stored"):
        ledger.wait(placed, timeout_s=0)
    assert ledger.checkpoint() == before
    disk.fill(None)
    assert ledger.submit(data, NOW_MS) == placed
    ledger.flush(NOW_MS)
    ledger.wait(placed, timeout_s=0)
    ledger.close()
    assert fsck("ledger.db", WORLD.trust, vfs="ledger-full").transactions == 4
    vfs.unregister()


# --- witnesses ---


def witnessed() -> tuple[World, NoteSigner]:
    signer = NoteSigner("witness.example", SigningKey.from_seed(seed("witness")), Algorithm.COSIGNATURE_V1)
    return World(witnesses=(signer.verifier.encode(),), quorum=1), signer


def test_with_a_quorum_only_cosigned_checkpoints_are_published(tmp_path: Path) -> None:
    world, witness = witnessed()
    ledger = ledger_at(tmp_path / "w.db", world)
    with pytest.raises(Unavailable, match="quorum"):
        ledger.checkpoint()
    for transaction in world.founding():
        ledger.submit(transaction.data, NOW_MS)
    ledger.flush(NOW_MS)
    note = Note.decode(ledger.newest_note())
    cosigned = note.add(witness.sign(note.text, NOW_MS // 1000)).encode()
    ledger.submit(world.doctor.sign(entries.grant(HEART, world.monitor.id, Right.READ)).data, NOW_MS)
    ledger.flush(NOW_MS)
    with pytest.raises(Forged):
        ledger.cosign(ledger.newest_note())
    head = ledger.cosign(cosigned)
    assert (head.cosigners, head.height) == (("witness.example",), 1)
    right = ledger.state(b"right/" + HEART + world.monitor.id)
    right.verify(world.trust)
    assert right.value is None, "the state that the witness vouched for, not the one after it"
    assert ledger.query(lambda s: access.allowed(s, world.monitor.id, HEART, Right.READ, "x"))
    with pytest.raises(Unavailable):
        ledger.receipt(3, 0)
    note = Note.decode(ledger.newest_note())
    ledger.cosign(note.add(witness.sign(note.text, NOW_MS // 1000)).encode())
    right = ledger.state(b"right/" + HEART + world.monitor.id)
    right.verify(world.trust)
    assert right.value is not None
    ledger.receipt(3, 0).verify(world.trust)
    ledger.close()
    assert fsck(str(tmp_path / "w.db"), world.trust).height == 2
    again = ledger_at(tmp_path / "w.db", world)
    assert read_head(again.checkpoint(), world.trust).height == 2
    again.close()
