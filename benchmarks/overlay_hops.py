"""Lane keys through three virtual nodes of three relays on real TCP links with TLS, in three ways.

    plain           relays that pass on what they get, each to the relay of the same index behind it
    iterative       the paper's Algorithm 2 in GF(256): every share is split again, (2, 3), at every hop. Nothing is
                    signed or verified, so a wrong share would give a wrong secret and name nobody
    redistribution  the carrier's own `SecretForwarding`, with everything signed and verified; nobody lies, so it is the
                    fast path

All parties (publisher, nine relays, subscriber) are `Links` on one event loop of one process, in all three ways. So the
rate is that of one core that does everybody's work, by the process's own processor time, and neighbours do not enter
it. The publisher keeps a window of lane keys under way, and the subscriber tells it of each that it opened. Latency is
by the clock on the wall, with one lane key under way; a third of it is a hop's, since there are three virtual nodes on
the way. The first lane keys of a run, which open the connections, do not count.

The peer of a way is `plain` with messages of such a length that the same bytes go over the links: those of all frames,
as the links count them, without TLS and framing. It sends fewer and longer frames.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import harness
import uvloop
from overlay_parties import PUBLISHER, SUBSCRIBER, TOKEN, addresses, chain, key_of, link_of
from sharing_world import Around, Client, Honest

from tallystick import wire
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.share_ends import OpenedShares, give_shares
from tallystick.crypto.shamir import combine, split
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, Woken
from tallystick.runtime.links import Links
from tallystick.wire import Fields

HOPS, NEED, COUNT = 3, 2, 3
PLAN = chain((COUNT,) * HOPS)
STAGES = HOPS + 1  # publisher to the first virtual node, and the last one to the subscriber
WARM = 3
WAIT_S = 120.0
# Nobody fails: waits do not matter, and a run has more lane keys than a publisher in an hour.
LIMITS = ForwardingLimits(hop_wait_s=60.0, publisher_keys_max=1 << 16)

Give = Callable[[int, float], tuple[bytes, list[Effect]]]  # a lane key's secret, and what the publisher sends for it


class Publisher:
    """Gives lane keys out, so many at a time."""

    def __init__(self, give: Give, count: int, window: int) -> None:
        self._give, self._count, self._window = give, count, window
        self.secrets: list[bytes] = []
        self.gave: list[float] = []

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken) and self.secrets:
            return []
        effects: list[Effect] = []
        for _ in range(self._window if isinstance(event, Woken) else 1):
            if len(self.secrets) < self._count:
                self.gave.append(time.perf_counter())
                secret, sends = self._give(len(self.secrets), now)
                self.secrets.append(secret)
                effects += sends
        return effects


class Subscriber:
    """Tells the publisher of what it opened."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects = list(self._role.receive(event, now))
        return effects + [Send(PUBLISHER.hex(), b"opened") for one in effects if isinstance(one, Deliver)]


# ── The ways ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Way:
    """Roles of the relays by name, the subscriber's, and what the publisher does."""

    relays: Mapping[bytes, Role]
    subscriber: Role
    give: Give


def relay_names() -> list[tuple[int, int, bytes]]:
    """Virtual node and index, both from 0, and the relay's name."""
    return [(at, index, one.identifier) for at, node in enumerate(PLAN.nodes) for index, one in enumerate(node.relays)]


def behind(at: int) -> list[str]:
    """The relays of the next virtual node, by index."""
    return [relay.identifier.hex() for relay in PLAN.nodes[at + 1].relays] if at + 1 < HOPS else []


class PlainRelay:
    def __init__(self, to: str) -> None:
        self._to = to

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return [Send(self._to, event.message)] if isinstance(event, Arrived) else []


class PlainEnd:
    """A message is there when it came over all ways."""

    def __init__(self) -> None:
        self._came: defaultdict[bytes, int] = defaultdict(int)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return []
        self._came[event.message] += 1
        return [Deliver(event.message)] if self._came[event.message] == COUNT else []


