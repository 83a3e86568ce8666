"""Backup and restore: the whole store as one age file.

Inside: the store (private halves wrapped), the master key file (locked by the passphrase) and what names the
instance; never the passphrase. So a backup opens only for who holds an age identity of its recipients *and* the
passphrase. age (X25519) is not post-quantum by itself; the second lock is symmetric.

Threat: a restored authority that says yesterday's things: draws an epoch or identifier a second time, serves a key
that was erased since, honours a permit that was undone. A restored store is marked, and serves nothing until it has
followed the ledger to a checkpoint of today (`Authority.work`): erasures are applied, permits and principals since
the backup are taken over, epochs whose keys the backup lacks are ended and replaced. What was sealed under those is
lost: `lost_epochs` lists them. Run one of the two only: the store's own process must be dead.

A running authority lays its backup, encrypted as it is, beside the store (`lay_out`) and hands it out in parts, since a
store may be greater than an answer; the file goes with its last part, or with the next backup.

Each backup is noted in the store before it is made, with the newest erasable key it holds, so that `erase` can name
the backups that still hold a destroyed key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import apsw
import pyrage

from tallystick import wire
from tallystick.authority.master import MASTER_FILE, write_private
from tallystick.authority.store import STORE_FILE, AuthorityStore
from tallystick.errors import CannotOpen, Malformed, Misuse, Refused
from tallystick.runtime.sources import Entropy
from tallystick.trust.certificate import Certificate
from tallystick.wire import Fields

AGE = b"age-encryption.org/"  # how every file of age begins
KIND = "tallystick authority backup"
BYTES_MAX = 8 << 30  # SQLite hands the whole store over in memory
_OUTGOING = "outgoing-"


@dataclass(frozen=True)
class Backup:
    """An encrypted backup and the identifier under which `erase` names it."""

    identifier: bytes
    data: bytes


def back_up(store: AuthorityStore, folder: Path, recipients: list[str], now_ms: int, entropy: Entropy) -> Backup:
    """The authority of `folder`, whose store is open here, encrypted to age recipients (`age1…`)."""
    keys = _recipients(recipients)
    certificate = store.meta("certificate")
    if certificate is None:
        raise Misuse(f"{folder.name}: the authority has no certificate yet", hint="there is nothing to back up")
    identifier = entropy.bytes(16)
    with store.lock:
        with store.transaction():
            last = store.scalar("SELECT max(number) FROM erasure_keys")
            names = " ".join(recipients)
            store.insert("backups", id=identifier, time_ms=now_ms, last_key=last or 0, recipients=names)
        snapshot = store.snapshot()
    master = (folder / MASTER_FILE).read_bytes()
    instance = Certificate.decode(certificate).instance
    return Backup(identifier, pyrage.encrypt(wire.encode([1, KIND, instance, identifier, master, snapshot]), keys))


def lay_out(backup: Backup, folder: Path) -> None:
    """Keep a backup for whoever fetches it with `read_part`; what an earlier one left goes."""
    for old in folder.glob(_OUTGOING + "*"):
        old.unlink(missing_ok=True)
    write_private(_outgoing(folder, backup.identifier), backup.data)


def read_part(folder: Path, identifier: bytes, offset: int, bytes_max: int) -> bytes:
    """The part of a backup that begins at `offset`; with the last one the file is gone."""
    path = _outgoing(folder, identifier)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            part = file.read(bytes_max)
    except FileNotFoundError:
        raise Refused(
            f"backup {identifier.hex()} is not here any more", reason="not-found", hint="make another one"
        ) from None
    if offset + len(part) >= path.stat().st_size:
        path.unlink(missing_ok=True)
    return part


def _outgoing(folder: Path, identifier: bytes) -> Path:
    return folder / f"{_OUTGOING}{identifier.hex()}.age"


def restore(data: bytes, age_identity: str, folder: Path, instance: bytes | None = None) -> bytes:
    """Write the backed-up authority into `folder`, marked as restored. Returns the backup's identifier.

    Raises `CannotOpen` for a wrong age identity, and `Misuse` for a backup of another instance than the one that is
    named. The passphrase is asked for only when the authority is opened.
    """
    try:
        content = pyrage.decrypt(data, [pyrage.x25519.Identity.from_str(age_identity.strip())])
    except pyrage.IdentityError as error:
        raise Misuse("age identity: expected AGE-SECRET-KEY-1…") from error
    except pyrage.DecryptError:
        raise CannotOpen("backup: cannot open", hint="is it encrypted to this age identity?") from None
    fields = Fields.parse(content, "authority backup", 6)
    fields.version(1)
    if fields.text() != KIND:
        raise Malformed("authority backup: it is a file of another kind")
    found = fields.octets(32)
    if instance is not None and found != instance:
        raise Misuse(
            f"the backup is of instance {found.hex()}, expected {instance.hex()}",
            hint="name the backup of this instance, or the folder of that one: its trust.json tells which it is",
        )
    identifier, master, snapshot = fields.octets(16), fields.octets(), fields.octets(at_most=BYTES_MAX)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / STORE_FILE).exists() or (folder / MASTER_FILE).exists():
        raise Misuse(f"{folder.name}: an authority is here already", hint="restore into an empty folder")
    write_private(folder / STORE_FILE, snapshot)
    _mark_restored(folder / STORE_FILE)
    write_private(folder / MASTER_FILE, master)  # last: without it the folder does not open
    return identifier


def lost_epochs(store: AuthorityStore) -> list[tuple[bytes, int]]:
    """(token, epoch) that the ledger announced and this store has no key for: what was sealed under them is lost."""
    return store.rows("SELECT token, epoch FROM epochs WHERE announced = 1 AND secret IS NULL ORDER BY token, epoch")


def _mark_restored(path: Path) -> None:
    try:
        store = AuthorityStore(str(path))
        with store.transaction():
            store.set_meta("restored", b"\x01")
        store.close()
    except apsw.Error as error:
        raise Malformed("authority backup: its store is damaged") from error


def _recipients(texts: list[str]) -> list[pyrage.x25519.Recipient]:
    if not texts:
        raise Misuse("backup: no recipient", hint="name an age recipient: age1…")
    try:
        return [pyrage.x25519.Recipient.from_str(text.strip()) for text in texts]
    except pyrage.RecipientError as error:
        raise Misuse(
            "backup: a recipient is not an age key", hint="tally keygen makes one, as age-keygen does: age1…"
        ) from error
