"""Signed notes, checkpoints and cosignatures in the C2SP formats, so that tools that exist can check ours.

A note (c2sp.org/signed-note) is text and signature lines; a checkpoint (c2sp.org/tlog-checkpoint) is a note whose
text is origin, tree size, root and extension lines; a cosignature (c2sp.org/tlog-cosignature, version 1) is a
witness's signature over a checkpoint and the time at which it saw it.

Threat: a text that two readers take differently. The parser takes one form only: strict UTF-8, no control
characters, canonical base64 and decimals, one signature per key, everything bounded. Threat: a signature of one
kind shown as another. The key identifier covers the kind; a plain signer refuses a text that reads as a cosigned
message. Signatures of unknown keys are ignored, as the specification demands; one of a *known* key that fails
condemns the note. `Note.verify` returns who signed.

How many of them suffice is the trust file's business, and `verify_checkpoint` is the one place where signatures become
belief. A checkpoint of the ledger has the origin `tallystick/<instance>`, size and root of the tree over transactions,
and exactly the lines `height N`, `time MS`, `state BASE64`. It is accepted if enough of the trust file's ledger keys
signed it (one on the embedded engine, more than two thirds of the validators' on a chain) and its quorum of witnesses
cosigned it.

Threat: an operator who shows two histories. Witnesses cosign one, and on a chain the validators sign one; where the
trust file asks for neither, the operator alone vouches, and `vouched_by` says so to whoever reads the result.
Signatures are counted by key: a witness that is listed under two names is still one.

Left out: ML-DSA-44 cosignatures, which do not cover the extension lines, where height, time and state root stand;
whether a checkpoint is new, and whether it continues the one accepted before, which both need what a reader remembers.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from tallystick import wire
from tallystick.crypto.merkle import HASH_BYTES, SIZE_MAX
from tallystick.crypto.signatures import SIGNATURE_BYTES, SigningKey, VerifyKey
from tallystick.errors import Forged, Malformed, Misuse

if TYPE_CHECKING:
    from tallystick.trust.trustfile import TrustFile

NOTE_BYTES_MAX = 256 * 1024  # 16 post-quantum signatures, which the specification asks us to bear, take 110 KiB
SIGNATURES_MAX = 64
LINE_BYTES_MAX = 8192  # a signature line of 5 kB of signature, base64
NAME_BYTES_MAX = 255
EXTENSIONS_MAX = 32
TIME_MAX = 2**63 - 1

_KEY_ID_BYTES = 4
_TIME_BYTES = 8
_DASH = "— "  # em dash, U+2014
_COSIGNATURE = "cosignature/v1\n"
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(r"[\x00-\x1f\ud800-\udfff]")  # and lone surrogates, which have no UTF-8
_KEY_ID_TEXT = re.compile(r"[0-9a-f]{8}")
_OTHER = (
    "another trust file of the instance may name who signed: the newest (DIR/trust.json of the operator, "
    "HOME/trust.json of an identity that has gone online since), or, for what is older than a change of keys, the one "
    "of then"
)


class Algorithm(IntEnum):
    """The kinds of signature that we make and check; the byte is the specification's."""

    ED25519 = 0x01
    COSIGNATURE_V1 = 0x04


@dataclass(frozen=True)
class NoteSignature:
    """One signature line; `signature` begins with the time if it is a cosignature."""

    name: str
    key_id: bytes
    signature: bytes

    def encode(self) -> str:
        """The line, newline included."""
        return f"{_DASH}{self.name} {_base64(self.key_id + self.signature)}\n"

    @classmethod
    def decode(cls, line: str) -> NoteSignature:
        """Raises `Malformed`; the newline is expected."""
        if not line.startswith(_DASH) or not line.endswith("\n"):
            raise Malformed("note: a signature line does not begin with an em dash and a space, or does not end")
        name, space, encoded = line[len(_DASH) : -1].partition(" ")
        if not space or not _is_name(name):
            raise Malformed("note: a signature line without a valid key name")
        raw = _from_base64(encoded, "note signature")
        if len(raw) <= _KEY_ID_BYTES:
            raise Malformed(f'note: the signature of "{name}" is too short')
        return cls(name, raw[:_KEY_ID_BYTES], raw[_KEY_ID_BYTES:])


