"""Grants that outlive their process: one permit for many starts, replaced before it ends, kept where nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Topic
from stack import Stack, impatient

from tallystick.client.grants import Grants
from tallystick.client.session import Session
from tallystick.errors import Unavailable
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import ManualClock
from tallystick.trust.permit import Operation


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Stack(tmp_path) as stack:
        yield Topic(stack, "acme")


def started(session: Session, at_s: float | None = None) -> Grants:
    """The grants of a process that starts now, or at another time."""
    clock = session.clock if at_s is None else ManualClock(at_s)
    kept = RealDisk(session.identity.home / "grants")
    return Grants(session.identity, session.authority, session.view, kept, clock, session.entropy)


def test_a_permit_serves_until_the_last_tenth_of_its_time(topic: Topic) -> None:
    first = started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1)
    again = started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1)
    assert again.permit == first.permit
    assert again.grant.private_keys == first.grant.private_keys  # asked for again, not kept
    validity_ms = first.permit.not_after_ms - first.permit.not_before_ms
    soon_s = (first.permit.not_after_ms - validity_ms / 20) / 1000
    replaced = started(topic.reader, soon_s).obtain(Operation.SUBSCRIBE, "brakes", 1)
    assert replaced.permit.identifier != first.permit.identifier
    assert started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1).permit == replaced.permit


def test_a_publisher_starts_with_what_was_kept_where_nobody_answers(topic: Topic) -> None:
    kept = started(topic.car).obtain(Operation.ADVERTISE, "brakes")
    started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1)
    topic.stack.stop_authority()
    with impatient(topic.car, topic.reader):
        assert started(topic.car).obtain(Operation.ADVERTISE, "brakes").permit == kept.permit
        soon_s = kept.permit.not_after_ms / 1000 - 1
        assert started(topic.car, soon_s).obtain(Operation.ADVERTISE, "brakes").permit == kept.permit
        with pytest.raises(Unavailable):
            started(topic.car, soon_s + 2).obtain(Operation.ADVERTISE, "brakes")
        with pytest.raises(Unavailable):  # it would have no keys
            started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1)


def test_what_was_kept_of_a_subscriber_opens_nothing(topic: Topic) -> None:
    held = started(topic.reader).obtain(Operation.SUBSCRIBE, "brakes", 1)
    (kept,) = [path for path in (topic.reader.identity.home / "grants").iterdir() if path.name != "lock"]
    reread = started(topic.reader)._load(kept.name)
    assert reread is not None
    assert held.grant.private_keys
    assert reread.grant.private_keys == ()
