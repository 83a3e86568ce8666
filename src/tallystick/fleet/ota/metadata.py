"""Signed metadata as a vehicle reads it: the workflow of TUF over our disk, at the ledger's time. The Director's and
the Image repository's are read alike.

Threat: a server, a mirror or a stolen key of one role that brings old metadata (rollback), none (freeze), more than
fits (endless data), parts of different states (mix-and-match), or a name that is a path. Power that fails while
metadata are written. A vehicle whose clock was turned back.

Invariant: nothing counts that the root of the factory, or a later one that it vouched for, does not reach through
thresholds of signatures. What expires is compared with the block time of a checkpoint that was accepted, never with a
clock that somebody can set. Versions never fall: what was accepted lies on the disk, each file replaced atomically, so
that after a power cut the old one is found or the new one, whole. Metadata that would not expire within a bound of
their role are refused too: with a stolen key they would freeze a vehicle for ever.

`tuf.ngclient.Updater` reads the system's clock and syncs nothing to the disk. The class inside it, which decides, does
neither: it takes bytes and a time. It is internal, hence tuf stays below version 8 and is used so in this file alone; a
test holds that both come to the same verdicts. Numbers in comments are steps of the TUF specification, 1.0.33.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable, blamed
from tallystick.runtime.disk import Disk, read_all, write_atomic

try:
    from tuf.api import exceptions
    from tuf.api.metadata import Metadata, MetaFile, Signed, TargetFile, Targets
    from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
    from tuf.ngclient.config import EnvelopeType
except ImportError as error:
    raise Misuse("updates over the air need the library tuf", hint="pip install 'tallystick[ota]'") from error

ReadFile = Callable[[str, int], bytes | None]  # name and most bytes → contents, or None where there is no such file
Update = Callable[[bytes], Signed]

BYTES_MAX = {"root": 64 << 10, "timestamp": 16 << 10, "snapshot": 256 << 10, "targets": 1 << 20}
DAYS_MAX = {"root": 3660, "timestamp": 32, "snapshot": 400, "targets": 400}  # from the ledger's time to the expiry
ROOTS_MAX = 32  # new ones in one refresh; the next goes on from there
ROLES_MAX = 32  # of targets, that are looked at for one target

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_name(name: str, parts: int) -> list[str]:
    """The parts of a target's name, or of a role's, which has one. Raises `Malformed` for what could be a path."""
    found = name.split("/")
    if len(found) != parts or not all(_NAME.fullmatch(part) and ".." not in part for part in found):
        raise Malformed(f'name "{name[:100]}": expected {parts} plain parts', reason="bad-name")
    return found


class TrustedRepository:
    """What was accepted of one repository, in a folder of its own. `root` is the factory's."""

    def __init__(self, disk: Disk, folder: str, root: bytes) -> None:
        self._disk, self.folder, self._factory = disk, folder, root
        disk.mkdir(folder)

    def refresh(self, read: ReadFile, time_ms: int) -> AcceptedTargets:
        """Take whatever is newer. Raises `Refused` (`Forged`, or with the reason `expired`, `rollback`, `lifetime`),
        naming the file, and `Unavailable` where one is missing. What was accepted before stays so."""
        with _translated(self.folder, "root of the factory"):
            trusted = TrustedMetadataSet(self._factory, EnvelopeType.METADATA)
        trusted.reference_time = as_datetime(time_ms)
        found = AcceptedTargets(self, trusted, read)
        found.refresh()
        return found

    def load(self, name: str) -> bytes | None:
        """A file that was accepted earlier."""
        path = f"{self.folder}/{name}"
        with blamed(path):
            return read_all(self._disk, path) if self._disk.exists(path) else None

    def keep(self, name: str, data: bytes) -> None:
        path = f"{self.folder}/{name}"
        with blamed(path):
            write_atomic(self._disk, path, data)


