"""Whatever an entry holds, the contracts answer with a result: nothing else leaves `execute`, and nothing half-done."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from examples import examples
from firmware_world import CAMPAIGN, IMAGE, PHASES, FirmwareWorld
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import HOSPITAL, NOW_MS, Actor, Bench, seed, token
from overlay_ledger import EDGE, LEASE_MS, OVERLAY, OverlayWorld, anchored, dealt, falsified, ordered, originated

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.block import parse
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.execute import CONTRACTS, execute
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.contracts.retention import Retention
from tallystick.ledger.contracts.state import State
from tallystick.trust.permit import Operation
from tallystick.trust.promise import Refusal

BENCH = Bench()
WORLD = BENCH.world
RELAYED = OverlayWorld(WORLD)
RELAY, OTHER = RELAYED.edge[:2]
AUTHORS: list[Actor] = [WORLD.authority, WORLD.node, WORLD.doctor, WORLD.monitor, WORLD.sensor, RELAY]
HEART, AIR = token("heart"), token("air")
GROUP = seed("group")[:16]
LATER = Bench(WORLD)  # where the contracts are in their newest versions
for _bench in (BENCH, LATER):
    for _grant in (entries.grant(HEART, WORLD.doctor.id, 15), entries.group(GROUP, 10_000, [HEART])):
        _bench.accept(WORLD.doctor.sign(_grant))
RELAYED.stand(LATER)
BENCH.accept(WORLD.authority.sign(entries.enrol(RELAY.certificate)))
UPDATES = FirmwareWorld(WORLD)
UPDATES.stand(LATER)

# Values that fit somewhere, so that handlers are entered deeply and not only turned back at the first field.
KNOWN: list[Any] = [
    *(HEART, AIR, GROUP, HOSPITAL, bytes(16), bytes(32), bytes(64), seed("x"), WORLD.doctor.id, WORLD.node.id),
    *(0, 1, 2, 3, 15, 35, 10_000, NOW_MS, -1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1, "", "*", "rise_max", "topics"),
    *(OVERLAY, EDGE, RELAY.id, RELAY.key.public.raw, dealt(RELAY)[0].encode(), RELAYED.plan(2).encode()),
    *(IMAGE, CAMPAIGN, [[UPDATES.releases, IMAGE]], [[*one] for one in PHASES]),
    *([], [HEART], [WORLD.node.id], [bytes(32)], None, True, b"", [[]], WORLD.doctor.certificate.encode()),
]
fields = st.lists(st.sampled_from(KNOWN) | st.binary(max_size=40) | st.integers(-5, 1 << 63), max_size=14)
kinds = st.sampled_from([int(kind) for kind in EntryKind])


@examples(400)
@given(kind=kinds, values=fields, author=st.sampled_from(AUTHORS))
def test_any_fields_of_any_kind_give_a_result(kind: int, values: list[Any], author: Actor) -> None:
    check(author, wire.encode([kind, *values]))


@examples(400)
@given(data=st.data(), author=st.sampled_from(AUTHORS))
def test_a_good_entry_with_one_field_exchanged_gives_a_result(data: st.DataObject, author: Actor) -> None:
    entry = wire.decode(data.draw(st.sampled_from(GOOD)))
    place = data.draw(st.integers(0, len(entry) - 1))
    entry[place] = data.draw(st.sampled_from(KNOWN))
    check(author, wire.encode(entry))


def check(author: Actor, entry: bytes) -> None:
    signed = author.sign(entry).data
    for bench in (BENCH, LATER):
        state = State(bench.stored.get)
        result = execute(state, parse(signed), bench.height, bench.time_ms)
        assert result.accepted or (result.reason and result.index == 0)
        assert result.accepted or state.changes() == {}


@pytest.mark.parametrize("kind", [None, True, 0, -1, 40.0, b"\x28", "anchor", [], 1 << 40])
def test_an_entry_of_no_kind_is_refused_wherever_it_stands(kind: object) -> None:
    bench = Bench()
    good, bad = entries.anchor(HEART, 0, 1, seed("r")), cbor2.dumps([kind, HEART, 0, 2, seed("r")])
    for written, index in (([bad], 0), ([good, bad], 1)):
        before = dict(bench.stored)
        result = bench.run(bench.world.node.sign(*written))
        assert (result.accepted, result.index, bench.stored) == (False, index, before)


def test_every_kind_has_a_handler_and_a_writer() -> None:
    handled = {int(kind) for table in CONTRACTS.values() for kind in table}
    assert handled == {int(kind) for kind in EntryKind}
    assert {wire.decode(entry)[0] for entry in GOOD} == handled


_IDS = (WORLD.doctor.id, WORLD.monitor.id)
GOOD = [
    entries.enrol(WORLD.doctor.certificate),
    entries.revoke(_IDS[0]),
    entries.replace(WORLD.doctor.certificate),
    entries.tenant(HOSPITAL, _IDS[0]),
    entries.trust(WORLD.trust.to_json()),
    WORLD.topic("new", WORLD.doctor, HOSPITAL),
    entries.schema(WORLD.instance, HEART, 2, seed("s"), WORLD.doctor.key),
    entries.assign(HEART, 0, [WORLD.node.id]),
    entries.close_topic(HEART),
    entries.retain(HEART, Retention(parcels=1)),
    entries.release(HEART, 0, 1),
    entries.announce_epoch(HEART, 1, seed("k"), NOW_MS),
    entries.announce_key(HEART, seed("name")[:16], seed("k")),
    entries.end_epoch(HEART, 1, End.SCHEDULE, NOW_MS),
    entries.grant(HEART, _IDS[1], 1),
    entries.withdraw(HEART, _IDS[0], 15),
    entries.issue_permit(GROUP, Operation.SUBSCRIBE, HEART, _IDS[0], NOW_MS),
    entries.undo_permit(GROUP),
    entries.revoke_permit(GROUP),
    entries.operation(_IDS[0], OperatorRole.PUBLISHER, HEART, 2, time_ms=NOW_MS, request=seed("r")),
    entries.anchor(HEART, 0, 1, seed("r")),
    entries.retire(HEART, 0, 1, seed("r")),
    entries.notarise(HEART, 0, 2, seed("r"), before=1, refused=[Refusal(1, 2, "plain")]),
    wire.encode([int(EntryKind.BROKEN_PROMISE), b"promise", b"", []]),
    entries.grant_attribute(HOSPITAL, _IDS[1], bytes(16), seed("c"), NOW_MS),
    entries.withdraw_attribute(HOSPITAL, _IDS[1], bytes(16)),
    entries.topic_policy(HEART, 0, 1, seed("c")),
    entries.attribute_epoch(1, seed("k"), NOW_MS),
    entries.group(seed("g")[:16], 10_000, [HEART]),
    entries.join(GROUP, bytes(16)),
    entries.leave(GROUP, bytes(16)),
    entries.commit_offset(GROUP, bytes(16), HEART, 0, fence=1, old=0, new=1),
    entries.reset_offset(GROUP, HEART, 0, fence=1, old=0, new=1),
    entries.lift(_IDS[0]),
    entries.equivocation(_IDS[0], WORLD.doctor.key.public.raw, b"", bytes(64), b"", bytes(64)),
    entries.write(HEART, bytes(16), 0, seed("h")),
    entries.erase(HEART, _IDS[0], 1),
    entries.set_("rise_max", 1),
    entries.activate("topics", 2, 10_000),
    entries.withdraw_activation("topics", 2, 10_000),
    entries.drop_attribute(HOSPITAL, _IDS[1], bytes(16)),
    entries.refuse_attributes(_IDS[1], HOSPITAL),
    RELAYED.founding(overlay=seed("another overlay")[:16]),
    RELAYED.signed(RELAYED.plan(2), LATER.height + 100),
    entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS + 1),
    entries.lease(HEART, 0, 1),
    anchored(RELAYED, 1, seed("root")),
    entries.suspect(OVERLAY, 1, OTHER.id),
    entries.two_sets(OTHER.id, OTHER.key.public.raw, dealt(OTHER)[0], dealt(OTHER, story="another")[0]),
    entries.false_share(OTHER.id, OTHER.key.public.raw, dealt(OTHER)[0], falsified(OTHER, dealt(OTHER)[1][1]), 0),
    entries.two_origins(OTHER.id, OTHER.key.public.raw, originated(OTHER), originated(OTHER, story="another")),
    entries.two_orders(OTHER.id, OTHER.key.public.raw, 2, *(ordered(RELAYED, name, 1, 2) for name in ("one", "two"))),
    *UPDATES.good(),
]
