"""The compiled twin of `planes._reference`: a block of values at a time, so that its planes stay in the first cache.

The inner loops touch two arrays each and carry nothing over, which is the form that the compiler turns into vector
instructions; only the running sum of differences goes step by step. `table` has passed `planes.check_regions`: every
region lies inside both arrays, which are equally long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tallystick.kernels.jit import compiled

BLOCK_VALUES = 1024

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]


@compiled(nogil=True, boundscheck=False)
def copy(source: Bytes, target: Bytes) -> None:
    for i in range(target.size):  # a slice assignment would first ask whether the arrays overlap
        target[i] = source[i]


@compiled(nogil=True, boundscheck=False)
def scatter_region(numbers: NDArray[np.uint64], planes: Bytes, delta: int) -> None:
    count, width = numbers.size, numbers.itemsize
    block = np.empty(BLOCK_VALUES, numbers.dtype)
    before = numbers.dtype.type(0)
    for first in range(0, count, BLOCK_VALUES):
        here = numbers[first : min(first + BLOCK_VALUES, count)]
        if delta != 0:
            block[0] = here[0] - before
            for i in range(1, here.size):
                block[i] = here[i] - here[i - 1]
            before = here[-1]
        else:
            for i in range(here.size):
                block[i] = here[i]
        for k in range(width):
            plane = planes[k * count + first : k * count + first + here.size]
            shift = numbers.dtype.type(8 * k)
            for i in range(plane.size):
                plane[i] = np.uint8(block[i] >> shift)


@compiled(nogil=True, boundscheck=False)
def gather_region(planes: Bytes, numbers: NDArray[np.uint64], delta: int) -> None:
    count, width = numbers.size, numbers.itemsize
    before = numbers.dtype.type(0)
    for first in range(0, count, BLOCK_VALUES):
        here = numbers[first : min(first + BLOCK_VALUES, count)]
        lowest = planes[first : first + here.size]
        for i in range(here.size):
            here[i] = lowest[i]
        for k in range(1, width):
            plane = planes[k * count + first : k * count + first + here.size]
            shift = numbers.dtype.type(8 * k)
            for i in range(here.size):
                here[i] |= numbers.dtype.type(plane[i]) << shift
        if delta != 0:
            for i in range(here.size):
                before += here[i]
                here[i] = before


@compiled(nogil=True, boundscheck=False)
def scatter(source: Bytes, target: Bytes, table: Table) -> None:
    done = 0
    for r in range(table.shape[0]):
        start, values, width, delta = table[r]
        end = start + values * width
        copy(source[done:start], target[done:start])
        if width == 8:
            scatter_region(source[start:end].view(np.uint64), target[start:end], delta)
        elif width == 4:
            scatter_region(source[start:end].view(np.uint32), target[start:end], delta)
        else:
            scatter_region(source[start:end].view(np.uint16), target[start:end], delta)
        done = end
    copy(source[done:], target[done:])


@compiled(nogil=True, boundscheck=False)
def gather(source: Bytes, target: Bytes, table: Table) -> None:
    done = 0
    for r in range(table.shape[0]):
        start, values, width, delta = table[r]
        end = start + values * width
        copy(source[done:start], target[done:start])
        if width == 8:
            gather_region(source[start:end], target[start:end].view(np.uint64), delta)
        elif width == 4:
            gather_region(source[start:end], target[start:end].view(np.uint32), delta)
        else:
            gather_region(source[start:end], target[start:end].view(np.uint16), delta)
        done = end
    copy(source[done:], target[done:])
