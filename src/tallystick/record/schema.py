"""A topic's schema: columns, version and column groups as one frozen value, and what a next version may
change.

Parcels name a schema by version and hash, so a schema has exactly one encoding. A reader that holds the
newest version reads every older batch: `check_successor` therefore lets a new version only append nullable
columns and widen numbers. Columns keep their group for ever, since a group's locks decided who could read
them; a rename, a new type or a reused name would change the meaning of what is already sealed, and is a new
topic instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.later import pa
from tallystick.record import schema_text
from tallystick.record.types import decode_fields, encode_fields, kind_name, normal_fields, walk

VERSION_MAX = 2**31 - 1
LABEL = b"tallystick schema 1"
_FORMAT = 1


def schema_hash(encoded: bytes) -> bytes:
    """SHA-256 over the label's length (one byte), the label and the encoding."""
    return hashlib.sha256(bytes([len(LABEL)]) + LABEL + encoded).digest()


_WIDER = {
    "int8": "int16",
    "int16": "int32",
    "int32": "int64",
    "uint8": "uint16",
    "uint16": "uint32",
    "uint32": "uint64",
    "float32": "float64",
}


@dataclass(frozen=True, eq=False)
class Schema:
    """The columns of a topic (`arrow`), their version, and their partition into column groups.

    >>> schema = Schema.parse("vin string not null, speed float32")
    >>> schema.groups
    (('vin', 'speed'),)
    """

    arrow: Any  # pa.Schema in normal form: allowed types only, no metadata
    version: int = 1
    groups: tuple[tuple[str, ...], ...] = ()  # empty: one group of all columns

    def __post_init__(self) -> None:
        if self.arrow.metadata:
            raise Misuse(
                "the schema carries metadata, which a topic cannot keep", hint="drop it: schema.remove_metadata()"
            )
        if type(self.version) is not int or not 1 <= self.version <= VERSION_MAX:
            raise Misuse(f"schema version {self.version!r} is not between 1 and {VERSION_MAX}")
        arrow = pa.schema(normal_fields(self.arrow))
        object.__setattr__(self, "arrow", arrow)
        object.__setattr__(self, "groups", _normal_groups(arrow.names, self.groups))

    @classmethod
    def parse(cls, text: str, version: int = 1, groups: Iterable[Iterable[str]] = ()) -> Schema:
        """The schema that `text` describes (see `schema_text`). Raises `Misuse` with the position of a
        mistake.
        """
        return cls(pa.schema(schema_text.read(text)), version, tuple(tuple(group) for group in groups))

    def __str__(self) -> str:
        return schema_text.show(self.arrow)

    @cached_property
    def encoded(self) -> bytes:
        """wire [1, version, [node…], [[column number…]…]]: see docs/formats/rows.md."""
        number = {name: i for i, name in enumerate(self.arrow.names)}
        groups = [[number[name] for name in group] for group in self.groups]
        return wire.encode([_FORMAT, self.version, encode_fields(self.arrow), groups])

    def encode(self) -> bytes:
        """The one encoding of this schema."""
        return self.encoded

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Schema:
        """The schema whose encoding is `data`. Raises `Malformed`."""
        fields = wire.decode(data, "schema")
        if not isinstance(fields, list) or len(fields) != 4 or fields[0] != _FORMAT:
            raise Malformed("schema: expected [1, version, fields, groups]")
        _, version, nodes, groups = fields
        try:
            arrow = pa.schema(decode_fields(nodes))
            names = arrow.names
            schema = cls(arrow, version, tuple(tuple(names[i] for i in group) for group in groups))
        except (Misuse, TypeError, IndexError) as error:
            raise Malformed(f"schema: {error}") from error
        if schema.encoded != data:
            raise Malformed("schema: not in normal form")
        return schema

    @cached_property
    def hash(self) -> bytes:
        return schema_hash(self.encoded)

    @cached_property
    def demanding(self) -> tuple[int, ...]:
        """The columns that are not null, or hold something nested that is not: data must be held to it."""
        fields = enumerate(self.arrow)
        return tuple(i for i, field in fields if not all(node.nullable for node in walk(field)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def group_arrow(self, group: int) -> Any:
        """The Arrow schema of one column group."""
        return self.arrow if len(self.groups) == 1 else pa.schema([self.arrow.field(n) for n in self.groups[group]])

    def only(self, *groups: int) -> Schema:
        """This schema reduced to some of its groups, columns in their old order; a value of its own, with its
        own hash.
        """
        if tuple(groups) == tuple(range(len(self.groups))):
            return self
        kept = tuple(self.groups[group] for group in groups)
        names = {name for group in kept for name in group}
        return Schema(pa.schema([field for field in self.arrow if field.name in names]), self.version, kept)


parse = Schema.parse


def _normal_groups(names: list[str], groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """`groups` as tuples in the order of the columns. Raises `Misuse` unless they partition `names`."""
    if not groups:
        return (tuple(names),)
    number = {name: i for i, name in enumerate(names)}
    seen: set[str] = set()
    for group in groups:
        if isinstance(group, str) or not group:
            raise Misuse(f"column group {group!r}: expected a tuple of at least one column name")
        for name in group:
            if name not in number:
                raise Misuse(f'column group names "{name}", which is not a column')
            if name in seen:
                raise Misuse(f'column "{name}" is in two column groups')
            seen.add(name)
    missing = [name for name in names if name not in seen]
    if missing:
        raise Misuse(f'column "{missing[0]}" is in no column group')
    return tuple(tuple(sorted(group, key=number.__getitem__)) for group in groups)


def check_successor(old: Schema, new: Schema) -> None:
    """Raise `Misuse`, naming the column, unless batches of `old` can be read as batches of `new`."""
    if new.version != old.version + 1:
        raise Misuse(f"schema version {new.version} does not follow version {old.version}")
    for i, field in enumerate(old.arrow):
        found = new.arrow.field(i).name if i < len(new.arrow) else "nothing"
        if found != field.name:
            raise Misuse(
                f'column "{field.name}": stands at place {i + 1} in version {old.version}, where version'
                f' {new.version} has "{found}"; columns are never renamed, reordered or removed',
                hint="an incompatible change is a new topic",
            )
        _check_widened(field, new.arrow.field(i), field.name)
    for field in list(new.arrow)[len(old.arrow) :]:
        if not field.nullable:
            raise Misuse(f'column "{field.name}": is added, so it must be nullable: older records have no value for it')
    _check_groups(old, new)


def _check_widened(old: Any, new: Any, where: str) -> None:
    if old.nullable != new.nullable:
        raise Misuse(f'column "{where}": was {_nullability(old)} and cannot become {_nullability(new)}')
    was, is_ = old.type, new.type
    if was == is_:
        return
    nested = kind_name(was) in ("list", "struct") and kind_name(was) == kind_name(is_)
    if nested and was.num_fields == is_.num_fields:
        for i in range(was.num_fields):
            if was.field(i).name != is_.field(i).name:
                raise Misuse(f'column "{where}": field "{was.field(i).name}" cannot become "{is_.field(i).name}"')
            _check_widened(was.field(i), is_.field(i), f"{where}.{was.field(i).name}")
        return
    wider = _WIDER.get(kind_name(was))
    while wider is not None and wider != kind_name(is_):
        wider = _WIDER.get(wider)
    if wider is None:
        raise Misuse(
            f'column "{where}": {schema_text.show_type(was)} cannot become {schema_text.show_type(is_)}',
            hint="numbers may be widened (int8 to int64, float32 to float64); else add a new column",
        )


def _nullability(field: Any) -> str:
    return "nullable" if field.nullable else "not null"


def _check_groups(old: Schema, new: Schema) -> None:
    if len(new.groups) < len(old.groups):
        raise Misuse(
            f"version {new.version} has {len(new.groups)} column groups, version {old.version} has {len(old.groups)}"
        )
    for before, after in zip(old.groups, new.groups, strict=False):
        for name in before:
            if name not in after:
                raise Misuse(f'column "{name}": changes its column group; its locks were chosen when it was sealed')
    known = set(old.arrow.names)
    for after in new.groups[len(old.groups) :]:
        for name in after:
            if name in known:
                raise Misuse(f'column "{name}": moves to a new column group')


def upgrade(batch: Any, schema_from: Schema, schema_to: Schema) -> Any:
    """`batch` (a `pa.RecordBatch` of `schema_from`) as one of `schema_to`: numbers widened, nulls for new
    columns.

    The two are versions of one topic, each step between them having passed `check_successor`. Either may be
    reduced to the same groups by `only`.
    """
    columns = []
    for field in schema_to.arrow:
        i = schema_from.arrow.get_field_index(field.name)
        if i < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        elif schema_from.arrow.field(i).type == field.type:
            columns.append(batch.column(i))
        else:
            columns.append(batch.column(i).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema_to.arrow)
