"""Leases: which relay orders a partition of a topic that travels over an overlay.

Threat: two relays that each believe they order a partition; one that was cut off, comes back and anchors what nobody
follows any more; one that holds on and orders nothing; f liars that take the lease from an honest one. A tree of
parcels needs one order, so one relay of the virtual node at which publishers enter has the partition's lease.

Invariant: there is one holder at a time. Every change of holder raises the fence by one, and an entry counts only with
the fence that stands there, so of two that reach for a free lease the first gets it. The holder renews its lease;
others take it when it is free: never given, run out by block time, of a relay that the plan or the ledger no longer
has, or of one that f+1 relays of one virtual node suspect (blame.py), of whom one is honest. Only the present holder
anchors and retires; operations every relay writes, of what it served itself. What a holder signed under an earlier
fence cannot come after the entry by which it took the lease again, since an author's transactions count in the order of
their numbers.

How long a node carried a partition is noted as for those that are assigned (topics.py), so that nobody is blamed for a
promise that it had no more time to keep. Whose lease ran out, and was taken, had it until then.

    lease/<token><u32 partition>   [holder, fence, end ms, number of the owner's word that it is under]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.errors import Refused
from tallystick.ledger.contracts import blame, identity, plans, reputation, topics
from tallystick.ledger.contracts.plans import ENTRUSTED, RELAYS, EntrustedRow
from tallystick.ledger.contracts.state import ID, NOBODY, U32, Call, RowReader, Table, fields_of
from tallystick.ledger.contracts.topics import TENURES, TenureRow
from tallystick.trust.plan import Plan
from tallystick.trust.promise import PARTITIONS_MAX


class LeaseRow(NamedTuple):
    holder: bytes
    fence: int
    end_ms: int
    number: int  # of the owner's word that it was taken under

    def is_held(self, word: EntrustedRow, time_ms: int) -> bool:
        return self.number == word.number and self.end_ms > time_ms


LEASES = Table("lease", LeaseRow, ID, U32)  # by token and partition


def find(read: RowReader, token: bytes, partition: int, time_ms: int) -> LeaseRow | None:
    """The lease, if somebody holds it at this block time. `read` brings a row of the state."""
    word, row = read(ENTRUSTED(token)), read(LEASES(token, partition))
    return row if word is not None and row is not None and row.is_held(word, time_ms) else None


def carries(call: Call, token: bytes, partition: int) -> bool:
    """Whether the author writes for this partition: a node registered for it, or for a topic that was entrusted to an
    overlay the relay that holds the lease, and nobody else."""
    if (token, partition) in call.carried:
        return True
    if not is_entrusted(call, token):
        return topics.carries(call, token, partition)
    row = find(call.state.row, token, partition, call.time_ms)
    if row is None or row.holder != call.author:
        return False
    call.carried.add((token, partition))
    return True


def is_entrusted(call: Call, token: bytes) -> bool:
    """Whether a topic travels over an overlay."""
    word = call.state.row(ENTRUSTED(token))
    return word is not None and word.overlay != NOBODY


def require_word(call: Call, token: bytes) -> EntrustedRow:
    """Which overlay carries a topic, or `Refused`."""
    word = call.state.row(ENTRUSTED(token))
    if word is None or word.overlay == NOBODY:
        raise Refused(f"topic {token.hex()} is entrusted to no overlay", reason="not-entrusted")
    return word


def serves(call: Call, token: bytes) -> bool:
    """Whether the author is a relay of the overlay that carries a topic: whoever serves a reader tells of it."""
    return is_entrusted(call, token) and call.state.row(RELAYS(call.author)) == require_word(call, token).overlay


def lease(call: Call, entry: list[Any]) -> None:
    """[93, token, partition, fence]: take a partition's lease with the next fence, or renew it with the present one."""
    fields = fields_of(entry, "lease", 4)
    token, partition, fence = fields.octets(16), fields.number(PARTITIONS_MAX - 1), fields.number(at_least=1)
    if partition >= topics.require(call.state, token).partitions:
        raise Refused(f"topic {token.hex()} has no partition {partition}", reason="unknown-partition")
    word = require_word(call, token)
    plan = plans.require_plan(call, word.overlay)
    if not _is_seated(plan, word, call.author):
        raise Refused(f"author is no relay of virtual node {word.node.hex()}", reason="not-relay")
    old = call.state.row(LEASES(token, partition)) or LeaseRow(NOBODY, 0, 0, 0)
    is_renewal = old.holder == call.author and old.is_held(word, call.time_ms)
    if fence != old.fence + (not is_renewal):
        raise Refused(f"fence {old.fence} stands there, found {fence}", reason="fenced")
    if reputation.is_blacklisted(call.state, call.author):
        raise Refused("the relay is blacklisted", reason="blacklisted")
    if old.is_held(word, call.time_ms):
        if blame.is_suspected(call.state.row, call.author, plan.version):
            raise Refused("a relay that is suspected takes and renews nothing", reason="suspected")
        if not is_renewal and _is_good(call, plan, word, old.holder):
            raise Refused(f"the lease is held until {old.end_ms}", reason="lease-held")
    if not is_renewal:
        _note_tenures(call, token, partition, old)
    row = LeaseRow(call.author, fence, call.time_ms + word.lease_ms, word.number)
    call.state.put(LEASES(token, partition), [*row])


def _is_seated(plan: Plan, word: EntrustedRow, relay: bytes) -> bool:
    place = plan.place(relay)
    return place is not None and place[0].identifier == word.node


def _is_good(call: Call, plan: Plan, word: EntrustedRow, holder: bytes) -> bool:
    """Whether a holder may keep its lease against others."""
    known = identity.find(call.state, holder)
    is_live = known is not None and known.is_live(call.time_ms) and not reputation.is_blacklisted(call.state, holder)
    is_silent = blame.is_suspected(call.state.row, holder, plan.version)
    return is_live and not is_silent and _is_seated(plan, word, holder)


def _note_tenures(call: Call, token: bytes, partition: int, old: LeaseRow) -> None:
    if old.fence:
        since = call.state.row(TENURES(token, partition, old.holder)) or TenureRow(0, 0)
        until_ms = min(old.end_ms, call.time_ms)
        call.state.put(TENURES(token, partition, old.holder), [since.since_ms, until_ms])
    call.state.put(TENURES(token, partition, call.author), [call.time_ms, 0])
