"""One seeded world: publishers, node with guards, log and ledger, authority, subscribers, and everything that can
happen to them.

A run has three parts. The world is set up in calm weather. Then `steps` steps are drawn from the seed: somebody does a
little work, time passes, or something breaks (power of the node or of a publisher, in the middle of a write or between
two; a full disk; a slow ledger; a clock that jumps; keys that rotate; a right that is taken away). At last everything
is mended, the world comes to rest, an honest subscriber reads all from the first offset, and the checker has the last
word. A world that does not come to rest has failed as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tallystick.authority.client import AuthorityClient, Holder, enrol, topic_entries
from tallystick.authority.settings import AuthoritySettings
from tallystick.carriers.carrier import split_frames
from tallystick.carriers.remote import RemoteNode
from tallystick.client.publish import PublisherSettings
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, Unavailable
from tallystick.identity.folder import Identity, Keys
from tallystick.ledger import entries
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.groups import OFFSETS
from tallystick.ledger.fsck import fsck
from tallystick.node.settings import NodeSettings
from tallystick.parcel.parcel import Parcel
from tallystick.record.schema import Schema
from tallystick.runtime.address import Address
from tallystick.runtime.conversation import Attempt, RequestSigner
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import ManualClock, SeededEntropy
from tallystick.runtime.sqlite_vfs import DiskVFS
from tallystick.sim.actors import TOPIC, LossyAuthority, Person, PublisherActor, SubscriberActor, tolerated
from tallystick.sim.checker import Checker, Violation
from tallystick.sim.host import LEDGER, Host
from tallystick.sim.instance import Instance
from tallystick.sim.machine import SkewedClock
from tallystick.sim.sealing import remembered_signatures, seeded_sealing
from tallystick.sim.transport import CALM, URL, NodeLink, RequestNetwork, Weather
from tallystick.trust.certificate import Certificate
from tallystick.trust.right import Right

SCHEMA = "row int64 not null, name string"
PARTITIONS = 2
REST_ROUNDS = 120  # how long a mended world may take to come to rest: a few leases of a group, one after the other
READ = int(Right.READ | Right.DESCRIBE)
WRITE = int(Right.WRITE | Right.DESCRIBE)


@dataclass(frozen=True)
class Outcome:
    """What a run came to; `trace` is the same for the same seed."""

    seed: int
    trace: str
    produced: int
    acknowledged: int
    delivered: int
    crashes: int
    violation: str | None = None


class World:
    def __init__(self, seed: int) -> None:
        self.chooser = random.Random(seed)  # noqa: S311 (a simulation, repeatable by its seed)
        self.seed = seed
        self.clock = ManualClock(1_700_000_000.0)
        self.checker = Checker()
        self._trace = sha256()
        self.node_clock = SkewedClock(self.clock)
        self.instance = Instance.create(int(self.clock.now() * 1000))
        settings = NodeSettings(block_ms=2_000, window_ms=20)
        self.host = Host(self.instance, SeededDisk(seed), self.node_clock, settings, self._check_recovery)
        self.host.on_outcomes, self.host.on_notes = self.checker.store, self.checker.note
        self.network = RequestNetwork(self.chooser, self.clock, self.host.serve, self.pass_time, self._watch)
        self.crashes = self.delivered = 0
        self._up_at = 0.0
        self._set_up()

    # Setting up.

    def _set_up(self) -> None:
        self.host.start()
        node = self.instance.node_keys.certificate
        self._address = Address(URL, node.subject, node.verify_key)
        signer = RequestSigner(self.instance.authority_certificate.subject, self.instance.authority_key)
        entropy = SeededEntropy(f"authority {self.seed}")
        link = NodeLink(self.network, self._address, signer, self.clock, entropy)
        settings = AuthoritySettings(epoch_s=3_600, revoke_s=2, epochs_ahead=1)
        self.authority = self.instance.authority(RemoteNode(link), self.clock, entropy, settings)
        self.authority.work()
        enrolment = self.authority.enrolment
        self.owner = self._person("owner", enrolment.create_tenant("acme"))
        cars = [self._person(f"car {number}", enrolment.invite_to("acme")) for number in range(2)]
        readers = [self._person(name, enrolment.invite_to("acme")) for name in ("reader", "member", "spy")]
        draft = self.owner.authority._inner.bind_topic(TOPIC, Schema.parse(SCHEMA).encode(), PARTITIONS)
        self.token = draft.token
        rights = [entries.grant(self.token, car.identity.principal, WRITE) for car in cars]
        rights += [entries.grant(self.token, reader.identity.principal, READ) for reader in readers]
        self.owner.author.write(*topic_entries(draft, self.owner.holder), *rights)
        self.authority.work()
        self.publishers = [
            PublisherActor(car, number, self._publisher_settings(number), self.checker)
            for number, car in enumerate(cars)
        ]
        reader, member, spy = readers
        self.alone = SubscriberActor(reader, self.checker)
        self.members = [SubscriberActor(member, self.checker, "pipeline") for _ in range(2)]
        self.spy = SubscriberActor(spy, self.checker)
        self.subscribers = [self.alone, *self.members, self.spy]
        for publisher in self.publishers:
            publisher.start()
        for subscriber in self.subscribers:
            subscriber.start()

    @property
    def _people(self) -> list[Person]:
        return [*(one.person for one in self.publishers), *(one.person for one in self.subscribers)]

    def _publisher_settings(self, number: int) -> PublisherSettings:
        return PublisherSettings(
            acks=self.chooser.choice(["stored", "anchored"]),
            linger_s=0.0,
            batch_rows_max=8,
            lanes=1 + number % 2,
            heartbeat_s=self.chooser.choice([5.0, 30.0]),
            lane_parcels_max=self.chooser.choice([3, 1_000]),
            request_parcels_max=self.chooser.choice([1, 3, 64]),
            spool_segment_bytes_max=self.chooser.choice([2_048, 1 << 20]),
        )

    def _person(self, name: str, invite: str) -> Person:
        entropy = SeededEntropy(f"{name} {self.seed}")
        seed = entropy.bytes(32)
        key, sealing = SigningKey.from_seed(seed), hpke.PrivateKey.generate(entropy.bytes(32))
        trust = self.instance.trust
        enrolled = enrol(self.authority, trust.instance, invite, name, key, sealing)
        identity = Identity(
            home=Path(name),
            name=name,
            certificate=Certificate.decode(enrolled.certificate),
            authority=self.instance.authority_certificate,
            nodes=(self.instance.node_keys.certificate,),
            node_urls=(URL,),
            authority_url="",
            trust=trust,
            keys=Keys(seed, sealing.encode()),
        )
        clock = SkewedClock(self.clock)
        holder = Holder(trust.instance, identity.principal, key, sealing, identity.tenant)
        link = NodeLink(self.network, self._address, RequestSigner(identity.principal, key), clock, entropy)
        inner = AuthorityClient(self.authority, self.authority.certificate, holder, entropy)
        authority = LossyAuthority(inner, self.chooser, lambda: self.network.weather.lost_requests)
        disk = SeededDisk(int.from_bytes(entropy.bytes(4), "big"))
        return Person(name, identity, clock, entropy, disk, RemoteNode(link), authority, holder)

    # Running.

    def run(self, steps: int) -> None:
        self.network.weather = self._weather()
        actions = self._actions()
        names, weights = list(actions), [weight for weight, _ in actions.values()]
        for _ in range(steps):
            name = self.chooser.choices(names, weights)[0]
            self._note(name)
            actions[name][1]()
            self.pass_time(self.chooser.choice([0.0, 0.01, 0.1, 0.5, 2.0]))
            if not self.host.is_up and self.clock.monotonic() >= self._up_at:
                self._start_node()
        self._mend()
        self._come_to_rest()
        self._check_end()

    def _actions(self) -> dict[str, tuple[int, Callable[[], object]]]:
        """What may happen, by its name in the trace: how often, and what it is."""
        chooser, some_publisher = self.chooser, self._publisher
        return {
            "publish": (30, lambda: some_publisher().produce(chooser.randint(1, 12))),
            "pump": (30, lambda: some_publisher().pump()),
            "read": (25, lambda: chooser.choice(self.subscribers).poll()),
            "commit_offsets": (6, lambda: chooser.choice(self.members).commit()),
            "node_works": (25, self.node_works),
            "authority_works": (5, self.authority_works),
            "update_keys": (4, lambda: some_publisher().update_keys()),
            # A quiet spell: windows end, heartbeats fall due.
            "time_jumps": (2, lambda: self.pass_time(chooser.choice([10.0, 40.0, 80.0]))),
            "node_loses_power": (2, self.node_loses_power),
            "node_will_lose_power": (4, lambda: self.host.disk.power_off_after(chooser.randint(1, 40))),
            "node_restarts": (1, self.node_restarts),
            "publisher_loses_power": (2, lambda: some_publisher().crash()),
            "publisher_will_lose_power": (3, self.publisher_will_lose_power),
            "publisher_restarts": (2, lambda: some_publisher().stop()),
            "subscriber_restarts": (2, lambda: chooser.choice(self.members).restart()),
            "disk_fills": (2, self.disk_fills),
            "ledger_slows": (2, self.ledger_slows),
            "clock_shifts": (2, self.clock_shifts),
            "keys_rotate": (2, self.keys_rotate),
            "right_is_withdrawn": (1, self.right_is_withdrawn),
            "weather_changes": (2, self.weather_changes),
        }

    def node_works(self) -> None:
        with self._which_may_fall():
            self.host.work()
            self._check_ledger()

    def authority_works(self) -> None:
        with tolerated():
            self.authority.work()

    def node_loses_power(self) -> None:
        if self.host.is_up:
            self.host.crash()
            self._node_is_down()

    def node_restarts(self) -> None:
        if self.host.is_up:
            with self._which_may_fall():
                self.host.stop()
                self._start_node()

    def publisher_will_lose_power(self) -> None:
        self._publisher().person.disk.power_off_after(self.chooser.randint(1, 12))

    def disk_fills(self) -> None:
        disk = self.chooser.choice([self.host.disk, *(one.person.disk for one in self.publishers)])
        disk.fill(self.chooser.choice([None, 0, 700, 5_000]))

    def ledger_slows(self) -> None:
        self.host.is_slow = not self.host.is_slow

    def clock_shifts(self) -> None:
        clocks = [self.node_clock, *(person.clock for person in self._people)]
        self.chooser.choice(clocks).offset_s = self.chooser.uniform(-4.0, 4.0)

    def keys_rotate(self) -> None:
        with suppress(Unavailable, Refused):
            self.owner.authority._inner.rotate(self.token)

    def right_is_withdrawn(self) -> None:
        """The spy loses its right, and with the next epoch its sight."""
        with suppress(Unavailable, Refused):
            self.owner.author.write(entries.withdraw(self.token, self.spy.person.identity.principal, READ))
            self.authority.work()

    def weather_changes(self) -> None:
        self.network.weather = self._weather()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        arrived = self.network.deliver_late()
        if arrived:
            self._note(f"{arrived} late")

    # The end.

    def _mend(self) -> None:
        self.network.weather = CALM
        self.host.is_slow = False
        self.host.disk.fill(None)
        self.node_clock.offset_s = 0.0
        for person in self._people:
            person.clock.offset_s = 0.0
            person.disk.fill(None)
        self.pass_time(120.0)  # whatever was under way arrives, whatever was armed is disarmed
        self.host.disk.disarm()
        for publisher in self.publishers:
            publisher.person.disk.disarm()
        if not self.host.is_up:
            self._start_node()

    def _come_to_rest(self) -> None:
        for _ in range(REST_ROUNDS):
            self.pass_time(1.0)
            self.node_works()
            self.authority_works()
            for publisher in self.publishers:
                publisher.update_keys()
                publisher.pump()
            read = sum(actor.poll() for actor in self.subscribers)
            for member in self.members:
                member.commit()
            waiting = sum(publisher.pending for publisher in self.publishers if publisher.refused is None)
            up = all(one.publisher is not None or one.refused for one in self.publishers)
            if up and not read and not waiting and self._is_read():
                return
        raise Violation(f"the mended world does not come to rest: {waiting} parcels wait, {read} batches were read")

    def _is_read(self) -> bool:
        """Whether all that is stored is anchored, and all that is anchored was read and committed by the group."""
        core = self.host.open_core
        ends = [core.carrier.ends(self.token, partition) for partition in range(PARTITIONS)]
        committed = sum(row.offset for _, row in core.ledger.scan(OFFSETS))
        return all(anchored == end for anchored, end in ends) and committed == sum(end for _, end in ends)

    def _check_end(self) -> None:
        fresh = SubscriberActor(self.alone.person, self.checker)
        fresh.start()
        while fresh.poll():
            pass
        self.checker.finish("an honest subscriber", fresh.rows)
        self.checker.finish("the subscriber that was there all the time", self.alone.rows)
        self.checker.finish("the group", self.members[0].rows | self.members[1].rows)
        self.delivered = len(fresh.rows)
        self.check_ledger_file()

    def check_ledger_file(self) -> None:
        """Stop the node, and replay its ledger from the first block."""
        self.host.stop()
        vfs = DiskVFS(f"fsck-{id(self)}", self.host.disk)
        fsck(LEDGER, self.instance.trust, vfs.vfs_name)

    # Watching.

    def _watch(self, attempt: Attempt) -> None:
        head = attempt.head.split(b"\r\n", 1)[0]
        self._note(head.split(b"?")[0].decode("latin-1"))
        if head.startswith(b"POST") and b"/parcels " in head:
            for data in split_frames(attempt.body):
                self.checker.send(Parcel.decode(data))

    def _check_recovery(self) -> None:
        core = self.host.open_core
        self._note(f"start {core.ledger.height}")
        self.checker.check_log(core)

    def _check_ledger(self) -> None:
        ledger = self.host.open_core.ledger
        self.checker.check_ledger({place: row.size for place, row in ledger.scan(ANCHORS)}, "anchor")
        self.checker.check_ledger({place: row.offset for place, row in ledger.scan(OFFSETS)}, "offset")

    def _note(self, what: str) -> None:
        self._trace.update(f"{self.clock.monotonic():.6f} {what}\n".encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()[:16]

    def _start_node(self) -> None:
        with self._which_may_fall():
            self.host.start()

    @contextmanager
    def _which_may_fall(self) -> Iterator[None]:
        """For what the node does: whenever its power fails, it is up again some time later."""
        try:
            yield
        except Unavailable:
            self._node_is_down()

    def _node_is_down(self) -> None:
        self.crashes += 1
        self._up_at = self.clock.monotonic() + self.chooser.choice([0.0, 1.0, 5.0, 70.0])

    def _publisher(self) -> PublisherActor:
        return self.chooser.choice(self.publishers)

    def _weather(self) -> Weather:
        rough = self.chooser.choice([0, 20, 100])
        return Weather(
            lost_requests=rough,
            lost_answers=self.chooser.choice([0, rough]),
            delayed=self.chooser.choice([0, rough]),
            repeated=self.chooser.choice([0, rough]),
            late_s=self.chooser.choice([1.0, 20.0, 100.0]),
        )


def simulate(seed: int, steps: int) -> Outcome:
    """Run one seed; what went wrong is in the outcome."""
    with seeded_sealing(SeededEntropy(f"sealing {seed}")), remembered_signatures():
        world = World(seed)
        violation = None
        try:
            world.run(steps)
        except Violation as error:
            violation = str(error)
        produced, acknowledged = len(world.checker.produced), len(world.checker.acknowledged)
        return Outcome(seed, world.trace, produced, acknowledged, world.delivered, world.crashes, violation)
