"""*Ledger*: entries, blocks, rows with their proof, checkpoints compared; and what a node or stranger shows beside."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from console_stack import Browser, ConsoleStack, visit_of
from crowd import crowd
from ledger_world import operation_batch

from tallystick.console.mirror import Mirror
from tallystick.console.pages.ledger import show_block, show_entries
from tallystick.console.pages.ledger_checks import TABLES, show_consistency, show_row
from tallystick.console.viewer import Viewer
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Forged
from tallystick.ledger.block import sign_checkpoint
from tallystick.ledger.contracts.execute import CONTRACTS
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.proofs import StateProof

GREEN = 'class="mark good"'


def lying(visit: Visit, **answers: Any) -> Visit:
    """The same visit, to a node that answers so."""
    viewer, session = visit.viewer, visit.viewer.session
    node = SimpleNamespace(**{"state": session.node.state, "consistency": session.node.consistency, **answers})
    told: Any = SimpleNamespace(node=node, within=session.within, view=session.view, memory=session.memory)
    beside: Any = SimpleNamespace(session=told, mirror=viewer.mirror, asking=viewer.asking)
    return replace(visit, viewer=beside)


def test_entries_are_found_by_kind_and_by_who_wrote_them(world: ConsoleStack, console: Browser) -> None:
    grants = console.get("ledger", kind="grant").text
    assert "grant: topic brakes" in grants
    assert "announce epoch:" not in grants
    mine = console.get("ledger", principal=world.owner.identity.principal.hex()).text
    assert "grant: topic brakes" in mine
    assert "anchor:" not in mine


def test_long_lists_go_on_where_they_ended(viewer: Viewer) -> None:
    first, before = viewer.mirror.newest(3)
    second, _ = viewer.mirror.newest(3, before)
    places = [(one.height, one.index) for one in (*first, *second)]
    assert places == sorted(places, reverse=True)
    assert len(set(places)) == len(places)
    assert viewer.mirror.newest(1 << 20)[1] == 0


def pages_of(show: Callable[[Visit], object], viewer: Any, path: str) -> list[list[str]]:
    """The places on each page of a long list, by its own way on."""
    query: dict[str, Any] = {}
    found = []
    while True:
        page = str(show(visit_of(viewer, path, **query)))
        assert len(page) < 100_000
        found.append(re.findall(r"ledger/entries/(\d+/\d+)", page))
        older = re.search(r'href="[^"?]*\?([^"]*)">older', page)
        if older is None:
            return found
        query = dict(parse_qsl(unescape(older[1])))


def test_a_transaction_of_hundreds_of_entries_is_shown_by_pages(tmp_path: Path) -> None:
    """Each entry once, in the list and on its block's page."""
    made = crowd(tmp_path / "node", topics=1, principals=2)
    made.write(made.world.node, *operation_batch(made.world, 480, made.tokens, [made.owner.id]))
    with closing(Mirror(tmp_path / "console", made.world.trust, lambda: made.now_ms)) as mirror:
        mirror.follow(made)
        viewer = SimpleNamespace(mirror=mirror, topic_name=bytes.hex, principal_name=bytes.hex, knows=lambda _: False)
        block = pages_of(show_block, viewer, f"ledger/blocks/{made.ledger.height}")
        every = pages_of(show_entries, viewer, "ledger")
    assert len(block) == 10
    assert all(0 < len(page) <= LINES for page in (*block, *every))
    places = [tuple(map(int, one.split("/"))) for page in every for one in page]
    assert places == sorted(set(places), reverse=True)
    assert places[:480] == [tuple(map(int, one.split("/"))) for page in block for one in page]
    assert places[-1] == (1, 0)


@pytest.mark.parametrize(
    "path", ["ledger/blocks/99999999", "ledger/blocks/x", "ledger/entries/1/77", "ledger/state/00"]
)
def test_a_place_that_is_not_there_is_a_sentence(console: Browser, path: str) -> None:
    said = console.get(path)
    assert said.status == 400
    assert "That did not work" in said.text


