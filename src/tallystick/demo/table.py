"""The table at the end: attack, verdict, what was expected, what happened, where the evidence is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from tallystick.demo.scene import Performed

WIDTH = 100
_COLUMNS = {"attack": 18, "verdict": 9, "expected": 19, "what happened": 28, "evidence": 18}
_GAP = "  "


def lines(scenes: Iterable[Performed]) -> Iterator[str]:
    """At most `WIDTH` columns wide."""
    yield from _row(list(_COLUMNS))
    yield _GAP.join("─" * width for width in _COLUMNS.values())
    for scene in scenes:
        yield from _row([scene.attack, scene.verdict, scene.expected, scene.happened, scene.evidence])
        yield ""


def _row(cells: list[str]) -> Iterator[str]:
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, _COLUMNS.values(), strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = (part.ljust(width) for part, width in zip(parts, _COLUMNS.values(), strict=True))
        yield _GAP.join(padded).rstrip()
