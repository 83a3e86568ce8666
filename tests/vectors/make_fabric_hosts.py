"""Writes `fabric_hosts.json`: fragments of a parcel, a request for repair, control pieces and an answer, good and bad
(docs/formats/fabric.md).

    python tests/vectors/make_fabric_hosts.py
"""

from __future__ import annotations

import json
from base64 import b64decode
from hashlib import sha256
from pathlib import Path

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.control import REQUEST_KIND, split_message
from tallystick.carriers.fabric.fragments import FabricKey, FlowPlace, FragmentHead, FragmentKind, seal_parcel
from tallystick.carriers.fabric.repair import seal_request
from tallystick.crypto.signatures import SigningKey
from tallystick.trust.fabric import FabricAnswer

HERE = Path(__file__).parent


def seed(name: str) -> bytes:
    return sha256(name.encode()).digest()


def parcel() -> bytes:
    """A good one of the parcels' own vectors."""
    return b64decode(json.loads((HERE / "parcels.json").read_text())["good"][0]["parcel"])


def main() -> None:
    mesh_key, epoch = seed("mesh key"), 20_000
    key = FabricKey.of_mesh(mesh_key, epoch)
    place = FlowPlace(seed("flow")[:16], seed("previous")[:16])
    pushed = Pushed(parcel(), (b"a permit",), (b"a lock", b"another"))
    made = seal_parcel(pushed, key, place, seed("entropy"), 400, 2)
    first = made.payloads[0]
    answer = FabricAnswer(
        *(seed("instance"), seed("request"), 1_700_000_000_000, 1_800_000_000_000, 7),
        ((seed("flow")[:16], "010", seed("label")[:16]),),
        (seed("own")[:16],),
    ).sign(SigningKey.from_seed(seed("dispatcher")))
    bad = {
        "another version": b"\x02" + first[1:],
        "another kind": first[:1] + b"\x03" + first[2:],
        "longer than it is": first[:2] + b"\xff\xff" + first[4:],
        "an index beyond all": first[:20] + b"\xff\xff" + first[22:],
        "no fragments": first[:22] + b"\x00\x00" + first[24:],
        "a bit altered": first[:-1] + bytes([first[-1] ^ 1]),
        "another index": first[:20] + b"\x00\x01" + first[22:],
        "another epoch": first[:25] + bytes([first[25] ^ 1]) + first[26:],
        "cut off": first[:-1],
    }
    made_of = {
        "mesh key": mesh_key.hex(),
        "epoch": epoch,
        "carrier key": key.secret.hex(),
        "parcel": {
            "parcel": pushed.parcel.hex(),
            "permits": [one.hex() for one in pushed.permits],
            "locks": [one.hex() for one in pushed.locks],
            "flow": place.flow.hex(),
            "previous": place.previous.hex(),
            "entropy": seed("entropy").hex(),
            "payload bytes": 400,
            "group": 2,
            "handle": made.handle.hex(),
            "fragments": [one.hex() for one in made.payloads],
        },
        "piece": {
            "plaintext": b"said".hex(),
            "handle": seed("handle")[:16].hex(),
            "fragment": key.seal(
                FragmentHead(FragmentKind.PIECE, seed("handle")[:16], 2, 3, 1, key.sign), b"said"
            ).hex(),
        },
        "repair": {
            "handle": made.handle.hex(),
            "missing": [0, 5, 9],
            "nonce": seed("nonce")[:16].hex(),
            "payload": seal_request(key, made.handle, [0, 5, 9], seed("nonce")[:16]).hex(),
        },
        "bad fragments": [{"name": name, "payload": one.hex()} for name, one in bad.items()],
        "control": {
            "dispatcher": seed("node")[:16].hex(),
            "message": (seed("message") * 9).hex(),
            "pieces": [one.hex() for one in split_message(REQUEST_KIND, seed("node")[:16], seed("message") * 9, 200)],
        },
        "answer": {"signer": seed("dispatcher").hex(), "encoded": answer.encode().hex()},
    }
    (HERE / "fabric_hosts.json").write_text(json.dumps(made_of, indent=1) + "\n")


if __name__ == "__main__":
    main()
