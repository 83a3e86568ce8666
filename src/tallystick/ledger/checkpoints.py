"""The checkpoint of a block: how an engine writes and signs it. How one is believed stands in `trust.checkpoint`."""

from __future__ import annotations

from tallystick.crypto.signatures import SigningKey
from tallystick.ledger.block import Block
from tallystick.trust.checkpoint import AcceptedCheckpoint, compose_checkpoint, verify_checkpoint
from tallystick.trust.notes import Note, NoteSigner

Head = AcceptedCheckpoint
read_head = verify_checkpoint


def checkpoint_text(origin: str, block: Block) -> str:
    """The text that is signed for `block`."""
    return compose_checkpoint(
        origin, block.size, block.root, height=block.height, time_ms=block.time_ms, state_root=block.state_root
    ).encode()


def sign_checkpoint(origin: str, block: Block, key: SigningKey) -> bytes:
    """The note of `block` under the ledger's key, whose name is the origin."""
    return Note.sign(checkpoint_text(origin, block), NoteSigner(origin, key)).encode()


def own_head(origin: str, block: Block, note: bytes) -> Head:
    """The head of a note that this very process signed and no witness has seen."""
    return Head(origin, block.size, block.root, block.height, block.time_ms, block.state_root, note, ())
