"""What a publisher seals under policies: from its grant alone, without an authority, and anew when they change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from formulas import ACME
from makers import GROUPED, INSTANCE, entropy, rows, seed, token
from policy_world import EPOCH, PolicyWorld, need_pymcl

from tallystick.authority.grant import Grant, GrantEpoch, GrantPolicies, GrantSettings, GrantTopicPolicy
from tallystick.client.grants import Held
from tallystick.client.lane_keys import LaneSecrets, OwnLane, OwnPolicy, draw_secrets, open_lane, policy_state
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Misuse, Unavailable
from tallystick.identity.folder import Identity
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import PolicyPlace, lock_hash, seal_seed
from tallystick.parcel.open import open_columns
from tallystick.parcel.seal import Lane
from tallystick.parcel.verify import verify_run
from tallystick.policy.parse import parse
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.runtime.sources import SeededEntropy

NOW_MS = 1_700_000_000_000
THREE = Schema.parse(
    "vin string, speed float32, lat float64, lon float64, fuel float32",
    groups=(("vin", "speed"), ("lat", "lon"), ("fuel",)),
)


@pytest.fixture
def world() -> PolicyWorld:
    need_pymcl()
    return PolicyWorld()


def identity() -> Identity:
    """As much of an identity as sealing takes."""
    key = SigningKey.from_seed(seed("car"))
    return cast(
        Identity,
        SimpleNamespace(
            instance=INSTANCE,
            principal=PolicyWorld().permit("car", "brakes").principal,
            signing_key=key,
            identifier_secret=derive(seed("car"), "tallystick identifier secret 1"),
            spool_key=seed("spool"),
        ),
    )


def policies(world: PolicyWorld, *topics: GrantTopicPolicy) -> GrantPolicies:
    epochs = ((EPOCH, 0), (EPOCH + 1, NOW_MS + 1000))
    return GrantPolicies(world.master.public.encode(), ACME.encode(), epochs, topics)


def held(world: PolicyWorld, found: GrantPolicies | None, schema: Schema = GROUPED, topic: str = "brakes") -> Held:
    epoch = GrantEpoch(1, world.topic_key(topic).public.encode(), 0, 0)
    grant = Grant(
        permit=world.permit("car", topic).encode(),
        undo_token=b"",
        token=token(topic),
        epochs=(epoch,),
        private_keys=(),
        schemas=(schema.encode(),),
        settings=GrantSettings(1, 0, 1, 1000),
        erasure_keys=(),
        erased=(),
        policies=found,
        labels=None,
        version=1,
    )
    return Held.of(grant)


def sealed(
    world: PolicyWorld, grants: list[Held], own: OwnPolicy | None, now_ms: int = NOW_MS
) -> tuple[Lane, LaneSecrets]:
    lane, secrets = open_lane(identity(), grants, now_ms, SeededEntropy(1), codec="lz4", own=own)
    for lock in secrets.locks:
        world.put(lock)
    return lane, secrets


def closed_to(world: PolicyWorld, lane: Lane, ring: KeyRing) -> tuple[int, ...]:
    """The groups of a fresh parcel that do not open."""
    lane.sequence, lane.previous = 0, bytes(32)
    parcel = lane.seal(rows(0, 3, lane.schema), now_ms=NOW_MS, entropy=entropy(0))
    [verified] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    return open_columns(verified, ring, lane.schema)[1]


def test_a_publishers_own_policy_works_from_the_grant_alone(world: PolicyWorld) -> None:
    grants = [held(world, policies(world))]
    own = OwnPolicy.of({"lat": "role::police", "lon": "role::police"}, False, grants, GROUPED)
    lane, secrets = sealed(world, grants, own)
    assert len(secrets.locks) == 2
    assert closed_to(world, lane, world.reader(world.key({"role": "police"}))) == ()
    assert closed_to(world, lane, world.reader(world.key({"role": "garage"}))) == (1,)


def test_one_capsule_serves_all_groups_with_one_formula(world: PolicyWorld) -> None:
    grants = [held(world, policies(world))]
    lane, secrets = sealed(world, grants, OwnPolicy.of("role::police", True, grants, GROUPED))
    assert len(secrets.locks) == 2
    assert lane.keys[0].locks == lane.keys[1].locks
    assert lane.keys[0].key != lane.keys[1].key
    assert closed_to(world, lane, world.reader(world.key({"role": "garage"}))) == (0, 1)


def topic_policy(world: PolicyWorld, group: int, text: str, version: int = 1, epoch: int = EPOCH) -> GrantTopicPolicy:
    policy_seed, place = seed(f"{group} {version} {epoch}"), PolicyPlace(INSTANCE, token("brakes"), group, version)
    capsule, sealed_seed = seal_seed(world.master.public, parse(text, ACME), epoch, place, policy_seed, entropy(3))
    world.capsules[place, epoch] = capsule, sealed_seed
    public = hpke.PrivateKey.decode(policy_seed).public.encode()
    return GrantTopicPolicy(group, version, epoch, public, b"", b"", 0 if epoch == EPOCH else NOW_MS + 1000)


def test_the_topics_policy_is_obeyed_and_composes_with_ones_own(world: PolicyWorld) -> None:
    grants = [held(world, policies(world, topic_policy(world, 1, "clearance >= 3")))]
    lane, _ = sealed(world, grants, None)
    assert closed_to(world, lane, world.reader(world.key({"clearance": 3}))) == ()
    assert closed_to(world, lane, world.reader(world.key({"clearance": 2}))) == (1,)
    lane, _ = sealed(world, grants, OwnPolicy.of({"lat": "role::police"}, False, grants, GROUPED))
    assert closed_to(world, lane, world.reader(world.key({"clearance": 3}))) == (1,)
    assert closed_to(world, lane, world.reader(world.key({"clearance": 3, "role": "police"}))) == ()


def test_keys_are_drawn_anew_when_policy_or_attribute_epoch_change(world: PolicyWorld) -> None:
    first, later = topic_policy(world, 1, "clearance >= 3"), topic_policy(world, 1, "clearance >= 3", epoch=EPOCH + 1)
    changed = topic_policy(world, 1, "clearance >= 5", version=2)
    lifted = GrantTopicPolicy(1, 2, 0, b"", b"", b"", 0)
    none, one = [held(world, policies(world))], [held(world, policies(world, first, later))]
    own = OwnPolicy.of("role::police", False, none, GROUPED)
    hidden = OwnPolicy.of("role::police", True, none, GROUPED)
    states = [
        policy_state(none, GROUPED, None, NOW_MS),
        policy_state(one, GROUPED, None, NOW_MS),
        policy_state(one, GROUPED, None, NOW_MS + 2000),
        policy_state([held(world, policies(world, first, changed))], GROUPED, None, NOW_MS),
        policy_state(none, GROUPED, own, NOW_MS),
        policy_state(none, GROUPED, own, NOW_MS + 2000),
        policy_state(none, GROUPED, hidden, NOW_MS),
        policy_state(none, GROUPED, OwnPolicy.of("role::garage", False, none, GROUPED), NOW_MS),
    ]
    assert len(set(states)) == len(states)
    assert policy_state([held(world, policies(world, first, lifted))], GROUPED, None, NOW_MS) == states[0] == b""
    assert policy_state([held(world, None)], GROUPED, None, NOW_MS) == b""
    # An attribute epoch does not touch who has no policy.
    assert policy_state(none, GROUPED, None, NOW_MS + 2000) == b""


def test_a_kept_lane_knows_what_its_keys_were_drawn_under(world: PolicyWorld) -> None:
    grants = [held(world, policies(world))]
    own = OwnPolicy.of("role::police", False, grants, GROUPED)
    lane, secrets = sealed(world, grants, own)
    kept = OwnLane(lane, [secrets]).encode(identity(), SeededEntropy(2))
    again = OwnLane.decode(identity(), kept, None)
    assert again.secrets[-1].policies == policy_state(grants, GROUPED, own, NOW_MS)
    assert again.secrets[-1].locks == secrets.locks
    assert [key.locks for key in again.lane.keys] == [key.locks for key in lane.keys]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("role::pirate", "pirate"),
        ("rank >= 3", "rank"),
        ("clearance >= 300", "300"),
        ("role::police && role::garage", "cannot be satisfied"),
        ("clearance >= 0", "everybody"),
        ({"altitude": "role::police"}, "altitude"),
        ({"lat": "role::police", "lon": "role::garage"}, "shares its group"),
        (" || ".join(f"vin::{number}" for number in range(600)), "more than 512 comparisons"),
        (f"vin in ({', '.join(map(str, range(900)))})", "rows"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_before_anything_is_sealed(
    world: PolicyWorld, policy: Any, words: str
) -> None:
    with pytest.raises(Misuse, match=words):
        OwnPolicy.of(policy, False, [held(world, policies(world))], GROUPED)


def test_without_attributes_there_is_no_policy(world: PolicyWorld) -> None:
    with pytest.raises(Misuse, match="no attributes"):
        OwnPolicy.of("role::police", False, [held(world, None)], GROUPED)
    assert OwnPolicy.of(None, False, [held(world, None)], GROUPED) is None


def test_a_policy_that_the_authority_lost_closes_the_group_to_publishers(world: PolicyWorld) -> None:
    lost = replace(topic_policy(world, 1, "clearance >= 3"), public=b"")
    with pytest.raises(Unavailable, match="no longer knows"):
        sealed(world, [held(world, policies(world, lost))], None)


def test_before_the_first_attribute_epoch_nothing_is_sealed_under_a_policy(world: PolicyWorld) -> None:
    grants = [held(world, replace(policies(world), epochs=((EPOCH, NOW_MS + 1),)))]
    with pytest.raises(Unavailable, match="attribute epoch"):
        sealed(world, grants, OwnPolicy.of("role::police", False, grants, GROUPED))


def test_a_topic_with_a_policy_has_lanes_of_its_own(world: PolicyWorld) -> None:
    grants = [
        held(world, policies(world, topic_policy(world, 1, "clearance >= 3"))),
        held(world, policies(world), topic="engine"),
    ]
    with pytest.raises(Misuse, match="lanes of its own"):
        draw_secrets(identity(), bytes(16), grants, GROUPED, NOW_MS, SeededEntropy(1))


def test_three_groups_three_readers(world: PolicyWorld) -> None:
    """Position for the police, fuel for the insurer, speed for all."""
    grants = [held(world, policies(world), THREE)]
    own = OwnPolicy.of({"lat": "role::police", "fuel": "role::insurer"}, True, grants, THREE)
    lane, secrets = sealed(world, grants, own)
    assert len({lock_hash(lock) for lock in secrets.locks}) == 3
    columns = [*rows(0, 3, GROUPED).data.columns, pa.array([1.0, 2.0, 3.0], pa.float32())]
    batch = pa.RecordBatch.from_arrays(columns, schema=THREE.arrow)
    parcel = lane.seal(Batch.of(THREE, batch), now_ms=NOW_MS, entropy=entropy(0))
    [verified] = verify_run([parcel], INSTANCE, token("brakes"), world.book(), None)
    seen = {}
    for role in ("police", "insurer", "garage"):
        opened, _ = open_columns(verified, world.reader(world.key({"role": role}, role)), THREE)
        assert opened is not None
        seen[role] = opened.data.schema.names
        for name in seen[role]:
            assert opened.data.column(name) == batch.column(name)
    assert seen == {
        "police": ["vin", "speed", "lat", "lon"],
        "insurer": ["vin", "speed", "fuel"],
        "garage": ["vin", "speed"],
    }