class AcceptedTargets:
    """What a repository says at one moment: its targets, under thresholds of signatures up to the factory's root."""

    def __init__(self, repository: TrustedRepository, trusted: TrustedMetadataSet, read: ReadFile) -> None:
        self._repository, self._trusted, self._read = repository, trusted, read

    def names(self) -> list[str]:
        """The targets that stand in the first role, which is all where nothing is delegated."""
        return sorted(self._trusted.targets.targets)

    def find(self, name: str) -> TargetFile | None:
        """A target, in the first role that has it (5.6.7). Each role is asked only for what it was delegated."""
        waiting, seen = [("targets", "root")], set[str]()
        while waiting and len(seen) < ROLES_MAX:
            role, by = waiting.pop()
            if role in seen:
                continue
            seen.add(role)
            targets = self._load_targets(role, by)
            if name in targets.targets:
                return targets.targets[name]
            below = []
            for child, terminating in targets.delegations.get_roles_for_target(name) if targets.delegations else ():
                below.append((child, role))
                if terminating:
                    waiting = []
                    break
            waiting += reversed(below)
        return None

    def check(self, name: str, data: bytes) -> None:
        """Raise `Forged` unless this is the target of that name."""
        target = self.find(name)
        if target is None:
            raise Refused(f"{self._repository.folder}: no target {name}", reason="not-in-metadata")
        with _translated(self._repository.folder, name):
            target.verify_length_and_hashes(data)

    def refresh(self) -> None:
        trusted = self._trusted
        for _ in range(ROOTS_MAX):  # 5.3: one after the other; the timestamp holds the last one to its expiry
            name = f"{trusted.root.version + 1}.root.json"
            if not self._take_kept(name, trusted.update_root) and not self._take(name, "root", trusted.update_root):
                break
        # 5.4: a timestamp that lies here holds a new one to its version, also when it has expired. Keys that the root
        # gave up hold nothing, which is how a fast-forward ends (5.3.11).
        self._take_kept("timestamp.json", trusted.update_timestamp)
        if not self._take("timestamp.json", "timestamp", trusted.update_timestamp):
            raise Unavailable(f"{self._repository.folder}: no timestamp is there")
        # 5.5
        if not self._take_kept("snapshot.json", partial(trusted.update_snapshot, trusted=True)):
            meta = trusted.timestamp.snapshot_meta
            self._take_named(meta, "snapshot", "snapshot", trusted.update_snapshot)
        self._load_targets("targets", "root")

    def _load_targets(self, role: str, by: str) -> Targets:
        """5.6: of the version that the snapshot names."""
        if not self._trusted.contains(role, by):
            check_name(role, 1)
            update = partial(self._trusted.update_delegated_targets, role_name=role, delegator_name=by)
            if not self._take_kept(f"{role}.json", update):
                meta = self._trusted.snapshot.meta.get(f"{role}.json")
                if meta is None:
                    raise Refused(f"{self._repository.folder}: {role} is not in the snapshot", reason="mix-and-match")
                self._take_named(meta, role, "targets", update)
        found = self._trusted[role]
        assert isinstance(found, Targets)
        return found

    def _take_kept(self, name: str, update: Update) -> bool:
        """What was accepted earlier, if it still is: it may have expired, or a root has given up its keys."""
        data = self._repository.load(name)
        try:
            return data is not None and bool(update(data))
        except exceptions.RepositoryError:
            return False

    def _take_named(self, meta: MetaFile, role: str, kind: str, update: Update) -> None:
        name = f"{meta.version}.{role}.json"
        if not self._take(name, kind, update, meta.length, f"{role}.json"):
            raise Unavailable(f"{self._repository.folder}: {name} is not there")

    def _take(self, name: str, kind: str, update: Update, length: int | None = None, kept_as: str = "") -> bool:
        """Read one file, judge and keep it. Returns False if it is not there."""
        most = min(length or BYTES_MAX[kind], BYTES_MAX[kind])
        data = self._read(name, most)
        if data is None:
            return False
        self._check_length(name, data, most)
        with _translated(self._repository.folder, name):
            try:
                signed = update(data)
            except exceptions.EqualVersionNumberError:
                return True  # the timestamp that lies here already
        self._check_lifetime(name, signed)
        self._repository.keep(kept_as or name, data)
        return True

    def _check_length(self, name: str, data: bytes, most: int) -> None:
        if len(data) > most:
            raise Refused(f"{self._repository.folder}: {name} has more than {most} bytes", reason="endless-data")

    def _check_lifetime(self, name: str, signed: Signed) -> None:
        check_lifetime(f"{self._repository.folder}: {name}", signed, self._trusted.reference_time)


