"""The dispatcher: the tenant's half of the controller, which knows who wants what and touches no switch (Fig. 18).

In come control messages that the operator's configurator heard at ports, and its answers; out go requests about flows,
and answers to hosts. `door` is the node's front: it admits permits and obeys undo orders by the guards, and writes each
of them, and each refusal, to the ledger (BPS 3.2).

Threat: an operator that wants to know topics, principals, interests: it gets identifiers that nobody without the
dispatcher's secret can tell from random ones, places, ends, and messages that are sealed. Threat: a host that asks in
another's name, or has its own request sent again from elsewhere: what is not signed, addressed here and fresh gets no
answer, and what was asked before moves nobody. Threat: many requests from one port: each port has a rate, and each
principal a number of permits.

A complaint, that altered frames came, is heard from the host of the subscription alone: by the key that its principal
named, from the port where it stands, and seldom. It goes on to the configurator as the subscription's identifier.

Invariant: what stands at the configurator is what live permits ask for. A permit that was undone, revoked or is over is
withdrawn with the next tick, `sweep_s` at most; so are pairs whose policy does not admit the holder any more, when the
directory of attributes changes. What stands is stored before it is asked for. The dispatcher holds no master, topic or
attribute key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from tallystick.carriers.accounts import Asked
from tallystick.carriers.fabric import control as messages
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest, PortPiece, read_frame, wrap
from tallystick.carriers.fabric.standing import Asker, StandingLimits, StandingPermits, Told
from tallystick.crypto import hpke
from tallystick.crypto.signatures import PUBLIC_BYTES, SigningKey, VerifyKey
from tallystick.errors import Malformed, Misuse, Refused, counted
from tallystick.policy.space import AttributeSet
from tallystick.runtime.effects import Arrived, Effect, Event, Send, StoreEffect, WakeAt
from tallystick.runtime.router import Buckets, Rate
from tallystick.trust.envelope import ResolveKey
from tallystick.trust.fabric import DispatcherCard, FabricAnswer
from tallystick.trust.permit import Operation, Permit, UndoOrder

CONFIGURATOR = "configurator"
PAYLOAD_BYTES = 1_480  # of a control frame


@dataclass(frozen=True)
class DispatcherLimits(StandingLimits):
    delay_max_s: float = 60.0  # as at any node: how old a request may be
    skew_max_s: float = 5.0
    port_pieces_per_s: float = 20.0  # control pieces of one port, as many as a controller hears; a message has six
    port_pieces_max: int = 128
    ports_max: int = 65_536  # whose rate is remembered
    sweep_s: float = 0.5  # within which every live permit is looked at again
    complaint_s: float = 10.0  # between two about one subscription


@dataclass(frozen=True)
class DispatcherKeys:
    """The node's own key, and what is made of it; none opens what is published."""

    instance: bytes
    node: bytes
    signing: SigningKey = field(repr=False)

    @cached_property
    def sealing(self) -> hpke.PrivateKey:
        return hpke.PrivateKey.decode(self.signing.derive("tallystick fabric sealing 1"))

    @property
    def secret(self) -> bytes:
        """From which identifiers are made."""
        return self.signing.derive("tallystick fabric secret 1")

    @property
    def card(self) -> DispatcherCard:
        sealing = self.sealing.public.encode()
        return DispatcherCard(self.instance, self.node, self.signing.public.raw, sealing).sign(self.signing)


class DispatcherDoor(Protocol):
    """What a dispatcher asks of its node: `Front` is one."""

    def admit(self, asked: Asked, token: bytes, data: bytes, operation: Operation) -> None: ...

    def undo(self, asked: Asked, data: bytes) -> None: ...


@dataclass(frozen=True)
class DispatcherStatistics:
    advertisements: int
    subscriptions: int
    dropped: Mapping[str, int]  # messages of nobody, by reason
    refused: Mapping[str, int]
    complaints: int  # handed on


