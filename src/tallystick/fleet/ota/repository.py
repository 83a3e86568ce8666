"""A TUF repository as its owner writes it: the Image repository of a fleet, or what the Director says to one vehicle.

    image     root ─► targets ─► one role a supplier, for `<supplier>/<hardware>/<version>`
    director  root ─► targets, for `<vehicle>/<ecu>/<supplier>/<hardware>/<version>`; one folder a vehicle, one root

A target is a docket, byte by byte; nothing is custom, so any client of TUF reads these files. What belongs to whom
stands in the names. Files are plain and lie as clients look for them, so any web server or stick can bring them:

    <n>.root.json, timestamp.json, <n>.snapshot.json, <n>.targets.json, <n>.<supplier>.json, targets/<name>

Threat: a key that is stolen. Invariant: every role has keys of its own and a threshold; a supplier's reach ends at its
own names; the root names new keys whenever it must. What the keys of all roles together still cannot do is told in
`judging`. The timestamp is written last, so a reader never finds a state whose files are not all there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tallystick.errors import Misuse
from tallystick.fleet.ota.metadata import as_datetime, check_name
from tallystick.runtime.disk import Disk, parent_of, read_all, write_atomic

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner, Signer
    from tuf.api.metadata import (
        DelegatedRole,
        Delegations,
        Metadata,
        MetaFile,
        Root,
        Snapshot,
        TargetFile,
        Targets,
        Timestamp,
    )
except ImportError as error:
    raise Misuse("updates over the air need the library tuf", hint="pip install 'tallystick[ota]'") from error

DAYS = {"root": 365, "timestamp": 7, "snapshot": 90, "targets": 90}
ROLES = ("root", "timestamp", "snapshot", "targets")
KEYS, FILES = "keys", "repository"  # folders: a file of 32 bytes for each role, and what is served
_NEW_KEYS = "new-keys"  # until the root that names them is written


def signer_of(seed: bytes) -> Signer:
    """An Ed25519 signer of 32 bytes. Others come from securesystemslib: files, tokens, cloud services."""
    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed))


@dataclass(frozen=True)
class RoleKeys:
    """Who signs for a role, and how many of them must."""

    signers: Sequence[Signer]
    threshold: int = 1


def add_key(disk: Disk, role: str, seed: bytes, folder: str = KEYS) -> None:
    """Keep the key of a role, in a file that only its owner may read. One that is there is never replaced."""
    check_name(role, 1)
    disk.mkdir(folder)
    if not disk.exists(f"{folder}/{role}"):
        write_atomic(disk, f"{folder}/{role}", seed)


def load_keys(disk: Disk, folder: str = KEYS) -> dict[str, RoleKeys]:
    """All keys that are kept here, by role."""
    names = disk.listdir(folder) if disk.exists(folder) else []
    return {name: RoleKeys([signer_of(read_all(disk, f"{folder}/{name}"))]) for name in names}


def make_root(keys: Mapping[str, RoleKeys], now_ms: int, before: bytes = b"", by: Sequence[Signer] = ()) -> bytes:
    """The root that names these keys. One that follows another is signed by its keys too: those in `by`."""
    version = 1 + (Metadata[Root].from_bytes(before).signed.version if before else 0)
    root = Root(version=version, expires=as_datetime(now_ms) + timedelta(days=DAYS["root"]), consistent_snapshot=True)
    for role in ROLES:
        for signer in keys[role].signers:
            root.add_key(signer.public_key, role)
        root.roles[role].threshold = keys[role].threshold
    return _signed(root, [*keys["root"].signers, *by])


def found_repository(disk: Disk, draw: Callable[[], bytes], now_ms: int) -> bytes:
    """The first root of the repository that is kept here. Where there is none, keys are drawn and it is made, empty."""
    path = f"{FILES}/1.root.json"
    if not disk.exists(path):
        for role in ROLES:
            add_key(disk, role, draw())
        repository = Repository(disk, FILES, load_keys(disk))
        repository.publish({}, now_ms)
        repository.add_root(make_root(repository.keys, now_ms))
    return read_all(disk, path)


def load_roots(disk: Disk) -> dict[str, bytes]:
    """All roots of the repository that is kept here, by file name, the newest last."""
    names = [name for name in disk.listdir(FILES) if name.endswith(".root.json")]
    return {name: read_all(disk, f"{FILES}/{name}") for name in sorted(names, key=lambda one: int(one.split(".")[0]))}


def replace_keys(disk: Disk, roles: Collection[str], draw: Callable[[], bytes], now_ms: int) -> int:
    """Make the next root, with new keys for these roles: after a theft, or, with none, before the last one expires.
    Returns its version. What replaced keys have signed counts no more: sign it anew.

    New keys are kept before the root names them, and take their places afterwards: whenever it is interrupted, no key
    is lost that a root names, and it can be done again. Raises `Misuse` without the root's own key.
    """
    old, before = load_keys(disk), list(load_roots(disk).values())[-1]
    if "root" not in old:
        raise Misuse("the key of role root is not here", hint="bring it back to the folder of keys for this")
    for role in roles:
        add_key(disk, role, draw(), _NEW_KEYS)
    new = load_keys(disk, _NEW_KEYS)
    if not new or not _names(before, new):
        before = make_root({**old, **new}, now_ms, before, old["root"].signers if "root" in new else ())
        Repository(disk, FILES, {}).add_root(before)
    for role in new:
        disk.rename(f"{_NEW_KEYS}/{role}", f"{KEYS}/{role}")
    disk.sync_dir(KEYS)
    return Metadata[Root].from_bytes(before).signed.version


def _names(root: bytes, keys: Mapping[str, RoleKeys]) -> bool:
    """Whether it names these keys."""
    roles = Metadata[Root].from_bytes(root).signed.roles
    named = [roles[role].keyids == [one.public_key.keyid for one in held.signers] for role, held in keys.items()]
    return all(named)


@dataclass
class Repository:
    """The files of one repository in a folder. `keys` are of the roles that are signed here, suppliers among them."""

    disk: Disk
    folder: str
    keys: Mapping[str, RoleKeys]
    has_dockets: bool = True  # a Director's need none: offers bring those of the Image repository
    _versions: dict[str, int] = field(default_factory=dict)
    _targets: dict[str, Targets] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.disk.mkdir(self.folder)
        if self.disk.exists(self._path("timestamp.json")):
            self._read_back()

    def add_root(self, root: bytes) -> None:
        write_atomic(self.disk, self._path(f"{Metadata[Root].from_bytes(root).signed.version}.root.json"), root)

    def delegate(self, supplier: str, keys: Sequence[Signer], threshold: int) -> None:
        """Let a supplier sign for its own names. It takes effect with the next `publish`."""
        check_name(supplier, 1)
        targets = self._role("targets")
        delegated = targets.delegations or Delegations({}, {})
        role = DelegatedRole(supplier, [], threshold, terminating=True, paths=[f"{supplier}/*/*"])
        targets.delegations = Delegations(delegated.keys, {**(delegated.roles or {}), supplier: role})
        for signer in keys:
            targets.add_key(signer.public_key, supplier)

    def publish(self, dockets: Mapping[str, bytes], now_ms: int, role: str = "targets", parts: int = 3) -> None:
        """Make these the targets of a role, all of them, and seal the new state under snapshot and timestamp.

        The role of targets itself is written again with each state, which may hold new delegations.
        """
        for name, docket in dockets.items():
            check_name(name, parts)
            if self.has_dockets:
                path = self._path(f"targets/{name}")
                self.disk.mkdir(parent_of(path))
                write_atomic(self.disk, path, docket)
        self._role(role).targets = {
            name: TargetFile.from_data(name, data, ["sha256"]) for name, data in dockets.items()
        }
        self._role("targets")
        for changed in {role, "targets"}:
            self._write(changed, self._targets[changed], now_ms)
        meta = {f"{one}.json": MetaFile(self._versions[one]) for one in self._targets}
        self._write("snapshot", Snapshot(meta=meta), now_ms)
        self._write("timestamp", Timestamp(snapshot_meta=MetaFile(self._versions["snapshot"])), now_ms)

    def files(self) -> dict[str, bytes]:
        """The newest state, all roots, and the dockets: what a vehicle is sent, or a stick carries."""
        roles = {name for name in self._versions if name != "timestamp"}
        names = ["timestamp.json", *(f"{self._versions[one]}.{one}.json" for one in sorted(roles))]
        names += [one for one in self.disk.listdir(self.folder) if one.endswith(".root.json")]
        if self.has_dockets:
            names += [f"targets/{name}" for one in self._targets.values() for name in one.targets]
        return {name: read_all(self.disk, self._path(name)) for name in names}

    def _role(self, role: str) -> Targets:
        return self._targets.setdefault(role, Targets())

    def _write(self, role: str, signed: Timestamp | Snapshot | Targets, now_ms: int) -> None:
        self._versions[role] = signed.version = self._versions.get(role, 0) + 1
        signed.expires = as_datetime(now_ms) + timedelta(days=DAYS[signed.type])
        name = "timestamp.json" if role == "timestamp" else f"{signed.version}.{role}.json"
        if role not in self.keys:
            raise Misuse(f"{self.folder}: the key of role {role} is not here", hint="act as the identity that holds it")
        write_atomic(self.disk, self._path(name), _signed(signed, self.keys[role].signers))
        old = self._path(f"{signed.version - 2}.{role}.json")  # who reads now may still want the one before
        if role != "timestamp" and self.disk.exists(old):
            self.disk.remove(old)

    def _read_back(self) -> None:
        timestamp = Metadata[Timestamp].from_bytes(read_all(self.disk, self._path("timestamp.json"))).signed
        self._versions = {"timestamp": timestamp.version, "snapshot": timestamp.snapshot_meta.version}
        name = f"{timestamp.snapshot_meta.version}.snapshot.json"
        snapshot = Metadata[Snapshot].from_bytes(read_all(self.disk, self._path(name))).signed
        for file, meta in snapshot.meta.items():
            role = file.removesuffix(".json")
            found = Metadata[Targets].from_bytes(read_all(self.disk, self._path(f"{meta.version}.{file}")))
            self._versions[role], self._targets[role] = meta.version, found.signed

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def _signed(signed: Root | Timestamp | Snapshot | Targets, signers: Sequence[Signer]) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()
