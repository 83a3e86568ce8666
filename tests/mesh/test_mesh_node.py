"""A node of the mesh against losses, liars and floods, and what its memory knows (AnonPubSub 4.6; issue: bad input)."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import FunctionType, ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers import token
from mesh_world import AUTHORITY, NOW_MS, enveloped, mesh_key, publisher
from node_world import NOW, STILL, NodeWorld, distances, drawn, entry

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.distribution import DistributionLimits
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, framed
from tallystick.carriers.mesh.mesh_node import MeshNode, MeshSettings, Publication
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.runtime.effects import Arrived, Send, Woken
from tallystick.runtime.network import Link
from tallystick.runtime.sources import SeededEntropy

QUICK = replace(STILL, community=CommunityLimits(pulse_s=2.0, silent_s=6.0))
BRAKES = mesh_key("brakes").pseudonym
LINE = "p-f1 f1-f2 f2-s"


def standing(number: int, links: str = LINE, settings: MeshSettings = QUICK) -> tuple[NodeWorld, Publication]:
    """A mesh from p to s."""
    world = drawn(number, links, settings)
    publication = world.advertise("p")
    world.subscribe("s")
    world.run(3)
    return world, publication


def inject(world: NodeWorld, sender: str, to: str, *frames: bytes) -> None:
    for frame in frames:
        world.network.send(world.identities[sender].hex(), world.identities[to].hex(), frame)
    world.run(0.05)


# --- losses and duplicates ---


def test_what_a_link_loses_is_asked_for(seed: int) -> None:
    world, publication = standing(seed)
    ends = world.identities["f1"].hex(), world.identities["f2"].hex()
    world.network.set_link(*ends, Link(loss=0.3))
    for number in range(20):
        world.publish("p", publication, b"%d" % number)
        world.run(0.2)
    world.run(15)
    assert world.delivered()["s"] == Counter(b"%d" % number for number in range(20))
    assert world.counts["WANT"] > 0


def test_whoever_joins_gets_what_was_published_lately(seed: int) -> None:
    """A new link is asked as any other; what is older than half of `keep_s` is not told."""
    brief = replace(QUICK, distribution=DistributionLimits(keep_s=20.0))
    world, publication = standing(seed, f"{LINE} f1-late", brief)
    world.publish("p", publication, b"old")
    world.run(12)
    world.publish("p", publication, b"new")
    world.run(1)
    world.subscribe("late")
    world.run(3)
    assert world.delivered()["late"] == Counter([b"new"])


def test_duplicates_are_bounded_by_links_and_delivered_once(seed: int) -> None:
    """Everybody subscribes in a graph full of circles: an envelope goes over each link at most once each way."""
    links = " ".join(f"n{i}-n{(i + step) % 12}" for i in range(12) for step in (1, 2, 3))
    world = drawn(seed, links, QUICK)
    publication = world.advertise("n0")
    world.subscribe(*(f"n{number}" for number in range(12)))
    world.run(4)
    before = world.counts["NOTIFY"]
    world.publish("n0", publication, b"parcel")
    world.run(0.3)
    edges = sum(len(near) for near in world.links().values()) // 2
    assert world.counts["NOTIFY"] - before <= 2 * edges
    assert world.delivered() == {f"n{number}": Counter([b"parcel"]) for number in range(12)}


def test_costs_are_within_the_diameter_times_the_subscribers(seed: int) -> None:
    """AnonPubSub 4.7, for the mesh without covers and games: links, and hence messages of one envelope."""
    random = Random(seed)
    names = [f"n{number}" for number in range(30)]
    links = {f"{names[i]}-{names[(i + 1) % 30]}" for i in range(30)}
    drawn_links = [random.sample(names, 2) for _ in range(20)]
    links |= {f"{one}-{other}" for one, other in drawn_links if f"{other}-{one}" not in links}
    world = drawn(seed, " ".join(sorted(links)), QUICK)
    publication = world.advertise("n0")
    world.run(8)  # until values that overtook each other were told again
    subscribers = random.sample(names[1:], 6)
    world.subscribe(*subscribers)
    world.run(4)
    diameter = max(max(distances(world.graph(), name).values()) for name in names)
    before = world.counts["NOTIFY"]
    world.publish("n0", publication, b"parcel")
    world.run(0.3)
    assert world.counts["NOTIFY"] - before <= diameter * len(subscribers)
    hops = distances(world.links(), "n0")
    near = distances(world.graph(), "n0")
    assert all(hops[name] == near[name] for name in subscribers)  # along shortest paths


def test_what_is_kept_is_bounded(seed: int) -> None:
    small = replace(QUICK, distribution=DistributionLimits(kept_max=5, kept_bytes_max=3_000))
    world, publication = standing(seed, settings=small)
    for number in range(12):
        world.publish("p", publication, b"%d" % number + bytes(500 if number % 2 else 5))
        world.run(0.1)
        kept = world.node("f1").distribution.kept
        assert len(kept) <= 5
        assert sum(len(one.data) for one in kept.values()) <= 3_000
    world.run(1)
    assert len(world.delivered()["s"]) == 12


# --- liars ---


def test_forged_and_repeated_envelopes_end_at_the_first_honest_hop(seed: int) -> None:
    world, publication = standing(seed, LINE)
    good = publication.key.seal(Pushed(b"x"), int(world.now * 1000), publication.publisher, SeededEntropy("x")).encode()
    forged = good[:-1] + bytes([good[-1] ^ 1])
    before = Counter(world.counts)
    inject(world, "p", "f1", framed(MeshKind.NOTIFY, forged))
    assert (world.counts - before)["NOTIFY"] == 0
    inject(world, "p", "f1", *[framed(MeshKind.NOTIFY, good)] * 5)
    assert world.delivered()["s"] == Counter([b"x"])
    assert (world.counts - before)["NOTIFY"] == 2  # f1 to f2, f2 to s
    refused = world.node("f1").statistics().refused
    assert refused["forged"] == 1
    assert world.node("f1").statistics().duplicates == 4


def test_envelopes_of_who_is_not_on_the_topic_are_not_passed_on(seed: int) -> None:
    world, publication = standing(seed, f"{LINE} f1-liar")
    good = publication.key.seal(Pushed(b"x"), int(world.now * 1000), publication.publisher, SeededEntropy("x")).encode()
    inject(world, "liar", "f1", framed(MeshKind.NOTIFY, good), framed(MeshKind.WANT, BRAKES, [bytes(16)]))
    inject(world, "liar", "f1", framed(MeshKind.HAVE, BRAKES, [bytes(16)], 0))
    assert world.delivered() == {}
    assert world.node("f1").statistics().refused == {"not-in-mesh": 3}


def test_names_that_nobody_has_are_asked_for_once_in_a_while(seed: int) -> None:
    """A neighbour tells of envelopes that it does not have, again and again."""
    world, _ = standing(seed)
    before, names = world.counts["WANT"], [number.to_bytes(16, "big") for number in range(64)]
    for _ in range(10):
        inject(world, "f1", "f2", framed(MeshKind.HAVE, BRAKES, names, 0))
    assert world.counts["WANT"] - before == 1


def test_asking_again_and_again_is_answered_once_in_a_while(seed: int) -> None:
    world, publication = standing(seed)
    world.publish("p", publication, bytes(10_000))
    world.run(2)
    before, names = world.counts["NOTIFY"], list(world.node("f1").distribution.kept)
    inject(world, "f2", "f1", *[framed(MeshKind.WANT, BRAKES, names)] * 20)
    assert world.counts["NOTIFY"] - before <= 2 * len(names)


def test_a_flood_is_not_heard_for_the_rest_of_the_window_and_others_are(seed: int) -> None:
    world, publication = standing(seed, f"{LINE} f1-liar", replace(QUICK, frames_max=200))
    inject(world, "liar", "f1", *[framed(MeshKind.ALIVE, 1)] * 1000)
    assert world.node("f1").statistics().refused["too-many-requests"] >= 800
    world.publish("p", publication, b"parcel")
    world.run(1)
    assert world.delivered()["s"] == Counter([b"parcel"])


def test_strangers_share_one_small_room(seed: int) -> None:
    world, _ = standing(seed, LINE, replace(QUICK, strangers_max=50))
    for number in range(30):
        world.add(f"stranger {number}", settings=STILL)
        frames = [framed(MeshKind.JOIN, entry(f"stranger {number}").listed(), 0)] * 5
        inject(world, f"stranger {number}", "f1", *frames)
    assert world.node("f1").statistics().refused["too-many-requests"] >= 90


@pytest.mark.parametrize(
    "kind", [kind for kind in MeshKind if kind is not MeshKind.LEAVE]
)  # which is easily said, and done
def test_a_frame_of_any_kind_with_anything_in_it_is_refused_and_forgotten(kind: MeshKind, seed: int) -> None:
    world, publication = standing(seed)
    random = Random(seed)
    values = [b"", bytes(16), bytes(32), BRAKES, -1, 0, 1, 2**63, "text", None, True, [], [b""], [[b"", 1]], bytes(999)]
    before = len(world.node("f1").membership.known)
    for _ in range(20):
        fields = [random.choice(values) for _ in range(random.randrange(5))]
        inject(world, "f2", "f1", framed(kind, *fields))
        inject(world, "f2", "f1", random.randbytes(random.randrange(60)))
    world.run(10)
    world.publish("p", publication, b"parcel")
    world.run(2)
    assert world.delivered()["s"] == Counter([b"parcel"])
    assert len(world.node("f1").membership.known) <= before + 1
    assert world.node("f1").statistics().refused["malformed"] > 5


@given(st.binary(max_size=80))
def test_random_bytes_are_no_frame(data: bytes) -> None:
    try:
        frame = MeshFrame.decode(data)
    except Malformed:
        return
    assert wire.encode([1, int(frame.kind), *frame.content]) == data


def test_a_sender_without_an_identity_is_refused() -> None:
    node = alone("n")
    node.receive(Arrived("not hex", b""), NOW)
    assert node.statistics().refused == {"malformed": 1}


def alone(name: str) -> MeshNode:
    return MeshNode(entry(name), [], AUTHORITY.public, Random(name), SeededEntropy(name), QUICK)


# --- publishing ---


def test_a_publisher_is_heard_though_it_has_nothing_to_say(seed: int) -> None:
    """An empty parcel, in an envelope like any other: that is how members know the mesh to be whole."""
    world, _ = standing(seed)
    before = len(world.network.delivered)
    world.run(10)
    pulses = [value for _, _, value in world.network.delivered[before:]]
    assert 4 <= len(pulses) <= 10
    assert all(mesh_key().open(value).parcel == b"" for value in pulses)


def test_advertisements_are_refreshed_with_the_same_chain_and_end_with_the_epoch(seed: int) -> None:
    node, publication = alone("p"), Publication(publisher("p"), mesh_key())
    node.advertise(publication)
    node.receive(Woken(), NOW)
    [first] = node.localisation.known.values()
    node.receive(Woken(), NOW + 1800.5)
    [second] = node.localisation.known.values()
    assert second.advertisement.expiry_ms > first.advertisement.expiry_ms
    assert (second.first, second.advertisement.anchor) == (first.first, first.advertisement.anchor)
    ends = (publication.publisher.epoch + 1) * 24 * 3600
    node.receive(Woken(), ends + 0.5)
    node.receive(Woken(), ends + 1.0)
    assert node.localisation.known == {}
    assert node.statistics().publishers == 0


def test_what_no_node_would_pass_on_is_refused_at_once(seed: int) -> None:
    world, publication = standing(seed)
    limit = QUICK.mesh.envelope_bytes_max
    with pytest.raises(Refused, match="at most"):
        world.publish("p", publication, bytes(limit))
    world.publish("p", publication, bytes(int(limit * 0.9)))
    world.run(1)
    assert list(world.delivered()["s"].values()) == [1]


def test_key_and_publisher_belong_to_one_topic() -> None:
    with pytest.raises(Misuse):
        Publication(publisher("p", "brakes"), mesh_key("engine"))


# --- what a forwarder knows ---


def remembered(root: object) -> Iterator[bytes]:
    """All bytes and texts that can be reached from an object."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, bytes | bytearray):
            yield bytes(one)
        elif isinstance(one, str):
            yield one.encode()
        else:
            waiting += gc.get_referents(one)


