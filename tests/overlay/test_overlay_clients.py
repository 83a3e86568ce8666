"""Publishers and readers with their own way over whole nodes as relays: share locks, relays that go, readers that come
late or come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actors import Hand, read_rows, rows
from overlay_stack import Town, overlay_of
from stack import READ

from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.carriers.storage import Place
from tallystick.cli.status import _seen_by_identity
from tallystick.client.session import Session
from tallystick.errors import Misuse
from tallystick.parcel.parcel import Parcel
from tallystick.pipeline.options import Options
from tallystick.pipeline.source import BatchReader, TallyDataSource

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with overlay_of(tmp_path_factory.mktemp("clients"), {"edge": "", "rim": "edge"}) as town:
        yield town


def publish(session: Session, *numbers: int) -> None:
    with session.publisher("brakes") as publisher:
        for number in numbers:
            publisher.send(rows(number))
        assert publisher.flush(60) == 0


class Withholding:
    """A front that shows readers nothing of what is anchored."""

    def __init__(self, front: Any) -> None:
        self._front, self.withheld = front, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front, name)

    def fetch(self, asked: Any, wanted: Fetch) -> Fetched:
        self.withheld += 1
        shown: Fetched = self._front.fetch(asked, wanted)
        return replace(shown, parcels=(), proof=())


def query(session: Session, keys: str) -> list[int]:
    """What driver and tasks of a query make of the topic, without Spark."""
    given = {"home": str(session.identity.home), "topic": "brakes", "keys": keys}
    reader = BatchReader(Options.parse(given), TallyDataSource(given).schema())
    found = [one for share in reader.partitions() for batch in reader.read(share) for one in batch.to_pylist()]
    return sorted(one["seq"] for one in found)


def test_a_reader_turns_from_a_relay_that_withholds_and_large_bodies_come_in_blocks(town: Town) -> None:
    car, reader = town.principal("van", "edge"), town.principal("watcher", "rim")
    token = town.topic("lights", "edge", car, reader)
    relay = next(iter(town.edge("rim")))
    desk: Any = relay.service._desk
    honest, desk._front = desk._front, (liar := Withholding(desk._front))
    with car.publisher("lights", coded_bytes=4_000, codec="none") as publisher:
        publisher.send(rows(*range(2_000)))
        assert publisher.flush(60) == 0
    with reader.subscriber("lights") as subscriber:
        assert read_rows(subscriber, 2_000) == [*range(2_000)]
        subscriber.seek(0, 0)
        assert read_rows(subscriber, 2_000) == [*range(2_000)]
    desk._front = honest
    assert liar.withheld
    parcels = [Parcel.decode_front(one.parcel) for one in honest.storage.read(Place(token, 0), 0, 1 << 20, True)]
    assert any(parcel.header.coding is not None for parcel in parcels)


def test_lane_keys_hang_on_shares_and_go_on_with_a_relay_of_each_edge_gone(town: Town) -> None:
    car, reader = town.principal("car", "edge"), town.principal("reader", "rim")
    late, *queries = (town.principal(name, "rim") for name in ("late", "home", "driver"))
    token = town.topic("brakes", "edge", car, reader)
    for session in (late, *queries):
        town.stack.grant(town.owner, token, session, READ)
    with reader.subscriber("brakes") as subscriber:
        publish(car, 0, 1, 2)
        assert read_rows(subscriber, 3) == [0, 1, 2]
        assert reader.sharing is not None
        assert len(reader.sharing.opened) == 1
        for edge in ("edge", "rim"):
            town.end((edge, 2))
        began = time.monotonic()
        publish(car, 3, 4, 5)
        assert time.monotonic() - began < 30  # it is not waited for
        assert read_rows(subscriber, 3) == [3, 4, 5]
    # Who comes late is served what relays keep, and who comes back has what it opened.
    with late.subscriber("brakes") as subscriber:
        assert read_rows(subscriber, 6) == [*range(6)]
    for session in queries:  # tasks that gather shares themselves, and tasks that a driver lends them to
        assert query(session, session.identity.name) == [*range(6)]
    reader.close()
    again = town.stack.again(reader)
    assert again.sharing is not None
    assert len(again.sharing.opened) == 2
    with again.subscriber("brakes") as subscriber:
        assert read_rows(subscriber, 6) == [*range(6)]
    shown = {check.name: check for check in _seen_by_identity(reader.identity.home)}
    assert shown["overlay"].state == "ok"
    assert "3 of 3 relays are known" in shown["overlay"].found


def test_shares_may_be_kept_out_of_band_where_no_parcels_go(tmp_path: Path) -> None:
    """000, "Out-of-band": relays that carry parcels hold no shares, and those that hold shares carry no parcels."""
    with overlay_of(tmp_path, {"edge": "", "vault": "edge"}) as town:
        car, reader = (town.principal(name, "edge", repositories="vault") for name in ("car", "reader"))
        token = town.topic("brakes", "edge", car, reader)
        publish(car, 0, 1, 2)
        town.end(("vault", 0))
        with reader.subscriber("brakes") as subscriber:
            assert read_rows(subscriber, 3) == [0, 1, 2]
        keys = {edge: [len(node.relay.secrets._lanes) for node in town.edge(edge)] for edge in ("edge", "vault")}
        assert keys == {"edge": [0, 0, 0], "vault": [1, 1]}
        assert not any(node.log.end(Place(token, 0)) for node in town.edge("vault"))


def test_a_publisher_at_another_edge_is_told_where_its_parcels_enter(town: Town) -> None:
    stray, reader = town.principal("stray", "rim"), town.principal("other", "rim")
    town.topic("elsewhere", "edge", stray, reader)
    hand = Hand(stray, "elsewhere", node=stray.carrier)
    with pytest.raises(Misuse, match="enter at virtual node"):
        hand.send(hand.seal(1))
    publisher = stray.publisher("elsewhere")
    publisher.send(rows(1))
    with pytest.raises(Misuse, match="enter at virtual node"):
        publisher.flush(30)
