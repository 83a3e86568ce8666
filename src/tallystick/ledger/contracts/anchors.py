"""Anchors: size and root of each partition's tree, so that a hash per message (BPS 4.2) costs one entry per commit.

Threat: a carrier that takes back what it anchored, or retires what it may not; one that promised and did not keep it.
Invariant: only a node registered for the partition anchors it, or, where the topic travels over an overlay, the relay
that holds the partition's lease (leases.py); sizes never fall, and one size has one root; what is retired was anchored
and, from version 2 on, is no more than the topic's owner lets go (retention.py). A promise that the carrier broke is
proved by its own signature and lowers its score; from version 2 on not that of a node from which the partition was
taken before the promise was due. Left out: that a new root continues the old one. Readers see it, since a range proof
must fit both; the entry would carry a consistency proof of half a kilobyte for each partition and commit.

Threat: the holder of a lease anchors a root over parcels that nobody has. What is anchored stays, so nothing could be
proved in that partition ever again. So for a topic that travels over an overlay an anchor has the signatures of f+1
relays of the virtual node where parcels enter: each has computed the root from what it keeps itself. Two honest ones
may keep different parcels above the newest anchor, if the holder forked its promises. So, as for notaries below, an
anchor names the size that it continues: of two that do not continue each other the second comes too late.

Where several notaries read one partition, the first to write wins: its anchor names the size that it continues, and
the refusals on which its root depends, so that the others can compute the same root from the same records.

    anchor/<token><u32 partition>    [size, root, height, time ms, author]
    retired/<token><u32 partition>   [below, root, height]
    broken/<hash of the promise>     [node, height]
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

from tallystick.crypto import merkle
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity, leases, plans, reputation, retention, settings, topics
from tallystick.ledger.contracts.retention import EARLIER, RELEASED, SAMPLES, Point
from tallystick.ledger.contracts.state import HASH, ID, U32, Call, RowReader, State, Table, fields_of
from tallystick.trust.promise import PARTITIONS_MAX, Anchor, JointAnchor, Promise


class AnchorRow(NamedTuple):
    """The newest anchor of a partition."""

    size: int
    root: bytes
    height: int
    time_ms: int
    author: bytes


class RetiredRow(NamedTuple):
    """Below which offset a partition has no bodies any more."""

    below: int
    root: bytes
    height: int


class BrokenRow(NamedTuple):
    node: bytes
    height: int


ANCHORS = Table("anchor", AnchorRow, ID, U32)
RETIRED = Table("retired", RetiredRow, ID, U32)
BROKEN = Table("broken", BrokenRow, HASH)


def anchor(call: Call, entry: list[Any]) -> None:
    """[40, token, partition, size, root]"""
    _anchor(call, Anchor.of(entry))


def anchor_sampled(call: Call, entry: list[Any]) -> None:
    """Version 2: as before, and the sample grows."""
    found = Anchor.of(entry)
    _sample(call, found, _anchor(call, found))


def anchor_jointly(call: Call, entry: list[Any]) -> None:
    """[94, token, partition, size, root, size before, plan version, fence, [[index, signature], …]]: by who holds the
    lease."""
    found = Anchor.of(entry)
    _check_carries(call, found.token, found.partition)
    before = _check_joint(call, entry, found)
    _sample(call, found, _grow_from(call, found, before))


def _check_joint(call: Call, entry: list[Any], found: Anchor) -> int:
    """Raise `Refused` unless f+1 relays where the topic's parcels enter signed it, under the lease in force. Returns
    the size that it continues."""
    word = leases.require_word(call, found.token)
    joint = JointAnchor.of(entry, call.instance, word.overlay, word.node)
    lease = leases.find(call.state.row, found.token, found.partition, call.time_ms)
    plan = plans.find_plan(call.state.row, word.overlay, joint.plan)
    if lease is None or lease.fence != joint.fence:
        raise Refused("anchor: of another lease than the one in force", reason="fenced")
    if plan is None:
        raise Refused(f"anchor: plan {joint.plan} is not kept", reason="no-plan")
    joint.verify(plan)
    return joint.before


def _anchor(call: Call, found: Anchor) -> AnchorRow | None:
    _check_alone(call, found)
    return _grow(call, found)


def _check_alone(call: Call, found: Anchor) -> None:
    _check_carries(call, found.token, found.partition)
    if leases.is_entrusted(call, found.token):
        raise Refused("a topic that travels over an overlay is anchored jointly", reason="not-joint")


def _grow(call: Call, found: Anchor) -> AnchorRow | None:
    """Take an anchor. Returns the one before it."""
    old = find(call.state, found.token, found.partition)
    if old is not None and (found.size < old.size or (found.size == old.size and found.root != old.root)):
        raise Refused(
            f"partition {found.partition} of topic {found.token.hex()} was anchored at size {old.size},"
            f" found {found.size}",
            reason="anchor-shrinks",
        )
    if found.size == 0 and found.root != merkle.EMPTY_ROOT:
        raise Refused("an empty partition has the empty root", reason="wrong-root")
    _put(call, found)
    return old


def notarise(call: Call, entry: list[Any]) -> None:
    """[43, token, partition, size, root, size before, [[first, end, reason], …]]"""
    _notarise(call, Anchor.of(entry))


def notarise_sampled(call: Call, entry: list[Any]) -> None:
    """Version 2: as before, and the sample grows."""
    found = Anchor.of(entry)
    _sample(call, found, _notarise(call, found))


def _notarise(call: Call, found: Anchor) -> AnchorRow | None:
    _check_alone(call, found)
    return _grow_from(call, found, found.before)


def _grow_from(call: Call, found: Anchor, before: int | None) -> AnchorRow | None:
    """Take an anchor that continues this size. Returns the one before it."""
    old = find(call.state, found.token, found.partition)
    anchored = 0 if old is None else old.size
    if before != anchored or found.size <= anchored:
        raise Refused(
            f"partition {found.partition} of topic {found.token.hex()} is anchored at size {anchored},"
            f" found {before} to {found.size}",
            reason="anchor-moved",
        )
    _put(call, found)
    return old


def retire(call: Call, entry: list[Any]) -> None:
    """[41, token, partition, below, root]: bodies below this offset are gone; `root` is the tree's at that size."""
    token, partition, below, root = _read_retire(entry)
    _check_carries(call, token, partition)
    anchored = find(call.state, token, partition)
    if anchored is None or below > anchored.size:
        raise Refused("only what was anchored is retired", reason="not-anchored")
    if below == anchored.size and root != anchored.root:
        raise Refused("the root is not the one anchored at this size", reason="wrong-root")
    key = RETIRED(token, partition)
    old = call.state.row(key)
    if old is not None and below <= old.below:
        raise Refused(f"retired below {old.below} already, found {below}", reason="retire-shrinks")
    call.state.put(key, [below, root, call.height])


