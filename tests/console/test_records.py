"""Records and the life of one: read when asked to and not before, shown whole, proved; what does not hold is red."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from actors import await_topic, give_up, publish, read_rows, rows, settle
from commands import done
from console_stack import ROWS, SCHEMA, Browser, ConsoleStack, Said, look
from stack import READ, WRITE, wait_until
from without import without

from tallystick.carriers.carrier import Fetched
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.client.writes import Committer, PartWriter, held
from tallystick.console.pages import life, records
from tallystick.console.pages.lanes import PARCELS_MAX
from tallystick.console.pages.records import ROUNDS_MAX
from tallystick.console.viewer import Viewer
from tallystick.console.visit import LINES, Visit
from tallystick.errors import Refused, Unavailable
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.commit import CommitList
from tallystick.parcel.prove import verify_proof
from tallystick.record.schema import Schema

NANOSECONDS = 1763193600123456789
HOSTILE = "<script>alert(1)</script>"
PLACE = re.compile(r'/records/0/(\d+)/(\d+)">\d+, \d+<')


@pytest.fixture
def topic(world: ConsoleStack, viewer: Viewer) -> Callable[..., bytes]:
    """`topic(name, schema, rows)`: another topic of the same people, with these rows in it."""

    def make(name: str, schema: str, rows: Any, flags: int = 0, partitions: int = 1, **settings: Any) -> bytes:
        token = world.topic(world.owner, name, schema, flags=flags, partitions=partitions)
        await_topic(world, token)
        world.grant(world.owner, token, world.car, WRITE)
        world.grant(world.owner, token, world.reader, READ)
        with world.car.publisher(name, acks="anchored", anchor_check_s=0.02, **settings) as publisher:
            for one in rows:
                publisher.send(one)
            assert publisher.flush(30) == 0
        settle(world)
        look(viewer)
        return token

    return make


def body(said: Said) -> str:
    assert said.status == 200, said.text[-800:]
    return said.text[said.text.index("<h1>") :]


def words(said: Said) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body(said))).split())


def places(said: Said) -> list[tuple[int, int]]:
    return [(int(offset), int(row)) for offset, row in PLACE.findall(body(said))]


def way(said: Said, text: str) -> dict[str, Any]:
    """The query behind a link of this text."""
    found = re.search(rf'\?([^"]*)">{text}</a>', body(said).partition("<h2>Partitions")[0])
    return {} if found is None else dict(pair.split("=") for pair in unescape(found[1]).split("&"))


Instead = Callable[[object, str, object], None]


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """What stands between the reader and its node answers something else."""
    return monkeypatch.setattr


def test_nothing_is_read_before_the_button(world: ConsoleStack, console: Browser, instead: Instead) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("it was read")

    for name in ("subscriber", "prove", "over"):
        instead(Session, name, read)
    for path in ("records", "records/0/1/0", "records/0/1/0/proof", "lanes"):
        said = console.get(f"topics/{world.token.hex()}/{path}")
        assert "leaves an operation on the ledger in the name of reader" in words(said)
        assert 'name="read" value="1"' in said.text
        assert "data-live" not in said.text


def test_rows_stand_with_where_they_are_from(world: ConsoleStack, console: Browser) -> None:
    said = console.get(f"topics/{world.token.hex()}/records", read=1)
    assert places(said) == [(offset, 0) for offset in reversed(range(ROWS))]
    assert f"3, 0 V 3 1.5 {world.car.identity.principal.hex()[:12]}…" in words(said)
    assert '<span class="mark good" title="verified here">height' in said.text
    assert "vin string" in said.text
    assert "seq int64" in said.text


def test_where_to_begin(world: ConsoleStack, console: Browser, viewer: Viewer) -> None:
    def read(**query: Any) -> Said:
        return console.get(f"topics/{world.token.hex()}/records", read=1, **query)

    assert places(read(by="offset", at=2)) == [(3, 0), (2, 0)]
    assert places(read(interest="seq > 1 && seq < 3")) == [(2, 0)]
    assert len(places(read(by="height", at=0))) == len(places(read(by="time", at="-1h"))) == ROWS
    for query, told in (
        ({"by": "offset", "at": 99}, "has no offset 99"),
        ({"by": "offset", "at": "²"}, "a number expected"),
        ({"by": "height", "at": 10**9}, "a height to come is a page to come"),
        ({"by": "time", "at": 1763193600 * 10**9}, "write 2025-11-15 08:00:00 UTC"),
        ({"by": "time", "at": "2999-01-01"}, "no block is as new"),
        ({"partition": 7}, "partition 7 does not exist"),
        ({"interest": "nothing > 1"}, "nothing"),
    ):
        said = read(**query)
        assert said.status == 400, (query, said.text[-400:])
        assert told.lower() in unescape(said.text).lower(), (query, said.text[-400:])


def test_a_burst_is_shown_whole(console: Browser, topic: Callable[..., bytes]) -> None:
    """Neither parcels of many rows nor pages that end within one lose a row, on the way back and on the way on."""
    count = 2 * LINES + 30
    rows = [[{"n": number} for number in range(at, min(at + 23, count))] for at in range(0, count, 23)]
    path = f"topics/{topic('burst', 'n int64', rows).hex()}/records"
    pages = [console.get(path, read=1)]
    while query := way(pages[-1], "older"):
        pages.append(console.get(path, **query))
    seen = [place for page in pages for place in places(page)]
    assert len(seen) == len(set(seen)) == count
    assert seen == sorted(seen, reverse=True)
    assert [len(places(page)) for page in pages] == [LINES, LINES, 30]
    pages = [console.get(path, read=1, by="offset", at=0)]
    while query := way(pages[-1], "newer"):
        pages.append(console.get(path, **query))
    assert [place for page in reversed(pages) for place in places(page)] == seen


def test_who_names_no_partition_sees_the_one_that_was_anchored_last(
    console: Browser, topic: Callable[..., bytes]
) -> None:
    token = topic("parted", "n int64", [[{"n": 7}]], partitions=8)
    said = words(console.get(f"topics/{token.hex()}/records", read=1))
    assert said.count("none yet") == 7
    assert "1 row." in said


def test_rows_of_a_write_stand_where_they_were_committed(
    world: ConsoleStack, viewer: Viewer, console: Browser, topic: Callable[..., bytes], tmp_path: Path
) -> None:
    token, write = topic("written", "n int64", [[{"n": 0}]]), (b"w" * 32, 7)
    with held(tmp_path):
        runs = PartWriter(world.car, "written", tmp_path, batch_rows_max=3).write(write, iter([[{"n": 1}] * LINES]))
    path = f"topics/{token.hex()}/records"
    look(viewer)
    assert len(places(console.get(path, read=1))) == 1
    Committer(world.car, "written", tmp_path / "c").commit(CommitList(token, *write, runs))
    settle(world)
    look(viewer)
    pages = [console.get(path, read=1)]
    pages.append(console.get(path, **way(pages[0], "older")))
    assert [len(places(page)) for page in pages] == [LINES, 1]
    assert len({place for page in pages for place in places(page)}) == LINES + 1


@pytest.mark.long
def test_a_write_that_no_page_holds_is_said_with_what_reads_it(
    world: ConsoleStack, viewer: Viewer, console: Browser, topic: Callable[..., bytes], tmp_path: Path
) -> None:
    token, write = topic("huge", "data binary", [[{"data": b""}]]), (b"h" * 32, 7)
    rows = ([{"data": Random(number).randbytes(880 << 10)}] for number in range(ROUNDS_MAX * 4))
    with held(tmp_path):
        runs = PartWriter(world.car, "huge", tmp_path, batch_rows_max=1).write(write, rows)
    Committer(world.car, "huge", tmp_path / "c").commit(CommitList(token, *write, runs))
    settle(world)
    look(viewer)
    said = words(console.get(f"topics/{token.hex()}/records", read=1))
    assert "larger than a page reads" in said
    assert "tally subscribe huge" in said


def test_wide_and_long_rows_are_cut_and_odd_values_are_readable(console: Browser, topic: Callable[..., bytes]) -> None:
    columns = ", ".join(f"c{number:03} float64" for number in range(996))
    schema = f'at timestamp[ns, UTC], "{HOSTILE}" string, short float32, {columns}, last string'
    values = {"at": NANOSECONDS, HOSTILE: HOSTILE * 40_000, "short": 0.1, "c000": math.nan, "last": "end"}
    fields = Schema.parse(schema).arrow
    batch = pa.RecordBatch.from_arrays([pa.array([values.get(one.name)], one.type) for one in fields], schema=fields)
    path = f"topics/{topic('wide', schema, [batch], parcel_bytes_max=4 << 20).hex()}/records"
    for said in (console.get(path, read=1), console.get(f"{path}/0/0/0", read=1)):
        assert "2025-11-15 08:00:00.123456789Z" in words(said)
        assert " 0.1 " in words(said)
        assert " nan " in words(said)
        assert "(1,000,000 characters)" in words(said)
        assert HOSTILE not in said.text
        assert len(said.body) < 150_000
    assert " end " in words(console.get(f"{path}/0/0/0", read=1, column=900))
    assert all(len(escape(records.cut(sign * 1000, 80))) < 200 for sign in "x\"'<&")


def test_what_was_retired_or_erased_is_said(
    world: ConsoleStack, viewer: Viewer, console: Browser, topic: Callable[..., bytes]
) -> None:
    token = topic("gone", "n int64", [[{"n": number}] for number in range(4)], ERASABLE)
    path = f"topics/{token.hex()}/records"
    give_up(world.owner, world.node, Place(token, 0), 2)
    wait_until(lambda: look(viewer) or "2 to 4" in console.get(path).text)
    said = console.get(path, read=1, by="offset", at=0)
    assert places(said) == [(3, 0), (2, 0)]
    assert "offsets 0 to 1 were retired" in words(said)
    assert places(console.get(path, read=1)) == [(3, 0), (2, 0)]
    assert "offset 1 was retired" in unescape(console.get(f"{path}/0/1/0").text).lower()
    world.owner.authority.erase(token, world.car.identity.principal, [])
    wait_until(lambda: "its key was destroyed on purpose" in words(console.get(path, read=1)))
    assert not places(console.get(path, read=1))
    said = console.get(f"{path}/0/2/0", read=1)
    assert "erased" in words(said)
    assert "It was not reached" in words(said)


@pytest.mark.parametrize("path", ["records", "records/0/0/0", "records/0/0/0/proof", "lanes"])
def test_who_lacks_the_right_sees_what_one_sees_of_no_topic(world: ConsoleStack, path: str) -> None:
    with world.viewing(world.stranger) as other, world.serving(other) as browser:
        for query in ({}, {"read": 1}):
            said, none = (browser.get(f"topics/{one.hex()}/{path}", **query) for one in (world.token, bytes(16)))
            assert said.status == none.status == 404
            assert said.text.replace(world.token.hex(), "00" * 16).split("<h1>")[1] == none.text.split("<h1>")[1]


def test_who_may_describe_and_not_read_is_told_the_command(world: ConsoleStack) -> None:
    with world.viewing(world.owner) as owner, world.serving(owner) as browser:
        said = browser.get(f"topics/{world.token.hex()}/records", read=1)
        assert said.status == 404
        assert "tally right grant brakes" in said.text


def test_a_life_has_seven_steps_and_each_check_says_what_came_of_it(world: ConsoleStack, console: Browser) -> None:
    said = console.get(f"topics/{world.token.hex()}/records/0/2/0", read=1)
    assert [f"<h2>{number}. {name}</h2>" in said.text for number, name in enumerate(life.STEPS, 1)] == [True] * 7
    assert f"{len(life.CHECKS)} of {len(life.CHECKS)} checks held" in words(said)
    assert body(said).count('<li class="passed">') == body(said).count(">holds</span>") == len(life.CHECKS)
    for told in (
        "parcel 1 of the lane",
        "Not proved that the row is true",
        "tally verify row.proof --trust",
        "seq int64 2",
    ):
        assert told in words(said), told


def test_a_proof_is_downloaded_that_verifies_and_no_changed_byte_of_it(
    world: ConsoleStack, console: Browser, tmp_path: Path
) -> None:
    said = console.get(f"topics/{world.token.hex()}/records/0/2/0/proof", read=1)
    assert said.headers["content-disposition"] == 'attachment; filename="row.proof"'
    trust, file = world.reader.identity.trust, tmp_path / "row.proof"
    file.write_bytes(said.body)
    assert "the proof holds" in done("verify", file, "--trust", world.reader.identity.home / "trust.json").out
    assert verify_proof(said.body, trust, topic=world.token).row["seq"] == 2
    for at in range(0, len(said.body), len(said.body) // 40):
        changed = said.body[:at] + bytes([said.body[at] ^ 1]) + said.body[at + 1 :]
        with pytest.raises(Refused):
            verify_proof(changed, trust)


def test_the_verifier_is_handed_out_as_a_file(console: Browser) -> None:
    """It is no page of the console's: it would run under no policy of its own there."""
    said = console.get("verify.html")
    assert said.headers["content-disposition"] == 'attachment; filename="verify.html"'
    assert said.body == Path(life.__file__).parents[1].joinpath("verify.html").read_bytes()


