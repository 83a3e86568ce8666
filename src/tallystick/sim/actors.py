"""Publishers and subscribers as a simulation drives them: the real clients, with lives that end and begin again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tallystick.authority.client import AuthorityClient, Holder
from tallystick.authority.grant import Grant
from tallystick.carriers.remote import RemoteNode
from tallystick.client.publish import Publisher, PublisherSettings
from tallystick.client.reader import Finding
from tallystick.client.subscribe import Subscriber, SubscriberSettings
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.errors import Refused, TallystickError, Unavailable, Withheld
from tallystick.identity.folder import Identity
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.entropy import Entropy
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.sim.checker import CheckedReader, Checker
from tallystick.sim.clock import SkewedClock
from tallystick.trust.permit import Operation, UndoOrder

TOPIC = "brakes"
ROWS_PER_PUBLISHER = 1_000_000
HEAD_AGE_MAX_S = 60.0


class LossyAuthority:
    """The way to the authority: a request may be lost before it, or its answer behind it."""

    def __init__(self, inner: AuthorityClient, chooser: random.Random, lost: Callable[[], int]) -> None:
        self._inner, self._chooser, self._lost = inner, chooser, lost

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        grant: Grant = self._ask(self._inner.permit, operation, topic, first_epoch, interest)
        return grant

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        update: Grant | None = self._ask(self._inner.keys, permit, seen, wait_ms)
        return update

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        order: UndoOrder = self._ask(self._inner.undo, permit, undo_token)
        return order

    def _ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        self._maybe_lose()
        answer = request(*arguments)
        self._maybe_lose()
        return answer

    def _maybe_lose(self) -> None:
        if self._chooser.randrange(1000) < self._lost():
            raise Unavailable("the way to the authority is broken")


@dataclass
class Person:
    """A principal: its identity, its machine's clock and disk, and its ways to node and authority."""

    name: str
    identity: Identity
    clock: SkewedClock
    entropy: Entropy
    disk: SeededDisk
    node: RemoteNode
    authority: Any  # an AuthorityClient
    holder: Holder

    def view(self) -> View:
        """A fresh process's view of the ledger; what it accepted before is on its disk."""
        memory = CheckpointMemory(self.identity.trust, self.memory_disk)
        return View(self.node, memory, self.clock, HEAD_AGE_MAX_S)

    @property
    def memory_disk(self) -> SeededDisk:
        found: SeededDisk = self.__dict__.setdefault("_memory", SeededDisk(0))
        return found

    @property
    def author(self) -> Author:
        return Author(self.identity, self.node, self.clock)

    def ties(self, author: Author | None = None) -> ProcessTies:
        """What ties a fresh process to the world."""
        ways = (self.node, self.node, self.authority, self.view())
        return ProcessTies(self.identity, *ways, self.clock, self.entropy, author=author)


@dataclass
class ProcessTies(ReaderTies):
    """A process of a person."""

    identity: Identity
    node: RemoteNode
    carrier: RemoteNode
    authority: Any
    view: View
    clock: SkewedClock
    entropy: Entropy
    grants: None = None
    author: Author | None = None


