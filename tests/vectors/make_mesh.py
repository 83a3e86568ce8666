"""Writes mesh.json beside itself, with PYTHONPATH=tests:tests/mesh.

What docs/formats/mesh.md and mesh-frames.md describe: keys, an advertisement with its chain, an envelope, cells, a
knock and frames. Good ones stand with what they come from, bad ones with the reason for which they must be refused at
`now_ms`. A second run writes the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from makers import seed, token
from mesh_world import AUTHORITY, EPOCH, LIMITS, NOW_MS, advertised, enveloped, mesh_key, publisher
from node_world import entry

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import ChainSecret, step
from tallystick.carriers.mesh.cells import PIECE_BYTES, Cell, Piece
from tallystick.carriers.mesh.frames import MeshKind, framed
from tallystick.carriers.mesh.link_keys import Knock, LinkSession, agree_lasting, identity_of, seal_knock
from tallystick.crypto.exchange import ExchangeKey
from tallystick.runtime.sources import SeededEntropy

PATH = Path(__file__).parent / "mesh.json"
ADVERTISEMENT, CHAIN = advertised()
PUSHED = Pushed(b"a parcel", (b"its permit",), (b"its lock", b"another"))
ENVELOPE = mesh_key().seal(PUSHED, NOW_MS, publisher(), SeededEntropy("envelope"))
CELL = Cell(7, 3, 9, 0b101, (Piece(3, 1, 2, b"the end of a message"), Piece(4, 0, 1, b"")))


class Fixed:
    """Entropy that is written into the vectors."""

    def __init__(self, name: str) -> None:
        self.drawn = seed(name)

    def bytes(self, n: int) -> bytes:
        return self.drawn[:n]


def keys() -> dict[str, Any]:
    by = publisher()
    return {
        "root": seed("mesh root").hex(),
        "token": token("brakes").hex(),
        "epoch": EPOCH,
        "renewal": 0,
        "mesh key": mesh_key().secret.hex(),
        "pseudonym": mesh_key().pseudonym.hex(),
        "publisher's seed": by.seed.hex(),
        "publisher's key": by.key.hex(),
        "chain seed": by.chain_seed.hex(),
        "authority": AUTHORITY.public.raw.hex(),
        "certificate": by.certificate.hex(),
    }


def advertisements() -> dict[str, Any]:
    late = ChainSecret.of(publisher()).advertise(publisher(), NOW_MS + LIMITS.advertised_ms_max + 6_000)
    parts = wire.decode(ADVERTISEMENT.encode())
    body = wire.decode(parts[0])
    bad = [
        ("a nonce of a liar's own", ADVERTISEMENT, seed("a liar's own nonce"), "wrong-chain"),
        ("a value beyond the anchor", ADVERTISEMENT, step(CHAIN.anchor), "wrong-chain"),
        ("another anchor", replace(ADVERTISEMENT, anchor=step(CHAIN.anchor)), CHAIN.first, "forged"),
        (
            "another's certificate",
            replace(ADVERTISEMENT, certificate=publisher("bert").certificate),
            CHAIN.first,
            "forged",
        ),
        ("it lasts too long", late, CHAIN.first, "lasts-too-long"),
        ("expired", CHAIN.advertise(publisher(), NOW_MS - 5_000), CHAIN.first, "expired"),
    ]
    malformed = {
        "version 2": [wire.encode([2, *body[1:]]), *parts[1:]],
        "a short anchor": [wire.encode([*body[:5], body[5][1:], body[6]]), *parts[1:]],
        "a field more": [*parts, b""],
        "an epoch too large": [wire.encode([*body[:2], 1 << 32, *body[3:]]), *parts[1:]],
    }
    return {
        "chain": {
            "seed": publisher().chain_seed.hex(),
            "first": CHAIN.first.hex(),
            "length": CHAIN.length,
            "undo": CHAIN.undo.hex(),
            "anchor": CHAIN.anchor.hex(),
        },
        "good": {
            "bytes": ADVERTISEMENT.encode().hex(),
            "identifier": ADVERTISEMENT.identifier.hex(),
            "expiry_ms": ADVERTISEMENT.expiry_ms,
            "steps": [[h.hex(), steps] for h, steps in values()],
        },
        "bad": [
            {"name": name, "bytes": one.encode().hex(), "h": h.hex(), "reason": reason} for name, one, h, reason in bad
        ],
        "malformed": {name: wire.encode(value).hex() for name, value in malformed.items()},
    }


def values() -> list[tuple[bytes, int]]:
    """Three values of the chain, and the steps from each to the anchor."""
    h, found = CHAIN.first, []
    for hops in range(3):
        found.append((h, CHAIN.length - hops))
        h = step(h)
    return [*found, (CHAIN.anchor, 0)]


def envelopes() -> dict[str, Any]:
    old, ahead = (enveloped(created_ms=NOW_MS + by_ms) for by_ms in (-125_001, 5_001))
    parts = wire.decode(ENVELOPE.encode())
    body = wire.decode(parts[0])
    bad = [
        ("old", old, "stale"),
        ("from the future", ahead, "future"),
        ("changed inside", replace(ENVELOPE, sealed=ENVELOPE.sealed[::-1]).encode(), "forged"),
        ("another's certificate", replace(ENVELOPE, certificate=publisher("bert").certificate).encode(), "forged"),
        ("of another epoch", replace(ENVELOPE, epoch=EPOCH + 1).encode(), "wrong-epoch"),
        ("a short nonce", wire.encode([wire.encode([*body[:4], body[4][1:], *body[5:]]), *parts[1:]]), "malformed"),
        ("a signature too long", wire.encode([*parts[:2], parts[2] + b"\x00"]), "malformed"),
    ]
    return {
        "good": {
            "bytes": ENVELOPE.encode().hex(),
            "identifier": ENVELOPE.identifier.hex(),
            "created_ms": ENVELOPE.created_ms,
            "parcel": PUSHED.parcel.hex(),
            "permits": [one.hex() for one in PUSHED.permits],
            "locks": [one.hex() for one in PUSHED.locks],
        },
        "bad": [{"name": name, "bytes": data.hex(), "reason": reason} for name, data, reason in bad],
    }


def cells() -> dict[str, Any]:
    short, full = CELL.encode(padded=False), CELL.encode()
    bad = {
        "padding that is not zero": full[:-1] + b"\x01",
        "a part beyond the last": CELL._replace(pieces=(Piece(3, 2, 2, b""),)).encode(),
        "a part cut short": CELL._replace(pieces=(Piece(3, 0, 2, bytes(PIECE_BYTES - 1)),)).encode(),
        "a piece beyond the end": short[:-1],
        "too short": short[:55],
        "too long": full + b"\x00",
    }
    pieces = [[one.message, one.part, one.parts, one.data.hex()] for one in CELL.pieces]
    return {
        "good": {"fields": [CELL.number, CELL.oldest, CELL.highest, CELL.came], "pieces": pieces, "bytes": short.hex()},
        "bad": {name: data.hex() for name, data in bad.items()},
    }


def links() -> dict[str, Any]:
    """A knock of anna's for bert, and a cell of the session between them."""
    names = ("anna", "bert", "fresh anna", "fresh bert")
    anna, bert, fresh_anna, fresh_bert = (ExchangeKey(seed(name)) for name in names)
    agreed = agree_lasting(anna, bert.public)
    knock = Knock(fresh_anna.public, fresh_bert.public, b"one life")
    answer = Knock(fresh_bert.public, fresh_anna.public, b"her life")
    session = LinkSession.between(anna, bert.public, agreed, fresh_anna, answer)
    return {
        "seeds": {name: seed(name).hex() for name in names},
        "identity of anna": identity_of(anna.public).hex(),
        "once": seed("once").hex(),
        "knock": seal_knock(knock, anna, bert.public, agreed, Fixed("once"), padded=False).hex(),
        "padded knock": seal_knock(knock, anna, bert.public, agreed, Fixed("once")).hex(),
        "life": knock.life.hex(),
        "cell": session.seal(CELL.encode(padded=False), Fixed("salt")).hex(),
    }


