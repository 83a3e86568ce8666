"""`prove`: proofs of rows of a table, that hold offline and say what was sealed, whatever the table says since."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lake import Lake, fails, rows
from tables import pipeline
from watching import calls_of

from tallystick.cli import main
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.parcel.prove import Prover, verify_proof
from tallystick.pipeline.access import admit
from tallystick.pipeline.jobs.prove import prove_rows, wanted
from tallystick.pipeline.jobs.warehouse import Warehouse


@pytest.fixture(scope="module")
def warehouse(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred rows in two partitions, 10 a parcel, ingested."""
    topic, folder = lake.topic("proven", partitions=2), tmp_path_factory.mktemp("prove") / "tables"
    topic.publish(rows(range(100)), lanes=2, key="vin", batch_rows_max=10)
    assert pipeline("run", "ingest", "--home", lake.home, "--topic", "proven", "--warehouse", folder, "--quiet") == 0
    return folder


def prove(lake: Lake, warehouse: Path, out: Path, *more: object) -> int:
    place = ("--home", lake.home, "--warehouse", warehouse, "--out", out)
    return pipeline("run", "prove", *place, "--quiet", "--json", *more)


def manifest(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found


def edited(warehouse: Path, folder: Path, seq: int, column: str, value: Any) -> Path:
    """The warehouse with one value of one row of bronze changed by somebody who may write files."""
    shutil.copytree(warehouse, folder)
    for part in (folder / "bronze").glob("batch=*/*.parquet"):
        table = pq.read_table(part, partitioning=None)
        place = table.column_names.index(column)
        new = pc.if_else(pc.equal(table["seq"], seq), pa.scalar(value, table.schema.field(column).type), table[column])
        changed = table.set_column(place, table.schema.field(column), new)
        pq.write_table(changed, part, use_deprecated_int96_timestamps=True)  # as Spark writes them
        (part.parent / f".{part.name}.crc").unlink(missing_ok=True)
    return folder


def test_the_rows_that_are_meant_are_proved_and_each_file_verifies(
    lake: Lake, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove(lake, warehouse, tmp_path / "out", "--where", "vin = 'V3' and speed > 20") == 0
    assert json.loads(capsys.readouterr().out)["proved"] == 8
    listed = manifest(tmp_path / "out")
    assert (listed["proved"], listed["differs"], listed["failed"]) == (8, 0, 0)
    trust = lake.stack.node.trust
    proven = [verify_proof((tmp_path / "out" / one["file"]).read_bytes(), trust) for one in listed["proofs"]]
    assert sorted(one.row["seq"] for one in proven) == [n for n in range(100) if n % 7 == 3 and n / 2 > 20]
    assert {one.publisher for one in proven} == {lake.car.identity.principal}
    assert all(one.anchored is not None for one in proven)
    # And by the command, with the trust file alone.
    file = tmp_path / "out" / listed["proofs"][0]["file"]
    code = main.run(["verify", str(file), "--trust", str(lake.stack.folders.trust), "--json"])
    assert (code, json.loads(capsys.readouterr().out)["row"]["vin"]) == (0, "V3")


def test_a_row_that_was_edited_is_shown_as_it_was_sealed_and_the_difference_is_told(
    lake: Lake, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = edited(warehouse, tmp_path / "tables", 41, "speed", 3.5)
    assert prove(lake, tables, tmp_path / "out", "--where", "seq in (41, 42)") == 0
    listed = manifest(tmp_path / "out")
    assert (listed["proved"], listed["differs"], listed["failed"]) == (1, 1, 0)
    bad = next(one for one in listed["proofs"] if one["status"] == "differs")
    assert bad["message"] == "speed: sealed is 20.5, the table has 3.5"
    proof = verify_proof((tmp_path / "out" / bad["file"]).read_bytes(), lake.stack.node.trust)
    assert (proof.row["seq"], proof.row["speed"]) == (41, 20.5)


@pytest.mark.parametrize(
    ("column", "value", "status", "told"),
    [
        ("_leaf", 5000, "failed", "none with number 5000"),
        ("_offset", 900_000, "failed", "missing"),
        ("_parcel", "ab" * 32, "differs", "_parcel: at this place lies"),
    ],
)
def test_a_place_that_was_edited_leads_to_no_false_proof(
    lake: Lake, warehouse: Path, tmp_path: Path, column: str, value: Any, status: str, told: str
) -> None:
    tables = edited(warehouse, tmp_path / "tables", 41, column, value)
    assert prove(lake, tables, tmp_path / "out", "--where", "seq = 41") == 0
    (one,) = manifest(tmp_path / "out")["proofs"]
    assert one["status"] == status
    assert told in one["message"]
    assert (one["file"] is None) == (status == "failed")


def test_a_parcel_is_opened_once_for_all_its_rows(lake: Lake, warehouse: Path) -> None:
    """In this process, so that openings can be counted: what a task does with its share of the table."""
    from pyspark.sql.types import StructType

    from tallystick.pipeline.columns import Projection
    from tallystick.pipeline.jobs import prove as job

    frame = lake.spark.read.parquet(str(warehouse / "bronze" / "batch=0"))
    schema: StructType = frame.schema
    table = frame.toArrow()
    with closing(admit(str(lake.home), "proven")) as access, calls_of(Prover.__init__) as opened:
        identity = access.session.identity
        topic = access.session.node.state(TOPICS(access.token)).encode()
        opener = job._Opener(access, identity.trust, identity.authority.encode(), topic)
        found = [one for part in job._by_parcel(table) for one in job._prove_parcel(opener, Projection(schema), part)]
    assert {one["status"] for one in found} == {"proved"}
    assert len(found) == table.num_rows
    assert len(opened) == len({(one["partition"], one["offset"]) for one in found}) < len(found)


def test_what_cannot_be_proved_is_said_before_anything_is_written(
    lake: Lake, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for condition, told in (("seq = -1", "no row"), ("nothing = 1", "--where: "), ("seq >= 0", "more than 10 rows")):
        assert prove(lake, warehouse, out, "--where", condition, "--most", 10) == 2
        assert told in capsys.readouterr().err
    assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("here already")
    assert prove(lake, warehouse, out, "--where", "seq = 1") == 2
    assert prove(lake, tmp_path / "nowhere", tmp_path / "other") == 2
    assert [path.name for path in out.iterdir()] == ["mine"]


@pytest.mark.long
def test_with_what_is_lent_a_task_proves_without_the_identity(lake: Lake, warehouse: Path, tmp_path: Path) -> None:
    shutil.copytree(lake.home, tmp_path / "home")
    with closing(admit(str(tmp_path / "home"), "proven")) as access:
        table = wanted(Warehouse(warehouse).table("bronze").read(lake.spark), "seq < 5", 5)
        lent, own = (prove_rows(table, access, lent=lent) for lent in (True, False))
        (tmp_path / "home").rename(tmp_path / "away")
        proofs = [verify_proof(one["proof"], lake.stack.node.trust) for one in lent.collect()]
        assert sorted(one.row["seq"] for one in proofs) == list(range(5))
        assert "no identity is here" in fails(own)
