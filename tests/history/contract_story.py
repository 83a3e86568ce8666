"""The history of the contracts' second versions: a ledger on which all of the release was activated at one height.

The folders of versions began before there was anything to activate. Here a small world (`ledger_world`), whose keys
come from names, writes every kind of entry that a second version has, or a contract that came later, at fixed times:
once activated, each of their rules leaves something behind. `make_history.py contracts-2` puts it away. The root's
signatures are drawn, so a second run writes other bytes of the same things.
"""

from __future__ import annotations

from pathlib import Path

from firmware_world import OTHER_CAMPAIGN, OTHER_IMAGE, SOAK_MS, FirmwareWorld
from ledger_world import HOME, HOSPITAL, NOW_MS, Actor, World, refusal, request, seed, token
from overlay_ledger import EDGE, OVERLAY, OverlayWorld, anchored, dealt, falsified, ordered, originated

from tallystick.ledger import entries
from tallystick.ledger.contracts import groups
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS
from tallystick.ledger.contracts.retention import Retention
from tallystick.ledger.contracts.topics import Terms
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.promise import Promise
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
GROUP, MEMBER = seed("group")[:16], seed("process 1")[:16]
SHIFT, RANK = seed("shift")[:16], seed("rank")[:16]
FAR = 1 << 40


