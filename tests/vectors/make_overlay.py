"""Writes overlay.json beside itself: `python tests/vectors/make_overlay.py`.

Everything is a function of the seeds below: one lane key from its publisher over two virtual nodes (2 of 3) to a
subscriber, with what every party derives, and bytes that must be refused, each with the error's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tallystick import wire
from tallystick.carriers.overlay.redistribution import (
    ALONE,
    Contribution,
    Threshold,
    combine,
    commitment_to,
    reshare,
    split,
)
from tallystick.crypto import group
from tallystick.crypto.signatures import SigningKey
from tallystick.trust.shares import CANNOT_OPEN, NO_LINEAGE, Complaint, ShareList, ShareSet

PATH = Path(__file__).parent / "overlay.json"
LANE_KEY, PLAN = b"\x0a" * 32, 5
ENTROPY = bytes(range(32))
EDGE, NEXT, READER = b"virtual node 1..", b"virtual node 2..", b"a subscriber...."
SIGNER = SigningKey.from_seed(b"\x07" * 32)
TWO_OF_THREE = Threshold(2, 3)
ORDER_TWO = group.Point(bytes.fromhex("ec" + "ff" * 30 + "7f"))


def erasable(index: int) -> bytes:
    return bytes([index]) * 32


def main() -> None:
    made = split(ENTROPY, LANE_KEY, PLAN, EDGE, TWO_OF_THREE)
    held = {index: combine(made.hop, [Contribution(made.shares, one)], index).held for index, one in made.lists.items()}
    hop = replace(made.hop, branch=NEXT, before=ALONE, senders=TWO_OF_THREE)
    sent = {index: reshare(one, hop, index, erasable(index)) for index, one in held.items()}
    got = combine(hop, [Contribution(shares, lists[1]) for shares, lists in sent.values()], 1).held
    last = replace(hop, branch=READER, before=TWO_OF_THREE, receivers=ALONE)
    shares, lists = reshare(got, last, 1, erasable(4))
    vectors = {
        "group": {"blinding_base": group.blinding_base().hex(), "commitment_3_4": group.commit(3, 4).hex()},
        "points_bad": point_vectors(),
        "scalars_bad": [group.ORDER.to_bytes(32, "little").hex(), "ff" * 32, "00" * 31],
        "lane_key": LANE_KEY.hex(),
        "plan": PLAN,
        "entropy": ENTROPY.hex(),
        "branches": [EDGE.hex(), NEXT.hex(), READER.hex()],
        "seed": (b"\x07" * 32).hex(),
        "secret": made.secret.hex(),
        "commitment": commitment_to(made.secret, LANE_KEY).hex(),
        "origin": made.hop.origin.name.hex(),
        "published": signed(made.shares, made.lists),
        "erasable": [erasable(index).hex() for index in (1, 2, 3)],
        "sent": [signed(*one) for one in sent.values()],
        "held": [
            {
                "lineage": wire.encode([1, *one.lineage]).hex(),
                "name": one.lineage.name.hex(),
                "share": one.share.encode().hex(),
            }
            for one in got
        ],
        "released": signed(shares, lists),
        "complaints": [
            Complaint(LANE_KEY, PLAN, 2, NEXT, 3, NO_LINEAGE, (1, 2)).sign(SIGNER).encode().hex(),
            Complaint(LANE_KEY, PLAN, 0, READER, 0, CANNOT_OPEN, ()).sign(SIGNER).encode().hex(),
        ],
        "bad": bad_vectors(shares, lists[1]),
    }
    PATH.write_text(json.dumps(vectors, indent=1) + "\n")


def signed(shares: ShareSet, lists: dict[int, ShareList]) -> Any:
    return {
        "set": shares.sign(SIGNER).encode().hex(),
        "hash": shares.hash.hex(),
        "lists": [one.sign(SIGNER).encode().hex() for one in lists.values()],
    }


def point_vectors() -> Any:
    good = group.commit(3, 4)
    return {
        "neutral": group.NEUTRAL.hex(),
        "order two": ORDER_TWO.hex(),
        "order four": "00" * 32,
        "good and order two": group.add(good, ORDER_TWO).hex(),
        "good and order four": group.add(good, group.Point(bytes(32))).hex(),
        "second encoding": (2**255 - 19 + 3).to_bytes(32, "little").hex(),
        "not on the curve": "02" + "00" * 31,
        "short": good[:31].hex(),
    }


def bad_vectors(shares: ShareSet, listed: ShareList) -> Any:
    """{what is wrong: [kind, bytes]}; all are malformed."""
    first, *rest = shares.lineages
    encoded = listed.encoded

    def of(one: Any, edit: Callable[[list[Any]], None] | None = None) -> str:
        fields = wire.decode(one.sign(SIGNER).body)
        if edit:
            edit(fields)
        body = wire.encode(fields)
        return wire.encode([body, SIGNER.sign(one.context, body)]).hex()

    def change(at: int, value: Any) -> Callable[[list[Any]], None]:
        return lambda fields: fields.__setitem__(at, value)

    complaint = Complaint(LANE_KEY, PLAN, 2, NEXT, 3, NO_LINEAGE, (1, 2))
    return {
        "set of version 2": ["set", of(shares, change(0, 2))],
        "sender 0": ["set", of(shares, change(5, 0))],
        "sender 8": ["set", of(shares, change(5, 8))],
        "lineages out of order": ["set", of(replace(shares, lineages=(*rest, first)))],
        "one contributor set twice": ["set", of(replace(shares, lineages=(first, first, *rest)))],
        "contributors falling": ["set", of(replace(shares, lineages=(relined(first, (2, 1)),)))],
        "contributor 8": ["set", of(replace(shares, lineages=(relined(first, (1, 8)),)))],
        "no commitments": [
            "set",
            of(replace(shares, lineages=(first._replace(lineage=first.lineage._replace(commitments=())),))),
        ],
        "lineages of two forms": [
            "set",
            of(replace(shares, lineages=(*shares.lineages[:2], rest[-1]._replace(fresh=(group.NEUTRAL,))))),
        ],
        "a commitment of 31 bytes": ["set", of(replace(shares, lineages=(first._replace(fresh=(bytes(31),)),)))],
        "a scalar that is the order": [
            "list",
            of(replace(listed, encoded=(group.ORDER.to_bytes(32, "little") + encoded[0][32:], *encoded[1:]))),
        ],
        "a share of 63 bytes": ["list", of(replace(listed, encoded=(encoded[0][:63],)))],
        "receiver 0": ["list", of(listed, change(2, 0))],
        "36 shares": ["list", of(replace(listed, encoded=encoded[:1] * 36))],
        "complaint without reason": ["complaint", of(complaint, change(6, 0))],
        "complaint with liars twice": ["complaint", of(replace(complaint, liars=(1, 1)))],
    }


def relined(sent: Any, contributors: tuple[int, ...]) -> Any:
    return sent._replace(lineage=sent.lineage._replace(contributors=contributors))


if __name__ == "__main__":
    main()
