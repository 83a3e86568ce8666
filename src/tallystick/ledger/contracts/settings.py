"""Numbers that the rules depend on, kept on the ledger so that every replay uses the ones of its height.

settings/<name>   an integer, where it differs from the default
versions          [[contract, version, from height], …] in the order of activation
"""

from __future__ import annotations

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
    "anchor_ms": Setting(60_000, 1_000, 24 * _HOUR_MS),  # from a promise's block time to its anchor
    "lease_ms_min": Setting(1_000, 1, _HOUR_MS),
    "lease_ms_max": Setting(600_000, 1_000, 24 * _HOUR_MS),
}


def read(state: State, name: str) -> int:
    """The setting's value now."""
    value = state.row(CHOSEN(name.encode()))
    return SETTINGS[name].default if value is None else value


def set_(call: Call, entry: list[Any]) -> None:
    """[80, name, value]; by the operator."""
    fields = fields_of(entry, "setting", 3)
    name, value = fields.text(64), fields.number()
    call.require_operator()
    setting = SETTINGS.get(name)
    if setting is None:
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
