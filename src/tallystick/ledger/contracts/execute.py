"""`execute`: one transaction through the contracts, whole or not at all.

The same function serves every engine: it is pure in (state, transaction, height, time), verifies everything again,
and never raises for what a transaction contains. A contract's rules may change only by a new version of it, which
takes effect at the height that the ledger itself names (`settings.activate`); old versions stay, so that every chain
replays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from struct import pack

from tallystick import wire
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.ledger.block import Transaction
from tallystick.ledger.contracts import (
    access,
    anchors,
    attributes,
    blame,
    epochs,
    firmware,
    groups,
    identity,
    leases,
    operations,
    permits,
    plans,
    quotas,
    reputation,
    retention,
    settings,
    topics,
    writes,
)
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import RUNS, find_runs
from tallystick.ledger.contracts.state import Call, Handler, HistoryLink, State
from tallystick.trust.certificate import Certificate, SubjectKind

ACCEPTED, REFUSED = 0, 1
STRANGER_BYTES_MAX = 16 << 10  # of a first transaction: a certificate takes two kilobytes
WHOLE = -1  # the index of a refusal that concerns the transaction, not one entry

# (contract, version) → kind → handler. Those of `AT_GENESIS` run from the first block on; whatever comes later has no
# kinds before the height that an activation names, so that replicas of mixed releases agree.
CONTRACTS: dict[tuple[str, int], dict[int, Handler]] = {
    ("identity", 1): {
        EntryKind.ENROL: identity.enrol,
        EntryKind.REVOKE: identity.revoke,
        EntryKind.REPLACE: identity.replace,
        EntryKind.TENANT: identity.tenant,
        EntryKind.TRUST: identity.trust,
    },
    ("topics", 1): {
        EntryKind.TOPIC: topics.create,
        EntryKind.SCHEMA: topics.schema,
        EntryKind.ASSIGN: topics.assign,
        EntryKind.CLOSE_TOPIC: topics.close,
    },
    ("topics", 2): {
        EntryKind.TOPIC: topics.create_bound,
        EntryKind.SCHEMA: topics.schema,
        EntryKind.ASSIGN: topics.assign_noted,
        EntryKind.CLOSE_TOPIC: access.close,
        EntryKind.RETAIN: retention.retain,
    },
    ("epochs", 1): {EntryKind.ANNOUNCE_EPOCH: epochs.announce, EntryKind.END_EPOCH: epochs.end},
    ("access", 1): {EntryKind.GRANT: access.grant, EntryKind.WITHDRAW: access.withdraw},
    ("permits", 1): {
        EntryKind.ISSUE_PERMIT: permits.issue,
        EntryKind.UNDO_PERMIT: permits.undo,
        EntryKind.REVOKE_PERMIT: permits.revoke,
    },
    ("operations", 1): {EntryKind.OPERATION: operations.operation},
    ("operations", 2): {EntryKind.OPERATION: operations.operation_2},
    ("anchors", 1): {
        EntryKind.ANCHOR: anchors.anchor,
        EntryKind.RETIRE: anchors.retire,
        EntryKind.BROKEN_PROMISE: anchors.broken_promise,
        EntryKind.NOTARISE: anchors.notarise,
    },
    ("anchors", 2): {
        EntryKind.RELEASE: anchors.release,
        EntryKind.ANCHOR: anchors.anchor_sampled,
        EntryKind.RETIRE: anchors.retire_kept,
        EntryKind.BROKEN_PROMISE: anchors.broken_promise_in_tenure,
        EntryKind.NOTARISE: anchors.notarise_sampled,
    },
    ("attributes", 1): {
        EntryKind.GRANT_ATTRIBUTE: attributes.grant,
        EntryKind.WITHDRAW_ATTRIBUTE: attributes.withdraw,
        EntryKind.ATTRIBUTE_EPOCH: attributes.announce,
    },
    ("attributes", 2): {
        EntryKind.GRANT_ATTRIBUTE: attributes.grant_2,
        EntryKind.WITHDRAW_ATTRIBUTE: attributes.withdraw_2,
        EntryKind.ATTRIBUTE_EPOCH: attributes.announce,
        EntryKind.DROP_ATTRIBUTE: attributes.drop,
        EntryKind.REFUSE_ATTRIBUTES: attributes.refuse,
    },
    ("policies", 1): {EntryKind.TOPIC_POLICY: attributes.policy},
    ("groups", 1): {
        EntryKind.GROUP: groups.create,
        EntryKind.JOIN: groups.join,
        EntryKind.LEAVE: groups.leave,
        EntryKind.COMMIT_OFFSET: groups.commit,
        EntryKind.RESET_OFFSET: groups.reset,
    },
    ("groups", 2): {
        EntryKind.GROUP: groups.create,
        EntryKind.JOIN: groups.join,
        EntryKind.LEAVE: groups.leave,
        EntryKind.COMMIT_OFFSET: groups.commit_2,
        EntryKind.RESET_OFFSET: groups.reset_2,
    },
    ("reputation", 1): {EntryKind.LIFT: reputation.lift},
    ("equivocation", 1): {EntryKind.EQUIVOCATION: reputation.equivocation},
    (settings.KEYS_CONTRACT, 1): {EntryKind.ANNOUNCE_KEY: epochs.announce_key},
    (quotas.CONTRACT, 1): {},  # no entries of its own: every transaction of a principal is held to them
    ("plans", 1): {
        EntryKind.OVERLAY: plans.found,
        EntryKind.PLAN: plans.publish,
        EntryKind.ENTRUST: plans.entrust,
        EntryKind.LEASE: leases.lease,
        EntryKind.JOINT_ANCHOR: anchors.anchor_jointly,
    },
    ("blame", 1): {
        EntryKind.SUSPECT: blame.suspect,
        EntryKind.TWO_SETS: blame.two_sets,
        EntryKind.FALSE_SHARE: blame.false_share,
        EntryKind.TWO_ORIGINS: blame.two_origins,
        EntryKind.TWO_ORDERS: blame.two_orders,
    },
    (firmware.CONTRACT, 1): {
        EntryKind.RELEASE_IMAGE: firmware.release,
        EntryKind.WITHDRAW_IMAGE: firmware.withdraw,
        EntryKind.CAMPAIGN: firmware.begin,
        EntryKind.REPORT_CAMPAIGN: firmware.report,
        EntryKind.STOP_CAMPAIGN: firmware.stop,
        EntryKind.RESUME_CAMPAIGN: firmware.resume,
    },
    ("writes", 1): {EntryKind.WRITE: writes.write},
    ("erasures", 1): {EntryKind.ERASE: epochs.erase},
    ("settings", 1): {EntryKind.SET: settings.set_, EntryKind.ACTIVATE: settings.activate},
    ("settings", 2): {
        EntryKind.SET: settings.set_2,
        EntryKind.ACTIVATE: settings.activate,
        EntryKind.WITHDRAW_ACTIVATION: settings.withdraw,
    },
}

AT_GENESIS = (
    *("identity", "topics", "epochs", "access", "permits", "operations", "anchors", "attributes", "policies", "groups"),
    *("reputation", "equivocation", "writes", "erasures", "settings"),
)


def released() -> dict[str, int]:
    """The contracts of this release, each with its newest version."""
    return dict(sorted(CONTRACTS))  # of several versions of one contract, the last


def newest() -> dict[str, int]:
    """Those of them whose newest version needs an activation."""
    return {name: version for name, version in released().items() if name not in AT_GENESIS or version > 1}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a transaction. Engines store `data`; the rest of an accepted one feeds their indices."""

    code: int
    reason: str = ""  # the reason code of a refusal
    index: int = WHOLE  # the entry that was refused
    message: str = ""
    data: bytes = b""  # `encode_links`
    kinds: bytes = b""  # one byte for each kind of entry in it, in order
    refused: int = 0  # operations in it that tell of a refusal
    operators: frozenset[bytes] = frozenset()

    @property
    def accepted(self) -> bool:
        return self.code == ACCEPTED

    @property
    def told(self) -> str:
        """The message of a refusal, and which entry it concerns."""
        return self.message if self.index == WHOLE else f"entry {self.index}: {self.message}"


