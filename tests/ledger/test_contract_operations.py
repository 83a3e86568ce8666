"""Operations, reputation and evidence: every act leaves a trace, and nobody can be framed."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest
from ledger_world import NOW_MS, NOW_S, ROLES, Actor, Bench, World, refusal, request, seed, token
from ledger_world import bench as bench
from ledger_world import world as world

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SigningKey
from tallystick.ledger import entries
from tallystick.ledger.contracts import operations, reputation
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")
READ, WRITE = Right.READ, Right.WRITE


def accepted(who: Actor, *, count: int = 1, token_: bytes = HEART, partition: int = 0) -> bytes:
    return entries.operation(
        *(who.id, OperatorRole.PUBLISHER, token_, WRITE),
        time_ms=NOW_MS,
        request=seed("a request"),
        count=count,
        partition=partition,
    )


def blame(world: World, nonce: int = 0) -> bytes:
    """The sensor's own request, for which it has no right."""
    return refusal(world.sensor, request(world.sensor, world.node, nonce=nonce))


# --- the history ---


def test_a_history_is_a_chain_that_anybody_can_fold(bench: Bench, world: World) -> None:
    places = []
    for batch in ([accepted(world.monitor)] * 3, [accepted(world.doctor), accepted(world.sensor, token_=AIR)]):
        places += [(bench.height, i, e) for i, e in enumerate(batch) if HEART in e]
        bench.play((world.node, batch, None))
    chain = bytes(32)
    for height, index, entry in places:
        chain = operations.next_chain(chain, height, index, merkle.leaf_hash(entry))
    assert bench.state.get(b"history/" + HEART) == [bench.height - 1, 0, 4, chain]


def test_the_chain_is_the_hash_that_the_format_says() -> None:
    expected = sha256(wire.encode(["history", seed("c"), 70_000, 300, seed("e")])).digest()
    assert operations.next_chain(seed("c"), 70_000, 300, seed("e")) == expected


def test_a_result_links_to_the_operation_before(bench: Bench, world: World) -> None:
    first = bench.accept(world.node.sign(accepted(world.monitor), accepted(world.sensor, token_=AIR)))
    height = bench.height - 1
    second = bench.accept(world.node.sign(accepted(world.sensor, token_=AIR), *[accepted(world.monitor)] * 2))
    assert wire.decode(first.data) == sorted([[HEART, 0, 0, 0, b"\0\0"], [AIR, 0, 0, 0, b"\0\1"]])
    assert wire.decode(second.data) == sorted([[HEART, 1, height, 0, b"\0\1\0\2"], [AIR, 1, height, 1, b"\0\0"]])


@pytest.mark.parametrize("role", ROLES)
def test_only_a_node_of_the_partition_writes_its_history(bench: Bench, world: World, role: str) -> None:
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.play(
        (other, entries.enrol(other.certificate), None),
        (other, accepted(world.monitor), "not-host", 0),
        world.row(role, "node", accepted(world.monitor), "not-host"),
        world.row(role, "node", entries.junk("unsigned", 1, WRITE, time_ms=NOW_MS), "not-node"),
        (world.node, accepted(world.monitor, partition=1), "not-host", 0),
        (world.node, accepted(world.monitor, token_=token("no such")), "unknown-topic", 0),
        (world.landlord, entries.assign(AIR, 3, [other.id]), None),
        (other, accepted(world.sensor, token_=AIR, partition=3), None),
        (world.node, accepted(world.sensor, token_=AIR, partition=3), "not-host", 0),
    )


def test_a_request_for_what_does_not_exist_spoils_no_batch_and_fills_no_state(bench: Bench, world: World) -> None:
    nowhere = token("no such")
    sent = request(world.sensor, world.node, path=f"/v1/topics/{nowhere.hex()}/parcels")
    beyond = entries.operation(
        *(world.sensor.id, OperatorRole.SUBSCRIBER, AIR, READ),
        time_ms=NOW_MS,
        request=seed("r"),
        reason="unknown-partition",
        partition=99,
        host="h" * 1000,
        evidence=bytes(5000),
    )
    bench.play((world.node, [refusal(world.sensor, sent, token_=nowhere), beyond], None))
    assert reputation.score(bench.state, world.sensor.id) == 90
    assert bench.state.get(b"history/" + nowhere) is None
    assert bench.state.get(b"history/" + AIR)[2] == 1


