"""SYNAPSE, Algorithm 3: what is lost when a replica is detached under load, as printed and corrected.

Claim (text around Algorithms 3 to 5): the protocol "is designed in such a way to prevent disruptions to the publication
delivery service". Line 2 of Algorithm 3 reads "while not received ACK from every V and input queue not empty": a broker
that obeys it stops when its queue is empty for a moment, or when the last acknowledgement is there while the queue is
not. Both lose what the virtual nodes before it counted on.

Each run: the replicas of one virtual node, r of them, send numbered messages to one replica of the next, with delays of
their own for each message, until a plan without that replica takes effect. It passes them on one after the other until
it disconnects. Up to f senders are liars, who send nothing and acknowledge at once; f honest ones have slow links.

    printed      Algorithms 3 and 5 to the letter: queues are flushed, acknowledged and removed
    all but f    corrected, but acknowledgements of all but f of each virtual node are enough
    corrected    the product's: all acknowledgements, and empty queues; acknowledged is what was received

Expected band, at (3,4) becoming (2,3) and (4,6) becoming (3,5): printed loses in at least nine runs of ten, liars or
not; all but f loses in some of those with liars; corrected loses nothing in any.

Seed 4. `python -m experiments.synapse.detach [--seed N] [--small]` writes build/experiments/synapse/detach.csv, .png.
The printed rule exists here only: no setting of the product reaches it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from experiments import results
from experiments.results import Plot
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.membership import Algorithm3, Algorithm5, PlanVersions, detached
from tallystick.carriers.overlay.notices import Notice
from tallystick.carriers.overlay.routing import Routing
from tallystick.guards.route import RoutingGuard
from tallystick.guards.rules import GuardLimits
from tallystick.runtime.effects import Arrived, Effect, Event, Send, WakeAt
from tallystick.runtime.network import Link, Network
from tallystick.trust.plan import Plan, Relay, VirtualNode

VARIANTS = ("printed", "all but f", "corrected")
EVERY_S, SERVICE_S = 0.010, 0.001  # of one sender; of the replica that leaves
CHANGE_S, END_S = 1.0, 60.0
LINK, SLOW = Link(0.001, 0.050, reorder=0.2, held_max_s=0.5), Link(0.5, 1.5)


@dataclass(frozen=True)
class Row:
    variant: str
    replicas: int
    liars: int
    draw: int
    sent: int  # before the plan took effect
    lost: int
    stayed_s: float  # from then on


def make_plan(size: int) -> Plan:
    """Two virtual nodes: those who send, and those of whom one leaves."""

    def relay(node: int, index: int) -> Relay:
        keys = (bytes([node, index, use]) * 16 for use in (1, 2))
        return Relay(
            bytes([node, index]) * 8, *(key[:32] for key in keys), f"{node}.{index}.example:1", f"{index}", f"{index}"
        )

    first = VirtualNode(b"1" * 16, b"", tuple(relay(1, index) for index in range(size)))
    second = VirtualNode(b"2" * 16, b"1" * 16, tuple(relay(2, index) for index in range(size)))
    return Plan(bytes(16), 1, (first, second))


class Sender:
    """A replica before the one that leaves: sends, keeps until it hears that it was received, and sends again."""

    def __init__(self, me: bytes, leaver: bytes, plan: Plan, variant: str, lies: bool) -> None:
        self._leaver, self._variant, self._lies = leaver.hex(), variant, lies
        versions = PlanVersions(plan)
        versions.announce(detached(plan, leaver), 1)
        nobody = RoutingGuard(lambda message: None, (), GuardLimits())
        self._algorithm = Algorithm5(Routing(me, plan, nobody, lambda identifier: False), versions)
        self._waiting: dict[bytes, float] = {}
        self.sent = 0

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived):
            frame = OverlayFrame.decode(event.message)
            if frame.kind is FrameKind.ACK:
                self._waiting.pop(frame.content, None)
            else:
                effects += self._notice(Notice.decode(frame.content), bytes.fromhex(event.sender), now)
        else:
            effects += self._work(now)
        is_flushed = self._lies or self._variant == "printed"
        return [*effects, *self._algorithm.acknowledge(lambda relay: is_flushed or not self._waiting)]

    def _notice(self, notice: Notice, sender: bytes, now: float) -> list[Send]:
        sends = self._flush(self._waiting) if self._variant == "printed" else []  # Algorithm 5, lines 3 and 4
        return [*sends, *self._algorithm.receive(notice, sender, now)]

    def _work(self, now: float) -> list[Effect]:
        if self._lies or now > END_S:
            return []
        if now < CHANGE_S:
            self.sent += 1
            self._waiting[self.sent.to_bytes(8, "big")] = float("-inf")
        again = [number for number, when in self._waiting.items() if now - when > 1.0]
        if self._variant == "printed" and now >= CHANGE_S:
            again = []  # its queue is removed
        self._waiting |= dict.fromkeys(again, now)
        return [*self._flush(again), WakeAt(now + EVERY_S)]

    def _flush(self, numbers: Sequence[bytes] | dict[bytes, float]) -> list[Send]:
        return [Send(self._leaver, OverlayFrame(FrameKind.CONTENT, 1, number).encode()) for number in numbers]


class Leaver:
    """The replica that the next plan does not name: one input queue, served in order."""

    def __init__(self, me: bytes, plan: Plan, variant: str) -> None:
        self._variant, self._senders = variant, plan.nodes[0]
        self._algorithm = Algorithm3(me, plan, detached(plan, me))
        self._queue: deque[tuple[str, bytes]] = deque()
        self._told_at = float("-inf")
        self._acknowledged: set[str] = set()
        self.passed: set[tuple[str, bytes]] = set()
        self.left: float | None = None

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if self.left is not None:
            return []
        effects: list[Effect] = []
        if isinstance(event, Arrived):
            effects += self._arrived(event)
        else:
            if self._queue:
                self.passed.add(self._queue.popleft())
            effects.append(WakeAt(now + SERVICE_S))
        if now >= CHANGE_S:
            if now - self._told_at >= 1.0:
                self._told_at = now
                effects += [effect for effect in self._algorithm.tell(now) if isinstance(effect, Send)]
            if self._is_done(now):
                self.left = now
        return effects

    def _arrived(self, event: Arrived) -> list[Send]:
        frame = OverlayFrame.decode(event.message)
        if frame.kind is FrameKind.NOTICE:
            self._acknowledged.add(event.sender)
            self._algorithm.acknowledged(Notice.decode(frame.content), bytes.fromhex(event.sender))
            return []
        one = (event.sender, frame.content)
        if one not in self.passed and one not in self._queue:
            self._queue.append(one)
        return [Send(event.sender, OverlayFrame(FrameKind.ACK, 1, frame.content).encode())]

    def _is_done(self, now: float) -> bool:
        relays, empty = self._senders.relays, not self._queue
        if self._variant == "printed":  # while not received ACK from every V and input queue not empty
            return len(self._acknowledged) == len(relays) or empty
        if self._variant == "all but f":
            return empty and len(self._acknowledged) >= len(relays) - self._senders.faults
        return self._algorithm.is_done(empty, now)


def detach(variant: str, size: int, liars: int, draw: int, seed: int) -> Row:
    plan = make_plan(size)
    me = plan.nodes[1].relays[-1].identifier
    network = Network(seed * 1000 + draw, LINK)
    leaver = Leaver(me, plan, variant)
    senders = {}
    network.add(me.hex(), lambda stored: leaver)
    for index, relay in enumerate(plan.nodes[0].relays):
        sender = senders[relay.identifier.hex()] = Sender(relay.identifier, me, plan, variant, index < liars)
        network.add(relay.identifier.hex(), lambda stored, sender=sender: sender)  # type: ignore[misc]
        if index >= size - plan.nodes[0].faults:
            network.set_link(relay.identifier.hex(), me.hex(), SLOW)
    while leaver.left is None:
        network.run(until=network.clock.now() + 0.1)
    sent = sum(one.sent for one in senders.values())
    return Row(variant, size, liars, draw, sent, sent - len(leaver.passed), leaver.left - CHANGE_S)


def run(seed: int, small: bool = False) -> Iterator[Row]:
    for variant, size, draw in product(VARIANTS, (4, 6), range(1 if small else 30)):
        for liars in (0, (size - 1) // 2):
            yield detach(variant, size, liars, draw, seed)


def misses(rows: Sequence[Row]) -> list[str]:
    """What is not as expected."""

    def losing(variant: str, liars: bool) -> tuple[int, int]:
        chosen = [row for row in rows if row.variant == variant and bool(row.liars) == liars]
        return sum(row.lost > 0 for row in chosen), len(chosen)

    missed = []
    for liars in (False, True):
        lost, count = losing("printed", liars)
        if lost < 0.9 * count:
            missed.append(f"printed loses in {lost} of {count}")
        if lost := losing("corrected", liars)[0]:
            missed.append(f"corrected loses in {lost}")
    if not losing("all but f", True)[0]:
        missed.append("all but f loses nothing to liars")
    return missed


def plot(rows: Sequence[Row]) -> Plot:
    lines = results.lines([row for row in rows if row.liars], "{variant}", "replicas", "lost")
    return Plot("Messages lost while a replica is detached", "replicas", "messages", lines)


def main(arguments: Sequence[str] | None = None) -> int:
    return results.command("synapse", "detach", run, plot, misses, arguments)


if __name__ == "__main__":
    sys.exit(main())
