"""`tally demo`: the whole of it with a small fleet, interrupted, without Java, and with its defences switched off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from html import escape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from stack import wait_until
from without import processes_without, without

from tallystick.cli import main
from tallystick.cli.demo import ending_in_order, has_spark
from tallystick.demo import show
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, Verdict, expected, perform, refusal
from tallystick.demo.stage import Stage
from tallystick.demo.table import WIDTH, lines
from tallystick.errors import Refused

SMALL = ["--vehicles", "10", "--sensors", "5", "--minutes", "1", "--skip-spark"]
ATTACKS = [*show.OVER_THE_NETWORK, *show.ON_THE_DISK]


def told(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = main.run(["demo", *SMALL, *options, "--json", "--folder", str(folder)])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_attack_is_stopped_and_a_console_beside_it_shows_each(tmp_path: Path) -> None:
    folder, shown = tmp_path / "demo", dict[str, float]()
    expected = [*(scene.attack for scene in ATTACKS), "all of the above, to honest readers"]
    demo = start(folder, "--console", "--json")
    assert demo.stderr is not None
    url = next(line.split()[-1] for line in demo.stderr if "s  console http" in line)
    watcher = threading.Thread(target=watch_scenes, args=(url, expected, shown), daemon=True)
    watcher.start()
    assert any("the console goes on" in line for line in demo.stderr)
    watcher.join(60)
    demo.send_signal(signal.SIGINT)
    out, _ = demo.communicate(timeout=60)
    document = json.loads(out)
    assert [
        (one["attack"], one["verdict"], one["happened"]) for one in document["scenes"] if one["verdict"] != "stopped"
    ] == []
    assert (demo.returncode, document["good"]) == (0, True)
    assert [one["attack"] for one in document["scenes"]] == expected
    for name in ("altered", "put-back", "forked"):  # what the readers kept is named and there
        assert (folder / "evidence" / name).exists()
    assert all(one["evidence"] for one in document["scenes"])
    assert set(document["rows_per_s"]) == {"publish telemetry", "read telemetry"}
    told = [json.loads(line) for line in (folder / "scenes.jsonl").read_text().splitlines()]
    assert [one["attack"] for one in told] == expected
    assert {one["told_by"] for one in told} == {"tally demo"}
    assert shown.keys() == set(expected)
    assert shown[expected[0]] < told[-1]["time_ms"] / 1000  # as they came, and not all in the end
    wait_until(lambda: running(folder) == [])


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The small demo as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli", "demo", *SMALL, *options, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the suite may ignore it
    )


def watch_scenes(url: str, attacks: list[str], shown: dict[str, float]) -> None:
    """Keep the page of scenes open, as a browser does, and note when each attack was there."""
    place = urlsplit(url)
    headers, version = {"sec-fetch-site": "none"}, "0"
    with closing(HTTPConnection(place.netloc, timeout=60)) as connection:
        connection.request("GET", f"/?{place.query}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        headers["cookie"] = answer.headers["set-cookie"].partition(";")[0]
        while len(shown) < len(attacks):
            asked = {**headers, "tally-console": version}
            connection.request("GET", f"{answer.headers['location']}scenes", headers=asked)
            page = connection.getresponse()
            text, version = page.read().decode(), page.headers["tally-version"] or version
            for attack in attacks:
                if f">{escape(attack)}</a>" in text:
                    shown.setdefault(attack, time.time())


@pytest.mark.long
def test_without_its_defences_the_attacks_succeed_and_the_demo_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node's are taken away in its own process, the readers' in this one."""
    verdicts = {
        "reading without a permit": "SUCCEEDED",
        "framing a neighbour": "SUCCEEDED",
        "an equivocating publisher": "stopped",  # this defence was left alone
        "fake unsubscribe": "SUCCEEDED",
        "a broker reorders parcels on disk": "SUCCEEDED",
        "a ledger put back to an older copy": "SUCCEEDED",
    }
    (tmp_path / "start").mkdir()
    of_node = ("the guard of fetches", "the contract's judgement of claims", "the guard of unsubscribing")
    of_readers = (
        *("the memory of checkpoints", "the comparison with others' checkpoints"),
        *("the proof of a range", "the chain of a lane"),
    )
    with processes_without(tmp_path / "start", *of_node), without(*of_readers):
        chosen = [word for name in verdicts for word in ("--attack", name)]
        code, document = told(tmp_path / "demo", capsys, *chosen)
    verdicts["all of the above, to honest readers"] = "UNCLEAR"  # one of them was silenced
    assert {one["attack"]: one["verdict"] for one in document["scenes"]} == verdicts
    assert (code, document["good"]) == (1, False)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.long
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = start(folder)
    assert demo.stderr is not None
    assert any("two processes" in line for line in demo.stderr)
    assert len(running(folder)) == 3  # with the demo itself
    demo.send_signal(signal.SIGINT)
    assert "Traceback" not in demo.communicate(timeout=60)[1]
    assert demo.returncode == 130
    wait_until(lambda: running(folder) == [])


def test_a_signal_to_end_is_taken_as_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def running(folder: Path) -> list[int]:
    """Processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# --- scenes, verdicts and the table ---


def raising(error: Exception) -> Scene:
    def carry_out(_stage: Stage) -> Seen:
        raise error

    return Scene("an attack", "is stopped", carry_out)


@pytest.mark.parametrize(
    ("scene", "verdict"),
    [
        (Scene("an attack", "is stopped", lambda _: Seen("it was", "here")), Verdict.STOPPED),
        (raising(AttackSucceeded("it was taken")), Verdict.SUCCEEDED),
        (raising(NotObserved("nothing came")), Verdict.UNCLEAR),
        (raising(Refused("for another reason")), Verdict.UNCLEAR),
        (raising(OSError("no disk")), Verdict.UNCLEAR),
    ],
)
def test_what_is_not_seen_to_be_stopped_is_not(tmp_path: Path, scene: Scene, verdict: Verdict) -> None:
    performed = perform(scene, Stage(tmp_path))
    assert performed.verdict is verdict
    told = show.ToldScene(tmp_path, [performed])
    assert told.is_good == (verdict is Verdict.STOPPED)


def test_a_refusal_counts_for_its_own_reason_alone() -> None:
    def refuse() -> None:
        raise Refused("no", reason="no-right")

    assert refusal(refuse, "no-right", of="it") == "no-right"
    with pytest.raises(NotObserved, match="refused as no-right, expected forged"):
        refusal(refuse, "forged", of="it")
    with pytest.raises(AttackSucceeded, match="it: taken"):
        refusal(lambda: None, "no-right", of="it")
    assert expected("a", "b", "a", of="it") == "a"


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    long = Scene("an attack with a rather long name " * 3, "x" * 200, lambda _: Seen("word " * 60, "path/" * 30))
    printed = list(lines([perform(long, Stage(tmp_path))]))
    assert max(map(len, printed)) <= WIDTH
    assert sum(line.count("word") for line in printed) == 60


# --- the machine ---


def test_without_java_one_sentence_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert not has_spark()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: Spark is left out: ")
    assert "java" in line


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main.run(["demo", *SMALL, "--folder", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["mine"]


def test_an_attack_that_there_is_not_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["demo", *SMALL, "--attack", "phishing", "--folder", str(tmp_path / "demo")]) == 2
    shown = capsys.readouterr().err
    assert "no such attack: phishing" in shown
    assert "fake unsubscribe" in shown
