"""What does not get through says why: whose fault it is, to whoever typed the command, watches, or reads the log."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import done, refused, tally
from makers import INSTANCE
from provers import ROOT, Scene, trust_file
from server_thread import ServerThread
from stack import CHEAP, PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.witness import Witness
from tallystick.node.instance import create_instance, write_address
from tallystick.node.settings import NodeSettings
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Request, Router
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.notes import Algorithm, NoteSigner, ledger_verifiers
from tallystick.trust.trustfile import TrustFile

ROW = b'{"vin": "V", "seq": 1}\n'
SIGNER = NoteSigner("witness.example", SigningKey.from_seed(b"w" * 32), Algorithm.COSIGNATURE_V1)


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE.decode())


def people(stack: Stack) -> tuple[Path, Path]:
    """The homes of an owner and of a car that has published a row to its topic."""
    owner, car = stack.tenant("acme"), stack.principal("acme", "car")
    token = stack.topic(owner, "brakes", "vin string, seq int64")
    stack.grant(owner, token, car, WRITE | READ)
    # The authority may not have seen topic and right yet, least of all where witnesses come in between.
    wait_until(lambda: tally("publish", "brakes", "--home", car.identity.home, stdin=ROW).code == 0)
    return owner.identity.home, car.identity.home


def readiness(url: str) -> tuple[int, str]:
    """What whoever watches a node or an authority is told."""
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def is_ready(url: str) -> bool:
    return readiness(url) == (200, "ready\n")


def said(caplog: pytest.LogCaptureFixture, begin: str) -> int:
    return sum(record.getMessage().startswith(begin) for record in caplog.records)


def test_a_node_that_is_away_is_named_whoever_was_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Stack(tmp_path) as stack:
        owner, car = people(stack)
        write_address(stack.folders.authority, stack.authority.url, stack.authority.authority.certificate)
        away = f"node away: {stack.node.url}: "
        wait_until(lambda: is_ready(stack.authority.url))
        invitation = done("principal", "invite", "--home", owner).out.strip()
        caplog.clear()
        stack.stop_node()
        *_, error, hint = refused(4, "publish", "brakes", "--timeout", "1", "--home", car, stdin=ROW)
        assert away in error
        assert "when that is mended, tally spool flush sends them" in hint
        assert away in refused(4, "ledger", "status", "--home", car)[0]
        # The authority is up, and can do nothing without the node.
        wait_until(lambda: readiness(stack.authority.url)[1].startswith(away))
        assert readiness(stack.authority.url)[0] == 503
        assert away in refused(4, "instance", "settings", tmp_path)[0]
        assert away in refused(4, "principal", "enrol", invitation, "--home", tmp_path / "late")[0]
        stack.start_node()
        wait_until(lambda: is_ready(stack.authority.url) and is_ready(stack.node.url))
        wait_until(lambda: said(caplog, "authority: all is well again") == 1)
        assert said(caplog, "authority: node away") == 1
        done("publish", "brakes", "--home", car)
        assert len(done("subscribe", "brakes", "--home", car).rows) == 2


class AbsentWitness:
    """A witness that can leave and come back."""

    def __init__(self, trust: TrustFile) -> None:
        self._witness = Witness(SIGNER, {trust.origin: ledger_verifiers(trust)}, SeededDisk(1))
        self.is_away = False
        self.router = Router()
        self.router.add("POST", "/add-checkpoint", self._add)

    async def _add(self, request: Request) -> Answer:
        if self.is_away:
            return Answer(502)
        told = self._witness.add_checkpoint(await request.body(), int(SystemClock().now()))
        return Answer(told.status, told.body, told.content_type)


@pytest.fixture
def witnessed(tmp_path: Path) -> Iterator[tuple[Stack, AbsentWitness]]:
    now_ms, entropy = int(SystemClock().now() * 1000), SystemEntropy()
    trust = create_instance(
        *(tmp_path, "test", PASSPHRASE, NodeSettings(port=0), now_ms, entropy),
        witnesses=(SIGNER.verifier.encode(),),
        quorum=1,
        cost=CHEAP,
    )
    witness = AbsentWitness(trust)
    with ServerThread(witness.router) as server, Stack(tmp_path, node={"witness_urls": (server.url,)}) as stack:
        yield stack, witness


@pytest.mark.long
def test_a_witness_that_is_away_is_named_by_all(
    witnessed: tuple[Stack, AbsentWitness], caplog: pytest.LogCaptureFixture
) -> None:
    stack, witness = witnessed
    _, car = people(stack)
    urls = (stack.node.url, stack.authority.url)
    wait_until(lambda: all(map(is_ready, urls)))
    caplog.clear()
    witness.is_away = True
    *_, error, _ = refused(4, "publish", "brakes", "--timeout", "1", "--home", car, stdin=ROW)
    assert "witnesses away: 0 of 1 have cosigned the newest checkpoint; http://127.0.0.1:" in error
    wait_until(lambda: all(readiness(url)[1].startswith("witnesses away: 0 of 1") for url in urls))
    assert [readiness(url)[0] for url in urls] == [503, 503]
    assert "witnesses away" in done("ledger", "status", "--home", car, "--json").json["trouble"]
    wait_until(lambda: all(said(caplog, f"{who}: witnesses away") for who in ("node", "authority")))
    witness.is_away = False
    wait_until(lambda: all(map(is_ready, urls)))
    wait_until(lambda: said(caplog, "node: all is well again") == said(caplog, "authority: all is well again") == 1)
    assert [said(caplog, f"{who}: witnesses away") for who in ("node", "authority")] == [1, 1]
    done("publish", "brakes", "--home", car)
    assert done("ledger", "status", "--home", car, "--json").json["trouble"] is None


class ShiftedClock(SystemClock):
    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


def test_a_ledger_without_blocks_and_an_authority_behind_are_named(tmp_path: Path) -> None:
    clock = ShiftedClock()
    with Stack(tmp_path, clock=clock) as stack:
        node = stack.node
        assert node.trouble() == ""
        wait_until(lambda: is_ready(stack.authority.url))  # while it enrols itself it waits for the ledger
        with node.ledger._lock:  # type: ignore[attr-defined]  # no block is made meanwhile
            clock.ahead_s = 100
            assert node.trouble().startswith("ledger halted: no block since 1")
            assert readiness(node.url) == (503, f"{node.trouble()}\n")
            embedded, node.settings = node.settings, replace(node.settings, ledger="cometbft://127.0.0.1:1")
            assert node.trouble().startswith("chain halted: no block since 1")
            assert "tally chain status" in node.trouble()
            node.settings = embedded
            wait_until(lambda: readiness(stack.authority.url)[1].startswith("ledger halted: "))
        wait_until(lambda: is_ready(node.url) and is_ready(stack.authority.url))
        stack.stop_node()
        clock.ahead_s += 1000  # it has followed all there is, and that is too old to give out keys on
        assert stack.authority.service._behind().startswith("authority behind: the ledger's newest checkpoint is 1")
        stack.start_node()


# --- proofs ---


@pytest.fixture
def proof(tmp_path: Path) -> tuple[Path, Scene]:
    """A proof whose receipt three of four validators signed."""
    scene = replace(Scene.of(), trust=trust_file(ledger=4, ledger_threshold=3))
    file = tmp_path / "row.proof"
    file.write_bytes(scene.prove(receipt=scene.anchorage(signers=3).receipt(1)).encode())
    return file, scene


def test_verify_names_the_validators_that_signed(proof: tuple[Path, Scene], tmp_path: Path) -> None:
    file, scene = proof
    trust = tmp_path / "trust.json"
    trust.write_text(scene.trust.to_json())
    signed = [one.key_id.hex() for one in ledger_verifiers(scene.trust)[:3]]
    lines = done("verify", file, "--trust", trust).out
    assert f"3 of 4 validators signed this history, 3 must: {', '.join(signed)}" in lines
    assert "not proved: that the validators showed everybody the same history" in lines
    assert "operator" not in lines
    assert done("verify", file, "--trust", trust, "--json").json["anchored"]["validators"] == signed
    assert done("inspect", trust, "--json").json["ledger_key_ids"][:3] == signed


def test_verify_says_where_the_trust_file_is_that_names_who_signed(proof: tuple[Path, Scene], tmp_path: Path) -> None:
    file, _ = proof
    trust = tmp_path / "older.json"
    trust.write_text(replace(trust_file(), ledger_keys=(b"k" * 32,), signatures=()).sign(ROOT).to_json())
    error, hint = refused(3, "verify", file, "--trust", trust)
    assert error == "error: note: no signature of a known key"
    assert hint.startswith("hint: another trust file of the instance may name who signed")


def test_verify_names_a_wrong_trust_file_and_both_instances(proof: tuple[Path, Scene], tmp_path: Path) -> None:
    file, _ = proof
    other = tmp_path / "other"
    trust = create_instance(
        *(other, "other", PASSPHRASE, NodeSettings(port=0), 0, SystemEntropy()),
        cost=CHEAP,
    )
    error, hint = refused(3, "verify", file, "--trust", other / "trust.json")
    for part in (str(other / "trust.json"), trust.instance.hex(), INSTANCE.hex(), str(file)):
        assert part in error
    assert "--trust" in hint
    (other / "broken.json").write_text("{}")
    assert refused(3, "verify", file, "--trust", other / "broken.json")[0].startswith(f"error: {other / 'broken.json'}")