@dataclass(frozen=True)
class NoteVerifier:
    """A key that notes are checked against: its name and kind count as much as the key itself."""

    name: str
    key: VerifyKey
    algorithm: Algorithm = Algorithm.ED25519

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise Misuse(f"note key name {self.name!r}: expected up to 255 bytes without space, plus or control")

    @property
    def key_id(self) -> bytes:
        return _key_id(self.name, bytes([self.algorithm]) + self.key.raw)

    def encode(self) -> str:
        """The verifier key as text: name, identifier, key."""
        return f"{self.name}+{self.key_id.hex()}+{_base64(bytes([self.algorithm]) + self.key.raw)}"

    @classmethod
    def decode(cls, text: str) -> NoteVerifier:
        """Raises `Malformed`, also for a kind of key that we do not check."""
        if len(text.encode(errors="replace")) > LINE_BYTES_MAX:
            raise Malformed("verifier key: too long")
        name, plus, rest = text.partition("+")
        key_id, second_plus, encoded = rest.partition("+")
        if not plus or not second_plus or not _is_name(name) or not _KEY_ID_TEXT.fullmatch(key_id):
            raise Malformed("verifier key: expected name+identifier+key")
        raw = _from_base64(encoded, "verifier key")
        if raw[:1] not in (b"\x01", b"\x04"):
            raise Malformed(f'verifier key "{name}": expected kind 01 or 04, found {raw[:1].hex() or "nothing"}')
        if _key_id(name, raw).hex() != key_id:
            raise Malformed(f'verifier key "{name}": the identifier is not that of the key')
        return cls(name, VerifyKey(raw[1:]), Algorithm(raw[0]))

    def verify(self, text: str, signature: bytes) -> int | None:
        """The time of a cosignature, None for a plain signature. Raises `Forged`."""
        if self.algorithm is Algorithm.ED25519:
            self.key.verify_raw(signature, text.encode())
            return None
        if len(signature) != _TIME_BYTES + SIGNATURE_BYTES:
            raise Forged(f'cosignature of "{self.name}": expected 72 bytes, found {len(signature)}')
        time_s = int.from_bytes(signature[:_TIME_BYTES], "big")
        if time_s > TIME_MAX:
            raise Forged(f'cosignature of "{self.name}": the time is out of range')
        self.key.verify_raw(signature[_TIME_BYTES:], _cosigned(text, time_s))
        return time_s


@dataclass(frozen=True)
class NoteSigner:
    """A key that signs notes under a name."""

    name: str
    key: SigningKey
    algorithm: Algorithm = Algorithm.ED25519

    @property
    def verifier(self) -> NoteVerifier:
        return NoteVerifier(self.name, self.key.public, self.algorithm)

    def sign(self, text: str, time_s: int | None = None) -> NoteSignature:
        """A signature line for `text`; a cosignature states `time_s`, and only a checkpoint gets one."""
        _check_text(text, Misuse)
        if self.algorithm is Algorithm.ED25519:
            if time_s is not None or text.startswith(_COSIGNATURE):
                raise Misuse("note: a plain signature has no time, and its text must not read as a cosigned message")
            return NoteSignature(self.name, self.verifier.key_id, self.key.sign_raw(text.encode()))
        if time_s is None or not 0 <= time_s <= TIME_MAX:
            raise Misuse(f"cosignature: expected a time in seconds, found {time_s}")
        Checkpoint.decode(text)
        signature = self.key.sign_raw(_cosigned(text, time_s))
        return NoteSignature(self.name, self.verifier.key_id, time_s.to_bytes(_TIME_BYTES, "big") + signature)


@dataclass(frozen=True)
class Signed:
    """A signature of a note that verified: by whom, and for a cosignature when."""

    verifier: NoteVerifier
    time_s: int | None


