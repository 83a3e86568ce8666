"""A vehicle that fetches an object from servers of every kind, on the seeded network.

Servers answer at a rate, so that "slow" means something on a network without bandwidth. A liar is an honest server
whose answers of one kind are altered on the way out; the world knows every altered message, and the vehicle's role is
watched: what it asks for, hears, stores and delivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from random import Random

from blake3 import blake3
from server_role import ObjectServer

from tallystick.crypto.blocks import blocks_root
from tallystick.crypto.merkle import cut
from tallystick.errors import Malformed
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetch import ObjectFetch
from tallystick.objects.layout import GEAR, TARGET_MIN, ZSTD, Docket, Slip, chunks_file, slips_file, slips_root
from tallystick.objects.outcomes import FENCE, SLIPS, FetchGivenUp, ObjectWhole, ServerNamed, chunk_key
from tallystick.objects.ranges import RangeAnswer, RangeAsk, Seed, seed_file
from tallystick.objects.serving import make_seed
from tallystick.runtime.effects import Arrived, Effect, Event, Send, StoreEffect, WakeAt
from tallystick.runtime.network import Link, Network

CAR = "car"
LIMITS = FetchLimits(
    floor_bytes_s=8 * 1024,
    grace_s=1.0,
    ask_bytes_max=32 * 1024,
    first_bytes=8 * 1024,
    rest_max_s=8.0,
    patience_s=60.0,
)
FAST, SLOW = 4e6, 9e3  # bytes a second: a thousandth of the work, and just above the floor


@dataclass(frozen=True)
class MadeObject:
    docket: Docket
    slips: bytes
    chunks: tuple[bytes, ...]

    @property
    def files(self) -> dict[str, bytes]:
        root = self.docket.root
        return {slips_file(root): self.slips, chunks_file(root): b"".join(self.chunks)}

    def starts(self) -> list[int]:
        return [0, *accumulate(map(len, self.chunks))]


@cache
def made_object(seed: int, count: int) -> MadeObject:
    """Chunks of uneven length; for a fetch it is the same whether anything is inside."""
    random = Random(f"object {seed}")
    chunks, slips = [], b""
    plain = 0
    for _ in range(count):
        length = random.randint(TARGET_MIN // 4, TARGET_MIN * 2)
        sealed = random.randbytes(random.randint(length // 2, length) + 16)
        chunks.append(sealed)
        slips += Slip(blake3(sealed).digest(), len(sealed), length, random.randbytes(32)).encode()
        plain += length
    docket = Docket(GEAR, TARGET_MIN, ZSTD, count, plain, sum(map(len, chunks)), slips_root(slips))
    return MadeObject(docket, slips, tuple(chunks))


# --- servers ---

Alter = Callable[[RangeAsk, bytes, Random], bytes]


def flip(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def lie_about(suffix: str) -> Alter:
    """One flipped bit in what comes from this file."""
    return lambda ask, data, random: flip(data, random) if data and ask.file.endswith(suffix) else data


def false_uncles(ask: RangeAsk, data: bytes, random: Random) -> bytes:
    """A seed of the right form, whose uncles are another tree's."""
    if not ask.file.endswith(".seed") or not data:
        return data
    seed = Seed.decode(data)
    return replace(seed, uncles=tuple(flip(uncle, random) for uncle in seed.uncles)).encode()


def longer(ask: RangeAsk, data: bytes, random: Random) -> bytes:
    return data + b"more" if data else data


def shorter(ask: RangeAsk, data: bytes, random: Random) -> bytes:
    return data[:-1]


def others(ask: RangeAsk, data: bytes, random: Random) -> bytes:
    """Bytes of the right length, of another place."""
    return data[1:] + data[:1] if not ask.file.endswith(".seed") else data


LIES: dict[str, Alter] = {
    "uncles": false_uncles,
    "seed": lie_about(".seed"),
    "slips": lie_about(".slips"),
    "chunks": lie_about(".chunks"),
    "longer": longer,
    "shorter": shorter,
    "others": others,
    "noise": lambda ask, data, random: random.randbytes(max(1, len(data))),
}


def is_advice(said: bytes, seed: bytes) -> bool:
    """Whether a seed was altered only in what nobody can prove, and nobody need believe: fence, names and dealing."""
    try:
        one, other = Seed.decode(said), Seed.decode(seed)
    except Malformed:
        return False
    return (one.root, one.depth, one.uncles) == (other.root, other.depth, other.uncles)


class SimServer:
    """An `ObjectServer` behind a line of so many bytes a second; `alter` is its lie."""

    def __init__(self, world: World, name: str, files: Mapping[str, bytes], rate: float, alter: Alter | None) -> None:
        self._world, self._name, self._rate, self._alter = world, name, rate, alter
        self._role = ObjectServer(files)
        self._random = Random(f"{world.seed} {name}")
        self._line: list[tuple[float, Send]] = []

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for effect in self._role.receive(event, now):
            assert isinstance(effect, Send)
            effect = self._altered(event, effect)
            before = self._line[-1][0] if self._line else now
            self._line.append((max(before, now) + len(effect.message) / self._rate, effect))
            effects.append(WakeAt(self._line[-1][0]))
        due = [sending for time, sending in self._line if time <= now]
        self._line = self._line[len(due) :]
        return [*effects, *due]

    def _altered(self, event: Event, honest: Send) -> Send:
        assert isinstance(event, Arrived)
        answer = RangeAnswer.decode(honest.message)
        if self._alter is None:
            return honest
        ask, data = RangeAsk.decode(event.message), bytes(answer.data or b"")
        said = self._alter(ask, data, self._random)
        if said == data:
            return honest
        message = RangeAnswer(answer.number, said).encode()
        if not (ask.file.endswith(".seed") and is_advice(said, data)):
            self._world.lies.add((self._name, message))
        return Send(honest.to, message)


