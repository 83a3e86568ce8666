"""One tenant that holds what all share: threads, connections, locks, and places in a queue.

Nothing here is measured in time. A block is held back by the test, or a lock, or an answer; then what others asked for
is answered meanwhile, or it is not while other things make progress.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from actors import Hand, Topic, publish, settle, stored
from authority_world import World as AuthorityWorld
from server_thread import ServerThread
from stack import Stack, impatient, log_store, sqlite_ledger, wait_beyond, wait_until
from uvicorn.config import Config
from uvicorn.server import ServerState
from without import without

from tallystick.authority.ledger_view import LedgerClient
from tallystick.carriers import desk
from tallystick.carriers.carrier import Fetch, Fetched
from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.ledger.block import Head, compose, parse, read_head
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.state import State
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.ledger.engine import Query, Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.http1 import Answer
from tallystick.runtime.router import Fairness, Pool, PoolLimits, Rates, Request, Router, Shares
from tallystick.runtime.server import ServerLimits, _bounded, _neighbourhood
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.permit import Operation

PENDING = 40  # more than a machine's event loop has threads of its own
ASIDE = 20  # questions that a node answers meanwhile


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("pools"), node={"block_ms": 50}) as stack:
        yield stack


@pytest.fixture(scope="module")
def topic(stack: Stack) -> Topic:
    topic = Topic(stack, "acme")
    publish(topic.car, "brakes", [1])
    return topic


@pytest.fixture(scope="module")
def hostile(stack: Stack) -> Session:
    """The owner of another tenant, with a topic of its own."""
    owner = stack.tenant("rival")
    stack.topic(owner, "rivals", "seq int64 not null")
    return owner


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(PENDING + 4) as threads:
        yield threads


# --- what waits for a block ---


@contextmanager
def no_block(stack: Stack) -> Iterator[None]:
    """The ledger takes transactions, and makes no block of them until the end."""
    ledger = sqlite_ledger(stack)
    before = ledger._settings
    ledger._settings = replace(before, block_entries=1 << 40, window_ms=1 << 40, block_ms=1 << 40)
    try:
        yield
    finally:
        ledger._settings = before


def under_way(stack: Stack, session: Session) -> int:
    return stack.node.service._requests._held[session.identity.principal]


class Submissions:
    """A good transaction of a principal, handed in again and again: each request waits for its block."""

    def __init__(self, stack: Stack, hostile: Session, threads: ThreadPoolExecutor) -> None:
        identity, number = hostile.identity, int(stack.clock.now() * 1_000_000)
        entry = entries.grant(hostile_token(stack, hostile), identity.principal, 1, host=str(number))
        signed = compose(identity.instance, identity.principal, number, [entry], identity.signing_key)
        self._futures = [threads.submit(hostile.node.submit, signed.data) for _ in range(PENDING)]
        wait_until(lambda: under_way(stack, hostile) == PENDING)

    @property
    def done(self) -> int:
        return sum(one.done() for one in self._futures)

    def await_all(self) -> None:
        for one in self._futures:
            one.result(60)


def hostile_token(stack: Stack, hostile: Session) -> bytes:
    found: list[bytes] = [
        token for (token,), row in stack.node.ledger.scan(TOPICS) if row.owner == hostile.identity.principal
    ]
    return found[0]


def ask_aside(url: str, path: str = "/health/live", times: int = ASIDE) -> list[bytes]:
    """What anybody may ask, and is answered by the node's event loop alone."""
    with HttpClient([Address(url, b"")], None, SystemClock(), SystemEntropy()) as http:
        return [http.request("GET", path).body for _ in range(times)]


def fetch_by(topic: Topic) -> Callable[[], Fetched]:
    reader = topic.reader
    held = Held.of(reader.authority.permit(Operation.SUBSCRIBE, "brakes"))
    reader.node.subscribe(held.grant.permit)
    wanted = Fetch(topic.token, 0, held.permit.identifier, 0, bytes_max=1 << 20)
    return lambda: reader.node.fetch(wanted)


