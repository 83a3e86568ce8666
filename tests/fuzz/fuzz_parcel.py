"""Bytes from a carrier: parcels, headers, locks, proofs. Nothing of it is signed by anybody we know."""

from __future__ import annotations

from targets import load_atheris, run

with load_atheris().instrument_imports(include=["tallystick"]):
    from makers import INSTANCE, SCHEMA, World, entropy, rows
    from provers import certify, trust_file

    from tallystick.parcel.header import Header
    from tallystick.parcel.locks import decode_lock
    from tallystick.parcel.open import open_batch
    from tallystick.parcel.parcel import Parcel
    from tallystick.parcel.prove import Proof, prove, verify_proof
    from tallystick.parcel.verify import verify_one
    from tallystick.record.leaves import decode_row, encode_rows
    from tallystick.record.schema import Schema

WORLD, TRUST = World(), trust_file()
PARCEL = WORLD.lane().seal(rows(0, 5), now_ms=1, entropy=entropy(0))
BOOK, RING = WORLD.book(), WORLD.ring("brakes")


def open_parcel(data: bytes) -> None:
    open_batch(verify_one(Parcel.decode(data), INSTANCE, BOOK), RING, SCHEMA)


def proof() -> bytes:
    permit, authority = WORLD.permit("car", "brakes").encode(), certify(WORLD.authority, TRUST).encode()
    return prove(verify_one(PARCEL, INSTANCE, BOOK), RING, SCHEMA, 2, 0, permit, authority).encode()


if __name__ == "__main__":
    run(
        [
            open_parcel,
            Header.decode,
            decode_lock,
            Proof.decode,
            lambda data: verify_proof(data, TRUST),
            Schema.decode,
            lambda data: decode_row(SCHEMA.arrow, data),
        ],
        [
            PARCEL.encode(),
            PARCEL.header.encoded,
            next(iter(WORLD.locks.values())),
            proof(),
            proof(),
            SCHEMA.encode(),
            encode_rows(rows(0, 1).data)[0],
        ],
    )
