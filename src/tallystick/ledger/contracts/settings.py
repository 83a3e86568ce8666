"""Numbers that the rules depend on, kept on the ledger so that every replay uses the ones of its height.

settings/<name>   an integer, where it differs from the default
versions          [[contract, version, from height], …] in the order of activation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.errors import Refused
from tallystick.ledger.contracts.state import Call, State, Table, fields_of

VERSIONS = Table("versions", list[list[Any]])
CHOSEN = Table("settings", int, 64)  # by name


@dataclass(frozen=True, slots=True)
class Setting:
    default: int
    least: int
    most: int
    since: int = 1  # the version of this contract that knows it: replicas of mixed releases must agree


_HOUR_MS = 3_600_000

SETTINGS = {
    "reputation_start": Setting(100, 1, 1_000_000),
    "reputation_max": Setting(100, 1, 1_000_000),
    "reputation_fall": Setting(10, 0, 1_000_000),  # per refused operation
    "reputation_rise": Setting(1, 0, 1_000),  # per accepted request
    "rise_max": Setting(10, 0, 1_000_000),  # points in one window: nobody buys back a refusal with a burst
    "rise_window_ms": Setting(60_000, 1, 24 * _HOUR_MS),
    "blacklist_below": Setting(20, 0, 1_000_000),
    "evidence_age_ms": Setting(120_000, 1_000, 24 * _HOUR_MS),  # older requests are history, not evidence
    "grace_ms": Setting(75_000, 0, _HOUR_MS, since=2),  # 60 s until a client's checkpoint is too old, clocks, blocks
    "fall_window_ms": Setting(60_000, 0, 24 * _HOUR_MS, since=2),  # one fall a principal and topic; 0: each counts
    "foreign_attributes_max": Setting(32, 0, 4_096, since=2),  # that a tenant grants to a principal of another's
    "anchor_ms": Setting(60_000, 1_000, 24 * _HOUR_MS),  # from a promise's block time to its anchor
    "lease_ms_min": Setting(1_000, 1, _HOUR_MS),
    "lease_ms_max": Setting(600_000, 1_000, 24 * _HOUR_MS),
    "tenant_window_ms": Setting(60_000, 1_000, 24 * _HOUR_MS, since=2),
    "tenant_entries": Setting(60_000, 100, 1 << 40, since=2),  # that a tenant's principals write in one window
    "transaction_entries": Setting(512, 64, 4_096, since=2),  # in one transaction of theirs: nothing runs beside it
    "tenant_state_bytes": Setting(256 << 20, 1 << 20, 1 << 50, since=2),  # that they may leave in the state
    "tenant_replicas": Setting(4_096, 1, 1 << 40, since=2),  # of partitions of a tenant's topics
}


def read(state: State, name: str) -> int:
    """The setting's value now."""
    value = state.row(CHOSEN(name.encode()))
    return SETTINGS[name].default if value is None else value


def check_lease(state: State, lease_ms: int) -> None:
    """Raise `Refused` unless a lease may last so long."""
    least, most = read(state, "lease_ms_min"), read(state, "lease_ms_max")
    if not least <= lease_ms <= most:
        raise Refused(f"lease: {least} to {most} ms expected, found {lease_ms}", reason="out-of-range")


def version_at(versions: Sequence[Sequence[Any]] | None, contract: str, height: int) -> int:
    """Which version of a contract that runs since genesis is in force at `height`, by the row of versions."""
    found = [int(version) for name, version, start in versions or () if name == contract and start <= height]
    return found[-1] if found else 1


KEYS_CONTRACT = "keys"  # hashes of erasure periods' keys and of topic policies', which came after genesis


def is_in_force(versions: Sequence[Sequence[Any]] | None, contract: str, height: int) -> bool:
    """Whether a contract that came after genesis runs at `height`, by the row of versions."""
    return any(name == contract and start <= height for name, _, start in versions or ())


def set_(call: Call, entry: list[Any]) -> None:
    """[80, name, value]; by the operator."""
    _set(call, entry, 1)


def set_2(call: Call, entry: list[Any]) -> None:
    """The same entry, for every setting of version 2."""
    _set(call, entry, 2)


def _set(call: Call, entry: list[Any], version: int) -> None:
    fields = fields_of(entry, "setting", 3)
    name, value = fields.text(64), fields.number()
    call.require_operator()
    setting = SETTINGS.get(name)
    if setting is None or setting.since > version:
        raise Refused(f'setting "{name}" does not exist', reason="unknown-setting")
    if not setting.least <= value <= setting.most:
        raise Refused(f"{name}: {setting.least} to {setting.most} expected, found {value}", reason="out-of-range")
    call.state.put(CHOSEN(name.encode()), value)


def activate(call: Call, entry: list[Any]) -> None:
    """[81, contract, version, height]: from that height the contract runs in that version; by the operator.

    A height yet to come, so that every replica knows of it before it counts. A version that a replica does not
    have stops that replica at the height, by name, and changes no result elsewhere.
    """
    fields = fields_of(entry, "activate", 4)
    contract, version, height = fields.text(32), fields.number((1 << 16) - 1, 1), fields.number()
    call.require_operator()
    if height <= call.height:
        raise Refused(f"a height above {call.height} expected, found {height}", reason="out-of-range")
    versions = call.state.row(VERSIONS()) or []
    if any(name == contract and (number >= version or start >= height) for name, number, start in versions):
        raise Refused(f"contract {contract}: versions and their heights only rise", reason="wrong-version")
    call.state.put(VERSIONS(), [*versions, [contract, version, height]])


def withdraw(call: Call, entry: list[Any]) -> None:
    """[82, contract, version, height]: an activation is taken back before its height; by the operator."""
    fields = fields_of(entry, "withdraw activation", 4)
    contract, version, height = fields.text(32), fields.number((1 << 16) - 1, 1), fields.number()
    call.require_operator()
    versions = call.state.row(VERSIONS()) or []
    left = [one for one in versions if one != [contract, version, height]]
    if left == versions:
        raise Refused(f"contract {contract}: no such activation", reason="not-activated")
    if height <= call.height:
        raise Refused(f"contract {contract}: in force since height {height}", reason="out-of-range")
    call.state.put(VERSIONS(), left)
