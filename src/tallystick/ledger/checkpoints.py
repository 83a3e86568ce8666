"""Checkpoints: what the ledger signs of itself, and what a client needs under it before it believes.

A checkpoint is a C2SP note: origin `tallystick/<instance>`, size and root of the tree over transactions, and the
lines `height N`, `time MS`, `state BASE64`. `read_head` is the one place where signatures become belief: enough
ledger keys (one on the embedded engine, more than two thirds of the validators' on a chain) and the witness quorum
of the trust file. Where that quorum is zero the head says so: the operator alone vouches.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace

from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed
from tallystick.ledger.block import Block
from tallystick.trust.notes import Checkpoint, Note, NoteSigner, NoteVerifier, Signed
from tallystick.trust.trustfile import TrustFile

_NUMBER = "(0|[1-9][0-9]{0,17})"
_LINES = re.compile(f"height {_NUMBER}\ntime {_NUMBER}\nstate ([A-Za-z0-9+/]{{42}}[AEIMQUYcgkosw048]=)")


@dataclass(frozen=True)
class Head:
    """A checkpoint that was verified against a trust file."""

    size: int
    root: bytes
    height: int
    time_ms: int
    state_root: bytes
    witnesses: tuple[str, ...]  # names of those who cosigned; empty: the operator alone vouches
    note: bytes


def checkpoint_text(origin: str, block: Block) -> str:
    """The text that is signed for `block`."""
    state = b64encode(block.state_root).decode()
    lines = (f"height {block.height}", f"time {block.time_ms}", f"state {state}")
    return Checkpoint(origin, block.size, block.root, lines).encode()


def sign_checkpoint(origin: str, block: Block, key: SigningKey) -> bytes:
    """The note of `block` under the ledger's key, whose name is the origin."""
    return Note.sign(checkpoint_text(origin, block), NoteSigner(origin, key)).encode()


def ledger_verifiers(trust: TrustFile) -> list[NoteVerifier]:
    return [NoteVerifier(trust.origin, VerifyKey(key)) for key in trust.ledger_keys]


def witness_verifiers(trust: TrustFile) -> list[NoteVerifier]:
    return [NoteVerifier.decode(text) for text in trust.witnesses]


def read_head(note_bytes: bytes, trust: TrustFile) -> Head:
    """The head of a note; raises `Malformed`, or `Forged` where the trust file asks for more signatures."""
    note = Note.decode(note_bytes)
    ledger, witnesses = ledger_verifiers(trust), witness_verifiers(trust)
    signed = note.verify([*ledger, *witnesses])
    by_ledger, by_witness = _count(signed, ledger), _count(signed, witnesses)
    if len(by_ledger) < trust.ledger_threshold:
        raise Forged(f"checkpoint: {trust.ledger_threshold} ledger signatures expected, found {len(by_ledger)}")
    if len(by_witness) < trust.quorum:
        raise Forged(f"checkpoint: {trust.quorum} cosignatures expected, found {len(by_witness)}", reason="no-quorum")
    names = tuple(sorted(verifier.name for verifier in by_witness))
    return replace(parse_head(note_bytes, trust.origin), witnesses=names)


def parse_head(note_bytes: bytes, origin: str) -> Head:
    """The head of a note whose signatures were checked before, such as one that a client kept itself."""
    checkpoint = Checkpoint.decode(Note.decode(note_bytes).text)
    if checkpoint.origin != origin:
        raise Forged(f"checkpoint: origin {origin} expected, found {checkpoint.origin}", reason="wrong-instance")
    height, time_ms, state_root = _extensions(checkpoint)
    return Head(checkpoint.size, checkpoint.root, height, time_ms, state_root, (), note_bytes)


def _count(signed: tuple[Signed, ...], wanted: list[NoteVerifier]) -> set[NoteVerifier]:
    # By key, not by name: a key that is listed twice under two names is still one witness.
    by_key = {one.verifier.key.raw: one.verifier for one in signed if one.verifier in wanted}
    return set(by_key.values())


def _extensions(checkpoint: Checkpoint) -> tuple[int, int, bytes]:
    """Height, time and state root, in the one form that `checkpoint_text` writes."""
    found = _LINES.fullmatch("\n".join(checkpoint.extensions))
    if found is None:
        raise Malformed("checkpoint: expected lines for height, time and state")
    return int(found[1]), int(found[2]), b64decode(found[3])
