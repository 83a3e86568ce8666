"""Operations by the hundred: a run of plain ones goes through the contract at once.

`operations.operation` is the rule; this is the same rule for entries that it takes without a second thought (accepted,
no evidence, the one encoding: `kernel.read_operations`), nearly all of what a busy node writes. What the rule asks of
each entry is asked once of each operator and each partition, because no plain operation changes the answer; what it
adds up is added up by the kernel. A run of which the rule would refuse any entry is not taken, and nothing was done: it
then goes entry by entry, so that the refusal names its entry as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tallystick.errors import Refused
from tallystick.later import np
from tallystick.ledger.batches import BATCH_MIN, CompiledLedger, compiled_for, joined
from tallystick.ledger.contracts.access import HOST_CHARACTERS_MAX
from tallystick.ledger.contracts.call import Call, Handler
from tallystick.ledger.contracts.operations import COUNT_MAX, is_carried, open_link, operation
from tallystick.ledger.transaction import Transaction
from tallystick.trust.promise import PARTITIONS_MAX


@dataclass(frozen=True, slots=True)
class OperationRun:
    """Entries `[first, end)` of a transaction, all plain operations."""

    first: int
    end: int
    data: bytes  # of all the transaction's entries
    hashes: bytes  # of the run's
    rows: Any  # the run's, as `kernel.read_operations` gives them
    compiled: CompiledLedger

    def take(self, call: Call) -> bool:
        """Run all of it by version 1; False, and nothing is changed, where one of them would be refused."""
        kernel = self.compiled.kernel
        octets, nothing = np.frombuffer(self.data, np.uint8), np.zeros(len(self.rows), np.int64)
        tokens_at, operators_at, counts, partitions = (np.ascontiguousarray(column) for column in self.rows.T)
        operator_of, operator_firsts = kernel.number_keys(octets, operators_at, nothing)
        operators = self._names(operators_at[operator_firsts])
        if any(one not in call.accepted and call.state.get(b"identity/" + one) is None for one in operators):
            return False
        _, pair_firsts = kernel.number_keys(octets, tokens_at, partitions)
        pairs = zip(self._names(tokens_at[pair_firsts]), partitions[pair_firsts].tolist(), strict=True)
        if not all(_may_write(call, token, partition) for token, partition in pairs):
            return False
        sums = kernel.sum_by_number(operator_of, counts, len(operators))
        for operator, count in zip(operators, sums.tolist(), strict=True):
            call.accepted[operator] = call.accepted.get(operator, 0) + count
        self._extend(call, octets, tokens_at, nothing)
        return True

    def _extend(self, call: Call, octets: Any, tokens_at: Any, nothing: Any) -> None:
        """Every topic's history by its operations of the run."""
        kernel = self.compiled.kernel
        token_of, firsts = kernel.number_keys(octets, tokens_at, nothing)
        links = [call.links.get(token) or open_link(call, token) for token in self._names(tokens_at[firsts])]
        chains = b"".join(link.chain for link in links)
        extended, entries = self.compiled.extend(chains, token_of, self.hashes, call.height, call.first + self.first)
        for number, (link, own) in enumerate(zip(links, entries, strict=True)):
            link.chain = extended[32 * number : 32 * number + 32]
            link.indices += [self.first + entry for entry in own]

    def _names(self, places: Any) -> list[bytes]:
        return [self.data[at : at + 16] for at in places.tolist()]


# How each version of the rule takes a run: a version that is not here would go entry by entry, without a word.
RUNS: dict[Handler, Callable[[OperationRun, Call], bool]] = {operation: OperationRun.take}


def find_runs(transaction: Transaction) -> Iterator[OperationRun]:
    """The transaction's long runs of plain operations, in order; none where there is no compiled way."""
    entries = transaction.entries
    found = compiled_for(len(entries))
    if found is None:
        return
    data, ends = joined(entries)
    rows = found.kernel.read_operations(data, ends, PARTITIONS_MAX, HOST_CHARACTERS_MAX, COUNT_MAX)
    borders = np.flatnonzero(np.diff(rows[:, 0] >= 0, prepend=False, append=False)).tolist()
    for first, end in zip(borders[::2], borders[1::2], strict=True):
        if end - first >= BATCH_MIN:
            hashes = transaction.entry_hashes[32 * first : 32 * end]
            yield OperationRun(first, end, data.tobytes(), hashes, rows[first:end], found)


def _may_write(call: Call, token: bytes, partition: int) -> bool:
    try:
        return (token, partition) in call.carried or is_carried(call, token, partition, "")
    except Refused:
        return False
