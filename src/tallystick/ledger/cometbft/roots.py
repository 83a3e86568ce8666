"""What a block of ours puts into CometBFT's headers: the app hash, and proofs under it that CometBFT itself checks.

    app hash = root of [ledger → root of [root → tree root, size → u64, state → state root]]

in CometBFT's tree over keys and values, which hashes as RFC 6962 does: a leaf is `varint(len) ‖ key ‖ varint(32) ‖
SHA-256(value)`. Height and time are left out, so an empty block leaves the app hash as it was and CometBFT need not
make another at once to prove it. `cometbft light` verifies `prove`; from the state root on, the proofs are ours.
"""

from __future__ import annotations

from hashlib import sha256

from tallystick.abci.messages import ProofOp, ProofOps
from tallystick.abci.protobuf import Message, int64, nested, octets, write_varint
from tallystick.crypto import merkle
from tallystick.crypto.merkle import Tree
from tallystick.errors import Misuse
from tallystick.ledger.block import Block

STORE = b"ledger"


class _Proof(Message):
    total: int = int64(1)
    index: int = int64(2)
    leaf_hash: bytes = octets(3)
    aunts: tuple[bytes, ...] = octets(4, repeated=True)


class _ValueOp(Message):
    key: bytes = octets(1)
    proof: _Proof | None = nested(2, _Proof)


def app_hash(size: int, root: bytes, state_root: bytes) -> bytes:
    return _leaf(STORE, _tree(_values(size, root, state_root)).root())


def app_hash_of(block: Block) -> bytes:
    return app_hash(block.size, block.root, block.state_root)


def value_of(block: Block, name: bytes) -> bytes:
    """What `name` stands for in this block."""
    values = _values(block.size, block.root, block.state_root)
    if name not in values:
        raise Misuse(f"{name!r}: a header commits to root, size and state")
    return values[name]


def prove(block: Block, name: bytes) -> ProofOps:
    """That the value of `name` stands under the app hash of `block`; path `/store/ledger/key`."""
    values = _values(block.size, block.root, block.state_root)
    inner = _tree(values)
    return ProofOps((_value_op(name, inner, [*values].index(name)), _value_op(STORE, _tree({STORE: inner.root()}), 0)))


def _values(size: int, root: bytes, state_root: bytes) -> dict[bytes, bytes]:
    """What a header commits to, in order."""
    return {b"root": root, b"size": size.to_bytes(8, "big"), b"state": state_root}


def _tree(values: dict[bytes, bytes]) -> Tree:
    return Tree([_leaf(name, value) for name, value in values.items()])


def _leaf(key: bytes, value: bytes) -> bytes:
    return merkle.leaf_hash(write_varint(len(key)) + key + write_varint(32) + sha256(value).digest())


def _value_op(key: bytes, tree: Tree, index: int) -> ProofOp:
    proof = _Proof(tree.size, index, tree.leaf(index), tuple(tree.inclusion(index, tree.size)))
    return ProofOp("simple:v", key, _ValueOp(key, proof).encode())
