"""Delivered ÷ published with a third of the relays failing during load, in real processes.

Five virtual nodes of three relays, each relay a process of its own on loopback with TLS; publisher and subscriber share
another. After a third of the load one relay of each virtual node fails, at an index that differs from hop to hop:

    killed      SIGKILL, and it does not come back
    stalled     SIGSTOP: its connections stay open, and nothing is read or answered
    corrupting  it sends false shares under its own signature, altered bodies, and frames with a flipped bit

The way of failing goes around from virtual node to virtual node, and from round to round. A parcel counts as delivered
if the subscriber opened its records: its body came through the relays, the joint promise and the publisher's signature
verify, and the lane key comes from a secret that came through in time. There is a new lane key every few parcels, so
most of them pass the failing relays. Relays are whole ones (`OverlayRelay`): both ends claim their places, and the
publisher's edge orders.

Left out, since the ledger has no part here: the lease stays with a relay that does not fail, and nothing is anchored.
Relays of the subscriber's edge send it every parcel, where it would fetch them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "overlay"))  # the tests' worlds

import harness
import uvloop
from carrying_world import alter
from makers import INSTANCE, SCHEMA
from makers import World as Publishing
from makers import rows as records
from overlay_parties import addresses, chain, link_of
from overlays import Claimant, advertiser, subscriber
from relay_world import HERE, TOKEN, HonestRelay, SimLedger
from relay_world import Reader as ShareReader
from sharing_world import Around, Liar, false_shares, garbage

from tallystick.carriers.overlay.carried import ContentMessage
from tallystick.carriers.overlay.content_forwarding import CarriedParcel
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease
from tallystick.carriers.overlay.share_ends import OpenedShares, give_shares
from tallystick.errors import Refused
from tallystick.parcel.keys import KnownKeys, LaneKey
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.verify import verify_one
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, WakeAt
from tallystick.runtime.role_store import SqliteRoleStore
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise

NODES, COUNT = 5, 3
WAYS = ("killed", "corrupting", "stalled")
CLAIM_S = 1.0  # between two times that both ends tell where they are, until all are connected
RECORDS = 64
LOST_S = 3.0  # after which what has not come will not


@dataclass(frozen=True)
class Load:
    rounds: int = 3
    parcels: int = 200
    pause_s: float = 0.1  # between two parcels
    key_parcels: int = 10  # to a lane key: the paper's 1 to 10
    wait_s: float = 60.0  # at most, after the last parcel


QUICK = Load(rounds=1, parcels=30, pause_s=0.03, key_parcels=5)


# ── Relays ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ends(plan: Plan) -> tuple[Claimant, Claimant]:
    """Publisher and subscriber."""
    return advertiser("car", plan.nodes[0].identifier), subscriber("reader", plan.nodes[-1].identifier)


class LoadedRelay(HonestRelay):
    """A whole relay, which may be told to lie; what is published comes to it over a link of the publisher's."""

    def __init__(self, name: bytes, plan: Plan, holder: bytes, started: float) -> None:
        publisher, reader = ends(plan)
        keys = {one.permit.principal: one.key.public for one in (publisher, reader)}
        self._publisher, self._reader = publisher.permit.principal.hex(), reader.permit.principal.hex()
        self._ledger = SimLedger([(0, plan)], Lease(holder, 1), keys)
        super().__init__(name, self._ledger, int.from_bytes(os.urandom(8)), {}, started)
        node, _ = plan.place(name) or (plan.nodes[0], 0)
        self._liar, self._random = Liar(name, Around({plan.version: plan}, node.identifier), 0, []), Random(name)
        self._corrupts = False

    def corrupt(self) -> None:
        """From now on."""
        self._corrupts = True

    def receive(self, event: Event, now: float) -> list[Effect]:
        found: list[Effect] = []
        for effect in self._hear(event, now):
            if isinstance(effect, Deliver):  # parcels; evidence and suspicions are for whoever judges
                found += self._hand_over(effect.value) if isinstance(effect.value, CarriedParcel) else []
            else:
                found.append(effect)
        return [one for effect in found for one in self._corrupted(effect, now)] if self._corrupts else found

    def _hear(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Arrived) and event.sender == self._publisher:
            with suppress(Refused):
                frame = OverlayFrame.decode(event.message)
                if frame.kind is FrameKind.CONTENT:
                    parcel = Parcel.decode(frame.content)
                    return self.judged(self.relay.propose(HERE, parcel, now), now)
        return super().receive(event, now)

    def _hand_over(self, carried: CarriedParcel) -> list[Effect]:
        return [Send(self._reader, parcel_frame(carried.promise, carried.parcel))]

    def _corrupted(self, effect: Effect, now: float) -> list[Effect]:
        if not isinstance(effect, Send):
            return [effect]
        is_shares = OverlayFrame.decode(effect.message).kind is FrameKind.SHARES
        if self._random.random() < 0.3:
            return garbage(self._liar, effect, now)
        return false_shares(self._liar, effect, now) if is_shares else alter(self._liar, effect, now)  # type: ignore[arg-type]


