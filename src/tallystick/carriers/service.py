"""The HTTP face of a node: carrier and ledger, signed requests in front (docs/formats/http.md).

Handlers translate and nothing else. Publishing goes through one worker that takes all requests that wait, so that they
share a sync; everything that may touch the disk runs off the event loop; long polls wait on the loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from tallystick import wire
from tallystick.carriers.acts import Asked
from tallystick.carriers.bundle import PATH as BUNDLE_PATH
from tallystick.carriers.bundle import Bundle
from tallystick.carriers.carrier import Fetched, Outcome, Stored
from tallystick.carriers.frames import join_frames, split_frames
from tallystick.carriers.front import Front
from tallystick.carriers.log.report import Damaged
from tallystick.errors import Malformed, Refused, TallystickError, Unavailable, Withheld
from tallystick.ledger.engine import Engine, Query
from tallystick.runtime.answers import PARCELS, Answer, answer_value
from tallystick.runtime.clock import Clock
from tallystick.runtime.gate import Gate
from tallystick.runtime.router import Request, Router
from tallystick.trust.envelope import Envelope
from tallystick.trust.signed import Fields

WAIT_MS_MAX = 30_000  # a long poll; below the proxies' usual minute
HEIGHTS_MAX = 256  # blocks in one answer
OFFSETS_MAX = 4096  # paths in one answer
SUBMIT_S = 30.0  # how long a transaction may wait for its block


@dataclass
class Waiting:
    """A publish request in the worker's queue."""

    asked: Asked
    token: bytes
    parcels: list[bytes]
    answer: asyncio.Future[list[Outcome] | TallystickError]
    loop: asyncio.AbstractEventLoop

    def settle(self, answer: list[Outcome] | TallystickError) -> None:
        self.loop.call_soon_threadsafe(self._set, answer)

    def _set(self, answer: list[Outcome] | TallystickError) -> None:
        if not self.answer.done():  # the peer may have left
            self.answer.set_result(answer)


