"""A witness: it cosigns checkpoints of logs it knows, one history each (C2SP tlog-witness, tlog-cosignature).

Threat: a log that shows two histories. Invariant: for each origin a witness cosigns only what continues the last
checkpoint it cosigned, which it has on disk before its signature leaves; so two cosigned checkpoints of one origin
are always of one history. Stricter than the specification where our own lines say more: heights do not fall, and one
height has one text, so that neither can one height have two state roots.

A witness vouches for one history, not for right results. `add_checkpoint` is the whole protocol, without HTTP.

The newest of what it cosigned is kept with its signatures, for strangers who compare what they were shown. Nobody can
push it out but a ledger that goes on: a checkpoint that comes again, or with signatures of strangers, is kept once and
without them.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from tallystick import wire
from tallystick.crypto.merkle import EMPTY_ROOT, verify_consistency
from tallystick.errors import Forged, Malformed, Refused, Unavailable
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.trust.notes import (
    NOTE_BYTES_MAX,
    Checkpoint,
    Note,
    NoteSignature,
    NoteSigner,
    NoteVerifier,
    decode_signatures,
)

PROOF_LINES_MAX = 63  # as the specification bounds it
REQUEST_BYTES_MAX = NOTE_BYTES_MAX + 8192
SIZE_TYPE = "text/x.tlog.size"
KEPT_MAX = 64  # cosigned checkpoints of an origin, some 40 kB a write
RECENT = 16  # of these, without a gap; before them ever fewer, back to the first
KEPT_BYTES_MAX = 64 * 1024  # post-quantum signatures are long

_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class WitnessAnswer:
    """What an HTTP server is to send."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"


class _Seen(NamedTuple):
    """The last checkpoint cosigned for an origin."""

    size: int
    root: bytes
    height: int | None
    text: str
    kept: tuple[tuple[int, bytes], ...] = ()  # the newest cosigned notes, with the times of their cosignatures


class Cosigned(NamedTuple):
    """A checkpoint that this witness cosigned, and the note that says so."""

    checkpoint: Checkpoint
    height: int | None
    time_s: int
    note: bytes


_NOTHING = _Seen(0, EMPTY_ROOT, None, "")


class Witness:
    """Cosigns for the logs in `logs`: origin → keys that may sign its checkpoints."""

    def __init__(
        self, signer: NoteSigner, logs: Mapping[str, Sequence[NoteVerifier]], disk: Disk, kept_max: int = KEPT_MAX
    ) -> None:
        """`kept_max` are the cosigned checkpoints of an origin that it goes on showing."""
        self.signer, self._kept_max = signer, kept_max
        self._logs = dict(logs)
        self._disk = disk
        self._lock = threading.Lock()
        self.changes = 0  # rises with each checkpoint that it cosigns

    def add_checkpoint(self, body: bytes, now_s: int) -> WitnessAnswer:
        """The answer to `POST /add-checkpoint`."""
        try:
            old, proof, note = decode_request(body)
            checkpoint = Checkpoint.decode(note.text)
        except Malformed:
            return WitnessAnswer(400)
        keys = self._logs.get(checkpoint.origin)
        if keys is None:
            return WitnessAnswer(404)
        try:
            note.verify(keys)
        except Forged:
            return WitnessAnswer(403)
        if old > checkpoint.size:
            return WitnessAnswer(400)
        with self._lock:
            return self._cosign(old, proof, note, checkpoint, now_s)

    def _cosign(self, old: int, proof: list[bytes], note: Note, checkpoint: Checkpoint, now_s: int) -> WitnessAnswer:
        seen = self._load(checkpoint.origin)
        height = _height(checkpoint)
        if old != seen.size or (checkpoint.size == seen.size and seen.text and checkpoint.root != seen.root):
            return _conflict(seen)
        if seen.height is not None and (
            height is None or height < seen.height or (height == seen.height and note.text != seen.text)
        ):
            return _conflict(seen)
        try:
            verify_consistency(seen.size, seen.root, checkpoint.size, checkpoint.root, proof)
        except Forged:
            return WitnessAnswer(422)
        signature, kept = self.signer.sign(note.text, now_s), seen.kept
        if note.text != seen.text or not kept:
            known = {(one.name, one.key_id) for one in self._logs[checkpoint.origin]}
            signed = [one for one in note.signatures if (one.name, one.key_id) in known]
            kept = bounded(((now_s, Note(note.text, (*signed, signature)).encode()), *kept), self._kept_max)
        self._save(checkpoint.origin, _Seen(checkpoint.size, checkpoint.root, height, note.text, kept))
        self.changes += 1
        return WitnessAnswer(200, signature.encode().encode())

    def cosigned(self) -> list[Cosigned]:
        """What it cosigned last, by origin, the newest first."""
        with self._lock:
            kept = [one for origin in sorted(self._logs) for one in self._load(origin).kept]
        found = [(time_s, note, Checkpoint.decode(Note.decode(note).text)) for time_s, note in kept]
        return [Cosigned(checkpoint, _height(checkpoint), time_s, note) for time_s, note, checkpoint in found]

    def _load(self, origin: str) -> _Seen:
        name = _name(origin)
        if not self._disk.exists(name):
            return _NOTHING
        match wire.decode(read_all(self._disk, name), "witness state"):
            case [1, str(found), int(size), bytes(root), int() | None as height, str(text)] if found == origin:
                return _Seen(size, root, height, text)
            case [2, str(found), int(size), bytes(root), int() | None as height, str(text), list(kept)] if (
                found == origin
            ):
                return _Seen(size, root, height, text, tuple((time_s, note) for time_s, note in kept))
        raise Malformed(f'witness state of "{origin}": of version 1 or 2 expected', reason="version")

    def _save(self, origin: str, seen: _Seen) -> None:
        kept = [[*one] for one in seen.kept]
        write_atomic(self._disk, _name(origin), wire.encode([2, origin, *seen[:-1], kept]))


