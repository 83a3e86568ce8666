"""A broker that forwards signed messages to its neighbours, with EventGuard's routing guard or without (4.7, Fig. 3).

Threat: a malicious broker floods its neighbours, with forgeries, with repetitions of what it once forwarded, with old
messages that nobody remembers, and through honest brokers the flood reaches everybody.

Invariant: a guarded node forwards only what is well-formed, fresh, signed by whom its kind demands (a publication by
its publisher, the other four kinds by the authority: EventGuard 4.1) and not seen before. Sketch: a message travels on
from an honest node at most once, since the window remembers its identifier for as long as its signed time is fresh, and
a new identifier needs a signature; so what a forger or repeater sends ends at its honest neighbours.

Deviations. A message names the principal on whose behalf it was signed, also where the authority signs, and the
window's shares are per principal: shared by signer, one subscriber's flood of permits would use up the share of
everybody whom the same authority serves. Publishers' keys are known from enrolment, not from forwarded advertisements.

What the routing guard does not stop: many messages that are each signed, fresh and new. They end when the principal's
share of the window is full, at every node, and for good when it is blacklisted; that is rates and reputation, not
routing. Left out: what the flood costs the node that it hits (a verification for each message; a limit per connection
belongs in front), authentication of links, routing by token (everything goes everywhere, the worst case for a flood),
and the window across a restart, for which see `carriers/scribe.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tallystick.crypto.signatures import SigningKey, VerifyKey, sign_fields, split_signed
from tallystick.errors import Forged, Malformed, Refused
from tallystick.guards.route import Window
from tallystick.guards.rules import GuardLimits
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send
from tallystick.wire import Fields

CONTEXT = "tallystick forwarded message 1"


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
    signer: bytes  # the publisher of a publication, else the authority
    principal: bytes  # on whose behalf
    identifier: bytes  # 128 bits; the paper's r of an ElGamal signature
    created_ms: int
    content: bytes  # the token and what goes with it; no forwarder's business
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
    return sign_fields(CONTEXT, fields, key)


@dataclass(frozen=True, slots=True)
class Passed:
    """What goes over a link: a message, and how many nodes it has passed, by the word of the last."""

    data: bytes
    hops: int = 0


class RoutingGuard:
    """Accepts a message once, while it is fresh. Memory: `window_share_max` identifiers for each enrolled principal."""

    def __init__(
        self,
        authorities: Mapping[bytes, VerifyKey],
        publishers: Mapping[bytes, VerifyKey],
        blacklist: Container[bytes],
        limits: GuardLimits,
    ) -> None:
        self._authorities, self._publishers, self._blacklist = authorities, publishers, blacklist
        self._delay_max_s, self._skew_max_s = limits.delay_max_s, limits.skew_max_s
        self._window = Window(limits.delay_max_s, limits.skew_max_s, limits.window_share_max)

    def __len__(self) -> int:
        """Identifiers remembered."""
        return len(self._window)

    def accept(self, data: bytes, now: float) -> ForwardedMessage:
        """The message, from now on a duplicate. Raises `Refused`. Cheapest first, and only the signed is remembered."""
        message = ForwardedMessage.decode(data)
        if message.principal in self._blacklist:
            raise Refused("message: its principal is blacklisted", reason="blacklisted")
        self._check_fresh(message, now)
        self._check_signature(message)
        self._window.check(message.principal, message.identifier, now)
        return message

    def _check_fresh(self, message: ForwardedMessage, now: float) -> None:
        """The third step of 4.7, where the paper breaks off: the signed time is neither too old nor yet to come."""
        age_s = now - message.created_ms / 1000
        if age_s > self._delay_max_s + self._skew_max_s:
            raise Refused(f"message: {age_s:.0f} s old, accepted are {self._delay_max_s:g} s", reason="stale")
        if age_s < -self._skew_max_s:
            raise Refused(f"message: created {-age_s:.0f} s in the future", reason="future")

    def _check_signature(self, message: ForwardedMessage) -> None:
        keys = self._publishers if message.kind is MessageKind.PUBLISH else self._authorities
        key = keys.get(message.signer)
        if key is None:
            raise Refused(f"message: signer {message.signer.hex()} is not known", reason="unknown-principal")
        try:
            key.verify(CONTEXT, message.signature, message.body)
        except Forged as error:
            raise Refused(f"message: not signed by {message.signer.hex()}", reason="bad-signature") from error


@dataclass(frozen=True)
class ForwardingStatistics:
    """A node's counts since it was started, in messages."""

    received: int
    accepted: int
    forwarded: int
    refused: Mapping[str, int]  # by reason
    remembered: int


class ForwardingNode:
    """A role: what it accepts it delivers and sends on to all neighbours but the one it came from.

    Without a guard it accepts every copy and looks at nothing but the hops: in a ring a message would never rest.
    """

    def __init__(self, neighbours: Sequence[str], guard: RoutingGuard | None, hops_max: int) -> None:
        self._neighbours = tuple(neighbours)
        self._guard = guard
        self._hops_max = hops_max
        self._received = self._accepted = self._forwarded = 0
        self._refused: Counter[str] = Counter()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if not isinstance(event, Arrived):
            return []
        passed: Passed = event.message
        self._received += 1
        if self._guard is not None:
            try:
                self._guard.accept(passed.data, now)
            except Refused as error:
                self._refused[error.reason] += 1
                return []
        self._accepted += 1
        return [Deliver(passed.data), *self._onward(event.sender, passed)]

    def statistics(self) -> ForwardingStatistics:
        remembered = len(self._guard) if self._guard is not None else 0
        return ForwardingStatistics(self._received, self._accepted, self._forwarded, dict(self._refused), remembered)

    def _onward(self, sender: str, passed: Passed) -> list[Send]:
        hops = max(0, passed.hops) + 1  # a liar may claim fewer than none
        if self._guard is None and hops > self._hops_max:
            return []
        sends = [Send(name, Passed(passed.data, hops)) for name in self._neighbours if name != sender]
        self._forwarded += len(sends)
        return sends
