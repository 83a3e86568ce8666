"""Relays on real sockets, with TLS, each in a thread of its own; and what they read of a real ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from carrying_world import sealed
from ledger_world import NOW_MS, Bench
from makers import INSTANCE
from overlay_ledger import EDGE, HEART, OVERLAY, OverlayWorld, anchored
from overlays import AUTHORITY, GUARD, advertiser, subscriber
from relay_world import HERE, TOKEN, Reader, SimLedger
from sharing_world import chain, key_of, seeded
from shelves import MemoryShelf
from without import without

from tallystick.carriers.overlay.bearings import LedgerBearings
from tallystick.carriers.overlay.claims import holders_key
from tallystick.carriers.overlay.content_forwarding import CarriedParcel
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.places import Lease, Unjudged
from tallystick.carriers.overlay.relay import OverlayRelay, RelayLimits, RelayName
from tallystick.carriers.overlay.relayed_keys import ForwardingLimits
from tallystick.carriers.overlay.share_ends import OpenedShares, give_shares
from tallystick.carriers.overlay.station import HEARD_BYTES_MAX, RelayStation
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.errors import Refused, Unavailable
from tallystick.guards.route import RoutingGuard
from tallystick.ledger import entries
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Send, Woken
from tallystick.runtime.mailboxes import Mailboxes
from tallystick.runtime.peers import LinkEnd, LinkLimits, PinnedPeer
from tallystick.runtime.role_store import SqliteRoleStore
from tallystick.trust.permit import Operation
from tallystick.trust.right import Right

LIMITS = RelayLimits(secrets=ForwardingLimits(hop_wait_s=1.0, skew_max_s=0.0), refresh_s=0.2)
LINKS = LinkLimits(frame_bytes_max=1 << 20, pause_min_s=0.01, pause_max_s=0.1)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


class Everybody:
    """Bearings as far as a station needs them: all relays on loopback are peers."""

    def __init__(self) -> None:
        self.known: dict[str, PinnedPeer] = {}

    def peers(self) -> dict[str, PinnedPeer]:
        return dict(self.known)


class Town:
    """Virtual nodes of relays on loopback, a publisher and a subscriber."""

    def __init__(self, sizes: tuple[int, ...], folder: Path, stack: ExitStack, *, start: bool = True) -> None:
        self.plan = chain(sizes)
        self.publisher = advertiser("car", self.plan.nodes[0].identifier)
        self.reader = subscriber("reader", self.plan.nodes[-1].identifier)
        keys = {one.permit.principal: one.key.public for one in (self.publisher, self.reader)}
        self.ledger = SimLedger([(0, self.plan)], Lease(self.plan.nodes[0].relays[0].identifier, 1), keys)
        self.everybody = Everybody()
        self.delivered: dict[str, list[Any]] = {}
        self.stations = {
            relay.identifier: self._station(relay.identifier, folder, stack)
            for node in self.plan.nodes
            for relay in node.relays
        }
        self.client = Reader(self.reader, {1: self.plan}, self.ledger.keys)
        self.client.receiver._limits = LIMITS.secrets
        if not start:
            return
        for station in self.stations.values():
            station.start()
        wait_for(lambda: all(station._links._loop is not None for station in self.stations.values()))
        for station in self.stations.values():
            station.moved()

    def _pin(self, name: bytes, port: int) -> None:
        self.everybody.known[name.hex()] = PinnedPeer(f"127.0.0.1:{port}", key_of(b"link" + name).public.raw)

    def _end(self, name: bytes) -> LinkEnd:
        return LinkEnd(name.hex(), "127.0.0.1", 0, seed=seeded("key", b"link" + name))

    def _station(self, name: bytes, folder: Path, stack: ExitStack) -> RelayStation:
        store = SqliteRoleStore(folder / f"{name.hex()}.sqlite")
        stack.callback(store.close)
        guard = RoutingGuard(holders_key(lambda one: AUTHORITY if one == AUTHORITY.subject else None), (), GUARD)
        who = RelayName(name, INSTANCE, key_of(name))
        fixed = who, self.ledger, MemoryShelf(), guard
        relay = OverlayRelay(*fixed, lambda n: seeded(name, n)[:n], {}, time.time(), LIMITS)
        told = self.delivered[name.hex()] = []
        holder: list[RelayStation] = []

        def deliver(value: Any) -> None:
            told.append(value)
            if isinstance(value, Unjudged):
                holder[0].propose(value.place, value.parcel)

        station = RelayStation(self._end(name), relay, cast(LedgerBearings, self.everybody), store, deliver, LINKS)
        holder.append(station)
        stack.callback(station.stop)
        self._pin(name, station.port)
        return station

    def say(self, who: bytes, sends: list[Send]) -> None:
        """As the node's own requests bring it."""
        for send in sends:
            self.stations[bytes.fromhex(send.to)].hear(who, send.message)

    def collect(self) -> list[bytes]:
        """The subscriber asks its edge relays what they have, and answers. Returns secrets that it opened."""
        me, effects = self.reader.permit.principal, list(self.client.receive(Woken(), time.time()))
        for relay in self.plan.nodes[-1].relays:
            for frame in self.stations[relay.identifier].mail.take(me):
                effects += self.client.receive(Arrived(relay.identifier.hex(), frame), time.time())
        self.say(me, [one for one in effects if isinstance(one, Send)])
        told = [one.value for one in effects if isinstance(one, Deliver)]
        return [one.secret for one in told if isinstance(one, OpenedShares)]

    def claim(self, claimant: Any) -> None:
        frame = OverlayFrame(FrameKind.ROUTE, 1, claimant.claim(time.time())).encode()
        relays = self.plan.node(claimant.edge).relays
        self.say(claimant.permit.principal, [Send(relay.identifier.hex(), frame) for relay in relays])

    def give(self) -> bytes:
        who = self.publisher.permit.principal
        fixed = self.plan, self.publisher.edge, who, seeded("lock"), int(time.time() * 1000), (TOKEN,)
        given = give_shares(*fixed, seeded("entropy"), self.publisher.key)
        self.say(who, [one for one in given.effects if isinstance(one, Send)])
        return given.secret

    def publish(self, parcels: tuple[Parcel, ...]) -> None:
        for relay in self.plan.nodes[0].relays:
            for parcel in parcels:
                self.stations[relay.identifier].propose(HERE, parcel)

    def carried(self, relay: bytes) -> list[int]:
        told = [one for one in self.delivered[relay.hex()] if isinstance(one, CarriedParcel)]
        return sorted(one.promise.offset for one in told)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_parcels_and_secrets_arrive_over_tls_with_a_relay_of_each_virtual_node_gone(
    tmp_path: Path, stack: ExitStack
) -> None:
    town = Town((3, 3), tmp_path, stack)
    edge = [relay.identifier for relay in town.plan.nodes[1].relays]
    routing = town.stations[town.plan.nodes[0].relays[0].identifier].relay.routing
    town.claim(town.publisher)
    wait_for(lambda: all(one.relay.routing.statistics().live >= 1 for one in town.stations.values()))
    town.claim(town.reader)
    wait_for(lambda: bool(routing.branches([TOKEN], None).nodes))
    wait_for(lambda: all(town.stations[one].relay.routing.subscriptions(TOKEN) for one in edge))
    town.publish(sealed(8)[:4])
    wait_for(lambda: all(town.carried(one) == [0, 1, 2, 3] for one in edge))
    for node in town.plan.nodes:
        town.stations[node.relays[2].identifier].stop()
    secret = town.give()
    town.publish(sealed(8)[4:])
    wait_for(lambda: all(town.carried(one) == list(range(8)) for one in edge[:2]))
    wait_for(lambda: secret in town.collect())
    assert all(station.failure is None for station in town.stations.values())


