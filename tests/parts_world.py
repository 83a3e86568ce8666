"""A viewer of a ledger that a test writes, and a warehouse that it fills; nothing here needs a network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ledger_world import NOW_MS, World, seed

from tallystick.client.session import Session
from tallystick.console.mirror import Mirror
from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit
from tallystick.identity.folder import Identity, Keys
from tallystick.ledger import entries
from tallystick.ledger.block import Transaction
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.sources import ManualClock

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
NOWHERE = "http://127.0.0.1:9"


class PartsWorld:
    """A ledger with every contract in force, and its reader."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.world = folder, ManualClock(NOW_MS / 1000), World()
        self.ledger = SqliteLedger(str(folder / "node.sqlite"), self.world.trust, self.world.ledger_key, NOW_MS)
        for transaction in self.world.founding():
            self.accept(transaction)
        found = newest().items()
        self.accept(self.world.authority.sign(*(entries.activate(*one, self.ledger.height + 2) for one in found)))
        self.grow()

    @property
    def height(self) -> int:
        return self.ledger.height

    def accept(self, transaction: Transaction) -> None:
        self.ledger.submit(transaction.data, int(self.clock.now() * 1000))
        self.grow()

    def grow(self, blocks: int = 1) -> None:
        for _ in range(blocks):
            self.clock.advance(1)
            self.ledger.flush(int(self.clock.now() * 1000))

    @contextmanager
    def viewing(self, warehouse: Path | None = None) -> Iterator[Viewer]:
        """What the doctor sees, who followed once."""
        world, home = self.world, self.folder / "home"
        home.mkdir(exist_ok=True)
        people = (world.doctor.certificate, world.authority.certificate, (world.node.certificate,))
        keys = Keys(seed("doctor"), seed("sealing"))
        identity = Identity(home, "doctor", *people, (NOWHERE,), NOWHERE, world.trust, keys)
        mirror = Mirror(self.folder / "mirror", world.trust, lambda: int(self.clock.now() * 1000))
        with Session(identity, clock=self.clock) as session:
            mirror.follow(self)
            yield Viewer(session, mirror, warehouse)
        mirror.close()

    # As a mirror asks.

    def refresh(self) -> Any:
        return self.ledger._head()

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        return self.ledger.blocks(first, most)


def visit_of(viewer: Viewer, path: str, parameters: Mapping[str, str] = {}, **query: str) -> Visit:
    return Visit(viewer, "/base", path, parameters, query)


def put(
    warehouse: Path,
    name: str,
    rows: Sequence[dict[str, Any]],
    schema: pa.Schema | None = None,
    batch: int = 0,
    **facts: Any,
) -> Path:
    """A batch of a table, as a job leaves it."""
    place = warehouse / name / f"batch={batch}"
    place.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), place / "part.parquet")
    (place / "_batch.json").write_text(json.dumps({"batch": batch, "rows": len(rows), **facts}))
    return place