def retire_kept(call: Call, entry: list[Any]) -> None:
    """Version 2: as before, and never more than the owner lets go."""
    token, partition, below, _ = _read_retire(entry)
    _check_carries(call, token, partition)
    allowed = let_go(call.state.row, token, partition, call.time_ms)
    retire(call, entry)
    _check_let_go(token, partition, below, allowed)
    sample = call.state.row(SAMPLES(token, partition)) or []
    call.state.put(SAMPLES(token, partition), [[*point] for point in retention.pruned(sample, below)] or None)


def _check_let_go(token: bytes, partition: int, below: int, allowed: int) -> None:
    if below > allowed:
        raise Refused(
            f"the owner of topic {token.hex()} lets go of partition {partition} below {allowed}, found {below}",
            reason="kept",
        )


def release(call: Call, entry: list[Any]) -> None:
    """[15, token, partition, below]: what was anchored below this offset may go, whatever was promised; by the
    owner."""
    fields = fields_of(entry, "release", 4)
    token, partition, below = fields.octets(16), fields.number(PARTITIONS_MAX - 1), fields.number()
    topics.require_owner(call, token)
    anchored = find(call.state, token, partition)
    if anchored is None or below > anchored.size:
        raise Refused("only what was anchored is released", reason="not-anchored")
    old = call.state.row(RELEASED(token, partition))
    if below <= (0 if old is None else old.below):
        raise Refused(f"a release above {0 if old is None else old.below} expected, found {below}", reason="unchanged")
    call.state.put(RELEASED(token, partition), [below, call.height])


def let_go(read: RowReader, token: bytes, partition: int, now_ms: int) -> int:
    """Below which offset a carrier may give bodies up at this block time: what the contract allows and the node asks.
    `read` brings a row of the state."""
    retired, released = read(RETIRED(token, partition)), read(RELEASED(token, partition))
    gone = max(0 if retired is None else retired.below, 0 if released is None else released.below)
    topic = read(topics.TOPICS(token))
    if topic is None or not any(kept := retention.of_topic(topic)):
        return gone  # no more is read of the many topics that keep everything
    newest = read(ANCHORS(token, partition))
    points = [] if newest is None else [Point(newest.time_ms, newest.size)]
    sample = [*(read(SAMPLES(token, partition)) or []), *points]
    return retention.deletable(kept, read(EARLIER(token)) or [], sample, gone, now_ms)


