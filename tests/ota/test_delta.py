"""Less than a whole image: patches, chunks that are there already, and what a bad patch costs."""

from __future__ import annotations

import bz2
import tracemalloc
from dataclasses import replace
from random import Random

import pytest
from metadata_world import SUPPLIER
from vehicle_world import HARDWARE, Car, Fleet, Image, install
from without import without

from tallystick.errors import Malformed, Refused
from tallystick.fleet.ota.delta import PatchRecord, apply_patch, make_patch
from tallystick.fleet.ota.slots import Slots
from tallystick.objects.layout import GEAR, chunks_file
from tallystick.objects.ranges import RangeAsk

BASE = Random("base").randbytes(120_000)
CHANGED = BASE[:30_000] + b"a few new bytes" + BASE[30_100:]


def made(name: str, data: bytes, cut: int = GEAR) -> Image:
    return Image(data, f"{SUPPLIER}/{name}", cut=cut)


OLD, NEW = made("brake-mk2/1.0", BASE), made("brake-mk2/2.0", CHANGED)
PATCH_BYTES = make_patch(BASE, CHANGED) or b""
PATCH = made("patches/1", PATCH_BYTES)
PATCH_RECORD = PatchRecord(OLD.root, NEW.root, PATCH.docket.encode(), PATCH.key.key)


def updated(patch: PatchRecord | None, *served: Image) -> tuple[Car, int]:
    """A car that ran the old image after an update, and the bytes of chunks of the new one that were asked for."""
    fleet = Fleet()
    fleet.put({"brakes": NEW})
    fleet.serve(*served)
    car = Car(fleet, hardware={"brakes": HARDWARE["brakes"]})
    install(Slots(car.disks["brakes"]), OLD, 1)
    Slots(car.disks["brakes"]).confirm()
    if patch is not None:
        fleet.patches[OLD.root, NEW.root] = patch
    asked = watched(car)
    car.network.restart("brakes")
    car.run(10)
    assert car.update([NEW]) == "installed"
    assert car.boots("brakes") == NEW.root
    return car, sum(one.length for one in asked if one.file == chunks_file(NEW.root))


def watched(car: Car) -> list[RangeAsk]:
    asked: list[RangeAsk] = []
    send = car.network.send

    def watch(sender: str, to: str, message: bytes) -> None:
        if to.startswith("server"):
            asked.append(RangeAsk.decode(message))
        send(sender, to, message)

    car.network.send = watch
    return asked


def test_a_patch_brings_the_image_and_no_chunk_of_it_is_fetched() -> None:
    assert len(PATCH_BYTES) < 1000
    assert updated(PATCH_RECORD, PATCH)[1] == 0


def test_without_a_patch_the_old_image_gives_its_chunks() -> None:
    assert 0 < updated(None)[1] < len(CHANGED) // 4


def test_a_patch_against_another_base_is_refused_and_the_image_comes_all_the_same() -> None:
    with pytest.raises(Refused) as refused:
        PATCH_RECORD.check(bytes(32), NEW.root, 1 << 20)
    assert refused.value.reason == "wrong-base"
    assert updated(replace(PATCH_RECORD, base=bytes(32)), PATCH)[1] > 0


def test_a_patch_that_is_too_long_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        PATCH_RECORD.check(OLD.root, NEW.root, 10)
    assert refused.value.reason == "patch-too-long"
    assert make_patch(BASE, CHANGED, 1000) is None
    assert make_patch(b"", Random(1).randbytes(1000)) is None


@pytest.mark.parametrize("change", ["flipped", "of another image", "away"])
def test_a_bad_patch_decides_nothing(change: str) -> None:
    data = {"flipped": PATCH_BYTES[:40] + b"\0" + PATCH_BYTES[41:], "of another image": make_patch(BASE, BASE) or b""}
    bad = made("patches/2", data.get(change, PATCH_BYTES))
    record = replace(PATCH_RECORD, docket=bad.docket.encode(), key=bad.key.key)
    updated(record, *([] if change == "away" else [bad]))


def test_patches_are_applied_and_bad_ones_refused_in_bounded_memory() -> None:
    assert apply_patch(BASE, PATCH_BYTES, len(CHANGED)) == CHANGED
    with pytest.raises(Malformed):
        apply_patch(BASE, PATCH_BYTES, len(CHANGED) + 1)
    for at in range(0, len(PATCH_BYTES), 3):
        bad = PATCH_BYTES[:at] + bytes([PATCH_BYTES[at] ^ 0x41]) + PATCH_BYTES[at + 1 :]
        try:
            apply_patch(BASE, bad, len(CHANGED))
        except Malformed:
            continue
    for bad in (b"", b"BSDIFF40", PATCH_BYTES[:-4], PATCH_BYTES[:20]):
        with pytest.raises(Malformed):
            apply_patch(BASE, bad, len(CHANGED))


def bomb(length: int) -> bytes:
    """A short patch whose stream inflates to gigabytes; here to as much as a test can take."""
    stream = bz2.compress(bytes(length))
    head = b"BSDIFF40" + len(stream).to_bytes(8, "little") + (0).to_bytes(8, "little") + (100).to_bytes(8, "little")
    return head + stream + bz2.compress(b"") * 2


def test_a_bomb_is_not_inflated() -> None:
    patch = bomb(30 << 20)

    def memory() -> int:
        tracemalloc.start()
        with pytest.raises(Malformed):
            apply_patch(b"", patch, 100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert memory() < 8 << 20
    with without("the bound on what a patch inflates to"):
        assert memory() > 24 << 20


def test_a_patch_record_that_is_none() -> None:
    assert PatchRecord.decode(PATCH_RECORD.encode()) == PATCH_RECORD
    for bad in (b"", PATCH_RECORD.encode()[:-1], b"\x80"):
        with pytest.raises(Malformed):
            PatchRecord.decode(bad)
