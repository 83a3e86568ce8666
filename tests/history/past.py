"""The committed history of a version: where it lies, how it is packed, what is in it, and a clock set to its time.

README.md says what a history holds. `look` reads a copy of one at rest, `live` lets one go on: what they found when the
history was made stands in `expected.json`, and whatever version looks again must find the same.
"""

from __future__ import annotations

import json
import tarfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from authority_world import World
from stack import Stack, wait_until

from tallystick import wire
from tallystick.authority.store import STORE_FILE, TABLES, AuthorityStore
from tallystick.carriers.accounts import permit_name
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.client.spool import Spool
from tallystick.client.subscribe import Received
from tallystick.errors import Malformed
from tallystick.identity.folder import Identity
from tallystick.ledger.block import Block
from tallystick.ledger.fsck import Replay, Step
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.sqlite_store import LedgerStore
from tallystick.node.settings import read_authority_settings, read_settings
from tallystick.parcel.locks import decode_lock
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook, check_permits, check_signature, verify_one
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock
from tallystick.trust.certificate import Certificate
from tallystick.trust.mesh import mesh_pseudonym
from tallystick.trust.trustfile import TrustFile

HERE = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/row.proof"))
CONTRACTS = "contracts-2"  # a ledger alone
MESH = "mesh-1"  # an authority and its ledger
CURRENT: str = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PACKED = ["authority", "homes", "ledger.db", "node", "root.key", "trust.json"]  # of an instance's folder
Found = dict[str, Any]


class PastClock(SystemClock):
    """The machine's clock set to another time, since certificates and permits of a history end by the time it was made
    in. `jump` sets it forward."""

    def __init__(self, start: float) -> None:
        self._ahead, self._offset = 0.0, start - time.monotonic()

    def jump(self, seconds: float) -> None:
        self._ahead += seconds

    def now(self) -> float:
        return self.monotonic() + self._offset

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead


@dataclass(frozen=True)
class History:
    version: str

    @property
    def folder(self) -> Path:
        return HERE / self.version

    @property
    def expected(self) -> Found:
        found: Found = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        return found

    @property
    def passphrase(self) -> bytes:
        return (self.folder / "passphrase").read_bytes().strip()

    def pack(self, folder: Path) -> None:
        """Keep the instance in `folder`: files in order, with their modes, and no time or owner."""

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
            return member

        with tarfile.open(self.folder / "instance.tar.xz", "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
            kept = [folder / name for name in PACKED if (folder / name).exists()]
            for path in sorted(path for one in kept for path in [one, *one.rglob("*")]):
                archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=plain)

    def unpack(self, target: Path) -> Path:
        """A copy of the instance; its folder."""
        with tarfile.open(self.folder / "instance.tar.xz") as archive:
            archive.extractall(target, filter="data")
        return target

    def stack(self, folder: Path) -> Stack:
        """Node and authority over a copy, under the settings they were left with, a second after they ended."""
        node, authority = read_settings(folder / "node"), read_authority_settings(folder / "authority")
        return Stack(
            folder,
            node={**vars(node), "port": 0},
            authority=vars(authority),
            clock=PastClock(self.expected["end_ms"] / 1000 + 1),
            passphrase=self.passphrase,
        )


# At rest.


def look(folder: Path) -> Found:
    """What lies in the folder of an instance that does not run."""
    return {
        "ledger": look_at_ledger(folder),
        "log": look_at_log(folder),
        "authority": look_at_authority(folder / "authority"),
        "homes": {home.name: look_at_home(home) for home in sorted((folder / "homes").iterdir())},
    }


