"""What a node answers: one table of requests (docs/formats/http.md), for HTTP and the simulation alike.

A handler is a plain function from a request whose signature holds to an answer; it translates and nothing else. One
that must wait says for what (`Wait`), and parcels to be stored are handed over (`Storing`), so that those of several
requests share a sync. Whoever drives the node waits and stores: the simulation does so step by step, `CarrierService`
over HTTP. There everything that may touch the disk runs off the event loop, and long polls wait on the loop. What waits
for a block or for other machines, what runs a transaction, what searches the ledger, and what reads have threads of
their own, and of each a tenant has a share: fetching goes on while the ledger makes no blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from tallystick import wire
from tallystick.carriers.accounts import Asked
from tallystick.carriers.carrier import (
    BUNDLE_PATH,
    CONTRACTS_PATH,
    QUESTIONS_MAX,
    Fetch,
    Fetched,
    LaneSought,
    Outcome,
    Stored,
    join_frames,
    split_frames,
)
from tallystick.carriers.front import Front
from tallystick.carriers.storage import Damaged, Place
from tallystick.errors import Malformed, Refused, TallystickError, Unavailable, Withheld
from tallystick.ledger.block import Block
from tallystick.ledger.contracts.execute import released
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.engine import Engine, Query, Submitted, find_before_revocation
from tallystick.runtime.counting import Durations
from tallystick.runtime.http1 import PARCELS, Answer, Words, answer_error, answer_value, octets
from tallystick.runtime.router import Fairness, Gate, Pool, PoolLimits, Rates, Request, Router, Routes, Shares
from tallystick.runtime.sources import Clock
from tallystick.trust.envelope import Envelope
from tallystick.trust.permit import Operation
from tallystick.wire import Fields

log = logging.getLogger(__name__)

WAIT_MS_MAX = 30_000  # a long poll; below the proxies' usual minute
HEIGHTS_MAX = 256  # blocks in one answer
BLOCKS_BYTES_MAX = 8 << 20  # after which an answer has no more blocks; whoever follows asks for the next
BLOCKS_PAGE = 16  # blocks read at once
OFFSETS_MAX = 4096  # paths in one answer
GROUP_MAX, GROUP_SHARE = 256, 64  # publish requests that are stored together, and of one tenant
WAITING_MAX = 1024  # to be stored
PRINCIPALS_MAX = 65_536  # whose rates are remembered; the oldest are forgotten, with a full allowance

Doors = Mapping[str, Callable[[bytes, bytes], bytes]]  # by path: from principal and body to an answer


@dataclass(frozen=True, slots=True)
class Question:
    """A request that may be answered; `asked` is None where anybody may ask."""

    path: str
    parameters: Mapping[str, str]
    words: Words
    body: bytes
    asked: Asked | None

    @property
    def token(self) -> bytes:
        return self.part("token", 16)

    def part(self, name: str, length: int) -> bytes:
        """A part of the path."""
        return octets(self.parameters[name], length)

    @property
    def signed(self) -> Asked:
        assert self.asked is not None  # the table says that its route is a signed one
        return self.asked


class Wait(NamedTuple):
    """Not yet: `then` is the answer as soon as the condition holds, or when the time is up."""

    condition: Callable[[], bool]
    then: Callable[[], Answer]
    seconds: float


class Storing(NamedTuple):
    """Parcels to be stored, with those of others if some wait; `then` makes the answer of their outcomes."""

    asked: Asked
    token: bytes
    parcels: bytes  # framed
    then: Callable[[Sequence[Outcome]], Answer]


class Submitting(NamedTuple):
    """A transaction ran, and waits for its block."""

    then: Callable[[], Answer]


Reply = Answer | Wait | Storing | Submitting
Handler = Callable[[Question], Reply]


class WorkKind(Enum):
    """What a request does, by which it has its threads."""

    QUICK = "quick"  # neither takes a lock nor touches the disk: on the event loop itself
    READ = "read"
    SUBMIT = "submit"  # one after the other, whoever submits
    WAIT = "wait"  # for a block, a sync, or Kafka
    SEARCH = "search"  # for as long as the ledger is


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    signed: bool = True
    bundled: bool = False  # may be asked in a bundle: the answer is small, and nothing changes
    work: WorkKind = WorkKind.READ


class Desk:
    """The handlers of one node."""

    def __init__(
        self,
        front: Front,
        ledger: Engine,
        clock: Clock,
        settle: Callable[[Submitted], Block],
        doors: Doors = MappingProxyType({}),
        gateway: bool = True,
    ) -> None:
        """`settle` returns the block of a transaction once there is one; `doors` are requests that this carrier alone
        knows. Without `gateway` parcels neither come nor go this way; headers, proofs, permits and locks do."""
        self._front, self._ledger, self._clock, self._settle = front, ledger, clock, settle
        self._doors, self._gateway = doors, gateway
        self._bundled: Routes[Handler] = Routes()
        for route in self.table():
            if route.bundled:
                self._bundled.add(route.method, route.path, route.handler)

    def table(self) -> list[Route]:
        quick, waits = WorkKind.QUICK, WorkKind.WAIT
        return [
            Route("POST", "/v1/topics/{token}/parcels", self._publish, work=quick),
            Route("GET", "/v1/topics/{token}/parcels", self._fetch),
            Route("POST", "/v1/topics/{token}/advertisements", partial(self._admit, Operation.ADVERTISE), work=waits),
            Route("POST", "/v1/topics/{token}/subscriptions", partial(self._admit, Operation.SUBSCRIBE), work=waits),
            Route("POST", "/v1/topics/{token}/locks", self._put_locks, work=waits),
            Route("POST", "/v1/topics/{token}/inclusion", self._inclusion),
            Route("GET", "/v1/topics/{token}/lanes/{lane}", self._lane_front, bundled=True),
            Route("GET", "/v1/topics/{token}/verdict", self._verdict),
            Route("GET", "/v1/topics/{token}/anchored-before", self._anchored_before, work=WorkKind.SEARCH),
            Route("POST", "/v1/undo", self._undo, work=waits),
            Route("GET", "/v1/locks/{name}", self._lock, work=quick),
            Route("GET", "/v1/permits/{identifier}", self._permit, bundled=True),
            Route("POST", "/v1/transactions", self._submit, work=WorkKind.SUBMIT),
            Route("GET", "/v1/ledger/state", self._state, bundled=True),
            Route("GET", "/v1/ledger/blocks", self._blocks),
            Route("GET", "/v1/ledger/receipt", self._receipt),
            Route("GET", "/v1/ledger/history", self._history),
            Route("GET", "/v1/ledger/audit", self._audit, work=WorkKind.SEARCH),
            Route("POST", BUNDLE_PATH, self._bundle),
            *(Route("POST", path, self._door, work=waits) for path in self._doors),
            # What witnesses and strangers may see: the ledger's own signed word.
            Route("GET", "/v1/ledger/checkpoint", self._checkpoint, signed=False),
            Route("GET", "/v1/ledger/consistency", self._consistency, signed=False, bundled=True),
            Route("GET", CONTRACTS_PATH, self._contracts, signed=False, work=quick),
        ]

    # Carrier.

    def _publish(self, question: Question) -> Reply:
        self._check_gateway()
        return Storing(question.signed, question.token, question.body, _answer_outcomes)

    def _fetch(self, question: Question) -> Reply:
        asked, words = question.signed, question.words
        wanted = Fetch(
            *(question.token, words.number("partition"), words.octets("permit", 16), words.number("offset")),
            bytes_max=words.number("bytes", 1 << 20),
            wait_ms=min(words.number("wait", 0), WAIT_MS_MAX),
            stored=bool(words.number("stored", 0)),
            headers=bool(words.number("headers", 0)),
            size=words.optional_number("size"),
            end=words.optional_number("end"),
        )
        if not wanted.headers:
            self._check_gateway()
        self._front.check_fetch(asked, wanted)

        def has_more() -> bool:
            anchored, stored_end = self._front.ends(wanted.token, wanted.partition)
            return wanted.offset < (stored_end if wanted.stored else anchored)

        def answer() -> Answer:
            try:
                return Answer(body=encode_fetched(self._front.fetch(asked, wanted)), content_type=PARCELS)
            except Damaged as error:  # unlike what is unavailable for now: to try again would not help
                hint = "its operator restores the node's log from a backup or a replica"
                message = f"partition {wanted.partition}: the node's log is damaged: {error}"
                raise Withheld(message, reason="damaged", hint=hint) from error

        return answer() if not wanted.wait_ms or has_more() else Wait(has_more, answer, wanted.wait_ms / 1000)

    def _check_gateway(self) -> None:
        if not self._gateway:
            hint = "go to Kafka itself (tally principal kafka), or to a gateway (tally principal address)"
            raise Refused("this node is a notary: it carries no parcels", reason="not-gateway", hint=hint)

    def _admit(self, operation: Operation, question: Question) -> Answer:
        self._front.admit(question.signed, question.token, question.body, operation)
        return answer_value(True)

    def _undo(self, question: Question) -> Answer:
        self._front.undo(question.signed, question.body)
        return answer_value(True)

    def _put_locks(self, question: Question) -> Answer:
        permit = question.words.octets("permit", 16)
        self._front.put_locks(question.signed, question.token, permit, split_frames(question.body))
        return answer_value(True)

    def _lane_front(self, question: Question) -> Answer:
        words = question.words
        sought = LaneSought(
            *(question.token, words.number("partition"), words.octets("permit", 16), words.octets("publisher", 16)),
            *(question.part("lane", 16), words.number("below"), words.number("size")),
        )
        front = self._front.lane_front(question.signed, sought)
        return answer_value(None if front is None else [front.offset, front.front, front.anchored, list(front.proof)])

    def _inclusion(self, question: Question) -> Answer:
        fields = Fields.parse(question.body, "request", 3)
        partition, size, offsets = fields.number(), fields.number(), fields.items(OFFSETS_MAX, 1)
        if any(type(offset) is not int or not 0 <= offset < size for offset in offsets):
            raise Malformed("request: an offset is out of range")
        book = self._front.described(question.signed, question.token)
        return answer_value(book.inclusion(Place(question.token, partition), size, offsets))

    def _verdict(self, question: Question) -> Answer:
        place, offset = Place(question.token, question.words.number("partition")), question.words.number("offset")
        return answer_value(self._front.described(question.signed, place.token).verdict(place, offset))

    def _anchored_before(self, question: Question) -> Answer:
        """Nothing where it was not found, or where the ledger's blocks of that time cannot be had."""
        words, publisher = question.words, question.words.octets("publisher", 16)
        place, size = Place(question.token, words.number("partition")), words.number("size")
        book, found = self._front.described(question.signed, place.token), None
        with suppress(Unavailable):
            found = find_before_revocation(self._ledger, publisher, *place)
        return Answer(body=b"" if found is None else book.anchored_before(place, size, *found).encode())

    def _door(self, question: Question) -> Answer:
        return Answer(body=self._doors[question.path](question.signed.envelope.principal, question.body))

    def _lock(self, question: Question) -> Answer:
        return Answer(body=self._front.deposits.lock(question.part("name", 32)))

    def _permit(self, question: Question) -> Answer:
        """One that the ledger knows may be on its way here: only who lacks nothing could say that there is none."""
        identifier = question.part("identifier", 16)
        try:
            return Answer(body=self._front.deposits.permit(identifier))
        except Refused as refusal:
            if self._ledger.query(lambda state: state.row(PERMITS(identifier))) is None:
                raise
            raise Unavailable("the permit was issued, and is not here yet") from refusal

    # Ledger.

    def _submit(self, question: Question) -> Submitting:
        submitted = self._ledger.submit(question.body, int(self._clock.now() * 1000))

        def settle() -> Answer:
            block = self._settle(submitted)
            return answer_value([block.height, block.time_ms])

        return Submitting(settle)

    def _checkpoint(self, question: Question) -> Answer:
        return Answer(body=self._ledger.checkpoint(), content_type="text/plain; charset=utf-8")

    def _consistency(self, question: Question) -> Answer:
        return answer_value(self._ledger.consistency(question.words.number("old"), question.words.number("new")))

    def _contracts(self, question: Question) -> Answer:
        """What this release can replay, for whoever activates it."""
        return answer_value([[*one] for one in released().items()])

    def _state(self, question: Question) -> Answer:
        return Answer(body=self._ledger.state(question.words.octets("key")).encode())

    def _blocks(self, question: Question) -> Answer:
        first, most = question.words.number("first"), min(question.words.number("most", 16), HEIGHTS_MAX)
        found: list[list[Any]] = []
        n_bytes = 0
        while len(found) < most and n_bytes < BLOCKS_BYTES_MAX:
            page = self._ledger.blocks(first + len(found), min(BLOCKS_PAGE, most - len(found)))
            if not page:
                break
            for block, transactions in page:
                found.append([block, list(transactions)])
                n_bytes += sum(map(len, transactions))
        return answer_value(found)

    def _receipt(self, question: Question) -> Answer:
        words = question.words
        place, offset = Place(words.octets("token", 16), words.number("partition")), words.number("offset")
        return Answer(body=self._front.described(question.signed, place.token).receipt(place, offset).encode())

    def _history(self, question: Question) -> Answer:
        words = question.words
        height = words.optional_number("height")
        before = None if height is None else (height, words.number("index"))
        items = self._ledger.history(words.octets("token", 16), min(words.number("most", 1000), 10_000), before)
        return answer_value([[item.height, item.index, item.entry] for item in items])

    def _audit(self, question: Question) -> Answer:
        words = question.words
        query = Query(
            principal=words.optional_octets("principal", 16),
            token=words.optional_octets("token", 16),
            kind=words.optional_number("kind"),
            refused=bool(words.number("refused", 0)),
            first_height=words.number("first", 0),
            end_height=words.optional_number("end"),
            most=min(words.number("most", 1000), 10_000),
        )
        items = self._ledger.audit(query)
        return answer_value([[i.height, i.index, i.time_ms, i.author, i.kind, i.entry] for i in items])

    # Many small questions in one request: each is answered exactly as it would be alone, under the same signature. A
    # reader of ten thousand publishers needs a permit, a state proof and a lane's front for each.

    def _bundle(self, question: Question) -> Answer:
        """wire [[path, query], …] to wire [[status, body], …]."""
        asked = wire.decode(question.body, "bundle")
        if not isinstance(asked, list) or len(asked) > QUESTIONS_MAX:
            raise Malformed(f"bundle: expected an array of at most {QUESTIONS_MAX} questions")
        answers = [self._answer_bundled(question, one) for one in asked]
        return answer_value([[answer.status, answer.body] for answer in answers])

    def _answer_bundled(self, question: Question, asked: object) -> Answer:
        try:
            match asked:
                case [str(path), str(query)]:
                    handler, parameters = self._bundled.find("GET", path)
                    words = Words(query)
                    answer = handler(replace(question, path=path, parameters=parameters, words=words, body=b""))
                    assert isinstance(answer, Answer)  # what is bundled waits for nothing
                    return answer
            raise Malformed("bundle: a question is a path and a query")
        except TallystickError as error:
            return answer_error(error)
        except Exception:
            log.exception("fault while answering %s in a bundle", asked)
            return answer_error(Unavailable("the node failed to answer; its log says why"))


