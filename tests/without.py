"""Defences that a test takes away, by name, to show what each is worth.

    with without("the guard of fetches"):
        ...  # the attack succeeds

A test in which an attack succeeds shows nothing once the guard has another name, or once the attack no longer passes by
it. So defences are taken away here and nowhere else (tests/test_suite_rules.py holds that), and it fails

- if the guard is not where it was, is another function, or takes other arguments than its replacement;
- if nothing asked the guard while it was away.

Below, each defence has what stands in its place: a function of the same parameters. Keyword parameters beyond those are
for the test to choose, as in `without("the guard of publishing", partitions=(1,))`, except for `honest`, which is the
guard itself. A defence that stands in several places has several replacements under one name.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tallystick import wire
from tallystick.crypto.symmetric import derive
from tallystick.errors import Refused
from tallystick.guards.publish import Accepted
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import UndoOrder

DEFENCES: dict[str, list[Removal]] = {}


class NotTakenAway(AssertionError):
    """The defence is not what this module takes it for, or was not asked: the test would show nothing."""


@contextmanager
def without(*names: str, **chosen: Any) -> Iterator[None]:
    """Take these defences away, in this process, for as long as the block runs."""
    asked: set[str] = set()
    removals = _removals(names)
    with ExitStack() as stack:
        for removal in removals:
            stack.enter_context(removal.carried_out(partial(asked.add, removal.place), chosen))
        yield
    _check_asked(removals, asked)


@contextmanager
def processes_without(folder: Path, *names: str) -> Iterator[None]:
    """Take these defences away in every process of Python that is started meanwhile; `folder` must be empty."""
    removals = _removals(names)
    for removal in removals:
        removal.find()
    here = str(Path(__file__).parent)
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({here!r})\nimport without\nwithout._start_without({names!r}, {str(folder)!r})\n",
        encoding="utf-8",
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    _check_asked(removals, {one.place for one in removals if _mark(folder, one).exists()})


def _start_without(names: Sequence[str], folder: str) -> None:
    """In a process that was started meanwhile: for good, and what was asked is marked in the folder."""
    for removal in _removals(names):
        _forever.enter_context(removal.carried_out(_mark(Path(folder), removal).touch, {}))


_forever = ExitStack()


def _mark(folder: Path, removal: Removal) -> Path:
    return folder / f"{removal.place}.asked"


def _removals(names: Sequence[str]) -> list[Removal]:
    unknown = [name for name in names if name not in DEFENCES]
    if unknown or not names:
        raise NotTakenAway(f"no such defence: {unknown}; known are {sorted(DEFENCES)}")
    return [removal for name in names for removal in DEFENCES[name]]


def _check_asked(removals: Sequence[Removal], asked: set[str]) -> None:
    if spared := [one.place for one in removals if one.place not in asked]:
        raise NotTakenAway(f"nothing asked {', '.join(spared)} while it was away: the attack goes another way")


# --- one function, and what stands in its place ---


@dataclass(frozen=True)
class Removal:
    place: str  # where it is looked up, "module:attribute"
    defined: str  # the function that must be found there, "module:qualified name"
    instead: Callable[..., Any] = field(repr=False)

    def find(self) -> tuple[Any, str, Any]:
        """(owner, attribute, what stands there), if it is what it was taken for."""
        module, path = self.place.split(":")
        owner: Any = importlib.import_module(module)
        *outer, attribute = path.split(".")
        for name in outer:
            owner = getattr(owner, name, None)
        found = inspect.getattr_static(owner, attribute, None)
        function = getattr(found, "__func__", found)  # of a class method or a static one
        if not inspect.isfunction(function):
            raise NotTakenAway(f"{self.place}: no function is there")
        if (named := f"{function.__module__}:{function.__qualname__}") != self.defined:
            raise NotTakenAway(f"{self.place}: {self.defined} expected, found {named}")
        self._check_parameters(function)
        return owner, attribute, found

    def _check_parameters(self, function: Callable[..., Any]) -> None:
        expected = list(inspect.signature(function).parameters)
        given = inspect.signature(self.instead).parameters.values()
        own = [one.name for one in given if one.name in expected or one.kind is not one.KEYWORD_ONLY]
        if own != expected:
            raise NotTakenAway(f"{self.place} takes {expected}, what stands in its place {own}")

    @contextmanager
    def carried_out(self, on_call: Callable[[], object], chosen: dict[str, Any]) -> Iterator[None]:
        owner, attribute, found = self.find()
        function = getattr(found, "__func__", found)
        given = {**chosen, "honest": function}
        accepted = {name: given[name] for name in inspect.signature(self.instead).parameters if name in given}

        @wraps(function)
        def stand_in(*arguments: Any, **options: Any) -> Any:
            on_call()
            return self.instead(*arguments, **options, **accepted)

        setattr(owner, attribute, type(found)(stand_in) if function is not found else stand_in)
        try:
            yield
        finally:
            setattr(owner, attribute, found)


def defence(name: str, place: str, *, defined: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorated function stands in for the one at `place`; `defined` names that one if it comes from elsewhere."""

    def register(instead: Callable[..., Any]) -> Callable[..., Any]:
        DEFENCES.setdefault(name, []).append(Removal(place, defined or place, instead))
        return instead

    return register