class PublisherActor:
    """One publisher process after the other, on one disk."""

    def __init__(self, person: Person, number: int, settings: PublisherSettings, checker: Checker) -> None:
        self.person, self.settings, self._checker = person, settings, checker
        self.publisher: Publisher | None = None
        self._next = number * ROWS_PER_PUBLISHER
        self.refused: str | None = None  # why the world no longer lets it publish

    def start(self) -> None:
        """Begin a life; the world may not let it yet."""
        person = self.person
        try:
            with_disk = self._alive(
                lambda: Publisher(person.ties(), TOPIC, person.disk, self.settings, background=False)
            )
        except Unavailable:
            return
        except Refused as error:
            self.refused = error.reason
            return
        self.publisher = with_disk

    def produce(self, rows: int) -> None:
        if self.publisher is None:
            return
        numbers = list(range(self._next, self._next + rows))
        publisher = self.publisher

        def told(error: TallystickError | None, delivery: object) -> None:
            (self._checker.acknowledge if error is None else self._checker.fail)(numbers)

        try:
            self._alive(lambda: publisher.send([{"row": number, "name": "car"} for number in numbers], told))
        except Unavailable:
            return
        self._next += rows
        self._checker.produce(numbers)

    def pump(self) -> None:
        if self.publisher is None:
            self.start()
            return
        publisher = self.publisher
        self._tolerant(publisher.poll)

    def update_keys(self) -> None:
        if self.publisher is not None:
            self._tolerant(self.publisher.update_keys)

    def crash(self) -> None:
        """Cut the power of its machine."""
        self.person.disk.power_off()
        self._die()

    def stop(self) -> None:
        """An orderly stop without a closing parcel: the next process goes on with the lane."""
        if self.publisher is not None:
            publisher, self.publisher = self.publisher, None
            publisher.stop()

    @property
    def pending(self) -> int:
        return 0 if self.publisher is None else self.publisher._pending

    def _tolerant(self, act: Callable[[], Any]) -> None:
        try:
            self._alive(act)
        except Unavailable:
            return
        except Withheld as error:
            if error.reason != "stale-head":  # the node was down: the ledger's newest word is old for a while
                raise
        except Refused as error:
            if error.reason not in ("no-right", "unknown-topic", "permit-ended", "not-advertised"):
                raise
            self.refused = error.reason

    def _alive(self, act: Callable[[], Any]) -> Any:
        try:
            result = act()
        except Exception:
            if not self.person.disk.is_off:
                raise
            result = None
        if self.person.disk.is_off:
            self._die()
            raise Unavailable("the publisher lost its power")
        return result

    def _die(self) -> None:
        self.publisher = None
        self.person.disk.crash()


class SubscriberActor:
    """One subscriber process after the other, alone (then it has one life) or as a member of a group."""

    def __init__(self, person: Person, checker: Checker, group: str | None = None) -> None:
        self.person, self._checker, self._group = person, checker, group
        self.subscriber: Subscriber | None = None
        self.rows: set[int] = set()
        self._lives = 0
        self.refused: str | None = None

    def start(self) -> None:
        person = self.person
        self._lives += 1
        self.reader = CheckedReader(f"{person.name}, life {self._lives}", once=self._group is None)

        try:
            self.subscriber = Subscriber(
                person.ties(person.author),
                TOPIC,
                SubscriberSettings(on_bad="report", wait_ms=0, threads=0),
                group=self._group,
                on_finding=self._find,
            )
        except Unavailable:
            return
        except Refused as error:
            self.refused = error.reason

    def _find(self, finding: Finding) -> None:
        self._checker.find(self.reader.name, finding)

    def poll(self) -> int:
        """One round; how many batches came."""
        if self.refused is not None:
            return 0  # whoever keeps asking without a right is blacklisted, and deservedly
        if self.subscriber is None:
            self.start()
            return 0
        try:
            received = self.subscriber.poll(0)
        except Unavailable:
            return 0
        except Withheld as error:
            if error.reason != "stale-head":
                raise
            return 0
        except Refused as error:
            if error.reason not in ("no-right", "unknown-topic", "permit-ended", "not-subscribed"):
                raise
            self.refused = error.reason
            return 0
        for one in received:
            self._checker.deliver(self.reader, one)
        self.rows.update(self.reader.rows)
        return len(received)

    def commit(self) -> None:
        if self.subscriber is None or self._group is None:
            return
        try:
            self.subscriber.commit()
        except Unavailable:
            return
        except Withheld as error:
            if error.reason != "stale-head":
                raise
        except Refused as error:
            if error.reason not in ("fenced", "not-holder", "offset-moved"):
                raise
            self.restart()  # another member has the partition now: begin again where the group stands

    def restart(self) -> None:
        if self._group is not None:
            self.subscriber = None
