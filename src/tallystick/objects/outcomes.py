"""What a fetch stores, under which keys, and what it delivers."""

from __future__ import annotations

from dataclasses import dataclass

SLIPS, FENCE = "slips", "fence"  # keys of what is stored


def chunk_key(number: int) -> str:
    """Under which a verified chunk is stored."""
    return f"chunk {number}"


def chunk_number(key: str) -> int | None:
    """The chunk that is stored under this key, or None where it is something else."""
    return int(key.removeprefix("chunk ")) if key.startswith("chunk ") else None


@dataclass(frozen=True, slots=True)
class ServerNamed:
    """Delivered: this server sent what is wrong, and what that was."""

    server: str
    what: str


@dataclass(frozen=True, slots=True)
class ObjectWhole:
    """Delivered once, at the end: every chunk was verified and stored."""


@dataclass(frozen=True, slots=True)
class FetchGivenUp:
    """Delivered once, at the end: why it did not go on. What was stored serves the next attempt."""

    why: str


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """How it stands."""

    chunks: int  # that are verified and stored, in this life or an earlier one
    bytes_arrived: int  # in answers, of any kind
    bytes_used: int  # in those of them that were right
    named: tuple[str, ...]
