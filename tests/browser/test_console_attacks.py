"""What another page in the viewer's browser can do to a console: each attack with the defence, and without."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import console_stack
import pytest
from actors import await_topic
from console_contents import contents, told_names
from console_stack import ConsoleStack, crawl, serving
from elsewhere import Elsewhere
from stack import READ, WRITE, wait_until
from without import without

from tallystick.client.names import Names
from tallystick.console import door
from tallystick.console.viewer import Viewer
from tallystick.errors import Refused

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="module")
def viewer(world: ConsoleStack) -> Iterator[Viewer]:
    with world.viewing(world.reader) as viewer:
        yield viewer


@pytest.fixture
def console(world: ConsoleStack, viewer: Viewer) -> Iterator[console_stack.Browser]:
    with world.serving(viewer) as console:
        yield console


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as elsewhere:
        yield elsewhere


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Attacks make errors: nobody watches for them here."""
    context = browser.new_context()
    yield context
    context.close()


def enter(context: BrowserContext, console: console_stack.Browser) -> Page:
    """A page of a browser that was let in, where it looks at nothing."""
    page = context.new_page()
    page.goto(console.console.url)
    page.goto("about:blank")
    return page


def judged(page: Page, console: console_stack.Browser, elsewhere: Elsewhere, shown: str) -> set[str]:
    """How the console judges what a page of elsewhere asks of it."""
    before = len(console.door.judged)

    def found() -> set[str]:  # what the console's own page asked may come late
        return {how for site, how in console.door.judged[before:] if site not in (b"same-origin", b"none")}

    elsewhere.page = shown
    page.goto(elsewhere.url)
    wait_until(lambda: bool(found()))
    return found()


# --- cookies ---


def test_another_port_is_not_sent_the_cookie(
    context: BrowserContext, console: console_stack.Browser, elsewhere: Elsewhere
) -> None:
    page = enter(context, console)
    assert len(context.cookies()) == 1
    for path in ("/", "/console/", "/ledger"):
        page.goto(elsewhere.url + path)
    assert elsewhere.cookies == []
    page.goto(elsewhere.url + console.door.path + "/ledger")  # who knows the path, which nobody can guess
    assert len(elsewhere.cookies) == 1


def test_a_path_that_can_be_guessed_gives_the_cookie_away(
    context: BrowserContext, world: ConsoleStack, viewer: Viewer, elsewhere: Elsewhere
) -> None:
    with world.serving(viewer, path="/console") as console:
        page = enter(context, console)
        page.goto(elsewhere.url + "/console/")
        [stolen] = elsewhere.cookies
        assert console.ask("/console/ledger", cookie=stolen).status == 200


def test_no_script_reads_the_cookie(context: BrowserContext, console: console_stack.Browser) -> None:
    page = enter(context, console)
    page.goto(f"http://{console.door.host}{console.door.path}/ledger")
    assert page.inner_text("h1") == "Ledger"
    assert page.evaluate("document.cookie") == ""


# --- requests from elsewhere ---

FETCH = """<script>
for (const mode of ["no-cors", "cors"]) fetch("{base}/ledger", {{mode, credentials: "include"}}).then(
  async said => {{ document.title += await said.text(); }}, () => 0);
</script>"""
FORM = '<form action="{base}/ledger"></form><script>document.forms[0].submit()</script>'
SCRIPT = '<script src="{base}/console.js"></script>'
PICTURE = '<img src="{base}/ledger">'


@pytest.mark.parametrize("attack", [FETCH, FORM, SCRIPT, PICTURE], ids=["fetch", "form", "script", "picture"])
def test_what_is_asked_from_another_port_is_refused(
    context: BrowserContext, console: console_stack.Browser, elsewhere: Elsewhere, attack: str
) -> None:
    page = enter(context, console)
    shown = attack.format(base=f"http://{console.door.host}{console.door.path}")
    assert judged(page, console, elsewhere, shown) == {"out"}
    assert page.title() in ("", "elsewhere")
    with without("the site that asks a console"):
        assert judged(page, console, elsewhere, shown) == {"in"}
    if attack != FORM:
        assert page.title() == "elsewhere"  # what came of it is for no script of another port


def test_a_link_from_elsewhere_opens_nothing(
    context: BrowserContext, console: console_stack.Browser, elsewhere: Elsewhere
) -> None:
    page = enter(context, console)
    elsewhere.page = f'<a href="http://{console.door.host}{console.door.path}/ledger">look</a>'
    page.goto(elsewhere.url)
    with page.expect_navigation() as navigation:
        page.click("a")
    answer = navigation.value
    assert answer is not None
    assert answer.status == 403
    assert "open the address that tally console printed" in page.inner_text("body")


def test_nothing_is_posted(context: BrowserContext, console: console_stack.Browser, elsewhere: Elsewhere) -> None:
    page = enter(context, console)
    base = f"http://{console.door.host}{console.door.path}"
    elsewhere.page = FORM.format(base=base).replace("<form", "<form method=post")
    with page.expect_response(f"{base}/ledger") as response:
        page.goto(elsewhere.url)
    assert response.value.status == 403


# --- frames ---

POLICY = ("content-security-policy", "x-frame-options", "cross-origin-resource-policy", "cross-origin-opener-policy")


def framed(page: Page, console: console_stack.Browser, elsewhere: Elsewhere) -> list[str]:
    """The headings that a frame elsewhere shows of the console."""
    frame = f'<iframe src="http://{console.door.host}{console.door.path}/ledger"></iframe>'
    judged(page, console, elsewhere, frame)
    return page.frame_locator("iframe").locator("h1").all_inner_texts()


