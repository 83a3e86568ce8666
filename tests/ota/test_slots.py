"""Slots of an ECU: whenever the power fails the old image boots or the new one, whole; what does not live goes back;
what is older never comes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from blake3 import blake3
from without import without

from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable
from tallystick.fleet.ota.slots import TRIES, BootRecord, Slots, Staging
from tallystick.runtime.disk import Disk, RealDisk, read_all
from tallystick.runtime.seeded_disk import SeededDisk

CHUNK_BYTES = 4096
KEY = bytes(range(32))


class Image:
    """A made-up image of chunks, of which the last is shorter."""

    def __init__(self, name: str, counter: int, count: int = 4) -> None:
        self.data = Random(name).randbytes(count * CHUNK_BYTES - 1000)
        self.root, self.counter = blake3(self.data).digest(), counter
        self.parts = [self.data[at : at + CHUNK_BYTES] for at in range(0, len(self.data), CHUNK_BYTES)]
        self.chunks = [(len(part), plain_hash(part)) for part in self.parts]

    def stage(self, slots: Slots) -> Staging:
        return slots.stage(self.root, self.counter, self.chunks, plain_hash)

    def install(self, slots: Slots) -> BootRecord:
        with self.stage(slots) as staging:
            for number in staging.missing():
                staging.write(number, self.parts[number])
            return staging.finish()


def plain_hash(data: bytes) -> bytes:
    return bytes(blake3(data, key=KEY).digest())


OLD, NEW, NEWER = Image("old", 10), Image("new", 20, 5), Image("newer", 30, 3)


def fresh(seed: int = 0) -> SeededDisk:
    """A unit from the factory, with the old image in it."""
    disk = SeededDisk(seed)
    OLD.install(Slots(disk))
    return disk


@pytest.fixture
def disk() -> SeededDisk:
    return fresh()


@pytest.fixture
def slots(disk: SeededDisk) -> Slots:
    return Slots(disk)


def running(disk: Disk) -> bytes:
    """All bytes of the image that boots."""
    record = Slots(disk).boot()
    return read_all(disk, f"slot-{record.slot}")


# --- the way of an image ---


def test_an_image_is_staged_tried_and_confirmed(slots: Slots, disk: SeededDisk) -> None:
    assert (slots.boot().image.root, slots.boot().boots) == (OLD.root, 2)
    record = NEW.install(slots)
    assert (record.on_trial, record.tries, record.counter, record.image.counter) == (True, TRIES, 10, 20)
    record = slots.boot()
    assert (record.image.root, record.tries) == (NEW.root, TRIES - 1)
    assert slots.read(CHUNK_BYTES - 1, 9) == NEW.data[CHUNK_BYTES - 1 :][:9]
    record = slots.confirm()
    assert (record.on_trial, record.counter) == (False, 20)
    assert slots.confirm() == record == slots.give_up(), "there is nothing to decide any more"
    assert running(disk) == NEW.data


def test_the_same_on_a_real_disk(tmp_path: object) -> None:
    disk = RealDisk(str(tmp_path))
    slots = Slots(disk)
    with pytest.raises(Unavailable, match="no image was ever installed"):
        slots.boot()
    for image in (OLD, NEW, NEWER):
        image.install(slots)
        assert running(disk) == image.data
        slots.confirm()
    assert slots.read(len(NEWER.data) - 5, 100) == NEWER.data[-5:]
    assert slots.read(len(NEWER.data), 1) == b""


def test_an_image_that_fails_its_health_check_goes_back(slots: Slots, disk: SeededDisk) -> None:
    NEW.install(slots)
    slots.boot()
    record = slots.give_up()
    assert (record.image.root, record.returns, record.counter) == (OLD.root, 1, 10)
    assert running(disk) == OLD.data
    NEW.install(slots)
    assert running(disk) == NEW.data


def test_an_image_that_hangs_goes_back_after_its_tries(slots: Slots) -> None:
    """Nobody is left to say that it failed."""
    NEW.install(slots)
    assert [slots.boot().image.root for _ in range(TRIES)] == [NEW.root] * TRIES
    record = slots.boot()
    assert (record.image.root, record.on_trial, record.returns) == (OLD.root, False, 1)


def test_without_tries_it_hangs_for_ever(slots: Slots) -> None:
    NEW.install(slots)
    with without("the tries of a new image"):
        assert {slots.boot().image.root for _ in range(5 * TRIES)} == {NEW.root}


def test_the_way_back_is_not_written_over_while_an_image_is_on_trial(slots: Slots) -> None:
    staging = NEW.stage(slots)
    for number in staging.missing():
        staging.write(number, NEW.parts[number])
    staging.finish()
    with pytest.raises(Refused, match="on trial") as refused:
        NEWER.stage(slots)
    assert refused.value.reason == "on-trial"
    with pytest.raises(Misuse, match="finished already"):
        staging.finish()


# --- rollback ---


def test_nothing_older_comes_back_nor_what_was_released_together(slots: Slots) -> None:
    NEW.install(slots)
    slots.boot()
    slots.confirm()
    for image in (OLD, Image("other", 19), Image("another", 20)):
        with pytest.raises(Refused, match="below 20 never again") as refused:
            image.stage(slots)
        assert refused.value.reason == "rollback"
    again = Image("old", 21)
    assert again.root == OLD.root, "going back on purpose: the old image in a new release"
    again.install(slots)
    assert slots.boot().image.root == OLD.root
    assert slots.confirm().counter == 21


def test_without_the_counter_the_old_hole_is_open_again(slots: Slots) -> None:
    NEW.install(slots)
    slots.boot()
    slots.confirm()
    with without("the rollback counter"):
        OLD.install(slots)
    assert slots.boot().image.root == OLD.root
    assert slots.confirm().counter == 20, "even then it does not fall"


def test_until_it_is_confirmed_a_new_image_raises_no_counter(slots: Slots) -> None:
    """Whoever gets a bad image onto a trial has not locked out the good ones before it."""
    Image("bad", 1 << 40).install(slots)
    slots.boot()
    slots.give_up()
    NEW.install(slots)
    assert slots.boot().image.root == NEW.root


# --- power ---


def live(disk: SeededDisk) -> None:
    """One life of a unit that updates itself: boot, go on where it stopped, reboot, confirm."""
    slots = Slots(disk)
    record = slots.boot()
    if record.image.root != NEW.root:
        NEW.install(slots)
        record = slots.boot()
    assert record.image.root == NEW.root
    slots.confirm()


def die(disk: SeededDisk, changes: int, act: Callable[[SeededDisk], None] = live) -> bool:
    """A life that ends at the change of that number. Returns whether it came so far."""
    disk.power_off_after(changes)
    try:
        act(disk)
    except Unavailable:
        assert disk.is_off
        disk.crash()
        return True
    disk.disarm()
    return False


def check_whole(disk: SeededDisk, least: int) -> int:
    """What boots is the old image or the new one, and the counter did not fall. Returns it."""
    data, record = running(disk), Slots(disk).record()
    assert record is not None
    assert data in (OLD.data, NEW.data)
    assert record.counter >= least
    return record.counter


def cut_everywhere(seed: int) -> int:
    """The power fails at every change of an update, once on each of as many units. Returns how many there were."""
    for changes in range(1, 200):
        disk = fresh(seed * 1000 + changes)
        if not die(disk, changes):
            return changes - 1
        check_whole(disk, 10)
        live(disk)
        assert running(disk) == NEW.data
        assert check_whole(disk, 20) == 20
    raise AssertionError("the update never ends")


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_at_any_write_leaves_an_image_that_boots(seed: int) -> None:
    assert cut_everywhere(seed) > 20


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_power_cut_at_any_write_for_many_seeds(seed: int) -> None:
    cut_everywhere(seed)


@pytest.mark.parametrize("seed", range(30))
def test_power_that_fails_again_and_again_ends_no_update(seed: int) -> None:
    """As often as the tries of the new image last, and then the update begins anew."""
    disk, chooser, counter = fresh(seed), Random(seed), 10
    for _ in range(12):
        die(disk, chooser.randint(1, 30))
        counter = check_whole(disk, counter)
    live(disk)
    assert running(disk) == NEW.data


def first_install(disk: SeededDisk) -> None:
    OLD.install(Slots(disk))


def test_a_power_cut_in_the_factory_leaves_nothing_or_the_image() -> None:
    for changes in range(1, 100):
        disk = SeededDisk(changes)
        if not die(disk, changes, first_install):
            return
        if Slots(disk).record() is None:
            first_install(disk)
        assert running(disk) == OLD.data
    raise AssertionError("it never ends")


def cut_after_update(disk: SeededDisk) -> tuple[bytes, int]:
    """What boots afterwards, and how often an image went back."""
    NEW.install(Slots(disk))
    disk.power_off()
    disk.crash()
    data, record = running(disk), Slots(disk).record()
    assert record is not None
    return data, record.returns


def test_without_the_sync_a_slot_is_torn_and_without_the_check_at_boot_it_runs() -> None:
    with_check, bare = [fresh(seed) for seed in range(10)], [fresh(seed) for seed in range(10)]
    with without("the sync of a slot"):
        found = [cut_after_update(disk) for disk in with_check]
    assert {data for data, _ in found} <= {OLD.data, NEW.data}
    assert any(returns for _, returns in found), "the check at boot saw it, and went back"
    with without("the sync of a slot", "the check at boot"):
        assert {cut_after_update(disk)[0] for disk in bare} - {OLD.data, NEW.data}


# --- storage that alters, and hostile chunks ---


@pytest.mark.parametrize("number", range(len(NEW.parts)))
def test_a_chunk_that_changed_in_the_slot_is_named_before_anything_points_to_it(
    slots: Slots, disk: SeededDisk, number: int
) -> None:
    staging = NEW.stage(slots)
    for one in staging.missing():
        staging.write(one, NEW.parts[one])
    disk.flip("slot-1", number * CHUNK_BYTES + 77)
    with pytest.raises(Forged, match=f"slot-1: chunk {number} is not what was written"):
        staging.finish()
    assert running(disk) == OLD.data
    assert NEW.stage(slots).missing() == [number], "and it alone is fetched again"


def test_without_the_read_back_the_altered_image_runs(slots: Slots, disk: SeededDisk) -> None:
    staging = NEW.stage(slots)
    for one in staging.missing():
        staging.write(one, NEW.parts[one])
    disk.flip("slot-1", 77)
    with without("the read-back of a slot"):
        staging.finish()
    assert running(disk) not in (OLD.data, NEW.data)


def test_an_image_lacking_a_chunk_is_not_finished(slots: Slots, disk: SeededDisk) -> None:
    staging = NEW.stage(slots)
    for one in staging.missing()[:-1]:
        staging.write(one, NEW.parts[one])
    with pytest.raises(Forged, match=f"chunk {len(NEW.parts) - 1}"):
        staging.finish()
    assert running(disk) == OLD.data


def test_another_s_chunk_is_refused_before_it_is_written(slots: Slots) -> None:
    staging = NEW.stage(slots)
    for wrong in (NEW.parts[1], NEW.parts[0][:-1], NEW.parts[0] + b"x", b""):
        with pytest.raises(Forged, match="chunk 0"):
            staging.write(0, wrong)
    assert staging.missing() == list(range(len(NEW.parts)))


def test_chunks_that_lie_there_already_are_not_written_again(slots: Slots) -> None:
    """The slot holds the image before the old one, of which the newest has chunks at the same places."""
    NEW.install(slots)
    slots.boot()
    slots.give_up()
    alike = Image("alike", 40, 5)
    alike.parts[1:3] = NEW.parts[1:3]
    alike.chunks = [(len(part), plain_hash(part)) for part in alike.parts]
    assert alike.stage(slots).missing() == [0, 3, 4]


def test_every_flipped_byte_of_the_boot_record_is_found(slots: Slots, disk: SeededDisk) -> None:
    NEW.install(slots)
    for offset in range(disk.size("boot")):
        disk.flip("boot", offset)
        with pytest.raises(Forged, match="boot record: damaged"):
            slots.boot()
        disk.flip("boot", offset)
    assert slots.boot().image.root == NEW.root


def test_a_cut_or_long_boot_record_is_found() -> None:
    disk = fresh()
    data = read_all(disk, "boot")
    for wrong in (b"", data[:31], data[:-1], data + b"x", bytes(5_000), data * 9):
        with pytest.raises(Forged, match="boot record: damaged"):
            BootRecord.decode(wrong)


def test_rot_in_an_image_on_trial_goes_back_at_once_and_later_is_reported(slots: Slots, disk: SeededDisk) -> None:
    NEW.install(slots)
    disk.flip("slot-1", 12_345)
    record = slots.boot()
    assert (record.image.root, record.returns) == (OLD.root, 1)
    disk.flip("slot-0", 5)
    for look in (slots.check, slots.boot):
        with pytest.raises(Forged, match="slot-0: not the image that was installed"):
            look()
    disk.remove("slot-0")
    with pytest.raises(Forged, match="slot-0"):
        slots.check()


def test_a_full_disk_leaves_the_old_image_and_says_so(slots: Slots, disk: SeededDisk) -> None:
    disk.fill(2 * CHUNK_BYTES)
    with pytest.raises(Unavailable, match="slot-1: no space left"):
        NEW.install(slots)
    disk.fill(None)
    assert running(disk) == OLD.data
    NEW.install(slots)
    assert running(disk) == NEW.data


def test_a_sync_that_fails_points_to_nothing(slots: Slots, disk: SeededDisk) -> None:
    disk.fail_sync()
    with pytest.raises(Unavailable, match="slot-1"):
        NEW.install(slots)
    disk.crash()
    assert running(disk) == OLD.data
    live(disk)


def test_lengths_that_lie_are_refused(slots: Slots) -> None:
    with pytest.raises(Malformed):
        slots.stage(NEW.root, 20, [(1 << 40, bytes(32)), (1, bytes(32))], plain_hash)
    with pytest.raises(Malformed):
        slots.stage(NEW.root, 20, [(-1, bytes(32))], plain_hash)
