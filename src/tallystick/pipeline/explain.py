"""Our errors as Spark shows them: of an exception it passes on the text alone, so the text says everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.errors import Refused, TallystickError


class TallyFailed(TallystickError):
    """Reason, message and remedy in one line."""


@contextmanager
def explained() -> Iterator[None]:
    """Every error of ours leaves as a `TallyFailed`."""
    try:
        yield
    except TallyFailed:
        raise
    except TallystickError as error:
        reason = f"{error.reason}: " if isinstance(error, Refused) else ""
        hint = f"; {error.hint}" if error.hint else ""
        raise TallyFailed(f"{reason}{error}{hint}") from error