@dataclass(frozen=True)
class Note:
    """A text and the signatures under it, well-formed but not verified: ignore it until `verify` returns."""

    text: str
    signatures: tuple[NoteSignature, ...]

    @classmethod
    def sign(cls, text: str, *signers: NoteSigner) -> Note:
        """The text under plain signatures."""
        note = cls(text, ())
        for signer in signers:
            note = note.add(signer.sign(text))
        return note

    def add(self, signature: NoteSignature) -> Note:
        """The note with one more signature. Raises `Misuse` if that key has signed already or there are too many."""
        if any((one.name, one.key_id) == (signature.name, signature.key_id) for one in self.signatures):
            raise Misuse(f'note: "{signature.name}" has signed already')
        if len(self.signatures) == SIGNATURES_MAX:
            raise Misuse(f"note: more than {SIGNATURES_MAX} signatures")
        return Note(self.text, (*self.signatures, signature))

    def encode(self) -> bytes:
        if not self.signatures:
            raise Misuse("note: a note without a signature has no encoding")
        _check_text(self.text, Misuse)
        return (self.text + "\n" + "".join(one.encode() for one in self.signatures)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Note:
        """Raises `Malformed`."""
        if len(data) > NOTE_BYTES_MAX:
            raise Malformed(f"note: expected at most {NOTE_BYTES_MAX} bytes, found {len(data)}")
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Malformed("note: not UTF-8") from error
        # The last empty line separates; the text may have empty lines of its own.
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise Malformed("note: expected a text, an empty line and signature lines")
        text += "\n"
        _check_text(text, Malformed)
        return cls(text, decode_signatures(lines))

    def verify(self, verifiers: Iterable[NoteVerifier]) -> tuple[Signed, ...]:
        """Who of `verifiers` signed. Raises `Forged` if nobody did, or if a signature of one of them fails."""
        known = {(verifier.name, verifier.key_id): verifier for verifier in verifiers}
        signed = []
        for one in self.signatures:
            verifier = known.get((one.name, one.key_id))
            if verifier is not None:
                signed.append(Signed(verifier, verifier.verify(self.text, one.signature)))
        if not signed:
            raise Forged("note: no signature of a known key", hint=_OTHER)
        return tuple(signed)


@dataclass(frozen=True)
class Checkpoint:
    """What a log says of itself: its origin, size and root, and lines of its own. The text of a note."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX or len(self.root) != HASH_BYTES or len(self.extensions) > EXTENSIONS_MAX:
            raise Misuse(f"checkpoint: size {self.size}, root of {len(self.root)} bytes or extensions out of range")
        for line in (self.origin, *self.extensions):
            if not line or _CONTROL.search(line) or len(line.encode()) > LINE_BYTES_MAX:
                raise Misuse(f"checkpoint: line {line[:40]!r} is empty, too long or has control characters")

    def encode(self) -> str:
        """The text to sign."""
        lines = [self.origin, str(self.size), _base64(self.root), *self.extensions]
        return "".join(line + "\n" for line in lines)

    @classmethod
    def decode(cls, text: str) -> Checkpoint:
        """Raises `Malformed`."""
        _check_text(text, Malformed)
        origin, *rest = text[:-1].split("\n")
        if len(rest) < 2 or not origin or not all(rest):
            raise Malformed("checkpoint: expected origin, size, root and no empty line")
        size, root, *extensions = rest
        if not _DECIMAL.fullmatch(size) or int(size) > SIZE_MAX:
            raise Malformed(f"checkpoint: size {size[:40]!r} is not a decimal in range")
        raw = _from_base64(root, "checkpoint root")
        if len(raw) != HASH_BYTES:
            raise Malformed(f"checkpoint: expected a root of {HASH_BYTES} bytes, found {len(raw)}")
        if len(extensions) > EXTENSIONS_MAX:
            raise Malformed(f"checkpoint: expected at most {EXTENSIONS_MAX} extension lines, found {len(extensions)}")
        return cls(origin, int(size), raw, tuple(extensions))


def decode_signatures(text: str) -> tuple[NoteSignature, ...]:
    """Signature lines, as a note or a witness's answer (c2sp.org/tlog-witness) holds them. Raises `Malformed`."""
    lines = text.split("\n")[:-1]
    if not lines or not text.endswith("\n"):
        raise Malformed("note: expected signature lines")
    if len(lines) > SIGNATURES_MAX:
        raise Malformed(f"note: expected at most {SIGNATURES_MAX} signatures, found {len(lines)}")
    if any(len(line.encode(errors="replace")) > LINE_BYTES_MAX for line in lines):
        raise Malformed("note: a signature line is too long")
    signatures = tuple(NoteSignature.decode(line + "\n") for line in lines)
    if len({(one.name, one.key_id) for one in signatures}) != len(signatures):
        raise Malformed("note: one key has signed twice")
    return signatures


def _cosigned(text: str, time_s: int) -> bytes:
    return f"{_COSIGNATURE}time {time_s}\n{text}".encode()


def _key_id(name: str, kind_and_key: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + kind_and_key).digest()[:_KEY_ID_BYTES]


def _is_name(name: str) -> bool:
    if not name or "+" in name or _CONTROL.search(name) or any(map(str.isspace, name)):
        return False
    return len(name.encode()) <= NAME_BYTES_MAX


def _check_text(text: str, blame: type[Malformed] | type[Misuse]) -> None:
    if not text.endswith("\n"):
        raise blame("note: the text does not end in a newline")
    if _CONTROL.search(text.replace("\n", "")):
        raise blame("note: the text has control characters")
    encoded = text.encode()
    if len(encoded) > NOTE_BYTES_MAX or any(len(line) > LINE_BYTES_MAX for line in encoded.split(b"\n")):
        raise blame("note: the text or one of its lines is too long")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _from_base64(text: str, what: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except ValueError as error:
        raise Malformed(f"{what}: not base64") from error
    if _base64(data) != text:  # spare bits that are not zero
        raise Malformed(f"{what}: not canonical base64")
    return data


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

    def _repr_html_(self) -> str:
        """In notebooks: which history it is of, and who cosigned that."""
        from tallystick.page.notebook import shown

        told = {
            "ledger": self.origin,
            "time": wire.show_time(self.time_ms),
            "transactions": f"{self.size:,}",
            "root": self.root,
            "state root": self.state_root,
            "cosigned by": ", ".join(self.cosigners) or "no witness",
        }
        return shown(f"checkpoint of height {self.height:,}", told)

    def validators(self, trust: TrustFile) -> tuple[str, ...]:
        """Those whose signatures it has, each by the identifier of its key; nobody where one key alone signs."""
        if len(trust.ledger_keys) == 1:
            return ()
        ledger = ledger_verifiers(trust)
        return tuple(one.key_id.hex() for one in _signers(Note.decode(self.note).verify(ledger), ledger))

    def vouched_by(self, trust: TrustFile) -> str:
        """Who stands for this history, in words. `trust` is the file under which it was accepted."""
        said = [f"witnesses cosigned this history: {', '.join(self.cosigners)}"] if self.cosigners else []
        if validators := self.validators(trust):
            found = f"{len(validators)} of {len(trust.ledger_keys)} validators signed this history"
            said.insert(0, f"{found}, {trust.ledger_threshold} must: {', '.join(validators)}")
        return "; ".join(said) or "the operator alone vouches for this history: no witness cosigned it"

    def statements(self, trust: TrustFile) -> tuple[str, ...]:
        """What it shows by itself, in words."""
        time = f"block time {wire.show_time(self.time_ms)}, {self.time_ms} ms"
        return (
            f"at height {self.height} ({time}) the ledger had {self.size} transactions under root {self.root.hex()},"
            f" and the state under root {self.state_root.hex()}",
            self.vouched_by(trust),
        )

    def not_proven(self, trust: TrustFile) -> tuple[str, ...]:
        """What it does not show, in words."""
        return (
            "that it is the newest: an older checkpoint holds as well",
            "that it continues one that you accepted before: only a proof of consistency shows that",
            "what the transactions and the state say: only their roots are named",
            *not_witnessed(self.cosigners, self.validators(trust)),
        )


def not_witnessed(cosigners: Sequence[str], validators: Sequence[str]) -> tuple[str, ...]:
    """What is not proved of a history that these signed: nothing is missing where a witness did."""
    who = "validators" if validators else "operator"
    gap = f"that the {who} showed everybody the same history: no witness cosigned the checkpoint"
    return () if cosigners else (gap,)


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
    """The checkpoint in `note`. Raises `Malformed`, or `Forged` where the trust file asks for more signatures."""
    parsed = Note.decode(note)
    checkpoint = Checkpoint.decode(parsed.text)
    if checkpoint.origin != trust.origin:
        raise Forged(f"checkpoint: origin {trust.origin} expected, found {checkpoint.origin}", reason="wrong-instance")
    ledger, witnesses = ledger_verifiers(trust), witness_verifiers(trust)
    signed = parsed.verify([*ledger, *witnesses])
    found = len(_signers(signed, ledger))
    if found < trust.ledger_threshold:
        trouble = f"checkpoint: {trust.ledger_threshold} ledger signatures expected, found {found}"
        raise Forged(trouble, hint=_OTHER)
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
    if not _DECIMAL.fullmatch(text) or int(text) > TIME_MAX:
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
