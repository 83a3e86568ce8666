"""Probabilistic forwarding: members draw neighbours into a topic's mesh that have no use for it (AnonPubSub 4.6, Fig.
7).

Threat: an observer of all links who takes the leaves of a topic's mesh for its subscribers. Each member that enters a
mesh draws, for every neighbour in the graph that it does not know to be in it, whether to take it in as a cover, with
probability μ. A node knows only of neighbours with which it shares a link of the topic; the paper's N∖V_a is more than
anybody knows, and asking would tell.

Once. What a member drew holds for as long as it is a member: an observer who sees different draws again and again finds
the subscribers as what stays (Fig. 13). So nothing is drawn again when a cover is lost or a neighbour is new.

Covers draw covers. Where covers are always the last, an observer peels one layer of leaves off and has the subscribers
again. So a cover draws too, with a probability ν of its own, and so do its covers, to no fixed depth. How far that goes
depends on ν times the number of neighbours: below 1 it ends soon, above it takes in the whole graph. ν = 0 is the
paper's own choice in its measurements, and serves for nothing but to repeat them.

A cover is told, as any forwarder is, by a word with a lease (`matching.py`), and behaves as a member from then on.

Guises. How much a topic hides is its owner's to say: a **guise** is a choice of μ, ν and λ, a mesh has four of them,
the same at all its nodes, and the members' kit says which one a topic wears. Forwarders and covers must draw and play
as members do: where members alone had more covers, an observer who counts would know them by that. So the word that
makes a node a member carries the guise's number, and forwarders follow it without knowing the topic. Four, and not the
numbers themselves: values of its own would be a name that a topic keeps from epoch to epoch. What remains: whoever is
in a topic's mesh learns two bits about it that stay, and a liar gives those behind it another of the four. The dial is
no part of it: links carry all topics, so it is the node's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from tallystick.errors import Misuse

GUISES = 4


@dataclass(frozen=True)
class CoverChoice:
    """μ and ν."""

    mu: float = 0.3  # at ten neighbours, three covers a member
    nu: float = 0.05  # at ten neighbours, half a cover a cover: chains of two on average

    def __post_init__(self) -> None:
        if not (0.0 <= self.mu <= 1.0 and 0.0 <= self.nu <= 1.0):
            raise Misuse(f"covers: probabilities expected, found {self.mu} and {self.nu}")


@dataclass(frozen=True)
class Guise:
    covers: CoverChoice = CoverChoice()
    decay: float = 0.05  # λ, per second


class Guises:
    """What each topic wears at one node: by our kit, or by the word that made us a member."""

    def __init__(self, offered: Sequence[Guise]) -> None:
        self._offered = offered
        self.own: dict[bytes, int] = {}  # by pseudonym
        self.met: dict[bytes, int] = {}  # of the topics whose meshes we are in

    def number(self, pseudonym: bytes) -> int:
        return self.own.get(pseudonym, self.met.get(pseudonym, 0))

    def of(self, pseudonym: bytes) -> Guise:
        """The first, where we know none of this number."""
        number = self.number(pseudonym)
        return self._offered[number if number < len(self._offered) else 0]


def draw_covers(choice: CoverChoice, is_cover: bool, candidates: Iterable[bytes], random: Random) -> list[bytes]:
    """Those of the candidates that a node takes in on entering a mesh."""
    probability = choice.nu if is_cover else choice.mu
    return [one for one in candidates if random.random() < probability]
