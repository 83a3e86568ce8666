"""Who opens a column group behind a policy lock, and who does not; each attack beside the same without the defence."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from formulas import ACME, RANDOMS, some_formula, some_holding
from hostile import resign, sign
from hypothesis import HealthCheck, given, settings
from makers import GROUPED, INSTANCE, entropy, rows, token
from policy_world import EPOCH, PolicyWorld, need_pymcl
from without import without

from tallystick import wire
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.errors import CannotOpen, Malformed
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey, NotEntitled, OwnPolicyLock, TopicPolicyLock, decode_lock, lock_hash
from tallystick.parcel.open import open_batch, open_columns, open_content, open_group
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.seal import Gap, Lane
from tallystick.parcel.verify import verify_run
from tallystick.policy.evaluate import holds
from tallystick.policy.show import show

INSURER = {"role": "insurer", "region": ["EU"]}
POLICE = {"role": "police", "clearance": 5}

drawn = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def world() -> PolicyWorld:
    need_pymcl()
    return PolicyWorld()


def sealed(world: PolicyWorld, lane: Lane, count: int = 5) -> VerifiedParcel:
    parcel = lane.seal(rows(0, count, GROUPED), now_ms=1_700_000_000_000, entropy=entropy(lane.sequence))
    [verified] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    return verified


def opened(ring: KeyRing, verified: VerifiedParcel) -> tuple[list[str], tuple[int, ...]]:
    """The columns that open, and the groups that do not."""
    batch, closed = open_columns(verified, ring, GROUPED)
    return ([] if batch is None else batch.data.schema.names), closed


@pytest.mark.parametrize("form", ["own", "of_topic"])
@pytest.mark.parametrize("hide", [False, True])
def test_a_group_opens_for_those_whose_attributes_satisfy_its_policy(world: PolicyWorld, form: str, hide: bool) -> None:
    policies: dict[str, Any] = {form: {1: "role::police && clearance >= 3"}}
    verified = sealed(world, world.closed_lane(hide=hide, **policies))
    police, insurer = world.reader(world.key(POLICE)), world.reader(world.key(INSURER))
    assert open_batch(verified, police, GROUPED).data == rows(0, 5, GROUPED).data
    assert opened(insurer, verified) == (["vin", "speed"], (1,))
    assert opened(world.reader(None), verified) == (["vin", "speed"], (1,))
    with pytest.raises(NotEntitled):
        open_batch(verified, insurer, GROUPED)
    # The group that opens is verified in full: its leaves hash to the signed root.
    assert open_group(verified, insurer, GROUPED, 0).batch.data == rows(0, 5, GROUPED).only(0).data


def test_both_policies_of_a_group_must_be_satisfied(world: PolicyWorld) -> None:
    lane = world.closed_lane(own={0: "region::EU", 1: "region::EU"}, of_topic={1: "role::police"})
    verified = sealed(world, lane)
    assert opened(world.reader(world.key({"role": "police"})), verified)[1] == (0, 1)
    assert opened(world.reader(world.key({"region": ["EU"]})), verified)[1] == (1,)
    assert opened(world.reader(world.key({"role": "police", "region": ["EU"]})), verified)[1] == ()


def test_without_a_policy_every_subscriber_opens(world: PolicyWorld) -> None:
    """The counterpart: what the policy lock adds to the topic lock."""
    verified = sealed(world, world.closed_lane())
    assert opened(world.reader(None), verified)[1] == ()


def test_attributes_without_the_topic_open_nothing(world: PolicyWorld) -> None:
    verified = sealed(world, world.closed_lane(own={0: "role::police", 1: "role::police"}))
    ring = KeyRing(world.locks.__getitem__, lambda epoch: world.key(POLICE))
    with pytest.raises(MissingKey):
        open_columns(verified, ring, GROUPED)


@drawn
@given(RANDOMS)
def test_random_policies_open_for_whom_they_hold_and_for_nobody_else(random: Random) -> None:
    """With every pair of those that do not satisfy it pooling all parts of their keys, either's randomness first."""
    need_pymcl()
    world = PolicyWorld()
    formula = some_formula(random)
    form = random.choice(["own", "of_topic"])
    policy: dict[str, Any] = {form: {1: show(formula)}}
    verified = sealed(world, world.closed_lane(hide=random.random() < 0.5, **policy))
    outsiders = []
    for number in range(4):
        held = some_holding(random, share=0.7)
        if not held:
            continue
        key = world.key(held, f"reader {number}")
        entitled = holds(formula, ACME.values(held))
        assert opened(world.reader(key), verified)[1] == (() if entitled else (1,))
        if not entitled:
            outsiders.append(key)
    for one in outsiders:
        for other in outsiders:
            with pytest.raises((NotEntitled, CannotOpen)):
                open_batch(verified, world.reader(pooled(one, other)), GROUPED)


