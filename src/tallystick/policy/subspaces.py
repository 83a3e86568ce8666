"""Subspaces of content as bit strings: what routing labels are keyed pseudonyms of.

PLEROMA (thesis 5.1.2, Figs 8 and 9): the space of all events is halved again and again, the attributes taking turns; a
string of bits names the half taken each time, and a shorter string covers every longer one that begins with it. An
event has one string, an interest a set of strings that covers it. *Joint*: one string over several attributes (Figs 8
and 9b), which can follow any formula but needs many strings for a box of several sides. *Per attribute*: a string for
each, all of which must be covered (Fig. 9a); few strings, exact for a box, blind to an OR over several attributes.

Invariant: never a false negative. An event that satisfies an interest has a string that begins with one of the
interest's. It rests on two things: values are mapped to cells in order, so that a box of cells is a box of values; and
formulas are monotone, so that an event that lacks an attribute may be given any cell of it.

The price is false positives: strings are finite, and an interest has at most `cells_max` of them. A setting bounds
them: halving goes on until at most `false_positives_max` of the covered volume is not certainly wanted, or until a
limit is reached; `Cover.false_positives` says what came out. Volume counts cells as equally likely; what truly happens
hangs on the data and is measured in `experiments/thesis`. Unkeyed here: keys are put on in `tallystick.parcel`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

from tallystick.errors import Misuse
from tallystick.later import np, pa, pc
from tallystick.policy.attribute import Attribute, AttributeKind, Value, real_of, real_ordinal
from tallystick.policy.formula import Formula, Leaf, Node, OneOf, decide
from tallystick.policy.space import AttributeSet

BITS_MAX = 16  # of one dimension

Cells: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True)
class GridSettings:
    length_max: int = 24  # bits of a string
    cells_max: int = 48  # strings of an interest; a permit carries 64 labels
    false_positives_max: float = 0.1  # share of the covered volume


@dataclass(frozen=True)
class Dimension:
    """An attribute and the cells that its values fall into: 2**bits, equally wide between `low` and `high`.

    Values beyond fall into the first or last cell. A category has a cell for each value if the bits suffice; strings
    fall where their hash falls.
    """

    attribute: Attribute
    bits: int
    low: int = 0  # ordinals
    high: int = 0

    @classmethod
    def of(cls, attribute: Attribute, bits: int, low: Value | None = None, high: Value | None = None) -> Dimension:
        """The cells between two values, or over all values of the attribute. Raises `Misuse`."""
        if attribute.many:
            raise Misuse(f'attribute "{attribute.name}" may hold many values, and an event has one place')
        if not 1 <= bits <= BITS_MAX:
            raise Misuse(f'attribute "{attribute.name}": expected 1 to {BITS_MAX} bits of subspace, found {bits}')
        if attribute.is_text:
            return cls(attribute, bits)
        if attribute.kind is AttributeKind.REAL and (low is None or high is None):
            raise Misuse(f'attribute "{attribute.name}": the cells of a real number need a range')
        ends = (
            0 if low is None else attribute.ordinal(low),
            attribute.top if high is None else attribute.ordinal(high),
        )
        if ends[0] >= ends[1]:
            raise Misuse(f'attribute "{attribute.name}": the range of its cells is empty')
        return cls(attribute, bits, *ends)

    @cached_property
    def edges(self) -> list[int]:
        """The least ordinal of every cell; they never fall. Cells of reals are equally wide in value."""
        count, low, high = 1 << self.bits, self.low, self.high
        if self.attribute.kind is AttributeKind.REAL:
            first, last = real_of(low), real_of(high)
            inner = [real_ordinal(first + cell * ((last - first) / count)) for cell in range(1, count)]
        else:
            inner = [low + -(-cell * (high - low + 1) // count) for cell in range(1, count)]
        return [0, *inner]

    def cell(self, value: int | str) -> int:
        """Never falls where an ordinal rises."""
        if not isinstance(value, str):
            return bisect_right(self.edges, value) - 1
        if self.attribute.values:
            return (
                self.attribute.values.index(value) * (1 << self.bits) // max(len(self.attribute.values), 1 << self.bits)
            )
        return int.from_bytes(sha256(value.encode()).digest()[:4], "big") >> 32 - self.bits

    def cells(self, column: Any) -> Cells:
        """As `cell`, for a column of values (Arrow, or a list); what satisfies no comparison (a null, a NaN) may lie
        anywhere, and lies first."""
        column = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count == len(column):
            return np.zeros(len(column), np.int64)
        if self.attribute.is_text:
            return self._text_cells(column)
        absent = column.is_null().to_numpy(zero_copy_only=False)
        if self.attribute.kind is AttributeKind.DATE:
            column = column.cast(pa.int32())
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        cells: Cells = np.searchsorted(self._inner(values.dtype.kind), values, "right").astype(np.int64, copy=False)
        if self.attribute.kind is AttributeKind.REAL:
            absent = absent | np.isnan(values)
        cells[absent] = 0
        return cells

    def _inner(self, kind: str) -> Any:
        """The edges between cells as numbers that compare with a column's."""
        if kind not in self._inner_edges:
            if self.attribute.kind is AttributeKind.REAL:
                found = np.array([real_of(edge) for edge in self.edges[1:]])
            else:
                least = self.attribute.least
                found = np.array([edge + least for edge in self.edges[1:]], np.uint64 if kind == "u" else np.int64)
            self._inner_edges[kind] = found
        return self._inner_edges[kind]

    @cached_property
    def _inner_edges(self) -> dict[str, Any]:
        return {}

    def _text_cells(self, column: Any) -> Cells:
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        known = self.attribute.values
        texts = column.dictionary.to_pylist()
        cells = [self.cell(one) if one is not None and (not known or one in known) else 0 for one in texts]
        places = pc.fill_null(column.indices.cast(pa.int64()), len(cells)).to_numpy(zero_copy_only=False)
        found: Cells = np.array([*cells, 0], np.int64)[places]
        return found

    def decide(self, leaf: Leaf, first: int, last: int) -> bool | None:
        """Whether all events in the cells from `first` to `last` satisfy the leaf (True), none (False), or some."""
        if isinstance(leaf, OneOf):
            return self._decide_text(leaf, first, last)
        least = self.edges[first]
        most = self.edges[last + 1] - 1 if last + 1 < 1 << self.bits else self.attribute.top
        if any(low <= least and most <= high for low, high in leaf.intervals):
            return True
        return None if any(low <= most and least <= high for low, high in leaf.intervals) else False

    def _decide_text(self, leaf: OneOf, first: int, last: int) -> bool | None:
        if not any(first <= self.cell(value) <= last for value in leaf.values):
            return False
        inside = [value for value in self.attribute.values if first <= self.cell(value) <= last]
        return True if inside and set(inside) <= set(leaf.values) else None


