"""The messages of ABCI 2.0 as CometBFT 0.38 to 0.40 speak it (`tendermint/abci/types.proto`).

Written down by hand: some fifty small messages that change once in years, against stubs that would need Go's module
cache and a pinned protobuf runtime on every machine. What an application of a permissioned chain has no use for is left
out: events, gas, vote extensions (our genesis turns them off) and a mempool of the application's own (as does the
configuration). Consensus parameters are handed on as the bytes they came in. `tests/ledger/cometbft` holds every
message to the descriptions in CometBFT's own module where that is at hand.
"""

from __future__ import annotations

from enum import IntEnum

from tallystick.abci.protobuf import Message, boolean, int64, nested, octets, text, uint64

OK = 0  # the code of a transaction or query that was taken


# --- parts ---


class Timestamp(Message):
    seconds: int = int64(1)
    nanos: int = int64(2)

    @property
    def ms(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000


class Validator(Message):
    address: bytes = octets(1)  # the first 20 bytes of the SHA-256 of its key
    power: int = int64(3)


class PublicKey(Message):
    ed25519: bytes = octets(1)


class ValidatorUpdate(Message):
    pub_key: PublicKey | None = nested(1, PublicKey, always=True)
    power: int = int64(2)


class VoteInfo(Message):
    validator: Validator | None = nested(1, Validator, always=True)
    block_id_flag: int = int64(3)


class CommitInfo(Message):
    round: int = int64(1)
    votes: tuple[VoteInfo, ...] = nested(2, VoteInfo, repeated=True)


class ExtendedVoteInfo(Message):
    validator: Validator | None = nested(1, Validator, always=True)
    vote_extension: bytes = octets(3)
    extension_signature: bytes = octets(4)
    block_id_flag: int = int64(5)


class ExtendedCommitInfo(Message):
    round: int = int64(1)
    votes: tuple[ExtendedVoteInfo, ...] = nested(2, ExtendedVoteInfo, repeated=True)


class Misbehavior(Message):
    type: int = int64(1)
    validator: Validator | None = nested(2, Validator, always=True)
    height: int = int64(3)
    time: Timestamp | None = nested(4, Timestamp, always=True)
    total_voting_power: int = int64(5)


class Snapshot(Message):
    height: int = uint64(1)
    format: int = uint64(2)
    chunks: int = uint64(3)
    hash: bytes = octets(4)
    metadata: bytes = octets(5)


class ProofOp(Message):
    type: str = text(1)
    key: bytes = octets(2)
    data: bytes = octets(3)


class ProofOps(Message):
    ops: tuple[ProofOp, ...] = nested(1, ProofOp, repeated=True)


class ExecTxResult(Message):
    code: int = uint64(1)
    data: bytes = octets(2)
    log: str = text(3)  # not part of what the validators agree on
    info: str = text(4)  # nor is this
    codespace: str = text(8)


# --- requests ---


class RequestEcho(Message):
    message: str = text(1)


class RequestFlush(Message):
    pass


class RequestInfo(Message):
    version: str = text(1)
    block_version: int = uint64(2)
    p2p_version: int = uint64(3)
    abci_version: str = text(4)


class RequestInitChain(Message):
    time: Timestamp | None = nested(1, Timestamp, always=True)
    chain_id: str = text(2)
    consensus_params: bytes = octets(3)
    validators: tuple[ValidatorUpdate, ...] = nested(4, ValidatorUpdate, repeated=True)
    app_state_bytes: bytes = octets(5)
    initial_height: int = int64(6)


class RequestQuery(Message):
    data: bytes = octets(1)
    path: str = text(2)
    height: int = int64(3)
    prove: bool = boolean(4)


class RequestCheckTx(Message):
    tx: bytes = octets(1)
    type: int = int64(2)  # 1: it was checked before, and a block has changed the state since


class RequestCommit(Message):
    pass


class RequestListSnapshots(Message):
    pass


class RequestOfferSnapshot(Message):
    snapshot: Snapshot | None = nested(1, Snapshot)
    app_hash: bytes = octets(2)  # verified by the node's light client; the snapshot is not


class RequestLoadSnapshotChunk(Message):
    height: int = uint64(1)
    format: int = uint64(2)
    chunk: int = uint64(3)


class RequestApplySnapshotChunk(Message):
    index: int = uint64(1)
    chunk: bytes = octets(2)
    sender: str = text(3)


class RequestPrepareProposal(Message):
    max_tx_bytes: int = int64(1)
    txs: tuple[bytes, ...] = octets(2, repeated=True)
    local_last_commit: ExtendedCommitInfo | None = nested(3, ExtendedCommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = nested(4, Misbehavior, repeated=True)
    height: int = int64(5)
    time: Timestamp | None = nested(6, Timestamp, always=True)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


class RequestProcessProposal(Message):
    txs: tuple[bytes, ...] = octets(1, repeated=True)
    proposed_last_commit: CommitInfo | None = nested(2, CommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = nested(3, Misbehavior, repeated=True)
    hash: bytes = octets(4)
    height: int = int64(5)
    time: Timestamp | None = nested(6, Timestamp, always=True)
    next_validators_hash: bytes = octets(7)
    proposer_address: bytes = octets(8)


class RequestFinalizeBlock(Message):
    txs: tuple[bytes, ...] = octets(1, repeated=True)
    decided_last_commit: CommitInfo | None = nested(2, CommitInfo, always=True)
    misbehavior: tuple[Misbehavior, ...] = nested(3, Misbehavior, repeated=True)
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
    """On a proposal."""

    ACCEPT, REJECT = 1, 2


class ResponseException(Message):
    error: str = text(1)


class ResponseEcho(Message):
    message: str = text(1)


class ResponseFlush(Message):
    pass


class ResponseInfo(Message):
    data: str = text(1)
    version: str = text(2)
    app_version: int = uint64(3)
    last_block_height: int = int64(4)
    last_block_app_hash: bytes = octets(5)


class ResponseInitChain(Message):
    consensus_params: bytes = octets(1)
    validators: tuple[ValidatorUpdate, ...] = nested(2, ValidatorUpdate, repeated=True)
    app_hash: bytes = octets(3)


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


class ResponseCheckTx(ExecTxResult):
    pass


class ResponseCommit(Message):
    retain_height: int = int64(3)  # blocks below it may be deleted; 0 keeps all


class ResponseListSnapshots(Message):
    snapshots: tuple[Snapshot, ...] = nested(1, Snapshot, repeated=True)


class ResponseOfferSnapshot(Message):
    result: int = int64(1)


class ResponseLoadSnapshotChunk(Message):
    chunk: bytes = octets(1)


class ResponseApplySnapshotChunk(Message):
    result: int = int64(1)
    refetch_chunks: tuple[int, ...] = uint64(2, repeated=True)
    reject_senders: tuple[str, ...] = text(3, repeated=True)


class ResponsePrepareProposal(Message):
    txs: tuple[bytes, ...] = octets(1, repeated=True)


class ResponseProcessProposal(Message):
    status: int = int64(1)


class ResponseFinalizeBlock(Message):
    tx_results: tuple[ExecTxResult, ...] = nested(2, ExecTxResult, repeated=True)
    validator_updates: tuple[ValidatorUpdate, ...] = nested(3, ValidatorUpdate, repeated=True)
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
    20: ("finalize_block", RequestFinalizeBlock, 21),
}
EXCEPTION = 1  # number of the response that ends a connection
