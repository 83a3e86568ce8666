"""What a process does that shares its memory of checkpoints with another; it imports that alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tallystick.errors import Withheld
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.disk import RealDisk
from tallystick.trust.trustfile import TrustFile


def accept_all(folder: Path, trust: str, notes: list[bytes], proofs: dict[tuple[int, int], list[bytes]]) -> None:
    """Accept the notes one after the other, each as a process that has just started."""
    parsed, disk = TrustFile.parse(trust), RealDisk(folder)
    for note in notes:
        with suppress(Withheld):  # another process has gone further, and ours is set to that
            CheckpointMemory(parsed, disk).accept(note, lambda old, new: proofs[old, new])