def test_a_frame_elsewhere_shows_nothing(
    context: BrowserContext, console: console_stack.Browser, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = enter(context, console)
    assert "Ledger" not in framed(page, console, elsewhere)
    with without("the site that asks a console"):
        assert "Ledger" not in framed(page, console, elsewhere)  # the policy
        for name in POLICY:
            monkeypatch.delitem(door.HEADERS, name)
        assert framed(page, console, elsewhere) == ["Ledger"]


# --- a name that is rebound ---


@contextmanager
def rebound(browser: Browser) -> Iterator[BrowserContext]:
    """A browser in which evil.example is 127.0.0.1 by now."""
    chromium = shutil.which("chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    with closing(browser.browser_type.launch(executable_path=chromium, args=arguments)) as other:
        yield other.new_context()


def test_a_name_that_is_rebound_opens_nothing(browser: Browser, console: console_stack.Browser) -> None:
    """Pages of evil.example ask what is of their own origin, then, and may read all of the answer."""
    url = f"http://evil.example:{console.console.server.port}{console.door.path}/ledger"
    with rebound(browser) as context:
        page = context.new_page()
        answer = page.goto(url)
        assert answer is not None
        assert answer.status == 403
        ask = f"fetch('{url}').then(async said => said.status + await said.text())"
        assert page.evaluate(ask).startswith("403this page is not there")
        with without("the host of a console", "the site that asks a console", "the cookie of a console"):
            assert "Ledger" in page.evaluate(ask)


# --- markup in what others named ---

ATTACK = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>'


def attacked(page: Page, console: console_stack.Browser) -> bool:
    """Whether what an address brings ran."""
    page.goto(f"http://{console.door.host}{console.door.path}/ledger?kind={quote(ATTACK)}")
    return bool(page.evaluate("window.ran === 1"))


def test_markup_that_is_not_escaped_is_stopped_by_the_policy(
    context: BrowserContext, console: console_stack.Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = enter(context, console)
    said: list[str] = []
    page.on("console", lambda one: said.append(one.text))
    assert not attacked(page, console)
    assert not any("Content Security Policy" in one for one in said)  # there was nothing to stop
    with without("the escaping of markup"):
        assert not attacked(page, console)
        assert any("Content Security Policy" in one for one in said)
        monkeypatch.delitem(door.HEADERS, "content-security-policy")
        assert attacked(page, console)


class Hostile:
    """Somebody who calls everything by markup that would tell of itself: every other thing a script, the rest a
    picture."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def __call__(self, what: str, _plain: str = "") -> str:
        run = f"ran('{what}')"
        text = f"<img src=x onerror={run}>" if len(self.texts) % 2 else f"<script>{run}</script>"
        return self.texts.setdefault(what, text)

    def named_in(self, text: str) -> set[str]:
        return {what for what, markup in self.texts.items() if markup in text}


@contextmanager
def hostile_parts(_world: ConsoleStack, folder: Path, said: Hostile) -> Iterator[Viewer]:
    """Nodes, operators, an authority, a demo and whoever wrote the warehouse."""
    with contents(folder, said) as viewer:
        yield viewer


@contextmanager
def hostile_topic(world: ConsoleStack, _folder: Path, said: Hostile) -> Iterator[Viewer]:
    """Members of one's own tenant: a value, its column, and who wrote it. What no topic may be called, an authority
    says."""
    owner, value, column = world.tenant("hostile"), said("value"), said("column")
    with pytest.raises(Refused, match="letters, digits"):
        world.topic(owner, said("topic"), "vin string")
    token = world.topic(owner, "named", f'"{column}" string')
    await_topic(world, token)
    writer = world.principal("hostile", said("principal"))
    for session, operations in ((writer, WRITE), (owner, READ)):
        world.grant(owner, token, session, operations)
    with writer.publisher("named", acks="anchored", anchor_check_s=0.02) as publisher:
        publisher.send([{column: value}])
        assert publisher.flush(30) == 0
    with world.viewing(owner) as viewer:
        viewer.names = told_names({token: said("topic")}, Names(owner).principal_names)
        yield viewer


def ran_at(page: Page, console: console_stack.Browser, address: str) -> set[str]:
    """What ran on a page of the console."""
    page.goto(f"http://{console.door.host}{console.door.path}/{address}")
    return set(page.evaluate("seen"))


@pytest.mark.parametrize("make", [hostile_parts, hostile_topic])
def test_whatever_others_named_is_text(
    browser: Browser,
    world: ConsoleStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[ConsoleStack, Path, Hostile], AbstractContextManager[Viewer]],
) -> None:
    """Wherever it is shown it is text, and nothing is left for the policy to stop; without both it runs."""
    said, shown, ran = Hostile(), set[str](), set[str]()
    told: list[str] = []
    context = browser.new_context()
    context.add_init_script("window.seen = []; window.ran = what => seen.push(what);")
    with make(world, tmp_path, said) as viewer:
        with serving(viewer) as console:
            found = [one for kind in crawl(console, each=4).values() for one in kind.items() if one[1].is_page]
        named = {address: what for address, answer in found if (what := said.named_in(unescape(answer.text)))}
        with serving(viewer) as console:
            page = enter(context, console)
            page.on("console", lambda one: told.append(one.text))
            for address in named:
                assert ran_at(page, console, address) == set(), address
                shown |= said.named_in(page.evaluate("document.body.textContent"))
            assert [one for one in told if "Content Security Policy" in one] == []
            assert shown == said.texts.keys()
            with without("the escaping of markup"):
                monkeypatch.delitem(door.HEADERS, "content-security-policy")
                for address, what in named.items():
                    ran |= ran_at(page, console, address) if what - ran else set()
            page.goto("about:blank")
    context.close()
    assert ran == said.texts.keys()
