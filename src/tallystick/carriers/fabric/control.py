"""What a host and its tenant's dispatcher say to each other, through switches and an operator that hear nothing of it.

Threat: a configurator, a switch or a host that reads requests, alters or replays them, answers in the dispatcher's
place, or tells by their size who advertises and who subscribes. So a request is the principal's signed word, as any
request to a node is (`trust/envelope.py`): addressed to one dispatcher, fresh, counted once, and good as evidence on
the ledger. It is sealed by HPKE to the dispatcher, and says to which key the answer is to be sealed. The answer is the
dispatcher's signed word on exactly this request, and of two answers the later one counts. All of them have one size,
refusals too. What is seen: that a port asks which dispatcher, when, and how often.

A host has a key of its own, which the principal names in each request. Answers are sealed to it, and the host signs
*complaints* with it: that something altered came to a subscription. They are requests like the others, and get no
answer.

A message is cut into pieces that fit a frame (EtherType 0x9003). Whoever lacks a key can send pieces of nonsense, so
what waits for its other pieces is bounded per port and in time.

Left out: a host's permit with so many labels that a request does not fit; it gets another without an interest.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Annotated

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.crypto.signatures import PUBLIC_BYTES as SIGNING_BYTES
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import CannotOpen, Malformed, Refused
from tallystick.parcel.padding import pad_to, unpad
from tallystick.trust.envelope import Envelope, ResolveKey, check_evidence
from tallystick.trust.fabric import DispatcherCard, FabricAnswer
from tallystick.trust.permit import Operation
from tallystick.wire import Fields, WireObject, octets

MESSAGE_BYTES = 8_192  # sealed: a permit with its labels, a formula, a key to answer to
PLAIN_BYTES = MESSAGE_BYTES - hpke.SEAL_BYTES
CONTROL_VERSION = 1
REQUEST_KIND, ANSWER_KIND = 16, 17  # smaller ones are probes (topology.py)
PIECES_MAX = 64
PIECE_BYTES_MIN = MESSAGE_BYTES // PIECES_MAX

_PIECE = struct.Struct("!BB16s16sBBH")
_NAMES = {Operation.ADVERTISE: "advertisements", Operation.SUBSCRIBE: "subscriptions"}
UNDO_PATH, COMPLAINT_PATH = "/v1/undo", "/v1/complaints"
_PATH = re.compile(rf"/v1/topics/([0-9a-f]{{32}})/({'|'.join(_NAMES.values())})|{UNDO_PATH}|{COMPLAINT_PATH}")
HOST_KEY_BYTES = hpke.PUBLIC_BYTES + SIGNING_BYTES
AUTHORITY = "fabric"


# --- pieces ---


def split_message(kind: int, party: bytes, message: bytes, payload_bytes: int) -> list[bytes]:
    """Payloads of control frames, none longer than `payload_bytes`; `party` is the dispatcher. The handle by which
    they know each other says nothing, since a message is sealed anew each time."""
    handle = named_hash("tallystick fabric message 1", message)[:16]
    size = max(payload_bytes - _PIECE.size, PIECE_BYTES_MIN)
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return [
        _PIECE.pack(CONTROL_VERSION, kind, party, handle, at, len(pieces), len(one)) + one
        for at, one in enumerate(pieces)
    ]


@dataclass(frozen=True, slots=True)
class ControlPiece:
    kind: int
    party: bytes
    handle: bytes
    index: int
    count: int
    data: bytes = field(repr=False)

    @classmethod
    def decode(cls, payload: bytes) -> ControlPiece:
        """Raises `Malformed`."""
        if len(payload) < _PIECE.size:
            raise Malformed(f"control piece: {len(payload)} bytes")
        version, kind, party, handle, index, count, length = _PIECE.unpack_from(payload)
        data = payload[_PIECE.size : _PIECE.size + length]
        if version != CONTROL_VERSION or kind not in (REQUEST_KIND, ANSWER_KIND):
            raise Malformed(f"control piece: version {version}, kind {kind}")
        if not index < count <= PIECES_MAX or len(data) != length or not length:
            raise Malformed(f"control piece: number {index} of {count}, {len(data)} bytes of {length}")
        return cls(kind, party, handle, index, count, data)


class ControlPieces:
    """Messages that wait for their other pieces: a few from each port, for a few seconds."""

    def __init__(self, each_max: int = 4, wait_s: float = 5.0) -> None:
        self._each_max, self._wait_s = each_max, wait_s
        self._open: dict[Hashable, OrderedDict[tuple[bytes, int], tuple[float, dict[int, bytes]]]] = {}

    def add(self, source: Hashable, piece: ControlPiece, now: float) -> bytes | None:
        """The message, if this was its last piece."""
        waiting = self._open.setdefault(source, OrderedDict())
        _, parts = waiting.setdefault((piece.handle, piece.count), (now, {}))
        parts[piece.index] = piece.data
        if len(parts) == piece.count:
            del waiting[piece.handle, piece.count]
        elif len(waiting) > self._each_max:
            waiting.popitem(last=False)
        message = b"".join(parts[at] for at in range(piece.count)) if len(parts) == piece.count else b""
        return message if len(message) == MESSAGE_BYTES else None

    def give_up(self, now: float) -> None:
        for source, waiting in list(self._open.items()):
            while waiting and now - next(iter(waiting.values()))[0] >= self._wait_s:
                waiting.popitem(last=False)
            if not waiting:
                del self._open[source]


# --- requests ---


Asks = tuple[bytes, SigningKey]  # a principal, or for a complaint a permit, and who signs for it


@dataclass(frozen=True)
class FabricAsk(WireObject):
    """What a host asks for. `shown` is a permit, or an undo order; what does not apply is empty, all but the key in a
    complaint."""

    what = "fabric request"
    shown: Annotated[bytes, octets(at_most=PLAIN_BYTES)]
    key: Annotated[bytes, octets(HOST_KEY_BYTES)]  # the host's: to which answers are sealed, and which signs
    content: Annotated[bytes, octets(at_most=PLAIN_BYTES)] = b""  # what will be published, or the interest
    code: Annotated[bytes, octets(at_most=PLAIN_BYTES)] = b""  # the topic's, of a publisher
    policy: Annotated[bytes, octets(at_most=PLAIN_BYTES)] = b""  # who may get it, of a publisher

    def seal(self, path: str, card: DispatcherCard, who: Asks, now: float, nonce: bytes) -> SealedAsk:
        """Sign it as this one's act, and seal it. Raises `Malformed` where it is too long."""
        body = self.encode()
        target = "POST", AUTHORITY, path, "", sha256(body).digest()
        envelope = Envelope(*target, card.node, who[0], int(now), nonce, b"")
        envelope = replace(envelope, signature=who[1].sign_raw(envelope.base))
        plain = pad_to(wire.encode([envelope.evidence(), body]), PLAIN_BYTES)
        sealed = hpke.seal(hpke.PublicKey.decode(card.sealing), plain, _info("request", card.instance, card.node))
        return SealedAsk(sealed, envelope.base_hash)


