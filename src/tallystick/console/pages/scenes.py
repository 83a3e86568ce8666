"""*Scenes*: the attacks of a `tally demo` that runs beside the console, as it tells their outcomes.

The demo's word is not the console's: what the attacks left on the ledger is under *As it happens*, replayed here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from shlex import quote
from typing import Any

from tallystick.console.layout import command, facts, heading, lines, nothing, part
from tallystick.console.marks import bad, soft, told, warning, when
from tallystick.console.page import Download, Page
from tallystick.console.pages.findings import in_words
from tallystick.console.visit import Visit
from tallystick.errors import Misuse
from tallystick.page.html import Html, join, tag
from tallystick.page.svg import many
from tallystick.wire import is_number

_START = "tally demo --console"
_FIELDS = ("attack", "expected", "verdict", "happened", "evidence")
_HEIGHTS = re.compile(r"((?<=height )\d{1,9}|(?<=heights )\d{1,9}|(?<=\d to )\d{1,9})")
_FILE_BYTES_MAX = 1 << 20


def show_scenes(visit: Visit) -> Html:
    if visit.viewer.scenes is None:
        return join(heading("Scenes of the demo"), nothing("No demo runs beside this console.", command(_START)))
    scenes = _read(visit)
    rows = [_line(visit, number, one) for number, one in reversed(list(enumerate(scenes, 1)))]
    stopped = sum(one["verdict"] == "stopped" for one in scenes)
    told = f"{many(len(scenes), 'scene')} so far, {stopped} stopped, newest first, as the demo tells them. "
    lead = join(told, "What they left on the ledger is under ", visit.link("As it happens", "happenings"), ".")
    columns = ["when", "attack", "outcome", "what happened", "evidence"]
    return join(heading("Scenes of the demo", lead), lines(columns, rows, "No scene has an outcome yet."))


def _line(visit: Visit, number: int, one: dict[str, Any]) -> list[object]:
    attack = tag("div", visit.link(one["attack"], f"scenes/{number}"), tag("br"), soft("expected: ", one["expected"]))
    return [when(one["time_ms"]), attack, _verdict(one), one["happened"], _evidence(visit, number, one)]


def _verdict(one: dict[str, Any]) -> Html:
    shown = {"SUCCEEDED": bad, "UNCLEAR": warning}.get(one["verdict"])
    return told(one["verdict"], by="the demo") if shown is None else shown(one["verdict"].lower())


def _evidence(visit: Visit, number: int, one: dict[str, Any]) -> object:
    """The demo's words, with heights as links, or a link to the file that they name."""
    if _file(visit, one) is not None:
        return visit.link(one["evidence"], f"scenes/{number}")
    parts = _HEIGHTS.split(one["evidence"])  # a text, a height, a text …
    return [
        visit.block(int(part)) if place % 2 and int(part) <= visit.head.height else part
        for place, part in enumerate(parts)
    ]


def show_scene(visit: Visit) -> Html:
    number, one = _scene(visit)
    known = {
        "outcome": _verdict(one),
        "what happened": one["happened"],
        "evidence": _evidence(visit, number, one),
        "when": when(one["time_ms"]),
        "how it is known": told("the demo tells it", by="the demo"),
    }
    title, file = heading(one["attack"], ("expected: ", one["expected"])), _file(visit, one)
    if file is None:
        return join(title, facts(known))
    way = tag("p", visit.link("download the file", f"scenes/{number}/file"))
    kept = way, in_words(file.read_bytes()), command(f"tally inspect {quote(str(file))}")
    return join(title, facts(known), part("What was kept", *kept))


def download(visit: Visit) -> Download:
    number, one = _scene(visit)
    file = _file(visit, one)
    if file is None:
        raise Misuse(f"scene {number} left no file", hint="its page says where the evidence is")
    return Download(f"scene-{number}.evidence", file.read_bytes())


def _file(visit: Visit, one: dict[str, Any]) -> Path | None:
    """The file of evidence that a scene names, in the demo's own folder of evidence."""
    assert visit.viewer.scenes is not None
    folder = visit.viewer.scenes.resolve().parent
    try:
        file = (folder / one["evidence"]).resolve()
        is_ours = file.is_relative_to(folder / "evidence") and file.is_file()
        return file if is_ours and file.stat().st_size <= _FILE_BYTES_MAX else None
    except (OSError, ValueError):
        return None


def _scene(visit: Visit) -> tuple[int, dict[str, Any]]:
    scenes, text = _read(visit), visit.parameters["number"]
    if not is_number(text) or not 1 <= int(text) <= len(scenes):
        raise Misuse(f"no scene {text[:20]} has an outcome yet", hint="the list shows those that have")
    return int(text), scenes[int(text) - 1]


def _read(visit: Visit) -> list[dict[str, Any]]:
    """The whole lines of the file; the last may be half written."""
    file = visit.viewer.scenes
    if file is None:
        raise Misuse("no demo runs beside this console", hint=f"{_START} starts both")
    try:
        written = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        scenes = [json.loads(line) for line in written]
    except (OSError, ValueError) as error:
        raise Misuse(f"{file}: damaged: {error}", hint="run tally demo --console anew") from error
    for one in scenes:
        is_whole = isinstance(one, dict) and all(isinstance(one.get(name), str) for name in _FIELDS)
        if not is_whole or not isinstance(one.get("time_ms"), int):
            raise Misuse(f"{file}: not the outcomes of a demo", hint="name the file scenes.jsonl of a demo's folder")
    return scenes


PAGES = (
    Page("scenes", "Scenes", show_scenes, in_menu=True, is_there=lambda visit: visit.viewer.scenes is not None),
    Page("scenes/{number}", "Scene", show_scene),
    Page("scenes/{number}/file", "Evidence", download, live=False),
)
