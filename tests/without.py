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
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blake3 import blake3

from tallystick import wire
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Refused
from tallystick.guards.publish import Accepted
from tallystick.ledger.contracts import anchors, blame
from tallystick.parcel.parcel import Parcel
from tallystick.trust.permit import UndoOrder
from tallystick.trust.promise import Anchor

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


@defence("the end of certificates", "tallystick.ledger.contracts.identity:IdentityRow.is_live")
def _certificates_for_ever(self: Any, time_ms: Any) -> bool:
    return True


@defence("a tenant's share of a disk", "tallystick.carriers.accounts:Quotas.charge")
def _store_whatever_comes(self: Any, tenant: Any, n_bytes: Any, stored: Any, now: Any) -> None:
    pass


@defence("the count of locks from before a restart", "tallystick.carriers.accounts:LockBytes._load")
def _count_locks_from_nothing(self: Any) -> dict[bytes, int]:
    return {}


@defence("the end of permits", "tallystick.carriers.rules:LedgerRules.permit_ended")
def _permits_for_ever(self: Any, identifier: Any) -> bool:
    return False


# --- the fabric's controllers ---

FABRIC = "tallystick.carriers.fabric"


@defence("the order of installing", f"{FABRIC}.planning:_steps")
def _install_from_the_publisher_down(height: Any, direction: Any, *, honest: Any) -> Any:
    return honest(height, -direction)


@defence("the tree in a label", f"{FABRIC}.labels:RouteLabels.down")
def _one_label_in_all_trees(self: Any, flow: Any, switch: Any, epoch: Any, tree: Any, *, honest: Any) -> Any:
    return honest(self, flow, switch, epoch, b"")


@defence("the way in a label up", f"{FABRIC}.labels:RouteLabels.up")
def _one_label_for_all_children(
    self: Any, flow: Any, switch: Any, epoch: Any, tree: Any, came: Any = 0, *, honest: Any
) -> Any:
    return honest(self, flow, switch, epoch, tree)


@defence("the role of a port", f"{FABRIC}.topology:FabricTopology._check_role")
def _host_and_link_at_once(self: Any, place: Any, is_host: Any) -> None:
    pass


@defence("probes both ways", f"{FABRIC}.topology:FabricTopology._both_ways")
def _one_direction_is_enough(self: Any, one: Any, back: Any) -> bool:
    return True


@defence("the hosts of a dispatcher", f"{FABRIC}.controller:FabricController._may_use")
def _any_port_of_anybody(self: Any, configurator: Any, owner: Any, request: Any) -> bool:
    return True


@defence("the rate of packet-ins", f"{FABRIC}.controller:FabricController._admits")
def _look_at_every_packet_in(self: Any, place: Any) -> bool:
    return True


@defence("the rest between two searches", f"{FABRIC}.blaming:AlterationSearch._check_rested")
def _search_anew_at_every_complaint(self: Any, now: Any) -> None:
    pass


# --- the overlay's routing ---

ROUTING = "tallystick.carriers.overlay.routing"


@defence("the voucher for old claims", "tallystick.carriers.overlay.claim_store:ClaimStore.vote")
def _believe_one_relay(self: Any, claim: Any, relay: Any, node: Any) -> None:
    pass


@defence("secrets by their publisher", "tallystick.carriers.overlay.sharing:OverlaySharing._secret")
def _any_publishers_secret(self: Any, publisher: Any, lock: Any) -> Any:
    return next((secret for (_, name), secret in reversed(self.opened.items()) if name == lock), None)


@defence("parcels held back until relays have shares", "tallystick.client.hands:Sender._sendable")
def _send_what_nobody_opens(self: Any, parcels: Any) -> list[Any]:
    return list(parcels)


@defence("f+1 relays that say the same of a parcel", "tallystick.carriers.overlay.tally:PublishTally._are_enough")
def _believe_any_relay(self: Any, relays: Any) -> bool:
    return bool(relays)


@defence("joint promises held to the plan", "tallystick.carriers.overlay.known_plans:KnownPlans.check_promise")
def _believe_any_joint_promise(self: Any, promise: Any) -> None:
    pass


@defence("joint promises below an anchor", "tallystick.carriers.overlay.known_plans:KnownPlans.is_ahead")
def _believe_old_joint_promises(self: Any, promise: Any) -> bool:
    return True


@defence("the names of locks at an edge", "tallystick.carriers.overlay.direct:OverlayCarrier._named")
def _take_any_lock(self: Any, ask: Any, is_it: Any) -> bytes:
    found: bytes = self._first(lambda _, node: ask(node))
    return found


@defence("the edge that a principal signs", f"{ROUTING}:Routing._towards")
def _go_by_the_last_hop(self: Any, edge: Any, *, last_hop: bytes) -> bytes:
    """As in Fig. 4: where it came from first."""
    return last_hop


@defence("the end of claims", f"{ROUTING}:Routing.has_ended")
def _claims_for_ever(self: Any, identifier: Any) -> bool:
    return False


@defence("the word that a claim was refused", f"{ROUTING}:Routing.receive_refusal")
def _take_all_for_accepted(self: Any, notice: Any, sender: Any) -> list[Any]:
    return []


@defence("the answer to an older claim", f"{ROUTING}:Routing._repeat")
def _say_nothing_to_older_claims(self: Any, old: Any, claim: Any, digest: Any, sender: Any, now: Any) -> list[Any]:
    return []


@defence("the room for one principal", "tallystick.carriers.overlay.claim_store:ClaimStore.check_room")
def _room_for_everybody(self: Any, principal: Any) -> None:
    pass


@defence("the room for one tenant", "tallystick.carriers.overlay.claim_store:ClaimStore._tenant")
def _count_claims_by_principal(self: Any, principal: Any) -> Any:
    return principal


@defence("the signature on a claim", "tallystick.guards.route:RoutingGuard._check_signature")
def _believe_whoever_is_named(self: Any, message: Any) -> None:
    pass


PROVED = "tallystick.carriers.overlay.proved"


@defence(
    "the range proof of what is caught up with",
    f"{PROVED}:verify_range",
    defined="tallystick.crypto.merkle:verify_range",
)
def _believe_any_parcels(leaf_hashes: Any, first: Any, size: Any, proof: Any, root: Any) -> None:
    pass


@defence("the authority's signature on a permit that came along", "tallystick.trust.permit:Permit.verify")
def _believe_any_permit(self: Any, authority: Any) -> None:
    pass


@defence(
    "the signature on what is caught up with",
    f"{PROVED}:check_signature",
    defined="tallystick.parcel.verify:check_signature",
)
def _believe_any_signature(parcel: Any, key: Any) -> None:
    pass


# --- lanes ---

HEADS = "tallystick.carriers.heads"