# --- guards ---

FRONT = "tallystick.carriers.front"


@defence("the guard of fetches", f"{FRONT}:fetch", defined="tallystick.guards.permits:fetch")
def _serve_everybody(token: Any, partition: Any, identifier: Any, act: Any, rules: Any, live: Any) -> Any:
    return SimpleNamespace(labels=())


@defence("the holder's name in a permit", f"{FRONT}:fetch", defined="tallystick.guards.permits:fetch")
def _serve_as_in_the_paper(token: Any, partition: Any, identifier: Any, act: Any, rules: Any, live: Any) -> Any:
    """EventGuard 4.2: whoever shows a permit that is live."""
    found = live.get(identifier)
    assert found is not None
    return found


@defence("the guard of publishing", f"{FRONT}:publish", defined="tallystick.guards.publish:publish")
def _take_everything(
    data: Any,
    act: Any,
    rules: Any,
    live: Any,
    lanes: Any,
    has_lock: Any,
    limits: Any,
    *,
    partitions: tuple[int, ...] = (0,),
    permit: Any = None,
) -> Any:
    parcel = Parcel.decode(data)
    return Accepted(parcel, permit or live.get(parcel.header.topics[0].permit), partitions)


@defence("the guard of what is pushed", "tallystick.carriers.received:judge", defined="tallystick.guards.publish:judge")
def _keep_everything(parcel: Any, act: Any, rules: Any, live: Any, lanes: Any, has_lock: Any) -> Any:
    return Accepted(parcel, live.get(parcel.header.topics[0].permit), (0,))


@defence("the guard of unsubscribing", f"{FRONT}:unsubscribe", defined="tallystick.guards.permits:unsubscribe")
@defence("the guard of unadvertising", f"{FRONT}:unadvertise", defined="tallystick.guards.permits:unadvertise")
def _obey_any_order(data: Any, act: Any, rules: Any, live: Any) -> Any:
    order = UndoOrder.decode(data)
    live.remove(order.identifier)
    return order


@defence("the window of envelopes", "tallystick.guards.route:Window.check")
def _hear_replays(self: Any, signer: Any, identifier: Any, now: Any) -> None:
    pass


@defence("the window's memory of before a restart", "tallystick.guards.route:Window.restore")
def _begin_anew(self: Any, entries: Any) -> None:
    pass


@defence("the order of sequences in a lane", "tallystick.guards.publish:Lanes.check_next")
def _take_any_sequence(self: Any, principal: Any, header: Any) -> bool:
    return False


@defence("the end of permits", "tallystick.carriers.rules:LedgerRules.permit_ended")
def _permits_for_ever(self: Any, identifier: Any) -> bool:
    return False


# --- the ledger and its contracts ---


