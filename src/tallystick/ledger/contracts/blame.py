"""Blame: what convicts a relay, and what only makes it suspected.

Threat: a relay that tells receivers different stories about a lane key, or sends shares that its commitments do not
allow, or gives one place of a partition to two parcels, and denies it; a publisher that tells two relays different
things; liars that ruin an honest relay's name, or have it replaced. Two words are told apart.

*Proof* lowers a signer's reputation, as a broken promise does. It is two objects under its own signature, one of

- two share sets for one lane key, plan version, branch and attempt;
- a share set and a list with a share that does not fit it;
- two origins of its own for one lane key;
- two joint promises for one place under one fence, with different parcels.

Nothing else is looked at, so whoever brings it convicts nobody but the signer, under whichever key it had then; a
publisher is held to it as relays are. What proves nothing is refused, which costs its author as every refusal does. One
place convicts once. A list shows shares to everybody, but only such as their sender, a liar, knew.

The index beside a relay's signature on a joint promise is not signed: whoever brings it may write another. So nothing
hangs on it. What convicts is the signer's key under two bodies that name instance, overlay, plan version and virtual
node, and no honest relay signs two such. As long as the plan is kept, signer, key and index must be those that it
names, as for everybody who judges the promise. Of a plan that was forgotten the ledger still knows whose the key was,
and that its owner is a relay of this overlay. What is of no plan that there was is refused.

*Suspicion* is a word about silence, which cannot be proved, and never lowers anything. Relays of the same and of
neighbouring virtual nodes are counted, each once for a plan version. When f+1 of one virtual node say the same, one of
them is honest: then the relay is suspected until the next plan, the lease goes to another (leases.py) and the planner
replaces it. f liars of each virtual node cannot do it, all together. Subscribers and publishers may say it too, and
their word stays in the ledger for administrators to read; it counts for nothing, since anybody may be one.

    misdeal/<signer><place hash>                       [hash of the entry, height]
    suspicion/<overlay><relay><their virtual node>     [plan version, [accuser, …]]
    fault/<relay>                                      [newest plan version under which it was suspected, failures]
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from tallystick import wire
from tallystick.crypto.signatures import SIGNED_BYTES_MAX, SignedObject, VerifyKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import access, identity, plans, reputation, settings
from tallystick.ledger.contracts.state import HASH, ID, Call, RowReader, Table, fields_of
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.plan import RELAYS_MAX, Plan, VirtualNode
from tallystick.trust.promise import JOINT_CONTEXT, JointPromise
from tallystick.trust.right import Right
from tallystick.trust.shares import LINEAGES_MAX, Origin, ShareList, ShareSet, verify_sent
from tallystick.wire import Fields


class MisdealRow(NamedTuple):
    entry: bytes
    height: int


class SuspicionRow(NamedTuple):
    version: int
    accusers: list[bytes]  # rising


class FaultRow(NamedTuple):
    version: int  # the newest plan version under which it was suspected
    failures: int  # in all: versions under which it was suspected, and proofs


MISDEALS = Table("misdeal", MisdealRow, ID, HASH)
SUSPICIONS = Table("suspicion", SuspicionRow, ID, ID, ID)  # by overlay, relay, and the accusers' virtual node
FAULTS = Table("fault", FaultRow, ID)

Signed = TypeVar("Signed", bound=SignedObject)


def is_suspected(read: RowReader, relay: bytes, version: int) -> bool:
    """Whether f+1 relays of one virtual node called it silent under this plan version, or it was convicted then."""
    row = read(FAULTS(relay))
    return row is not None and row.version == version


def is_unfit(read: RowReader, relay: bytes, version: int, *, is_seated: bool) -> bool:
    """Whether the planner, while this version is in force, does without a relay: it is suspected, or was proved to lie
    and has not made that good. One that was replaced stays away until an administrator attaches it again."""
    fault, standing = read(FAULTS(relay)), read(reputation.STANDINGS(relay))
    if fault is not None and (fault.version == version or not is_seated):
        return True
    start = read(settings.CHOSEN(b"reputation_start")) or settings.SETTINGS["reputation_start"].default
    return standing is not None and (standing.blacklisted != 0 or standing.score < start)


def failures(read: RowReader, plan: Plan) -> dict[str, int]:
    """Failures of each virtual node of the plan, by the hex of its name, as the placement wants them: those of its
    relays that f+1 relays of one virtual node reported, or that were proved."""
    found = dict.fromkeys((node.identifier.hex() for node in plan.nodes), 0)
    for node in plan.nodes:
        rows = [read(FAULTS(relay.identifier)) for relay in node.relays]
        found[node.identifier.hex()] = sum(row.failures for row in rows if row is not None)
    return found


def two_sets(call: Call, entry: list[Any]) -> None:
    """[96, signer, key, share set, other share set]; by anybody."""
    fields = fields_of(entry, "two sets", 5)
    signer, key = _read_signer(call, fields)
    one, other = (_read(ShareSet, fields, key) for _ in range(2))
    if not one.contradicts(other):
        raise Refused("these share sets do not contradict each other", reason="false-evidence")
    _convict(call, signer, one.place)


def false_share(call: Call, entry: list[Any]) -> None:
    """[97, signer, key, share set, share list, number of the share]; by anybody.

    A list of the set with more or fewer shares than it has lineages convicts too, whatever the number.
    """
    fields = fields_of(entry, "false share", 6)
    signer, key = _read_signer(call, fields)
    shares, listed = _read(ShareSet, fields, key), _read(ShareList, fields, key)
    number = fields.number(LINEAGES_MAX - 1)
    if listed.set_hash != shares.hash:
        raise Refused("the list is not of this set", reason="false-evidence")
    if len(listed.encoded) == len(shares.lineages) and _fits(shares, listed, number):
        raise Refused("the share fits its commitments", reason="false-evidence")
    _convict(call, signer, shares.place)


def two_origins(call: Call, entry: list[Any]) -> None:
    """[98, signer, key, origin, other origin]; by anybody."""
    fields = fields_of(entry, "two origins", 5)
    signer, key = _read_signer(call, fields)
    one, other = (_read(Origin, fields, key) for _ in range(2))
    if not one.contradicts(other):
        raise Refused("these origins do not contradict each other", reason="false-evidence")
    if one.publisher != signer:
        raise Refused("the lane key is another publisher's", reason="false-evidence")
    _convict(call, signer, (one.lane_key,))


def two_orders(call: Call, entry: list[Any]) -> None:
    """[99, signer, key, index, joint promise, other joint promise]; by anybody.

    The index chooses the signature in both.
    """
    fields = fields_of(entry, "two orders", 6)
    signer, key = _read_signer(call, fields)
    index = fields.number(RELAYS_MAX, 1)
    one, other = (JointPromise.decode(fields.octets(at_most=SIGNED_BYTES_MAX)) for _ in range(2))
    if not one.contradicts(other):
        raise Refused("these promises do not contradict each other", reason="false-evidence")
    _check_bound(call, one, index, signer, key)
    for promise in (one, other):
        signature = dict(promise.signatures).get(index)
        if signature is None:
            raise Refused("a promise has no signature of this index", reason="false-evidence")
        key.verify(JOINT_CONTEXT, signature, promise.body)
    _convict(call, signer, one.place)


def suspect(call: Call, entry: list[Any]) -> None:
    """[95, overlay, plan version, relay, token or empty]: the relay is silent, under the plan in force.

    By a relay of its own or a neighbouring virtual node, without a token; or by a principal that may read or write the
    topic, which travels over the overlay.
    """
    fields = fields_of(entry, "suspect", 5)
    overlay, version, relay = fields.octets(16), fields.number(), fields.octets(16)
    token = fields.octets(at_most=16)
    plan = plans.require_plan(call, overlay)
    if version != plan.version:
        raise Refused(f"plan {plan.version} is in force, found {version}", reason="stale-plan")
    accused = plan.place(relay)
    if accused is None:
        raise Refused(f"plan {version} has no relay {relay.hex()}", reason="unknown-relay")
    if call.author_kind == SubjectKind.PRINCIPAL:
        _check_entitled(call, overlay, token)
        return
    accuser = plan.place(call.author)
    if accuser is None or call.author == relay or token or not _are_near(accuser[0], accused[0]):
        raise Refused("only relays of the same and of neighbouring virtual nodes can tell", reason="not-neighbour")
    _count(call, plan, relay, accuser[0])


def _count(call: Call, plan: Plan, relay: bytes, theirs: VirtualNode) -> None:
    key = SUSPICIONS(plan.overlay, relay, theirs.identifier)
    row = call.state.row(key)
    said = [] if row is None or row.version != plan.version else row.accusers
    if call.author in said:
        raise Refused("the author said so already", reason="known-accusation")
    said = sorted([*said, call.author])
    call.state.put(key, [plan.version, said])
    if len(said) > theirs.faults and not is_suspected(call.state.row, relay, plan.version):
        _note_failure(call, relay, plan.version)


def _note_failure(call: Call, relay: bytes, version: int) -> None:
    row = call.state.row(FAULTS(relay))
    call.state.put(FAULTS(relay), [version, 1 if row is None else row.failures + 1])


def _are_near(one: VirtualNode, other: VirtualNode) -> bool:
    return one is other or one.parent == other.identifier or other.parent == one.identifier


def _check_entitled(call: Call, overlay: bytes, token: bytes) -> None:
    if len(token) != 16:
        raise Malformed("suspect: a principal names a topic")
    word = call.state.row(plans.ENTRUSTED(token))
    if word is None or word.overlay != overlay:
        raise Refused(f"topic {token.hex()} does not travel over the overlay", reason="not-entrusted")
    if not access.granted(call.state, call.author, token) & (Right.READ | Right.WRITE):
        raise Refused(f"no right to read topic {token.hex()} or to write to it", reason="no-right")


def _read_signer(call: Call, fields: Fields) -> tuple[bytes, VerifyKey]:
    signer, key = fields.octets(16), fields.octets(32)
    owner = call.state.row(identity.KEYS(key))
    if owner is None or owner.subject != signer:
        raise Refused("the key is not the signer's", reason="false-evidence")
    if reputation.is_blacklisted(call.state, signer):  # a liar and a friend could fill blocks with new proofs
        raise Refused("the signer is blacklisted already", reason="blacklisted")
    return signer, VerifyKey(key)


def _read(kind: type[Signed], fields: Fields, key: VerifyKey) -> Signed:
    found = kind.decode(fields.octets(at_most=SIGNED_BYTES_MAX))
    found.verify_by(key)
    return found


def _check_bound(call: Call, promise: JointPromise, index: int, signer: bytes, key: VerifyKey) -> None:
    """Returns if this signer could have signed the promise as the relay of this index."""
    overlay = call.state.row(plans.OVERLAYS(promise.overlay))
    newest = 0 if overlay is None else overlay.version
    if promise.instance != call.instance or not 0 < promise.plan <= newest:
        raise Refused("a promise of another instance, or of no plan that there was", reason="false-evidence")
    plan = plans.find_plan(call.state.row, promise.overlay, promise.plan)
    if plan is None:  # forgotten
        is_bound = call.state.row(plans.RELAYS(signer)) == promise.overlay
    else:
        place = plan.place(signer)
        named = place and (place[0].identifier, place[1], place[0].relays[place[1] - 1].key)
        is_bound = named == (promise.node, index, key.raw)
    if not is_bound:
        raise Refused("the signer was not that relay", reason="false-evidence")


def _fits(shares: ShareSet, listed: ShareList, number: int) -> bool:
    if number >= len(shares.lineages):
        raise Malformed(f"false share: the set has {len(shares.lineages)} lineages")
    try:
        verify_sent(shares.lineages[number], shares.sender, listed.shares[number], listed.receiver)
    except Refused:  # a point that is none, or a share that is not what they say
        return False
    return True


def _convict(call: Call, signer: bytes, place: tuple[Any, ...]) -> None:
    """Once for a place. Places of different kinds have different numbers of fields, so none is taken for another."""
    key = MISDEALS(signer, named_hash("tallystick misdeal 1", wire.encode([*place])))
    if call.state.get(key) is not None:
        raise Refused("the evidence is known", reason="known-evidence")
    call.state.put(key, [call.entry_hash, call.height])
    reputation.fall(call, signer)
    overlay = call.state.row(plans.RELAYS(signer))
    plan = None if overlay is None else plans.plan_at(call.state.row, overlay, call.height)
    if plan is not None and plan.place(signer) is not None:
        _note_failure(call, signer, plan.version)
