"""What comes over the mesh's links: advertisements and envelopes before anything is verified, what a neighbour, who has
the keys of its link, puts into cells, and the frames that it says to a whole node."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from targets import load_atheris, run

sys.path.insert(0, str(Path(__file__).parents[1] / "mesh"))

with load_atheris().instrument_imports(include=["tallystick"]):
    import listening

    from tallystick.carriers.mesh.advertisement import Advertisement
    from tallystick.carriers.mesh.cells import Cell, CellsIn
    from tallystick.carriers.mesh.envelope import MeshEnvelope, join_pushed, split_pushed
    from tallystick.carriers.mesh.frames import MeshFrame, framed
    from tallystick.carriers.mesh.resending import CellsOut

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "mesh.json").read_text())


def same(decode: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        assert decode(data).encode() == data, "another encoding of the same"

    return check


def hear(data: bytes) -> None:
    """Cells of up to 200 bytes, one behind the other."""
    out, into = CellsOut(4096), CellsIn(4096, 4096)
    for at in range(0, len(data), 200):
        cell = Cell.decode(data[at : at + 200])
        assert Cell.decode(cell.encode()) == cell
        into.receive(cell)
        out.acknowledge(cell.highest, cell.came)
        assert into.held_bytes <= 8192, "more than its room"


def opened(data: bytes) -> None:
    assert split_pushed(join_pushed(split_pushed(data))) == split_pushed(data)


def spoken(data: bytes) -> None:
    """Frames, each with its length before it, said by a neighbour to a node that is on a topic with it."""
    node = listening.listener()
    while data:
        length = int.from_bytes(data[:2], "big")
        frame, data = data[2 : 2 + length], data[2 + length :]
        listening.hear(node, frame)
        assert max(listening.sizes(node)) <= 64, "a table that grows"


def same_frame(data: bytes) -> None:
    frame = MeshFrame.decode(data)
    assert framed(frame.kind, *frame.content) == data, "another encoding of the same"


if __name__ == "__main__":
    good = bytes.fromhex(VECTORS["advertisements"]["good"]["bytes"])
    frames = [bytes.fromhex(one["bytes"]) for one in VECTORS["frames"]["good"]]
    said = b"".join(len(frame).to_bytes(2, "big") + frame for frame in frames[:-2])
    run(
        [same(Advertisement.decode), same(MeshEnvelope.decode), hear, opened, spoken, same_frame],
        [
            good,
            bytes.fromhex(VECTORS["envelopes"]["good"]["bytes"]),
            bytes(56),
            b"\x84\x01\x41a\x80\x80\x80",
            said,
            frames[0],
        ],
    )
