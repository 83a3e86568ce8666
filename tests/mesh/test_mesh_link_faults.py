"""Links of the mesh under everything at once: loss, repetition, reordering, partitions, crashes, old datagrams sent
once more, fresh keys drawn often. And what a node that only forwards holds in its memory.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from random import Random
from types import FunctionType, ModuleType
from typing import Any

from link_world import LIMITS, LinkWorld, name_of
from makers import World, entropy, rows, token
from mesh_world import AUTHORITY, NOW_MS, mesh_key, publisher

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.runtime.network import Link
from tallystick.runtime.sources import SeededEntropy

NAMES = ("anna", "bert", "carl")
Script = list[tuple[float, str, bytes]]


def said(random: Random, who: str) -> Script:
    others, script = [name for name in NAMES if name != who], []
    for number in range(40):
        to = random.choice(others)
        kind, size = random.choice([b"notify", b"control"]), random.choice([0, 30, 900, 5000])
        message = b"%s %s %s %d " % (kind, who.encode(), to.encode(), number) + bytes(size)
        script.append((random.uniform(0, 40), to, message))
    return sorted(script)


def disturb(world: LinkWorld, random: Random, crashed: set[str]) -> None:
    """Let one thing happen, or none."""
    network, chance = world.network, random.random()
    if chance < 0.06:
        who = random.choice(NAMES)
        if network.alive(name_of(who)):
            network.crash(name_of(who))
            crashed.add(who)
    elif chance < 0.2:
        restart(world)
    elif chance < 0.25:
        network.partition([name_of("anna")], [name_of("bert"), name_of("carl")])
    elif chance < 0.35:
        network.heal()
    elif chance < 0.45:
        pair = random.choice(list(network.sent))
        for data in random.sample(network.sent[pair], min(5, len(network.sent[pair]))):
            network.send(*pair, data)


def restart(world: LinkWorld) -> None:
    for who in NAMES:
        if not world.network.alive(name_of(who)):
            world.network.restart(name_of(who))


def test_whatever_happens_a_message_arrives_once_or_is_known_lost_and_links_mend(seed: int) -> None:
    random, crashed = Random(seed), set[str]()
    limits = replace(LIMITS, session_beats=random.choice([12, 3600]), message_beats_max=random.choice([20, 60]))
    link = Link(loss=random.choice([0, 0.1, 0.3]), duplicate=0.1, reorder=0.2, held_max_s=random.choice([0.5, 3]))
    world = LinkWorld(seed, random.choice(list(Dial)), link, limits)
    scripts = {who: said(random, who) for who in NAMES}
    for who in NAMES:
        world.add(who, *(name for name in NAMES if name != who), script=scripts[who])
    for second in range(1, 50):
        world.run(second)
        disturb(world, random, crashed)
    world.network.heal()
    restart(world)
    world.run(130)
    for who in NAMES:
        heard = Counter(message for to in NAMES for message in world.heard(to, by=who))
        assert max(heard.values(), default=0) <= max(world.lives.values())
        if not crashed:
            assert max(heard.values()) == 1
        if who not in crashed:  # whoever crashed forgot what it wanted to say
            lost = {message for one in world.losses(who) for message in one.messages}
            assert {message for _, _, message in scripts[who]} <= set(heard) | lost
    for who in NAMES:
        assert all(link.is_up and not link.is_lost for link in world.layer(who)._links.values())


# --- what forwarders hold ---


def held(thing: Any) -> set[bytes]:
    """All bytes that can be reached from an object, its code and classes aside."""
    found: set[bytes] = set()
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, bytes | bytearray):
            found.add(bytes(one))
        elif id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen.add(id(one))
            waiting += gc.get_referents(one)
    return found


def test_a_forwarder_holds_no_token_permit_lane_or_principal() -> None:
    """A real parcel passes through the guard and the links of a node in the middle, which looks at all it can reach."""
    makers = World()
    permit, lane = makers.permit("car", "brakes"), makers.lane("car")
    parcel = lane.seal(rows(0, 5), now_ms=NOW_MS, entropy=entropy(0))
    pushed = Pushed(parcel.encode(), (permit.encode(),), tuple(makers.locks.values()))
    envelope = mesh_key().seal(pushed, NOW_MS, publisher(), SeededEntropy(1))
    world = LinkWorld()
    world.add("anna", "bert", script=[(4.0, "bert", b"notify" + envelope.encode())])
    world.add("bert", "anna", "carl", script=[(6.0, "carl", b"notify" + envelope.encode())])
    world.add("carl", "bert")
    world.network.crash(name_of("carl"))
    world.run(5.0)
    guard = MeshGuard(AUTHORITY.public)
    guard.judge(world.heard("bert")[0].removeprefix(b"notify"), NOW_MS)
    world.run(7.0)  # carl does not answer, so it waits in the link
    names = [token("brakes"), permit.identifier, permit.principal, permit.signing_key, lane.lane, parcel.hash]
    memory = held([guard, world.layer("bert")])
    assert any(envelope.sealed in data for data in memory)
    assert envelope.identifier in memory
    assert [name for name in names if any(name in data for data in memory)] == []
    assert all(any(name in data for data in held(pushed)) for name in names[:5])
