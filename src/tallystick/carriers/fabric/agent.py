"""The agent: one principal's end of the fabric, without I/O.

It owns a port: what the principal publishes leaves here in fragments under the labels of its flows, and what comes
under the labels of its subscriptions is put together again and delivered (`exchanging.py`). It carries control
messages, which the principal's clients signed and sealed, to the dispatcher, and takes the labels from what comes back.
A probe is sent back as proof that somebody is here (`topology.py`).

Threat: a port that anybody may reach. A publication counts only under a label that the dispatcher told, and opens only
under the key of that label's topic: no keys are tried. An answer counts only if it is the dispatcher's signed word on a
request that left here, and is not older than the one before. All else is counted and dropped, and nothing answers it.

What comes under a subscription's label and does not open, or has other blocks than its header names, was altered on the
way (thesis 7.1.2, use case 4). The agent complains of it to the dispatcher, in its own name and seldom.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric import control as messages
from tallystick.carriers.fabric.exchanging import AgentLimits, AgentRequest, FlowReceiver, FlowSender
from tallystick.carriers.fabric.fragments import FabricKey, FragmentHead, FragmentKind
from tallystick.carriers.fabric.host_kit import HostKeys
from tallystick.carriers.fabric.route import ETHERTYPE_CONTROL, control, ethertype, read_control, read_publication
from tallystick.carriers.fabric.topology import PROBE_KIND, is_probe, prove
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import CannotOpen, Forged, Malformed, Refused, counted
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, WakeAt
from tallystick.runtime.sources import Entropy
from tallystick.trust.envelope import NONCE_BYTES
from tallystick.trust.fabric import DispatcherCard, FabricAnswer
from tallystick.trust.mesh import epoch_at
from tallystick.trust.permit import Operation

WIRE = "wire"


@dataclass(frozen=True)
class AgentStatistics:
    sent: int  # frames
    heard: int
    parcels: int  # put together
    waiting: int  # frames
    dropped: Mapping[str, int]


@dataclass
class FabricAgent:
    """A role: frames from and to `WIRE`, and `Pushed` delivered. What its methods let leave goes with the next event,
    so a driver wakes it."""

    card: DispatcherCard
    keys: HostKeys
    epoch_ms: int
    random: Random  # spreads requests for repair
    entropy: Entropy  # from which handles and nonces come
    limits: AgentLimits = field(default_factory=AgentLimits)

    def __post_init__(self) -> None:
        self._keys: dict[tuple[bytes, int], FabricKey] = {}  # by token and the sign of the epoch
        self.requests: OrderedDict[bytes, AgentRequest] = OrderedDict()  # by the hash of what was signed
        self._receive: dict[tuple[int, bytes], AgentRequest] = {}  # by route epoch and label
        self._leaving: deque[bytes] = deque()
        self._pieces = messages.ControlPieces()
        self._sender = FlowSender(self.entropy, self.limits)
        self._receiver = FlowReceiver(self.random, self.entropy, self.limits)
        self._counts, self._dropped = Counter[str](), Counter[str]()

    # --- what its principal wants ---

    def set_keys(self, keys: Iterable[tuple[bytes, FabricKey]]) -> None:
        """The carrier keys, by topic."""
        self._keys = {(token, key.sign): key for token, key in keys}

    def ask(self, one: AgentRequest, now: float) -> None:
        """Let a request go to the dispatcher, and again until there is an answer."""
        self.requests[one.asked.name] = one
        one.tries, one.again_at = one.tries + 1, now + self.limits.again_s * (1 + one.tries)
        self._send_ask(one.asked)

    def _send_ask(self, asked: messages.SealedAsk) -> None:
        pieces = messages.split_message(messages.REQUEST_KIND, self.card.node, asked.message, self.limits.mtu)
        self._leave(map(control, pieces))

    def publish(self, token: bytes, pushed: Pushed, now: float) -> bool:
        """Let a parcel go. Returns False where there is no key, or no flow."""
        key, one = self._key_at(token, now), self._advertised(token)
        if key is None or one is None:
            self._dropped["not-advertised"] += 1
            return False
        self._leave(self._sender.frames(one, key, pushed, now))
        return True

    def may_publish(self, token: bytes, now: float) -> bool:
        return self._key_at(token, now) is not None and self._advertised(token) is not None

    def forget(self, name: bytes) -> None:
        """The permit behind a request was given back."""
        self.requests.pop(name, None)
        self.learn()

    @property
    def room(self) -> int:
        """How many more frames may wait to leave."""
        return self.limits.waiting_max - len(self._leaving)

    def under_way(self) -> float:
        """Since when the oldest parcel of which something is missing is; infinity where there is none."""
        return self._receiver.times.since

    def statistics(self) -> AgentStatistics:
        counts = self._counts["sent"], self._counts["heard"], self._counts["parcels"]
        dropped = self._dropped + self._receiver.parcels.counts + Counter(lost=self._receiver.times.lost)
        return AgentStatistics(*counts, len(self._leaving), dict(dropped))

    def _key_at(self, token: bytes, now: float) -> FabricKey | None:
        epoch = epoch_at(int(now * 1000), self.epoch_ms)
        found = self._keys.get((token, epoch & 0xFF))
        return found if found is not None and found.epoch == epoch else None

    def _advertised(self, token: bytes) -> AgentRequest | None:
        """The newest advertisement of a topic that has labels."""
        found = (one for one in reversed(self.requests.values()) if one.token == token and one.has_labels)
        return next((one for one in found if one.operation is Operation.ADVERTISE), None)

    def _leave(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            if len(self._leaving) >= self.limits.waiting_max:
                self._dropped["no-room"] += 1
                return
            self._leaving.append(frame)

    # --- the role ---

    def receive(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived):
            self._counts["heard"] += 1
            with counted(self._dropped):
                effects += self._hear(event.message, now)
        self._work(now)
        count = min(self.limits.burst, len(self._leaving))
        self._counts["sent"] += count
        effects += [Send(WIRE, self._leaving.popleft()) for _ in range(count)]
        wake = self._next_at(now)
        return effects if wake is None else [*effects, WakeAt(wake)]

    def _hear(self, frame: bytes, now: float) -> Iterator[Effect]:
        if ethertype(frame) == ETHERTYPE_CONTROL:
            self._hear_control(read_control(frame), now)
            return
        route, payload = read_publication(frame)
        one = self._receive.get((route.epoch, route.label))
        if one is None:
            raise Refused("a label that nobody told", reason="unknown-label")
        key = self._keys.get((one.token, FragmentHead.decode(payload)[0].epoch))
        if key is None:
            raise Refused("no key of this epoch", reason="no-key")
        try:
            pushed = self._open(one, key, payload, now)
        except (CannotOpen, Forged):
            self._complain(one, now)
            raise
        if pushed is not None:
            self._counts["parcels"] += 1
            yield Deliver(pushed)

    def _open(self, one: AgentRequest, key: FabricKey, payload: bytes, now: float) -> Pushed | None:
        head, piece = key.open(payload)
        if one.operation is Operation.ADVERTISE and head.kind is FragmentKind.REPAIR:
            self._sender.sent.ask(piece, now)
        elif one.operation is Operation.SUBSCRIBE and head.kind is FragmentKind.PIECE:
            return self._receiver.take(one, key, head, piece, now)
        return None

    def _complain(self, one: AgentRequest, now: float) -> None:
        if one.operation is Operation.SUBSCRIBE and now >= one.complain_at:
            one.complain_at = now + self.limits.complain_s
            said, nonce = messages.FabricAsk(b"", self.keys.public), self.entropy.bytes(NONCE_BYTES)
            self._send_ask(said.seal(messages.COMPLAINT_PATH, self.card, (one.permit, self.keys.signing), now, nonce))

    def _work(self, now: float) -> None:
        self._pieces.give_up(now)
        self._leave(self._receiver.requests(now))
        self._leave(self._sender.sent.answers(now))
        for one in self._asked():
            if now >= one.again_at:
                self.ask(one, now)

    def _asked(self) -> list[AgentRequest]:
        return [one for one in self.requests.values() if one.tries < self.limits.tries_max]

    def _next_at(self, now: float) -> float | None:
        if self._leaving:
            return now
        times = [self._receiver.next_at, self._sender.sent.next_at, *(one.again_at for one in self._asked())]
        return min((one for one in times if one is not None), default=None)

    # --- control ---

    def _hear_control(self, payload: bytes, now: float) -> None:
        if is_probe(payload):
            self._leave([control(prove(payload))] if payload[1] == PROBE_KIND else ())
            return
        piece = messages.ControlPiece.decode(payload)
        if piece.kind != messages.ANSWER_KIND or piece.party != self.card.node:
            raise Malformed("control piece: not an answer to this host")
        message = self._pieces.add(WIRE, piece, now)
        if message is not None:
            answer = messages.open_answer(message, self.keys.answers, self.card.instance, self._check_answer)
            self._answered(answer, now)

    def _check_answer(self, answer: FabricAnswer) -> None:
        answer.verify_by(VerifyKey(self.card.key))

    def _answered(self, answer: FabricAnswer, now: float) -> None:
        one = self.requests.get(answer.request)
        if one is None:
            raise Refused("an answer that nobody asked for", reason="not-asked")
        self._check_newer(one, answer)
        if one.answer is not None and one.answer.epoch != answer.epoch:
            one.before = one.answer
        one.answer, one.tries = answer, 0
        one.again_at = math.inf if answer.refused or one.operation is None else now + self.limits.refresh_s
        self.learn()

    def _check_newer(self, one: AgentRequest, answer: FabricAnswer) -> None:
        if one.answer is not None and answer.issued_ms < one.answer.issued_ms:
            raise Refused("an answer that is older than another", reason="stale")

    def learn(self) -> None:
        """What comes under which label, by what was answered."""
        told = [(one, said) for one in self.requests.values() for said in (one.before, one.answer) if said is not None]
        self._receive = {(said.epoch, label): one for one, said in told for label in said.receive}
