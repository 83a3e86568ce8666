"""From columns to hashed leaves: the compiled twin of `leaves.encode_rows`, followed by SHA-256.

A leaf message is 0x00 ‖ salt ‖ row, padded for SHA-256. The kernel works on a few rows at a time so that their
messages never leave the first cache: it sums the lengths, lays the messages out, then writes column after
column at each row's cursor. While columns of fixed width without nulls follow one another, the cursors stay
and only a common `shift` grows. Lists and structs are written value by value, recursively.

Memory safety: the kernel reads addresses out of the Arrow C data interface and believes them, offsets
included. It may be called only with the export of a `Batch`, which passed `validate(full=True)`. It reads no
byte beyond a value's end, since a buffer may end at a page's end. Writing up to seven bytes too far is
harmless: at least nine bytes of padding follow, and padding is written last.
"""

from __future__ import annotations

from typing import NamedTuple

from tallystick.kernels.jit import compiled
from tallystick.kernels.memory import (
    copy1,
    copy2,
    copy4,
    copy8,
    copy16,
    load1,
    load4,
    load8,
    store1,
    store4,
    store8,
    store8_big,
)
from tallystick.kernels.sha256_lanes import DIGEST_BYTES, digest_messages, merkle_root

# How values are written: a positive kind is a fixed width in bytes.
BOOL = 0
PREFIXED = -1  # u32 length, then the bytes
LIST = -2
STRUCT = -3

ROWS_AT_ONCE = 128
SALT_BYTES = 16
HEAD_BYTES = 1 + SALT_BYTES  # 0x00 and the salt

# A schema's plan: for each column, then for what is nested in them, level by level, so that siblings are
# neighbours: kind, place of the first child, number of children.
PLAN_BYTES = 24
# The nodes of a batch, in the same order: data, offsets, validity (0: no nulls) as addresses; the array's
# offset; kind; address of the first child's node; number of children; address of the exported array.
DATA, OFFSETS, VALIDITY, SHIFT, KIND, CHILD, CHILDREN, ARRAY, NODE_BYTES = range(0, 72, 8)


class Places(NamedTuple):
    """The addresses of the scratch memory in which a batch is hashed."""

    columns: int  # the nodes of a batch
    messages: int
    room: int  # bytes for messages
    starts: int  # of messages: this and the next two for ROWS_AT_ONCE
    blocks: int
    cursors: int
    spare: int  # SPARE_BYTES


# struct ArrowArray of the C data interface.
_NULL_COUNT, _OFFSET, _N_BUFFERS, _BUFFERS, _CHILDREN = 8, 16, 24, 40, 48


@compiled(nogil=True, boundscheck=False)
def adopt(array: int, nodes: int, count: int) -> None:
    """Tell `count` nodes which exported arrays they stand for: the children of `array`."""
    children = load8(array + _CHILDREN)
    for c in range(count):
        store8(nodes + NODE_BYTES * c + ARRAY, load8(children + 8 * c))


@compiled(nogil=True, boundscheck=False)
def describe(array: int, plan: int, size: int, nodes: int, width: int) -> None:
    """Fill the nodes of all columns, and of what is nested in them, from the batch exported at `array`."""
    adopt(array, nodes, width)
    for i in range(size):
        node = nodes + NODE_BYTES * i
        child = load8(node + ARRAY)
        buffers = load8(child + _BUFFERS)
        count = load8(child + _N_BUFFERS)
        store8(node + DATA, load8(buffers + 8 * (count - 1)))
        store8(node + OFFSETS, load8(buffers + 8) if count > 1 else 0)
        store8(node + VALIDITY, load8(buffers) if load8(child + _NULL_COUNT) != 0 else 0)
        store8(node + SHIFT, load8(child + _OFFSET))
        store8(node + KIND, load8(plan + PLAN_BYTES * i))
        store8(node + CHILD, nodes + NODE_BYTES * load8(plan + PLAN_BYTES * i + 8))
        store8(node + CHILDREN, load8(plan + PLAN_BYTES * i + 16))
        adopt(child, load8(node + CHILD), load8(node + CHILDREN))


