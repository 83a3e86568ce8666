"""The audit, once over honest traffic and once after every attack: nothing in the first, each by its name in the
second, with evidence that is there."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import audit_attacks as attacks
import pyarrow.parquet as pq
import pytest
from actors import settle
from audit_attacks import Crime
from pyspark.sql import SparkSession
from stack import READ, Stack
from without import without

from tallystick import wire
from tallystick.cli import main
from tallystick.errors import Forged, Misuse, Withheld
from tallystick.ledger import entries
from tallystick.ledger.block import Block, compose, read_head
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.pipeline.jobs import audit_ledger
from tallystick.pipeline.jobs.warehouse import WarehouseTable

# Seconds instead of minutes; what is counted stays as large as in earnest, but for the flood.
# One window for all time: a test that runs at the full hour is no other test.
BOUNDS = {"--settle-s": 1, "--silence-s": 2, "--flood-min": attacks.FLOOD, "--window-s": 10**9}


@pytest.fixture(scope="module")
def crime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crime]:
    with Stack(tmp_path_factory.mktemp("crime")) as stack:
        yield Crime(stack)


def audit(crime: Crime, warehouse: Path) -> int:
    bounds = [str(part) for pair in BOUNDS.items() for part in pair]
    home, folder = str(crime.topic.owner.identity.home), str(warehouse)
    topic = ["--topic", "brakes", "--warehouse", folder, "--quiet", "--json"]
    return main.run(["pipeline", "run", "audit", "--home", home, *topic, *bounds])


def newest(warehouse: Path) -> list[dict[str, Any]]:
    batch = max((warehouse / "findings").glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch=")))
    return [row for part in batch.glob("*.parquet") for row in pq.read_table(part).to_pylist()]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "tables"


@pytest.fixture(scope="module")
def honest(crime: Crime, warehouse: Path, spark: SparkSession) -> list[dict[str, Any]]:
    """What an audit finds before anybody did anything."""
    crime.stack.grant(crime.topic.owner, crime.topic.token, crime.topic.owner, int(READ))
    crime.honest()
    _let_settle(crime)
    assert audit(crime, warehouse) == 0
    return newest(warehouse)


@pytest.fixture(scope="module")
def found(crime: Crime, warehouse: Path, honest: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What it finds after all of the attacks."""
    attacks.try_without_right(crime)
    attacks.replay(crime)
    attacks.flood(crime)
    attacks.equivocate(crime)
    attacks.move_offsets(crime)
    attacks.fall_silent(crime)
    attacks.serve_without_right(crime)
    attacks.accuse_falsely(crime)
    attacks.break_promise(crime)
    attacks.keep_false_books(crime)
    _let_settle(crime, 3.5)
    with attacks.forged_log(crime):
        assert audit(crime, warehouse) == 0
    return newest(warehouse)


def _let_settle(crime: Crime, seconds: float = 1.5) -> None:
    """Until block time is beyond the bounds: a rule that waits is asked, and not passed over."""
    settle(crime.stack)
    end_ms = crime.topic.owner.view.refresh().time_ms + seconds * 1000
    while crime.topic.owner.view.refresh().time_ms < end_ms:
        time.sleep(0.1)


def test_honest_traffic_finds_nothing(honest: list[dict[str, Any]], warehouse: Path, crime: Crime) -> None:
    assert honest == []
    parts = (warehouse / "ledger" / "batch=0").glob("*.parquet")
    ledger = [row for part in parts for row in pq.read_table(part, partitioning=None).to_pylist()]
    writes = [row for row in ledger if row["kind"] == "operation" and row["operation"] == "write" and row["end"]]
    anchors = [row for row in ledger if row["kind"] == "anchor"]
    assert sum(row["count"] for row in writes) == max(row["end"] for row in anchors) == 8  # six rows, two closings
    assert not any(row["entitled"] is False for row in ledger)
    updates = [row for row in ledger if row["entry"] is not None]
    assert [row["kind"] for row in updates] == [
        audit_ledger.name_of(EntryKind(kind)) for kind in (100, 102, 104, 105, 103, 101)
    ]
    assert {row["token"] for row in updates} == {crime.topic.token.hex()}


