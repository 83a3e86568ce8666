"""The scenes of a demo beside the console: its word, told as such, as soon as it is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from console_stack import Browser, ConsoleStack, look
from stack import wait_until

from tallystick.console.viewer import Viewer

EVIL = "<script>alert(1)</script>"


@dataclass
class Beside:
    console: Browser
    viewer: Viewer
    file: Path

    def tell(self, **changes: object) -> None:
        scene = {"attack": "flooding", "expected": "few entries", "verdict": "stopped", "happened": "it was"}
        with self.file.open("a") as file:
            file.write(json.dumps({**scene, "evidence": "history of vitals, height 1", "time_ms": 1, **changes}) + "\n")


@pytest.fixture(scope="module")
def serving(world: ConsoleStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    file = tmp_path_factory.mktemp("demo") / "scenes.jsonl"
    with world.viewing(world.owner) as known:
        viewer = Viewer(known.session, known.mirror, scenes=file)
        look(viewer)
        with world.serving(viewer, live=True) as console:
            yield Beside(console, viewer, file)


@pytest.fixture
def beside(serving: Beside) -> Beside:
    serving.file.write_text("")
    (serving.file.parent / "evidence").mkdir(exist_ok=True)
    return serving


def test_a_scene_is_there_as_soon_as_it_is_told(beside: Beside) -> None:
    assert "No scene has an outcome yet" in beside.console.get("scenes").text
    beside.tell()
    version = beside.viewer.mirror.at.version
    said = beside.console.get("scenes", poll=version)  # answered when there is something new
    assert beside.viewer.mirror.at.version > version
    wait_until(lambda: "flooding" in beside.console.get("scenes").text, 2)
    assert said.status == 200


def test_outcomes_are_the_demos_word_and_heights_lead_to_the_ledger(beside: Beside) -> None:
    beside.tell()
    beside.tell(attack="framing", verdict="SUCCEEDED", evidence="heights 1 to 2; unsigned: height 99999 on")
    text = beside.console.get("scenes").text
    assert "the word of the demo" in text
    assert "2 scenes so far, 1 stopped" in text
    assert text.index("framing") < text.index("flooding")
    assert text.count("ledger/blocks/1") == 2
    assert "ledger/blocks/2" in text
    assert "ledger/blocks/99999" not in text
    assert 'class="mark alarm">succeeded' in text
    page = text.partition("<h1>")[2]
    assert 'class="mark good"' not in page


def test_a_file_of_evidence_is_shown_and_handed_out_from_the_demos_folder_alone(beside: Beside) -> None:
    (beside.file.parent / "evidence" / "forked").write_bytes(b"12345678")
    beside.tell(evidence="evidence/forked")
    beside.tell(evidence="../../../../../../etc/passwd")
    beside.tell(evidence="evidence/../scenes.jsonl")
    beside.tell(evidence="evidence/\0")
    assert "8 bytes" in beside.console.get("scenes/1").text
    assert beside.console.get("scenes/1/file").body == b"12345678"
    for number in (2, 3, 4):
        assert beside.console.get(f"scenes/{number}/file").status == 400
        assert "download" not in beside.console.get(f"scenes/{number}").text


def test_what_is_wrong_with_the_file_is_a_sentence(beside: Beside) -> None:
    beside.tell()
    with beside.file.open("a") as file:
        file.write('{"half')
    assert "1 scene so far" in beside.console.get("scenes").text
    for wrong in ("junk\n", "[]\n", '{"attack": 1}\n', "\udcff\n"):
        beside.file.write_bytes(wrong.encode("utf-8", "surrogateescape"))
        said = beside.console.get("scenes")
        assert said.status == 400, wrong
        assert "scenes.jsonl" in said.text
    beside.file.write_text("")
    assert "has an outcome yet" in beside.console.get("scenes/1").text


def test_hostile_words_are_escaped(beside: Beside) -> None:
    beside.tell(attack=EVIL, expected=EVIL, verdict=EVIL, happened=EVIL, evidence=EVIL)
    for page in ("scenes", "scenes/1"):
        assert "<script>" not in beside.console.get(page).text


def test_without_a_demo_there_is_no_such_page_in_the_menu(console: Browser) -> None:
    said = console.get("scenes")
    assert ">Scenes</a>" not in said.text
    assert "tally demo --console" in said.text
    assert console.get("scenes/1").status == 400
