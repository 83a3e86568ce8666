"""The master key and the store: wrong passphrases, newer files, derivations that share nothing."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from authority_world import CHEAP, PASSPHRASE, World

from tallystick import wire
from tallystick.authority.authority import MASTER_FILE, STORE_FILE, create, open_authority
from tallystick.authority.master import MasterKey, create_master, open_master, tenant_id
from tallystick.authority.store import AuthorityStore
from tallystick.errors import CannotOpen, Malformed, Misuse, Unavailable
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.permit import Operation


def test_a_wrong_passphrase_opens_nothing(world: World) -> None:
    world.authority.close()
    for wrong in (b"", b"guess", PASSPHRASE + b"\n"):
        with pytest.raises(CannotOpen):
            world.open(passphrase=wrong)
    world.authority = world.open()


def test_a_master_key_file_that_was_altered_is_refused() -> None:
    data = create_master(PASSPHRASE, SeededEntropy(1), CHEAP)
    open_master(data, PASSPHRASE)
    for at in range(len(data)):
        altered = bytearray(data)
        altered[at] ^= 1
        with pytest.raises((CannotOpen, Malformed, Misuse)):
            open_master(bytes(altered), PASSPHRASE)


def test_an_empty_passphrase_is_a_mistake() -> None:
    with pytest.raises(Misuse, match="empty"):
        create_master(b"", SeededEntropy(1), CHEAP)


def test_the_master_key_shows_nothing_of_itself() -> None:
    assert repr(MasterKey(b"m" * 32)) == "MasterKey(…)"


def test_tokens_differ_by_tenant_and_name_and_stay() -> None:
    master = MasterKey(b"m" * 32)
    one, other = tenant_id(bytes(32), "acme"), tenant_id(bytes(32), "rival")
    tokens = {master.token(tenant, name) for tenant in (one, other) for name in ("a", "b", "ab")}
    assert len(tokens) == 6
    assert master.token(one, "a") == MasterKey(b"m" * 32).token(one, "a")
    # Without the key a token says nothing about the name: guessing names needs the authority.
    assert MasterKey(b"n" * 32).token(one, "a") not in tokens


def test_undo_tokens_differ_by_operation_and_permit() -> None:
    master = MasterKey(b"m" * 32)
    tokens = {master.undo_token(operation, bytes([n]) * 16) for operation in Operation for n in range(8)}
    assert len(tokens) == 16


def test_what_is_wrapped_opens_in_its_own_place_only() -> None:
    master, entropy = MasterKey(b"m" * 32), SeededEntropy(1)
    wrapped = master.wrap_key_pair(bytes(16), ["epoch", 1, b"public"], b"s" * 32, entropy)
    assert master.unwrap_key_pair(bytes(16), ["epoch", 1, b"public"], wrapped) == b"s" * 32
    elsewhere: list[tuple[bytes, list[bytes | int | str]]] = [
        (b"t" * 16, ["epoch", 1, b"public"]),
        (bytes(16), ["epoch", 2, b"public"]),
        (bytes(16), ["epoch", 1, b"planted"]),
        (bytes(16), ["erasure", 1, b"public"]),
    ]
    for token, place in elsewhere:
        with pytest.raises(CannotOpen):
            master.unwrap_key_pair(token, place, wrapped)


def test_a_newer_table_is_refused_by_name(tmp_path: Path) -> None:
    path = str(tmp_path / STORE_FILE)
    AuthorityStore(path).close()
    connection = apsw.Connection(path)
    connection.execute("UPDATE tables SET version = 2 WHERE name = 'permits'")
    connection.close()
    with pytest.raises(Misuse, match='table "permits" has version 2, this program knows 1'):
        AuthorityStore(path)
    connection = apsw.Connection(path)
    connection.execute("UPDATE tables SET version = 1")
    connection.execute("INSERT INTO tables VALUES ('shares', 1)")
    connection.close()
    with pytest.raises(Misuse, match='table "shares"'):
        AuthorityStore(path)


def test_a_store_is_open_once(world: World) -> None:
    with pytest.raises(Unavailable, match="another process"):
        AuthorityStore(str(world.home / STORE_FILE))


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"not a database, whatever it says" * 100)
    with pytest.raises(Misuse, match="damaged"):
        AuthorityStore(str(tmp_path / STORE_FILE))


def test_a_newer_master_key_file_is_refused(world: World) -> None:
    newer = wire.encode([2, "tallystick master key", b""])
    with pytest.raises(Malformed, match="version 1 expected"):
        open_master(newer, PASSPHRASE)


def test_an_authority_is_created_once_and_opened_with_a_certificate(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    create(folder, PASSPHRASE, world.entropy, CHEAP)
    assert (folder / MASTER_FILE).stat().st_mode & 0o077 == 0
    assert (folder / STORE_FILE).stat().st_mode & 0o077 == 0
    with pytest.raises(Misuse, match="exists already"):
        create(folder, PASSPHRASE, world.entropy, CHEAP)
    with pytest.raises(Misuse, match="no certificate"):
        open_authority(folder, PASSPHRASE, world.ledger_client, world.clock, world.entropy)
    with pytest.raises(Misuse, match="no authority"):
        open_authority(tmp_path / "nowhere", PASSPHRASE, world.ledger_client, world.clock, world.entropy)
