"""`make bench-console`: how long people wait for the console, and what it takes while nobody looks.

    replay                    entries a second, from the genesis, of a ledger of 100,000 kept entries
    first_page                from the command's start to the first page, where such a ledger was replayed before
    block_shown               from a block to the page that shows it
    scene_shown               from the outcome of a demo's scene to the page that shows it
    idle                      of a core, with a page open and nothing but empty blocks
    memory                    the peak after ten times the entries, against that after the entries once
    page_…                    each page at 1,000 topics and 10,000 principals, but for those that read records or ask

Where there is a limit it stands as the peer: a ratio above one keeps it. Results go to `build/bench/console.json`.
`--only NAME` runs one subject and leaves the other rows; `--quick` is one short round, to see that it works.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import harness

sys.path += [str(Path(__file__).resolve().parent.parent / one) for one in ("tests", "tests/console")]

from actors import write_as_node
from console_stack import ConsoleStack, visit_of, way
from crowd import Crowd, crowd
from ledger_world import HOSPITAL, operation_batch

from tallystick.client.session import Session
from tallystick.console.mirror import Mirror
from tallystick.console.page import Page
from tallystick.console.pages import PAGES
from tallystick.console.viewer import Viewer
from tallystick.errors import TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.runtime.sources import ManualClock, SystemEntropy
from tallystick.trust.right import Right

SUITE = "console"
ENTRIES, TOGETHER = 100_000, 500
FIRST_PAGE_MS, BLOCK_SHOWN_MS, SCENE_SHOWN_MS, PAGE_MS, IDLE_PERCENT = 3_000.0, 1_000.0, 2_000.0, 50.0, 2.0
MEMORY = 0.9  # what the allocators' mood may cost
SETTLED_S = 3.0  # the compiled loops come on a thread: 100 MiB, whatever the ledger's size
_TICKS = os.sysconf("SC_CLK_TCK")


def held(name: str, found: Sequence[float], limit: float, unit: str) -> harness.Result:
    """What was measured, against its limit."""
    return harness.compare(name, found, [limit] * len(found), unit, 1.0)


# --- a console that runs ---


class Running:
    """The command as a process, and the browser that it let in."""

    def __init__(self, home: Path, scenes: Path | None) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "tallystick.cli", "console", "--home", str(home), "--json"]
        command += [] if scenes is None else ["--scenes", str(scenes)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url = re.search(r'http://[^"]+', self.process.stdout.readline())
        assert url is not None, "it said no address"
        self.place = urlsplit(url[0])
        answer = self.ask(f"/?{self.place.query}")
        self.cookie, self.base = answer.headers["set-cookie"].partition(";")[0], answer.headers["location"]

    def ask(self, target: str, **headers: str) -> Any:
        with closing(HTTPConnection(self.place.netloc, timeout=120)) as connection:
            given = {"sec-fetch-site": "none", "cookie": getattr(self, "cookie", ""), **headers}
            connection.request("GET", target, headers=given)
            answer = connection.getresponse()
            return SimpleNamespace(status=answer.status, headers=answer.headers, text=answer.read().decode())

    def page(self, version: str | None = None, path: str = "ledger") -> Any:
        """A page; with a version, as soon as there is a newer one."""
        headers = {} if version is None else {"tally-console": version}
        return self.ask(f"{self.base}{path}", **headers)

    def until_shown(self, height: int = 0) -> Any:
        """The page as soon as it stands under a checkpoint of that height or above."""
        said = self.page()
        while not _shows(said.text, height):
            said = self.page(said.headers.get("tally-version") or "")
        return said

    def used_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _shows(text: str, height: int) -> bool:
    found = re.search(r"height (\d+)</span> of <time", text)
    return found is not None and int(found[1]) >= height


@contextmanager
def running(home: Path, scenes: Path | None = None) -> Iterator[Running]:
    console = Running(home, scenes)
    try:
        yield console
    finally:
        console.process.terminate()
        console.process.wait(60)


@contextmanager
def instance(count: int) -> Iterator[ConsoleStack]:
    """One whose ledger keeps so many operations."""
    with tempfile.TemporaryDirectory() as folder, ConsoleStack(Path(folder)) as stack:
        token, car = stack.token, stack.car.identity.principal
        batch: Any = SimpleNamespace()
        for _ in range(count // TOGETHER):
            write_as_node(stack.node, *operation_batch(batch, TOGETHER, [token], [car]))
        yield stack


def rows_of_a_process(quick: bool, rounds: int | None) -> Iterator[harness.Result]:
    rounds = 2 if quick else rounds or 7
    with instance(ENTRIES // (50 if quick else 1)) as stack:
        home = stack.reader.identity.home
        with running(home) as console:
            console.until_shown()
        yield held("first_page", [_first_page_ms(home) for _ in range(rounds)], FIRST_PAGE_MS, "ms")
        with running(home) as console:
            console.until_shown()
            shown = [_block_shown_ms(stack, console, number) for number in range(rounds)]
            yield held("block_shown", shown, BLOCK_SHOWN_MS, "ms")
        yield held("scene_shown", _scenes_shown_ms(home, rounds), SCENE_SHOWN_MS, "ms")
        with running(home) as console:
            console.until_shown()
            yield held("idle", [_idle_percent(console, 2 if quick else 20) for _ in range(rounds)], IDLE_PERCENT, "%")


def _first_page_ms(home: Path) -> float:
    with running(home) as console:
        console.until_shown()
        return (time.perf_counter() - console.began) * 1000


def _block_shown_ms(stack: ConsoleStack, console: Running, number: int) -> float:
    act = entries.withdraw if number % 2 else entries.grant
    stack.owner.author.write(act(stack.token, stack.stranger.identity.principal, int(Right.DESCRIBE)))
    began, height = time.perf_counter(), stack.node.ledger.height
    console.until_shown(height)
    return (time.perf_counter() - began) * 1000


def _scenes_shown_ms(home: Path, rounds: int) -> list[float]:
    """As the demo tells them, one after the other."""
    found, file = [], home / "scenes.jsonl"
    with running(home, file) as console:
        console.until_shown()
        said = console.page(path="scenes")
        for number in range(rounds):
            scene = dict.fromkeys(("expected", "verdict", "happened", "evidence"), "told") | {"time_ms": 1}
            began = time.perf_counter()
            with file.open("a") as told:
                told.write(json.dumps({"attack": f"scene {number}", **scene}) + "\n")
            while f"scene {number}" not in said.text:
                said = console.page(said.headers.get("tally-version") or "", "scenes")
            found.append((time.perf_counter() - began) * 1000)
    return found


def _idle_percent(console: Running, seconds: float) -> float:
    before, began = console.used_s(), time.perf_counter()
    while (left := began + seconds - time.perf_counter()) > 0:
        time.sleep(min(left, 0.5))
    return (console.used_s() - before) / (time.perf_counter() - began) * 100


# --- replay and memory ---


def rows_of_a_replay(quick: bool, rounds: int | None) -> Iterator[harness.Rate]:
    count = ENTRIES // (50 if quick else 1)
    with instance(count) as stack:
        replay = partial(_replay, stack, stack.reader)
        yield harness.Rate("replay", replay, count, "entries/s", rounds_max=1 if quick else rounds or 5)


def _replay(stack: ConsoleStack, session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(stack.mirror(session, Path(folder))) as mirror:
        mirror.follow(way(session))


def rows_of_memory(quick: bool, rounds: int | None) -> Iterator[harness.Figure]:
    once, tenfold = (_peak_mib(count // (50 if quick else 1)) for count in (ENTRIES // 10, ENTRIES))
    yield harness.Figure("memory", tenfold, once, "MiB", MEMORY)


def _peak_mib(count: int) -> float:
    with instance(count) as stack, running(stack.reader.identity.home) as console:
        console.until_shown()
        time.sleep(SETTLED_S)
        return console.peak_mib()


# --- pages ---


def rows_of_pages(quick: bool, rounds: int | None) -> Iterator[harness.Result]:
    size = {"topics": 20, "principals": 200} if quick else {"topics": 1_000, "principals": 10_000}
    with tempfile.TemporaryDirectory() as folder:
        made = crowd(Path(folder) / "node", **size)
        with closing(Mirror(Path(folder) / "console", made.world.trust, lambda: made.now_ms)) as mirror:
            mirror.follow(made)
            viewer = _viewer(made, mirror)
            for page in PAGES:
                if (path := _address(page, made, mirror)) is not None:
                    yield from _page_row(viewer, page, path, 3 if quick else rounds or harness.ROUNDS)


@contextmanager
def _away(_timeout_s: float) -> Iterator[None]:
    raise Unavailable("nobody is asked here")
    yield


def _viewer(made: Crowd, mirror: Mirror) -> Viewer:
    """One who knows every name, and whose node and authority do not answer."""
    identity = SimpleNamespace(principal=made.owner.id, tenant=HOSPITAL, home=Path("nowhere"), name="owner")
    identity.nodes, identity.node_urls, identity.authority_url = (), (), "http://127.0.0.1:9"
    identity.authority, identity.trust = made.world.authority.certificate, made.world.trust
    session: Any = SimpleNamespace(identity=identity, clock=ManualClock(made.now_ms / 1000), entropy=SystemEntropy())
    session.memory, session.within = SimpleNamespace(trust=made.world.trust, evidence=list), _away
    viewer = Viewer(session, mirror)
    topics = {token: f"topic {number}" for number, token in enumerate(made.tokens)}
    people = {one.id: one.name for one in made.people}
    names: Any = SimpleNamespace(topic_names=topics, principal_names=people, topics=list(topics.items()))
    names.topic_name = lambda token: topics.get(token, token.hex())
    names.principal_name = lambda one: people.get(one, one.hex())
    viewer.names = names
    return viewer


def _address(page: Page, made: Crowd, mirror: Mirror) -> str | None:
    """One of the page's; None where this ledger has none, or it reads records or asks the node."""
    head = mirror.at.head
    assert head is not None
    known = {"token": made.tokens[0].hex(), "height": head.height, "index": 0}
    try:
        return page.path.format(**known)
    except KeyError:
        return None


