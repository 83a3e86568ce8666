"""`tally up` as processes: two of them, supervised, apart from one another's secrets, and with a witness."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S, TALLY, done, running
from stack import wait_until

PASSPHRASE = "the passphrase of this test"


def children(process: subprocess.Popen[str]) -> dict[str, int]:
    """The processes under a supervisor, by what they are."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with suppress(FileNotFoundError):  # it ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            found["node" if b"--node-only" in command else "authority"] = int(pid)
    return found


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_PASSPHRASE", PASSPHRASE)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: whatever happens to its processes, the next ones start from its folder."""
    folder = tmp_path_factory.mktemp("up") / "fleet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALLY_PASSPHRASE", PASSPHRASE)
        done("init", folder, "--port", "0", "--authority-port", "0")
    return folder


pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")


def test_two_processes_that_share_no_secret_and_are_looked_after(instance: Path) -> None:
    with running("up", instance) as (up, urls):
        pids = children(up)
        assert set(pids) == {"node", "authority"}
        # The node runs without the passphrase, and has no key that opens anything in its folder.
        assert PASSPHRASE.encode() not in Path(f"/proc/{pids['node']}/environ").read_bytes()
        assert PASSPHRASE.encode() in Path(f"/proc/{pids['authority']}/environ").read_bytes()
        # One that dies is started again, where it was.
        os.kill(pids["authority"], signal.SIGKILL)
        wait_until(lambda: children(up).get("authority", pids["authority"]) != pids["authority"])
        wait_until(lambda: json_of("authority", "status", instance).get("ready") == 1)
        assert json_of("authority", "status", instance)["url"] == urls["authority"]
        last = children(up)
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE_S) == 0
        assert "Traceback" not in (up.stderr.read() if up.stderr else "")
        assert not any(is_alive(pid) for pid in last.values())
    done("ledger", "fsck", instance)


def json_of(*arguments: object) -> dict[str, Any]:
    from commands import tally

    said = tally(*arguments, "--json")
    return dict(said.json) if said.code == 0 else {}


def test_nobody_is_left_behind_when_the_supervisor_is_killed(instance: Path) -> None:
    with running("up", instance) as (up, _):
        pids = children(up)
        up.kill()
        up.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids.values()))


def test_a_process_ends_that_is_told_to_as_soon_as_it_speaks(instance: Path) -> None:
    """It listens already and does not serve yet, so that no server is there to take the signal."""
    with running("up", instance, "--node-only") as (node, _):
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE_S) == 0


def ends(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that cannot serve."""
    return subprocess.run(
        [*TALLY, *map(str, arguments)],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("alone", [[], ["--node-only"]])
def test_a_second_one_on_the_same_folder_is_told_who_has_it(instance: Path, alone: list[str]) -> None:
    with running("up", instance, "--node-only") as (node, _):
        ended = ends("up", instance, *alone)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert ended.stderr.splitlines() == [
        f"error: {instance / 'node'}: another process serves this folder, number {node.pid}",
        "hint: use the one that runs, or end it first; another instance needs a folder of its own (tally init)",
    ]


@pytest.mark.parametrize("spoiled", ["lock", "log"])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, spoiled: str) -> None:
    folder = tmp_path / "fleet"
    done("init", folder, "--port", "0", "--authority-port", "0")
    path = folder / "node" / spoiled
    path.mkdir() if spoiled == "lock" else path.write_text("")
    ended = ends("up", folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    error, hint = ended.stderr.splitlines()
    assert str(path) in error
    assert "directory" in error
    assert hint.endswith("name another path")


def test_a_port_that_somebody_holds_is_named_with_the_options_that_choose_another(instance: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        command = [*TALLY, "up", str(instance), "--port", str(taken)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.returncode == 4
    assert f"error: cannot listen on 127.0.0.1 port {taken}: " in said.stderr
    assert "hint: another process may hold it; --port and --authority-port choose another" in said.stderr


def test_two_addresses_of_kafka_are_refused(instance: Path, tmp_path: Path) -> None:
    file = tmp_path / "operator.json"
    file.write_text(json.dumps({"bootstrap.servers": "127.0.0.1:2"}))
    ended = ends("up", instance, "--carrier", "kafka://127.0.0.1:1", "--kafka-settings", file)
    assert (ended.returncode, ended.stdout) == (2, "")
    error, hint = ended.stderr.splitlines()
    assert error == f'error: carrier kafka://127.0.0.1:1: {file} names other brokers, bootstrap.servers "127.0.0.1:2"'
    assert "--carrier kafka://127.0.0.1:2" in hint


def test_a_wrong_passphrase_ends_it_with_one_error(instance: Path) -> None:
    ended = ends("up", instance, TALLY_PASSPHRASE="wrong")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines() == [
        "error: master key: cannot open",
        "hint: check the passphrase: its file, or the environment",
    ]


@pytest.mark.long
def test_with_a_witness_every_checkpoint_is_cosigned(tmp_path: Path) -> None:
    folder, city = tmp_path / "fleet", tmp_path / "city"
    vkey = done("witness", "init", city, "--name", "witness.example").out.strip()
    ports = ["--port", "0", "--authority-port", "0"]
    done("init", folder, *ports, "--witness", vkey, "--witness-url", "http://127.0.0.1:9")
    with running("witness", "run", city, "--trust", folder / "trust.json", "--port", "0") as (_, witness):
        second = ends("witness", "run", city, "--trust", folder / "trust.json", "--port", "0")
        assert second.returncode == 4
        assert f"{city}: another process serves this folder" in second.stderr
        settings = folder / "node" / "node.toml"
        settings.write_text(settings.read_text().replace("http://127.0.0.1:9", witness["url"]))
        with running("up", folder) as (up, _):
            invitation = done("tenant", "create", "acme", folder).out.strip()
            done("principal", "enrol", invitation, "--home", tmp_path / "owner")
            shown = done("ledger", "status", "--home", tmp_path / "owner", "--json").json
            assert shown["cosigners"] == ["witness.example"]
            done("topic", "create", "brakes", "--schema", "a int8", "--home", tmp_path / "owner")
            for word in ("read", "write"):
                done("right", "grant", "brakes", "owner", word, "--home", tmp_path / "owner")
            done("publish", "brakes", "--home", tmp_path / "owner", stdin=b'{"a": 1}\n')
            group = ["subscribe", "brakes", "--group", "g", "--home", tmp_path / "owner"]
            assert done(*group).rows == [{"a": 1}]
            # What carries sealed parcels looks into none: it has loaded neither Arrow nor a compiler.
            loaded = Path(f"/proc/{children(up)['node']}/maps").read_text()
            assert "apsw" in loaded
            assert not any(library in loaded for library in ("libarrow", "llvmlite", "_multiarray_umath"))
