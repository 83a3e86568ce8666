"""`memory_…`: the largest resident size after tenfold input, against that after the input once.

`memory_sealing` seals and opens a stream of parcels, nothing kept; `memory_publisher` and `memory_node` are the two
processes between which records pass through a node and back, the first being publisher and subscriber in one. A ratio
of one means that memory does not hang on the input; a node remembers a few bytes for each parcel (its place and hash).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import node
from harness import Figure

RECORDS = 65_536  # a third of the input, in parcels of 512
TARGET = 0.9  # what the allocators' mood may cost


def cases() -> Iterator[Figure]:
    (once,), (tenfold,) = (_in_process("sealing", parcels) for parcels in (16, 160))
    yield Figure("memory_sealing", tenfold, once, "MiB", TARGET)
    publisher, node_, publisher_tenfold, node_tenfold = _in_process("node", RECORDS)
    yield Figure("memory_publisher", publisher_tenfold, publisher, "MiB", TARGET)
    yield Figure("memory_node", node_tenfold, node_, "MiB", TARGET)


def _in_process(what: str, amount: int) -> list[float]:
    """A process of its own for each: a peak never falls."""
    done = subprocess.run([sys.executable, __file__, what, str(amount)], check=True, stdout=subprocess.PIPE, text=True)
    return [float(number) for number in done.stdout.split()]


def _through_node(records: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, node.Ours(Path(folder) / "ours") as ours:
        # Thrice is the input once: before, pools and caches are still filling.
        return [*_pass_through(ours, records, 3, 3), *_pass_through(ours, records, 27, 30)]


def _pass_through(ours: node.Ours, records: int, more: int, in_all: int) -> tuple[float, float]:
    """Publish more, fetch all; the largest sizes so far of this process and of the node's."""
    for _ in range(more):
        ours.publish(512, records)
    ours.fetch(512, records * in_all)
    return _peak(os.getpid()), _peak(ours.pid)


def _peak(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _seal_and_open(parcels: int) -> list[float]:
    import sealing
    from makers import INSTANCE, entropy, token

    from tallystick.parcel.open import open_batch
    from tallystick.parcel.parcel import Parcel
    from tallystick.parcel.verify import verify_run
    from tallystick.record.batch import Batch

    work = sealing.Work(4096, 4)
    lane, head = work.world.lane(schema=sealing.data.SCHEMA), None
    for number in range(parcels):
        batch = Batch.of(sealing.data.SCHEMA, work.columns[number % 4])
        parcel = Parcel.decode(lane.seal(batch, now_ms=number, entropy=entropy(number)).encode())
        verified = verify_run([parcel], INSTANCE, token(sealing.TOPIC), work.book, head)
        assert open_batch(verified[0], work.ring, sealing.data.SCHEMA).rows == 4096
        head = parcel.header.sequence, parcel.hash
    return [_peak(os.getpid())]


if __name__ == "__main__":
    print(*{"sealing": _seal_and_open, "node": _through_node}[sys.argv[1]](int(sys.argv[2])))
