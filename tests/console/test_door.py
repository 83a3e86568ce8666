"""Who may come in: the browser that was given the token, and nobody else who can reach the port. Each way in is tried
with its defence and without."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path

import pytest
from commands import running, tally
from console_stack import Browser, ConsoleStack, Said, serving
from without import without

from tallystick.console.door import HEADERS
from tallystick.console.viewer import Viewer

SENTENCE = b"this page is not there, or this browser was not let in: open the address that tally console printed last\n"
REFUSED = (403, SENTENCE)  # all that a stranger is told


def told(said: Said) -> tuple[int, bytes]:
    assert HEADERS.items() <= said.headers.items()
    return said.status, said.body


@pytest.fixture
def inside(console: Browser) -> Browser:
    return console.let_in()


# --- which host was meant ---


@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "localhost:{port}", "127.0.0.1.:{port}", "127.0.0.1", "127.0.0.1:{other}", "127.1:{port}"],
)
def test_another_host_is_refused(inside: Browser, host: str) -> None:
    """Somebody's name that leads to 127.0.0.1 by now: its pages are of the same origin as what they ask for."""
    port = inside.console.server.port
    host = host.format(port=port, other=port ^ 1)
    page = f"{inside.door.path}/ledger"
    assert told(inside.ask(page, host=host)) == REFUSED
    with without("the host of a console"):
        assert inside.ask(page, host=host).status == 200


def test_the_other_loopback_has_its_own_host(viewer: Viewer) -> None:
    with serving(viewer, host="::1") as console:
        assert console.door.host == f"[::1]:{console.console.server.port}"
        assert console.get("ledger").status == 200
        assert told(console.ask(console.console.url, host=f"127.0.0.1:{console.console.server.port}")) == REFUSED


def test_another_host_spends_no_token(console: Browser) -> None:
    assert told(console.ask(console.console.url, host="evil.example", cookie=None)) == REFUSED
    console.let_in()


@pytest.mark.parametrize("hosts", [[], ["{ours}", "evil.example"], ["evil.example", "{ours}"]])
def test_one_host_is_named(inside: Browser, hosts: list[str]) -> None:
    lines = [f"Host: {host.format(ours=inside.door.host)}" for host in hosts]
    assert raw(inside, *lines).startswith(b"HTTP/1.1 403 ")
    assert raw(inside, f"Host: {inside.door.host}").startswith(b"HTTP/1.1 200 ")


def raw(browser: Browser, *lines: str, target: str = "ledger") -> bytes:
    """The answer to a request whose head is as given."""
    head = [f"GET {browser.door.path}/{target} HTTP/1.1", "Sec-Fetch-Site: none", f"Cookie: {browser.cookie}", *lines]
    with closing(socket.create_connection(("127.0.0.1", browser.console.server.port), 30)) as connection:
        connection.sendall("\r\n".join([*head, "Connection: close", "", ""]).encode())
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


# --- who asks ---


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", None])
def test_another_site_is_refused(inside: Browser, site: str | None) -> None:
    """Every page that the browser shows may ask; another port of this machine is the same site."""
    page = f"{inside.door.path}/ledger"
    assert told(inside.ask(page, sec_fetch_site=site)) == REFUSED
    with without("the site that asks a console"):
        assert inside.ask(page, sec_fetch_site=site).status == 200


def test_a_page_of_another_site_spends_no_token(console: Browser) -> None:
    assert told(console.ask(console.console.url, sec_fetch_site="cross-site", cookie=None)) == REFUSED
    console.let_in()


def test_what_is_loaded_beforehand_reads_nothing_and_spends_no_token(console: Browser, world: ConsoleStack) -> None:
    """As browsers do with an address that is being typed."""
    purpose = {"sec_fetch_site": "none", "sec_purpose": "prefetch;prerender"}
    assert told(console.ask(console.console.url, cookie=None, **purpose)) == REFUSED
    console.let_in()
    page = f"{console.door.path}/topics/{world.token.hex()}/records?read=1"
    assert told(console.ask(page, **purpose)) == REFUSED
    with without("the purpose of who asks a console"):
        assert "1, 0</a>" in console.ask(page, **purpose).text