def pooled(one: AttributeKey, other: AttributeKey) -> AttributeKey:
    """All parts of two keys under the first one's randomness."""
    return replace(one, parts={**other.parts, **one.parts})


def test_pooled_keys_give_noise_and_one_key_of_both_opens(world: PolicyWorld) -> None:
    """The pool passes for somebody who satisfies the formula, is tried, and finds another secret."""
    verified = sealed(world, world.closed_lane(own={1: "role::police && region::EU"}))
    one, other = world.key({"role": "police"}, "one"), world.key({"region": ["EU"]}, "other")
    for pair in ((one, other), (other, one)):
        with pytest.raises(CannotOpen):
            open_batch(verified, world.reader(pooled(*pair)), GROUPED)
    # What holds the parts apart is their randomness: issued to one holder together, they open.
    assert opened(world.reader(world.key({"role": "police", "region": ["EU"]})), verified)[1] == ()


def test_a_key_of_an_old_epoch_opens_nothing_newer(world: PolicyWorld) -> None:
    verified = sealed(world, world.closed_lane(own={1: "role::police"}, attribute_epoch=EPOCH + 1))
    assert opened(world.reader(world.key(POLICE, epochs=(EPOCH,))), verified)[1] == (1,)
    assert opened(world.reader(world.key(POLICE, epochs=(EPOCH + 1,))), verified)[1] == ()


def stolen(world: PolicyWorld, verified: VerifiedParcel) -> VerifiedParcel:
    """A thief who may publish puts locks, lane name and body of another into a parcel of its own, well signed."""
    topics = world.lane("thief", schema=GROUPED, lane=verified.header.lane).topics
    header = replace(verified.header, topics=topics)
    parcel = Parcel(header, sign(header.encoded, "thief"), verified.parcel.body)
    [found] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    return found


@pytest.mark.parametrize("form", ["own", "of_topic"])
def test_a_transplanted_lock_does_not_open(world: PolicyWorld, form: str) -> None:
    """The thief hopes that those who may open it will show it what is inside. Permits enter the lane key, and with a
    publisher's own policy the capsule's secret as well: under the thief's permit the body is noise."""
    policies: dict[str, Any] = {form: {0: "role::police", 1: "role::police"}}
    verified = sealed(world, world.closed_lane("car", **policies))
    with pytest.raises(CannotOpen):
        open_batch(stolen(world, verified), world.reader(world.key(POLICE)), GROUPED)

    # Without these the theft succeeds.
    both = ("the permits in a lane key", "the permits around a capsule")
    with without(*both if form == "own" else both[:1]):
        careless = sealed(world, world.closed_lane("car", **policies))
        opened_by_police = open_batch(stolen(world, careless), world.reader(world.key(POLICE)), GROUPED)
    assert opened_by_police.data == rows(0, 5, GROUPED).data


