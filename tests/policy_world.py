"""A small world whose lanes have policy locks: the makers' world, an attribute authority, readers with attributes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from formulas import ACME
from makers import GROUPED, INSTANCE, World, entropy, seed, token

from tallystick.crypto import hpke
from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey
from tallystick.parcel.keys import KeyRing, LaneKey
from tallystick.parcel.locks import OwnPolicyLock, PolicyPlace, TopicPolicyLock, lock_hash, seal_seed
from tallystick.parcel.seal import Lane
from tallystick.policy.parse import parse
from tallystick.policy.traits import traits_of
from tallystick.record.schema import Schema

EPOCH = 7


def need_pymcl() -> None:
    """Where there is no pymcl the tests skip, and say that it is pymcl."""
    if not group.available():
        assert sys.version_info >= (3, 13), "pymcl has a wheel for this Python: pip install 'tallystick[policy]'"
        pytest.skip("pymcl has no wheel for Python 3.13")


@dataclass
class PolicyWorld(World):
    """Capsules of topic policies are handed to every reader, as an authority does."""

    master: AttributeMasterKey = field(default_factory=lambda: AttributeMasterKey.generate(seed("attributes")))
    capsules: dict[tuple[PolicyPlace, int], tuple[bytes, bytes]] = field(default_factory=dict)

    def key(self, held: Mapping[str, Any], name: str = "reader", epochs: tuple[int, ...] = (EPOCH,)) -> AttributeKey:
        return self.master.issue(name.encode(), traits_of(ACME.values(held), ACME), epochs)

    def closed_lane(
        self,
        who: str = "car",
        *,
        own: Mapping[int, str] | None = None,
        of_topic: Mapping[int, str] | None = None,
        hide: bool = False,
        schema: Schema = GROUPED,
        lane: bytes | None = None,
        attribute_epoch: int = EPOCH,
    ) -> Lane:
        """A lane whose groups have a topic lock and the policies given by group."""
        made = self.lane(who, schema=schema, lane=lane)
        topic_secret = seed(f"secret {who} 1 {made.lane.hex()}")
        permits = [topic.permit for topic in made.topics]
        keys = []
        for number, plain in enumerate(made.keys):
            secrets, names = [topic_secret], list(plain.locks)
            if number in (of_topic or {}):
                secrets.append(seed(f"policy secret {who} {number}"))
                names.append(self._of_topic(made, number, (of_topic or {})[number], secrets[-1], attribute_epoch))
            if number in (own or {}):
                formula, hiding = parse((own or {})[number], ACME), topic_secret if hide else None
                public, drawn = self.master.public, entropy(number)
                args = (public, formula, attribute_epoch, INSTANCE, made.lane, permits, drawn, hiding)
                lock, secret = OwnPolicyLock.seal(*args)
                secrets.append(secret)
                names.append(self.put(lock.encode()))
            place = {"instance": INSTANCE, "lane": made.lane, "group": number}
            keys.append(LaneKey.of(secrets, names, **place, permits=permits))  # type: ignore[arg-type]
        made.refresh(made.topics, keys)
        return made

    def _of_topic(self, lane: Lane, number: int, text: str, secret: bytes, epoch: int) -> bytes:
        place = PolicyPlace(INSTANCE, token("brakes"), number, 1)
        policy_seed = seed(f"policy seed {number} {text} {epoch}")
        formula = parse(text, ACME)
        self.capsules[place, epoch] = seal_seed(self.master.public, formula, epoch, place, policy_seed, entropy(9))
        public = hpke.PrivateKey.decode(policy_seed).public
        args = (secret, INSTANCE, lane.lane, place.token, number, 1, epoch, public)
        return self.put(TopicPolicyLock.seal(*args).encode())

    def put(self, lock: bytes) -> bytes:
        self.locks[lock_hash(lock)] = lock
        return lock_hash(lock)

    def reader(self, key: AttributeKey | None) -> KeyRing:
        """A subscriber of the topic with this attribute key."""
        ring = KeyRing(self.locks.__getitem__, lambda epoch: key)
        ring.add_topic_key(token("brakes"), 1, self.topic_key("brakes"))
        for (place, epoch), (capsule, sealed) in self.capsules.items():
            ring.add_policy(place, epoch, capsule, sealed)
        return ring
