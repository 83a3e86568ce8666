"""The committed vectors of schemas, rows, leaves and roots, and of rows that must be refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tallystick import errors
from tallystick.record.batch import open_batch
from tallystick.record.leaves import decode_row, encode_row, encode_rows, leaf_hashes, leaf_root
from tallystick.record.schema import Schema

FOLDER = Path(__file__).parent.parent / "vectors"
VECTORS = json.loads((FOLDER / "rows.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda vector: vector["name"])
def test_good(vector: dict[str, Any]) -> None:
    schema = Schema.decode(bytes.fromhex(vector["schema"]))
    assert str(schema) == vector["schema_text"]
    assert schema.hash.hex() == vector["schema_hash"]
    for number, group in enumerate(vector["groups"]):
        part = schema.only(number)
        batch = open_batch(bytes.fromhex(group["message"]), part, vector["count"])
        salts = bytes.fromhex(group["salts"])
        assert [row.hex() for row in encode_rows(batch.data)] == group["rows"]
        assert [leaf.tobytes().hex() for leaf in leaf_hashes(batch, salts)] == group["leaves"]
        assert leaf_root(batch, salts).hex() == group["root"]
        for i, row in enumerate(group["rows"]):
            assert list(decode_row(part.arrow, bytes.fromhex(row))) == part.arrow.names
            assert encode_row(part.arrow, i, batch.data).hex() == row


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda vector: vector["name"])
def test_bad(vector: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, vector["error"])):
        decode_row(Schema.parse(vector["schema_text"]).arrow, bytes.fromhex(vector["row"]))


def test_the_generator_still_gives_them() -> None:
    spec = importlib.util.spec_from_file_location("make_rows", FOLDER / "make_rows.py")
    assert spec is not None
    assert spec.loader is not None
    make_rows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_rows)
    assert without_messages(make_rows.vectors()) == without_messages(VECTORS)


def without_messages(vectors: dict[str, Any]) -> dict[str, Any]:
    """Arrow may pad a message differently tomorrow; what is hashed may not change."""
    for vector in vectors["good"]:
        for group in vector["groups"]:
            group.pop("message", None)
    return vectors
