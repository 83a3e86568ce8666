"""Sealing and opening against orjson: what a publisher, a guard and a reader pay for a record and for a parcel.

`seal_columns` and `seal_dicts` do what a publisher does with a record batch or a list of dicts (gather, check, seal,
encode), against `orjson.dumps` of each dict. `open` does what a reader does with a fetched run of a lane: decode,
verify the run (one signature), open each parcel with every check, against `orjson.loads` of each line into a list. The
peer neither seals, signs, compresses nor checks a schema.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import data
import orjson
from harness import Case, Figure, Rate

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # the tests' world of keys and permits

from makers import INSTANCE, TENANT, World, entropy, seed, token

from tallystick.crypto.signatures import SigningKey
from tallystick.guards.permits import advertise
from tallystick.guards.publish import Lanes, publish
from tallystick.guards.rules import Act, GuardLimits, Live, TopicRules
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import verify_run
from tallystick.record.batch import Batch
from tallystick.record.gather import to_batches
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.right import Right

TOPIC = "brakes"
# Records a parcel, and parcels a run: about what one fetch brings.
SIZES = {1: 64, 8: 64, 64: 64, 512: 16, 4096: 8}
TARGETS = {"seal_columns_4096": 1.5, "seal_dicts_4096": 0.7, "open_4096": 5.0}


@dataclass
class Work:
    """A publisher, a guard and a reader of one topic, and `parcels` batches of `rows` records."""

    rows: int
    parcels: int
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.columns = [data.columns(self.rows, self.rows * number) for number in range(self.parcels)]
        self.dicts = [data.dicts(batch) for batch in self.columns]
        self.lines = [data.lines(rows) for rows in self.dicts]
        self.lane = self.world.lane(schema=data.SCHEMA)
        self.ring, self.book = self.world.ring(TOPIC), self.world.book()
        fresh = self.world.lane(schema=data.SCHEMA)
        self.sealed = [self._seal(fresh, batch) for batch in self.columns]

    def _seal(self, lane: object, rows: object) -> bytes:
        batch = Batch.of(data.SCHEMA, to_batches(rows, data.SCHEMA.arrow))
        return lane.seal(batch, now_ms=1, entropy=entropy(lane.sequence)).encode()

    def seal_columns(self) -> None:
        for batch in self.columns:
            self._seal(self.lane, batch)

    def seal_dicts(self) -> None:
        for rows in self.dicts:
            self._seal(self.lane, rows)

    def dump(self) -> None:
        dumps = orjson.dumps
        for rows in self.dicts:
            for row in rows:
                dumps(row)

    def open(self) -> None:
        run = [Parcel.decode(parcel) for parcel in self.sealed]
        for verified in verify_run(run, INSTANCE, token(TOPIC), self.book, None):
            batch = open_batch(verified, self.ring, data.SCHEMA)
            assert batch.rows == self.rows

    def load(self) -> None:
        loads = orjson.loads
        for lines in self.lines:
            rows = [loads(line) for line in lines]
            assert len(rows) == self.rows

    def guard(self) -> None:
        """What a node does with each parcel, up to storing it."""
        who = subject_id(INSTANCE, SigningKey.from_seed(seed("car")).public.raw)
        act, rules, live, lanes = Act(who, "127.0.0.1", seed("request"), 1000), Allowing(self.world), Live(4), Lanes(4)
        advertise(self.world.permit("car", TOPIC).encode(), act, rules, live)
        for parcel in self.sealed:
            accepted = publish(parcel, act, rules, live, lanes, self.world.locks.__contains__, GuardLimits())
            lanes.advance(who, accepted.parcel.header)


@dataclass
class Allowing:
    """A view of the ledger that allows everything, so that the guard's own work remains."""

    world: World
    instance: bytes = INSTANCE

    def authority(self, identifier: bytes) -> Certificate | None:
        return self.world.authority

    def blacklisted(self, principal: bytes) -> bool:
        return False

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool:
        return True

    def topic(self, token: bytes) -> TopicRules | None:
        return TopicRules(TENANT, 4, closed=False)

    def carries(self, token: bytes, partition: int) -> bool:
        return True

    def carried(self, token: bytes) -> int | None:
        return 0

    def consents(self, tenant: bytes) -> bool:
        return True

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool:
        return True

    def permit_ended(self, identifier: bytes) -> bool:
        return False

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        return True


def cases() -> Iterator[Case | Rate | Figure]:
    for rows, parcels in SIZES.items():
        work = Work(rows, parcels)
        records = rows * parcels
        for name, ours, peer in [
            (f"seal_columns_{rows}", work.seal_columns, work.dump),
            (f"seal_dicts_{rows}", work.seal_dicts, work.dump),
            (f"open_{rows}", work.open, work.load),
        ]:
            yield Case(name, ours, peer, records, target=TARGETS.get(name))
        sizes = [sum(map(len, work.sealed)), sum(len(line) for lines in work.lines for line in lines)]
        yield Figure(f"bytes_{rows}", sizes[0] / records, sizes[1] / records, "bytes/record")
        yield Rate(f"guard_{rows}", work.guard, parcels)
        yield Rate(f"subscriber_{rows}", work.open, parcels)