@defence("the contract's judgement of claims", "tallystick.ledger.contracts.operations:_judge")
def _believe_claims(call: Any, operator: Any, token: Any, kind: Any, request: Any, evidence: Any) -> None:
    from tallystick.ledger.contracts import reputation

    reputation.fall(call, operator)


@defence("the owner's say over a topic", "tallystick.ledger.contracts.topics:is_owner_or_admin")
def _everybody_is_owner(state: Any, topic: Any, subject: Any) -> bool:
    return True


@defence("the comparison before an offset moves", "tallystick.ledger.contracts.groups:_move")
def _move_anyway(call: Any, identifier: Any, group: Any, token: Any, partition: Any, old: Any, new: Any) -> None:
    from tallystick.ledger.contracts import groups

    call.state.put(groups.GROUPS(identifier), [*group])
    call.state.put(groups.OFFSETS(identifier, token, partition), [new, group.fence, call.author, call.height])


@defence("the journal of evidence", "tallystick.carriers.scribe:Scribe.accuse")
def _remember_in_memory(self: Any, accusation: Any) -> None:
    """As if evidence waited in memory for the next commit."""
    self._waiting.append((self._journal.replay_end, accusation))


@defence(
    "the proof of a ledger's value",
    "tallystick.client.ties:verify_map",
    defined="tallystick.crypto.merkle_map:verify_map",
)
def _believe_values(root: Any, key: Any, value: Any, proof: Any) -> None:
    pass


@defence("the memory of checkpoints", "tallystick.ledger.proofs:CheckpointMemory._check")
def _forget_the_older(self: Any, old: Any, new: Any, consistency: Any) -> None:
    pass


@defence("the comparison with others' checkpoints", "tallystick.ledger.proofs:CheckpointMemory.check_seen")
def _believe_each_history(self: Any, size: Any, root: Any, consistency: Any) -> bool:
    return True


# --- the chain ---

CHAIN = "tallystick.ledger.cometbft"


@defence("the form of a header", f"{CHAIN}.light:check_form")
def _take_any_form(block: Any, chain_id: Any, height: Any) -> None:
    pass


@defence("the votes for a header", f"{CHAIN}.light:check_commit")
def _need_no_votes(block: Any) -> None:
    pass


@defence("the overlap of validators", f"{CHAIN}.light:check_power")
def _need_no_overlap(block: Any, validators: Any, thirds: Any, *, honest: Any) -> None:
    if thirds != 1:
        honest(block, validators, thirds)


@defence("the step from a trusted header", f"{CHAIN}.light:follows")
def _everything_follows(trusted: Any, block: Any) -> bool:
    return True


@defence("the trusting period", f"{CHAIN}.light:check_period")
def _trust_for_ever(trusted: Any, now: Any, trusting_s: Any) -> None:
    pass


@defence("the comparison of witnesses", f"{CHAIN}.light:compare_witnesses")
def _ask_no_witness(block: Any, witnesses: Any, chain_id: Any) -> None:
    pass


@defence("the check of an endpoint's proof", f"{CHAIN}.client:check")
def _believe_endpoints(proof: Any, trust: Any) -> None:
    pass


# --- readers ---


@defence(
    "the proof of a range", "tallystick.client.reader:verify_range", defined="tallystick.crypto.merkle:verify_range"
)
def _believe_ranges(leaf_hashes: Any, first: Any, size: Any, proof: Any, root: Any) -> None:
    pass


@defence(
    "the chain of a lane", "tallystick.client.reader:check_follows", defined="tallystick.parcel.verify:check_follows"
)
@defence("the chain of a lane", "tallystick.parcel.verify:check_follows")
def _take_any_successor(header: Any, sequence: Any, previous: Any) -> None:
    pass


@defence("the check that a wanted body came", "tallystick.parcel.labels:Wanted.asks_for")
def _want_nothing(self: Any, header: Any) -> bool:
    return False


@defence("the list of a write on the ledger", "tallystick.client.pending:Commits._check_list")
def _believe_lists(self: Any, listed: Any, header: Any, publisher: Any) -> None:
    pass