class PinnedTargets:
    """Partial verification (Uptane 5.4.4.1): the Director's targets alone, under the root of the factory or a later one
    that it vouched for.

    For an ECU that cannot keep a repository. Of root and targets it remembers the versions of the last that it
    accepted, below which it does not go: a key that a root has given up does not come back.
    """

    def __init__(self, root: bytes, version: int = 0, root_version: int = 0) -> None:
        self.version, self._least = version, root_version
        with _translated("director", "root of the factory"):
            self._trusted = TrustedMetadataSet(root, EnvelopeType.METADATA)

    @property
    def root_version(self) -> int:
        return int(self._trusted.root.version)

    def follow(self, files: Mapping[str, bytes]) -> None:
        """Take the roots that came, each under the one before. Raises `Refused`."""
        for _ in range(ROOTS_MAX):
            name = f"{self.root_version + 1}.root.json"
            if name not in files:
                break
            if len(files[name]) > BYTES_MAX["root"]:
                raise Refused(f"director: {name} of too many bytes", reason="endless-data")
            with _translated("director", name):
                self._trusted.update_root(files[name])
        self._check_root_version()

    def _check_root_version(self) -> None:
        if self.root_version < self._least:
            raise Refused(f"director: root {self._least} is not among what came", reason="rollback")

    def accept(self, data: bytes, time_ms: int) -> Targets:
        """Raises `Refused`."""
        now = as_datetime(time_ms)
        if len(data) > BYTES_MAX["targets"]:
            raise Refused("director: targets of too many bytes", reason="endless-data")
        with _translated("director", "targets"):
            found = Metadata[Targets].from_bytes(data)
            if found.signed.type != Targets.type:
                raise exceptions.RepositoryError(f"expected targets, found {found.signed.type}")
            self._trusted.root.verify_delegate(Targets.type, found.signed_bytes, found.signatures)
            if found.signed.is_expired(now):
                raise exceptions.ExpiredMetadataError("targets are expired")
        if found.signed.version < self.version:
            raise Refused(f"director: targets {found.signed.version} after {self.version}", reason="rollback")
        check_lifetime("director: targets", found.signed, now)
        self.version = found.signed.version
        return found.signed

    @staticmethod
    def check(targets: Targets, name: str, data: bytes) -> None:
        """Raise `Forged` unless this is the target of that name."""
        with _translated("director", name):
            targets.targets[name].verify_length_and_hashes(data)


def check_lifetime(what: str, signed: Signed, now: datetime) -> None:
    """Raise `Refused` for metadata that would be good for longer than any of their kind should be."""
    if signed.expires - now > timedelta(days=DAYS_MAX[signed.type]):
        raise Refused(f"{what}: good for more than {DAYS_MAX[signed.type]} days", reason="lifetime")


def as_datetime(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms // 1000, UTC)


@contextmanager
def _translated(folder: str, name: str) -> Iterator[None]:
    """What tuf raises, as ours."""
    try:
        yield
    except exceptions.EqualVersionNumberError:
        raise
    except exceptions.ExpiredMetadataError as error:
        raise Refused(f"{folder}: {name}: {error}", reason="expired") from error
    except exceptions.BadVersionNumberError as error:
        raise Refused(f"{folder}: {name}: {error}", reason="rollback") from error
    except (exceptions.RepositoryError, ValueError) as error:  # values that no key or role can have
        raise Forged(f"{folder}: {name}: {error}") from error
