"""What a client may ask an application, and how it is written: path `/tally/1/<name>`, arguments and answer in wire.

An error travels as its kind (the code), its reason (codespace), message (log) and hint (info), and is raised again on
the other side. The version stands in the path: an application that does not know it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick import wire
from tallystick.abci.messages import OK, ResponseQuery
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger.engine import AuditItem

if TYPE_CHECKING:
    from tallystick.ledger.sqlite_store import LedgerReader

PREFIX = "/tally/1/"
ANSWER_BYTES_MAX = 8 << 20  # doubled by JSON's base64 it is still a page
BLOCKS_MAX, ITEMS_MAX, VALUES_MAX = 64, 10_000, 2_000  # in one answer

_KINDS: dict[int, type[TallystickError]] = {1: Refused, 2: Unavailable, 3: Misuse}
_UNKNOWN = 4


def answer(path: str, data: bytes, methods: dict[str, Callable[..., Any]], reader: LedgerReader) -> ResponseQuery:
    """The response of the method that `path` names, called with the reader and the arguments in `data`."""
    method = methods.get(path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
    if method is None:
        return ResponseQuery(code=_UNKNOWN, log=f"nothing answers to {path[:80]}")
    try:
        arguments = wire.decode(data, "arguments")
        if not isinstance(arguments, list):
            raise Misuse("arguments: expected a list")
        value = wire.encode(method(reader, *arguments))
        if len(value) > ANSWER_BYTES_MAX:
            raise Misuse(f"an answer of {len(value)} bytes, at most {ANSWER_BYTES_MAX} are sent", hint="ask for less")
    except TypeError as error:  # arguments of another number or kind
        return _failure(Misuse(f"{path}: {error}"))
    except TallystickError as error:
        return _failure(error)
    return ResponseQuery(code=OK, value=value)


def read_answer(response: dict[str, Any], value: bytes) -> Any:
    """The value in a response as JSON has it (`value` decoded already), or the error in it."""
    code = int(response.get("code") or 0)
    if code == OK:
        return wire.decode(value, "answer")
    message, hint = str(response.get("log", "")), response.get("info") or None
    if code == _UNKNOWN:
        raise Misuse(
            f"ledger: {message}", hint="the validator runs another version of tallystick: upgrade one of the two"
        )
    kind = _KINDS.get(code, Unavailable)
    if issubclass(kind, Refused):
        raise kind(message, reason=str(response.get("codespace") or "refused"), hint=hint)
    raise kind(message, hint=hint)


def _failure(error: TallystickError) -> ResponseQuery:
    code = next((code for code, kind in _KINDS.items() if isinstance(error, kind)), 2)
    reason = error.reason if isinstance(error, Refused) else ""
    return ResponseQuery(code=code, log=str(error), info=error.hint or "", codespace=reason)


# --- values ---


def write_audit(items: list[AuditItem]) -> list[Any]:
    return [[item.height, item.index, item.time_ms, item.author, item.kind, item.entry] for item in items]


def read_audit(items: list[Any]) -> list[AuditItem]:
    return [
        AuditItem(height, index, time_ms, author, kind, wire.decode(entry, "entry"), entry)
        for height, index, time_ms, author, kind, entry in items
    ]
