"""A running instance goes over to this release: everything is activated at one height while people publish and read.

The instance is the committed history of the version before, so what replays afterwards is what it lived through, the
activation, and what came then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors import await_topic
from commands import done
from past import VERSIONS, History, read, replay, session_of
from stack import READ, WRITE, Stack, wait_until

from tallystick.client.grants import announced_beside
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.crypto.abe import group
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.settings import VERSIONS as ACTIVE
from tallystick.ledger.contracts.topics import TOPICS, Terms
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

SCHEMA = Schema.parse("vin string, seq int64 not null, speed float32").encode()
AHEAD = 12  # blocks, in which some topics are still made as before


@contextmanager
def load(publisher: Publisher, sent: list[int]) -> Iterator[None]:
    """Rows go out all the while, each numbered."""
    ended = threading.Event()
    trouble: list[BaseException] = []

    def publish() -> None:
        try:
            while not ended.wait(0.02):
                number = 1_000_000 + len(sent)
                publisher.produce({"vin": "V1", "seq": number, "speed": 1.0})
                sent.append(number)
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=publish, name="load")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert trouble == []


def activate(stack: Stack) -> int:
    """Every contract of this release, at one height that is yet to come."""
    core, ledger = stack.authority.authority.core, stack.node.ledger
    while True:  # on a slow machine, and under load, the height may have come before the entries do
        height = ledger.height + AHEAD
        core.queue([entries.activate(*one, height) for one in newest().items()])
        core.send_queue()
        known = ledger.query(lambda state: state.row(ACTIVE())) or []
        if newest().items() <= {name: version for name, version, _ in known}.items():
            return height


def row_of(session: Session, token: bytes) -> Any:
    return session.view.wait_for(TOPICS(token), lambda row: row is not None)


def numbers(session: Session, topic: str) -> list[int]:
    found = read(session, topic)
    assert found["findings"] == []
    return [row["seq"] for _, _, rows in found["batches"] for row in rows]


def test_a_running_instance_is_upgraded_under_load(tmp_path: Path) -> None:
    history = History(VERSIONS[-1])
    folder, sent = history.unpack(tmp_path), list[int]()
    with history.stack(folder) as stack:
        owner, car, reader = (session_of(stack, name) for name in ("acme-owner", "car", "reader"))
        assert owner.view.row(ACTIVE()) is None or not newest().items() <= active(owner).items()
        with car.publisher("tyres", acks="anchored", linger_s=0.01) as publisher, load(publisher, sent):
            unbound = owner.create_topic("before", SCHEMA)
            guarded = ["notes", "drives"] if group.available() else ["notes"]  # the second by attributes, with pymcl
            beside = [one for name in guarded for one in keys_beside(car, name)]
            height = activate(stack)
            made = [owner.create_topic("border-0", SCHEMA)]
            while not row_of(owner, made[-1]).authority:
                made.append(owner.create_topic(f"border-{len(made)}", SCHEMA))
            bound = owner.create_topic("after", SCHEMA, terms=Terms(keep_parcels=5, anchor_pace_ms=100))
            wait_until(lambda: len(sent) > 50)
        assert newest().items() <= active(owner).items()
        kinds = {what.split()[0] for _, _, what in beside}  # drawn before, and announced since
        assert kinds == ({"erasure", "policy"} if len(guarded) == 2 else {"erasure"})
        for place, expected, _ in beside:
            announced = car.view.wait_for(place, lambda row: row is not None)
            assert announced is not None
            assert announced.key_hash == expected
        assert car.grants.obtain(Operation.ADVERTISE, "notes", again=True).grant.erasure_keys
        assert all((row_of(owner, one).created >= height) == bool(row_of(owner, one).authority) for one in made)
        assert row_of(owner, unbound).authority == b""
        assert row_of(owner, bound)[10:] == (owner.identity.authority.subject, 0, 5, 100)
        for name, token in (("before", unbound), ("after", bound)):
            await_topic(stack, token)
            stack.grant(owner, token, car, WRITE)
            stack.grant(owner, token, reader, READ)
            with car.publisher(name, acks="anchored", anchor_check_s=0.02) as publisher:
                publisher.send([{"vin": "V1", "seq": 7, "speed": 1.0}])
            assert numbers(reader, name) == [7]
        assert sorted(number for number in numbers(reader, "tyres") if number >= 1_000_000) == sent
    replayed, _ = replay(folder / "node" / "ledger.sqlite")
    assert replayed.block is not None
    assert done("ledger", "fsck", folder, "--json").json["height"] == replayed.block.height > height


def keys_beside(car: Session, topic: str) -> list[Any]:
    """Keys that a publisher gets beside those of epochs, and where the ledger will have their hashes."""
    return announced_beside(car.grants.obtain(Operation.ADVERTISE, topic, again=True).grant, None)


def active(session: Session) -> dict[str, int]:
    return {name: version for name, version, _ in session.view.row(ACTIVE()) or []}