@compiled(nogil=True, boundscheck=False)
def is_set(bitmap: int, i: int) -> int:
    return (load1(bitmap + (i >> 3)) >> (i & 7)) & 1


@compiled(nogil=True, boundscheck=False)
def is_present(node: int, index: int) -> int:
    validity = load8(node + VALIDITY)
    return 1 if validity == 0 else is_set(validity, load8(node + SHIFT) + index)


@compiled(nogil=True, boundscheck=False)
def write_plain(kind: int, data: int, at: int, to: int) -> None:
    if kind == 8:
        copy8(to, data + 8 * at)
    elif kind == 4:
        copy4(to, data + 4 * at)
    elif kind == 2:
        copy2(to, data + 2 * at)
    elif kind == 1:
        copy1(to, data + at)
    elif kind == 16:
        copy16(to, data + 16 * at)
    else:
        store1(to, is_set(data, at))


@compiled(nogil=True, boundscheck=False)
def copy_bytes(to: int, source: int, size: int) -> None:
    """The last words overlap instead of reaching beyond the value's end."""
    if size >= 8:
        done = 0
        while done + 8 <= size:
            copy8(to + done, source + done)
            done += 8
        copy8(to + size - 8, source + size - 8)
    elif size >= 4:
        copy4(to, source)
        copy4(to + size - 4, source + size - 4)
    else:
        for i in range(size):
            copy1(to + i, source + i)


@compiled(nogil=True, boundscheck=False)
def clear(bitmap: int, size: int) -> None:
    for i in range(size):
        store1(bitmap + i, 0)


@compiled(nogil=True, boundscheck=False)
def mark(bitmap: int, i: int) -> None:
    store1(bitmap + (i >> 3), load1(bitmap + (i >> 3)) | (1 << (i & 7)))


@compiled(nogil=True, boundscheck=False)
def value_bytes(node: int, index: int) -> int:
    """The bytes that one present value takes, nested ones included."""
    kind = load8(node + KIND)
    if kind >= 0:
        return max(kind, 1)
    at = load8(node + SHIFT) + index
    child = load8(node + CHILD)
    if kind == STRUCT:
        count = load8(node + CHILDREN)
        total = (count + 7) >> 3
        for c in range(count):
            if is_present(child + NODE_BYTES * c, at) != 0:
                total += value_bytes(child + NODE_BYTES * c, at)
        return total
    offsets = load8(node + OFFSETS) + 4 * at
    first, end = load4(offsets), load4(offsets + 4)
    if kind == PREFIXED:
        return 4 + end - first
    total = 4 + ((end - first + 7) >> 3)
    for i in range(first, end):
        if is_present(child, i) != 0:
            total += value_bytes(child, i)
    return total


@compiled(nogil=True, boundscheck=False)
def write_value(node: int, index: int, to: int) -> int:
    """Write one present value at `to`, nested ones included; returns where it ends."""
    kind = load8(node + KIND)
    at = load8(node + SHIFT) + index
    if kind >= 0:
        write_plain(kind, load8(node + DATA), at, to)
        return to + max(kind, 1)
    child = load8(node + CHILD)
    if kind == STRUCT:
        count = load8(node + CHILDREN)
        bitmap = to
        clear(bitmap, (count + 7) >> 3)
        to += (count + 7) >> 3
        for c in range(count):
            if is_present(child + NODE_BYTES * c, at) != 0:
                mark(bitmap, c)
                to = write_value(child + NODE_BYTES * c, at, to)
        return to
    offsets = load8(node + OFFSETS) + 4 * at
    first = load4(offsets)
    count = load4(offsets + 4) - first
    store4(to, count)
    to += 4
    if kind == PREFIXED:
        copy_bytes(to, load8(node + DATA) + first, count)
        return to + count
    bitmap = to
    clear(bitmap, (count + 7) >> 3)
    to += (count + 7) >> 3
    for i in range(count):
        if is_present(child, first + i) != 0:
            mark(bitmap, i)
            to = write_value(child, first + i, to)
    return to


