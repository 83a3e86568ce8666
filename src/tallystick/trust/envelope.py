"""The envelope: one signed HTTP request (RFC 9421), addressed to one node, as it travels and as evidence.

Threat: whoever carries a request (a proxy, another node, the node itself) alters it, replays it later or
elsewhere, or afterwards blames a principal for a request that it never made. The signature covers method,
authority, path, query, the digest of the body and the node addressed, with time of creation, nonce and
principal as parameters; so a verified envelope is the principal's word for exactly this request to exactly
this node, and `evidence` keeps that word without the body. Freshness is judged here, repetition within the
window by the guards' duplicate window (hold a nonce for `delay_max_s + 2 * skew_max_s`).

Invariant: there is one accepted form. Components, parameters, their order, label and encodings are fixed,
all values are visible ASCII, so header text and fields determine one another and no second text verifies.

A refusal `unsigned`, `unknown-principal`, `bad-signature` or `wrong-node` is made before anybody is known to
stand behind the request: such peers must all see the same answer. `stale` and `future` follow the signature,
but a replay by a third party ends there too: a refused envelope is never to be charged to its principal.
That an unknown principal is refused sooner than a bad signature can be timed; identifiers are random 128-bit
values and worth nothing alone.

An answer may be signed too, in a header of its own (`sign_answer`), over the hash of its request, signature and all: it
is the peer's word on exactly this request, and good for no other. Authorities sign theirs. Nodes do not, since what
they carry is signed or proved by itself.

Left out: the content type, so a handler must know from path and query what the body is; and the
`http-message-signatures` library, which takes about 600 µs a request beside a verification of 120 µs, because it serves
every form that RFC 9421 allows. The form below is what it produces and accepts, byte for byte; the tests hold both
directions.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple, Protocol

from tallystick import wire
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse, Refused

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case, as ASGI has them
ResolveKey = Callable[[bytes], "VerifyKey | None"]

UNAUTHENTICATED = frozenset({"unsigned", "unknown-principal", "bad-signature", "wrong-node"})

ID_BYTES = 16
NONCE_BYTES = 16
EVIDENCE_BYTES_MAX = 2048
TIME_CONTEXT = "tallystick time 1"
ANSWER_CONTEXT = "tallystick signed answer 1"
ANSWER_HEADER = "tally-answer"

_COMPONENTS = '("@method" "@authority" "@path" "@query" "content-digest" "tally-node")'
_NAMES = frozenset({b"content-digest", b"tally-node", b"signature-input", b"signature"})

# Base64 of 16, 32 and 64 bytes whose unused bits are zero: one text for each value.
_B64_16, _B64_32, _B64_64 = (
    "[A-Za-z0-9+/]{21}[AQgw]==",
    "[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=",
    "[A-Za-z0-9+/]{85}[AQgw]==",
)
_INPUT = re.compile(
    rf'tally={re.escape(_COMPONENTS)};created=(0|[1-9][0-9]{{0,11}});keyid="([0-9a-f]{{32}})";alg="ed25519"'
    rf';nonce="({_B64_16})";tag="tallystick"'.encode()
)
_SIGNATURE = re.compile(f"tally=:({_B64_64}):".encode())
_DIGEST = re.compile(f"sha-256=:({_B64_32}):".encode())
_ANSWER = re.compile(_B64_64)
_NODE = re.compile(rb"[0-9a-f]{32}")

# The lengths keep evidence below EVIDENCE_BYTES_MAX: whoever could make a request too long to be kept as evidence
# could not be held to it.
_METHOD = re.compile("[A-Z]{1,16}")
_AUTHORITY = re.compile(r"[a-z0-9._:\[\]-]{1,255}")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/%-]{0,511}")  # the characters of RFC 3986
_QUERY = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?%-]{0,1023}")
_CREATED_MAX = 10**12


class RequestHead(Protocol):
    """What a signature covers of a request, beside its body."""

    @property
    def method(self) -> str: ...

    @property
    def authority(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def query(self) -> str: ...

    @property
    def headers(self) -> Headers: ...


class PlainHead(NamedTuple):
    """A `RequestHead` at rest."""

    method: str
    authority: str
    path: str
    query: str
    headers: Headers


@dataclass(frozen=True)
class Envelope:
    """A request whose signature holds; made by `verify_head` and `check_evidence` alone."""

    method: str
    authority: str
    path: str
    query: str  # without the question mark
    digest: bytes  # SHA-256 of the body
    node: bytes  # whom it addresses
    principal: bytes  # who signed
    created: int  # unix seconds, the signer's claim
    nonce: bytes
    signature: bytes

    @cached_property
    def base(self) -> bytes:
        """The signature base of RFC 9421, section 2.5."""
        return _base(self)

    @cached_property
    def base_hash(self) -> bytes:
        """The hash by which operations name this request."""
        return sha256(self.base).digest()

    def check_body(self, body: bytes | bytearray | memoryview) -> None:
        """Returns if `body` is the one that was signed."""
        if not compare_digest(sha256(body).digest(), self.digest):
            raise Refused("envelope: the body is not the one that was signed", reason="bad-signature")

    def check_fresh(self, now: float, delay_max_s: float, skew_max_s: float) -> None:
        """Returns if the claimed age is at most `delay_max_s`, give or take the clocks' `skew_max_s`."""
        age = now - self.created
        if age > delay_max_s + skew_max_s:
            raise Refused(
                f"envelope: {age:.0f} s old, accepted are {delay_max_s:g} s, {skew_max_s:g} s of skew",
                reason="stale",
                hint="set the clock, or let the client follow the node's signed time",
            )
        if age < -skew_max_s:
            raise Refused(
                f"envelope: created {-age:.0f} s in the future, accepted are {skew_max_s:g} s of skew",
                reason="future",
                hint="set the clock, or let the client follow the node's signed time",
            )

    def evidence(self) -> bytes:
        """The signed request without its body, for `check_evidence`."""
        return wire.encode([1, *(getattr(self, one.name) for one in fields(self))])


