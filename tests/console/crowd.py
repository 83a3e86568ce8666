"""A ledger of a thousand topics and ten thousand principals, made by the contracts as a node would make it.

    source = crowd(tmp_path, topics=1_000, principals=10_000)
    mirror = Mirror(tmp_path / "console", source.world.trust, lambda: NOW_MS)
    mirror.follow(source)

The doctor owns everything; everybody may publish to one topic and read another. Groups read one topic each, and are
behind. The last minutes have traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path

from ledger_world import HOSPITAL, NOW_MS, Actor, World, seed

from tallystick.crypto import merkle
from tallystick.ledger import entries
from tallystick.ledger.block import Head, read_head
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right

PARTITIONS = 4
GROUPS = 100
MINUTES = 10  # of traffic
_TOGETHER = 500  # entries of a transaction


@dataclass
class Crowd:
    """What a mirror follows: a ledger on disk, and who is on it."""

    world: World
    ledger: SqliteLedger
    tokens: list[bytes]
    people: list[Actor]
    now_ms: int
    made_ms: list[int] = field(default_factory=list)  # the block time of each `publish`

    @cached_property
    def owner(self) -> Actor:
        return self.world.doctor

    def refresh(self) -> Head:
        return read_head(self.ledger.checkpoint(), self.world.trust)

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        return self.ledger.blocks(first, most)

    def write(self, who: Actor, *written: bytes, after_ms: int = 1_000) -> None:
        """A transaction in a block of its own."""
        self.now_ms += after_ms
        self.ledger.submit(who.sign(*written).data, self.now_ms)
        self.ledger.flush(self.now_ms)

    def publish(self, numbers: Iterable[int], size: int) -> None:
        """One parcel each by these people, in every partition of their topic in turn; anchored at `size`."""
        told = []
        for number in numbers:
            token, partition = self.tokens[number % len(self.tokens)], size % PARTITIONS
            parcel = sha256(b"%d %d" % (number, size)).digest()
            told.append(
                entries.published(self.people[number].id, token, partition, [(size, parcel)], self.now_ms, "host")
            )
            told.append(entries.anchor(token, partition, size + 1, merkle.leaf_hash(b"%d" % size)))
        self.write(self.world.node, *told)
        self.made_ms.append(self.now_ms)


def crowd(folder: Path, topics: int = 1_000, principals: int = 10_000) -> Crowd:
    """The ledger in `folder`; a minute at full size."""
    world = World()
    folder.mkdir(parents=True, exist_ok=True)
    ledger = SqliteLedger(str(folder / "crowd.sqlite"), world.trust, world.ledger_key, NOW_MS)
    found = Crowd(world, ledger, [], [], NOW_MS)
    for transaction in world.founding():
        found.now_ms += 1
        ledger.submit(transaction.data, found.now_ms)
        ledger.flush(found.now_ms)
    height = ledger.height + 2
    found.write(world.authority, *(entries.activate(*one, height) for one in newest().items()))
    found.write(world.authority, entries.set_("grace_ms", 1_000))  # a block, with which they come into force
    made = [_topic(world, number) for number in range(topics)]
    found.tokens = [token for token, _ in made]
    _write(found, world.doctor, (entry for _, entry in made))
    found.people = [world.actor(f"principal {number}", SubjectKind.PRINCIPAL, HOSPITAL) for number in range(principals)]
    _write(found, world.authority, (entries.enrol(one.certificate) for one in found.people))
    _write(found, world.doctor, _grants(found))
    _write(found, world.authority, _permits(found))
    for number in range(min(GROUPS, principals)):
        _group(found, number)
    active = range(min(100, principals))
    for minute in range(MINUTES):
        found.publish(active, minute)
        found.now_ms += 60_000
    return found


def _topic(world: World, number: int) -> tuple[bytes, bytes]:
    binding = world.bind(f"topic {number}", HOSPITAL)
    return binding.token, world.topic(f"topic {number}", world.doctor, HOSPITAL, partitions=PARTITIONS, binding=binding)


def _grants(found: Crowd) -> Iterator[bytes]:
    for number, one in enumerate(found.people):
        yield entries.grant(found.tokens[number % len(found.tokens)], one.id, Right.WRITE | Right.DESCRIBE)
        yield entries.grant(found.tokens[(number + 1) % len(found.tokens)], one.id, Right.READ | Right.DESCRIBE)


def _permits(found: Crowd) -> Iterator[bytes]:
    end_ms = NOW_MS + 30 * 86_400_000
    for number, one in enumerate(found.people):
        token = found.tokens[number % len(found.tokens)]
        yield entries.issue_permit(seed(f"permit {number}")[:16], Operation.ADVERTISE, token, one.id, end_ms)


def _group(found: Crowd, number: int) -> None:
    token = found.tokens[(number + 1) % len(found.tokens)]
    found.write(found.people[number], entries.group(seed(f"group {number}")[:16], 15_000, [token]), after_ms=1)


def _write(found: Crowd, who: Actor, written: Iterable[bytes]) -> None:
    rest = iter(written)
    while some := list(islice(rest, _TOGETHER)):
        found.write(who, *some, after_ms=10)
