"""References in a topic become objects inside Spark, from places that lie and one that does not."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake import Lake
from server_thread import ServerThread

from tallystick.errors import Forged, Misuse, Refused
from tallystick.objects.layout import REFERENCE_TYPE, chunks_file
from tallystick.objects.reading import ObjectReader
from tallystick.objects.store import ObjectStore
from tallystick.objects.web import object_server
from tallystick.pipeline.objects import OpenedReferences, read_objects
from tallystick.record.schema import Schema
from tallystick.runtime.disk import RealDisk

pytestmark = pytest.mark.spark

CLIPS = [os.urandom(60_000), b"words, " * 20_000, b""]


def test_a_column_of_references_becomes_their_bytes(lake: Lake, tmp_path: Path) -> None:
    topic = lake.topic("clips", f"seq int64 not null, clip {REFERENCE_TYPE}")
    references = [lake.car.objects.put(clip) for clip in CLIPS]
    topic.publish(
        [
            *({"seq": seq, "clip": one.row()} for seq, one in enumerate(references)),
            {"seq": len(CLIPS), "clip": None},
        ]
    )
    for path in lake.car.objects.folder.glob("*.*"):
        data = bytearray(path.read_bytes())
        data[-1] ^= path.suffix == ".chunks"
        (tmp_path / path.name).write_bytes(data)
    with ServerThread(object_server(RealDisk(lake.car.objects.folder))) as server:
        places = [str(tmp_path), server.url]  # the first one lies in the last chunk of each
        read = read_objects(topic.read(), "clip", "video", places)
        assert read.columns == ["seq", "video"]
        assert {row["seq"]: None if row["video"] is None else bytes(row["video"]) for row in read.collect()} == {
            **dict(enumerate(CLIPS)),
            len(CLIPS): None,
        }
    with pytest.raises(Misuse, match="not in the table"):
        read_objects(topic.read(), "film", "video", places)


def test_tasks_take_what_holds_and_no_more(tmp_path: Path) -> None:
    """As Spark calls it, in this process."""
    store = ObjectStore(RealDisk(tmp_path))
    made = [store.put(partial(iter, [clip]), bytes(32), bytes(32), bytes(16), 0.0)[1] for clip in CLIPS]
    column = pa.array([one.row() for one in made], Schema.parse(f"clip {REFERENCE_TYPE}").arrow.field(0).type)
    batch = pa.record_batch({"seq": [0, 1, 2], "clip": column})

    def opened(read: Any = ObjectReader.readall, bytes_max: int = 1 << 20) -> list[bytes]:
        act = OpenedReferences("clip", "video", (str(tmp_path),), read, bytes_max)
        table = pa.Table.from_batches(act(iter([batch])))
        assert table.column_names == ["seq", "video"]
        return [bytes(one) for one in table.column("video").to_pylist()]

    assert opened() == CLIPS
    assert opened(lambda clip: clip.read(5)) == [clip[:5] for clip in CLIPS]
    with pytest.raises(Refused, match="at most 1000 are taken"):
        opened(bytes_max=1000)
    spoilt = tmp_path / chunks_file(made[0].root)
    spoilt.write_bytes(bytes(spoilt.stat().st_size))
    with pytest.raises(Forged, match="chunk 0"):
        opened()