def sign_request(
    signer: SigningKey,
    principal_id: bytes,
    node_id: bytes,
    *,
    method: str,
    authority: str,
    path: str,
    query: str,
    body: bytes | bytearray | memoryview,
    now: float,
    nonce: bytes,
) -> Headers:
    """The four headers that make a request an envelope. Raises `Misuse` for a target that has no one form."""
    unsigned = Envelope(
        method, authority, path, query, sha256(body).digest(), node_id, principal_id, int(now), nonce, b""
    )
    fault = _fault(unsigned)
    if fault is not None:
        raise Misuse(f"envelope: {fault}")
    return [
        (b"content-digest", _digest_text(unsigned.digest).encode()),
        (b"tally-node", node_id.hex().encode()),
        (b"signature-input", f"tally={_parameters(unsigned)}".encode()),
        (b"signature", b"tally=:%b:" % b64encode(signer.sign_raw(unsigned.base))),
    ]


def verify_head(head: RequestHead, resolve_key: ResolveKey, node_id: bytes) -> Envelope:
    """The envelope of a request whose signature holds. Raises `Refused`, whose reason the module's docstring explains.

    The body may not have been read yet: `check_body` and `check_fresh` remain to be called.
    """
    envelope = _parse(head)
    if envelope.node != node_id:
        raise Refused(
            f"envelope: addressed to node {envelope.node.hex()}, this is {node_id.hex()}", reason="wrong-node"
        )
    _check_signature(envelope, resolve_key)
    return envelope


def check_evidence(data: bytes, resolve_key: ResolveKey) -> Envelope:
    """The envelope that `Envelope.evidence` kept, verified anew, whatever its age; or `Malformed`, `Refused`.

    `resolve_key` answers for the principal that the evidence names: a key alone would not say whose word it
    is.
    """
    values = wire.decode(data, "request evidence")
    kinds = [int, str, str, str, str, bytes, bytes, bytes, int, bytes, bytes]
    if not isinstance(values, list) or [type(value) for value in values] != kinds or values[0] != 1:
        raise Malformed("request evidence: not the fields of version 1")
    envelope = Envelope(*values[1:])
    fault = _fault(envelope)
    if fault is not None:
        raise Malformed(f"request evidence: {fault}")
    _check_signature(envelope, resolve_key)
    return envelope


def signed_time(key: SigningKey, node_id: bytes, nonce: bytes, now: float) -> bytes:
    """The node's word for what time it is, in answer to the request with this nonce."""
    statement = wire.encode([1, node_id, nonce, int(now * 1000)])
    return wire.encode([statement, key.sign(TIME_CONTEXT, statement)])


def check_time(data: bytes, key: VerifyKey, node_id: bytes, nonce: bytes) -> float:
    """The time by `node_id`'s clock, for the request with this nonce alone; or `Malformed`, `Forged`."""
    parts = wire.decode(data, "signed time")
    if not isinstance(parts, list) or [type(part) for part in parts] != [bytes, bytes]:
        raise Malformed("signed time: expected a statement and a signature")
    key.verify(TIME_CONTEXT, parts[1], parts[0])
    statement = wire.decode(parts[0], "signed time")
    if not isinstance(statement, list) or len(statement) != 4 or type(statement[3]) is not int:
        raise Malformed("signed time: not the fields of version 1")
    if statement[:3] != [1, node_id, nonce]:
        raise Forged("signed time: given by another node or for another request")
    return float(statement[3]) / 1000


