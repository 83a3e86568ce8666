"""Which relay of a virtual node carries which part of a parcel's content, and whom to ask for what did not come.

The paper has three strategies (000, "Propagation of encrypted content"). Here all are one: a body in `total` parts, any
`needed` of which give it back.

    replicas     1 of r   every relay of a virtual node carries the whole; small parcels always go so
    one copy     1 of 1   one relay carries the whole; what is lost is asked for, of the others
    coded        k of n   a block of `crypto/coding.py` for each relay; only what is missing is sent again

Threat: relays that drop or alter what they carry, up to f of the 2f+1 of each virtual node, at indices of their choice.
If a part goes only one way through the overlay, three bad relays at three hops stop three parts, whatever the
assignment: where every part stays at its own index, those at indices 0, 1 and 2 do it; where indices rotate from hop to
hop, others do. So a part is not tied to its way. A relay whose part did not come `gather`s `needed` others from the
virtual node before it, checks each against the signed root and makes its part anew. By induction over the hops each
honest relay comes to hold its parts: the honest ones before it hold at least `needed`, which is how `parts` chooses.
A silent relay may still be gathering, so whoever has asked all asks again, until `hop_keep_s` is over.

One copy has one carrier in each virtual node, and is asked for as parts are: of any relay of the virtual node before,
which fetches it in turn. So it goes round whoever keeps it back, one hop after the other, and needs no timetable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tallystick.crypto.coding import BLOCK_BYTES_MAX, TOTAL_MAX
from tallystick.errors import Misuse

Errand = tuple[int, int]  # (index of a relay in its virtual node, part)


class Strategy(Enum):
    REPLICAS = "replicas"
    ONE_COPY = "one copy"
    CODED = "coded"


@dataclass(frozen=True)
class Parts:
    needed: int
    total: int


def parts(strategy: Strategy, body_bytes: int, sizes: Sequence[int], small_bytes: int) -> Parts:
    """How a body is divided on a path through virtual nodes of these sizes; up to `small_bytes` it is replicated."""
    if strategy is Strategy.REPLICAS or body_bytes <= small_bytes:
        return Parts(1, max(sizes))
    if strategy is Strategy.ONE_COPY:
        return Parts(1, 1)
    # At any hop, f of 2f+1 relays may be bad and have the larger loads; what the others hold must do.
    least, totals = -(-body_bytes // BLOCK_BYTES_MAX), range(1, TOTAL_MAX + 1)
    safe = [Parts(min(total - (size - 1) // 2 * -(-total // size) for size in sizes), total) for total in totals]
    fitting = [one for one in safe if one.needed >= least]
    if not fitting:
        raise Misuse(f"content: no code of at most {TOTAL_MAX} blocks for {body_bytes} bytes and sizes {list(sizes)}")
    return max(fitting, key=lambda one: (one.needed / one.total, -one.total))


def carrier(part: int, hop: int, size: int) -> int:
    """The index of the relay that carries a part at a hop, counted from 0; at each hop another one."""
    return (part + hop) % size


def sends(relay: int, hop: int, sizes: Sequence[int], split: Parts) -> list[Errand]:
    """What a relay sends on without being asked: the parts it carries, each to the one who carries it next."""
    own = [part for part in range(split.total) if carrier(part, hop, sizes[hop]) == relay]
    return [(carrier(part, hop + 1, sizes[hop + 1]), part) for part in own]


def gather(
    held: Collection[int], silent: Collection[int], hop: int, size: int, split: Parts, *, first: int = 0
) -> list[Errand]:
    """Whom of the virtual node at `hop` to ask for which part, so that `needed` are in hand.

    `silent` are the relays that did not answer, or sent what did not verify. `first` is the asker's own part, so that
    those who ask at the same time begin at different relays. Returns fewer than needed where too few are left to ask.
    """
    turn = [(first + step) % split.total for step in range(split.total)]
    asked = [(carrier(part, hop, size), part) for part in turn if part not in held]
    return [one for one in asked if one[0] not in silent][: max(0, split.needed - len(held))]
