"""`tally instance` as an operator types it: settings, pardons, activations, hosts, witnesses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Fleet, done, refused, tally
from server_thread import ServerThread
from stack import PASSPHRASE, READ, WRITE, Stack, wait_until
from without import without

from tallystick.authority.store import STORE_FILE, AuthorityStore
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.errors import Forged
from tallystick.identity.folder import Identity
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.settings import VERSIONS
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.ledger.witness import Witness
from tallystick.node.instance import write_address
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Request, Router
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.trust.notes import Algorithm, NoteSigner, ledger_verifiers
from tallystick.trust.trustfile import TrustFile

SIGNER = NoteSigner("witness.example/w", SigningKey.from_seed(b"w" * 32), Algorithm.COSIGNATURE_V1)


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """An instance of an earlier release, whose operator has activated nothing."""
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())
    stack = Stack(tmp_path / "fleet")
    with closing(AuthorityStore(str(stack.folders.authority / STORE_FILE))) as store:
        store.set_meta("founding", None)
    with stack:
        tell_addresses(stack)
        yield stack


def tell_addresses(stack: Stack) -> None:
    write_address(stack.folders.node, stack.node.url, stack.node.keys.certificate)
    write_address(stack.folders.authority, stack.authority.url, stack.authority.authority.certificate)


def test_settings_are_shown_and_set_after_asking_back(fleet: Fleet) -> None:
    shown = done("instance", "settings", fleet.folder, "--json").json
    assert (shown["rise_max"], shown["reputation_start"]) == (10, 100)
    said = tally("instance", "settings", fleet.folder, "rise_max", 11, stdin=b"n\n")
    assert (said.code, said.out) == (130, "")
    assert "10 becomes 11, for all tenants" in said.err
    assert done("instance", "settings", fleet.folder, "rise_max").out.split()[-4:] == ["10", "0,", "1000000,", "10"]
    assert done("instance", "settings", fleet.folder, "rise_max", 11, "--yes").out == "rise_max is 11\n"
    assert done("instance", "settings", fleet.folder, "rise_max", "--json").json == {"rise_max": 11}
    assert refused(2, "instance", "settings", fleet.folder, "fall_max", 1, "--yes")[-1].startswith("hint: known are")
    assert "0 to 1000000 expected" in refused(3, "instance", "settings", fleet.folder, "rise_max", 10**7, "--yes")[-1]


def test_only_who_is_blacklisted_is_lifted(fleet: Fleet) -> None:
    car = Identity.load(fleet.car).principal.hex()
    assert "is not blacklisted" in refused(3, "instance", "lift", fleet.folder, car, "--yes")[-1]
    assert "32 hexadecimal digits" in refused(2, "instance", "lift", fleet.folder, "car", "--yes")[-1]


def test_a_release_comes_into_force_at_one_height_and_can_be_withdrawn_before(older: Stack) -> None:
    folder, released = older.folders.root, newest()
    assert released, "a release without new contracts shows nothing here"
    done("instance", "activate", folder, "--yes", "--json")
    versions = older.node.ledger.query(lambda state: state.row(VERSIONS()))
    assert versions is not None
    assert {name: version for name, version, _ in versions} == released
    assert len({height for name, _, height in versions if name != "settings"}) <= 1
    assert done("instance", "activate", folder).out == "everything of this release is in force, or will be\n"
    soon = max(height for name, _, height in versions if name == "settings")
    wait_until(lambda: older.node.ledger.height > soon)
    waiting = [one for one in versions if one[0] != "settings"]
    if waiting:
        withdrawn = done("instance", "activate", folder, "--withdraw", "--yes", "--json").json
        assert withdrawn == waiting
    assert "nothing waits" in refused(2, "instance", "activate", folder, "--withdraw", "--yes")[0]


def test_a_release_that_a_replica_lacks_is_not_activated(older: Stack) -> None:
    router = Router()

    async def contracts(_: Request) -> Answer:
        return Answer(404)

    router.add("GET", "/v1/ledger/contracts", contracts)
    with ServerThread(router) as server:
        write_address(older.folders.node, server.url, older.node.keys.certificate)
        said = refused(4, "instance", "activate", older.folders.root, "--yes")
    assert "upgrade tallystick there" in said[-1]
    assert older.node.ledger.query(lambda state: state.row(VERSIONS())) is None


def test_an_instance_gets_a_witness_and_clients_take_its_trust_file_up(older: Stack) -> None:
    owner, reader = older.tenant("acme"), older.principal("acme", "reader")
    topic = older.topic(owner, "brakes", "vin string")
    older.grant(owner, topic, owner, WRITE)
    older.grant(owner, topic, reader, READ)
    reader.view.refresh()
    folder, old = older.folders.root, reader.identity.trust
    older.stop_authority()
    older.stop_node()
    witness = Witness(SIGNER, {old.origin: ledger_verifiers(old)}, SeededDisk(1))
    router = Router()

    async def add(request: Request) -> Answer:
        told = witness.add_checkpoint(await request.body(), int(older.clock.now()))
        return Answer(told.status, told.body, told.content_type)

    router.add("POST", "/add-checkpoint", add)
    with ServerThread(router) as served:
        key = SIGNER.verifier.encode()
        assert "--witness-url" in refused(2, "instance", "trust", folder, "--witness", key, "--yes")[-1]
        said = done("instance", "trust", folder, "--witness", key, "--witness-url", served.url, "--yes")
        assert "number 2, 1 of 1 witnesses cosign" in said.out
        older._node_settings["witness_urls"] = (served.url,)
        older.start_node()
        older.start_authority()
        with owner.publisher("brakes") as publisher:
            publisher.produce({"vin": "V"})
        with reader.subscriber("brakes") as subscriber:
            assert next(iter(subscriber)).batch.data.num_rows == 1
        assert reader.memory.trust.number == 2
        reader.close()
        tell_addresses(older)
        for seen in (["--home", reader.identity.home], [folder]):
            said = done("status", *seen)
            assert "ok      witnesses     1 of 1 cosigned, 1 must; witnesses cosigned this history: witness" in said.out
        note = owner.node.checkpoint()
    assert Identity.load(reader.identity.home).trust.witnesses == (key,)
    # Who believes the new file takes no checkpoint without the witness, and who is shown a forged one does not change.
    new = Identity.load(reader.identity.home).trust
    lone = note[: note.index(b"\xe2\x80\x94 witness.example/w")]
    with pytest.raises(Forged, match="1 cosignatures expected, found 0"):
        CheckpointMemory(new, SeededDisk(1)).accept(lone, older.node.ledger.consistency)
    usurper = RootKey.from_seed(b"u" * 32)
    claimed = replace(new, roots=(usurper.public.raw,), witnesses=(), quorum=0, signatures=()).sign(usurper)

    def follow() -> TrustFile:
        memory = CheckpointMemory(old, SeededDisk(1), lambda: [claimed.to_json()])
        memory.accept(note, older.node.ledger.consistency)
        return memory.trust

    assert follow() is old, "it is whole in itself, and no root that we know signed it"
    with without("the old roots' word on a new trust file"):
        assert follow().roots == (usurper.public.raw,)
