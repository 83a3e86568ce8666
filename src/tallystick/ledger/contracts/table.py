"""Tables of the state: what lies under a family of keys `b"<family>/…"`, as rows with named fields.

Each contract declares its tables beside its rules, so that whoever reads the state asks for `TOPICS(token)` and gets a
`TopicRow`. A row reads what every version of its contract wrote: a field that came later has a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

R = TypeVar("R", covariant=True)

ID, HASH = 16, 32  # bytes of a part of a key
U8, U32, U64 = -1, -4, -8  # a number of so many bytes


class Key(bytes, Generic[R]):
    """A key of the state, which knows what lies under it."""

    table: Table[R]

    def read(self, value: Any) -> R | None:
        """The row of a value that was found under this key; None where there is none."""
        return None if value is None else self.table.read(value)


class Table(Generic[R]):
    def __init__(self, family: str, row: Callable[..., R], *parts: int) -> None:
        """`row` is a named tuple of the value's items, or a function of the value; `parts` are what follows the family
        in a key; a family without parts is one row."""
        self._prefix, self._row, self._parts = (f"{family}/" if parts else family).encode(), row, parts
        self._is_tuple = isinstance(row, type) and issubclass(row, tuple)

    def __call__(self, *parts: bytes | int) -> Key[R]:
        """The key with these parts."""
        key: Key[R] = Key(self.prefix(*parts))
        key.table = self
        return key

    def prefix(self, *parts: bytes | int) -> bytes:
        """What the keys begin with that have these first parts."""
        widths = zip(parts, self._parts, strict=False)
        return b"".join(
            [
                self._prefix,
                *(part if isinstance(part, bytes) else part.to_bytes(-width, "big") for part, width in widths),
            ]
        )

    def parts(self, key: bytes) -> tuple[Any, ...]:
        """The parts that a key was made of."""
        found: list[bytes | int] = []
        at = len(self._prefix)
        for width in self._parts:
            part = key[at : at + abs(width)]
            found.append(part if width > 0 else int.from_bytes(part, "big"))
            at += abs(width)
        return tuple(found)

    def read(self, value: Any) -> R:
        return self._row(*value) if self._is_tuple else self._row(value)
