"""A client's view of the ledger: checkpoints it accepted, and state proved under them.

The node is asked and not believed: every checkpoint goes through the memory (signatures and witnesses that the trust
file demands, continuity with the last one), every value through its proof. A head older than `head_age_max_s` is a
withheld tail until the contrary is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tallystick import wire
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Unavailable, Withheld
from tallystick.ledger.checkpoints import Head
from tallystick.ledger.contracts.table import Key, R
from tallystick.ledger.memory import CheckpointMemory, Consistency
from tallystick.ledger.proofs import StateProof
from tallystick.runtime.clock import Clock

AskMany = Callable[[Sequence[bytes]], Sequence[StateProof]]

PUBLISHED_S = 15.0  # from a block until the witnesses have cosigned it; one of them may be slow


class LedgerSource(Protocol):
    """Where checkpoints and proofs come from; nothing of it is trusted."""

    def checkpoint(self) -> bytes: ...

    def consistency(self, old: int, new: int) -> Sequence[bytes]: ...

    def state(self, key: bytes) -> StateProof: ...


class View:
    def __init__(self, source: LedgerSource, memory: CheckpointMemory, clock: Clock, head_age_max_s: float) -> None:
        self._source, self._memory, self._clock = source, memory, clock
        self._head_age_max_s = head_age_max_s

    @property
    def accepted(self) -> tuple[int, bytes] | None:
        """Size and root of the newest accepted checkpoint, as headers carry it."""
        head = self._memory.head
        return None if head is None else (head.size, head.root)

    def refresh(self) -> Head:
        """The newest checkpoint; `Withheld` if it contradicts an earlier one, or is too old."""
        return self._check_age(self._memory.accept(self._source.checkpoint(), self._source.consistency))

    def row(self, key: Key[R]) -> R | None:
        """The row under `key` in the newest state, None where it is proved absent."""
        return self.row_at(key)[0]

    def row_at(self, key: Key[R]) -> tuple[R | None, Head]:
        """The row, and the checkpoint under which it was proved."""
        proof = self._source.state(key)
        head = self._check_age(self._memory.accept(proof.note, self._source.consistency))
        return _proved(key, proof, head), head

    def rows_at(self, keys: Sequence[Key[R]], ask: AskMany) -> list[tuple[R | None, Head]]:
        """The row of each key as `row_at` gives it; `ask` brings their proofs together, and is believed as little. A
        checkpoint that several of them came under is accepted once."""
        found: list[tuple[R | None, Head]] = []
        heads: dict[bytes, Head] = {}
        for key, proof in zip(keys, ask(keys), strict=True):
            if proof.note not in heads:
                heads[proof.note] = self._check_age(self._memory.accept(proof.note, self._source.consistency))
            found.append((_proved(key, proof, heads[proof.note]), heads[proof.note]))
        return found

    def wait_for(self, key: Key[R], accept: Callable[[R | None], bool]) -> R | None:
        """The row under `key` as soon as it is acceptable: what one has just written may lie in a block that the
        witnesses have yet to cosign."""
        deadline = self._clock.monotonic() + PUBLISHED_S
        while not accept(row := self.row(key)):
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"ledger: what was written is not under a checkpoint after {PUBLISHED_S:g} s",
                    hint="its witnesses may be away",
                )
            self._clock.pause(0.05)
        return row

    def check_seen(self, size: int, root: bytes, consistency: Consistency | None = None) -> None:
        """Hold a checkpoint that a publisher accepted against our own history: `Withheld` if they fork. `consistency`
        may bring the proof from elsewhere."""
        self._memory.check_seen(size, root, consistency or self._source.consistency)

    def _check_age(self, head: Head) -> Head:
        age_s = self._clock.now() - head.time_ms / 1000
        if age_s > self._head_age_max_s:
            raise Withheld(
                f"ledger: its newest checkpoint is {age_s:.0f} s old, accepted are {self._head_age_max_s:g}",
                reason="stale-head",
                hint="the node withholds newer ones, or the ledger stands still",
            )
        return head


def _proved(key: Key[R], proof: StateProof, head: Head) -> R | None:
    verify_map(head.state_root, key, proof.value, proof.proof)
    return None if proof.value is None else key.read(wire.decode(proof.value, "state value"))
