"""What a publisher makes of joint promises: held to the plan, and to the anchor that comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from carrying_world import promised, sealed
from commands import done
from edge_world import TOKEN, Rows
from makers import INSTANCE
from sharing_world import chain, key_of

from tallystick.carriers.carrier import NotStored
from tallystick.client.hands import Sender
from tallystick.client.outbox import AccuseNode, CheckAnchor, Outbox, Spooled, Waiter
from tallystick.client.settings import PublisherSettings
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.errors import Forged, Refused
from tallystick.ledger.contracts.anchors import AnchorRow
from tallystick.runtime.sources import SystemClock
from tallystick.trust.promise import JointAnchor, JointPromise, Promise

PLAN = chain((3, 3))
PARCELS = sealed(3)
RELAY = PLAN.nodes[0].relays[0].identifier


class Ledger(Rows):
    """With one anchored partition, of these parcels in this order."""

    def __init__(self, *order: int) -> None:
        super().__init__(PLAN)
        self.tree = Tree([leaf_hash(PARCELS[number].hash) for number in order])

    def row(self, key: Any) -> Any:
        return AnchorRow(self.tree.size, self.tree.root(), 1, 1, bytes(16))

    def inclusion(self, token: bytes, partition: int, size: int, offsets: Any) -> list[list[bytes]]:
        return [self.tree.inclusion(offset, size) for offset in offsets]


class Accusations:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, *entries: bytes) -> None:
        self.written += entries


def sender(ledger: Ledger) -> tuple[Sender, Accusations]:
    nodes = [SimpleNamespace(subject=RELAY, verify_key=key_of(RELAY).public)]
    identity, author = SimpleNamespace(instance=INSTANCE, nodes=nodes), Accusations()
    ties: Any = SimpleNamespace(identity=identity, view=ledger, carrier=ledger, author=author, clock=SystemClock())
    nothing: Any = None
    return Sender(ties, nothing, nothing, Outbox(PublisherSettings(), nothing)), author


def spooled(number: int, *promises: Promise | JointPromise) -> Spooled:
    header, waiter = PARCELS[number].header, Waiter([])
    one = Spooled(header.lane, number, PARCELS[number].hash, 1, 1, header.topics, (), waiter)
    one.promises = promises
    return one


def test_a_promise_of_enough_relays_holds_and_one_of_fewer_does_not() -> None:
    hand, _ = sender(Ledger(0, 1, 2))
    good = promised(PLAN, PARCELS[1], 1)
    hand._check_promises(spooled(1), [good])
    for bad in (
        promised(PLAN, PARCELS[1], 1, signers=(2,)),
        promised(PLAN, PARCELS[1], 1, node=1),
        promised(PLAN, PARCELS[2], 1),
        replace(good, offset=2),
        replace(good, plan=2),
        replace(good, instance=bytes(32)),
    ):
        with pytest.raises(Refused):
            hand._check_promises(spooled(1), [bad])


def test_where_an_orderer_forked_the_first_anchor_wins_and_the_parcel_is_displaced() -> None:
    hand, _ = sender(Ledger(0, 2))
    kept, lost = (spooled(number, promised(PLAN, PARCELS[number], number)) for number in (0, 1))
    proved, judged = hand._check(CheckAnchor(TOKEN, 0, [(kept, 0), (lost, 1)]))
    assert proved == [(kept, 0)]
    assert judged is not None
    one, refusal = judged
    assert one is lost
    assert isinstance(refusal, NotStored)
    assert refusal.reason == "displaced"


def test_a_single_node_that_promised_the_place_has_broken_its_word() -> None:
    hand, author = sender(Ledger(0, 2))
    alone = Promise(INSTANCE, RELAY, TOKEN, 0, 1, PARCELS[1].hash, 1, 1).sign(key_of(RELAY))
    one = spooled(1, alone)
    hand._check_promises(one, [alone])
    with pytest.raises(Forged):
        hand._check(CheckAnchor(TOKEN, 0, [(one, 1)]))
    assert hand._accuse(AccuseNode(one))
    assert len(author.written) == 1


def test_inspect_reads_joint_promises_and_joint_anchors(tmp_path: Path) -> None:
    edge, file = PLAN.nodes[0].identifier, tmp_path / "file"
    anchor = JointAnchor(INSTANCE, PLAN.overlay, 1, edge, 7, TOKEN, 3, 5, b"r" * 32, 4, ()).sign(1, key_of(RELAY))
    anchor = anchor.sign(3, key_of(PLAN.nodes[0].relays[2].identifier))
    shown: dict[str, Any] = {}
    for name, data in {
        "promise": promised(PLAN, PARCELS[0], 2).encode(),
        "anchor": anchor.encode(),
        "entry": anchor.encode_entry(),
    }.items():
        file.write_bytes(data)
        shown[name] = done("inspect", file, "--json").json
    promise, entry = shown["promise"], shown["entry"]
    assert (promise["kind"], promise["offset"], promise["signed_by_relays"]) == ("joint promise", 2, [1, 2])
    assert (promise["virtual_node"], promise["parcel"]) == (edge.hex(), PARCELS[0].hash.hex())
    assert (entry["kind"], entry["before"], entry["size"]) == ("joint anchor", 4, 5)
    assert (entry["fence"], entry["partition"], entry["signed_by_relays"]) == (7, 3, [1, 3])
    known = {"instance": INSTANCE.hex(), "overlay": PLAN.overlay.hex(), "virtual_node": edge.hex()}
    assert shown["anchor"] == entry | known  # what is not in the entry the ledger knows
