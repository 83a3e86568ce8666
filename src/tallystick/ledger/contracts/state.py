"""The state that contracts read and change, its tables, and what a contract sees while it runs.

The state is wire values under byte keys `b"<family>/…"`. What is known of it lies in one dictionary, stored or not,
since a block reads many times as often as it writes; beside it lie what the running transaction replaced there and
which keys the open block changed. A refused transaction is taken back whole; a finished block gives its changes once,
so that a topic written 512 times in a block costs one encoding and one path of the Merkle map.

A value is never changed in place: put a new one. None means absent.

A table is what lies under one family of keys, as rows with named fields. Each contract declares its tables beside its
rules, so that whoever reads the state asks for `TOPICS(token)` and gets a `TopicRow`. A row reads what every version of
its contract wrote: a field that came later has a default.

A handler takes a `Call` (the state, the author, the block's height and time, the entry's place) and the entry's decoded
array, changes the state, and raises `Refused` with a reason code where the rules say no. It reads nothing else: same
state, transaction, height and time, same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tallystick import wire
from tallystick.errors import Refused
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.wire import Fields

R = TypeVar("R", covariant=True)

ID, HASH = 16, 32  # bytes of a part of a key
U8, U32, U64 = -1, -4, -8  # a number of so many bytes
KEYS_MAX = 4_096  # remembered of each table, some 0.5 MB


class Key(bytes, Generic[R]):
    """A key of the state, which knows what lies under it."""

    table: Table[R]

    def read(self, value: Any) -> R | None:
        """The row of a value that was found under this key, or None where there is none."""
        return None if value is None else self.table.read(value)


class Table(Generic[R]):
    def __init__(self, family: str, row: Callable[..., R], *parts: int) -> None:
        """`row` is a named tuple of the value's items, or a function of the value; `parts` are what follows the family
        in a key; a family without parts is one row."""
        self.family = family
        self._prefix, self._row, self._parts = (f"{family}/" if parts else family).encode(), row, parts
        self._is_tuple = isinstance(row, type) and issubclass(row, tuple)
        self._keys = lru_cache(maxsize=KEYS_MAX)(self._key)  # a block asks for the same few again and again

    def __call__(self, *parts: bytes | int) -> Key[R]:
        """The key with these parts."""
        return self._keys(*parts)

    def _key(self, *parts: bytes | int) -> Key[R]:
        key: Key[R] = Key(self.prefix(*parts))
        key.table = self
        return key

    def prefix(self, *parts: bytes | int) -> bytes:
        """What the keys begin with that have these first parts."""
        widths = zip(parts, self._parts, strict=False)
        written = [part if isinstance(part, bytes) else part.to_bytes(-width, "big") for part, width in widths]
        return b"".join([self._prefix, *written])

    def fits(self, *parts: bytes | int) -> bool:
        """Whether there may be a row of these parts."""
        widths = zip(parts, self._parts, strict=True)
        return all(
            len(part) == width if isinstance(part, bytes) else 0 <= part < 1 << 8 * -width for part, width in widths
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


class RowReader(Protocol):
    """Brings a row of the state by its key: `State.row`, or whoever asks for it elsewhere."""

    def __call__(self, key: Key[R], /) -> R | None: ...


CACHE_KEYS_MAX = 100_000  # some 30 MB of decoded values

_MISSING: Any = object()


class State:
    """Contracts' view of the ledger's state; `load` reads the stored encoding of a key."""

    def __init__(self, load: Callable[[bytes], bytes | None], known_max: int = CACHE_KEYS_MAX) -> None:
        self._load, self._known_max = load, known_max
        self._known: dict[bytes, Any] = {}
        self._block: set[bytes] = set()  # keys that the open block changed
        self._before: dict[bytes, Any] = {}  # what the running transaction replaced

    def get(self, key: bytes) -> Any:
        """The value under `key`, or None."""
        value = self._known.get(key, _MISSING)
        return value if value is not _MISSING else self._fetch(key)

    def row(self, key: Key[R]) -> R | None:
        """The row under a table's key, or None."""
        value = self._known.get(key, _MISSING)  # as `get`, without the call: blocks ask for many
        if value is _MISSING:
            value = self._fetch(key)
        return None if value is None else key.table.read(value)

    def put(self, key: bytes, value: Any) -> None:
        """Set `key` for the running transaction; None removes it."""
        if key not in self._before:
            key = bytes(key)  # a table's key is more than its bytes
            self._before[key] = self._known.get(key, _MISSING)
        self._known[key] = value

    def grown_bytes(self) -> int:
        """By how much the running transaction changed the stored encoding of what it touched, keys included."""
        grown = 0
        for key, before in self._before.items():
            old = self._load(key) if before is _MISSING else None if before is None else wire.encode(before)
            new = None if self._known[key] is None else wire.encode(self._known[key])
            grown += (0 if new is None else len(key) + len(new)) - (0 if old is None else len(key) + len(old))
        return grown

    def keep(self) -> None:
        """The running transaction was accepted: its changes belong to the block."""
        self._block.update(self._before)
        self._before = {}

    def discard(self) -> None:
        """The running transaction was refused: nothing of it stays."""
        for key, value in self._before.items():
            if value is _MISSING:
                del self._known[key]
            else:
                self._known[key] = value
        self._before = {}

    def changes(self) -> dict[bytes, bytes | None]:
        """What the open block changed, encoded, in the order of the keys."""
        known = self._known
        return {key: None if known[key] is None else wire.encode(known[key]) for key in sorted(self._block)}

    def seal(self) -> None:
        """The open block is stored; what it changed is what will be read."""
        self._block = set()

    def forget_block(self) -> None:
        """The open block could not be stored: back to what is."""
        self._known, self._block, self._before = {}, set(), {}

    def refresh(self, keys: Iterable[bytes]) -> None:
        """These keys were changed in what is stored: read them again."""
        for key in keys:
            self._known.pop(key, None)

    def _fetch(self, key: bytes) -> Any:
        key = bytes(key)
        stored = self._load(key)
        value = None if stored is None else wire.decode(stored, "state value")
        if len(self._known) > self._known_max:
            changed = self._block | self._before.keys()
            self._known = {one: self._known[one] for one in changed}
        self._known[key] = value
        return value