def execute(state: State, transaction: Transaction, height: int, time_ms: int, first: int = 0) -> Result:
    """Run `transaction` in the block at `height`, after `first` entries of the same block.

    An accepted transaction's changes are kept in the block's layer of `state`; a refused one leaves no trace.
    """
    call: Call | None = None
    try:
        handlers, has_quotas = _handlers_at(state, height)
        call = authenticate(state, transaction, height, time_ms, first)
        call.has_quotas, call.index = has_quotas, WHOLE
        is_charged = has_quotas and call.author_kind == SubjectKind.PRINCIPAL
        if is_charged:
            quotas.charge_entries(call, len(transaction.entries))
        kinds = _run_entries(call, transaction, handlers)
        operations.settle(call)
        call.index = WHOLE
        if is_charged:
            quotas.charge_state(call)
    except Refused as refusal:
        state.discard()
        return Result(REFUSED, refusal.reason, WHOLE if call is None else call.index, str(refusal))
    state.put(identity.NUMBERS(transaction.author), transaction.number)
    state.keep()
    return Result(
        ACCEPTED,
        data=encode_links(call.links),
        kinds=bytes(sorted(kinds)),
        refused=call.refused,
        operators=frozenset(call.accepted),
    )


def _run_entries(call: Call, transaction: Transaction, handlers: dict[int, Handler]) -> set[int]:
    """Run every entry in order, long runs of operations at once. Returns the kinds that there were."""
    kinds: set[int] = set()
    done = 0
    take = RUNS.get(handlers[EntryKind.OPERATION])
    for run in find_runs(transaction):
        _run_each(call, transaction, handlers, kinds, done, run.first)
        if take is not None and take(run, call):
            kinds.add(EntryKind.OPERATION)
        else:
            _run_each(call, transaction, handlers, kinds, run.first, run.end)
        done = run.end
    _run_each(call, transaction, handlers, kinds, done, len(transaction.entries))
    return kinds


