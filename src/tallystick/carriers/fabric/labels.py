"""Route labels: what a flow is called at each switch (thesis 5.2.4).

Threat: a switch that sells what it learnt, two switches that compare their tables, a host that guesses. The thesis
draws a random number of 16 bits that is the same at all switches; 301 advertisements collide with one chance in two,
and a guess hits within 65,536 frames. Invariant: a label is 128 bits of a PRF under the fabric's key of the flow, the
switch, the epoch and the tree, so that a label learnt at one switch is worth nothing at another and tables alone do not
link. Whoever has the key and the requests computes the same labels: a successor needs no table of them.

The tree stands in the label because two trees of one flow may be in force while one takes the place of the other, and
a frame must not change from one to the other on its way. The first hop's label has none: its publisher keeps it for the
epoch, and the rule behind it is what decides, at once, for one tree or the other.

Not defended: a switch and the next one share a name for what goes from one to the other, and switches that collude
link by the bytes of the payload, its size and its time, whatever the labels say.
"""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.carriers.fabric.route import LABEL_BYTES
from tallystick.crypto.symmetric import derive

_DOWN, _UP, _LAST, _REPAIR, _SHARED = range(1, 6)  # what the label is for


class RouteLabels:
    """The labels of one fabric, from its key (32 bytes)."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def first(self, flow: bytes, switch: str, epoch: int) -> bytes:
        """Under which the publisher sends."""
        return self._label(_DOWN, switch, epoch, flow, b"")

    def down(self, flow: bytes, switch: str, epoch: int, tree: bytes) -> bytes:
        """What comes from the publisher, at a switch behind the first."""
        return self._label(_DOWN, switch, epoch, flow, tree)

    def up(self, flow: bytes, switch: str, epoch: int, tree: bytes, came: int = 0) -> bytes:
        """What goes to the publisher: requests for repair that came in by this port, or (0) from hosts here. Otherwise
        two switches that send to a third would know the flow by one name."""
        return self._label(_UP, switch, epoch, flow, tree, came)

    def repair(self, flow: bytes, switch: str, epoch: int) -> bytes:
        """Under which requests for repair reach the publisher."""
        return self._label(_REPAIR, switch, epoch, flow)

    def last(self, subscriptions: Iterable[bytes], switch: str, port: int, epoch: int) -> bytes:
        """Under which a host gets what all of these subscriptions of its port match: with one, the subscription's own
        label. A port lets one copy out, and a copy has one label."""
        return self._label(_LAST, switch, epoch, port, *sorted(subscriptions))

    def shared(self, out: bytes, switch: str, epoch: int) -> bytes:
        """What flows share at a switch from which they go the same way; `out` says which."""
        return self._label(_SHARED, switch, epoch, out)

    def _label(self, kind: int, switch: str, epoch: int, *context: bytes | int) -> bytes:
        return derive(self._key, "tallystick route label 1", kind, switch.encode(), epoch, *context)[:LABEL_BYTES]
