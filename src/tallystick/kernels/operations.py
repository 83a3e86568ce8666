"""The compiled loops over a transaction's entries: hashing them, reading the plain operations among them, chaining
those.

Everything here is a second way to what `transaction` and `contracts.operations` say in Python, for the one kind of
entry that comes by the hundred; `tests/ledger/test_runs.py` holds the two to the same results. Input is hostile: arrays
are bound-checked, and only the hash functions see addresses: of arrays that the caller in Python holds, since the
compiler frees an array after its last use by name. An operation is *plain* if it was accepted, carries no evidence, and
is written in the one encoding with every field in range; the reader says no to anything else, and leaves it to the
contract. So nothing is refused here.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallystick.kernels.jit import compiled
from tallystick.kernels.sha256_lanes import DIGEST_BYTES, digest_messages

Octets = NDArray[np.uint8]
Numbers = NDArray[np.int64]

BLOCK_BYTES = 64
LEAF_BYTES = 10  # around an entry: the mark of a leaf, and of the padding the bit 1 and the length
LINK_BYTES = 2 * BLOCK_BYTES  # ["history", chain, height, index, hash] takes 77 to 95 bytes: two blocks
_LINK_HEAD = np.frombuffer(b"\x85\x67history\x58\x20", np.uint8)
_OPERATION_HEAD = (0x8E, 0x18, 35)  # an array of fourteen, of which the first is the kind
_OPERATION_BYTES_MIN = 81  # with every number below 24 and no host
_FAILED = -1
_SPREAD = 0x9E3779B1  # so that partitions of one topic do not lie side by side


@compiled(nogil=True, boundscheck=True)
def lay_out_leaves(data: Octets, ends: Numbers, begins: Numbers, messages: Octets) -> None:
    """0x00 and each of the entries that lie end to end in `data`, padded, from its place in `messages` to the next."""
    begin = 0
    for i in range(len(ends)):
        size = ends[i] - begin
        messages[begins[i]] = 0
        _copy(messages, begins[i] + 1, data, begin, size)
        _pad(messages, begins[i], 1 + size, begins[i + 1])
        begin = ends[i]


@compiled(nogil=True, boundscheck=True)
def read_operations(data: Octets, ends: Numbers, partitions_max: int, host_max: int, count_max: int) -> Numbers:
    """A row for each entry: places of token and operator, count, partition; a place of −1 says that it is not plain."""
    found = np.full((len(ends), 4), _FAILED, np.int64)
    begin = 0
    for i in range(len(ends)):
        _read_operation(data, begin, ends[i], found[i], partitions_max, host_max, count_max)
        begin = ends[i]
    return found


@compiled(nogil=True, boundscheck=True)
def number_keys(data: Octets, places: Numbers, others: Numbers) -> tuple[Numbers, Numbers]:
    """Keys (sixteen bytes at a place of `data`, and another number) by order of first appearance, and where that was.

    Keys that were made to share a slot cost a search: 4,096 of them as much as that many operations otherwise do.
    """
    room = 8
    while room < 2 * len(places):
        room *= 2
    table, numbers, firsts = np.full(room, _FAILED, np.int64), np.empty(len(places), np.int64), np.empty_like(places)
    distinct = 0
    for i in range(len(places)):
        slot = np.int64(0)
        for k in range(8):  # any of them will do: they are hashes or random
            slot = slot << 8 | data[places[i] + k]
        slot = (slot ^ others[i] * _SPREAD) & room - 1
        while table[slot] != _FAILED and not _is_same(data, places, others, firsts[table[slot]], i):
            slot = slot + 1 & room - 1
        if table[slot] == _FAILED:
            table[slot] = distinct
            firsts[distinct] = i
            distinct += 1
        numbers[i] = table[slot]
    return numbers, firsts[:distinct]


@compiled(nogil=True, boundscheck=True)
def extend_chains(
    chains: Octets,
    order: Numbers,
    begins: Numbers,
    hashes: Octets,
    height: int,
    index: int,
    messages: Octets,
    digests: Octets,
    addresses: tuple[int, int, int, int],
    transform: int,
) -> None:
    """Extend every chain of history by its entries, which are `order[begins[c]:begins[c + 1]]` for chain c.

    Entry i stands at `index` + i of its block. Links of one chain follow one another, those of different chains are
    hashed side by side: the first link of every chain, then the second of those that have one, and so on.
    `addresses` are those of starts, blocks and digests of as many messages of LINK_BYTES, and of spare memory.
    """
    active = np.arange(len(begins) - 1)
    left, step = len(active), 0
    while left:
        for k in range(left):
            entry = order[begins[active[k]] + step]
            _lay_out_link(messages, LINK_BYTES * k, chains, active[k], height, index + entry, hashes, entry)
        digest_messages(addresses[0], addresses[1], left, addresses[2], addresses[3], transform)
        step += 1
        going_on = 0
        for k in range(left):
            chain = active[k]
            _copy(chains, DIGEST_BYTES * chain, digests, DIGEST_BYTES * k, DIGEST_BYTES)
            if begins[chain] + step < begins[chain + 1]:
                active[going_on] = chain
                going_on += 1
        left = going_on


@compiled(nogil=True, boundscheck=True)
def _read_operation(
    data: Octets, at: int, end: int, found: Numbers, partitions_max: int, host_max: int, count_max: int
) -> None:
    """[35, operator, role, token, operation, "", host, count, partition, first, end, time ms, request, b""]"""
    if end - at < _OPERATION_BYTES_MIN:
        return
    for byte in _OPERATION_HEAD:
        if data[at] != byte:
            return
        at += 1
    operator = _skip_octets(data, at, 16, end)
    role = operator + 16
    token = _skip_octets(data, role + 1, 16, end) if operator > 0 and data[role] <= 2 else _FAILED
    if token < 0 or token + 20 > end or not _is_somebody(data, operator):
        return
    kind, reason, at = data[token + 16], data[token + 17], token + 18
    if (kind != 1 and kind != 2 and kind != 4 and kind != 8) or reason != 0x60:
        return
    at = _skip_text(data, at, host_max, end)
    count, at = _number(data, at, end)
    partition, at = _number(data, at, end)
    first, at = _number(data, at, end)
    last, at = _number(data, at, end)
    time_ms, at = _number(data, at, end)
    at = _skip_octets(data, at, 32, end)
    if at < 0 or at + 33 != end or data[end - 1] != 0x40 or time_ms < 0:
        return
    if 0 < count <= count_max and 0 <= partition < partitions_max and 0 <= first <= last:
        found[0], found[1], found[2], found[3] = token, operator, count, partition


@compiled(nogil=True, boundscheck=True)
def _skip_octets(data: Octets, at: int, size: int, end: int) -> int:
    """Where the content of a byte string of exactly `size` (16 or 32) begins."""
    head = 1 if size < 24 else 2
    if at < 0 or at + head + size > end:
        return _FAILED
    if head == 1:
        return at + 1 if data[at] == 0x40 | size else _FAILED
    return at + 2 if data[at] == 0x58 and data[at + 1] == size else _FAILED


@compiled(nogil=True, boundscheck=True)
def _skip_text(data: Octets, at: int, size_max: int, end: int) -> int:
    """Where a text of ASCII ends."""
    if at < 0 or at + 2 > end:
        return _FAILED
    size = int(data[at]) - 0x60
    at += 1
    if size == 24:
        size = int(data[at])
        at += 1
        if size < 24:
            return _FAILED
    elif not 0 <= size < 24:
        return _FAILED
    if size > size_max or at + size > end:
        return _FAILED
    for k in range(at, at + size):
        if data[k] >= 0x80:
            return _FAILED
    return at + size


@compiled(nogil=True, boundscheck=True)
def _number(data: Octets, at: int, end: int) -> tuple[int, int]:
    """The unsigned number at a place, in its shortest form and below 2^63, and where it ends."""
    if at < 0 or at >= end:
        return _FAILED, _FAILED
    short = int(data[at])
    at += 1
    if short < 24:
        return short, at
    if short > 27:
        return _FAILED, _FAILED
    size = 1 << short - 24
    if at + size > end or (size == 8 and data[at] >= 0x80):
        return _FAILED, _FAILED
    value = 0
    for k in range(at, at + size):
        value = value << 8 | int(data[k])
    if value < (24 if size == 1 else 1 << 4 * size):
        return _FAILED, _FAILED
    return value, at + size


@compiled(nogil=True, boundscheck=True)
def _is_somebody(data: Octets, at: int) -> bool:
    any_bit = 0
    for k in range(at, at + 16):
        any_bit |= data[k]
    return bool(any_bit != 0)


@compiled(nogil=True, boundscheck=True)
def _is_same(data: Octets, places: Numbers, others: Numbers, one: int, other: int) -> bool:
    difference = others[one] ^ others[other]
    for k in range(16):
        difference |= data[places[one] + k] ^ data[places[other] + k]
    return bool(difference == 0)


@compiled(nogil=True, boundscheck=True)
def _lay_out_link(
    messages: Octets, at: int, chains: Octets, number: int, height: int, index: int, hashes: Octets, entry: int
) -> None:
    """["history", chain, height, index, hash], padded."""
    begin = at
    _copy(messages, at, _LINK_HEAD, 0, len(_LINK_HEAD))
    at += len(_LINK_HEAD)
    _copy(messages, at, chains, DIGEST_BYTES * number, DIGEST_BYTES)
    at = _write_number(messages, at + DIGEST_BYTES, height)
    at = _write_number(messages, at, index)
    messages[at], messages[at + 1] = 0x58, 0x20
    _copy(messages, at + 2, hashes, DIGEST_BYTES * entry, DIGEST_BYTES)
    at += 2 + DIGEST_BYTES
    _pad(messages, begin, at - begin, begin + LINK_BYTES)


@compiled(nogil=True, boundscheck=True)
def _write_number(out: Octets, at: int, value: int) -> int:
    """Write the shortest form of an unsigned number. Returns where it ends."""
    if value < 24:
        out[at] = value
        return at + 1
    short, size = 24, 1
    while size < 8 and value >> 8 * size:
        short, size = short + 1, 2 * size
    out[at] = short
    for k in range(size):
        out[at + 1 + k] = value >> 8 * (size - 1 - k) & 0xFF
    return at + 1 + size


@compiled(nogil=True, boundscheck=True)
def _pad(messages: Octets, begin: int, size: int, end: int) -> None:
    """FIPS 180-4, 5.1.1, behind a message of `size` bytes, as far as `end`."""
    messages[begin + size] = 0x80
    for k in range(begin + size + 1, end - 8):
        messages[k] = 0
    for k in range(8):
        messages[end - 1 - k] = 8 * size >> 8 * k & 0xFF


@compiled(nogil=True, boundscheck=True)
def _copy(to: Octets, at: int, source: Octets, begin: int, size: int) -> None:
    for k in range(size):
        to[at + k] = source[begin + k]
