"""Writes abe.json beside itself: `python tests/vectors/make_abe.py`. Everything is a function of the seeds below.

Each vector that must fail names the error it must raise, and each altered capsule that must open to something else says
so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from formulas import ACME

from tallystick import wire
from tallystick.crypto.abe.capsule import Capsule, encapsulate
from tallystick.crypto.abe.keys import AttributeMasterKey
from tallystick.policy.parse import parse
from tallystick.policy.traits import traits_of

ENTROPY = bytes(range(32))
HELD: dict[str, Any] = {"role": "insurer", "region": ["EU"], "clearance": 9, "trained": True}
POLICIES = [
    "role::insurer && region::EU",
    "role::insurer && (region::EU || region::KR) && clearance >= 3",
    "2 of (trained, clearance in 3..12, role::police)",
    "(role::insurer || trained) && (role::insurer || clearance == 9)",
]
REFUSED = ["role::police || clearance > 9", "2 of (trained, role::police, region::KR)"]


def altered(capsule: Capsule) -> list[dict[str, str]]:
    fields = wire.decode(capsule.encode())

    def with_field(place: int, value: Any) -> str:
        return wire.encode([*fields[:place], value, *fields[place + 1 :]]).hex()

    return [
        {"what": "version 2", "capsule": with_field(0, 2), "error": "Malformed"},
        {"what": "a row too many", "capsule": with_field(6, capsule.rows + capsule.rows[:48]), "error": "Malformed"},
        {"what": "an epoch out of range", "capsule": with_field(2, 1 << 32), "error": "Malformed"},
        {"what": "the neutral element", "capsule": with_field(4, bytes(96)), "error": "Malformed"},
        {"what": "not on the curve", "capsule": with_field(6, b"\x01" * len(capsule.rows)), "error": "Malformed"},
        {"what": "another authority", "capsule": with_field(1, bytes(16)), "error": "CannotOpen"},
        {"what": "another epoch", "capsule": with_field(2, 8), "error": "CannotOpen"},
        {"what": "trailing byte", "capsule": capsule.encode().hex() + "00", "error": "Malformed"},
    ]


def main() -> None:
    master = AttributeMasterKey.decode(bytes(range(32, 64)))
    key = master.issue(b"holder", traits_of(ACME.values(HELD), ACME), [7])
    opened, refused = [], []
    for text in POLICIES:
        formula = parse(text, ACME)
        capsule, secret = encapsulate(master.public, formula, 7, b"context", ENTROPY)
        opened.append(
            {
                "policy": text,
                "formula": formula.encode().hex(),
                "capsule": capsule.encode().hex(),
                "secret": secret.hex(),
            }
        )
    for text in REFUSED:
        capsule, _ = encapsulate(master.public, parse(text, ACME), 7, b"context", ENTROPY)
        refused.append({"policy": text, "capsule": capsule.encode().hex(), "error": "CannotOpen"})
    first, _ = encapsulate(master.public, parse(POLICIES[0], ACME), 7, b"context", ENTROPY)
    vectors = {
        "space": ACME.encode().hex(),
        "master": master.encode().hex(),
        "public": master.public.encode().hex(),
        "identifier": master.public.identifier.hex(),
        "holder": b"holder".hex(),
        "epoch": 7,
        "context": b"context".hex(),
        "entropy": ENTROPY.hex(),
        "traits": sorted(trait.hex() for trait in key.parts),
        "key": key.encode().hex(),
        "refresh_8": master.refresh(b"holder", key.parts, 8).hex(),
        "opened": opened,
        "refused": refused,
        "altered": altered(first),
    }
    (Path(__file__).parent / "abe.json").write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