@dataclass
class Dispatcher:
    """A role. What stood before is entered by whoever stored it."""

    keys: DispatcherKeys
    door: DispatcherDoor
    resolve: ResolveKey
    is_live: Callable[[Permit, int], bool]  # whether the ledger still stands behind a permit
    limits: DispatcherLimits = DispatcherLimits()

    def __post_init__(self) -> None:
        limits = self.limits
        self._pieces, self._rates = messages.ControlPieces(), Buckets[tuple[str, int]](limits.ports_max)
        self._rate = Rate(limits.port_pieces_per_s, limits.port_pieces_max)
        self.standing = StandingPermits(self.keys.secret, limits)
        self._complaints, self._complaint_rate = Buckets[bytes](limits.ports_max), Rate(1 / limits.complaint_s, 1)
        self._dropped, self._refused = Counter[str](), Counter[str]()
        self._sweep_at, self._complained = 0.0, 0

    def receive(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived):
            with counted(self._dropped):
                effects += self._take(event.message, now)
        if now >= self._sweep_at:
            self._sweep_at = now + self.limits.sweep_s
            effects += self._sweep(now)
        return [*effects, WakeAt(self._sweep_at)]

    def set_principals(self, principals: Iterable[tuple[bytes, AttributeSet]]) -> list[Effect]:
        """The tenant's attributes are others: ask for everything anew."""
        self.standing.policies.set_principals(principals)
        return self.repeat()

    def repeat(self) -> list[Effect]:
        """Ask for everything anew: also where the configurator is another."""
        return [_ask(one) for asker in self.standing.askers.values() for one in self.standing.requests(asker)]

    def statistics(self) -> DispatcherStatistics:
        kinds = Counter(one.permit.operation for one in self.standing.askers.values())
        counts = kinds[Operation.ADVERTISE], kinds[Operation.SUBSCRIBE]
        return DispatcherStatistics(*counts, dict(self._dropped), dict(self._refused), self._complained)

    # --- what comes ---

    def _take(self, data: bytes, now: float) -> list[Effect]:
        said = read_frame(data)
        if said is None:
            return self.repeat()
        if isinstance(said, FlowAnswer):
            asker = self.standing.answered(said)
            return [] if asker is None else self._tell_again(asker, now)
        if not isinstance(said, PortPiece):
            raise Malformed("dispatcher: a frame that is a configurator's to hear")
        self._check_rate((said.switch, said.port), now)
        piece = messages.ControlPiece.decode(said.payload)
        if piece.kind != messages.REQUEST_KIND or piece.party != self.keys.node:
            raise Malformed("dispatcher: a message for somebody else")
        message = self._pieces.add((said.switch, said.port), piece, now)
        return [] if message is None else self._heard(said, message, now)

    def _check_rate(self, place: tuple[str, int], now: float) -> None:
        if self._rates.charge(place, self._rate, 1, now):
            raise Refused("too many control pieces from one port", reason="too-many-requests")

    def _heard(self, place: PortPiece, message: bytes, now: float) -> list[Effect]:
        opened = messages.open_ask(message, self.keys.sealing, self.keys.instance, self.keys.node, self._key_of)
        if opened.envelope.path == messages.COMPLAINT_PATH:
            return self._complain(place, opened, now)
        if opened.envelope.principal in self.standing.askers:
            raise Refused("a host signs complaints and nothing else", reason="unknown-principal")
        if (asker := self._standing_as(opened, place)) is not None:
            return self._tell_again(asker, now)
        opened.envelope.check_fresh(now, self.limits.delay_max_s, self.limits.skew_max_s)
        try:
            return self._obey(place, opened, now)
        except (Refused, Misuse) as error:
            reason = error.reason if isinstance(error, Refused) else "malformed"
            if reason == "duplicate":  # perhaps somebody else has it sent again
                raise
            self._refused[reason] += 1
            answer = self._answer(opened.envelope.base_hash, now, told=(0, (), (), reason))
            return self._tell(place, answer, opened.ask.key)

    def _key_of(self, who: bytes) -> VerifyKey | None:
        """A principal's key, or of a permit that stands that of its host."""
        asker = self.standing.askers.get(who)
        return self.resolve(who) if asker is None else VerifyKey(asker.ask.key[-PUBLIC_BYTES:])

    def _complain(self, place: PortPiece, opened: messages.OpenedAsk, now: float) -> list[Effect]:
        opened.envelope.check_fresh(now, self.limits.delay_max_s, self.limits.skew_max_s)
        asker = self.standing.askers.get(opened.envelope.principal)
        if asker is None or asker.permit.operation is not Operation.SUBSCRIBE or asker.place != place[:2]:
            raise Refused("a complaint about somebody else's subscription", reason="not-yours")
        self._check_complaints(asker, now)
        self._complained += 1
        return [_ask(FlowRequest(FlowKind.COMPLAIN, one)) for one in asker.flows]

    def _check_complaints(self, asker: Asker, now: float) -> None:
        if self._complaints.charge(asker.permit.identifier, self._complaint_rate, 1, now):
            raise Refused("too many complaints about one subscription", reason="too-many-requests")

    def _standing_as(self, opened: messages.OpenedAsk, place: PortPiece) -> Asker | None:
        """What stands by this very request, from this very port: its host did not hear the answer, or starts again."""
        name = b"" if opened.operation is None else Permit.decode(opened.ask.shown).identifier
        asker = self.standing.askers.get(name)
        asked = None if asker is None or asker.told is None else (asker.request, *asker.place)
        return asker if asked == (opened.envelope.base_hash, *place[:2]) else None

    def _obey(self, place: PortPiece, opened: messages.OpenedAsk, now: float) -> list[Effect]:
        asked, shown, name = Asked(opened.envelope, "", now), opened.ask.shown, opened.envelope.base_hash
        if opened.operation is None:
            self.door.undo(asked, shown)
            done = self._tell(place, self._answer(name, now), opened.ask.key)
            return [*self._withdraw([UndoOrder.decode(shown).identifier]), *done]
        self.door.admit(asked, opened.token, shown, opened.operation)
        asker = Asker(place.switch, place.port, name, opened.ask)
        requests, fallen = self.standing.enter(asker)
        kept = StoreEffect(asker.permit.identifier.hex(), asker.encode())
        return [kept, *self._withdraw(fallen), *map(_ask, requests)]

    def _withdraw(self, names: Sequence[bytes]) -> list[Effect]:
        gone = [_ask(one) for name in names for one in self.standing.withdraw(name)]
        return [*gone, *(StoreEffect(name.hex(), None) for name in names)]

    def _sweep(self, now: float) -> list[Effect]:
        """Withdraw what the ledger does not stand behind any more."""
        self._pieces.give_up(now)
        askers, now_ms = self.standing.askers.items(), int(now * 1000)
        return self._withdraw([name for name, one in askers if not self.is_live(one.permit, now_ms)])

    # --- what goes ---

    def _tell_again(self, asker: Asker, now: float) -> list[Effect]:
        assert asker.told is not None
        answer = self._answer(asker.request, now, asker.permit.not_after_ms, asker.told)
        return self._tell(PortPiece(*asker.place, b""), answer, asker.ask.key)

    def _answer(self, request: bytes, now: float, until_ms: int = 0, told: Told = (0, (), (), "")) -> FabricAnswer:
        return FabricAnswer(self.keys.instance, request, int(now * 1000), until_ms, *told).sign(self.keys.signing)

    def _tell(self, place: PortPiece, answer: FabricAnswer, key: bytes) -> list[Effect]:
        message = messages.seal_answer(answer, key)
        pieces = messages.split_message(messages.ANSWER_KIND, self.keys.node, message, PAYLOAD_BYTES)
        return [Send(CONFIGURATOR, place._replace(payload=one).encode()) for one in pieces]


def _ask(request: FlowRequest) -> Send:
    return Send(CONFIGURATOR, wrap(request))
