"""Entries of every kind on one small state, for `make_entries.py`: what the contracts must take, and what not.

`standing` lays the ground: rights, permits, epochs, anchors, a group, a write, an erasure, somebody on the blacklist.
Then `Cases.good` and `Cases.bad` each run alone on what that left. A name begins with the number of its kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ledger_world import HOME, HOSPITAL, NOW_MS, Actor, Bench, World, refusal, request, seed, token
from test_contract_anchors_groups import GROUP, ONE, PARCELS, TREE, TWO, evidence, header
from test_contract_operations import accepted

from tallystick import wire
from tallystick.crypto.merkle import EMPTY_ROOT, leaf_hash
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.topics import CLEAR, ERASABLE, PADDED, Binding, Terms
from tallystick.trust.certificate import ALL_TENANTS, Certificate
from tallystick.trust.certificate import SubjectKind as CertificateKind
from tallystick.trust.permit import Operation
from tallystick.trust.promise import Promise, Refusal
from tallystick.trust.right import Right

Case = tuple[str, Actor, bytes]
LATER = 100_000  # a height

DAY_MS = 86_400_000
LATE_MS = 120_000  # beyond `anchor_ms`: a promise of then is due
NAME, OTHER, STRANGER = (seed(name)[:16] for name in ("pseudonym", "another pseudonym", "stranger"))
HEART, AIR, NOTES, OLD, NONE = (token(name) for name in ("heart", "air", "notes", "old", "none"))
KEY, COMMITMENT, HASH = seed("attribute key"), seed("commitment"), seed("hash")
PERMIT, UNDONE, NEW_PERMIT = (seed(name)[:16] for name in ("permit 1", "permit 2", "permit 3"))
WRITTEN = seed("write")[:16]
FENCE = 2  # one member joined
READ, WRITE, DESCRIBE = Right.READ, Right.WRITE, Right.DESCRIBE
SUBSCRIBE, ADVERTISE = Operation.SUBSCRIBE, Operation.ADVERTISE


def standing(bench: Bench) -> None:
    """What there is before."""
    world = bench.world
    doctor, landlord, authority, node, monitor = (
        *(world.doctor, world.landlord, world.authority, world.node),
        world.monitor.id,
    )
    steps: list[tuple[Actor, *tuple[bytes, ...]]] = [
        (doctor, entries.grant_attribute(HOSPITAL, monitor, NAME, COMMITMENT)),
        (doctor, entries.topic_policy(HEART, 0, 1, COMMITMENT)),
        *((authority, entries.attribute_epoch(n, KEY, NOW_MS + (n - 1) * DAY_MS)) for n in (1, 2, 3)),
        (doctor, world.topic("notes", doctor, HOSPITAL, flags=ERASABLE), world.topic("old", doctor, HOSPITAL)),
        (doctor, entries.close_topic(OLD), entries.grant(HEART, monitor, READ | WRITE | DESCRIBE)),
        (authority, *(entries.issue_permit(p, SUBSCRIBE, HEART, monitor, NOW_MS + DAY_MS) for p in (PERMIT, UNDONE))),
        (authority, entries.undo_permit(UNDONE)),
        (authority, entries.announce_epoch(HEART, 1, HASH, NOW_MS), entries.announce_epoch(HEART, 2, HASH, NOW_MS)),
        (authority, entries.end_epoch(HEART, 1, End.SCHEDULE, NOW_MS)),
        (node, entries.anchor(HEART, 0, 5, TREE.root(5)), entries.retire(HEART, 0, 2, TREE.root(2))),
        (landlord, entries.grant(AIR, world.sensor.id, READ | DESCRIBE), entries.grant(AIR, landlord.id, READ)),
        (landlord, entries.group(GROUP, 600_000, [AIR])),
        (world.sensor, entries.join(GROUP, ONE)),
        (world.sensor, entries.commit_offset(GROUP, ONE, AIR, 0, fence=FENCE, old=0, new=10)),
        (world.sensor, evidence(world, header(world, "one story"), header(world, "another"))),  # the monitor's
        (world.monitor, entries.write(HEART, WRITTEN, 1, HASH)),
        (authority, entries.erase(NOTES, monitor, 1), entries.set_("reputation_fall", 5)),
        (authority, entries.activate("writes", 1, 1_000)),
        (doctor, entries.broken_promise(promise(world, 6))),
    ]
    for author, *written in steps:
        bench.accept(author.sign(*written))


def promise(
    world: World,
    offset: int,
    *,
    ago_ms: int = LATE_MS,
    parcel: bytes = b"",
    token: bytes = HEART,
    partition: int = 0,
) -> Promise:
    place = (token, partition, offset, parcel or PARCELS[offset])
    unsigned = Promise(world.instance, world.node.id, *place, 1, NOW_MS - ago_ms)
    return unsigned.sign(world.node.key)


def extended(entry: bytes) -> bytes:
    """The entry with a field more than its kind has."""
    return wire.encode([*wire.decode(entry), 0])


class Cases:
    def __init__(self, world: World) -> None:
        self.world = world
        self.doctor, self.monitor, self.landlord, self.sensor = world.principals
        self.authority, self.node = world.authority, world.node
        self.porter = world.actor("porter", CertificateKind.PRINCIPAL, HOSPITAL)  # not enrolled yet

    def good(self) -> list[Case]:
        parts = (self._good_people, self._good_topics, self._good_node, self._good_attributes, self._good_groups)
        return sorted((case for part in parts for case in part()), key=_by_kind)

    def bad(self) -> list[Case]:
        parts = (self._bad_people, self._bad_topics, self._bad_node, self._bad_attributes, self._bad_groups)
        cases = [case for part in parts for case in part()]
        longer = [(f"{kind} a field too many", *one) for kind, one in self._one_of_each().items()]
        return sorted([*cases, *longer], key=_by_kind)

    def newer_good(self) -> list[Case]:
        world, doctor = self.world, self.doctor
        terms = {"by age": Terms(keep_ms=30 * DAY_MS), "by number": Terms(keep_parcels=1_000_000)}
        terms["at a pace"] = Terms(anchor_pace_ms=500)

        def bound(**options: Any) -> bytes:
            return world.topic("lungs", doctor, HOSPITAL, binding=world.bind("lungs", HOSPITAL), **options)

        return [
            ("10 bound", doctor, bound()),
            ("10 bound, matched in the clear", doctor, bound(flags=CLEAR | PADDED, partitions=3)),
            *((f"10 bound, kept {how}", doctor, bound(terms=chosen)) for how, chosen in terms.items()),
            ("12 by the operator", self.authority, entries.assign(AIR, 3, [self.node.id])),
            ("22 an erasure period's", self.authority, entries.announce_key(NOTES, OTHER, KEY)),
            ("22 the same again", self.authority, entries.announce_key(NOTES, NAME, HASH)),
            ("48 by its holder", self.monitor, entries.drop_attribute(HOSPITAL, self.monitor.id, NAME)),
            ("49 by a principal", self.sensor, entries.refuse_attributes(self.sensor.id, HOSPITAL)),
            ("49 by a tenant", self.landlord, entries.refuse_attributes(HOME, HOSPITAL)),
            ("80 of version 2", self.authority, entries.set_("tenant_entries", 100)),
            ("82 before its height", self.authority, entries.withdraw_activation("writes", 2, LATER)),
        ]

    def newer_bad(self) -> list[Case]:
        world, doctor, landlord = self.world, self.doctor, self.landlord
        binding = world.bind("lungs", HOSPITAL)
        good = wire.decode(world.topic("lungs", doctor, HOSPITAL, binding=binding))
        unbound = world.topic("lungs", doctor, HOSPITAL)
        other = world.bind("liver", HOSPITAL)
        stranger = world.actor("another authority", CertificateKind.AUTHORITY, HOSPITAL)

        def by(signed: Binding) -> bytes:
            return world.topic("lungs", doctor, HOSPITAL, binding=signed)

        return [
            ("10 of version 1", doctor, unbound),
            ("10 under another token", doctor, wire.encode([10, token("lungs"), *good[2:]])),
            ("10 with another word", doctor, wire.encode([*good[:10], [*other], *good[11:]])),
            ("10 for another tenant", landlord, world.topic("lungs", landlord, HOME, binding=binding)),
            ("10 bound by nobody known", doctor, by(world.bind("lungs", HOSPITAL, stranger))),
            ("10 bound by a node", doctor, by(world.bind("lungs", HOSPITAL, self.node))),
            ("10 bound by its owner", doctor, by(world.bind("lungs", HOSPITAL, doctor))),
            ("10 kept by age and by number", doctor, wire.encode([*good[:11], [1, 1], *good[12:]])),
            ("10 at too slow a pace", doctor, wire.encode([*good[:12], 30_001, []])),
            ("10 with a fee", doctor, wire.encode([*good[:13], [1]])),
            ("10 a field too many", doctor, wire.encode([*good, 0])),
            ("22 another under its name", self.authority, entries.announce_key(NOTES, NAME, KEY)),
            ("22 by the owner", doctor, entries.announce_key(NOTES, OTHER, KEY)),
            ("22 of no topic", self.authority, entries.announce_key(NONE, OTHER, KEY)),
            ("22 a hash of 16 bytes", self.authority, entries.announce_key(NOTES, OTHER, KEY[:16])),
            ("48 by its giver", self.landlord, entries.drop_attribute(HOSPITAL, self.monitor.id, NAME)),
            ("48 what it does not hold", self.sensor, entries.drop_attribute(HOSPITAL, self.sensor.id, NAME)),
            ("49 for another", doctor, entries.refuse_attributes(self.sensor.id, HOSPITAL)),
            ("49 what is not refused", self.sensor, entries.refuse_attributes(self.sensor.id, HOSPITAL, refused=False)),
            ("80 too little", self.authority, entries.set_("tenant_entries", 99)),
            ("82 that is not there", self.authority, entries.withdraw_activation("writes", 3, LATER)),
            ("82 by a principal", doctor, entries.withdraw_activation("writes", 2, LATER)),
        ]

    def _one_of_each(self) -> dict[int, tuple[Actor, bytes]]:
        return {int(name.split()[0]): (author, extended(entry)) for name, author, entry in self.good()}

    # Identities, tenants, trust file; what operators set.

    def new_key(self, name: str = "new key", tenant: bytes = HOSPITAL) -> Certificate:
        key = SigningKey.from_seed(seed(name))
        return self.world.certify(key, CertificateKind.PRINCIPAL, tenant, subject=self.monitor.id)

    def successor(self, of: World) -> str:
        """The second trust file, of the roots of another world where it is one."""
        trust = replace(of.trust, number=2, first=self.world.instance, name="new", signatures=())
        return trust.sign(of.root).to_json()

    def _good_people(self) -> list[Case]:
        world, authority = self.world, self.authority
        by_root = entries.revoke_by_root(world.instance, self.node.id, world.trust.root_signer(world.root))
        return [
            ("1 by the authority", authority, entries.enrol(self.porter.certificate)),
            ("1 itself, with its first transaction", self.porter, entries.enrol(self.porter.certificate)),
            ("2 itself", self.monitor, entries.revoke(self.monitor.id)),
            ("2 a principal, by the authority", authority, entries.revoke(self.monitor.id)),
            ("2 a node, by the root's word that anybody brings", self.sensor, by_root),
            ("3 by its holder", self.monitor, entries.replace(self.new_key())),
            ("3 by its issuer", authority, entries.replace(self.new_key())),
            ("4 another owner", authority, entries.tenant(HOSPITAL, self.monitor.id)),
            ("5 the successor, whoever brings it", self.sensor, entries.trust(self.successor(world))),
            ("60 off the blacklist", authority, entries.lift(self.monitor.id)),
            ("80 a number", authority, entries.set_("rise_max", 20)),
            ("81 a version to come", authority, entries.activate("topics", 1, 2_000)),
            ("81 a later one of the same", authority, entries.activate("writes", 2, 1_001)),
        ]

    def _bad_people(self) -> list[Case]:
        world, doctor, authority = self.world, self.doctor, self.authority
        own = world.actor("clerk", CertificateKind.PRINCIPAL, HOSPITAL, doctor)
        node = world.actor("own node", CertificateKind.NODE, ALL_TENANTS, authority)
        misnamed = world.certify(SigningKey.from_seed(seed("lamp")), CertificateKind.PRINCIPAL, HOME, subject=STRANGER)
        other = World(root=RootKey.from_seed(seed("usurper")))
        foreign_root = entries.revoke_by_root(world.instance, self.node.id, other.trust.root_signer(other.root))
        return [
            ("1 enrolled already", authority, entries.enrol(self.monitor.certificate)),
            ("1 certified by a principal", authority, entries.enrol(own.certificate)),
            ("1 a node certified by the authority", authority, entries.enrol(node.certificate)),
            ("1 under a name that is not its key's", authority, entries.enrol(misnamed)),
            ("2 by the tenant's owner", doctor, entries.revoke(self.monitor.id)),
            ("2 a node, by a principal", doctor, entries.revoke(self.node.id)),
            ("2 nobody", authority, entries.revoke(STRANGER)),
            ("2 under another's root", doctor, foreign_root),
            ("3 by another", doctor, entries.replace(self.new_key())),
            ("3 into another tenant", authority, entries.replace(self.new_key(tenant=HOME))),
            ("3 with a key that serves another", authority, entries.replace(self.new_key("sensor"))),
            ("4 by a principal", doctor, entries.tenant(HOSPITAL, self.monitor.id)),
            ("4 to another tenant's", authority, entries.tenant(HOSPITAL, self.sensor.id)),
            ("4 of all tenants", authority, entries.tenant(ALL_TENANTS, self.monitor.id)),
            ("5 of another root", self.sensor, entries.trust(self.successor(other))),
            ("5 the one that is there", self.sensor, entries.trust(world.trust.to_json())),
            ("5 no trust file", self.sensor, entries.trust("{}")),
            ("60 one who is not on it", authority, entries.lift(self.sensor.id)),
            ("60 by the tenant's owner", doctor, entries.lift(self.monitor.id)),
            ("80 beyond its bounds", authority, entries.set_("rise_max", 1_000_001)),
            ("80 no such number", authority, entries.set_("rise_min", 1)),
            ("80 by a principal", doctor, entries.set_("rise_max", 20)),
            ("81 a height that is past", authority, entries.activate("topics", 1, 1)),
            ("81 the version that is in force", authority, entries.activate("writes", 1, 1_001)),
            ("81 a later version earlier", authority, entries.activate("writes", 2, 999)),
            ("81 by a principal", doctor, entries.activate("topics", 1, 2_000)),
        ]

    # Topics, epochs, rights, permits; writes and erasures.

    def schema(self, version: int, owner: Actor | None = None) -> bytes:
        return entries.schema(self.world.instance, HEART, version, HASH, (owner or self.doctor).key)

    def permit(self, name: bytes = NEW_PERMIT, who: Actor | None = None, op: Operation = ADVERTISE) -> bytes:
        return entries.issue_permit(name, op, HEART, (who or self.monitor).id, NOW_MS + DAY_MS)

    def _good_topics(self) -> list[Case]:
        world, doctor, authority, monitor = self.world, self.doctor, self.authority, self.monitor
        return [
            ("10 a topic", doctor, world.topic("lungs", doctor, HOSPITAL, partitions=3)),
            ("10 padded", doctor, world.topic("lungs", doctor, HOSPITAL, flags=PADDED)),
            ("10 a principal's, by its tenant's owner", doctor, world.topic("lungs", monitor, HOSPITAL)),
            ("11 the next version", doctor, self.schema(2)),
            ("12 one partition", self.landlord, entries.assign(AIR, 3, [self.node.id])),
            ("13 for good", doctor, entries.close_topic(HEART)),
            ("20 the next", authority, entries.announce_epoch(HEART, 3, HASH, NOW_MS + DAY_MS)),
            ("20 a topic's first", authority, entries.announce_epoch(AIR, 1, HASH, NOW_MS)),
            ("21 by revocation", authority, entries.end_epoch(HEART, 2, End.REVOCATION, NOW_MS)),
            ("25 to another tenant's", doctor, entries.grant(HEART, self.sensor.id, READ | DESCRIBE)),
            ("25 denied from one host", doctor, entries.grant(HEART, monitor.id, WRITE, allow=False, host="10.0.0.7")),
            ("26 as it was granted", doctor, entries.withdraw(HEART, monitor.id, READ | WRITE | DESCRIBE)),
            ("30 to subscribe", authority, self.permit(op=SUBSCRIBE)),
            ("30 to advertise", authority, self.permit()),
            ("31 by its holder", monitor, entries.undo_permit(PERMIT)),
            ("31 by the authority", authority, entries.undo_permit(PERMIT)),
            ("32 by the authority", authority, entries.revoke_permit(PERMIT)),
            ("65 two stories", doctor, evidence(world, header(world, "a", sequence=5), header(world, "b", sequence=5))),
            ("70 the next batch", monitor, entries.write(HEART, WRITTEN, 2, HASH)),
            ("75 another period", authority, entries.erase(NOTES, monitor.id, 2)),
        ]

    def _bad_topics(self) -> list[Case]:
        world, doctor, landlord, authority = self.world, self.doctor, self.landlord, self.authority
        monitor = self.monitor
        one, same, next_one = header(world, "one"), header(world, "one"), header(world, "another", sequence=5)
        known = evidence(world, header(world, "one story"), header(world, "another"))
        return [
            ("10 that exists", doctor, world.topic("heart", doctor, HOSPITAL)),
            ("10 by another tenant's owner", landlord, world.topic("lungs", doctor, HOSPITAL)),
            ("10 owned by another tenant's", doctor, world.topic("lungs", landlord, HOSPITAL)),
            ("10 with a flag that there is not", doctor, world.topic("lungs", doctor, HOSPITAL, flags=4)),
            ("10 of no partition", doctor, world.topic("lungs", doctor, HOSPITAL, partitions=0)),
            ("11 the version that is there", doctor, self.schema(1)),
            ("11 a version skipped", doctor, self.schema(3)),
            ("11 signed by another", doctor, self.schema(2, landlord)),
            ("11 by another", landlord, self.schema(2)),
            ("12 a partition that there is not", landlord, entries.assign(AIR, 4, [self.node.id])),
            ("12 to a principal", landlord, entries.assign(AIR, 3, [self.sensor.id])),
            ("12 by another", doctor, entries.assign(AIR, 3, [self.node.id])),
            ("13 twice", doctor, entries.close_topic(OLD)),
            ("13 by another", landlord, entries.close_topic(HEART)),
            ("20 the one that is there", authority, entries.announce_epoch(HEART, 2, HASH, NOW_MS)),
            ("20 a number skipped", authority, entries.announce_epoch(HEART, 4, HASH, NOW_MS)),
            ("20 before the one before it", authority, entries.announce_epoch(HEART, 3, HASH, NOW_MS - 1)),
            ("20 by the owner", doctor, entries.announce_epoch(HEART, 3, HASH, NOW_MS)),
            ("21 twice", authority, entries.end_epoch(HEART, 1, End.REVOCATION, NOW_MS)),
            ("21 one that never was", authority, entries.end_epoch(HEART, 3, End.SCHEDULE, NOW_MS)),
            ("21 by the owner", doctor, entries.end_epoch(HEART, 2, End.REVOCATION, NOW_MS)),
            ("25 the same again", doctor, entries.grant(HEART, monitor.id, READ | WRITE | DESCRIBE)),
            ("25 on another's topic", doctor, entries.grant(AIR, monitor.id, READ)),
            ("25 to nobody", doctor, entries.grant(HEART, STRANGER, READ)),
            ("25 from hosts by pattern", doctor, entries.grant(HEART, monitor.id, READ, host="10.*")),
            ("25 no operation", doctor, entries.grant(HEART, monitor.id, 0)),
            ("26 not as it was granted", doctor, entries.withdraw(HEART, monitor.id, READ)),
            ("26 by another", landlord, entries.withdraw(HEART, monitor.id, READ | WRITE | DESCRIBE)),
            ("30 without the right", authority, self.permit(who=self.sensor)),
            ("30 an identifier twice", authority, self.permit(PERMIT)),
            ("30 by the owner", doctor, self.permit()),
            ("31 another's", self.sensor, entries.undo_permit(PERMIT)),
            ("31 never issued", authority, entries.undo_permit(NEW_PERMIT)),
            ("31 twice", authority, entries.undo_permit(UNDONE)),
            ("32 by the owner", doctor, entries.revoke_permit(PERMIT)),
            ("32 one that was undone", authority, entries.revoke_permit(UNDONE)),
            ("65 one story twice", doctor, evidence(world, one, same)),
            ("65 two sequences", doctor, evidence(world, one, next_one)),
            ("65 under another's key", doctor, evidence(world, one, header(world, "two"), self.sensor.key)),
            ("65 told already", doctor, known),
            ("70 a batch that is taken", monitor, entries.write(HEART, WRITTEN, 1, seed("another list"))),
            ("70 without the right", self.sensor, entries.write(HEART, WRITTEN, 1, HASH)),
            ("75 of a topic that is not erasable", authority, entries.erase(HEART, monitor.id, 1)),
            ("75 twice", authority, entries.erase(NOTES, monitor.id, 1)),
            ("75 by the owner", doctor, entries.erase(NOTES, monitor.id, 2)),
        ]

    # What nodes and notaries write, and who holds them to it.

    def _good_node(self) -> list[Case]:
        world, node, sensor = self.world, self.node, self.sensor
        refused = [Refusal(5, 6, "plain"), Refusal(6, 7, "no-right")]
        swapped = promise(world, 3, parcel=seed("swapped"))
        other = entries.broken_promise(swapped, leaf_hash(PARCELS[3]), TREE.inclusion(3, 5))
        return [
            ("35 three accepted at once", node, accepted(sensor, count=3)),
            ("35 refused, with the request that proves it", node, refusal(sensor, request(sensor, node))),
            ("35 refused, on the node's word alone", node, without_evidence(refusal(sensor, request(sensor, node)))),
            ("35 junk of nobody", node, entries.junk("unsigned", 1_000, WRITE, time_ms=NOW_MS)),
            ("40 a greater size", node, entries.anchor(HEART, 0, 8, TREE.root())),
            ("40 the same again", node, entries.anchor(HEART, 0, 5, TREE.root(5))),
            ("40 an empty partition", node, entries.anchor(AIR, 2, 0, EMPTY_ROOT)),
            ("41 further", node, entries.retire(HEART, 0, 4, TREE.root(4))),
            ("42 not kept in time", sensor, entries.broken_promise(promise(world, 7))),
            ("42 another parcel in its place", sensor, other),
            ("43 with what it refused", node, entries.notarise(HEART, 0, 8, TREE.root(), before=5, refused=refused)),
        ]

    def _bad_node(self) -> list[Case]:
        world, node, doctor, sensor = self.world, self.node, self.doctor, self.sensor
        leaf, path = leaf_hash(PARCELS[3]), TREE.inclusion(3, 5)
        swapped = promise(world, 3, parcel=seed("swapped"))
        forged = swapped.sign(sensor.key)
        overlapping = [Refusal(5, 7, "plain"), Refusal(6, 8, "plain")]
        nobody = replace(sensor.certificate, subject=bytes(16))
        return [
            ("35 by a principal", doctor, accepted(sensor)),
            ("35 of a topic that there is not", node, accepted(sensor, token_=NONE)),
            ("35 of a partition that there is not", node, accepted(sensor, partition=1)),
            ("35 of somebody unknown", node, accepted(self.porter)),
            ("35 accepted of nobody", node, accepted(replace(sensor, certificate=nobody))),
            ("35 counting nothing", node, accepted(sensor, count=0)),
            ("40 a smaller size", node, entries.anchor(HEART, 0, 4, TREE.root(4))),
            ("40 another root", node, entries.anchor(HEART, 0, 5, HASH)),
            ("40 by a principal", doctor, entries.anchor(HEART, 0, 8, TREE.root())),
            ("40 empty, with a root", node, entries.anchor(AIR, 2, 0, HASH)),
            ("41 beyond the anchor", node, entries.retire(HEART, 0, 6, TREE.root(6))),
            ("41 no further", node, entries.retire(HEART, 0, 2, TREE.root(2))),
            ("41 another root", node, entries.retire(HEART, 0, 5, HASH)),
            ("41 by the owner", doctor, entries.retire(HEART, 0, 4, TREE.root(4))),
            ("42 not due yet", sensor, entries.broken_promise(promise(world, 7, ago_ms=0))),
            ("42 told already", sensor, entries.broken_promise(promise(world, 6))),
            ("42 that was kept", sensor, entries.broken_promise(promise(world, 3), leaf, path)),
            ("42 another leaf elsewhere", sensor, entries.broken_promise(swapped, leaf_hash(PARCELS[2]), path)),
            ("42 another's signature", sensor, entries.broken_promise(forged, leaf, path)),
            ("43 behind another", node, entries.notarise(HEART, 0, 8, TREE.root(), before=4)),
            ("43 no further", node, entries.notarise(HEART, 0, 5, TREE.root(5), before=5)),
            ("43 by a principal", doctor, entries.notarise(HEART, 0, 8, TREE.root(), before=5)),
            (
                *("43 refusals that overlap", node),
                entries.notarise(HEART, 0, 8, TREE.root(), before=5, refused=overlapping),
            ),
        ]

    # Attributes and topic policies.

    def _good_attributes(self) -> list[Case]:
        doctor, authority, sensor, monitor = self.doctor, self.authority, self.sensor.id, self.monitor.id
        return [
            ("44 granted to another tenant's", doctor, entries.grant_attribute(HOSPITAL, sensor, NAME, COMMITMENT)),
            ("44 with an end", doctor, entries.grant_attribute(HOSPITAL, sensor, NAME, COMMITMENT, NOW_MS + DAY_MS)),
            ("44 another value", doctor, entries.grant_attribute(HOSPITAL, monitor, NAME, seed("another value"))),
            ("44 the same pseudonym", self.landlord, entries.grant_attribute(HOME, monitor, NAME, COMMITMENT)),
            ("45 withdrawn", doctor, entries.withdraw_attribute(HOSPITAL, monitor, NAME)),
            ("46 the next version", doctor, entries.topic_policy(HEART, 0, 2, seed("another policy"))),
            ("46 lifted", doctor, entries.topic_policy(HEART, 0, 2, b"")),
            ("46 of the last group", doctor, entries.topic_policy(HEART, 255, 1, COMMITMENT)),
            ("47 the next", authority, entries.attribute_epoch(4, KEY, NOW_MS + 3 * DAY_MS)),
            ("47 brought forward", authority, entries.attribute_epoch(2, KEY, NOW_MS + 10_000)),
        ]

    def _bad_attributes(self) -> list[Case]:
        doctor, authority, landlord, monitor = self.doctor, self.authority, self.landlord, self.monitor.id
        grant, withdraw, policy, epoch = (
            entries.grant_attribute,
            entries.withdraw_attribute,
            entries.topic_policy,
            entries.attribute_epoch,
        )
        return [
            ("44 by another tenant's owner", landlord, grant(HOSPITAL, monitor, NAME, COMMITMENT)),
            ("44 by the authority", authority, grant(HOSPITAL, monitor, NAME, COMMITMENT)),
            ("44 in the name of all tenants", doctor, grant(ALL_TENANTS, monitor, NAME, COMMITMENT)),
            ("44 to a node", doctor, grant(HOSPITAL, self.node.id, NAME, COMMITMENT)),
            ("44 to nobody", doctor, grant(HOSPITAL, STRANGER, NAME, COMMITMENT)),
            ("44 a commitment of 31 bytes", doctor, grant(HOSPITAL, monitor, NAME, bytes(31))),
            ("44 an end below zero", doctor, grant(HOSPITAL, monitor, NAME, COMMITMENT, -1)),
            ("45 of another tenant", landlord, withdraw(HOSPITAL, monitor, NAME)),
            ("45 not granted", doctor, withdraw(HOSPITAL, monitor, OTHER)),
            ("45 a field too few", doctor, wire.encode([int(EntryKind.WITHDRAW_ATTRIBUTE), HOSPITAL, monitor])),
            ("46 by another", landlord, policy(HEART, 0, 2, COMMITMENT)),
            ("46 the version that is there", doctor, policy(HEART, 0, 1, COMMITMENT)),
            ("46 a version skipped", doctor, policy(HEART, 0, 3, COMMITMENT)),
            ("46 nothing to lift", doctor, policy(HEART, 1, 1, b"")),
            ("46 of no topic", doctor, policy(NONE, 0, 1, COMMITMENT)),
            ("46 group 256", doctor, policy(HEART, 256, 1, COMMITMENT)),
            ("46 a commitment of 16 bytes", doctor, policy(HEART, 0, 2, bytes(16))),
            ("47 by a principal", doctor, epoch(4, KEY, NOW_MS + 3 * DAY_MS)),
            ("47 a number skipped", authority, epoch(5, KEY, NOW_MS + 4 * DAY_MS)),
            ("47 put off", authority, epoch(2, KEY, NOW_MS + DAY_MS + 1)),
            ("47 nothing new", authority, epoch(2, KEY, NOW_MS + DAY_MS)),
            ("47 under another key", authority, epoch(2, seed("another key"), NOW_MS + 10_000)),
            ("47 before the one before it", authority, epoch(3, KEY, NOW_MS + DAY_MS - 1)),
            ("47 one that has begun", authority, epoch(1, KEY, NOW_MS - 1)),
            ("47 number zero", authority, epoch(0, KEY, NOW_MS)),
        ]

    # Groups.

    def commit(self, old: int, new: int, fence: int = FENCE, partition: int = 0, member: bytes = ONE) -> bytes:
        return entries.commit_offset(GROUP, member, AIR, partition, fence=fence, old=old, new=new)

    def reset(self, old: int, new: int, fence: int = FENCE) -> bytes:
        return entries.reset_offset(GROUP, AIR, 0, fence=fence, old=old, new=new)

    def _good_groups(self) -> list[Case]:
        landlord, sensor = self.landlord, self.sensor
        return [
            ("50 a group", sensor, entries.group(OTHER, 10_000, [AIR])),
            ("51 one more, and the fence rises", landlord, entries.join(GROUP, TWO)),
            ("51 again, for another lease", sensor, entries.join(GROUP, ONE)),
            ("52 the last", sensor, entries.leave(GROUP, ONE)),
            ("53 forward", sensor, self.commit(10, 20)),
            ("53 a partition's first", sensor, self.commit(0, 1, partition=3)),
            ("54 back", landlord, self.reset(10, 3)),
        ]

    def _bad_groups(self) -> list[Case]:
        landlord, sensor, monitor = self.landlord, self.sensor, self.monitor
        return [
            ("50 that exists", landlord, entries.group(GROUP, 10_000, [AIR])),
            ("50 of what one may not read", sensor, entries.group(OTHER, 10_000, [HEART])),
            ("50 by somebody on the blacklist", monitor, entries.group(OTHER, 10_000, [HEART])),
            ("50 too short a lease", sensor, entries.group(OTHER, 999, [AIR])),
            ("50 of no topic", sensor, entries.group(OTHER, 10_000, [])),
            ("51 by another tenant's", monitor, entries.join(GROUP, TWO)),
            ("51 no such group", sensor, entries.join(OTHER, ONE)),
            ("52 one who is not in it", landlord, entries.leave(GROUP, TWO)),
            ("52 by another", landlord, entries.leave(GROUP, ONE)),
            ("53 under an old fence", sensor, self.commit(10, 20, FENCE - 1)),
            ("53 by another", landlord, self.commit(10, 20)),
            ("53 for another member", sensor, self.commit(10, 20, member=TWO)),
            ("53 from where it is not", sensor, self.commit(9, 20)),
            ("53 back", sensor, self.commit(10, 9)),
            ("53 a partition that there is not", sensor, self.commit(0, 1, partition=4)),
            ("54 by a member", sensor, self.reset(10, 3)),
            ("54 under an old fence", landlord, self.reset(10, 3, FENCE - 1)),
            ("54 from where it is not", landlord, self.reset(9, 3)),
        ]


def without_evidence(operation: bytes) -> bytes:
    """The operation without the request that proves it."""
    return wire.encode([*wire.decode(operation)[:-1], b""])


def _by_kind(case: Case) -> int:
    return int(case[0].split()[0])
