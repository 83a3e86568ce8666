"""CometBFT's headers, commits and validator sets, from the JSON of its RPC: how they hash and who signed them.

Nothing of CometBFT's code is used: the hashes are RFC 6962 trees over protocol buffers, and a vote's signed bytes are
its canonical message behind its length. `LightBlock.parse` makes one value of the three; the `check_…` functions are
the steps by which a light client believes it.
"""

from __future__ import annotations

# ruff: noqa: RUF009 (a field is described by a call)
from base64 import b64decode
from calendar import timegm
from dataclasses import dataclass
from hashlib import sha256
from time import strptime
from typing import Any

from tallystick.abci.messages import PublicKey, Timestamp
from tallystick.abci.protobuf import Message, int64, nested, octets, sfixed64, text, uint64, write_varint
from tallystick.crypto import merkle
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged, Malformed

PRECOMMIT, FOR_THE_BLOCK = 2, 2
VALIDATORS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Version(Message):
    block: int = uint64(1)
    app: int = uint64(2)


@dataclass(frozen=True, slots=True)
class _Parts(Message):
    total: int = uint64(1)
    hash: bytes = octets(2)


@dataclass(frozen=True, slots=True)
class BlockId(Message):
    hash: bytes = octets(1)
    parts: _Parts | None = nested(2, _Parts, always=True)


@dataclass(frozen=True, slots=True)
class _Vote(Message):
    type: int = uint64(1)
    height: int = sfixed64(2)
    round: int = sfixed64(3)
    block_id: BlockId | None = nested(4, BlockId)
    timestamp: Timestamp | None = nested(5, Timestamp, always=True)
    chain_id: str = text(6)


@dataclass(frozen=True, slots=True)
class _SimpleValidator(Message):
    pub_key: PublicKey | None = nested(1, PublicKey)
    voting_power: int = int64(2)


@dataclass(frozen=True, slots=True)
class _Text(Message):
    value: str = text(1)


@dataclass(frozen=True, slots=True)
class _Number(Message):
    value: int = int64(1)


@dataclass(frozen=True, slots=True)
class _Octets(Message):
    value: bytes = octets(1)


@dataclass(frozen=True)
class Signature:
    validator: bytes  # address
    flag: int
    time: Timestamp
    signature: bytes


@dataclass(frozen=True)
class LightBlock:
    """A header, the votes for it and the validators, as an endpoint claims them."""

    chain_id: str
    height: int
    time: Timestamp
    validators_hash: bytes
    next_validators_hash: bytes
    app_hash: bytes
    hash: bytes  # computed
    commit_round: int
    commit_id: BlockId
    signatures: tuple[Signature, ...]
    validators: tuple[tuple[bytes, int], ...]  # key and power

    @classmethod
    def parse(cls, signed_header: Any, validators: Any) -> LightBlock:
        """Raises `Malformed`."""
        try:
            header, commit = signed_header["header"], signed_header["commit"]
            found = tuple((b64decode(one["pub_key"]["value"]), int(one["voting_power"])) for one in validators)
            if int(commit["height"]) != int(header["height"]) or len(found) > VALIDATORS_MAX:
                raise ValueError("heights differ")
            return cls(
                chain_id=str(header["chain_id"]),
                height=int(header["height"]),
                time=_time(header["time"]),
                validators_hash=bytes.fromhex(header["validators_hash"]),
                next_validators_hash=bytes.fromhex(header["next_validators_hash"]),
                app_hash=bytes.fromhex(header["app_hash"]),
                hash=header_hash(header),
                commit_round=int(commit["round"]),
                commit_id=_block_id(commit["block_id"]),
                signatures=tuple(
                    Signature(
                        bytes.fromhex(one["validator_address"]),
                        int(one["block_id_flag"]),
                        _time(one["timestamp"]),
                        b64decode(one["signature"] or ""),
                    )
                    for one in commit["signatures"]
                ),
                validators=found,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Malformed(f"light block: {error}") from error


def header_hash(header: Any) -> bytes:
    """The hash of a header in JSON: RFC 6962 over its fields, each in its own encoding."""
    version = header["version"]
    fields = [
        _Version(int(version["block"]), int(version.get("app") or 0)).encode(),
        _Text(header["chain_id"]).encode(),
        _Number(int(header["height"])).encode(),
        _time(header["time"]).encode(),
        _block_id(header["last_block_id"]).encode(),
    ]
    for name in (
        *("last_commit_hash", "data_hash", "validators_hash", "next_validators_hash", "consensus_hash"),
        *("app_hash", "last_results_hash", "evidence_hash", "proposer_address"),
    ):
        fields.append(_Octets(bytes.fromhex(header[name])).encode())
    return merkle.root([merkle.leaf_hash(field) for field in fields])


def validators_hash(validators: tuple[tuple[bytes, int], ...]) -> bytes:
    return merkle.root(
        [merkle.leaf_hash(_SimpleValidator(PublicKey(key), power).encode()) for key, power in validators]
    )


def vote_bytes(block: LightBlock, signature: Signature) -> bytes:
    """What a validator signs when it votes for a block."""
    vote = _Vote(PRECOMMIT, block.height, block.commit_round, block.commit_id, signature.time, block.chain_id).encode()
    return write_varint(len(vote)) + vote


def check_form(block: LightBlock, chain_id: str, height: int) -> None:
    """Header, votes and validators belong together, and to the height that was asked for."""
    if (block.chain_id, block.height) != (chain_id, height):
        raise Forged(f"header: chain {chain_id} and height {height} expected, found {block.chain_id}, {block.height}")
    if block.commit_id.hash != block.hash:
        raise Forged(f"header {height}: the votes are for another header")
    if validators_hash(block.validators) != block.validators_hash:
        raise Forged(f"header {height}: the validators are not those that it names")


def check_commit(block: LightBlock) -> None:
    """More than two thirds of its own validators' power signed it."""
    check_power(block, block.validators, 2)


def check_power(block: LightBlock, validators: tuple[tuple[bytes, int], ...], thirds: int) -> None:
    """More than `thirds` thirds of the power of `validators` signed the block; raises `Forged`."""
    powers = {sha256(key).digest()[:20]: (key, power) for key, power in validators}
    signed: set[bytes] = set()
    for one in block.signatures:
        if one.flag == FOR_THE_BLOCK and one.validator in powers and one.validator not in signed:
            VerifyKey(powers[one.validator][0]).verify_raw(one.signature, vote_bytes(block, one))
            signed.add(one.validator)
    found, total = sum(powers[one][1] for one in signed), sum(power for _, power in validators)
    if 3 * found <= thirds * total:
        raise Forged(f"header {block.height}: {found} of {total} votes, more than {thirds} thirds expected")


def _time(written: str) -> Timestamp:
    """RFC 3339 in UTC with up to nine digits behind the point."""
    whole, _, rest = written.removesuffix("Z").partition(".")
    return Timestamp(timegm(strptime(whole, "%Y-%m-%dT%H:%M:%S")), int(rest.ljust(9, "0")[:9]) if rest else 0)


def _block_id(written: Any) -> BlockId:
    parts = written.get("parts") or {}
    return BlockId(
        bytes.fromhex(written["hash"]), _Parts(int(parts.get("total") or 0), bytes.fromhex(parts.get("hash") or ""))
    )
