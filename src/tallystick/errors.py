"""The error family, with blame attached.

    TallystickError
    ├── Misuse        you: the call, the configuration or the input is wrong; repeating it will not help
    ├── Refused       the peer or the rules: a check failed, and it was meant to
    │   ├── Malformed     bytes that are not what they claim to be
    │   ├── Forged        a signature, hash or proof that does not verify
    │   ├── CannotOpen    the one face of every failure to open a parcel
    │   └── Withheld      evidence that something is missing, repeated, reordered or shown differently
    └── Unavailable   the world: try again later

Messages are lower-case, name the thing, and say what was expected and found. `hint` says what to do next;
the command line prints it on a line of its own.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class TallystickError(Exception):
    """The root of the family; catch it to catch everything that this package raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class Misuse(TallystickError):
    """The caller's mistake: a wrong argument, configuration or input."""


class Refused(TallystickError):
    """A rule or a peer said no.

    `reason` is a short stable code (for example `no-right`), the same in operations on the ledger, in HTTP
    answers and in metrics.
    """

    reason: str = "refused"

    def __init__(self, message: str, *, reason: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        if reason is not None:
            self.reason = reason


class Malformed(Refused):
    """Bytes that are not a well-formed object of the kind they claim to be."""

    reason = "malformed"


class Forged(Refused):
    """A signature, hash or proof that does not verify."""

    reason = "forged"


class CannotOpen(Refused):
    """A parcel, lock or sealed message could not be opened.

    Deliberately without detail: whoever may see this error must not learn which check failed.
    """

    reason = "cannot-open"

    def __init__(self, message: str = "cannot open", *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


class Withheld(Refused):
    """Evidence that a carrier or a ledger hides, drops, repeats, reorders or splits what it holds."""

    reason = "withheld"


class Unavailable(TallystickError):
    """The world's fault for now: unreachable, busy, full. `retry_after_s` says when to try again, if known."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


def name_cause(error: TallystickError, cause: str) -> None:
    """Let an error say what is behind it, where that is known and the error does not say it already: whoever was asked
    may be well and wait for another, who is not."""
    if cause and cause.partition(":")[0] not in str(error):
        error.args = (cause if str(error) in cause else f"{error}; {cause}",)


# What mends a file that the system refuses, by the system's reason; what passes by itself is not here.
_REMEDIES = {
    errno.EACCES: "name another path, or act as a user who may write there",
    errno.EPERM: "name another path, or act as a user who may write there",
    errno.EROFS: "it is mounted read-only: name another path",
    errno.ENOENT: "check the path: nothing is there, and nothing could be made there",
    errno.ENOTDIR: "a file stands where a folder is needed: name another path",
    errno.EISDIR: "a folder stands where a file is needed: name another path",
    errno.EEXIST: "it stands there already, where a folder may be needed: name another path",
}


def describe(error: OSError) -> str:
    """The path that the system refuses, where it is known, and its reason."""
    reason = (error.strerror or str(error)).lower()
    named = error.filename if isinstance(error.filename, str | bytes | os.PathLike) else None
    return reason if named is None else f"{os.fsdecode(named)}: {reason}"


def blame(error: OSError, what: str = "") -> TallystickError:
    """An error of the system as one of ours, `what` before it: the caller's where a path is wrong, else the world's."""
    told = f"{what}{describe(error)}"
    if error.errno in _REMEDIES:
        return Misuse(told, hint=_REMEDIES[error.errno])
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(told, hint="free some space where the command's files or its output go")
    return Unavailable(told)


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Errors of the system inside are ours, with `what` before them."""
    try:
        yield
    except OSError as error:
        raise blame(error, f"{what}: ") from error


@contextmanager
def counted(reasons: Counter[str]) -> Iterator[None]:
    """What is refused inside goes no further: it is counted by its reason, as a role does with what it drops."""
    try:
        yield
    except Refused as error:
        reasons[error.reason] += 1
