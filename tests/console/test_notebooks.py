"""What values look like in a notebook, and the documentation's own notebook, run as a script."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_stack import TOPIC, ConsoleStack

from tallystick.client.reader import Finding
from tallystick.page import notebook

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def tampered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStack]:
    """What the README's quickstart leaves."""
    with ConsoleStack(tmp_path_factory.mktemp("tampered")) as stack:
        subprocess.run([sys.executable, ROOT / "scripts" / "tamper.py", stack.folders.root], check=True)
        yield stack


def test_the_notebook_runs_and_shows_what_it_says(tampered: ConsoleStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tampered.folders.root / "homes")
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)
    names: dict[str, Any] = {}
    shown = [run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    looks = [one._repr_html_() for one in shown if one is not None]
    received, finding, proven, checkpoint = looks
    assert "2002" in received
    assert "anchored at or before height" in received
    assert "finding: altered" in finding
    assert "not proved:" in proven
    assert "V9" in proven
    assert "checkpoint of height" in checkpoint


def run(source: str, names: dict[str, Any]) -> Any:
    """A cell as Jupyter runs it: its last expression is what it shows."""
    tree = ast.parse(source)  # a magic is a mistake here
    match tree.body[-1]:
        case ast.Expr(value=value):
            tree.body.pop()
        case _:
            value = ast.parse("None", mode="eval").body
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(value), "cell", "eval"), names)


def test_rows_are_bounded_and_escaped(world: ConsoleStack) -> None:
    with world.car.publisher(TOPIC, acks="anchored") as publisher:
        for seq in range(100, 150):
            publisher.produce({"vin": EVIL + "x" * 10_000, "seq": seq, "speed": float("nan")})
    with world.reader.subscriber(TOPIC) as subscriber:
        received = [one for one in subscriber.poll() if one.batch.rows > 20]
    look = received[-1]._repr_html_()
    assert "<script>" not in look
    assert "&lt;script&gt;" in look
    assert len(look) < 20_000
    assert "30 more rows" in look
    assert "nan" in look


def test_columns_and_lists_are_bounded() -> None:
    wide = notebook.rows([{f"c{number}": number for number in range(1000)}], 1)
    assert "970 more columns" in wide
    assert notebook.items("none", []) is None
    assert len(notebook.items("many", ["x" * 10_000] * 1000) or "") < 30_000
    assert notebook.rows([], 0) == "<table><thead><tr></tr></thead><tbody></tbody></table>"


def test_a_finding_is_escaped_and_holds_no_evidence() -> None:
    look = Finding(EVIL, EVIL, b"\x01" * 16, 0, 3, evidence=(b"secret row", b"x"))._repr_html_()
    assert "<script>" not in look
    assert "10 bytes, 1 bytes" in look
    assert "secret" not in look
    assert b"secret".hex() not in look
