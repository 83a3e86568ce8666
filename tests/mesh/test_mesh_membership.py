"""Views of the mesh: they grow by themselves and stay connected, end with their leases, and nobody surrounds a node.

AnonPubSub 4.1; SCAMP.
"""

from __future__ import annotations

from math import log
from random import Random

import pytest
from makers import seed as secret
from mesh_world import AUTHORITY
from node_world import NOW, STILL, NodeWorld, entry, is_connected
from without import without

from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, framed
from tallystick.carriers.mesh.kept_view import KeptView
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.membership import Membership, ViewLimits
from tallystick.carriers.mesh.mesh_node import MeshSettings
from tallystick.carriers.mesh.shell_game import ShellGameLimits
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Refused
from tallystick.runtime.effects import Send
from tallystick.trust.mesh import certify_member


def membership(
    name: str = "victim", contacts: tuple[str, ...] = ("honest",), limits: ViewLimits = ViewLimits()
) -> Membership:
    return Membership(
        entry(name),
        [entry(one) for one in contacts],
        lambda one, now: one.check(int(now * 1000), AUTHORITY.public),
        Random(name),
        limits,
    )


def say(to: Membership, sender: str, kind: MeshKind, *fields: object, now: float = NOW) -> list[Send]:
    to.heard_from(entry(sender).identity, now)
    return to.receive(MeshFrame.decode(framed(kind, *fields)), entry(sender).identity, now)


def hold(it: Membership, *names: str, now: float = NOW) -> None:
    """Let these be in its view, as those whom it knew."""
    for name in names:
        it._hold(entry(name), b"", now)
        it.heard_from(entry(name).identity, now)


def grown(number: int, size: int = 50, settings: MeshSettings = MeshSettings()) -> NodeWorld:
    world = NodeWorld(number)
    names = [f"n{index}" for index in range(size)]
    for index, name in enumerate(names):
        world.add(name, names[: min(index, 3)], settings)
        world.run(0.1)
    world.run(10)
    return world


# --- they keep themselves ---


def test_views_grow_to_some_ln_n_and_the_graph_survives_a_third_of_the_nodes(seed: int) -> None:
    world = grown(seed, settings=MeshSettings(tick_s=0.5))
    assert is_connected(world.graph())
    views = [len(world.node(name).membership.view) for name in world.living()]
    assert log(50) * 0.7 < sum(views) / len(views) < 2 * log(50) * 1.3  # (copies + 1)·ln n, and nobody knows n
    gone = Random(seed).sample([name for name in world.living() if name not in ("n0", "n1", "n2")], 16)
    for name in gone:
        world.crash(name)
    world.run(12)
    assert len(world.living()) == 34
    assert is_connected(world.graph())
    assert not any(set(gone) & near for near in world.graph().values())
    for name in gone:
        world.restart(name)
    world.run(12)
    assert len(world.graph()) == 50
    assert is_connected(world.graph())


def test_leases_end_and_are_renewed_in_time(seed: int) -> None:
    limits = ViewLimits(lease_s=20.0)
    world = grown(seed, 14, MeshSettings(view=limits, game=ShellGameLimits(plays=False), tick_s=0.5))
    before = {name: set(near) for name, near in world.graph().items()}
    for _ in range(4):
        world.run(10)
        assert is_connected(world.graph())
    assert world.graph() != before


def test_two_halves_that_lost_each_other_meet_at_a_contact(seed: int) -> None:
    limits = ViewLimits(lease_s=20.0)
    world = grown(seed, 14, MeshSettings(view=limits, game=ShellGameLimits(plays=False), tick_s=0.5))
    sides = [[world.identities[f"n{i}"].hex() for i in range(14) if i % 2 == side] for side in range(2)]
    world.network.partition(*sides)
    world.run(15)
    assert not is_connected(world.graph())
    world.network.heal()
    world.run(60)
    assert is_connected(world.graph())


def test_whoever_leaves_names_others_in_its_place() -> None:
    it = membership()
    hold(it, "leaver")
    sends = say(it, "leaver", MeshKind.LEAVE, [entry("heir").listed()])
    assert it.view == [entry("heir").identity]
    assert [send.to for send in sends] == [entry("heir").identity.hex()]


def test_whoever_started_again_is_not_counted_on() -> None:
    it = membership()
    [answer] = it.receive(MeshFrame.decode(framed(MeshKind.ALIVE, 1)), entry("old friend").identity, NOW)
    assert MeshFrame.decode(answer.message).kind is MeshKind.LEAVE


def test_a_neighbour_that_was_started_again_counts_as_new() -> None:
    """The other roles tell a new one all they know, and it may have forgotten all."""
    it = membership()
    say(it, "friend", MeshKind.HOLD, entry("friend").listed())
    assert it.changes() == ([entry("friend").identity], [], [])
    assert it.changes() == ([], [], [])
    say(it, "friend", MeshKind.HOLD, entry("friend").listed())
    assert it.changes() == ([entry("friend").identity], [], [])


