"""What goes wrong at a prompt is said in a sentence: paths that cannot be written, closed pipes, nothing to list."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from commands import Fleet, done, refused
from prometheus_client.parser import text_string_to_metric_families

from tallystick.cli import output
from tallystick.runtime.metrics import HELP

TALLY = [sys.executable, "-m", "tallystick.cli"]
PATIENCE_S = 180
ROW = b'{"vin": "V1", "seq": 1}\n'


@pytest.fixture(scope="module")
def used(fleet: Fleet) -> Fleet:
    fleet.topic("said")
    done("publish", "said", "--home", fleet.car, stdin=ROW)
    done("subscribe", "said", "--home", fleet.reader)
    return fleet


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file where a folder is wanted: nobody can write below it, not even root."""
    path = tmp_path / "file"
    path.write_text("")
    return path


def named(lines: list[str], path: Path) -> bool:
    """Whether there are an error with path and reason, and a hint, and nothing else."""
    error, hint = lines
    is_told = error.startswith("error: ") and str(path) in error and hint.startswith("hint: ")
    return is_told and ("not a directory" in error or "no such file" in error)


@pytest.mark.parametrize("place", ["file", "/proc"])
def test_init_where_nothing_can_be_written(place: str, file: Path) -> None:
    folder = (file if place == "file" else Path(place)) / "fleet"
    assert named(refused(2, "init", folder), folder)


def test_enrol_where_nothing_can_be_written_keeps_the_invitation(used: Fleet, file: Path, tmp_path: Path) -> None:
    invitation = done("principal", "invite", "--home", used.owner).out.strip()
    assert named(refused(2, "principal", "enrol", invitation, "--home", file / "late"), file / "late")
    done("principal", "enrol", invitation, "--home", tmp_path / "late")


@pytest.mark.parametrize(
    "command",
    [
        ["prove", "said", "--offset", "0", "--row", "0"],
        ["ledger", "receipt", "said", "--offset", "0"],
        ["ledger", "checkpoint"],
    ],
)
@pytest.mark.parametrize("place", ["file", "/proc"])
def test_a_file_that_cannot_be_written(command: list[str], place: str, used: Fleet, file: Path) -> None:
    path = (file if place == "file" else Path(place)) / "it"
    assert named(refused(2, *command, "-o", path, "--home", used.reader), path)


def test_a_backup_that_cannot_be_written(used: Fleet, file: Path) -> None:
    pyrage = pytest.importorskip("pyrage")
    path, recipient = file / "fleet.age", pyrage.x25519.Identity.generate().to_public()
    error, hint = refused(2, "authority", "backup", used.folder, "--to", recipient, "-o", path)
    assert error == f"error: {file}: file exists"  # where its folder would be made
    assert "where a folder may be needed" in hint


@pytest.mark.parametrize(
    ("command", "spoiled"),
    [
        (["publish", "said"], "spool"),
        (["publish", "said"], "ledger"),
        (["subscribe", "said"], "ledger"),
    ],
)
def test_an_identity_whose_folder_cannot_be_written(
    command: list[str], spoiled: str, used: Fleet, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(used.car if command[0] == "publish" else used.reader, home)
    if (home / spoiled).exists():
        shutil.rmtree(home / spoiled)
    (home / spoiled).write_text("")
    *_, error, hint = refused(2, *command, "--home", home, stdin=ROW)
    assert named([error, hint], home / spoiled)


def test_a_result_that_finds_no_room_is_named() -> None:
    with pytest.raises(OSError, match="/dev/full"):
        output.write_result(Path("/dev/full"), b"a proof")


def test_a_full_disk_is_told_and_may_be_tried_again() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*TALLY, "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ended.returncode == 4
    assert ended.stderr.splitlines() == [
        "error: no space left on device",
        "hint: free some space where the command's files or its output go",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["topic", "list"],
        ["subscribe", "said"],
        ["subscribe", "said", "--format", "csv"],
        ["subscribe", "said", "--format", "arrow"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_nobody_reads_ends_it_quietly(command: list[str], used: Fleet) -> None:
    """As `… | head`, when head has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [*TALLY, *command],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            env=os.environ | {"TALLY_HOME": str(used.reader)},
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_empty_list_says_so_and_what_makes_one(used: Fleet, tmp_path: Path) -> None:
    invitation = done("tenant", "create", "empty", used.folder).out.strip()
    done("principal", "enrol", invitation, "--home", tmp_path / "owner")
    for command, makes in (
        (["topic", "list"], "tally topic create"),
        (["permit", "list"], "tally publish"),
        (["attribute", "list"], "tally attribute grant"),
        (["attribute", "held"], "tally attribute grant"),
    ):
        said = done(*command, "--home", tmp_path / "owner")
        assert said.out == ""
        assert said.err.startswith("no ")
        assert makes in said.err
        assert done(*command, "--home", tmp_path / "owner", "--json").json == []
    done("topic", "create", "lonely", "--schema", "a int8", "--home", tmp_path / "owner")
    said = done("right", "list", "lonely", "owner", "--home", tmp_path / "owner")
    assert said.out or "tally right grant lonely" in said.err
    said = done("audit", "--refused", "--home", tmp_path / "owner")
    assert said.out or said.err.startswith("no entries")


@pytest.mark.parametrize(
    ("typed", "wrong", "meant"),
    [
        (["pubish", "brakes", "rows.jsonl"], "pubish", "tally publish"),
        (["topics", "list"], "topics", "tally topic"),
        (["topic", "lsit"], "lsit", "tally topic list"),
        (["principal", "enroll", "car.invite"], "enroll", "tally principal enrol"),
    ],
)
def test_a_misspelt_command_is_told_with_what_was_meant(typed: list[str], wrong: str, meant: str) -> None:
    error, hint = refused(2, *typed)
    assert error == f"error: no such command '{wrong}'"
    assert hint.startswith(f"hint: did you mean {meant}")


def test_what_is_nowhere_near_a_command_is_not_guessed() -> None:
    assert refused(2, "quux") == ["error: no such command 'quux'", "hint: tally --help"]


def test_every_metric_says_what_it_counts(used: Fleet) -> None:
    for url, parts in (
        (used.stack.node.url, {"node", "requests", "ledger", "log", "carrier", "groups"}),
        (used.stack.authority.url, {"authority", "requests"}),
    ):
        with urlopen(f"{url}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        told = {tuple(one.name.split("_", 2)[1:]): one.documentation for one in families}
        assert {part for part, _ in told} == parts
        for (part, name), text in told.items():
            assert text == HELP[part][name]
            assert len(text.split()) >= 4
            assert text.endswith(".")


def test_free_disk_is_among_the_numbers(used: Fleet) -> None:
    for command in (["node", "status"], ["authority", "status"]):
        assert done(*command, used.folder, "--json").json["disk_free_bytes"] > 0


def test_numbers_by_label_are_shown(used: Fleet) -> None:
    done("node", "status", used.folder)  # an answer is counted when it is given
    shown = done("node", "status", used.folder).out
    assert "GET /metrics" in shown
    assert "{'" not in shown
    told = done("node", "status", used.folder, "--json").json
    assert "other" in told["requests_refused"]  # how many depends on who came before us
    assert all(type(count) is int for count in told["requests_refused"].values())
    assert told["requests_duration_s"]["GET /metrics"] > 0
