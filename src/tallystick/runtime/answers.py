"""Answers: our errors to HTTP and back.

An error to an authenticated peer is a status and the CBOR body `[reason, message, hint or null, extra]`;
`extra` depends on the reason (signed time for `stale` and `future`, milliseconds to wait for `busy`, else
null). To everybody else every refusal is `refuse_unauthenticated`: one status, no body, so that a stranger
learns neither which check failed nor what exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.runtime.http1 import Response

CBOR = "application/cbor"
PARCELS = "application/tallystick-parcels"

# What the client says of a bare 403; no node sends this reason.
UNAUTHENTICATED = "unauthenticated"

_STATUS = {"too-large": 413, "not-found": 404, "stale": 401, "future": 401}


class RefusedByPeer(Refused):
    """A refusal that came as an answer, with its status and what the peer added."""

    def __init__(self, message: str, *, reason: str, status: int, extra: Any = None, hint: str | None = None) -> None:
        super().__init__(message, reason=reason, hint=hint)
        self.status = status
        self.extra = extra


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler returns."""

    status: int = 200
    body: bytes = b""
    content_type: str = CBOR
    headers: Mapping[str, str] = field(default_factory=dict)


def answer_value(value: Any) -> Answer:
    """200 with `value` in CBOR."""
    return Answer(body=wire.encode(value))


def refuse_unauthenticated() -> Answer:
    """The one face of every refusal to a peer that has not proved who it is."""
    return Answer(403, headers={"connection": "close"})


def answer_error(error: TallystickError, extra: Any = None) -> Answer:
    """The answer to an authenticated peer."""
    if isinstance(error, Unavailable):
        if error.retry_after_s is None:  # no delay named: another address may do better at once
            return Answer(503, wire.encode(["unavailable", str(error), error.hint, None]))
        wait_ms = math.ceil(error.retry_after_s * 1000)
        retry_after = {"retry-after": str(max(1, -(-wait_ms // 1000)))}
        return Answer(429, wire.encode(["busy", str(error), error.hint, wait_ms]), headers=retry_after)
    reason = error.reason if isinstance(error, Refused) else "misuse"
    return Answer(_status(error, reason), wire.encode([reason, str(error), error.hint, extra]))


def _status(error: TallystickError, reason: str) -> int:
    if reason in _STATUS:
        return _STATUS[reason]
    return 400 if isinstance(error, Misuse | Malformed) else 403


def check_answer(response: Response) -> Response:
    """A good answer itself; raises `RefusedByPeer` for the peer's no, `Unavailable` for "later"."""
    if 200 <= response.status < 300:
        return response
    reason, message, hint, extra = _refusal(response)
    if response.status == 429 or response.status >= 500:
        wait_s = _retry_after_s(response, extra) if response.status == 429 else None
        raise Unavailable(message, retry_after_s=wait_s, hint=hint)
    raise RefusedByPeer(message, reason=reason, status=response.status, extra=extra, hint=hint)


def _refusal(response: Response) -> tuple[str, str, str | None, Any]:
    if response.status == 403 and not response.body:
        return (
            UNAUTHENTICATED,
            "the node refused without a word, as it does to everybody whom it does not know",
            "check that this principal is enrolled, with this key, and that the node is the right one",
            None,
        )
    try:
        fields = wire.decode(response.body, "refusal")
    except Malformed:
        fields = None
    if isinstance(fields, list) and len(fields) == 4 and type(fields[0]) is str and type(fields[1]) is str:
        return fields[0], fields[1], fields[2] if type(fields[2]) is str else None, fields[3]
    return f"http-{response.status}", f"the node answered with status {response.status}", None, None


def _retry_after_s(response: Response, extra: Any) -> float | None:
    if type(extra) is int and extra >= 0:
        return extra / 1000
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 10 else None