@pytest.mark.parametrize("query", ["", "?token=", "?token=00", "?other={token}", "?token={token}0", "?token={other}"])
def test_without_the_token_nobody_comes_in(console: Browser, query: str) -> None:
    token = console.door.token
    url = "/" + query.format(token=token, other=token[::-1])
    assert told(console.ask(url, cookie=None)) == REFUSED
    with without("a token that is good once"):
        assert console.ask(url, cookie=None).status == 303
    console.let_in()  # a wrong one spends nothing


def test_a_token_is_good_once(console: Browser) -> None:
    console.let_in()
    assert told(console.ask(console.console.url)) == REFUSED
    assert console.get("ledger").status == 200
    with without("a token that is good once"):
        assert console.ask(console.console.url, cookie=None).status == 303


def cookies(browser: Browser) -> dict[str, str | None]:
    name, _, value = browser.cookie.partition("=")
    other = "0" * len(value)
    return {
        "none": None,
        "empty": f"{name}=",
        "another console": f"{name}={other}",
        "another name": f"tally={value}",
        "in another's value": f"tally={name}={value}",
        "a part": f"{name}={value[:-1]}",
        "more": f"{name}={value}0",
        "not of ASCII": f"{name}=\xe4\xf6\xfc",
    }


@pytest.mark.parametrize("kind", cookies(Browser(None, None)))  # type: ignore[arg-type]
def test_without_the_cookie_nobody_comes_in(inside: Browser, kind: str) -> None:
    cookie = cookies(inside)[kind]
    for path in ("ledger", "console.css", "console.js"):
        assert told(inside.ask(f"{inside.door.path}/{path}", cookie=cookie)) == REFUSED
    with without("the cookie of a console"):
        assert inside.ask(f"{inside.door.path}/ledger", cookie=cookie).status == 200


@pytest.mark.parametrize("beside", ['a={"json": [1, 2]}', "tally-console=evil", "=;;=", "x=\xff\xfe", "a b c"])
def test_cookies_of_other_servers_do_not_keep_one_out(inside: Browser, beside: str) -> None:
    """Cookies do not know ports: whatever runs on this machine may set some for every port."""
    for cookie in (f"{inside.cookie}; {beside}", f"{beside}; {inside.cookie}"):
        assert inside.ask(f"{inside.door.path}/ledger", cookie=cookie).status == 200


def test_a_cookie_of_another_console_is_none_here(world: ConsoleStack, viewer: Viewer, inside: Browser) -> None:
    with world.serving(viewer) as other:
        other.let_in()
        assert told(inside.ask(f"{inside.door.path}/ledger", cookie=other.cookie)) == REFUSED


def test_the_cookie_is_for_its_path_and_for_no_script(console: Browser) -> None:
    said = console.ask(console.console.url, cookie=None)
    name, *rest = said.headers["set-cookie"].split("; ")
    assert sorted(rest) == ["HttpOnly", f"Path={console.door.path}", "SameSite=Strict"]
    assert len(console.door.path) == 1 + 32
    assert name.startswith("tally-console=")
    assert said.headers["location"] == f"{console.door.path}/"


# --- what is asked ---


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_but_asking_for_a_page(inside: Browser, method: str) -> None:
    refused = (403, b"" if method == "HEAD" else SENTENCE)
    for path in ("ledger", "", "console.js"):
        assert told(inside.ask(f"{inside.door.path}/{path}", method)) == refused
    assert told(inside.ask(inside.console.url, method)) == refused


def test_a_poll_is_told_what_is_newer_and_a_page_is_whole(inside: Browser, viewer: Viewer) -> None:
    """Without our header, which no other origin may send unasked, it is a page like any other."""
    page = inside.get("ledger")
    assert page.text.startswith("<!doctype html>")
    poll = inside.get("ledger", poll=viewer.mirror.at.version - 1)
    assert poll.status == 200
    assert poll.text in page.text
    assert not poll.text.startswith("<!doctype html>")
    assert int(poll.headers["tally-version"]) == viewer.mirror.at.version


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "nothing", "ledger/", "ledger/blocks", "ledger/blocks/", "../ledger", "ledger/..", "%2e%2e/ledger"),
        *("ledger/blocks/1/2", "console.css.map", "app.py", "ledger%00"),
    ],
)
def test_what_does_not_exist_looks_like_what_is_refused(inside: Browser, path: str) -> None:
    if path:  # the first page is there
        assert told(inside.ask(f"{inside.door.path}/{path}")) == REFUSED
    assert told(inside.ask(f"/{path}")) == REFUSED
    assert told(inside.ask(f"/{'0' * 32}/{path}")) == REFUSED


