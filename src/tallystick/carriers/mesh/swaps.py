"""What a node remembers of a swap that is under way (`shell_game.py`): its part in it, and the places that change
hands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from tallystick.carriers.mesh.matching import TopicLink
from tallystick.carriers.mesh.members import MemberEntry

SWAP_BYTES = 8  # a swap's name


class Part(IntEnum):
    NEIGHBOUR = 0
    PARTNER = 1  # w
    INITIATOR = 2  # v


@dataclass(frozen=True)
class SwapPlace:
    """A neighbour that goes with a place, and the bearings of its link."""

    entry: MemberEntry
    bearings: int

    def apply(self, link: TopicLink) -> None:
        link.is_up, link.is_down, link.is_cover = (bool(self.bearings & bit) for bit in (1, 2, 4))
        link.is_old = False


@dataclass
class SwapLock:
    swap: bytes
    part: Part
    until: float
    other: bytes  # w for v, v for w, and whoever asked first for a neighbour
    waiting: set[bytes] = field(default_factory=set)  # who has not voted
    mine: tuple[bytes, ...] = ()  # A for v, B for w
    gets: tuple[SwapPlace, ...] = ()  # B for v, A for w
    moves: dict[bytes, MemberEntry] = field(default_factory=dict)  # for a neighbour: the old one, and the new
    is_decided: bool = False
    repeat_at: float = 0.0


def bearings_of(link: TopicLink) -> int:
    """Who gets the topic through whom, as it travels."""
    return link.is_up | link.is_down << 1 | link.is_cover << 2
