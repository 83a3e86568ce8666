"""However a publish ends, it says what became of every row, and the next one goes on there."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from actors import Liar, ties
from commands import Fleet, Said, done, refused, tally
from stack import wait_until

from tallystick.carriers.carrier import NotStored, Outcome
from tallystick.cli import publish as publish_command
from tallystick.cli.rows import FileMark, Portion, RowFile
from tallystick.client.publish import Publisher
from tallystick.client.session import Session, _spool_folder
from tallystick.client.settings import PublisherSettings
from tallystick.errors import Forged
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.disk import RealDisk


def row(number: int) -> dict[str, object]:
    return {"vin": f"V{number}", "seq": number}


def json_lines(numbers: range) -> list[str]:
    return [json.dumps(row(number)) for number in numbers]


def csv_lines(numbers: range) -> list[str]:
    return ["vin,seq", *(f"V{number},{number}" for number in numbers)]


def write(file: Path, lines: list[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def read(fleet: Fleet, name: str) -> list[int]:
    return [one["seq"] for one in done("subscribe", name, "--home", fleet.reader).rows]


def publish(fleet: Fleet, name: str, file: Path, *options: object) -> Said:
    return tally("publish", name, file, *options, "--home", fleet.car)


@pytest.mark.parametrize(
    ("suffix", "lines", "bad", "place", "said"),
    [
        ("jsonl", json_lines, '{"vin": "V", "seq": "many"}', 2501, ', column "seq": expected int64, found str'),
        ("jsonl", json_lines, '{"vin": "V", "seq": 1', 2501, ": not JSON"),
        ("csv", csv_lines, "V,many", 2502, ', column "seq": expected int64, found a text that cannot be read as one'),
        ("csv", csv_lines, "V,1,2", 2502, ": expected 2 values, found 3"),
    ],
)
def test_a_bad_row_late_in_a_file(
    fleet: Fleet, tmp_path: Path, suffix: str, lines: object, bad: str, place: int, said: str
) -> None:
    assert callable(lines)
    name = fleet.topic(f"late-{suffix}-{abs(hash(bad)) % 10**9}")
    good = lines(range(2600))
    file = write(tmp_path / f"rows.{suffix}", [*good[: place - 1], bad, *good[place:]])
    ended = publish(fleet, name, file, "--batch-rows", 1000)
    numbers, error, *_ = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert numbers == (
        f"2500 rows stored, 0 waiting in the spool, 100 not taken; go on with line {place} of {file} (--resume)"
    )
    assert error.startswith(f"error: line {place}{said}")
    assert read(fleet, name) == [*range(2500)]
    again = publish(fleet, name, file, "--resume", "--json")
    assert (again.code, again.json["stored"], again.json["next"]) == (2, 0, {"line": place})
    write(file, good)  # mended: what was taken is as it was
    assert publish(fleet, name, file, "--resume").out == f"100 rows in 1 parcel to {name}, anchored\n"
    assert read(fleet, name) == [*range(2600)]
    whole = publish(fleet, name, file, "--resume")
    assert whole.out == f"0 rows in 0 parcels to {name}, anchored\n"
    assert whole.err == f"{file} has nothing behind the rows that were published before\n"


def test_a_bad_row_of_columns(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("late-columns", "vin string, seq int8")
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"vin": ["V"] * 300, "seq": [number % 100 for number in range(299)] + [128]}), file)
    ended = publish(fleet, name, file, "--batch-rows", 100)
    numbers, error, *_ = ended.err.splitlines()
    assert numbers.startswith("299 rows stored, 0 waiting in the spool, 1 not taken; go on with row 300 of")
    assert error.startswith('error: row 300, column "seq"')
    assert "row 300" in publish(fleet, name, file, "--resume").err
    assert len(read(fleet, name)) == 299


def test_a_file_that_was_changed_is_not_gone_on_with(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("changed")
    file = write(tmp_path / "rows.jsonl", json_lines(range(3)))
    options = ("publish", name, file, "--resume", "--home", fleet.car)
    assert refused(2, *options)[0] == f"error: {file} was not published to {name} from here before"
    done("publish", name, file, "--home", fleet.car)
    write(file, [*json_lines(range(3)), *json_lines(range(3, 5))])  # longer: only what is new goes out
    assert done(*options).out.startswith("2 rows in 1 parcel")
    write(file, json_lines(range(1, 9)))
    assert f"error: {file} up to line 5 is not what was published before: it was changed" in refused(2, *options)
    assert refused(2, "publish", name, "--resume", "--home", fleet.car)[0].startswith("error: --resume needs a file")
    assert read(fleet, name) == [*range(5)]


def test_whoever_interrupts_is_told_and_goes_on(fleet: Fleet, tmp_path: Path) -> None:
    name, total = fleet.topic("interrupted"), 20_000  # in so many small parcels that it takes long
    file = write(tmp_path / "rows.jsonl", json_lines(range(total)))
    arguments = ["publish", name, str(file), "--batch-rows", "1", "--home", str(fleet.car)]
    before = set((fleet.car / "spool").glob("*/*/lane"))
    with subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: process.poll() is not None or set((fleet.car / "spool").glob("*/*/lane")) != before)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, ""), err
    told = re.search(
        r"^(\d+) rows? stored.*, (\d+) waiting in the spool, (\d+) not taken; go on with line (\d+)", err, re.MULTILINE
    )
    assert told is not None, err
    stored, waiting, not_taken, line = map(int, told.groups())
    assert err.splitlines()[-1] == "interrupted"
    assert stored + waiting + not_taken == total
    assert 0 < line == stored + waiting + 1
    rest = done("publish", name, file, "--resume", "--home", fleet.car, "--json").json
    assert (rest["stored"], rest["not_taken"], rest["next"]) == (not_taken, 0, None)
    assert sorted(read(fleet, name)) == [*range(total)]


def test_whoever_interrupts_before_a_row_is_taken_is_told_so(fleet: Fleet, tmp_path: Path) -> None:
    """It asks the authority, which is busy, for its permit."""
    name, permits = fleet.topic("interrupted-early"), fleet.stack.authority.authority.permits
    file = write(tmp_path / "rows.jsonl", json_lines(range(3)))
    asked, go, prepare = threading.Event(), threading.Event(), permits.prepare

    def prepare_late(*question: Any, **_: Any) -> Any:
        asked.set()
        assert go.wait(120)
        return prepare(*question)

    command = [sys.executable, "-m", "tallystick.cli", "publish", name, str(file), "--home", str(fleet.car)]
    permits.prepare = cast(Any, prepare_late)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert asked.wait(120)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            permits.prepare = prepare
            go.set()
            process.kill()
    nothing = f"0 rows stored, 0 waiting in the spool: nothing of {file} was taken; publish it again"
    assert (process.returncode, err.split("\n")) == (130, [nothing, "", "interrupted", ""])


def test_where_the_place_cannot_be_written_down_nobody_offers_to_resume(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("unplaced")
    file = write(tmp_path / "rows.jsonl", [*json_lines(range(3)), "{"])
    published, aside = fleet.car / "published", tmp_path / "published"
    if published.exists():
        published.rename(aside)
    published.touch()
    try:
        *notes, numbers, _error = refused(2, "publish", name, file, "--home", fleet.car)
    finally:
        published.unlink()
        if aside.exists():
            aside.rename(published)
    assert numbers == f"3 rows stored, 0 waiting in the spool, 1 not taken; go on with line 4 of {file}"
    assert notes[-1].startswith("where to go on could not be written down")


def publish_and_kill(fleet: Fleet, name: str, file: Path, size_bytes: int, *options: str) -> bool:
    """Kill a publish without warning as soon as the marks of its spool have grown so far; whether it was in time."""
    marks = fleet.car / "spool" / _spool_folder([name]) / "marks"
    before = marks.stat().st_mtime_ns if marks.exists() else 0

    def has_grown() -> bool:
        with suppress(FileNotFoundError):
            return marks.stat().st_size > size_bytes and marks.stat().st_mtime_ns != before
        return False

    arguments = ["publish", name, str(file), *options, "--home", str(fleet.car)]
    with subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: process.poll() is not None or has_grown())
        process.kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode != 0


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("jsonl", ["--batch-rows", "2"]),
        ("csv", ["--batch-rows", "3", "--lanes", "2"]),
        ("parquet", ["--batch-rows", "50"]),
    ],
)
def test_a_publish_that_is_killed_is_gone_on_with_to_the_row(
    fleet: Fleet, tmp_path: Path, suffix: str, options: list[str]
) -> None:
    name, total = fleet.topic(f"killed-{suffix}"), 20_000
    file = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"vin": [f"V{number}" for number in range(total)], "seq": [*range(total)]}), file)
    else:
        write(file, json_lines(range(total)) if suffix == "jsonl" else csv_lines(range(total)))
    killed = [publish_and_kill(fleet, name, file, 0, *options)]
    killed += [publish_and_kill(fleet, name, file, size, "--resume", *options) for size in (600, 5_000)]
    if killed[-1]:  # else it was quicker
        dry = refused(2, "publish", name, file, "--resume", "--dry-run", "--home", fleet.car)
        assert dry[1].startswith("hint: if it does not run any more")
    said = done("publish", name, file, "--resume", "--home", fleet.car)
    assert (f"the last publish of {file} was killed; the spool knows how far it came" in said.err) is killed[-1]
    assert sorted(read(fleet, name)) == [*range(total)]


def test_what_was_killed_is_known_whoever_takes_the_spool_up_first(fleet: Fleet, tmp_path: Path) -> None:
    name, total, home = fleet.topic("killed-and-flushed"), 20_000, ("--home", fleet.car)
    file = write(tmp_path / "rows.jsonl", json_lines(range(total)))
    resume: tuple[str, ...] = ()
    for takes_up in (["spool", "flush", name], ["publish", name]):
        publish_and_kill(fleet, name, file, 600, *resume, "--batch-rows", "2")
        done(*takes_up, *home)
        resume = ("--resume",)
    write(file, ['{"vin": "W", "seq": 0}', *json_lines(range(1, total))])
    assert "it was changed" in refused(2, "publish", name, file, *resume, *home)[-2]
    write(file, json_lines(range(total)))
    done("publish", name, file, *resume, *home)
    assert sorted(read(fleet, name)) == [*range(total)]


def seal_all_but_the_last_parcel(fleet: Fleet, name: str, file: Path, **settings: Any) -> None:
    """As a publish of the file that dies in the middle of its first portion."""
    with Session.open(fleet.car) as session:
        publisher = session.publisher(name, background=False, **settings)
        source = RowFile(str(file), file.suffix[1:], publisher.schema.arrow)
        run = publish_command._Run(FileMark(), "run")
        publish_command._Place(fleet.car, name, str(file)).write(source, FileMark(), running=run.name)
        portion = next(source.portions())
        assert isinstance(portion, Portion)
        publisher.send(portion.batch, mark=run._mark(FileMark(), portion.end))
        publisher._outbox._orders.pop()
        publisher._seal_step()
        publisher.stop()


@pytest.mark.parametrize(("suffix", "lines"), [("jsonl", json_lines), ("csv", csv_lines)])
def test_a_portion_of_which_some_parcels_are_sealed_is_gone_on_with_in_the_middle(
    fleet: Fleet, tmp_path: Path, suffix: str, lines: Callable[[range], list[str]]
) -> None:
    name = fleet.topic(f"killed-within-{suffix}")
    file = write(tmp_path / f"rows.{suffix}", lines(range(10)))
    seal_all_but_the_last_parcel(fleet, name, file, batch_rows_max=3)
    assert done("publish", name, file, "--resume", "--home", fleet.car).out.startswith("1 row in 1 parcel")
    assert read(fleet, name) == [*range(10)]


def test_where_rows_were_dealt_by_a_key_and_not_all_are_sealed_nobody_guesses(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("killed-by-key")
    file = write(tmp_path / "rows.jsonl", json_lines(range(10)))
    seal_all_but_the_last_parcel(fleet, name, file, lanes=3, key="vin")
    error, hint = refused(2, "publish", name, file, "--resume", "--home", fleet.car)
    assert error.startswith(f"error: the last publish of {file} to {name} ended without writing down how far it came")
    assert hint.startswith("hint: compare the file with what tally subscribe shows")


def publish_through(
    liar: Liar, session: Session, name: str, file: Path
) -> tuple[BaseException | None, publish_command._Outcome, RowFile]:
    """What the command does with a file, through a node that lies."""
    run = publish_command._Run(FileMark())
    settings = PublisherSettings("anchored", batch_rows_max=10, anchor_check_s=0.1)
    disk = RealDisk(file.parent / "spool")
    publisher = Publisher(ties(session, liar), name, disk, settings, on_delivery=run.on_delivery)
    source = RowFile(str(file), "jsonl", publisher.schema.arrow, at_once=10)
    error = run.carry_out(publisher, source, source.portions(), 60, lambda rows: None)
    outcome = run.outcome(publisher)
    outcome.count_rest(source)
    return error, outcome, source


def test_rows_are_stored_though_their_anchor_is_not_believed(fleet: Fleet, tmp_path: Path) -> None:
    """It ends as a client does that cannot verify what the ledger says: refused, and its rows are there."""
    name = fleet.topic("not-believed")
    file = write(tmp_path / "rows.jsonl", json_lines(range(30)))
    with Session.open(fleet.car) as session:
        liar = Liar(session.node)
        liar.inclusion = lambda token, partition, size, offsets: [[bytes(32)] for _ in offsets]
        error, outcome, source = publish_through(liar, session, name, file)
    assert isinstance(error, Forged)
    stored = outcome.produced.stored
    assert (outcome.produced.anchored, outcome.not_taken) == (0, 30 - stored - outcome.waiting)
    assert f"({stored} of them not anchored yet)" in outcome.sentence(source, "anchored")
    wait_until(lambda: len(read(fleet, name)) == stored > 0)  # honest readers find them


def test_rows_that_are_refused_were_not_taken(fleet: Fleet, tmp_path: Path) -> None:
    """The third parcel of the first lane is refused for good; what was read behind it may go in another lane."""
    name, lanes = fleet.topic("refused-rows"), set[bytes]()
    file = write(tmp_path / "rows.jsonl", json_lines(range(50)))

    def take(token: bytes, parcels: list[bytes]) -> list[Outcome]:
        headers = [Parcel.decode(one).header for one in parcels]
        lanes.add(headers[0].lane)
        bad = [place for place, one in enumerate(headers) if one.sequence == 2 and len(lanes) == 1][:1]
        taken = parcels[: bad[0]] if bad else parcels
        refusals: list[Outcome] = [NotStored("too-large", "the parcel is too large")] if bad else []
        return [*(honest.publish(token, taken) if taken else []), *refusals]

    with Session.open(fleet.car) as session:
        honest, liar = session.node, Liar(session.node)
        liar.publish = take
        error, outcome, source = publish_through(liar, session, name, file)
    assert str(error) == "the parcel is too large"
    assert (outcome.mark.rows, outcome.waiting) == (20, 0)
    stored = read(fleet, name)
    assert stored[:20] == [*range(20)]
    assert (outcome.produced.stored, outcome.not_taken) == (len(stored), 50 - len(stored))
    assert ("would come twice" in outcome.sentence(source, "anchored")) is (len(stored) > 20)
    assert "go on with line 21 of" in outcome.sentence(source, "anchored")


def test_a_dry_run_reads_it_all_and_sends_nothing(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("dry")
    file = write(tmp_path / "rows.csv", ["vin,seq", "V0,0", "V1,one", "V2,2", "V3", "V4,4"])
    said = refused(2, "publish", name, file, "--dry-run", "--home", fleet.car)
    assert said[0].startswith(f'{file}, line 3, column "seq": expected int64')
    assert said[1] == f"{file}, line 5: expected 2 values, found 1"
    assert said[2] == f"error: 2 rows of 5 in {file} would not be taken by {name}; nothing was sent"
    write(file, ["vin,seq", "V0,0", 'V1,"1"', '"V\n2",2'])
    assert done("publish", name, file, "--dry-run", "--home", fleet.car).out == (
        f"3 rows of {file} fit {name}; nothing was sent\n"
    )
    assert read(fleet, name) == []


@pytest.mark.parametrize(
    ("header", "column", "hint"),
    [
        ("vin,seq,extra", "extra", ""),
        ("VIN,Seq", "VIN", "; --no-header where the first line is a row"),
        ("vin;seq", "vin;seq", "; values are separated by commas"),
    ],
)
def test_a_csv_whose_columns_are_not_the_topics(
    fleet: Fleet, tmp_path: Path, header: str, column: str, hint: str
) -> None:
    name = fleet.topic(f"columns-{column.replace(';', '-')}")
    file = write(tmp_path / "rows.csv", [header, "V1,1,1"])
    said = refused(2, "publish", name, file, "--home", fleet.car)
    assert said[1:] == [
        f'error: {file}: column "{column}": the topic has no such column',
        f"hint: the topic's columns are vin, seq{hint}",
    ]


def test_what_is_no_file_and_who_may_not_publish(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("no-file")
    assert refused(2, "publish", name, tmp_path, "--home", fleet.car)[0] == f"error: {tmp_path}: a folder, not a file"
    nowhere = tmp_path / "rows.jsonl"
    assert refused(2, "publish", name, nowhere, "--home", fleet.car)[0] == f"error: {nowhere}: no such file"
    write(nowhere, json_lines(range(1)))
    assert refused(3, "publish", name, nowhere, "--home", fleet.reader) == [
        f'error: no right to publish on topic "{name}"',
        "hint: the topic's owner grants it: tally right grant TOPIC PRINCIPAL write",
    ]


def test_a_csv_of_one_line(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("one-line")
    file = write(tmp_path / "rows.csv", ["V1,1"])
    numbers, error, hint = refused(2, "publish", name, file, "--home", fleet.car)
    assert numbers.startswith("0 rows stored, 0 waiting in the spool, 0 not taken; go on with line 1 of")
    assert error == f'error: {file}: column "V1": the topic has no such column'
    assert hint == "hint: the topic's columns are vin, seq; --no-header where the first line is a row"
    assert done("publish", name, file, "--no-header", "--home", fleet.car).out.startswith("1 row in 1 parcel")
    write(file, ["vin,seq"])
    said = done("publish", name, file, "--home", fleet.car)
    assert (said.out, said.err) == (
        f"0 rows in 0 parcels to {name}, anchored\n",
        f"{file} has no rows\n",
    )
    write(file, [])
    assert done("publish", name, file, "--home", fleet.car).err == f"{file} has no rows\n"
    assert read(fleet, name) == [1]
    rows = write(tmp_path / "rows.jsonl", json_lines(range(1)))
    assert refused(2, "publish", name, rows, "--no-header", "--home", fleet.car)[0].startswith("error: --no-header is")


def test_a_column_that_the_file_lacks_is_named(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("lacking", "vin string not null, seq int64")
    file = write(tmp_path / "rows.csv", ["vin", "V1"])
    said = done("publish", name, file, "--home", fleet.car)
    assert said.err == f'{file} lacks the column "seq": it is null in every row\n'
    write(file, ["seq", "1"])
    assert f'error: {file} lacks the column "vin", which may not be null' in refused(
        2, "publish", name, file, "--home", fleet.car
    )


def test_progress_counts_rows_that_are_anchored(fleet: Fleet, tmp_path: Path) -> None:
    name = fleet.topic("shown")
    file = write(tmp_path / "rows.csv", csv_lines(range(20)))
    said = done("publish", name, file, "--progress", "--batch-rows", "5", "--home", fleet.car)
    assert said.err.splitlines()[-1] == f"publishing {file}: 20 of 20"


def leave_in_spool(fleet: Fleet, name: str, numbers: range) -> None:
    """As a process does that seals and is gone before it could send."""
    with Session.open(fleet.car) as session:
        publisher = session.publisher(name, background=False)
        publisher.send([row(number) for number in numbers])
        publisher._seal_step()
        publisher.stop()


def test_what_waits_while_the_node_is_away_is_listed_and_sent_when_it_is_back(fleet: Fleet, tmp_path: Path) -> None:
    name, home = fleet.topic("spooled"), ("--home", fleet.car)
    done("publish", name, *home, stdin=json_lines(range(1))[0].encode())
    file = write(tmp_path / "rows.jsonl", json_lines(range(1, 8)))
    fleet.stack.stop_node()
    try:
        numbers, error, hint, *_ = refused(4, "publish", name, file, "--timeout", "0.5", *home)
        flushed = refused(4, "spool", "flush", name, "--timeout", "0.5", *home)
        (lane,) = done("spool", "list", name, *home, "--json").json
        header, line = done("spool", "list", name, *home).out.splitlines()
    finally:
        fleet.stack.start_node()
    assert numbers == "0 rows stored, 7 waiting in the spool, 0 not taken"
    assert error.startswith(f"error: 0 rows anchored; 7 rows still in the spool of {fleet.car}; node away: ")
    assert hint == "hint: when that is mended, tally spool flush sends them; so does the next publish to the topic"
    assert flushed[0] == "0 rows anchored, 0 stored and not anchored yet, 7 waiting in the spool, 0 refused"
    assert (lane["topics"], lane["rows"]) == ([name], 7)
    assert lane["size_bytes"] > 0 < lane["oldest_ms"]
    assert header.split() == ["topic", "lane", "parcels", "rows", "bytes", "oldest"]
    assert line.startswith(f"{name}  {lane['lane'][:8]}")
    assert done("spool", "flush", name, *home).out == "7 rows anchored\n"
    assert done("spool", "list", name, *home).out == "nothing waits in the spool\n"
    assert done("publish", name, file, "--resume", *home).out.startswith("0 rows in 0 parcels")
    assert read(fleet, name) == [*range(8)]


def test_the_time_counts_from_the_first_question(fleet: Fleet) -> None:
    """The authority takes connections and says nothing, and the node is away."""
    name, home = fleet.topic("silent"), ("--home", fleet.car)
    done("publish", name, *home, stdin=json_lines(range(1))[0].encode())
    fleet.stack.stop_node()
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
            done("principal", "address", "--authority-url", f"http://127.0.0.1:{silent.getsockname()[1]}", *home)
            said = refused(4, "publish", name, "--timeout", "1", *home, stdin=json_lines(range(1, 2))[0].encode())
            silent.setblocking(False)
            asked = 0
            with suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    asked += 1
    finally:
        done("principal", "address", "--authority-url", fleet.stack.authority.url, *home)
        fleet.stack.start_node()
    assert said[0] == "0 rows stored, 1 waiting in the spool, 0 not taken"
    assert "still in the spool" in said[1]
    assert 0 < asked < 6  # as often as a client asks that has all the time there is
    assert done("spool", "flush", name, *home).out == "1 row anchored\n"


def test_the_next_publish_sends_what_waits_and_counts_it_apart(fleet: Fleet) -> None:
    name = fleet.topic("left")
    leave_in_spool(fleet, name, range(5))
    said = done("publish", name, "--home", fleet.car, stdin=json_lines(range(5, 6))[0].encode())
    assert (said.out, said.err) == (
        f"1 row in 1 parcel to {name}, anchored\n",
        "5 rows of an earlier publish went out as well\n",
    )
    assert read(fleet, name) == [*range(6)]


def test_what_is_dropped_is_gone(fleet: Fleet) -> None:
    name, home = fleet.topic("dropped"), ("--home", fleet.car)
    leave_in_spool(fleet, name, range(3))
    assert refused(2, "spool", "drop", name, *home) == [
        f"error: 3 rows of {name} would be deleted, and may be stored nowhere else",
        "hint: say --yes to do it",
    ]
    assert refused(2, "spool", "drop", "another", "--yes", *home)[0] == (
        'error: nothing of topic "another" lies in the spool'
    )
    assert done("spool", "drop", name, "--yes", *home).out == "3 rows dropped\n"
    assert done("spool", "flush", name, *home).out == "nothing waits in the spool\n"
    done("publish", name, *home, stdin=json_lines(range(9, 10))[0].encode())
    assert read(fleet, name) == [9]


def test_rows_of_a_padded_topic_are_counted_too(fleet: Fleet) -> None:
    name, home = fleet.topic("padded-rows", "vin string, seq int64", "--padded"), ("--home", fleet.car)
    leave_in_spool(fleet, name, range(3))
    assert done("spool", "list", name, *home, "--json").json[0]["rows"] == 3
    assert done("spool", "flush", name, *home).out == "3 rows anchored\n"
    data = json_lines(range(3, 4))[0].encode()
    assert done("publish", name, *home, stdin=data).out == f"1 row in 1 parcel to {name}, anchored\n"
