"""The machine that a node runs on: its disk, its power, and a door where requests arrive one by one.

The node inside is the real core (node/core.py) on a seeded disk, ledger included. Requests go through the same gate and
the same table of handlers as over HTTP (carriers/desk.py), without the event loop. When the power fails in
the middle of anything, the answer dies with the node: whoever asked hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import count

from tallystick.carriers.accounts import Asked
from tallystick.carriers.desk import Desk, Question, Reply, Route, Storing, Submitting, Wait
from tallystick.carriers.scribe import ActNote
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.ledger.block import Block
from tallystick.ledger.engine import Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.core import NodeCore, ledger_settings
from tallystick.node.settings import NodeSettings
from tallystick.runtime.http1 import Answer, Response, Words, refuse_unauthenticated
from tallystick.runtime.router import Gate, Routes
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import Clock
from tallystick.runtime.sqlite_vfs import DiskVFS
from tallystick.sim.instance import Instance
from tallystick.sim.machine import powered
from tallystick.trust.envelope import PlainHead

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
        self.on_outcomes: Callable[[list[object]], None] = lambda outcomes: None
        self.on_notes: Callable[[list[ActNote]], None] = lambda notes: None
        self._notes: list[ActNote] = []

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
        """Start the node and let it recover. Raises `Unavailable` if the power fails meanwhile."""
        with self._powered():
            self._vfs = DiskVFS(f"sim-{next(_lives)}", self.disk)
            now_ms, ledger_rules = int(self._clock.now() * 1000), ledger_settings(self._settings)
            instance, trust, keys = self._instance, self._instance.trust, self._instance.node_keys
            self._ledger = SqliteLedger(LEDGER, trust, keys.ledger_key, now_ms, ledger_rules, vfs=self._vfs.vfs_name)
            self.core = NodeCore(
                trust,
                keys,
                self._ledger,
                self.disk,
                self._clock,
                self._settings,
                settle=self._settle,
                introduce=[instance.authority_certificate],
            )
            self.core.carrier.scribe.on_note = self._notes.append
            desk = Desk(self.core.carrier, self._ledger, self._clock, self._settle)
            self._routes: Routes[Route] = Routes()
            for route in desk.table():
                self._routes.add(route.method, route.path, route)
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

    def _powered(self) -> AbstractContextManager[None]:
        return powered(self.disk, self._die, "node")

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

    def _settle(self, submitted: Submitted) -> Block:
        ledger = self._ledger
        if submitted.height > ledger.height:
            if self.is_slow:
                raise Unavailable(f"ledger: block {submitted.height} is not made yet")
            ledger.flush(int(self._clock.now() * 1000))
        return ledger.block(submitted.height)

    # The door.

    def serve(self, head: bytes, body: bytes) -> Response:
        """The answer to one HTTP request. Raises `Unavailable` if nobody is there to give it, or died over it."""
        core = self.open_core
        self._notes.clear()
        with self._powered():
            answer = self._answer(core, _parse_head(head), body)
        if answer.status == 200:
            self.on_notes(self._notes)
        return Response(answer.status, dict(answer.headers), answer.body)

    def _answer(self, core: NodeCore, head: PlainHead, body: bytes) -> Answer:
        """As gate and service answer, one step after the other."""
        route, parameters = self._routes.find(head.method, head.path)
        question = Question(head.path, parameters, Words(head.query), body, None)
        if not route.signed:
            return self._finish(core, route.handler(question))
        gate = Gate(core.identifier, core.keys.key, core.rules.verify_key, self._clock)
        try:
            envelope = gate.verify(head)
        except Refused:
            return refuse_unauthenticated()
        try:
            gate.check_fresh(envelope)
            envelope.check_body(body)
            asked = Asked(envelope, "127.0.0.1", self._clock.now())
            return self._finish(core, route.handler(replace(question, asked=asked)))
        except TallystickError as error:
            return gate.explain(head, envelope, error)

    def _finish(self, core: NodeCore, reply: Reply) -> Answer:
        """Nobody is waited for: time stands still while a request is answered."""
        match reply:
            case Wait() | Submitting():
                return reply.then()
            case Storing():
                (outcomes,) = core.carrier.publish([reply[:3]])
                if isinstance(outcomes, TallystickError):
                    raise outcomes
                if not self.disk.is_off:
                    self.on_outcomes(list(outcomes))
                return reply.then(outcomes)
        return reply


def _parse_head(head: bytes) -> PlainHead:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    headers = [(name.encode(), value.encode()) for name, _, value in (line.partition(": ") for line in lines if line)]
    return PlainHead(method, dict(headers)[b"host"].decode(), path, query, headers)
