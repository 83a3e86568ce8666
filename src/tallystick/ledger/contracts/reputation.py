"""Reputation and blacklist (BPS 4.4), and the equivocation that leads there at once.

Threat: a node that ruins a principal's name, a principal that buys its name back with a burst of small requests, a
tenant that pardons its own. Invariant: a score falls only by what `operations`, `anchors` and `equivocation` proved
from signed bytes; it rises by accepted requests, at most `rise_max` a window, never above the maximum; only the
operator lifts a blacklist. BPS gives no values; ours stand in `settings`.

Equivocation is two signed headers of one lane and sequence with different hashes: a publisher that tells two
subscribers two stories. The evidence convicts by itself, whoever brings it; both headers stay in the transaction, and
the publisher is blacklisted. Headers carry signatures of the key that the publisher had then, so a key that was
replaced since still convicts.

    reputation/<id>                                [score, start of the window ms, risen in it,
                                                    height of the blacklisting or 0]
    equivocation/<principal><lane><u64 sequence>   [hash of the entry, height]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.ledger.contracts import identity, reputation, settings
from tallystick.ledger.contracts.identity import KEYS
from tallystick.ledger.contracts.state import ID, U64, Call, State, Table, fields_of
from tallystick.parcel.header import check_equivocation


class Standing(NamedTuple):
    """How a principal stands."""

    score: int
    window_ms: int  # when the window began
    risen: int  # in it
    blacklisted: int  # height, or 0


STANDINGS = Table("reputation", Standing, ID)


def score(state: State, principal: bytes) -> int:
    return _standing(state, principal).score


def is_blacklisted(state: State, principal: bytes) -> bool:
    return _standing(state, principal).blacklisted != 0


def rise(call: Call, accepted: Mapping[bytes, int]) -> None:
    """So many requests of each principal were accepted."""
    most, newcomer = settings.read(call.state, "reputation_max"), _newcomer(call.state)
    for principal, count in accepted.items():
        standing = call.state.row(STANDINGS(principal)) or newcomer
        if count and standing.score < most and not standing.blacklisted:
            _rise(call, principal, standing, count, most)


def _rise(call: Call, principal: bytes, standing: Standing, count: int, most: int) -> None:
    points, window, risen, _ = standing
    if call.time_ms - window >= settings.read(call.state, "rise_window_ms"):
        window, risen = call.time_ms, 0
    step = min(
        count * settings.read(call.state, "reputation_rise"),
        settings.read(call.state, "rise_max") - risen,
        most - points,
    )
    if step > 0:
        call.state.put(STANDINGS(principal), [points + step, window, risen + step, 0])


def fall(call: Call, principal: bytes) -> None:
    """One proved misdeed."""
    points, window, risen, blacklisted = _standing(call.state, principal)
    points = max(0, points - settings.read(call.state, "reputation_fall"))
    if points < settings.read(call.state, "blacklist_below") and not blacklisted:
        blacklisted = call.height
    call.state.put(STANDINGS(principal), [points, window, risen, blacklisted])


def blacklist(call: Call, principal: bytes) -> None:
    """What needs no second offence."""
    points, window, risen, blacklisted = _standing(call.state, principal)
    call.state.put(STANDINGS(principal), [points, window, risen, blacklisted or call.height])


def lift(call: Call, entry: list[Any]) -> None:
    """[60, principal]: off the blacklist, with the start value; by the operator."""
    fields = fields_of(entry, "lift", 2)
    principal = fields.octets(16)
    call.require_operator()
    identity.require(call.state, principal)
    if not is_blacklisted(call.state, principal):
        raise Refused(f"principal {principal.hex()} is not blacklisted", reason="not-blacklisted")
    start = settings.read(call.state, "reputation_start")
    call.state.put(STANDINGS(principal), [start, call.time_ms, 0, 0])


def _standing(state: State, principal: bytes) -> Standing:
    return state.row(STANDINGS(principal)) or _newcomer(state)


def _newcomer(state: State) -> Standing:
    return Standing(settings.read(state, "reputation_start"), 0, 0, 0)


class EquivocationRow(NamedTuple):
    entry: bytes
    height: int


EQUIVOCATIONS = Table("equivocation", EquivocationRow, ID, ID, U64)  # by publisher, lane and sequence


def equivocation(call: Call, entry: list[Any]) -> None:
    """[65, publisher, key, header, signature, other header, other signature]"""
    fields = fields_of(entry, "equivocation", 7)
    publisher, key = fields.octets(16), fields.octets(32)
    header_a, signature_a, header_b, signature_b = (fields.octets() for _ in range(4))
    owner = call.state.row(KEYS(key))
    if owner is None or owner.subject != publisher:
        raise Refused("the key is not the publisher's", reason="false-evidence")
    lane, sequence = check_equivocation(header_a, signature_a, header_b, signature_b, VerifyKey(key))
    place = EQUIVOCATIONS(publisher, lane, sequence)
    if call.state.get(place) is not None:
        raise Refused("the equivocation is known", reason="known-evidence")
    call.state.put(place, [call.entry_hash, call.height])
    reputation.blacklist(call, publisher)
