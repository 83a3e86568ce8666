"""What came with retention, for `make_entries.py`: as in `entry_cases.py`, on a state of its own: ages take time."""

from __future__ import annotations

from entry_cases import AIR, DAY_MS, HEART, NONE, Case, extended, promise
from ledger_world import NOW_MS, Bench, World
from test_contract_anchors_groups import TREE

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.contracts.retention import Retention
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind

A_DAY, FOUR = Retention(age_ms=DAY_MS), Retention(parcels=4)


def standing_retained(bench: Bench) -> None:
    """What there is before, two days ago: `heart` keeps a day, `air` everything, but was released below 2."""
    world = bench.world
    bench.bring_into_force()
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.time_ms = NOW_MS - 2 * DAY_MS
    bench.accept(other.sign(entries.enrol(other.certificate)))
    bench.accept(world.doctor.sign(entries.retain(HEART, A_DAY)))
    bench.time_ms += 1_000
    anchors = [entries.anchor(HEART, 0, 4, TREE.root(4)), entries.anchor(AIR, 0, 5, TREE.root(5))]
    bench.accept(world.node.sign(*anchors, entries.anchor(AIR, 1, 5, TREE.root(5))))
    bench.accept(world.landlord.sign(entries.release(AIR, 0, 2)))
    bench.time_ms = NOW_MS - 100_000  # between a promise and what it has until it is due
    bench.accept(world.node.sign(entries.anchor(HEART, 0, 5, TREE.root(5))))
    bench.accept(world.landlord.sign(entries.assign(AIR, 2, [other.id])))
    bench.time_ms = NOW_MS


class RetentionCases:
    def __init__(self, world: World) -> None:
        self.world, self.doctor, self.landlord, self.node = world, world.doctor, world.landlord, world.node
        self.other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)

    def good(self) -> list[Case]:
        doctor, landlord, node = self.doctor, self.landlord, self.node
        return [
            ("12 away from a node", landlord, entries.assign(AIR, 3, [self.other.id])),
            ("12 to one more", landlord, entries.assign(AIR, 3, [node.id, self.other.id])),
            ("14 shorter", doctor, entries.retain(HEART, FOUR)),
            ("14 for ever", doctor, entries.retain(HEART, Retention())),
            ("14 no longer for ever", landlord, entries.retain(AIR, A_DAY)),
            ("15 a range", landlord, entries.release(AIR, 1, 5)),
            ("15 further", landlord, entries.release(AIR, 0, 5)),
            ("40 a point of the sample", node, entries.anchor(HEART, 0, 8, TREE.root())),
            ("40 the first", node, entries.anchor(AIR, 3, 2, TREE.root(2))),
            ("41 what is old enough", node, entries.retire(HEART, 0, 4, TREE.root(4))),
            ("41 what was released", node, entries.retire(AIR, 0, 2, TREE.root(2))),
            ("42 by a node that had its time", doctor, entries.broken_promise(promise(self.world, 6))),
            ("43 a point of the sample", node, entries.notarise(HEART, 0, 8, TREE.root(), before=5)),
        ]

    def bad(self) -> list[Case]:
        doctor, landlord, node = self.doctor, self.landlord, self.node
        lost = promise(self.world, 6, token=AIR, partition=2)
        return [
            ("12 a field too many", landlord, extended(entries.assign(AIR, 3, [node.id]))),
            ("14 the same", doctor, entries.retain(HEART, A_DAY)),
            ("14 age and number", doctor, wire.encode([14, HEART, [1, 1]])),
            ("14 by another", landlord, entries.retain(HEART, FOUR)),
            ("14 by the node", node, entries.retain(HEART, FOUR)),
            ("14 of no topic", doctor, entries.retain(NONE, FOUR)),
            ("15 beyond the anchor", landlord, entries.release(AIR, 0, 6)),
            ("15 no further", landlord, entries.release(AIR, 0, 2)),
            ("15 of what is not anchored", landlord, entries.release(AIR, 3, 1)),
            ("15 by the node", node, entries.release(AIR, 0, 4)),
            ("40 a field too many", node, extended(entries.anchor(HEART, 0, 8, TREE.root()))),
            ("41 what is too young", node, entries.retire(HEART, 0, 5, TREE.root(5))),
            ("41 what is kept for ever", node, entries.retire(AIR, 1, 1, TREE.root(1))),
            ("41 beyond what was released", node, entries.retire(AIR, 0, 3, TREE.root(3))),
            ("42 of a partition that was taken away", doctor, entries.broken_promise(lost)),
            ("43 not what it continues", node, entries.notarise(HEART, 0, 8, TREE.root(), before=4)),
        ]
