"""Publishers and subscribers with share locks, on an ordinary node: who brings the shares is a table in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from actors import Topic, read_rows, rows
from stack import Stack, wait_until
from without import without

from tallystick.carriers.carrier import DrawnShare, OpenedSecrets
from tallystick.carriers.storage import Place
from tallystick.client.kept_shares import KeptShares
from tallystick.client.session import Session
from tallystick.client.settings import PublisherSettings
from tallystick.crypto.coding import encode
from tallystick.errors import Misuse, Unavailable, Withheld
from tallystick.parcel.locks import ShareLock, decode_lock, lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.sources import SystemEntropy

OVERLAY = b"o" * 16


class Relays:
    """All relays together: they bring what they were given to whoever may read."""

    def __init__(self) -> None:
        self.given: dict[tuple[bytes, bytes], bytes] = {}
        self.plan: int | None = 1
        self.up = True

    def end(self, principal: bytes) -> End:
        return End(self, principal)


class End:
    """A client's end: a `Sharing`."""

    def __init__(self, relays: Relays, principal: bytes) -> None:
        self._relays, self._principal = relays, principal
        self.opened: dict[tuple[bytes, bytes], bytes] = {}
        self.drawn: list[DrawnShare] = []
        self.late = 0  # so many times shares are not there yet

    def draw(self, instance: bytes, lane: bytes, tokens: Sequence[bytes], now_ms: int) -> DrawnShare | None:
        if self._relays.plan is None:
            return None
        draw, plan = SystemEntropy().bytes, self._relays.plan
        lock = ShareLock(instance, lane, OVERLAY, plan, draw(16)).encode()
        share = DrawnShare(lock, draw(32), plan, now_ms, self._relays.up)
        if share.given:
            self._relays.given[self._principal, lock_hash(lock)] = share.secret
        self.drawn.append(share)
        return share

    def version_for(self, tokens: Sequence[bytes]) -> int | None:
        if not self._relays.up:
            raise Withheld("the ledger is not to be seen", reason="stale-head")
        return self._relays.plan

    def parts(self, body_bytes: int) -> tuple[int, int] | None:
        return 2, 3

    def check(self) -> None:
        if not self._relays.up:
            raise Unavailable("no relay is there")

    def collect(self) -> None:
        """It comes when it is wanted."""

    def want(self, publisher: bytes, lock: bytes, permit: bytes) -> bytes | None:
        self.late -= 1
        found = self._relays.given.get((publisher, lock)) if self.late < 0 else None
        if found is not None:
            self.opened[publisher, lock] = found
        return found

    def keep(self, known: OpenedSecrets, save: Callable[[OpenedSecrets], object]) -> None:
        self.opened.update(known)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("shares")) as stack:
        yield stack