def bounded(kept: Sequence[tuple[int, bytes]], most: int) -> tuple[tuple[int, bytes], ...]:
    """The newest, and of the older ones so many that gaps grow with age; as many as may be kept, and one at least."""
    thinned = list(kept[:RECENT])
    for place in range(RECENT, len(kept)):
        is_last = place + 1 == len(kept)
        if is_last or 2 * (thinned[-1][0] - kept[place + 1][0]) >= kept[0][0] - kept[place][0]:
            thinned.append(kept[place])
    sizes = accumulate(len(note) for _, note in thinned)
    fitting = sum(size <= KEPT_BYTES_MAX for size in sizes)
    return tuple(thinned[: max(1, min(most, fitting))])


def encode_request(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    """The body of `POST /add-checkpoint`."""
    lines = "".join(b64encode(node).decode() + "\n" for node in proof)
    return f"old {old}\n{lines}\n".encode() + note


def decode_request(body: bytes) -> tuple[int, list[bytes], Note]:
    """Old size, consistency proof and note. Raises `Malformed`."""
    if len(body) > REQUEST_BYTES_MAX:
        raise Malformed(f"witness request: {len(body)} bytes, at most {REQUEST_BYTES_MAX} expected")
    head, blank, note = body.partition(b"\n\n")
    if not blank:
        raise Malformed("witness request: expected an empty line before the note")
    try:
        first, *lines = head.decode("ascii").split("\n")
        proof = [b64decode(line, validate=True) for line in lines]
    except (UnicodeDecodeError, Base64Error, ValueError) as error:
        raise Malformed("witness request: expected a size and base64 lines") from error
    old = _OLD.fullmatch(first)
    if old is None or len(proof) > PROOF_LINES_MAX or any(len(node) != 32 for node in proof):
        raise Malformed("witness request: expected a size and at most 63 hashes")
    return int(old[1]), proof, Note.decode(note)


def read_answer(status: int, body: bytes) -> tuple[NoteSignature, ...] | int:
    """The cosignatures, or the size from which the witness wants a proof. Raises `Refused` or `Unavailable`."""
    if status == 200:
        try:
            return decode_signatures(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise Malformed("witness answer: not UTF-8") from error
    if status == 409 and re.fullmatch(rb"(0|[1-9][0-9]{0,18})\n", body):
        return int(body)
    if status in (400, 403, 404, 422):
        older = ", as it does where its own trust file is older (tally witness run --trust)" if status == 403 else ""
        raise Refused(f"witness: it refused the checkpoint with status {status}{older}", reason="witness-refused")
    raise Unavailable(f"witness: it answered with status {status}")


def _conflict(seen: _Seen) -> WitnessAnswer:
    return WitnessAnswer(409, f"{seen.size}\n".encode(), SIZE_TYPE)


def _height(checkpoint: Checkpoint) -> int | None:
    for line in checkpoint.extensions:
        if re.fullmatch(r"height (0|[1-9][0-9]{0,18})", line):
            return int(line[7:])
    return None


def _name(origin: str) -> str:
    return f"origin-{sha256(origin.encode()).hexdigest()[:32]}"