def test_a_lock_of_another_lane_group_or_instance_opens_nothing(world: PolicyWorld) -> None:
    lane = world.closed_lane("car", of_topic={0: "role::police", 1: "role::police"})
    verified = sealed(world, lane)
    police = world.reader(world.key(POLICE))
    first, second = verified.header.groups
    swapped = replace(verified.header, groups=(replace(first, locks=second.locks), replace(second, locks=first.locks)))
    with pytest.raises(CannotOpen):
        police.lane_key(swapped, 0)
    with pytest.raises(CannotOpen):
        police.lane_key(replace(verified.header, lane=b"another lane 16b"), 0)


def altered(lock: bytes, place: int) -> bytes:
    """A lock in whose capsule or sealed secret one byte is another."""
    value: Any = wire.decode(lock, "lock")
    content = bytearray(value[-1])
    content[place] ^= 1
    return wire.encode([*value[:-1], bytes(content)])


def with_lock(world: PolicyWorld, verified: VerifiedParcel, name: bytes) -> VerifiedParcel:
    """The parcel as its publisher might sign it with another policy lock in its second group."""
    first, second = verified.header.groups
    parcel = resign(verified.parcel, groups=(first, replace(second, locks=(second.locks[0], name))))
    [found] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    return found


@pytest.mark.parametrize("form", ["own", "of_topic", "hidden"])
def test_an_altered_lock_cannot_be_opened(world: PolicyWorld, form: str) -> None:
    policies: dict[str, Any] = {"own" if form == "hidden" else form: {1: "role::police || region::EU"}}
    verified = sealed(world, world.closed_lane(hide=form == "hidden", **policies))
    name = verified.header.groups[1].locks[-1]
    good = world.locks[name]
    for place in (0, len(good) // 2, -1):
        world.locks[name] = altered(good, min(place, len(wire.decode(good, "lock")[-1]) - 1))
        with pytest.raises(CannotOpen):
            open_batch(verified, world.reader(world.key(POLICE)), GROUPED)
        # Under its own name, as a publisher might sign it, it gives another secret or none; never the right one.
        other = world.put(world.locks[name])
        with pytest.raises(CannotOpen):
            open_batch(with_lock(world, verified, other), world.reader(world.key(POLICE)), GROUPED)
    world.locks[name] = good
    assert opened(world.reader(world.key(POLICE)), verified)[1] == ()


def test_hidden_nothing_of_the_formula_is_in_the_bytes_that_a_node_keeps(world: PolicyWorld) -> None:
    formula = "role::police && vin::NEEDLE"
    words = [b"police", b"NEEDLE", b"acme.role", b"role", b"vin"]
    for hide in (True, False):
        world.locks.clear()
        verified = sealed(world, world.closed_lane(own={1: formula}, hide=hide))
        kept = b"".join(world.locks.values()) + verified.parcel.encode()
        found = [word for word in words if word in kept]
        assert found == ([] if hide else words)  # the counterpart: in the clear all of them are
        # A subscriber of the topic sees the formula either way, and opens nothing for it.
        assert opened(world.reader(world.key(INSURER)), verified)[1] == (1,)


def test_hidden_policies_of_about_one_length_cannot_be_told_apart(world: PolicyWorld) -> None:
    def size(formula: str, hide: bool) -> int:
        lane = world.closed_lane(own={1: formula}, hide=hide)
        lock = decode_lock(world.locks[lane.keys[1].locks[-1]])
        assert isinstance(lock, OwnPolicyLock)
        return len(lock.payload)

    assert size("role::police", True) == size("role::insurer", True)
    assert size("role::police", False) != size("role::insurer", False)


def test_gap_and_commit_open_by_whichever_group_does(world: PolicyWorld) -> None:
    lane = world.closed_lane(own={0: "role::police"})
    gap = Gap(3, 1, 2, "spool full")
    parcel = lane.seal_gap(gap, now_ms=1, entropy=entropy(0))
    [verified] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    assert open_content(verified, world.reader(None)) == gap.encode()
    lane = world.closed_lane(own={0: "role::police", 1: "role::police"})
    parcel = lane.seal_gap(gap, now_ms=1, entropy=entropy(0))
    [verified] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    with pytest.raises(NotEntitled):
        open_content(verified, world.reader(None))
    assert open_content(verified, world.reader(world.key(POLICE))) == gap.encode()


def test_a_refusal_is_remembered_until_the_attributes_are_others(world: PolicyWorld) -> None:
    verified = sealed(world, world.closed_lane(own={1: "role::police"}))
    keys: list[AttributeKey | None] = [world.key(INSURER)]
    fetched: list[bytes] = []

    def fetch(name: bytes) -> bytes:
        fetched.append(name)
        return world.locks[name]

    ring = KeyRing(fetch, lambda epoch: keys[-1])
    ring.add_topic_key(token("brakes"), 1, world.topic_key("brakes"))
    assert opened(ring, verified)[1] == (1,)
    before = len(fetched)
    assert opened(ring, verified)[1] == (1,)
    assert len(fetched) == before
    keys.append(world.key(POLICE))
    assert opened(ring, verified)[1] == ()


def test_a_policy_that_nobody_handed_out_is_a_missing_key(world: PolicyWorld) -> None:
    """Version and epoch of a topic's policy that the reader's grant does not have yet: it asks for news."""
    verified = sealed(world, world.closed_lane(of_topic={1: "role::police"}))
    world.capsules.clear()
    with pytest.raises(MissingKey) as caught:
        open_columns(verified, world.reader(world.key(POLICE)), GROUPED)
    assert (caught.value.token, caught.value.epoch) == (token("brakes"), EPOCH)


GOOD_OWN = [1, 2, INSTANCE, bytes(16), 2, 0, b"capsule"]
GOOD_OF_TOPIC = [1, 2, INSTANCE, bytes(16), 1, bytes(16), 0, 1, 7, b"sealed"]


@pytest.mark.parametrize(
    "value",
    [
        [*GOOD_OWN[:4], 3, 0, b"capsule"],
        [*GOOD_OWN[:4], 0, 0, b"capsule"],
        [*GOOD_OWN[:5], 2, b"capsule"],
        [*GOOD_OWN[:5], True, b"capsule"],
        [*GOOD_OWN, 0],
        GOOD_OWN[:5],
        [*GOOD_OWN[:6], bytes(70_000)],
        [2, *GOOD_OWN[1:]],
        [*GOOD_OF_TOPIC[:6], 256, 1, 7, b"sealed"],
        [*GOOD_OF_TOPIC[:7], -1, 7, b"sealed"],
        [*GOOD_OF_TOPIC[:9], bytes(4096)],
        [*GOOD_OF_TOPIC[:5], bytes(15), *GOOD_OF_TOPIC[6:]],
    ],
)
def test_malformed_policy_locks_are_refused(value: list[object]) -> None:
    with pytest.raises(Malformed):
        decode_lock(wire.encode(value))


def test_policy_locks_have_one_encoding() -> None:
    for value, kind in ((GOOD_OWN, OwnPolicyLock), (GOOD_OF_TOPIC, TopicPolicyLock)):
        lock = decode_lock(wire.encode(value))
        assert isinstance(lock, kind)
        assert lock.encode() == wire.encode(value)
        assert lock_hash(lock.encode()) == lock_hash(wire.encode(value))


def test_a_capsule_that_is_none_cannot_be_opened(world: PolicyWorld) -> None:
    """A publisher may sign anything: what hangs together and means nothing is a failure like any other."""
    lane = world.closed_lane(own={1: "role::police"})
    verified = sealed(world, lane)
    bad = world.put(wire.encode([1, 2, INSTANCE, lane.lane, 2, 0, b"no capsule"]))
    with pytest.raises(CannotOpen):
        open_columns(with_lock(world, verified, bad), world.reader(world.key(POLICE)), GROUPED)
