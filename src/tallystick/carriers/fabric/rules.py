"""What a switch is told: flow rules, and the interface through which a controller tells it.

A rule takes one label of one route epoch to some ports, with the label's next name behind each. Threat: a label that
leaves a switch unchanged links the flow from hop to hop, and a rule that leads to the controller's port turns every
publication into a packet-in. Invariant: a `FlowRule` names every out-port once, in ascending order, each a host's or a
link's, and each with a next label, so that host ports are relabelled too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tallystick.carriers.fabric.route import EPOCH_MAX, LABEL_BYTES
from tallystick.errors import Misuse, TallystickError, Unavailable

PORT_MAX = 509  # the last port that can be a host's or a link's
CONTROLLER_PORT = 510
DROP_PORT = 511  # v1model: what is sent there is dropped
TABLE_MAX = 65_536  # entries of each of the program's two tables
GROUP_PORTS_MAX = 512  # copies of one frame; as many as there are ports
GROUPS_MAX = 65_535  # multicast groups are numbered from 1 in 16 bits; group 0 is none

RuleKey = tuple[int, bytes]  # (epoch, label)


@dataclass(frozen=True, slots=True)
class FlowRule:
    epoch: int
    label: bytes
    out: tuple[tuple[int, bytes], ...]  # (port, next label), ports ascending

    def __post_init__(self) -> None:
        ports = self.ports
        if not (0 <= self.epoch <= EPOCH_MAX and len(self.label) == LABEL_BYTES):
            raise Misuse("flow rule: an epoch of 16 bits and a label of 16 bytes expected")
        if not ports or list(ports) != sorted(set(ports)) or not (ports[0] >= 1 and ports[-1] <= PORT_MAX):
            raise Misuse(f"flow rule: distinct ports of 1 to {PORT_MAX} in ascending order expected, found {ports}")
        if any(len(label) != LABEL_BYTES for _port, label in self.out):
            raise Misuse("flow rule: a next label of 16 bytes for every port expected")

    @property
    def key(self) -> RuleKey:
        return self.epoch, self.label

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for port, _label in self.out)


RuleTable = Mapping[RuleKey, FlowRule]  # of one switch
RuleChanges = dict[RuleKey, FlowRule | None]  # of one switch; None where there is none any more
PacketIn = Callable[[int, bytes], None]  # (ingress port, frame)


def changed(old: RuleTable, new: RuleTable) -> RuleChanges:
    """What makes the one of the other."""
    return {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}


class NotInForce(Unavailable):
    """A switch did not take all that it was told. `in_force` is its table now, or None where it did not even say."""

    def __init__(self, message: str, in_force: RuleTable | None) -> None:
        super().__init__(message)
        self.in_force = in_force


class Superseded(TallystickError):
    """Another leads: nothing here is ours to write any more."""


class SwitchDriver(Protocol):
    """One switch, as its controller drives it. Every call may raise `Unavailable`."""

    name: str

    def lead(self, election: int) -> None:
        """Become the one that writes here, with this fencing number. Raises `Superseded` where another leads with a
        greater one; so does every later write, once another leads."""

    def write(self, changes: RuleChanges) -> None:
        """Install these rules (in place of what has the same key), and remove those: all of it, or raise `NotInForce`.
        What leads out of a port is told before what leads to it."""

    def read(self) -> RuleTable: ...

    def counters(self) -> Mapping[RuleKey, tuple[int, int]]:
        """(packets, bytes) that each rule matched since it was installed."""

    def unmatched(self) -> Mapping[int, int]:
        """By port: frames that came in there under a label nobody knows, since the switch started. Empty where the
        target does not tell."""

    def packet_out(self, port: int, frame: bytes) -> None:
        """Send a frame out of a port; nobody says whether it went."""

    def listen(self, packet_in: PacketIn) -> None:
        """Have every later packet-in handed to this, on a thread of the driver's."""
