"""What an application answers, method by method, with the answers of one that has no opinion.

The four connections of a node (consensus, mempool, queries, snapshots) are served by four threads, so methods of
different connections run at the same time: `check_tx`, `query` and the snapshot methods against the consensus methods,
which follow one another. The order of the latter, after `info` tells the node where the application stands:

    init_chain  once, at the beginning of a chain
    prepare_proposal, process_proposal  any number of times for a height, with different blocks
    finalize_block  the decided block: compute, keep nothing; it comes again after a crash
    commit  keep it, synced

`finalize_block` must be a function of the blocks alone, and must check everything again: a node that catches up calls
it without the proposals.
"""

from __future__ import annotations

from tallystick.abci import messages as m


class Application:
    """Override what matters; an exception from anything but `check_tx` and `query` stops the node."""

    def echo(self, request: m.RequestEcho) -> m.ResponseEcho:
        return m.ResponseEcho(request.message)

    def info(self, request: m.RequestInfo) -> m.ResponseInfo:
        return m.ResponseInfo()

    # Queries.

    def query(self, request: m.RequestQuery) -> m.ResponseQuery:
        return m.ResponseQuery(code=1, log="nothing can be asked")

    # Mempool.

    def check_tx(self, request: m.RequestCheckTx) -> m.ResponseCheckTx:
        return m.ResponseCheckTx()

    # Consensus.

    def init_chain(self, request: m.RequestInitChain) -> m.ResponseInitChain:
        return m.ResponseInitChain()

    def prepare_proposal(self, request: m.RequestPrepareProposal) -> m.ResponsePrepareProposal:
        """The node has kept within `max_tx_bytes` already; an application that adds must do so too."""
        return m.ResponsePrepareProposal(request.txs)

    def process_proposal(self, request: m.RequestProcessProposal) -> m.ResponseProcessProposal:
        return m.ResponseProcessProposal(m.Verdict.ACCEPT)

    def finalize_block(self, request: m.RequestFinalizeBlock) -> m.ResponseFinalizeBlock:
        return m.ResponseFinalizeBlock(tuple(m.ExecTxResult() for _ in request.txs))

    def commit(self, request: m.RequestCommit) -> m.ResponseCommit:
        return m.ResponseCommit()

    # Snapshots.

    def list_snapshots(self, request: m.RequestListSnapshots) -> m.ResponseListSnapshots:
        return m.ResponseListSnapshots()

    def offer_snapshot(self, request: m.RequestOfferSnapshot) -> m.ResponseOfferSnapshot:
        return m.ResponseOfferSnapshot(m.OfferResult.ABORT)

    def load_snapshot_chunk(self, request: m.RequestLoadSnapshotChunk) -> m.ResponseLoadSnapshotChunk:
        return m.ResponseLoadSnapshotChunk()

    def apply_snapshot_chunk(self, request: m.RequestApplySnapshotChunk) -> m.ResponseApplySnapshotChunk:
        return m.ResponseApplySnapshotChunk(m.ApplyResult.ABORT)
