"""Writes entries.json beside itself: `PYTHONPATH=tests python tests/vectors/make_entries.py`.

Entries of attributes and policies (kinds 44 to 47 of docs/formats/ledger.md), each in a transaction on one given state:
good ones with the keys they write, bad ones with the reason they must be refused for. The file was made once and is
kept: signatures of roots draw their own randomness, so a second run writes other bytes. Run it only to add vectors, and
say so in the commit.
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from ledger_world import HOME, HOSPITAL, NOW_MS, Actor, Bench, seed, token

from tallystick import wire
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import execute
from tallystick.ledger.contracts.kinds import Kind
from tallystick.ledger.contracts.state import State
from tallystick.ledger.transaction import parse
from tallystick.trust.certificate import ALL_TENANTS

PATH = Path(__file__).parent / "entries.json"
NAME, OTHER, HEART = seed("pseudonym")[:16], seed("another pseudonym")[:16], token("heart")
KEY, COMMITMENT = seed("attribute key"), seed("commitment")
DAY_MS = 86_400_000

Case = tuple[str, Actor, bytes]


def standing(bench: Bench) -> None:
    """What there is before: an attribute of the monitor, a policy, and three epochs, the first of which has begun."""
    world = bench.world
    bench.accept(world.doctor.sign(entries.grant_attribute(HOSPITAL, world.monitor.id, NAME, COMMITMENT)))
    bench.accept(world.doctor.sign(entries.topic_policy(HEART, 0, 1, COMMITMENT)))
    for number in (1, 2, 3):
        begins_ms = NOW_MS + (number - 1) * DAY_MS
        bench.accept(world.authority.sign(entries.attribute_epoch(number, KEY, begins_ms)))


def good_cases(bench: Bench) -> list[Case]:
    world = bench.world
    doctor, authority, sensor, monitor = world.doctor, world.authority, world.sensor.id, world.monitor.id
    return [
        ("44 granted to another tenant's", doctor, entries.grant_attribute(HOSPITAL, sensor, NAME, COMMITMENT)),
        ("44 with an end", doctor, entries.grant_attribute(HOSPITAL, sensor, NAME, COMMITMENT, NOW_MS + DAY_MS)),
        ("44 another value", doctor, entries.grant_attribute(HOSPITAL, monitor, NAME, seed("another value"))),
        ("44 the same pseudonym", world.landlord, entries.grant_attribute(HOME, monitor, NAME, COMMITMENT)),
        ("45 withdrawn", doctor, entries.withdraw_attribute(HOSPITAL, monitor, NAME)),
        ("46 the next version", doctor, entries.topic_policy(HEART, 0, 2, seed("another policy"))),
        ("46 lifted", doctor, entries.topic_policy(HEART, 0, 2, b"")),
        ("46 of the last group", doctor, entries.topic_policy(HEART, 255, 1, COMMITMENT)),
        ("47 the next", authority, entries.attribute_epoch(4, KEY, NOW_MS + 3 * DAY_MS)),
        ("47 brought forward", authority, entries.attribute_epoch(2, KEY, NOW_MS + 10_000)),
    ]


def bad_cases(bench: Bench) -> list[Case]:
    world = bench.world
    doctor, authority, monitor = world.doctor, world.authority, world.monitor.id
    grant, withdraw, policy, epoch = (
        entries.grant_attribute,
        entries.withdraw_attribute,
        entries.topic_policy,
        entries.attribute_epoch,
    )
    return [
        ("44 by another tenant's owner", world.landlord, grant(HOSPITAL, monitor, NAME, COMMITMENT)),
        ("44 by the authority", authority, grant(HOSPITAL, monitor, NAME, COMMITMENT)),
        ("44 in the name of all tenants", doctor, grant(ALL_TENANTS, monitor, NAME, COMMITMENT)),
        ("44 to a node", doctor, grant(HOSPITAL, world.node.id, NAME, COMMITMENT)),
        ("44 to nobody", doctor, grant(HOSPITAL, seed("nobody")[:16], NAME, COMMITMENT)),
        ("44 a commitment of 31 bytes", doctor, grant(HOSPITAL, monitor, NAME, bytes(31))),
        ("44 an end below zero", doctor, grant(HOSPITAL, monitor, NAME, COMMITMENT, -1)),
        ("44 a field too many", doctor, wire.encode([*wire.decode(grant(HOSPITAL, monitor, NAME, COMMITMENT)), 0])),
        ("45 of another tenant", world.landlord, withdraw(HOSPITAL, monitor, NAME)),
        ("45 not granted", doctor, withdraw(HOSPITAL, monitor, OTHER)),
        ("45 a field too few", doctor, wire.encode([int(Kind.WITHDRAW_ATTRIBUTE), HOSPITAL, monitor])),
        ("46 by another", world.landlord, policy(HEART, 0, 2, COMMITMENT)),
        ("46 the version that is there", doctor, policy(HEART, 0, 1, COMMITMENT)),
        ("46 a version skipped", doctor, policy(HEART, 0, 3, COMMITMENT)),
        ("46 nothing to lift", doctor, policy(HEART, 1, 1, b"")),
        ("46 of no topic", doctor, policy(token("none"), 0, 1, COMMITMENT)),
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


def make() -> dict[str, Any]:
    bench = Bench()
    standing(bench)
    made: dict[str, Any] = {
        "about": "entries 44 to 47 on one state: what each writes, or why it is refused (docs/formats/ledger.md)",
        "height": bench.height,
        "time_ms": NOW_MS,
        "state": {key.hex(): value.hex() for key, value in sorted(bench.stored.items())},
        "good": [],
        "bad": [],
    }
    for verdict, cases in (("good", good_cases(bench)), ("bad", bad_cases(bench))):
        for name, author, entry in cases:
            transaction = author.sign(entry).data
            state = State(bench.stored.get)
            result = execute(state, parse(transaction), bench.height, NOW_MS)
            assert result.accepted == (verdict == "good"), (name, result)
            vector = {"name": name, "transaction": b64encode(transaction).decode()}
            if result.accepted:
                changes = {key.hex(): None if value is None else value.hex() for key, value in state.changes().items()}
                made[verdict].append(vector | {"writes": changes})
            else:
                made[verdict].append(vector | {"reason": result.reason, "index": result.index})
    return made


def main() -> None:
    made = make()
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made['good'])} good and {len(made['bad'])} bad vectors, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
