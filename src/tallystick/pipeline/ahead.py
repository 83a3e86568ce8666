"""What verifying a range will ask the node for, asked for together.

A range of ten thousand publishers needs as many permits, as many fronts of lanes, and the proofs of the checkpoints
that they name. `prepare` sees the headers of a range first and asks for all of it in few requests; what then verifies
them (client/reader.py) finds the answers here and checks each as if it had come alone. What is missing here it asks for
itself, and what is false here it refuses: nothing is believed for having come in company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from tallystick.carriers.carrier import LaneFront
from tallystick.client.reader import LaneHead
from tallystick.errors import Refused
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook
from tallystick.pipeline.access import Access

_Lane = tuple[bytes, bytes]  # publisher and lane


class Ahead:
    """For one partition, read from the offset `first` on."""

    def __init__(self, access: Access, book: PermitBook, partition: int, first: int) -> None:
        self._access, self._book, self._partition, self._first = access, book, partition, first
        self._node, self._view = access.session.node, access.session.view
        self._permits: set[bytes] = set()  # that were asked for
        self._fronts: dict[tuple[_Lane, int], LaneFront | None] = {}  # of a lane, under an anchor's size
        self._proofs: dict[tuple[int, int], Sequence[bytes]] = {}

    def prepare(self, parcels: Sequence[Parcel], size: int, heads: Mapping[_Lane, LaneHead]) -> None:
        """Ask for what the parcels of a range need under an anchor of this size, beyond the heads that are known; no
        anchor proves a front if it is 0."""
        headers = [parcel.header for parcel in parcels]
        for ask in (self._learn_permits, partial(self._ask_for_fronts, size, heads), self._ask_for_proofs):
            with suppress(Refused):  # of one, or of all: who needs an answer asks alone, and says what is wrong
                ask(headers)

    def lane_front(self, publisher: bytes, lane: bytes, below: int, size: int) -> LaneFront | None:
        key = ((publisher, lane), size)
        if key in self._fronts:
            return self._fronts.pop(key)
        access = self._access
        return self._node.lane_front(access.token, self._partition, access.permit, publisher, lane, below, size)

    def check_seen(self, size: int, root: bytes) -> None:
        self._view.check_seen(size, root, self._consistency)

    def _consistency(self, old: int, new: int) -> Sequence[bytes]:
        proof = self._proofs.get((old, new))
        return self._node.consistency(old, new) if proof is None else proof

    def _learn_permits(self, headers: Sequence[Header]) -> None:
        unknown = {topic.permit for header in headers for topic in header.topics} - self._permits
        self._permits |= unknown
        for data in self._node.permits(sorted(unknown)) if unknown else ():
            with suppress(Refused):
                self._book.add(data)

    def _ask_for_fronts(self, size: int, heads: Mapping[_Lane, LaneHead], headers: Sequence[Header]) -> None:
        lanes: dict[_Lane, None] = {}
        met: set[_Lane] = set()
        for header in headers if self._first and size else ():
            with suppress(Refused):
                lane = (self._book.get(header.topic(self._access.token).permit).principal, header.lane)
                if lane not in met and lane not in heads and header.sequence:
                    lanes[lane] = None
                met.add(lane)
        if lanes:
            access, wanted = self._access, list(lanes)
            fronts = self._node.lane_fronts(access.token, self._partition, access.permit, wanted, self._first, size)
            self._fronts = {(lane, size): front for lane, front in zip(wanted, fronts, strict=True)}

    def _ask_for_proofs(self, headers: Sequence[Header]) -> None:
        accepted = self._view.accepted
        if accepted is None:
            return
        named = {header.checkpoint[0] for header in headers if header.checkpoint is not None}
        sizes = sorted(size for size in named if size < accepted[0] and (size, accepted[0]) not in self._proofs)
        if sizes:
            proofs = self._node.consistencies(sizes, accepted[0])
            self._proofs = {(size, accepted[0]): proof for size, proof in zip(sizes, proofs, strict=True)}
