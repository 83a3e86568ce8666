"""The machine that a node runs on: its disk, its power, and a door where requests arrive one by one.

The node inside is the real core (node/core.py) on a seeded disk, ledger included. Requests go through the same steps
as over HTTP (signature, freshness, body, handler, error to answer), without the event loop. When the power fails in
the middle of anything, the answer dies with the node: whoever asked hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from tallystick import wire
from tallystick.carriers.acts import Asked
from tallystick.carriers.carrier import Fetched
from tallystick.carriers.frames import split_frames
from tallystick.carriers.scribe import Note, Scribe
from tallystick.carriers.service import _hex, _Query, encode_fetched, encode_outcome
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.ledger.engine import Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.core import NodeCore, ledger_settings
from tallystick.node.settings import NodeSettings
from tallystick.runtime.answers import Answer, answer_error, answer_value, refuse_unauthenticated
from tallystick.runtime.clock import Clock
from tallystick.runtime.http1 import Response
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sqlite_vfs import DiskVFS
from tallystick.sim.instance import Instance
from tallystick.trust.envelope import UNAUTHENTICATED, Envelope, signed_time, verify_request

LEDGER = "ledger.sqlite"
_lives = count()


class Host:
    """`on_outcomes` hears of every publish outcome that the node decided on, also of those whose answer is lost later;
    `on_notes` of the acts that one request left in the journal."""

    def __init__(
        self, instance: Instance, disk: SeededDisk, clock: Clock, settings: NodeSettings, on_start: Callable[[], None]
    ) -> None:
        self._instance, self.disk, self._clock, self._settings = instance, disk, clock, settings
        self._on_start = on_start
        self.core: NodeCore | None = None
        self.is_slow = False  # the ledger takes transactions and makes no block for them yet
        self.starts = 0
        self.on_outcomes: Callable[[list[object]], None] = lambda outcomes: None
        self.on_notes: Callable[[list[Note]], None] = lambda notes: None
        self._notes: list[Note] = []

    @property
    def is_up(self) -> bool:
        return self.core is not None

    @property
    def open_core(self) -> NodeCore:
        if self.core is None:
            raise Unavailable("the node is down")
        return self.core

    # Power.

    def start(self) -> None:
        """Start the node and let it recover; `Unavailable` if the power fails meanwhile."""
        with self._powered():
            self._vfs = DiskVFS(f"sim-{next(_lives)}", self.disk)
            now_ms = int(self._clock.now() * 1000)
            instance = self._instance
            self._ledger = SqliteLedger(
                LEDGER,
                instance.trust,
                instance.node_keys.ledger_key,
                now_ms,
                ledger_settings(self._settings),
                vfs=self._vfs.vfs_name,
            )
            self.core = NodeCore(
                instance.trust,
                instance.node_keys,
                self._ledger,
                self.disk,
                self._clock,
                self._settings,
                settle=self._settle,
                introduce=[instance.authority_certificate],
            )
            self.starts += 1
            self._listen(self.core.carrier._scribe)
            self._on_start()
            self._ledger.tick(now_ms)

    def crash(self) -> None:
        """Cut the power now."""
        self.disk.power_off()
        self._die()

    def stop(self) -> None:
        """An orderly stop, as on an upgrade."""
        with self._powered():
            core = self.open_core
            core.work()
            core.close()
            self.core = None

    @contextmanager
    def _powered(self) -> Iterator[None]:
        """Whatever happens inside after the power failed did not happen."""
        try:
            yield
        except Exception:
            if not self.disk.is_off:
                raise
        if self.disk.is_off:
            self._die()
            raise Unavailable("the node lost its power")

    def _die(self) -> None:
        self.core = None
        ledger = self.__dict__.pop("_ledger", None)
        if ledger is not None:
            with suppress(Exception):  # while the power is off nothing that closing does reaches the disk
                ledger._store.db.close(True)
        self.disk.crash()

    # Work.

    def work(self) -> None:
        """A round of what the node's threads do: blocks that are due, operations and anchors to the ledger."""
        with self._powered():
            core = self.open_core
            core.ledger.tick(int(self._clock.now() * 1000))
            with suppress(Unavailable):
                core.work()

    def _settle(self, submitted: Submitted) -> None:
        ledger = self._ledger
        if submitted.height <= ledger.height:
            return
        if self.is_slow:
            raise Unavailable(f"ledger: block {submitted.height} is not made yet")
        ledger.flush(int(self._clock.now() * 1000))

    def _listen(self, scribe: Scribe) -> None:
        """Hear of what is noted, as it is."""
        usual = scribe.note

        def note(note: Note) -> None:
            usual(note)
            self._notes.append(note)

        scribe.note = note  # type: ignore[method-assign]

    # The door.

    def serve(self, head: bytes, body: bytes) -> Response:
        """The answer to one HTTP request; `Unavailable` if nobody is there to give it, or died over it."""
        core = self.open_core
        self._notes.clear()
        with self._powered():
            answer = self._answer(core, *_parse(head), body)
        if answer.status == 200:
            self.on_notes(self._notes)
        return Response(answer.status, dict(answer.headers), answer.body)

    def _answer(
        self, core: NodeCore, method: str, path: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Answer:
        limits, now = core.limits, self._clock.now()
        nonce = b""
        try:
            if path in ("/v1/ledger/checkpoint", "/v1/ledger/consistency"):
                return self._public(core, path, query)
            envelope = verify_request(
                method=method,
                authority=dict(headers)[b"host"].decode(),
                path=path,
                query=query,
                headers=headers,
                body=body,
                resolve_key=core.rules.verify_key,
                node_id=core.identifier,
                now=now,
                delay_max_s=1e9,
                skew_max_s=1e9,
            )
            nonce = envelope.nonce
            envelope.check_fresh(now, limits.delay_max_s, limits.skew_max_s)
            return self._handle(core, envelope, path, query, body)
        except TallystickError as error:
            if isinstance(error, Refused) and error.reason in UNAUTHENTICATED:
                return refuse_unauthenticated()
            if isinstance(error, Refused) and error.reason in ("stale", "future"):
                return answer_error(error, signed_time(core.keys.key, core.identifier, nonce, now))
            return answer_error(error)

    def _public(self, core: NodeCore, path: str, query: str) -> Answer:
        if path.endswith("checkpoint"):
            return Answer(body=core.ledger.checkpoint())
        asked = _Query(query)
        return answer_value(core.ledger.consistency(asked.number("old"), asked.number("new")))

    def _handle(self, core: NodeCore, envelope: Envelope, path: str, query: str, body: bytes) -> Answer:
        carrier, ledger = core.carrier, core.ledger
        asked, words = Asked(envelope, "127.0.0.1", self._clock.now()), _Query(query)
        match envelope.method, path.split("/")[2:]:
            case "POST", ["topics", token, "parcels"]:
                return self._publish(core, asked, _hex(token, 16), body)
            case "GET", ["topics", token, "parcels"]:
                return Answer(body=encode_fetched(self._fetch(core, asked, _hex(token, 16), words)))
            case "POST", ["topics", token, "advertisements"]:
                carrier.advertise(asked, _hex(token, 16), body)
            case "POST", ["topics", token, "subscriptions"]:
                carrier.subscribe(asked, _hex(token, 16), body)
            case "POST", ["topics", token, "locks"]:
                carrier.put_locks(asked, _hex(token, 16), words.octets("permit", 16), split_frames(body))
            case "POST", ["topics", token, "inclusion"]:
                partition, size, offsets = wire.decode(body, "request")
                return answer_value(carrier.inclusion(asked, _hex(token, 16), partition, size, offsets))
            case "GET", ["topics", token, "lanes", lane]:
                front = carrier.lane_front(
                    asked,
                    _hex(token, 16),
                    words.number("partition"),
                    words.octets("permit", 16),
                    words.octets("publisher", 16),
                    _hex(lane, 16),
                    words.number("below"),
                    words.number("size"),
                )
                found = None if front is None else [front.offset, front.front, front.anchored, list(front.proof)]
                return answer_value(found)
            case "POST", ["undo"]:
                carrier.undo(asked, body)
            case "GET", ["locks", name]:
                return Answer(body=carrier.deposits.lock(_hex(name, 32)))
            case "GET", ["permits", identifier]:
                return Answer(body=carrier.deposits.permit(_hex(identifier, 16)))
            case "POST", ["transactions"]:
                self._settle(ledger.submit(body, int(self._clock.now() * 1000)))
            case "GET", ["ledger", "state"]:
                return Answer(body=ledger.state(words.octets("key")).encode())
            case "GET", ["ledger", "blocks"]:
                blocks = ledger.blocks(words.number("first"), words.number("most"))
                return answer_value([[block, list(transactions)] for block, transactions in blocks])
            case _:
                raise Refused(f"no route {envelope.method} {path}", reason="not-found")
        return answer_value(True)

    def _publish(self, core: NodeCore, asked: Asked, token: bytes, body: bytes) -> Answer:
        (outcomes,) = core.carrier.publish([(asked, token, split_frames(body))])
        if isinstance(outcomes, TallystickError):
            raise outcomes
        if not self.disk.is_off:
            self.on_outcomes(list(outcomes))
        return answer_value([encode_outcome(outcome) for outcome in outcomes])

    def _fetch(self, core: NodeCore, asked: Asked, token: bytes, words: _Query) -> Fetched:
        return core.carrier.fetch(
            asked,
            token,
            words.number("partition"),
            words.octets("permit", 16),
            words.number("offset"),
            bytes_max=words.number("bytes"),
            stored=bool(words.number("stored")),
            headers=bool(words.number("headers")),
            size=words.optional_number("size"),
        )


def _parse(head: bytes) -> tuple[str, str, str, list[tuple[bytes, bytes]]]:
    """Method, path, query and headers of a request's head."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    headers = [line.partition(": ") for line in lines if line]
    return method, path, query, [(name.encode(), value.encode()) for name, _, value in headers]