def test_junk_is_an_aggregate_that_blames_nobody(bench: Bench, world: World) -> None:
    result = bench.accept(world.node.sign(entries.junk("unsigned", 1_000_000, WRITE, time_ms=NOW_MS)))
    assert (result.refused, result.operators) == (1, frozenset())


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, b"short"), (2, 3), (3, b""), (4, 3), (5, "r" * 33), (7, 0), (9, -1), (10, 1 << 63), (12, b""), (13, None)],
)
def test_a_field_out_of_form_is_malformed(bench: Bench, world: World, place: int, value: object) -> None:
    fields = wire.decode(accepted(world.monitor))
    fields[place] = value
    bench.play((world.node, wire.encode(fields), "malformed", 0))


# --- reputation ---


def test_a_refusal_that_the_contract_shares_lowers_the_score(bench: Bench, world: World) -> None:
    bench.play((world.node, blame(world), None))
    assert reputation.score(bench.state, world.sensor.id) == 90


def test_nine_such_refusals_blacklist_and_only_the_operator_lifts(bench: Bench, world: World) -> None:
    bench.play(*((world.node, blame(world, nonce), None) for nonce in range(8)))
    assert not reputation.is_blacklisted(bench.state, world.sensor.id)
    bench.play((world.node, blame(world, 8), None))
    assert reputation.is_blacklisted(bench.state, world.sensor.id)
    bench.play((world.landlord, entries.lift(world.sensor.id), "not-operator"))
    bench.play((world.authority, entries.lift(world.sensor.id), None))
    assert reputation.score(bench.state, world.sensor.id) == 100
    assert bench.state.get(b"reputation/" + world.sensor.id)[3] == 0
    bench.play((world.authority, entries.lift(world.sensor.id), "not-blacklisted"))


def test_framing_a_node_cannot_lower_a_score_on_its_word(bench: Bench, world: World) -> None:
    """Every way we know to blame a principal for what it did not do; each is recorded, none has effect."""
    victim, node = world.monitor, world.node
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    honest = request(victim, node)
    to_another = request(victim, other, nonce=1)
    stale = request(victim, node, now=NOW_S - 3600, nonce=2)
    elsewhere = request(victim, node, path=f"/v1/topics/{AIR.hex()}/parcels", nonce=3)
    unnamed = request(victim, node, path="/health/live", nonce=4)
    forged = replace(request(world.sensor, node, nonce=5), principal=victim.id)
    bare = entries.operation(
        victim.id, OperatorRole.PUBLISHER, HEART, WRITE, time_ms=NOW_MS, request=honest.base_hash, reason="no-right"
    )
    misnamed = entries.operation(
        *(victim.id, OperatorRole.PUBLISHER, HEART, WRITE),
        time_ms=NOW_MS,
        request=seed("not its hash"),
        reason="no-right",
        evidence=replace(honest, nonce=bytes(16)).evidence(),
    )
    shown = (to_another, stale, elsewhere, unnamed, forged, request(world.sensor, node, nonce=6))
    bench.play((node, [bare, *(refusal(victim, envelope) for envelope in shown), misnamed], None))
    assert reputation.score(bench.state, victim.id) == 100
    bench.play((node, refusal(victim, honest), None))
    assert reputation.score(bench.state, victim.id) == 90, "the control: its own request does count"


def test_one_request_counts_once(bench: Bench, world: World) -> None:
    blamed = blame(world)
    bench.play((world.node, [blamed, blamed], None))
    bench.play((world.node, blamed, None))
    assert reputation.score(bench.state, world.sensor.id) == 90