def test_who_waits_for_a_block_keeps_nobody_from_fetching_and_publishing(
    stack: Stack, topic: Topic, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    fetch, hand = fetch_by(topic), Hand(topic.car, "brakes")
    with no_block(stack):
        submissions = Submissions(stack, hostile, threads)
        assert threads.submit(fetch).result(60).parcels
        stored(threads.submit(hand.send, hand.seal(2)).result(60)[0])
        assert submissions.done == 0
    submissions.await_all()


def test_without_pools_of_their_own_fetching_waits_for_the_block_too(
    stack: Stack, topic: Topic, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    fetch = fetch_by(topic)
    with without("pools and shares of their own"), no_block(stack):
        submissions = Submissions(stack, hostile, threads)
        fetching = threads.submit(fetch)
        wait_until(lambda: under_way(stack, topic.reader) == 1)
        ask_aside(stack.node.url)
        assert not fetching.done()
    submissions.await_all()
    assert fetching.result(60).parcels  # it was the block that it waited for


@contextmanager
def held_submissions(stack: Stack, hostile: Session, threads: ThreadPoolExecutor) -> Iterator[list[bytes]]:
    """Transactions of the hostile tenant take long to run. Yields those that run, and sends many."""
    ledger = sqlite_ledger(stack)
    submit, running, go = ledger.submit, list[bytes](), threading.Event()

    def submit_late(data: bytes, now_ms: int) -> Submitted:
        if parse(data).author == hostile.identity.principal:
            running.append(data)
            assert go.wait(60)
        return submit(data, now_ms)

    ledger.submit = submit_late
    try:
        submissions = Submissions(stack, hostile, threads)
        yield running
    finally:
        ledger.submit = submit
        go.set()
    submissions.await_all()


def test_of_a_tenants_transactions_one_runs_at_a_time_and_others_run_theirs(
    stack: Stack, topic: Topic, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    with held_submissions(stack, hostile, threads) as running:
        topic.owner.author.write(entries.grant(topic.token, topic.reader.identity.principal, 1, host="10.0.0.1"))
        assert len(running) == 1


def test_without_pools_of_their_own_it_has_all_threads(
    stack: Stack, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    with without("pools and shares of their own"), held_submissions(stack, hostile, threads) as running:
        wait_until(lambda: len(running) > 1)


# --- shares of threads and of places ---


async def contend(limits: PoolLimits) -> tuple[int, int, bool]:
    """One tenant asks for more than there is room for. Returns how many of its requests wait and how many were told to
    come back, and whether another's was answered meanwhile."""
    pool, go = Pool("test", limits, Fairness(SystemClock())), threading.Event()
    try:
        held = [asyncio.ensure_future(pool.run(b"hostile", go.wait)) for _ in range(PENDING)]
        other = asyncio.ensure_future(pool.run(b"honest", lambda: True))
        for _ in range(1_000):
            await asyncio.sleep(0.001 if not other.done() else 0)
        sent_away = sum(one.done() and isinstance(one.exception(), Unavailable) for one in held)
        answered = other.done()
        waiting = sum(not one.done() for one in held)
        return waiting, sent_away, answered
    finally:
        go.set()
        await asyncio.gather(*held, other, return_exceptions=True)
        pool.stop()


def test_of_threads_a_tenant_has_its_share_and_of_places_before_them_too() -> None:
    assert asyncio.run(contend(PoolLimits(threads=4, share=3, waiting=9))) == (12, PENDING - 12, True)


def test_without_shares_another_tenant_s_work_waits() -> None:
    with without("pools and shares of their own"):
        assert asyncio.run(contend(PoolLimits(threads=4, share=3, waiting=9))) == (PENDING, 0, False)


def work_s(seconds: float) -> Callable[[], None]:
    """Work that takes a core so long."""

    def work() -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    return work


async def rests(*others: bytes) -> bool:
    """Whether a tenant for whom much was done rests before its next request, while others ask as well."""
    fairness = Fairness(SystemClock())
    pool = Pool("test", PoolLimits(4, 2, 8), fairness)
    try:
        await pool.run(b"hostile", work_s(4 * Fairness.PART.most))
        await asyncio.sleep(0)  # what it took is noted
        for tenant in (b"hostile", *others):
            fairness.come(tenant)
        return fairness.rest_s(b"hostile") > 0
    finally:
        pool.stop()


def test_whoever_had_much_done_rests_while_another_tenant_is_there() -> None:
    assert asyncio.run(rests(b"honest"))


def test_alone_a_tenant_may_have_everything() -> None:
    assert not asyncio.run(rests())


def test_without_fairness_it_goes_on() -> None:
    with without("what was worked for a tenant"):
        assert not asyncio.run(rests(b"honest"))


def test_the_authority_never_rests() -> None:
    fairness = Fairness(SystemClock())
    fairness.come(b"honest")
    fairness.note(b"authority", 60.0)
    assert fairness.rest_s(b"authority") == 0


def test_of_requests_under_way_a_principal_has_its_share() -> None:
    shares: Shares[bytes] = Shares(2, "requests")
    with shares.held(b"a"), shares.held(b"a"):
        with pytest.raises(Unavailable) as told, shares.held(b"a"):
            pass
        assert told.value.retry_after_s
        with shares.held(b"b"):
            pass
    with shares.held(b"a"):
        pass


def test_without_its_share_one_principal_has_any_number_under_way() -> None:
    shares: Shares[bytes] = Shares(2, "requests")
    with without("a principal's share of requests under way"), ExitStack() as under_way:
        for _ in range(100):
            under_way.enter_context(shares.held(b"a"))


BURST = 5


def greedy_asks(stack: Stack, topic: Topic, name: str) -> int:
    """How often a node answers one who asks four times as often as it may, and whom it then answers still."""
    service, greedy = stack.node.service, topic.member(name)
    before, service._rates = service._rates, Rates(1e-6, BURST, 100)
    answered = 0
    try:
        with impatient(greedy, topic.reader):
            for _ in range(4 * BURST):
                with suppress(Unavailable):
                    answered += len(greedy.node.blocks(0, 1)) > 0
            assert topic.reader.node.blocks(0, 1)
    finally:
        service._rates = before
    return answered


def test_who_asks_and_asks_is_told_to_wait_and_nobody_else(stack: Stack, topic: Topic) -> None:
    assert greedy_asks(stack, topic, "greedy") == BURST


def test_without_its_rate_a_principal_is_answered_as_often_as_it_asks(stack: Stack, topic: Topic) -> None:
    with without("the rate of a principal"):
        assert greedy_asks(stack, topic, "greedier") == 4 * BURST


def stored_first(queue: str) -> str:
    """Whose requests are stored together, of a queue of requests by their tenants' letters."""
    waiting: Any = [(letter, None, None) for letter in queue]
    taken, left = desk.next_group(waiting, 6, 2)
    assert len(taken) + len(left) == len(queue)
    return "".join(cast(str, who) for who, _, _ in taken)


def test_nobody_stands_behind_a_queue_of_another_s_parcels() -> None:
    assert stored_first("hhhhhhhhhhab") == "hhab"
    assert stored_first("aabbccdd") == "aabbcc"
    with without("the share of a group"):
        assert stored_first("hhhhhhhhhhab") == "hhhhhh"


# --- locks ---


@contextmanager
def busy(stack: Stack) -> Iterator[None]:
    """The carrier's lock is held, as while a large group is judged."""
    with stack.node.carrier.lock:
        yield


@pytest.mark.parametrize("path", ["/metrics", "/health/ready"])
def test_whoever_watches_a_busy_node_neither_waits_nor_stops_it(
    stack: Stack, path: str, threads: ThreadPoolExecutor
) -> None:
    with busy(stack), sqlite_ledger(stack)._lock:
        [shown] = threads.submit(ask_aside, stack.node.url, path, 1).result(60)
    assert shown


def test_without_counters_of_their_own_metrics_wait_for_the_lock(stack: Stack, threads: ThreadPoolExecutor) -> None:
    with without("counters without the lock"):
        with busy(stack):
            watching = threads.submit(ask_aside, stack.node.url, "/metrics", 1)
            wait_beyond(lambda: stack.node.ledger.height, stack.node.ledger.height + 2)
            assert not watching.done()
        assert watching.result(60)


@contextmanager
def no_rows(stack: Stack) -> Iterator[threading.Event]:
    """The ledger says nothing of rights and keys, as a chain that does not answer. Yields what is set when an event
    loop waits for them."""
    ledger, go, stuck = cast(Any, sqlite_ledger(stack)), threading.Event(), threading.Event()

    def query(read: Any) -> Any:
        with suppress(RuntimeError):  # on a thread
            asyncio.get_running_loop()
            stuck.set()
        assert go.wait(60)
        return SqliteLedger.query(ledger, read)

    ledger.query = query
    try:
        yield stuck
    finally:
        del ledger.query
        go.set()


def forget_keys(stack: Stack) -> None:
    """As when they were asked for long ago; a stranger may name anybody."""
    stack.node.core._cache._held.clear()


def test_whoever_s_key_must_be_asked_for_keeps_nobody_else_waiting(
    stack: Stack, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    with no_rows(stack):
        forget_keys(stack)
        asking = threads.submit(hostile.node.blocks, 0, 1)
        assert len(threads.submit(ask_aside, stack.node.url).result(60)) == ASIDE
        assert not asking.done()
    assert asking.result(60)


def test_without_a_thread_for_it_the_event_loop_waits_for_the_key(
    stack: Stack, hostile: Session, threads: ThreadPoolExecutor
) -> None:
    with without("keys that a thread asks for"):
        with no_rows(stack) as stuck:
            forget_keys(stack)
            asking = threads.submit(hostile.node.blocks, 0, 1)
            assert stuck.wait(60)
            others = threads.submit(ask_aside, stack.node.url)
            assert len(ask_aside(stack.authority.url)) == ASIDE  # on an event loop of its own
            assert not others.done()
        assert others.result(60)
        assert asking.result(60)


def is_known(topic: Topic) -> Callable[[State], bool]:
    return lambda state: state.row(TOPICS(topic.token)) is not None


def search(ledger: SqliteLedger, topic: Topic) -> int:
    """What takes as long as the ledger is. Returns how much was found."""
    found: Sequence[object] = ledger.audit(Query(principal=topic.car.identity.principal))
    return len(found) * len(ledger.history(topic.token)) * len(ledger.blocks(0, 4))


def test_who_searches_the_ledger_needs_no_lock_of_those_who_write_it(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    ledger = sqlite_ledger(stack)
    settle(stack)
    with no_block(stack):
        assert search(ledger, topic) > 0  # the index is written once
        with ledger._searching() as reader, ledger._lock:
            assert reader.blocks(0, 1)
        with ledger._lock:
            assert threads.submit(ledger.audit, Query(kind=int(EntryKind.ANCHOR))).result(60)
            assert threads.submit(ledger.query, is_known(topic)).result(60)  # a guard, with the carrier's lock
            assert threads.submit(prove, ledger, topic).result(60)


def prove(ledger: SqliteLedger, topic: Topic) -> bool:
    """What whoever verifies asks for."""
    size = read_head(ledger.checkpoint(), topic.car.identity.trust).size
    answers = ledger.receipt(size - 1, 0), ledger.consistency(1, size), ledger.scan(TOPICS), ledger.newest_note()
    assert all(answers)
    assert ledger.block(1).height == 1
    return ledger.state(TOPICS(topic.token)).value is not None


def test_a_proof_that_is_asked_for_while_its_block_is_written_is_of_the_block_before(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    """The file has the new value already, and the head that is published does not."""
    ledger, key, trust = sqlite_ledger(stack), ANCHORS(topic.token, 0), stack.node.trust
    settle(stack)
    told, go, publishes = threading.Semaphore(0), threading.Semaphore(0), ledger._publish

    def publish_late(head: Head) -> None:
        told.release()
        assert go.acquire(timeout=60)
        publishes(head)

    ledger._publish = publish_late
    sending = threads.submit(publish, topic.car, "brakes", [7])
    try:
        is_ahead = False
        while not is_ahead:
            assert told.acquire(timeout=60)
            proof = ledger.state(key)
            verify_map(read_head(proof.note, trust).state_root, key, proof.value, proof.proof)
            with ledger._searching() as reader:
                is_ahead = reader.store.value(key) != proof.value
            go.release()
    finally:
        ledger._publish = publishes
        go.release(1_000)
    sending.result(60)


def test_without_a_reader_of_its_own_a_search_waits_for_the_lock(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    ledger = sqlite_ledger(stack)
    with without("a reader of its own for whoever searches"):
        with ledger._lock:
            searching = threads.submit(ledger.audit, Query(kind=int(EntryKind.ANCHOR)))
            guarding = threads.submit(ledger.query, is_known(topic))
            proving = threads.submit(prove, ledger, topic)
            ask_aside(stack.node.url)
            assert not searching.done()
            assert not guarding.done()
            assert not proving.done()
        assert searching.result(60)
        assert guarding.result(60)
        assert proving.result(60)


# --- what waits for the disk ---


@contextmanager
def no_sync(stack: Stack) -> Iterator[threading.Event]:
    """The node's disk takes what is written, and does not say so until the end. Yields what is set when it is asked."""
    store = log_store(stack)
    synced, asked, go = store.sync, threading.Event(), threading.Event()

    def sync_late() -> None:
        asked.set()
        assert go.wait(60)
        synced()

    store.sync = sync_late
    try:
        yield asked
    finally:
        store.sync = synced
        go.set()


def test_who_reads_does_not_wait_for_what_others_store(stack: Stack, topic: Topic, threads: ThreadPoolExecutor) -> None:
    fetch, hand = fetch_by(topic), Hand(topic.car, "brakes")
    with no_sync(stack) as asked:
        sending = threads.submit(hand.send, hand.seal(3))
        assert asked.wait(60)
        assert threads.submit(fetch).result(60).parcels
        assert not sending.done()
    stored(sending.result(60)[0])


def test_without_letting_go_of_the_guards_at_the_disk_reading_waits_for_it(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    fetch, hand = fetch_by(topic), Hand(topic.car, "brakes")
    with without("the guards' lock let go of at the disk"):
        with no_sync(stack) as asked:
            sending = threads.submit(hand.send, hand.seal(4))
            assert asked.wait(60)
            fetching = threads.submit(fetch)
            wait_until(lambda: under_way(stack, topic.reader) == 1)
            ask_aside(stack.node.url)
            assert not fetching.done()
        assert fetching.result(60).parcels
    stored(sending.result(60)[0])


class HeldBack:
    """The authority's way to the ledger, on which answers of one kind come when they are let go."""

    def __init__(self, client: LedgerClient, what: str, on_the_way: bytes | None = None) -> None:
        """With `on_the_way` only the answer to this question is held, and the node has given it."""
        self._client, self._what, self.asked, self.go = client, what, threading.Event(), threading.Event()
        self._on_the_way = on_the_way

    def __getattr__(self, name: str) -> Any:
        return self._late if name == self._what else getattr(self._client, name)

    def _late(self, *question: Any) -> Any:
        ask = partial(getattr(self._client, self._what), *question)
        if self._on_the_way not in (None, *question):
            return ask()
        answer = None if self._on_the_way is None else ask()
        self.asked.set()
        assert self.go.wait(60)
        return answer or ask()


@contextmanager
def held_back(
    stack: Stack, what: str, ask: Callable[[], object] = lambda: None, on_the_way: bytes | None = None
) -> Iterator[HeldBack]:
    """An authority that waits for what a node is slow to send; it looks for blocks by itself, for rows when asked."""
    core = stack.authority.authority.core
    view, honest = core.ledger, core.ledger.client
    with core.following:  # between two looks, so that the next one begins under what the test took away
        view.client = held = cast(Any, HeldBack(honest, what, on_the_way))
    try:
        ask()
        assert held.asked.wait(60)
        yield held
    finally:
        view.client = honest
        held.go.set()


def counts_topics(stack: Stack) -> int:
    return int(stack.authority.authority.core.store.scalar("SELECT count(*) FROM topics"))


def test_an_authority_that_waits_for_the_node_serves_what_it_knows(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    with held_back(stack, "blocks"):
        assert threads.submit(counts_topics, stack).result(60) > 0


def test_without_letting_go_of_the_lock_it_serves_nobody(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    with without("the store's lock let go of while following"):
        with held_back(stack, "blocks"):
            counting = threads.submit(counts_topics, stack)
            ask_aside(stack.node.url)
            assert not counting.done()
        assert counting.result(60) > 0


def permit_asked(threads: ThreadPoolExecutor, topic: Topic) -> Callable[[], object]:
    return lambda: threads.submit(topic.reader.authority.permit, Operation.SUBSCRIBE, "brakes")


def test_an_authority_that_asks_the_node_for_a_permit_serves_what_it_knows(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    with held_back(stack, "state", permit_asked(threads, topic)):
        assert threads.submit(counts_topics, stack).result(60) > 0


def test_without_asking_before_the_lock_a_permit_keeps_all_others_waiting(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    with without("the ledger asked before the store's lock"):
        with held_back(stack, "state", permit_asked(threads, topic)):
            counting = threads.submit(counts_topics, stack)
            ask_aside(stack.node.url)
            assert not counting.done()
        assert counting.result(60) > 0


def overtake(stack: Stack, topic: Topic, threads: ThreadPoolExecutor) -> Future[object]:
    """The authority asks for a row, and while the answer is on its way it hears of a newer block."""
    view, key, asking = stack.authority.authority.core.ledger, TOPICS(topic.token), list[Future[object]]()
    with held_back(stack, "state", lambda: asking.append(threads.submit(view.row, key)), on_the_way=key):
        block = stack.node.ledger.flush(stack.node._now_ms)
        assert block is not None
        wait_until(lambda: view.head is not None and view.head.height >= block.height)  # by whoever follows
    return asking[0]


def test_an_answer_that_another_has_overtaken_is_no_rollback(
    stack: Stack, topic: Topic, threads: ThreadPoolExecutor
) -> None:
    assert overtake(stack, topic, threads).result(60) is not None


def test_without_asking_again_it_looks_like_one(stack: Stack, topic: Topic, threads: ThreadPoolExecutor) -> None:
    with without("an answer that was overtaken asked for again"):
        asking = overtake(stack, topic, threads)
        with pytest.raises(Withheld):
            asking.result(60)


class Queue:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self._lock, self.came = threading.Lock(), 0

    def __enter__(self) -> None:
        self.came += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_waits_for_another_that_follows_the_ledger_does_not_follow_it_again(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    world = AuthorityWorld(tmp_path)
    authority, queue = world.authority, Queue()
    authority.core.following = cast(Any, queue)
    with queue:
        before, waiting = authority.core.looks, [threads.submit(authority.follow) for _ in range(PENDING)]
        wait_until(lambda: queue.came == 1 + PENDING)
    for one in waiting:
        one.result(60)
    assert authority.core.looks == before + 1
    authority.follow()
    assert authority.core.looks == before + 2  # it asked after that
    authority.close()
    world.ledger.close()


# --- connections ---

SMALL = ServerLimits(connections_max=6, address_connections_max=3)
HOST, NEIGHBOUR = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def server() -> Iterator[ServerThread]:
    async def live(_: Request) -> Answer:
        return Answer(body=b"live")

    router = Router()
    router.add("GET", "/health/live", live)
    with ServerThread(router, limits=SMALL) as server:
        yield server


def asked_from(server: ServerThread, host: str) -> bytes:
    """What a peer at this address is answered, nothing where it is turned away."""
    with suppress(ConnectionError), socket.create_connection((HOST, server.port), 60, (host, 0)) as line:
        line.sendall(b"GET /health/live HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        return line.recv(4096)
    return b""


@contextmanager
def crowd(server: ServerThread, count: int) -> Iterator[None]:
    """So many connections from one address, on which nothing is said."""
    with ExitStack() as lines:
        for _ in range(count):
            lines.enter_context(socket.create_connection((HOST, server.port), 60, (HOST, 0)))
        yield


def test_one_address_does_not_hold_every_connection(server: ServerThread) -> None:
    with crowd(server, SMALL.connections_max):
        assert asked_from(server, HOST) == b""
        assert asked_from(server, NEIGHBOUR).endswith(b"live")
    wait_until(lambda: asked_from(server, HOST).endswith(b"live"))  # what is closed is given back


def test_without_the_share_of_an_address_it_does(server: ServerThread) -> None:
    with without("the share of an address"), crowd(server, SMALL.connections_max):
        assert asked_from(server, NEIGHBOUR) == b""


class Line(asyncio.Transport):
    """A connection from an address that this machine has not."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1)})
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False

    close = abort


def open_lines(hosts: Sequence[str]) -> int:
    """How many connections from these addresses a server takes."""

    async def connect() -> int:
        config, state = Config(Router()), ServerState()
        protocol, lines = _bounded(SMALL), [Line(host) for host in hosts]
        talks = [protocol(config, state, {}) for _ in lines]
        for talk, line in zip(talks, lines, strict=True):
            talk.connection_made(line)
        held = sum(line.is_open for line in lines)
        for talk in talks:
            talk.connection_lost(None)
        return held

    return asyncio.run(connect())


NETWORK = [f"2001:db8::{number:x}" for number in range(1, 7)]  # one host has as many of these as it likes


def test_a_host_with_a_network_of_addresses_does_not_hold_every_connection() -> None:
    assert open_lines(NETWORK) == SMALL.address_connections_max


def test_without_networks_it_does() -> None:
    with without("the network of an address"):
        assert open_lines(NETWORK) == SMALL.connections_max


def test_a_network_of_version_6_is_one_neighbour() -> None:
    assert _neighbourhood(("2001:db8::1", 1)) == _neighbourhood(("2001:db8::ffff:2", 2))
    assert _neighbourhood(("2001:db8::1", 1)) != _neighbourhood(("2001:db8:0:1::1", 1))
    assert _neighbourhood(("fe80::1%eth0", 1)) == _neighbourhood(("fe80::2", 1))
    assert _neighbourhood(("10.0.0.1", 1)) != _neighbourhood(("10.0.0.2", 1))
