"""Metadata: what a vehicle takes and what it refuses, each attack with and without its defence, and the same verdicts
as `tuf.ngclient.Updater`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest
from metadata_world import (
    DAY_MS,
    NOW_MS,
    SUPPLIER,
    Reader,
    Served,
    changed,
    keys_of,
    metadata_names,
    reading,
    role_keys,
)
from tuf.api import exceptions
from tuf.ngclient import Updater, UpdaterConfig
from tuf.ngclient.fetcher import FetcherInterface
from without import without

from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.fleet.ota.metadata import PinnedTargets, TrustedRepository, as_datetime
from tallystick.fleet.ota.repository import (
    FILES,
    ROLES,
    Repository,
    found_repository,
    load_keys,
    load_roots,
    replace_keys,
)
from tallystick.runtime.seeded_disk import PowerLost, SeededDisk

NAME = f"{SUPPLIER}/brake-mk2/1.0"
OLD, NEW = b"docket of the old image", b"docket of the new image"


@pytest.fixture
def served() -> Served:
    return Served("image", SUPPLIER)


def found(reader: Reader, files: Mapping[str, bytes], data: bytes, now_ms: int = NOW_MS) -> None:
    reader.refresh(files, now_ms).check(NAME, data)


# --- what is taken ---


def test_a_supplier_s_docket_is_found_under_its_delegation_and_a_repository_is_read_back(served: Served) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    reader = Reader(served)
    found(reader, files, OLD)
    served.repository = Repository(served.disk, "served", served.keys)  # as another process would
    found(reader, served.publish({NAME: NEW}, role=SUPPLIER), NEW)
    with pytest.raises(Refused, match="no target"):
        reader.refresh(served.repository.files()).check(f"{SUPPLIER}/brake-mk2/2.0", NEW)


def test_a_supplier_reaches_no_name_of_another(served: Served) -> None:
    served.repository.delegate("other", keys_of("other").signers, 1)
    served.keys["other"] = keys_of("other")
    served.publish({NAME: OLD}, role=SUPPLIER)
    files = served.publish({NAME: NEW}, role="other")
    found(Reader(served), files, OLD)
    with pytest.raises(Refused):
        found(Reader(served), files, NEW)


def test_keys_are_replaced_through_the_root(served: Served) -> None:
    reader = Reader(served)
    found(reader, served.publish({NAME: OLD}, role=SUPPLIER), OLD)
    served.rotate({**role_keys("new image"), SUPPLIER: served.keys[SUPPLIER]})
    found(reader, served.publish({NAME: NEW}, role=SUPPLIER), NEW)


# --- what is refused ---


def test_every_flipped_byte_is_found_and_its_file_named(served: Served) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    reader = Reader(served)
    for name in metadata_names(files):
        for at in range(0, len(files[name]), 97):
            altered = changed(files, name, at)
            blamed = ""
            try:
                found(Reader(served), altered, OLD)
            except Refused as error:
                blamed = str(error)
            else:  # white space, or a signature beyond the threshold: what was signed is as it was
                found(reader, altered, OLD)
            assert name in (blamed or name), at
    with pytest.raises(Refused, match=NAME):
        found(reader, files, NEW)


def test_a_freeze_ends_with_the_expiry_at_the_ledger_s_time(served: Served) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    reader = Reader(served)
    found(reader, files, OLD)
    for later in (8 * DAY_MS, 100 * DAY_MS):
        with pytest.raises(Refused, match="expired") as refused:
            found(reader, files, OLD, NOW_MS + later)
        assert refused.value.reason == "expired"
    with without("the ledger's time for metadata", stands_at=NOW_MS):  # a clock that somebody turned back
        found(reader, files, OLD, NOW_MS + 100 * DAY_MS)


def test_older_metadata_are_a_rollback(served: Served) -> None:
    old = served.publish({NAME: OLD}, role=SUPPLIER)
    reader = Reader(served)
    found(reader, served.publish({NAME: NEW}, role=SUPPLIER), NEW)
    with pytest.raises(Refused) as refused:
        found(reader, old, OLD)
    assert refused.value.reason == "rollback"
    with without("the metadata that were accepted"):
        found(reader, old, OLD)


def test_a_fast_forward_ends_when_the_root_names_new_keys(served: Served) -> None:
    reader = Reader(served)
    served.repository._versions.update({"timestamp": 1 << 30, "snapshot": 1 << 30})  # by a stolen key
    found(reader, served.publish({NAME: OLD}, role=SUPPLIER), OLD)
    served.repository._versions.update({"timestamp": 7, "snapshot": 7})
    with pytest.raises(Refused) as refused:
        found(reader, served.publish({NAME: NEW}, role=SUPPLIER), NEW)
    assert refused.value.reason == "rollback"
    served.rotate({**role_keys("new image"), "targets": served.keys["targets"], SUPPLIER: served.keys[SUPPLIER]})
    found(reader, served.publish({NAME: NEW}, role=SUPPLIER), NEW)


def test_metadata_that_never_expire_are_refused(served: Served) -> None:
    files = served.publish({NAME: OLD}, NOW_MS + 3650 * DAY_MS, SUPPLIER)
    with pytest.raises(Refused) as refused:
        found(Reader(served), files, OLD)
    assert refused.value.reason == "lifetime"
    with without("the bound on what metadata are good for"):
        found(Reader(served), files, OLD)


def test_endless_data_are_refused_by_their_length(served: Served) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    endless = {**files, "timestamp.json": files["timestamp.json"] + b" " * (1 << 20)}
    with pytest.raises(Refused) as refused:
        found(Reader(served), endless, OLD)
    assert refused.value.reason == "endless-data"
    with without("the length of metadata"):
        found(Reader(served), endless, OLD)


def test_parts_of_two_states_do_not_go_together(served: Served) -> None:
    old = served.publish({NAME: OLD}, role=SUPPLIER)
    new = served.publish({NAME: NEW}, role=SUPPLIER)
    mixed = {**new, f"2.{SUPPLIER}.json": old[f"1.{SUPPLIER}.json"], f"targets/{NAME}": OLD}
    with pytest.raises(Refused):
        found(Reader(served), mixed, OLD)


def test_one_key_of_two_is_below_the_threshold(served: Served) -> None:
    keys = served.keys["targets"]
    served.keys["targets"] = keys_of("image targets", 1)
    assert keys.threshold == 2
    with pytest.raises(Refused, match=r"1\.targets\.json"):
        found(Reader(served), served.publish({NAME: OLD}, role=SUPPLIER), OLD)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/../b", "acme//1", "/etc/passwd", "acme/x/..", "acme/x/A\n", ""]
)
def test_paths_are_no_names(served: Served, name: str) -> None:
    with pytest.raises(Refused) as refused:
        served.publish({name: OLD})
    assert refused.value.reason == "bad-name"


def test_a_role_that_is_a_path_is_refused(served: Served) -> None:
    served.publish({NAME: OLD}, role=SUPPLIER)
    targets = served.repository._targets["targets"]
    assert targets.delegations is not None
    assert targets.delegations.roles is not None
    role = targets.delegations.roles.pop(SUPPLIER)
    role.name = "../../../boot"
    targets.delegations.roles[role.name] = role
    files = served.publish({}, role="targets")
    with pytest.raises(Refused) as refused:
        found(Reader(served), files, OLD)
    assert refused.value.reason == "bad-name"


def test_a_missing_file_is_nobody_s_lie(served: Served) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    for name in ("timestamp.json", "1.snapshot.json", "1.targets.json", f"1.{SUPPLIER}.json"):
        with pytest.raises(Unavailable):
            found(Reader(served), {kept: data for kept, data in files.items() if kept != name}, OLD)


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 60_000, b'{"signed": {"_type": "root"}}', b"\xff" * 100])
def test_what_is_no_metadata_is_refused(served: Served, data: bytes) -> None:
    files = served.publish({NAME: OLD}, role=SUPPLIER)
    for name in ("2.root.json", *metadata_names(files)):
        with pytest.raises(Refused):
            found(Reader(served), {**files, name: data}, OLD)


# --- partial verification ---


def test_an_ecu_of_partial_verification_holds_the_director_s_targets_to_root_version_and_expiry() -> None:
    served = Served("director", parts=5)
    name = f"{'ab' * 16}/brakes/{NAME}"
    files = [served.publish({name: data})[f"{number}.targets.json"] for number, data in enumerate((OLD, NEW), 1)]
    pinned = PinnedTargets(served.root)
    pinned.check(pinned.accept(files[1], NOW_MS), name, NEW)
    for data, now_ms, reason in (
        (files[0], NOW_MS, "rollback"),
        (files[1], NOW_MS + 91 * DAY_MS, "expired"),
        (files[1], NOW_MS - 500 * DAY_MS, "lifetime"),
        (Served("other", parts=5).publish({name: NEW})["1.targets.json"], NOW_MS, "forged"),
        (served.repository.files()["timestamp.json"], NOW_MS, "forged"),
        (b" " * (2 << 20), NOW_MS, "endless-data"),
    ):
        with pytest.raises(Refused) as refused:
            pinned.accept(data, now_ms)
        assert refused.value.reason == reason


def test_an_ecu_of_partial_verification_follows_the_root_and_takes_no_key_that_it_gave_up() -> None:
    served, name = Served("director", parts=5), f"{'ab' * 16}/brakes/{NAME}"
    stolen = served.publish({name: OLD})
    served.rotate(role_keys("new director"))
    files = served.publish({name: NEW})
    pinned = PinnedTargets(served.root)
    pinned.follow(files)
    pinned.check(pinned.accept(files["2.targets.json"], NOW_MS), name, NEW)
    with pytest.raises(Refused):
        PinnedTargets(served.root).accept(files["2.targets.json"], NOW_MS)  # who did not follow
    with pytest.raises(Refused):
        PinnedTargets(served.root).follow(changed(files, "2.root.json", -10))
    with pytest.raises(Refused) as refused:
        PinnedTargets(served.root).follow({"2.root.json": b" " * (65 << 10)})
    assert refused.value.reason == "endless-data"

    def show_the_old_key() -> None:
        later = PinnedTargets(served.root, root_version=pinned.root_version)
        later.follow(stolen)
        later.check(later.accept(stolen["1.targets.json"], NOW_MS), name, OLD)

    with pytest.raises(Refused) as refused:
        show_the_old_key()
    assert refused.value.reason == "rollback"
    with without("the root that an ECU remembers"):
        show_the_old_key()


# --- new keys ---


def drawing(first: int) -> Callable[[], bytes]:
    numbers = count(first)
    return lambda: next(numbers).to_bytes(32, "big")


def sign(disk: SeededDisk, docket: bytes) -> dict[str, bytes]:
    repository = Repository(disk, FILES, load_keys(disk))
    repository.publish({NAME: docket}, NOW_MS)
    return repository.files()


def test_whenever_the_power_fails_while_keys_are_replaced_no_key_is_lost_that_a_root_names() -> None:
    for changes in range(1, 60):
        disk = SeededDisk(changes)
        reader = TrustedRepository(SeededDisk(2), "kept", found_repository(disk, drawing(1), NOW_MS))
        stolen = sign(disk, OLD)
        reader.refresh(reading(stolen), NOW_MS).check(NAME, OLD)
        disk.power_off_after(changes)
        try:
            replace_keys(disk, ROLES, drawing(100), NOW_MS)
        except PowerLost:
            disk.crash()
        else:
            disk.disarm()
            break
        assert replace_keys(disk, ROLES, drawing(200), NOW_MS) in (2, 3)  # 3: the first time it was nearly done
        reader.refresh(reading(sign(disk, NEW)), NOW_MS).check(NAME, NEW)
        with pytest.raises(Refused):
            reader.refresh(reading(stolen), NOW_MS)
    assert changes > 10


def test_a_root_is_renewed_with_the_same_keys_and_not_without_its_own() -> None:
    disk = SeededDisk(1)
    found_repository(disk, drawing(1), NOW_MS)
    assert [replace_keys(disk, (), drawing(9), NOW_MS + year * 300 * DAY_MS) for year in (1, 2)] == [2, 3]
    assert list(load_roots(disk)) == ["1.root.json", "2.root.json", "3.root.json"]
    disk.remove("keys/root")
    with pytest.raises(Misuse):
        replace_keys(disk, (), drawing(9), NOW_MS)


# --- power cuts ---


def test_a_power_cut_at_any_write_leaves_metadata_that_no_old_ones_replace(served: Served) -> None:
    old = served.publish({NAME: OLD}, role=SUPPLIER)
    new = served.publish({NAME: NEW}, role=SUPPLIER)
    for changes in range(1, 60):
        disk = SeededDisk(changes)
        found(Reader(served, disk), old, OLD)
        disk.power_off_after(changes)
        try:
            found(Reader(served, disk), new, NEW)
        except (PowerLost, Unavailable):
            disk.crash()
        else:
            disk.disarm()
            break
        found(Reader(served, disk), new, NEW)
        disk.crash()
        with pytest.raises(Refused) as refused:
            found(Reader(served, disk), old, OLD)
        assert refused.value.reason == "rollback"
    assert changes > 10


def test_without_syncing_a_power_cut_tears_them_and_old_ones_come_back(served: Served) -> None:
    old, new = (served.publish({NAME: data}, role=SUPPLIER) for data in (OLD, NEW))
    came_back = 0
    for seed in range(10):
        disk = SeededDisk(seed)
        with without("the atomic writing of metadata"):
            found(Reader(served, disk), new, NEW)
        disk.crash()
        try:
            found(Reader(served, disk), old, OLD)
        except Refused:
            continue
        came_back += 1
    assert came_back


# --- the same verdicts as Updater ---


class FolderFetcher(FetcherInterface):
    """Files of a dictionary; no network."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self._files.get(urlsplit(url).path.removeprefix("/"))
        if data is None:
            raise exceptions.DownloadHTTPError("not found", 404)
        yield data