def _answer_outcomes(outcomes: Sequence[Outcome]) -> Answer:
    return answer_value([_encode_outcome(outcome) for outcome in outcomes])


def _encode_outcome(outcome: Outcome) -> list[Any]:
    if isinstance(outcome, Stored):
        return [int(outcome.again), [promise.encode() for promise in outcome.promises]]
    return [2, outcome.reason, outcome.message, outcome.expected]


def encode_fetched(fetched: Fetched) -> bytes:
    meta = wire.encode(
        [1, fetched.first, len(fetched.parcels), fetched.anchored, list(fetched.proof), fetched.end, fetched.retired]
    )
    return join_frames([meta, *fetched.parcels])


Waiting = tuple[bytes, Storing, asyncio.Future[list[Outcome] | TallystickError]]  # whose share it is, what, its answer


def next_group(waiting: Sequence[Waiting], most: int, share: int) -> tuple[list[Waiting], list[Waiting]]:
    """What is stored next, and what waits on: in the order in which it came, but of each tenant no more than its share,
    so that nobody stands behind a queue of another's."""
    taken: list[Waiting] = []
    left: list[Waiting] = []
    of: Counter[bytes] = Counter()
    for one in waiting:
        of[one[0]] += 1
        (taken if of[one[0]] <= share and len(taken) < most else left).append(one)
    return taken, left


