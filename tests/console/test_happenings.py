"""As it happens: what the newest entries say was refused, revoked, erased or proved, and nothing of what was right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from console_stack import Browser, ConsoleStack, look
from stack import wait_until

from tallystick.console.mirror import Trouble
from tallystick.console.pages import happenings
from tallystick.console.viewer import Viewer, Visit
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.engine import AuditItem
from tallystick.trust.permit import Operation

VisitOf = Callable[..., Visit]


@pytest.fixture(scope="module")
def refused(world: ConsoleStack, viewer: Viewer) -> ConsoleStack:
    """The stranger asked for what it may not have, and that stands on the ledger."""

    def stands() -> bool:
        with suppress(Refused):
            world.stranger.node.subscribe(b"\x00" * 64)
        from tallystick.carriers.carrier import Fetch

        with suppress(Refused):
            world.stranger.node.fetch(Fetch(world.token, 0, bytes(16), 0, 1))
        look(viewer)
        items, _ = viewer.mirror.newest(20)
        return any(item.kind == EntryKind.OPERATION and item.fields[5] for item in items)

    wait_until(stands)
    return world


def test_a_refusal_is_shown_with_who_where_and_its_entry(console: Browser, refused: ConsoleStack) -> None:
    text = console.get("happenings").text
    assert ">refused</span>" in text
    assert refused.stranger.identity.principal.hex() in text
    assert f"topics/{refused.token.hex()}" in text
    assert "ledger/entries/" in text


def test_filters_are_by_kind_and_by_reason(console: Browser, refused: ConsoleStack) -> None:
    assert ">refused</span>" in console.get("happenings", kind="refused").text
    assert ">refused</span>" not in console.get("happenings", kind="erased").text
    text = console.get("happenings").text
    reason = text.partition("reason=")[2].partition('"')[0]
    assert ">refused</span>" in console.get("happenings", kind="refused", reason=reason).text
    assert ">refused</span>" not in console.get("happenings", reason="no-such").text
    assert console.get("happenings", kind="no-such").status == 400


def test_the_way_back_ends_at_the_genesis_and_shows_each_entry_once(
    visit: VisitOf, refused: ConsoleStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(happenings, "LOOKED_MAX", 7)
    everything: list[tuple[int, int]] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        seen: list[AuditItem] = []
        _, before, looked = happenings._walk(
            visit("happenings"), before, lambda _kinds, item, seen=seen: bool(seen.append(item))
        )
        assert looked == len(seen) <= 7
        everything += [(item.height, item.index) for item in seen]
        pages += 1
    assert everything == sorted(set(everything), reverse=True)
    assert everything[-1] == (0, 0)
    assert pages > 2


def test_a_page_offers_what_is_older(console: Browser, refused: ConsoleStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(happenings, "LOOKED_MAX", 3)
    text = console.get("happenings", kind="lifted").text
    assert "among the newest 3 entries" in text
    older = text.partition("before=")[2].partition('"')[0].partition("&")[0]
    assert f"entries below {older.replace('%2F', '/')}" in console.get(
        "happenings", kind="lifted", before=older.replace("%2F", "/")
    ).text
    for wrong in ("x", "1", "1/x", "99999999/0", "1/2/3"):
        assert console.get("happenings", before=wrong).status == 400, wrong


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (entries.lift(b"\x01" * 16), "lifted"),
        (entries.undo_permit(b"\x01" * 16), "permit undone or revoked"),
        (entries.erase(b"\x01" * 16, b"\x02" * 16, 3), "erased"),
    ],
)
def test_kinds_by_entry(visit: VisitOf, entry: bytes, name: str) -> None:
    from tallystick import wire

    fields = wire.decode(entry)
    item = AuditItem(3, 0, 1_700_000_000_000, b"\x05" * 16, fields[0], fields, entry)
    [kind] = happenings._kinds(visit("happenings"), item)
    assert happenings.KINDS[kind][0] == name
    assert name in "".join(map(str, happenings._line(visit("happenings"), item, [kind])))