def test_who_has_the_right_is_not_blamed_whatever_the_node_says(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant(HEART, world.monitor.id, WRITE, host="10.0.0.1"), None))
    bench.time_ms += 2000
    sent = request(world.monitor, world.node, now=bench.time_ms // 1000)
    bench.play((world.node, refusal(world.monitor, sent), None))
    assert reputation.score(bench.state, world.monitor.id) == 100


def test_a_right_taken_after_the_request_does_not_make_it_a_misdeed(bench: Bench, world: World) -> None:
    bench.play((world.doctor, entries.grant(HEART, world.monitor.id, WRITE), None))
    sent = request(world.monitor, world.node)
    bench.time_ms += 1000
    bench.play((world.doctor, entries.withdraw(HEART, world.monitor.id, WRITE), None))
    bench.play((world.node, refusal(world.monitor, sent), None))
    assert reputation.score(bench.state, world.monitor.id) == 100
    later = request(world.monitor, world.node, now=NOW_S + 2, nonce=1)
    bench.play((world.node, refusal(world.monitor, later), None))
    assert reputation.score(bench.state, world.monitor.id) == 90


def test_accepted_requests_raise_a_score_slowly_and_never_above_the_start(bench: Bench, world: World) -> None:
    bench.play(*((world.node, blame(world, nonce), None) for nonce in range(3)))
    bench.play((world.node, accepted(world.sensor, count=4), None))
    assert reputation.score(bench.state, world.sensor.id) == 74
    bench.play((world.node, [accepted(world.sensor, count=1000)] * 5, None))
    assert reputation.score(bench.state, world.sensor.id) == 80, "ten a window"
    for _ in range(5):
        bench.time_ms += 60_000
        bench.play((world.node, accepted(world.sensor, count=1000), None))
    assert reputation.score(bench.state, world.sensor.id) == 100


def test_a_refused_transaction_raises_nothing(bench: Bench, world: World) -> None:
    bench.play((world.node, blame(world), None))
    bench.play((world.node, [accepted(world.sensor), accepted(world.sensor, partition=9)], "not-host", 1))


# --- settings and versions ---


@pytest.mark.parametrize("role", ROLES)
def test_only_the_operator_sets_and_activates(bench: Bench, world: World, role: str) -> None:
    bench.play(world.row(role, "authority", entries.set_("reputation_fall", 0), "not-operator"))
    bench.play(world.row(role, "authority", entries.activate("topics", 2, bench.height + 9), "not-operator"))


def test_settings_are_the_operator_s_and_bounded(bench: Bench, world: World) -> None:
    bench.play(
        (world.authority, entries.set_("no_such", 1), "unknown-setting"),
        (world.authority, entries.set_("rise_window_ms", 0), "out-of-range"),
        (world.authority, entries.set_("reputation_fall", 50), None),
        (world.node, blame(world), None),
    )
    assert reputation.score(bench.state, world.sensor.id) == 50


def test_a_contract_version_takes_effect_at_its_height(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.errors import Refused, Unavailable
    from tallystick.ledger.contracts import execute

    def stricter(call: object, entry: object) -> None:
        raise Refused("version 2 forgives nobody", reason="version-2")

    monkeypatch.setitem(execute.CONTRACTS, ("reputation", 2), {60: stricter})
    first, lift = bench.height, entries.lift(world.sensor.id)  # every row is a block
    bench.play(
        (world.authority, entries.activate("reputation", 2, first), "out-of-range"),
        (world.authority, entries.activate("reputation", 2, first + 3), None),
        (world.authority, lift, "not-blacklisted"),
        (world.authority, lift, "version-2"),
        (world.authority, entries.activate("reputation", 2, first + 13), "wrong-version"),
        (world.authority, entries.activate("topics", 7, first + 6), None),
    )
    with pytest.raises(Unavailable, match="contract topics: version 7 is in force"):
        bench.run(world.authority.sign(lift))


def test_an_activation_is_withdrawn_before_its_height_and_not_after(bench: Bench, world: World) -> None:
    first = bench.height  # every row is a block
    soon, later, withdrawn = ("settings", 2, first + 2), ("topics", 7, first + 6), ("topics", 7, first + 9)
    bench.play(
        (world.authority, [entries.activate(*soon), entries.activate(*later)], None),
        (world.authority, entries.withdraw_activation(*later), "unknown-kind"),
        (world.sensor, entries.withdraw_activation(*later), "not-operator"),
        (world.authority, entries.withdraw_activation(*withdrawn), "not-activated"),
        (world.authority, entries.withdraw_activation(*soon), "out-of-range"),
        (world.authority, entries.withdraw_activation(*later), None),
        (world.authority, entries.activate(*withdrawn), None),
        (world.authority, entries.set_("reputation_fall", 5), None),
    )


def test_a_contract_that_comes_later_has_no_kinds_until_it_is_activated(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two releases on one chain the older one knows no such kind: before the activation both refuse it."""
    from tallystick import wire
    from tallystick.ledger.contracts import execute

    taken: list[object] = []
    monkeypatch.setitem(execute.CONTRACTS, ("later", 1), {90: lambda call, entry: taken.append(entry)})
    assert execute.newest()["later"] == 1
    bench.play(
        (world.authority, wire.encode([90, "early"]), "unknown-kind"),
        (world.authority, entries.activate("later", 1, bench.height + 2), None),
        (world.authority, wire.encode([90, "in force"]), None),
    )
    assert taken == [[90, "in force"]]


# --- identity of operators ---


def test_an_unknown_operator_is_refused(bench: Bench, world: World) -> None:
    nobody = Actor(replace(world.stranger.certificate, subject=bytes(16)), SigningKey.from_seed(seed("x")))
    bench.play((world.node, accepted(world.stranger), "unknown-identity", 0))
    bench.play((world.node, accepted(nobody), "wrong-operator", 0))
