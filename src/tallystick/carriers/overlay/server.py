"""The overlay at a node: a relay in a thread of its own, beside a log of what it keeps, and a door for clients' frames.

`carrier = "overlay://NAME"` names the overlay. The node is a relay once a plan on the ledger names it, and serves what
it keeps before and after. Its links have a key of their own, made from the node's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tallystick.carriers.carrier import FRAMES_PATH, Can, join_frames, split_frames
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay.bearings import LedgerBearings
from tallystick.carriers.overlay.content import Strategy
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, ContentLimits
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.keeper import OverlayKeeper
from tallystick.carriers.overlay.keeping import OverlayStorage
from tallystick.carriers.overlay.membership import MembershipLimits
from tallystick.carriers.overlay.places import OrderingLimits
from tallystick.carriers.overlay.relay import OverlayRelay, RelayLimits, RelayName
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.station import RelayStation
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.ledger.contracts.anchors import ANCHORS, RETIRED
from tallystick.ledger.contracts.plans import ENTRUSTED
from tallystick.runtime.disk import Disk, RealDisk
from tallystick.runtime.peers import LinkEnd, PinnedPeer
from tallystick.runtime.role_store import SqliteRoleStore
from tallystick.runtime.sources import SystemClock, SystemEntropy
from tallystick.trust.plan import overlay_id
from tallystick.wire import is_identifier

CAN = Can.SENDING | Can.READING
LINK_KEY = "tallystick link key 1"
ATTEMPTS_MAX = 8
CLIENT_FRAMES_MAX = 256  # in one request


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    if not isinstance(disk, RealDisk):
        raise Misuse("a relay keeps what it signed in a file of the operating system")
    named = settings.carrier.removeprefix("overlay://").rstrip("/")
    if not named:
        raise Misuse(f'carrier "{settings.carrier}": which overlay?', hint='carrier = "overlay://NAME"')
    overlay = bytes.fromhex(named) if is_identifier(named) else overlay_id(host.rules.instance, named)
    storage = OverlayStorage(LogStore(disk))
    anchors = {place: one for place, one in host.anchors().items() if one.size <= storage.end(place)}
    front = host.front(storage, storage.log.journal, anchors)
    bearings = LedgerBearings(host.rules, overlay, host.block, storage.end, front.heads.is_next)
    kept = SqliteRoleStore(disk.root / "relay.sqlite")
    listen, limits = settings.carrier_settings.get("overlay_listen", ""), relay_limits(settings.carrier_settings)

    def start(deliver: Callable[[Any], None]) -> RelayStation | None:
        me, now, height = host.signer.principal, SystemClock().now(), host.block()[0]
        known = bearings.plans()
        past = [first for first, _ in known if first <= height]
        coming = [plan for first, plan in known if first >= max(past, default=height)]  # or in force
        seats = [place for plan in coming if (place := plan.place(me)) is not None]
        if not seats or not past:
            return None
        node, index = seats[-1]
        shelf = RelayShelf(storage, bearings, me)
        name = RelayName(me, host.rules.instance, host.signer.key)
        guard, draw = bearings.guard(host.limits), SystemEntropy().bytes
        relay = OverlayRelay(name, bearings, shelf, guard, draw, kept.items(), now, limits)
        where = PinnedPeer(listen or node.relays[index - 1].address, b"").place
        end = LinkEnd(me.hex(), *where, host.signer.key.derive(LINK_KEY))
        station = RelayStation(end, relay, bearings, kept, lambda value: _keep(value, host.rules, deliver))
        station.start()
        return station

    keeper = OverlayKeeper(host, overlay, storage, front, bearings, start)
    keeper.on_close = kept.close

    def exchange(principal: bytes, body: bytes) -> bytes:
        """A client's frames in, and what there is for it out."""
        frames, station = split_frames(body, CLIENT_FRAMES_MAX), keeper.station
        if station is None:
            raise Unavailable("this relay is in no plan that is in force", retry_after_s=5.0)
        for frame in frames:
            with suppress(Refused):  # the relay counts it
                if (decoded := OverlayFrame.decode(frame)).kind is FrameKind.SHARES:
                    station.relay.secrets.check_new(decoded, SystemClock().now())
        for frame in frames:
            station.hear(principal, frame)
        return join_frames(station.mail.take(principal))

    return Served(front, keeper, {FRAMES_PATH: exchange})


