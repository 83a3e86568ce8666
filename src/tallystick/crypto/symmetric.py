"""What is done with a secret of 32 bytes: deriving others from it, and encrypting under it; and hashes under names.

Derivation is HKDF-SHA256 (RFC 5869), under labels that all stand in one place. Threat: two uses of one key that derive
the same bytes, as in EventGuard, where an undo token and a topic key come from the same keyed hash and whoever may name
a topic obtains another's undo token. Invariant: every use has its own label, and the info of a derivation is the
deterministic encoding of the array `[label, *context]`, so that no two different (label, context) pairs give the same
info. A label that is not in `LABELS` is a `Misuse`: nobody can invent one in passing. Left out: outputs longer than one
hash; who needs more derives twice with a counter.

A named hash is SHA-256 with the kind of thing in front, so that no hash of one kind passes for another.

Encryption is AES-256-GCM in three forms: a key that serves once, a key that wraps often, and a key of numbered chunks.
Threat: two messages under one key and nonce give away their difference and the authentication key. `encrypt` has no
nonce to choose (it is zero) and its key must serve **once**; the caller derives it from something that never repeats.
`wrap` is for keys that serve often: each call derives a one-time key through a 32-byte salt that is itself derived from
the entropy, the associated data *and* the plaintext, so that a repeated random state repeats a key only for the same
message, and then repeats the same bytes. `NumberedCipher` is for the chunks of one large object: the number of the
chunk is the nonce, and whoever seals cannot use a number twice. Its key belongs to one object, drawn from entropy and
from all of the object's bytes. Left out: key commitment. GCM can be made to open one ciphertext under two keys; where
that matters (parcels) a commitment stands beside the ciphertext, and beside a chunk the keyed hash of what is inside.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from hashlib import sha256, shake_256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallystick import wire
from tallystick.errors import CannotOpen, Misuse


def named_hash(name: str, data: bytes) -> bytes:
    """SHA-256(name ‖ 0x00 ‖ data); `name` is ASCII without a zero byte, so no two (name, data) collide."""
    return sha256(name.encode("ascii") + b"\x00" + data).digest()


KEY_BYTES = 32

LABELS: dict[str, str] = {
    "tallystick lane key 1": "the lane key of a column group, from the secrets of its locks",
    "tallystick body key 1": "the one-time key of a parcel's body section, from the lane key",
    "tallystick salt key 1": "the key of a parcel's leaf salts, from the lane key",
    "tallystick commitment 1": "the commitment to the body key that stands in the header",
    "tallystick identifier 1": "a parcel's identifier, from entropy, publisher's secret and plaintext",
    "tallystick fingerprint key 1": "the key of the frames' fingerprints, from the publisher's identifier secret",
    "tallystick identifier secret 1": "the publisher's secret that identifiers mix in",
    "tallystick token 1": "a topic's token, from the authority's token key",
    "tallystick topic word 1": "the word that a bound topic's token is the hash of, from the authority's token key",
    "tallystick undo subscribe 1": "the undo token of a subscribe permit",
    "tallystick undo advertise 1": "the undo token of an advertise permit",
    "tallystick rekey challenge 1": "what a principal's new sealing key opens, from the authority's wrap key",
    "tallystick hidden policy 1": "the key that hides a publisher's own policy, from the topic lock's secret",
    "tallystick spool key 1": "the key under which a publisher's spool keeps lane keys",
    "tallystick topic key wrap 1": "the wrapping of a topic's private key under the authority's master key",
    "tallystick schema key 1": "the key that seals a schema's text",
    "tallystick master label 1": "the authority's key of label keys, from its master key",
    "tallystick label key 1": "the key of a topic's labels in one epoch, from the authority's key of them",
    "tallystick label 1": "the pseudonym of a subspace, from the label key of topic and epoch",
    "tallystick master undo 1": "the authority's key of undo tokens, from its master key",
    "tallystick master token 1": "the authority's key of topic tokens, from its master key",
    "tallystick master operator 1": "the key that signs the operator's requests, from the authority's master key",
    "tallystick master attribute 1": "the authority's key of everything about attributes, from its master key",
    "tallystick attribute authority 1": "the seed of the attribute authority, from the authority's attribute key",
    "tallystick attribute pseudonym 1": "what stands on the ledger for a principal's attribute",
    "tallystick attribute wrap 1": "the wrapping of names, values and formulas in the authority's store",
    "tallystick topic policy seed 1": "the seed of a topic policy's key pair, from the authority's attribute key",
    "tallystick topic policy capsule 1": "the entropy of a topic policy's capsule, from the authority's attribute key",
    "tallystick master wrap 1": "the authority's key for wrapping topic keys, from its master key",
    "tallystick wrap salt 1": "the salt in front of a wrapped secret, from entropy, context and plaintext",
    "tallystick one-time key 1": "the one-time key of a wrapped secret, from the key that wraps and the salt",
    "tallystick hpke seed 1": "the halves of an HPKE private key, from its seed",
    "tallystick root key 1": "the halves of a root signing key, from its seed",
    "tallystick abe master 1": "the secret exponent of an attribute authority, from its seed",
    "tallystick attribute key 1": "the randomness that binds an attribute key together, from the authority's seed",
    "tallystick abe capsule 1": "the seed of a capsule's scalars, from entropy and everything the capsule says",
    "tallystick abe secret 1": "the secret of a capsule, from the target group's element",
    "tallystick share split 1": "the share secret's scalars, from the publisher's entropy",
    "tallystick redistribution 1": "a relay's polynomials for one lineage and branch, from its erasable secret",
    "tallystick share secret 1": "the secret of a share lock, from the scalar that relays redistribute",
    "tallystick share commitment 1": "the commitment to a share lock's secret, from the secret",
    "tallystick link key 1": "the seed of the key of a relay's links, from its signing key",
    "tallystick master mesh 1": "the authority's key of everything about the mesh, from its master key",
    "tallystick mesh root 1": "the authority's root of mesh keys, from its key of the mesh",
    "tallystick mesh authority 1": "the seed of the key that signs the mesh's certificates, from the key of the mesh",
    "tallystick mesh moments 1": "what a principal's own moments to ask about the mesh come from, its signing seed",
    "tallystick mesh lasting 1": "the seed of the lasting key of a principal's node, from its signing seed",
    "tallystick mesh key 1": "a topic's mesh key of one epoch, from the authority's root of mesh keys",
    "tallystick mesh pseudonym 1": "the pseudonym of a topic on the mesh, from its mesh key",
    "tallystick mesh publisher 1": "the seed of a publisher's key under a pseudonym, from the key of the mesh",
    "tallystick mesh chain 1": "the hash chain of a publisher's advertisement, from the seed of its key of the epoch",
    "tallystick mesh chain part 1": "the beginning, length and undo value of a hash chain, from its seed",
    "tallystick mesh files 1": "what wraps a mesh node's kit and view on its disk, from its signing seed",
    "tallystick mesh knock 1": "the one-time keys of a knock, from what its sender and receiver agree on",
    "tallystick mesh link 1": "the key of one direction of a link of the mesh, from what both ends agree on",
    "tallystick fabric key 1": "a topic's carrier key on the fabric, from its mesh key",
    "tallystick fabric handle 1": "the handle of a parcel on the fabric, from entropy and all its fragments",
    "tallystick fabric fragment 1": "the one-time key of a fragment, from the carrier key, kind, handle and index",
    "tallystick fabric flow 1": "the identifier of a flow or subscription, from the dispatcher's secret",
    "tallystick fabric sealing 1": "the seed of a dispatcher's sealing key, from its signing seed",
    "tallystick fabric host answers 1": "the seed of the key for answers to a host, from its signing seed",
    "tallystick fabric secret 1": "a dispatcher's secret of identifiers, from its signing seed",
    "tallystick route label 1": "what a flow is called at a switch of the fabric, from the fabric's key",
    "tallystick probe 1": "the tag of a probe through the fabric, from the fabric's key",
    "tallystick object key 1": "the key of a large object, from a secret, entropy, all its bytes and how it is cut",
    "tallystick chunk key 1": "the key that seals the chunks of an object, from the object's key",
    "tallystick chunk hash 1": "the key of the hashes of an object's plain chunks, from the object's key",
    "tallystick passphrase 1": "the key that wraps a secret at rest, from the stretched passphrase",
}


def derive(key: bytes, label: str, *context: bytes | int) -> bytes:
    """HKDF-Expand: 32 bytes for the one use that `label` names, bound to `context`."""
    if label not in LABELS:
        raise Misuse(
            f'derivation label "{label}" is not registered', hint="add it to tallystick.crypto.symmetric.LABELS"
        )
    if len(key) < KEY_BYTES:
        raise Misuse(f"derivation key: expected at least {KEY_BYTES} bytes, found {len(key)}")
    # The first block of RFC 5869, section 2.3; 32 bytes need no second one.
    return hmac.digest(key, wire.encode([label, *context]) + b"\x01", "sha256")


def extract(salt: bytes, secret: bytes) -> bytes:
    """HKDF-Extract: a uniform 32-byte key from a secret that need not be uniform."""
    return hmac.digest(salt, secret, "sha256")


def uniform(seed: bytes, order: int) -> Iterator[int]:
    """Numbers below `order` without end: 48 bytes of SHAKE-256 each (below 2**256 the bias is below 2**-128)."""
    block = 0
    while True:
        stream = shake_256(seed + block.to_bytes(4, "little")).digest(48 * 64)
        for start in range(0, len(stream), 48):
            yield int.from_bytes(stream[start : start + 48], "little") % order
        block += 1


TAG_BYTES = 16
SALT_BYTES = 32
WRAP_BYTES = SALT_BYTES + TAG_BYTES  # what `wrap` adds to a plaintext

Buffer = bytes | bytearray | memoryview

_NONCE = bytes(12)


def encrypt(key: bytes, plaintext: Buffer, aad: Buffer = b"") -> bytes:
    """Ciphertext and tag. The key must never be used again."""
    return _cipher(key).encrypt(_NONCE, plaintext, aad)


def decrypt(key: bytes, ciphertext: Buffer, aad: Buffer = b"") -> bytes:
    """The plaintext. Raises `CannotOpen`."""
    try:
        return _cipher(key).decrypt(_NONCE, ciphertext, aad)
    except InvalidTag:
        raise CannotOpen from None


def encrypt_into(key: bytes, plaintext: Buffer, buffer: bytearray | memoryview, aad: Buffer = b"") -> int:
    """As `encrypt`, into a buffer of exactly `len(plaintext) + TAG_BYTES`; the number of bytes written."""
    _check_buffer(buffer, len(plaintext) + TAG_BYTES)
    return _cipher(key).encrypt_into(_NONCE, plaintext, aad, buffer)


def decrypt_into(key: bytes, ciphertext: Buffer, buffer: bytearray | memoryview, aad: Buffer = b"") -> int:
    """As `decrypt`, into a buffer of exactly `len(ciphertext) - TAG_BYTES`, worthless if this raises."""
    if len(ciphertext) < TAG_BYTES:
        raise CannotOpen
    _check_buffer(buffer, len(ciphertext) - TAG_BYTES)
    try:
        return _cipher(key).decrypt_into(_NONCE, ciphertext, aad, buffer)
    except InvalidTag:
        raise CannotOpen from None


def fingerprint(key: bytes, data: Buffer) -> bytes:
    """16 bytes that two different data share with a chance of their length / 2**128, for whoever lacks the key: GMAC.

    Unlike a hash it protects from nobody who has the key, and unlike a tag it must never be shown, since its nonce
    repeats: it may only enter a derivation. Its worth is that it is ten times as fast as a hash.
    """
    return _cipher(key).encrypt(_NONCE, b"", data)


def wrap(key: bytes, plaintext: bytes, aad: bytes, entropy: bytes) -> bytes:
    """Salt and ciphertext under a one-time key; `key` may wrap as often as it likes."""
    if len(entropy) < SALT_BYTES:
        raise Misuse(f"wrapping needs {SALT_BYTES} bytes of entropy, found {len(entropy)}")
    salt = derive(key, "tallystick wrap salt 1", entropy, aad, sha256(plaintext).digest())
    return salt + encrypt(derive(key, "tallystick one-time key 1", salt), plaintext, aad)


def unwrap(key: bytes, wrapped: bytes, aad: bytes) -> bytes:
    """What was wrapped under the same key and associated data. Raises `CannotOpen`."""
    if len(wrapped) < WRAP_BYTES:
        raise CannotOpen
    return decrypt(derive(key, "tallystick one-time key 1", wrapped[:SALT_BYTES]), wrapped[SALT_BYTES:], aad)


NUMBER_MAX = (1 << 32) - 1  # of chunks under one key: GCM's own bound on messages


class NumberedCipher:
    """The chunks of one object under one key, each with its number as the nonce."""

    def __init__(self, key: bytes) -> None:
        self._aead, self._next = _cipher(key), 0

    def seal(self, number: int, plaintext: Buffer) -> bytes:
        """Ciphertext and tag. Numbers go up: one that was used, or lies below one that was, is a `Misuse`."""
        if number < self._next:
            raise Misuse(f"chunk {number} after chunk {self._next - 1}: a number serves once, in rising order")
        nonce = _numbered(number)
        self._next = number + 1
        return self._aead.encrypt(nonce, plaintext, None)

    def open(self, number: int, sealed: Buffer) -> bytes:
        """The plaintext. Raises `CannotOpen`."""
        try:
            return self._aead.decrypt(_numbered(number), sealed, None)
        except InvalidTag:
            raise CannotOpen from None


def _numbered(number: int) -> bytes:
    if not 0 <= number <= NUMBER_MAX:
        raise Misuse(f"chunk {number}: expected a number from 0 to {NUMBER_MAX}")
    return number.to_bytes(12, "big")


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:  # AESGCM itself would take AES-128 and AES-192 keys
        raise Misuse(f"AEAD key: expected {KEY_BYTES} bytes, found {len(key)}")
    return AESGCM(key)


def _check_buffer(buffer: bytearray | memoryview, expected: int) -> None:
    if len(buffer) != expected:
        raise Misuse(f"AEAD buffer: expected {expected} bytes, found {len(buffer)}")