def verdict_of_updater(served: Served, folder: Path, files: Mapping[str, bytes], now_ms: int) -> str:
    config = UpdaterConfig(prefix_targets_with_hash=False)
    try:
        updater = Updater(
            str(folder),
            "http://x/",
            str(folder),
            "http://x/targets/",
            FolderFetcher(files),
            config,
            bootstrap=served.root,
        )
        updater._trusted_set.reference_time = as_datetime(now_ms)
        target = updater.get_targetinfo(NAME)
        if target is None:
            return "not-in-metadata"
        return Path(updater.download_target(target)).read_bytes().decode()
    except exceptions.ExpiredMetadataError:
        return "expired"
    except exceptions.BadVersionNumberError:
        return "rollback"
    except (exceptions.RepositoryError, exceptions.DownloadLengthMismatchError, ValueError):
        return "forged"
    except exceptions.DownloadError:
        return "not there"


def verdict_of_ours(reader: Reader, files: Mapping[str, bytes], now_ms: int) -> str:
    try:
        targets = reader.refresh(files, now_ms)
        data = files.get(f"targets/{NAME}")
        if data is None and targets.find(NAME) is not None:
            return "not there"
        targets.check(NAME, data or b"")
        return (data or b"").decode()
    except Unavailable:
        return "not there"
    except Refused as error:
        return error.reason


