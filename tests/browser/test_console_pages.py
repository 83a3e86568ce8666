"""Every page of the console as people meet it: wide and narrow, light, dark and printed, by keyboard, and live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import console_stack
import pytest
from actors import publish
from commands import tally
from console_contents import contents, crawl_parts
from console_stack import TOPIC, ConsoleStack, Said, crawl, serving
from overlay_ledger import OVERLAY
from verify_cases import FILE, Case, agree

from tallystick.console.viewer import Viewer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOTS = Path(__file__).parents[2] / "build" / "shots"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS: list[tuple[str, dict[str, int], Literal["light", "dark"]]] = [
    ("wide-light", WIDE, "light"),
    ("narrow-dark", NARROW, "dark"),
    ("wide-dark", WIDE, "dark"),
    ("narrow-light", NARROW, "light"),
]
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def viewer(world: ConsoleStack) -> Iterator[Viewer]:
    with world.viewing(world.reader) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def shown(world: ConsoleStack, viewer: Viewer) -> dict[str, dict[str, Said]]:
    with world.serving(viewer) as console:
        return crawl(console)


@pytest.fixture
def console(world: ConsoleStack, viewer: Viewer) -> Iterator[console_stack.Browser]:
    with world.serving(viewer) as console:
        yield console


def addresses(shown: dict[str, dict[str, Said]]) -> list[str]:
    """Of pages that this instance has, and that are no files."""
    return [address for found in shown.values() for address, said in found.items() if said.is_page]


def violations(page: Page) -> list[str]:
    """What axe finds wrong, and where."""
    from axe_playwright_python.sync_playwright import Axe

    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html'][:160]} ({len(one['nodes'])})" for one in found]


def look(page: Page, name: str, faults: list[str], *, closely: bool) -> None:
    """Wide and narrow, with axe once: dark colours push nothing aside. `closely` in every look, with axe and a picture
    of each."""
    for place, (how, size, scheme) in enumerate(LOOKS if closely else LOOKS[:2]):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)
        if (beyond := page.evaluate(SIDEWAYS)) > 0:
            faults.append(f"{name} {how}: {beyond} pixels beyond the side")
        if closely or not place:
            faults += [f"{name} {how}: {one}" for one in violations(page)]
        if closely:
            page.screenshot(path=SHOTS / f"{name.replace('/', '-')}.{how}.png", full_page=True)


def look_printed(page: Page, name: str, faults: list[str], *, closely: bool) -> None:
    from playwright.sync_api import expect

    page.set_viewport_size({"width": 794, "height": 1123})  # of A4
    page.emulate_media(media="print", color_scheme="light")
    for one in page.locator("main time").all()[:1]:  # ages become times, which are wider
        expect(one).to_have_text(re.compile(" UTC$"))
    if (beyond := page.evaluate(SIDEWAYS)) > 0:
        faults.append(f"{name} printed: {beyond} pixels beyond the side")
    if page.locator("body > header").is_visible():
        faults.append(f"{name} printed: with its menu")
    if closely:
        page.screenshot(path=SHOTS / f"{name.replace('/', '-')}.printed.png", full_page=True)
    page.emulate_media(media="screen")


def look_at_all(
    page: Page, console: console_stack.Browser, shown: dict[str, dict[str, Said]], *, closely: bool, kind: str = ""
) -> list[str]:
    page.goto(console.console.url)
    base = f"http://{console.door.host}{console.door.path}/"
    faults: list[str] = []
    for path, found in shown.items():
        for number, address in enumerate(addresses({path: found})):
            name = kind + (path or "first") + (f".{number}" if number else "")
            page.goto(base + address)
            look(page, name, faults, closely=closely)
            look_printed(page, name, faults, closely=closely)
    return faults


def test_every_page_fits_and_is_accessible(
    console: console_stack.Browser, page: Page, shown: dict[str, dict[str, Said]]
) -> None:
    """`page` sees to it that nothing is said in the browser's console, stopped by the policy, or asked off loopback."""
    assert look_at_all(page, console, shown, closely=False) == []