class Sharers:
    """A topic whose publisher and reader have share locks."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.relays = topic, Relays()
        self.car, self.ends = topic.stack.again(topic.car), dict[str, End]()
        self.reader = self.sharing(topic.stack.again(topic.reader), "reader")
        self.sharing(self.car, "car")

    def sharing(self, session: Session, name: str) -> Session:
        session.sharing = self.ends[name] = self.relays.end(session.identity.principal)
        return session

    def publisher(self, **settings: Any) -> Any:
        given: dict[str, Any] = {
            "background": False,
            "linger_s": 0.0,
            "keys_wait_ms": 0,
            "retry_s": 0.0,
            "anchor_check_s": 0.0,
        }
        return self.car.publisher(self.topic.name, **given, **settings)

    def locks(self) -> list[bytes]:
        """The names of the share locks that parcels in the log name, in order."""
        storage, found = self.topic.stack.node.carrier.storage, list[bytes]()
        for entry in storage.read(Place(self.topic.token, 0), 0, 1 << 20, False):
            for group in Parcel.decode(entry.parcel).header.groups[:1]:
                locks = [decode_lock(storage.blobs.get(name) or b"", name) for name in group.locks]
                found += [lock_hash(lock.encode()) for lock in locks if isinstance(lock, ShareLock)]
        return found


@pytest.fixture
def sharers(stack: Stack, request: pytest.FixtureRequest) -> Sharers:
    return Sharers(Topic(stack, request.node.name[-40:]))


def test_a_lane_key_hangs_on_the_share_and_on_the_topic(sharers: Sharers) -> None:
    with sharers.publisher() as publisher:
        publisher.send(rows(1))
        assert publisher.flush(30) == 0
    assert sharers.ends["car"].drawn[0].given
    sharers.ends["reader"].late = 3
    with sharers.reader.subscriber(sharers.topic.name) as subscriber:
        assert read_rows(subscriber, 1) == [1]
    # Who has the topic's keys and no shares opens nothing.
    alone = sharers.topic.stack.again(sharers.topic.reader)
    with alone.subscriber(sharers.topic.name, on_bad="report") as subscriber:
        wait_until(lambda: bool(subscriber.poll(100) or subscriber.findings))
    assert {finding.reason for finding in subscriber.findings} == {"missing-share"}
    # Nor does who is told of shares, and waits for them in vain; until then it is the world's failure.
    waiting = sharers.sharing(sharers.topic.stack.again(sharers.topic.reader), "waiting")
    sharers.ends["waiting"].late = 1 << 30
    with waiting.subscriber(sharers.topic.name, on_bad="report", shares_wait_s=0.3) as subscriber:
        with pytest.raises(Unavailable, match="have not come together"):
            subscriber.poll(100)
        subscriber.poll(100)
    assert [finding.reason for finding in subscriber.findings] == ["missing-share"]


def test_off_means_topic_locks_alone(sharers: Sharers) -> None:
    with sharers.publisher(share_locks=False) as publisher:
        publisher.send(rows(1))
        assert publisher.flush(30) == 0
    assert sharers.ends["car"].drawn == []
    alone = sharers.topic.stack.again(sharers.topic.reader)
    with alone.subscriber(sharers.topic.name) as subscriber:
        assert read_rows(subscriber, 1) == [1]


def test_what_is_sealed_while_no_relay_is_there_is_sent_only_when_it_was_sealed_again(sharers: Sharers) -> None:
    sharers.relays.up = False
    publisher = sharers.publisher()
    publisher.send(rows(1))
    publisher.send(rows(2))
    assert publisher.flush(0.3) > 0
    publisher.stop()  # it dies, and the next one finds its spool
    assert publisher.statistics().stored == 0
    with sharers.publisher() as publisher:
        publisher.send(rows(3))
        assert publisher.flush(0.3) > 0
        sharers.relays.up = True
        assert publisher.flush(30) == 0
    with sharers.reader.subscriber(sharers.topic.name) as subscriber:
        assert sorted(read_rows(subscriber, 3)) == [1, 2, 3]
    assert len({*sharers.locks()} - {lock for _, lock in sharers.relays.given}) == 0


def test_without_that_rows_would_be_sent_that_nobody_ever_opens(sharers: Sharers) -> None:
    sharers.relays.up = False
    with without("parcels held back until relays have shares"):
        with sharers.publisher() as publisher:
            publisher.send(rows(1))
            assert publisher.flush(30) == 0
        sharers.relays.up = True
        with sharers.reader.subscriber(sharers.topic.name, on_bad="report", shares_wait_s=0.0) as subscriber:
            wait_until(lambda: bool(subscriber.poll(100) or subscriber.findings))
        assert [finding.reason for finding in subscriber.findings] == ["missing-share"]


@pytest.mark.parametrize(("parcels", "locks"), [(1, 6), (2, 3), (10, 1)])
def test_the_key_is_refreshed_after_so_many_parcels(sharers: Sharers, parcels: int, locks: int) -> None:
    """000, "Solution analysis and adaptations": a key for 1 to 10 publications."""
    publisher = sharers.publisher(lane_parcels_max=parcels)
    for number in range(6):
        publisher.send(rows(number))
        assert publisher.flush(30) == 0
    publisher.stop()
    found = sharers.locks()
    assert (len(found), len({*found})) == (6, locks)
    with sharers.reader.subscriber(sharers.topic.name) as subscriber:
        assert read_rows(subscriber, 6) == [*range(6)]


def test_the_key_is_refreshed_after_so_many_bytes_or_seconds_and_with_the_plan(sharers: Sharers) -> None:
    drawn = sharers.ends["car"].drawn
    for settings in ({"lane_bytes_max": 1}, {"share_lock_s": 0.0}):
        before, publisher = len(drawn), sharers.publisher(**settings)
        for number in range(2):
            publisher.send(rows(number))
            publisher.flush(30)
            wait_until(lambda: int(sharers.car.clock.now() * 1000) > drawn[-1].created_ms)
        assert len(drawn) >= before + 2
        publisher.stop()
    before, publisher = len(drawn), sharers.publisher()
    for sharers.relays.plan in (1, 2, 2, None):
        publisher.send(rows(9))
        publisher.flush(30)
    assert [one.plan for one in drawn[before:]] == [2]
    sharers.relays.plan, sharers.relays.up = 3, False  # what relays have serves on
    publisher.send(rows(9))
    assert publisher.flush(30) == 0
    publisher.stop()


def test_large_bodies_are_marked_with_their_code(sharers: Sharers) -> None:
    publisher = sharers.publisher(coded_bytes=2_000)
    publisher.send(rows(1))
    publisher.send(rows(*range(400)))
    assert publisher.flush(30) == 0
    publisher.stop()
    entries = sharers.topic.stack.node.carrier.storage.read(Place(sharers.topic.token, 0), 0, 1 << 20, False)
    small, large = (Parcel.decode(entry.parcel) for entry in entries)
    assert small.header.coding is None
    assert large.header.coding == encode(bytes(large.body), 2, 3).coding


@pytest.mark.parametrize("wrong", [{"lane_parcels_max": 0}, {"lane_bytes_max": 0}, {"coded_bytes": -1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        PublisherSettings(**wrong)  # type: ignore[arg-type]


def test_opened_secrets_are_kept_for_the_next_start(sharers: Sharers) -> None:
    session = sharers.reader
    kept = KeptShares(session.identity, session.clock, session.entropy)
    assert kept.load() == {}
    kept.save({(b"p" * 16, b"l" * 32): b"s" * 32})
    kept.save({(b"p" * 16, b"m" * 32): b"t" * 32})  # too soon: with the next
    assert len(kept.load()) == 1
    other = KeptShares(session.identity, session.clock, session.entropy)
    other.save({(b"q" * 16, b"l" * 32): b"u" * 32}, now=True)
    assert other.load() == {(b"p" * 16, b"l" * 32): b"s" * 32, (b"q" * 16, b"l" * 32): b"u" * 32}
    (session.identity.home / "shares" / "opened").write_bytes(b"spoilt")
    assert kept.load() == {}
