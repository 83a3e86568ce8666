"""Where a topic is published: triples by neighbour, the next by chain, undoing, bounds (AnonPubSub 4.3, Figs 3, 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from mesh_world import AUTHORITY, LIMITS, NOW_MS, advertised, mesh_key, publisher
from node_world import NOW, STILL, NodeWorld, distances
from without import without

from tallystick.carriers.mesh.advertisement import Advertisement, ChainSecret, step
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, framed
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.localisation import Localisation, LocalisationLimits
from tallystick.errors import Forged, Refused
from tallystick.runtime.effects import Send

ANNA, CHAIN = advertised()
A, B, C, D = (letter.encode() * 16 for letter in "ABCD")


def located(graph: Sequence[bytes] = (A, B, C), limits: LocalisationLimits = LocalisationLimits()) -> Localisation:
    return Localisation(MeshGuard(AUTHORITY.public, LIMITS).check, lambda: graph, limits)


def value(hops: int, chain: ChainSecret = CHAIN) -> bytes:
    """What a node hears that is so many hops from the publisher."""
    h = chain.first
    for _ in range(hops - 1):
        h = step(h)
    return h


def say(to: Localisation, sender: bytes, kind: MeshKind, *fields: object, now: float = NOW) -> list[Send]:
    return to.receive(MeshFrame.decode(framed(kind, *fields)), sender, now)


def advertise(
    to: Localisation,
    sender: bytes,
    hops: int,
    what: tuple[Advertisement, ChainSecret] = (ANNA, CHAIN),
    now: float = NOW,
) -> list[Send]:
    return say(to, sender, MeshKind.ADVERTISE, what[0].encode(), value(hops, what[1]), now=now)


def told(sends: Sequence[Send]) -> dict[bytes, tuple[str, bytes]]:
    """By neighbour: the kind of the frame, and its last field."""
    frames = [(send, MeshFrame.decode(send.message)) for send in sends]
    return {bytes.fromhex(send.to): (frame.kind.name, frame.content[-1]) for send, frame in frames}


# --- triples ---


def test_fig_4_each_hop_notes_the_triple_and_passes_one_step_on(seed: int) -> None:
    world = NodeWorld(seed)
    for name in ("p", "f1", "f2", "f3"):
        world.add(name, settings=STILL)
    world.connect(("p", "f1"), ("f1", "f2"), ("f2", "f3"))
    publication = world.advertise("p")
    world.run(2)
    h = publication.chain.first
    for before, name in (("p", "f1"), ("f1", "f2"), ("f2", "f3")):
        [(handle, known)] = world.node(name).localisation.known.items()
        assert handle == publication.handle
        assert {world.names[one.hex()]: way.h for one, way in known.ways.items()} == {before: h}
        h = step(h)


def test_fig_3_left_what_comes_round_a_loop_goes_no_further(seed: int) -> None:
    world = NodeWorld(seed)
    for name in ("p", "f1", "f2", "f3"):
        world.add(name, settings=STILL)
    world.connect(("p", "f1"), ("f1", "f2"), ("f2", "f3"), ("f3", "f1"))
    world.advertise("p")
    world.run(5)
    assert world.counts["ADVERTISE"] == 5  # to f1; to f2 and f3; between these two once each
    [known] = world.node("f1").localisation.known.values()
    assert [world.names[one.hex()] for one in known.ways] == ["p"]


def test_fig_3_right_duplicates_are_told_from_two_publishers(seed: int) -> None:
    world = NodeWorld(seed)
    for name in ("p", "q", "f1", "f2", "f3", "f4"):
        world.add(name, settings=STILL)
    world.connect(("p", "f1"), ("p", "f2"), ("f1", "f3"), ("f2", "f3"), ("f3", "f4"))
    world.advertise("p")
    world.run(2)
    assert world.counts["ADVERTISE"] == 6  # f4 hears of one publisher, once, though f3 heard twice
    assert len(world.node("f4").localisation.known) == 1
    world.connect(("q", "f2"))
    world.advertise("q")
    world.run(2)
    assert len(world.node("f4").localisation.publishers(mesh_key().pseudonym)) == 2


def test_what_is_no_nearer_goes_no_further() -> None:
    it = located()
    assert told(advertise(it, A, 3)) == {B: ("ADVERTISE", value(4)), C: ("ADVERTISE", value(4))}
    assert advertise(it, B, 3) == []
    assert advertise(it, C, 9) == []
    nearer = told(advertise(it, B, 2))
    assert nearer[A] == nearer[C] == ("ADVERTISE", value(3))
    assert nearer[B] == ("LOST", ANNA.identifier)  # we go through it now: it shall not come back through us
    assert it.next_hops(ANNA.pseudonym) == {ANNA.identifier: B}


def test_on_loss_the_next_by_chain_takes_its_place_and_the_others_hear_of_it() -> None:
    it = located()
    for neighbour, hops in ((A, 2), (B, 4), (C, 3)):
        advertise(it, neighbour, hops)
    sends = told(it.lose(A))
    assert it.next_hops(ANNA.pseudonym) == {ANNA.identifier: C}
    assert sends[B] == ("ADVERTISE", value(4))
    assert sends[C] == ("LOST", ANNA.identifier)
    told(it.lose(C))
    assert it.next_hops(ANNA.pseudonym) == {ANNA.identifier: B}


def test_a_failure_counts_as_undoing_along_the_whole_way(seed: int) -> None:
    """p – f1 – f2 – f3, and nothing beside: when f1 fails nobody has a way, and nobody sends anybody in circles."""
    world = NodeWorld(seed)
    for name in ("p", "f1", "f2", "f3"):
        world.add(name, settings=STILL)
    world.connect(("p", "f1"), ("f1", "f2"), ("f2", "f3"))
    world.advertise("p")
    world.run(2)
    pseudonym = mesh_key().pseudonym
    assert world.node("f3").localisation.next_hops(pseudonym)
    world.crash("f1")
    world.run(10)
    assert not world.node("f2").localisation.next_hops(pseudonym)
    assert not world.node("f3").localisation.next_hops(pseudonym)
    assert world.counts["ADVERTISE"] < 20


def test_a_newcomer_hears_what_is_known_except_from_the_other_side() -> None:
    it = located()
    advertise(it, A, 2)
    assert told(it.gain(D)) == {D: ("ADVERTISE", value(3))}
    assert it.gain(A) == []


def test_values_that_are_not_repeated_are_forgotten_and_ours_are_repeated() -> None:
    limits = LocalisationLimits(retell_s=10, stale_s=35)
    it = located(limits=limits)
    advertise(it, A, 2)
    advertise(it, B, 3, now=NOW + 30)
    again = told(it.tick(NOW + 31))
    assert again == {B: ("ADVERTISE", value(3)), C: ("ADVERTISE", value(3))}
    it.tick(NOW + 40)
    assert it.next_hops(ANNA.pseudonym) == {ANNA.identifier: B}
    it.tick(NOW + 70)
    assert it.next_hops(ANNA.pseudonym) == {}
    assert ANNA.identifier in it.known  # a way to it may come back
    it.tick(NOW + 601)
    assert it.known == {}


def test_a_refresh_goes_on_to_everybody_and_an_older_copy_does_not_undo_it() -> None:
    it = located()
    advertise(it, A, 2)
    later = advertised(in_ms=900_000)[0]
    assert set(told(advertise(it, A, 2, (later, CHAIN)))) == {B, C}
    assert advertise(it, B, 3) == []
    assert it.known[ANNA.identifier].advertisement == later


def test_our_own_comes_back_to_nobody_s_surprise() -> None:
    it = located()
    assert set(told(it.advertise(ANNA, CHAIN.first, NOW)).values()) == {("ADVERTISE", CHAIN.first)}
    assert advertise(it, A, 5) == []
    assert it.next_hops(ANNA.pseudonym) == {}
    assert it.publishers(ANNA.pseudonym) == [ANNA.identifier]


# --- undoing ---


def test_an_advertisement_is_taken_back_by_its_secret_value_and_stays_so() -> None:
    it = located()
    advertise(it, A, 2)
    sends = told(say(it, A, MeshKind.UNADVERTISE, ANNA.identifier, CHAIN.undo))
    assert sends == {B: ("UNADVERTISE", CHAIN.undo), C: ("UNADVERTISE", CHAIN.undo)}
    assert it.known == {}
    with pytest.raises(Refused, match="taken back"):
        advertise(it, B, 2)
    assert say(it, B, MeshKind.UNADVERTISE, ANNA.identifier, CHAIN.undo) == []
    it.tick(NOW + 7201)
    with pytest.raises(Refused, match="expired"):
        advertise(it, B, 2, now=NOW + 7201)


def test_nobody_else_takes_it_back() -> None:
    it = located()
    advertise(it, A, 2)
    with pytest.raises(Forged):
        say(it, B, MeshKind.UNADVERTISE, ANNA.identifier, bytes(32))
    with without("the value that takes an advertisement back"):
        say(it, B, MeshKind.UNADVERTISE, ANNA.identifier, bytes(32))
    assert it.known == {}


def test_a_lost_way_is_the_sender_s_own_and_nobody_else_s() -> None:
    it = located()
    advertise(it, A, 2)
    assert say(it, B, MeshKind.LOST, ANNA.identifier) == []
    assert it.next_hops(ANNA.pseudonym) == {ANNA.identifier: A}


# --- bounds ---


def test_a_publisher_has_one_advertisement_at_a_time() -> None:
    it = located()
    advertise(it, A, 2)
    other = ChainSecret.from_seed(bytes(32))
    second = other.advertise(publisher(), NOW_MS + 600_000)
    with pytest.raises(Refused) as refused:
        advertise(it, A, 2, (second, other))
    assert refused.value.reason == "second-advertisement"


def test_what_is_beyond_the_bounds_is_refused_with_the_reason() -> None:
    whos = [f"publisher {number}" for number in range(4)]
    ones = [advertised(who) for who in whos]
    it = located(limits=LocalisationLimits(publishers_max=2))
    reasons = []
    for one in ones:
        try:
            advertise(it, A, 2, one)
            reasons.append("")
        except Refused as error:
            reasons.append(error.reason)
    assert reasons == ["", "", "too-many-publishers", "too-many-publishers"]
    it = located(limits=LocalisationLimits(brought_max=2))
    advertise(it, A, 2, ones[0])
    advertise(it, A, 2, ones[1])
    with pytest.raises(Refused) as refused:
        advertise(it, A, 2, ones[2])
    assert refused.value.reason == "tables-full"
    advertise(it, B, 2, ones[2])  # another neighbour has room of its own
    assert len(it.known) == 3


def test_forged_values_and_advertisements_leave_nothing_behind() -> None:
    it = located()
    with pytest.raises(Forged):
        say(it, A, MeshKind.ADVERTISE, ANNA.encode(), bytes(32))
    forged = replace(ANNA, signature=bytes(64))
    with pytest.raises(Forged):
        advertise(it, A, 2, (forged, CHAIN))
    assert it.known == {}


def test_the_nearest_neighbour_is_on_a_shortest_path(seed: int) -> None:
    """Also where the quickest way is not the shortest: whoever is told first hears of the nearer one later."""
    world = NodeWorld(seed)
    names = [f"n{number}" for number in range(20)]
    for name in names:
        world.add(name, settings=STILL)
    pairs = [(names[i], names[(i + 1) % 20]) for i in range(20)] + [
        (names[i], names[(7 * i + 3) % 20]) for i in range(9)
    ]
    world.connect(*pairs)
    world.advertise("n0")
    world.run(5)
    far = distances(world.graph(), "n0")
    for name in names[1:]:
        [hop] = world.node(name).localisation.next_hops(mesh_key().pseudonym).values()
        assert far[world.names[hop.hex()]] == far[name] - 1