@compiled(nogil=True, boundscheck=False)
def add_lengths(column: int, first: int, count: int, cursors: int) -> None:
    """Add to each row's cursor what this column takes there, unless that is the same for every row."""
    kind = load8(column + KIND)
    validity = load8(column + VALIDITY)
    at = load8(column + SHIFT) + first
    if kind < PREFIXED:
        for i in range(count):
            if is_present(column, first + i) != 0:
                size = value_bytes(column, first + i)
                store8(cursors + 8 * i, load8(cursors + 8 * i) + size)
    elif kind == PREFIXED:
        offsets = load8(column + OFFSETS) + 4 * at
        for i in range(count):
            if validity == 0 or is_set(validity, at + i) != 0:
                size = 4 + load4(offsets + 4 * i + 4) - load4(offsets + 4 * i)
                store8(cursors + 8 * i, load8(cursors + 8 * i) + size)
    elif validity != 0:
        size = max(kind, 1)
        for i in range(count):
            store8(cursors + 8 * i, load8(cursors + 8 * i) + size * is_set(validity, at + i))


@compiled(nogil=True, boundscheck=False)
def write_bitmaps(columns: int, width: int, first: int, count: int, starts: int) -> None:
    for byte in range((width + 7) // 8):
        low, high = 8 * byte, min(width, 8 * byte + 8)
        always = 0
        for c in range(low, high):
            if load8(columns + NODE_BYTES * c + VALIDITY) == 0:
                always |= 1 << (c - low)
        for i in range(count):
            bits = always
            if always != (1 << (high - low)) - 1:
                for c in range(low, high):
                    column = columns + NODE_BYTES * c
                    validity = load8(column + VALIDITY)
                    if validity != 0:
                        bits |= is_set(validity, load8(column + SHIFT) + first + i) << (c - low)
            store1(load8(starts + 8 * i) + HEAD_BYTES + byte, bits)


@compiled(nogil=True, boundscheck=False)
def write_bytes(column: int, first: int, count: int, cursors: int, shift: int) -> None:
    """A column of byte strings: moves the cursors beyond `shift` and the value."""
    data, validity = load8(column + DATA), load8(column + VALIDITY)
    at = load8(column + SHIFT) + first
    offsets = load8(column + OFFSETS) + 4 * at
    for i in range(count):
        to = load8(cursors + 8 * i) + shift
        if validity == 0 or is_set(validity, at + i) != 0:
            begin = load4(offsets + 4 * i)
            size = load4(offsets + 4 * i + 4) - begin
            store4(to, size)
            copy_bytes(to + 4, data + begin, size)
            to += 4 + size
        store8(cursors + 8 * i, to)


@compiled(nogil=True, boundscheck=False)
def write_nested(column: int, first: int, count: int, cursors: int, shift: int) -> None:
    """A column of lists or structs: moves the cursors beyond `shift` and the value."""
    for i in range(count):
        to = load8(cursors + 8 * i) + shift
        if is_present(column, first + i) != 0:
            to = write_value(column, first + i, to)
        store8(cursors + 8 * i, to)


@compiled(nogil=True, boundscheck=False)
def write_optional(kind: int, column: int, first: int, count: int, cursors: int, shift: int) -> None:
    """A column of fixed width with nulls: moves the cursors beyond `shift` and, where present, the value."""
    data, validity = load8(column + DATA), load8(column + VALIDITY)
    at = load8(column + SHIFT) + first
    for i in range(count):
        to = load8(cursors + 8 * i) + shift
        if is_set(validity, at + i) != 0:
            write_plain(kind, data, at + i, to)
            to += max(kind, 1)
        store8(cursors + 8 * i, to)


@compiled(nogil=True, boundscheck=False)
def write_fixed(kind: int, column: int, first: int, count: int, cursors: int, shift: int) -> None:
    """A column of fixed width without nulls: the cursors stay where they are."""
    at = load8(column + SHIFT) + first
    data = load8(column + DATA)
    source = data + kind * at
    if kind == 8:
        for i in range(count):
            copy8(load8(cursors + 8 * i) + shift, source + 8 * i)
    elif kind == 4:
        for i in range(count):
            copy4(load8(cursors + 8 * i) + shift, source + 4 * i)
    elif kind == 2:
        for i in range(count):
            copy2(load8(cursors + 8 * i) + shift, source + 2 * i)
    elif kind == 1:
        for i in range(count):
            copy1(load8(cursors + 8 * i) + shift, source + i)
    elif kind == 16:
        for i in range(count):
            copy16(load8(cursors + 8 * i) + shift, source + 16 * i)
    else:
        for i in range(count):
            store1(load8(cursors + 8 * i) + shift, is_set(data, at + i))


@compiled(nogil=True, boundscheck=False)
def lay_out(lengths: int, count: int, messages: int, room: int, starts: int, blocks: int) -> int:
    """Place the messages one after another; returns the bytes needed when they exceed `room`, else 0."""
    used = 0
    for i in range(count):
        number = (load8(lengths + 8 * i) + 1 + 8 + 63) >> 6
        store8(starts + 8 * i, messages + used)
        store4(blocks + 4 * i, number)
        used += number << 6
    return used if used > room else 0


@compiled(nogil=True, boundscheck=False)
def encode_leaves(places: Places, width: int, first: int, count: int, salts: int) -> int:
    """The padded leaf messages of `count` rows from `first`; returns the room needed if there was too little."""
    columns, starts, blocks, cursors = places.columns, places.starts, places.blocks, places.cursors
    row_start = HEAD_BYTES + (width + 7) // 8
    fixed = row_start
    for c in range(width):
        kind = load8(columns + NODE_BYTES * c + KIND)
        if kind >= 0 and load8(columns + NODE_BYTES * c + VALIDITY) == 0:
            fixed += max(kind, 1)
    for i in range(count):
        store8(cursors + 8 * i, fixed)
    for c in range(width):
        add_lengths(columns + NODE_BYTES * c, first, count, cursors)
    needed = lay_out(cursors, count, places.messages, places.room, starts, blocks)
    if needed != 0:
        return needed
    for i in range(count):
        start = load8(starts + 8 * i)
        store1(start, 0)
        copy16(start + 1, salts + SALT_BYTES * (first + i))
        store8(cursors + 8 * i, start + row_start)
    write_bitmaps(columns, width, first, count, starts)
    shift = 0
    for c in range(width):
        column = columns + NODE_BYTES * c
        kind = load8(column + KIND)
        if kind == PREFIXED:
            write_bytes(column, first, count, cursors, shift)
            shift = 0
        elif kind < PREFIXED:
            write_nested(column, first, count, cursors, shift)
            shift = 0
        elif load8(column + VALIDITY) != 0:
            write_optional(kind, column, first, count, cursors, shift)
            shift = 0
        else:
            write_fixed(kind, column, first, count, cursors, shift)
            shift += max(kind, 1)
    for i in range(count):
        start = load8(starts + 8 * i)
        end = load8(cursors + 8 * i) + shift
        last_word = start + (load4(blocks + 4 * i) << 6) - 8
        store8(end, 0x80)
        for word in range(end + 8, last_word, 8):
            store8(word, 0)
        store8_big(last_word, (end - start) * 8)
    return 0


@compiled(nogil=True, boundscheck=False)
def hash_batch(
    array: int,
    plan: int,
    size: int,
    width: int,
    rows: int,
    salts: int,
    places: Places,
    digests: int,
    transform: int,
    fold: bool,
) -> int:
    """Leaf digests of the batch exported at `array`, folded into their root if asked.

    Returns 0, or the room that the messages need when `room` is too small; the call is then repeated.
    `digests` has room for SPARE_DIGESTS more than `rows`.
    """
    describe(array, plan, size, places.columns, width)
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        needed = encode_leaves(places, width, first, count, salts)
        if needed != 0:
            return needed
        digest_messages(places.starts, places.blocks, count, digests + DIGEST_BYTES * first, places.spare, transform)
    if fold:
        merkle_root(digests, rows, places.spare, transform)
    return 0
