"""Whole nodes inside the link layer, over a network that loses: cells on the wire, the roles behind them.

What the roles' own tests show on bare links must hold where control waits for link beats and a neighbour is an address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from makers import seed as secret
from mesh_world import AUTHORITY, NOW_MS, mesh_key, publisher
from without import without

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.cells import CELL_BYTES
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import CoverChoice
from tallystick.carriers.mesh.frames import MeshKind, framed, is_urgent
from tallystick.carriers.mesh.link_layer import Dial, LinkLayer
from tallystick.carriers.mesh.members import MemberEntry, member_pass
from tallystick.carriers.mesh.mesh_node import MeshNode, MeshSettings, Publication
from tallystick.carriers.mesh.shell_game import ShellGameLimits
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.runtime.network import Link, Network, SimClock
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import certify_member

BRAKES = mesh_key().pseudonym
SETTINGS = MeshSettings(
    covers=CoverChoice(0.2, 0.1),
    game=ShellGameLimits(decay=0.0),
    community=CommunityLimits(pulse_s=8.0, silent_s=30.0),
)


@cache
def key_of(name: str) -> ExchangeKey:
    return ExchangeKey(secret(f"lasting key {name}"))


@cache
def entry_of(name: str) -> MemberEntry:
    until_ms = NOW_MS + 24 * 3600 * 1000
    key = key_of(name).public
    return MemberEntry(key, until_ms, name, certify_member(key, until_ms, AUTHORITY))  # an address is a name here


class Stack:
    """Nodes in link layers, and an observer who notes the sizes of datagrams."""

    def __init__(self, number: int, dial: Dial, loss: float, size: int, settings: MeshSettings = SETTINGS) -> None:
        self.network = Network(number, Link(loss=loss), SimClock(NOW_MS / 1000))
        self.nodes: dict[str, MeshNode] = {}
        self.layers: dict[str, LinkLayer] = {}
        self._number, self._dial, self._settings = number, dial, settings
        self._lives: Counter[str] = Counter()
        names = [f"n{index}" for index in range(size)]
        for index, name in enumerate(names):
            self._add(name, names[: min(index, 2)])
            self.run(0.5)

    def _add(self, name: str, contacts: list[str]) -> None:
        def make(kept: Mapping[str, bytes]) -> LinkLayer:
            self._lives[name] += 1
            tag, me = f"{self._number} {name} {self._lives[name]}", entry_of(name)
            known = [entry_of(one) for one in contacts]
            node = MeshNode(me, known, AUTHORITY.public, Random(tag), SeededEntropy(tag), self._settings, kept)
            shown, entropy = member_pass(me, AUTHORITY.public), SeededEntropy(f"{tag} links")
            self.nodes[name] = node
            self.layers[name] = LinkLayer(node, key_of(name), entropy, shown, is_urgent, self._dial)
            return self.layers[name]

        self.network.add(name, make)

    def run(self, seconds: float) -> None:
        self.network.run(self.network.clock.now() + seconds)

    def delivered(self) -> dict[str, Counter[bytes]]:
        found: dict[str, Counter[bytes]] = {}
        for _, name, value in self.network.delivered:
            if parcel := mesh_key().open(value).parcel:
                found.setdefault(name, Counter())[parcel] += 1
        return found


@pytest.mark.parametrize(
    "dial", [pytest.param(dial, marks=[] if dial is Dial.PADDED else pytest.mark.long) for dial in Dial]
)
def test_a_mesh_of_link_layers_delivers_everything_while_games_are_played(dial: Dial, seed: int) -> None:
    stack = Stack(seed, dial, 0.05, 10)
    publication = Publication(publisher("p"), mesh_key())
    stack.nodes["n2"].advertise(publication)
    subscribers = ["n4", "n6", "n9"]
    for name in subscribers:
        stack.nodes[name].subscribe(BRAKES)
    stack.run(30)
    parcels = [b"%d" % count for count in range(6)]
    for parcel in parcels:
        stack.nodes["n2"].publish(publication, Pushed(parcel))
        stack.run(3)
    stack.run(15)
    assert stack.delivered() == {name: Counter(parcels) for name in subscribers}
    assert sum(node.game.swaps for node in stack.nodes.values()) > 0
    assert not any(layer.dropped["no-room"] for layer in stack.layers.values())


def test_after_a_crash_the_link_layer_s_word_is_enough(seed: int) -> None:
    stack = Stack(seed, Dial.PADDED, 0.0, 8)
    publication = Publication(publisher("p"), mesh_key())
    stack.nodes["n2"].advertise(publication)
    stack.nodes["n7"].subscribe(BRAKES)
    stack.run(15)
    between = [name for name, node in stack.nodes.items() if node.matching.links(BRAKES) and name not in ("n2", "n7")]
    for name in between[:2]:
        stack.network.crash(name)
    stack.nodes["n2"].publish(publication, Pushed(b"parcel"))
    stack.run(30)
    assert stack.delivered() == {"n7": Counter([b"parcel"])}


# --- what the two say to each other ---


def test_envelopes_alone_are_urgent() -> None:
    assert {kind for kind in MeshKind if is_urgent(framed(kind, b"x"))} == {MeshKind.NOTIFY}


def test_a_member_shows_its_certificate_and_nobody_else_can() -> None:
    now = NOW_MS / 1000
    anna, bert = (member_pass(entry_of(name), AUTHORITY.public) for name in ("anna", "bert"))
    bert.check(key_of("anna").public, anna.shown, now)
    assert len(anna.shown) <= 254
    for key, shown, at in (
        (key_of("eve").public, anna.shown, now),
        (key_of("anna").public, b"", now),
        (key_of("anna").public, anna.shown, now + 2 * 24 * 3600),
    ):
        with pytest.raises(Refused):
            bert.check(key, shown, at)
    other = SigningKey.from_seed(secret("another authority"))
    forged = replace(entry_of("anna"), certificate=certify_member(key_of("anna").public, NOW_MS * 2, other))
    with pytest.raises(Refused):
        bert.check(key_of("anna").public, member_pass(forged, other.public).shown, now)


def test_most_frames_fit_one_cell() -> None:
    """A handed-over neighbourhood is the exception, and is split."""
    entries = [[entry_of(f"n{number}").listed(), 7] for number in range(7)]
    assert len(framed(MeshKind.LOCK, BRAKES, bytes(8), 1, entries)) < CELL_BYTES
    assert len(framed(MeshKind.HAVE, BRAKES, [bytes(16)] * 60, 0)) < CELL_BYTES


# --- restarts ---


def is_heard_after_a_restart(number: int, down_s: float, within_s: float) -> bool:
    """Whether the only publisher of a topic, started again at its address amid games, is heard so soon by everybody."""
    stack = Stack(number, Dial.OFF, 0.0, 6)
    stack.nodes["n3"].advertise(Publication(publisher("p"), mesh_key()))
    subscribers = ["n4", "n5"]
    for name in subscribers:
        stack.nodes[name].subscribe(BRAKES)
    stack.run(30)
    stack.network.crash("n3")
    stack.run(down_s)
    stack.network.restart("n3")
    publication = Publication(publisher("p"), mesh_key())
    stack.nodes["n3"].advertise(publication)
    stack.run(within_s)
    stack.nodes["n3"].publish(publication, Pushed(b"back"))
    stack.run(1)
    return stack.delivered() == {name: Counter([b"back"]) for name in subscribers}


def test_a_publisher_that_is_started_again_is_heard_in_a_few_beats(seed: int) -> None:
    assert is_heard_after_a_restart(seed, 3.0, 5.0)


def neighbours_after_a_restart(number: int) -> tuple[set[bytes], set[bytes]]:
    """Those of a subscriber on its topic, before and after, where no games are played."""
    covers = CoverChoice(0.5, 0.0)
    stack = Stack(number, Dial.OFF, 0.0, 8, replace(SETTINGS, game=ShellGameLimits(decay=1e6), covers=covers))
    stack.nodes["n3"].advertise(Publication(publisher("p"), mesh_key()))
    stack.nodes["n5"].subscribe(BRAKES)
    stack.run(45)
    before = set(stack.nodes["n5"].matching.links(BRAKES))
    stack.network.crash("n5")
    stack.run(20)
    stack.network.restart("n5")
    stack.nodes["n5"].subscribe(BRAKES)
    stack.run(15)
    return before, set(stack.nodes["n5"].matching.links(BRAKES))


def test_a_subscriber_that_is_started_again_has_the_neighbours_that_it_had() -> None:
    before, after = neighbours_after_a_restart(1)
    assert len(before) > 1
    assert before <= after  # the next hop may be another


def test_without_that_it_meets_others_and_restarts_tell_which_are_always_there() -> None:
    with without("the neighbours of before on a topic"):
        before, after = neighbours_after_a_restart(1)
    assert not before <= after


@pytest.mark.long
def test_also_after_its_neighbours_gave_it_up(seed: int) -> None:
    assert is_heard_after_a_restart(seed, 25.0, 5.0)


def test_without_its_earlier_neighbours_it_waits_until_it_is_missed() -> None:
    with without("the neighbours of before on a topic"):
        assert not is_heard_after_a_restart(0, 3.0, 5.0)