# --- of a real ledger ---


@pytest.fixture
def standing() -> tuple[Bench, OverlayWorld, LedgerBearings]:
    bench = Bench()
    overlay = OverlayWorld(bench.world)
    overlay.stand(bench)
    rules = LedgerRules(bench.world.instance, bench.state.row)
    return bench, overlay, LedgerBearings(rules, OVERLAY, lambda: (bench.height, NOW_MS))


def test_a_relay_reads_plans_leases_and_rights_of_the_ledger(
    standing: tuple[Bench, OverlayWorld, LedgerBearings],
) -> None:
    bench, overlay, bearings = standing
    world, here = bench.world, Place(HEART, 0)
    assert bearings.newest_plan() == overlay.plan()
    assert [plan.version for _, plan in bearings.plans()] == [1]
    assert set(bearings.peers()) == {one.id.hex() for relays in overlay.relays.values() for one in relays}
    assert bearings.lease(here) is None
    bench.accept(overlay.edge[1].sign(entries.lease(HEART, 0, 1)))
    assert bearings.lease(here) == Lease(overlay.edge[1].id, 1)
    assert bearings.anchored(here) == 0
    bench.accept(overlay.edge[1].sign(anchored(overlay, 3, bytes(32))))
    assert bearings.anchored(here) == 3
    assert not bearings.may_publish(world.monitor.id, [HEART])
    bench.accept(world.doctor.sign(entries.grant(HEART, world.monitor.id, int(Right.WRITE))))
    assert bearings.may_publish(world.monitor.id, [HEART])
    assert bearings.key_of(world.monitor.id) == world.monitor.key.public
    assert not bearings.is_clear(HEART)
    assert bearings.newest_plan().place(overlay.edge[1].id) == (bearings.newest_plan().node(EDGE), 2)