@defence("the index of sequences", f"{HEADS}:LaneIndex.find")
def _look_for_the_sequence(self: Any, place: Any, principal: Any, header: Any, work: Any) -> Any:
    """As before there was an index: through the headers, newest first."""
    for offset, other in _headers_back(self, place, self._storage.end(place)):
        if (other.lane, other.sequence) == (header.lane, header.sequence) and self._principal_of(other) == principal:
            return offset
    return None


@defence("the index of lanes below an offset", f"{HEADS}:LaneIndex.last_below")
def _look_for_the_lane(self: Any, place: Any, principal: Any, lane: Any, below: Any, work: Any) -> Any:
    for offset, other in _headers_back(self, place, below):
        if other.lane == lane and self._principal_of(other) == principal:
            return offset
    return None


def _headers_back(index: Any, place: Any, below: int) -> Iterator[tuple[int, Any]]:
    from tallystick.carriers.storage import headers_of

    for entry in reversed(list(headers_of(index._storage, place, 0, below))):
        yield entry.offset, Parcel.decode_front(entry.header).header


@defence("the charge for questions about lanes", f"{FRONT}:Front.asking")
@contextmanager
def _ask_for_nothing(self: Any, principal: Any, now: Any) -> Iterator[Any]:
    from tallystick.carriers.heads import ReadsLeft

    yield ReadsLeft()


@defence("the question whether a node carries it", "tallystick.carriers.rules:LedgerRules.carries")
def _carry_everything(self: Any, token: Any, partition: Any) -> bool:
    return True


@defence("the standing aside of refused anchors", "tallystick.carriers.scribe:Scribe._stand_aside")
def _offer_it_again(self: Any, anchor: Any, now_ms: Any) -> None:
    pass


# --- the ledger and its contracts ---


@defence("the contract's judgement of claims", "tallystick.ledger.contracts.operations:_judge_patiently")
def _believe_claims(call: Any, operator: Any, token: Any, kind: Any, request: Any, evidence: Any) -> None:
    from tallystick.ledger.contracts import reputation

    reputation.fall(call, operator)


@defence("the contract's patience", "tallystick.ledger.contracts.operations:_judge_patiently")
def _count_each(call: Any, operator: Any, token: Any, kind: Any, request: Any, evidence: Any) -> None:
    """As version 1 did."""
    from tallystick.ledger.contracts import operations

    operations._judge(call, operator, token, kind, request, evidence)


@defence("the owner's say over a topic", "tallystick.ledger.contracts.topics:is_owner_or_admin")
def _everybody_is_owner(state: Any, topic: Any, subject: Any) -> bool:
    return True


@defence("the binding of a token to its tenant", "tallystick.ledger.contracts.topics:_check_binding")
def _take_any_token(call: Any, token: Any, tenant: Any, binding: Any) -> None:
    pass


@defence("the owner's word on what is retired", "tallystick.ledger.contracts.anchors:_check_let_go")
def _retire_at_will(token: Any, partition: Any, below: Any, allowed: Any) -> None:
    pass


@defence("the right to release and to report", "tallystick.ledger.contracts.firmware:_require_writer")
def _anybody_releases(call: Any, token: Any) -> None:
    pass


@defence("the finality of a withdrawal", "tallystick.ledger.contracts.firmware:_check_not_withdrawn")
def _release_again(row: Any, image: Any) -> None:
    pass


@defence("the owner's word on campaigns", "tallystick.ledger.contracts.firmware:_require_planner")
def _anybody_plans(call: Any, token: Any) -> None:
    pass


@defence("the order of reports", "tallystick.ledger.contracts.firmware:_check_order")
def _take_any_report(row: Any, number: Any, phase: Any) -> None:
    pass


@defence("the bounds of counts", "tallystick.ledger.contracts.firmware:_check_counts")
def _believe_any_count(row: Any, succeeded: Any, failed: Any) -> None:
    pass


@defence("the soak time", "tallystick.ledger.contracts.firmware:_has_soaked")
def _soaked_at_once(row: Any, time_ms: Any) -> bool:
    return True


@defence(
    "the share of a phase", "tallystick.fleet.ota.released:is_member", defined="tallystick.trust.campaign:is_member"
)
def _reaches_everybody(campaign: Any, vehicle: Any, share: Any) -> bool:
    return True


@defence("the age of a checkpoint", "tallystick.client.ties:View._check_age")
def _however_old(self: Any, head: Any) -> Any:
    return head


@defence("the read-back of a slot", "tallystick.fleet.ota.slots:Staging._compare")
def _believe_the_storage(self: Any, number: Any, data: Any) -> None:
    pass


@defence("the sync of a slot", "tallystick.fleet.ota.slots:Staging._sync")
def _sync_some_day(self: Any) -> None:
    pass


@defence("the check at boot", "tallystick.fleet.ota.slots:Slots._check_image")
def _boot_unread(self: Any, record: Any) -> None:
    pass


@defence("the tries of a new image", "tallystick.fleet.ota.slots:_spend_try")
def _try_for_ever(record: Any) -> Any:
    return record


@defence("the rollback counter", "tallystick.fleet.ota.slots:_check_counter")
def _install_any_age(record: Any, root: Any, counter: Any) -> None:
    pass


@defence("the threshold of administrators", "tallystick.ledger.contracts.plans:_check_signed")
def _take_any_signatures(call: Any, row: Any, context: Any, statement: Any, signatures: Any) -> None:
    """One of them, or a stranger, decides."""


@defence("the enrolment of relays", "tallystick.ledger.contracts.plans:_seat")
def _seat_anybody(call: Any, overlay: Any, relay: Any) -> None:
    """Whom the plan names is a relay."""


@defence("the claim of a lease's holder", "tallystick.ledger.contracts.leases:_is_good")
def _nobody_holds(call: Any, plan: Any, word: Any, holder: Any) -> bool:
    return False


@defence("what waits is brought to the orderer", "tallystick.carriers.overlay.order_messages:OrderMessages.bring")
def _leave_it(self: Any, partition: Any, holder: bytes, now: float) -> list[Any]:
    return []


@defence(
    "the guard of what is brought",
    "tallystick.carriers.overlay.keeper:judge_pushed",
    defined="tallystick.carriers.received:judge_pushed",
)
def _take_what_is_brought(front: Any, pushed: Any, locks: Any) -> Any:
    return None


@defence("what is ordered is asked for", "tallystick.carriers.overlay.ordering:Ordering._fetch_ordered")
def _wait_for_it(self: Any, partition: Any, lease: Any, now: float) -> list[Any]:
    return []


@defence("the order of lanes", "tallystick.carriers.overlay.places:Line.fits")
def _fits_anywhere(self: Any, header: Any, offset: int, is_next: Any) -> bool:
    return True


@defence("what was forked is recalled", "tallystick.carriers.overlay.ordering:Ordering._recount")
def _keep_what_was_counted(self: Any, partition: Any, offset: int, now: float) -> list[Any]:
    return []


@defence("an order said again", "tallystick.carriers.overlay.order_messages:OrderMessages.repeat")
def _say_once(self: Any, partition: Any, now: float) -> list[Any]:
    return []


