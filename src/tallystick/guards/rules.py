"""What the guards must know and do not decide themselves: the ledger's rules, and which permits are live.

`Rules` is the guards' view of the ledger (rights, permits, epochs, topics), through the node's cache; `Act` is one
request as its envelope proved it. The order of checks in every guard is: cheap before dear, what anybody can see
before what only the entitled may learn.

`Live` are advertisements and subscriptions by permit identifier. On a log, subscribing is a state of the node (SEEDS on
002): publish needs a live advertisement, fetch a live subscription, and undo deletes it at once. The carrier keeps them
on disk and lends `load`; here is a bounded memory of those in use. How many permits a principal may hold is the
authority's to bound: each is on the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tallystick.errors import Refused
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Permit
from tallystick.trust.right import Right


@dataclass(frozen=True)
class Act:
    """One request of a principal to this node: signed, fresh and addressed here."""

    principal: bytes
    host: str  # where the connection comes from
    request: bytes  # hash of the signed request
    time_ms: int  # block time: what validity means


@dataclass(frozen=True)
class TopicRules:
    """What the ledger says of a topic."""

    tenant: bytes
    partitions: int
    closed: bool


class Rules(Protocol):
    """The guards' view of the ledger."""

    instance: bytes

    def authority(self, identifier: bytes) -> Certificate | None:
        """The certificate of an enrolled, unrevoked authority."""

    def blacklisted(self, principal: bytes) -> bool: ...

    def is_over(self, principal: bytes, time_ms: int) -> bool:
        """Whether its certificate was revoked, or is not valid at this time."""

    def convicted(self, principal: bytes, lane: bytes, sequence: int) -> bool:
        """Whether the ledger holds both headers of an equivocation there."""

    def allows(self, principal: bytes, token: bytes, right: Right, host: str) -> bool: ...

    def topic(self, token: bytes) -> TopicRules | None: ...

    def carries(self, token: bytes, partition: int) -> bool:
        """Whether the ledger names this node for the partition."""

    def carried(self, token: bytes) -> int | None:
        """A partition of the topic that this node carries, or None where it carries none."""

    def consents(self, tenant: bytes) -> bool:
        """Whether this node's operator carries topics of the tenant."""

    def fall_window_ms(self) -> int:
        """Within which time one request of a principal on a topic is held against it, at most."""

    def schema_known(self, token: bytes, version: int, schema_hash: bytes) -> bool: ...

    def permit_ended(self, identifier: bytes) -> bool:
        """Whether the permit was undone or revoked, or was never issued."""

    def epoch_taken(self, token: bytes, epoch: int, time_ms: int) -> bool:
        """Whether parcels of this epoch are still (or already) taken at this time."""


@dataclass(frozen=True)
class GuardLimits:
    parcel_bytes_max: int = 1024 * 1024  # publishers stay under 900 KiB by default; Kafka's own default is 1 MiB
    lock_bytes_max: int = 64 * 1024  # 16 topics of 1.2 KiB each fit three times
    delay_max_s: float = 60.0  # EventGuard 4.7's max delay: how old an envelope may be
    skew_max_s: float = 5.0  # how far two honest clocks may differ
    window_share_max: int = 16_384  # envelopes one principal may have in the window; about 270 a second
    lanes_max: int = 4_096  # lanes one principal may ever open at this node; one a day lasts eleven years
    live_max: int = 65_536  # live permits kept in memory, about 60 MiB; the others are read from disk when needed


def check_topic(rules: Rules, act: Act, token: bytes, right: Right) -> TopicRules:
    """BPS 3.2: existence and DESCRIBE first, and without DESCRIBE the answer of a topic that does not exist; then
    the right itself."""
    topic = rules.topic(token)
    if topic is None or not rules.allows(act.principal, token, Right.DESCRIBE, act.host):
        raise Refused("no such topic", reason="unknown-topic")
    if not rules.allows(act.principal, token, right, act.host):
        raise Refused(f"no right to {right.name.lower() if right.name else right} this topic", reason="no-right")
    return topic


def check_carried(rules: Rules, token: bytes, partition: int | None = None) -> None:
    """Refuse what this node does not carry: a partition, or a topic of which it carries none. The ledger would take
    neither its operations nor its anchors, and a tenant may not burden a node that did not consent."""
    topic, here = rules.topic(token), rules.carried(token) if partition is None else partition
    if topic is None or here is None or not rules.carries(token, here) or not rules.consents(topic.tenant):
        raise Refused(
            "this node does not carry it", reason="not-carried", hint="go to a node that does: tally topic show NAME"
        )


def check_principal(rules: Rules, act: Act) -> None:
    if rules.blacklisted(act.principal):
        raise Refused("the principal is blacklisted", reason="blacklisted", hint="its tenant may ask to have it lifted")
    if rules.is_over(act.principal, act.time_ms):
        hint = "its tenant's owner invites it anew: tally principal invite"
        raise Refused("the principal's certificate was revoked or is over", reason="certificate-over", hint=hint)


def check_permit(rules: Rules, identifier: bytes) -> None:
    """The ledger's word on a permit, whenever it is used: who holds one may have given it back, or lost its right and
    got it again, without showing this node anything."""
    if rules.permit_ended(identifier):
        hint = "ask the authority for a new one: it gives one as long as the right stands"
        raise Refused("permit: undone, revoked or never issued", reason="permit-ended", hint=hint)


def _nothing(identifier: bytes) -> Permit | None:
    return None


class Live:
    def __init__(self, kept_max: int, load: Callable[[bytes], Permit | None] = _nothing) -> None:
        """`load` brings a live permit that is not in memory, or None if there is none."""
        self._kept_max = kept_max
        self._load = load
        self._permits: OrderedDict[bytes, Permit] = OrderedDict()

    def __len__(self) -> int:
        return len(self._permits)

    def add(self, permit: Permit) -> None:
        """Keep a checked permit."""
        self._permits[permit.identifier] = permit
        if len(self._permits) > self._kept_max:
            self._permits.popitem(last=False)

    def remove(self, identifier: bytes) -> None:
        self._permits.pop(identifier, None)

    def get(self, identifier: bytes) -> Permit | None:
        permit = self._permits.get(identifier)
        if permit is None:
            permit = self._load(identifier)
            if permit is not None:
                self.add(permit)
        else:
            self._permits.move_to_end(identifier)
        return permit
