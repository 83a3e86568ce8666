"""A driver of its own, to be killed: streams a topic into a folder by batch until it is."""

from __future__ import annotations

import sys
from pathlib import Path

from lake import build
from streams import into

if __name__ == "__main__":
    home, topic, checkpoint, out, events = sys.argv[1:]
    spark = build(Path(events), "local[2,8]")  # a task is tried again when its worker is killed
    frame = spark.readStream.format("tally").options(home=home, topic=topic, maxParcelsPerTrigger="1").load()
    into(frame, Path(out), Path(checkpoint)).start().awaitTermination()
