"""A driver of its own, to be killed: streams one topic onto another until all is there, and dies where it is told to.

`sink_child.py HOME TOPIC ONTO_HOME ONTO CHECKPOINT EVENTS POINT BATCH`. At the point (tests/kill_points.py), while this
batch is written, whichever process takes the step kills the driver, its JVM and itself. The first attempt of every task
fails behind its rows, and leaves a file that says so.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kill_points import install
from lake import build
from pyspark import TaskContext
from pyspark.sql.types import StructType

from tallystick.pipeline.session import Channel
from tallystick.pipeline.sink import SealedShare, StreamSink, stream_sink
from tallystick.pipeline.source import TallyDataSource

HOME, TOPIC, ONTO_HOME, ONTO, CHECKPOINT, EVENTS, POINT, BATCH = sys.argv[1:] if len(sys.argv) == 9 else [""] * 8
DRIVER, MASTER = os.getpid(), "local[2,4]"


def ancestors() -> list[int]:
    """From this worker to the driver: the daemon it was forked from, the JVM, the driver."""
    found = [os.getpid()]
    while found[-1] != DRIVER and found[-1] > 1:
        status = Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()
        found.append(int(status[1]))
    return found


def kill_all() -> None:
    for pid in reversed(ancestors()):
        os.kill(pid, signal.SIGKILL)


class KilledSink(StreamSink):
    def write(self, iterator: Iterator[Any]) -> SealedShare:
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") == BATCH:
            install(POINT, kill_all)
        return super().write(broken(iterator) if context.attemptNumber() == 0 else iterator)

    def commit(self, messages: Any, batchId: int = 0) -> None:
        if str(batchId) == BATCH:
            install(POINT, kill_all)
        super().commit(messages, batchId)


def broken(iterator: Iterator[Any]) -> Iterator[Any]:
    yield from iterator
    Path(EVENTS, "failed").touch()
    raise RuntimeError("the first attempt fails behind its rows")


class KilledSource(TallyDataSource):
    channel = Channel(MASTER)

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        sink = stream_sink(self._given, schema, overwrite, self.channel)
        return KilledSink(sink._options, sink._token, sink._loan)


if __name__ == "__main__":
    spark = build(Path(EVENTS), MASTER)
    spark.dataSource.register(KilledSource)
    frame = spark.readStream.format("tally").options(home=HOME, topic=TOPIC, maxParcelsPerTrigger="2").load()
    writer = frame.writeStream.format("killed").options(home=ONTO_HOME, topic=ONTO, checkpointLocation=CHECKPOINT)
    writer.trigger(availableNow=True).start().awaitTermination()
