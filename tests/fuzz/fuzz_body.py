"""Plaintexts from a hostile publisher: its signature, keys and locks are good, the section is libFuzzer's."""

from __future__ import annotations

from targets import load_atheris, run

with load_atheris().instrument_imports(include=["tallystick"]):
    from hostile import frame, seal_sections
    from makers import INSTANCE, SCHEMA, World, rows

    from tallystick.parcel.open import open_batch
    from tallystick.parcel.verify import verify_one
    from tallystick.record.batch import open_batch as read_batch
    from tallystick.record.batch import to_message
    from tallystick.record.codec import NAMES, decompress
    from tallystick.record.schema import Schema

WORLD = World()
LANE, BOOK, RING = WORLD.lane(), WORLD.book(), WORLD.ring("brakes")
NESTED = Schema.parse("xs list<struct<a string, b list<int32>>>, d decimal128(9, 2), flag bool, b binary")
MESSAGE = bytes(to_message(rows(0, 1).data))
RAW_BYTES = 4096  # what the header declares for the decompressors


def open_section(data: bytes) -> None:
    """Sealed, sent, verified, opened: with a root of zeros nothing comes out, and nothing may break on the way."""
    open_batch(verify_one(seal_sections(LANE, [data]), INSTANCE, BOOK), RING, SCHEMA, fast=True)


def decompress_any(data: bytes) -> None:
    for codec in NAMES.values():
        decompress(data, codec, RAW_BYTES)


if __name__ == "__main__":
    run(
        [
            open_section,
            lambda data: read_batch(data, SCHEMA, 1),
            lambda data: read_batch(data, NESTED, 1),
            decompress_any,
        ],
        [frame(MESSAGE), MESSAGE],
    )
