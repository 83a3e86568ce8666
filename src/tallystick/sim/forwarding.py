"""A broker that forwards signed messages to its neighbours, with EventGuard's routing guard or without (4.7, Fig. 3).

The guard is the relays' own (`guards/route.py`, which has threat and invariant). Here a publication is signed by its
publisher and the other four kinds by the authority, as EventGuard 4.1 has it.

Deviations. A message names the principal on whose behalf it was signed, also where the authority signs, and the
window's shares are per principal: shared by signer, one subscriber's flood of permits would use up the share of
everybody whom the same authority serves. Publishers' keys are known from enrolment, not from forwarded advertisements.

Left out: what the flood costs the node that it hits (a verification for each message; a limit per connection belongs in
front), authentication of links, routing by token (everything goes everywhere, the worst case for a flood), and the
window across a restart, for which see `carriers/scribe.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.guards.route import ForwardedMessage, KeyOf, MessageKind, RoutingGuard
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send


def enrolled(authorities: Mapping[bytes, VerifyKey], publishers: Mapping[bytes, VerifyKey]) -> KeyOf:
    """EventGuard's rule: publications by enrolled publishers, everything else by an authority."""

    def key_of(message: ForwardedMessage) -> VerifyKey | None:
        return (publishers if message.kind is MessageKind.PUBLISH else authorities).get(message.signer)

    return key_of


@dataclass(frozen=True, slots=True)
class Passed:
    """What goes over a link: a message, and how many nodes it has passed, by the word of the last."""

    data: bytes
    hops: int = 0


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