@pytest.fixture
def lying(world: ConsoleStack, instead: Instead) -> Callable[..., None]:
    """`lying(change)`: what the node shows of parcels goes through `change`."""
    honest = world.reader.carrier.fetch

    def lie(change: Callable[[Fetched], Fetched]) -> None:
        instead(world.reader.carrier, "fetch", lambda wanted: change(honest(wanted)))

    return lie


def altered(fetched: Fetched) -> Fetched:
    parcels = [bytes(one) for one in fetched.parcels]
    return replace(fetched, parcels=tuple(one[:300] + bytes([one[300] ^ 1]) + one[301:] for one in parcels))


def test_a_node_that_alters_is_named_in_red_and_nothing_behind_it_is_green(
    world: ConsoleStack, console: Browser, lying: Callable[..., None]
) -> None:
    lying(altered)
    path = f"topics/{world.token.hex()}/records"
    said = console.get(path, read=1, by="offset", at=0)
    assert '<span class="mark alarm">altered</span>' in said.text
    assert not places(said)
    said = console.get(f"{path}/0/2/0", read=1)
    assert '<span class="mark alarm">altered</span>' in said.text
    assert body(said).count(">holds</span>") == 1
    assert "7. Prove It was not reached" in words(said)


# --- lanes ---


def test_lanes_are_those_of_the_newest_parcels_and_none_is_looked_for_before_the_button(
    world: ConsoleStack, console: Browser, viewer: Viewer, topic: Callable[..., bytes]
) -> None:
    token = topic("lanes", SCHEMA, [rows(0)], partitions=3)
    publish(world.car, "lanes", [1, 2])
    look(viewer)
    path = f"topics/{token.hex()}/lanes"
    assert "leaves an operation on the ledger in the name of reader" in words(console.get(path))
    with world.reader.subscriber("lanes") as subscriber:
        read_rows(subscriber, 3)
        heads = {
            lane.hex(): head for reader in subscriber._readers.values() for (_, lane), head in reader.heads.items()
        }
    said = console.get(path, read=1)
    assert len(heads) == 2
    assert dict(re.findall(r'title="([0-9a-f]{32})" class="short">.*?>parcel (\d+)<', body(said))) == {
        lane: str(head.sequence) for lane, head in heads.items()
    }
    assert words(said).count("its chain") == 2