@pytest.mark.long
def test_every_page_is_accessible_in_every_look(
    console: console_stack.Browser, page: Page, shown: dict[str, dict[str, Said]]
) -> None:
    """The pictures are to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    assert look_at_all(page, console, shown, closely=True) == []


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """Somebody who has whatever an instance and a home may have."""
    with contents(tmp_path_factory.mktemp("contents")) as viewer:
        yield viewer


def look_at_parts(page: Page, viewer: Viewer, *, closely: bool) -> list[str]:
    """At what is there beside topics and the ledger; `closely` at several of each kind."""
    with serving(viewer) as console:
        shown = crawl_parts(console, each=3 if closely else 1)
    assert [path for path, found in shown.items() if not (found or path.endswith("/file"))] == []
    with serving(viewer) as console:
        found = look_at_all(page, console, shown, closely=closely, kind="parts-")
        page.goto("about:blank")  # whose poll would hold the console up
    return found


def test_every_page_of_findings_tables_and_carriers_fits_and_is_accessible(page: Page, rich: Viewer) -> None:
    assert look_at_parts(page, rich, closely=False) == []


@pytest.mark.long
def test_every_page_of_findings_tables_and_carriers_is_accessible_in_every_look(page: Page, rich: Viewer) -> None:
    """The pictures are to be looked at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    assert look_at_parts(page, rich, closely=True) == []


FRAME = """
- banner:
  - link "skip to the page":
    - /url: "#live"
  - paragraph
  - navigation "subjects":
    - link "Flow"
    - link "Topics"
    - link "Ledger"
    - link "As it happens"
    - link "Findings"
- main:
  - paragraph:
    - text: /height \\d+ of/
    - time
    - text: /replayed here from the genesis/
  - heading "Ledger" [level=1]
"""


def at(console: console_stack.Browser, path: str) -> str:
    return f"http://{console.door.host}{console.door.path}/{path}"


@pytest.fixture
def inside(console: console_stack.Browser, page: Page) -> Page:
    """A page of the browser that was let in."""
    page.goto(console.console.url)
    return page


def test_who_does_not_see_finds_the_same_frame_on_every_page(inside: Page, console: console_stack.Browser) -> None:
    from playwright.sync_api import expect

    inside.goto(at(console, "ledger"))
    expect(inside.locator("body")).to_match_aria_snapshot(FRAME)


def test_times_are_ages_on_a_screen_and_times_on_paper(inside: Page, console: console_stack.Browser) -> None:
    from playwright.sync_api import expect

    inside.goto(at(console, "ledger"))
    assert inside.locator("main time").first.inner_text().endswith(" ago")
    inside.emulate_media(media="print")
    expect(inside.locator("main time").first).to_have_text(re.compile(" UTC$"))


def test_a_time_to_come_is_no_age(page: Page, rich: Viewer) -> None:
    """Until when a lease lasts, for who looks as soon as it was taken."""
    head = rich.mirror.at.head
    assert head is not None
    with serving(rich) as console:
        page.clock.set_fixed_time(head.time_ms / 1000)
        page.goto(console.console.url)
        page.goto(at(console, f"overlay/{OVERLAY.hex()}"))
        said = page.locator("td", has_text="fence 1").inner_text()
        page.goto("about:blank")
    assert re.search("ends in [0-9]+ s$", said) is not None, said