def test_plans_that_matter_are_those_from_the_one_before_the_present_on(
    standing: tuple[Bench, OverlayWorld, LedgerBearings],
) -> None:
    bench, overlay, bearings = standing
    for version in (2, 3, 4):
        overlay.bring_plan(bench, overlay.plan(version))
    assert [plan.version for _, plan in bearings.plans()] == [3, 4]
    ahead = bench.height + 100
    bench.accept(overlay.administrators[0].sign(overlay.signed(overlay.plan(5), ahead)))
    assert [(first, plan.version) for first, plan in bearings.plans()][-1] == (ahead, 5)
    assert bearings.newest_plan().version == 4


def test_whose_permit_it_is_and_for_what_the_ledger_says(standing: tuple[Bench, OverlayWorld, LedgerBearings]) -> None:
    bench, _, bearings = standing
    world, permit, now = bench.world, b"a permit to read", NOW_MS / 1000
    monitor, end_ms = world.monitor.id, NOW_MS + 1000
    assert not bearings.may_pull(monitor, permit, [HEART], now)
    bench.accept(world.doctor.sign(entries.grant(HEART, monitor, int(Right.READ | Right.DESCRIBE))))
    assert not bearings.may_pull(monitor, permit, [HEART], now)
    bench.accept(world.authority.sign(entries.issue_permit(permit, Operation.SUBSCRIBE, HEART, monitor, end_ms)))
    assert bearings.may_pull(monitor, permit, [bytes(16), HEART], now)
    assert not bearings.may_pull(monitor, permit, [bytes(16)], now)
    assert not bearings.may_pull(world.sensor.id, permit, [HEART], now)
    assert not bearings.may_pull(monitor, permit, [HEART], end_ms / 1000)
    assert not bearings.is_ended(permit)
    bench.accept(world.authority.sign(entries.revoke_permit(permit)))
    assert bearings.is_ended(permit)
    assert bearings.share_of(monitor) == bearings.share_of(world.doctor.id) != monitor


def test_whose_parcel_it_is_the_ledger_says(standing: tuple[Bench, OverlayWorld, LedgerBearings]) -> None:
    _, _, bearings = standing
    with pytest.raises(Refused, match="permit is not known"):
        bearings.check_front(sealed(1)[0])


def test_what_nobody_collects_has_a_bound() -> None:
    mail = Mailboxes(boxes_max=2, box_bytes_max=10)
    for number in range(5):
        mail.put(b"a", bytes([number]) * 4)
    assert mail.take(b"a", 4) == [b"\3" * 4]
    assert mail.take(b"a") == [b"\4" * 4]
    assert not mail.take(b"a")
    for name in (b"a", b"b", b"c"):
        mail.put(name, b"x")
    assert (mail.take(b"a"), mail.take(b"c")) == ([], [b"x"])


def test_what_many_do_not_collect_has_a_bound_too() -> None:
    """A megabyte for each of four thousand names would be four gigabytes."""
    mail = Mailboxes(boxes_max=100, box_bytes_max=10, all_bytes_max=25)
    for number in range(50):
        mail.put(bytes([number]), b"0123456789")
        assert mail.bytes <= 25
    assert [bool(mail.take(bytes([number]))) for number in (0, 47, 48, 49)] == [False, False, True, True]
    assert mail.bytes == 0


def test_a_client_that_floods_keeps_no_other_out(tmp_path: Path, stack: ExitStack) -> None:
    """Before the relay runs, so that all of it waits."""
    town = Town((3,), tmp_path, stack, start=False)
    station = next(iter(town.stations.values()))
    flooded = 0
    with suppress(Unavailable):
        while flooded < 20_000:
            station.hear(b"f" * 16, bytes(1_000))
            flooded += 1
    assert flooded < 20_000
    station.hear(b"q" * 16, b"a quiet one's frame")
    assert b"q" * 16 in [bytes.fromhex(client) for client, _ in station._turn()[:2]]
    with without("a pause for who sends the most"):
        for _ in range(flooded):  # nobody is told to come back, and it goes on
            station.hear(b"f" * 16, bytes(1_000))
        assert station._heard.bytes > 1.5 * HEARD_BYTES_MAX
