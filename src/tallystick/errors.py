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
