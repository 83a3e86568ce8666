"""What no page can be made of, from an address, a table or a node: a sentence that says what to do, and the console
goes on. What rows hold is tried in `test_records.py`, `test_trips.py` and `test_alerts.py`; a second console on a home
in `test_door.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from console_contents import FACTS, alert, contents
from console_stack import Browser, Said, serving, way
from overlay_ledger import HEART
from parts_world import put

from tallystick.console.viewer import Viewer
from tallystick.errors import TallystickError

NANOSECONDS = 1_763_193_600_123_456_789


@pytest.fixture
def rich(tmp_path: Path) -> Iterator[Viewer]:
    with contents(tmp_path) as viewer:
        yield viewer


@pytest.fixture
def console(rich: Viewer) -> Iterator[Browser]:
    with serving(rich) as console:
        yield console


def remedy(said: Said) -> str:
    """What a page that did not work says and what to do, below its heading."""
    assert said.status == 400, said.text[-800:]
    card = said.text.partition("<h1>That did not work</h1>")[2]
    found = re.match(r'<div class="card"><p>(.+[^.])\.</p><p class="soft">(.+)</p></div>', card)
    assert found is not None, card
    return f"{unescape(found[1])}: {unescape(found[2])}"


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("ledger/blocks/99999999", {}),
        ("ledger/entries/99999999/0", {}),
        ("ledger/consistency", {"old": 1, "new": 99999999}),
        ("happenings", {"before": "99999999/0"}),
        (f"topics/{HEART.hex()}/history", {"before": "99999999/0"}),
    ],
)
def test_a_height_to_come_is_a_page_to_come(console: Browser, path: str, query: dict[str, Any]) -> None:
    assert "a height to come is a page to come" in remedy(console.get(path, **query))


def test_a_time_in_nanoseconds_is_told_how_it_is_written(rich: Viewer, console: Browser) -> None:
    for page in ("trips", "alerts"):
        for name in ("from", "to"):
            asked: dict[str, Any] = {name: NANOSECONDS}
            assert "such as -1h, or 2026-11-18 06:00 in UTC" in remedy(console.get(page, **asked))
    assert rich.warehouse is not None
    put(rich.warehouse, "alerts", [alert(ts_first=NANOSECONDS, low=None)], batch=1, **FACTS)
    assert console.get("alerts").status == 200
    assert "a time in no calendar: was it written in nanoseconds?" in remedy(console.get("alerts/1/0"))


@pytest.mark.parametrize("asked", [{"vehicle_id": "nobody"}, {"from": "2099-01-01"}, {"skip": 999}])
def test_where_no_trip_fits_nothing_is_wrong_with_the_table(console: Browser, asked: dict[str, Any]) -> None:
    said = console.get("trips", **asked)
    assert (said.status, "No trips fit." in said.text) == (200, True), said.text[-800:]


@pytest.mark.parametrize("page", ["trips", "alerts/0/3"])
def test_a_damaged_table_is_named_with_what_makes_it_anew(rich: Viewer, console: Browser, page: str) -> None:
    assert rich.warehouse is not None
    folder = rich.warehouse / page.partition("/")[0]
    part = folder / "batch=0" / "part.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    said = remedy(console.get(page))
    assert str(folder) in said
    assert re.search("restore.* run .* anew", said) is not None, said
    part.write_bytes(whole)
    assert console.get(page).status == 200


@pytest.mark.parametrize("what", ["away", "rollback"])
def test_a_node_that_is_away_or_goes_back_is_said_on_every_page_and_they_stay(
    rich: Viewer, console: Browser, what: str
) -> None:
    head = rich.mirror.at.head
    assert head is not None
    before = {page: console.get(page).text for page in ("ledger", "trips", "findings")}
    older: Any = SimpleNamespace(refresh=lambda: replace(head, height=head.height - 3), blocks=None)
    with pytest.raises(TallystickError):
        rich.mirror.follow(way(rich.session) if what == "away" else older)
    for page, text in before.items():
        said = console.get(page)
        assert said.status == 200
        assert said.text.partition("<h1>")[2] == text.partition("<h1>")[2], "what was verified before"
        alert = said.text.partition('role="alert">')[2].partition("<h1>")[0]
        assert {"away": "the node is away", "rollback": "it does not hold: rollback"}[what] in alert
        assert " since <time data-ms=" in alert
        assert '<p class="soft">' in alert, f"what to do: {alert}"
