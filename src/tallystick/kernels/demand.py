"""Compiled code that is loaded when there is enough to do for it.

Importing numba and loading what it compiled takes a second of a core and a hundred megabytes; ten rows have been
gathered and hashed in plain Python within a millisecond. So whoever has a compiled twin counts the work that it is
given, and loads the twin when that is much, or when it is told to (`record.warm`). Both give the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

T = TypeVar("T")


class OnDemand(Generic[T]):
    def __init__(self, load: Callable[[], T], enough: int) -> None:
        """`enough` is the work, in whatever unit, from which on loading pays."""
        self._load, self._left = cache(load), enough
        self._loading: threading.Thread | None = None

    def now(self) -> T:
        """What is loaded, at once if it was not yet; from now on it is used for the least work."""
        self._left = 0
        return self._load()

    def after(self, work: int) -> T | None:
        """What is loaded, if all work of this process, `work` included, is enough for it, or None."""
        return self._load() if self._is_enough(work) else None

    def soon(self, work: int) -> T | None:
        """As `after`, but a thread loads it, and until it is there everybody goes on without: for whoever holds a lock
        that others want."""
        if not self._is_enough(work):
            return None
        if self._loading is None and not self._load.cache_info().currsize:
            self._loading = threading.Thread(target=self._load, name="compiled code")
            self._loading.start()
        return self._load() if self._load.cache_info().currsize else None

    def _is_enough(self, work: int) -> bool:
        if self._left > 0:
            self._left -= work
        return self._left <= 0
