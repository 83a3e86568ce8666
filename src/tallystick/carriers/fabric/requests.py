"""All that the configurator ever hears: flows, subscriptions, ports (thesis 6.3.4, Fig. 18).

A dispatcher works with its tenant's authority and has seen policies and interests; the configurator is the operator's.
Threat: a configurator that is curious. Invariant: a request names a flow or a subscription by sixteen random bytes and
says where its host is plugged in, what it was matched with, until when the permit lasts and how fast it may send. No
topic, token, principal, permit, policy, interest or key stands in it. What it still shows is who talks to whom, by
ports.

A flow is one subspace of one advertisement. Whoever makes a request again under the same identifier puts it in the
place of the old one, so that dispatchers may repeat everything to a successor. Only the dispatcher that made a flow or
a subscription changes or withdraws it, or complains about it.

Both ways a control piece at a port travels with the port's name (`PortPiece`). The configurator says what became of a
request (`FlowAnswer`), or wants to be asked everything again. Who is at the other end is for the connection to know:
these frames carry no signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, NamedTuple

from tallystick import wire
from tallystick.carriers.fabric.route import EPOCH_MAX
from tallystick.carriers.fabric.rules import PORT_MAX
from tallystick.errors import Malformed
from tallystick.wire import Fields, Number, Octets16, WireObject, distinct, number, octets, several, text

MATCHES_MAX = 16_384  # of one request: 300 kB
REQUEST_BYTES_MAX = 512 * 1024
SWITCH_NAME_MAX = 64  # characters
RATE_MAX = 10_000_000  # frames a second
PIECE_BYTES_MAX = 9_216


class FlowKind(IntEnum):
    ADVERTISE = 1
    SUBSCRIBE = 2
    WITHDRAW = 3  # a flow or a subscription, by its identifier alone
    COMPLAIN = 4  # a subscription, by its identifier alone: its subscriber says that something altered came to it


@dataclass(frozen=True, slots=True)
class FlowRequest(WireObject):
    """What a dispatcher asks for. `matches` are the subscriptions of a flow, or the flows of a subscription; what is
    not known (yet) is left out, and a pair is routed if either side names the other. A complaint has no answer: it
    starts a search for who alters frames (blaming.py), or none where one is under way or has just been."""

    what = "flow request"
    bytes_max = REQUEST_BYTES_MAX
    kind: Annotated[FlowKind, wire.chosen(FlowKind)]
    identifier: Octets16  # random, of a flow or a subscription
    switch: Annotated[str, text(SWITCH_NAME_MAX)] = ""
    port: Annotated[int, number(PORT_MAX)] = 0
    expiry_ms: Number = 0  # the permit's; rules go with it
    rate: Annotated[int, number(RATE_MAX)] = 0  # frames a second that a flow may send
    matches: Annotated[frozenset[bytes], distinct(octets(16), MATCHES_MAX)] = frozenset()

    def __post_init__(self) -> None:
        if self.kind in (FlowKind.ADVERTISE, FlowKind.SUBSCRIBE) and not self.port:
            raise Malformed("flow request: a host's port expected")


@dataclass(frozen=True, slots=True)
class FlowAnswer(WireObject):
    """What a dispatcher hears, at once and whenever it changes.

    `send` has, for a flow, the label under which its publisher sends; for a subscription, per flow the label that leads
    up the tree to whoever repairs. `receive` has the labels under which frames come to this host: for a subscription
    its own, and one more for every set of subscriptions at this port that share a flow; for a flow that of requests
    for repair. A refusal has a reason and nothing else.
    """

    what = "flow answer"
    identifier: Octets16
    epoch: Annotated[int, number(EPOCH_MAX)] = 0
    # (flow, label), in the order of flows
    send: Annotated[tuple[tuple[bytes, bytes], ...], several(wire.row(octets(16), octets(16)), MATCHES_MAX)] = ()
    receive: Annotated[tuple[bytes, ...], several(octets(16), MATCHES_MAX)] = ()  # labels, in order
    refused: Annotated[str, text(64)] = ""  # the reason


_PIECE, _ANSWER, _ASK, _REPEAT = range(1, 5)
REPEAT = wire.encode([1, _REPEAT, b""])  # everything is to be asked for again


class PortPiece(NamedTuple):
    """Came out of a port, or is to go out of one."""

    switch: str
    port: int
    payload: bytes

    def encode(self) -> bytes:
        return wire.encode([1, _PIECE, [*self]])


def wrap(said: FlowRequest | FlowAnswer) -> bytes:
    """The frame that brings it to the other."""
    return wire.encode([1, _ANSWER if isinstance(said, FlowAnswer) else _ASK, said.encode()])


def read_frame(data: bytes) -> PortPiece | FlowRequest | FlowAnswer | None:
    """None for `REPEAT`. Raises `Malformed`."""
    fields = Fields.parse(data, "dispatcher frame", 3)
    fields.version(1)
    kind = fields.number(_REPEAT, 1)
    if kind == _PIECE:
        parts = fields.array(3)
        return PortPiece(parts.text(SWITCH_NAME_MAX), parts.number(PORT_MAX), parts.octets(at_most=PIECE_BYTES_MAX))
    inner = fields.octets(at_most=REQUEST_BYTES_MAX)
    if kind == _REPEAT:
        return None
    return FlowAnswer.decode(inner) if kind == _ANSWER else FlowRequest.decode(inner)
