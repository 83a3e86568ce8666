"""Writes ledger.json beside itself: `PYTHONPATH=tests:tests/parcel python tests/vectors/make_ledger.py`.

Transactions, blocks, checkpoints, proofs of state and of entries, receipts of parcels and proofs of single rows
(docs/formats/ledger.md, trust.md, proof.md), each with the trust file under which it is judged: good ones with what
they say, bad ones with the kind of failure and its reason. The file was made once and is kept: signatures of roots draw
their own randomness, so a second run writes other bytes. Run it only to add vectors, and say so in the commit.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ledger_world import NOW_MS, World, operation_batch, seed, token
from provers import Anchorage, Scene, sign_note, trust_file
from vector_readers import JUDGES, judge

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.promise import Anchor
from tallystick.trust.trustfile import TrustFile

PATH = Path(__file__).parent / "ledger.json"


def flip(data: bytes, at: int) -> bytes:
    """One bit changed; a negative place counts from the end."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


class Book:
    """The vectors as they are made; what is said of each is what the reader finds."""

    def __init__(self) -> None:
        self.trusts: dict[str, TrustFile] = {}
        self.good: list[dict[str, Any]] = []
        self.bad: list[dict[str, Any]] = []

    def add(self, kind: str, name: str, data: bytes, *, trust: str = "", **given: str) -> bytes:
        vector = {"name": f"{kind}: {name}", "kind": kind, "data": b64encode(data).decode(), "trust": trust, **given}
        self.good.append(vector | {"says": judge(vector, self.trusts)})
        return data

    def refuse(self, kind: str, name: str, data: bytes, *, trust: str = "", **given: str) -> None:
        vector = {"name": f"{kind}: {name}", "kind": kind, "data": b64encode(data).decode(), "trust": trust, **given}
        try:
            judge(vector, self.trusts)
        except Refused as error:
            self.bad.append(vector | {"failure": type(error).__name__.lower(), "reason": error.reason})
        else:
            raise AssertionError(f"{vector['name']}: it was taken")


def add_transactions(book: Book, world: World) -> None:
    one = compose(world.instance, world.doctor.id, 7, [entries.close_topic(token("heart"))], world.doctor.key)
    many = compose(
        world.instance, world.node.id, 8, operation_batch(world, 5, [token("air")], [world.sensor.id]), world.node.key
    )
    doctor, node = world.doctor.key.public.raw.hex(), world.node.key.public.raw.hex()
    book.add("transaction", "one entry", one.data, key=doctor)
    book.add("transaction", "five entries under one signature", many.data, key=node)
    head, signature, written = wire.decode(many.data)
    version, instance, author, number, *rest = wire.decode(head)
    renumbered = wire.encode([version, instance, author, number + 1, *rest])
    for name, data, key in [
        ("another's key", one.data, node),
        ("an entry changed", wire.encode([head, signature, [flip(written[0], -1), *written[1:]]]), node),
        ("an entry left out", wire.encode([head, signature, written[:-1]]), node),
        ("two entries exchanged", wire.encode([head, signature, [written[1], written[0], *written[2:]]]), node),
        ("a number changed", wire.encode([renumbered, signature, written]), node),
        ("a signature changed", wire.encode([head, flip(signature, 3), written]), node),
        ("no entries", wire.encode([head, signature, []]), node),
        ("another version", wire.encode([head[:1] + b"\x02" + head[2:], signature, written]), node),
        ("a byte behind", many.data + b"\x00", node),
        ("cut short", many.data[:-1], node),
    ]:
        book.refuse("transaction", name, data, key=key)


def add_blocks_and_states(book: Book, world: World, ledger: SqliteLedger) -> None:
    newest = ledger.height
    for height, name in ((0, "the genesis"), (newest, "the newest")):
        book.add("block", name, ledger.block(height).encoded)
    block = ledger.block(newest).encoded
    for name, data in [
        ("cut short", block[:-1]),
        ("a byte behind", block + b"\x00"),
        ("a root of 31 bytes", wire.encode([*wire.decode(block)[:8], bytes(31)])),
        ("a height below zero", wire.encode([1, -1, *wire.decode(block)[2:]])),
        ("version 2", wire.encode([2, *wire.decode(block)[1:]])),
    ]:
        book.refuse("block", name, data)
    present, absent = (ledger.state(key).encode() for key in (b"topic/" + token("heart"), b"topic/" + bytes(16)))
    book.add("state proof", "a topic that exists", present, trust="ledger")
    book.add("state proof", "a topic that does not", absent, trust="ledger")
    _, key, value, proof, note = wire.decode(present)
    _, nothing, _, no_proof, _ = wire.decode(absent)
    for name, fields in [
        ("another value", [1, key, flip(value, -1), proof, note]),
        ("called absent", [1, key, None, proof, note]),
        ("under another key", [1, nothing, value, proof, note]),
        ("called present", [1, nothing, value, no_proof, note]),
        ("a changed path", [1, key, value, flip(proof, -1), note]),
        ("a changed checkpoint", [1, key, value, proof, flip(note, 120)]),
        ("version 2", [2, key, value, proof, note]),
    ]:
        book.refuse("state proof", name, wire.encode(fields), trust="ledger")
    receipt = ledger.receipt(3, 1).encode()
    book.add("entry proof", "an operation on the ledger", receipt, trust="ledger")
    book.refuse("entry proof", "under another trust file", receipt, trust="parcels")
    fields = wire.decode(receipt)
    book.refuse(
        "entry proof", "another entry", wire.encode([fields[0], flip(fields[1], -1), *fields[2:]]), trust="ledger"
    )