@dataclass(frozen=True)
class Cover:
    strings: frozenset[str]
    false_positives: float  # at most this share of the covered volume is not wanted


class SubspaceCode:
    """One code over some dimensions, which take turns while they have bits left."""

    def __init__(self, dimensions: Sequence[Dimension], settings: GridSettings | None = None) -> None:
        self.settings = settings or GridSettings()
        self.dimensions = tuple(dimensions)
        # Of each bit of a string: the number of its dimension, and which bit of the cell it is.
        rounds = range(max((one.bits for one in dimensions), default=0))
        numbered = list(enumerate(dimensions))
        turns = [(number, one.bits - 1 - turn) for turn in rounds for number, one in numbered if turn < one.bits]
        self._turns = turns[: self.settings.length_max]
        self._numbers = {one.attribute.name: number for number, one in enumerate(dimensions)}

    @property
    def length(self) -> int:
        return len(self._turns)

    def string(self, event: AttributeSet) -> str:
        """Where an event lies; an attribute that it lacks may lie anywhere, and lies first."""
        held = dict(event.values)
        code = self._interleaved([_event_cell(one, held.get(one.attribute.name)) for one in self.dimensions])
        return format(code, f"0{self.length}b") if self._turns else ""

    def codes(self, columns: Mapping[str, Any]) -> Cells:
        """The strings of many events as numbers of `length` bits, from columns of values.

        For a publisher that groups rows by subspace while it batches.
        """
        codes: Cells = self._interleaved([one.cells(columns[one.attribute.name]) for one in self.dimensions])
        return codes

    def _interleaved(self, cells: Sequence[Any]) -> Any:
        """The bits of the cells, in turns; of one event, or of many at once."""
        code: Any = 0
        for number, shift in self._turns:
            code = code << 1 | (cells[number] >> shift & 1)
        return code

    def cover(self, interest: Formula) -> Cover:
        """Strings that cover every event which can satisfy `interest`, the largest undecided one halved first."""
        kept: list[str] = []
        undecided: deque[str] = deque()  # in the order of their lengths
        wanted = doubtful = 0.0

        def sort(string: str) -> None:
            nonlocal wanted, doubtful
            box, volume = self._box(string), 2.0 ** -len(string)
            possible = self.possible(interest, string)
            if possible is False:
                return
            if possible is None and len(string) < self.length:
                undecided.append(string)
            else:  # halving would tell nothing more
                kept.append(string)
            if possible and self._decide(interest.root, box, otherwise=None):
                wanted += volume
            else:
                doubtful += volume

        sort("")
        while undecided and doubtful > self.settings.false_positives_max * (wanted + doubtful):
            if len(kept) + len(undecided) + 1 > self.settings.cells_max:
                break
            string = undecided.popleft()
            doubtful -= 2.0 ** -len(string)
            sort(string + "0")
            sort(string + "1")
        share = doubtful / (wanted + doubtful) if doubtful else 0.0
        return Cover(frozenset((*kept, *undecided)), share)

    def possible(self, interest: Formula, string: str) -> bool | None:
        """Whether an event that a string covers can satisfy an interest: all that this code can tell of (True), none
        (False), or some (None), so that halving the string tells more."""
        return self._decide(interest.root, self._box(string), otherwise=True)

    def _box(self, string: str) -> list[tuple[int, int]]:
        """The cells of each dimension that a string names."""
        lows, widths = [0 for _ in self.dimensions], [1 << one.bits for one in self.dimensions]
        for (number, shift), bit in zip(self._turns, string, strict=False):
            lows[number] |= int(bit) << shift
            widths[number] = 1 << shift
        return [(low, low + width - 1) for low, width in zip(lows, widths, strict=True)]

    def _decide(self, root: Node, box: Sequence[tuple[int, int]], *, otherwise: bool | None) -> bool | None:
        """For all events in a box; `otherwise` is the value of a leaf whose attribute has no dimension here."""

        def decide_leaf(leaf: Leaf) -> bool | None:
            number = self._numbers.get(leaf.attribute)
            return otherwise if number is None else self.dimensions[number].decide(leaf, *box[number])

        return decide(root, decide_leaf)


def codes_for_each(dimensions: Sequence[Dimension], settings: GridSettings | None = None) -> dict[str, SubspaceCode]:
    """Per attribute: an event matches if under every code its string lies in the interest's cover."""
    return {one.attribute.name: SubspaceCode([one], settings) for one in dimensions}


def begins_in(string: str, cover: Cover) -> bool:
    """Whether a string lies in a cover."""
    return any(prefix in cover.strings for prefix in prefixes(string))


def prefixes(string: str) -> Iterator[str]:
    """Every string that covers this one: what a publisher labels, so that a node need only compare for equality."""
    return (string[:length] for length in range(len(string) + 1))


def _event_cell(dimension: Dimension, value: int | tuple[str, ...] | None) -> int:
    if value is None:
        return 0
    return dimension.cell(value[0] if isinstance(value, tuple) else value)
