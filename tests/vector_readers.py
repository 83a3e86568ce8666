"""How each kind of ledger vector is read: from bytes and a trust file to what they say, in plain values."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.crypto.signatures import VerifyKey
from tallystick.ledger.block import Block, parse
from tallystick.ledger.proofs import StateProof
from tallystick.parcel.prove import verify_proof
from tallystick.trust.notes import verify_checkpoint
from tallystick.trust.receipt import EntryProof, Receipt
from tallystick.trust.trustfile import TrustFile

Vector = Mapping[str, Any]


def judge(vector: Vector, trusts: Mapping[str, TrustFile]) -> dict[str, Any]:
    """What the vector says; raises what a reader would raise."""
    return JUDGES[vector["kind"]](b64decode(vector["data"]), vector, trusts.get(vector["trust"]))


def _transaction(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    transaction = parse(data)
    transaction.verify(VerifyKey(bytes.fromhex(vector["key"])))
    return {
        "instance": transaction.instance.hex(),
        "author": transaction.author.hex(),
        "number": transaction.number,
        "entries": [entry.hex() for entry in transaction.entries],
        "leaf": transaction.leaf.hex(),
    }


def _block(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    block = Block.decode(data)
    return {
        "height": block.height,
        "time_ms": block.time_ms,
        "transactions": [block.first, block.count],
        "size": block.size,
        "root": block.root.hex(),
        "state_root": block.state_root.hex(),
        "previous": block.previous.hex(),
        "hash": block.hash.hex(),
    }


def _checkpoint(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    accepted = verify_checkpoint(data, trust)
    return {
        "size": accepted.size,
        "root": accepted.root.hex(),
        "height": accepted.height,
        "time_ms": accepted.time_ms,
        "state_root": accepted.state_root.hex(),
        "cosigners": list(accepted.cosigners),
    }


def _state(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    proof = StateProof.decode(data)
    head = proof.verify(trust)
    return {"key": proof.key.hex(), "value": None if proof.value is None else proof.value.hex(), "height": head.height}


def _entry(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    proven = EntryProof.decode(data).verify(trust)
    return {"entry": proven.proof.entry.hex(), "author": proven.author.hex(), "height": proven.checkpoint.height}


def _receipt(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    receipt = Receipt.decode(data)
    at = receipt.verify(bytes.fromhex(vector["parcel"]), bytes.fromhex(vector["token"]), trust)
    return {
        "partition": at.partition,
        "offset": at.offset,
        "node": at.node.hex(),
        "height": at.height,
        "time_ms": at.time_ms,
        "cosigners": list(at.cosigners),
    }


def _proof(data: bytes, vector: Vector, trust: Any) -> dict[str, Any]:
    proven = verify_proof(data, trust)
    return {
        "row": {name: repr(value) for name, value in proven.row.items()},
        "leaf": proven.leaf,
        "publisher": proven.publisher.hex(),
        "token": proven.token.hex(),
        "parcel": proven.parcel.hex(),
        "height": None if proven.anchored is None else proven.anchored.height,
    }


JUDGES: dict[str, Callable[[bytes, Vector, Any], dict[str, Any]]] = {
    "transaction": _transaction,
    "block": _block,
    "checkpoint": _checkpoint,
    "state proof": _state,
    "entry proof": _entry,
    "receipt": _receipt,
    "proof": _proof,
}
