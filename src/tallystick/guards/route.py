"""The routing guard (EventGuard 4.7): no flood travels beyond one honest hop.

Threat: a malicious broker floods its neighbours, with forgeries, with repetitions of what it once forwarded, with old
messages that nobody remembers, and through honest brokers the flood reaches everybody.

Three steps, the third from the context since the seed breaks off: remember identifiers for `delay_max_s`; a signed
time in every envelope; refuse what is older, or further in the future than the allowed skew. ElGamal's r could not be
taken by another signer, a chosen identifier can: duplicates are keyed by (signer, identifier), so nobody burns
another's.

Invariant: a guarded broker forwards only what is well-formed, fresh, signed by whom its kind demands and not seen
before. Sketch: a message travels on from an honest broker at most once, since the window remembers its identifier for
as long as its signed time is fresh, and a new identifier needs a signature; so what a forger or repeater sends ends at
its honest neighbours. Who must sign what, the carrier says: EventGuard 4.1 has the authority sign all but publications,
relays of the overlay have principals sign, with the authority's permit inside.

Memory is bounded per principal: a full share refuses that principal alone and forgets nothing early. Only verified
envelopes enter, so junk fills nothing. What the guard does not stop: many messages that are each signed, fresh and new.
They end when the principal's share of the window is full, at every broker, and for good when it is blacklisted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from tallystick.crypto.signatures import SigningKey, VerifyKey, sign_fields, split_signed
from tallystick.errors import Forged, Malformed, Refused
from tallystick.guards.rules import GuardLimits
from tallystick.wire import Fields

MESSAGE_CONTEXT = "tallystick forwarded message 1"


class Window:
    """Identifiers of envelopes seen within `delay_max_s + 2 * skew_max_s`, by signer."""

    def __init__(self, delay_max_s: float, skew_max_s: float, share_max: int) -> None:
        self._keep_s = delay_max_s + 2 * skew_max_s
        self._share_max = share_max
        self._seen: dict[bytes, set[bytes]] = {}
        self._order: deque[tuple[float, bytes, bytes]] = deque()

    def check(self, signer: bytes, identifier: bytes, now: float) -> None:
        """Remember a verified envelope's identifier. Raises `Refused` if it was seen, or the signer's share is full."""
        self._forget(now)
        seen = self._seen.setdefault(signer, set())
        if identifier in seen:
            raise Refused("the request was made already", reason="duplicate")
        if len(seen) >= self._share_max:
            raise Refused(f"more than {self._share_max} requests within {self._keep_s:g} s", reason="too-many-requests")
        seen.add(identifier)
        self._order.append((now, signer, identifier))

    def has(self, signer: bytes, identifier: bytes) -> bool:
        """Whether it is remembered: a copy then needs no look at its signature."""
        return identifier in self._seen.get(signer, ())

    def check_share(self, signer: bytes, window_max: int, now: float) -> None:
        """Raise `Refused` if the window holds `window_max` and this signer has as much of it as each can have."""
        self._forget(now)
        if len(self._order) >= window_max and len(self._seen.get(signer, ())) * len(self._seen) >= window_max:
            raise Refused(f"more than {window_max} requests within {self._keep_s:g} s", reason="too-many-requests")

    def entries(self) -> Iterator[tuple[float, bytes, bytes]]:
        """What to keep across a restart: (when seen, signer, identifier)."""
        return iter(self._order)

    def restore(self, entries: Iterable[tuple[float, bytes, bytes]]) -> None:
        """Take up what an earlier process had seen."""
        for entry in sorted(set(entries)):
            seen = self._seen.setdefault(entry[1], set())
            if entry[2] not in seen:  # one request may have left several notes
                seen.add(entry[2])
                self._order.append(entry)

    def __len__(self) -> int:
        return len(self._order)

    def _forget(self, now: float) -> None:
        while self._order and self._order[0][0] < now - self._keep_s:
            _, signer, identifier = self._order.popleft()
            seen = self._seen[signer]
            seen.discard(identifier)
            if not seen:
                del self._seen[signer]


class MessageKind(IntEnum):
    """The five messages that travel; routing them is the sixth operation."""

    SUBSCRIBE = 1
    ADVERTISE = 2
    PUBLISH = 3
    UNSUBSCRIBE = 4
    UNADVERTISE = 5


@dataclass(frozen=True, slots=True)
class ForwardedMessage:
    """A well-formed message; whether its signature holds, the guard says."""

    kind: MessageKind
    signer: bytes
    principal: bytes  # on whose behalf
    identifier: bytes  # 128 bits; the paper's r of an ElGamal signature
    created_ms: int
    content: bytes  # what the carrier makes of it
    body: bytes
    signature: bytes

    @classmethod
    def decode(cls, data: bytes) -> ForwardedMessage:
        body, signature = split_signed(data, "message")
        fields = Fields.parse(body, "message", 7)
        fields.version(1)
        message = cls(
            kind=MessageKind(fields.number(max(MessageKind), min(MessageKind))),
            signer=fields.octets(16),
            principal=fields.octets(16),
            identifier=fields.octets(16),
            created_ms=fields.number(),
            content=fields.octets(),
            body=body,
            signature=signature,
        )
        if message.kind is MessageKind.PUBLISH and message.principal != message.signer:
            raise Malformed("message: a publication is its publisher's own")
        return message


def sign_message(
    kind: MessageKind,
    signer: bytes,
    principal: bytes,
    identifier: bytes,
    created_ms: int,
    content: bytes,
    key: SigningKey,
) -> bytes:
    """The bytes of a message signed by `signer`, whose key this is."""
    fields = [1, int(kind), signer, principal, identifier, created_ms, content]
    return sign_fields(MESSAGE_CONTEXT, fields, key)


KeyOf = Callable[[ForwardedMessage], VerifyKey | None]


class RoutingGuard:
    """Accepts a message once, while it is fresh. Memory: `window_share_max` identifiers for each principal.

    `key_of` says whose signature a message needs: the key, or None where nobody could have signed it.
    """

    def __init__(self, key_of: KeyOf, blacklist: Container[bytes], limits: GuardLimits) -> None:
        self._key_of, self._blacklist = key_of, blacklist
        self._delay_max_s, self._skew_max_s = limits.delay_max_s, limits.skew_max_s
        self._window = Window(limits.delay_max_s, limits.skew_max_s, limits.window_share_max)

    def __len__(self) -> int:
        """Identifiers remembered."""
        return len(self._window)

    def accept(self, data: bytes, now: float) -> ForwardedMessage:
        """The message, from now on a duplicate. Raises `Refused`."""
        message = ForwardedMessage.decode(data)
        self.check(message, now)
        return message

    def check(self, message: ForwardedMessage, now: float, *, vouched: bool = False) -> None:
        """Raise `Refused` unless the message passes. Cheapest first, and only the signed is remembered.

        One that is `vouched` for may be old: the caller knows by other means that it still counts and is new to it.
        """
        if message.principal in self._blacklist:
            raise Refused("message: its principal is blacklisted", reason="blacklisted")
        self._check_time(message, now, vouched)
        self._check_signature(message)
        if not vouched:
            self._window.check(message.principal, message.identifier, now)

    def is_stale(self, message: ForwardedMessage, now: float) -> bool:
        return now - message.created_ms / 1000 > self._delay_max_s + self._skew_max_s

    def _check_time(self, message: ForwardedMessage, now: float, vouched: bool) -> None:
        """The third step of 4.7, where the paper breaks off: the signed time is neither too old nor yet to come."""
        age_s = now - message.created_ms / 1000
        if self.is_stale(message, now) and not vouched:
            raise Refused(f"message: {age_s:.0f} s old, accepted are {self._delay_max_s:g} s", reason="stale")
        if age_s < -self._skew_max_s:
            raise Refused(f"message: created {-age_s:.0f} s in the future", reason="future")

    def _check_signature(self, message: ForwardedMessage) -> None:
        key = self._key_of(message)
        if key is None:
            raise Refused(f"message: signer {message.signer.hex()} is not known", reason="unknown-principal")
        try:
            key.verify(MESSAGE_CONTEXT, message.signature, message.body)
        except Forged as error:
            raise Refused(f"message: not signed by {message.signer.hex()}", reason="bad-signature") from error