def parcel_frame(promise: JointPromise, parcel: Parcel) -> bytes:
    return ContentMessage(promise.encode(), parcel.encode_front(), None, bytes(parcel.body)).frame(promise.plan)


def read_parcel(frame: OverlayFrame) -> tuple[JointPromise, Parcel]:
    """Raises `Malformed`."""
    message = ContentMessage.decode(frame)
    front = Parcel.decode_front(message.front)
    return JointPromise.decode(message.promise), replace(front, body=message.body or b"")


# ── Both ends ────────────────────────────────────────────────────────────────────────────────────────────────────────


def claims(who: Claimant, plan: Plan, now: float) -> list[Effect]:
    """It tells every relay of its edge where it is."""
    frame = OverlayFrame(FrameKind.ROUTE, plan.version, who.claim(now)).encode()
    return [Send(relay.identifier.hex(), frame) for relay in plan.node(who.edge).relays]


class Source:
    """Publishes at a steady pace once all are connected, which the first lane key and then the first parcel show; a new
    lane key every few parcels. Says which parcel it publishes."""

    def __init__(self, plan: Plan, load: Load, on_parcel: Callable[[int], None], opened: Callable[[], int]) -> None:
        """`opened` says how many lane keys and parcels the subscriber has opened."""
        self._plan, self._load, self._on_parcel, self._opened = plan, load, on_parcel, opened
        self._lane, self._sent, self._next = Publishing().lane(), 0, 0.0
        self._me, self._has_key = ends(plan)[0], False

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived) or now < self._next or self._sent == self._load.parcels:
            return []
        self._next = now + (CLAIM_S if self._sent < 2 else self._load.pause_s)
        if self._opened() <= self._sent < 2:
            return [
                WakeAt(self._next),
                *claims(self._me, self._plan, now),
                *([] if self._has_key else self._new_key(now)),
            ]
        effects = self._new_key(now) if self._sent and self._sent % self._load.key_parcels == 0 else []
        batch, entropy = records(RECORDS * self._sent, RECORDS), os.urandom(32)
        parcel = self._lane.seal(batch, now_ms=int(now * 1000), entropy=entropy)
        frame = OverlayFrame(FrameKind.CONTENT, self._plan.version, parcel.encode()).encode()
        effects += [Send(relay.identifier.hex(), frame) for relay in self._plan.nodes[0].relays]
        self._on_parcel(self._sent)
        self._sent += 1
        return [*effects, WakeAt(self._next)]

    def _new_key(self, now: float) -> list[Effect]:
        self._has_key, lock = True, os.urandom(32)
        fixed = self._plan, self._me.edge, self._me.permit.principal, lock, int(now * 1000)
        given = give_shares(*fixed, (TOKEN,), os.urandom(32), self._me.key)
        lane = self._lane
        lane.refresh(lane.topics, [lane_key(given.secret, lock, lane.lane, [one.permit for one in lane.topics])])
        return given.effects


def lane_key(secret: bytes, lock: bytes, lane: bytes, permits: Sequence[bytes]) -> LaneKey:
    return LaneKey.of([secret], [lock], instance=INSTANCE, lane=lane, group=0, permits=permits)


class Opened(NamedTuple):
    offset: int
    records: int


