"""`tally object`: put, serve, get and check, and a reference that goes through a topic."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from random import Random

import pytest
from commands import TALLY, Fleet, done, refused, running, tally

from tallystick.cli.object import read_reference
from tallystick.client.session import Session
from tallystick.errors import Misuse
from tallystick.objects.layout import REFERENCE_TYPE, Docket, ObjectReference

DATA = os.urandom(200_000) + b"words, " * 50_000


@pytest.fixture(scope="module")
def clip(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The file of a reference, and the folder of the object."""
    folder = tmp_path_factory.mktemp("clip")
    (folder / "clip.mp4").write_bytes(DATA)
    told = done(
        "object", "put", folder / "clip.mp4", "-o", folder / "clip.reference", "--home", fleet.car, "--json"
    ).json
    assert (told["length"], told["sealed"] < len(DATA)) == (len(DATA), True)
    return folder / "clip.reference", fleet.car / "objects"


def test_a_reference_is_for_its_owner_alone(clip: tuple[Path, Path]) -> None:
    file, folder = clip
    assert file.stat().st_mode & 0o077 == 0
    held, reference = json.loads(file.read_text()), read_reference(file)
    assert Docket.decode(bytes.fromhex(held["docket"])).root == reference.root
    assert all(reference.key not in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_what_is_served_is_read_whole_and_liars_are_named(clip: tuple[Path, Path], tmp_path: Path) -> None:
    file, folder = clip
    root = read_reference(file).name
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in (f"{root}.slips", f"{root}.chunks"):
        (bad / name).write_bytes((folder / name).read_bytes())
    spoilt = bytearray((bad / f"{root}.chunks").read_bytes())
    for at in range(0, len(spoilt), 1000):  # every chunk, since nobody knows which it is asked for
        spoilt[at] ^= 1
    (bad / f"{root}.chunks").write_bytes(spoilt)
    with running("object", "serve", folder, "--port", "0") as (_, told):
        url = told["url"]
        said = done("object", "get", file, "--from", bad, "--from", url, "-o", tmp_path / "read", "--json").json
        assert (tmp_path / "read").read_bytes() == DATA
        assert ["bad: chunk " in fault for fault in said["faults"]] == [True]
        done("object", "check", root, file, "--from", url)
        found = tally("object", "check", root, "--from", url, "--from", bad, "--json")
        assert (found.code, [bool(one["faults"]) for one in found.json]) == (3, [False, True])
    assert "nobody else has it" in refused(3, "object", "get", file, "--from", bad, "-o", tmp_path / "none")[-2]
    assert refused(4, "object", "get", file, "--from", url, "-o", tmp_path / "none")  # nobody serves any more
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "none.part", "read"]


def test_all_places_are_asked_and_an_attempt_goes_on_where_the_last_ended(
    clip: tuple[Path, Path], tmp_path: Path
) -> None:
    file, folder = clip
    with running("object", "serve", folder, "--port", "0") as (one, told):
        url, dead = told["url"], "http://127.0.0.1:1"
        said = done(
            *("object", "get", file, "--from", url, "--from", folder, "--from", dead, "-o", tmp_path / "read", "--json")
        ).json
        assert (tmp_path / "read").read_bytes() == DATA
        assert [dead in fault for fault in said["faults"]] == [True]
        assert one.poll() is None
    lies = bytearray(DATA)
    lies[300_000] ^= 1
    (tmp_path / "again.part").write_bytes(lies + b"too long")
    again = done("object", "get", file, "--from", folder, "-o", tmp_path / "again", "--json").json
    assert (tmp_path / "again").read_bytes() == DATA
    assert again["fetched"] < said["fetched"] / 2
    refused(2, "object", "get", file, "--from", tmp_path / "nowhere", "-o", tmp_path / "none")


