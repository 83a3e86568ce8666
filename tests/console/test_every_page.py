"""Every page of the registry, as far as links lead: whole without scripts, within its size, under the policy, and
without a key of the home."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from console_contents import contents, crawl_parts
from console_stack import ROWS, TOPIC, Browser, ConsoleStack, Said, crawl, serving
from stack import READ
from without import without

from tallystick.console.door import HEADERS
from tallystick.console.pages import PAGES
from tallystick.console.viewer import Viewer

PAGE_BYTES_MAX = 150_000
OUR_SCRIPT = r"<script(?! src=\"/[0-9a-f]{32}/console\.js\" defer=\"\"></script>)"
FORBIDDEN = re.compile(rf" style=|<style|{OUR_SCRIPT}| on[a-z]+=|javascript:")


@pytest.fixture(scope="module")
def viewer(world: ConsoleStack) -> Iterator[Viewer]:
    """A reader who has met nothing yet: in the home of the folder's lies what other files found."""
    walker = world.principal("acme", "walker")
    world.grant(world.owner, world.token, walker, READ)
    with world.viewing(walker) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def shown(world: ConsoleStack, viewer: Viewer) -> dict[str, dict[str, Said]]:
    with world.serving(viewer) as browser:
        return crawl(browser)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Somebody who has whatever an instance and a home may have."""
    with contents(tmp_path_factory.mktemp("contents")) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def rich_shown(rich: Viewer) -> dict[str, dict[str, Said]]:
    with serving(rich) as browser:
        return crawl_parts(browser, each=4)


Answers = list[tuple[str, Said]]


@pytest.fixture(scope="module")
def answers(shown: dict[str, dict[str, Said]], rich_shown: dict[str, dict[str, Said]]) -> Answers:
    """Every address of either, with what was answered."""
    every = [*shown.values(), *rich_shown.values()]
    return [(address, said) for found in every for address, said in found.items()]


def test_links_lead_to_every_page(shown: dict[str, dict[str, Said]], rich_shown: dict[str, dict[str, Said]]) -> None:
    """The reader's instance has no findings, demo, warehouse, updates or overlay; all else is reached, and these where
    they are."""
    assert {path for path, found in shown.items() if not found} == {path for path in rich_shown if "{" in path}
    assert [path for path, found in rich_shown.items() if not found] == []


def test_every_page_is_shown(answers: Answers) -> None:
    """What an instance lacks is a sentence, and no fault."""
    for address, said in answers:
        assert said.status in (200, 400, 404), (address, said.text[-2000:])
        if said.status != 200:
            assert "That did not work" in said.text, address
    assert sum(said.status == 200 for _, said in answers) > len(PAGES)


def test_every_page_is_whole_bounded_and_under_the_policy(answers: Answers) -> None:
    for address, said in answers:
        assert HEADERS.items() <= said.headers.items(), address
        assert len(said.body) < PAGE_BYTES_MAX, (address, len(said.body))
        if said.is_page:
            assert FORBIDDEN.findall(said.text) == [], address
            assert said.text.startswith("<!doctype html>"), address
            assert said.text.count("<h1>") == 1, address
            assert 'class="standing"' in said.text, address


def test_every_page_names_its_height_and_who_vouches(viewer: Viewer, answers: Answers) -> None:
    head = viewer.mirror.at.head
    assert head is not None
    vouched = head.vouched_by(viewer.session.memory.trust)
    for address, said in answers:
        if said.is_page:
            assert re.search(r"height \d+</span> of <time", said.text), address
            assert vouched in said.text, address


# --- keys ---


@pytest.fixture(scope="module")
def keys(world: ConsoleStack, rich: Viewer) -> dict[str, bytes]:
    """All that opens or signs anything in the name of either viewer."""
    with world.reader.subscriber(TOPIC) as subscriber:
        received = [subscriber.find(0, offset)[0].header for offset in range(ROWS)]
        ring = subscriber.ring
        found = {f"lane key {n}": ring.lane_key(header, 0).key for n, header in enumerate(received)}
        found |= {f"topic key {n}": key.encode() for n, key in enumerate(ring._topic_keys.values())}
    assert len(found) > ROWS
    for identity in (world.reader.identity, rich.identity):
        own = {"signing seed": identity.keys.signing_seed, "sealing seed": identity.keys.sealing_seed}
        own |= {"identifier secret": identity.identifier_secret, "spool key": identity.spool_key}
        found |= {f"{what} of {identity.name}": key for what, key in own.items()}
    return found


def forms(key: bytes) -> list[bytes]:
    texts = [key.hex(), key.hex().upper(), b64encode(key).decode(), urlsafe_b64encode(key).decode()]
    return [key, *(text.rstrip("=").encode() for text in texts)]


def leaks(keys: dict[str, bytes], answers: Answers) -> list[tuple[str, str]]:
    return [
        (address, name)
        for name, key in keys.items()
        for address, said in answers
        if any(form in said.body for form in forms(key))
    ]


def test_no_answer_holds_a_key_of_the_home(keys: dict[str, bytes], answers: Answers) -> None:
    assert leaks(keys, answers) == []


@pytest.mark.parametrize("name", ["reader", "doctor"])
def test_a_key_in_any_form_would_be_found(keys: dict[str, bytes], name: str) -> None:
    for form in forms(keys[f"signing seed of {name}"]):
        said = Said(200, {}, b"something before" + form + b"and behind")
        assert leaks(keys, [("here", said)]) == [("here", f"signing seed of {name}")]


# --- hostile names ---


def test_markup_in_the_address_is_text(console: Browser) -> None:
    """And would be markup, where it is not escaped; the policy stands behind (tests/browser)."""
    attack = "<script>alert(1)</script>"
    for field in ("kind", "before", "principal"):
        asked: dict[str, Any] = {field: attack}
        assert attack not in console.get("ledger", **asked).text
    with without("the escaping of markup"):
        assert attack in console.get("ledger", kind=attack).text
