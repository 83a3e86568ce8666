"""HTTP/1.1 without sockets: a request to bytes, bytes to a response, the parameters of a request, our errors to HTTP
and back.

Measured on loopback, CPU of the client per small request: httpx 870 µs, http.client 200, this 50, where the
Ed25519 signature of the request takes 40. So the client speaks HTTP/1.1 itself, for exactly what it needs:
one request at a time on a connection, bodies of known length, no redirects, cookies, proxies or content
codings; the parsing is llhttp's, through `httptools`. Every answer is bounded in head and body before it is
believed.

An error to an authenticated peer is a status and the CBOR body `[reason, message, hint or null, extra]`;
`extra` depends on the reason (signed time for `stale` and `future`, milliseconds to wait for `busy`, else
null). To everybody else every refusal is `refuse_unauthenticated`: one status, no body, so that a stranger
learns neither which check failed nor what exists.

Threat: request smuggling. A proxy in front and this node read one run of bytes in two ways, so that what one takes for
a body is a request to the other, perhaps in front of somebody else's. llhttp refuses most such bytes; `misreading`
refuses what it lets pass and two readers may still take in two ways, or that nothing here needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import httptools

from tallystick import wire
from tallystick.errors import Malformed, Misuse, Refused, TallystickError, Unavailable

_BREAK = re.compile(rb"[\r\n]")

# A target in origin form, of the characters of RFC 3986: no scheme, authority or fragment, which others may heed.
_TARGET = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@/%-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?")
_HEADER_NAME = re.compile(rb"[a-z0-9-]+")  # without underscores, which some readers take for hyphens
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")
_UNUSED = (b"transfer-encoding", b"expect", b"upgrade")  # each changes where a request ends, or what follows it

SENTENCE_BYTES_MAX = 1024  # in which a peer says why it is not ready
HEAD_BYTES_MAX = 64 * 1024  # our answers have a handful of short headers


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; header names are in lower case, a repeated header keeps its last value."""

    status: int
    headers: dict[str, str]
    body: bytes


def encode_head(method: str, target: str, authority: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
    """The head of a request. Raises `Misuse` for anything that would end a line early."""
    first = f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\ncontent-length: {length}\r\n"
    lines = [b"%b: %b" % header for header in headers]
    if first.count("\n") != 3 or first.count("\r") != 3 or any(_BREAK.search(line) for line in lines):
        raise Misuse(f"request {method} {target!r}: a line break inside the head")
    return b"".join([first.encode("latin-1"), *(line + b"\r\n" for line in lines), b"\r\n"])


def misreading(version: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """What two readers might take in two ways in a request's head, names in lower case, or `None`."""
    if version not in ("1.1", "1.0"):
        return f"HTTP/{version}"
    if not _TARGET.fullmatch(target):
        return "a target that is not a path and a query"
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)) or (version == "1.1" and not hosts):
        return "not one host"
    for name, value in headers:
        if name in _UNUSED or not _HEADER_NAME.fullmatch(name):
            return f"header {name!r}"
        if name == b"content-length" and not _LENGTH.fullmatch(value):
            return f"a length of {value!r}"
    return None


class ResponseReader:
    """Takes the bytes of one answer as they arrive; `response` is set when it is whole."""

    def __init__(self, body_bytes_max: int) -> None:
        self.response: Response | None = None
        self.keep_alive = False
        self._body_bytes_max = body_bytes_max
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True
        self._left: int | None = None  # of a body of known length
        self._fault: str | None = None

    def feed(self, data: bytes) -> None:
        """Raises `Unavailable` for what is not one bounded answer."""
        if self.response is not None:
            self._fault = "bytes after the answer"
        elif self._left:  # there is nothing to parse in it, and the parser would copy it
            if len(data) > self._left:
                self._fault = "bytes after the answer"
            else:
                self._add_to_body(data)
        else:
            self._head_bytes += len(data) if self._in_head else 0
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise Unavailable(f"answer: {self._fault or 'not HTTP/1.1'}") from error
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
                self._fault = f"head longer than {HEAD_BYTES_MAX} bytes"
        if self._fault is not None:
            raise Unavailable(f"answer: {self._fault}")

    # The parser's callbacks; an exception from one stops it.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head = False
        declared = self._headers.get("content-length", "0")
        if wire.is_number(declared) and int(declared) > self._body_bytes_max:
            self._fail(f"body of {declared} bytes, at most {self._body_bytes_max} are accepted")
        if wire.is_number(declared) and "transfer-encoding" not in self._headers:
            self._left = int(declared)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._fail(f"body longer than {self._body_bytes_max} bytes")
        self._body.append(body)
        if self._left is not None:
            self._left -= len(body)

    def on_message_complete(self) -> None:
        if self.response is not None:
            self._fail("a second answer to one request")
        self._complete()

    def _add_to_body(self, data: bytes) -> None:
        self.on_body(data)
        if not self._left:
            self._complete()

    def _complete(self) -> None:
        self.keep_alive = self._parser.should_keep_alive()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.response = Response(self._parser.get_status_code(), self._headers, body)
        self._parser = None  # it refers to us: both, with the whole body, would wait for the collector of cycles
        self._body.clear()

    def _fail(self, fault: str) -> None:
        self._fault = fault
        raise ValueError(fault)


