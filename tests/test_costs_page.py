"""docs/who-may-send-what.md names every entry, route, question and frame that the code has, each once, and no other.
Every line says who may send it, what it costs whom, and the bound."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.authority.asks import ASKS
from tallystick.authority.describe import describe
from tallystick.carriers import carrier
from tallystick.carriers.carrier import FRAMES_PATH, GROUPS_PATH, KIT_PATH, MESH_STATUS_PATH
from tallystick.carriers.desk import Desk
from tallystick.carriers.fabric.requests import FlowKind
from tallystick.carriers.kafka.credentials import PATH as CREDENTIALS_PATH
from tallystick.carriers.mesh.frames import MeshKind
from tallystick.carriers.overlay.frames import FrameKind
from tallystick.ledger.cometbft.application import LedgerApplication
from tallystick.ledger.contracts.kinds import EntryKind

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "who-may-send-what.md").read_text(encoding="utf-8")
NOBODY: Any = SimpleNamespace()


def rows(heading: str) -> list[list[str]]:
    """The lines of the table under a heading, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def entries() -> set[str]:
    return {f"{int(kind)} {kind.name.lower().replace('_', ' ')}" for kind in EntryKind}


def node_routes() -> set[str]:
    table = {f"{route.method} {route.path}" for route in Desk(NOBODY, NOBODY, NOBODY, NOBODY).table()}
    plain = (ROOT / "src" / "tallystick" / "node" / "node.py").read_text(encoding="utf-8")
    fabric = [path for name, path in vars(carrier).items() if name.startswith("FABRIC_")]
    carriers = CREDENTIALS_PATH, FRAMES_PATH, KIT_PATH, MESH_STATUS_PATH, GROUPS_PATH, *fabric
    doors = {f"POST {path}" for path in carriers}
    added = re.findall(r'router\.add\("(GET|POST)", "([^"]+)"', plain)
    return table | doors | {f"{method} {path}" for method, path in added}


def authority_routes() -> set[str]:
    return {ask.path for ask in ASKS} | set(describe()["paths"])


def questions() -> set[str]:
    return {name.removeprefix("_ask_") for name in dir(LedgerApplication) if name.startswith("_ask_")}


def frames() -> set[str]:
    return {f"{int(kind)} {kind.name.lower().replace('_', ' ')}" for kind in FrameKind}


def mesh_frames() -> set[str]:
    return {f"{int(kind)} {kind.name.lower()}" for kind in MeshKind}


def fabric_kinds() -> set[str]:
    asked = {f"{int(kind)} {kind.name.lower()}" for kind in FlowKind}
    return asked | {"copy", "probe", "proof", "piece of a control message"}


@pytest.mark.parametrize(
    ("heading", "found"),
    [
        ("Entries of the ledger", entries()),
        ("Routes of a node", node_routes()),
        ("Requests to an authority", authority_routes()),
        ("Questions to a validator", questions()),
        ("Frames between relays of an overlay", frames()),
        ("Frames between nodes of a mesh", mesh_frames()),
        ("What a fabric's controller hears", fabric_kinds()),
    ],
)
def test_the_page_names_what_the_code_has(heading: str, found: set[str]) -> None:
    named = [row[0] for row in rows(heading)]
    assert len(named) == len(set(named))
    assert set(named) == found


def test_every_line_says_who_what_and_how_much() -> None:
    for heading in re.findall(r"^## (.+)$", PAGE, re.M)[1:]:
        for row in rows(heading):
            assert len(row) == 4, row
            assert all(row), row
