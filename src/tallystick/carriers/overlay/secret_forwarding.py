"""Algorithm 2 with redistribution: how a relay passes the shares of lane keys on, from hop to hop, in time.

Threat: in every virtual node up to f relays are silent, late, early, lie, or tell each receiver something else; they
know everything that is sent to any of them, and choose their moments. Promised, as long as messages between honest
parties arrive within `hop_wait_s` of each other: every authorised subscriber gets the shares that open, and f
relays of each virtual node together learn nothing (`redistribution.py` says why).

*Attempts.* Honest relays hold the same lineages only if they combine the same honest sets. So a lane key travels in
attempts. In each, a relay signs one final set for every branch, the same to all receivers, and receivers combine sets
of one attempt only. A set is final when those of all relays before are in, or when its time is over. Time begins when
a relay first hears of the attempt, which it tells its neighbours at once; it ends after `hop_wait_s` for each hop from
the publisher's edge. Were the wait the same at every hop, a liar who sends early would end it before honest sets that
were waited for one hop earlier arrive. Whoever has no lineage then complains, signed, and so does a subscriber's edge
for a subscriber that cannot open. The complaint is the beginning of the next attempt, for all who hear it: same shares,
twice the wait. There are at most `attempts_max` more, so liars buy a bounded number of rounds.

*Delay.* A set without a lineage is signed by nobody, so it need not be final: it stays open when its time is over, and
is sent as soon as there is one. Where bad relays only fail, or send what does not verify, every key arrives however
late messages are, when all attempts are long over. Relays that tell some in time and others not, can still part honest
ones whose messages are late: a lineage that contains the liar is final.

*Fast path.* In the first attempt only k relays of each virtual node send, chosen by the lane key, and there is one
lineage. If one of them is bad, that costs a complaint and a round.

*Late branches.* Relays keep what they hold until the key retires. A branch that comes later gets the same sets, once:
whoever subscribes over and over makes nobody send again.

*Pulling.* A subscriber that lost what it had asks the relays of its edge, by the lock's name, up to `pulls_max` times,
for what its live permit is for: the ledger says whose it is, and whoever gave it back, or lost it, gets nothing. So a
publisher may also keep its secrets *out of band* (000, "Solution analysis and adaptations"): it gives its shares to a
virtual node through which no parcels go, repositories with one index each.

Deviation from the paper: its Algorithm 2 splits every share again at every hop, so that they multiply
(`experiments/synapse/`); here their number stays. Left out: acknowledgements. What a broken link loses is a
complaint's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tallystick.carriers.overlay.frames import OverlayFrame
from tallystick.carriers.overlay.redistribution import ALONE, Contribution, Threshold, check, combine, reshare
from tallystick.carriers.overlay.relayed_keys import Evidence, ForwardingLimits, RelayedKey, ShareAttempt, SharesMessage
from tallystick.carriers.overlay.surroundings import NOWHERE, Branches, Surroundings
from tallystick.crypto.signatures import Signer
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.runtime.alarms import Alarms
from tallystick.runtime.effects import Deliver, Effect, Send
from tallystick.trust.shares import CANNOT_OPEN, NO_LINEAGE, Complaint, Origin

FULL_AGAIN_S = 30.0  # when a client may try again for which there is no room


class SecretForwarding:
    """What one relay does with shares: a part of its role, told what arrives and when it is time."""

    def __init__(
        self,
        relay: bytes,
        signer: Signer,
        around: Surroundings,
        entropy: Callable[[int], bytes],
        started: float,
        limits: ForwardingLimits = ForwardingLimits(),
    ) -> None:
        self._relay, self._signer, self._around, self._entropy = relay, signer, around, entropy
        self._limits = limits
        self._since_ms = 1000 * (started + limits.skew_max_s)
        self._lanes: dict[bytes, RelayedKey] = {}
        self._of: Counter[bytes] = Counter()  # lane keys, by publisher and by tenant
        self._alarms: Alarms[tuple[bytes, int | None]] = Alarms()  # when an attempt, or with None a lane key, ends
        self.dropped: Counter[str] = Counter()

    def take(self, frame: OverlayFrame, sender: bytes, now: float) -> list[Effect]:
        """A frame. What is not well-formed, known, fresh or signed is dropped, counted by reason."""
        effects: list[Effect] = []
        try:
            message = SharesMessage.decode(frame)
            lane = self._lane(message.read_origin(frame), sender, now, effects)
            if message.complaint is not None:
                self._hear(lane, message.complaint, sender, now, effects)
            if (contribution := message.read_shares()) is not None:
                self._receive(lane, contribution, sender, now, effects)
        except Refused as error:
            self.dropped[error.reason] += 1
        return effects

    def wake(self, now: float) -> list[Effect]:
        """End what is over."""
        effects: list[Effect] = []
        for key, number in self._alarms.due(now):
            lane = self._lanes.get(key)
            if lane is not None and number is None:
                del self._lanes[key]
                self._of -= Counter(lane.accounts)
            elif lane is not None and number is not None and lane.attempts[number].held is None:
                self._finish(lane, number, now, effects)
        return effects

    def serve(self, token: bytes) -> list[Effect]:
        """Bring branches that are new what there is of a topic's lane keys."""
        effects: list[Effect] = []
        for lane in self._lanes.values():
            fresh = self._fresh(lane) if token in lane.origin.tokens else NOWHERE
            if fresh != NOWHERE:
                self._tell(lane, None, fresh, effects)
                for number, attempt in lane.attempts.items():
                    if attempt.complaint is not None:
                        self._tell(lane, attempt.complaint, fresh, effects)
                    if lane.is_turn(number):
                        self._send(lane, number, fresh, effects)
        return effects

    def pull(self, frame: OverlayFrame, subscriber: bytes, now: float) -> list[Effect]:
        """A subscriber asks for the shares of a lock, by the lock's name and its own live permit. Two publishers may
        name one lock: it gets those of all that the permit is for. Raises `Refused`."""
        fields, effects = frame.fields("pull", 3), list[Effect]()
        lock, permit = fields.octets(32), fields.octets(16)
        named = [lane for lane in self._lanes.values() if lane.origin.lock == lock]
        for lane in (one for one in named if self._may_pull(one, subscriber, permit, now)):
            lane.pulls[subscriber] += 1
            for number in lane.attempts if lane.pulls[subscriber] <= self._limits.pulls_max else ():
                self._send(lane, number, Branches((), (subscriber,)), effects)
        if not effects:
            raise Refused("pull: nothing of this lock is here for this permit, or not again", reason="no-right")
        return effects

    def _may_pull(self, lane: RelayedKey, subscriber: bytes, permit: bytes, now: float) -> bool:
        around = self._around
        return not around.has_ended(permit) and around.may_pull(subscriber, permit, lane.origin.tokens, now)

    def _lane(self, origin: Origin, sender: bytes, now: float, effects: list[Effect]) -> RelayedKey:
        lane = self._lanes.get(origin.lane_key)
        if lane is not None and lane.origin.body == origin.body:
            return lane
        key = self._around.key_of(origin.publisher)
        if key is None:
            raise Refused("share origin: its publisher is not known", reason="unknown-principal")
        origin.verify_by(key)
        if lane is not None:
            effects.append(Deliver(Evidence(origin.publisher, "two-origins", (lane.encoded, origin.encode()))))
            raise Refused("share origin: the publisher signed another one", reason="contradiction")
        lane = self._lanes[origin.lane_key] = self._new_lane(origin, sender, now)
        self._of.update(lane.accounts)
        self._alarms.set(now + self._limits.keep_s, (origin.lane_key, None), effects)
        self._tell(lane, None, self._branches(lane), effects)
        self._begin(lane, 0, None, now, effects)
        return lane

    def _new_lane(self, origin: Origin, sender: bytes, now: float) -> RelayedKey:
        limits, age_s = self._limits, now - origin.created_ms / 1000
        if age_s > limits.delay_max_s + limits.skew_max_s or self._is_older(origin):
            raise Refused("share origin: too old, or older than this relay", reason="stale")
        if age_s < -limits.skew_max_s:
            raise Refused("share origin: made in the future", reason="future")
        plan = self._around.plan(origin.plan)
        place = None if plan is None else plan.place(self._relay)
        if plan is None or place is None:
            raise Refused(f"share origin: plan {origin.plan} does not count here", reason="plan")
        here, index = place
        path = plan.path(origin.edge, here.identifier)
        if len(origin.commitments) != path[0].need:
            raise Malformed("share origin: not as many commitments as its virtual node needs")
        if not self._around.may_publish(origin.publisher, origin.tokens):
            raise Refused("share origin: its publisher has no right", reason="no-right")
        self._check_room(origin.publisher, tenant := self._around.share_of(origin.publisher))
        accounts = frozenset({origin.publisher, tenant})
        lane = RelayedKey(origin, origin.encode(), plan, path, index, self._entropy(32), accounts)
        if sender not in lane.sources:
            raise Refused("share origin: not from the virtual node before this one", reason="misrouted")
        return lane

    def _check_room(self, publisher: bytes, tenant: bytes, spare: int = 0) -> None:
        """Raise `Refused` if there is none for one more: a tenant with many publishers would fill all relays."""
        most = {tenant: self._limits.tenant_keys_max, publisher: self._limits.publisher_keys_max}
        for who, limit in most.items():
            if self._of[who] >= limit - spare:
                told = f"{limit - spare} lane keys of its {'publisher' if who == publisher else 'tenant'} are kept here"
                raise Refused(f"share origin: {told}, each for {self._limits.keep_s:g} s: no more", reason="full")

    def check_new(self, frame: OverlayFrame, now: float) -> None:
        """Raise `Unavailable` where a lane key that a client gives would be dropped for now. It must hear so, or it
        would seal under a lock of which nobody has shares. From any thread. Raises `Refused` too."""
        origin = SharesMessage.decode(frame).read_origin(frame)
        if origin.lane_key in self._lanes:
            return
        if 1000 * now < self._since_ms:
            raise Unavailable("this relay has just begun, and takes no shares yet", retry_after_s=1.0)
        try:
            self._check_room(origin.publisher, self._around.share_of(origin.publisher), self._limits.spare_keys)
        except Refused as error:
            raise Unavailable(str(error), retry_after_s=FULL_AGAIN_S) from error

    def _is_older(self, origin: Origin) -> bool:
        """Than this relay: what it signed in an earlier life is forgotten, and to sign once more would convict it."""
        return origin.created_ms < self._since_ms

    def _begin(self, lane: RelayedKey, number: int, complaint: bytes | None, now: float, effects: list[Effect]) -> None:
        attempt = lane.attempts[number] = ShareAttempt(complaint)
        if lane.before is not None:
            self._alarms.set(now + self._wait_s(len(lane.path) - 1, number), (lane.origin.lane_key, number), effects)
        elif lane.attempts[0].came:  # the edge holds the publisher's share already
            attempt.came = lane.attempts[0].came
            self._finish(lane, number, now, effects)

    def _wait_s(self, depth: int, number: int) -> float:
        return depth * self._limits.hop_wait_s * (1 << number)

    def _hear(self, lane: RelayedKey, encoded: bytes, sender: bytes, now: float, effects: list[Effect]) -> None:
        """A complaint, by which the next attempt begins."""
        complaint = Complaint.decode(encoded)
        number = complaint.attempt + 1
        if number > self._limits.attempts_max or number in lane.attempts:
            return
        if (complaint.lane_key, complaint.plan) != (lane.origin.lane_key, lane.origin.plan):
            raise Malformed("complaint: about another lane key")
        if complaint.index == 0:
            key = self._around.key_of(complaint.place)
            if sender != complaint.place or key is None or sender not in self._branches(lane).subscribers:
                raise Refused("complaint: not of a subscriber here", reason="no-right")
            complaint.verify_by(key)
            encoded = self._complain(lane, complaint.attempt, CANNOT_OPEN)
        else:
            node = lane.plan.node(complaint.place)
            if complaint.index > len(node.relays):
                raise Malformed("complaint: of a relay that the plan has not")
            complaint.verify_by(node.key(complaint.index))
        self._spread(lane, encoded, number, now, effects)

    def _complain(self, lane: RelayedKey, number: int, reason: int, liars: tuple[int, ...] = ()) -> bytes:
        what = lane.origin.lane_key, lane.origin.plan, number, lane.here.identifier, lane.index, reason, liars
        return Complaint(*what).sign(self._signer).encode()

    def _spread(self, lane: RelayedKey, complaint: bytes, number: int, now: float, effects: list[Effect]) -> None:
        """Tell all neighbours, so that the attempt begins everywhere at nearly the same time."""
        nodes, subscribers = self._branches(lane)
        back = (lane.before.identifier,) if lane.before else ()
        self._tell(lane, complaint, Branches((*nodes, *back), subscribers), effects)
        self._begin(lane, number, complaint, now, effects)

    def _receive(self, lane: RelayedKey, sent: Contribution, sender: bytes, now: float, effects: list[Effect]) -> None:
        shares = sent.shares
        attempt = lane.attempts.get(shares.attempt)
        if attempt is None:
            raise Refused("share set: of an attempt that has not begun", reason="early")
        if sender not in lane.sources[shares.sender - 1 : shares.sender]:
            raise Refused("share set: not from the relay that it names", reason="misrouted")
        key = lane.before.key(shares.sender) if lane.before else self._around.key_of(sender)
        if key is None:
            raise Refused("share set: its sender is not known", reason="unknown-principal")
        for one in sent:
            one.verify_by(key)
        known = attempt.came.get(shares.sender)
        if known is not None:
            if known.shares.contradicts(shares):
                effects.append(Deliver(Evidence(sender, "two-sets", (known.shares.encode(), shares.encode()))))
                raise Refused("share set: the sender signed another one", reason="contradiction")
            return
        if not attempt.is_open() or shares.sender not in lane.senders(shares.attempt):
            raise Refused("share set: too late, or not its turn", reason="late")
        attempt.came[shares.sender] = check(lane.hop_here(shares.attempt), sent, lane.index)
        if attempt.held is None and len(attempt.came) < len(lane.senders(shares.attempt)):
            return
        for number, begun in list(lane.attempts.items()):
            if begun is attempt or lane.before is None:  # at the edge the publisher's one share is for every attempt
                begun.came = attempt.came
                self._finish(lane, number, now, effects)

    def _finish(self, lane: RelayedKey, number: int, now: float, effects: list[Effect]) -> None:
        """Make the set final: combine what came, and send it on or complain."""
        attempt = lane.attempts[number]
        among = [lane.senders(0)] if number == 0 or lane.before is None else None
        hop = lane.hop_here(0 if lane.before is None else number)
        attempt.held, liars = combine(hop, attempt.came.values(), lane.index, among)
        for index in liars:
            one, sender = attempt.came[index], lane.sources[index - 1]
            effects.append(Deliver(Evidence(sender, "false-share", (one.shares.encode(), one.list.encode()))))
        if attempt.held:
            if lane.is_turn(number):
                self._send(lane, number, self._branches(lane), effects)
        elif lane.before is not None and number < self._limits.attempts_max and number + 1 not in lane.attempts:
            complaint = self._complain(lane, number, NO_LINEAGE, tuple(sorted(liars)))
            self._spread(lane, complaint, number + 1, now, effects)

    def _branches(self, lane: RelayedKey) -> Branches:
        before = None if lane.before is None else lane.before.identifier
        return self._around.branches(lane.origin.tokens, before)

    def _fresh(self, lane: RelayedKey) -> Branches:
        """Those of them that have not heard of the lane key."""
        nodes, subscribers = self._branches(lane)
        return Branches(*(tuple(one for one in some if one not in lane.told) for some in (nodes, subscribers)))

    def _tell(self, lane: RelayedKey, complaint: bytes | None, branches: Branches, effects: list[Effect]) -> None:
        """All relays of these branches hear of the lane key, or of a complaint, and so do subscribers here."""
        frame = SharesMessage(lane.encoded, complaint).frame(lane.origin.plan)
        nodes, subscribers = branches
        lane.told.update(nodes, subscribers)
        relays = [name for branch in nodes for name in lane.plan.node(branch).names]
        effects += [Send(name.hex(), frame) for name in (*relays, *subscribers)]

    def _send(self, lane: RelayedKey, number: int, branches: Branches, effects: list[Effect]) -> None:
        attempt = lane.attempts[number]
        nodes = [lane.plan.node(branch) for branch in branches.nodes]
        to = [(node.identifier, Threshold.of(node), node.names) for node in nodes]
        to += [(subscriber, ALONE, (subscriber,)) for subscriber in branches.subscribers]
        for branch, receivers, names in to if attempt.held else ():
            hop = lane.hop_to(branch, receivers, number)
            shares, lists = reshare(attempt.held or (), hop, lane.index, lane.erasable)
            signed = shares.sign(self._signer).encode()
            for index, name in enumerate(names, start=1):
                mine = lists[index].sign(self._signer).encode()
                message = SharesMessage(lane.encoded, attempt.complaint, signed, mine)
                effects.append(Send(name.hex(), message.frame(lane.origin.plan)))
