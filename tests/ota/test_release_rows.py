"""Release records and manifests as rows of sealed topics, on a whole instance: who may open them, and who may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from stack import READ, WRITE, Stack
from vehicle_world import HARDWARE, VEHICLE, Car, Fleet, image

from tallystick.errors import TallystickError
from tallystick.fleet.ota import manifest, record
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.objects.layout import chunks_file


def test_a_release_record_is_opened_by_whom_the_topic_s_locks_let_and_a_manifest_comes_back(tmp_path: Path) -> None:
    new = {"brakes": image("new brakes", HARDWARE["brakes"])}
    fleet = Fleet()
    fleet.put(new)
    with Stack(tmp_path) as stack:
        owner = stack.tenant("fleet")
        repository, car, stranger = (stack.principal("fleet", name) for name in ("repository", "car", "stranger"))
        releases = stack.topic(owner, "releases", record.SCHEMA)
        manifests = stack.topic(owner, "manifests", manifest.SCHEMA)
        for token, who, right in ((releases, repository, WRITE), (releases, car, READ), (manifests, car, WRITE)):
            stack.grant(owner, token, who, right)
        stack.grant(owner, manifests, repository, READ)

        with repository.publisher("releases", acks="anchored", anchor_check_s=0.02) as publisher:
            publisher.produce(new["brakes"].record.row())
            assert publisher.flush(30) == 0
        with car.subscriber("releases") as subscriber:
            [row] = next(iter(subscriber)).batch.data.to_pylist()
        with pytest.raises(TallystickError), stranger.subscriber("releases") as subscriber:
            next(iter(subscriber))
        found = ReleaseRecord.of_row(row)
        assert found == new["brakes"].record

        vehicle = Car(fleet, hardware={"brakes": HARDWARE["brakes"]})
        vehicle.fleet.records = {found.image: found}  # what the car knows is what came
        vehicle.run(10)
        assert vehicle.update([*new.values()]) == "installed"
        with car.publisher("manifests", acks="anchored", anchor_check_s=0.02) as publisher:
            publisher.produce(vehicle.manifests[-1].row())
            assert publisher.flush(30) == 0
        with repository.subscriber("manifests") as subscriber:
            [told] = next(iter(subscriber)).batch.data.to_pylist()
        reports = vehicle.inventory().take(told["manifest"])[1]
        assert (told["vehicle"], reports["brakes"].image) == (VEHICLE, found.image)


def test_no_server_of_images_holds_the_key_or_the_image() -> None:
    one = image("new brakes", HARDWARE["brakes"])
    held = b"".join(one.files.values())
    assert one.key.key not in held
    assert not any(one.data[at : at + 32] in held for at in range(0, len(one.data), 1000))
    assert len(one.files[chunks_file(one.root)]) == one.docket.sealed_length