class ContractStory:
    def __init__(self, folder: Path) -> None:
        self.world = world = World()
        self.node, self.other = world.node, world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
        (folder / "node").mkdir(parents=True)
        (folder / "trust.json").write_text(world.trust.to_json(), encoding="utf-8")
        self.time_ms = NOW_MS
        self.ledger = SqliteLedger(str(folder / "node" / "ledger.sqlite"), world.trust, world.ledger_key, NOW_MS)

    def tell(self) -> None:
        for transaction in self.world.founding():
            self._submit(transaction.data)
        self.activate()
        self.make_topics()
        self.anchor_and_let_go()
        self.hold_to_promises()
        self.operate()
        self.grant_attributes()
        self.read_as_a_group()
        self.travel_over_relays()
        self.update_a_fleet()
        self.change_settings()
        self.ledger.close()

    def write(self, who: Actor, *written: bytes) -> None:
        """A block of its own for what must be accepted, a second after the last."""
        self._submit(who.sign(*written).data)

    def _submit(self, data: bytes) -> None:
        self.time_ms += 1_000
        self.ledger.submit(data, self.time_ms)
        self.ledger.flush(self.time_ms)

    def activate(self) -> None:
        """Everything of the release, at one height."""
        authority, height = self.world.authority, self.ledger.height + 3
        self.write(authority, *(entries.activate(*one, height) for one in newest().items()))
        while self.ledger.height < height:
            self.ledger.flush(self.time_ms)

    def make_topics(self) -> None:
        world = self.world
        doctor, landlord, instance = world.doctor, world.landlord, world.instance
        self.write(self.other, entries.enrol(self.other.certificate))
        self.gas, self.old = world.bind("gas", HOME), world.bind("old", HOSPITAL)
        terms = Terms(keep_parcels=2, anchor_pace_ms=100)
        self.write(landlord, world.topic("gas", landlord, HOME, partitions=2, binding=self.gas, terms=terms))
        self.write(doctor, world.topic("old", doctor, HOSPITAL, binding=self.old))
        self.write(doctor, entries.schema(instance, HEART, 2, seed("wider"), doctor.key))
        self.write(doctor, entries.grant(self.old.token, world.monitor.id, int(Right.DELETE)))
        self.write(world.monitor, entries.close_topic(self.old.token))
        self.write(landlord, entries.assign(self.gas.token, 1, [self.other.id]))
        self.write(doctor, entries.retain(HEART, Retention(parcels=2)))

    def anchor_and_let_go(self) -> None:
        for size in (3, 5):
            self.write(self.node, entries.anchor(HEART, 0, size, seed(f"root {size}")))
        self.write(self.node, entries.retire(HEART, 0, 3, seed("root 3")))
        self.write(self.world.doctor, entries.release(HEART, 0, 5))
        self.write(self.node, entries.retire(HEART, 0, 5, seed("root 5")))
        self.write(self.node, entries.notarise(AIR, 0, 2, seed("air 2"), before=0))

    def hold_to_promises(self) -> None:
        place = (self.gas.token, 0, 9, seed("parcel"))
        never = Promise(self.world.instance, self.node.id, *place, self.ledger.height, self.time_ms)
        self.time_ms += 61_000
        self.write(self.world.landlord, entries.broken_promise(never.sign(self.node.key)))

    def operate(self) -> None:
        """An accepted request, and two of one who has no right: within a window they count once."""
        world, publisher = self.world, OperatorRole.PUBLISHER
        self.write(world.doctor, entries.grant(HEART, world.monitor.id, int(Right.WRITE)))
        accepted = {"time_ms": self.time_ms, "request": seed("request"), "host": "10.0.0.7", "first": 5, "end": 6}
        self.write(self.node, entries.operation(world.monitor.id, publisher, HEART, int(Right.WRITE), **accepted))  # type: ignore[arg-type]
        for nonce in range(2):
            asked = request(world.sensor, self.node, now=self.time_ms // 1000, nonce=nonce)
            self.write(self.node, refusal(world.sensor, asked))

    def grant_attributes(self) -> None:
        """To another tenant's principal, which lets go of one and wants no more."""
        world, sensor = self.world, self.world.sensor
        for pseudonym in (SHIFT, RANK):
            self.write(world.doctor, entries.grant_attribute(HOSPITAL, sensor.id, pseudonym, seed("commitment")))
        self.write(world.doctor, entries.withdraw_attribute(HOSPITAL, sensor.id, SHIFT))
        self.write(sensor, entries.drop_attribute(HOSPITAL, sensor.id, RANK))
        self.write(sensor, entries.refuse_attributes(sensor.id, HOSPITAL))
        self.write(world.authority, entries.attribute_epoch(1, seed("attribute key"), self.time_ms))
        self.write(world.authority, entries.announce_key(HEART, RANK, seed("policy key")))

    def read_as_a_group(self) -> None:
        world, may = self.world, int(Right.READ | Right.DESCRIBE)
        for one in (world.landlord, world.sensor):
            self.write(world.landlord, entries.grant(AIR, one.id, may))
        self.write(world.landlord, entries.group(GROUP, 10_000, [AIR]))
        self.write(world.sensor, entries.join(GROUP, MEMBER))
        found = self.ledger.query(lambda state: groups.find(state, GROUP))
        assert found is not None
        moved = {"fence": found.fence, "old": 0, "new": 2}
        self.write(world.sensor, entries.commit_offset(GROUP, MEMBER, AIR, 0, **moved))
        self.write(world.landlord, entries.reset_offset(GROUP, AIR, 0, fence=found.fence, old=2, new=1))
        self.write(world.sensor, entries.leave(GROUP, MEMBER))

    def travel_over_relays(self) -> None:
        """An overlay with two plans; the topic `air` is ordered by a relay until the others suspect it; proofs of all
        kinds."""
        world = self.world
        overlay = OverlayWorld(world, {"hub": "", "edge": "hub"})
        self.write(world.authority, *overlay.enrolment(), overlay.founding())
        for version in (1, 2):
            first = self.ledger.height + 1 + MARGIN_BLOCKS
            self.write(overlay.administrators[0], overlay.signed(overlay.plan(version), first))
            while self.ledger.height < first:
                self.ledger.flush(self.time_ms)
        self.write(world.landlord, entries.entrust(AIR, OVERLAY, EDGE, 60_000))
        one, two, three = overlay.edge
        self.write(one, entries.lease(AIR, 0, 1))
        self.write(one, anchored(overlay, 3, seed("air 3"), token=AIR, plan=2, before=2))
        for accuser in (two, three):
            self.write(accuser, entries.suspect(OVERLAY, 2, one.id))
        self.write(two, entries.lease(AIR, 0, 2))
        forger, second, _ = overlay.hub
        forked = [dealt(forger, story=story)[0] for story in ("", "another")]
        self.write(world.sensor, entries.two_sets(forger.id, forger.key.public.raw, forked[0], forked[1]))
        shares, lists = dealt(second)
        self.write(
            world.sensor, entries.false_share(second.id, second.key.public.raw, shares, falsified(second, lists[1]), 0)
        )
        told = [originated(world.monitor, story=story) for story in ("", "another")]
        self.write(world.sensor, entries.two_origins(world.monitor.id, world.monitor.key.public.raw, *told))
        placed = [ordered(overlay, parcel, 3, plan=2) for parcel in ("one", "another")]
        self.write(world.sensor, entries.two_orders(three.id, three.key.public.raw, 3, *placed))

    def update_a_fleet(self) -> None:
        """A campaign that fails, is forgiven and goes on until its image is withdrawn; another that is stopped."""
        fleet = FirmwareWorld(self.world)
        for who, written in fleet.founding():
            self.write(who, *written)
        self.write(fleet.image, fleet.release(), fleet.release(OTHER_IMAGE))
        self.write(fleet.owner, fleet.campaign(), fleet.campaign(OTHER_CAMPAIGN, [OTHER_IMAGE]))
        self.write(fleet.director, fleet.report(1, 0, 3, 2))
        self.write(fleet.owner, fleet.resume())
        self.time_ms += SOAK_MS
        self.write(fleet.director, fleet.report(2, 0, 5, 2))
        self.write(fleet.image, fleet.withdraw())
        self.write(fleet.director, fleet.report(3, 1, 6, 2), fleet.stop(OTHER_CAMPAIGN))

    def change_settings(self) -> None:
        authority = self.world.authority
        self.write(authority, entries.set_("tenant_entries", 50_000))
        self.write(authority, entries.activate("writes", 2, FAR), entries.activate("quotas", 2, FAR))
        self.write(authority, entries.withdraw_activation("writes", 2, FAR))
