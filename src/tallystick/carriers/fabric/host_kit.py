"""What a principal gives its own host: the fabric's kit, and orders to ask the dispatcher for something; and the key
that the host has of its own.

The kit is the mesh's (`mesh/kit.py`: topics, epochs, keys, from the authority over HTTP) with the dispatcher's card in
front. The principal's signing key stays with the principal: its client signs and seals each request, and the host only
carries it. With an order to publish come the topic's code and label keys, so that the host finds the flow of a parcel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from tallystick.carriers.fabric.control import MESSAGE_BYTES, SealedAsk
from tallystick.carriers.fabric.exchanging import AgentRequest
from tallystick.carriers.fabric.fragments import FabricKey
from tallystick.carriers.mesh.kit import KIT_BYTES_MAX, MeshKit
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.labels import Labeller
from tallystick.policy.topic_code import TopicCode
from tallystick.trust.fabric import DispatcherCard, FabricAnswer
from tallystick.trust.permit import Operation
from tallystick.wire import Octets16, Octets32, WireObject, inside, number, octets, row, several

EPOCHS_MAX = 64  # of the topic, whose label keys are given
ORDER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class FabricKit(WireObject):
    what = "fabric kit"
    bytes_max = KIT_BYTES_MAX + ORDER_BYTES_MAX
    card: Annotated[DispatcherCard, inside(DispatcherCard.decode)]
    mesh: Annotated[MeshKit, inside(MeshKit.decode, KIT_BYTES_MAX)]

    @property
    def keys(self) -> list[tuple[bytes, FabricKey]]:
        return [(one.token, FabricKey.of_mesh(one.secret, one.epoch)) for one in self.mesh.topics]


@dataclass(frozen=True)
class HostKeys:
    """A host's own keys, from one seed: answers are sealed to it, and it signs complaints."""

    seed: bytes = field(repr=False)

    @cached_property
    def signing(self) -> SigningKey:
        return SigningKey.from_seed(self.seed)

    @cached_property
    def answers(self) -> hpke.PrivateKey:
        return hpke.PrivateKey.decode(self.signing.derive("tallystick fabric host answers 1"))

    @property
    def public(self) -> bytes:
        return self.answers.public.encode() + self.signing.public.raw


_keys = several(row(number(), octets(at_most=32)), EPOCHS_MAX)


@dataclass(frozen=True)
class FabricOrder(WireObject):
    """One request to the dispatcher, sealed; `operation` is 0 for an undo order."""

    what = "fabric order"
    bytes_max = ORDER_BYTES_MAX
    operation: Annotated[int, number(2)]
    token: Octets16
    permit: Octets16  # its identifier, also of one that is given back
    message: Annotated[bytes, octets(MESSAGE_BYTES)] = field(repr=False)
    name: Octets32  # the hash of what was signed
    code: Annotated[bytes, octets(at_most=ORDER_BYTES_MAX)] = b""
    label_keys: Annotated[tuple[tuple[int, bytes], ...], _keys] = field(default=(), repr=False)  # empty where clear

    def request(self, answer: FabricAnswer | None = None) -> AgentRequest:
        """For the agent; with an answer from before, which it asks for again. Raises `Malformed`."""
        code = TopicCode.decode(self.code) if self.code else None
        labellers = {epoch: Labeller(code, key or None) for epoch, key in self.label_keys} if code is not None else {}
        operation = Operation(self.operation) if self.operation else None
        asked = SealedAsk(self.message, self.name)
        return AgentRequest(operation, self.token, asked, labellers, answer, permit=self.permit)
