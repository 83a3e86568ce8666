"""`tally overlay status`: what the ledger says of an overlay, by anybody's own proof."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commands import Fleet, done, refused
from ledger_world import seed
from stack import PASSPHRASE

from tallystick.client.session import Session
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts.plans import MARGIN_BLOCKS
from tallystick.node.instance import open_root
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.plan import Plan, Relay, VirtualNode, node_id, overlay_id
from tallystick.trust.promise import JointAnchor

KEYS = [SigningKey.from_seed(seed(f"relay of the status {number}")) for number in range(6)]


class Harbour:
    """An overlay of two virtual nodes whose relays write to the ledger as the test says."""

    def __init__(self, fleet: Fleet) -> None:
        self.ledger, self.trust = fleet.stack.node.ledger, fleet.stack.node.trust
        self.instance, self.session = self.trust.instance, Session.open(fleet.owner)
        self.overlay = overlay_id(self.instance, "bay")
        self.relays = [subject_id(self.instance, key.public.raw) for key in KEYS]
        self._number = int(fleet.stack.clock.now() * 1_000_000)
        root, now_ms = open_root(fleet.folder, PASSPHRASE), int(fleet.stack.clock.now() * 1000)
        for name, key in zip(self.relays, KEYS, strict=True):
            who = self.instance, SubjectKind.NODE, name, ALL_TENANTS, key.public.raw, b""
            made = Certificate(*who, now_ms - 1_000, now_ms + 86_400_000, ROOT_ID)
            self.session.author.write(entries.enrol(made.sign(self.trust.root_signer(root))))

    def plan(self, version: int) -> Plan:
        seats = [
            Relay(name, key.public.raw, seed(f"link {number}"), f"relay-{number}:7000", "", f"quay-{number}")
            for number, (name, key) in enumerate(zip(self.relays, KEYS, strict=True))
        ]
        hub = VirtualNode(node_id(self.overlay, "hub"), b"", tuple(seats[:3]))
        edge = VirtualNode(node_id(self.overlay, "edge"), hub.identifier, tuple(seats[3:]))
        return Plan(self.overlay, version, (hub, edge))

    def submit(self, version: int, ahead: int) -> int:
        """Returns the height from which the plan counts."""
        me, first = self.session.identity, self.ledger.height + MARGIN_BLOCKS + ahead
        signed = entries.sign_plan(self.instance, self.plan(version), first, me.principal, me.signing_key)
        self.session.author.write(entries.plan(self.plan(version), first, [signed]))
        return first

    def wait(self, height: int) -> None:
        own = self.session.identity.principal, self.session.identity.tenant
        while self.ledger.height < height:
            self.session.author.write(*(entries.refuse_attributes(*own, refused=refuses) for refuses in (True, False)))

    def anchor(self, token: bytes, size: int) -> JointAnchor:
        """Signed by two relays of the edge."""
        edge = node_id(self.overlay, "edge")
        joint = JointAnchor(self.instance, self.overlay, 1, edge, 1, token, 0, size, seed("root"), 0, ())
        return joint.sign(1, KEYS[3]).sign(2, KEYS[4])

    def write(self, relay: int, *entry: bytes) -> None:
        """As a relay writes."""
        self._number += 1
        made = compose(self.instance, self.relays[relay], self._number, entry, KEYS[relay])
        self.session.node.submit(made.data)


@pytest.fixture(scope="module")
def harbour(fleet: Fleet) -> Iterator[Harbour]:
    harbour = Harbour(fleet)
    with harbour.session:
        owner = harbour.session.identity.principal.hex()
        done("overlay", "found", fleet.folder, "bay", owner, "--yes")
        yield harbour


def test_an_overlay_is_shown_from_its_founding_on(fleet: Fleet, harbour: Harbour) -> None:
    status = ("overlay", "status", "bay", "--home")
    assert "does not exist" in refused(2, "overlay", "status", "nowhere", "--home", fleet.reader)[0]
    assert done(*status, fleet.reader).out.endswith(": no plan is in force\n")
    first = harbour.submit(1, ahead=8)
    assert f"no plan is in force; plan 1 counts from height {first} on" in done(*status, fleet.reader).out
    harbour.wait(first)
    topic = fleet.topic("crates")
    done("overlay", "entrust", topic, "bay", "edge", "--lease", "10min", "--home", fleet.owner)
    said = done(*status, fleet.reader, "--json").json
    assert (said["version"], said["coming"]) == (1, None)
    assert [len(node["relays"]) for node in said["nodes"]] == [3, 3]
    [crates] = said["topics"]
    token = bytes.fromhex(crates["token"])
    assert crates["entry"] == node_id(harbour.overlay, "edge").hex()
    assert crates["partitions"] == [{"partition": 0, "holder": None, "fence": 0, "remaining_ms": 0, "anchored": 0}]
    assert "nobody orders it" in done(*status, fleet.owner).out
    harbour.write(4, entries.lease(token, 0, 1))
    harbour.write(4, harbour.anchor(token, size=7).encode_entry())
    lines = done(*status, fleet.reader).out.splitlines()
    held = next(line.split() for line in lines if "partition 0" in line)
    assert held[:6] == ["partition", "0", "ordered", "by", "quay-4", "fence"]
    assert held[-2:] == ["7", "anchored"]
    [partition] = done(*status, fleet.reader, "--json").json["topics"][0]["partitions"]
    assert partition["holder"] == harbour.relays[4].hex()
    assert 300_000 < partition["remaining_ms"] <= 600_000


def test_one_accuser_is_shown_and_two_make_a_suspect(fleet: Fleet, harbour: Harbour) -> None:
    status = ("overlay", "status", "bay", "--home", fleet.reader)
    if done(*status, "--json").json["version"] is None:
        harbour.wait(harbour.submit(1, ahead=8))
    harbour.write(3, entries.suspect(harbour.overlay, 1, harbour.relays[1]))
    line = next(line for line in done(*status).out.splitlines() if "quay-1" in line)
    assert "called silent by 1, which is not enough" in line
    assert "not asked" in line, "this identity knows none of them"
    harbour.write(4, entries.suspect(harbour.overlay, 1, harbour.relays[1]))
    [relay] = [
        one for node in done(*status, "--json").json["nodes"] for one in node["relays"] if one["name"] == "quay-1"
    ]
    assert (relay["suspected"], relay["failures"], len(relay["accusers"])) == (True, 1, 2)
    assert "suspected, 1 failure" in done(*status).out
