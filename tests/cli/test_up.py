"""`tally up` as processes: two of them, supervised, apart from one another's secrets, and with a witness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import done
from stack import wait_until

TALLY = [sys.executable, "-m", "tallystick.cli"]
PASSPHRASE = "the passphrase of this test"
PATIENCE_S = 180  # only what hangs takes so long, however busy the machine


@contextmanager
def running(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A command that serves: the process, and what it said when it was ready."""
    process = subprocess.Popen(
        [*TALLY, *map(str, arguments), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def children(process: subprocess.Popen[str]) -> dict[str, int]:
    """The processes under a supervisor, by what they are."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
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


def test_a_wrong_passphrase_ends_it_with_one_error(instance: Path) -> None:
    ended = subprocess.run(
        [*TALLY, "up", str(instance)],
        env=os.environ | {"TALLY_PASSPHRASE": "wrong"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.splitlines() == [
        "error: master key: cannot open",
        "hint: check the passphrase: its file, or the environment",
    ]


def test_with_a_witness_every_checkpoint_is_cosigned(tmp_path: Path) -> None:
    folder, city = tmp_path / "fleet", tmp_path / "city"
    vkey = done("witness", "init", city, "--name", "witness.example").out.strip()
    ports = ["--port", "0", "--authority-port", "0"]
    done("init", folder, *ports, "--witness", vkey, "--witness-url", "http://127.0.0.1:9")
    with running("witness", "run", city, "--trust", folder / "trust.json", "--port", "0") as (_, witness):
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
