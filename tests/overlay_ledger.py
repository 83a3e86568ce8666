"""An overlay on a ledger for tests: three administrators, a tree of virtual nodes of enrolled relays, and its plans.

The root `hub` has the children `edge`, at which publishers enter, and `rim`; each has three relays, so f is 1. Behind
`rim` is `far`. The hospital's topic `heart` travels over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ledger_world import HOSPITAL, Actor, Bench, World, seed, token

from tallystick.carriers.overlay.redistribution import Threshold, split
from tallystick.ledger import entries
from tallystick.ledger.contracts import plans
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.plan import Plan, Relay, VirtualNode
from tallystick.trust.promise import JointAnchor, JointPromise
from tallystick.trust.shares import Origin, ScalarShare, ShareList, ShareSet

OVERLAY = seed("overlay")[:16]
HEART = token("heart")
LEASE_MS = 10_000
TREE = {"hub": "", "edge": "hub", "rim": "hub", "far": "rim"}


def node_id(name: str) -> bytes:
    return seed(f"virtual node {name}")[:16]


HUB, EDGE, RIM, FAR = map(node_id, TREE)


class OverlayWorld:
    def __init__(self, world: World, tree: Mapping[str, str] = TREE, size: int = 3) -> None:
        self.world, self._tree = world, tree
        self.administrators = [world.actor(f"administrator {n}", SubjectKind.PRINCIPAL, HOSPITAL) for n in range(3)]
        self.relays = {
            name: [world.actor(f"relay {name} {n}", SubjectKind.NODE, ALL_TENANTS) for n in range(size)]
            for name in tree
        }
        self.edge, self.hub, self.rim, self.far = (self.relays.get(name, []) for name in ("edge", "hub", "rim", "far"))

    @property
    def everybody(self) -> list[Actor]:
        return [*self.administrators, *(one for relays in self.relays.values() for one in relays)]

    def enrolment(self) -> list[bytes]:
        return [entries.enrol(one.certificate) for one in self.everybody]

    def founding(self, threshold: int = 2, overlay: bytes = OVERLAY) -> bytes:
        return entries.overlay(overlay, [one.id for one in self.administrators], threshold)

    def plan(self, version: int = 1, overlay: bytes = OVERLAY) -> Plan:
        nodes = [
            VirtualNode(node_id(name), node_id(parent) if parent else b"", tuple(map(seat, self.relays[name])))
            for name, parent in self._tree.items()
        ]
        return Plan(overlay, version, tuple(nodes))

    def signed(self, plan: Plan, first: int, by: Sequence[Actor] | None = None, instance: bytes = b"") -> bytes:
        """The plan's entry, with the signatures of two administrators unless others are named."""
        signers = self.administrators[:2] if by is None else by
        instance = instance or self.world.instance
        return entries.plan(plan, first, [entries.sign_plan(instance, plan, first, one.id, one.key) for one in signers])

    def stand(self, bench: Bench) -> None:
        """Everything of the release in force, the overlay founded, plan 1 in force, `heart` entrusted to it."""
        world = self.world
        bench.bring_into_force()
        bench.accept(world.authority.sign(*self.enrolment(), self.founding()))
        self.bring_plan(bench, self.plan())
        bench.accept(world.doctor.sign(entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS)))

    def bring_plan(self, bench: Bench, plan: Plan) -> None:
        """Publish the next plan, and wait until it counts."""
        first = bench.height + plans.MARGIN_BLOCKS
        bench.accept(self.administrators[0].sign(self.signed(plan, first)))
        bench.height = first


def seat(relay: Actor) -> Relay:
    name = relay.name.replace(" ", "-")
    return Relay(relay.id, relay.key.public.raw, seed(f"link {name}"), f"{name}:7000", f"{name} ltd", name)


def without_relay(plan: Plan, relay: Actor, instead: Actor, version: int) -> Plan:
    """The next plan, with another relay in the place of one."""
    nodes = [
        replace(node, relays=tuple(seat(instead) if one.identifier == relay.id else one for one in node.relays))
        for node in plan.nodes
    ]
    return replace(plan, version=version, nodes=tuple(nodes))


def dealt(
    signer: Actor, lane: str = "lane", attempt: int = 0, story: str = ""
) -> tuple[ShareSet, dict[int, ShareList]]:
    """A share set and its lists, as a publisher's first split makes them, signed; another story has other numbers."""
    made = split(seed(f"split {lane}{story}"), seed(lane), 1, EDGE, Threshold(2, 3), attempt)
    shares = made.shares.sign(signer.key)
    return shares, {index: one.sign(signer.key) for index, one in made.lists.items()}


def falsified(signer: Actor, listed: ShareList) -> ShareList:
    """The list with another first share."""
    value, blind = listed.shares[0]
    other = ScalarShare(value + 1 + Random(1).randrange(9), blind).encode()
    return replace(listed, encoded=(other, *listed.encoded[1:])).sign(signer.key)


def originated(publisher: Actor, lane: str = "lane", story: str = "") -> Origin:
    """A publisher's word on a new lane key, signed; another story commits to another secret."""
    made = split(seed(f"split {lane}{story}"), seed(lane), 1, EDGE, Threshold(2, 3))
    what = publisher.id, seed(lane), 7, 1, EDGE, (HEART,), made.hop.commitments, seed(f"opens {story}")
    return Origin(*what).sign(publisher.key)


def anchored(
    overlay: OverlayWorld, size: int, root: bytes, fence: int = 1, signers: Sequence[int] = (1, 2), **change: Any
) -> bytes:
    """The anchor of `heart`, signed by these relays of the edge; `change` fields of it."""
    joint = JointAnchor(overlay.world.instance, OVERLAY, 1, EDGE, fence, HEART, 0, size, root, 0, ())
    joint = replace(joint, **change)
    relays = next(overlay.relays[name] for name in overlay.relays if node_id(name) == joint.node)
    for index in signers:
        joint = joint.sign(index, relays[index - 1].key)
    return joint.encode_entry()


def ordered(overlay: OverlayWorld, parcel: str, /, *signers: int, **change: Any) -> JointPromise:
    """A parcel's first place in `heart`, signed by these relays of the edge; `change` fields of the promise."""
    what = overlay.world.instance, OVERLAY, 1, EDGE, 1, HEART, 0, 0, seed(parcel), 1, 1
    promise = replace(JointPromise(*what, ()), **change)
    for index in signers:
        promise = promise.sign(index, overlay.edge[index - 1].key)
    return promise
