"""docs/formats/detect.md as bytes: the vectors, read by our code and by a second hand that knows the page alone."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.fleet.detect.model import PROFILE, IssueMemory, open_file

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "detect.json").read_text())
KEY = bytes.fromhex(VECTORS["key"])
CONTEXT = b"tallystick detection file 1"


def shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [shown(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda one: one["kind"])
def test_a_file_is_read_by_our_code_and_by_the_page_alone(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["data"])
    found = open_file(data, vector["kind"], VECTORS["vehicle"], [VerifyKey(KEY)])
    assert (found.encode(), found.hash.hex()) == (data, vector["hash"])
    body, signature = cbor2.loads(data)
    Ed25519PublicKey.from_public_bytes(KEY).verify(signature, bytes([len(CONTEXT)]) + CONTEXT + body)
    assert shown(cbor2.loads(body)) == vector["fields"]
    assert sha256(data).hexdigest() == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda one: one["name"])
def test_what_is_refused_has_the_reason_of_the_page(vector: dict[str, Any], tmp_path: Path) -> None:
    keys, vehicle = [VerifyKey(KEY)], VECTORS["vehicle"]
    held = open_file(bytes.fromhex(VECTORS["good"][0]["data"]), PROFILE, vehicle, keys)
    IssueMemory(tmp_path / "held").hold(held)
    with pytest.raises(Refused) as refused:
        IssueMemory(tmp_path / "held").hold(open_file(bytes.fromhex(vector["data"]), PROFILE, vehicle, keys))
    assert refused.value.reason == vector["reason"]
