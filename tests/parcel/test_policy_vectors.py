"""The committed policy locks open, stay closed or fail as it stands beside them, whatever becomes of the code."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from policy_world import need_pymcl

from tallystick.crypto import hpke
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.errors import CannotOpen
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey, PolicyPlace
from tallystick.parcel.open import open_columns
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook, verify_run
from tallystick.record.leaves import encode_rows
from tallystick.record.schema import Schema
from tallystick.trust.certificate import Certificate

FILE = json.loads((Path(__file__).parents[1] / "vectors" / "policy_locks.json").read_text(encoding="utf-8"))
INSTANCE, TOKEN = bytes.fromhex(FILE["instance"]), bytes.fromhex(FILE["token"])
SCHEMA = Schema.decode(b64decode(FILE["schema"]))
FAILURES = {"cannot-open": CannotOpen, "missing-key": MissingKey}


def named(objects: dict[str, str]) -> dict[bytes, bytes]:
    return {bytes.fromhex(name): b64decode(data) for name, data in objects.items()}


def read(vector: dict[str, Any]) -> dict[str, Any]:
    permits, locks = named(vector["permits"]), named(vector["locks"])
    book = PermitBook(INSTANCE, [Certificate.decode(b64decode(FILE["authority"]))], permits.__getitem__)
    held = vector["attribute_key"]
    key = None if held is None else AttributeKey.decode(b64decode(held))
    ring = KeyRing(locks.__getitem__, lambda epoch: key)
    ring.add_topic_key(TOKEN, 1, hpke.PrivateKey.generate(b64decode(FILE["topic_key"])))
    for token, group, version, epoch, capsule, sealed in vector["policies"]:
        place = PolicyPlace(INSTANCE, bytes.fromhex(token), group, version)
        ring.add_policy(place, epoch, b64decode(capsule), b64decode(sealed))
    [verified] = verify_run([Parcel.decode(b64decode(vector["parcel"]))], INSTANCE, TOKEN, book, None)
    batch, closed = open_columns(verified, ring, SCHEMA)
    opened = [group for group in range(len(SCHEMA.groups)) if group not in closed]
    parts = {} if batch is None else {str(group): batch.data.select(SCHEMA.groups[group]) for group in opened}
    return {"rows": {group: encode_rows(part) for group, part in parts.items()}, "closed": list(closed)}


@pytest.mark.parametrize("vector", FILE["vectors"], ids=lambda vector: str(vector["name"]))
def test_policy_vectors(vector: dict[str, Any]) -> None:
    need_pymcl()
    if "failure" in vector:
        with pytest.raises(FAILURES[vector["failure"]]):
            read(vector)
        return
    rows = {group: [b64decode(row) for row in found] for group, found in vector["rows"].items()}
    assert read(vector) == {"rows": rows, "closed": vector["closed"]}
