"""What came with overlays, for `make_entries.py`: as in `entry_cases.py`, on a state of its own: plans take blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from entry_cases import AIR, HEART, NONE, READ, Case, extended
from ledger_world import Actor, Bench, World, seed
from overlay_ledger import EDGE, LEASE_MS, OVERLAY, RIM, OverlayWorld, anchored, dealt, falsified, ordered, originated
from overlay_ledger import TREE as OVERLAY_TREE
from test_contract_anchors_groups import TREE

from tallystick.crypto.merkle import EMPTY_ROOT
from tallystick.ledger import entries
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS
from tallystick.trust.shares import Origin, ShareList

OTHER = seed("another overlay")[:16]
NEAR = {name: parent for name, parent in OVERLAY_TREE.items() if name != "far"}


def standing_overlay(bench: Bench) -> None:
    """What there is before: plan 1 in force, plan 2 to come, `heart` entrusted to it and ordered by the first relay of
    its edge, whom one accuses; a second overlay without a plan; the third relay of the hub told two stories of both
    kinds, and the third of the edge signed two parcels for one place."""
    overlay = OverlayWorld(bench.world, NEAR)
    overlay.stand(bench)
    one, two, _ = overlay.edge
    bench.accept(bench.world.authority.sign(overlay.founding(overlay=OTHER)))
    bench.accept(overlay.administrators[0].sign(overlay.signed(overlay.plan(2), bench.height + 2 * MARGIN_BLOCKS)))
    bench.accept(one.sign(entries.lease(HEART, 0, 1)))
    bench.accept(two.sign(entries.suspect(OVERLAY, 1, one.id)))
    bench.accept(bench.world.doctor.sign(*known_lies(overlay), entries.grant(HEART, bench.world.doctor.id, READ)))


def known_lies(overlay: OverlayWorld) -> list[bytes]:
    liar, three = overlay.hub[2], overlay.edge[2]
    orders = [ordered(overlay, parcel, 3) for parcel in ("a", "b")]
    return [two_stories(liar), two_origins(liar), entries.two_orders(three.id, three.key.public.raw, 3, *orders)]


def two_stories(liar: Actor, lane: str = "lane") -> bytes:
    one, other = dealt(liar, lane)[0], dealt(liar, lane, story="another")[0]
    return entries.two_sets(liar.id, liar.key.public.raw, one, other)


def two_origins(liar: Actor, lane: str = "lane") -> bytes:
    one, other = originated(liar, lane), originated(liar, lane, "another")
    return entries.two_origins(liar.id, liar.key.public.raw, one, other)


class OverlayCases:
    def __init__(self, world: World, height: int) -> None:
        self.world, self.overlay, self.height = world, OverlayWorld(world, NEAR), height
        for one in self.overlay.everybody:
            one.number = 1_000  # above those of what there is before

    def good(self) -> list[Case]:
        world, overlay, first = self.world, self.overlay, self.height + 3 * MARGIN_BLOCKS
        (one, two, three), administrators, liar = overlay.edge, overlay.administrators, overlay.hub[2]
        lists = dealt(two)[1]
        return [
            ("90 the first", world.authority, overlay.founding(overlay=NONE)),
            ("90 others", world.sensor, self.changed(*administrators[:2])),
            ("91 the next", world.sensor, overlay.signed(overlay.plan(3), first)),
            ("91 by all of them", administrators[0], overlay.signed(overlay.plan(3), first, by=administrators)),
            ("92 another topic", world.landlord, entries.entrust(AIR, OVERLAY, RIM, LEASE_MS)),
            ("92 back", world.doctor, entries.take_back(HEART)),
            ("92 by the operator", world.authority, entries.entrust(HEART, OVERLAY, RIM, LEASE_MS)),
            ("93 renewed", one, entries.lease(HEART, 0, 1)),
            ("94 by the holder", one, anchored(overlay, 5, TREE.root(5))),
            ("94 that others signed", one, anchored(overlay, 5, TREE.root(5), signers=(2, 3))),
            ("95 the second of a virtual node", three, entries.suspect(OVERLAY, 1, one.id)),
            ("95 the first of another", overlay.hub[0], entries.suspect(OVERLAY, 1, one.id)),
            ("95 by the owner", world.doctor, self.owner_s_word(one)),
            ("96 two stories", world.sensor, two_stories(two)),
            ("96 a publisher's", world.sensor, two_stories(world.monitor)),
            ("97 a false share", world.sensor, self.false(two, falsified(two, lists[2]))),
            ("97 too few shares", world.sensor, self.false(two, replace(lists[1], encoded=()).sign(two.key))),
            ("98 two stories", world.sensor, two_origins(world.monitor)),
            ("98 another lane key", world.sensor, two_origins(liar, "lane 2")),
            ("99 two parcels", world.sensor, self.orders(two, 2, {}, {"parcel": seed("b")})),
            (
                "99 and other blocks",
                world.sensor,
                self.orders(two, 2, {}, {"parcel": seed("b"), "height": 9, "time_ms": 9}),
            ),
            ("99 a plan to come", world.sensor, self.orders(two, 2, {"plan": 2}, {"plan": 2, "parcel": seed("b")})),
        ]

    def bad(self) -> list[Case]:
        world, overlay, first = self.world, self.overlay, self.height + 3 * MARGIN_BLOCKS
        (one, two, three), first_one = overlay.edge, overlay.administrators[0]
        shares, lists = dealt(two)
        forged, foreign = replace(originated(two), created_ms=8).sign(three.key), {"instance": seed("another")}
        signed = [ordered(overlay, parcel).sign(2, three.key) for parcel in ("a", "b")]
        plan, doctor, authority = overlay.plan(3), world.doctor, world.authority
        liar = overlay.hub[2]
        return [
            ("40 by the topic's own node", world.node, entries.anchor(HEART, 0, 5, TREE.root(5))),
            ("40 by another relay", two, entries.anchor(HEART, 0, 5, TREE.root(5))),
            ("90 by a principal", doctor, overlay.founding(overlay=NONE)),
            ("90 again", authority, overlay.founding()),
            ("90 with one signature", authority, self.changed(first_one)),
            ("90 a node", authority, entries.overlay(NONE, [one.id], 1)),
            ("90 a threshold of none", authority, entries.overlay(NONE, [doctor.id], 0)),
            ("91 one signature", first_one, overlay.signed(plan, first, by=[first_one])),
            ("91 a stranger's", first_one, overlay.signed(plan, first, by=[first_one, doctor])),
            ("91 of another instance", first_one, overlay.signed(plan, first, instance=seed("another"))),
            ("91 the same again", first_one, overlay.signed(overlay.plan(2), first)),
            ("91 too soon", first_one, overlay.signed(plan, self.height + MARGIN_BLOCKS)),
            ("91 of no overlay", first_one, overlay.signed(overlay.plan(3, NONE), first)),
            ("91 relays of another", first_one, overlay.signed(overlay.plan(1, OTHER), first)),
            ("91 a field too many", first_one, extended(overlay.signed(plan, first))),
            ("92 by another", world.landlord, entries.take_back(HEART)),
            ("92 the same", doctor, entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS)),
            ("92 without a plan", doctor, entries.entrust(HEART, OTHER, EDGE, LEASE_MS)),
            ("92 no such virtual node", doctor, entries.entrust(HEART, OVERLAY, NONE, LEASE_MS)),
            ("92 a short lease", doctor, entries.entrust(HEART, OVERLAY, RIM, 999)),
            ("40 by the holder", one, entries.anchor(HEART, 0, 5, TREE.root(5))),
            ("94 by another relay", two, anchored(overlay, 5, TREE.root(5))),
            ("94 with one signature", one, anchored(overlay, 5, TREE.root(5), signers=(1,))),
            ("94 under another fence", one, anchored(overlay, 5, TREE.root(5), 2)),
            ("94 behind another size", one, anchored(overlay, 5, TREE.root(5), before=4)),
            ("94 of a size that it continues", one, anchored(overlay, 0, EMPTY_ROOT)),
            ("93 while it is held", two, entries.lease(HEART, 0, 2)),
            ("93 a stale fence", two, entries.lease(HEART, 0, 1)),
            ("93 by a relay elsewhere", overlay.hub[0], entries.lease(HEART, 0, 2)),
            ("93 of a topic that has nodes", one, entries.lease(AIR, 0, 1)),
            ("95 the same again", two, entries.suspect(OVERLAY, 1, one.id)),
            ("95 itself", one, entries.suspect(OVERLAY, 1, one.id)),
            ("95 a plan to come", three, entries.suspect(OVERLAY, 2, one.id)),
            ("95 of a sibling", overlay.rim[0], entries.suspect(OVERLAY, 1, one.id)),
            ("95 no relay", three, entries.suspect(OVERLAY, 1, world.node.id)),
            ("95 without a right", world.monitor, entries.suspect(OVERLAY, 1, one.id, HEART)),
            ("96 known", doctor, two_stories(liar)),
            ("96 the same set twice", doctor, entries.two_sets(two.id, two.key.public.raw, shares, shares)),
            ("96 by another key", doctor, entries.two_sets(two.id, three.key.public.raw, shares, dealt(three)[0])),
            ("96 signed by another", doctor, entries.two_sets(two.id, two.key.public.raw, shares, dealt(three)[0])),
            ("97 a true share", doctor, self.false(two, lists[2])),
            ("97 altered by another", doctor, self.false(two, falsified(three, lists[2]))),
            ("97 of another set", doctor, self.false(two, dealt(two, "lane 2")[1][1])),
            ("97 no such share", doctor, self.false(two, lists[2], number=1)),
            ("98 known", doctor, two_origins(liar)),
            ("98 the same twice", doctor, self.origins(two, originated(two), originated(two))),
            ("98 two lane keys", doctor, self.origins(two, originated(two), originated(two, "lane 2"))),
            ("98 signed by another", doctor, self.origins(two, originated(two), forged)),
            (
                "98 in another's name",
                doctor,
                self.origins(
                    two,
                    *(
                        replace(originated(three, story=one), publisher=three.id).sign(two.key)
                        for one in ("", "another")
                    ),
                ),
            ),
            ("99 known", doctor, self.orders(three, 3, {}, {"parcel": seed("b")})),
            ("99 another fence", doctor, self.orders(two, 2, {}, {"parcel": seed("b"), "fence": 2})),
            ("99 another offset", doctor, self.orders(two, 2, {}, {"parcel": seed("b"), "offset": 1})),
            ("99 the same parcel", doctor, self.orders(two, 2, {}, {"height": 9})),
            ("99 no signature of it", doctor, self.orders(two, 2, {}, {"parcel": seed("b")}, signers=(1, 3))),
            ("99 signed by another", doctor, entries.two_orders(two.id, two.key.public.raw, 2, *signed)),
            ("99 another index", doctor, self.orders(two, 1, {}, {"parcel": seed("b")})),
            ("99 of another instance", doctor, self.orders(two, 2, foreign, {**foreign, "parcel": seed("b")})),
            ("99 of no plan", doctor, self.orders(two, 2, {"plan": 3}, {"plan": 3, "parcel": seed("b")})),
            ("99 index 8", doctor, self.orders(two, 8, {}, {"parcel": seed("b")})),
        ]

    def owner_s_word(self, relay: Actor) -> bytes:
        return entries.suspect(OVERLAY, 1, relay.id, HEART)

    def false(self, liar: Actor, listed: ShareList, number: int = 0) -> bytes:
        shares = dealt(liar)[0]
        return entries.false_share(liar.id, liar.key.public.raw, shares, listed, number)

    def origins(self, liar: Actor, one: Origin, other: Origin) -> bytes:
        return entries.two_origins(liar.id, liar.key.public.raw, one, other)

    def orders(self, liar: Actor, index: int, *changes: Any, signers: tuple[int, ...] = (1, 2, 3)) -> bytes:
        one, other = (ordered(self.overlay, "a", *signers, **change) for change in changes)
        return entries.two_orders(liar.id, liar.key.public.raw, index, one, other)

    def changed(self, *by: Actor) -> bytes:
        named = (self.world.instance, OVERLAY, 2, [self.world.doctor.id], 1)
        signed = [entries.sign_administrators(*named, by=one.id, key=one.key) for one in by]
        return entries.overlay(OVERLAY, [self.world.doctor.id], 1, number=2, signatures=signed)