def test_a_forwarder_s_memory_names_no_topic_and_no_publisher(seed: int) -> None:
    world, publication = standing(seed)
    parcel = b"header of lane 7 by principal anna with permit 9, and its body"
    world.publish("p", publication, parcel)
    world.run(1)
    secrets = [token("brakes"), parcel, mesh_key().secret, publication.publisher.chain_seed, publication.chain.first]
    secrets += [secret.hex().encode() for secret in secrets[:1]] + [b"brakes"]
    held = list(remembered(world.node("f2")))
    assert any(BRAKES in one for one in held)  # it knows the pseudonym, or it could pass nothing on
    assert [secret for secret in secrets if any(secret in one for one in held)] == []
    assert any(publication.chain.first in one for one in remembered(world.node("f1")))  # the search would find it


def test_two_runs_with_one_seed_are_one(seed: int) -> None:
    first, second = standing(seed)[0], standing(seed)[0]
    assert first.network.trace_hash() == second.network.trace_hash()
    assert first.network.trace_hash() != standing(seed + 1)[0].network.trace_hash()


def test_an_envelope_of_another_epoch_is_no_news(seed: int) -> None:
    world, _ = standing(seed)
    old = enveloped(created_ms=NOW_MS - 200_000)
    inject(world, "p", "f1", framed(MeshKind.NOTIFY, old))
    assert world.node("f1").statistics().refused == {"stale": 1}


def test_what_leaves_are_whole_frames(seed: int) -> None:
    node = alone("p")
    node.advertise(Publication(publisher("p"), mesh_key()))
    sends = [one for one in node.receive(Woken(), NOW) if isinstance(one, Send)]
    assert all(MeshFrame.decode(send.message) for send in sends)
    assert node.entries() == []