@dataclass(frozen=True)
class SealedAsk:
    message: bytes = field(repr=False)
    name: bytes  # by which the answer names it


@dataclass(frozen=True)
class OpenedAsk:
    """A request whose signature holds. An undo order and a complaint have no operation, and no topic."""

    envelope: Envelope
    ask: FabricAsk
    operation: Operation | None
    token: bytes


def path_of(operation: Operation | None, token: bytes) -> str:
    return UNDO_PATH if operation is None else f"/v1/topics/{token.hex()}/{_NAMES[operation]}"


def open_ask(message: bytes, private: hpke.PrivateKey, instance: bytes, node: bytes, resolve: ResolveKey) -> OpenedAsk:
    """Raises `CannotOpen`, `Malformed`, or `Refused` where nobody is known to stand behind it."""
    plain = unpad(hpke.open_(private, message, _info("request", instance, node)))
    fields = Fields.parse(plain, "fabric request", 2)
    envelope, body = check_evidence(fields.octets(at_most=PLAIN_BYTES), resolve), fields.octets(at_most=PLAIN_BYTES)
    _check_addressed(envelope, node)
    envelope.check_body(body)
    found = _PATH.fullmatch(envelope.path)
    if envelope.method != "POST" or not found:
        raise Malformed("fabric request: another target")
    operation = next((one for one, name in _NAMES.items() if name == found[2]), None)
    return OpenedAsk(envelope, FabricAsk.decode(body), operation, bytes.fromhex(found[1] or ""))


def _check_addressed(envelope: Envelope, node: bytes) -> None:
    if envelope.node != node:
        raise Refused("fabric request: addressed to another dispatcher", reason="wrong-node")


# --- answers ---


def seal_answer(answer: FabricAnswer, public: bytes) -> bytes:
    """For the host alone: always as many bytes. Raises `Malformed` for a key that is none."""
    key = hpke.PublicKey.decode(public[: hpke.PUBLIC_BYTES])
    return hpke.seal(key, pad_to(answer.encode(), PLAIN_BYTES), _info("answer", answer.instance))


def open_answer(
    message: bytes, private: hpke.PrivateKey, instance: bytes, check: Callable[[FabricAnswer], None]
) -> FabricAnswer:
    """What a dispatcher said; `check` has its signature. Raises `CannotOpen`, whatever the reason."""
    try:
        answer = FabricAnswer.decode(unpad(hpke.open_(private, message, _info("answer", instance))))
        check(answer)
    except (Malformed, Refused) as error:
        raise CannotOpen from error
    if answer.instance != instance:
        raise CannotOpen
    return answer


def _info(what: str, *who: bytes) -> bytes:
    return wire.encode([f"tallystick fabric {what} 1", *who])
