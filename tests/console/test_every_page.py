"""Every page of the registry, as far as links lead: whole without scripts, within its size, under the policy, and
without a key of the home."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from typing import Any

import pytest
from console_stack import ROWS, TOPIC, Browser, ConsoleStack, Said, crawl
from without import without

from tallystick.console.door import HEADERS
from tallystick.console.pages import PAGES
from tallystick.console.viewer import Viewer

PAGE_BYTES_MAX = 150_000
OUR_SCRIPT = r"<script(?! src=\"/[0-9a-f]{32}/console\.js\" defer=\"\"></script>)"
FORBIDDEN = re.compile(rf" style=|<style|{OUR_SCRIPT}| on[a-z]+=|javascript:")


@pytest.fixture(scope="module")
def shown(world: ConsoleStack, viewer: Viewer) -> dict[str, dict[str, Said]]:
    with world.serving(viewer) as browser:
        return crawl(browser)


def all_of(shown: dict[str, dict[str, Said]]) -> list[tuple[str, Said]]:
    return [(address, said) for found in shown.values() for address, said in found.items()]


def test_links_lead_to_every_page_of_what_there_is(shown: dict[str, dict[str, Said]]) -> None:
    """This instance has no findings, demo, warehouse, updates or overlay; all else is reached."""
    lacking = ("findings/", "scenes/", "alerts/", "trips/", "updates/", "overlay/")
    assert [path for path, found in shown.items() if not found and not path.startswith(lacking)] == []


def test_every_page_is_shown(shown: dict[str, dict[str, Said]]) -> None:
    """What this instance lacks is a sentence, and no fault."""
    for address, said in all_of(shown):
        assert said.status in (200, 400, 404), (address, said.text[-2000:])
        if said.status != 200:
            assert "That did not work" in said.text, address
    assert sum(said.status == 200 for _, said in all_of(shown)) > len(PAGES) / 2


def test_every_page_is_whole_bounded_and_under_the_policy(shown: dict[str, dict[str, Said]]) -> None:
    for address, said in all_of(shown):
        assert HEADERS.items() <= said.headers.items(), address
        assert len(said.body) < PAGE_BYTES_MAX, (address, len(said.body))
        if said.headers["content-type"].startswith("text/html"):
            assert FORBIDDEN.findall(said.text) == [], address
            assert said.text.startswith("<!doctype html>"), address
            assert said.text.count("<h1>") == 1, address
            assert 'class="standing"' in said.text, address


def test_every_page_names_its_height_and_who_vouches(viewer: Viewer, shown: dict[str, dict[str, Said]]) -> None:
    for address, said in all_of(shown):
        if said.headers["content-type"].startswith("text/html"):
            assert re.search(r"height \d+</span> of <time", said.text), address
            assert viewer.vouched_by in said.text, address


# --- keys ---


def keys_of(world: ConsoleStack) -> dict[str, bytes]:
    """All that opens or signs anything in the reader's name."""
    identity = world.reader.identity
    with world.reader.subscriber(TOPIC) as subscriber:
        received = [subscriber.find(0, offset)[0].header for offset in range(ROWS)]
        ring = subscriber.ring
        found = {f"lane key {n}": ring.lane_key(header, 0).key for n, header in enumerate(received)}
        found |= {f"topic key {n}": key.encode() for n, key in enumerate(ring._topic_keys.values())}
    assert len(found) > ROWS
    return found | {
        "signing seed": identity.keys.signing_seed,
        "sealing seed": identity.keys.sealing_seed,
        "identifier secret": identity.identifier_secret,
        "spool key": identity.spool_key,
    }


def forms(key: bytes) -> list[bytes]:
    texts = [key.hex(), key.hex().upper(), b64encode(key).decode(), urlsafe_b64encode(key).decode()]
    return [key, *(text.rstrip("=").encode() for text in texts)]


def leaks(world: ConsoleStack, shown: dict[str, dict[str, Said]]) -> list[tuple[str, str]]:
    return [
        (address, name)
        for name, key in keys_of(world).items()
        for address, said in all_of(shown)
        if any(form in said.body for form in forms(key))
    ]


def test_no_answer_holds_a_key_of_the_home(world: ConsoleStack, shown: dict[str, dict[str, Said]]) -> None:
    assert leaks(world, shown) == []


def test_a_key_in_any_form_would_be_found(world: ConsoleStack) -> None:
    for form in forms(world.reader.identity.keys.signing_seed):
        said = Said(200, {}, b"something before" + form + b"and behind")
        assert leaks(world, {"": {"here": said}}) == [("here", "signing seed")]


# --- hostile names ---


def test_markup_in_the_address_is_text(console: Browser) -> None:
    """And would be markup, where it is not escaped; the policy stands behind (tests/browser)."""
    attack = "<script>alert(1)</script>"
    for field in ("kind", "before", "principal"):
        asked: dict[str, Any] = {field: attack}
        assert attack not in console.get("ledger", **asked).text
    with without("the escaping of markup"):
        assert attack in console.get("ledger", kind=attack).text