class ServiceLimits(NamedTuple):
    """What one principal or tenant may have of a node at once."""

    requests_max: int = 128  # under way of one principal, long polls among them
    requests_per_s: float = 2_000.0  # of one principal, whatever connections it uses
    storing_max: int = 256  # publish requests of one tenant that wait; each may hold 16 MiB
    reads: PoolLimits = PoolLimits(32, 8, 256)
    submissions: PoolLimits = PoolLimits(8, 1, 256)  # of a tenant one runs: others' stand behind that, not behind all
    waits: PoolLimits = PoolLimits(128, 32, 256)  # sleeping threads are cheap; a chain has a block a second
    searches: PoolLimits = PoolLimits(4, 1, 32)


class CarrierService:
    """Serves a desk over HTTP. The event loop is that of the first request.

    Parcels are stored by one thread, which takes requests that wait as one group: one sync, however many, of which no
    tenant has more than a share.
    """

    def __init__(
        self,
        front: Front,
        desk: Desk,
        gate: Gate,
        clock: Clock,
        share_of: Callable[[bytes], bytes],
        limits: ServiceLimits = ServiceLimits(),
    ) -> None:
        """`share_of` tells by whose share a subject's requests are counted: its tenant's."""
        self._front, self._desk, self._gate, self._clock, self._share_of = front, desk, gate, clock, share_of
        self._rates = Rates(limits.requests_per_s, int(limits.requests_per_s), PRINCIPALS_MAX)
        self._requests: Shares[bytes] = Shares(limits.requests_max, "requests of this principal")
        self._stored: Shares[bytes] = Shares(limits.storing_max, "requests of this tenant that wait to be stored")
        self._fairness = Fairness(clock)
        self._pools = {
            WorkKind.READ: Pool("reads", limits.reads, self._fairness),
            WorkKind.SUBMIT: Pool("submissions", limits.submissions, self._fairness),
            WorkKind.WAIT: Pool("waits", limits.waits, self._fairness),
            WorkKind.SEARCH: Pool("searches", limits.searches, self._fairness),
        }
        self._waiting: list[Waiting] = []
        self._storing: asyncio.Task[None] | None = None
        self._publisher = ThreadPoolExecutor(1, "publish")
        self.store_s = Durations()  # from the guards to the disk, a group at a time
        self._grown: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = False
        front.on_growth = self._pulse

    def add_routes(self, router: Router) -> None:
        for route in self._desk.table():
            handle = partial(self._handle, route)
            router.add(route.method, route.path, self._gate.signed(handle) if route.signed else handle)

    def end_polls(self) -> None:
        """Answer all who wait, now and from now on; on the event loop."""
        self._ending = True
        self._wake()

    def stop(self) -> None:
        self._publisher.shutdown()
        for pool in self._pools.values():
            pool.stop()

    async def _handle(
        self, route: Route, request: Request, envelope: Envelope | None = None, body: bytes = b""
    ) -> Answer:
        asked = None if envelope is None else Asked(envelope, request.client[0], self._clock.now())
        question = Question(request.path, request.parameters, Words(request.query), body, asked)
        if envelope is None:
            return await self._answer(route, question, request.client[0].encode())
        self._rates.charge(envelope.principal, self._clock.monotonic())
        who = self._share_of(envelope.principal)
        if who != envelope.principal:  # a tenant's
            self._fairness.come(who)
        with self._requests.held(envelope.principal):
            return await self._answer(route, question, who)

    async def _answer(self, route: Route, question: Question, who: bytes) -> Answer:
        if route.work is WorkKind.QUICK:
            reply = route.handler(question)
        else:
            reply = await self._pool(route.work).run(who, partial(route.handler, question))
        match reply:
            case Wait():
                await self._wait(reply)
                return await self._pool(WorkKind.READ).run(who, reply.then)
            case Submitting():
                return await self._pool(WorkKind.WAIT).run(who, reply.then)
            case Storing():
                return reply.then(await self._store(reply, who))
        return reply

    def _pool(self, work: WorkKind) -> Pool:
        return self._pools[work]

    async def _store(self, storing: Storing, who: bytes) -> list[Outcome]:
        if len(self._waiting) >= WAITING_MAX:
            raise Unavailable("too many requests wait to be stored", retry_after_s=0.2)
        answer: asyncio.Future[list[Outcome] | TallystickError] = asyncio.get_running_loop().create_future()
        with self._stored.held(who):
            self._waiting.append((who, storing, answer))
            if self._storing is None or self._storing.done():
                self._storing = asyncio.create_task(self._store_waiting())
            outcomes = await answer
        if isinstance(outcomes, TallystickError):
            raise outcomes
        return outcomes

    async def _store_waiting(self) -> None:
        """Group by group, until nothing waits. A task of its own: the peer of any one request may leave meanwhile."""
        while self._waiting:
            group, self._waiting = next_group(self._waiting, GROUP_MAX, GROUP_SHARE)
            storing = [one for _, one, _ in group]
            outcomes = await asyncio.get_running_loop().run_in_executor(self._publisher, self._publish, storing)
            for (_, _, answer), outcome in zip(group, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)

    def _publish(self, group: Sequence[Storing]) -> list[list[Outcome] | TallystickError]:
        try:
            with self.store_s.timed(self._clock.monotonic):
                return self._front.publish([one[:3] for one in group])
        except Exception as error:  # the node must outlive any single group
            failure = error if isinstance(error, TallystickError) else Unavailable(f"the node failed: {error!r}")
            return [failure] * len(group)

    async def _wait(self, wait: Wait) -> None:
        """Until the condition holds, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait.seconds):
                grown = self._growth()
                while not wait.condition() and not self._ending:
                    await grown.wait()
                    grown = self._growth()

    def _growth(self) -> asyncio.Event:
        """The event that the next growth sets."""
        if self._grown is None:
            self._loop, self._grown = asyncio.get_running_loop(), asyncio.Event()
        return self._grown

    def _pulse(self) -> None:
        """Wake every long poll; called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._grown is not None:
            self._grown.set()
        self._grown = asyncio.Event()