@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_a_get_that_is_killed_again_and_again_ends_whole(fleet: Fleet, number: int, tmp_path: Path) -> None:
    """At moments drawn by seed, under load: what came before is not fetched again, and nothing has its name early."""
    data, random = os.urandom(24_000_000), Random(number)
    (tmp_path / "image").write_bytes(data)
    reference = tmp_path / "image.reference"
    put = ("object", "put", tmp_path / "image", "-o", reference, "--into", tmp_path / "served", "--home", fleet.car)
    done(*put, "--chunk-bytes", "4096")
    target = tmp_path / "read"
    with running("object", "serve", tmp_path / "served", "--port", "0") as (_, told):
        get = ["object", "get", str(reference), "--from", told["url"], "-o", str(target), "--json"]
        seen = 0
        for _ in range(4):
            process = subprocess.Popen([*TALLY, *get], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wanted = seen + random.randrange(1, len(data) // 5)
            while process.poll() is None and on_disk(tmp_path / "read.part") < wanted:
                time.sleep(0.001)
            process.kill()
            process.wait()
            if target.exists():
                break
            seen = on_disk(tmp_path / "read.part")
        fetched = done(*get).json["fetched"] if not target.exists() else 0
    assert target.read_bytes() == data
    assert fetched <= len(data) - seen + 3_000_000  # what was under way, and the slips


def on_disk(path: Path) -> int:
    """Bytes that were written, wherever they lie in the file."""
    return path.stat().st_blocks * 512 if path.exists() else 0


def test_one_s_own_objects_need_no_place(fleet: Fleet, clip: tuple[Path, Path], tmp_path: Path) -> None:
    done("object", "get", clip[0], "-o", tmp_path / "read", "--home", fleet.car)
    assert (tmp_path / "read").read_bytes() == DATA
    assert "exists already" in refused(2, "object", "get", clip[0], "-o", tmp_path / "read", "--home", fleet.car)[0]


def test_mistakes_are_told(fleet: Fleet, clip: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "junk").write_text('{"format": "tallystick object reference 1", "root": "00"}')
    assert (
        "not the reference"
        in refused(3, "object", "get", tmp_path / "junk", "--from", tmp_path, "-o", tmp_path / "x")[0]
    )
    assert "64 hexadecimal" in refused(3, "object", "check", "abc", "--from", tmp_path)[0]
    assert "no folder" in refused(2, "object", "check", clip[0], "--from", tmp_path / "nowhere")[0]
    assert "no folder" in refused(2, "object", "serve", tmp_path / "nowhere")[0]
    put = ("object", "put", tmp_path / "junk", "-o", tmp_path / "x", "--home", fleet.car)
    assert "power of two" in refused(2, *put, "--chunk-bytes", "5000")[0]


def test_a_record_that_does_not_fit_goes_as_a_reference(fleet: Fleet) -> None:
    fleet.topic("crashes", f"vin string, video binary, clip {REFERENCE_TYPE}")
    with Session.open(fleet.car) as car, car.publisher("crashes") as publisher:
        publisher.produce({"vin": "V1", "video": os.urandom(1 << 20), "clip": None})
        with pytest.raises(Misuse, match="does not fit") as error:
            publisher.flush(30)
        assert "session.objects.put" in str(error.value.hint)
    with Session.open(fleet.car) as car, car.publisher("crashes", acks="anchored") as publisher:
        reference = car.objects.put(DATA)
        publisher.produce({"vin": "V1", "video": None, "clip": reference.row()})
        assert publisher.flush(60) == 0
        with car.objects.open(reference) as whole:
            assert whole.read() == DATA
    with Session.open(fleet.reader) as reader, reader.subscriber("crashes") as subscriber:
        row = next(iter(subscriber)).batch.data.to_pylist()[0]
        with reader.objects.open(ObjectReference.of_row(row["clip"]), fleet.car / "objects") as clip:
            clip.seek(150_000)
            assert clip.read(100) == DATA[150_000:150_100]
