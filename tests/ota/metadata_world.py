"""Repositories for tests: keys by name, a folder that is written, and what a server makes of it on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from tallystick.fleet.ota.metadata import AcceptedTargets, ReadFile, TrustedRepository
from tallystick.fleet.ota.repository import ROLES, Repository, RoleKeys, make_root, signer_of
from tallystick.runtime.disk import Disk
from tallystick.runtime.seeded_disk import SeededDisk

NOW_MS = 1_791_000_000_000
DAY_MS = 86_400_000
SUPPLIER = "acme"


def keys_of(name: str, count: int = 1, threshold: int = 1) -> RoleKeys:
    seeds = (sha256(f"key {place} of {name}".encode()).digest() for place in range(count))
    return RoleKeys([signer_of(seed) for seed in seeds], threshold)


def role_keys(who: str, *others: str) -> dict[str, RoleKeys]:
    """Two of three keys for the root, one of two for targets, one for the rest; `who` makes them different."""
    numbers = {"root": (3, 2), "targets": (2, 2)}
    return {role: keys_of(f"{who} {role}", *numbers.get(role, (1, 1))) for role in (*ROLES, *others)}


class Served:
    """A repository in memory, written with the keys of `who`; `files` is what a server would bring."""

    def __init__(self, who: str, *suppliers: str, parts: int = 3, now_ms: int = NOW_MS) -> None:
        self.keys, self.parts, self.disk = role_keys(who, *suppliers), parts, SeededDisk(1)
        self.repository = Repository(self.disk, "served", self.keys)
        self.root = make_root(self.keys, now_ms)
        self.repository.add_root(self.root)
        for supplier in suppliers:
            self.repository.delegate(supplier, self.keys[supplier].signers, self.keys[supplier].threshold)

    def publish(self, dockets: Mapping[str, bytes], now_ms: int = NOW_MS, role: str = "targets") -> dict[str, bytes]:
        self.repository.publish(dockets, now_ms, role, self.parts)
        return self.repository.files()

    def rotate(self, keys: Mapping[str, RoleKeys], now_ms: int = NOW_MS) -> bytes:
        """A new root, which names these keys."""
        newest = max(
            (name for name in self.disk.listdir("served") if name.endswith(".root.json")),
            key=lambda name: int(name.split(".")[0]),
        )
        root = make_root(keys, now_ms, self.repository.files()[newest], self.keys["root"].signers)
        self.repository.add_root(root)
        self.keys = dict(keys)
        self.repository.keys = self.keys
        return root


def reading(files: Mapping[str, bytes]) -> ReadFile:
    return lambda name, _most: files.get(name)


class Reader:
    """A vehicle's side of one repository."""

    def __init__(self, served: Served, disk: Disk | None = None, folder: str = "kept") -> None:
        self.disk = disk or SeededDisk(2)
        self.trusted = TrustedRepository(self.disk, folder, served.root)

    def refresh(self, files: Mapping[str, bytes], now_ms: int = NOW_MS) -> AcceptedTargets:
        return self.trusted.refresh(reading(files), now_ms)


def changed(files: Mapping[str, bytes], name: str, at: int) -> dict[str, bytes]:
    data = bytearray(files[name])
    data[at % len(data)] ^= 1
    return {**files, name: bytes(data)}


def metadata_names(files: Iterable[str]) -> list[str]:
    """All but the root of the factory, which is not read from servers."""
    return sorted(name for name in files if name.endswith(".json") and name != "1.root.json")
