"""Writes detect.json beside itself: `PYTHONPATH=src python tests/vectors/make_detect.py`.

Detection files (docs/formats/detect.md): one of each kind, and what is refused, with the reason. The profile's content
stands here as a few bytes. Nothing is random, so a second run writes the same file.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.fleet.detect.model import MODEL, PROFILE, DetectionFile, pack, sign_file

PATH = Path(__file__).parent / "detect.json"
VEHICLE = "WVWZZZ1KZ6W000042"
MAKER, STRANGER = (SigningKey.from_seed(sha256(name).digest()) for name in (b"maker", b"stranger"))
SOURCES = [("monday.log", sha256(b"monday").digest()), ("tuesday.log", sha256(b"tuesday").digest())]
CONTENT = {"features": 1, "onnx": b"a network", "limit": 0.5, "enabled": False, "figures": {"found": 0.25}}
GOOD = {
    PROFILE: sign_file(PROFILE, b"a profile", MAKER, issue=3, vehicle=VEHICLE, sources=SOURCES),
    MODEL: sign_file(MODEL, pack(CONTENT), MAKER, issue=2, seed=7),
}


def bad() -> list[tuple[str, bytes, str]]:
    """What is wrong, the bytes of a profile, and the reason of the refusal."""
    honest = GOOD[PROFILE]

    def put(place: int, value: object, key: SigningKey = MAKER) -> bytes:
        fields = wire.decode(honest.body)
        fields[place] = value
        body = wire.encode(fields)
        return wire.encode([body, key.sign(DetectionFile.context, body)])

    return [
        ("another version", put(0, 2), "version"),
        ("nobody signed it", wire.encode([honest.body, b""]), "unsigned"),
        ("a stranger signed it", put(4, STRANGER.public.raw, STRANGER), "forged"),
        ("a stranger signed it in the maker's name", put(2, 4, STRANGER), "forged"),
        ("altered", wire.encode([honest.body.replace(b"a profile", b"A profile"), honest.signature]), "forged"),
        ("a model", put(1, MODEL), "wrong-kind"),
        ("another vehicle's", put(3, "WVWZZZ1KZ6W000043"), "wrong-vehicle"),
        ("any vehicle's", put(3, ""), "wrong-vehicle"),
        ("issue 0", put(2, 0), "malformed"),
        ("a hash too short", put(6, [["monday.log", bytes(31)]]), "malformed"),
        ("the body alone", honest.body, "malformed"),
        ("a byte behind it", honest.encode() + b"\0", "malformed"),
        ("an older issue", put(2, 2), "rolled-back"),
        ("another file of the same issue", put(7, b"another"), "rolled-back"),
    ]


def shown(value: Any) -> Any:
    """Fields as JSON has them: bytes in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


def main() -> None:
    made = {
        "about": "detection files, format version 1: docs/formats/detect.md; bytes are hexadecimal digits. What is bad "
        "is shown to a reader of this vehicle that believes the key, and held the good profile",
        "vehicle": VEHICLE,
        "key": MAKER.public.raw.hex(),
        "good": [
            {
                "kind": kind,
                "fields": shown(wire.decode(one.body)),
                "hash": one.hash.hex(),
                "data": one.encode().hex(),
            }
            for kind, one in GOOD.items()
        ],
        "bad": [{"name": name, "data": data.hex(), "reason": reason} for name, data, reason in bad()],
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