class PublishWorker(threading.Thread):
    """Takes whatever waits as one group: one sync, however many requests."""

    GROUP_MAX = 256  # requests

    def __init__(self, carrier: Front, waiting_max: int = 1024) -> None:
        super().__init__(name="publish", daemon=True)
        self._carrier = carrier
        self._queue: queue.Queue[Waiting | None] = queue.Queue(waiting_max)

    def put(self, waiting: Waiting) -> None:
        try:
            self._queue.put_nowait(waiting)
        except queue.Full:
            raise Unavailable("too many requests wait to be stored", retry_after_s=0.2) from None

    def stop(self) -> None:
        self._queue.put(None)
        self.join()

    def run(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            stop = False
            while len(group) < self.GROUP_MAX:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    stop = True
                    break
                group.append(more)
            self._publish(group)
            if stop:
                return

    def _publish(self, group: list[Waiting]) -> None:
        try:
            answers = self._carrier.publish([(one.asked, one.token, one.parcels) for one in group])
        except Exception as error:  # the worker must outlive any single group
            failure = error if isinstance(error, TallystickError) else Unavailable(f"the node failed: {error!r}")
            answers = [failure] * len(group)
        for one, answer in zip(group, answers, strict=True):
            one.settle(answer)


class CarrierService:
    """Routes of a node. `start` is called on the event loop's own thread, by the first request if need be."""

    def __init__(
        self,
        carrier: Front,
        ledger: Engine,
        gate: Gate,
        clock: Clock,
        doors: Mapping[str, Callable[[bytes, bytes], bytes]] = MappingProxyType({}),
        gateway: bool = True,
    ) -> None:
        """`doors` are requests that this carrier alone knows, by path: from principal and body to an answer. Without
        `gateway` parcels neither come nor go this way; headers, proofs, permits and locks do."""
        self._carrier, self._ledger, self._clock, self._doors = carrier, ledger, clock, doors
        self._gateway = gateway
        self._worker = PublishWorker(carrier)
        self._worker.start()
        self._grown: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = False
        carrier.on_growth = self._pulse
        self._gate = gate

    def add_routes(self, router: Router) -> None:
        signed = self._gate.signed
        for method, path, handler in [
            ("POST", "/v1/topics/{token}/parcels", self._publish),
            ("GET", "/v1/topics/{token}/parcels", self._fetch),
            ("POST", "/v1/topics/{token}/advertisements", self._advertise),
            ("POST", "/v1/topics/{token}/subscriptions", self._subscribe),
            ("POST", "/v1/topics/{token}/locks", self._put_locks),
            ("POST", "/v1/topics/{token}/inclusion", self._inclusion),
            ("GET", "/v1/topics/{token}/lanes/{lane}", self._lane_front),
            ("GET", "/v1/topics/{token}/verdict", self._verdict),
            ("POST", "/v1/undo", self._undo),
            ("GET", "/v1/locks/{name}", self._lock),
            ("GET", "/v1/permits/{identifier}", self._permit),
            ("POST", "/v1/transactions", self._submit),
            ("GET", "/v1/ledger/state", self._state),
            ("GET", "/v1/ledger/blocks", self._blocks),
            ("GET", "/v1/ledger/receipt", self._receipt),
            ("GET", "/v1/ledger/history", self._history),
            ("GET", "/v1/ledger/audit", self._audit),
        ]:
            router.add(method, path, signed(handler))
        bundle = Bundle()
        for path, handler in [
            ("/v1/topics/{token}/lanes/{lane}", self._lane_front),
            ("/v1/permits/{identifier}", self._permit),
            ("/v1/ledger/state", self._state),
            ("/v1/ledger/consistency", self._signed_consistency),
        ]:
            bundle.add(path, handler)
        router.add("POST", BUNDLE_PATH, signed(bundle.handle))
        for path in self._doors:
            router.add("POST", path, signed(self._answer_door))
        # What witnesses and strangers may see: the ledger's own signed word.
        router.add("GET", "/v1/ledger/checkpoint", self._checkpoint)
        router.add("GET", "/v1/ledger/consistency", self._consistency)

    def end_polls(self) -> None:
        """Answer all who wait, now and from now on; on the event loop."""
        self._ending = True
        self._wake()

    def stop(self) -> None:
        self._worker.stop()

    # Carrier.

    async def _publish(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        self._check_gateway()
        loop = asyncio.get_running_loop()
        asked, token = self._asked(request, envelope), _hex(request.parameters["token"], 16)
        try:
            parcels = split_frames(body)
        except Malformed as error:
            await asyncio.to_thread(self._carrier.note_unreadable, asked, token, error.reason)
            raise
        waiting = Waiting(asked, token, parcels, loop.create_future(), loop)
        self._worker.put(waiting)
        answer = await waiting.answer
        if isinstance(answer, TallystickError):
            raise answer
        return answer_value([encode_outcome(outcome) for outcome in answer])

    async def _fetch(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        asked, query = self._asked(request, envelope), _Query(request.query)
        token, partition = _hex(request.parameters["token"], 16), query.number("partition")
        permit, offset = query.octets("permit", 16), query.number("offset")
        stored, wait_ms = bool(query.number("stored", 0)), min(query.number("wait", 0), WAIT_MS_MAX)
        headers = bool(query.number("headers", 0))
        if not headers:
            self._check_gateway()
        await asyncio.to_thread(self._carrier.check_fetch, asked, token, partition, permit)
        await self._wait(token, partition, offset, stored, wait_ms)
        try:
            fetched = await asyncio.to_thread(
                self._carrier.fetch,
                asked,
                token,
                partition,
                permit,
                offset,
                bytes_max=query.number("bytes", 1 << 20),
                stored=stored,
                headers=headers,
                size=query.optional_number("size"),
                end=query.optional_number("end"),
            )
        except Damaged as error:  # unlike what is unavailable for now: to try again would not help
            hint = "its operator restores the node's log from a backup or a replica"
            message = f"partition {partition}: the node's log is damaged: {error}"
            raise Withheld(message, reason="damaged", hint=hint) from error
        return Answer(body=encode_fetched(fetched), content_type=PARCELS)

    def _check_gateway(self) -> None:
        if not self._gateway:
            hint = "go to Kafka itself (tally principal kafka), or to a gateway (tally principal address)"
            raise Refused("this node is a notary: it carries no parcels", reason="not-gateway", hint=hint)

    async def _wait(self, token: bytes, partition: int, offset: int, stored: bool, wait_ms: int) -> None:
        """Until there is something at `offset`, or the time is up."""
        deadline = self._clock.monotonic() + wait_ms / 1000
        while True:
            grown = self._growth()
            if offset < self._carrier.ends(token, partition)[1 if stored else 0]:
                return
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self._ending:
                return
            try:
                async with asyncio.timeout(left_s):
                    await grown.wait()
            except TimeoutError:
                return

    async def _advertise(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        token = _hex(request.parameters["token"], 16)
        await asyncio.to_thread(self._carrier.advertise, self._asked(request, envelope), token, body)
        return answer_value(True)

    async def _subscribe(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        token = _hex(request.parameters["token"], 16)
        await asyncio.to_thread(self._carrier.subscribe, self._asked(request, envelope), token, body)
        return answer_value(True)

    async def _undo(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        await asyncio.to_thread(self._carrier.undo, self._asked(request, envelope), body)
        return answer_value(True)

    async def _put_locks(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        token, permit = _hex(request.parameters["token"], 16), _Query(request.query).octets("permit", 16)
        locks = split_frames(body)
        await asyncio.to_thread(self._carrier.put_locks, self._asked(request, envelope), token, permit, locks)
        return answer_value(True)

    async def _lane_front(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        query = _Query(request.query)
        front = await asyncio.to_thread(
            self._carrier.lane_front,
            self._asked(request, envelope),
            _hex(request.parameters["token"], 16),
            query.number("partition"),
            query.octets("permit", 16),
            query.octets("publisher", 16),
            _hex(request.parameters["lane"], 16),
            query.number("below"),
            query.number("size"),
        )
        return answer_value(None if front is None else [front.offset, front.front, front.anchored, list(front.proof)])

    async def _inclusion(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        fields = Fields.parse(body, "request", 3)
        partition, size, offsets = fields.number(), fields.number(), fields.items(OFFSETS_MAX, 1)
        if any(type(offset) is not int or not 0 <= offset < size for offset in offsets):
            raise Malformed("request: an offset is out of range")
        asked, token = self._asked(request, envelope), _hex(request.parameters["token"], 16)
        return answer_value(await asyncio.to_thread(self._carrier.inclusion, asked, token, partition, size, offsets))

    async def _verdict(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        asked, query, token = self._asked(request, envelope), _Query(request.query), request.parameters["token"]
        where = (_hex(token, 16), query.number("partition"), query.number("offset"))
        return answer_value(await asyncio.to_thread(self._carrier.verdict, asked, *where))

    async def _answer_door(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        return Answer(body=await asyncio.to_thread(self._doors[request.path], envelope.principal, body))

    async def _lock(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        return Answer(body=self._carrier.deposits.lock(_hex(request.parameters["name"], 32)))

    async def _permit(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        return Answer(body=self._carrier.deposits.permit(_hex(request.parameters["identifier"], 16)))

    # Ledger.

    async def _submit(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        block = await asyncio.to_thread(self._submit_and_wait, body)
        return answer_value([block.height, block.time_ms])

    def _submit_and_wait(self, data: bytes) -> Any:
        submitted = self._ledger.submit(data, int(self._clock.now() * 1000))
        return self._ledger.wait(submitted, SUBMIT_S)

    async def _checkpoint(self, request: Request) -> Answer:
        note = await asyncio.to_thread(self._ledger.checkpoint)
        return Answer(body=note, content_type="text/plain; charset=utf-8")

    async def _consistency(self, request: Request) -> Answer:
        query = _Query(request.query)
        return answer_value(await asyncio.to_thread(self._ledger.consistency, query.number("old"), query.number("new")))

    async def _signed_consistency(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        return await self._consistency(request)

    async def _state(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        key = _Query(request.query).octets("key")
        return Answer(body=(await asyncio.to_thread(self._ledger.state, key)).encode())

    async def _blocks(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        query = _Query(request.query)
        first, most = query.number("first"), min(query.number("most", 16), HEIGHTS_MAX)
        blocks = await asyncio.to_thread(self._ledger.blocks, first, most)
        return answer_value([[block, list(transactions)] for block, transactions in blocks])

    async def _receipt(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        query = _Query(request.query)
        receipt = await asyncio.to_thread(
            self._carrier.receipt,
            self._asked(request, envelope),
            query.octets("token", 16),
            query.number("partition"),
            query.number("offset"),
        )
        return Answer(body=receipt.encode())

    async def _history(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        query = _Query(request.query)
        height = query.optional_number("height")
        before = None if height is None else (height, query.number("index"))
        most = min(query.number("most", 1000), 10_000)
        items = await asyncio.to_thread(self._ledger.history, query.octets("token", 16), most, before)
        return answer_value([[item.height, item.index, item.entry] for item in items])

    async def _audit(self, request: Request, envelope: Envelope, body: bytes) -> Answer:
        query = _Query(request.query)
        asked = Query(
            principal=query.optional_octets("principal", 16),
            token=query.optional_octets("token", 16),
            kind=query.optional_number("kind"),
            refused=bool(query.number("refused", 0)),
            first_height=query.number("first", 0),
            end_height=query.optional_number("end"),
            most=min(query.number("most", 1000), 10_000),
        )
        items = await asyncio.to_thread(self._ledger.audit, asked)
        return answer_value([[i.height, i.index, i.time_ms, i.author, i.kind, i.entry] for i in items])

    # Inside.

    def _asked(self, request: Request, envelope: Envelope) -> Asked:
        return Asked(envelope, request.client[0], self._clock.now())

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


def encode_outcome(outcome: Outcome) -> list[Any]:
    if isinstance(outcome, Stored):
        return [int(outcome.again), [promise.encode() for promise in outcome.promises]]
    return [2, outcome.reason, outcome.message, outcome.expected]


def encode_fetched(fetched: Fetched) -> bytes:
    meta = wire.encode(
        [1, fetched.first, len(fetched.parcels), fetched.anchored, list(fetched.proof), fetched.end, fetched.retired]
    )
    return join_frames([meta, *fetched.parcels])


class _Query:
    """The parameters of a query, each once, each of its type."""

    def __init__(self, text: str) -> None:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        self._values = dict(pairs)
        if len(self._values) != len(pairs):
            raise Malformed("query: a parameter appears twice")

    def number(self, name: str, default: int | None = None) -> int:
        text = self._values.get(name)
        if text is None:
            if default is None:
                raise Malformed(f"query: {name} is missing")
            return default
        if not text.isdigit() or len(text) > 19:
            raise Malformed(f"query: {name} is not a number")
        return int(text)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self._values else None

    def octets(self, name: str, length: int | None = None) -> bytes:
        return _hex(self._values.get(name, ""), length)

    def optional_octets(self, name: str, length: int) -> bytes | None:
        return self.octets(name, length) if name in self._values else None


def _hex(text: str, length: int | None) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Malformed("request: expected hexadecimal digits") from None
    if (length is not None and len(data) != length) or not data or len(data) > 512:
        raise Refused(f"request: expected {length} bytes in hexadecimal", reason="malformed")
    return data