def add_checkpoints(book: Book) -> None:
    plain, witnessed = book.trusts["parcels"], book.trusts["witnessed"]
    alone = sign_note(plain.origin, 9, seed("root of nine"))
    cosigned = sign_note(witnessed.origin, 9, seed("root of nine"), cosigners=2)
    book.add("checkpoint", "the ledger's word alone", alone, trust="parcels")
    book.add("checkpoint", "with two witnesses", cosigned, trust="witnessed")
    other = sign_note(plain.origin, 9, seed("root of nine"), ledger=[SigningKey.from_seed(seed("nobody"))])
    for name, data, trust in [
        ("without the quorum", alone, "witnessed"),
        ("another's signature", other, "parcels"),
        ("another origin", sign_note("tallystick/" + "00" * 32, 9, seed("root of nine")), "parcels"),
        ("a larger size", alone.replace(b"\n9\n", b"\n10\n", 1), "parcels"),
        ("a size with a zero in front", alone.replace(b"\n9\n", b"\n09\n", 1), "parcels"),
        ("no signature", alone.split(b"\n\n")[0] + b"\n\n", "parcels"),
        ("cut short", alone[:-1], "parcels"),
    ]:
        book.refuse("checkpoint", name, data, trust=trust)


def add_receipts(book: Book) -> None:
    parcels = [seed(f"parcel {number}") for number in range(5)]
    anchorage = Anchorage(book.trusts["parcels"], parcels)
    given = {"trust": "parcels", "parcel": parcels[3].hex(), "token": anchorage.token.hex()}
    receipt = anchorage.receipt(3)
    good = book.add("receipt", "the fourth of five parcels", receipt.encode(), **given)
    lone = Anchorage(book.trusts["witnessed"], parcels[:1], cosigners=2)
    book.add(
        "receipt",
        "the only parcel, witnessed",
        lone.receipt(0).encode(),
        **(given | {"trust": "witnessed", "parcel": parcels[0].hex()}),
    )
    elsewhere = Anchor(seed("elsewhere")[:16], 3, 5, seed("root")).encode_entry()
    for name, data, changes in [
        ("another parcel", good, {"parcel": parcels[2].hex()}),
        ("another topic", good, {"token": seed("another")[:16].hex()}),
        ("another trust file", good, {"trust": "ledger"}),
        ("without the quorum", good, {"trust": "witnessed"}),
        ("another offset", replace(receipt, offset=2).encode(), {}),
        ("a path too short", replace(receipt, path=receipt.path[:-1]).encode(), {}),
        ("a path too long", replace(receipt, path=(*receipt.path, bytes(32))).encode(), {}),
        ("another anchor", replace(receipt, anchor=replace(receipt.anchor, entry=elsewhere)).encode(), {}),
        ("another place in its transaction", replace(receipt, anchor=replace(receipt.anchor, index=1)).encode(), {}),
        ("another place on the ledger", replace(receipt, anchor=replace(receipt.anchor, number=4)).encode(), {}),
        ("cut short", good[:-1], {}),
        ("version 2", wire.encode([2, *wire.decode(good)[1:]]), {}),
    ]:
        book.refuse("receipt", name, data, **(given | changes))


def add_proofs(book: Book) -> None:
    scene = Scene.of()
    book.trusts["rows"] = scene.trust
    anchored = scene.prove(receipt=scene.anchorage().receipt(1))
    good = book.add("proof", "a row, not anchored", scene.prove().encode(), trust="rows")
    book.add("proof", "a row with its receipt", anchored.encode(), trust="rows")
    proof, later = scene.prove(), replace(scene.verified.header, time_ms=1235)
    for name, data in [
        ("another row", replace(proof, row=flip(proof.row, -1)).encode()),
        ("another salt", replace(proof, salt=flip(proof.salt, 0)).encode()),
        ("another place", replace(proof, leaf=proof.leaf + 1).encode()),
        ("another header", replace(proof, header=later.encoded).encode()),
        ("another signature", replace(proof, signature=flip(proof.signature, 1)).encode()),
        ("another's permit", replace(proof, permit=scene.world.permit("bus", "brakes").encode()).encode()),
        ("a receipt of another parcel", replace(anchored, receipt=scene.anchorage().receipt(0).encode()).encode()),
        ("cut short", good[:-1]),
    ]:
        book.refuse("proof", name, data, trust="rows")
    book.refuse("proof", "under another trust file", good, trust="ledger")


def make() -> Book:
    world, book = World(), Book()
    book.trusts |= {
        "ledger": world.trust,
        "parcels": trust_file(),
        "witnessed": trust_file(witnesses=3, quorum=2),
    }
    with TemporaryDirectory() as folder:
        ledger = SqliteLedger(f"{folder}/ledger.sqlite", world.trust, world.ledger_key, NOW_MS)
        for transaction in world.founding():
            ledger.submit(transaction.data, NOW_MS)
        batch = operation_batch(world, 3, [token("heart")], [world.doctor.id])
        ledger.submit(world.node.sign(*batch).data, NOW_MS)
        ledger.flush(NOW_MS)
        add_transactions(book, world)
        add_blocks_and_states(book, world, ledger)
        ledger.close()
    add_checkpoints(book)
    add_receipts(book)
    add_proofs(book)
    return book


def main() -> None:
    book = make()
    assert {vector["kind"] for vector in book.good} == {vector["kind"] for vector in book.bad} == set(JUDGES)
    made = {
        "about": "the ledger's objects, receipts and proofs, and the verdict on each: docs/formats/ledger.md, proof.md",
        "trusts": {name: trust.to_json() for name, trust in book.trusts.items()},
        "good": book.good,
        "bad": book.bad,
    }
    PATH.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(book.good)} good and {len(book.bad)} bad vectors, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
