"""Compiling the hot loops with numba, and where the compiled code is kept.

Numba's cache is made of pickles, so whoever can write to its folder can run code as the user. It therefore
lies in a folder that only the user can open, one per version of this package and of numba; a user who sets
`NUMBA_CACHE_DIR` chooses the place. The setting holds only while our own functions are decorated: those of
the application keep the cache that they had.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def cache_folder() -> Path:
    try:
        ours = version("tallystick")
    except PackageNotFoundError:
        ours = "source"
    return Path("~/.cache/tallystick/numba").expanduser() / f"{ours}-{numba.__version__}"


def compiled(**options: object) -> Callable[[Function], Function]:
    """`numba.njit` with a cache on disk where one can be had, and without one where it cannot."""

    def decorate(function: Function) -> Function:
        chosen = numba.config.CACHE_DIR
        try:
            if not chosen:
                folder = cache_folder()
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                numba.config.CACHE_DIR = str(folder)
            return cast(Function, numba.njit(cache=True, **options)(function))
        except (OSError, RuntimeError):  # a read-only or absent home: compile anew in each process
            return cast(Function, numba.njit(**options)(function))
        finally:
            numba.config.CACHE_DIR = chosen

    return decorate
