"""What opening a store found, and the errors of reading from it.

A crash may leave bytes behind the last commit: they were never acknowledged, and are *cut*. Anything wrong
below it is *damage*: acknowledged bytes that are missing or changed. Damage is named, what lies below it
stays readable, and nothing is written there any more; only a person decides what becomes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.errors import Refused, Unavailable


class Retired(Refused):
    """The body was deleted by retention; `below` is the partition's mark, and headers are still there."""

    reason = "retired"

    def __init__(self, message: str, below: int) -> None:
        super().__init__(message)
        self.below = below


class UnsureLog(Unavailable):
    """The disk failed in a sync: what it holds is known only once the store is opened anew."""


@dataclass(frozen=True)
class Cut:
    """Bytes behind the last commit, removed: `entries` of them were whole, from `offset` on."""

    where: str
    offset: int
    entries: int
    n_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.where}: cut {self.n_bytes} bytes behind offset {self.offset} "
            f"({self.entries} whole entries, none of them acknowledged)"
        )


@dataclass(frozen=True)
class Damage:
    """Committed data that is missing or changed, from `offset` on."""

    where: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.where}: damaged at offset {self.offset}: {self.what}"


@dataclass
class Recovery:
    """The findings of opening a store, in the order in which they were met."""

    cuts: list[Cut] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)  # derived files that were missing or wrong, made anew

    def lines(self) -> list[str]:
        """One line for each finding, damage first."""
        return [
            *map(str, self.damages),
            *map(str, self.cuts),
            *(f"{path}: rebuilt from its segment" for path in self.rebuilt),
        ]