def good_frames() -> list[tuple[MeshKind, list[Any]]]:
    """One of each kind and more where a kind has several shapes, as anna says them on the topic "brakes"."""
    topic, name, swap = mesh_key().pseudonym, ENVELOPE.identifier, seed("swap")[:8]
    anna, bert, carl = (entry(who).listed() for who in ("anna", "bert", "carl"))
    return [
        (MeshKind.JOIN, [anna, 0]),
        (MeshKind.HOLD, [anna]),
        (MeshKind.ALIVE, [1]),
        (MeshKind.ADVERTISE, [ADVERTISEMENT.encode(), CHAIN.first]),
        (MeshKind.LOST, [ADVERTISEMENT.identifier]),
        *((MeshKind.SUBSCRIBE, [topic, stance]) for stance in (1, 2, 3)),
        (MeshKind.NOTIFY, [ENVELOPE.encode()]),
        (MeshKind.HAVE, [topic, [name, seed("unknown")[:16]], 0]),
        (MeshKind.WANT, [topic, [name]]),
        (MeshKind.LOCK, [topic, swap, 0, [[carl, 0]]]),
        (MeshKind.LOCK, [topic, swap, 1, [[bert, 1], [carl, 6]]]),
        (MeshKind.VOTE, [topic, swap, 1, [[carl, 2]]]),
        (MeshKind.VOTE, [topic, swap, 0, []]),
        (MeshKind.DECIDE, [topic, swap, 1]),
        (MeshKind.UNADVERTISE, [ADVERTISEMENT.identifier, CHAIN.undo]),
        (MeshKind.UNSUBSCRIBE, [topic, 0]),
        (MeshKind.LEAVE, [[bert, carl]]),
    ]