@defence("the first commit of a batch", "tallystick.client.pending:Commits._check_first")
def _commit_again(self: Any, listed: Any, header: Any, publisher: Any, place: Any) -> None:
    pass


@defence("escaping in the report", "tallystick.pipeline.jobs.report_html:escape", defined="html:escape")
def _write_as_it_is(s: Any, quote: Any) -> Any:
    return s


# --- keys ---


@defence("the permits in a lane key", "tallystick.parcel.keys:LaneKey.of")
def _derive_without_permits(
    cls: Any, secrets: Any, locks: Any, *, instance: Any, lane: Any, group: Any, permits: Any, honest: Any
) -> Any:
    return honest(cls, secrets, locks, instance=instance, lane=lane, group=group, permits=())


@defence("the permits around a capsule", "tallystick.parcel.locks:_context")
def _encapsulate_without_permits(instance: Any, lane: Any, permits: Any) -> bytes:
    return wire.encode([instance, lane])


@defence("the plaintext in an identifier", "tallystick.parcel.keys:IdentifierKeys.identifier")
def _identify_by_entropy_alone(self: Any, entropy: bytes, lane: Any, sequence: Any, frames: Any) -> bytes:
    return entropy[:16]


@defence("randomness of its own for each occurrence", "tallystick.crypto.abe.sharing:_with_occurrences")
def _share_one_randomness(found: Any) -> Any:
    """As in the published code of FABEO."""
    from tallystick.crypto.abe.sharing import ShareRow

    return [ShareRow(traits, 0) for traits in found]


def _one_hash(master: Any, text: str) -> bytes:
    """EventGuard 4.5: names of topics and identifiers of subscriptions under one keyed hash."""
    return derive(master._token_key, "tallystick token 1", b"", text.encode())


@defence("the labels of derivations", "tallystick.authority.master:MasterKey.token")
def _token_by_one_hash(self: Any, tenant: Any, name: str) -> bytes:
    return _one_hash(self, name)[:16]


@defence("the labels of derivations", "tallystick.authority.master:MasterKey.undo_token")
def _undo_token_by_one_hash(self: Any, operation: Any, identifier: bytes) -> bytes:
    return _one_hash(self, identifier.hex())


# --- disks ---


@defence("the sync of the spool before sending", "tallystick.client.spool:Spool.sync")
def _call_it_durable(self: Any) -> None:
    pass


@defence("the sync of segments before the promise", "tallystick.carriers.log.partition:Write.sync")
def _promise_the_page_cache(self: Any, disk: Any) -> None:
    self.close()


@defence("the end of a lane on the disk", "tallystick.client.lane_keys:OwnLane.encode")
def _forget_the_end(self: Any, identity: Any, entropy: Any, *, honest: Any) -> Any:
    return honest(replace(self, end=None), identity, entropy)


# --- Kafka ---

KAFKA = "tallystick.carriers.kafka"


@defence("the reconciler", f"{KAFKA}.reconcile:Reconciler.check")
def _let_kafka_drift(self: Any) -> list[Any]:
    return []


@defence("the signature on what gateways share", f"{KAFKA}.shared:Shared._check")
def _believe_kafka(self: Any, what: Any, data: Any) -> None:
    pass


@defence("the identity of a topic in Kafka", f"{KAFKA}.reconcile:KafkaTopics._what_happened")
def _go_by_the_name(self: Any, token: Any, found: Any) -> None:
    pass


@defence("a gateway's key for a passage", f"{KAFKA}.notary:Notary._is_passed")
def _anybody_passes(self: Any, record: Any, parcel: Any) -> bool:
    """Whoever is enrolled signs as if it were a gateway."""
    from tallystick.carriers.kafka.passage import Passage

    if record.passage is None:
        return False
    try:
        passage = Passage.decode(record.passage)
        passage.verify(parcel.hash, self._rules.verify_key(passage.node))
    except Refused:
        return False
    return True
