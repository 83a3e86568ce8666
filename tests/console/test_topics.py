"""Topics: what the ledger says of each and where, its history complete, and nothing for those without the right."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attribute_actors import Attributes
from console_stack import TOPIC, Browser, ConsoleStack, Said, look, visit_of
from crowd import crowd
from policy_world import need_pymcl
from stack import wait_until
from without import without

from tallystick.carriers.carrier import Fetch
from tallystick.client.schemas import held_schema
from tallystick.client.words import decode
from tallystick.console.mirror import Mirror
from tallystick.console.pages import topics
from tallystick.console.recent import Recent
from tallystick.console.schemas import Columns, _ask, ask_columns
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.errors import Forged, Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.topics import SCHEMAS, SchemaRow
from tallystick.ledger.engine import Query
from tallystick.policy.parse import parse
from tallystick.record.schema import Schema
from tallystick.trust.right import Right

PLACE = re.compile(r"ledger/entries/(\d+)/(\d+)\"")


def test_the_list_has_those_that_one_may_describe(world: ConsoleStack, console: Browser) -> None:
    assert TOPIC in console.get("topics").text
    assert TOPIC in console.get("topics", name="BRAK").text
    assert TOPIC not in console.get("topics", name="doors").text.partition("</form>")[2]
    with world.viewing(world.stranger) as other, world.serving(other) as browser:
        assert "No topics that you own or may describe" in browser.get("topics").text


def test_who_lacks_the_right_is_told_what_is_told_of_a_topic_that_is_none(world: ConsoleStack) -> None:
    with world.viewing(world.stranger) as other, world.serving(other) as browser:
        for rest in ("", "/history"):
            there, none = (browser.get(f"topics/{token.hex()}{rest}") for token in (world.token, bytes(16)))
            assert there.status == none.status == 404
            assert after_heading(there).replace(world.token.hex(), bytes(16).hex()) == after_heading(none)
        by_flow = [browser.get("", topic=token.hex()).status for token in (world.token, bytes(16))]
        assert by_flow == [404, 404]


def after_heading(said: Said) -> str:
    return said.text[said.text.index("<h1>") :]


def test_a_schema_is_checked_against_the_ledgers_hash(world: ConsoleStack, console: Browser) -> None:
    text = console.get(f"topics/{world.token.hex()}").text
    assert 'vin string, seq int64 not null, speed float32 <span class="mark good"' in text


def asked(visit: Visit, token: bytes, **told: Any) -> Columns:
    """What is found where the authority tells this of a topic."""
    found = Columns()
    authority = SimpleNamespace(**{name: lambda _token, what=what: what for name, what in told.items()})
    session = SimpleNamespace(authority=authority, within=visit.viewer.session.within)
    viewer: Any = SimpleNamespace(session=session, asking=visit.viewer.asking, mirror=visit.mirror)
    _ask(Visit(viewer, "", ""), token, found, has_policies="topic_policies" in told)
    return found


def test_a_schema_that_the_ledger_does_not_name_is_red(world: ConsoleStack, visit: Callable[..., Visit]) -> None:
    found = asked(visit(""), world.token, schemas=[Schema.parse("vin string").encode()])
    assert found.schemas == {}
    assert "is not the one that the ledger names" in found.forged[0]


def test_a_policy_is_held_to_the_ledgers_commitment(world: ConsoleStack) -> None:
    """An authority, restored or dishonest, that tells the owner another formula than the one it signed."""
    need_pymcl()
    owner, people = world.owner, Attributes(world, world.owner)
    token = world.topic(owner, "closed", Schema.parse("n int64, place string", groups=(("n",), ("place",))))
    people.set_policy(token, 1, "role::garage")
    (honest,) = owner.authority.topic_policies(token)
    other = replace(honest, formula=parse("role::insurer", people.space).encode())
    with world.viewing(owner) as viewer:
        with world.serving(viewer) as console:
            shown = console.get(f"topics/{token.hex()}").text
        assert 'role::garage <span class="mark good" title="verified here">commitment fits' in shown
        found = asked(visit_of(viewer, ""), token, schemas=[], topic_policies=[other])
        assert found.policies == {}
        lost = replace(honest, formula=b"", salt=b"")
        assert asked(visit_of(viewer, ""), token, schemas=[], topic_policies=[lost]).policies == {1: ""}
        assert "the policy of its group 1 is not the one that the ledger names" in found.forged[0]
        with without("the commitment to a policy"):
            found = asked(visit_of(viewer, ""), token, schemas=[], topic_policies=[other])
        assert "role::insurer" in found.policies[1]


def test_held_schemas_are_asked_for_once(world: ConsoleStack, visit: Callable[..., Visit]) -> None:
    there = visit(f"topics/{world.token.hex()}")
    assert ask_columns(there, world.token) is ask_columns(there, world.token)


def test_a_schema_is_held_to_the_row_that_is_read() -> None:
    schema = Schema.parse("vin string")
    rows = {bytes(SCHEMAS(bytes(16), 1)): SchemaRow(schema.hash, b"", 3)}
    read: Any = lambda key: rows.get(bytes(key))  # noqa: E731
    assert held_schema(read, bytes(16), schema.encode()).hash == schema.hash
    with pytest.raises(Forged, match="not the one"):
        held_schema(read, bytes(16), Schema.parse("vin int64").encode())


def test_rights_have_the_heights_of_their_grants(world: ConsoleStack, viewer: Viewer, console: Browser) -> None:
    text = console.get(f"topics/{world.token.hex()}").text
    rights = text[text.index(">Rights<") : text.index(">Permits")]
    grants = viewer.mirror.audit(Query(kind=int(EntryKind.GRANT)))
    granted = {item.height for item in grants if item.fields[1] == world.token}
    assert granted
    assert {int(height) for height in re.findall(r"ledger/blocks/(\d+)", rights)} == granted


def test_heights_are_right_where_blocks_share_a_time(tmp_path: Path) -> None:
    found = crowd(tmp_path, topics=1, principals=2)
    token, who = found.tokens[0], [*found.people, found.world.monitor]
    expected = []
    for one in who:
        found.write(found.owner, entries.grant(token, one.id, Right.DELETE), after_ms=0)
        expected.append(found.ledger.height)
    with closing(found.ledger), closing(Mirror(tmp_path / "console", found.world.trust, lambda: 0)) as mirror:
        mirror.follow(found)
        visit: Any = SimpleNamespace(mirror=mirror, head=mirror.at.head, recent=Recent(mirror).look())
        heights = [topics._height_of_change(visit, token, one.id, found.now_ms) for one in who]
    assert heights == expected


def test_the_history_is_complete(world: ConsoleStack, viewer: Viewer, console: Browser) -> None:
    look(viewer)
    proved, head = world.owner.history(world.token)
    text = console.get(f"topics/{world.token.hex()}/history").text
    shown = [(int(height), int(index)) for height, index in PLACE.findall(text)]
    assert shown == [(height, index) for height, index, _ in proved if height <= head.height][: len(shown)]
    assert "complete</span>" in text


def test_a_history_goes_on_at_any_place(tmp_path: Path) -> None:
    """An operation's own place leads on by its links; any other is found from the newest on."""
    found = crowd(tmp_path, topics=2, principals=8)
    with closing(found.ledger) as ledger:
        token = found.tokens[0]
        every = ledger.history(token, 10_000)
        assert len(every) == 4 * 10
        places = {(one.height, one.index) for one in every}
        places |= {(height, index + 1) for height, index in places} | {(height, 0) for height, _ in places} | {(2, 9)}
        for place in places:
            expected = [one for one in every if (one.height, one.index) < place]
            assert ledger.history(token, 7, place) == expected[:7], place


