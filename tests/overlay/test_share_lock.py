"""A share lock in AND with a topic lock: what relays carry is one of two things that open a lane."""

from __future__ import annotations

import pytest
from makers import INSTANCE, SCHEMA, entropy, rows, seed, token
from makers import World as Publishing
from sharing_world import LIES, World
from test_secret_forwarding import liars, listening, pooled

from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Malformed
from tallystick.parcel.header import TopicRef
from tallystick.parcel.keys import KeyRing, LaneKey
from tallystick.parcel.locks import MissingKey, MissingShare, ShareLock, TopicLock, decode_lock, lock_hash
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import VerifiedParcel
from tallystick.parcel.seal import Lane
from tallystick.parcel.verify import verify_run

LANE = b"lane of the car."
LOCK = ShareLock(INSTANCE, LANE, b"o" * 16, 1, b"n" * 16)
NAME = lock_hash(LOCK.encode())


class Sealed:
    """One parcel of a lane whose key hangs on a share secret, and with `topic` on a topic's key as well."""

    def __init__(self, share: bytes, topic: bool) -> None:
        self.world = Publishing()
        self.world.locks[NAME] = LOCK.encode()
        secrets, names = [share], [NAME]
        if topic:
            secret = seed("topic secret")
            keys = {token("brakes"): (1, self.world.topic_key("brakes").public)}
            lock = TopicLock.seal(secret, INSTANCE, LANE, keys).encode()
            self.world.locks[lock_hash(lock)] = lock
            secrets, names = [secret, share], [lock_hash(lock), NAME]
        permit = self.world.permit("car", "brakes").identifier
        key = LaneKey.of(secrets, names, instance=INSTANCE, lane=LANE, group=0, permits=[permit])
        lane = Lane(
            instance=INSTANCE,
            lane=LANE,
            topics=(TopicRef(token("brakes"), permit, 1),),
            schema=SCHEMA,
            keys=(key,),
            signing_key=SigningKey.from_seed(seed("car")),
            identifier_secret=derive(seed("car"), "tallystick identifier secret 1"),
        )
        self.parcel = lane.seal(rows(0, 5), now_ms=0, entropy=entropy(0))

    def verified(self) -> VerifiedParcel:
        (found,) = verify_run([self.parcel], INSTANCE, token("brakes"), self.world.book(), None)
        return found

    def opened(self, ring: KeyRing) -> int:
        return open_batch(self.verified(), ring, SCHEMA).rows


def test_both_are_needed_and_both_do() -> None:
    way = World((3, 3))
    given = way.publish(lock=NAME)
    way.run()
    sealed = Sealed(given.secret, topic=True)
    ring = sealed.world.ring("brakes")
    with pytest.raises(MissingShare):
        sealed.opened(ring)
    for name, secret in way.opened_locks().items():
        ring.add_share(name, secret)
    assert sealed.opened(ring) == 5
    stranger = sealed.world.ring()
    stranger.add_share(NAME, given.secret)
    with pytest.raises(MissingKey):
        sealed.opened(stranger)


def test_with_one_bad_relay_too_many_a_bare_share_lock_opens_and_one_beside_a_topic_lock_does_not() -> None:
    bad = liars((3, 3, 3), 3, [listening, LIES["false alarms"]])
    way = World((3, 3, 3), 3, bad | {(2, index): [listening] for index in (1, 2)})
    given = way.publish(lock=NAME)
    way.run()
    (secret, *_) = pooled(way)
    assert secret == given.secret
    bare, beside = Sealed(secret, topic=False), Sealed(secret, topic=True)
    for sealed, error in ((bare, None), (beside, MissingKey)):
        ring = sealed.world.ring()
        ring.add_share(NAME, secret)
        if error is None:
            assert sealed.opened(ring) == 5
        else:
            with pytest.raises(error):
                sealed.opened(ring)


def test_the_lock_is_a_name_and_nothing_more() -> None:
    assert decode_lock(LOCK.encode(), NAME) == LOCK
    with pytest.raises(Malformed):
        decode_lock(LOCK.encode()[:-1])


def test_secrets_that_came_have_a_bound() -> None:
    ring = KeyRing(lambda name: LOCK.encode(), lane_keys_max=2)
    for number in range(5):
        ring.add_share(bytes([number]) * 32, b"s" * 32)
    assert len(ring._shares) == 2
