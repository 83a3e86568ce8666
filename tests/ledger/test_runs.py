"""Operations by the hundred give what they give one by one: result, state, and the entry that a refusal names."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import NOW_MS, Bench, operation_batch, seed, token

from tallystick import wire
from tallystick.errors import Forged
from tallystick.ledger import block, entries
from tallystick.ledger.block import BATCH_MIN, Transaction, hash_entries, parse, plain_hashes
from tallystick.ledger.contracts import operations
from tallystick.ledger.contracts.execute import CONTRACTS, Result, execute
from tallystick.ledger.contracts.operations import OperatorRole, find_runs

BENCH = Bench()
BENCH.bring_into_force()  # the heights that tests choose lie on both sides
WORLD = BENCH.world
HEART, AIR = token("heart"), token("air")
EDGES = [0, 1, 23, 24, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]
PLAIN = [35, WORLD.sensor.id, 1, AIR, 2, "", "10.0.0.7", 1, 3, 7, 8, NOW_MS, seed("request"), b""]

pytestmark = pytest.mark.skipif(block.compiled() is None, reason="numba does not work here")


def test_every_version_of_the_rule_takes_runs() -> None:
    versions = [table for (contract, _), table in CONTRACTS.items() if contract == "operations"]
    assert versions
    assert all(table[35] in operations.RUNS for table in versions)


def changed(place: int, value: Any) -> bytes:
    return wire.encode([*PLAIN[:place], value, *PLAIN[place + 1 :]])


# Form that the reader must leave to the contract; most of it the contract refuses.
ODD = {
    "refused": changed(5, "rate"),
    "evidence": changed(13, b"no request"),
    "nobody": changed(1, bytes(16)),
    "role": changed(2, 3),
    "operation": changed(4, 3),
    "host not ascii": changed(6, "köln"),
    "host too long": changed(6, "x" * 65),
    "no count": changed(7, 0),
    "count": changed(7, (1 << 32) + 1),
    "partition": changed(8, 1 << 16),
    "offsets": wire.encode([*PLAIN[:9], 8, 7, *PLAIN[11:]]),
    "negative": changed(9, -1),
    "beyond 2^63": changed(10, 1 << 63),
    "short operator": changed(1, bytes(15)),
    "long token": changed(3, bytes(17)),
    "short request": changed(12, bytes(31)),
    "text for bytes": changed(12, "x" * 32),
    "another kind": changed(0, 36),
    "kind as float": cbor2.dumps([35.0, *PLAIN[1:]]),
    "a field too few": wire.encode(PLAIN[:-1]),
    "a field too many": wire.encode([*PLAIN, b""]),
    "cut": wire.encode(PLAIN)[:-1],
    "trailing": wire.encode(PLAIN) + b"\x00",
    "long form of a number": wire.encode(PLAIN).replace(b"\x68" + b"10.0.0.7" + b"\x01", b"\x6810.0.0.7\x18\x01"),
    "long form of a text": wire.encode(PLAIN).replace(b"\x6810.0.0.7", b"\x78\x0810.0.0.7"),
    "long form of bytes": wire.encode(PLAIN).replace(b"\x50" + AIR, b"\x58\x10" + AIR),
    "not an array": wire.encode(b"x" * 100),
    "not cbor": b"\xff" * 100,
    "nothing": b"\xf6",
}
# Good form that the state refuses.
BAD = {
    "unknown operator": changed(1, seed("stranger")[:16]),
    "unknown topic": changed(3, seed("nowhere")[:16]),
    "unknown partition": changed(8, 4),
}

numbers = st.sampled_from(EDGES) | st.integers(0, (1 << 63) - 1)
plain = st.builds(
    lambda who, role, place, op, host, count, span, time_ms, request: wire.encode(
        [35, who, role, place[0], op, "", host, count, place[1], min(span), max(span), time_ms, request, b""]
    ),
    st.sampled_from([actor.id for actor in WORLD.principals]),
    st.integers(0, 2),
    st.sampled_from([(HEART, 0), *((AIR, partition) for partition in range(4))]),
    st.sampled_from([1, 2, 4, 8]),
    st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=64),
    st.integers(1, 1 << 32) | st.sampled_from([1, 23, 24, 1 << 32]),
    st.tuples(numbers, numbers),
    numbers,
    st.binary(min_size=32, max_size=32),
)
stretches = st.lists(plain, min_size=1, max_size=8).flatmap(
    lambda few: st.sampled_from([1, BATCH_MIN - 1, BATCH_MIN, 2 * BATCH_MIN + 3]).map(
        lambda count: [few[i % len(few)] for i in range(count)]
    )
)
others = st.sampled_from([*ODD.values(), *BAD.values()]).map(lambda entry: [entry])


def sign(written: list[bytes]) -> Transaction:
    return parse(WORLD.node.sign(*written).data)


def outcome(transaction: Transaction, first: int = 0, height: int | None = None) -> tuple[Result, dict[bytes, Any]]:
    state = BENCH.state
    result = execute(state, transaction, height or BENCH.height, BENCH.time_ms, first)
    changes = state.changes()
    state.forget_block()
    return result, changes


def both(transaction: Transaction, first: int = 0, height: int | None = None) -> Result:
    """The result, the same either way; what is said of bytes that are no CBOR depends on what stands behind them."""
    at_once = outcome(transaction, first, height)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "compiled_for", lambda _: None)
        one_by_one = outcome(transaction, first, height)
    told: dict[str, Any] = {"message": ""} if at_once[0].reason == "malformed" else {}
    assert replace(at_once[0], **told) == replace(one_by_one[0], **told)
    assert at_once[1] == one_by_one[1]
    return at_once[0]


@examples(100)
@given(
    parts=st.lists(stretches | others, min_size=1, max_size=5),
    first=st.sampled_from(EDGES[:9]),
    height=st.sampled_from([1, 24, 70_000, 1 << 40]),
)
def test_any_mixture_gives_the_same_at_once_and_one_by_one(parts: list[list[bytes]], first: int, height: int) -> None:
    both(sign([entry for part in parts for entry in part]), first, height)


@examples(100)
@given(data=st.data())
def test_a_changed_byte_gives_the_same_at_once_and_one_by_one(data: st.DataObject) -> None:
    entry = bytearray(wire.encode(PLAIN))
    for _ in range(data.draw(st.integers(1, 3))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    both(sign([bytes(entry)] * BATCH_MIN))


@pytest.mark.parametrize("what", ODD)
def test_what_is_not_plain_is_left_to_the_contract(what: str) -> None:
    around = [wire.encode(PLAIN)] * BATCH_MIN
    transaction = sign([*around, ODD[what], *around])
    assert [(run.first, run.end) for run in find_runs(transaction)] == [
        *((0, BATCH_MIN), (BATCH_MIN + 1, 2 * BATCH_MIN + 1)),
    ]
    result = both(transaction)
    assert result.accepted or result.index == BATCH_MIN


@pytest.mark.parametrize("what", BAD)
def test_a_refusal_by_the_state_names_its_entry(what: str) -> None:
    around = [wire.encode(PLAIN)] * BATCH_MIN
    transaction = sign([*around, BAD[what], *around])
    assert [(run.first, run.end) for run in find_runs(transaction)] == [(0, 2 * BATCH_MIN + 1)]
    result = both(transaction)
    assert not result.accepted
    assert result.index == BATCH_MIN


def test_who_does_not_carry_a_topic_is_refused_at_once_too() -> None:
    written = operation_batch(WORLD, BATCH_MIN, [HEART, AIR], [WORLD.sensor.id])
    result = both(parse(WORLD.doctor.sign(*written).data))
    assert (result.reason, result.index) == ("not-host", 0)


def test_a_busy_node_s_transaction_is_one_run_and_moves_every_history() -> None:
    written = operation_batch(WORLD, 512, [HEART, AIR], [actor.id for actor in WORLD.principals])
    transaction = sign(written)
    assert [(run.first, run.end) for run in find_runs(transaction)] == [(0, 512)]
    result, changes = outcome(transaction)
    assert result.accepted
    assert {b"history/" + HEART, b"history/" + AIR} <= changes.keys()
    assert wire.decode(changes[b"history/" + HEART])[2] == 256


def test_short_transactions_need_no_compiled_code() -> None:
    assert block.compiled_for(BATCH_MIN) is not None
    assert block.compiled_for(BATCH_MIN - 1) is None
    written = operation_batch(WORLD, BATCH_MIN - 1, [HEART], [WORLD.monitor.id])
    assert outcome(sign(written))[0].accepted


def test_without_a_compiler_everything_goes_one_by_one() -> None:
    def fail(_: object) -> None:
        raise OSError("no compiler")

    assert block.load_compiled(fail) is None


@examples(100)
@given(st.lists(st.binary(max_size=300), min_size=BATCH_MIN, max_size=BATCH_MIN + 40))
def test_entries_hash_the_same_on_lanes_and_one_by_one(written: list[bytes]) -> None:
    hashes, root = hash_entries(written)
    assert (hashes, root) == plain_hashes(written)
    assert hashes[32:64] == sha256(b"\x00" + written[1]).digest()


def test_a_signature_that_failed_is_not_remembered_as_good() -> None:
    transaction = sign(
        [entries.operation(WORLD.sensor.id, OperatorRole.PUBLISHER, AIR, 2, time_ms=NOW_MS, request=seed("r"))]
    )
    for _ in range(2):
        transaction.verify(WORLD.node.key.public)
        with pytest.raises(Forged):
            transaction.verify(WORLD.doctor.key.public)
