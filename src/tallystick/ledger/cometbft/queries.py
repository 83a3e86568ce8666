"""What a client may ask an application, and how it is written: path `/tally/1/<name>`, arguments and answer in wire.

An error travels as its kind (the code), its reason (codespace), message (log) and hint (info), and is raised again on
the other side. The version stands in the path: an application that does not know it says so.

Threat: a validator, or whoever stands in front of one, that answers falsely. A value of the state and a receipt carry
their proofs. Nothing proves that a transaction was refused, that a list is whole, or where one block ends and the next
begins; so `vouch` gives such an answer under the validator's note key, and a client believes what so many validators
signed that one of them is honest (`voices_needed`, `check_vouch`). What is signed names instance, question and the
least height that was asked for, so an answer serves for no other question, and not for the same one later on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick import wire
from tallystick.abci.messages import OK, ResponseQuery
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger.engine import AuditItem
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.ledger.sqlite_store import LedgerReader

PREFIX = "/tally/1/"
ANSWER_BYTES_MAX = 8 << 20  # doubled by JSON's base64 it is still a page
BLOCKS_MAX, ITEMS_MAX, VALUES_MAX = 64, 10_000, 2_000  # in one answer
VOUCH = "tallystick answer 1"  # the context of a validator's signature under an answer
VOUCHED = frozenset(("find", "check", "changes", "block", "blocks", "consistency", "history", "audit", "scan"))

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
            f"ledger: {message}",
            hint="the validator runs another version of tallystick: upgrade validators before their clients",
        )
    kind = _KINDS.get(code, Unavailable)
    if issubclass(kind, Refused):
        raise kind(message, reason=str(response.get("codespace") or "refused"), hint=hint)
    raise kind(message, hint=hint)


def _failure(error: TallystickError) -> ResponseQuery:
    code = next((code for code, kind in _KINDS.items() if isinstance(error, kind)), 2)
    reason = error.reason if isinstance(error, Refused) else ""
    return ResponseQuery(code=code, log=str(error), info=error.hint or "", codespace=reason)


# --- answers that validators sign ---


def vouched(instance: bytes, name: str, arguments: list[Any], at_least: int, digest: bytes) -> bytes:
    """What a validator signs that has block `at_least` and answers with the bytes of this SHA-256."""
    return wire.encode([instance, name, arguments, at_least, digest])


def check_vouch(trust: TrustFile, key: bytes, signature: bytes, statement: bytes) -> None:
    """Raise `Forged` unless `key` is a validator's in the trust file and signed the statement."""
    if key not in trust.ledger_keys:
        raise Forged("answer: signed by none of the trust file's validators")
    VerifyKey(key).verify(VOUCH, signature, statement)


def voices_needed(trust: TrustFile) -> int:
    """How many validators must say the same for one of them to be honest: one more than the f that a chain bears.

    Chains of two and three bear none, and lose nothing by asking a second one, as all must be there anyway.
    """
    count = len(trust.ledger_keys)
    return max((count - 1) // 3 + 1, min(count, 2))


# --- values ---


def write_audit(items: list[AuditItem]) -> list[Any]:
    return [[item.height, item.index, item.time_ms, item.author, item.kind, item.entry] for item in items]


def read_audit(items: list[Any]) -> list[AuditItem]:
    return [
        AuditItem(height, index, time_ms, author, kind, wire.decode(entry, "entry"), entry)
        for height, index, time_ms, author, kind, entry in items
    ]