@defence("the signatures of an anchor", "tallystick.ledger.contracts.anchors:_check_joint")
def _no_joint(call: Any, entry: list[Any], found: Anchor) -> int:
    """The holder's word is enough."""
    return int(entry[5])


@defence("the size that an anchor continues", "tallystick.ledger.contracts.anchors:_grow_from")
def _continue_anything(call: Any, found: Anchor, before: Any) -> Any:
    return anchors._grow(call, found)


@defence("the root that a relay computes itself", "tallystick.carriers.overlay.anchoring:Anchoring._check_tree")
def _sign_any_tree(self: Any, place: Any, joint: Any) -> None:
    """The holder's word is enough."""


@defence("the end of a lease", "tallystick.ledger.contracts.leases:LeaseRow.is_held")
def _held_for_ever(self: Any, word: Any, time_ms: Any) -> bool:
    return True


@defence("the count of accusers", "tallystick.ledger.contracts.blame:_count")
def _believe_one_accuser(call: Any, plan: Any, relay: Any, theirs: Any) -> None:
    blame._note_failure(call, relay, plan.version)


@defence("the judgement of a share", "tallystick.ledger.contracts.blame:_fits")
def _no_share_fits(shares: Any, listed: Any, number: Any) -> bool:
    return False


@defence("the fence of a promised place", "tallystick.trust.promise:JointPromise.contradicts")
def _compare_under_any_fence(self: Any, other: Any) -> bool:
    return bool(self.offset == other.offset and self.parcel != other.parcel)


@defence("the judgement of an accusation", "tallystick.carriers.overlay.accuse:_check")
def _accuse_by_anything(is_proof: Any) -> None:
    pass


PARTITION = "tallystick.carriers.overlay.places:OrderedPartition"


@defence("the count of stories by who tells them", f"{PARTITION}._check_stories")
def _count_stories_together(self: Any, heard: Any, sender: Any, stories_max: Any) -> None:
    if len(heard) >= 6:
        raise Refused("too many", reason="full")


@defence("the memory of what was signed", f"{PARTITION}.is_bound")
def _sign_whatever_is_ordered(self: Any, promise: Any) -> bool:
    return False


@defence("the finding of what was retired", "tallystick.client.fetching:Fetcher._tell_retired")
def _skip_without_a_word(self: Any, reader: Any, below: Any) -> None:
    pass


@defence(
    "the mark of a revoked key", "tallystick.client.fetching:is_suspect", defined="tallystick.client.reader:is_suspect"
)
def _trust_revoked_keys(revoked: Any, height: Any) -> bool:
    return False


@defence(
    "the proof of what was anchored before a revocation",
    "tallystick.client.fetching:stands_below",
    defined="tallystick.trust.receipt:stands_below",
)
def _believe_any_anchor(publisher: Any, place: Any, revocation: Any, anchor: Any, later: Any, path: Any) -> int:
    return Anchor.decode_entry(anchor.proof.entry).size


@defence("the look at keys while one reads on", "tallystick.client.fetching:Revocations._is_known")
def _look_once(self: Any, publisher: Any, anchor: Any) -> bool:
    return publisher in self._known


@defence("the offsets that were seen early", "tallystick.carriers.log.store:LogStore._pass_over_seen")
def _go_on_where_it_ends(self: Any) -> None:
    pass


@defence("the tenure of a node that promised", "tallystick.ledger.contracts.anchors:_check_tenure")
def _blame_whoever_promised(call: Any, promise: Any) -> None:
    pass


@defence("the tenant behind a name", "tallystick.authority.topics:Topics.token")
def _first_token(self: Any, tenant: Any, name: Any) -> bytes:
    return bytes(self._first_token(tenant, name))


@defence("the tenant in a grant", "tallystick.authority.client:AuthorityClient._check_own")
def _take_another_tenant_s(self: Any, name: Any, permit: Any) -> None:
    pass


@defence("the client's check of a binding", "tallystick.authority.client:AuthorityClient._check_binding")
def _believe_bindings(self: Any, draft: Any) -> None:
    pass


@defence(
    "the tenant of a proved topic",
    "tallystick.parcel.prove:verify_tenant",
    defined="tallystick.trust.receipt:verify_tenant",
)
def _believe_the_permit(data: Any, token: Any, trust: Any) -> Any:
    return None


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
def _forget_the_older(self: Any, known: Any, shown: Any, lowest: Any, consistency: Any) -> None:
    pass


@defence("the old roots' word on a new trust file", "tallystick.trust.trustfile:TrustFile.check_successor")
def _follow_anybody(self: Any, new: Any, signatures_of_old: Any = None) -> None:
    pass


@defence("the comparison with others' checkpoints", "tallystick.ledger.proofs:CheckpointMemory.check_seen")
def _believe_each_history(self: Any, size: Any, root: Any, consistency: Any, head: Any = None) -> bool:
    return True


@defence("a tenant's quota on the ledger", "tallystick.ledger.contracts.quotas:_hold")
def _share_everything(call: Any, setting: Any, wanted: Any, what: Any) -> None:
    pass


@defence("the bound on a group's offset", "tallystick.ledger.contracts.groups:_check_ahead")
def _skip_ahead(call: Any, entry: Any) -> None:
    pass


# --- names and what is printed ---


@defence(
    "the client's look at a new name",
    "tallystick.authority.client:check_no_identifier",
    defined="tallystick.wire:check_no_identifier",
)
@defence(
    "the authority's look at a new name",
    "tallystick.authority.enrolment:check_no_identifier",
    defined="tallystick.wire:check_no_identifier",
)
@defence(
    "the authority's look at a topic's name",
    "tallystick.authority.topics:check_no_identifier",
    defined="tallystick.wire:check_no_identifier",
)
def _take_any_name(name: Any, what: Any) -> None:
    pass


@defence("the look at an identifier before names", "tallystick.wire:is_identifier")
def _names_first(text: Any) -> bool:
    return False


@defence("numbers of plain digits", "tallystick.wire:is_number")
@defence("numbers of plain digits", "tallystick.pipeline.options:is_number", defined="tallystick.wire:is_number")
def _take_what_python_takes(text: Any) -> bool:
    return bool(text.isdigit())


@defence("the escaping of what is printed", "tallystick.cli.output:shown")
def _print_as_it_is(text: Any) -> Any:
    return text


@defence("the look at who carries what passed", "tallystick.carriers.rules:LedgerRules.is_carried_by")
def _believe_any_node(self: Any, node: Any, token: Any, partition: Any) -> bool:
    return True


# --- the chain ---

CHAIN = "tallystick.ledger.cometbft"


@defence(
    "the issuer of a stranger who writes",
    f"{CHAIN}.application:admit",
    defined="tallystick.ledger.contracts.execute:admit",
)
def _pass_strangers_on(state: Any, transaction: Any, height: Any, time_ms: Any) -> None:
    from tallystick.ledger.contracts.execute import authenticate

    authenticate(state, transaction, height, time_ms, 0)