class Reader:
    """Opens parcels when their bodies and their keys are here, each once."""

    def __init__(self, plan: Plan) -> None:
        self._plan, world = plan, Publishing()
        world.lane()  # whose permit the book then has
        self._book = world.book()
        publisher, self._me = ends(plan)
        keys = {publisher.permit.principal: publisher.key.public}
        self._shares, self._next = ShareReader(self._me, {plan.version: plan}, keys), 0.0
        self.secrets: dict[bytes, bytes] = {}  # by lock
        self._waiting: dict[bytes, list[tuple[int, VerifiedParcel]]] = {}  # by lock
        self.seen: set[int] = set()  # offsets of the bodies that are here

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        with suppress(Refused):
            if isinstance(event, Arrived) and OverlayFrame.decode(event.message).kind is FrameKind.CONTENT:
                return self._take(*read_parcel(OverlayFrame.decode(event.message)))
            effects: list[Effect] = []
            if now >= self._next and not self.seen:
                self._next = now + CLAIM_S
                effects += [WakeAt(self._next), *claims(self._me, self._plan, now)]
            for effect in self._shares.receive(event, now):
                if isinstance(effect, Deliver) and isinstance(effect.value, OpenedShares):
                    self.secrets[effect.value.lock] = effect.value.secret
                    waiting = self._waiting.pop(effect.value.lock, [])
                    effects += [Deliver(self._open(*one)) for one in waiting]
                else:
                    effects.append(effect)
            return effects
        return []

    def _take(self, promise: JointPromise, parcel: Parcel) -> list[Effect]:
        """Verify all of it before it counts as seen: another relay's copy may be the true one."""
        promise.verify(self._plan)
        if promise.offset in self.seen or parcel.hash != promise.parcel:
            return []
        verified = verify_one(parcel, INSTANCE, self._book)
        self.seen.add(promise.offset)
        [lock] = parcel.header.groups[0].locks
        if lock in self.secrets:
            return [Deliver(self._open(promise.offset, verified))]
        self._waiting.setdefault(lock, []).append((promise.offset, verified))
        return []

    def _open(self, offset: int, verified: VerifiedParcel) -> Opened:
        header = verified.header
        [lock] = header.groups[0].locks
        key = lane_key(self.secrets[lock], lock, header.lane, [topic.permit for topic in header.topics])
        return Opened(offset, open_batch(verified, KnownKeys([(0, key)]), SCHEMA).rows)


# ── Processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _relay_process(name: bytes, plan: Plan, holder: bytes, folder: str, pipe: Connection) -> None:
    """Tell the port, hear of the others, and forward until killed."""

    async def serve() -> None:
        # A relay takes no part in lane keys from before it was started; these begin once all are up.
        role = LoadedRelay(name, plan, holder, started=0.0)
        links = link_of(name, role, lambda value: None, SqliteRoleStore(f"{folder}/{name.hex()}.sqlite"))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, role.corrupt)
        pipe.send(links.port)
        links.set_peers(addresses(pipe.recv()))
        pipe.send(True)
        await links.run()

    with suppress(EOFError, KeyboardInterrupt):
        uvloop.run(serve())


class Relays:
    """A process for each; killed when the block is left, whatever state they are in."""

    def __init__(self, plan: Plan, holder: bytes, stack: ExitStack) -> None:
        # Forked, so that fifteen processes do not load the same libraries on two cores.
        forking = multiprocessing.get_context("fork")
        self._processes, self._pipes, self.ports = {}, {}, {}
        folder = stack.enter_context(TemporaryDirectory())
        for node in plan.nodes:
            for relay in node.relays:
                ours, theirs = forking.Pipe()
                given = relay.identifier, plan, holder, folder, theirs
                process = forking.Process(target=_relay_process, args=given, daemon=True)
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
                self._processes[relay.identifier], self._pipes[relay.identifier] = process, ours
        self.ports = {name: pipe.recv() for name, pipe in self._pipes.items()}

    def introduce(self, ports: dict[bytes, int]) -> None:
        for pipe in self._pipes.values():
            pipe.send(ports)
        for pipe in self._pipes.values():
            pipe.recv()

    def alive(self) -> int:
        return sum(process.is_alive() for process in self._processes.values())

    def fail(self, name: bytes, way: str) -> None:
        signals = {"killed": signal.SIGKILL, "stalled": signal.SIGSTOP, "corrupting": signal.SIGUSR1}
        os.kill(self._processes[name].pid, signals[way])


