"""A client's own way to an overlay: the relays of its edge, each asked alone, and none of them believed alone.

Threat: up to f relays of the edge that lie, withhold, or are gone. What changes something (permits, locks, parcels)
goes to all of them at once and counts when f+1 took it, so that one honest relay knows; what became of a parcel,
`tally.py` says. What is only read is asked of one after the other: readers hold it to its anchor, locks and permits to
their names, and `ask_another` when it does not fit. Nobody waits for more relays than it takes.

With a permit goes the principal's claim, by which relays know where it is linked (`claims.py`). Claims are told again
from time to time: relays keep them in memory, and learn from each other only as long as some of them remember.

Where the identity is linked stands in `overlay.json` in its folder (`tally principal overlay`): {"overlay": hex of its
identifier, "edge": hex of the virtual node's, "repositories": that of another, if shares go out of band}. The
identity's node addresses are those of the relays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tallystick.carriers.carrier import Can, Fetch, Fetched, LaneFront, LaneSought, NotStored, Outcome
from tallystick.carriers.overlay.claims import sign_claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.known_plans import KnownPlans
from tallystick.carriers.overlay.lines import Ask, RelayLines
from tallystick.carriers.overlay.sharing import OverlaySharing
from tallystick.carriers.overlay.tally import PublishTally
from tallystick.carriers.registry import ProvedRows, Wayfarer
from tallystick.carriers.remote import RemoteNode
from tallystick.errors import Forged, Misuse, Refused, Unavailable
from tallystick.guards.route import MessageKind
from tallystick.parcel.locks import lock_hash
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import Operation, Permit, UndoOrder
from tallystick.trust.plan import Plan, VirtualNode
from tallystick.trust.promise import JointPromise

T = TypeVar("T")

CAN = Can.ANCHOR | Can.GUARD | Can.PROMISE | Can.KNOW | Can.SELECT | Can.LOCKS
FILE = "overlay.json"  # in the folder of an identity that has its own way to an overlay
CLAIM_AGAIN_S = 120.0
ATTEMPTS_MAX, PAUSE_S, PAUSE_MAX_S = 5, 0.1, 2.0
BEHIND_S = 0.5  # about a block
_CLAIMS = {Operation.ADVERTISE: MessageKind.ADVERTISE, Operation.SUBSCRIBE: MessageKind.SUBSCRIBE}
_UNDOINGS = {Operation.ADVERTISE: MessageKind.UNADVERTISE, Operation.SUBSCRIBE: MessageKind.UNSUBSCRIBE}


class OverlayCarrier:
    """A `Carrier` for a principal that is linked to an edge of an overlay."""

    anchors = True

    def __init__(self, overlay: bytes, edge: bytes, who: Wayfarer, view: ProvedRows, repositories: bytes = b"") -> None:
        """`repositories` is the virtual node that keeps shares out of band, if not the edges do."""
        self.overlay, self.edge, self._who = overlay, edge, who
        self.shares_at = repositories or edge
        self.known = KnownPlans(view, who.clock)
        self.lines = RelayLines(who.node.each())
        self._claimed: dict[bytes, Permit] = {}
        self._claim_at = 0.0
        self.on_frames: Callable[[bytes, list[bytes]], None] = lambda relay, frames: None  # what relays have for us
        self.sharing = OverlaySharing(self, who, view)

    # --- to all relays of the edge ---

    def advertise(self, permit: bytes) -> None:
        self._admit(permit, lambda node: node.advertise(permit))

    def subscribe(self, permit: bytes) -> None:
        self._admit(permit, lambda node: node.subscribe(permit))

    def _admit(self, data: bytes, show: Callable[[RemoteNode], None]) -> None:
        permit, (edge, names) = Permit.decode(data), self.relays()
        frame = self._claim(_CLAIMS[permit.operation], permit)

        def ask(name: bytes, node: RemoteNode) -> None:
            show(node)
            self.exchange(name, node, [frame])

        def ask_all() -> None:
            try:
                self.lines.agreed(names, edge.faults, ask, permit.identifier)
            except Refused as error:
                if error.reason != "permit-ended" or not self.known.is_issued(permit):
                    raise
                told = "the edge's relays are behind the ledger: it has the permit, and they do not know of it yet"
                raise Unavailable(told, retry_after_s=BEHIND_S) from error

        self._patiently(ask_all)
        self._claimed[permit.identifier] = permit

    def undo(self, order: bytes) -> None:
        undone = UndoOrder.decode(order)
        permit = self._claimed.pop(undone.identifier, None)
        frames = [] if permit is None else [self._claim(_UNDOINGS[undone.operation], permit, undone)]

        def ask(name: bytes, node: RemoteNode) -> None:
            node.undo(order)
            self.exchange(name, node, frames)

        self._agreed(ask, undone.identifier)

    def put_locks(self, token: bytes, permit: bytes, locks: Sequence[bytes]) -> None:
        self._agreed(lambda _, node: node.put_locks(token, permit, locks), tuple(map(lock_hash, locks)))

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        """The outcome of each parcel, as far as it counts."""
        self._check_entry(token)
        self.tell_again()
        decoded = [_parcel(data) for data in parcels]
        found = self._patiently(lambda: self._publish(token, parcels, decoded))
        for attempt in range(ATTEMPTS_MAX):
            if not any(map(_is_ahead, found)):
                break
            self._who.clock.pause(PAUSE_S * 2**attempt)
            found = self._publish(token, parcels, decoded)
        return found

    def _check_entry(self, token: bytes) -> None:
        """Raise where a topic's publishers are elsewhere: here nobody would give their parcels a place."""
        word = self.known.entrusted(token)
        if word is None or word.overlay != self.overlay:  # not yet, perhaps
            hint = "its owner lets it travel: tally overlay entrust; or go without: tally principal overlay --off"
            raise Unavailable(f"topic {token.hex()} does not travel over overlay {self.overlay.hex()}", hint=hint)
        if word.node != self.edge:
            hint = "tally principal address names its relays, and tally principal overlay links this identity there"
            raise Misuse(f"publishers of topic {token.hex()} enter at virtual node {word.node.hex()}", hint=hint)

    def _publish(self, token: bytes, parcels: Sequence[bytes], decoded: Sequence[Parcel | None]) -> list[Outcome]:
        edge, names = self.relays()
        tally = PublishTally(decoded, edge, self._check_joint)
        try:
            found: list[Outcome] = self.lines.ask_all(names, lambda _, node: node.publish(token, parcels), tally.take)
        except Unavailable:
            found = tally.outcomes()
            if not found:
                raise
        return found

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Sequence[int]) -> list[list[bytes]]:
        """The paths that f+1 relays show: for what does not fit them a publisher would blame who promised it."""
        return self._agreed(lambda _, node: node.inclusion(token, partition, size, offsets))

    def collect(self) -> None:
        """Ask the relays of the edge what they have for us; more than f must answer."""
        self._agreed(lambda name, node: self.exchange(name, node, ()))

    def tell_again(self) -> None:
        """Tell all relays again where this principal is linked, when it is time; nobody waits for them."""
        self.sharing.give_again()
        now = self._who.clock.monotonic()
        if not self._claimed or now < self._claim_at:
            return
        live = {name: one for name, one in self._claimed.items() if self._now_ms < one.not_after_ms}
        self._claimed, is_first = live, not self._claim_at
        self._claim_at = now + CLAIM_AGAIN_S
        if not is_first:
            frames = [self._claim(_CLAIMS[permit.operation], permit) for permit in live.values()]
            self.lines.post(self.relays()[1], lambda name, node: self.exchange(name, node, frames))

    # --- to one after the other ---

    def fetch(self, wanted: Fetch) -> Fetched:
        self.tell_again()
        return self._first(lambda _, node: node.fetch(wanted))

    def lock(self, name: bytes) -> bytes:
        return self._named(lambda node: node.lock(name), lambda data: lock_hash(data) == name)

    def permit(self, identifier: bytes) -> bytes:
        is_it: Callable[[bytes], bool] = lambda data: Permit.decode(data).identifier == identifier  # noqa: E731
        return self._named(lambda node: node.permit(identifier), is_it)

    def lane_front(self, sought: LaneSought) -> LaneFront | None:
        return self._first(lambda _, node: node.lane_front(sought))

    def verdict(self, token: bytes, partition: int, offset: int) -> str:
        return self._first(lambda _, node: node.verdict(token, partition, offset))

    def ask_another(self) -> int:
        self.lines.ask_another()
        return self._who.node.ask_another()

    def close(self) -> None:
        self.lines.close()

    # --- how ---

    def plan(self) -> Plan:
        return self.known.in_force(self.overlay)

    def relays(self, node: bytes = b"") -> tuple[VirtualNode, list[bytes]]:
        """The edge, or another virtual node, by the plan in force, and those of its relays that this identity has
        addresses of."""
        there = self.plan().node(node or self.edge)
        names = [name for name in there.names if name in self.lines]
        if len(names) <= there.faults:
            raise Misuse(
                f"{len(names)} of the {len(there.relays)} relays of virtual node {there.identifier.hex()} are known by "
                f"their address, {there.faults + 1} are needed",
                hint="tally principal address --node-url … names them all",
            )
        return there, names

    def _agreed(self, ask: Ask[T], key: object = None) -> T:
        edge, names = self.relays()
        return self._patiently(lambda: self.lines.agreed(names, edge.faults, ask, key))

    def _first(self, ask: Ask[T]) -> T:
        edge, names = self.relays()
        return self._patiently(lambda: self.lines.first(names, edge.faults, ask))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask all once more, some times, where too few answered: as with one node, little things pass by themselves."""
        for attempt in range(ATTEMPTS_MAX - 1):
            try:
                return ask()
            except Unavailable as error:
                wait_s = PAUSE_S * 2**attempt if error.retry_after_s is None else error.retry_after_s
                if wait_s > PAUSE_MAX_S:
                    raise
                self._who.clock.pause(wait_s)
        return ask()

    def _named(self, ask: Callable[[RemoteNode], bytes], is_it: Callable[[bytes], bool]) -> bytes:
        def checked(_: bytes, node: RemoteNode) -> bytes:
            data = ask(node)
            if not is_it(data):
                raise Forged("relay: another thing came than was asked for by its name", reason="altered")
            return data

        return self._first(checked)

    def exchange(self, name: bytes, node: RemoteNode, frames: Sequence[bytes]) -> None:
        self.on_frames(name, node.exchange_frames(frames))

    def _claim(self, kind: MessageKind, permit: Permit, order: UndoOrder | None = None) -> bytes:
        who = self._who
        data = sign_claim(kind, self.edge, permit, who.key, who.entropy.bytes(16), self._now_ms, order)
        return OverlayFrame(FrameKind.ROUTE, self.plan().version, data).encode()

    def _check_joint(self, promise: JointPromise) -> bool:
        self.known.check_promise(promise)
        return self.known.is_ahead(promise)

    @property
    def _now_ms(self) -> int:
        return int(self._who.clock.now() * 1000)


def _is_ahead(outcome: Outcome) -> bool:
    """Whether relays wait for an earlier parcel. What one of them promised for all, the others may have yet to hear."""
    return isinstance(outcome, NotStored) and outcome.reason == "ahead"


def _parcel(data: bytes) -> Parcel | None:
    try:
        return Parcel.decode(data)
    except Refused:
        return None  # the relays say why


def reach(settings: Mapping[str, str], who: Wayfarer) -> OverlayCarrier:
    if who.view is None:
        raise Misuse("overlay: who only reads asks its relays over ordinary requests")
    overlay, edge, repositories = (
        bytes.fromhex(settings.get(name, "")) for name in ("overlay", "edge", "repositories")
    )
    return OverlayCarrier(overlay, edge, who, who.view, repositories)