def asked_hash(head: RequestHead) -> bytes:
    """What an answer names its request by: all that was signed, and the signature, so that whoever alters a request on
    its way gets an answer to another one."""
    found = dict(head.headers)
    signed = [found.get(name, b"") for name in sorted(_NAMES)]
    target = [head.method, head.authority, head.path, head.query]
    return named_hash("tallystick request 1", wire.encode([*target, *signed]))


def sign_answer(key: SigningKey, node_id: bytes, request: bytes, status: int, body: bytes) -> str:
    """The header of an answer to the request of this hash."""
    return b64encode(key.sign(ANSWER_CONTEXT, _answer_statement(node_id, request, status, body))).decode()


def verify_answer(text: str, key: VerifyKey, node_id: bytes, request: bytes, status: int, body: bytes) -> None:
    """Raise `Forged` unless the header is what `sign_answer` makes of all this."""
    if not _ANSWER.fullmatch(text):
        raise Forged("answer: not signed")
    key.verify(ANSWER_CONTEXT, b64decode(text), _answer_statement(node_id, request, status, body))


def _answer_statement(node_id: bytes, request: bytes, status: int, body: bytes) -> bytes:
    return wire.encode([1, node_id, request, status, sha256(body).digest()])


def _fields(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _NAMES:
            if name in found:  # two readers might each believe another one
                raise Refused(f"envelope: header {name.decode()} appears twice", reason="bad-signature")
            found[name] = value
    if len(found) != len(_NAMES):
        raise Refused("envelope: the request is not signed", reason="unsigned")
    return found


def _parse(head: RequestHead) -> Envelope:
    found = _fields(head.headers)
    parameters = _INPUT.fullmatch(found[b"signature-input"])
    signature = _SIGNATURE.fullmatch(found[b"signature"])
    digest = _DIGEST.fullmatch(found[b"content-digest"])
    if not (parameters and signature and digest and _NODE.fullmatch(found[b"tally-node"])):
        raise Refused("envelope: signature headers are not in the accepted form", reason="bad-signature")
    envelope = Envelope(
        head.method,
        head.authority.lower(),
        head.path,
        head.query,
        b64decode(digest[1]),
        bytes.fromhex(found[b"tally-node"].decode()),
        bytes.fromhex(parameters[2].decode()),
        int(parameters[1]),
        b64decode(parameters[3]),
        b64decode(signature[1]),
    )
    fault = _fault(envelope)
    if fault is not None:
        raise Refused(f"envelope: {fault}", reason="bad-signature")
    return envelope


def _fault(envelope: Envelope) -> str | None:
    """What keeps the fields from having one text; line feeds among them would forge lines of the base."""
    if not _METHOD.fullmatch(envelope.method):
        return f"method {envelope.method!r}: expected capital letters"
    if not _AUTHORITY.fullmatch(envelope.authority):
        return f"authority {envelope.authority!r}: expected host and port in lower case"
    if not _PATH.fullmatch(envelope.path):
        return f"path {envelope.path!r}: expected at most 512 characters, percent-encoded, from the first slash"
    if not _QUERY.fullmatch(envelope.query):
        return f"query {envelope.query!r}: expected at most 1,023 characters, percent-encoded"
    if not 0 <= envelope.created < _CREATED_MAX:
        return f"created {envelope.created}: expected unix seconds"
    lengths = [len(envelope.digest), len(envelope.node), len(envelope.principal), len(envelope.nonce)]
    if lengths != [32, ID_BYTES, ID_BYTES, NONCE_BYTES]:
        return f"digest, node, principal and nonce: expected 32, 16, 16 and 16 bytes, found {lengths}"
    return None


def _check_signature(envelope: Envelope, resolve_key: ResolveKey) -> None:
    key = resolve_key(envelope.principal)
    if key is None:
        raise Refused(f"envelope: principal {envelope.principal.hex()} is not known", reason="unknown-principal")
    try:
        key.verify_raw(envelope.signature, envelope.base)
    except Forged as error:
        raise Refused(
            f"envelope: not signed by principal {envelope.principal.hex()}", reason="bad-signature"
        ) from error


def _digest_text(digest: bytes) -> str:
    return f"sha-256=:{b64encode(digest).decode()}:"


def _parameters(envelope: Envelope) -> str:
    return (
        f'{_COMPONENTS};created={envelope.created};keyid="{envelope.principal.hex()}";alg="ed25519"'
        f';nonce="{b64encode(envelope.nonce).decode()}";tag="tallystick"'
    )


def _base(envelope: Envelope) -> bytes:
    return (
        f'"@method": {envelope.method}\n'
        f'"@authority": {envelope.authority}\n'
        f'"@path": {envelope.path}\n'
        f'"@query": ?{envelope.query}\n'
        f'"content-digest": {_digest_text(envelope.digest)}\n'
        f'"tally-node": {envelope.node.hex()}\n'
        f'"@signature-params": {_parameters(envelope)}'
    ).encode()