EXPECTED = {
    "unauthorised": ("notice", "spy"),
    "probing": ("warning", "spy"),
    "replay": ("warning", None),
    "flood": ("warning", None),
    "equivocation": ("alarm", "acme-liar"),
    "offset-reset": ("notice", "acme-reader"),
    "offset-skip": ("warning", "acme-reader"),
    "retired-unread": ("warning", None),
    "silent": ("warning", "acme-mute"),
    "gap": ("notice", "acme-mute"),
    "let-in": ("alarm", "node"),
    "turned-away": ("alarm", "node"),
    "framing": ("alarm", "node"),
    "broken-promise": ("alarm", "node"),
    "late-anchor": ("warning", "node"),
    "unanchored": ("alarm", "node"),
    "unaccounted": ("alarm", "node"),
    "log-altered": ("alarm", "node"),
}
KINDS = {
    "equivocation": {"equivocation", "operation"},
    "offset-reset": {"reset-offset"},
    "offset-skip": {"reset-offset"},
    "retired-unread": {"retire"},
    "broken-promise": {"broken-promise"},
    "silent": {"anchor"},
    "gap": {"anchor"},
    "unaccounted": {"anchor"},
    "log-altered": {"anchor"},
}


@pytest.mark.parametrize("rule", EXPECTED)
def test_the_attack_is_found(rule: str, found: list[dict[str, Any]], warehouse: Path, crime: Crime) -> None:
    severity, name = EXPECTED[rule]
    mine = [row for row in found if row["rule"] == rule]
    assert mine, sorted({row["rule"] for row in found})
    assert {row["severity"] for row in mine} == {severity}
    principals = {row["principal"] for row in mine}
    if name == "node":
        assert principals == {crime.node.hex()}
    elif name == "spy":  # of another tenant: its name is not the auditor's to know
        assert principals == {crime.spy.identity.principal.hex()}
        assert {row["name"] for row in mine} == {None}
    else:
        assert {row["name"] for row in mine} == {name}
    kinds = _kinds(warehouse)
    for row in mine:
        assert row["count"] > 0
        assert row["next"]
        assert row["evidence"]
        for place in row["evidence"]:
            assert kinds[place["height"], place["index"]] in KINDS.get(rule, {"operation"})


def _kinds(warehouse: Path) -> dict[tuple[int, int], str]:
    parts = list((warehouse / "ledger").glob("batch=*/*.parquet"))
    return {
        (row["height"], row["index"]): row["kind"]
        for part in parts
        for row in pq.read_table(part, columns=["height", "index", "kind"]).to_pylist()
    }


def test_nothing_else_is_found_and_nobody_else_is_named(found: list[dict[str, Any]], crime: Crime) -> None:
    assert {row["rule"] for row in found} == set(EXPECTED)
    innocent = {one.identity.principal.hex() for one in (crime.topic.car, crime.topic.owner, crime.rival)}
    assert not innocent & {row["principal"] for row in found}
    topics = {row["rule"]: row["topic"] for row in found}
    assert (topics["unanchored"], topics["unaccounted"], topics["late-anchor"]) == ("lost", "slipped", "late")


def test_every_entry_is_in_the_table_once(found: list[dict[str, Any]], warehouse: Path, crime: Crime) -> None:
    assert len(list((warehouse / "ledger").glob("batch=*"))) == 2
    height = json.loads((warehouse / "ledger" / "batch=1" / "_batch.json").read_text())["height"]
    blocks = [block for first in range(0, height + 1, 64) for block in crime.topic.owner.node.blocks(first, 64)]
    written = sum(len(part[2]) for _, parts in blocks[: height + 1] for part in map(_transaction, parts))
    assert len(_kinds(warehouse)) == written


def _transaction(data: bytes) -> Any:
    return wire.decode(data)


# --- a ledger that cannot be believed ---


