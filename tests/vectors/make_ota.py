"""Writes ota.json beside itself: `PYTHONPATH=src python tests/vectors/make_ota.py`.

Updates over the air (docs/formats/ota.md): one of each that travels, and what is refused, with words of the refusal.
Metadata are those of TUF and stand here as a few bytes. Nothing is random, so a second run writes the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3

from tallystick import wire
from tallystick.crypto.signatures import SignedObject, SigningKey
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.diagnosis import EcuDiagnosis, VehicleDiagnosis
from tallystick.fleet.ota.ecu import Order, Word
from tallystick.fleet.ota.judging import UpdateOffer
from tallystick.fleet.ota.manifest import EcuReport, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.objects.layout import GEAR, ZSTD, Docket, ObjectReference

PATH = Path(__file__).parent / "ota.json"


def content(name: str, length: int = 32) -> bytes:
    return blake3(name.encode()).digest(length=length)


VEHICLE, CAMPAIGN, IMAGE, BASE = content("vehicle", 16), content("campaign", 16), content("image"), content("base")
CAR, ECU = (SigningKey.from_seed(content(f"{name} seed")) for name in ("car", "ecu"))
RECORD = ReleaseRecord(
    ObjectReference(IMAGE, content("key"), 10_000),
    "acme/brake-mk2/1.0",
    (("door-mk1", (content("door"),)),),
    (("boot", content("file")),),
    ("interface/can0", "paired/*"),
)
PATCH = PatchRecord(
    BASE, IMAGE, Docket(GEAR, 4096, ZSTD, 3, 10_000, 9_000, content("patch")).encode(), content("patch key")
)
OFFER = UpdateOffer(
    {"timestamp.json": b"{}", "1.root.json": b"{}"},
    {"targets/acme/brake-mk2/1.0": b"docket"},
    CAMPAIGN,
    b"a note",
    [(b"firmware/" + content("token", 16) + IMAGE, b"row", b"proof"), (b"campaign/", None, b"")],
    [content("path")],
)
ORDER = Order(Word.ORDER, IMAGE, RECORD.encode(), PATCH.encode(), OFFER.encode())
REPORT = EcuReport(VEHICLE, "brakes", 7, "brake-mk2", IMAGE, 12, bytes(32), 0, bytes(32), "a reason", 3, 1).sign(ECU)
MANIFEST = VehicleManifest(VEHICLE, 8, 40, CAMPAIGN, "", "installed", (REPORT.encode(),)).sign(CAR)
ANSWER = EcuDiagnosis(VEHICLE, "brakes", 9, CAMPAIGN, IMAGE, 1, 3, 1, ("P0171",)).sign(ECU)
DIAGNOSIS = VehicleDiagnosis(VEHICLE, 10, CAMPAIGN, (ANSWER.encode(),), ("interface/can0", "tcp/22"), 99).sign(CAR)

PLAIN: dict[str, Any] = {"record": RECORD, "patch": PATCH, "offer": OFFER, "order": ORDER}
SIGNED: dict[str, tuple[SignedObject, SigningKey]] = {
    "report": (REPORT, ECU),
    "manifest": (MANIFEST, CAR),
    "ecu diagnosis": (ANSWER, ECU),
    "diagnosis": (DIAGNOSIS, CAR),
}


def bad() -> list[tuple[str, str, bytes, str]]:
    """What is wrong, of which kind it is, its bytes, and words of the refusal."""

    def put(kind: str, place: int, value: object) -> bytes:
        if kind in PLAIN:
            fields = wire.decode(PLAIN[kind].encode(), kind)
            fields[place] = value
            return wire.encode(fields)
        one, key = SIGNED[kind]
        fields = wire.decode(one.body, kind)
        fields[place] = value
        body = wire.encode(fields)
        return wire.encode([body, key.sign(one.context, body)])

    found = [(f"{kind}: another version", kind, put(kind, 0, 2), "version 1 expected") for kind in (*PLAIN, *SIGNED)]
    for kind in PLAIN:
        found.append((f"{kind}: a byte behind it", kind, PLAIN[kind].encode() + b"\0", "deterministic encoding"))
    reference = [IMAGE, content("key"), 1 << 41]
    return [
        *found,
        ("record: a target that is a path", "record", put("record", 2, "acme/../1.0"), "plain parts"),
        ("record: longer than any object", "record", put("record", 1, reference), "an integer"),
        ("record: too many needs", "record", put("record", 3, [["a", [IMAGE]]] * 33), "0 to 32"),
        ("record: too many surfaces", "record", put("record", 5, ["tcp/1"] * 257), "0 to 256"),
        ("patch: a short base", "patch", put("patch", 1, bytes(31)), "32 bytes"),
        ("patch: a docket too long", "patch", put("patch", 3, bytes(201)), "bytes"),
        ("offer: too many files", "offer", put("offer", 1, [["a", b""]] * 257), "0 to 256"),
        ("offer: too many proofs", "offer", put("offer", 5, [[b"", None, b""]] * 66), "0 to 65"),
        ("offer: a path too long", "offer", put("offer", 6, [IMAGE] * 65), "0 to 64"),
        ("order: a word that is none", "order", put("order", 1, 6), "0 to 5"),
        ("report: a trial that is none", "report", put("report", 8, 3), "0 to 2"),
        ("report: longer than any", "report", put("report", 10, "x" * 1024), "at most 1024"),
        ("manifest: too many reports", "manifest", put("manifest", 7, [b""] * 151), "0 to 150"),
        ("manifest: a number below any", "manifest", put("manifest", 2, -1), "an integer"),
        ("ecu diagnosis: a slot that is neither", "ecu diagnosis", put("ecu diagnosis", 6, 2), "0 to 1"),
        ("ecu diagnosis: too many codes", "ecu diagnosis", put("ecu diagnosis", 9, ["x"] * 33), "0 to 32"),
        ("ecu diagnosis: a code too long", "ecu diagnosis", put("ecu diagnosis", 9, ["x" * 17]), "at most 16"),
        ("diagnosis: too many answers", "diagnosis", put("diagnosis", 4, [b""] * 151), "0 to 150"),
        ("diagnosis: too many surfaces", "diagnosis", put("diagnosis", 5, ["x"] * 257), "0 to 256"),
    ]


def shown(value: Any) -> Any:
    """Fields as JSON has them: bytes in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


def main() -> None:
    hexed: Callable[[bytes], str] = bytes.hex
    made = {
        "about": "updates over the air, format version 1: docs/formats/ota.md; bytes are hexadecimal digits",
        "contents": hexed(RECORD.contents),
        "plain": [
            {"kind": kind, "fields": shown(wire.decode(one.encode(), kind)), "data": hexed(one.encode())}
            for kind, one in PLAIN.items()
        ],
        "signed": [
            {
                "kind": kind,
                "context": one.context,
                "key": hexed(key.public.raw),
                "fields": shown(wire.decode(one.body, kind)),
                "data": hexed(one.encode()),
            }
            for kind, (one, key) in SIGNED.items()
        ],
        "bad": [
            {"name": name, "kind": kind, "data": hexed(data), "refusal": words} for name, kind, data, words in bad()
        ],
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
