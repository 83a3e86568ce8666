"""Writes policy_locks.json beside itself: `PYTHONPATH=tests:. python tests/vectors/make_policy_locks.py`.

The file was made once and is kept, as parcels.json is: HPKE draws its own randomness. Each vector is a parcel of two
column groups with all that a reader has: permits and locks by name, the seed of the topic's private half, an attribute
key or none, and the topic policies that its grant has. It says which rows come out of which group (canonical bytes,
docs/formats/rows.md) and which groups are closed; or the kind of failure.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hostile import resign, sign
from makers import GROUPED, INSTANCE, entropy, rows, seed, token
from policy_world import EPOCH, PolicyWorld

from tallystick import wire
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.parcel.parcel import Parcel
from tallystick.record.leaves import encode_rows

PATH = Path(__file__).parent / "policy_locks.json"
POLICE = {"role": "police", "clearance": 5}
FORMULA = "role::police && clearance >= 3"
CASES: list[Callable[[], Case]] = []


@dataclass
class Case:
    world: PolicyWorld
    parcel: Parcel
    key: AttributeKey | None
    closed: tuple[int, ...] = ()
    failure: str = ""

    def encode(self, name: str) -> dict[str, Any]:
        world, batch = self.world, rows(0, 3, GROUPED)
        opened = [group for group in (0, 1) if group not in self.closed]
        found = {group: [text(row) for row in encode_rows(batch.only(group).data)] for group in opened}
        expected = {"failure": self.failure} if self.failure else {"rows": found, "closed": list(self.closed)}
        return {
            "name": name,
            "parcel": text(self.parcel.encode()),
            "permits": {key.hex(): text(permit) for key, permit in world.permits.items()},
            "locks": {key.hex(): text(lock) for key, lock in world.locks.items()},
            "attribute_key": None if self.key is None else text(self.key.encode()),
            "policies": [
                [place.token.hex(), place.group, place.version, epoch, text(capsule), text(sealed)]
                for (place, epoch), (capsule, sealed) in world.capsules.items()
            ],
            **expected,
        }


def text(data: bytes) -> str:
    return b64encode(data).decode()


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES.append(make)
    return make


def sealed(**policies: Any) -> tuple[PolicyWorld, Parcel]:
    world = PolicyWorld()
    lane = world.closed_lane(**policies)
    return world, lane.seal(rows(0, 3, GROUPED), now_ms=1_700_000_000_123, entropy=entropy(0))


def with_lock(world: PolicyWorld, parcel: Parcel, lock: bytes) -> Parcel:
    """The parcel as its publisher might sign it with another policy lock in its second group."""
    first, second = parcel.header.groups
    return resign(parcel, groups=(first, replace(second, locks=(second.locks[0], world.put(lock)))))


def changed(lock: bytes, change: Callable[[list[Any]], None]) -> bytes:
    fields: Any = wire.decode(lock, "lock")
    change(fields)
    return wire.encode(fields)


@case
def own_policy() -> Case:
    world, parcel = sealed(own={1: FORMULA})
    return Case(world, parcel, world.key(POLICE))


@case
def own_policy_hidden() -> Case:
    world, parcel = sealed(own={1: FORMULA}, hide=True)
    return Case(world, parcel, world.key(POLICE))


@case
def topic_policy() -> Case:
    world, parcel = sealed(of_topic={1: FORMULA})
    return Case(world, parcel, world.key(POLICE))


@case
def topic_policy_and_own() -> Case:
    world, parcel = sealed(of_topic={1: "clearance >= 3"}, own={0: "role::police", 1: "role::police"}, hide=True)
    return Case(world, parcel, world.key(POLICE))


@case
def closed_to_other_attributes() -> Case:
    world, parcel = sealed(own={1: FORMULA})
    return Case(world, parcel, world.key({"role": "police", "clearance": 2}), closed=(1,))


@case
def closed_without_attributes() -> Case:
    world, parcel = sealed(of_topic={1: FORMULA}, own={0: FORMULA}, hide=True)
    return Case(world, parcel, None, closed=(0, 1))


@case
def closed_to_an_older_key() -> Case:
    world, parcel = sealed(own={1: FORMULA}, attribute_epoch=EPOCH + 1)
    return Case(world, parcel, world.key(POLICE, epochs=(EPOCH,)), closed=(1,))


@case
def pooled_keys() -> Case:
    """Parts of two keys: they pass for one that satisfies the formula, and give another secret."""
    world, parcel = sealed(own={1: FORMULA})
    one, other = world.key({"role": "police"}, "one"), world.key({"clearance": 5}, "other")
    key = replace(one, parts={**dict(other.parts), **dict(one.parts)})
    return Case(world, parcel, key, failure="cannot-open")


@case
def capsule_altered() -> Case:
    """The last row's point is another; a well-formed capsule, signed by its publisher."""
    world, parcel = sealed(own={1: "role::police || clearance >= 200"})
    other, _ = sealed(own={1: "role::police || clearance >= 200"}, lane=b"another lane 16b")
    capsule: Any = wire.decode(wire.decode(world.locks[parcel.header.groups[1].locks[1]], "lock")[-1], "capsule")
    donor: Any = wire.decode(wire.decode(list(other.locks.values())[-1], "lock")[-1], "capsule")
    capsule[-1] = capsule[-1][:-48] + donor[-1][-48:]

    def change(fields: list[Any]) -> None:
        fields[-1] = wire.encode(capsule)

    lock = changed(world.locks[parcel.header.groups[1].locks[1]], change)
    return Case(world, with_lock(world, parcel, lock), world.key(POLICE), failure="cannot-open")


