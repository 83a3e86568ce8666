"""What the Director passes on of the Image repository: all that a vehicle needs, and nothing that it would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from metadata_world import DAY_MS, NOW_MS, Reader, Served, changed, role_keys
from vehicle_world import image

from tallystick.errors import Refused, TallystickError
from tallystick.fleet.ota.directing import read_image_files
from tallystick.objects.sources import FolderSource
from tallystick.runtime.disk import RealDisk

BRAKES, RADIO = image("brakes", "brake-mk2"), image("radio", "radio-mk9", length=5_000)
OTHER = "other/radio-mk9/1.0"
WANTED = {BRAKES.target: BRAKES.root}


class Place:
    """Where the repository's files lie; `lay` puts others there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.served = folder, Served("image", "acme", "other")
        self.served.publish({OTHER: RADIO.docket.encode()}, role="other")
        self.lay(self.served.publish({BRAKES.target: BRAKES.docket.encode()}, role="acme"))

    def lay(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def read(self, wanted: dict[str, bytes] = WANTED, now_ms: int = NOW_MS) -> dict[str, bytes]:
        source = FolderSource(RealDisk(self.folder), "images")
        return read_image_files(source, self.served.root, wanted, now_ms)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_vehicle_needs_nothing_else_and_gets_nothing_of_other_suppliers(place: Place) -> None:
    place.served.rotate(role_keys("image", "acme", "other"))
    place.lay(place.served.publish({BRAKES.target: BRAKES.docket.encode()}, role="acme"))
    files = place.read()
    assert "2.root.json" in files
    assert not any("other" in name for name in files)
    Reader(place.served).refresh(files).check(BRAKES.target, files[f"targets/{BRAKES.target}"])
    assert not any(name.startswith("targets/") for name in place.read({}))  # for a diagnosis


@pytest.mark.parametrize("kind", ["timestamp", "snapshot", "targets", "acme", "docket"])
def test_a_changed_file_goes_to_nobody(place: Place, kind: str) -> None:
    files = place.read()
    [name] = [one for one in files if (one.endswith(BRAKES.target) if kind == "docket" else f"{kind}.json" in one)]
    place.lay(changed(files, name, len(files[name]) // 2))
    with pytest.raises(TallystickError):
        place.read()
    (place.folder / name).unlink()
    with pytest.raises(TallystickError):
        place.read()


def test_what_is_old_or_another_image_goes_to_nobody(place: Place) -> None:
    with pytest.raises(Refused) as refusal:
        place.read(now_ms=NOW_MS + 8 * DAY_MS)  # nobody renewed the timestamp
    assert refusal.value.reason == "expired"
    with pytest.raises(Refused) as refusal:
        place.read({BRAKES.target: RADIO.root})
    assert refusal.value.reason == "wrong-image"
    with pytest.raises(Refused) as refusal:
        place.read({"acme/brake-mk2/9.9": BRAKES.root})
    assert refusal.value.reason == "not-in-metadata"
