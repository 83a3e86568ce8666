"""Flow: who publishes how much, how far groups are behind, who is silent, and how the parts say they are.

Most of it on a small crowd whose minutes are made by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from console_stack import Browser
from crowd import Crowd, crowd
from ledger_world import HOSPITAL, Actor, seed

from tallystick.console.health import PAUSE_S, HealthDesk
from tallystick.console.mirror import Mirror
from tallystick.console.pages import flow
from tallystick.console.recent import GroupLag, Recent
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.ledger import entries
from tallystick.ledger.contracts.groups import GROUPS, OFFSETS

ATTACK = "<script>alert(1)</script>"


@dataclass
class Scene:
    crowd: Crowd
    mirror: Mirror

    def look(self) -> Recent:
        self.mirror.follow(self.crowd)
        return self.recent.look()

    @cached_property
    def recent(self) -> Recent:
        return Recent(self.mirror)

    def lag(self, group: int = 0) -> GroupLag:
        """Of a group in partition 0 of its topic."""
        token, identifier = self.crowd.tokens[group + 1], seed(f"group {group}")[:16]
        found, _ = self.look().lags({token}, 100)
        return next(one for one in found if one.group == identifier and one.partition == 0)

    def move(self, new: int, group: int = 0) -> None:
        """The group goes on from another offset in partition 0."""
        who, place = self.crowd.people[group], (seed(f"group {group}")[:16], self.crowd.tokens[group + 1], 0)
        self.mirror.follow(self.crowd)
        row, moved = self.mirror.row(GROUPS(place[0])), self.mirror.row(OFFSETS(*place))
        assert row is not None
        old = 0 if moved is None else moved.offset
        self.crowd.write(who, entries.reset_offset(*place, fence=row.fence, old=old, new=new))

    def visit(self, who: Actor | None = None, **query: str) -> Visit:
        who = who or self.crowd.owner
        names = {token: f"topic {number}" for number, token in enumerate(self.crowd.tokens)}
        viewer: Any = SimpleNamespace(
            mirror=self.mirror,
            recent=self.recent,
            health=SimpleNamespace(ask=list),  # nobody answers for a ledger alone
            names=SimpleNamespace(topics=list(names.items())),
            topic_name=lambda token: names.get(token, token.hex()),
            principal_name=lambda one: f"{ATTACK}{one.hex()}",
            knows=lambda _: True,
            identity=SimpleNamespace(principal=who.id, tenant=HOSPITAL, home=Path("nowhere")),
            session=SimpleNamespace(memory=SimpleNamespace(trust=self.crowd.world.trust)),
        )
        return Visit(viewer, "/base", "", {}, query)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = crowd(tmp_path, topics=4, principals=8)
    with (
        closing(found.ledger),
        closing(Mirror(tmp_path / "console", found.world.trust, lambda: found.now_ms)) as mirror,
    ):
        yield Scene(found, mirror)


def test_rates_are_those_of_the_ledgers_operations(scene: Scene) -> None:
    at_hand = scene.look()
    counted = at_hand.published(scene.crowd.tokens)
    assert counted.total() == 8 * 10  # everybody once a minute
    assert len(at_hand._parcels) == 10  # kept by the time, however many there were
    people = {(scene.crowd.tokens[number % 4], one.id) for number, one in enumerate(scene.crowd.people)}
    assert {key[:2] for key in counted} == people
    scene.crowd.publish(range(2), 12)
    assert scene.look().published(scene.crowd.tokens).total() == 80 - 8 + 2  # without the oldest minute
    scene.crowd.now_ms += 11 * 60_000
    scene.crowd.publish(range(1), 16)
    assert scene.look().published(scene.crowd.tokens).total() == 1


def test_quiet_minutes_count_and_none_before_the_ledger(scene: Scene) -> None:
    assert scene.look().since_ms == scene.mirror.block(0).time_ms
    scene.crowd.now_ms += 11 * 60_000
    scene.crowd.ledger.flush(scene.crowd.now_ms)  # an empty block
    assert scene.look().minutes == pytest.approx(10)
    assert Recent(scene.mirror).look().minutes == pytest.approx(10)


def test_a_second_look_says_what_a_first_would(scene: Scene) -> None:
    scene.look()
    scene.crowd.publish(range(8), 12)
    scene.move(3)
    twice, once = scene.look(), Recent(scene.mirror).look()
    tokens = scene.crowd.tokens
    assert twice.published(tokens) == once.published(tokens)
    assert twice.lags(tokens, 100) == once.lags(tokens, 100)
    assert twice.live_permits(tokens) == once.live_permits(tokens)


def test_lag_is_parcels_and_the_wait_of_the_oldest(scene: Scene) -> None:
    lag = scene.lag()
    assert (lag.offset, lag.parcels) == (0, 9)  # sizes 1, 5 and 9 were anchored in partition 0
    assert lag.oldest_ms == scene.crowd.made_ms[0]
    scene.move(1)
    assert scene.lag().oldest_ms == scene.crowd.made_ms[4]
    scene.move(9)
    assert (scene.lag().parcels, scene.lag().oldest_ms) == (0, None)


def test_the_trend_compares_with_some_minutes_ago(scene: Scene) -> None:
    assert scene.lag().trend == "growing"
    scene.move(9)
    scene.crowd.publish(range(8), 12)  # 13 are anchored, 4 of them unread; some minutes ago it was 5
    assert (scene.lag().parcels, scene.lag().trend) == (4, "shrinking")
    scene.crowd.now_ms += 6 * 60_000
    scene.crowd.publish(range(8), 13)  # of another partition
    assert scene.lag().trend == "steady"


def test_whoever_may_publish_and_does_not_is_silent(scene: Scene) -> None:
    scene.crowd.now_ms += 120_000
    scene.crowd.publish(range(4), 12)
    scene.look()
    shown = flow.show_flow(scene.visit())
    assert "<b>4</b><span>of 8 publishers with leave silent" in shown
    assert shown.count(">silent</span>") == 4


def test_one_topic_shows_its_partitions_and_groups(scene: Scene) -> None:
    scene.look()
    shown = flow.show_flow(scene.visit(topic="topic 1"))
    assert shown.count(">partition 0</text>") == 1
    assert ">growing</span>" in shown
    assert "topic 2" not in shown.partition("<svg")[2]


def test_names_are_text_in_the_picture_and_in_the_tables(scene: Scene) -> None:
    scene.look()
    shown = flow.show_flow(scene.visit())
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
    assert " style=" not in shown


def test_many_topics_fit_a_page(scene: Scene) -> None:
    scene.look()
    assert len(flow.show_flow(scene.visit())) < 60_000


def test_who_may_describe_nothing_sees_nothing(scene: Scene) -> None:
    scene.look()
    shown = flow.show_flow(scene.visit(scene.crowd.world.sensor))
    assert "no topic yet" in shown
    assert all(token.hex()[:12] not in shown for token in scene.crowd.tokens)


# --- how the parts say they are ---


def test_what_node_and_authority_tell_of_themselves_is_marked(console: Browser) -> None:
    text = console.get("").text
    assert "the word of the node, not proved" in text
    assert "the word of the authority, not proved" in text
    ready = text[text.index("Nodes and authority") :]
    assert "mark good" not in ready


def test_a_part_that_is_away_is_shown_with_since_when(viewer: Viewer) -> None:
    class Clock:
        now_ms, at = 1_000, 0.0

        def monotonic(self) -> float:
            return self.at

        def now(self) -> float:
            return self.now_ms / 1000

    clock: Any = Clock()
    gone = replace(viewer.identity, node_urls=("http://127.0.0.1:9",))
    desk = HealthDesk(gone, clock, viewer.session.entropy)
    node, authority = desk.ask()
    assert node.trouble.startswith("the node away")
    assert not authority.trouble
    assert authority.counts
    clock.at, clock.now_ms = 2 * PAUSE_S, 60_000
    assert desk.ask()[0].since_ms == node.since_ms == 1_000


METRICS = [
    "what is this",
    "# TYPE tally_x histogram\ntally_x_sum 3",  # of how many?
    "# TYPE tally_x gauge\n" + "".join(f'tally_x{{a="{n}"}} 1\n' for n in range(5_000)),
    "".join(f"tally_x{n} 1\n" for n in range(5_000)),
]


@pytest.mark.parametrize("metrics", METRICS)
def test_whatever_a_node_says_of_itself_is_bounded_and_no_fault(viewer: Viewer, metrics: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            body = metrics.encode() if self.path == "/metrics" else b""
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        there = replace(viewer.identity, node_urls=(f"http://127.0.0.1:{server.server_port}",))
        node, _ = HealthDesk(there, viewer.clock, viewer.session.entropy).ask()
        server.shutdown()
    assert node.trouble or node.counts
    assert sum(map(len, [*node.counts, *node.counts.values()])) < 50_000


def test_parts_are_not_asked_more_often_than_every_few_seconds(viewer: Viewer) -> None:
    assert viewer.health.ask() is viewer.health.ask()


def test_the_page_is_made_again_without_asking_the_ledger_anew(visit: Callable[..., Visit]) -> None:
    first, second = visit(""), visit("")
    assert first.recent is second.recent