def compare(seed: int, folder: Path) -> set[str]:
    """A story of some states, and what servers make of them; every verdict of both."""
    random, served = Random(seed), Served("image", SUPPLIER)
    reader, now_ms = Reader(served), NOW_MS
    history = [served.publish({NAME: OLD}, now_ms, SUPPLIER)]
    seen = set()
    for step in range(8):
        match random.randrange(5):
            case 0 | 1:
                data = f"docket {seed} {step}".encode()
                history.append(served.publish({NAME: data}, now_ms, SUPPLIER))
            case 2:
                now_ms += random.randrange(5) * DAY_MS
            case 3 if random.random() < 0.5:
                served.rotate({**role_keys(f"{seed} {step}"), SUPPLIER: served.keys[SUPPLIER]}, now_ms)
                history.append(served.publish({}, now_ms, "targets"))
            case 3:
                history.append(served.publish({}, now_ms, SUPPLIER))
        files = dict(random.choice(history[-3:]))
        match random.randrange(5):
            case 0:
                name = random.choice(metadata_names(files))
                files = changed(files, name, random.randrange(1 << 16))
            case 1:
                files.pop(random.choice(list(files)))
            case 2:
                others = random.choice(history)
                files |= {name: others[name] for name in files if name in others and random.random() < 0.5}
        ours, theirs = verdict_of_ours(reader, files, now_ms), verdict_of_updater(served, folder, files, now_ms)
        assert ours == theirs, (seed, step)
        seen.add(ours.split()[0])
    return seen


def test_verdicts_are_those_of_updater(tmp_path: Path) -> None:
    seen = set().union(*(compare(seed, tmp_path / str(seed)) for seed in range(12)))
    assert {"docket", "expired", "rollback", "forged", "not", "not-in-metadata"} <= seen


@pytest.mark.long
def test_verdicts_are_those_of_updater_in_many_stories(tmp_path: Path) -> None:
    for seed in range(1000, 1060):
        compare(seed, tmp_path / str(seed))