def test_a_block_and_its_entries_are_known_by_the_replay(viewer: Viewer, console: Browser) -> None:
    entry = viewer.mirror.newest(1)[0][0]
    block = console.get(f"ledger/blocks/{entry.height}").text
    assert f"under the checkpoint of height {viewer.mirror.at.head.height}" in block  # type: ignore[union-attr]
    assert f"ledger/entries/{entry.height}/{entry.index}" in block
    assert "Its fields" in console.get(f"ledger/entries/{entry.height}/{entry.index}").text


def test_every_table_that_a_contract_keeps_can_be_seen(console: Browser) -> None:
    assert {"topic", "right", "permit", "anchor", "reputation", "versions"} <= TABLES.keys()
    assert len(TABLES) > len({name for name, _ in CONTRACTS})
    for name in TABLES:
        assert console.get("ledger/state", table=name).status == 200, name


def test_a_row_is_proved_by_the_node_where_its_proof_holds(world: ConsoleStack, console: Browser) -> None:
    path = f"ledger/state/{TOPICS(world.token).hex()}"
    assert "the node&#x27;s proof holds" in console.get(path, proof=1).text
    said = console.get(path, proof="file")
    assert said.headers["content-disposition"] == 'attachment; filename="state.proof"'
    assert StateProof.decode(said.body).verify(world.owner.memory.trust).height > 0


def test_a_row_that_is_absent_is_known_to_be(console: Browser) -> None:
    assert "There is no such row" in console.get(f"ledger/state/{TOPICS(b'?' * 16).hex()}").text


def test_a_node_that_proves_another_value_is_refused(world: ConsoleStack, visit: Callable[..., Visit]) -> None:
    there = visit(f"ledger/state/{TOPICS(world.token).hex()}", proof=1)
    honest = there.viewer.session.node.state
    with pytest.raises(Forged):
        show_row(lying(there, state=lambda key: replace(honest(key), value=b"\x01")))


def test_one_height_continues_another_by_the_nodes_proof(viewer: Viewer, console: Browser) -> None:
    newest = viewer.mirror.at.replayed
    text = console.get("ledger/consistency", old=1, new=newest).text
    assert "the newer continues the older" in text
    whole = console.get("ledger/consistency", compare=1).text  # as the form sends it, with nothing filled in
    assert f'ledger/blocks/{newest}"' in whole.partition("the newer continues the older")[0]


def test_a_proof_of_consistency_that_does_not_hold_is_refused(viewer: Viewer, visit: Callable[..., Visit]) -> None:
    there = visit("ledger/consistency", old=1, new=viewer.mirror.at.replayed)
    with pytest.raises(Forged):
        show_consistency(lying(there, consistency=lambda _old, _new: [bytes(32)]))


def test_somebody_elses_checkpoint_is_held_to_this_history(
    world: ConsoleStack, viewer: Viewer, console: Browser
) -> None:
    head = viewer.mirror.at.head
    assert head is not None
    ours = head.note.decode()
    same = console.get("ledger/consistency", note=ours).text
    assert f'{GREEN} title="verified here">it is the one of this history' in same
    edited = console.get("ledger/consistency", note=ours.replace(f"height {head.height}", f"height {head.height - 1}"))
    assert "its signatures do not count" in edited.text
    assert GREEN not in edited.text[edited.text.index("<h1>") :]
    assert console.get("ledger/consistency", note="no checkpoint").status in (400, 404)


def test_a_signed_checkpoint_of_another_history_is_red(
    world: ConsoleStack, viewer: Viewer, visit: Callable[..., Visit]
) -> None:
    other = replace(viewer.mirror.block(2), root=b"\x07" * 32)
    note = sign_checkpoint(world.owner.memory.trust.origin, other, world.node.keys.ledger_key)
    shown = show_consistency(visit("ledger/consistency", note=note.decode()))
    assert "another history: the operator signed both" in shown
    assert GREEN not in shown