def plain(size: int) -> Way:
    def give(number: int, now: float) -> tuple[bytes, list[Effect]]:
        message = os.urandom(32).ljust(size, b"\0")
        return message, [Send(relay.identifier.hex(), message) for relay in PLAN.nodes[0].relays]

    to = {name: (behind(at) or [SUBSCRIBER.hex()] * COUNT)[index] for at, index, name in relay_names()}
    return Way({name: PlainRelay(one) for name, one in to.items()}, PlainEnd(), give)


def share_frame(number: int, path: Sequence[int], share: bytes) -> bytes:
    return wire.encode([1, number, bytes(path), share])


def read_share(message: bytes) -> tuple[int, tuple[int, ...], bytes]:
    fields = Fields.parse(message, "share", 4)
    fields.version(1)
    return fields.number(), tuple(fields.octets()), fields.octets()


def split_for(number: int, path: tuple[int, ...], share: bytes, names: Sequence[str]) -> list[Effect]:
    """Algorithm 2: a share becomes a secret, (2, 3)."""
    parts = split(share, NEED, COUNT, os.urandom(32))
    return [Send(name, share_frame(number, (*path, x), parts[x])) for x, name in enumerate(names, start=1)]


class SplittingRelay:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return []
        return (
            split_for(*read_share(event.message), self._names)
            if self._names
            else [Send(SUBSCRIBER.hex(), event.message)]
        )


class Joiner:
    """Combines two of three as soon as they are there, up to the secret. What comes later is left."""

    def __init__(self) -> None:
        self._known: dict[int, dict[tuple[int, ...], bytes]] = {}

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return []
        number, path, share = read_share(event.message)
        known = self._known.setdefault(number, {})
        if () in known:
            return []
        known[path] = share
        while path and path[:-1] not in known:
            path = path[:-1]
            parts = {x: known[*path, x] for x in range(1, COUNT + 1) if (*path, x) in known}
            if len(parts) < NEED:
                return []
            known[path] = combine(parts)
        return [Deliver(known[()])] if () in known else []


def iterative() -> Way:
    first = [relay.identifier.hex() for relay in PLAN.nodes[0].relays]

    def give(number: int, now: float) -> tuple[bytes, list[Effect]]:
        secret = os.urandom(32)
        return secret, split_for(number, (), secret, first)

    return Way({name: SplittingRelay(behind(at)) for at, _, name in relay_names()}, Joiner(), give)


def redistribution() -> Way:
    def give(number: int, now: float) -> tuple[bytes, list[Effect]]:
        fixed = PLAN, PLAN.nodes[0].identifier, PUBLISHER, os.urandom(32), int(now * 1000)
        given = give_shares(*fixed, (TOKEN,), os.urandom(32), key_of(PUBLISHER))
        return given.secret, given.effects

    plans, roles = {PLAN.version: PLAN}, {}
    for at, _, name in relay_names():
        subscribers = (SUBSCRIBER,) if at + 1 == HOPS else ()
        roles[name] = Honest(name, Around(plans, PLAN.nodes[at].identifier, subscribers), 0, LIMITS)
    return Way(roles, Client(SUBSCRIBER, plans, PLAN.nodes[-1].identifier, LIMITS), give)


# ── Runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Run:
    """What one run of a way showed; the first lane keys are left out of times."""

    seconds: float = 0.0  # of processor, a lane key
    latency_s: float = 0.0  # the median, on the wall
    bytes: float = 0.0  # over links, a lane key
    frames: float = 0.0


@dataclass
class _Arrivals:
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    secrets: list[bytes] = field(default_factory=list)

    def add(self, value: Any) -> None:
        self.wall.append(time.perf_counter())
        self.processor.append(time.process_time())
        self.secrets.append(value.secret if isinstance(value, OpenedShares) else value)