@defence("the patience with who is refused", f"{CHAIN}.application:LedgerApplication._check_patience")
def _never_tire(self: Any, author: Any, now_s: Any) -> None:
    pass


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


@defence("listeners that wait for the checkpoint", f"{CHAIN}.client:CometbftLedger._tell")
def _tell_at_once(self: Any) -> None:
    while self._untold:
        told = self._untold.popleft()
        for listener in self._listeners:
            listener(*told)


@defence("the second validator behind an answer", f"{CHAIN}.queries:voices_needed")
def _believe_the_first(trust: Any) -> int:
    return 1


@defence("the signature under an answer", f"{CHAIN}.queries:check_vouch")
def _believe_any_key(trust: Any, key: Any, signature: Any, statement: Any) -> None:
    pass


@defence("the deadline of a whole answer", f"{CHAIN}.rpc:_Socket.recv_into")
def _wait_for_each_byte(self: Any, *arguments: Any, **options: Any) -> Any:
    return socket.socket.recv_into(self, *arguments, **options)


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


@defence("the bound on what a frame opens to", "tallystick.parcel.parcel:check_ratio")
def _open_whatever_is_declared(raw_bytes: Any, content_bytes: Any) -> None:
    pass


@defence("the room of a round", "tallystick.parcel.parcel:Room.take")
def _have_room_for_all(self: Any, size: Any) -> None:
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


@defence("escaping in the report", "tallystick.page.html:escape", defined="html:escape")
def _write_as_it_is(s: Any, quote: Any) -> Any:
    return s


# --- answers of the authority ---


@defence("the signature on an answer", "tallystick.runtime.conversation:Conversation._check_vouched")
def _believe_whoever_answers(self: Any, endpoint: Any, head: Any, answer: Any) -> None:
    pass


@defence(
    "the request in an answer's signature",
    "tallystick.runtime.conversation:asked_hash",
    defined="tallystick.trust.envelope:asked_hash",
)
@defence(
    "the request in an answer's signature",
    "tallystick.runtime.router:asked_hash",
    defined="tallystick.trust.envelope:asked_hash",
)
def _sign_the_answer_alone(head: Any) -> bytes:
    return bytes(32)


@defence("the comparison of keys with the ledger", "tallystick.client.grants:announced_keys")
def _compare_no_keys(grant: Any, before: Any, authority: Any) -> list[Any]:
    return []


@defence("the comparison of erasure and policy keys", "tallystick.client.grants:announced_beside")
def _compare_no_keys_beside(grant: Any, before: Any) -> list[Any]:
    return []


@defence("entries built by who signs them", "tallystick.authority.client:check_built")
def _sign_what_is_suggested(built: Any, suggested: Any, what: Any) -> None:
    pass


# --- keys ---


@defence("the share of others' grants in a key", "tallystick.authority.attributes:Attributes._traits")
def _make_keys_of_everything(self: Any, principal: Any) -> Any:
    found = [self._traits_of(one.tenant, ((one.name, one.value),)) for one in self.held(principal)]
    return frozenset().union(*found)


@defence("the share of others' grants in a draft", "tallystick.authority.attributes:Attributes._check_share")
def _draft_everything(self: Any, tenant: Any, principal: Any, wanted: Any) -> None:
    pass


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


@defence("a topic refused by the name it was asked for", "tallystick.authority.topics:Topics.require_right")
def _refuse_by_token(self: Any, granted: Any, operation: Any, token: Any, asked: Any, *, honest: Any) -> Any:
    return honest(self, granted, operation, token, token)


# --- shares ---


@defence("pools and shares of their own", "tallystick.runtime.router:Pool.run")
async def _run_among_all(self: Any, who: Any, work: Any) -> Any:
    """As before there were any: the event loop's own threads, for whoever comes first."""
    import asyncio

    return await asyncio.to_thread(work)


@defence("what was worked for a tenant", "tallystick.runtime.router:Fairness.note")
def _count_no_work(self: Any, who: Any, worked_s: Any) -> None:
    pass


@defence("keys that a thread asks for", "tallystick.runtime.router:Gate._verified")
async def _ask_on_the_event_loop(self: Any, head: Any) -> Any:
    return self.verify(head)


@defence("the share of an address", "tallystick.runtime.server:_neighbourhood")
def _count_each_connection_alone(address: Any) -> str:
    return str(address)


@defence("the network of an address", "tallystick.runtime.server:_neighbourhood")
def _count_each_address_alone(address: Any) -> str:
    return "" if address is None else str(address[0])


@defence("the rate of a principal", "tallystick.runtime.router:Rates.charge")
def _answer_as_often_as_asked(self: Any, principal: Any, now: Any, count: Any = 1) -> None:
    pass


@defence("a principal's share of requests under way", "tallystick.runtime.router:Shares.held")
@contextmanager
def _hold_as_many_as_one_likes(self: Any, who: Any) -> Iterator[None]:
    yield


@defence("the share of a group", "tallystick.carriers.desk:next_group")
def _first_come(waiting: Any, most: Any, share: Any) -> Any:
    return waiting[:most], waiting[most:]


@defence("counters without the lock", f"{FRONT}:Front.statistics")
def _count_under_the_lock(self: Any, *, honest: Any) -> Any:
    with self.lock:
        return honest(self)


@defence("a reader of its own for whoever searches", "tallystick.ledger.sqlite:SqliteLedger._searching")
@contextmanager
def _search_under_the_lock(self: Any) -> Iterator[Any]:
    with self._lock:
        yield self._reader


@defence("the guards' lock let go of at the disk", f"{FRONT}:Front._sync")
def _sync_under_the_lock(self: Any, *, honest: Any) -> None:
    with self.lock:
        honest(self)


@defence("an answer that was overtaken asked for again", "tallystick.authority.ledger_view:LedgerView._is_overtaken")
def _take_it_as_it_came(self: Any, seen: Any, notes: Any) -> bool:
    return False


@defence("the store's lock let go of while following", "tallystick.authority.authority:Authority.follow")
def _follow_under_the_lock(self: Any, *, honest: Any) -> None:
    with self.core.store.lock:
        honest(self)


@defence("the ledger asked before the store's lock", "tallystick.authority.permits:Permits.prepare")
def _prepare_under_the_lock(
    self: Any, caller: Any, operation: Any, topic: Any, first_epoch: Any, interest: Any = "", *, honest: Any
) -> Any:
    with self._store.lock:
        return honest(self, caller, operation, topic, first_epoch, interest)


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


@defence("headers that cannot be read", f"{KAFKA}.consumers:passage_of")
def _read_all_headers(message: Any) -> Any:
    from tallystick.carriers.kafka.consumers import read_headers
    from tallystick.carriers.kafka.passage import PASSAGE

    return dict(read_headers(message) or ()).get(PASSAGE)


