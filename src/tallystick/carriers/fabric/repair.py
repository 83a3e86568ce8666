"""What parity did not mend: subscribers ask along a reverse label, and the repair goes to all of them at once.

Threat: a thousand subscribers behind one lossy link that all ask at once; a subscriber that has a publisher send its
parcels again and again, to everybody; one that learns where the publisher is. So who misses fragments waits a while
that is drawn at random, and asks only if nothing came meanwhile: what one asked for, all get. It asks a few times, and
gives up. The publisher gathers what is asked for, sends each fragment once in `again_s` and each parcel's a few times
in all, and forgets parcels after `keep_s`. The request goes up under a label of its own, sealed under the carrier key:
nobody else has anything sent again, and what answers it comes as everything comes. It names no place, and shows none.

A parcel that was lost whole is missed when the next one of its flow names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from tallystick.carriers.fabric.fragments import COUNT_MAX, HANDLE_BYTES, FabricKey, FragmentHead, FragmentKind
from tallystick.wire import Fields, encode

A = TypeVar("A")


@dataclass(frozen=True)
class RepairLimits:
    wait_s: float = 0.05  # for fragments on their way, before any is asked for
    spread_s: float = 0.10  # so many seconds at random come on top
    asks_max: int = 4  # for one parcel
    parcels_max: int = 512  # that are asked for at once, also such as are known by their handle alone
    merge_s: float = 0.02  # requests are gathered before they are answered
    again_s: float = 0.10  # before which a fragment does not go again
    rounds_max: int = 6  # answers for one parcel, whoever asks
    keep_s: float = 5.0  # a parcel that was sent, for whoever lacks some of it
    kept_bytes_max: int = 32 << 20


def seal_request(key: FabricKey, handle: bytes, missing: Sequence[int], nonce: bytes) -> bytes:
    """The payload that asks for fragments of a parcel; none of them in particular means all."""
    bits = sum(1 << index for index in set(missing))
    asked = encode([1, handle, bits.to_bytes(-(-bits.bit_length() // 8), "little")])
    return key.seal(FragmentHead(FragmentKind.REPAIR, nonce, epoch=key.sign), asked)


def read_request(opened: bytes) -> tuple[bytes, set[int]]:
    """Raises `Malformed`."""
    fields = Fields.parse(opened, "repair request", 3)
    fields.version(1)
    handle, bits = fields.octets(HANDLE_BYTES), int.from_bytes(fields.octets(at_most=COUNT_MAX // 8), "little")
    return handle, {index for index in range(bits.bit_length()) if bits >> index & 1}


@dataclass
class _Ask(Generic[A]):
    along: A
    since: float
    at: float = 0.0  # infinity: often enough
    asked: int = 0


class RepairTimes(Generic[A]):
    """When a subscriber asks for what it lacks, by handle, and along which way. `random` need not be secret: it spreads
    those who miss the same."""

    def __init__(self, random: Random, limits: RepairLimits = RepairLimits()) -> None:
        self._random, self._limits = random, limits
        self._asks: OrderedDict[bytes, _Ask[A]] = OrderedDict()
        self.lost = 0  # parcels that were asked for in vain

    def expect(self, handle: bytes, along: A, now: float) -> None:
        """Something of a parcel came, or is known to be missing: wait for the rest."""
        ask = self._asks.setdefault(handle, _Ask(along, now))
        ask.along, ask.at = along, ask.at if ask.asked >= self._limits.asks_max else now + self._wait()
        if len(self._asks) > self._limits.parcels_max:
            self._asks.popitem(last=False)

    def came(self, handle: bytes) -> None:
        self._asks.pop(handle, None)

    def due(self, now: float) -> list[tuple[bytes, A]]:
        """What to ask for now; the next time is later."""
        due = [(handle, ask) for handle, ask in self._asks.items() if now >= ask.at]
        for _, ask in due:
            ask.asked += 1
            is_enough = ask.asked > self._limits.asks_max
            self.lost += is_enough
            ask.at = float("inf") if is_enough else now + self._wait() * (1 + ask.asked)
        return [(handle, ask.along) for handle, ask in due if ask.asked <= self._limits.asks_max]

    @property
    def since(self) -> float:
        """When the oldest began of which something may still come; infinity where there is none."""
        return min((ask.since for ask in self._asks.values() if ask.at < float("inf")), default=float("inf"))

    @property
    def next_at(self) -> float | None:
        return min((ask.at for ask in self._asks.values() if ask.at < float("inf")), default=None)

    def _wait(self) -> float:
        return self._limits.wait_s + self._random.uniform(0, self._limits.spread_s)


@dataclass
class _Sent:
    frames: Sequence[bytes]
    at: float
    wanted: set[int] = field(default_factory=set)
    answer_at: float = 0.0
    rounds: int = 0
    gone: dict[int, float] = field(default_factory=dict)  # when each went again


class Resent:
    """What a publisher sent lately, for whoever lacks some of it."""

    def __init__(self, limits: RepairLimits = RepairLimits()) -> None:
        self._limits = limits
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()
        self._bytes = 0
        self.refused = 0  # fragments asked for, and not sent again

    def keep(self, handle: bytes, frames: Sequence[bytes], now: float) -> None:
        self._sent[handle] = _Sent(frames, now)
        self._bytes += sum(map(len, frames))
        self._forget(now)

    def ask(self, opened: bytes, now: float) -> None:
        """Somebody asks for fragments. Raises `Malformed`."""
        handle, missing = read_request(opened)
        one = self._sent.get(handle)
        if one is None or self._has_had_enough(one):
            self.refused += 1
            return
        if not one.wanted:
            one.answer_at = now + self._limits.merge_s
        every = set(range(len(one.frames)))
        one.wanted |= missing & every or every

    def answers(self, now: float) -> list[bytes]:
        """What goes again now."""
        self._forget(now)
        found: list[bytes] = []
        for one in self._sent.values():
            if one.wanted and now >= one.answer_at:
                fresh = [at for at in sorted(one.wanted) if self._may_go(one, at, now)]
                one.gone |= dict.fromkeys(fresh, now)
                one.wanted, one.rounds = set(), one.rounds + 1
                found += [one.frames[at] for at in fresh]
        return found

    def _may_go(self, one: _Sent, index: int, now: float) -> bool:
        return now - one.gone.get(index, float("-inf")) >= self._limits.again_s

    def _has_had_enough(self, one: _Sent) -> bool:
        return one.rounds >= self._limits.rounds_max

    @property
    def next_at(self) -> float | None:
        return min((one.answer_at for one in self._sent.values() if one.wanted), default=None)

    def _forget(self, now: float) -> None:
        while self._sent:
            oldest = next(iter(self._sent.values()))
            if self._bytes <= self._limits.kept_bytes_max and now - oldest.at < self._limits.keep_s:
                return
            self._bytes -= sum(map(len, self._sent.popitem(last=False)[1].frames))