def look_at_ledger(folder: Path) -> Found:
    """What the contracts make of every transaction: roots, results, and the state by families of keys."""
    done, steps = replay(folder / "node" / "ledger.sqlite")
    block = done.block
    assert block is not None
    transactions = [step.transaction for step in steps]
    kinds = Counter(entry[0] for one in transactions for entry in one.decode_entries(0, len(one.entries)))
    families: dict[str, list[bytes]] = {}
    for key, value in sorted(done.values.items()):
        families.setdefault(key.split(b"/")[0].decode(), []).append(key + value)
    return {
        "height": block.height,
        "time_ms": block.time_ms,
        "transactions": block.size,
        "root": block.root.hex(),
        "state_root": block.state_root.hex(),
        "kinds": {str(kind): count for kind, count in sorted(kinds.items())},
        "refused": sum(step.result.refused for step in steps),
        "results": sha256(b"".join(step.result.data for step in steps)).hexdigest(),
        "state": {name: [len(all_), sha256(b"".join(all_)).hexdigest()[:16]] for name, all_ in families.items()},
    }


def replay(ledger: Path) -> tuple[Replay, list[Step]]:
    """Every transaction of a ledger's file through the contracts; raises `Forged` where a root comes out otherwise."""
    store = LedgerStore(str(ledger), create=False)
    try:
        first = store.meta("genesis")
        assert isinstance(first, str)
        done, steps = Replay(TrustFile.parse(first)), []
        for height in range((store.last_height() or 0) + 1):
            data, _ = store.block(height) or (b"", b"")
            block = Block.decode(data)
            done.begin(block)
            steps += [done.step(row.data) for row in store.rows(block.first, block.first + block.count)]
            done.end()
        return done, steps
    finally:
        store.close()


def look_at_log(folder: Path) -> Found:
    """Every partition, parcel and deposit. Each parcel is verified, as far as retention has left it."""
    anchored = dict(_anchors(folder / "node" / "ledger.sqlite"))
    store = LogStore(RealDisk(folder / "node" / "log"), anchored={place: value[0] for place, value in anchored.items()})
    try:
        trust = TrustFile.parse((folder / "trust.json").read_text())
        authority = Certificate.decode((folder / "node" / "authority.certificate").read_bytes())
        book = PermitBook(trust.instance, [authority], lambda name: store.blobs.get(permit_name(name)) or b"")
        partitions: Found = {}
        for place in sorted(store.places()):
            partition, below = store.tree(place), store.tree(place).below
            assert partition.root(anchored[place][0]) == anchored[place][1]
            entries = list(_entries(store, place, below))
            for entry in entries:
                parcel = Parcel.decode_front(entry.header)
                check_signature(parcel, check_permits(parcel.header, book)[0].verify_key)
                if entry.offset >= below:
                    verify_one(Parcel.decode(entry.parcel), trust.instance, book)
            partitions[f"{place.token.hex()}/{place.partition}"] = {
                "size": partition.end_offset,
                "root": partition.root().hex(),
                "retired": below,
                "segments": partition.segment_count(),
                "parcels": [_show(Parcel.decode_front(entry.header), entry.stored_ms) for entry in entries],
            }
        return {
            "findings": store.recovery.lines(),
            "journal": len(store.journal.replay()),
            "deposits": dict(sorted(Counter(_deposits(store)).items())),
            "partitions": partitions,
        }
    finally:
        store.close()


def _anchors(ledger: Path) -> Iterator[tuple[Place, list[Any]]]:
    store = LedgerStore(str(ledger), create=False)
    for key, value in store.values(b"anchor/"):
        yield Place(key[7:23], int.from_bytes(key[23:], "big")), wire.decode(value)
    store.close()


def _entries(store: LogStore, place: Place, below: int) -> Iterator[Any]:
    offset, end = 0, store.end(place)
    while offset < end:
        some = store.read(place, offset, 1 << 20, offset < below, below=below if offset < below else None)
        yield from some
        offset = some[-1].offset + 1


def _show(parcel: Parcel, stored_ms: int) -> str:
    """A parcel on one line: its hash and what is special about it."""
    header = parcel.header
    marks = {
        "topics": len(header.topics) > 1,
        "groups": len(header.groups) > 1,
        "pending": header.pending,
        "padded": header.padded,
        "labels": bool(header.labels),
        "late": bool(header.time_ms) and stored_ms - header.time_ms > 60_000,  # a padded one says no time
    }
    return " ".join([parcel.hash.hex(), header.kind.name.lower(), *(name for name, is_so in marks.items() if is_so)])