def test_a_ledger_that_went_back_is_a_finding_and_an_error(
    crime: Crime, found: list[dict[str, Any]], warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = crime.stack.node.ledger
    old = ledger.checkpoint()
    settle(crime.stack)
    head = crime.topic.owner.view.refresh()
    while crime.topic.owner.view.refresh().height <= head.height + 1:
        time.sleep(0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "checkpoint", lambda: old)
        assert audit(crime, warehouse) == 3
    assert "it was at height" in capsys.readouterr().err
    (told,) = newest(warehouse)
    assert (told["rule"], told["severity"]) == ("ledger-rollback", "alarm")
    assert [place["height"] for place in told["evidence"]][1] == read_head(old, crime.stack.node.trust).height


def test_results_that_the_rules_do_not_give_are_found(crime: Crime, tmp_path: Path, spark: SparkSession) -> None:
    """A node with rules of its own signs the state they give: proofs hold, the replay does not."""
    thief, stack = crime.thief, crime.stack
    copy = tmp_path / "wrong.sqlite"
    stack.stop_node()
    for path in stack.folders.node.glob("ledger.sqlite*"):
        shutil.copy(path, tmp_path / path.name.replace("ledger", "wrong"))
    stack.start_node()
    trust, now_ms = stack.node.trust, attacks.now_ms(crime)
    wrong = SqliteLedger(str(copy), trust, stack.node.keys.ledger_key, now_ms)
    right = entries.grant(crime.topic.token, thief.identity.principal, int(READ))
    theft = compose(trust.instance, thief.identity.principal, now_ms * 1000, [right], thief.identity.signing_key)
    with without("the owner's say over a topic"):
        wrong.submit(theft.data, now_ms)
        wrong.flush(now_ms)
    head = read_head(wrong.checkpoint(), trust)
    with pytest.raises(Forged, match="the contracts refuse it"):
        audit_ledger.follow(WarehouseTable(tmp_path / "ledger"), spark, wrong, trust, head)
    wrong.close()


@pytest.mark.parametrize("lie", ["an entry is left out", "two blocks are swapped", "an entry is repeated"])
def test_a_node_that_leaves_something_out_is_found(
    crime: Crime, found: list[dict[str, Any]], tmp_path: Path, spark: SparkSession, lie: str
) -> None:
    honest, head = crime.topic.owner.node, crime.topic.owner.view.refresh()

    class Lying:
        def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
            blocks = honest.blocks(first, most)
            at = next((i for i, (_, parts) in enumerate(blocks) if parts and i), None)
            if at is None:
                return blocks
            block, parts = blocks[at]
            if lie == "two blocks are swapped":
                blocks[at - 1 : at + 1] = [blocks[at], blocks[at - 1]]
            else:
                blocks[at] = (block, parts[1:] if lie == "an entry is left out" else parts + parts[-1:])
            return blocks

    with pytest.raises(Forged):
        audit_ledger.follow(WarehouseTable(tmp_path / "ledger"), spark, Lying(), crime.stack.node.trust, head)


def test_a_table_does_not_go_on_with_another_history(
    crime: Crime, found: list[dict[str, Any]], warehouse: Path, spark: SparkSession
) -> None:
    """Whoever audits next, with a memory of its own: the table remembers too."""
    table, node, trust = WarehouseTable(warehouse / "ledger"), crime.topic.owner.node, crime.stack.node.trust
    facts = table.last()
    assert facts is not None
    height = facts["height"]
    head = crime.topic.owner.view.refresh()
    with pytest.raises(Withheld, match="the table has it to height"):
        audit_ledger.follow(table, spark, node, trust, replace(head, height=height - 1))
    block = Block.decode(node.blocks(height, 1)[0][0])
    forged = replace(head, height=height, size=block.size, time_ms=block.time_ms, root=bytes(32))
    with pytest.raises(Forged, match="tree root under the checkpoint"):
        audit_ledger.follow(table, spark, node, trust, forged)
    notes = next((warehouse / "ledger").glob("_replay-*"))
    kept = notes.read_bytes()
    notes.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(Misuse, match="missing or damaged"):
        audit_ledger.follow(table, spark, node, trust, head)
    notes.write_bytes(kept)
