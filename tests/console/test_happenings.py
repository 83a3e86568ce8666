"""As it happens: what the newest entries say was refused, revoked, erased or proved, and nothing of what was right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from console_stack import Browser, ConsoleStack, look, serving, visit_of
from ledger_world import refusal, request, token
from parts_world import PartsWorld
from stack import wait_until

from tallystick import wire
from tallystick.carriers.carrier import Fetch
from tallystick.console.mirror import Trouble
from tallystick.console.pages import happenings
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.reputation import Standing
from tallystick.ledger.engine import AuditItem, Query
from tallystick.trust.right import Right

VisitOf = Callable[..., Visit]


@pytest.fixture(scope="module")
def refused(world: ConsoleStack, viewer: Viewer) -> ConsoleStack:
    """The stranger asked for what it may not have, and that stands on the ledger."""

    with pytest.raises(Refused):
        world.stranger.node.fetch(Fetch(world.token, 0, bytes(16), 0, 1))

    def stands() -> bool:
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


def test_the_way_back_ends_at_the_first_entry_and_shows_each_entry_once(visit: VisitOf, refused: ConsoleStack) -> None:
    everything: list[tuple[int, int]] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        seen: list[AuditItem] = []

        def note(_kinds: list[str], item: AuditItem, seen: list[AuditItem] = seen) -> bool:
            seen.append(item)
            return False

        _, before, looked = happenings._walk(visit("happenings"), before, note, most=7)
        assert looked == len(seen) <= 7
        everything += [(item.height, item.index) for item in seen]
        pages += 1
    assert everything == sorted(set(everything), reverse=True)
    assert everything[-1] == (1, 0)
    assert pages > 2


def test_a_refusal_is_found_however_much_was_accepted_since(tmp_path: Path) -> None:
    """By what the ledger keeps of each transaction, where it is asked for; else a page walks so far and no further."""
    parts = PartsWorld(tmp_path)
    world = parts.world
    asked = request(world.monitor, world.node, now=int(parts.clock.now()))
    parts.accept(world.node.sign(refusal(world.monitor, asked)))
    for right in (Right.READ, Right.READ | Right.DESCRIBE, Right.DELETE):
        parts.accept(world.doctor.sign(entries.grant(token("heart"), world.sensor.id, right)))
    with parts.viewing() as viewer, serving(viewer) as console:
        for said in (console.get("happenings", kind="refused"), console.get("happenings", reason="no-right")):
            assert ">refused</span>" in said.text
        found = [
            happenings._walk(visit_of(viewer, "happenings"), None, lambda kinds, _: "refused" in kinds, 2, query)[0]
            for query in (Query(), happenings._query("refused", ""))
        ]
    assert [len(one) for one in found] == [0, 1]


def test_a_page_goes_on_below_a_place(console: Browser, refused: ConsoleStack) -> None:
    assert "entries below 3/0" in console.get("happenings", kind="lifted", before="3/0").text
    for wrong in ("x", "1", "1/x", "99999999/0", "1/2/3"):
        assert console.get("happenings", before=wrong).status == 400, wrong


def item_of(entry: bytes, time_ms: int = 1_700_000_000_000) -> AuditItem:
    fields = wire.decode(entry)
    return AuditItem(3, 0, time_ms, b"\x05" * 16, fields[0], fields, entry)


def operation(**changes: Any) -> bytes:
    told: dict[str, Any] = {"time_ms": 1_700_000_000_000, "request": bytes(32), "end": 1, **changes}
    return entries.operation(b"\x01" * 16, OperatorRole.PUBLISHER, b"\x02" * 16, int(Right.WRITE), **told)


@pytest.mark.parametrize(
    ("entry", "kinds"),
    [
        (operation(), []),
        (operation(reason="no-right"), ["refused"]),
        (operation(time_ms=1_700_000_000_000 - 61_000), ["late"]),
        (entries.grant(b"\x01" * 16, b"\x02" * 16, 1), []),
        (entries.lift(b"\x01" * 16), ["lifted"]),
        (entries.revoke(b"\x01" * 16), ["revoked"]),
        (entries.undo_permit(b"\x01" * 16), ["permit"]),
        (entries.revoke_permit(b"\x01" * 16), ["permit"]),
        (entries.erase(b"\x01" * 16, b"\x02" * 16, 3), ["erased"]),
        (entries.end_epoch(b"\x01" * 16, 3, End.SCHEDULE, 1), []),
        (entries.end_epoch(b"\x01" * 16, 3, End.REVOCATION, 1), ["revoked"]),
        (entries.withdraw_activation("operations", 3, 90), ["activation"]),
        (entries.suspect(b"\x01" * 16, 1, b"\x02" * 16), ["misdeed"]),
        (entries.equivocation(b"\x01" * 16, b"\x02" * 32, b"a", b"b", b"c", b"d"), ["equivocation"]),
        (wire.encode([int(EntryKind.BROKEN_PROMISE), b"junk", b"", []]), ["broken-promise"]),
    ],
)
def test_an_entry_is_of_these_kinds_and_can_be_shown(visit: VisitOf, entry: bytes, kinds: list[str]) -> None:
    item = item_of(entry)
    assert happenings._kinds(visit("happenings"), item) == kinds
    shown = "".join(map(str, happenings._line(visit("happenings"), item, kinds)))
    assert all(f">{happenings.KINDS[kind][0]}</span>" in shown for kind in kinds)


def test_whoever_an_entry_put_on_the_blacklist_is_shown_so() -> None:
    rows = {3: ["refused", "blacklisted"], 2: ["refused"], 0: ["refused"]}
    for height, kinds in rows.items():
        standing: Any = SimpleNamespace(mirror=SimpleNamespace(row=lambda _key, at=height: Standing(10, 0, 0, at)))
        visit = Visit(standing, "", "happenings")
        assert happenings._kinds(visit, item_of(operation(reason="no-right"))) == kinds


def test_a_node_that_shows_another_ledger_is_shown(console: Browser, viewer: Viewer) -> None:
    evil = "it shows <script>alert(1)</script>"
    known = viewer.mirror.at
    try:
        viewer.mirror.at = replace(known, trouble=Trouble("rollback", evil, "", 1))
        text = console.get("happenings", kind="contradiction").text
        assert ">rollback</span>" in text
        assert "it shows &lt;script&gt;" in text
        viewer.mirror.at = replace(known, trouble=Trouble("away", "gone", "", 1))
        assert "Nothing of this kind" in console.get("happenings", kind="contradiction").text
    finally:
        viewer.mirror.at = known


def test_reasons_and_names_are_hostile(visit: VisitOf) -> None:
    item = item_of(operation(reason="<script>alert(1)</script>", host="<script>"))
    assert "<script>" not in "".join(map(str, happenings._line(visit("happenings"), item, ["refused"])))


def test_a_refusal_is_there_when_its_block_is(world: ConsoleStack) -> None:
    """The page as a browser has it: asked again, and answered when there is something new. How soon is measured by
    `make bench-console`."""
    with world.viewing(world.owner) as viewer, world.serving(viewer, live=True) as console:
        before = console.get("happenings", kind="refused").text
        with pytest.raises(Refused):
            world.stranger.node.fetch(Fetch(world.token, 0, b"\x09" * 16, 0, 1))

        def shown() -> bool:
            said = console.get("happenings", poll=viewer.mirror.at.version - 1, kind="refused")
            return said.text.count(">refused</span>") > before.count(">refused</span>")

        wait_until(shown)
