"""Watching from outside: which calls a function got, without anything put in its place."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calls_of(function: Callable[..., Any]) -> Iterator[list[str]]:
    """For each call the name of the thread that made it: this one, or one that starts in the block."""
    code, calls = function.__code__, list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            calls.append(threading.current_thread().name)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        threading.setprofile(None)
        sys.setprofile(before)
