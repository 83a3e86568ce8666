"""What must hold whatever the seed does: the checker hears of everything and forgets nothing.

1. Every acknowledged record is delivered exactly once to an honest subscriber, in the order of its lane, or a finding
   names its absence; in a world of honest nodes there is nothing to find.
2. Nothing is delivered that was not produced.
3. No sequence of a lane leaves its publisher with two contents, and no body key serves twice.
4. What a node promised lies where it promised, after every recovery.
5. One signed request counts once, however often it arrives.
6. Anchors never shrink, a group's offsets never go back, and the ledger replays from its first block.

It sits outside the parts that it judges: it sees what publishers were told, what crossed the network, what the node
decided, and what subscribers got.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.carriers.carrier import Stored
from tallystick.carriers.scribe import ActNote
from tallystick.carriers.storage import Place
from tallystick.client.reader import Finding
from tallystick.client.subscribe import Received
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.node.core import NodeCore
from tallystick.parcel.parcel import Parcel

# What an honest world may show: silence while the node was down, and a publisher's own word that it dropped rows.
EXPECTED_FINDINGS = frozenset({"silent", "gap"})


class Violation(Exception):
    """An invariant does not hold."""


@dataclass
class CheckedReader:
    """What one subscriber got in one life. A member of a group may lose a partition and get it back where the group
    last committed, so it may see a batch again; whoever reads alone may not."""

    name: str
    once: bool = True
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)  # row → (partition, offset)
    ends: dict[int, int] = field(default_factory=dict)  # partition → next offset
    lanes: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # lane → last sequence, last row


class Checker:
    def __init__(self) -> None:
        self.produced: set[int] = set()
        self.acknowledged: set[int] = set()  # of these, what the publisher was told to be safe
        self.promised: dict[tuple[Place, int], bytes] = {}
        self._sent: dict[tuple[bytes, int], bytes] = {}
        self._commitments: dict[bytes, bytes] = {}
        self._identifiers: dict[bytes, bytes] = {}
        self._acts: set[tuple[bytes, bytes, bytes, int, int]] = set()
        self._floors: dict[tuple[Any, ...], int] = {}
        self._where: dict[int, tuple[int, int]] = {}

    # What publishers do.

    def send(self, parcel: Parcel) -> None:
        """A parcel leaves its publisher (3)."""
        header = parcel.header
        place = (header.lane, header.sequence)
        if self._sent.setdefault(place, parcel.hash) != parcel.hash:
            raise Violation(f"lane {header.lane.hex()[:8]} sealed sequence {header.sequence} twice")
        if self._identifiers.setdefault(header.identifier, parcel.hash) != parcel.hash:
            raise Violation(f"lane {header.lane.hex()[:8]}: two parcels have one identifier")
        for group in header.groups:
            if self._commitments.setdefault(group.commitment, parcel.hash) != parcel.hash:
                raise Violation(f"lane {header.lane.hex()[:8]}: a body key served twice")

    # What the node does.

    def store(self, outcomes: Iterable[object]) -> None:
        """The node decided on parcels: its word counts, whether or not the answer arrives (4)."""
        for outcome in outcomes:
            if isinstance(outcome, Stored):
                for promise in outcome.promises:
                    place = (Place(promise.token, promise.partition), promise.offset)
                    if self.promised.setdefault(place, promise.parcel) != promise.parcel:
                        raise Violation(f"{place}: two parcels were promised for one offset")

    def note(self, notes: Iterable[ActNote]) -> None:
        """A request was answered, and what it did is written down (5)."""
        for note in notes:
            if note.role is OperatorRole.PUBLISHER and not note.reason:
                act = (note.operator, note.nonce, note.token, note.partition, note.first)
                if act in self._acts:
                    raise Violation(f"request {note.nonce.hex()[:8]} counted a second time")
                self._acts.add(act)

    def check_log(self, core: NodeCore) -> None:
        """After a recovery: nothing promised is missing, and nothing was found damaged (4)."""
        storage = core.carrier.storage
        if storage.statistics().damages:
            raise Violation("recovery reports damage")
        for (place, offset), parcel in sorted(self.promised.items()):
            found = storage.read(place, offset, 1, headers_only=True)
            if not found or found[0].offset != offset or found[0].parcel_hash != parcel:
                raise Violation(f"{place}, offset {offset}: promised, and not there after the recovery")

    def check_ledger(self, values: Mapping[tuple[Any, ...], int], what: str) -> None:
        """Anchors and offsets only rise (6)."""
        for place, value in values.items():
            if value < self._floors.get((what, *place), 0):
                raise Violation(f"{what} {place} went back from {self._floors[what, *place]} to {value}")
            self._floors[what, *place] = value

    # What subscribers get.

    def deliver(self, reader: CheckedReader, received: Received) -> None:
        """A batch reaches an application (1, 2)."""
        place = (received.partition, received.offset)
        rows = [row["row"] for row in received.to_pylist()]
        if reader.once:
            self._check_order(reader, received, rows)
        for row in rows:
            if row not in self.produced:
                raise Violation(f"{reader.name}: row {row} was never produced")
            if reader.once and row in reader.rows:
                raise Violation(f"{reader.name}: row {row} came twice, at {reader.rows[row]} and {place}")
            if self._where.setdefault(row, place) != place:
                raise Violation(f"row {row} lies at {self._where[row]} and at {place}")
            reader.rows[row] = place

    def _check_order(self, reader: CheckedReader, received: Received, rows: list[int]) -> None:
        if received.offset < reader.ends.get(received.partition, 0):
            raise Violation(f"{reader.name}: offset {received.offset} came again")
        reader.ends[received.partition] = received.offset + 1
        sequence, last = reader.lanes.get(received.lane, (-1, -1))
        if received.sequence <= sequence or rows != sorted(rows) or rows[0] <= last:
            raise Violation(f"{reader.name}: lane {received.lane.hex()[:8]} out of order at {received.sequence}")
        reader.lanes[received.lane] = (received.sequence, rows[-1])

    def find(self, reader: str, finding: Finding) -> None:
        if finding.reason not in EXPECTED_FINDINGS:
            raise Violation(f"{reader}: finding {finding.reason} in an honest world: {finding.message}")

    def finish(self, names: str, rows: set[int]) -> None:
        """At the end, when all is quiet: everything acknowledged arrived (1)."""
        missing = self.acknowledged - rows
        if missing:
            raise Violation(f"{names}: {len(missing)} acknowledged rows never came, row {min(missing)} first")
