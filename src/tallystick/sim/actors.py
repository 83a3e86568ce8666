"""Publishers and subscribers as a simulation drives them: the real clients, with lives that end and begin again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tallystick.authority.client import AuthorityClient, Holder
from tallystick.authority.grant import Grant
from tallystick.carriers.remote import RemoteNode
from tallystick.client.publish import Publisher, PublisherSettings
from tallystick.client.reader import Finding
from tallystick.client.subscribe import Received, Subscriber, SubscriberSettings
from tallystick.client.ties import Author, ReaderTies, View
from tallystick.errors import Refused, TallystickError, Unavailable, Withheld
from tallystick.identity.folder import Identity
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import Entropy
from tallystick.sim.checker import CheckedReader, Checker
from tallystick.sim.machine import SkewedClock, powered
from tallystick.trust.permit import Operation, UndoOrder

TOPIC = "brakes"
ROWS_PER_PUBLISHER = 1_000_000
HEAD_AGE_MAX_S = 60.0
NO_LONGER = ("no-right", "unknown-topic", "permit-ended")  # what whoever lost a right is told

T = TypeVar("T")


class LossyAuthority:
    """The way to the authority: a request may be lost before it, or its answer behind it."""

    def __init__(self, inner: AuthorityClient, chooser: random.Random, lost: Callable[[], int]) -> None:
        self._inner, self._chooser, self._lost = inner, chooser, lost

    def permit(self, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = "") -> Grant:
        return self._ask(lambda: self._inner.permit(operation, topic, first_epoch, interest))

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None:
        return self._ask(lambda: self._inner.keys(permit, seen, wait_ms))

    def undo(self, permit: bytes, undo_token: bytes) -> UndoOrder:
        return self._ask(lambda: self._inner.undo(permit, undo_token))

    def _ask(self, request: Callable[[], T]) -> T:
        self._maybe_lose()
        answer = request()
        self._maybe_lose()
        return answer

    def _maybe_lose(self) -> None:
        if self._chooser.randrange(1000) < self._lost():
            raise Unavailable("the way to the authority is broken")


@contextmanager
def tolerated(*reasons: str, then: Callable[[str], None] = lambda reason: None) -> Iterator[None]:
    """Bear what an honest client must bear: an outage, a ledger whose newest word is old because the node was down,
    and a refusal for one of `reasons`, which `then` is told."""
    try:
        yield
    except Unavailable:
        pass
    except Withheld as error:
        if error.reason != "stale-head":
            raise
    except Refused as error:
        if error.reason not in reasons:
            raise
        then(error.reason)


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
    memory: SeededDisk = field(default_factory=lambda: SeededDisk(0))  # what it accepted of the ledger

    def view(self) -> View:
        """A fresh process's view of the ledger; what it accepted before is on its disk."""
        return View(self.node, CheckpointMemory(self.identity.trust, self.memory), self.clock, HEAD_AGE_MAX_S)

    @property
    def author(self) -> Author:
        return Author(self.identity, self.node, self.clock)


class ProcessTies(ReaderTies):
    """What ties a fresh process of a person to the world."""

    grants: None = None
    author: Author | None = None

    def __init__(self, person: Person, author: Author | None = None) -> None:
        self.identity, self.authority, self.view = person.identity, person.authority, person.view()
        self.node = self.carrier = person.node
        self.clock, self.entropy, self.author = person.clock, person.entropy, author


class _Actor:
    """A person whose processes come and go; `refused` says why the world no longer lets it in."""

    def __init__(self, person: Person, checker: Checker) -> None:
        self.person, self._checker = person, checker
        self.refused: str | None = None

    def _refuse(self, reason: str) -> None:
        self.refused = reason

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Begin a life; the world may not let it yet, or never."""
        try:
            yield
        except Unavailable:
            pass
        except Refused as error:
            self._refuse(error.reason)


class PublisherActor(_Actor):
    """One publisher process after the other, on one disk."""

    def __init__(self, person: Person, number: int, settings: PublisherSettings, checker: Checker) -> None:
        super().__init__(person, checker)
        self.settings = settings
        self.publisher: Publisher | None = None
        self._next = number * ROWS_PER_PUBLISHER

    def start(self) -> None:
        person = self.person
        with self._starting(), self._powered():
            self.publisher = Publisher(ProcessTies(person), TOPIC, person.disk, self.settings, background=False)

    def produce(self, rows: int) -> None:
        if self.publisher is None:
            return
        numbers = list(range(self._next, self._next + rows))

        def told(error: TallystickError | None, delivery: object) -> None:
            if error is None:
                self._checker.acknowledged.update(numbers)

        try:
            with self._powered():
                self.publisher.send([{"row": number, "name": "car"} for number in numbers], told)
        except Unavailable:
            return
        self._next += rows
        self._checker.produced.update(numbers)

    def pump(self) -> None:
        if self.publisher is None:
            self.start()
        else:
            self._work(self.publisher.poll)

    def update_keys(self) -> None:
        if self.publisher is not None:
            self._work(self.publisher.update_keys)

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

    def _work(self, act: Callable[[], object]) -> None:
        with tolerated(*NO_LONGER, "not-advertised", then=self._refuse), self._powered():
            act()

    def _powered(self) -> AbstractContextManager[None]:
        return powered(self.person.disk, self._die, "publisher")

    def _die(self) -> None:
        self.publisher = None
        self.person.disk.crash()


class SubscriberActor(_Actor):
    """One subscriber process after the other, alone (then it has one life) or as a member of a group."""

    def __init__(self, person: Person, checker: Checker, group: str | None = None) -> None:
        super().__init__(person, checker)
        self._group = group
        self.subscriber: Subscriber | None = None
        self.rows: set[int] = set()
        self._lives = 0

    def start(self) -> None:
        person = self.person
        self._lives += 1
        self.reader = CheckedReader(f"{person.name}, life {self._lives}", once=self._group is None)

        with self._starting():
            self.subscriber = Subscriber(
                ProcessTies(person, person.author),
                TOPIC,
                SubscriberSettings(on_bad="report", wait_ms=0, threads=0),
                group=self._group,
                on_finding=self._find,
            )

    def _find(self, finding: Finding) -> None:
        self._checker.find(self.reader.name, finding)

    def poll(self) -> int:
        """One round. Returns how many batches came."""
        if self.refused is not None:
            return 0  # whoever keeps asking without a right is blacklisted, and deservedly
        if self.subscriber is None:
            self.start()
            return 0
        received: Sequence[Received] = ()
        with tolerated(*NO_LONGER, "not-subscribed", then=self._refuse):
            received = self.subscriber.poll(0)
        for one in received:
            self._checker.deliver(self.reader, one)
        self.rows.update(self.reader.rows)
        return len(received)

    def commit(self) -> None:
        if self.subscriber is None or self._group is None:
            return
        # Where another member has the partition now, begin again where the group stands.
        with tolerated("fenced", "not-holder", "offset-moved", then=lambda reason: self.restart()):
            self.subscriber.commit()

    def restart(self) -> None:
        if self._group is not None:
            self.subscriber = None
