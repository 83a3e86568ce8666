"""A host at work: its agent between an interface and the principal's node.

The agent has a thread of its own (`runtime/socket_role.py`). The requests that stand lie in a file beside the node's
log, with their answers and the host's own key, which opens these and signs complaints. A host that starts again goes on
with the labels that it had, and sends the requests again, one after the other: the dispatcher, to which they stand,
answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.agent import FabricAgent
from tallystick.carriers.fabric.exchanging import AgentLimits
from tallystick.carriers.fabric.host_kit import ORDER_BYTES_MAX, FabricKit, FabricOrder, HostKeys
from tallystick.carriers.fabric.wires import datagram_wire, packet_wires
from tallystick.carriers.mesh.sealed_files import SealedFiles
from tallystick.errors import CannotOpen, Malformed, Misuse, Unavailable
from tallystick.runtime.datagrams import numeric_place
from tallystick.runtime.socket_role import SocketRole
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy
from tallystick.trust.fabric import FabricAnswer
from tallystick.wire import Fields

TakePushed = Callable[[Pushed], None]
LABELS = "labels"
REQUESTS_MAX = 256  # remembered through a restart: as many as a dispatcher lets a principal have
FRAMES_EACH = 128  # that a parcel may need at the most, about: 200 kB
SOON_S = 1.0


@dataclass(frozen=True)
class HostOutside:
    """Where a host stands: its interface, and what it is made of."""

    interface: str  # packet:NAME, or datagrams:HERE>THERE, which is an emulation
    limits: AgentLimits = field(default_factory=AgentLimits)
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    random: Random = field(default_factory=SystemRandom)

    def open(self) -> socket.socket:
        """Raises `Misuse` or `Unavailable`."""
        kind, _, rest = self.interface.partition(":")
        ends = [numeric_place(one, is_six=False) for one in rest.split(">")] if kind == "datagrams" else []
        if kind == "packet" and rest:
            return packet_wires({0: rest}, even_if_used=False)[0]
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            return datagram_wire(ends[0], ends[1])
        hint = "packet:eth1, or datagrams:127.0.0.1:7001>127.0.0.1:7002 for an emulation"
        raise Misuse(f'fabric_interface = "{self.interface}": not an interface', hint=hint)


class HostStation:
    """Works until `stop`. `take` gets parcels, in the agent's thread, and must be quick."""

    def __init__(self, kit: FabricKit, outside: HostOutside, files: SealedFiles, take: TakePushed) -> None:
        self._files, self._clock = files, outside.clock
        seed, orders = self._load()
        keys, made_of = HostKeys(seed or outside.entropy.bytes(32)), (outside.random, outside.entropy, outside.limits)
        self.agent = FabricAgent(kit.card, keys, kit.mesh.epoch_ms, *made_of)
        self.agent.set_keys(kit.keys)
        self._orders = {order.permit: (order, answer) for order, answer in orders}  # that stand
        for number, (order, answer) in enumerate(orders):
            request = self.agent.requests[order.name] = order.request(answer)
            request.again_at = self._clock.now() + number * SOON_S  # one after the other: a port has a rate
        self.agent.learn()
        self._running = SocketRole(self.agent, outside.open(), outside.clock, take)
        self.stop, self.statistics, self.under_way = self._running.stop, self.agent.statistics, self.agent.under_way

    @property
    def room(self) -> int:
        """How many more parcels may wait to leave."""
        return self.agent.room // FRAMES_EACH

    def may_publish(self, token: bytes, now_ms: int) -> bool:
        return self.agent.may_publish(token, now_ms / 1000)

    def publish(self, token: bytes, pushed: Pushed) -> None:
        """Let a parcel go. Raises `Unavailable` where too much waits."""
        if self.room <= 0:
            raise Unavailable("too many frames wait", retry_after_s=SOON_S)
        self._running.call(lambda: self.agent.publish(token, pushed, self._clock.now()))

    def set_kit(self, kit: FabricKit) -> None:
        self._running.call(lambda: self.agent.set_keys(kit.keys))

    def ask(self, order: FabricOrder, wait_s: float) -> str:
        """Have a request carried to the dispatcher. Returns the reason of a refusal, empty for none. Raises
        `Unavailable` where no answer comes, and `Malformed`."""
        request = order.request()
        self._running.call(lambda: self.agent.ask(request, self._clock.now()))
        self._running.wait_for(lambda: request.answer is not None, wait_s)
        answer = request.answer
        self._running.call(lambda: self._settle(order, answer))
        if answer is None:
            raise Unavailable("the dispatcher did not answer", retry_after_s=SOON_S, hint="tally fabric topology")
        return answer.refused

    def _settle(self, order: FabricOrder, answer: FabricAnswer | None) -> None:
        """Keep what stands, in the place of what stood under the same permit, and forget all else."""
        is_done = answer is not None and not answer.refused
        old, _ = self._orders.pop(order.permit, (order, None)) if is_done else (order, None)
        if answer is not None and is_done and order.operation:
            self._orders[order.permit] = order, answer
        for name in {order.name, old.name} - {one.name for one, _ in self._orders.values()}:
            self.agent.forget(name)
        for gone in [*self._orders][:-REQUESTS_MAX]:
            self.agent.forget(self._orders.pop(gone)[0].name)
        kept = [[one.encode(), said.encode()] for one, said in self._orders.values()]
        self._files.write(LABELS, wire.encode([1, self.agent.keys.seed, kept]))

    @property
    def failure(self) -> BaseException | None:
        """What ended it."""
        return self._running.failure

    def _load(self) -> tuple[bytes, list[tuple[FabricOrder, FabricAnswer]]]:
        """The key for answers, and what stood; nothing of it where it makes no sense, and clients ask anew."""
        try:
            if (kept := self._files.read(LABELS)) is None:
                return b"", []
            fields = Fields.parse(kept, "labels of a host", 3)
            fields.version(1)
            seed, rows = fields.octets(32), [one.array(2) for one in fields.each(REQUESTS_MAX)]
            read = [(row.octets(at_most=ORDER_BYTES_MAX), row.octets()) for row in rows]
            return seed, [(FabricOrder.decode(order), FabricAnswer.decode(answer)) for order, answer in read]
        except (Malformed, CannotOpen):
            return b"", []
