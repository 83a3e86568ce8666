"""Where an object's bytes are cut into chunks: at fixed places, or where the content says.

Invariant: chunks depend on the bytes alone and never on how they are fed, so that two who cut one image get the same
chunks, and a vehicle that cuts its old image finds those that the new one shares with it.

By content (FastCDC, Xia et al. 2016): a hash of the 64 bytes before each place, a gear hash, decides. With a target of
2**k bytes a chunk ends at the first place, from a quarter of the target on, whose hash begins with k + 1 zero bits
below the target, and with k − 1 from the target on; at the latest at four times the target. Whoever makes the content
may choose where it is cut, within these bounds; nothing hangs on it. Left out: a secret table against somebody who
knows parts of the content and watches lengths (000 serves firmware, which is no secret of lengths).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any

from blake3 import blake3

from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Misuse
from tallystick.kernels.demand import OnDemand
from tallystick.later import np
from tallystick.objects.layout import FIXED, GEAR, SPREAD, TARGET_MAX, TARGET_MIN

FEED_BYTES = 1 << 20  # gathered before places are looked for; the same chunks come out of any other number


@cache
def gear_table() -> Any:
    """256 numbers of 64 bits: the first 2,048 bytes of BLAKE3's output for the name, little-endian."""
    return np.frombuffer(blake3(b"tallystick gear 1").digest(length=2048), "<u8").astype(np.uint64)


def check_cut(cut: int, target: int) -> None:
    """Raise `Misuse` unless objects can be cut so."""
    if cut not in (FIXED, GEAR):
        raise Misuse(f"cut {cut}: expected {FIXED} (fixed) or {GEAR} (by content)")
    if not TARGET_MIN <= target <= TARGET_MAX or target & (target - 1):
        raise Misuse(f"chunks of {target} bytes: expected a power of two from {TARGET_MIN} to {TARGET_MAX}")


def cut_chunks(blocks: Iterable[Buffer], cut: int, target: int, feed: int = FEED_BYTES) -> Iterator[memoryview]:
    """The chunks of the bytes that come in `blocks`, of any lengths. One is good until the next is asked for. No bytes
    at all are one chunk of none."""
    check_cut(cut, target)
    most = target if cut == FIXED else target * SPREAD
    waiting, any_yet = bytearray(), False
    for block in chain(blocks, [None]):
        waiting += block or b""
        if block is not None and len(waiting) < max(feed, most):
            continue
        length, start = len(waiting), 0
        if block is None:  # behind the last bytes lie zeros, as many as the search wants to see
            waiting += bytes(most)
        held = memoryview(waiting)
        for end in _ends(held, cut, target):
            if start >= length:
                break
            yield held[start : min(end, length)]
            start, any_yet = end, True
        waiting = bytearray(held[start:])
    if not any_yet:
        yield memoryview(b"")


def _ends(data: memoryview, cut: int, target: int) -> list[int]:
    """The ends of chunks, up to the first that what follows `data` might change."""
    if cut == FIXED:
        return list(range(target, len(data) + 1, target))
    octets, bits = np.frombuffer(data, np.uint8), target.bit_length() - 1
    find = _kernel.after(len(data)) or gear_ends_plain
    found = find(octets, gear_table(), target // SPREAD, target, target * SPREAD, bits + 1, bits - 1)
    return [int(end) for end in found]


def gear_ends_plain(data: Any, table: Any, least: int, target: int, most: int, hard: int, easy: int) -> list[int]:
    """As `kernels.gear.gear_ends`: hashes of all windows at once, by doubling their length six times."""
    hashes = table[data]
    for length in (1, 2, 4, 8, 16, 32):
        hashes[length:] += hashes[:-length] << np.uint64(length)
    places = np.flatnonzero(hashes < np.uint64(1 << 64 - easy))  # behind whose byte a chunk may end
    strict = places[hashes[places] < np.uint64(1 << 64 - hard)] + 1
    places += 1
    ends, start = [], 0
    while len(data) - start >= most:
        first = strict[np.searchsorted(strict, start + least) :][:1]
        if not len(first) or first[0] >= start + target:
            first = places[np.searchsorted(places, start + target) :][:1]
        start = min(int(first[0]), start + most) if len(first) else start + most
        ends.append(start)
    return ends


def _load() -> Callable[..., Any]:
    from tallystick.kernels.gear import gear_ends

    return gear_ends


_kernel = OnDemand(_load, enough=32 << 20)  # bytes: a second or two for numpy, as long as loading takes