@dataclass
class Survived:
    published: int
    delivered: int
    bodies: int  # that came, opened or not
    keys: int  # lane keys that the subscriber has
    waits_s: list[float]  # from publishing to opening, of each parcel that was opened but the first


def survive(load: Load, turn: int, bad: int = 1) -> Survived:
    """One round, with so many bad relays in each virtual node."""
    plan, failing = chain((COUNT,) * NODES), dict[bytes, str]()
    for at, node in enumerate(plan.nodes):
        for more in range(bad):
            failing[node.relays[(2 * at + turn + more) % COUNT].identifier] = WAYS[(at + turn + more) % len(WAYS)]
    with ExitStack() as stack:
        holder = next(relay.identifier for relay in plan.nodes[0].relays if relay.identifier not in failing)
        relays = Relays(plan, holder, stack)
        return uvloop.run(_load(plan, relays, load, failing))


async def _load(plan: Plan, relays: Relays, load: Load, failing: dict[bytes, str]) -> Survived:
    gave: dict[int, float] = {}
    opened: dict[int, float] = {}

    def on_parcel(number: int) -> None:
        gave[number] = time.monotonic()
        if number == load.parcels // 3:
            for name, way in failing.items():
                relays.fail(name, way)

    def on_opened(value: Opened) -> None:
        if value.offset in opened or value.records != RECORDS:
            raise SystemExit(f"error: parcel {value.offset} was opened twice, or has other records than were published")
        opened[value.offset] = time.monotonic()

    ending, (publisher, subscribing) = Reader(plan), [one.permit.principal for one in ends(plan)]
    begun = lambda: bool(ending.secrets) + bool(opened)  # noqa: E731
    source = link_of(publisher, Source(plan, load, on_parcel, begun), lambda value: None)
    reader = link_of(subscribing, ending, on_opened)
    ports = {**relays.ports, publisher: source.port, subscribing: reader.port}
    relays.introduce(ports)
    for links in (source, reader):
        links.set_peers(addresses(ports))
    tasks = [asyncio.create_task(links.run()) for links in (reader, source)]
    try:
        while len(gave) < load.parcels and not any(task.done() for task in tasks):
            if relays.alive() < NODES * COUNT - len(failing):
                raise SystemExit("error: a relay ended that should not, see above")
            await asyncio.sleep(0.05)
        with suppress(TimeoutError):
            async with asyncio.timeout(load.wait_s):
                while len(opened) < load.parcels and not any(task.done() for task in tasks):
                    await asyncio.sleep(0.05)
    finally:
        for links in (source, reader):
            links.stop()
        await asyncio.gather(*tasks)
    killed = list(failing.values()).count("killed")
    if relays.alive() != NODES * COUNT - killed:
        raise SystemExit(f"error: {relays.alive()} relays are alive, expected all but {killed}")
    came = len(ending.seen), len(ending.secrets)
    return Survived(len(gave), len(opened), *came, [opened[number] - gave[number] for number in opened if number])


def rows(load: Load, bad: int = 1) -> Iterator[harness.Row]:
    """With more than one bad relay in each virtual node parcels are expected to be lost, and nobody waits for them."""
    if bad > 1:
        load = replace(load, wait_s=LOST_S)
    runs = [survive(load, turn, bad) for turn in range(load.rounds)]
    delivered, published = (sum(getattr(one, kind) for one in runs) for kind in ("delivered", "published"))
    ratio, target = delivered / published, 1.0 if bad == 1 else None
    name, met = ("survive", ratio >= 1.0) if bad == 1 else (f"survive_{bad}_bad", None)
    row = asdict(harness.Result(name, delivered, published, "parcels", ratio, target, load.rounds, met))
    waits = [wait for one in runs for wait in one.waits_s]
    came = {kind: sum(getattr(one, kind) for one in runs) for kind in ("bodies", "keys")}
    yield {**row, **came, "wait_median_s": statistics.median(waits), "wait_longest_s": max(waits)}
