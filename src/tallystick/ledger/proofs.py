"""State proofs and histories: what the ledger says, checked without it.

A state proof shows a value, or that there is none, under the state root of a checkpoint that the trust file accepts. A
whole history is verified by folding it and comparing with the proved value of `history/<token>`. Proofs of single
entries, and receipts of parcels, stand in `trust.receipt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Forged, Malformed, Withheld
from tallystick.ledger.checkpoints import Head, read_head
from tallystick.ledger.contracts.call import HistoryRow
from tallystick.ledger.contracts.operations import HISTORIES, next_chain
from tallystick.trust.trustfile import TrustFile


@dataclass(frozen=True)
class StateProof:
    """A value of the state under a checkpoint, as an engine claims it."""

    key: bytes
    value: bytes | None  # None: the key is absent
    proof: bytes
    note: bytes

    def verify(self, trust: TrustFile) -> Head:
        """The head under which the value stands; raises `Forged`."""
        head = read_head(self.note, trust)
        verify_map(head.state_root, self.key, self.value, self.proof)
        return head

    def encode(self) -> bytes:
        return wire.encode([1, self.key, self.value, self.proof, self.note])

    @classmethod
    def decode(cls, data: bytes) -> StateProof:
        """Raises `Malformed`."""
        match wire.decode(data, "state proof"):
            case [1, bytes(key), bytes() | None as value, bytes(proof), bytes(note)]:
                return cls(key, value, proof, note)
        raise Malformed("state proof: expected version, key, value, proof and note")


def verify_history(token: bytes, oldest_first: Sequence[tuple[int, int, bytes]], proved: StateProof) -> None:
    """Raise `Withheld` unless these (height, index, entry) are the whole history under a verified state proof."""
    key = HISTORIES(token)
    if proved.key != key:
        raise Forged("history: the proof is of another topic")
    chain = bytes(32)
    for height, index, entry in oldest_first:
        chain = next_chain(chain, height, index, merkle.leaf_hash(entry))
    last = HistoryRow(*oldest_first[-1][:2], len(oldest_first), chain) if oldest_first else None
    expected = None if proved.value is None else key.read(wire.decode(proved.value, "history"))
    if last != expected:
        found = expected.operations if expected else 0
        raise Withheld(f"history: {len(oldest_first)} operations do not fold to the {found} on the ledger")
