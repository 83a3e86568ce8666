"""The trust file: what a client believes before it has spoken to anyone.

It lists the root keys with a threshold, the ledger's checkpoint keys, and the witnesses with their quorum. The
first trust file names the instance: `instance` is the hash of its content, so parcels, permits and certificates of
staging mean nothing in production. A later file replaces it only if the threshold of the old one signed it; the
instance stays. Root signatures are hybrid (Ed25519 and ML-DSA-65), since this trust must outlive one assumption.

The file is JSON for people; what is signed is the wire encoding of the same fields.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from tallystick import wire
from tallystick.crypto.signatures import RootKey, RootVerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.trust.notes import Algorithm, NoteVerifier
from tallystick.wire import Fields

CONTEXT = "tallystick trust file 1"
FORMAT = "tallystick trust file 1"
BYTES_MAX = 256 * 1024
KEYS_MAX = 32
NAME_MAX = 256
NUMBER_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class TrustFile:
    number: int  # 1 for the first
    first: bytes  # the instance, empty in the first file
    name: str
    roots: tuple[bytes, ...]  # raw hybrid keys
    threshold: int
    ledger_keys: tuple[bytes, ...]  # raw Ed25519 keys that sign checkpoints
    ledger_threshold: int
    witnesses: tuple[str, ...]  # C2SP verifier keys
    quorum: int
    signatures: tuple[tuple[int, bytes], ...] = ()  # (index of the root key, signature)

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= len(self.roots) <= KEYS_MAX:
            raise Malformed(f"trust file: threshold {self.threshold} of {len(self.roots)} root keys makes no sense")
        if not 1 <= self.ledger_threshold <= len(self.ledger_keys) <= KEYS_MAX:
            raise Malformed("trust file: threshold of ledger keys out of range")
        if not 0 <= self.quorum <= len(self.witnesses) <= KEYS_MAX:
            raise Malformed(f"trust file: quorum {self.quorum} of {len(self.witnesses)} witnesses makes no sense")
        if len(set(self.roots)) != len(self.roots) or len(set(self.ledger_keys)) != len(self.ledger_keys):
            raise Malformed("trust file: a key is listed twice")
        if (self.number == 1) != (self.first == b"") or len(self.first) not in (0, 32):
            raise Malformed("trust file: every file but the first names the instance, the first does not")
        if not 1 <= self.number <= NUMBER_MAX or len(self.name) > NAME_MAX or not self.name.isprintable():
            raise Malformed(f"trust file: expected a number from 1 and a printable name of at most {NAME_MAX} letters")
        self._check_witnesses()

    def _check_witnesses(self) -> None:
        """A quorum is of different parties, none of them the operator."""
        verifiers = [NoteVerifier.decode(text) for text in self.witnesses]
        if any(verifier.algorithm is not Algorithm.COSIGNATURE_V1 for verifier in verifiers):
            raise Malformed("trust file: a witness has a key for cosignatures (kind 04)")
        keys = [verifier.key.raw for verifier in verifiers]
        if len(set(keys)) != len(keys) or set(keys) & set(self.ledger_keys):
            raise Malformed("trust file: a witness is listed twice, or is the ledger itself")

    @cached_property
    def content(self) -> bytes:
        """What is signed: the version, and every field but the signatures."""
        return wire.encode([1, *(getattr(self, one.name) for one in fields(self) if one.name != "signatures")])

    @cached_property
    def instance(self) -> bytes:
        """32 bytes that name this instance for ever."""
        return self.first or named_hash("tallystick instance 1", self.content)

    @cached_property
    def origin(self) -> str:
        """The origin line of this instance's checkpoints."""
        return f"tallystick/{self.instance.hex()}"

    def sign(self, *keys: RootKey) -> TrustFile:
        """The file with these root keys' signatures added."""
        added = []
        for key in keys:
            if key.public.raw not in self.roots:
                raise Misuse("trust file: the signing key is not one of its roots")
            added.append((self.roots.index(key.public.raw), key.sign(CONTEXT, self.content)))
        return replace(self, signatures=tuple(sorted({**dict(self.signatures), **dict(added)}.items())))

    def verify(self) -> None:
        """Raise `Forged` unless its own threshold of root keys signed it."""
        self._check_threshold(dict(self.signatures), self.content)

    def check_successor(self, new: TrustFile, signatures_of_old: dict[int, bytes] | None = None) -> None:
        """Raise `Forged` unless `new` may replace this file: next number, same instance, signed by the old
        threshold (by position in the old list; by default the signatures of keys that both files list) and its own.
        """
        if new.number != self.number + 1 or new.instance != self.instance:
            raise Forged(f"trust file: number {self.number + 1} of the same instance expected")
        if signatures_of_old is None:
            by_key = {new.roots[i]: signature for i, signature in new.signatures}
            signatures_of_old = {i: by_key[key] for i, key in enumerate(self.roots) if key in by_key}
        self._check_threshold(signatures_of_old, new.content)
        new.verify()

    def _check_threshold(self, signatures: dict[int, bytes], content: bytes, context: str = CONTEXT) -> None:
        for index, signature in signatures.items():
            if not 0 <= index < len(self.roots):
                raise Forged("trust file: a signature names a root key that is not listed")
            RootVerifyKey(self.roots[index]).verify(context, signature, content)
        if len(signatures) < self.threshold:
            raise Forged(f"trust file: {self.threshold} root signatures expected, found {len(signatures)}")

    def root_signer(self, *keys: RootKey) -> RootSigner:
        """Signs certificates in the name of the root, with these of its keys."""
        return RootSigner(self, keys)

    @property
    def root_verifier(self) -> RootSigner:
        """Verifies what a `root_signer` signed: the threshold of root keys must stand under it."""
        return RootSigner(self, ())

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "number": self.number,
                "instance": self.instance.hex(),
                "name": self.name,
                "roots": {"threshold": self.threshold, "keys": [_b64(key) for key in self.roots]},
                "ledger": {"threshold": self.ledger_threshold, "keys": [_b64(key) for key in self.ledger_keys]},
                "witnesses": {"quorum": self.quorum, "keys": list(self.witnesses)},
                "signatures": [{"root": index, "signature": _b64(sig)} for index, sig in self.signatures],
            },
            indent=1,
        )

    @classmethod
    def parse(cls, text: str | bytes) -> TrustFile:
        """Read and verify a trust file; the caller compares `instance` with what it was told, if it was."""
        if len(text) > BYTES_MAX:
            raise Malformed(f"trust file: more than {BYTES_MAX} bytes")
        try:
            data: dict[str, Any] = json.loads(text)
            if data["format"] != FORMAT:
                raise Malformed(f'trust file: format "{FORMAT}" expected, found {data["format"]!r}', reason="version")
            number = _integer(data["number"])
            claimed = bytes.fromhex(data["instance"])
            trust = cls(
                number=number,
                first=b"" if number == 1 else claimed,
                name=str(data["name"]),
                roots=tuple(_unb64(key) for key in data["roots"]["keys"]),
                threshold=_integer(data["roots"]["threshold"]),
                ledger_keys=tuple(_unb64(key) for key in data["ledger"]["keys"]),
                ledger_threshold=_integer(data["ledger"]["threshold"]),
                witnesses=tuple(str(key) for key in data["witnesses"]["keys"]),
                quorum=_integer(data["witnesses"]["quorum"]),
                signatures=tuple((_integer(s["root"]), _unb64(s["signature"])) for s in data["signatures"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise Malformed("trust file: not the JSON of a trust file") from error
        if trust.instance != claimed:
            raise Forged("trust file: it names an instance that its content does not hash to")
        trust.verify()
        return trust


@dataclass(frozen=True)
class RootSigner:
    """The root as a signer and verifier: its signature is wire [[index of the root key, signature], …]."""

    trust: TrustFile
    keys: tuple[RootKey, ...]

    def sign(self, context: str, message: bytes) -> bytes:
        indexed = {self.trust.roots.index(key.public.raw): key for key in self.keys}
        return wire.encode([[index, indexed[index].sign(context, message)] for index in sorted(indexed)])

    def verify(self, context: str, signature: bytes, message: bytes) -> None:
        parts = wire.decode(signature, "root signature")
        if not isinstance(parts, list) or len(parts) > KEYS_MAX:
            raise Malformed(f"root signature: expected at most {KEYS_MAX} pairs of index and signature")
        pairs = [Fields(part, "root signature", 2) for part in parts]
        signatures = {pair.number(KEYS_MAX - 1): pair.octets() for pair in pairs}
        if list(signatures) != sorted(signatures) or len(signatures) != len(parts):
            raise Malformed("root signature: indices are sorted and differ")
        self.trust._check_threshold(signatures, message, context)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unb64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _integer(value: object) -> int:
    """As JSON writes integers, and in no other form: what is signed must have one reading."""
    if type(value) is not int:
        raise TypeError(f"an integer expected, found {value!r}")
    return value
