"""How a relay gets what the ledger anchored and it has not: it came late, was away, or was given other parcels.

Threat: of the relays that it asks, f in every virtual node send junk, parts, very little or nothing, and others ask
without end. Promised: one honest relay among those asked that has it is enough; `proved.py` says what counts.

One relay is asked at a time, the next one after `hop_wait_s`, at once where an answer was bad, round and round with
growing pauses. Who sends little is taken at that little, and the next is asked for the rest: it may be a liar's way of
answering for ever. So a liar costs one question a round, or, where a parcel comes in pieces, one parcel. What was not
asked for is dropped. Any relay of a plan that matters may ask; each gets so many bytes a second, and silence beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from tallystick import wire
from tallystick.carriers.overlay import proved
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.proved import CatchUpAnswer, FoundBlob, ParcelShelf, Proved, Run
from tallystick.carriers.storage import Place
from tallystick.errors import Refused, Unavailable
from tallystick.runtime.effects import Deliver, Effect, Send, WakeAt
from tallystick.runtime.router import Buckets, Rate
from tallystick.wire import Fields

QUESTION_BYTES = 16 << 10  # what a question costs at the least: looking, and proving
ASKERS_MAX = 4_096
OFFSET_MAX = 1 << 63
GIVEN = Rate(16 << 20, 96 << 20)  # at once, more than the largest parcel has


@dataclass(frozen=True)
class CatchUpLimits:
    hop_wait_s: float = 2.0  # for an answer of a megabyte; doubled with every round
    pause_max_s: float = 60.0
    flights_max: int = 4  # questions without an answer
    bodies_max: int = 64  # ranges of which bodies are wanted; beyond it the oldest goes
    names_max: int = 65_536  # of blobs that are wanted, for one topic
    given: Rate = GIVEN  # bytes, to one relay


class _Flight(NamedTuple):
    """A question that was sent to `source`, about `run` or about blobs."""

    source: bytes
    question: bytes
    run: Run | None


@dataclass
class _Errand:
    """Parcels of a partition, or blobs of a topic, that are wanted."""

    token: bytes
    due: float  # when the answer must be here, or else when to ask
    run: Run | None = None
    below: int = OFFSET_MAX  # of the run
    names: dict[bytes, None] = field(default_factory=dict)
    flight: _Flight | None = None
    begun: bytes = b""  # of a parcel that comes in pieces, from one relay
    turn: int = 0
    n_sources: int = 1

    @property
    def is_open(self) -> bool:
        return bool(self.names) or (self.run is not None and self.run.first < min(self.below, self.run.size))

    def rotate(self) -> None:
        """What was asked for last comes last: perhaps nobody has it."""
        for name in list(islice(self.names, proved.NAMES_MAX)):
            self.names[name] = self.names.pop(name)


class CatchingUp:
    """A part of a relay's role, told what is wanted, what arrives and when it is time."""

    def __init__(
        self,
        relay: bytes,
        shelf: ParcelShelf,
        is_relay: Callable[[bytes], bool],
        version: Callable[[], int],
        limits: CatchUpLimits = CatchUpLimits(),
    ) -> None:
        """`is_relay` says who may ask, `version` under which plan to speak."""
        self._relay, self._shelf, self._is_relay, self._version, self._limits = relay, shelf, is_relay, version, limits
        self._errands: dict[Place | bytes | tuple[Place, int], _Errand] = {}
        self._given: Buckets[bytes] = Buckets(ASKERS_MAX)
        self._wake_at = 0.0
        self.dropped: Counter[str] = Counter()

    def want(self, place: Place, first: int, anchor_size: int, root: bytes, now: float) -> list[Effect]:
        """Ask for parcels from `first` on up to what is anchored, instead of what was wanted of this partition before;
        for none where `first` is that size."""
        errand = self._errands.setdefault(place, _Errand(place.token, now))
        if errand.run is not None and errand.run.first != first:
            errand.begun = b""
        errand.run = Run(place, first, anchor_size, root)
        return self.wake(now)

    def want_bodies(
        self, place: Place, first: int, below: int, anchor_size: int, root: bytes, now: float
    ) -> list[Effect]:
        """Ask for parcels again that are here without their bodies, in a range that is anchored."""
        ranges = [key for key, errand in self._errands.items() if errand.below < OFFSET_MAX]
        for key in ranges:
            run = self._errands[key].run
            if run is not None and run.place == place and run.first <= first < self._errands[key].below:
                return []  # they are on their way
        if len(ranges) >= self._limits.bodies_max:
            del self._errands[ranges[0]]
        self._errands[place, first] = _Errand(place.token, now, Run(place, first, anchor_size, root), below)
        return self.wake(now)

    def want_blobs(self, names: Collection[bytes], token: bytes, now: float) -> list[Effect]:
        """Ask for blobs beside those that are wanted already, as many as there is room for."""
        errand = self._errands.setdefault(token, _Errand(token, now))
        errand.names |= dict.fromkeys(islice(names, max(0, self._limits.names_max - len(errand.names))))
        return self.wake(now)

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A question or an answer. What does not fit is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            fields = Fields.parse(frame.content, "catching up", 3)
            fields.version(1)
            question, found = fields.octets(), fields.optional(3)
            if not self._is_relay(sender):
                raise Refused("catching up: not from a relay", reason="no-right")
            if found is None:
                effects.append(self._answer(question, sender, now))
            else:
                effects += self._hear(question, found, sender, now)
        except Refused as error:
            self.dropped[error.reason] += 1
        except Unavailable:
            self.dropped["unavailable"] += 1
        return effects + self.wake(now)

    # --- asking ---

    def wake(self, now: float) -> list[Effect]:
        """Forget what is done, give up waiting, and ask for what waited longest."""
        effects: list[Effect] = []
        self._errands = {key: errand for key, errand in self._errands.items() if errand.is_open}
        # What is begun comes first, so that no more than `flights_max` parcels lie here in pieces.
        errands = sorted(self._errands.values(), key=lambda errand: (not errand.begun, errand.due))
        for errand in errands:
            if errand.flight and errand.due <= now:
                self._fail(errand, now)
        free = self._limits.flights_max - sum(errand.flight is not None for errand in errands)
        for errand in [one for one in errands if not one.flight and one.due <= now][: max(0, free)]:
            self._ask(errand, now, effects)
        due = min((errand.due for errand in errands if errand.due > now), default=now)
        if due > now and not now < self._wake_at <= due:
            self._wake_at = due
            effects.append(WakeAt(due))
        return effects

    def _ask(self, errand: _Errand, now: float, effects: list[Effect]) -> None:
        sources = [one for one in self._shelf.sources(errand.token) if one != self._relay]
        errand.n_sources = max(1, len(sources))
        errand.due = now + self._pause(errand)
        if sources:
            names, run = list(islice(errand.names, proved.NAMES_MAX)), errand.run
            what = [names] if run is None else [*run.place, run.first, run.size, len(errand.begun)]
            errand.flight = _Flight(sources[errand.turn % len(sources)], wire.encode([1, *what]), run)
            effects.append(self._send(errand.flight.source, errand.flight.question, None))

    def _pause(self, errand: _Errand) -> float:
        rounds = min(errand.turn // errand.n_sources, 16)
        return min(self._limits.hop_wait_s * (1 << rounds), self._limits.pause_max_s)

    def _fail(self, errand: _Errand, now: float) -> None:
        """The next one, at once unless all were asked."""
        errand.flight, errand.begun = None, b""
        errand.turn, errand.due = errand.turn + 1, now
        if errand.turn % errand.n_sources == 0:
            errand.due += self._pause(errand)
            errand.rotate()

    def _send(self, to: bytes, question: bytes, answer: CatchUpAnswer | None) -> Send:
        content = wire.encode([1, question, answer])
        return Send(to.hex(), OverlayFrame(FrameKind.CATCH_UP, self._version(), content).encode())

    # --- being answered ---

    def _hear(self, question: bytes, found: Fields, sender: bytes, now: float) -> list[Effect]:
        flying = {one.flight[:2]: one for one in self._errands.values() if one.flight is not None}
        errand = flying.get((sender, question))
        if errand is None or errand.flight is None:
            raise Refused("catching up: an answer to no question", reason="unasked")
        try:
            answer, run = proved.read_answer(found), errand.flight.run
            n_bytes = len(errand.begun) + sum(map(len, answer.parts))
            taken = self._take_blobs(errand, answer) if run is None else self._take_run(errand, run, answer)
        except Refused:
            self._fail(errand, now)
            raise
        errand.flight, errand.due = None, now
        if n_bytes < proved.ANSWER_BYTES // 2 and (run or len(answer.parts) < proved.NAMES_MAX):
            errand.turn += 1 if (errand.turn + 1) % errand.n_sources else 1 - errand.n_sources  # in the same round
        return [*map(Deliver, taken)]

    def _take_blobs(self, errand: _Errand, answer: CatchUpAnswer) -> Sequence[FoundBlob]:
        found = proved.check_blobs(answer.parts, errand.names, self._shelf)
        errand.rotate()
        for name, _ in found:
            errand.names.pop(name, None)
        return found

    def _take_run(self, errand: _Errand, run: Run, answer: CatchUpAnswer) -> Sequence[FoundBlob | Proved]:
        if errand.run is None or errand.run.first != run.first:
            return ()  # something else is wanted by now
        answer = answer._replace(parts=[errand.begun + answer.parts[0], *answer.parts[1:]])
        found = proved.prove(run, answer, self._shelf)
        errand.begun = b"" if found else answer.parts[0]
        errand.run = errand.run._replace(first=run.first + (len(answer.parts) if found else 0))
        return found

    # --- answering ---

    def _answer(self, question: bytes, sender: bytes, now: float) -> Send:
        """What there is of it. Raises `Refused` where the sender had enough for now."""
        if self._given.wait_s(sender, self._limits.given, 0, now):
            raise Refused("catching up: it had its share", reason="full")
        self._given.take(sender, self._limits.given, QUESTION_BYTES, now)
        found = proved.answer(question, self._shelf)
        self._given.take(sender, self._limits.given, sum(len(part) for parts in found for part in parts), now)
        return self._send(sender, question, found)