def bad_frames() -> dict[str, bytes]:
    topic, swap = mesh_key().pseudonym, seed("swap")[:8]
    anna = entry("anna").listed()
    return {
        "hops beyond 32": framed(MeshKind.JOIN, anna, 33),
        "an entry without an address": framed(MeshKind.HOLD, [*anna[:2], anna[3]]),
        "an address too long": framed(MeshKind.HOLD, [*anna[:2], "a" * 65, anna[3]]),
        "five entries that take one's place": framed(MeshKind.LEAVE, [anna] * 5),
        "a word that is neither yes nor no": framed(MeshKind.ALIVE, 2),
        "a short value of the chain": framed(MeshKind.ADVERTISE, ADVERTISEMENT.encode(), CHAIN.first[1:]),
        "an advertisement too long": framed(MeshKind.ADVERTISE, bytes(513), CHAIN.first),
        "a short handle": framed(MeshKind.LOST, bytes(15)),
        "stance 0": framed(MeshKind.SUBSCRIBE, topic, 0),
        "stance 4": framed(MeshKind.SUBSCRIBE, topic, 4),
        "a long pseudonym": framed(MeshKind.SUBSCRIBE, topic + b"\x00", 1),
        "65 names": framed(MeshKind.WANT, topic, [bytes(16)] * 65),
        "a short name": framed(MeshKind.WANT, topic, [bytes(15)]),
        "a short name of a swap": framed(MeshKind.DECIDE, topic, swap[1:], 1),
        "part 2": framed(MeshKind.LOCK, topic, swap, 2, []),
        "bearings 8": framed(MeshKind.LOCK, topic, swap, 0, [[anna, 8]]),
        "65 places": framed(MeshKind.VOTE, topic, swap, 1, [[anna, 0]] * 65),
        "a field less": framed(MeshKind.UNSUBSCRIBE, topic),
        "a field more": framed(MeshKind.ALIVE, 1, 1),
        "kind 0": wire.encode([1, 0, 1]),
        "kind 16": wire.encode([1, 16, 1]),
        "version 2": wire.encode([2, int(MeshKind.ALIVE), 1]),
        "no kind": wire.encode([1]),
        "no array": wire.encode(b"frame"),
        "a byte behind it": framed(MeshKind.ALIVE, 1) + b"\x00",
        "nothing": b"",
    }


def frames() -> dict[str, Any]:
    def told(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return [told(one) for one in value] if isinstance(value, list) else value

    good = [
        {"kind": kind.name, "number": int(kind), "fields": told(fields), "bytes": framed(kind, *fields).hex()}
        for kind, fields in good_frames()
    ]
    bad = [
        {"name": name, "bytes": data.hex(), "reason": "version" if name == "version 2" else "malformed"}
        for name, data in bad_frames().items()
    ]
    return {"good": good, "bad": bad}


def vectors() -> dict[str, Any]:
    return {
        "now_ms": NOW_MS,
        "keys": keys(),
        "advertisements": advertisements(),
        "envelopes": envelopes(),
        "cells": cells(),
        "links": links(),
        "frames": frames(),
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="utf-8")
