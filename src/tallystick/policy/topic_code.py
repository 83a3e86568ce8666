"""The code of a topic: how its owner divides its content into subspaces, so that parcels can be labelled with them.

A publisher sorts the rows of a batch by subspace and seals neighbours together: a parcel of few subspaces is of use to
few interests, and whoever wants others need not fetch it. A parcel is described by every string that covers one of its
rows (subspaces.py), an interest by the strings that cover it; who shares none cannot match. *Joint*: one code over all
dimensions. *Each*: a code for every dimension, and under each of them a string must be shared.

Invariant: never a false negative. Rows of more subspaces than a parcel may name are described by nothing, and what is
described by nothing goes to everybody. A code is bound to the types of its columns when it is declared: where a schema
has widened one since, `fits` says no, and nothing is labelled by it any more.

Unkeyed here: `tallystick.parcel.labels` puts keys on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse
from tallystick.later import np
from tallystick.policy.attribute import Attribute, AttributeKind, Value
from tallystick.policy.content import content_space
from tallystick.policy.formula import Formula
from tallystick.policy.subspaces import BITS_MAX as DIMENSION_BITS_MAX
from tallystick.policy.subspaces import Cells, Dimension, GridSettings, SubspaceCode

VERSION_MAX = 255  # one byte of a label
BITS_MAX = 24  # of all dimensions together
NUMBER_MAX = 64  # labels of a header
NUMBER = 24  # labels of a parcel, where the owner does not say: some 300 bytes of header
ROWS_MIN = 256  # a parcel of fewer is joined with its neighbour: a header costs as much as some dozen rows
GROUPS_MAX = 16  # parcels that a batch becomes at most, or one for each ROWS_MIN rows where that is more
_KNOWN_MAX = 65_536  # places whose subspaces are remembered, some 100 MB

_READ: dict[AttributeKind, Callable[[str], Value]] = {AttributeKind.REAL: float, AttributeKind.DATE: str}

Subspace = tuple[int, str]  # number of the code, string

_TEXT = re.compile(r"([^:]+):([0-9]{1,3})(?::(.+)\.\.(.+))?")


@dataclass(frozen=True)
class TopicCode:
    """Without dimensions: the topic has no labels."""

    dimensions: tuple[Dimension, ...]
    each: bool = False
    number: int = NUMBER  # of labels of a parcel, padded to it
    version: int = 0

    def __post_init__(self) -> None:
        names = [one.attribute.name for one in self.dimensions]
        if len(set(names)) != len(names):
            raise Misuse("code: a column stands in it twice")
        bits = sum(one.bits for one in self.dimensions)
        if bits > BITS_MAX:
            raise Misuse(f"code: at most {BITS_MAX} bits together expected, found {bits}")
        if not bits <= self.number <= NUMBER_MAX:
            raise Misuse(f"code: {max(bits, 1)} to {NUMBER_MAX} labels a parcel expected, found {self.number}")
        if not 0 <= self.version <= VERSION_MAX:
            raise Misuse(f"code: its version is at most {VERSION_MAX}")

    @classmethod
    def read(cls, texts: Iterable[str], schema: Any, *, each: bool = False, number: int = NUMBER) -> TopicCode:
        """The code that texts such as `speed:4:0..250` (column, bits, range) mean over an Arrow schema's columns."""
        space = content_space(schema)
        dimensions = []
        for text in texts:
            found = _TEXT.fullmatch(text)
            if found is None:
                raise Misuse(
                    f'code: "{text}" is not column:bits or column:bits:low..high', hint="such as speed:4:0..250"
                )
            attribute = space.resolve(found[1])
            ends = [None if end is None else _value(attribute, end) for end in found.group(3, 4)]
            dimensions.append(Dimension.of(attribute, int(found[2]), *ends))
        return cls(tuple(dimensions), each, number)

    def show(self) -> list[str]:
        """The texts that `read` takes."""
        return [
            f"{one.attribute.name}:{one.bits}"
            + ("" if one.attribute.is_text else f":{one.attribute.show(one.low)}..{one.attribute.show(one.high)}")
            for one in self.dimensions
        ]

    def encode(self) -> bytes:
        dimensions = [[one.attribute.fields(), one.bits, one.low, one.high] for one in self.dimensions]
        return wire.encode([1, self.version, self.number, self.each, dimensions])

    @classmethod
    def decode(cls, data: bytes) -> TopicCode:
        """Raises `Malformed`."""
        value = wire.decode(data, "topic code")
        types = [int, int, int, bool, list]
        if not isinstance(value, list) or [type(part) for part in value] != types or value[0] != 1:
            raise Malformed("topic code: expected [1, version, number, each, dimensions]")
        _, version, number, each, dimensions = value
        try:
            return cls(tuple(_dimension(item) for item in dimensions), each, number, version)
        except Misuse as error:
            raise Malformed(str(error)) from error

    def fits(self, schema: Any) -> bool:
        """Whether columns of an Arrow schema have the types that the code was declared over."""
        known = {one.name: one for one in content_space(schema).attributes}
        return all(known.get(one.attribute.name) == one.attribute for one in self.dimensions)

    # ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def group(self, columns: Mapping[str, Any]) -> list[Cells]:
        """The rows of a batch by subspace: the places of each parcel's rows, in the batch's order."""
        places = self._places(columns)
        order = np.argsort(places, kind="stable")
        found, firsts = np.unique(places[order], return_index=True)
        groups = self._joined(found.tolist(), [*firsts.tolist(), len(order)])
        most = max(GROUPS_MAX, len(order) // ROWS_MIN)
        if len(groups) > most:  # what is left over is sealed together, and described by nothing
            groups.sort(key=lambda ends: ends[0] - ends[1])
            rest = np.concatenate([order[first:end] for first, end in groups[most - 1 :]])
            return [*(np.sort(order[first:end]) for first, end in groups[: most - 1]), np.sort(rest)]
        return [np.sort(order[first:end]) for first, end in groups]

    def _joined(self, places: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
        """Neighbours together while they are few, and one parcel can name their subspaces."""
        groups: list[tuple[int, int]] = []
        held: frozenset[Subspace] = frozenset()
        for number, place in enumerate(places):
            subspaces = self._subspaces(place)
            if groups and groups[-1][1] - groups[-1][0] < ROWS_MIN and len(held | subspaces) <= self.number:
                groups[-1] = (groups[-1][0], ends[number + 1])
                held |= subspaces
            else:
                groups.append((ends[number], ends[number + 1]))
                held = subspaces
        return groups

    def describe(self, columns: Mapping[str, Any]) -> frozenset[Subspace]:
        """Every string that covers one of the rows, empty where they are too many for a parcel to name."""
        found: set[Subspace] = set()
        for place in np.unique(self._places(columns)).tolist():
            found |= self._subspaces(place)
            if len(found) > self.number:
                return frozenset()
        return frozenset(found)

    def _places(self, columns: Mapping[str, Any]) -> Cells:
        """Where each row lies: its strings under all codes behind one another, as a number."""
        places = np.zeros(len(columns[self.dimensions[0].attribute.name]), np.int64)
        for code in self.codes:
            places = places << code.length | code.codes(columns)
        return places

    def _subspaces(self, place: int) -> frozenset[Subspace]:
        return _covering(self._lengths, place)

    # ── Interests ────────────────────────────────────────────────────────────────────────────────────────────────

    def covers(self, interest: Formula, strings_max: int, false_positives_max: float) -> dict[int, frozenset[str]]:
        """For each code that can tell anything about the interest the strings that cover it, `strings_max` in all."""
        telling = [code for code in self.codes if "" not in code.cover(interest).strings]
        settings = GridSettings(BITS_MAX, strings_max // max(len(telling), 1), false_positives_max)
        covers = {
            number: SubspaceCode(code.dimensions, settings).cover(interest).strings
            for number, code in enumerate(self.codes)
            if code in telling
        }
        return {number: strings for number, strings in covers.items() if "" not in strings}

    @cached_property
    def codes(self) -> tuple[SubspaceCode, ...]:
        parts = [[one] for one in self.dimensions] if self.each else [self.dimensions]
        return tuple(SubspaceCode(part, GridSettings(length_max=BITS_MAX)) for part in parts if part)

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(code.length for code in self.codes)


@lru_cache(_KNOWN_MAX)
def _covering(lengths: tuple[int, ...], place: int) -> frozenset[Subspace]:
    """Every string that covers a place, under codes of these lengths."""
    bits, at, found = format(place, f"0{sum(lengths)}b"), 0, []
    for number, length in enumerate(lengths):
        found += [(number, bits[at : at + end]) for end in range(1, length + 1)]
        at += length
    return frozenset(found)


def _value(attribute: Attribute, text: str) -> Value:
    try:
        return _READ.get(attribute.kind, int)(text)
    except ValueError:
        raise Misuse(f'code: "{text}" is no value of column "{attribute.name}"') from None


def _dimension(item: Any) -> Dimension:
    if not isinstance(item, list) or [type(part) for part in item] != [list, int, int, int]:
        raise Malformed("topic code: a dimension is [attribute, bits, low, high]")
    attribute, (bits, low, high) = Attribute.of_fields(item[0]), item[1:]
    is_range = (low, high) == (0, 0) if attribute.is_text else 0 <= low < high <= attribute.top
    if attribute.many or not 1 <= bits <= DIMENSION_BITS_MAX or not is_range:
        raise Malformed(f'topic code: the cells of "{attribute.name}" make no sense')
    return Dimension(attribute, bits, low, high)