def test_a_neighbour_that_says_nothing_is_lost() -> None:
    it = membership()
    hold(it, "silent", "lively")
    it.changes()
    it.tick(NOW + 5)
    it.heard_from(entry("lively").identity, NOW + 5)
    it.tick(NOW + 8)
    assert it.changes() == ([], [entry("silent").identity], [entry("silent").identity])
    assert it.neighbours == [entry("lively").identity]


def test_a_far_link_lasts_while_a_topic_wants_it_and_is_not_in_the_graph() -> None:
    it = membership(contacts=())
    it.pin(entry("far"), NOW + 5, NOW)
    it.heard_from(entry("far").identity, NOW)
    it.tick(NOW + 4)
    assert it.entry_of(entry("far").identity) == entry("far")
    assert it.neighbours == []
    it.keep(entry("far").identity, NOW + 6)
    it.tick(NOW + 5.5)
    assert entry("far").identity in it.known
    it.tick(NOW + 7)
    assert it.known == {}


def test_a_topic_s_link_outlasts_the_word_that_one_is_no_neighbour_in_the_graph() -> None:
    """An answer to an old word may cross a swap that makes two nodes neighbours on a topic."""
    it = membership(contacts=())
    hold(it, "far")
    it.pin(entry("far"), NOW + 5, NOW)
    say(it, "far", MeshKind.LEAVE, [])
    assert it.neighbours == []
    assert it.entry_of(entry("far").identity) == entry("far")


def test_far_links_are_bounded() -> None:
    it = membership(contacts=(), limits=ViewLimits(far_max=3))
    for name in ("a", "b", "c"):
        it.pin(entry(name), NOW + 5, NOW)
    with pytest.raises(Refused, match="far links"):
        it.pin(entry("d"), NOW + 5, NOW)
    it.pin(entry("a"), NOW + 9, NOW)  # it has one


# --- what outlives a process ---


def started_again(it: Membership) -> Membership:
    kept = KeptView.decode(it.kept([]).encode())
    made = Membership(
        it.me, [], lambda one, now: one.check(int(now * 1000), AUTHORITY.public), Random("2"), earlier=kept.members
    )
    made.tick(NOW + 10)
    return made


def test_a_view_outlives_its_process_with_who_brought_whom() -> None:
    it = membership()
    hold(it, "friend")
    it._hold(entry("guest"), entry("friend").identity, NOW)
    again = started_again(it)
    assert {one: again.known[one].introducer for one in again.view} == {
        entry("friend").identity: b"",
        entry("guest").identity: entry("friend").identity,
    }


def test_a_restart_is_no_new_chance_for_colluders() -> None:
    it = membership()
    eclipse(it)
    it = started_again(it)
    eclipse(it)
    strangers = {entry(name).identity for name in (*COLLUDERS, "attacker")}
    assert len(strangers.intersection(it.view)) <= 1 + ViewLimits().introduced_max


def test_a_kept_view_of_another_form_is_refused() -> None:
    kept = membership().kept([(bytes(16), (bytes(16),))])
    assert KeptView.decode(kept.encode()) == kept
    for wrong in (b"", b"view", kept.encode()[:-1], kept.encode() + b"\0"):
        with pytest.raises(Malformed):
            KeptView.decode(wrong)


def test_a_neighbour_s_later_certificate_and_its_address_are_its_own_word() -> None:
    it = membership()
    hold(it, "friend", "liar")
    key, until_ms = entry("friend").key, entry("friend").until_ms + 1000
    later = MemberEntry(key, until_ms, "elsewhere:1", certify_member(key, until_ms, AUTHORITY))
    say(it, "liar", MeshKind.JOIN, later.listed(), 32)
    assert it.entry_of(later.identity) == entry("friend")
    say(it, "friend", MeshKind.JOIN, later.listed(), 32)
    assert it.entry_of(later.identity) == later
    say(it, "friend", MeshKind.HOLD, entry("friend").listed())  # an earlier one, late
    assert it.entry_of(later.identity) == later


def test_all_neighbours_hear_of_another_certificate() -> None:
    it = membership()
    hold(it, "friend", "other")
    sends = it.renew(entry("victim"))
    assert {send.to for send in sends} == {entry(name).identity.hex() for name in ("friend", "other")}
    assert {MeshFrame.decode(send.message).kind for send in sends} == {MeshKind.JOIN}


# --- nobody surrounds a node ---

COLLUDERS = [f"colluder {number}" for number in range(40)]
HONEST = [f"honest {number}" for number in range(8)]


def eclipse(it: Membership) -> int:
    """The leases of the honest in a view run out. One attacker in it brings its colluders again and again, and they
    bring each other, before the next walks of the honest come by. Returns how many of these are in the view then."""
    hold(it, *HONEST, "attacker")
    for name in HONEST:
        it.known[entry(name).identity].held_until = 0.0
        it.known[entry(name).identity].holds_us = True
    for name in COLLUDERS * 8:
        introducer = next((one for one in COLLUDERS if entry(one).identity in it.view and one != name), "attacker")
        for sender in ("attacker", introducer):
            say(it, sender, MeshKind.JOIN, entry(name).listed(), 20)
            it.heard_from(entry(name).identity, NOW)
    for _ in range(20):
        for index, name in enumerate(HONEST):
            say(it, HONEST[index - 1], MeshKind.JOIN, entry(name).listed(), 20)
    return len({entry(name).identity for name in HONEST}.intersection(it.view))