async def _run(way: Way, count: int, window: int) -> Run:
    count += WARM
    source, arrivals = Publisher(way.give, count, window), _Arrivals()
    roles: dict[bytes, Role] = {**way.relays, PUBLISHER: source, SUBSCRIBER: Subscriber(way.subscriber)}
    all_links: dict[bytes, Links] = {}
    for name, role in roles.items():
        all_links[name] = link_of(name, role, arrivals.add if name == SUBSCRIBER else lambda value: None)
    known = addresses({name: links.port for name, links in all_links.items()})
    for links in all_links.values():
        links.set_peers(known)
    # The publisher begins when it is started, so it is the last: everybody listens by then.
    others = [asyncio.create_task(links.run()) for name, links in all_links.items() if name != PUBLISHER]
    await asyncio.sleep(0)
    others.append(asyncio.create_task(all_links[PUBLISHER].run()))
    try:
        async with asyncio.timeout(WAIT_S):
            while len(arrivals.wall) < count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # what nobody waited for arrives, and its bytes count
    finally:
        for links in all_links.values():
            links.stop()
        statistics_of = [links.statistics() for links in all_links.values()]
        await asyncio.gather(*others)
    if sorted(arrivals.secrets) != sorted(source.secrets):
        raise SystemExit("error: the subscriber opened other secrets than were published")
    peers = [peer for one in statistics_of for peer in one.peers.values()]
    dropped = sum(peer.dropped for peer in peers)
    if dropped:
        raise SystemExit(f"error: links dropped {dropped} messages")
    return Run(
        (arrivals.processor[-1] - arrivals.processor[WARM - 1]) / (count - WARM),
        # With a window of one they open in the order in which they were given.
        statistics.median(end - begin for begin, end in list(zip(source.gave, arrivals.wall, strict=True))[WARM:]),
        (sum(peer.bytes_out for peer in peers) - count * len(b"opened")) / count,
        (sum(peer.messages_out for peer in peers) - count) / count,
    )


def run(way: Way, count: int, window: int) -> Run:
    return uvloop.run(_run(way, count, window))


WAYS: dict[str, Callable[[], Way]] = {"iterative": iterative, "redistribution": redistribution}


@dataclass(frozen=True)
class Sizes:
    rounds: int = 9
    keys: int = 60  # a run
    window: int = 12
    single: int = 15  # lane keys of a run for latency


QUICK = Sizes(rounds=1, keys=4, window=2, single=2)


def rows(sizes: Sizes) -> Iterator[harness.Row]:
    carried = {name: run(make(), sizes.window, sizes.window) for name, make in WAYS.items()}
    lengths = {name: round(one.bytes / STAGES / COUNT) for name, one in carried.items()}
    arms: dict[str, Callable[[], Way]] = dict(WAYS)
    arms |= {f"plain {name}": lambda name=name: plain(lengths[name]) for name in WAYS}
    rates, waits = defaultdict[str, list[Run]](list), defaultdict[str, list[Run]](list)
    for turn in range(sizes.rounds):
        for name in list(arms) if turn % 2 else list(reversed(arms)):
            rates[name].append(run(arms[name](), sizes.keys, sizes.window))
            waits[name].append(run(arms[name](), sizes.single, 1))
    seconds = {name: [one.seconds for one in found] for name, found in rates.items()}
    hop_ms = {name: [1000 * one.latency_s / HOPS for one in found] for name, found in waits.items()}
    unit = "lane keys/s"
    yield _rate("hop_plain", seconds["plain redistribution"], None, unit, rates["plain redistribution"])
    for name in WAYS:
        yield _rate(f"hop_{name}", seconds[name], seconds[f"plain {name}"], unit, rates[name])
    yield asdict(harness.compare("hop_plain_latency", hop_ms["plain redistribution"], None, "ms/hop"))
    for name in WAYS:
        theirs = hop_ms[f"plain {name}"]
        row = asdict(harness.compare(f"hop_{name}_latency", hop_ms[name], theirs, "ms/hop"))
        added = [our - their for our, their in zip(hop_ms[name], theirs, strict=True)]
        yield {**row, "added_ms": statistics.median(added)}


def _rate(
    name: str, ours: Sequence[float], peer: Sequence[float] | None, unit: str, runs: Sequence[Run]
) -> harness.Row:
    """From seconds to lane keys a second."""
    timed = harness.compare(name, ours, peer, unit)
    spread = timed.spread
    if spread is not None and peer is None:
        spread = 1 / spread[1], 1 / spread[0]
    turned = replace(timed, ours=1 / timed.ours, peer=None if timed.peer is None else 1 / timed.peer, spread=spread)
    each = {kind: round(statistics.median(getattr(one, kind) for one in runs)) for kind in ("bytes", "frames")}
    return {**asdict(turned), **each}
