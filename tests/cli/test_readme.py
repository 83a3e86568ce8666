"""The README's quickstart and the guides, walked as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest
from walks import ENGINE, GUIDES, NOT_RUN, PLAIN, ROOT, all_said

from scripts.walk import Block, blocks, fits, walk
from tallystick.cli import main


@pytest.mark.slow
def test_the_quickstart_tells_the_whole_story_and_guides_go_on_with_it(quickstart: subprocess.Popen[str]) -> None:
    told = all_said(quickstart)
    assert "1000 rows in 1 parcel to brakes, anchored" in told
    assert "1000 got.jsonl" in told
    assert 'row: {"vin": "V6", "seq": 41, "speed": 20.5}' in told
    assert "not proved: that the row is true" in told
    assert "changed one bit" in told
    assert re.search(r"^finding: altered: parcel 0 of lane", told, re.MULTILINE)
    assert "exit code 3" in told
    assert "[{'vin': 'V8', 'seq': 1000, 'speed': 12.5}] ['altered']" in told
    assert "Traceback" not in told


def typed(guide: Path) -> list[Block]:
    return list(blocks(guide))


def test_every_guide_with_commands_is_walked() -> None:
    walked = {*PLAIN, *(name for names in ENGINE.values() for name in names)}
    guides = sorted(GUIDES.glob("*.md"))
    with_commands = {guide.name for guide in guides if any(one.language != "console" for one in typed(guide))}
    assert with_commands == walked - {"README.md"}


def test_commands_that_are_not_run_are_listed_with_reasons() -> None:
    left_out = [one for guide in GUIDES.glob("*.md") for one in typed(guide) if one.language == "console"]
    found = [
        [(page, begin) for page, begin in NOT_RUN if page == one.page and one.text.startswith(begin)]
        for one in left_out
    ]
    assert [len(one) for one in found] == [1] * len(found), "each by one line of the list"
    assert {one for [one] in found} == {*NOT_RUN}


def test_no_command_hides_in_a_block_of_another_kind() -> None:
    for guide in GUIDES.glob("*.md"):
        for language, inside in re.findall(r"^```(\w*)\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL):
            has_commands = re.search(r"^(tally|pip|python|make) ", inside, re.MULTILINE)
            assert not has_commands or language in ("sh", "console"), (guide.name, inside)


def test_a_page_is_held_to_what_it_shows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nseq 3\n```\n\n```text\n1\n…\n```\n\n```python\nx = 1\n```\n```console\nreboot\n```\n")
    assert [(one.language, one.said) for one in typed(page)] == [("sh", ["1", "…"]), ("console", [])]
    assert fits(["1", "3"], "1\n2\n3\n") is None
    assert fits(["3", "1"], "1\n2\n3\n") == "1"
    for commands, code in {"true": 0, "false": 1, "echo 2": 1}.items():
        said = "" if commands != "echo 2" else "\n```text\n1\n```\n"
        page.write_text(f"```sh\n{commands}\n```\n{said}")
        assert walk([page], tmp_path / commands) == code


def unknown(text: str) -> str | None:
    """The first word of a command line that `tally` does not know: a command, or an option."""
    command: click.Command = main.cli
    words = re.findall(r'"[^"]*"|\S+', text.partition("#")[0])
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return None if re.match(r"-|…|\w+\|", words[0]) else words[0]
        command, words = found, words[1:]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    return next((word for word in words if word.startswith("--") and word.partition("=")[0] not in options), None)


def test_every_command_that_a_page_names_is_one_with_its_options() -> None:
    named = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *GUIDES.glob("*.md")):
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        inline = re.findall(r"`tally ([^`]+)`", text.replace("\n", " "))
        named += [(page.name, one) for one in [*inline, *re.findall(r"^tally ([^|>\n]*)", text, re.MULTILINE)]]
    assert len(named) > 200
    assert [(*one, word) for one in named if (word := unknown(one[1]))] == []
    assert unknown("topic creat brakes") == "creat"
    assert unknown("publish brakes --polcy x") == "--polcy"
