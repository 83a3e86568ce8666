"""Checkpoints of the ledger: the one place where signatures under a note become belief.

A checkpoint is a C2SP note (trust/notes.py): origin `tallystick/<instance>`, size and root of the tree over
transactions, and exactly the lines `height N`, `time MS`, `state BASE64`. It is accepted if enough of the trust file's
ledger keys signed it (one on the embedded engine, more than two thirds of the validators' on a chain) and its quorum of
witnesses cosigned it.

Threat: an operator who shows two histories. Witnesses cosign one; where the trust file asks for none, the operator
alone vouches, and `vouched_by` says so to whoever reads the result. Signatures are counted by key: a witness that is
listed under two names is still one. Left out: whether the checkpoint is new, and whether it continues the one accepted
before; both need what a reader remembers.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass

from tallystick.crypto.merkle import HASH_BYTES
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed
from tallystick.trust.notes import Checkpoint, Note, NoteVerifier, Signed
from tallystick.trust.trustfile import TrustFile

NUMBER_MAX = (1 << 63) - 1
_NUMBER = re.compile("0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class AcceptedCheckpoint:
    """A checkpoint that was verified against a trust file; made by `verify_checkpoint` alone."""

    origin: str
    size: int
    root: bytes
    height: int
    time_ms: int
    state_root: bytes
    note: bytes
    cosigners: tuple[str, ...]  # names of the witnesses, in the trust file's order

    def vouched_by(self) -> str:
        """Who stands for this history, in words."""
        if not self.cosigners:
            return "the operator alone vouches for this history: no witness cosigned it"
        return f"witnesses cosigned this history: {', '.join(self.cosigners)}"


def compose_checkpoint(
    origin: str, size: int, root: bytes, *, height: int, time_ms: int, state_root: bytes
) -> Checkpoint:
    """The checkpoint whose text the ledger's keys sign."""
    state = b64encode(state_root).decode()
    return Checkpoint(origin, size, root, (f"height {height}", f"time {time_ms}", f"state {state}"))


def ledger_verifiers(trust: TrustFile) -> list[NoteVerifier]:
    """The ledger's keys; the name of each is the origin."""
    return [NoteVerifier(trust.origin, VerifyKey(key)) for key in trust.ledger_keys]


def witness_verifiers(trust: TrustFile) -> list[NoteVerifier]:
    return [NoteVerifier.decode(text) for text in trust.witnesses]


def verify_checkpoint(note: bytes, trust: TrustFile) -> AcceptedCheckpoint:
    """The checkpoint in `note`; raises `Malformed`, or `Forged` where the trust file asks for more signatures."""
    parsed = Note.decode(note)
    checkpoint = Checkpoint.decode(parsed.text)
    if checkpoint.origin != trust.origin:
        raise Forged(f"checkpoint: origin {trust.origin} expected, found {checkpoint.origin}", reason="wrong-instance")
    ledger, witnesses = ledger_verifiers(trust), witness_verifiers(trust)
    signed = parsed.verify([*ledger, *witnesses])
    found = len(_signers(signed, ledger))
    if found < trust.ledger_threshold:
        raise Forged(f"checkpoint: {trust.ledger_threshold} ledger signatures expected, found {found}")
    cosigners = _signers(signed, witnesses)
    if len(cosigners) < trust.quorum:
        raise Forged(f"checkpoint: {trust.quorum} cosignatures expected, found {len(cosigners)}", reason="no-quorum")
    height, time_ms, state_root = _read_extensions(checkpoint)
    return AcceptedCheckpoint(
        origin=checkpoint.origin,
        size=checkpoint.size,
        root=checkpoint.root,
        height=height,
        time_ms=time_ms,
        state_root=state_root,
        note=bytes(note),
        cosigners=tuple(verifier.name for verifier in cosigners),
    )


def _signers(signed: tuple[Signed, ...], wanted: list[NoteVerifier]) -> list[NoteVerifier]:
    """Those of `wanted` who signed, one for each key."""
    by = {one.verifier for one in signed}
    return list({verifier.key.raw: verifier for verifier in wanted if verifier in by}.values())


def _read_extensions(checkpoint: Checkpoint) -> tuple[int, int, bytes]:
    match [line.split(" ") for line in checkpoint.extensions]:
        case [["height", height], ["time", time], ["state", state]]:
            return _read_number(height), _read_number(time), _read_hash(state)
    raise Malformed("checkpoint: expected exactly the lines height, time and state")


def _read_number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > NUMBER_MAX:
        raise Malformed(f"checkpoint: {text[:40]!r} is not a decimal in range")
    return int(text)


def _read_hash(text: str) -> bytes:
    try:
        root = b64decode(text, validate=True)
    except ValueError as error:
        raise Malformed("checkpoint: the state line is not base64") from error
    if len(root) != HASH_BYTES or b64encode(root).decode() != text:  # spare bits that are not zero
        raise Malformed(f"checkpoint: the state line is not the one base64 of {HASH_BYTES} bytes")
    return root