def broken_promise(call: Call, entry: list[Any]) -> None:
    """[42, promise, other leaf or empty, proof]: anybody may show that a node did not keep its word.

    Either the promised offset is still not anchored `anchor_ms` after the block that the promise names, or the
    anchor holds another leaf there, shown with its inclusion proof at the anchored size.
    """
    _blame(call, entry, lambda promise: None)


def broken_promise_in_tenure(call: Call, entry: list[Any]) -> None:
    """Version 2: a node is held to a promise if it had all the time until the promise was due to keep it."""
    _blame(call, entry, lambda promise: _check_tenure(call, promise))


def _blame(call: Call, entry: list[Any], check: Callable[[Promise], None]) -> None:
    fields = fields_of(entry, "broken promise", 4)
    data, other, proof = fields.octets(), fields.octets(at_most=32), fields.items(64)
    promise = Promise.decode(data)
    node = identity.require(call.state, promise.node)
    if promise.instance != call.instance:
        raise Refused("a promise of another instance", reason="wrong-instance")
    promise.verify(VerifyKey(node.key))
    key = BROKEN(sha256(promise.body).digest())
    if call.state.get(key) is not None:
        raise Refused("the broken promise is known", reason="known-evidence")
    check(promise)
    anchored = find(call.state, promise.token, promise.partition)
    if anchored is None or promise.offset >= anchored.size:
        _check_overdue(call, promise)
    else:
        _check_other_leaf(promise, other, proof, anchored)
    call.state.put(key, [promise.node, call.height])
    reputation.fall(call, promise.node)


def find(state: State, token: bytes, partition: int) -> AnchorRow | None:
    """The partition's newest anchor, or None."""
    return state.row(ANCHORS(token, partition))


def _put(call: Call, found: Anchor) -> None:
    row = AnchorRow(found.size, found.root, call.height, call.time_ms, call.author)
    call.state.put(ANCHORS(found.token, found.partition), [*row])


def _sample(call: Call, found: Anchor, old: AnchorRow | None) -> None:
    key, earlier = SAMPLES(found.token, found.partition), call.state.row(EARLIER(found.token))
    before = call.state.row(key) or []
    after = retention.sampled(
        before,
        None if old is None else Point(old.time_ms, old.size),
        Point(call.time_ms, found.size),
        earlier[-1].until_ms if earlier else 0,
    )
    if after != before:
        call.state.put(key, [[*point] for point in after])


def _read_retire(entry: list[Any]) -> tuple[bytes, int, int, bytes]:
    fields = fields_of(entry, "retire", 5)
    return fields.octets(16), fields.number(PARTITIONS_MAX - 1), fields.number(), fields.octets(32)


def _check_carries(call: Call, token: bytes, partition: int) -> None:
    if not leases.carries(call, token, partition):
        raise Refused(f"author is no node of partition {partition} of topic {token.hex()}", reason="not-host")


def _check_tenure(call: Call, promise: Promise) -> None:
    """A partition that was taken from the node before it had to keep its promise, or given to it after it had made it,
    blames nobody: whoever assigns partitions, or entrusts topics, could ruin any node's name."""
    tenure = call.state.row(topics.TENURES(promise.token, promise.partition, promise.node))
    word = call.state.row(plans.ENTRUSTED(promise.token))
    is_moved = word is not None and word.since_ms > promise.time_ms
    if is_moved or (tenure is not None and not tenure.covers(promise.time_ms, _due_ms(call, promise))):
        raise Refused("the partition was not the node's until the promise was due", reason="taken-away")


def _due_ms(call: Call, promise: Promise) -> int:
    return promise.time_ms + settings.read(call.state, "anchor_ms")


def _check_overdue(call: Call, promise: Promise) -> None:
    due = _due_ms(call, promise)
    if call.time_ms <= due:
        raise Refused(f"the promise is due at {due}, block time is {call.time_ms}", reason="not-due")


def _check_other_leaf(promise: Promise, other: bytes, proof: list[Any], anchored: AnchorRow) -> None:
    if len(other) != 32 or not all(type(item) is bytes for item in proof):
        raise Malformed("broken promise: expected the other leaf and its path")
    if other == merkle.leaf_hash(promise.parcel):
        raise Refused("the anchored leaf is the promised one", reason="promise-kept")
    merkle.verify_inclusion(other, promise.offset, anchored.size, proof, anchored.root)