@case
def stolen_by_another_publisher() -> Case:
    """Locks, lane name and body under a thief's permit and signature."""
    world, parcel = sealed(own={0: FORMULA, 1: FORMULA})
    topics = world.lane("thief", schema=GROUPED, lane=parcel.header.lane).topics
    header = replace(parcel.header, topics=topics)
    stolen = Parcel(header, sign(header.encoded, "thief"), parcel.body)
    return Case(world, stolen, world.key(POLICE), failure="cannot-open")


@case
def topic_policy_of_another_group() -> Case:
    world, parcel = sealed(of_topic={0: FORMULA, 1: FORMULA})
    lock = world.locks[parcel.header.groups[0].locks[1]]
    return Case(world, with_lock(world, parcel, lock), world.key(POLICE), failure="cannot-open")


@case
def topic_policy_unknown() -> Case:
    """A version that the reader's grant does not have: it asks for news."""
    world, parcel = sealed(of_topic={1: FORMULA})
    world.capsules.clear()
    return Case(world, parcel, world.key(POLICE), failure="missing-key")


@case
def unknown_form() -> Case:
    world, parcel = sealed(own={1: FORMULA})

    def change(fields: list[Any]) -> None:
        fields[4] = 3

    lock = changed(world.locks[parcel.header.groups[1].locks[1]], change)
    return Case(world, with_lock(world, parcel, lock), world.key(POLICE), failure="cannot-open")


@case
def hidden_shown_as_clear() -> Case:
    world, parcel = sealed(own={1: FORMULA}, hide=True)

    def change(fields: list[Any]) -> None:
        fields[5] = 0

    lock = changed(world.locks[parcel.header.groups[1].locks[1]], change)
    return Case(world, with_lock(world, parcel, lock), world.key(POLICE), failure="cannot-open")


def main() -> None:
    world = PolicyWorld()
    vectors = {
        "instance": INSTANCE.hex(),
        "authority": text(world.authority.encode()),
        "token": token("brakes").hex(),
        "topic_key": text(seed("topic key brakes 1")),
        "schema": text(GROUPED.encode()),
        "vectors": [make().encode(make.__name__) for make in CASES],
    }
    PATH.write_text(json.dumps(vectors, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