# --- the vehicle ---


@dataclass
class World:
    """The vehicle, its servers, and what was seen."""

    made: MadeObject
    names: list[str]
    seed: int = 0
    link: Link = field(default_factory=Link)
    limits: FetchLimits = LIMITS
    lies: set[tuple[str, bytes]] = field(default_factory=set)
    heard_lies: Counter[str] = field(default_factory=Counter)
    wasted: Counter[str] = field(default_factory=Counter)  # bytes of lies
    stored: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[float, str, RangeAsk]] = field(default_factory=list)
    asked_again: list[int] = field(default_factory=list)  # chunks that had been stored

    def __post_init__(self) -> None:
        self.network = Network(self.seed, self.link)

    def add_server(
        self,
        name: str,
        rate: float = FAST,
        lie: str | Alter | None = None,
        fence: int | None = None,
        dealt_to: Sequence[str] | None = None,
        made: MadeObject | None = None,
    ) -> None:
        """With a fence it is a seeder, which deals to `dealt_to`, or to all. `made` is what it has instead."""
        alter = LIES[lie] if isinstance(lie, str) else lie
        made = made or self.made
        files = dict(made.files)
        if fence is not None:
            seed = make_seed(made.docket, made.slips, dealt_to or self.names, fence)
            files[seed_file(made.docket.root)] = seed.encode()
        self.network.add(name, lambda _: SimServer(self, name, files, rate, alter))

    def add_dead(self, name: str) -> None:
        self.network.add(name, lambda _: _Silent())

    def start(self) -> None:
        self.network.add(CAR, lambda stored: Watched(self, stored))

    def run(self, until: float) -> None:
        self.network.run(until)

    # what came of it

    def outcome(self) -> ObjectWhole | FetchGivenUp | None:
        found = [value for _, name, value in self.network.delivered if isinstance(value, ObjectWhole | FetchGivenUp)]
        return found[-1] if found else None

    def ended_at(self) -> float:
        return next(t for t, _, value in self.network.delivered if isinstance(value, ObjectWhole | FetchGivenUp))

    def named(self) -> dict[str, str]:
        return {value.server: value.what for _, _, value in self.network.delivered if isinstance(value, ServerNamed)}

    def kept(self) -> list[bytes | None]:
        kept = self.network._nodes[CAR].stored
        return [kept.get(chunk_key(number)) for number in range(self.made.docket.count)]

    def is_whole(self) -> bool:
        return self.outcome() == ObjectWhole() and self.kept() == list(self.made.chunks)

    def asked_of(self, name: str, suffix: str = "") -> list[RangeAsk]:
        return [ask for _, to, ask in self.asked if to == name and ask.file.endswith(suffix)]


def lies_here(stored: Mapping[str, bytes], number: int, slip: Slip) -> bool:
    """What lies on disk is hashed again."""
    return blake3(stored.get(chunk_key(number), b"")).digest() == slip.sealed_hash


class Watched:
    """The vehicle's role, made anew from what it stored."""

    def __init__(self, world: World, stored: Mapping[str, bytes]) -> None:
        self._world, self._has = world, dict(stored)
        fence = int.from_bytes(stored.get(FENCE, b""), "big")
        self.fetch = ObjectFetch(
            world.made.docket,
            world.names,
            lambda slips: [lies_here(stored, number, slip) for number, slip in enumerate(slips)],
            stored.get(SLIPS, b""),
            fence,
            world.limits,
        )

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        world = self._world
        # A lie that comes when all is done is not looked at any more.
        if isinstance(event, Arrived) and (event.sender, event.message) in world.lies and world.outcome() is None:
            world.heard_lies[event.sender] += 1
            world.wasted[event.sender] += len(event.message)
        effects = self.fetch.receive(event, now)
        for effect in effects:
            if isinstance(effect, StoreEffect):
                world.stored[effect.key] += 1
                self._has[effect.key] = effect.value or b""
            elif isinstance(effect, Send):
                ask = RangeAsk.decode(effect.message)
                world.asked.append((now, effect.to, ask))
                world.asked_again += self._had(ask)
        return effects

    def _had(self, ask: RangeAsk) -> list[int]:
        """The chunks among those asked for that are here, whole."""
        if not ask.file.endswith(".chunks"):
            return []
        starts, chunks = self._world.made.starts(), self._world.made.chunks
        asked = [n for n, at in enumerate(starts[:-1]) if ask.first <= at < ask.first + ask.length]
        return [number for number in asked if self._has.get(chunk_key(number)) == chunks[number]]


class _Silent:
    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return ()


def forged_object(made: MadeObject, seed: int) -> MadeObject:
    """Another object of the same lengths under the same name: what colluding liars would like to install."""
    random = Random(seed)
    chunks = tuple(random.randbytes(len(chunk)) for chunk in made.chunks)
    old = [Slip.decode(made.slips[at : at + 72]) for at in range(0, len(made.slips), 72)]
    slips = b"".join(
        slip._replace(sealed_hash=blake3(chunk).digest()).encode() for slip, chunk in zip(old, chunks, strict=True)
    )
    return MadeObject(made.docket, slips, chunks)


def forged_seed(made: MadeObject, servers: Sequence[str], fence: int, depth: int) -> bytes:
    subtrees = cut(made.docket.count, depth)
    uncles = tuple(slips_root(made.slips[first * 72 : end * 72]) for first, end in subtrees)
    assert blocks_root(uncles) != made.docket.root
    dealt = bytes(place % len(servers) for place in range(len(subtrees)))
    return Seed(made.docket.root, fence, depth, uncles, tuple(servers), dealt).encode()