def _keep(value: Any, rules: LedgerRules, deliver: Callable[[Any], None]) -> None:
    """Hand on what a relay delivers. What came for subscribers is kept only if this node's operator carries topics of
    that tenant: a claim is enough to have parcels sent here, and guards see no claims."""
    topic = rules.topic(value.promise.token) if isinstance(value, CarriedParcel) else None
    if topic is None or rules.consents(topic.tenant):
        deliver(value)


def relay_limits(given: Mapping[str, str]) -> RelayLimits:
    """Times, attempts and strategy as node.toml has them; the relays of an overlay should share them."""
    try:
        wait_s = float(given.get("overlay_hop_wait_s", ContentLimits.hop_wait_s))
        keep_s = float(given.get("overlay_hop_keep_s", ContentLimits.hop_keep_s))
        attempts = int(given.get("overlay_attempts_max", ForwardingLimits.attempts_max))
        strategy = Strategy(given.get("overlay_content", Strategy.REPLICAS.value))
    except ValueError as error:
        raise Misuse(
            f"node.toml: {error}", hint='overlay_content is "replicas" or "one copy", the others are numbers'
        ) from error
    if not (0 < wait_s < keep_s and 0 <= attempts <= ATTEMPTS_MAX) or strategy is Strategy.CODED:
        hint = "overlay_hop_wait_s below overlay_hop_keep_s, a few overlay_attempts_max; publishers choose who is coded"
        raise Misuse("node.toml: no relay could work by these settings of its overlay", hint=hint)
    return RelayLimits(
        secrets=ForwardingLimits(hop_wait_s=wait_s, attempts_max=attempts),
        content=ContentLimits(hop_wait_s=wait_s, hop_keep_s=keep_s, strategy=strategy),
        ordering=OrderingLimits(hop_wait_s=wait_s),
        membership=MembershipLimits(hop_keep_s=keep_s),
    )


class RelayShelf:
    """What other relays may catch up with here; for the relay's own thread."""

    def __init__(self, storage: OverlayStorage, bearings: LedgerBearings, me: bytes) -> None:
        self._storage, self._bearings, self._me = storage, bearings, me
        self.end, self.blob = storage.end, storage.blobs.get
        self.check_permit = bearings.check_permit

    def read(self, place: Place, first: int, below: int, bytes_max: int) -> list[bytes]:
        mark = self._storage.tree(place).below if self._storage.end(place) else 0
        if first < mark:
            entries = self._storage.read(place, first, bytes_max, headers_only=True, below=min(below, mark))
        else:
            whole = self._storage.log.read(place, first, bytes_max, below=below)
            entries = self._storage.with_bodies(place, whole, bytes_max)
        return [bytes(entry.parcel) for entry in entries]

    def range_proof(self, place: Place, first: int, end: int, size: int) -> list[bytes] | None:
        if self._storage.end(place) < size:
            return None
        return self._storage.tree(place).range_proof(first, end, size)

    def root_at(self, place: Place, size: int) -> bytes | None:
        row = self._bearings.read(ANCHORS(*place))
        if row is not None and self._storage.root_at(place, row.size) != row.root:
            return None
        return self._storage.root_at(place, size)

    def retired(self, place: Place) -> int:
        mark = self._bearings.read(RETIRED(*place))
        return 0 if mark is None else mark.below

    def sources(self, token: bytes) -> Sequence[bytes]:
        """The others of this virtual node, then those where the topic's parcels enter, who have all bodies; of a topic
        that entered elsewhere before, then everybody."""
        plan, word = self._bearings.newest_plan(), self._bearings.read(ENTRUSTED(token))
        here, entry = plan.place(self._me), b"" if word is None else word.node
        nodes = [*([here[0]] if here else []), *([plan.node(entry)] if plan.has_node(entry) else [])]
        nodes += plan.nodes if word is not None and word.number > 1 else ()
        found = dict.fromkeys(relay.identifier for node in nodes for relay in node.relays)
        return [relay for relay in found if relay != self._me]