NOBODY = bytes(16)  # an operator that was not authenticated; a topic that was not named


@dataclass(slots=True)
class Call:
    """One transaction on its way through the contracts; `index` and `entry_hash` are those of the running entry."""

    state: State
    instance: bytes
    author: bytes
    author_kind: int
    author_tenant: bytes
    height: int
    time_ms: int
    first: int  # place in its block of the transaction's first entry
    index: int = 0
    entry_hash: bytes = b""
    carried: set[tuple[bytes, int]] = field(default_factory=set)  # partitions of which the author is a node
    links: dict[bytes, HistoryLink] = field(default_factory=dict)  # by token
    accepted: dict[bytes, int] = field(default_factory=dict)  # requests by operator
    refused: int = 0  # operations that tell of a refusal
    has_quotas: bool = False  # whether tenants are held to their shares

    @property
    def is_operator(self) -> bool:
        """Whether the author is the instance's operator: an authority that the root certified for all tenants."""
        return self.author_kind == SubjectKind.AUTHORITY and self.author_tenant == ALL_TENANTS

    def require_operator(self) -> None:
        if not self.is_operator:
            raise Refused("only an authority of all tenants may do this", reason="not-operator")

    def require_authority_of(self, tenant: bytes) -> None:
        if self.author_kind != SubjectKind.AUTHORITY or self.author_tenant not in (ALL_TENANTS, tenant):
            raise Refused(f"only an authority of tenant {tenant.hex()} may do this", reason="not-authority")


class HistoryRow(NamedTuple):
    """The last operation of a topic, and the chain up to it."""

    height: int
    entry: int  # its place in the block
    operations: int  # so many
    chain: bytes


NO_HISTORY = HistoryRow(0, 0, 0, bytes(32))


@dataclass(slots=True)
class HistoryLink:
    """A topic's history while a transaction adds to it."""

    previous: HistoryRow  # as it was before this transaction
    chain: bytes
    indices: list[int] = field(default_factory=list)  # its operations in this transaction


Handler = Callable[[Call, list[Any]], None]


def fields_of(entry: list[Any], what: str, length: int) -> Fields:
    """The fields of an entry of `length`, from the one behind its kind on. Raises `Malformed`."""
    fields = Fields(entry, what, length)
    fields.number()
    return fields
