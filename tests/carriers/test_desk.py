"""The table of a node's requests: what the ledger's contracts read of it, and what a bundle may hold."""

from __future__ import annotations

from typing import Any

from tallystick.carriers.desk import Desk
from tallystick.ledger.contracts.operations import _ASKED
from tallystick.trust.right import Right

NOBODY: Any = None

# Version 1 of the contract `operations`, for ever: what a signed request asks for, by method and path.
FROZEN = {
    ("POST", "parcels"): Right.WRITE,
    ("POST", "advertisements"): Right.WRITE,
    ("GET", "parcels"): Right.READ,
    ("POST", "subscriptions"): Right.READ,
    ("GET", None): Right.DESCRIBE,
    ("GET", "partitions"): Right.DESCRIBE,
    ("DELETE", None): Right.DELETE,
}
# What is never held against anybody.
OTHERS = {("POST", "locks"), ("POST", "inclusion"), ("GET", "lanes"), ("GET", "verdict"), ("GET", "anchored-before")}


def test_the_contract_reads_requests_as_the_table_has_them() -> None:
    assert FROZEN == _ASKED
    table = Desk(NOBODY, NOBODY, NOBODY, NOBODY).table()
    named = {
        (route.method, route.path.split("/")[4]) for route in table if route.path.startswith("/v1/topics/{token}/")
    }
    assert named - FROZEN.keys() == OTHERS


def test_a_bundle_holds_questions_that_change_nothing() -> None:
    bundled = [route for route in Desk(NOBODY, NOBODY, NOBODY, NOBODY).table() if route.bundled]
    assert {route.method for route in bundled} == {"GET"}
    assert not any(route.path.endswith("/parcels") for route in bundled)
