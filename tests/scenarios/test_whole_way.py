"""The whole way of a record, on the embedded default: from a row to a verified batch at a subscriber."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

from stack import READ, WRITE, Stack, impatient, wait_until

from tallystick.client.publish import Delivery
from tallystick.client.subscribe import Received, Subscriber
from tallystick.errors import TallystickError
from tallystick.ledger.contracts.permits import PERMITS

SCHEMA = "vin string, seq int64 not null, speed float32"


def read_all(subscriber: Subscriber, rows: int) -> list[Received]:
    received: list[Received] = []
    wait_until(lambda: received.extend(subscriber.poll(200)) or sum(r.batch.rows for r in received) >= rows)
    return received


def test_rows_arrive_once_in_order_and_proved(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA, partitions=2)
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)

        told: list[tuple[TallystickError | None, Delivery | None]] = []
        with car.publisher("brakes", acks="anchored", anchor_check_s=0.05, batch_rows_max=100) as publisher:
            for number in range(1000):
                row = {"vin": f"V{number % 7}", "seq": number, "speed": number / 2}
                publisher.produce(row, lambda error, delivery: told.append((error, delivery)))
            assert publisher.flush(30) == 0
        assert len(told) == 1000
        assert all(error is None for error, _ in told)

        subscriber = reader.subscriber("brakes")
        received = read_all(subscriber, 1000)
        rows = [row for one in received for row in one.to_pylist()]
        assert [row["seq"] for row in rows] == list(range(1000))
        assert subscriber.findings == []
        assert all(not one.suspect and not one.late for one in received)
        assert {one.publisher for one in received} == {car.identity.principal}


def test_a_restart_of_node_and_publisher_repeats_and_loses_nothing(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        for part in range(3):
            publisher = car.publisher("brakes", batch_rows_max=50)
            publisher.send([{"vin": "V", "seq": part * 100 + n, "speed": 0.0} for n in range(100)])
            assert publisher.flush(30) == 0
            publisher.stop()  # as a crash would: no closing parcel, the spool as it is
            stack.stop_node()
            stack.start_node()
        subscriber = reader.subscriber("brakes")
        received = read_all(subscriber, 300)
        assert [row["seq"] for one in received for row in one.to_pylist()] == list(range(300))
        assert len({one.lane for one in received}) == 1  # the lane goes on after each restart
        assert subscriber.findings == []


def test_a_group_shares_partitions_and_moves_offsets(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA, partitions=4)
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        with car.publisher("brakes", lanes=8, key="vin", batch_rows_max=64) as publisher:
            publisher.send([{"vin": f"V{n % 40}", "seq": n, "speed": 0.0} for n in range(800)])
            assert publisher.flush(30) == 0
        one, two = (reader.subscriber("brakes", group="pipeline", renew_s=0.2) for _ in range(2))
        found: list[int] = []

        def both() -> bool:
            for subscriber in (one, two):
                found.extend(row["seq"] for received in subscriber.poll(0) for row in received.to_pylist())
            return len(set(found)) == 800 and len(one.positions()) == len(two.positions()) == 2

        wait_until(both)
        assert set(one.positions()) | set(two.positions()) == {0, 1, 2, 3}
        assert not set(one.positions()) & set(two.positions())
        one.commit()
        two.commit()
        one.close()
        two.close()
        again = reader.subscriber("brakes", group="pipeline")
        assert again.poll(0) == []  # the group's offsets stand at the end


def test_a_topic_serves_as_soon_as_its_owner_made_it(tmp_path: Path) -> None:
    """No waiting for the authority's next look at the ledger: it looks before it says no."""
    with Stack(tmp_path) as stack:
        owner, car = stack.tenant("acme"), stack.principal("acme", "car")
        for name in ("brakes", "tyres", "lights"):
            token = stack.topic(owner, name, SCHEMA)
            stack.grant(owner, token, car, WRITE)
            with car.publisher(name) as publisher:
                publisher.produce({"vin": "V", "seq": 1, "speed": 1.0})
                assert publisher.flush(20) == 0


def test_a_publisher_starts_where_nobody_can_be_reached(tmp_path: Path) -> None:
    """A car in a garage: node and authority are away, rows gather in the spool and arrive once they are back. The
    permit is the one it had; no start draws a new one."""
    with Stack(tmp_path) as stack:
        owner = stack.tenant("acme")
        token = stack.topic(owner, "brakes", SCHEMA)
        car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
        stack.grant(owner, token, car, WRITE)
        stack.grant(owner, token, reader, READ)
        first = car.publisher("brakes")
        first.produce({"vin": "V", "seq": 0, "speed": 0.0})
        assert first.flush(20) == 0
        first.stop()
        stack.stop_authority()
        stack.stop_node()
        with impatient(car):
            second = car.publisher("brakes", retry_s=0.1)
            second.send([{"vin": "V", "seq": n, "speed": 0.0} for n in range(1, 50)])
            assert second.flush(0.5) > 0
            second.stop()
        stack.start_node()
        stack.start_authority()
        third = car.publisher("brakes")
        assert third.flush(20) == 0
        third.stop()
        received = read_all(reader.subscriber("brakes"), 50)
        assert [row["seq"] for one in received for row in one.to_pylist()] == list(range(50))
        permits = [key for key, _ in stack.node.ledger.scan(PERMITS)]
        assert len(permits) == 2  # one of the car's, one of the reader's
        assert read_all(reader.subscriber("brakes"), 50)
        assert len(stack.node.ledger.scan(PERMITS)) == 2


def test_one_record_enters_few_modules(tmp_path: Path) -> None:
    """Who follows a record with the editor open has so many files to read. The authority is away meanwhile: a record
    does not pass there."""
    entered: set[str] = set()
    is_counting = threading.Event()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_counting.is_set():
            entered.add(frame.f_globals.get("__name__", ""))

    threading.setprofile(note)  # for the threads that start from here on
    sys.setprofile(note)
    try:
        with Stack(tmp_path) as stack:
            owner = stack.tenant("acme")
            token = stack.topic(owner, "brakes", SCHEMA)
            car, reader = stack.principal("acme", "car"), stack.principal("acme", "reader")
            stack.grant(owner, token, car, WRITE)
            stack.grant(owner, token, reader, READ)
            with car.publisher("brakes", acks="anchored", anchor_check_s=0.05) as publisher:
                subscriber = reader.subscriber("brakes")
                publisher.produce({"vin": "V", "seq": 0, "speed": 0.0})
                assert publisher.flush(30) == 0
                read_all(subscriber, 1)
                stack.stop_authority()
                ways = []
                for number in range(1, 25):  # on a slow machine most are asked for again, or wait
                    entered.clear()
                    is_counting.set()
                    publisher.produce({"vin": "V", "seq": number, "speed": 1.0})
                    assert publisher.flush(30) == 0
                    read_all(subscriber, 1)
                    is_counting.clear()
                    ways.append(sorted(name for name in set(entered) if name.partition(".")[0] == "tallystick"))
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    modules = min(ways, key=len)
    assert {"tallystick.client.publish", "tallystick.client.subscribe"} <= set(modules)
    assert len(modules) <= 80, modules
