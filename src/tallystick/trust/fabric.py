"""What a dispatcher of the fabric signs: which key requests to it are sealed to, and its answers to hosts.

Threat: an operator's configurator, or any host, that speaks in the dispatcher's place. A card holds by the key of a
node on the ledger; an answer names the signed request that it answers, and when it was issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tallystick.crypto import hpke
from tallystick.crypto.signatures import SignedObject, VerifyKey
from tallystick.wire import Number, Octets16, Octets32, number, octets, row, several, text

LABELS_TOLD_MAX = 96  # of each kind, so that an answer fits its one size
SUBSPACE_MAX = 64  # characters
_NAME_BYTES = _LABEL_BYTES = 16
_EPOCH_MAX = 0xFFFF  # of routes


@dataclass(frozen=True)
class DispatcherCard(SignedObject):
    """A dispatcher's word on the key to which requests are sealed; it is a node, whose certificate has none."""

    what = "dispatcher card"
    context = "tallystick fabric dispatcher 1"
    instance: Octets32
    node: Octets16
    key: Octets32  # of the node, by which this holds
    sealing: Annotated[bytes, octets(hpke.PUBLIC_BYTES)]

    def check(self, node_key: VerifyKey) -> None:
        """Raise `Forged` unless it is the word of the node with this key."""
        self.verify_by(node_key)


_told = several(row(octets(_NAME_BYTES), text(SUBSPACE_MAX), octets(_LABEL_BYTES)), LABELS_TOLD_MAX)


@dataclass(frozen=True)
class FabricAnswer(SignedObject):
    """The dispatcher's word on a request, and again whenever it changes."""

    what = "fabric answer"
    context = "tallystick fabric answer 1"
    instance: Octets32
    request: Octets32
    issued_ms: Number  # of two, the later one counts
    until_ms: Number  # how long the permit lasts
    epoch: Annotated[int, number(_EPOCH_MAX)]  # the route epoch
    send: Annotated[tuple[tuple[bytes, str, bytes], ...], _told] = ()  # (flow, subspace, label)
    receive: Annotated[tuple[bytes, ...], several(octets(_LABEL_BYTES), LABELS_TOLD_MAX)] = ()
    refused: Annotated[str, text(64)] = ""
