"""One root for a partition, signed by f+1 relays of the virtual node where its parcels enter.

Threat: the holder of the lease anchors what nobody has; what is anchored stays, so that partition would be lost. So an
anchor counts with f+1 signatures (`ledger/contracts/anchors.py`), and whoever signs has computed the root from what it
keeps itself: an honest relay holds all below it, and who lacks something gets it there (`catching_up.py`).

    offer     the holder asks the others for their signatures under size and root, again and again until they agree
    ANCHOR    who comes to the same root answers with its signature; who has other parcels, or fewer, does not
    agreed    with f+1 signatures it is delivered, and again where the ledger did not take it

Two honest relays may hold different parcels at one place, where an orderer forked its promises: then the root that f+1
sign first is anchored, and those who held another catch up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Bearings
from tallystick.carriers.storage import Place
from tallystick.crypto.signatures import Signer, VerifyKey
from tallystick.errors import Refused
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.promise import JointAnchor

AGAIN_S = 0.3  # before the others are asked once more, and before a larger tree is offered


class Anchoring:
    """A part of a relay's role; what it delivers is a `JointAnchor`."""

    def __init__(
        self,
        relay: bytes,
        instance: bytes,
        signer: Signer,
        bearings: Bearings,
        root_at: Callable[[Place, int], bytes | None],
    ) -> None:
        """`root_at` is the root of so many parcels of a partition, of what this relay keeps; None where there are
        fewer, or where they do not continue the newest anchor."""
        self._relay, self._instance, self._signer, self._bearings = relay, instance, signer, bearings
        self._root_at = root_at
        self._offers: dict[Place, tuple[JointAnchor, float]] = {}  # not agreed yet, and when they were told
        self.dropped: Counter[str] = Counter()

    def offer(self, place: Place, size: int, now: float) -> list[Effect]:
        """As the holder: the partition has grown to this size. One offer is under way at a time, until it is anchored;
        another takes its place where it cannot be any more."""
        lease, (offered, told) = self._bearings.lease(place), self._offers.get(place, (None, 0.0))
        anchored, plan = self._bearings.anchored(place), self._bearings.newest_plan()
        is_pending = offered is not None and anchored < offered.size
        root = None if is_pending and now < told + AGAIN_S else self._root_at(place, size)
        seat = plan.place(self._relay)
        if lease is None or root is None or seat is None or lease.holder != self._relay:
            return []
        node, index = seat
        where = self._instance, plan.overlay, plan.version, node.identifier, lease.fence
        mine = JointAnchor(*where, *place, size, root, anchored, ())
        is_same = offered is not None and self._counts_yet(offered, mine)  # else slow answers always came too late
        mine = offered if offered is not None and is_same else mine.sign(index, self._signer)
        self._offers[place] = mine, now
        if len(mine.signatures) > node.faults:  # the ledger did not take it, perhaps it was away
            return [Deliver(mine)]
        frame = OverlayFrame(FrameKind.ANCHOR, plan.version, mine.encode()).encode()
        return [Send(one.identifier.hex(), frame) for one in node.relays if one.identifier != self._relay]

    def _counts_yet(self, offered: JointAnchor, newer: JointAnchor) -> bool:
        """Whether an offer may still be agreed on: under the same lease and plan, and of what is here."""
        is_same = replace(newer, size=offered.size, root=offered.root, signatures=()).body == offered.body
        return is_same and self._root_at(Place(newer.token, newer.partition), offered.size) == offered.root

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """An offer of the holder's, or a signature under this relay's own. What does not fit is dropped, counted."""
        try:
            return self._hear(JointAnchor.decode(frame.content), sender)
        except Refused as error:
            self.dropped[error.reason] += 1
            return []

    def _hear(self, joint: JointAnchor, sender: bytes) -> list[Effect]:
        plan, place = self._bearings.plan(joint.plan), Place(joint.token, joint.partition)
        here, there = (None, None) if plan is None else (plan.place(self._relay), plan.place(sender))
        lease = self._bearings.lease(place)
        if plan is None or here is None or there is None or not here[0] == there[0] == plan.node(joint.node):
            raise Refused("anchor: not among relays of one virtual node", reason="misrouted")
        if lease is None or lease.fence != joint.fence or lease.holder not in (sender, self._relay):
            raise Refused("anchor: not by who holds the lease", reason="no-right")
        (node, index), (_, other) = here, there
        signature = dict(joint.signatures).get(other, b"")
        VerifyKey(node.relays[other - 1].key).verify(joint.context, signature, joint.body)
        if lease.holder == self._relay:
            return self._count(place, replace(joint, signatures=((other, signature),)), node.faults)
        if (joint.instance, joint.overlay) != (self._instance, plan.overlay):
            raise Refused("anchor: of another overlay", reason="other-tree")
        self._check_tree(place, joint)
        mine = replace(joint, signatures=()).sign(index, self._signer)
        return [Send(sender.hex(), OverlayFrame(FrameKind.ANCHOR, joint.plan, mine.encode()).encode())]

    def _check_tree(self, place: Place, joint: JointAnchor) -> None:
        """Raise `Refused` unless this relay comes to the same root, behind the same anchor."""
        if self._root_at(place, joint.size) != joint.root:
            raise Refused("anchor: of another tree than this relay's", reason="other-tree")
        if self._bearings.anchored(place) < joint.before:
            raise Refused("anchor: it continues one that this relay has not seen", reason="behind")

    def _count(self, place: Place, joint: JointAnchor, faults: int) -> list[Effect]:
        offered, told = self._offers.get(place, (None, 0.0))
        if offered is None or offered.body != joint.body:
            raise Refused("anchor: a signature under nothing that was offered", reason="late")
        was_agreed, offered = len(offered.signatures) > faults, offered.join(joint)
        self._offers[place] = offered, told
        return [Deliver(offered)] if len(offered.signatures) > faults and not was_agreed else []
