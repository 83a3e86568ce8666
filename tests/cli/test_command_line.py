"""The manners of the command line: where lines go, how it ends, that listing imports nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from tallystick.cli import main, output
from tallystick.errors import CannotOpen, Misuse, Refused, TallystickError, Unavailable


def test_help_lists_the_commands_that_exist_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    shown = capsys.readouterr()
    assert "doctor      check this machine" in shown.out
    assert shown.err == ""


def test_every_listed_command_loads_and_has_an_example() -> None:
    context = click.Context(main.cli)
    for name in main.cli.list_commands(context):
        command = main.cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert "Example" in (command.help or "") or isinstance(command, click.Group)


STREAMS = {"completion", "ledger export"}  # no document, or JSON lines anyway


def test_every_command_has_examples_and_speaks_json() -> None:
    for words, command in _leaves(main.cli, click.Context(main.cli)):
        name = " ".join(words)
        assert "Example" in (command.help or ""), name
        assert f"tally {name}" in (command.help or ""), name
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options or name in STREAMS, name


def _leaves(group: click.Group, context: click.Context) -> Iterator[tuple[list[str], click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (([name, *words], leaf) for words, leaf in _leaves(command, context))
        else:
            yield [name], command


def test_listing_the_commands_imports_none_of_them() -> None:
    heavy = ["numpy", "pyarrow", "cryptography", "httpx", "tallystick.cli.doctor"]
    script = (
        "import sys; from tallystick.cli import main; main.run(['--help']);"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("arguments", [["nonsense"], ["doctor", "--nonsense"], ["completion"], ["completion", "csh"]])
def test_wrong_use_is_an_error_line_a_hint_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    shown = capsys.readouterr()
    error, hint = shown.err.splitlines()
    assert shown.out == ""
    assert error.startswith("error: ")
    assert error[7].islower()
    assert not error.endswith(".")
    assert hint.startswith("hint: tally")


def test_no_arguments_show_the_help_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: tally")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Misuse("a"), 2),
        (Refused("a"), 3),
        (CannotOpen(), 3),
        (Unavailable("a"), 4),
        (TallystickError("a"), 1),
    ],
)
def test_the_exit_code_says_whose_fault_it_was(error: TallystickError, code: int) -> None:
    assert output.exit_code(error) == code


def test_an_error_of_ours_ends_the_command_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command("refusing")
    def refusing() -> None:
        raise Refused('topic "brakes": no right to write', hint="tally right grant")

    assert main.run([], refusing) == 3
    assert capsys.readouterr().err == 'error: topic "brakes": no right to write\nhint: tally right grant\n'


def test_json_writes_bytes_as_hex_and_dataclasses_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    from tallystick.cli.doctor import Check

    output.result_json({"token": b"\x01\xff", "check": Check("disk", "ok", "fine")})
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "token": "01ff",
        "check": {"name": "disk", "state": "ok", "found": "fine", "hint": None},
    }


def test_progress_is_silent_off_a_terminal_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for show in (False, True):
        with output.progress("verifying", 100, show=show) as advance:
            for _ in range(100):
                advance(1)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (10 if show else 0)
        assert not show or lines[-1] == "verifying: 100 of 100"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    assert "_TALLY_COMPLETE" in capsys.readouterr().out
