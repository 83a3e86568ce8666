"""Every released version left an instance behind; this version opens it, and finds what was there.

So an upgrade is tested: the ledger replays to the same roots, the log is whole, readers get every row, publishers send
what they had spooled, the authority and its backup open. Time is that of the history: nothing in it runs out.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pyrage
import pytest
from commands import done
from past import (
    CONTRACTS,
    CURRENT,
    MESH,
    VERSIONS,
    Found,
    History,
    live,
    look_at_authority,
    look_at_home,
    look_at_ledger,
    look_at_log,
    look_at_mesh,
    replay,
)
from policy_world import need_pymcl
from stack import Stack, log_store

from tallystick.authority.backup import lost_epochs
from tallystick.authority.master import MASTER_FILE, open_master
from tallystick.authority.store import TABLES
from tallystick.carriers.storage import Place
from tallystick.errors import Forged
from tallystick.ledger.contracts import execute, settings
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.state import Handler
from tallystick.parcel import header, locks
from tallystick.record import codec

# Of the contracts that run from genesis on; what is activated later has a ledger of its own.
KINDS = sorted({int(kind) for name in execute.AT_GENESIS for kind in execute.CONTRACTS[name, 1]})
ACTIVATED = [(*one, int(kind)) for one in execute.newest().items() for kind in execute.CONTRACTS[one]]
# Whose second version refuses more, and does the same where it accepts.
REFUSES_MORE = {EntryKind.BROKEN_PROMISE, EntryKind.COMMIT_OFFSET, EntryKind.RESET_OFFSET}
CHANGED = [
    (name, kind)
    for name, version, kind in ACTIVATED
    if version == 2 and kind not in REFUSES_MORE
    if execute.CONTRACTS[name, 1].get(kind) not in (None, execute.CONTRACTS[name, 2][kind])
]


@pytest.fixture(scope="module", params=VERSIONS)
def history(request: pytest.FixtureRequest) -> History:
    return History(request.param)


@pytest.fixture(scope="module")
def expected(history: History) -> Found:
    return history.expected


@pytest.fixture(scope="module")
def at_rest(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that nothing is started on."""
    return history.unpack(tmp_path_factory.mktemp("at-rest"))


# --- at rest ---


def test_the_ledger_replays_to_the_same_roots(at_rest: Path, expected: Found) -> None:
    found = look_at_ledger(at_rest)
    assert found == expected["at_rest"]["ledger"]
    report = done("ledger", "fsck", at_rest, "--json").json
    assert (report["height"], report["transactions"]) == (found["height"], found["transactions"])


def test_the_log_is_whole_and_every_parcel_verifies(at_rest: Path, expected: Found) -> None:
    assert look_at_log(at_rest) == expected["at_rest"]["log"]


def test_homes_open_with_their_checkpoints_and_spools(at_rest: Path, expected: Found) -> None:
    homes = expected["at_rest"]["homes"]
    assert {name: look_at_home(at_rest / "homes" / name) for name in homes} == homes


def test_the_authority_s_store_opens_with_every_row(history: History, at_rest: Path, expected: Found) -> None:
    open_master((at_rest / "authority" / MASTER_FILE).read_bytes(), history.passphrase)
    assert expected["at_rest"]["authority"].items() <= look_at_authority(at_rest / "authority").items()


def test_a_proof_of_then_holds_and_certificates_are_shown(history: History, at_rest: Path) -> None:
    shown = done("verify", history.folder / "row.proof", "--trust", at_rest / "trust.json", "--json").json
    assert shown["holds"]
    for file, kind in [("trust.json", "trust file"), ("node/certificate", "certificate")]:
        assert done("inspect", at_rest / file, "--json").json["kind"] == kind


# --- at work ---


@pytest.fixture(scope="module")
def alive(history: History, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Found]]:
    """Node and authority on a copy, and what people read there."""
    need_pymcl()
    with history.stack(history.unpack(tmp_path_factory.mktemp("alive"))) as stack:
        yield stack, live(stack, history.expected["readers"])


def test_readers_get_every_row_and_a_group_goes_on_where_it_stood(alive: tuple[Stack, Found], expected: Found) -> None:
    assert alive[1] == expected["read"]


def test_what_waited_in_the_spool_is_in_the_log_byte_by_byte(alive: tuple[Stack, Found], expected: Found) -> None:
    token = bytes.fromhex(expected["topics"]["brakes"])
    trees = [log_store(alive[0]).tree(Place(token, number)) for number in range(2)]
    partitions = [[tree.parcel_hash(offset) for offset in range(tree.end_offset)] for tree in trees]
    spooled = [bytes.fromhex(parcel) for parcel in expected["at_rest"]["homes"]["car"]["spooled"]]
    assert len(spooled) > 1
    for parcel in spooled:
        assert [parcel in one for one in partitions].count(True) == 1


def test_an_invitation_of_then_is_good(alive: tuple[Stack, Found], expected: Found) -> None:
    assert alive[0]._enrol("invited", expected["invite"]).identity.principal


def test_a_backup_of_then_is_restored_and_serves(history: History, expected: Found, tmp_path: Path) -> None:
    """With the keys that it lacks lost and what was erased since erased, everybody reads what they read before."""
    need_pymcl()
    folder = history.unpack(tmp_path)
    shutil.rmtree(folder / "authority")
    done("authority", "restore", history.folder / "authority.age", folder, "--identity", history.folder / "age.key")
    assert expected["backup"].items() <= look_at_authority(folder / "authority").items()
    with history.stack(folder) as stack:
        assert live(stack, expected["readers"]) == expected["read"]
        lost = [token.hex() for token, _ in lost_epochs(stack.authority.authority.core.store)]
        assert expected["topics"]["quiet"] in lost


