"""What the signatures under a parcel's place are worth, by the version of the plan that it names.

Threat: relays that sign for others, for none, or twice. A signature counts for the index that its signer has in that
version. More of them than may be bad make a promise, the lease's holder's makes an order, and one signer's under two
parcels for one place and fence convicts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.carriers.overlay.places import Bearings, Lease
from tallystick.carriers.overlay.relayed_keys import Evidence
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.trust.plan import VirtualNode
from tallystick.trust.promise import JOINT_CONTEXT, JointPromise


class Signatories:
    """The relays of this relay's virtual node, as plans name them."""

    def __init__(self, relay: bytes, bearings: Bearings) -> None:
        self._relay, self._bearings = relay, bearings

    def seat(self, version: int) -> tuple[VirtualNode, int]:
        """This relay's virtual node and index by a version of the plan. Raises `Refused`."""
        plan = self._bearings.plan(version)
        place = None if plan is None else plan.place(self._relay)
        if place is None:
            raise Refused(f"order: this relay is not in plan {version}, or it does not count", reason="plan")
        return place

    def is_counted(self, promise: JointPromise) -> bool:
        """Whether more relays signed it than may be bad."""
        plan = self._bearings.plan(promise.plan)
        return plan is not None and len(promise.signatures) > plan.node(promise.node).faults

    def is_order(self, lease: Lease, promise: JointPromise) -> bool:
        """Whether the holder of the lease signed it."""
        plan = self._bearings.plan(promise.plan)
        seat = None if plan is None or promise.fence != lease.fence else plan.place(lease.holder)
        return seat is not None and seat[0].identifier == promise.node and seat[1] in dict(promise.signatures)

    def has_signed(self, promise: JointPromise) -> bool:
        """Whether this relay did."""
        plan = self._bearings.plan(promise.plan)
        place = None if plan is None else plan.place(self._relay)
        return place is not None and place[1] in dict(promise.signatures)


def verify_signatures(
    promise: JointPromise, node: VirtualNode, sender: int, known: Sequence[tuple[int, bytes]]
) -> None:
    """Raise `Refused` unless all are by relays of the virtual node, and one is the sender's; those that are known
    under the same promise are not looked at again."""
    if promise.signatures[-1][0] > len(node.relays) or sender not in dict(promise.signatures):
        raise Malformed("order: not signed by who sends it, or by a relay that the plan has not")
    for index, signature in set(promise.signatures).difference(known):
        VerifyKey(node.relays[index - 1].key).verify(JOINT_CONTEXT, signature, promise.body)


def convict(one: JointPromise, other: JointPromise, node: VirtualNode) -> list[Evidence]:
    """Against whoever signed two parcels for a place under one fence, and by one plan: indices of another are
    others'."""
    if not one.contradicts(other):
        return []
    both, signers = (one.encode(), other.encode()), dict(one.signatures).keys() & dict(other.signatures).keys()
    return [Evidence(node.relays[index - 1].identifier, "two-orders", both) for index in sorted(signers)]
