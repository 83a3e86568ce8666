"""Plans: which overlays there are, who administers them, and which plan their relays work by at which height.

Threat: whoever writes the plan decides who holds shares and how many it takes to open. An administrator that went bad,
a plan of last year brought again, one that was signed for another instance, relays that nobody enrolled or whose key
was revoked; parties that switch at different moments, so that shares of two plans meet. Invariant: the operator founds
an overlay and names its administrators; from then on a threshold of them signs every plan, and every change of the
administrators. Versions count up by one. The signatures cover instance, plan and the height from which it counts, which
lies ahead of the block, so everybody who follows the ledger switches at the same height. Relays are live nodes with the
key that the plan names. A node is a relay of one overlay and never of another: what it signs names a version of a plan
and no overlay, and two overlays must not make an honest relay contradict itself (blame.py).

Eight versions are kept, the one in force among them; what was made under an older one is dropped by everybody. A topic
travels over an overlay when its owner entrusts it, naming the virtual node at which publishers enter; from then on the
relay that holds a partition's lease writes for it (leases.py).

    overlay/<id>                 [number of the list, [administrator, …], threshold, newest plan version or 0]
    plan/<overlay><u64 version>  [first height, plan]
    relay/<id>                   the overlay that a node is a relay of
    entrusted/<token>            [overlay or zeros, virtual node, lease ms, number, since ms]
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import SIGNATURE_BYTES, VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import identity, reputation, settings, topics
from tallystick.ledger.contracts.state import ID, NOBODY, U64, Call, RowReader, State, Table, fields_of
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.plan import PLAN_BYTES_MAX, Plan, Relay
from tallystick.wire import Fields

OVERLAY_CONTEXT, PLAN_CONTEXT = "tallystick overlay 1", "tallystick plan 1"
ADMINISTRATORS_MAX = 16
PLANS_KEPT = 8
MARGIN_BLOCKS = 16  # between a plan's block and the first at which it may count


class OverlayRow(NamedTuple):
    number: int  # of this list of administrators, from 1
    administrators: list[bytes]  # rising
    threshold: int
    version: int  # of the newest plan, or 0


class PlanRow(NamedTuple):
    first: int  # the height from which it counts
    plan: bytes


class EntrustedRow(NamedTuple):
    """Which overlay carries a topic, and where publishers enter."""

    overlay: bytes  # or nobody's: the topic's own nodes carry it
    node: bytes
    lease_ms: int
    number: int  # counts the owner's words, so that leases of before are worth nothing
    since_ms: int


OVERLAYS = Table("overlay", OverlayRow, ID)
PLANS = Table("plan", PlanRow, ID, U64)
RELAYS = Table("relay", bytes, ID)
ENTRUSTED = Table("entrusted", EntrustedRow, ID)

Signatures = list[tuple[bytes, bytes]]  # (administrator, signature), rising
_decode = lru_cache(maxsize=PLANS_KEPT)(Plan.decode)


def require(state: State, overlay: bytes) -> OverlayRow:
    """The overlay, or `Refused`."""
    row = state.row(OVERLAYS(overlay))
    if row is None:
        raise Refused(f"overlay {overlay.hex()} does not exist", reason="unknown-overlay")
    return row


def find_plan(read: RowReader, overlay: bytes, version: int) -> Plan | None:
    """A version that is kept, whether it counts already or not."""
    row = read(PLANS(overlay, version))
    return None if row is None else _decode(row.plan)


def plan_at(read: RowReader, overlay: bytes, height: int) -> Plan | None:
    """The plan in force at a height, which is the present one or lies little before it. `read` brings a row of the
    state."""
    row = read(OVERLAYS(overlay))
    newest = 0 if row is None else row.version
    for version in range(newest, max(0, newest - PLANS_KEPT), -1):
        found = read(PLANS(overlay, version))
        if found is not None and found.first <= height:
            return _decode(found.plan)
    return None


def require_plan(call: Call, overlay: bytes) -> Plan:
    """The plan in force, or `Refused`."""
    plan = plan_at(call.state.row, overlay, call.height)
    if plan is None:
        raise Refused(f"overlay {overlay.hex()} has no plan in force", reason="no-plan")
    return plan


def administrators_statement(
    instance: bytes, overlay: bytes, number: int, administrators: list[bytes], threshold: int
) -> bytes:
    """What the old administrators sign for new ones."""
    return wire.encode([instance, overlay, number, administrators, threshold])


def plan_statement(instance: bytes, plan_hash: bytes, first: int) -> bytes:
    """What administrators sign for a plan that counts from the height `first` on."""
    return wire.encode([instance, plan_hash, first])


def found(call: Call, entry: list[Any]) -> None:
    """[90, overlay, number, [administrator, …], threshold, [[administrator, signature], …]]

    The first by the operator and without signatures, every other by anybody with those of the old threshold.
    """
    fields = fields_of(entry, "overlay", 6)
    overlay, number = fields.octets(16), fields.number(at_least=1)
    names = [one.octets(16) for one in fields.each(ADMINISTRATORS_MAX, 1)]
    threshold, signatures = fields.number(len(names), 1), _read_signatures(fields)
    _check_rising(names, "administrators")
    old = call.state.row(OVERLAYS(overlay))
    if number != (0 if old is None else old.number) + 1:
        raise Refused(f"administrators of overlay {overlay.hex()}: another number expected", reason="wrong-version")
    if old is None:
        call.require_operator()
        if signatures or overlay == NOBODY:
            raise Malformed("overlay: the first administrators are named without signatures, for a name of its own")
    else:
        statement = administrators_statement(call.instance, overlay, number, names, threshold)
        _check_signed(call, old, OVERLAY_CONTEXT, statement, signatures)
    for name in names:
        administrator = identity.require(call.state, name)
        administrator.check_live(call.time_ms)
        if administrator.kind != SubjectKind.PRINCIPAL:
            raise Refused(f"{name.hex()} is not a principal", reason="not-principal")
    call.state.put(OVERLAYS(overlay), [number, names, threshold, 0 if old is None else old.version])


def publish(call: Call, entry: list[Any]) -> None:
    """[91, plan, first height, [[administrator, signature], …]]: the next plan; by anybody who brings it signed."""
    fields = fields_of(entry, "plan", 4)
    data, first, signatures = fields.octets(at_most=PLAN_BYTES_MAX), fields.number(), _read_signatures(fields)
    new = Plan.decode(data)
    overlay = require(call.state, new.overlay)
    if new.version != overlay.version + 1:
        message = f"plan: version {overlay.version + 1} expected, found {new.version}"
        raise Refused(message, reason="wrong-version")
    _check_signed(call, overlay, PLAN_CONTEXT, plan_statement(call.instance, new.hash, first), signatures)
    before = call.state.row(PLANS(new.overlay, overlay.version))
    least = max(call.height + MARGIN_BLOCKS, 0 if before is None else before.first + 1)
    if first < least:
        raise Refused(f"plan: a first height of at least {least} expected, found {first}", reason="out-of-range")
    for relay in (relay for node in new.nodes for relay in node.relays):
        _seat(call, new.overlay, relay)
    _forget(call, new)
    call.state.put(PLANS(new.overlay, new.version), [first, data])
    call.state.put(OVERLAYS(new.overlay), [*overlay._replace(version=new.version)])


def entrust(call: Call, entry: list[Any]) -> None:
    """[92, token, overlay or zeros, virtual node, lease ms]: who carries a topic; by its owner, or by the operator.

    With zeros for the overlay, the topic's own nodes do again; node and lease are zero then.
    """
    fields = fields_of(entry, "entrust", 5)
    token, overlay, node, lease_ms = fields.octets(16), fields.octets(16), fields.octets(16), fields.number()
    if call.is_operator:
        topics.require(call.state, token)
    else:
        topics.require_owner(call, token)
    old = call.state.row(ENTRUSTED(token)) or EntrustedRow(NOBODY, NOBODY, 0, 0, 0)
    if (overlay, node, lease_ms) == old[:3]:
        raise Refused(f"topic {token.hex()} is carried so already", reason="unchanged")
    if overlay == NOBODY:
        if (node, lease_ms) != (NOBODY, 0):
            raise Malformed("entrust: without an overlay there is no virtual node and no lease")
    else:
        settings.check_lease(call.state, lease_ms)
        if not require_plan(call, overlay).has_node(node):
            raise Refused(f"the plan has no virtual node {node.hex()}", reason="unknown-node")
    call.state.put(ENTRUSTED(token), [overlay, node, lease_ms, old.number + 1, call.time_ms])


def _read_signatures(fields: Fields) -> Signatures:
    pairs = [one.array(2) for one in fields.each(ADMINISTRATORS_MAX)]
    return [(pair.octets(16), pair.octets(SIGNATURE_BYTES)) for pair in pairs]


def _check_rising(names: list[bytes], what: str) -> None:
    if any(after <= before for before, after in pairwise(names)):
        raise Malformed(f"{what}: in order expected, each once")


def _check_signed(call: Call, row: OverlayRow, context: str, statement: bytes, signatures: Signatures) -> None:
    """Returns if enough of the administrators signed, each once, with the key it has now."""
    names = [name for name, _ in signatures]
    _check_rising(names, "signatures of administrators")
    if not {*names} <= {*row.administrators}:
        raise Refused("signed by somebody who is no administrator of the overlay", reason="not-administrator")
    if len(names) < row.threshold:
        raise Refused(
            f"{row.threshold} signatures of administrators expected, found {len(names)}", reason="too-few-signatures"
        )
    for name, signature in signatures:
        administrator = identity.require(call.state, name)
        administrator.check_live(call.time_ms)
        VerifyKey(administrator.key).verify(context, signature, statement)


def _seat(call: Call, overlay: bytes, relay: Relay) -> None:
    """A plan may name this relay: it is a live node, with this key, and of no other overlay."""
    found = identity.require(call.state, relay.identifier)
    found.check_live(call.time_ms)
    name = relay.identifier.hex()
    if found.kind != SubjectKind.NODE:
        raise Refused(f"{name} is not a node", reason="not-node")
    if found.key != relay.key:
        raise Refused(f"relay {name} has another key than the plan says", reason="wrong-key")
    if reputation.is_blacklisted(call.state, relay.identifier):
        raise Refused(f"relay {name} is blacklisted", reason="blacklisted")
    known = call.state.row(RELAYS(relay.identifier))
    if known is None:
        call.state.put(RELAYS(relay.identifier), overlay)
    elif known != overlay:
        raise Refused(f"{name} is a relay of overlay {known.hex()}", reason="other-overlay")


def _forget(call: Call, new: Plan) -> None:
    """The oldest version goes, unless the present one would go with it."""
    oldest = call.state.row(PLANS(new.overlay, max(0, new.version + 1 - PLANS_KEPT)))
    if oldest is not None and oldest.first > call.height:
        raise Refused(f"at most {PLANS_KEPT - 1} plans that do not count yet", reason="too-many-plans")
    if new.version > PLANS_KEPT:
        call.state.put(PLANS(new.overlay, new.version - PLANS_KEPT), None)
