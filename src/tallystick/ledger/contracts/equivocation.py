"""Equivocation: two signed headers of one lane and sequence with different hashes.

Threat: a publisher that tells two subscribers two stories. The evidence convicts by itself, whoever brings it; both
headers stay in the transaction, and the publisher is blacklisted. Headers carry signatures of the key that the
publisher had then, so a key that was replaced since still convicts.

    equivocation/<principal><lane><u64 sequence>   [hash of the entry, height]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Refused
from tallystick.ledger.contracts import reputation
from tallystick.ledger.contracts.identity import KEYS
from tallystick.ledger.contracts.state import ID, U64, Call, Table
from tallystick.parcel.header import check_equivocation
from tallystick.wire import Fields


class EquivocationRow(NamedTuple):
    entry: bytes
    height: int


EQUIVOCATIONS = Table("equivocation", EquivocationRow, ID, ID, U64)  # by publisher, lane and sequence


def equivocation(call: Call, entry: list[Any]) -> None:
    """[65, publisher, key, header, signature, other header, other signature]"""
    fields = Fields(entry, "equivocation", 7)
    fields.number()
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
