"""docs/formats/ota.md as bytes: the vectors, read by our code and, in part, by a second hand that knows the page."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.diagnosis import EcuDiagnosis, VehicleDiagnosis
from tallystick.fleet.ota.ecu import Order
from tallystick.fleet.ota.judging import UpdateOffer
from tallystick.fleet.ota.manifest import EcuReport, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "ota.json").read_text())
KINDS: dict[str, Any] = {
    "record": ReleaseRecord,
    "patch": PatchRecord,
    "offer": UpdateOffer,
    "order": Order,
    "report": EcuReport,
    "manifest": VehicleManifest,
    "ecu diagnosis": EcuDiagnosis,
    "diagnosis": VehicleDiagnosis,
}


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [shown(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("vector", VECTORS["plain"], ids=lambda one: one["kind"])
def test_what_travels_is_read_and_written_as_it_was(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data"])
    assert shown(cbor2.loads(data)) == vector["fields"]
    assert KINDS[vector["kind"]].decode(data).encode() == data


@pytest.mark.parametrize("vector", VECTORS["signed"], ids=lambda one: one["kind"])
def test_what_is_signed_verifies_by_our_code_and_by_the_page_alone(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data"])
    found = KINDS[vector["kind"]].decode(data)
    found.verify_by(VerifyKey(bytes.fromhex(vector["key"])))
    assert found.encode() == data
    body, signature = cbor2.loads(data)
    context = vector["context"].encode()
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(vector["key"])).verify(
        signature, bytes([len(context)]) + context + body
    )
    assert shown(cbor2.loads(body)) == vector["fields"]


def test_a_record_s_root_is_made_by_the_page_alone() -> None:
    [vector] = [one for one in VECTORS["plain"] if one["kind"] == "record"]
    _, (root, key, length), target, needs, files, surfaces = cbor2.loads(bytes.fromhex(vector["data"]))
    parts = [[root, length, target], [key], needs, surfaces, *files]
    leaves = [sha256(b"\0" + cbor2.dumps(part, canonical=True)).digest() for part in parts]

    def fold(nodes: list[bytes]) -> bytes:
        if len(nodes) == 1:
            return nodes[0]
        half = 1 << (len(nodes) - 1).bit_length() - 1
        return sha256(b"\1" + fold(nodes[:half]) + fold(nodes[half:])).digest()

    assert fold(leaves).hex() == VECTORS["contents"]
    assert ReleaseRecord.decode(bytes.fromhex(vector["data"])).contents.hex() == VECTORS["contents"]


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda one: one["name"])
def test_what_is_wrong_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=vector["refusal"]):
        KINDS[vector["kind"]].decode(bytes.fromhex(vector["data"]))
