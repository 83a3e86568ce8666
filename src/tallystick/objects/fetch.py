"""Fetching an object from several servers at once, of which all but one may be dead, slow or lying. A role.

    seeds of all servers ─► uncle layer ─► slips of each subtree ─► chunks, each server its own subtree first

Threat: servers, the seeder among them, that send anything, late, or nothing. The docket comes from signed metadata,
never from a server. Invariant: the root proves the uncle layer, an uncle the slips of its subtree, a slip its chunk,
and each is proved before the next is asked for. So every wrong answer is found when it comes, nobody but its sender can
have caused it, and the sender is named and asked no more: a lie wastes what was under way, 1 MiB at most. A server that
is merely slow, dead or without the object loses the request (`asking`) and is not named. Idle servers take from busy
ones (`dealing`), so the object arrives while one honest server is there; while none is, the fetch ends in words rather
than never.

The seeder is a convenience (000, "Architecture of Synapse's platform"). Its dealing is advice that is followed only to
servers that the caller named, and only from the highest fence heard of. If every seeder is lost or lies, one server
after another is asked for all slips, which the root itself proves; the layer is then the root alone. There a liar can
waste all slips, a thousandth of the object, where they do not fit into one request.

No chunk that was verified is asked for again. After a crash the driver hands in the slips it kept and a function that
says which chunks lie there: whoever keeps chunks hashes them again, so there is no bitmap that could lie. Slips and
chunks leave as `StoreEffect`, under `SLIPS` and `chunk_key(n)`; nothing is sent that relies on their being durable.

The driver answers for senders: an answer counts as that of the server whose connection it came through.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.objects.asking import FetchLimits, RangeRequest, ServerLane
from tallystick.objects.dealing import Stretches, without_kept
from tallystick.objects.layout import SLIP_BYTES, Docket, Slips, chunks_file, slips_file
from tallystick.objects.outcomes import FENCE, SLIPS, FetchGivenUp, FetchStatistics, ObjectWhole, ServerNamed, chunk_key
from tallystick.objects.ranges import SERVERS_MAX, RangeAnswer, Seed, seed_file, sender_s_fault
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, StoreEffect, WakeAt


class ObjectFetch:
    """Fetches one object. Once the slips are known, `kept` says of each chunk whether it lies here already; `slips` lie
    here, if any do; `fence` is the highest that the caller knows of."""

    def __init__(
        self,
        docket: Docket,
        servers: Sequence[str],
        kept: Callable[[Slips], Sequence[bool]],
        slips: Buffer = b"",
        fence: int = 0,
        limits: FetchLimits = FetchLimits(),
    ) -> None:
        if not 1 <= len(set(servers)) == len(servers) <= SERVERS_MAX:
            raise Misuse(f"fetch: from 1 to {SERVERS_MAX} different servers are expected")
        self._docket, self._kept, self._found, self._fence, self._limits = docket, kept, slips, fence, limits
        # All first lanes stand before the second ones: every server is asked for something before one is for more.
        self._lanes = [ServerLane(name, limits, place > 0) for place in range(limits.lanes) for name in servers]
        self._uncles: dict[int, bytes] = {}  # by the first leaf of a subtree, once there is a layer
        self._owners: list[tuple[int, str]] = []  # the end of each subtree that was dealt, and its server
        self._left: Stretches | None = None  # leaves whose slips, later whose chunks are to be asked for
        self._proved: dict[int, bytes] = {}  # slips, by the first of their subtree
        self._slips = Slips(b"")  # once all are proved
        self._missing = docket.count  # leaves without their slip, later without their chunk
        self._number = self._arrived = self._used = 0
        self._new_at = math.inf  # the last time that something new came; not before the start
        self._wake_at = -math.inf
        self._over = False

    def statistics(self) -> FetchStatistics:
        chunks = self._docket.count - self._missing if self._slips else 0
        named = dict.fromkeys(one.name for one in self._lanes if one.named)
        return FetchStatistics(chunks, self._arrived, self._used, tuple(named))

    def receive(self, event: Event, now: float) -> list[Effect]:
        if self._over:
            return []
        effects: list[Effect] = []
        try:
            if self._new_at == math.inf:
                self._start(now)
            if isinstance(event, Arrived):
                effects += self._hear(event, now)
            effects += self._go_on(now)
        except Malformed as error:  # no server can have made it
            effects += self._end(FetchGivenUp(f"the object contradicts its docket: {error}"))
        return effects

    # --- what comes ---

    def _start(self, now: float) -> None:
        """Slips that lie here make the seeder needless, if they are right."""
        self._new_at = now
        self._number = int(now * 1e6)  # so that no answer to an earlier life is taken for one to this
        with suppress(Forged):  # none, or damaged on our own disk
            self._begin_chunks(self._docket.check_slips(0, self._docket.count, self._docket.root, self._found))

    def _hear(self, event: Arrived, now: float) -> Iterator[Effect]:
        if not any(one.name == event.sender and not one.named for one in self._lanes):
            return
        try:
            with sender_s_fault():
                answer = RangeAnswer.decode(event.message)
            lane = next((one for one in self._lanes if one.awaits(event.sender, answer.number)), None)
            if lane is None or lane.asked is None:
                return  # it comes too late, or twice
            if answer.data is None:
                self._fail(lane, now)
                return
            self._arrived += len(answer.data)
            yield from self._take(lane, lane.asked, answer.data)
        except Forged as error:
            yield from self._name(event.sender, str(error))
            return
        lane.came()
        self._new_at = now
        self._used += len(answer.data)

    def _take(self, lane: ServerLane, asked: RangeRequest, data: Buffer) -> Iterator[Effect]:
        """What an answer brings, as far as it is right. Raises `Forged` where it is not."""
        if asked.file is seed_file:
            yield from self._take_seed(data)
            return
        self._check_length(asked, data)
        if asked.file is slips_file:
            lane.gathered += data
            if asked.at + asked.length == asked.end * SLIP_BYTES:
                data = bytes(lane.gathered)
                lane.gathered.clear()
                yield from self._take_slips(asked, data)
        else:
            yield from self._take_chunks(asked, data)

    def _take_seed(self, data: Buffer) -> Iterator[Effect]:
        with sender_s_fault():
            seed = Seed.decode(data)
        if seed.root != self._docket.root:
            raise Forged("seed: of another object")
        subtrees = self._docket.check_uncles(seed.depth, seed.uncles)
        if not self._is_newest(seed.fence):
            return  # a seeder may not know that its lease has ended: it is not named for it
        self._fence = seed.fence
        yield StoreEffect(FENCE, seed.fence.to_bytes(8, "big"))
        self._owners = [(end, seed.servers[place]) for (_, end), place in zip(subtrees, seed.dealt, strict=True)]
        if self._left is None:
            self._begin_slips(subtrees, seed.uncles)
        else:
            self._left.deal_again(self._owner_of)

    def _take_slips(self, asked: RangeRequest, data: bytes) -> Iterator[Effect]:
        self._docket.check_slips(asked.first, asked.end, self._uncles[asked.first], data)
        self._proved[asked.first] = data
        self._missing -= asked.end - asked.first
        if not self._missing:
            whole = b"".join(self._proved[first] for first in sorted(self._proved))
            yield StoreEffect(SLIPS, whole)
            self._begin_chunks(Slips(whole, docket=self._docket))

    def _take_chunks(self, asked: RangeRequest, data: Buffer) -> Iterator[Effect]:
        view, starts = memoryview(data), self._slips.sealed
        begin = starts[asked.first]
        for number in range(asked.first, asked.end):
            sealed = bytes(view[starts[number] - begin : starts[number + 1] - begin])
            self._slips[number].check(sealed, f"chunk {number}")
            asked.first, self._missing = number + 1, self._missing - 1  # a lie further on takes nothing of it back
            yield StoreEffect(chunk_key(number), sealed)

    def _check_length(self, asked: RangeRequest, data: Buffer) -> None:
        if len(data) != asked.length:
            raise Forged(f"{asked.file.__name__}: {asked.length} bytes were asked for, {len(data)} came")

    def _is_newest(self, fence: int) -> bool:
        """Whether no seeder with a higher fence was heard; of two with one fence the first is followed."""
        return fence > self._fence or (fence == self._fence and not self._owners)

    # --- from one step to the next ---

    def _begin_slips(self, subtrees: Sequence[tuple[int, int]], uncles: Sequence[bytes]) -> None:
        self._uncles = {first: uncle for (first, _), uncle in zip(subtrees, uncles, strict=True)}
        self._left = Stretches(subtrees, self._owner_of, divisible=False)

    def _begin_chunks(self, slips: Slips) -> None:
        self._docket.check_lengths(slips)
        self._slips = slips
        kept = self._kept(slips)
        self._missing = list(kept).count(False)
        # Without a seeder all is one stretch, of which each takes half of what is left.
        edges = [0, *(end for end, _ in self._owners)] if self._owners else [0, len(slips)]
        self._left = Stretches(without_kept(list(pairwise(edges)), kept), self._owner_of, divisible=True)

    def _owner_of(self, leaf: int) -> str:
        """The name to which the subtree of this leaf is dealt; it need not be a server's that the caller knows."""
        return next((name for end, name in self._owners if leaf < end), "")

    def _fail(self, lane: ServerLane, now: float) -> None:
        """A server did not do what it was asked: it rests, and is not named. To have no seed is no failure."""
        asked = self._take_back(lane)
        if asked is None or asked.file is not seed_file or asked.is_overdue(now):
            lane.rest(now)

    def _name(self, server: str, what: str) -> Iterator[Effect]:
        for lane in self._lanes:
            if lane.name == server:
                self._exclude(lane)
                self._take_back(lane)
        yield Deliver(ServerNamed(server, what))

    def _exclude(self, lane: ServerLane) -> None:
        lane.named = True

    def _take_back(self, lane: ServerLane) -> RangeRequest | None:
        asked = lane.take_back()
        if asked is not None and asked.file is not seed_file and self._left is not None:
            self._left.give_back(asked.first, asked.end, lane.name)
        return asked

    def _end(self, outcome: ObjectWhole | FetchGivenUp) -> Iterator[Effect]:
        self._over = True
        yield Deliver(outcome)

    # --- asking ---

    def _go_on(self, now: float) -> Iterator[Effect]:
        """Take back what is overdue, ask whoever is free, and say when to look again."""
        if self._slips and not self._missing:
            yield from self._end(ObjectWhole())
            return
        able = [one for one in self._lanes if not one.named]
        for lane in able:
            if lane.asked is not None and lane.asked.is_overdue(now):
                self._fail(lane, now)
        if not able or self._new_at + self._limits.patience_s <= now:
            why = f"nothing new came for {self._limits.patience_s} s" if able else "every server lied"
            yield from self._end(FetchGivenUp(why))
            return
        if self._left is None and all(one.had_seed_ask and one.asked is None for one in able):
            self._begin_slips([(0, self._docket.count)], [self._docket.root])  # there is no seeder
        for lane in sorted(able, key=lambda one: one.failures):  # what failed elsewhere goes to who did not
            if lane.is_free(now) and (request := self._next(lane)) is not None:
                self._number += 1
                yield lane.ask(self._docket.root, request, self._number, now)
        yield from self._wake(able, now)

    def _next(self, lane: ServerLane) -> RangeRequest | None:
        """What to ask of a free lane."""
        if lane.only_chunks and not self._slips:
            return None
        if self._left is None:
            if lane.had_seed_ask:
                return None
            lane.had_seed_ask = True
            return RangeRequest(seed_file)
        if lane.gathered:  # the rest of the slips that it began to send
            first, end = lane.subtree
        elif (leaves := self._left.take(lane.name, partial(self._reach, lane))) is None:
            return None
        else:
            first, end = lane.subtree = leaves
        if self._slips:
            starts = self._slips.sealed
            return RangeRequest(chunks_file, first, end, starts[first], starts[end] - starts[first])
        at = first * SLIP_BYTES + len(lane.gathered)
        return RangeRequest(slips_file, first, end, at, min(self._limits.ask_bytes_max, end * SLIP_BYTES - at))

    def _reach(self, lane: ServerLane, first: int, end: int) -> int:
        """Up to which leaf one request goes: a subtree's slips, or chunks of so many bytes, and at least one."""
        if not self._slips:
            return end
        starts = self._slips.sealed
        return max(first + 1, min(end, bisect_right(starts, starts[first] + lane.reach) - 1))

    def _wake(self, able: Sequence[ServerLane], now: float) -> Iterator[Effect]:
        """The next deadline, the end of a rest if there is something to ask for, or that of our patience."""
        times = [one.asked.deadline for one in able if one.asked is not None]
        times += [one.rests_until for one in able if one.asked is None and self._left]
        earliest = min((time for time in times if time > now), default=math.inf)
        earliest = min(earliest, self._new_at + self._limits.patience_s)
        if self._wake_at <= now or earliest < self._wake_at:
            self._wake_at = earliest
            yield WakeAt(earliest)