def test_a_lane_that_began_before_what_is_looked_at_is_joined_to_what_is_below(
    world: ConsoleStack, console: Browser, topic: Callable[..., bytes]
) -> None:
    token = topic("long", "n int64", [[{"n": number}] for number in range(PARCELS_MAX + 4)])
    said = words(console.get(f"topics/{token.hex()}/lanes", read=1))
    assert f"0 {PARCELS_MAX} parcel {PARCELS_MAX + 4} , offset {PARCELS_MAX + 4} , closed" in said
    assert said.count("its chain") == 1


def test_a_node_that_shows_other_lanes_is_named_in_red(
    world: ConsoleStack, console: Browser, lying: Callable[..., None]
) -> None:
    path = f"topics/{world.token.hex()}/lanes"
    for change, reason in ((altered, "altered"), (withheld, "missing"), (repeated, "altered")):
        lying(change)
        said = console.get(path, read=1)
        assert f'<span class="mark alarm">{reason}</span>' in said.text
        assert "its chain" not in said.text
    with without("the proof of a range", "the chain of a lane"):
        assert "its chain" in console.get(path, read=1).text


def withheld(fetched: Fetched) -> Fetched:
    return replace(fetched, parcels=())


def repeated(fetched: Fetched) -> Fetched:
    """The first parcel of a lane in the place of all others."""
    return replace(fetched, parcels=fetched.parcels[:1] * len(fetched.parcels))


def test_a_finding_is_kept_and_shown_with_its_place(world: ConsoleStack, console: Browser, instead: Instead) -> None:
    """A publisher's permit that no node knows: of each parcel a finding, with the evidence in the identity's folder."""
    instead(world.reader.node, "permits", lambda _: [])
    instead(world.reader.node, "permit", lambda one: bytes(one))
    said = console.get(f"topics/{world.token.hex()}/records", read=1, by="offset", at=0)
    kept = re.search(r"evidence/([^<]*)", said.text)
    assert kept is not None
    assert (world.reader.identity.home / "evidence" / kept[1]).is_file()
    assert "mark alarm" in said.text
    assert not places(said)


def test_a_node_that_is_away_is_a_sentence(
    world: ConsoleStack, visit: Callable[..., Visit], lying: Callable[..., None]
) -> None:
    def away(_: Fetched) -> Fetched:
        raise Unavailable("the node is away")

    lying(away)
    for page, path in ((records.PAGES[0], "records"), (life.PAGES[0], "records/0/0/0")):
        with pytest.raises(Unavailable, match="the node is away"):
            page.show(visit(f"topics/{world.token.hex()}/{path}", read=1, by="offset", at=0))
