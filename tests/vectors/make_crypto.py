"""Writes crypto.json beside itself: `python tests/vectors/make_crypto.py`.

Everything is a function of the seeds below, except what the library randomises (a sealed HPKE message, the ML-DSA
half of a root signature): those are kept from the file that is there, so that a second run changes nothing. Each
vector that must fail names the error it must raise.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.crypto import blocks, hpke, merkle, shamir, symmetric
from tallystick.crypto.merkle_map import MerkleMap
from tallystick.crypto.passphrase import Cost, lock_secret
from tallystick.crypto.signatures import RootKey, SigningKey

PATH = Path(__file__).parent / "crypto.json"
KEY = bytes(range(32))
CONTEXT = "tallystick vectors 1"


def main() -> None:
    old = json.loads(PATH.read_text()) if PATH.exists() else {}
    made = {
        "kdf": kdf_vectors(),
        "aead": aead_vectors(),
        "hpke": hpke_vectors(old.get("hpke", {})),
        "signatures": signature_vectors(old.get("signatures", {})),
        "passphrase": passphrase_vectors(),
        "merkle": merkle_vectors(),
        "blocks": block_vectors(),
        "map": map_vectors(),
        "shamir": shamir_vectors(),
    }
    PATH.write_text(json.dumps(made, indent=1) + "\n")


def kdf_vectors() -> Any:
    contexts: list[list[bytes | int]] = [[], [b"parcel", 7], [b""], [0, 2**40, b"\xff" * 16]]
    return [
        {
            "label": label,
            "context": [part if isinstance(part, int) else part.hex() for part in context],
            "key": KEY.hex(),
            "derived": symmetric.derive(KEY, label, *context).hex(),
        }
        for label in ("tallystick body key 1", "tallystick token 1")
        for context in contexts
    ]


def aead_vectors() -> Any:
    plaintext, aad, entropy = b"rows of one batch", b"header", b"\x05" * 32
    wrapped = symmetric.wrap(KEY, plaintext, aad, entropy)
    first_key, second_key, ambiguous = two_keys_one_ciphertext()
    return {
        "key": KEY.hex(),
        "plaintext": plaintext.hex(),
        "aad": aad.hex(),
        "entropy": entropy.hex(),
        "encrypted": symmetric.encrypt(KEY, plaintext, aad).hex(),
        "wrapped": wrapped.hex(),
        "wrapped_bad": [
            {"wrapped": text, "error": "CannotOpen"}
            for text in ("", wrapped[:47].hex(), wrapped[:-1].hex(), (wrapped[:-1] + b"\x00").hex(), bytes(65).hex())
        ],
        # GCM does not commit to its key: this opens under both, to different plaintexts.
        "two_keys": {"keys": [first_key.hex(), second_key.hex()], "ciphertext": ambiguous.hex()},
    }


def hpke_vectors(old: Any) -> Any:
    private = hpke.PrivateKey.decode(KEY)
    sealed = old.get("sealed") or hpke.seal(private.public, b"lane key", b"lock").hex()
    return {
        "seed": KEY.hex(),
        "public": private.public.encode().hex(),
        "entropy": "07" * 40,
        "generated_seed": hpke.PrivateKey.generate(b"\x07" * 40).encode().hex(),
        "info": b"lock".hex(),
        "plaintext": b"lane key".hex(),
        "sealed": sealed,
        "public_bad": [
            {"public": text, "error": "Malformed"}
            for text in ("", private.public.encode().hex()[:-2], private.public.encode().hex()[:-64] + "00" * 32)
        ],
    }


def signature_vectors(old: Any) -> Any:
    key, root, message = SigningKey.from_seed(KEY), RootKey.from_seed(KEY), b"message"
    signature = key.sign(CONTEXT, message).hex()
    root_signature = old.get("root_signature") or root.sign(CONTEXT, message).hex()
    return {
        "seed": KEY.hex(),
        "public": key.public.raw.hex(),
        "context": CONTEXT,
        "message": message.hex(),
        "signature": signature,
        "raw_signature": key.sign_raw(message).hex(),
        "signature_bad": [
            {"context": "tallystick vectors 2", "signature": signature, "error": "Forged"},
            {"context": CONTEXT, "signature": signature[:-2], "error": "Forged"},
            {"context": CONTEXT, "signature": key.sign_raw(message).hex(), "error": "Forged"},
        ],
        "public_bad": [
            {"public": text, "error": "Malformed"} for text in ("", "01" + "00" * 31, "00" * 31 + "80", "11" * 31)
        ],
        "root_public": root.public.raw.hex(),
        "root_signature": root_signature,
        "root_signature_bad": [
            {"signature": signature + root_signature[128:], "error": "Forged"},
            {"signature": root_signature[:128] + "00" * 3309, "error": "Forged"},
            {"signature": root_signature[:128], "error": "Forged"},
        ],
    }


def passphrase_vectors() -> Any:
    locked = lock_secret(b"master", b"open sesame", b"\x06" * 32, Cost(memory_kib=64, iterations=2, lanes=1))
    return {
        "passphrase": b"open sesame".hex(),
        "secret": b"master".hex(),
        "locked": locked.hex(),
        "bad": [
            {"locked": locked.hex(), "passphrase": b"open barley".hex(), "error": "CannotOpen"},
            {"locked": locked[:-1].hex(), "passphrase": b"open sesame".hex(), "error": "Malformed"},
        ],
    }


def merkle_vectors() -> Any:
    leaves = [hashlib.sha256(b"%d" % number).digest() for number in range(13)]
    tree = merkle.Tree([merkle.leaf_hash(leaf) for leaf in leaves])
    frontier = merkle.Frontier()
    for number in range(13):
        frontier.append(tree.leaf(number))
    return {
        "leaf_data": [leaf.hex() for leaf in leaves],
        "roots": [tree.root(size).hex() for size in range(14)],
        "frontier": frontier.encode().hex(),
        "inclusion": [
            {"index": index, "size": size, "proof": hexes(tree.inclusion(index, size))}
            for index, size in ((0, 1), (0, 13), (5, 8), (12, 13), (6, 7))
        ],
        "consistency": [
            {"old": old, "new": new, "proof": hexes(tree.consistency(old, new))}
            for old, new in ((0, 13), (1, 13), (4, 8), (6, 13), (7, 12), (13, 13))
        ],
        "range": [
            {"first": first, "end": end, "size": size, "proof": hexes(tree.range_proof(first, end, size))}
            for first, end, size in ((0, 13, 13), (3, 9, 13), (5, 6, 13), (0, 1, 2), (7, 11, 12))
        ],
    }


def block_vectors() -> Any:
    body = bytes(blake3(b"body").digest(length=3 * blocks.BLOCK_BYTES + 5))
    hashes = blocks.block_hashes(body)
    return {
        "body": "the first `length` bytes of BLAKE3's extended output over the ASCII word body",
        "roots": [
            {"length": length, "root": blocks.body_root(body[:length]).hex()}
            for length in (0, 1, 16383, 16384, 16385, 32768, 49157)
        ],
        "proofs": [{"index": index, "proof": hexes(blocks.block_proof(hashes, index))} for index in range(4)],
    }


def map_vectors() -> Any:
    state = MerkleMap({})
    steps = []
    for changes in (
        {b"a": b"1"},
        {b"b": b"2", b"c": b"3"},
        {b"%d" % number: b"x" for number in range(20)},
        {b"a": None, b"b": b"4"},
    ):
        root = state.update(changes).root
        listed = {key.hex(): None if value is None else value.hex() for key, value in changes.items()}
        steps.append({"changes": listed, "root": root.hex()})
    proofs = [
        {"key": key.hex(), "value": value and value.hex(), "proof": state.prove(key).hex()}
        for key, value in ((b"b", b"4"), (b"7", b"x"), (b"a", None), (b"absent", None), (b"nowhere", None))
    ]
    return {"steps": steps, "proofs": proofs}


def shamir_vectors() -> Any:
    secret = b"sixteen or more bytes"
    return [
        {
            "secret": secret.hex(),
            "need": need,
            "entropy": KEY.hex(),
            "shares": {index: share.hex() for index, share in shamir.split(secret, need, count, KEY).items()},
        }
        for need, count in ((1, 2), (2, 3), (3, 5))
    ]


def hexes(proof: list[bytes]) -> list[str]:
    return [node.hex() for node in proof]


def two_keys_one_ciphertext() -> tuple[bytes, bytes, bytes]:
    """One block that authenticates under two keys: with one block the tag is C·H² + L·H + E(J0), linear in C."""
    keys = (b"\x01" * 32, b"\x02" * 32)
    h = [field(block(key, bytes(16))) for key in keys]
    mask = [field(block(key, bytes(15) + b"\x01")) for key in keys]
    length = field(bytes(8) + (128).to_bytes(8, "big"))
    numerator = times(length, h[0] ^ h[1]) ^ mask[0] ^ mask[1]
    c = times(numerator, inverse(times(h[0], h[0]) ^ times(h[1], h[1])))
    tag = times(c, times(h[0], h[0])) ^ times(length, h[0]) ^ mask[0]
    return *keys, c.to_bytes(16, "big") + tag.to_bytes(16, "big")


def block(key: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(data)


def field(data: bytes) -> int:
    return int.from_bytes(data, "big")


def times(left: int, right: int) -> int:
    """Multiplication in GCM's field, bits reversed (NIST SP 800-38D, algorithm 1)."""
    product = 0
    for bit in range(127, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (0xE1 << 120 if right & 1 else 0)
    return product


def inverse(value: int) -> int:
    """value ** (2**128 - 2)."""
    result = 1 << 127
    for bit in range(127, -1, -1):
        result = times(result, result)
        if bit:
            result = times(result, value)
    return result


if __name__ == "__main__":
    main()
