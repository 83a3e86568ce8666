"""Delivered ÷ published with a third of the relays failing during load, in real processes.

Five virtual nodes of three relays, each relay a process of its own on loopback with TLS; publisher and subscriber share
another. After a third of the load one relay of each virtual node fails, at an index that differs from hop to hop:

    killed      SIGKILL, and it does not come back
    stalled     SIGSTOP: its connections stay open, and nothing is read or answered
    corrupting  it sends false shares under its own signature, altered bodies, and frames with a flipped bit

The way of failing goes around from virtual node to virtual node, and from round to round. A parcel counts as delivered
if the subscriber opened its records: its body came through `ContentForwarding`, the joint promise and the publisher's
signature verify, and the lane key comes from a secret that came through `SecretForwarding` in time. There is a new
lane key every few parcels, so most of them pass the failing relays.

Left out, since routes are fixed and the ledger has no part here: the publisher's process signs the joint promises with
the keys of two relays of the edge, where `Ordering` would; and relays of the subscriber's edge send it every parcel.
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
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "overlay"))  # the tests' worlds

import harness
import uvloop
from carrying_world import Routes, alter, promised
from makers import INSTANCE, SCHEMA
from makers import World as Publishing
from makers import rows as records
from overlay_parties import PUBLISHER, SUBSCRIBER, TOKEN, addresses, chain, key_of, link_of
from sharing_world import Around, Client, Liar, false_shares, garbage

from tallystick.carriers.overlay.carried import ContentMessage
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, ContentForwarding, ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.secret_forwarding import SecretForwarding
from tallystick.carriers.overlay.share_ends import OpenedShares, give_shares
from tallystick.errors import Refused
from tallystick.parcel.keys import KnownKeys, LaneKey
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.verify import verify_one
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, WakeAt
from tallystick.trust.plan import Plan
from tallystick.trust.promise import JointPromise

NODES, COUNT = 5, 3
WAYS = ("killed", "corrupting", "stalled")
SHARES, CONTENT = ForwardingLimits(), ContentLimits()
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


class ForwardingRelay:
    """Shares and content of one relay, with fixed routes along the chain."""

    def __init__(self, name: bytes, plan: Plan, started: float) -> None:
        self._plan = plan
        node, self._index = plan.place(name) or (plan.nodes[0], 0)
        self._is_first = node is plan.nodes[0]
        subscribers = (SUBSCRIBER,) if node is plan.nodes[-1] else ()
        around = Around({plan.version: plan}, node.identifier, subscribers)
        self._secrets = SecretForwarding(name, key_of(name), around, os.urandom, started, SHARES)
        routes = Routes({plan.version: plan}, node.identifier, subscribers)
        self._content = ContentForwarding(name, INSTANCE, routes, CONTENT)
        self._liar, self._random = Liar(name, around, 0, []), Random(name)
        self._corrupts = False

    def corrupt(self) -> None:
        """From now on."""
        self._corrupts = True

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects = self._hear(event, now) if isinstance(event, Arrived) else self._wake(now)
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Deliver):  # parcels; evidence and suspicions are for whoever judges
                found += self._hand_over(effect.value) if isinstance(effect.value, CarriedParcel) else []
            else:
                found.append(effect)
        return [one for effect in found for one in self._corrupted(effect, now)] if self._corrupts else found

    def _wake(self, now: float) -> list[Effect]:
        return self._secrets.wake(now) + self._content.wake(now)

    def _hear(self, event: Arrived, now: float) -> list[Effect]:
        sender = bytes.fromhex(event.sender)
        with suppress(Refused):
            frame = OverlayFrame.decode(event.message)
            if frame.kind is FrameKind.SHARES:
                return self._secrets.take(frame, sender, now)
            if self._is_first and sender == PUBLISHER:
                return self._content.offer(*read_parcel(frame), now)
            return self._content.take(frame, sender, now)
        return []

    def _hand_over(self, carried: CarriedParcel) -> list[Effect]:
        return [Send(SUBSCRIBER.hex(), parcel_frame(carried.promise, carried.parcel))]

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


class Source:
    """Publishes at a steady pace once its first parcel was opened, so that all are connected; a new lane key every few
    parcels. Says which parcel it publishes."""

    def __init__(self, plan: Plan, load: Load, on_parcel: Callable[[int], None], is_ready: Callable[[], bool]) -> None:
        self._plan, self._load, self._on_parcel, self._is_ready = plan, load, on_parcel, is_ready
        self._lane, self._sent, self._next = Publishing().lane(), 0, 0.0

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived) or now < self._next or self._sent == self._load.parcels:
            return []
        if self._sent == 1 and not self._is_ready():
            return [WakeAt(now + self._load.pause_s)]
        effects = self._new_key(now) if self._sent % self._load.key_parcels == 0 else []
        batch, entropy = records(RECORDS * self._sent, RECORDS), os.urandom(32)
        parcel = self._lane.seal(batch, now_ms=int(now * 1000), entropy=entropy)
        frame = parcel_frame(promised(self._plan, parcel, self._sent), parcel)
        effects += [Send(relay.identifier.hex(), frame) for relay in self._plan.nodes[0].relays]
        self._on_parcel(self._sent)
        self._sent, self._next = self._sent + 1, now + self._load.pause_s
        return [*effects, WakeAt(self._next)]

    def _new_key(self, now: float) -> list[Effect]:
        lock = os.urandom(32)
        fixed = self._plan, self._plan.nodes[0].identifier, PUBLISHER, lock, int(now * 1000)
        given = give_shares(*fixed, (TOKEN,), os.urandom(32), key_of(PUBLISHER))
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
        self._shares = Client(SUBSCRIBER, {plan.version: plan}, plan.nodes[-1].identifier, SHARES)
        self.secrets: dict[bytes, bytes] = {}  # by lock
        self._waiting: dict[bytes, list[tuple[int, VerifiedParcel]]] = {}  # by lock
        self.seen: set[int] = set()  # offsets of the bodies that are here

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        with suppress(Refused):
            if isinstance(event, Arrived) and OverlayFrame.decode(event.message).kind is FrameKind.CONTENT:
                return self._take(*read_parcel(OverlayFrame.decode(event.message)))
            effects: list[Effect] = []
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


def _relay_process(name: bytes, plan: Plan, pipe: Connection) -> None:
    """Tell the port, hear of the others, and forward until killed."""

    async def serve() -> None:
        # A relay takes no part in lane keys from before it was started; these begin once all are up.
        role = ForwardingRelay(name, plan, started=0.0)
        links = link_of(name, role, lambda value: None)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, role.corrupt)
        pipe.send(links.port)
        links.set_peers(addresses(pipe.recv()))
        pipe.send(True)
        await links.run()

    with suppress(EOFError, KeyboardInterrupt):
        uvloop.run(serve())


class Relays:
    """A process for each; killed when the block is left, whatever state they are in."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        # Forked, so that fifteen processes do not load the same libraries on two cores.
        forking = multiprocessing.get_context("fork")
        self._processes, self._pipes, self.ports = {}, {}, {}
        for node in plan.nodes:
            for relay in node.relays:
                ours, theirs = forking.Pipe()
                process = forking.Process(target=_relay_process, args=(relay.identifier, plan, theirs), daemon=True)
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
        relays = Relays(plan, stack)
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

    source = link_of(PUBLISHER, Source(plan, load, on_parcel, lambda: bool(opened)), lambda value: None)
    ending = Reader(plan)
    reader = link_of(SUBSCRIBER, ending, on_opened)
    ports = {**relays.ports, PUBLISHER: source.port, SUBSCRIBER: reader.port}
    relays.introduce(ports)
    for links in (source, reader):
        links.set_peers(addresses(ports))
    tasks = [asyncio.create_task(links.run()) for links in (reader, source)]
    try:
        while len(gave) < load.parcels and not any(task.done() for task in tasks):
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