def test_a_neighbour_cannot_surround_a_node_with_its_colluders() -> None:
    it = membership()
    honest = eclipse(it)
    strangers = {entry(name).identity for name in (*COLLUDERS, "attacker")}
    assert len(strangers.intersection(it.view)) <= 1 + ViewLimits().introduced_max
    assert honest >= 4


def test_without_the_bound_it_does() -> None:
    it = membership()
    with without("the bound on what a neighbour introduces"):
        assert eclipse(it) == 0
    assert len(it.view) == ViewLimits().view_max


def test_many_who_hold_a_node_do_not_fill_its_view_either() -> None:
    """Each colluder knocks by itself and brings others; what all of them bring counts together."""
    it = membership()
    hold(it, *HONEST)
    for name in COLLUDERS:
        say(it, name, MeshKind.HOLD, entry(name).listed())
        for other in COLLUDERS:
            if other != name:
                say(it, name, MeshKind.JOIN, entry(other).listed(), 20)
    assert len(it.view) == len(HONEST) + ViewLimits().uninvited_max
    assert set(it.view) >= {entry(name).identity for name in HONEST}


def test_those_who_hold_a_node_are_bounded() -> None:
    it = membership(limits=ViewLimits(holders_max=3))
    answers = [say(it, name, MeshKind.HOLD, entry(name).listed()) for name in COLLUDERS]
    kinds = [MeshFrame.decode(send.message).kind for [send] in answers]
    assert kinds == [MeshKind.ALIVE] * 3 + [MeshKind.LEAVE] * 37
    assert len(it.known) == 3


def test_an_identity_that_the_authority_did_not_give_is_none() -> None:
    it = membership()
    hold(it, "attacker")
    forged = entry("sybil", SigningKey.from_seed(secret("another authority")))
    for kind, fields in ((MeshKind.JOIN, (forged.listed(), 20)), (MeshKind.LEAVE, ([forged.listed()],))):
        with pytest.raises(Forged):
            say(it, "attacker", kind, *fields)
    with pytest.raises(Forged):
        say(it, "sybil", MeshKind.HOLD, forged.listed())
    assert forged.identity not in it.known


def test_without_the_certificates_one_attacker_is_many() -> None:
    it = membership()
    hold(it, "attacker")
    with without("the certificates of members"):
        say(it, "sybil", MeshKind.HOLD, entry("sybil", SigningKey.from_seed(secret("another authority"))).listed())
    assert entry("sybil").identity in it.known


def test_a_certificate_ends_and_an_entry_is_its_holder_s() -> None:
    it = membership()
    late = NOW + 2 * 24 * 3600
    with pytest.raises(Refused, match="has ended"):
        say(it, "friend", MeshKind.HOLD, entry("friend").listed(), now=late)
    with pytest.raises(Refused, match="somebody else's"):
        say(it, "thief", MeshKind.HOLD, entry("friend").listed())
    moved = MemberEntry(entry("friend").key, entry("friend").until_ms, "elsewhere:1", entry("friend").certificate)
    assert moved.identity == entry("friend").identity  # an address is the holder's word, and no part of the name


def test_knocking_all_the_time_is_not_heard() -> None:
    it = membership()
    hold(it, *HONEST)
    assert len(say(it, "newcomer", MeshKind.JOIN, entry("newcomer").listed(), 0)) == 1
    with pytest.raises(Refused, match="knocked just now"):
        say(it, "newcomer", MeshKind.JOIN, entry("newcomer").listed(), 0)
    assert say(it, "newcomer", MeshKind.JOIN, entry("newcomer").listed(), 0, now=NOW + 4)


def test_a_stranger_brings_nobody_and_walks_end() -> None:
    it = membership()
    with pytest.raises(Refused, match="stranger"):
        it.receive(MeshFrame.decode(framed(MeshKind.JOIN, entry("x").listed(), 9)), entry("stranger").identity, NOW)
    hold(it, *HONEST)
    ends = [say(it, "honest 0", MeshKind.JOIN, entry(name).listed(), ViewLimits().hops_max) for name in COLLUDERS]
    assert all(MeshFrame.decode(send.message).kind is MeshKind.HOLD for sends in ends for send in sends)


def test_a_drawn_graph_stays_as_it_was_drawn(seed: int) -> None:
    """What the other tests of the mesh stand on."""
    world = NodeWorld(seed)
    for name in "abc":
        world.add(name, settings=STILL)
    world.connect(("a", "b"), ("b", "c"))
    world.run(60)
    assert world.graph() == {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}
