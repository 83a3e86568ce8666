"""What is wrong with a checkpoint folder is told before Spark goes on from it, and how far the query had come."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tallystick.errors import Misuse
from tallystick.pipeline.checkpoint import check
from tallystick.pipeline.explain import TallyFailed
from tallystick.pipeline.session import Channel
from tallystick.pipeline.source import TallyDataSource

METADATA = '{"id":"2b1f2a7e-6f7f-4f0c-8d3b-0b3c0f0d9d11"}'


def offsets(end: int) -> str:
    """As Spark writes them: a version, the batch's own facts, an offset for each source."""
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{{"topic": "ab", "0": {end}, "1": 7}}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batches 0 to 2, of which the last was not finished."""
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata").write_text(METADATA)
    for number in range(3):
        (tmp_path / "offsets" / str(number)).write_text(offsets(10 * (number + 1)))
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(2):
        (tmp_path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return tmp_path


def test_a_whole_one_an_empty_one_and_one_elsewhere_are_let_pass(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (folder / "offsets" / "2").write_text("v7\nof a later Spark")  # which says so itself
    for location in (str(folder), folder.as_uri(), str(tmp_path / "new"), str(tmp_path / "empty"), "s3a://bucket/x"):
        check(location)


def write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (write("offsets/2", b""), "offsets/2 is empty"),
        (write("offsets/2", bytes(300)), "offsets/2 is empty"),
        (write("offsets/2", bytes(range(256))), "offsets/2 cannot be read"),
        (write("offsets/2", b"v1"), "offsets/2 is torn"),
        (write("offsets/2", offsets(30).encode()[:-9]), "offsets/2 is torn"),
        (write("offsets/2", offsets(30).encode()[:30]), "offsets/2 is torn"),
        (write("offsets/2", b"rubbish\n{}\n{}"), "offsets/2 is torn"),
        (write("offsets/1", b""), "offsets/1 is empty"),
        (write("commits/1", b""), "commits/1 is empty"),
        (write("commits/1", b"v1\n{{"), "commits/1 is torn"),
        (write("metadata", b""), "metadata is empty"),
        (write("metadata", b"{x"), "metadata is torn"),
        (write("metadata", b"{}"), "metadata has no id"),
        (remove("metadata"), "its metadata is missing"),
        (remove("offsets/0", "offsets/1", "offsets/2"), "offsets/1 is missing, though batch 1 is committed"),
        (remove("offsets/1", "offsets/2"), "offsets/1 is missing, though batch 1 is committed"),
    ],
)
def test_damage_is_named_with_the_remedy(folder: Path, damage: Callable[[Path], object], told: str) -> None:
    damage(folder)
    with pytest.raises(Misuse) as caught:
        check(str(folder))
    assert str(caught.value).startswith(f"checkpoint {folder}: {told}")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("restore it from a copy; or choose a new checkpointLocation")
    assert caught.value.hint.endswith("and new tables, since its batches count from 0 again")


def test_the_remedy_names_where_the_last_batch_ended_that_is_done(folder: Path) -> None:
    (folder / "offsets" / "2").write_bytes(b"")
    with pytest.raises(Misuse) as caught:
        check(str(folder))
    assert 'startingOffsets={"0": 20, "1": 7}, where batch 1 ended' in str(caught.value.hint)
    (folder / "offsets" / "1").write_bytes(b"")
    with pytest.raises(Misuse) as caught:
        check(str(folder))
    assert 'startingOffsets={"0": 10, "1": 7}, where batch 0 ended' in str(caught.value.hint)


def test_a_query_that_had_no_batch_yet_is_let_pass_and_one_without_its_logs_is_not(folder: Path) -> None:
    for name in ("offsets", "commits"):
        shutil.rmtree(folder / name)
    with pytest.raises(Misuse, match="offsets is missing: the query would begin from its first row again"):
        check(str(folder))
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    check(str(folder))


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misuse, match="not a folder"):
        check(str(tmp_path / "file"))


# --- the source ---


def source(**options: str) -> TallyDataSource:
    known = {"home": "nowhere", "topic": "brakes", **options}
    return TallyDataSource.over(Channel.of({"spark.master": "local[2]"}))(known)


def test_a_stream_looks_at_it_before_it_speaks_to_anybody(folder: Path) -> None:
    (folder / "offsets" / "2").write_bytes(b"")
    stream = source(checkpointLocation=str(folder))
    starts: list[Callable[[], object]] = [stream.schema, lambda: stream.streamReader(StructType())]
    for start in starts:
        with pytest.raises(TallyFailed, match=r"offsets/2 is empty.*; restore it from a copy"):
            start()
    with pytest.raises(TallyFailed, match="no identity"):  # which is what it would have come to
        source().schema()


def test_a_batch_has_none(tmp_path: Path) -> None:
    with pytest.raises(TallyFailed, match="a batch has no checkpoint"):
        source(checkpointLocation=str(tmp_path)).reader(StructType())


def test_an_offset_that_spark_cannot_parse_is_told_as_ours() -> None:
    """PySpark parses offsets itself, and stops the reader on its way out."""
    reader = source().streamReader(StructType())

    def parse(offset: str) -> None:
        try:
            json.loads(offset)
        finally:
            reader.stop()

    with pytest.raises(TallyFailed, match="not JSON; the checkpoint folder is damaged"):
        parse('{"topic": "a')
    parse('{"topic": "a"}')