def _run_each(
    call: Call, transaction: Transaction, handlers: dict[int, Handler], kinds: set[int], first: int, end: int
) -> None:
    values = transaction.decode_entries(first, end)
    for call.index in range(first, end):
        entry = next(values)
        kind = entry[0] if type(entry) is list and entry else None
        if type(kind) is not int or kind not in handlers:
            raise Malformed("entry: not an array that begins with a known kind", reason="unknown-kind")
        kinds.add(kind)
        call.entry_hash = transaction.entry_hash(call.index)
        handlers[kind](call, entry)


def encode_links(links: Mapping[bytes, HistoryLink]) -> bytes:
    """Per topic, in order: wire [[token, operations before, height and index of the last one, indices], …].

    `indices` holds two bytes for each operation: its place in the transaction. Within a transaction an operation
    follows the one before it in this list; the first follows (height, index).
    """
    found = []
    for token, link in sorted(links.items()):
        before, indices = link.previous, pack(f">{len(link.indices)}H", *link.indices)
        found.append([token, before.operations, before.height, before.entry, indices])
    return wire.encode(found)


def admit(state: State, transaction: Transaction, height: int, time_ms: int) -> None:
    """Raise `Refused` unless a transaction is worth a place in a block: what a validator asks before it passes one on.

    A stranger may bring its own enrolment and little else, and its certificate is held to its issuer's key before
    anything else is verified.
    """
    if identity.find(state, transaction.author) is None:
        certificate = _own_enrolment(transaction)
        if len(transaction.data) > STRANGER_BYTES_MAX:
            raise Refused(f"a stranger's transaction has at most {STRANGER_BYTES_MAX} bytes", reason="too-large")
        identity.check_issuer(state, certificate, identity.trust_file(state).instance, time_ms)
    authenticate(state, transaction, height, time_ms, 0)


def authenticate(state: State, transaction: Transaction, height: int, time_ms: int, first: int) -> Call:
    """The call of a transaction whose author is known, live, signed it, and has not sent it before."""
    author = transaction.author
    instance = identity.trust_file(state).instance
    if transaction.instance != instance:
        raise Refused("transaction: of another instance", reason="wrong-instance")
    known = identity.find(state, author)
    if known is not None:
        known.check_live(time_ms)
        key, kind, tenant = known.key, known.kind, known.tenant
    else:
        certificate = _own_enrolment(transaction)
        key, kind, tenant = certificate.signing_key, int(certificate.kind), certificate.tenant
    last = state.row(identity.NUMBERS(author)) or 0
    if transaction.number <= last:
        raise Refused(f"transaction: a number above {last} expected, found {transaction.number}", reason="replayed")
    transaction.verify(_verify_key(key))
    return Call(state, instance, author, kind, tenant, height, time_ms, first)


_verify_key = lru_cache(maxsize=1024)(VerifyKey)  # authors are few and write again and again


def _own_enrolment(transaction: Transaction) -> Certificate:
    """The certificate with which an unknown author enrols itself; the contract checks it when the entry runs."""
    first = next(transaction.decode_entries(0, 1))
    if type(first) is list and len(first) == 2 and first[0] == EntryKind.ENROL and type(first[1]) is bytes:
        certificate = Certificate.decode(first[1])
        if certificate.subject == transaction.author:
            return certificate
    raise Refused(f"author {transaction.author.hex()} is not enrolled", reason="unknown-identity")


def _handlers_at(state: State, height: int) -> tuple[dict[int, Handler], bool]:
    """The handlers in force at this height, and whether quotas are."""
    versions = state.row(settings.VERSIONS()) or []
    active = {contract: version for contract, version, start in versions if start <= height}
    return _handlers(tuple(sorted(active.items()))), quotas.CONTRACT in active


@lru_cache(maxsize=16)
def _handlers(active: tuple[tuple[str, int], ...]) -> dict[int, Handler]:
    chosen = dict.fromkeys(AT_GENESIS, 1) | dict(active)
    handlers: dict[int, Handler] = {}
    for name, version in chosen.items():
        table = CONTRACTS.get((name, version))
        if table is None:
            raise Unavailable(
                f"contract {name}: version {version} is in force, and this release does not have it",
                hint="upgrade tallystick on this machine",
            )
        handlers.update({int(kind): handler for kind, handler in table.items()})
    return handlers
