"""Who is in which phase of a campaign: a share of all vehicles, drawn by a hash that everybody can repeat.

Threat: a Director that chooses its vehicles, the ones of somebody it dislikes or all of them at once, and calls it the
first phase. Invariant: whether a vehicle is in a phase follows from the names of campaign and vehicle and from the
phase's share, which stands on the ledger, and from nothing else. So the vehicle itself, the audit and any stranger come
to the same answer, and a vehicle that is enrolled tomorrow has its place today. A share holds those of every smaller
share: whoever is in the first phase is in all later ones.

The arithmetic is in integers, and shares are millionths: ten vehicles of a million are a phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from tallystick.crypto import merkle
from tallystick.crypto.symmetric import named_hash

WHOLE = 1_000_000  # the share of all vehicles
PHASES_MAX = 16
VEHICLES_MAX = (1 << 32) - 1


class Phase(NamedTuple):
    """What a phase reaches, and what must have happened in it before the next one opens. Counts are of the campaign,
    not of the phase alone, since phases lie in one another."""

    share: int  # of all vehicles, in millionths
    vehicles: int  # that may be counted at most: those of the share today, and room for later ones
    least_succeeded: int
    most_failed: int  # one more stops the campaign
    soak_ms: int  # in block time, from the phase's opening


def draw(campaign: bytes, vehicle: bytes) -> int:
    """A vehicle's place in a campaign, from 0 to 999,999. Both are named by 16 bytes."""
    drawn = named_hash("tallystick campaign place 1", campaign + vehicle)
    return int.from_bytes(drawn[:8], "big") * WHOLE >> 64


def is_member(campaign: bytes, vehicle: bytes, share: int) -> bool:
    """Whether a phase of this share reaches the vehicle."""
    return draw(campaign, vehicle) < share


def count_members(campaign: bytes, vehicles: Iterable[bytes], phases: Sequence[Phase]) -> list[int]:
    """How many of the vehicles each phase reaches. Who plans a campaign looks here: a phase that reaches nobody never
    ends."""
    drawn = sorted(draw(campaign, one) for one in vehicles)
    return [sum(place < phase.share for place in drawn) for phase in phases]


def manifests_root(manifests: Mapping[bytes, bytes]) -> bytes:
    """What a report says of the manifests that it counted, one of each vehicle: whoever has the same ones comes to the
    same root, and any of them can be proved to be among them."""
    return hashes_root({vehicle: sha256(one).digest() for vehicle, one in manifests.items()})


def hashes_root(hashes: Mapping[bytes, bytes]) -> bytes:
    """The same, from their SHA-256 alone."""
    return merkle.root([merkle.leaf_hash(one + hashes[one]) for one in sorted(hashes)])