def _page_row(viewer: Viewer, page: Page, path: str, rounds: int) -> Iterator[harness.Result]:
    visit = visit_of(viewer, path)
    if not page.is_there(visit):  # of a part that this instance lacks
        return
    show: Callable[[], object] = partial(page.show, visit)
    try:
        show()  # what is kept at hand is filled
    except TallystickError as error:
        print(f"{page.path}: left out, {error}", file=sys.stderr)
        return
    found = []
    for _ in range(rounds):
        began = time.process_time()
        show()
        found.append((time.process_time() - began) * 1000)
    name = re.sub(r"\W+", "_", re.sub(r"\{\w+\}", "one", page.path)).strip("_") or "first"
    yield held(f"page_{name}", found, PAGE_MS, "ms")


Rows = Callable[[bool, int | None], Iterator[Any]]


def measured(rows: Rows, quick: bool, rounds: int | None) -> Iterator[harness.Row]:
    return map(asdict, harness.run(rows(quick, rounds)))


SUBJECTS = {
    "process": partial(measured, rows_of_a_process),
    "replay": partial(measured, rows_of_a_replay),
    "memory": partial(measured, rows_of_memory),
    "pages": partial(measured, rows_of_pages),
}


if __name__ == "__main__":
    harness.run_subjects(SUITE, SUBJECTS)