_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def check_range(response: Response, first: int, n: int) -> tuple[bytes, int]:
    """The bytes of a range and the length of the whole file, from a good answer to `Range: bytes=first-…`.

    Raises `Refused` unless it is that range: `n` bytes, or those up to the end of the file.
    """
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if response.status != 206 or found is None:
        raise Refused(f"answer: status {response.status}, no byte range", hint="choose a web server that knows ranges")
    begin, last, total = map(int, found.groups())
    if (begin, last) != (first, min(first + n, total) - 1) or len(response.body) != last + 1 - begin:
        told = f"{len(response.body)} bytes as {begin} to {last} of {total}"
        raise Refused(f"answer: {told}, asked for {n} from {first}")
    return response.body, total


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
    reason: str = ""  # of a refusal, for our own count: it is not sent


def answer_value(value: Any) -> Answer:
    """200 with `value` in CBOR."""
    return Answer(body=wire.encode(value))


def refuse_unauthenticated() -> Answer:
    """The one face of every refusal to a peer that has not proved who it is."""
    return Answer(403, headers={"connection": "close"}, reason=UNAUTHENTICATED)


# The same as bytes, for what did not come as far as a handler.
REFUSED_UNREAD = (
    b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\ncontent-type: %b\r\nconnection: close\r\n\r\n" % CBOR.encode()
)


def answer_error(error: TallystickError, extra: Any = None) -> Answer:
    """The answer to an authenticated peer."""
    if isinstance(error, Unavailable):
        if error.retry_after_s is None:  # no delay named: another address may do better at once
            return Answer(503, wire.encode(["unavailable", str(error), error.hint, None]), reason="unavailable")
        wait_ms = math.ceil(error.retry_after_s * 1000)
        retry_after = {"retry-after": str(max(1, -(-wait_ms // 1000)))}
        return Answer(429, wire.encode(["busy", str(error), error.hint, wait_ms]), headers=retry_after, reason="busy")
    reason = error.reason if isinstance(error, Refused) else "misuse"
    return Answer(_status(error, reason), wire.encode([reason, str(error), error.hint, extra]), reason=reason)


def _status(error: TallystickError, reason: str) -> int:
    if reason in _STATUS:
        return _STATUS[reason]
    return 400 if isinstance(error, Misuse | Malformed) else 403


def check_answer(response: Response) -> Response:
    """A good answer itself. Raises `RefusedByPeer` for the peer's no, `Unavailable` for "later"."""
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
    said = f"the node answered with status {response.status}"
    if response.status == 503 and response.headers.get("content-type") == "text/plain":  # of /health/ready
        said = response.body[:SENTENCE_BYTES_MAX].decode(errors="replace").strip() or said
    return f"http-{response.status}", said, None, None


def _retry_after_s(response: Response, extra: Any) -> float | None:
    if type(extra) is int and extra >= 0:
        return extra / 1000
    text = response.headers.get("retry-after", "")
    return float(text) if wire.is_number(text) and len(text) < 10 else None


class Words:
    """A query's, by name."""

    def __init__(self, text: str) -> None:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        except ValueError:
            raise Malformed("query: more than 32 parameters") from None
        self._values = dict(pairs)
        if len(self._values) != len(pairs):
            raise Malformed("query: a parameter appears twice")

    def number(self, name: str, default: int | None = None) -> int:
        text = self._values.get(name)
        if text is None:
            if default is None:
                raise Malformed(f"query: {name} is missing")
            return default
        if not wire.is_number(text) or len(text) > 19:
            raise Malformed(f"query: {name} is not a number")
        return int(text)

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self._values else None

    def octets(self, name: str, length: int | None = None) -> bytes:
        return octets(self._values.get(name, ""), length)

    def optional_octets(self, name: str, length: int) -> bytes | None:
        return self.octets(name, length) if name in self._values else None


def octets(text: str, length: int | None) -> bytes:
    """Bytes from hexadecimal digits, so many if a length is given."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise Malformed("request: expected hexadecimal digits") from None
    if (length is not None and len(data) != length) or not data or len(data) > 512:
        raise Refused(f"request: expected {length} bytes in hexadecimal", reason="malformed")
    return data
