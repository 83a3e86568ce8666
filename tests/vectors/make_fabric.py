"""Writes fabric.json beside itself: one switch's tables, frames that arrive, and what leaves (docs/formats/fabric.md).

What is expected is written here by hand, from the source of the switch program; every data plane and the interpreter of
the compiled program are held against it. A frame `at` null is the controller's, sent `out` of a port.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "fabric.json"

ADDRESSES = "030000009004" + "020000009004"
EPOCH = 9


def label(number: int) -> str:
    return f"{number:032x}"


def publication(name: int, *, epoch: int = EPOCH, version: int = 1, flags: int = 0, payload: str = "cafe") -> str:
    return f"{ADDRESSES}9004{version:02x}{flags:02x}{epoch:04x}{label(name)}{payload}"


ENTRIES = {
    "publications": [
        [EPOCH, label(1), "forward", 2],
        [EPOCH, label(2), "forward", 3],  # nothing in next_labels
        [EPOCH, label(3), "multicast", 7],
        [EPOCH, label(4), "multicast", 0],
        [EPOCH, label(5), "multicast", 8],  # no such group
        [EPOCH, label(6), "forward", 511],
        [EPOCH, label(7), "drop", 0],
        [EPOCH, label(8), "forward", 1],
        [EPOCH, label(9), "multicast", 9],
        [EPOCH, label(10), "forward", 77],  # nothing is plugged in there
        [EPOCH + 1, label(1), "forward", 3],
        [EPOCH, label(11), "multicast", 10],
    ],
    "next_labels": [
        [EPOCH, label(1), 2, label(0x1001)],
        [EPOCH, label(1), 3, label(0x1002)],  # not where the rule leads
        [EPOCH, label(3), 1, label(0x3001)],
        [EPOCH, label(3), 2, label(0x3002)],
        [EPOCH, label(4), 0, label(0x4000)],
        [EPOCH, label(8), 1, label(0x8001)],
        [EPOCH, label(9), 2, label(0x9002)],
        [EPOCH + 1, label(1), 3, label(0xA003)],
        [EPOCH, label(99), 3, label(0x9903)],  # of a label without a rule
    ],
    "groups": {"7": [1, 2, 3], "9": [2, 2], "10": [1, 511, 77]},
}

TAGGED = ADDRESSES + "8100" + "0001" + publication(1)[24:]


def vector(name: str, at: int | None, frame: str, *leaves: list[Any], out: int | None = None) -> dict[str, Any]:
    return {"name": name, "at": at, "out": out, "frame": frame, "leaves": list(leaves)}


VECTORS = [
    vector("forwarded under the next label", 1, publication(1), [2, publication(0x1001)]),
    vector(
        "flags and payload are left alone",
        1,
        publication(1, flags=5, payload="00ff" * 300),
        [2, publication(0x1001, flags=5, payload="00ff" * 300)],
    ),
    vector("without a payload", 3, publication(1, payload=""), [2, publication(0x1001, payload="")]),
    vector("without a next label it keeps its name", 1, publication(2), [3, publication(2)]),
    vector(
        "copies, each under its own label",
        0,
        publication(3),
        [1, publication(0x3001)],
        [2, publication(0x3002)],
        [3, publication(3)],
    ),
    vector("no copy returns the way it came", 2, publication(3), [1, publication(0x3001)], [3, publication(3)]),
    vector("group 0 is no group: port 0", 1, publication(4), [0, publication(0x4000)]),
    vector("group 0, from port 0: this is no copy, and returns", 0, publication(4), [0, publication(0x4000)]),
    vector("a group that is not there", 1, publication(5)),
    vector("port 511 drops", 1, publication(6)),
    vector("dropped by its rule", 1, publication(7)),
    vector("forwarded back where it came from", 1, publication(8), [1, publication(0x8001)]),
    vector("a port twice in a group", 1, publication(9), [2, publication(0x9002)], [2, publication(0x9002)]),
    vector("a port without an interface", 1, publication(10)),
    vector("ports of a group without interfaces", 2, publication(11), [1, publication(11)]),
    vector(
        "another epoch is another rule", 1, publication(1, epoch=EPOCH + 1), [3, publication(0xA003, epoch=EPOCH + 1)]
    ),
    vector("an epoch without rules", 1, publication(1, epoch=EPOCH + 2)),
    vector("a label without a rule", 1, publication(99)),
    vector("another version", 1, publication(1, version=2)),
    vector("version 0", 1, publication(1, version=0)),
    vector("a runt: one byte of the label is missing", 1, publication(1, payload="")[:-2]),
    vector("a runt: no route header", 1, ADDRESSES + "9004"),
    vector("an IPv4 packet", 1, ADDRESSES + "0800" + "45" + "00" * 40),
    vector("a tagged frame with a publication inside", 1, TAGGED),
    vector("a length in place of an EtherType", 1, ADDRESSES + "0040" + "aa" * 64),
    vector("a control frame", 2, ADDRESSES + "9003" + "00ff", [510, ADDRESSES + "9003" + "00ff"]),
    vector("an empty control frame", 3, ADDRESSES + "9003", [510, ADDRESSES + "9003"]),
    vector("the controller's control frame", None, ADDRESSES + "9003" + "77", [1, ADDRESSES + "9003" + "77"], out=1),
    vector("the controller's publication is renamed", None, publication(1), [2, publication(0x1001)], out=2),
    vector("at any port that has a name for it", None, publication(1), [3, publication(0x1002)], out=3),
    vector("whether there is a rule or not", None, publication(99), [3, publication(0x9903)], out=3),
    vector("and is not, without a name", None, publication(1), [1, publication(1)], out=1),
    vector("whatever its version", None, publication(1, version=4), [2, publication(0x1001, version=4)], out=2),
    vector("the controller's runt goes as it is", None, publication(1)[:60], [2, publication(1)[:60]], out=2),
    vector(
        "the controller's IPv4 packet goes as it is",
        None,
        ADDRESSES + "0800" + "45" * 30,
        [2, ADDRESSES + "0800" + "45" * 30],
        out=2,
    ),
    vector("the controller's frame to port 511", None, publication(1), out=511),
    vector("the controller's frame to a port without an interface", None, publication(1), out=77),
]

# Shorter than an Ethernet header: no interface sends them, datagrams do.
SHORT = [vector(f"{length} bytes", 1, publication(1)[: 2 * length]) for length in (0, 1, 12, 13)]


if __name__ == "__main__":
    found = {"ports": [0, 1, 2, 3], "entries": ENTRIES, "vectors": VECTORS, "short": SHORT}
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