def test_a_page_is_whole_without_scripts(console: console_stack.Browser, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(console.console.url)
    page.get_by_role("link", name="Ledger").click()
    page.get_by_label("kind").select_option("grant")
    page.get_by_role("button", name="show").click()
    assert "kind=grant" in page.url
    assert all("grant: topic" in row for row in page.locator("tbody tr").all_inner_texts())
    assert page.locator("tbody tr").count() > 1
    context.close()


def test_loading_a_live_page_again_waits_for_nothing(inside: Page, console: console_stack.Browser) -> None:
    """Its own poll, which hangs, is of the same address."""
    inside.goto(at(console, "ledger"))
    inside.wait_for_timeout(300)
    inside.reload(timeout=10_000)
    assert inside.inner_text("h1") == "Ledger"


# --- live ---


def test_a_row_that_is_published_is_shown_without_loading_the_page_again(page: Page, world: ConsoleStack) -> None:
    from playwright.sync_api import expect

    session = world.principal("acme", "watcher")
    with world.viewing(session) as viewer, world.serving(viewer, live=True) as console:
        page.goto(console.console.url)
        page.goto(at(console, "ledger"))
        page.evaluate("window.kept = 1")
        before = page.locator("tbody tr").first.inner_text()
        publish(world.car, TOPIC, [100])
        expect(page.locator("tbody tr").first).not_to_have_text(before, timeout=20_000)
        expect(page.locator("tbody")).to_contain_text("write by")
        assert page.evaluate("window.kept") == 1
        world.stop_node()
        try:
            expect(page.get_by_role("alert")).to_contain_text("the node is away", timeout=60_000)
            expect(page.locator("tbody")).to_contain_text("write by")  # what was verified stays
        finally:
            world.start_node()
        expect(page.get_by_role("alert")).to_have_count(0, timeout=60_000)
        page.goto("about:blank")


# --- from a row to its proof ---


def press_to(page: Page, name: str) -> None:
    """Tab forward until what is focused has this name, and press it."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText || ''").strip() == name:
            return page.keyboard.press("Enter")
    raise AssertionError(f"no tab leads to {name!r}: {page.inner_text('main')}")


def test_by_keyboard_alone_a_row_is_followed_to_its_proof(
    inside: Page, world: ConsoleStack, console: console_stack.Browser, tmp_path: Path
) -> None:
    """The proof is what `tally verify` and `verify.html` take, and with one byte changed neither does."""
    for name in ("Topics", TOPIC, "records", "oldest", "0, 0", "read it"):
        with inside.expect_navigation():
            press_to(inside, name)
    with inside.expect_download() as download:
        press_to(inside, "download row.proof")
    proof = tmp_path / "row.proof"
    download.value.save_as(proof)
    trust = world.folders.root / "trust.json"
    said = tally("verify", proof, "--trust", trust, "--publisher", world.car.identity.principal.hex(), "--json")
    assert said.code == 0, said
    assert said.json["row"]["seq"] == 0
    data = proof.read_bytes()
    altered = tmp_path / "altered.proof"
    altered.write_bytes(bytes([*data[:-40], data[-40] ^ 1, *data[-39:]]))
    assert tally("verify", altered, "--trust", trust).code == 3
    other = inside.context.new_page()
    other.goto(FILE.as_uri())
    cases = {one.name: Case(trust.read_text(), one.read_bytes()) for one in (proof, altered)}
    found = agree(other, cases)  # what Python says of them
    assert found["row.proof"] == ("holds", "")
    assert found["altered.proof"][0] in ("forged", "malformed", "refused")


# --- without the right ---


def test_one_without_the_right_sees_no_name_and_no_row(world: ConsoleStack) -> None:
    """On the ledger are tokens and pseudonyms, for all to audit; what they stand for is told to who may know."""
    hidden = [TOPIC.encode(), b">car<", b">reader<", b"speed", b"vin"]
    with world.viewing(world.stranger) as viewer, world.serving(viewer) as console:
        found = crawl(console, each=2)
        asked = console.get(f"topics/{world.token.hex()}/records", read=1, partition=0, by="offset", at=0)
        answers = [asked, *(said for one in found.values() for said in one.values())]
    assert [(word, said.text) for said in answers for word in hidden if word in said.body] == []
    assert asked.status == 404