@defence("a gateway's key for a passage", f"{KAFKA}.notary:is_passed")
def _anybody_passes(data: Any, parcel: Any, place: Any, rules: Any) -> bool:
    """Whoever is enrolled signs as if it were a gateway."""
    from tallystick.carriers.kafka.passage import Passage

    if data is None:
        return False
    try:
        passage = Passage.decode(data)
        passage.verify(parcel, rules.verify_key(passage.node))
    except Refused:
        return False
    return True


# --- requests ---


@defence(
    "the one reading of a request",
    "tallystick.runtime.server:misreading",
    defined="tallystick.runtime.http1:misreading",
)
def _read_as_llhttp_does(version: Any, target: Any, headers: Any) -> None:
    """Whatever the parser lets pass."""


@defence("one request at a time", "tallystick.runtime.server:is_asked")
def _queue_what_follows(cycle: Any) -> bool:
    return False


# --- the overlay ---


@defence("empty sets that stay open", "tallystick.carriers.overlay.relayed_keys:ShareAttempt.is_open")
def _close_in_time(self: Any) -> bool:
    return self.held is None


@defence("waits that grow with the way", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding._wait_s")
def _wait_the_same_everywhere(self: Any, depth: Any, number: Any, *, honest: Any) -> Any:
    return honest(self, 1, number)


@defence("polynomials that are a function of the lineage", "tallystick.carriers.overlay.redistribution:polynomial_seed")
def _draw_a_new_one(erasable: Any, hop: Any, lineage: Any) -> bytes:
    return os.urandom(32)


@defence("asking for what did not come", "tallystick.carriers.overlay.content_forwarding:ContentForwarding._ask")
def _leave_it_missing(self: Any, name: Any, errand: Any, effects: Any) -> None:
    pass


@defence("a branch is served once", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding._fresh")
def _serve_all_again(self: Any, lane: Any) -> Any:
    return self._branches(lane)


@defence("what was said is not said again", "tallystick.carriers.overlay.accuse:Accusations._note")
def _say_it_again(self: Any, *what: Any) -> bool:
    return True


@defence("the live permit of a pull", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding._may_pull")
def _give_to_who_once_had_one(self: Any, lane: Any, subscriber: Any, permit: Any, now: Any) -> bool:
    return True


@defence("a tenant's share of lane keys", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding._check_room")
def _count_by_publisher(self: Any, publisher: Any, tenant: Any, spare: Any = 0, *, honest: Any) -> None:
    honest(self, publisher, publisher, spare)


@defence(
    "what a full relay says of a new key", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding.check_new"
)
def _drop_it_quietly(self: Any, frame: Any, now: Any) -> None:
    pass


@defence("the tenants whose parcels an edge keeps", "tallystick.carriers.overlay.server:_keep")
def _keep_everybody_s(value: Any, rules: Any, deliver: Any) -> None:
    deliver(value)


@defence("the end of patience with a holder", "tallystick.carriers.overlay.leading:_is_too_long")
def _wait_for_ever(waited_ms: Any, word: Any) -> bool:
    return False


@defence(
    "keys that are older than the relay", "tallystick.carriers.overlay.secret_forwarding:SecretForwarding._is_older"
)
def _sign_whatever_comes(self: Any, origin: Any) -> bool:
    return False


@defence("more signatures than may be bad", "tallystick.trust.promise:Joint.verify")
def _believe_one(self: Any, plan: Any) -> None:
    pass


# --- links ---

QUEUES = "tallystick.runtime.queues"


@defence("the key of a link's peer", "tallystick.runtime.links:shows", defined="tallystick.runtime.pinned_tls:shows")
def _believe_the_name(transport: Any, key: Any) -> bool:
    """Whoever is in the directory may be anybody in it."""
    return True


@defence("the pinned certificates of a link", "tallystick.runtime.pinned_tls:PinnedTls.contexts")
def _ask_for_no_certificate(self: Any, keys: Any, *, honest: Any) -> Any:
    contexts = honest(self, keys)
    for context in contexts:
        context.verify_mode = ssl.CERT_NONE
    return contexts


@defence("the turns of those who send", f"{QUEUES}:InputQueue._line_up")
def _first_come_first_served(self: Any, sender: Any) -> None:
    if self._turns.count(sender) < self.waiting(sender):
        self._turns.append(sender)


@defence("a pause for who sends the most", f"{QUEUES}:InputQueue.must_pause")
def _read_on(self: Any, sender: Any) -> bool:
    return False


@defence("the bound of what waits for a peer", f"{QUEUES}:OutputQueue.put")
def _keep_for_later(self: Any, message: Any) -> None:
    self._waiting.append(message)
    self.bytes += len(message)


@defence("the look at a process before a fault", "tallystick.engines.chaos:_check_ours")
def _whatever_has_the_number(pid: Any, mark: Any, parent: Any) -> None:
    pass


# --- the mesh ---

MESH = "tallystick.carriers.mesh"


@defence("the anchor of an advertisement's chain", f"{MESH}.advertisement:steps_left")
def _any_nonce_as_in_the_paper(h: Any, anchor: Any) -> int:
    """AnonPubSub 4.3: nothing says where a chain ends."""
    return 128


@defence(
    "the certificates of the mesh's publishers",
    f"{MESH}.advertisement:check_publisher",
    defined="tallystick.trust.mesh:check_publisher",
)
def _anybody_publishes(pseudonym: Any, epoch: Any, key: Any, certificate: Any, authority: Any) -> None:
    pass


@defence("the value that takes an advertisement back", f"{MESH}.advertisement:Advertisement.check_undo")
def _anybody_takes_it_back(self: Any, preimage: Any) -> None:
    pass


@defence("the mesh guard's memory", "tallystick.guards.route:Window.has")
def _remember_nothing(self: Any, signer: Any, identifier: Any) -> bool:
    return False


@defence("the age of the mesh's envelopes", f"{MESH}.guard:MeshGuard._check_time")
def _take_whatever_time(self: Any, envelope: Any, now_ms: Any) -> None:
    pass


@defence("the signature on the mesh's envelopes", f"{MESH}.guard:MeshGuard._check_signature")
def _believe_every_envelope(self: Any, envelope: Any) -> None:
    pass


@defence("the room for unfinished messages", f"{MESH}.cells:CellsIn._has_room")
def _keep_every_piece(self: Any, piece: Any) -> bool:
    return True


@defence("the sessions that are over", f"{MESH}.mesh_link:MeshLink._end")
def _forget_sessions(self: Any, session: Any) -> None:
    pass


@defence("the two directions of a link", f"{MESH}.link_keys:LinkSession.between")
def _one_key_for_both(cls: Any, own: Any, peer: Any, agreed: Any, fresh: Any, knock: Any, *, honest: Any) -> Any:
    session = honest(cls, own, peer, agreed, fresh, knock)
    session._out = session._in = min(session._out, session._in)
    return session


@defence("the members' pass", f"{MESH}.link_layer:LinkLayer._check_member")
def _let_everybody_in(self: Any, key: Any, shown: Any, now: Any) -> None:
    pass


@defence("the fresh keys of a link", f"{MESH}.mesh_link:MeshLink._draw")
def _lasting_keys_alone(self: Any) -> Any:
    return ExchangeKey(bytes(32))


# --- the mesh's roles ---


@defence("the bound on what a neighbour introduces", f"{MESH}.membership:Membership._line")
def _take_whoever_is_brought(self: Any, introducer: Any) -> set[bytes]:
    return set()


@defence("the certificates of members", f"{MESH}.members:MemberEntry.check")
def _everybody_is_a_member(self: Any, now_ms: Any, authority: Any) -> None:
    pass


@defence("the proof that a publisher is still heard", f"{MESH}.community:Community._is_silent")
def _believe_in_links(self: Any, state: Any, handle: Any, now: Any) -> bool:
    return handle not in state.asked


# --- datagrams ---


@defence("the strangers' own room", "tallystick.runtime.datagrams:DatagramQueue.put")
def _one_queue_for_all(self: Any, sender: Any, message: Any) -> str:
    self._far.put(sender, message)
    return ""


@defence("envelopes in both directions", f"{MESH}.distribution:Distribution._onward")
def _along_the_subscriptions_alone(self: Any, pseudonym: Any, sender: Any) -> list[bytes]:
    """AnonPubSub 4.6: from the publisher at the root to those who subscribed through each."""
    return [one for one, link in self._matching.links(pseudonym).items() if link.is_down and one != sender]


@defence("the locks of a swap", f"{MESH}.shell_game:ShellGame._is_free")
def _swap_whoever_is_asked(self: Any, pseudonym: Any, swap: Any, sender: Any, now: Any) -> bool:
    self.locks.pop(pseudonym, None)
    return True


@defence("the new neighbour's word in a swap", f"{MESH}.shell_game:ShellGame._move")
def _let_go_at_once(self: Any, pseudonym: Any, lock: Any, now: Any, *, honest: Any) -> None:
    honest(self, pseudonym, lock, now)
    for old, new in lock.moves.items():
        if self._matching.links(pseudonym)[new.identity].replaces:
            self._matching.links(pseudonym)[new.identity].replaces = b""
            self._matching.drop(pseudonym, old)


# --- the mesh as a carrier ---


@defence("a mesh node's one principal", "tallystick.carriers.accounts:Acts._check_served")
def _serve_whoever_comes(self: Any, asked: Any) -> None:
    pass


@defence("the order of arrivals", f"{MESH}.arrivals:Arrivals._place")
def _as_it_comes(self: Any, publisher: Any, pushed: Any, now: Any) -> bool:
    self._ready.append(pushed)
    return True


MESH_AUTHORITY = "tallystick.authority.mesh"


@defence("the right behind mesh keys", f"{MESH_AUTHORITY}:Mesh._check_wanted")
def _mesh_keys_for_everybody(self: Any, principal: Any, request: Any) -> None:
    pass


@defence("the renewal of mesh keys", f"{MESH_AUTHORITY}:Mesh._renew")
def _mesh_keys_for_ever(self: Any, token: Any, epoch: Any) -> None:
    pass


@defence("what was followed while rights were read", f"{MESH_AUTHORITY}:Mesh._at_one_height")
def _whatever_was_followed(self: Any, check: Any, give: Any) -> Any:
    check()
    with self._store.transaction():
        return give()


@defence("the mesh keys' stay before an epoch", f"{MESH_AUTHORITY}:Mesh._first_renewed")
def _from_the_next_epoch_at_any_time(self: Any) -> int:
    return int(self.epoch) + 1


@defence("one key of a publisher on the mesh", f"{MESH_AUTHORITY}:Mesh._publisher_seed")
def _many_keys(self: Any, principal: Any, pseudonym: Any, epoch: Any) -> bytes:
    return bytes(self._core.entropy.bytes(32))


@defence("one node of a principal on the mesh", f"{MESH_AUTHORITY}:Mesh._check_only_node")
def _many_nodes(self: Any, principal: Any, key: Any) -> None:
    pass


@defence("the principal in a request about the mesh", f"{MESH_AUTHORITY}_messages:_request_info")
def _request_of_anybody(instance: Any, principal: Any) -> bytes:
    return b""


@defence("the signature on a mesh update", f"{MESH_AUTHORITY}_messages:_check_update")
def _believe_every_update(body: Any, signature: Any, key: Any) -> None:
    pass


@defence("refusals under the seal of an answer", f"{MESH_AUTHORITY}:Mesh._refuse")
def _refuse_openly(self: Any, error: Any) -> bytes:
    raise error


@defence("the way out of a mesh node's log", f"{MESH}.keeping:MeshStorage._let_go")
def _stay_at_home(self: Any, parcel: Any, places: Any, now_ms: Any) -> None:
    pass


@defence("the neighbours of before on a topic", f"{MESH}.mesh_node:MeshNode._rejoin")
def _meet_others(self: Any, now: Any) -> list[Any]:
    return []


@defence("updates for nobody", f"{MESH_AUTHORITY}:Mesh._for_nobody")
def _as_many_as_members(self: Any, count: Any) -> list[bytes]:
    return []


@defence("the end of a node that was replaced", f"{MESH_AUTHORITY}:Mesh._is_prolonged")
def _prolonged_for_ever(self: Any, principal: Any) -> bool:
    return True


@defence("the groups at a mesh node", "tallystick.client.group:_books")
def _groups_on_the_ledger(ties: Any) -> Any:
    return ties.author, ties.view


@defence(
    "the choice of a topic's carrier",
    "tallystick.client.session:find_choice",
    defined="tallystick.identity.choices:find_choice",
)
def _with_the_rest(home: Any, topics: Any, carrier: Any = None) -> None:
    return None


@defence("the owner's word on a mesh's terms", f"{MESH_AUTHORITY}_terms:MeshTerms.check")
def _terms_of_anybody(self: Any, principal: Any, request: Any) -> None:
    pass


@defence("the guise in a subscription", f"{MESH}.matching:Matching.say")
def _say_nothing_of_it(self: Any, pseudonym: Any, neighbour: Any) -> Any:
    kind = importlib.import_module(f"{MESH}.frames")
    return kind.tell(neighbour, kind.MeshKind.SUBSCRIBE, pseudonym, int(self.topics[pseudonym][neighbour].stance))


@defence("the locks of a mesh that go again", f"{MESH}.keeping:MeshStorage._introduction")
def _once_for_each_lane(self: Any, header: Any, now_ms: Any, *, honest: Any) -> Any:
    return ((), ()) if header.sequence else honest(self, header, now_ms)


@defence("late answers on a link", f"{MESH}.resending:CellsOut._take_late")
def _too_late(self: Any, number: Any, *, is_told: Any) -> None:
    del self._late[number]


# --- the mesh: bad input ---


@defence("the neighbours on a topic", f"{MESH}.distribution:Distribution._check_neighbour")
def _whoever_sends(self: Any, pseudonym: Any, sender: Any) -> None:
    pass


@defence("the room for advertisements", f"{MESH}.localisation:Localisation._check_room")
def _room_for_all(self: Any, advertisement: Any, sender: Any) -> None:
    pass


@defence("the patience with a neighbour on the mesh", f"{MESH}.mesh_node:MeshNode._check_patience")
def _hear_everything(self: Any, sender: Any, now: Any) -> None:
    pass


@defence("the size of what passes on the mesh", f"{MESH}.guard:MeshGuard._check_size")
def _of_any_size(self: Any, data: Any) -> None:
    pass


# --- the fabric's hosts ---


@defence("the tag on fragments", f"{FABRIC}.fragments:decrypt", defined="tallystick.crypto.symmetric:decrypt")
def _fragments_untagged(key: Any, ciphertext: Any, aad: Any = b"") -> bytes:
    return bytes(ciphertext[:-16])


@defence("the memory of finished parcels", f"{FABRIC}.reassembly:Reassemblies._is_over")
def _finished_forgotten(self: Any, handle: Any) -> bool:
    return False


@defence("the hashes of blocks", f"{FABRIC}.reassembly:Reassembly._verify")
def _blocks_unverified(self: Any, front: Any, number: Any) -> None:
    return None


@defence("the rest between two repairs", f"{FABRIC}.repair:Resent._may_go")
def _repairs_without_rest(self: Any, one: Any, index: Any, now: Any) -> bool:
    return True


@defence("the number of repairs", f"{FABRIC}.repair:Resent._has_had_enough")
def _repairs_without_end(self: Any, one: Any) -> bool:
    return False


@defence("the dispatcher's signature on answers", f"{FABRIC}.agent:FabricAgent._check_answer")
def _answers_of_anybody(self: Any, answer: Any) -> None:
    return None


@defence("the time of answers", f"{FABRIC}.agent:FabricAgent._check_newer")
def _answers_of_any_time(self: Any, one: Any, answer: Any) -> None:
    return None


@defence("the address of requests to a dispatcher", f"{FABRIC}.control:_check_addressed")
def _requests_to_anybody(envelope: Any, node: Any) -> None:
    return None


@defence("the key of complaints", f"{FABRIC}.dispatcher:Dispatcher._key_of")
def _complaints_of_anybody(self: Any, who: Any, *, key: Any) -> Any:
    return key


@defence("the rate of complaints", f"{FABRIC}.dispatcher:Dispatcher._check_complaints")
def _complaints_without_rate(self: Any, asker: Any, now: Any) -> None:
    return None


@defence("the rate of a port", f"{FABRIC}.dispatcher:Dispatcher._check_rate")
def _ports_without_rate(self: Any, place: Any, now: Any) -> None:
    return None


SWITCH = "tallystick.carriers.fabric"


@defence("the election number of who writes", f"{SWITCH}.switch_state:Arbitration.check")
def _anybody_writes(self: Any, election: Any) -> None:
    pass


@defence("the packet-ins of one port", f"{SWITCH}.p4_server:SwitchServer._is_within")
def _as_many_as_come(self: Any, port: Any) -> bool:
    return True


@defence("the controller's port in a rule", f"{SWITCH}.p4_entities:_check_port")
def _any_port(port: Any) -> int:
    return int(port)


@defence("interfaces in use", f"{SWITCH}.wires:check_unused")
def _any_interface(interface: Any) -> None:
    pass


# --- objects: fetching ---

OBJECTS = "tallystick.objects"
FETCH = f"{OBJECTS}.fetch:ObjectFetch"


@defence("the root over the uncle layer", f"{OBJECTS}.layout:Docket.check_uncles")
def _uncles_of_any_tree(self: Any, depth: Any, uncles: Any) -> Any:
    return importlib.import_module("tallystick.crypto.merkle").cut(self.count, depth)


@defence("the uncle over its slips", f"{OBJECTS}.layout:Docket.check_slips")
def _slips_of_any_tree(self: Any, first: Any, end: Any, uncle: Any, data: Any, *, honest: Any) -> Any:
    layout = importlib.import_module(f"{OBJECTS}.layout")
    return honest(self, first, end, layout.slips_root(data), data)


@defence("the hash of what lies on disk", f"{OBJECTS}.fetching:FolderKeeper._lies_there")
def _as_long_as_something_lies_there(self: Any, number: Any, slip: Any) -> bool:
    return bool(self._slips.sealed[number] + slip.sealed_length <= self._files[0].size())


@defence("the length of an answer", f"{FETCH}._check_length")
def _of_any_length(self: Any, asked: Any, data: Any) -> None:
    pass


@defence("the end of a server that lied", f"{FETCH}._exclude")
def _ask_it_again(self: Any, lane: Any) -> None:
    pass


@defence("the fence of seeders", f"{FETCH}._is_newest")
def _whoever_deals_last(self: Any, fence: Any) -> bool:
    return True


@defence("the floor under a server's rate", f"{OBJECTS}.asking:RangeRequest.is_overdue")
def _patient_with_servers(self: Any, now: Any) -> bool:
    return False


@defence("what idle servers take from slow ones", f"{OBJECTS}.dealing:Stretches._take_over")
def _each_its_own(self: Any, server: Any) -> None:
    return None


@defence("the bound of a chunk", "tallystick.objects.layout:Slip.decode")
def _chunks_of_any_length(cls: Any, data: Any, what: Any = "slip") -> Any:
    return cls(bytes(data[:32]), *struct.unpack(">II", data[32:40]), bytes(data[40:]))


@defence("the key of plain hashes", "tallystick.objects.layout:ObjectKey.plain_hash")
def _plain_hash_without_key(self: Any, plain: Any) -> bytes:
    return bytes(blake3(plain).digest())


@defence("the hash of a sealed chunk", "tallystick.objects.layout:Slip.check")
def _any_sealed_chunk(self: Any, sealed: Any, what: Any) -> None:
    return None


@defence(
    "the range of an answer",
    "tallystick.runtime.client:check_range",
    defined="tallystick.runtime.http1:check_range",
)
def _any_range(response: Any, first: Any, n: Any) -> tuple[bytes, int]:
    return response.body, first + n


@defence("the end of a mirror's lease", "tallystick.fleet.ota.mirrors:ImageMirror._stand_down")
def _seed_for_ever(self: Any) -> None:
    pass


# --- updates over the air: metadata ---

METADATA = "tallystick.fleet.ota.metadata"
ACCEPTED = f"{METADATA}:AcceptedTargets"


@defence("the ledger's time for metadata", f"{METADATA}:as_datetime")
def _a_clock_that_stands(time_ms: Any, *, stands_at: Any, honest: Any) -> Any:
    return honest(stands_at)


@defence("the metadata that were accepted", f"{ACCEPTED}._take_kept")
def _nothing_was_accepted(self: Any, name: Any, update: Any) -> bool:
    return False


@defence("the bound on what metadata are good for", f"{METADATA}:check_lifetime")
def _good_for_ever(what: Any, signed: Any, now: Any) -> None:
    pass


@defence("the length of metadata", f"{ACCEPTED}._check_length")
def _metadata_of_any_length(self: Any, name: Any, data: Any, most: Any) -> None:
    pass


@defence("the root that an ECU remembers", f"{METADATA}:PinnedTargets._check_root_version")
def _any_root(self: Any) -> None:
    pass


@defence(
    "the atomic writing of metadata",
    f"{METADATA}:write_atomic",
    defined="tallystick.runtime.disk:write_atomic",
)
def _written_in_place(disk: Any, path: Any, data: Any) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite(0, data)
    file.close()


# --- updates over the air: vehicles ---

JUDGING = "tallystick.fleet.ota.judging"
JUDGE = f"{JUDGING}:Judge"
PRIMARY = "tallystick.fleet.ota.vehicle:Primary"


@defence("the release on the ledger", f"{JUDGING}:require_release")
def _whatever_is_signed(standing: Any, offer: Any, head: Any, root: Any, *, contents: Any) -> Any:
    return 1 << 40, contents[root]


@defence("the age of the checkpoint", f"{JUDGE}._check_age")
def _heard_at_any_time(self: Any, head: Any, now_ms: Any, age_max_s: Any) -> None:
    pass


@defence("the Image repository's word", f"{JUDGE}._check_image")
def _the_director_s_alone(self: Any, images: Any, target: Any, docket: Any) -> None:
    pass


@defence("the vehicle in a target's name", f"{JUDGING}:check_addressee")
def _for_whichever_vehicle(standing: Any, name: Any) -> Any:
    _vehicle, ecu, *target = name.split("/")
    return ecu, "/".join(target)


@defence("the hardware in the release record", f"{JUDGING}:_check_hardware")
def _on_any_hardware(standing: Any, ecu: Any, target: Any, record: Any) -> None:
    pass


@defence("the phase of a campaign", f"{JUDGE}._check_campaign")
def _before_its_turn(self: Any, offer: Any, head: Any, assigned: Any) -> None:
    pass


@defence("what images need beside them", f"{PRIMARY}._check_needs")
def _beside_anything(self: Any, assigned: Any, running: Any) -> None:
    pass


@defence("the health of the whole bundle", f"{PRIMARY}._are_all_healthy")
def _each_for_itself(self: Any, pairs: Any) -> bool:
    return any(report.image == root for report, root in pairs)


@defence("the numbers of manifests", "tallystick.fleet.ota.manifest:Inventory._check_number")
def _as_often_as_it_comes(self: Any, vehicle: Any, ecu: Any, number: Any) -> None:
    pass


@defence("the ECU's key on its report", "tallystick.fleet.ota.manifest:Inventory._read_report")
def _whoever_speaks_for_it(self: Any, enrolled: Any, vehicle: Any, data: Any) -> Any:
    return importlib.import_module("tallystick.fleet.ota.manifest").EcuReport.decode(data)


@defence("the ECU's key on its diagnosis", "tallystick.fleet.ota.diagnosis:_check_answer")
def _whoever_calls_it_sound(answer: Any, diagnosis: Any, vehicle: Any) -> None:
    pass


@defence("the signatures on metadata", "tuf.api._payload:_DelegatorMixin.verify_delegate")
def _whoever_signed(self: Any, delegated_role: Any, payload: Any, signatures: Any) -> None:
    pass


@defence("the sealing of chunks", "tallystick.crypto.symmetric:NumberedCipher.seal")
def _chunks_as_they_are(self: Any, number: Any, plaintext: Any) -> bytes:
    return bytes(plaintext) + bytes(16)


@defence("the sealing of a stick's records", "tallystick.fleet.ota.stick:_seal")
def _records_as_they_are(sealing_key: Any, inside: Any, vehicle: Any) -> Any:
    return inside


@defence("the Director's name on an offer", "tallystick.fleet.ota.car:Car._is_ours")
def _whoever_writes_there(self: Any, publisher: Any, vehicle: Any) -> bool:
    return True


@defence("the bound on what a patch inflates to", "tallystick.fleet.ota.delta:_inflate")
def _inflate_all(data: Any, most: Any) -> Any:
    return importlib.import_module("bz2").decompress(data)


# --- detection on a bus ---

DETECTION_FILE = "tallystick.fleet.detect.model"


@defence("the signature on a profile", f"{DETECTION_FILE}:_check_signed")
def _profiles_of_anybody(found: Any, keys: Any) -> None:
    pass


@defence("the vehicle of a profile", f"{DETECTION_FILE}:_check_vehicle")
def _profiles_of_any_vehicle(found: Any, vehicle: Any) -> None:
    pass


@defence("the issue of a profile", f"{DETECTION_FILE}:_check_issue")
def _profiles_of_any_issue(found: Any, issue: Any, known: Any) -> None:
    pass


@defence("the version of an object", "tallystick.wire:Fields.version")
def _objects_of_any_version(self: Any, expected: Any) -> int:
    return int(next(self._values))


# --- the console ---

CONSOLE = "tallystick.console"


@defence("the signature on a transaction", "tallystick.ledger.block:Transaction.verify")
def _signed_by_anybody(self: Any, key: Any) -> None:
    pass


@defence("the comparisons of a replay", "tallystick.ledger.fsck:same")
def _one_like_the_other(what: Any, name: Any, expected: Any, found: Any) -> None:
    pass


@defence("the checkpoint at the end of a replay", "tallystick.ledger.fsck:Replay.check_head")
def _under_any_checkpoint(self: Any, head: Any) -> None:
    pass


@defence("the mirror's look back", f"{CONSOLE}.mirror:_check_goes_on")
def _never_look_back(known: Any, head: Any) -> None:
    pass


@defence("the commitment to a policy", "tallystick.client.schemas:_check_commitment")
def _whatever_it_commits_to(row: Any, token: Any, told: Any) -> None:
    pass


@defence("the host of a console", f"{CONSOLE}.door:Door._check_host")
@defence("the site that asks a console", f"{CONSOLE}.door:Door._check_site")
@defence("the purpose of who asks a console", f"{CONSOLE}.door:Door._check_purpose")
@defence("the cookie of a console", f"{CONSOLE}.door:Door._check_cookie")
def _come_in(self: Any, request: Any) -> None:
    pass


@defence("a token that is good once", f"{CONSOLE}.door:Door._spend")
def _good_again(self: Any, token: Any) -> None:
    pass


@defence("the escaping of markup", "tallystick.page.html:_one")
def _markup_as_it_came(child: Any) -> str:
    if isinstance(child, (list, tuple)):
        return "".join(map(_markup_as_it_came, child))
    return "" if child is None else str(child)
