"""The committed vectors of crypto/, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from tallystick import errors
from tallystick.crypto import blocks, hpke, merkle, shamir, symmetric
from tallystick.crypto.merkle_map import MerkleMap, verify_map
from tallystick.crypto.passphrase import unlock_secret
from tallystick.crypto.signatures import RootKey, RootVerifyKey, SigningKey, VerifyKey

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "crypto.json").read_text())
unhex = bytes.fromhex


def unhexed(proof: list[str]) -> list[bytes]:
    return [unhex(node) for node in proof]


def failing(vector: Any) -> Any:
    return pytest.raises(getattr(errors, vector["error"]))


def test_kdf() -> None:
    for vector in VECTORS["kdf"]:
        context = [part if isinstance(part, int) else unhex(part) for part in vector["context"]]
        assert symmetric.derive(unhex(vector["key"]), vector["label"], *context).hex() == vector["derived"]


def test_aead() -> None:
    vector = VECTORS["aead"]
    key, plaintext, aad = unhex(vector["key"]), unhex(vector["plaintext"]), unhex(vector["aad"])
    assert symmetric.encrypt(key, plaintext, aad).hex() == vector["encrypted"]
    assert symmetric.decrypt(key, unhex(vector["encrypted"]), aad) == plaintext
    assert symmetric.wrap(key, plaintext, aad, unhex(vector["entropy"])).hex() == vector["wrapped"]
    assert symmetric.unwrap(key, unhex(vector["wrapped"]), aad) == plaintext
    for bad in vector["wrapped_bad"]:
        with failing(bad):
            symmetric.unwrap(key, unhex(bad["wrapped"]), aad)


def test_one_ciphertext_opens_under_two_keys() -> None:
    # Why a commitment to the key stands beside a parcel's body.
    vector = VECTORS["aead"]["two_keys"]
    opened = {symmetric.decrypt(unhex(key), unhex(vector["ciphertext"])) for key in vector["keys"]}
    assert len(opened) == 2


def test_hpke() -> None:
    vector = VECTORS["hpke"]
    private = hpke.PrivateKey.decode(unhex(vector["seed"]))
    assert private.public.encode().hex() == vector["public"]
    assert hpke.PrivateKey.generate(unhex(vector["entropy"])).encode().hex() == vector["generated_seed"]
    assert hpke.open_(private, unhex(vector["sealed"]), unhex(vector["info"])) == unhex(vector["plaintext"])
    for bad in vector["public_bad"]:
        with failing(bad):
            hpke.PublicKey.decode(unhex(bad["public"]))


def test_signatures() -> None:
    vector = VECTORS["signatures"]
    key, message, context = SigningKey.from_seed(unhex(vector["seed"])), unhex(vector["message"]), vector["context"]
    assert key.public.raw.hex() == vector["public"]
    assert key.sign(context, message).hex() == vector["signature"]
    assert key.sign_raw(message).hex() == vector["raw_signature"]
    key.public.verify(context, unhex(vector["signature"]), message)
    for bad in vector["signature_bad"]:
        with failing(bad):
            key.public.verify(bad["context"], unhex(bad["signature"]), message)
    for bad in vector["public_bad"]:
        with failing(bad):
            VerifyKey(unhex(bad["public"]))


def test_root_signatures() -> None:
    vector = VECTORS["signatures"]
    message, context = unhex(vector["message"]), vector["context"]
    assert RootKey.from_seed(unhex(vector["seed"])).public.raw.hex() == vector["root_public"]
    root = RootVerifyKey(unhex(vector["root_public"]))
    root.verify(context, unhex(vector["root_signature"]), message)
    for bad in vector["root_signature_bad"]:
        with failing(bad):
            root.verify(context, unhex(bad["signature"]), message)


def test_passphrase() -> None:
    vector = VECTORS["passphrase"]
    assert unlock_secret(unhex(vector["locked"]), unhex(vector["passphrase"])) == unhex(vector["secret"])
    for bad in vector["bad"]:
        with failing(bad):
            unlock_secret(unhex(bad["locked"]), unhex(bad["passphrase"]))


def test_merkle() -> None:
    vector = VECTORS["merkle"]
    leaves = [merkle.leaf_hash(unhex(data)) for data in vector["leaf_data"]]
    roots = unhexed(vector["roots"])
    assert [merkle.root(leaves[:size]) for size in range(len(roots))] == roots
    assert merkle.Frontier.decode(unhex(vector["frontier"])).root() == roots[-1]
    for one in vector["inclusion"]:
        index, size = one["index"], one["size"]
        merkle.verify_inclusion(leaves[index], index, size, unhexed(one["proof"]), roots[size])
    for one in vector["consistency"]:
        old, new = one["old"], one["new"]
        merkle.verify_consistency(old, roots[old], new, roots[new], unhexed(one["proof"]))
    for one in vector["range"]:
        covered = leaves[one["first"] : one["end"]]
        merkle.verify_range(covered, one["first"], one["size"], unhexed(one["proof"]), roots[one["size"]])


def test_blocks() -> None:
    vector = VECTORS["blocks"]
    longest = vector["roots"][-1]
    body = bytes(blake3(b"body").digest(length=longest["length"]))
    for one in vector["roots"]:
        assert blocks.body_root(body[: one["length"]]).hex() == one["root"]
    for one in vector["proofs"]:
        block = body[one["index"] * blocks.BLOCK_BYTES :][: blocks.BLOCK_BYTES]
        blocks.verify_block(block, one["index"], len(body), unhexed(one["proof"]), unhex(longest["root"]))


def test_map() -> None:
    vector = VECTORS["map"]
    state = MerkleMap({})
    for step in vector["steps"]:
        changes = {unhex(key): value and unhex(value) for key, value in step["changes"].items()}
        assert state.update(changes).root.hex() == step["root"]
    for one in vector["proofs"]:
        value = one["value"] and unhex(one["value"])
        assert state.prove(unhex(one["key"])).hex() == one["proof"]
        verify_map(state.root, unhex(one["key"]), value, unhex(one["proof"]))


def test_shamir() -> None:
    for vector in VECTORS["shamir"]:
        secret, need = unhex(vector["secret"]), vector["need"]
        shares = {int(index): unhex(share) for index, share in vector["shares"].items()}
        assert shamir.split(secret, need, len(shares), unhex(vector["entropy"])) == shares
        assert shamir.combine(dict(list(shares.items())[-need:])) == secret
