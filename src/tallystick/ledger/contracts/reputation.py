"""Reputation and blacklist (BPS 4.4).

Threat: a node that ruins a principal's name, a principal that buys its name back with a burst of small requests, a
tenant that pardons its own. Invariant: a score falls only by what `operations`, `equivocation` and `anchors` proved
from signed bytes; it rises by accepted requests, at most `rise_max` a window, never above the maximum; only the
operator lifts a blacklist. BPS gives no values; ours stand in `settings`.

    reputation/<id>   [score, start of the window ms, risen in it, height of the blacklisting or 0]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.errors import Refused
from tallystick.ledger.contracts import identity, settings
from tallystick.ledger.contracts.call import Call
from tallystick.ledger.contracts.state import State
from tallystick.trust.signed import Fields


def score(state: State, principal: bytes) -> int:
    value = state.get(b"reputation/" + principal)
    return settings.read(state, "reputation_start") if value is None else int(value[0])


def is_blacklisted(state: State, principal: bytes) -> bool:
    value = state.get(b"reputation/" + principal)
    return value is not None and value[3] != 0


def rise(call: Call, accepted: Mapping[bytes, int]) -> None:
    """So many requests of each principal were accepted."""
    start, most = settings.read(call.state, "reputation_start"), settings.read(call.state, "reputation_max")
    for principal, count in accepted.items():
        value = call.state.get(b"reputation/" + principal)
        points = start if value is None else value[0]
        if count and points < most and not (value and value[3]):
            _rise(call, principal, count, most)


def _rise(call: Call, principal: bytes, count: int, most: int) -> None:
    points, window, risen, _ = _value(call.state, principal)
    if call.time_ms - window >= settings.read(call.state, "rise_window_ms"):
        window, risen = call.time_ms, 0
    step = min(
        count * settings.read(call.state, "reputation_rise"),
        settings.read(call.state, "rise_max") - risen,
        most - points,
    )
    if step > 0:
        call.state.put(b"reputation/" + principal, [points + step, window, risen + step, 0])


def fall(call: Call, principal: bytes) -> None:
    """One proved misdeed."""
    points, window, risen, blacklisted = _value(call.state, principal)
    points = max(0, points - settings.read(call.state, "reputation_fall"))
    if points < settings.read(call.state, "blacklist_below") and not blacklisted:
        blacklisted = call.height
    call.state.put(b"reputation/" + principal, [points, window, risen, blacklisted])


def blacklist(call: Call, principal: bytes) -> None:
    """What needs no second offence."""
    points, window, risen, blacklisted = _value(call.state, principal)
    call.state.put(b"reputation/" + principal, [points, window, risen, blacklisted or call.height])


def lift(call: Call, entry: list[Any]) -> None:
    """[60, principal]: off the blacklist, with the start value; by the operator."""
    fields = Fields(entry, "lift", 2)
    fields.number()
    principal = fields.octets(16)
    call.require_operator()
    identity.require(call.state, principal)
    if not is_blacklisted(call.state, principal):
        raise Refused(f"principal {principal.hex()} is not blacklisted", reason="not-blacklisted")
    start = settings.read(call.state, "reputation_start")
    call.state.put(b"reputation/" + principal, [start, call.time_ms, 0, 0])


def _value(state: State, principal: bytes) -> list[Any]:
    value: list[Any] | None = state.get(b"reputation/" + principal)
    return [settings.read(state, "reputation_start"), 0, 0, 0] if value is None else value
