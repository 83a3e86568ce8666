"""Who fetches what next: stretches of leaves that nobody has been asked for yet, each with the server it is dealt to.

A server works through its own stretches from the front. One that has none left takes the back half of the longest
stretch of all, whoever's it is: so a slow server keeps what it can do, and no more than one request waits for it. What
is taken out is asked for once; only what did not come, or was a lie, is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(slots=True)
class Stretch:
    """Leaves `[first, end)` that are to be asked for, and the server whose turn it is."""

    first: int
    end: int
    owner: str


class Stretches:
    """What is left to ask for. `divisible` says whether an idle server may take a part of a stretch."""

    def __init__(self, parts: Iterable[tuple[int, int]], owner_of: Callable[[int], str], divisible: bool) -> None:
        self._left = [Stretch(first, end, owner_of(first)) for first, end in parts]
        self._divisible = divisible

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, server: str, reach: Callable[[int, int], int]) -> tuple[int, int] | None:
        """The next leaves to ask of this server, up to where `reach(first, end)` lets one request go."""
        mine = next((one for one in self._left if one.owner == server), None) or self._take_over(server)
        if mine is None:
            return None
        first, mine.first = mine.first, reach(mine.first, mine.end)
        if mine.first == mine.end:
            self._left.remove(mine)
        return first, mine.first

    def give_back(self, first: int, end: int, owner: str) -> None:
        """These did not come."""
        if first < end:
            self._left.insert(0, Stretch(first, end, owner))

    def deal_again(self, owner_of: Callable[[int], str]) -> None:
        """Another seeder's word: each stretch goes to whom it names."""
        for one in self._left:
            one.owner = owner_of(one.first)

    def _take_over(self, server: str) -> Stretch | None:
        """For a server with nothing of its own: half of what is furthest from done."""
        longest = max(self._left, key=lambda one: one.end - one.first, default=None)
        if longest is None:
            return None
        middle = (longest.first + longest.end) // 2 if self._divisible else longest.first
        if middle == longest.first:
            longest.owner = server
            return longest
        taken = Stretch(middle, longest.end, server)
        longest.end = middle
        self._left.append(taken)
        return taken


def without_kept(parts: Sequence[tuple[int, int]], kept: Sequence[bool]) -> list[tuple[int, int]]:
    """The runs of leaves in `parts` that are not kept already."""
    groups = (group for first, end in parts for group in groupby(range(first, end), kept.__getitem__))
    runs = (list(run) for has, run in groups if not has)
    return [(run[0], run[-1] + 1) for run in runs]
