"""The committed parcels give the verdicts that stand beside them, whatever becomes of the code."""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Forged, Malformed, Refused, Withheld
from tallystick.parcel.header import ParcelKind
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import PermitBook, verify_run
from tallystick.record.leaves import decode_row, encode_rows
from tallystick.record.schema import Schema
from tallystick.trust.certificate import Certificate

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "parcels.json").read_text(encoding="utf-8"))
INSTANCE = bytes.fromhex(VECTORS["instance"])
FAILURES = [
    (MissingKey, "missing-key"),
    (CannotOpen, "cannot-open"),
    (Withheld, "withheld"),
    (Forged, "forged"),
    (Malformed, "malformed"),
    (Refused, "refused"),
]


def named(objects: dict[str, str]) -> dict[bytes, bytes]:
    return {bytes.fromhex(name): b64decode(data) for name, data in objects.items()}


def read(vector: dict[str, Any]) -> dict[str, Any]:
    """From bytes to what a reader gets: rows, a content, or nothing to open; or it raises."""
    permits, locks = named(vector["permits"]), named(vector["locks"])
    book = PermitBook(INSTANCE, [Certificate.decode(b64decode(VECTORS["authority"]))], permits.__getitem__)
    ring = KeyRing(locks.__getitem__)
    for token, epoch, seed in vector["topic_keys"]:
        ring.add_topic_key(bytes.fromhex(token), epoch, hpke.PrivateKey.generate(b64decode(seed)))
    for token, publisher, period, seed in vector["erasure_keys"]:
        key = hpke.PrivateKey.generate(b64decode(seed))
        ring.add_erasure_key(bytes.fromhex(token), bytes.fromhex(publisher), period, key)
    schema = Schema.decode(b64decode(vector["schema"]["encoded"]))
    head = None if vector["head"] is None else (vector["head"][0], bytes.fromhex(vector["head"][1]))

    parcel = Parcel.decode(b64decode(vector["parcel"]))
    [verified] = verify_run([parcel], INSTANCE, bytes.fromhex(vector["token"]), book, head)
    match verified.header.kind:
        case ParcelKind.DATA:
            batch = open_batch(verified, ring, schema)
            return {
                "rows": [encode_rows(batch.only(group).data) for group in range(len(schema.groups))],
                "values": [show(decode_row(schema.arrow, row)) for row in encode_rows(batch.data)],
            }
        case ParcelKind.GAP | ParcelKind.COMMIT:
            return {"content": open_content(verified, ring)}
    return {}


def show(value: Any) -> Any:
    """As make_parcels.py writes values: floats in hexadecimal, decimals as text, bytes as hex."""
    match value:
        case float():
            return value.hex()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case list():
            return [show(item) for item in value]
        case dict():
            return {key: show(item) for key, item in value.items()}
    return value


def causes(error: BaseException | None) -> str:
    return "" if error is None else f"{error}\n{causes(error.__cause__)}"


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: str(vector["name"]))
def test_good(vector: dict[str, Any]) -> None:
    expected: dict[str, Any] = {}
    if "rows" in vector:
        expected = {"rows": [[b64decode(row) for row in group] for group in vector["rows"]], "values": vector["values"]}
    if "content" in vector:
        expected = {"content": b64decode(vector["content"])}
    assert read(vector) == expected


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: str(vector["name"]))
def test_bad(vector: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        read(vector)
    failure = next(name for kind, name in FAILURES if isinstance(caught.value, kind))
    assert (failure, caught.value.reason) == (vector["failure"], vector["reason"])
    assert vector["cause"] in causes(caught.value)


def test_to_an_outsider_every_failure_to_open_looks_alike() -> None:
    """Message and reason are the same for all of one lane and sequence; the cause is for the local log."""
    told = set()
    for vector in VECTORS["bad"]:
        if vector["failure"] == "cannot-open":
            with pytest.raises(CannotOpen) as caught:
                read(vector)
            told.add((str(caught.value).split(" of lane ")[0], str(caught.value)[-11:], caught.value.reason))
    assert told == {("parcel 0", "cannot open", "cannot-open"), ("gap parcel 0", "cannot open", "cannot-open")}
