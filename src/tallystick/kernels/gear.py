"""The compiled loop of content-defined cutting: where chunks end, by a gear hash (FastCDC, Xia et al. 2016).

A second way to what `objects.cutting` says with numpy; `tests/objects/test_cutting.py` holds the two to the same ends.
Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallystick.kernels.jit import compiled

WINDOW = 64  # bytes that a hash of 64 bits remembers when it shifts by one


@compiled(nogil=True, boundscheck=False)
def gear_ends(
    data: NDArray[np.uint8], table: NDArray[np.uint64], least: int, target: int, most: int, hard: int, easy: int
) -> NDArray[np.int64]:
    """The ends of chunks in `data`, as long as `most` bytes are left behind the last; `least` is above `WINDOW`."""
    ends = np.empty(len(data) // least + 1, np.int64)
    found, start = 0, 0
    one, below_hard, below_easy = (
        np.uint64(1),
        np.uint64(1) << np.uint64(64 - hard),
        np.uint64(1) << np.uint64(64 - easy),
    )
    while len(data) - start >= most:
        value = np.uint64(0)
        for octet in data[start + least - WINDOW : start + least]:
            value = (value << one) + table[octet]
        # Views, whose indices begin at zero: the compiler need not ask whether one counts from the end.
        first, second = data[start + least : start + target], data[start + target : start + most]
        length = 0
        while length < len(first) and value >= below_hard:
            value = (value << one) + table[first[length]]
            length += 1
        if length == len(first):
            length = 0
            while length < len(second) and value >= below_easy:
                value = (value << one) + table[second[length]]
                length += 1
            length += len(first)
        start += least + length
        ends[found] = start
        found += 1
    return ends[:found]
