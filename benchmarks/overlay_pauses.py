"""How long a message waits while a relay joins or leaves a virtual node under load, against nobody coming or going.

Whole relays (`OverlayRelay`): claims route, one relay of the edge orders, content and lane keys travel through three
virtual nodes, the middle of which changes. Parcels come at a steady pace, with a new lane key every few; a message is
there when every relay of the subscriber's edge that stays holds the parcel, and the subscriber has opened the secret of
its lane key. What is told is the longest wait of any message from before the plan stands on the ledger until everybody
has gone over to it; the peer is the longest wait in the same time and with the same schedule, where the plan stays.

    attach_pause        (2, 3) becomes (3, 4): the newcomer starts when the plan stands on the ledger, gathers routes,
                        and takes part from the plan's first height on
    attach_pause_late   the same, but it starts only when the plan counts already
    detach_pause        (3, 4) becomes (2, 3): the one that leaves goes on until its neighbours acknowledged

In the simulated network, in its time: delays of links, 1 to 20 ms, and of protocols, and no work of processors. Blocks
come every 0.4 s, and all relays hear of them at the same moment. A plan counts from 16 blocks later on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "overlay"))  # the tests' worlds

import harness
from carrying_world import sealed
from relay_world import RelayWorld
from sharing_world import chain

from tallystick.carriers.overlay.content_forwarding import CarriedParcel
from tallystick.carriers.overlay.membership import attached, detached
from tallystick.carriers.overlay.share_ends import OpenedShares
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS
from tallystick.runtime.effects import Role

MIDDLE = 1


@dataclass(frozen=True)
class Changing:
    rounds: int = 5
    parcels: int = 110
    pace_s: float = 0.1
    key_parcels: int = 5
    block_s: float = 0.4  # so that a plan counts 6.4 s after it came
    warm_s: float = 2.0  # whose parcels do not count; the plan comes then
    after_s: float = 8.0  # for what is under way, and for whoever leaves
    sizes: tuple[int, int] = (3, 4)  # of the virtual node that changes


QUICK = Changing(rounds=1, parcels=60, block_s=0.1)


def rows(load: Changing) -> Iterator[harness.Row]:
    less, more = load.sizes
    for name, size, then, is_late in (
        ("attach_pause", less, more, False),
        ("attach_pause_late", less, more, True),
        ("detach_pause", more, less, False),
    ):
        ours = [1000 * longest_wait(load, size, then, seed, is_late=is_late) for seed in range(load.rounds)]
        peer = [1000 * longest_wait(load, size, size, seed) for seed in range(load.rounds)]
        yield asdict(harness.compare(name, ours, peer, "ms"))


@cache
def longest_wait(load: Changing, size: int, then: int, seed: int, *, is_late: bool = False) -> float:
    """Of a message, in seconds, while the middle goes from one size to another."""
    world = RelayWorld((3, size, 3), seed)
    for claimant in (world.publisher, world.reader):
        world.claim(claimant)
        world.run(5)
    began, blocks = world.now, 0
    change = Change(world, then, is_late) if then != size else None
    sent: dict[bytes, tuple[float, bytes]] = {}  # parcels: when they were sent, and the secret of their lane key
    for number, parcel in enumerate(sealed(load.parcels)):
        world.run(began + number * load.pace_s - world.now)
        if world.now >= began + blocks * load.block_s:
            if change is not None and world.now >= began + load.warm_s:
                change.before_block()
            world.block()
            blocks += 1
        if number % load.key_parcels == 0:
            secret = world.give(number).secret
        sent[parcel.hash] = world.now, secret
        world.publish([parcel])
    world.run(load.after_s)
    is_over = change is None or world.ledger.newest_plan() is change.plan
    if not is_over or bool(world.departed()) != (then < size):
        raise RuntimeError("the change is not over")
    return max(wait for time, wait in waits(world, sent) if time >= began + load.warm_s)


class Change:
    """The middle of a world gets a relay more, or loses its first one."""

    def __init__(self, world: RelayWorld, then: int, is_late: bool) -> None:
        self._world, self._is_late, self._is_told = world, is_late, False
        plan = world.plans[1]
        middle, others = plan.nodes[MIDDLE], chain((3, then, 3)).nodes[MIDDLE].relays
        self._newcomer = others[-1].identifier if then > len(middle.relays) else b""
        if self._newcomer:
            self.plan = attached(plan, middle.identifier, others[-1])
        else:
            self.plan = detached(plan, middle.relays[0].identifier)

    def before_block(self) -> None:
        """The plan comes, unless it is there; a newcomer starts then or, if it is late, when the plan counts."""
        world, name = self._world, self._newcomer.hex()
        if not self._is_told:
            self._is_told = True
            world.plans[2] = self.plan
            world.ledger.known.append((world.ledger.height + MARGIN_BLOCKS, self.plan))
            if name:
                world.network.add(name, self._start)
            if name and self._is_late:
                world.network.crash(name)
        elif name and self._is_late and world.ledger.newest_plan() is self.plan:
            world.network.restart(name)
            self._is_late = False

    def _start(self, stored: Mapping[str, bytes]) -> Role:
        return self._world._make(self._newcomer, False, self._world.now, stored)


def waits(world: RelayWorld, sent: dict[bytes, tuple[float, bytes]]) -> Iterator[tuple[float, float]]:
    """When each message was sent, and how long it took."""
    edge = {relay.identifier.hex() for relay in world.plans[1].nodes[-1].relays}
    held: dict[bytes, dict[str, float]] = {parcel: {} for parcel in sent}
    opened: dict[bytes, float] = {}
    for time, who, value in world.network.delivered:
        if isinstance(value, OpenedShares):
            opened.setdefault(value.secret, time)
        elif isinstance(value, CarriedParcel) and who in edge:
            held[value.parcel.hash].setdefault(who, time)
    for parcel, (time, secret) in sent.items():
        if held[parcel].keys() != edge or secret not in opened:
            raise RuntimeError("a message was lost")
        yield time, max(*held[parcel].values(), opened[secret]) - time
