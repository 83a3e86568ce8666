"""A client's share locks: a publisher gives shares of its lane keys to its edge, a reader gathers them from its own.

Threat: relays that keep shares back, or lie about them; a publisher that names another's lock. What comes counts as
`share_ends.py` says, and a secret is kept by its lock and its publisher, so nobody's shares open, or close, what
another sealed.

Or both go to a virtual node of repositories, through which no parcels pass (000, "Out-of-band"): there publishers give,
and readers pull; whoever carries parcels then holds no share at all.

Relays take a lane key within a minute of its making, and keep its shares for an hour, in memory. So a lock is drawn and
given in one step. Where the edge cannot be reached it is drawn all the same, and not *given*: what is sealed under it
stays in the spool, and is sealed again under another when relays are there. Nobody seals without the lock for want of
relays, or whoever cuts a line would choose the locks.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tallystick.carriers.carrier import DrawnShare, OpenedSecrets
from tallystick.carriers.overlay.content import Strategy, parts
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.share_ends import OpenedShares, ShareReceiver, give_shares, pull_shares
from tallystick.carriers.remote import RemoteNode
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused, TallystickError, Unavailable, Withheld
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.parcel.locks import ShareLock, lock_hash
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.plan import Plan

if TYPE_CHECKING:
    from tallystick.carriers.overlay.direct import OverlayCarrier
    from tallystick.carriers.registry import ProvedRows, Wayfarer

log = logging.getLogger(__name__)

LIMITS = ForwardingLimits(publisher_keys_max=4_096)  # of a reader, who keeps little of each
GIVE_S = 5.0  # for f+1 relays to take new shares
GIVE_AGAIN_S, GIVE_AGAIN_MAX_S = 1.0, 60.0  # when others are given after they did not; relays may ask for more
GIVEN_AGAIN_S = (5.0, 15.0, 40.0)  # after their making: relays that were away hear of them so
COLLECT_S = 0.5
PULL_FIRST_S = 0.5  # what is on its way needs no pull; each pull waits twice as long as the one before
OPENED_MAX = 65_536
INBOX_MAX = 16_384

Frames = Mapping[bytes, Sequence[bytes]]  # by relay


class OverlaySharing:
    """Both ends, for one principal at its edge; for any thread."""

    def __init__(self, carrier: OverlayCarrier, who: Wayfarer, view: ProvedRows) -> None:
        self._carrier, self._who, self._view, self._clock = carrier, who, view, who.clock
        self._failed, self._again_at = "", float("-inf")  # why no shares were taken, and when to try again
        self._again: list[tuple[float, Frames]] = []  # when to give these again
        self.opened: OrderedDict[tuple[bytes, bytes], bytes] = OrderedDict()  # by publisher and lock
        self._save: Callable[[OpenedSecrets], object] = lambda opened: None
        self._inbox: deque[tuple[bytes, bytes]] = deque(maxlen=INBOX_MAX)
        self._keys: dict[bytes, VerifyKey | None] = {}
        self._pulls: OrderedDict[bytes, tuple[float, float]] = OrderedDict()  # of a lock: when next, and then when
        self._collect_at, self._lock = 0.0, threading.RLock()
        fixed = self._plan_of, carrier.shares_at, self._key_of, LIMITS
        self._receiver = ShareReceiver(who.principal, who.key, *fixed)
        carrier.on_frames = lambda relay, frames: self._inbox.extend((relay, frame) for frame in frames)

    # --- the publisher's end ---

    def plan_for(self, tokens: Sequence[bytes]) -> Plan | None:
        """The plan under which a lane key of these topics is shared; None where one of them goes another way."""
        rows = [self._carrier.known.entrusted(token) for token in tokens]
        here = all(row is not None and row.overlay == self._carrier.overlay for row in rows)
        return self._carrier.plan() if here else None

    def version_for(self, tokens: Sequence[bytes]) -> int | None:
        plan = self.plan_for(tokens)
        return None if plan is None else plan.version

    def parts(self, body_bytes: int) -> tuple[int, int] | None:
        """A body's code, such that the good relays of each virtual node of the plan hold enough of it."""
        sizes = [len(node.relays) for node in self._carrier.plan().nodes]
        split = parts(Strategy.CODED, body_bytes, sizes, small_bytes=0)
        return split.needed, split.total

    def draw(self, instance: bytes, lane: bytes, tokens: Sequence[bytes], now_ms: int) -> DrawnShare | None:
        """A new share lock of a lane, its shares given to the edge if it can be reached; None for topics that do not
        travel over this overlay."""
        draw, plan = self._who.entropy.bytes, None
        with suppress(Unavailable, Withheld):  # who cannot ask does not know better
            plan = self.plan_for(tokens)
            if plan is None:
                return None
        version = 0 if plan is None else plan.version
        lock = ShareLock(instance, lane, self._carrier.overlay, version, draw(16)).encode()
        if plan is None or self._pause_s() > 0:
            return DrawnShare(lock, draw(32), version, now_ms, False)
        fixed = plan, self._carrier.shares_at, self._who.principal, lock_hash(lock), now_ms, tuple(sorted(tokens))
        made = give_shares(*fixed, draw(32), self._who.key)
        return DrawnShare(lock, made.secret, version, now_ms, self._give(_by_relay(made.effects)))

    def _give(self, frames: Frames) -> bool:
        now = self._clock.monotonic()
        try:
            there, names = self._carrier.relays(self._carrier.shares_at)
            self._carrier.lines.agreed(names, there.faults, self._handing(frames), within_s=GIVE_S)
        except (Unavailable, Refused) as error:
            wait_s = (error.retry_after_s if isinstance(error, Unavailable) else None) or GIVE_AGAIN_S
            told = f"the edge takes no shares of a new lane key: {error}"
            if told != self._failed:
                log.warning("%s", told)
            self._failed = told
            self._again_at = self._clock.monotonic() + min(wait_s, GIVE_AGAIN_MAX_S)
            return False
        with self._lock:
            self._again += [(now + after, frames) for after in GIVEN_AGAIN_S]
        return True

    def give_again(self) -> None:
        """Give what was given lately once more, when it is time; nobody waits for it."""
        now = self._clock.monotonic()
        with self._lock:
            due = [frames for at, frames in self._again if at <= now]
            self._again = [one for one in self._again if one[0] > now]
        for frames in due:
            self._post(frames)

    def check(self) -> None:
        """Raise `Unavailable` unless shares could be given now."""
        if self._pause_s() > 0:
            raise Unavailable(self._failed, retry_after_s=self._pause_s())
        self._carrier.collect()

    def _pause_s(self) -> float:
        return max(0.0, self._again_at - self._clock.monotonic())

    # --- the reader's end ---

    def collect(self) -> None:
        """Have the edge asked for what it has, now and then, and take what came; waits for nobody."""
        now = self._clock.monotonic()
        if now >= self._collect_at:
            self._collect_at = now + COLLECT_S
            self._post({})
        self._take()

    def want(self, publisher: bytes, lock: bytes, permit: bytes) -> bytes | None:
        """The secret of a publisher's lock, if its shares came; if not, they are asked for under this permit."""
        found = self._secret(publisher, lock)
        if found is not None:
            return found
        now = self._clock.monotonic()
        at, wait_s = self._pulls.get(lock, (now + PULL_FIRST_S, PULL_FIRST_S))
        if now >= at:
            self._post(_by_relay(pull_shares(self._carrier.plan(), self._carrier.shares_at, lock, permit)))
            at, wait_s, self._collect_at = now + 2 * wait_s, 2 * wait_s, now + 0.05
        self._pulls[lock] = at, wait_s
        if len(self._pulls) > OPENED_MAX:
            self._pulls.popitem(last=False)
        self.collect()
        return self._secret(publisher, lock)

    def _secret(self, publisher: bytes, lock: bytes) -> bytes | None:
        return self.opened.get((publisher, lock))

    def _take(self) -> None:
        effects: list[Effect] = []
        with self._lock:
            now = self._clock.now()
            effects += self._receiver.wake(now)
            while self._inbox:
                relay, data = self._inbox.popleft()
                with suppress(Refused):
                    frame = OverlayFrame.decode(data)
                    if frame.kind is FrameKind.SHARES:
                        effects += self._receiver.take(frame, relay, now)
            for effect in effects:
                if isinstance(effect, Deliver) and isinstance(effect.value, OpenedShares):
                    self._add(*effect.value)
        frames = _by_relay(effects)
        if frames:
            self._post(frames)

    def keep(self, known: OpenedSecrets, save: Callable[[OpenedSecrets], object]) -> None:
        self.opened.update(known)
        self._save = save

    def _add(self, publisher: bytes, lock: bytes, secret: bytes) -> None:
        self.opened[publisher, lock] = secret
        self._pulls.pop(lock, None)
        if len(self.opened) > OPENED_MAX:
            self.opened.popitem(last=False)
        self._save(self.opened)

    def _plan_of(self, version: int) -> Plan | None:
        with suppress(Unavailable, Withheld):
            return self._carrier.known.plan(self._carrier.overlay, version)
        return None

    def _key_of(self, publisher: bytes) -> VerifyKey | None:
        if publisher not in self._keys:
            try:
                row, _ = self._view.row_at(IDENTITIES(publisher))
            except TallystickError:
                return None
            self._keys[publisher] = None if row is None or row.revoked else VerifyKey(row.key)
            if len(self._keys) > OPENED_MAX:
                self._keys.clear()
        return self._keys.get(publisher)

    # --- how ---

    def _handing(self, frames: Frames) -> Callable[[bytes, RemoteNode], None]:
        return lambda name, node: self._carrier.exchange(name, node, frames.get(name, ()))

    def _post(self, frames: Frames) -> None:
        with suppress(Unavailable, Refused):
            self._carrier.lines.post(self._carrier.relays(self._carrier.shares_at)[1], self._handing(frames))


def _by_relay(effects: Sequence[Effect]) -> dict[bytes, list[bytes]]:
    frames: dict[bytes, list[bytes]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            frames.setdefault(bytes.fromhex(effect.to), []).append(effect.message)
    return frames