def _deposits(store: LogStore) -> Iterator[str]:
    for offset in range(store.blobs.partition.end_offset):
        data = store.blobs.get(store.blobs.partition.parcel_hash(offset)) or b""
        try:
            yield type(decode_lock(data)).__name__
        except Malformed:
            yield "permit or undo order"


def look_at_authority(folder: Path) -> Found:
    """How many rows each table of its store has."""
    store = AuthorityStore(str(folder / STORE_FILE))
    try:
        return {name: store.scalar(f"SELECT count(*) FROM {name}") for name in sorted(TABLES)}
    finally:
        store.close()


def look_at_mesh(folder: Path) -> Found:
    """What an authority knows of members of the mesh, and what it gives them: the pseudonyms of its one topic for some
    epochs, by which its keys are known."""
    world = World(folder)
    try:
        mesh, store = world.authority.mesh, world.authority.core.store
        names = sorted(name for name in TABLES if name.startswith("mesh_"))
        rows = {name: sorted(map(_shown, store.rows(f"SELECT * FROM {name}"))) for name in names}
        token = store.scalar("SELECT token FROM mesh_holders")
        epochs = range(mesh.epoch, mesh.epoch + 4)
        pseudonyms = {str(epoch): mesh_pseudonym(mesh._secret(token, epoch), epoch).hex() for epoch in epochs}
        return {"rows": rows, "key": mesh.signing.public.raw.hex(), "pseudonyms": pseudonyms}
    finally:
        world.authority.close()
        world.ledger.close()


def _shown(row: tuple[Any, ...]) -> list[Any]:
    return [one.hex() if isinstance(one, bytes) else one for one in row]


def look_at_home(home: Path) -> Found:
    """The identity, the checkpoint that it accepted last, and the parcels in its spools."""
    identity = Identity.load(home)
    head = CheckpointMemory(identity.trust, RealDisk(home / "ledger")).head
    spooled: list[str] = []
    for folder in sorted((home / "spool").iterdir()) if (home / "spool").exists() else ():
        spool = Spool(RealDisk(folder))
        for lane in sorted(spool.lanes()):
            spooled += [Parcel.decode(spool.read(lane, sequence)).hash.hex() for sequence in spool.kept(lane)]
        spool.close()
    return {
        "principal": identity.principal.hex(),
        "accepted": None if head is None else [head.height, head.root.hex()],
        "spooled": spooled,
    }


# Alive.


def live(stack: Stack, readers: dict[str, list[str]]) -> Found:
    """What the readers get of their topics, and a group where it left off, once all that waited in journal and spool
    has come through."""
    wait_until(lambda: stack.node.carrier.statistics().operations_waiting == 0)
    with session_of(stack, "car").publisher("brakes", acks="anchored", anchor_check_s=0.0) as publisher:
        assert publisher.flush(120) == 0
    found: Found = {
        name: {topic: read(session_of(stack, name), topic) for topic in topics} for name, topics in readers.items()
    }
    return found | {"group": read(session_of(stack, "reader"), "brakes", group="pipeline")}


def session_of(stack: Stack, home: str) -> Session:
    """The session of the identity in this home, which finds node and authority where they are now."""
    identity = Identity.load(stack.folders.root / "homes" / home)
    return stack.session(replace(identity, node_urls=(stack.node.url,), authority_url=stack.authority.url))


def read(session: Session, topic: str, group: str | None = None) -> Found:
    """Everything that a reader gets of a topic, as [partition, offset, rows], and the reasons of its findings."""
    received: list[Received] = []
    with session.subscriber(topic, group=group, on_bad="report", silence_s=1e9) as subscriber:
        while some := subscriber.poll(0):
            received += some
        batches = sorted(([one.partition, one.offset, one.to_pylist()] for one in received), key=lambda one: one[:2])
        # Ranges that were retired before they were read are told since, and the committed histories are older.
        reasons = sorted(finding.reason for finding in subscriber.findings if finding.end is None)
        return {"batches": batches, "findings": reasons}
