"""Quotas: what a tenant may put on the ledger, in a while and in all.

Threat: a tenant that fills blocks or state for everybody, with entries each of which it may write. Invariant: the
entries of a tenant's principals in one transaction and in one window, the bytes of state that they left, and the
replicas of its topics' partitions stay below what the settings say. A partition costs its nodes a folder or a topic of
Kafka's for as long as bodies lie in it, so closing a topic gives nothing back.

Left out: what nodes and authorities write in a tenant's name, which is bounded where requests reach them; and refused
transactions, which whoever replays the ledger never sees, so that they can leave no trace here. Validators hold up
those who send many (`cometbft/application.py`).

    spent/<tenant>   [begin of the window ms, entries in it, bytes of state in all, replicas of partitions in all]
"""

from __future__ import annotations

from typing import NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import settings
from tallystick.ledger.contracts.state import ID, Call, Table

CONTRACT = "quotas"


class SpentRow(NamedTuple):
    since_ms: int = 0
    entries: int = 0
    state_bytes: int = 0
    replicas: int = 0


SPENT = Table("spent", SpentRow, ID)


def charge_entries(call: Call, count: int) -> None:
    """Count the entries of a principal's transaction before they run; all others wait while they do."""
    _hold(call, "transaction_entries", count, "entries in one transaction")
    spent = _spent(call, call.author_tenant)
    if call.time_ms - spent.since_ms >= settings.read(call.state, "tenant_window_ms"):
        spent = spent._replace(since_ms=call.time_ms, entries=0)
    _hold(call, "tenant_entries", spent.entries + count, "entries in one window")
    call.state.put(SPENT(call.author_tenant), [*spent._replace(entries=spent.entries + count)])


def charge_state(call: Call) -> None:
    """Count what a principal's transaction left in the state, or took out of it, after it ran."""
    spent, grown = _spent(call, call.author_tenant), call.state.grown_bytes()
    if grown > 0:
        _hold(call, "tenant_state_bytes", spent.state_bytes + grown, "bytes of state")
    row = spent._replace(state_bytes=max(0, spent.state_bytes + grown))
    call.state.put(SPENT(call.author_tenant), [*row])


def charge_partitions(call: Call, tenant: bytes, replicas: int) -> None:
    """Count the partitions of a new topic, each as often as it has replicas."""
    spent = _spent(call, tenant)
    _hold(call, "tenant_replicas", spent.replicas + replicas, "replicas of partitions")
    call.state.put(SPENT(tenant), [*spent._replace(replicas=spent.replicas + replicas)])


def _spent(call: Call, tenant: bytes) -> SpentRow:
    return call.state.row(SPENT(tenant)) or SpentRow()


def _hold(call: Call, setting: str, wanted: int, what: str) -> None:
    most = settings.read(call.state, setting)
    if wanted > most:
        raise Refused(
            f"the tenant would have {wanted} {what}, its quota is {most}",
            reason="over-quota",
            hint=f"the operator may raise it: tally instance settings DIR {setting}",
        )