def test_refusals_are_red_and_can_be_asked_for_alone(world: ConsoleStack, viewer: Viewer) -> None:
    nosy = world.principal("acme", "nosy")  # who may do nothing
    with pytest.raises(Refused):
        nosy.node.fetch(Fetch(world.token, 0, bytes(16), 0, 1_000))

    def is_told() -> bool:
        look(viewer)
        return any(decode(one.entry)["reason"] for one in viewer.mirror.history(world.token, 1_000))

    wait_until(is_told)
    with world.serving(viewer) as browser:
        text = browser.get(f"topics/{world.token.hex()}/history", only="refused").text
    rows = text[text.index("<tbody>") :].split("<tr>")[1:]
    assert rows
    assert all("mark alarm" in row and "refused:" in row for row in rows)


def test_commands_are_filled_in(world: ConsoleStack, console: Browser) -> None:
    assert f"tally subscribe {TOPIC} --home" in console.get(f"topics/{world.token.hex()}").text
    with world.viewing(world.owner) as owner, world.serving(owner) as browser:
        text = browser.get(f"topics/{world.token.hex()}").text
    for begin in (f"tally right grant {TOPIC} ", f"tally topic rotate {TOPIC} --home "):
        assert begin in text


@pytest.mark.parametrize("query", [{"before": "x"}, {"before": "99999999/1"}, {"only": "<script>"}, {"before": "1/-1"}])
def test_a_wrong_address_is_a_sentence(world: ConsoleStack, visit: Callable[..., Visit], query: dict[str, str]) -> None:
    with pytest.raises(Misuse):
        topics.show_history(visit(f"topics/{world.token.hex()}/history", **query))


def test_markup_in_an_address_is_text(world: ConsoleStack, console: Browser) -> None:
    attack = "<script>alert(1)</script>"
    assert attack not in console.get("topics", name=attack).text
    assert attack not in console.get("", topic=attack).text