def sentence(said: Said) -> str:
    """What a page says that did not work, when it is a page like others."""
    assert (said.status, HEADERS.items() <= said.headers.items()) == (400, True), said
    assert "That did not work" in said.text
    assert "Traceback" not in said.text
    return said.text


@pytest.mark.parametrize("query", ["&".join(f"a{n}=1" for n in range(17)), "kind=%ff", "kind=%c3%28"])
def test_a_query_that_cannot_be_read_is_a_sentence(inside: Browser, query: str) -> None:
    sentence(inside.ask(f"{inside.door.path}/ledger?{query}"))


@pytest.mark.parametrize("query", ["kind=%zz", "kind=%", "before=%30%30", "before=\u0661".encode().hex(), "before=1e9"])
def test_a_query_that_makes_no_sense_is_a_sentence(inside: Browser, query: str) -> None:
    said = inside.ask(f"{inside.door.path}/ledger?{query}")
    assert said.status in (200, 400)
    assert "the console failed" not in said.text


@pytest.mark.parametrize("path", ["blocks/-1", "blocks/99999999999999999999", "blocks/%31", "blocks/1e3", "blocks/%ff"])
def test_a_place_that_is_none_is_a_sentence(inside: Browser, path: str) -> None:
    said = inside.ask(f"{inside.door.path}/ledger/{path}")
    assert said.status in (200, 400)
    assert "the console failed" not in said.text


def test_a_long_address_is_answered_or_dropped(inside: Browser) -> None:
    assert raw(inside, f"Host: {inside.door.host}", target="ledger?kind=" + "x" * 8_000).startswith(b"HTTP/1.1 400 ")
    assert raw(inside, f"Host: {inside.door.host}", target="ledger?kind=" + "x" * 40_000) == b""
    assert inside.get("ledger").status == 200


# --- the command ---


@pytest.fixture(scope="module")
def home(world: ConsoleStack) -> Path:
    """Somebody whose home no other console has."""
    return world.principal("acme", "watcher").identity.home


def test_the_token_is_told_by_terminal_and_file_alone(home: Path) -> None:
    with running("console", "--home", home) as (process, ready):
        url = ready["url"]
        token = url.partition("?token=")[2]
        assert len(token) == 48
        kept = home / "console" / "url"
        assert kept.read_text() == f"{url}\n"
        for file in (home / "console", kept, kept.with_name("path"), kept.with_name("ledger.sqlite")):
            assert file.stat().st_mode & 0o077 == 0, file
        assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{process.pid}/environ").read_bytes()
        second = tally("console", "--home", home)
        assert (second.code, second.out) != (0, "")
        assert "another process serves this folder" in second.err
        assert "hint:" in second.err
        assert_refused_from_outside(url)
        process.terminate()
        assert process.stderr is not None
        assert token not in process.stderr.read()
    path = kept.with_name("path").read_text()
    with running("console", "--home", home) as (process, again):  # and is ended before it serves
        assert again["url"].partition("?")[0] == url.partition("?")[0]
        assert again["url"] != url
        assert kept.with_name("path").read_text() == path  # where bookmarks lead
    assert process.returncode == 0


def test_notes_of_an_address_that_were_damaged_are_made_anew(home: Path) -> None:
    folder = home / "console"
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in ("path", "port"):
        (folder / name).write_bytes(b"\xffnonsense")
    with running("console", "--home", home) as (_, ready):
        assert ready["url"].startswith("http://127.0.0.1:")
        assert re.fullmatch("[0-9a-f]{32}\n", (folder / "path").read_text())


def assert_refused_from_outside(url: str) -> None:
    """Whoever shares the machine and tries."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    with pytest.raises(HTTPError, match="403") as refused:
        urlopen(url, timeout=30)
    refused.value.close()
