"""Writes: what is pending counts where its commit parcel lies, for every reader, once; and commit parcels that lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from actors import Hand, Topic, give_up, row_of, rows, settle, stored, ties
from stack import Stack, wait_until
from without import without

from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.carriers.storage import Place
from tallystick.client.publish import Publisher, PublisherSettings
from tallystick.client.subscribe import FoundError, Received, Subscriber
from tallystick.client.writes import Committer, PartWriter, held
from tallystick.errors import Misuse, Withheld
from tallystick.ledger import entries
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.writes import WRITES
from tallystick.parcel.commit import CommitList, WrittenRun, ledger_write
from tallystick.parcel.header import lane_partition
from tallystick.parcel.parcel import Parcel
from tallystick.record.batch import Batch
from tallystick.runtime.disk import RealDisk

WRITE = (b"w" * 32, 7)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("writes")) as stack:
        yield stack


@pytest.fixture(scope="module")
def people(stack: Stack) -> Topic:
    return Topic(stack, "acme")


@pytest.fixture
def topic(people: Topic, request: pytest.FixtureRequest) -> Topic:
    """A topic for each test, and somebody who writes to it: writes of one principal have numbers of their own."""
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    topic = people.beside(name, partitions=3)
    topic.car = topic.publisher(f"car-{name}")
    return topic


def part(
    topic: Topic, folder: Path, write: tuple[bytes, int], *numbers: int, **settings: Any
) -> tuple[WrittenRun, ...]:
    with held(folder):
        writer = PartWriter(topic.car, topic.name, folder, **settings)
        return writer.write(write, iter([rows(*numbers)]))


def listed(topic: Topic, write: tuple[bytes, int], *runs: WrittenRun) -> CommitList:
    return CommitList(topic.token, write[0], write[1], runs)


def read(subscriber: Subscriber, rounds: int = 40) -> list[Received]:
    """All that comes, until nothing more does."""
    received: list[Received] = []
    quiet = 0
    while quiet < rounds and (found := subscriber.poll(50)) is not None:
        received += found
        quiet = 0 if found else quiet + 10
    return received


def seqs(received: list[Received]) -> list[int]:
    return [row["seq"] for one in received for row in one.to_pylist()]


def everything(topic: Topic, **settings: Any) -> list[int]:
    with topic.reader.subscriber(topic.name, **settings) as subscriber:
        return sorted(seqs(read(subscriber)))


def test_rows_of_a_write_arrive_where_it_is_committed_and_only_then(topic: Topic, tmp_path: Path) -> None:
    with topic.reader.subscriber(topic.name) as subscriber:
        first = part(topic, tmp_path / "a", WRITE, *range(10), batch_rows_max=3)
        aborted = part(topic, tmp_path / "a", WRITE, 97, 98, 99)
        second = part(topic, tmp_path / "b", WRITE, *range(10, 14))
        assert read(subscriber) == []
        Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *first, *second))
        received = read(subscriber)
    assert sorted(seqs(received)) == list(range(14))
    assert aborted[0].lane == first[0].lane  # the folder's lane went on, and its numbers tell the attempts apart
    assert aborted[0].first == first[0].first + 4
    places = {(one.lane, one.partition, one.offset) for one in received}
    assert places == {(run.lane, run.partition, at) for run in (*first, *second) for at in run.places()}
    assert {one.publisher for one in received} == {topic.car.identity.principal}
    assert all(one.height and not one.suspect for one in received)


def test_a_batch_that_is_taken_is_finished_as_it_was_and_once(topic: Topic, tmp_path: Path) -> None:
    committer = Committer(topic.car, topic.name, tmp_path / "c")
    winner = listed(topic, WRITE, *part(topic, tmp_path / "a", WRITE, 1, 2))
    late = listed(topic, WRITE, *part(topic, tmp_path / "a", WRITE, 1, 2))
    assert winner.hash != late.hash
    committer._keep(winner)
    committer._win(winner)  # and the driver is gone
    assert committer.commit(late) == winner
    assert Committer(topic.car, topic.name, tmp_path / "c").commit(late) is None
    for batch in (8, 9):
        write = (WRITE[0], batch)
        committer.commit(listed(topic, write, *part(topic, tmp_path / "a", write, batch)))
    assert committer.commit(late) is None
    assert everything(topic) == [1, 2, 8, 9]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Misuse, match="cannot be written"), held(tmp_path / "file"):
        pass


def test_a_lost_folder_is_an_error_and_never_rows_twice(topic: Topic, tmp_path: Path) -> None:
    first = listed(topic, WRITE, *part(topic, tmp_path / "a", WRITE, 1))
    Committer(topic.car, topic.name, tmp_path / "c").commit(first)
    again = listed(topic, WRITE, *part(topic, tmp_path / "a", WRITE, 1))
    with pytest.raises(Misuse, match="is committed on the ledger, and its list is not in"):
        Committer(topic.car, topic.name, tmp_path / "other").commit(again)
    assert everything(topic) == [1]


def test_what_waited_in_a_spool_until_its_epoch_was_over_is_sealed_again_as_what_it_was(
    topic: Topic, tmp_path: Path
) -> None:
    listed_first = listed(topic, WRITE, *part(topic, tmp_path / "a", WRITE, 1, 2))
    committer = Committer(topic.car, topic.name, tmp_path / "c")
    committer._keep(listed_first)
    committer._win(listed_first)
    with spooling(topic, tmp_path / "c") as publisher:
        publisher.commit(listed_first.encoded)
    with spooling(topic, tmp_path / "b") as publisher:
        publisher.send(rows(97, 98))
        publisher._seal_step()
    rules, clock = topic.stack.node.carrier.rules, topic.car.clock
    for _ in range(2):  # the epoch before the last is no longer taken
        topic.owner.authority.rotate(topic.token)

    wait_until(lambda: not rules.epoch_taken(topic.token, 1, int(clock.now() * 1000)))
    assert committer.commit(listed_first) == listed_first
    assert everything(topic) == [1, 2]
    write = (WRITE[0], 8)
    runs = part(topic, tmp_path / "b", write, 3)
    assert everything(topic) == [1, 2]  # what was left in b is still pending
    committer.commit(listed(topic, write, *runs))
    assert everything(topic) == [1, 2, 3]


@contextmanager
def spooling(topic: Topic, folder: Path) -> Iterator[Publisher]:
    """A publisher of the write that seals and does not send: it was killed before."""
    held, disk = ties(topic.car, grants=topic.car.grants), RealDisk(folder / "spool")
    publisher = Publisher(held, topic.name, disk, PublisherSettings(write=WRITE), background=False)
    yield publisher
    publisher.stop()


def test_a_large_write_comes_over_several_rounds_and_commits_as_one(topic: Topic, tmp_path: Path) -> None:
    runs = part(topic, tmp_path / "a", WRITE, *range(40), batch_rows_max=1)
    Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *runs))
    with topic.reader.subscriber(topic.name, group="g", fetch_bytes_max=3000) as subscriber:
        wait_until(lambda: bool(subscriber.poll(50)))
        subscriber.commit()
    # Left in the middle of the commit parcel: the group begins it again, since its offset stands before it.
    with topic.reader.subscriber(topic.name, group="g", fetch_bytes_max=3000) as subscriber:
        received: list[Received] = []
        rounds = 0
        while rounds < 100 and len(seqs(received)) < 40:
            received += subscriber.poll(50)
            rounds += 1
        assert 5 < rounds < 100
        subscriber.commit()
        assert sorted(seqs(received)) == list(range(40))
    with topic.reader.subscriber(topic.name, group="g") as subscriber:
        assert read(subscriber) == []


def test_a_group_that_stands_behind_pending_rows_still_gets_them(topic: Topic, tmp_path: Path) -> None:
    runs = part(topic, tmp_path / "a", WRITE, 1, 2, 3)
    with topic.reader.subscriber(topic.name, group="late") as subscriber:
        read(subscriber)
        subscriber.commit()
        assert subscriber.positions()[runs[0].partition] > next(iter(runs[0].places()))
    Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *runs))
    with topic.reader.subscriber(topic.name, group="late") as subscriber:
        assert seqs(read(subscriber)) == [1, 2, 3]


def test_a_silent_lane_of_a_write_is_no_finding(topic: Topic, tmp_path: Path) -> None:
    runs = part(topic, tmp_path / "a", WRITE, 1)
    Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *runs))
    with topic.reader.subscriber(topic.name, silence_s=0.0) as subscriber:
        assert seqs(read(subscriber)) == [1]
        assert subscriber.findings == []


def test_a_node_that_shows_other_rows_than_were_listed_is_named(topic: Topic, tmp_path: Path) -> None:
    runs = part(topic, tmp_path / "a", WRITE, 1, 2, batch_rows_max=1)
    Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *runs))
    carrier = topic.stack.node.carrier
    honest = carrier.fetch
    for reason, parcels in (("altered", lambda p: p[::-1]), ("missing", lambda p: ())):

        def lying(asked: Asked, wanted: Fetch, parcels: Any = parcels) -> Fetched:
            fetched = honest(asked, wanted)
            is_body = wanted.end is not None and not wanted.headers
            return replace(fetched, parcels=tuple(parcels(fetched.parcels))) if is_body else fetched

        carrier.fetch = lying
        try:
            with topic.reader.subscriber(topic.name) as subscriber, pytest.raises(Withheld) as caught:
                read(subscriber)
            assert caught.value.reason == reason
        finally:
            carrier.fetch = honest
    assert everything(topic) == [1, 2]


def test_what_was_retired_before_its_commit_parcel_was_read_is_told_and_the_rest_delivered(
    topic: Topic, tmp_path: Path
) -> None:
    runs = part(topic, tmp_path / "a", WRITE, *range(6), batch_rows_max=1)
    Committer(topic.car, topic.name, tmp_path / "c").commit(listed(topic, WRITE, *runs))
    place, below = Place(topic.token, runs[0].partition), next(iter(runs[0].places())) + 2
    give_up(topic.owner, topic.stack.node, place, below)
    with topic.reader.subscriber(topic.name) as subscriber:
        assert seqs(read(subscriber)) == [2, 3, 4, 5]
        found = {(finding.reason, finding.end) for finding in subscriber.findings}
        assert found == {("retired", below), ("retired", None)}, "where the reader began, and what the write lacks"


# --- commit parcels that lie ---


class Liar:
    """A publisher that seals pending and commit parcels by hand, and writes to the ledger what it likes."""

    def __init__(self, topic: Topic, session: Any = None) -> None:
        self.topic, self.session = topic, session or topic.car
        self.hand = Hand(self.session, topic.name)

    def pending(self, *numbers: int, write: tuple[bytes, int] | None = WRITE) -> WrittenRun:
        lane = self.hand.open_lane()
        data = pa.RecordBatch.from_pylist(rows(*numbers), schema=lane.schema.arrow)
        entropy, now_ms = self.session.entropy.bytes(32), int(self.session.clock.now() * 1000)
        parcel = lane.seal(Batch.of(lane.schema, data), now_ms=now_ms, entropy=entropy, write=write)
        promise = stored(self.hand.send(parcel)[0]).promises[0]
        settle(self.topic.stack)
        return WrittenRun(lane.lane, promise.partition, 0, ((promise.offset, 1),), parcel.hash)

    def win(self, content: CommitList) -> None:
        self.session.author.write(
            entries.write(self.topic.token, ledger_write(content.write), content.batch, content.hash)
        )

    def commit(self, content: bytes, write: tuple[bytes, int] = WRITE) -> None:
        stored(self.hand.send(self.seal_commit(content, write))[0])
        settle(self.topic.stack)

    def seal_commit(self, content: bytes, write: tuple[bytes, int] = WRITE) -> Parcel:
        lane = self.hand.open_lane()
        entropy, now_ms = self.session.entropy.bytes(32), int(self.session.clock.now() * 1000)
        return lane.seal_commit(content, now_ms=now_ms, entropy=entropy, write=write)


@contextmanager
def told(topic: Topic, message: str) -> Iterator[None]:
    """A reader that fails, and one that reports, both name the lie; and nothing of it is delivered."""
    yield
    with topic.reader.subscriber(topic.name) as subscriber, pytest.raises(FoundError, match=message):
        read(subscriber)
    with topic.reader.subscriber(topic.name, on_bad="report") as subscriber:
        assert read(subscriber) == []
        assert {finding.reason for finding in subscriber.findings} == {"bad-commit"}


def test_a_list_that_is_not_on_the_ledger(topic: Topic) -> None:
    liar = Liar(topic)
    run = liar.pending(1, 2)
    with told(topic, "the ledger has no list for batch 7"):
        liar.commit(listed(topic, WRITE, run).encoded)
    with told(topic, "the ledger has (no|another) list for batch 7"):
        liar.win(listed(topic, WRITE, liar.pending(3)))
        liar.commit(listed(topic, WRITE, run).encoded)


def test_what_the_same_list_does_once_the_ledger_has_it(topic: Topic) -> None:
    """The attack of the tests around succeeds where the check has nothing to object to: they fail for their reason."""
    liar = Liar(topic)
    content = listed(topic, WRITE, liar.pending(1, 2))
    liar.win(content)
    liar.commit(content.encoded)
    assert everything(topic) == [1, 2]


def test_without_the_set_on_the_ledger_a_batch_that_is_run_twice_would_count_twice(topic: Topic) -> None:
    liar = Liar(topic)
    lists = [listed(topic, WRITE, liar.pending(1, 2)) for _ in range(2)]  # of two runs
    liar.win(lists[0])
    for one in lists:
        liar.commit(one.encoded)
    with topic.reader.subscriber(topic.name, on_bad="report") as subscriber:
        assert seqs(read(subscriber)) == [1, 2]
        assert [finding.reason for finding in subscriber.findings] == ["bad-commit"]
    with without("the list of a write on the ledger", "the first commit of a batch"):
        assert everything(topic) == [1, 1, 2, 2]


def test_lanes_of_another_publisher(topic: Topic) -> None:
    run = Liar(topic).pending(1)
    thief = Liar(topic, topic.publisher("thief"))
    content = listed(topic, WRITE, run)
    with told(topic, "was sealed by another publisher"):
        thief.win(content)
        thief.commit(content.encoded)


def test_rows_of_another_batch_or_that_count_already(topic: Topic) -> None:
    liar = Liar(topic)
    other = listed(topic, WRITE, liar.pending(1, write=(WRITE[0], 6)))
    with told(topic, "is not pending for this write and batch"):
        liar.win(other)
        liar.commit(other.encoded)


def test_plain_rows_once_more(topic: Topic) -> None:
    liar = Liar(topic)
    content = listed(topic, WRITE, liar.pending(1, write=None))
    liar.win(content)
    liar.commit(content.encoded)
    with topic.reader.subscriber(topic.name, on_bad="report") as subscriber:
        assert seqs(read(subscriber)) == [1]
        assert [finding.reason for finding in subscriber.findings] == ["bad-commit"]


def test_a_parcel_that_is_named_twice(topic: Topic) -> None:
    liar = Liar(topic)
    run = liar.pending(1)
    content = listed(topic, WRITE, run, run)
    with told(topic, "is named twice"):
        liar.win(content)
        liar.commit(content.encoded)


def test_the_same_list_in_a_second_commit_parcel(topic: Topic) -> None:
    liar = Liar(topic)
    content = listed(topic, WRITE, liar.pending(1))
    liar.win(content)
    for _ in range(2):
        liar.commit(content.encoded)
    with topic.reader.subscriber(topic.name, on_bad="report") as subscriber:
        assert seqs(read(subscriber)) == [1]
        assert ["was committed before" in finding.message for finding in subscriber.findings] == [True]


def test_places_that_do_not_hold_what_the_list_says(topic: Topic) -> None:
    liar = Liar(topic)
    run = liar.pending(1)
    wrong = 1 + lane_partition(run.lane, 3)
    lies = {
        "another last parcel": replace(run, last=bytes(32)),
        "anchored are": replace(run, offsets=((run.offsets[0][0] + 1000, 1),)),
        "is not of partition": replace(run, partition=wrong % 3),
        "is missing before it|repeated|broken|another lane": replace(run, first=1),
    }
    for batch, (message, lie) in enumerate(lies.items()):
        write = (bytes([batch]) * 32, 0)
        content = listed(topic, write, lie)
        liar.win(content)
        liar.commit(content.encoded, write)
        with topic.reader.subscriber(topic.name, on_bad="report") as subscriber:
            assert read(subscriber) == []
            assert any(finding.reason == "bad-commit" for finding in subscriber.findings)
            assert any(re.search(message, finding.message) for finding in subscriber.findings), message


def test_the_ledger_names_a_write_by_sixteen_bytes(topic: Topic) -> None:
    liar = Liar(topic)
    content = listed(topic, WRITE, liar.pending(1))
    liar.win(content)
    key = WRITES(topic.car.identity.principal, ledger_write(WRITE[0]), WRITE[1])
    wait_until(lambda: topic.reader.view.row(key) is not None)
    assert row_of(topic.reader.view, key).hash == content.hash


# --- commit parcels of a revoked key ---


def test_what_a_thief_makes_count_is_suspect_though_it_lay_there_before_the_revocation(topic: Topic) -> None:
    """Rows that the owner of the key had given up, say. What its owner made count itself stands."""
    victim, accomplice, done = Liar(topic), topic.publisher(f"accomplice-{topic.name}"), (WRITE[0], 8)
    for write, numbers in ((WRITE, (1, 2)), (done, (3, 4))):
        content = listed(topic, write, victim.pending(*numbers, write=write))
        victim.win(content)
        commit = victim.seal_commit(content.encoded, write)
        if write == done:
            stored(victim.hand.send(commit)[0])
        else:
            stolen = commit
    settle(topic.stack)
    topic.owner.authority.revoke(topic.car.identity.principal)
    wait_until(lambda: bool(row_of(topic.reader.view, IDENTITIES(topic.car.identity.principal)).revoked))
    place = (lane_partition(stolen.header.lane, 3),)
    with without("the guard of publishing", partitions=place, permit=victim.hand.permit):
        stored(accomplice.node.publish(topic.token, [stolen.encode()])[0])
    settle(topic.stack)
    with topic.reader.subscriber(topic.name) as subscriber:
        received = read(subscriber)
    assert {row["seq"]: one.suspect for one in received for row in one.to_pylist()} == {
        1: True,
        2: True,
        3: False,
        4: False,
    }
