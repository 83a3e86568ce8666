"""An interest gives no right: one that matches without the attributes opens nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from actors import await_topic
from policy_world import need_pymcl
from stack import READ, WRITE, Stack, wait_until

from tallystick.authority.client import grant_entries
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.policy.attribute import category
from tallystick.policy.space import AttributeSpace
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema

SCHEMA = Schema.parse("seq int64 not null, lat float64", groups=(("seq",), ("lat",)))
SPACE = AttributeSpace.of("acme", category("role", ["garage", "police"]))
ROWS = [{"seq": number, "lat": 52.0 + number / 1000} for number in range(600)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Session]]:
    """By role, beside a topic whose positions are for the police, and labelled."""
    need_pymcl()
    with Stack(tmp_path_factory.mktemp("rights")) as stack:
        owner, car = stack.tenant("acme"), stack.principal("acme", "car")
        owner.authority.declare_attributes(SPACE.encode())
        token = owner.create_topic("drives", SCHEMA.encode())
        await_topic(stack, token)
        found = {role: stack.principal("acme", role) for role in ("garage", "police")}
        stack.grant(owner, token, car, WRITE)
        for role, session in found.items():
            held, salt = SPACE.grant({"role": role}), stack.entropy.bytes(32)
            principal = session.identity.principal
            owner.author.write(*grant_entries(owner.authority, owner.identity.tenant, principal, held, salt))
            stack.grant(owner, token, session, READ)
        owner.authority.labels(token, TopicCode.read(["lat:3:52.0..52.6"], SCHEMA.arrow).encode())
        with car.publisher("drives", acks="anchored", anchor_check_s=0.02, policy={"lat": "role::police"}) as publisher:
            publisher.send(ROWS)
            assert publisher.flush(60) == 0
        yield found


def read(subscriber: Subscriber) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def is_at_the_end() -> bool:
        before = subscriber.positions()
        found.extend(row for one in subscriber.poll(0) for row in one.to_pylist())
        return bool(before) and subscriber.positions() == before

    wait_until(is_at_the_end)
    return sorted(found, key=lambda row: row["seq"])


def test_who_may_open_gets_the_rows(readers: dict[str, Session]) -> None:
    with readers["police"].subscriber("drives", interest="lat > 52.55") as subscriber:
        assert read(subscriber) == [row for row in ROWS if row["lat"] > 52.55]


def test_who_may_not_gets_none(readers: dict[str, Session]) -> None:
    with readers["garage"].subscriber("drives", interest="lat > 52.55") as subscriber:
        assert subscriber._fetcher.wanted  # the labels are there, and match
        assert read(subscriber) == []
        assert not subscriber.findings
        passed = subscriber.positions()
    with readers["police"].subscriber("drives", interest="lat > 52.55") as subscriber:
        assert read(subscriber)
        assert subscriber.positions() == passed  # it had come as far


def test_what_is_said_of_an_open_column_still_counts(readers: dict[str, Session]) -> None:
    with readers["garage"].subscriber("drives", interest="lat > 52.55 || seq == 3") as subscriber:
        assert read(subscriber) == [{"seq": 3}]
