"""The messages of ABCI 2.0 as CometBFT 0.38 to 0.40 speak it (`tendermint/abci/types.proto`).

Written down by hand: some fifty small messages that change once in years, against stubs that would need Go's module
cache and a pinned protobuf runtime on every machine. What an application of a permissioned chain has no use for is left
out (events, gas); consensus parameters are handed on as the bytes they came in. `tests/abci` holds every message to the
descriptions in CometBFT's own module where that is at hand.
"""

# ruff: noqa: RUF009 (a field is described by a call)

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tallystick.abci.protobuf import (
    Message,
    boolean,
    each,
    each_octets,
    each_text,
    each_uint64,
    int64,
    nested,
    octets,
    text,
    uint64,
)

OK = 0  # the code of a transaction or query that was taken


# --- parts ---


@dataclass(frozen=True, slots=True)
class Timestamp(Message):
    seconds: int = int64(1)
    nanos: int = int64(2)

    @property
    def ms(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000


@dataclass(frozen=True, slots=True)
class Validator(Message):
    address: bytes = octets(1)  # the first 20 bytes of the SHA-256 of its key
    power: int = int64(3)


@dataclass(frozen=True, slots=True)
class PublicKey(Message):
    ed25519: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class ValidatorUpdate(Message):
    pub_key: PublicKey | None = nested(1, PublicKey, always=True)
    power: int = int64(2)


@dataclass(frozen=True, slots=True)
class VoteInfo(Message):
    validator: Validator | None = nested(1, Validator, always=True)
    block_id_flag: int = int64(3)


@dataclass(frozen=True, slots=True)
class CommitInfo(Message):
    round: int = int64(1)
    votes: tuple[VoteInfo, ...] = each(2, VoteInfo)


@dataclass(frozen=True, slots=True)
class ExtendedVoteInfo(Message):
    validator: Validator | None = nested(1, Validator, always=True)
    vote_extension: bytes = octets(3)
    extension_signature: bytes = octets(4)
    block_id_flag: int = int64(5)


@dataclass(frozen=True, slots=True)
class ExtendedCommitInfo(Message):
    round: int = int64(1)
    votes: tuple[ExtendedVoteInfo, ...] = each(2, ExtendedVoteInfo)


@dataclass(frozen=True, slots=True)
class Misbehavior(Message):
    type: int = int64(1)
    validator: Validator | None = nested(2, Validator, always=True)
    height: int = int64(3)
    time: Timestamp | None = nested(4, Timestamp, always=True)
    total_voting_power: int = int64(5)


@dataclass(frozen=True, slots=True)
class Snapshot(Message):
    height: int = uint64(1)
    format: int = uint64(2)
    chunks: int = uint64(3)
    hash: bytes = octets(4)
    metadata: bytes = octets(5)


@dataclass(frozen=True, slots=True)
class ProofOp(Message):
    type: str = text(1)
    key: bytes = octets(2)
    data: bytes = octets(3)


@dataclass(frozen=True, slots=True)
class ProofOps(Message):
    ops: tuple[ProofOp, ...] = each(1, ProofOp)


@dataclass(frozen=True, slots=True)
class ExecTxResult(Message):
    code: int = uint64(1)
    data: bytes = octets(2)
    log: str = text(3)  # not part of what the validators agree on
    info: str = text(4)  # nor is this
    codespace: str = text(8)


# --- requests ---


@dataclass(frozen=True, slots=True)
class RequestEcho(Message):
    message: str = text(1)


@dataclass(frozen=True, slots=True)
class RequestFlush(Message):
    pass


@dataclass(frozen=True, slots=True)
class RequestInfo(Message):
    version: str = text(1)
    block_version: int = uint64(2)
    p2p_version: int = uint64(3)
    abci_version: str = text(4)


@dataclass(frozen=True, slots=True)
class RequestInitChain(Message):
    time: Timestamp | None = nested(1, Timestamp, always=True)
    chain_id: str = text(2)
    consensus_params: bytes = octets(3)
    validators: tuple[ValidatorUpdate, ...] = each(4, ValidatorUpdate)
    app_state_bytes: bytes = octets(5)
    initial_height: int = int64(6)


@dataclass(frozen=True, slots=True)
class RequestQuery(Message):
    data: bytes = octets(1)
    path: str = text(2)
    height: int = int64(3)
    prove: bool = boolean(4)


@dataclass(frozen=True, slots=True)
class RequestCheckTx(Message):
    tx: bytes = octets(1)
    type: int = int64(2)  # 1: it was checked before, and a block has changed the state since


@dataclass(frozen=True, slots=True)
class RequestInsertTx(Message):
    tx: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class RequestReapTxs(Message):
    max_bytes: int = uint64(1)
    max_gas: int = uint64(2)


@dataclass(frozen=True, slots=True)
class RequestCommit(Message):
    pass


@dataclass(frozen=True, slots=True)
class RequestListSnapshots(Message):
    pass


@dataclass(frozen=True, slots=True)
class RequestOfferSnapshot(Message):
    snapshot: Snapshot | None = nested(1, Snapshot)
    app_hash: bytes = octets(2)  # verified by the node's light client; the snapshot is not


@dataclass(frozen=True, slots=True)
class RequestLoadSnapshotChunk(Message):
    height: int = uint64(1)
    format: int = uint64(2)
    chunk: int = uint64(3)


@dataclass(frozen=True, slots=True)
class RequestApplySnapshotChunk(Message):
    index: int = uint64(1)
    chunk: bytes = octets(2)
    sender: str = text(3)


@dataclass(frozen=True, slots=True)
class RequestPrepareProposal(Message):
    max_tx_bytes: int = int64(1)
    txs: tuple[bytes, ...] = each_octets(2)
    local_last_commit: ExtendedCommitInfo | None = nested(3, ExtendedCommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = each(4, Misbehavior)
    height: int = int64(5)
    time: Timestamp | None = nested(6, Timestamp, always=True)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


@dataclass(frozen=True, slots=True)
class RequestProcessProposal(Message):
    txs: tuple[bytes, ...] = each_octets(1)
    proposed_last_commit: CommitInfo | None = nested(2, CommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = each(3, Misbehavior)
    hash: bytes = octets(4)
    height: int = int64(5)
    time: Timestamp | None = nested(6, Timestamp, always=True)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


@dataclass(frozen=True, slots=True)
class RequestExtendVote(Message):
    hash: bytes = octets(1)
    height: int = int64(2)
    time: Timestamp | None = nested(3, Timestamp, always=True)
    txs: tuple[bytes, ...] = each_octets(4)
    proposed_last_commit: CommitInfo | None = nested(5, CommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = each(6, Misbehavior)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


@dataclass(frozen=True, slots=True)
class RequestVerifyVoteExtension(Message):
    hash: bytes = octets(1)
    validator_address: bytes = octets(2)
    height: int = int64(3)
    vote_extension: bytes = octets(4)


@dataclass(frozen=True, slots=True)
class RequestFinalizeBlock(Message):
    txs: tuple[bytes, ...] = each_octets(1)
    decided_last_commit: CommitInfo | None = nested(2, CommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = each(3, Misbehavior)
    hash: bytes = octets(4)
    height: int = int64(5)
    time: Timestamp | None = nested(6, Timestamp, always=True)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


# --- responses ---


class OfferResult(IntEnum):
    ACCEPT, ABORT, REJECT, REJECT_FORMAT, REJECT_SENDER = 1, 2, 3, 4, 5


class ApplyResult(IntEnum):
    ACCEPT, ABORT, RETRY, RETRY_SNAPSHOT, REJECT_SNAPSHOT = 1, 2, 3, 4, 5


class Verdict(IntEnum):
    """On a proposal, or on another validator's vote extension."""

    ACCEPT, REJECT = 1, 2


@dataclass(frozen=True, slots=True)
class ResponseException(Message):
    error: str = text(1)


@dataclass(frozen=True, slots=True)
class ResponseEcho(Message):
    message: str = text(1)


@dataclass(frozen=True, slots=True)
class ResponseFlush(Message):
    pass


@dataclass(frozen=True, slots=True)
class ResponseInfo(Message):
    data: str = text(1)
    version: str = text(2)
    app_version: int = uint64(3)
    last_block_height: int = int64(4)
    last_block_app_hash: bytes = octets(5)


@dataclass(frozen=True, slots=True)
class ResponseInitChain(Message):
    consensus_params: bytes = octets(1)
    validators: tuple[ValidatorUpdate, ...] = each(2, ValidatorUpdate)
    app_hash: bytes = octets(3)


@dataclass(frozen=True, slots=True)
class ResponseQuery(Message):
    code: int = uint64(1)
    log: str = text(3)
    info: str = text(4)
    index: int = int64(5)
    key: bytes = octets(6)
    value: bytes = octets(7)
    proof_ops: ProofOps | None = nested(8, ProofOps)
    height: int = int64(9)
    codespace: str = text(10)


@dataclass(frozen=True, slots=True)
class ResponseCheckTx(Message):
    code: int = uint64(1)
    data: bytes = octets(2)
    log: str = text(3)
    info: str = text(4)
    codespace: str = text(8)


@dataclass(frozen=True, slots=True)
class ResponseInsertTx(Message):
    code: int = uint64(1)


@dataclass(frozen=True, slots=True)
class ResponseReapTxs(Message):
    txs: tuple[bytes, ...] = each_octets(1)


@dataclass(frozen=True, slots=True)
class ResponseCommit(Message):
    retain_height: int = int64(3)  # blocks below it may be deleted; 0 keeps all


@dataclass(frozen=True, slots=True)
class ResponseListSnapshots(Message):
    snapshots: tuple[Snapshot, ...] = each(1, Snapshot)


@dataclass(frozen=True, slots=True)
class ResponseOfferSnapshot(Message):
    result: int = int64(1)


@dataclass(frozen=True, slots=True)
class ResponseLoadSnapshotChunk(Message):
    chunk: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class ResponseApplySnapshotChunk(Message):
    result: int = int64(1)
    refetch_chunks: tuple[int, ...] = each_uint64(2)
    reject_senders: tuple[str, ...] = each_text(3)


@dataclass(frozen=True, slots=True)
class ResponsePrepareProposal(Message):
    txs: tuple[bytes, ...] = each_octets(1)


@dataclass(frozen=True, slots=True)
class ResponseProcessProposal(Message):
    status: int = int64(1)


@dataclass(frozen=True, slots=True)
class ResponseExtendVote(Message):
    vote_extension: bytes = octets(1)


@dataclass(frozen=True, slots=True)
class ResponseVerifyVoteExtension(Message):
    status: int = int64(1)


@dataclass(frozen=True, slots=True)
class ResponseFinalizeBlock(Message):
    tx_results: tuple[ExecTxResult, ...] = each(2, ExecTxResult)
    validator_updates: tuple[ValidatorUpdate, ...] = each(3, ValidatorUpdate)
    consensus_param_updates: bytes = octets(4)
    app_hash: bytes = octets(5)


# Number in the union of requests → the application's method, its request, the number of its response.
METHODS: dict[int, tuple[str, type[Message], int]] = {
    1: ("echo", RequestEcho, 2),
    2: ("flush", RequestFlush, 3),
    3: ("info", RequestInfo, 4),
    5: ("init_chain", RequestInitChain, 6),
    6: ("query", RequestQuery, 7),
    8: ("check_tx", RequestCheckTx, 9),
    11: ("commit", RequestCommit, 12),
    12: ("list_snapshots", RequestListSnapshots, 13),
    13: ("offer_snapshot", RequestOfferSnapshot, 14),
    14: ("load_snapshot_chunk", RequestLoadSnapshotChunk, 15),
    15: ("apply_snapshot_chunk", RequestApplySnapshotChunk, 16),
    16: ("prepare_proposal", RequestPrepareProposal, 17),
    17: ("process_proposal", RequestProcessProposal, 18),
    18: ("extend_vote", RequestExtendVote, 19),
    19: ("verify_vote_extension", RequestVerifyVoteExtension, 20),
    20: ("finalize_block", RequestFinalizeBlock, 21),
    21: ("insert_tx", RequestInsertTx, 22),
    22: ("reap_txs", RequestReapTxs, 23),
}
EXCEPTION = 1  # number of the response that ends a connection
