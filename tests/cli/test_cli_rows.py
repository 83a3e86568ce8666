"""Publishing and reading by command: formats, groups, proofs, findings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Fleet, done, refused, tally

TYPES = "s string, b binary, d date32, t timestamp[ns, UTC], m decimal128(9, 2), f float64, l list<date32>, q bool"
ROWS = [
    {
        "s": "ä",
        "b": "00ff",
        "d": "2026-02-28",
        "t": "2026-02-28T12:00:00.123456000Z",
        "m": "-12.30",
        "f": "nan",
        "l": ["1970-01-01", None],
        "q": True,
    },
    dict.fromkeys("sbdtmflq"),
]


def lines(rows: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_what_subscribe_writes_publish_reads_back(fleet: Fleet) -> None:
    name = fleet.topic("types", TYPES)
    assert (
        done("publish", name, "--home", fleet.car, stdin=lines(ROWS)).out == "2 rows in 1 parcel to types, anchored\n"
    )
    first = done("subscribe", name, "--home", fleet.reader)
    assert first.rows == ROWS
    done("publish", name, "--home", fleet.car, stdin=first.out.encode())
    assert done("subscribe", name, "--home", fleet.reader).rows == ROWS + ROWS


def test_json_that_would_lose_something_is_refused(fleet: Fleet) -> None:
    name = fleet.topic("clock", "t timestamp[ns, UTC], b binary")
    said = refused(2, "publish", name, "--home", fleet.car, stdin=b'{"t": "2026-02-28T12:00:00.123456789Z"}\n')
    assert said[1].startswith('error: line 1, column "t": nanoseconds')


def test_json_that_cannot_be_read_is_named_by_line_and_column_and_not_shown(fleet: Fleet) -> None:
    columns = {"b": "binary", "d": "date32", "t": "timestamp[ns, UTC]", "m": "decimal128(9, 2)", "f": "float64"}
    columns |= {"l": "list<date32>", "p": "struct<at date32>"}
    name = fleet.topic("unreadable", ", ".join(f"{column} {type_}" for column, type_ in columns.items()))
    values = dict.fromkeys("bdtmf", "secret") | {"l": ["1970-01-01", "secret"], "p": {"at": "secret"}}
    kinds = dict.fromkeys("bdtmf", "text") | {"l": "list", "p": "object"}
    for column, value in values.items():
        said = refused(2, "publish", name, "--home", fleet.car, stdin=lines([{"f": 1.5}, {"f": "inf", column: value}]))
        found = f"expected {columns[column]}, found a {kinds[column]} that cannot be read as one"
        assert said[1] == f'error: line 2, column "{column}": {found}'
    for column, wrong in {"d": 7, "t": 7, "b": True, "l": 7, "p": 7}.items():
        said = refused(2, "publish", name, "--dry-run", "--home", fleet.car, stdin=lines([{column: wrong}]))
        expected = f"expected {columns[column]}, found {type(wrong).__name__}"
        assert said[0].startswith(f'stdin, line 1, column "{column}": {expected}')


def test_a_column_that_no_row_of_json_has_is_named(fleet: Fleet, tmp_path: Path) -> None:
    name, home = fleet.topic("sparse", "vin string, seq int64, speed float64"), ("--home", fleet.car)
    rows = lines([{"vin": "V"}, {"vin": "V", "seq": None}])
    told = 'lacks the column "speed": it is null in every row\n'
    assert done("publish", name, "--dry-run", *home, stdin=rows).err == f"stdin {told}"
    assert done("publish", name, *home, stdin=rows).err == f"stdin {told}"
    file = tmp_path / "rows.jsonl"
    file.write_bytes(rows)
    assert done("publish", name, file, *home).err == f"{file} {told}"
    file.write_bytes(rows + lines([{"vin": "W"}]))
    assert done("publish", name, file, "--resume", *home).err == ""  # of what went before nothing is said


def test_files_are_read_by_their_suffix_and_written_by_the_format(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("files")
    table = pa.table({"vin": ["V1", "V2"], "seq": [1, 2]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "rows.csv").write_text("vin,seq\nV1,1\nV2,2\n")
    (tmp_path / "rows.jsonl").write_bytes(lines(table.to_pylist()))
    for suffix in ("parquet", "arrow", "csv", "jsonl"):
        published = done("publish", name, tmp_path / f"rows.{suffix}", "--home", fleet.car, "--json").json
        assert (published["rows"], published["parcels"]) == (2, 1)
    assert done("subscribe", name, "--home", fleet.reader).rows == table.to_pylist() * 4
    csv = done("subscribe", name, "--format", "csv", "--max-rows", "3", "--home", fleet.reader).out
    assert csv.splitlines() == ['"vin","seq"', '"V1",1', '"V2",2', '"V1",1']
    assert refused(2, "publish", name, tmp_path / "rows.txt", "--home", fleet.car)[0].endswith("no such file")


def test_a_row_that_does_not_fit_is_named_and_only_what_stands_before_it_is_published(fleet: Fleet) -> None:
    name = fleet.topic("strict")
    cases = {
        b'{"vin": "V", "seq": 1}\n{"vin": "V"\n': "line 2: not JSON",
        b"[1]\n": "line 1: expected an object, found list",
        b'{"vin": "V", "seq": "many"}\n': 'line 1, column "seq": expected int64',
        b'{"vin": "V", "speed": 1}\n': 'line 1: the topic has no column for the key "speed"',
    }
    for data, expected in cases.items():
        assert expected in refused(2, "publish", name, "--home", fleet.car, stdin=data)[1]
    assert done("subscribe", name, "--home", fleet.reader).rows == [{"vin": "V", "seq": 1}]


def test_reading_from_somewhere_and_not_too_far(fleet: Fleet) -> None:
    name = fleet.topic("long")
    rows = [{"vin": "V", "seq": number} for number in range(30)]
    done("publish", name, "--batch-rows", "10", "--home", fleet.car, stdin=lines(rows))
    shown = done("subscribe", name, "--max-rows", "12", "--origin", "--home", fleet.reader).rows
    assert [(row["seq"], row["_offset"], row["_row"]) for row in shown[9:]] == [(9, 0, 9), (10, 1, 0), (11, 1, 1)]
    assert [row["seq"] for row in done("subscribe", name, "--from", "2", "--home", fleet.reader).rows] == [
        *range(20, 30)
    ]
    assert done("subscribe", name, "--from", "latest", "--home", fleet.reader).out == ""
    assert refused(2, "subscribe", name, "--from", "yesterday", "--home", fleet.reader)


def test_reading_begins_at_a_time_and_ends_after_so_many_rows(fleet: Fleet) -> None:
    name = fleet.topic("timed")
    early, late = ([{"vin": "V", "seq": number} for number in range(at, at + 3)] for at in (0, 3))
    done("publish", name, "--home", fleet.car, stdin=lines(early))
    found = done("audit", "--kind", "anchor", "--most", "10000", "--json", "--home", fleet.owner).rows
    last = found[-1]
    first = next(one for one in found if one["token"] == last["token"])  # the closing parcel may have another anchor
    done("publish", name, "--home", fleet.car, stdin=lines(late))
    read = ("subscribe", name, "--home", fleet.reader)
    after = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=last["time_ms"] + 1)
    assert done(*read, "--from", after.isoformat()).rows == late
    assert done(*read, "--from", after.replace(tzinfo=None).isoformat(), "-n", "1").rows == late[:1]
    assert done(*read, "--from", "-1h").rows == early + late
    assert done(*read, "--from", first["time"], "-n", "4").rows == (early + late)[:4], "as it was printed"
    assert done(*read, "--from", "2099-01-01").out == ""
    assert refused(2, *read, "--from", "-1 h") == [
        'error: --from "-1 h": expected earliest, latest, an offset or a time',
        "hint: write times as 2026-11-15T08:00, or -1h",
    ]
    hint = "tally group reset g timed --to -1h"
    assert refused(2, *read, "--from", "-1h", "--group", "g")[1] == f"hint: {hint} moves it"
    assert done(*read, "--group", "g").rows == early + late
    done(*hint.split()[1:-1], after.isoformat(), "--home", fleet.reader)
    assert done(*read, "--group", "g").rows == late


def test_one_partition_is_read_alone(fleet: Fleet) -> None:
    name = fleet.topic("parts", "vin string, seq int64", "--partitions", "2")
    rows = [{"vin": f"V{number}", "seq": number} for number in range(40)]
    done("publish", name, "--lanes", "4", "--key", "vin", "--home", fleet.car, stdin=lines(rows))
    read = ("subscribe", name, "--origin", "--home", fleet.reader)
    first, second = (done(*read, "--partition", number).rows for number in (0, 1))
    assert [{row["_partition"] for row in part} <= {at} for at, part in enumerate((first, second))] == [True, True]
    assert sorted(row["seq"] for row in first + second) == [*range(40)]
    assert len(done(*read, "--partition", 0, "--partition", 1).rows) == 40
    assert refused(2, *read, "--partition", 2) == ["error: partition 2 does not exist: the topic has 2, counted from 0"]
    assert refused(2, *read, "--partition", 0, "--group", "g")[0] == "error: a group deals partitions to its members"


def test_a_group_goes_on_where_it_was_and_can_be_sent_back(fleet: Fleet) -> None:
    name = fleet.topic("shared", "vin string, seq int64", "--partitions", "2")
    rows = [{"vin": f"V{number}", "seq": number} for number in range(40)]
    done("publish", name, "--lanes", "4", "--key", "vin", "--home", fleet.car, stdin=lines(rows))
    read = ["subscribe", name, "--group", "dashboards", "--home", fleet.reader]
    assert sorted(row["seq"] for row in done(*read).rows) == [*range(40)]
    assert done(*read).out == ""
    shown = done("group", "show", "dashboards", "--home", fleet.reader, "--json").json
    assert all(place["offset"] == place["anchored"] for place in shown["partitions"])
    listed = {one["group"]: one for one in done("group", "list", "--home", fleet.reader, "--json").json}
    found = listed["dashboards"]
    assert (found["topics"], found["members"], found["behind"]) == ([name], 0, 0)
    moved = done("group", "reset", "dashboards", name, "--to", "earliest", "--home", fleet.reader, "--json").json
    assert {move["new"] for move in moved} == {0}
    # Who never used its name sees the identifier, and can use that.
    stranger = [line.split() for line in done("group", "list", "--home", fleet.owner).out.splitlines()]
    line = next(words for words in stranger if words[0] == found["identifier"])
    assert (line[1:4], line[-1]) == ([name, "0", "members"], "behind")
    assert int(line[4]) > 0
    assert done("group", "show", found["identifier"], "--home", fleet.owner, "--json").json["members"] == []
    done("group", "show", "dashboards", "--home", fleet.owner)
    assert "dashboards" in done("group", "list", "--home", fleet.owner).out
    assert len(done(*read).rows) == 40
    assert refused(2, "group", "show", "nobody", "--home", fleet.reader)[1].startswith("hint: the first subscriber")


def test_a_proof_holds_offline_and_a_changed_one_does_not(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("proved")
    done("publish", name, "--home", fleet.car, stdin=lines([{"vin": "V", "seq": number} for number in range(9)]))
    proof = tmp_path / "row.proof"
    done("prove", name, "--offset", "0", "--row", "4", "-o", proof, "--home", fleet.reader)
    told = done("verify", proof, "--trust", fleet.trust)
    assert 'row: {"vin": "V", "seq": 4}' in told.out
    assert "not proved: that the row is true" in told.out
    shown = done("verify", proof, "--trust", fleet.trust, "--json").json
    assert (shown["holds"], shown["row"]["seq"], shown["anchored"]["offset"]) == (True, 4, 0)
    assert "UTC" in told.out
    # A proof that holds may be anybody's: whoever says what is expected is told.
    car, topic = (done(*one, "--json").json for one in (("principal", "show", "--home", fleet.car), _show(fleet, name)))
    expect = ("--publisher", car["principal"], "--topic", topic["token"])
    held = done("verify", proof, "--trust", fleet.trust, *expect).out
    assert f"as expected: publisher {car['principal']}\nas expected: topic {topic['token']}\n" in held
    by_name = ("--publisher", "car", "--topic", name, "--home", fleet.owner)
    assert done("verify", proof, "--trust", fleet.trust, *by_name, "--json").json["expected"] == ["publisher", "topic"]
    other = done(*_show(fleet, "brakes"), "--json").json["token"]
    assert refused(3, "verify", proof, "--trust", fleet.trust, "--topic", other) == [
        f"error: proof: of another topic: {other} expected, found {topic['token']}"
    ]
    wrong = refused(3, "verify", proof, "--trust", fleet.trust, "--publisher", "reader", "--home", fleet.owner)
    assert wrong[0].startswith("error: proof: of another publisher: ")
    data = bytearray(proof.read_bytes())
    data[data.index(b"V") + 1] ^= 1
    proof.write_bytes(data)
    assert refused(3, "verify", proof, "--trust", fleet.trust)
    assert refused(2, "prove", name, "--offset", "0", "--row", "4", "-o", proof, "--home", fleet.reader)[0].endswith(
        "exists already"
    )
    far = ["prove", name, "--offset", "99", "--row", "0", "-o", tmp_path / "x", "--home", fleet.reader]
    assert "are anchored" in refused(2, *far)[0]


def _show(fleet: Fleet, topic: str) -> tuple[object, ...]:
    return ("topic", "show", topic, "--home", fleet.owner)


def test_a_tampered_log_is_a_finding_with_evidence(fleet: Fleet) -> None:
    import runpy

    name, before = fleet.topic("attacked"), {*(fleet.reader / "evidence").glob("altered-*")}
    rows = [{"vin": sha256(b"%d" % number).hexdigest(), "seq": number} for number in range(5000)]
    done("publish", name, "--home", fleet.car, stdin=lines(rows))
    token = done("topic", "show", name, "--home", fleet.owner, "--json").json["token"]
    (segment,) = (fleet.folder / "node" / "log" / "topics" / token).rglob("*.segment")
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "tamper.py"))["alter"](segment)
    said = tally("subscribe", name, "--home", fleet.reader)
    assert said.code == 3
    finding, error, hint = said.err.splitlines()
    assert finding.startswith("finding: altered: parcel 0 of lane")
    assert error == "error: stopped at a finding: altered"
    assert "evidence" in hint
    (evidence,) = {*(fleet.reader / "evidence").glob("altered-*")} - before
    assert done("inspect", evidence, "--json").json["kind"] == "finding"
    assert f"{evidence}: finding, " in done("inspect", fleet.reader / "evidence").out
    reported = tally("subscribe", name, "--on-bad", "report", "--home", fleet.reader)
    assert reported.code == 3
    assert len(reported.rows) < 5000


def test_what_was_erased_is_told_and_read_over(fleet: Fleet) -> None:
    name = fleet.topic("trips", "vin string, seq int64", "--erasable")
    done("publish", name, "--home", fleet.car, stdin=lines([{"vin": "V", "seq": 1}]))
    assert len(done("subscribe", name, "--home", fleet.reader).rows) == 1
    erase = ["erase", name, "car", "--all-periods", "--home", fleet.owner]
    assert refused(2, *erase)[1] == "hint: say --yes to do it"
    told = done(*erase, "--yes").out
    assert "destroyed the keys of" in told
    assert "held the key, and may have kept what it opened: reader" in told
    after = done("subscribe", name, "--home", fleet.reader)
    assert after.out == ""
    assert after.err.startswith("finding: erased: parcel 0 of lane")
    assert refused(3, "erase", "brakes", "car", "--all-periods", "--yes", "--home", fleet.owner)[0] == (
        'error: topic "brakes" is not erasable'
    )


@pytest.mark.parametrize("arguments", [["--origin", "--format", "csv"]])
def test_options_that_exclude_one_another(fleet: Fleet, arguments: list[str]) -> None:
    assert refused(2, "subscribe", "brakes", *arguments, "--home", fleet.reader)