def test_an_authority_of_then_is_backed_up_by_today_s_command(history: History, tmp_path: Path) -> None:
    folder, age = history.unpack(tmp_path / "then"), pyrage.x25519.Identity.generate()
    (tmp_path / "age.key").write_text(str(age))
    done("authority", "backup", folder, "--to", age.to_public(), "-o", tmp_path / "new.age")
    before = look_at_authority(folder / "authority")
    (folder / "authority").rename(folder / "before")
    done("authority", "restore", tmp_path / "new.age", folder, "--identity", tmp_path / "age.key")
    assert look_at_authority(folder / "authority") == before | {"meta": before["meta"] + 1}  # it is marked as restored


# --- that it can fail ---


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger that this version left."""
    return History(CURRENT).unpack(tmp_path_factory.mktemp("bent")) / "node" / "ledger.sqlite"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_does_nothing_any_more_is_noticed(ledger: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kind of entry it is for: so each of them left something behind in the history."""
    execute._handlers.cache_clear()
    for table in execute.CONTRACTS.values():
        if kind in table:
            monkeypatch.setitem(table, kind, lambda call, entry: None)
    try:
        with pytest.raises(Forged, match=r"state root|the contracts refuse it"):
            replay(ledger)
    finally:
        execute._handlers.cache_clear()


@contextmanager
def rule(contract: str, version: int, kind: int, handler: Handler) -> Iterator[None]:
    """Another rule in the place of a contract's."""
    execute._handlers.cache_clear()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(execute.CONTRACTS[contract, version], kind, handler)
            yield
    finally:
        execute._handlers.cache_clear()


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger on which all that is activated came into force."""
    return History(CONTRACTS).unpack(tmp_path_factory.mktemp("contracts"))


def test_activated_contracts_replay_to_the_same_roots(contracts: Path) -> None:
    found = look_at_ledger(contracts)
    assert found == History(CONTRACTS).expected
    assert "spent" in found["state"], "what tenants used of their quotas"
    assert done("ledger", "fsck", contracts, "--json").json["height"] == found["height"]


@pytest.mark.parametrize(("contract", "version", "kind"), ACTIVATED)
def test_an_activated_rule_that_does_nothing_any_more_is_noticed(
    contracts: Path, contract: str, version: int, kind: int
) -> None:
    nothing = rule(contract, version, kind, lambda call, entry: None)
    with nothing, pytest.raises(Forged, match=r"state root|contracts refuse it"):
        replay(contracts / "node" / "ledger.sqlite")


@pytest.mark.parametrize(("contract", "kind"), CHANGED)
def test_the_rule_of_before_is_noticed_in_its_place(contracts: Path, contract: str, kind: int) -> None:
    before = execute.CONTRACTS[contract, 1][kind]
    with rule(contract, 2, kind, before), pytest.raises(Forged, match=r"state root|contracts refuse it"):
        replay(contracts / "node" / "ledger.sqlite")


def test_another_default_is_noticed(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.SETTINGS, "reputation_fall", settings.Setting(11, 0, 100))
    with pytest.raises(Forged, match="state root"):
        replay(ledger)


# --- that nothing is left out ---


@pytest.fixture(scope="module")
def current() -> Found:
    assert CURRENT in VERSIONS, f"PYTHONPATH=tests python tests/history/make_history.py {CURRENT}"
    return History(CURRENT).expected


def test_this_version_s_history_has_every_kind_of_entry(current: Found) -> None:
    assert sorted(map(int, current["at_rest"]["ledger"]["kinds"])) == KINDS
    assert current["at_rest"]["ledger"]["refused"] > 0


def test_this_version_s_history_has_every_kind_of_parcel_lock_and_codec(current: Found) -> None:
    log = current["at_rest"]["log"]
    parcels = [set(parcel.split()[1:]) for one in log["partitions"].values() for parcel in one["parcels"]]
    special = {"topics", "groups", "pending", "padded", "labels", "late"}
    assert set().union(*parcels) == special | {kind.name.lower() for kind in header.ParcelKind}
    later = {"ShareLock"}  # of a carrier that no node runs yet
    assert {one.__name__ for one in get_args(locks.Lock)} - later < set(log["deposits"])
    assert current["codecs"] == sorted(codec.NAMES)
    assert any(one["segments"] > 1 for one in log["partitions"].values())
    assert any(one["retired"] for one in log["partitions"].values())


def test_this_version_s_authority_has_rows_in_every_table(current: Found) -> None:
    waiting = {"outbox", "sent"}  # for the ledger, for moments
    rows: dict[str, Any] = {**current["at_rest"]["authority"], **History(MESH).expected["rows"]}
    assert {name for name in TABLES if not rows.get(name)} == waiting


def test_an_authority_finds_the_members_of_its_mesh_and_gives_the_same_keys(tmp_path: Path) -> None:
    assert look_at_mesh(History(MESH).unpack(tmp_path)) == History(MESH).expected


def test_a_history_is_small() -> None:
    for version in (*VERSIONS, CONTRACTS, MESH):
        assert sum(path.stat().st_size for path in History(version).folder.iterdir()) < 1 << 20
