"""Scenes of permits that are not one's own: reading without one or with another's, and taking another's back
(EventGuard 4.5, 4.6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tallystick.carriers.carrier import Fetch, NotStored
from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.demo.evidence import fetch_first, in_history, subscription, wait_for_refusals
from tallystick.demo.forgery import phony_order
from tallystick.demo.hand import Hand
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, refusal
from tallystick.demo.stage import READ, WRITE, Stage
from tallystick.demo.traffic import sample
from tallystick.errors import Refused, Unavailable
from tallystick.trust.permit import Operation

_FETCH_BYTES = 1 << 20


def read_without_permit(stage: Stage) -> Seen:
    """Somebody of the other tenant asks the authority for keys, the node for parcels, and then takes the disk."""
    spy, token = stage.enrol("homes", "spy"), stage.tokens["telemetry"]
    refusal(lambda: spy.authority.permit(Operation.SUBSCRIBE, token), "unknown-topic", of="a permit")
    fetch = partial(spy.node.fetch, Fetch(token, 0, bytes(16), 0, _FETCH_BYTES))
    refusal(fetch, "unknown-topic", of="parcels without a permit")
    files = [path.read_bytes() for path in stage.folders.node.rglob("*") if path.is_file()]
    if not stage.canaries:
        raise NotObserved("nothing was published: there is nothing to steal")
    for canary in stage.canaries:
        if any(canary in data for data in files):
            raise AttackSucceeded(f"{canary.decode()} lies readable on the node's disk")
    acts = wait_for_refusals(stage, "telemetry", spy)
    return Seen(
        f"the authority and the node know no such topic; no vehicle and no patient is named in the"
        f" {sum(map(len, files)):,} bytes of the node's disk",
        in_history("telemetry", acts),
    )


def read_with_copied_permit(stage: Stage) -> Seen:
    """A nurse who may read vitals herself shows the doctor's permit instead of her own."""
    nurse, doctor = stage.enrol("hospital", "nurse", "vitals", READ), stage.people["doctor"]
    stolen, own = subscription(doctor, "vitals"), subscription(nurse, "vitals")
    refusal(lambda: nurse.node.subscribe(stolen.grant.permit), "not-yours", of="the copied permit")
    fetch = partial(fetch_first, nurse, bytes_max=_FETCH_BYTES)
    reason = refusal(partial(fetch, stolen), "not-subscribed", of="parcels under the copied permit")
    if not fetch(own).parcels:
        raise Unavailable("nurse: nothing came under her own permit either")
    acts = wait_for_refusals(stage, "vitals", nurse)
    return Seen(
        f"the copy is refused as not-yours, fetching under it as {reason}; her own permit serves her",
        in_history("vitals", acts),
    )


def fake_unsubscribe(stage: Stage) -> Seen:
    victim, thief = stage.people["doctor"], stage.enrol("hospital", "colleague", "vitals", READ)
    held, own = subscription(victim, "vitals"), subscription(thief, "vitals")
    place = _undo(stage, held, thief, own)
    try:
        fetched = fetch_first(victim, held, _FETCH_BYTES)
    except Refused as error:
        raise AttackSucceeded(f"the doctor is not subscribed any more: {error}") from error
    if not fetched.parcels:
        raise NotObserved("the doctor fetched nothing")
    return Seen(f"the authority and the node refuse; the doctor goes on: {len(fetched.parcels)} parcels", place)


def fake_unadvertise(stage: Stage) -> Seen:
    victim = Hand(stage.enrol("hospital", "monitor", "vitals", WRITE), "vitals")
    thief = Hand(stage.enrol("hospital", "rival-monitor", "vitals", WRITE), "vitals")
    place = _undo(stage, victim.held, thief.session, thief.held)
    outcome = victim.send(victim.seal_batch(sample("vitals")))[0]
    if isinstance(outcome, NotStored):
        raise AttackSucceeded(f"the monitor is not heard any more: {outcome.reason}")
    offset = outcome.promises[0].offset
    return Seen(f"the authority and the node refuse; the monitor goes on, at offset {offset}", place)


def _undo(stage: Stage, victim: Held, thief: Session, own: Held) -> str:
    """Try every way there is. Returns where the refusals of the node stand."""
    stolen, undo, key = victim.grant.permit, thief.authority.undo, thief.identity.signing_key
    for permit, token in (
        (stolen, own.grant.undo_token),  # its permit, my undo token
        (stolen, victim.grant.undo_token),  # even with its undo token it is not mine
        (own.grant.permit, victim.grant.undo_token),
    ):
        refusal(partial(undo, permit, token), "wrong-undo-token", of="undoing at the authority")
    order = phony_order(victim.permit, key)
    mine = replace(order, principal=thief.identity.principal).sign(key)
    refusal(lambda: thief.node.undo(order.encode()), "not-yours", of="an order that the thief signed")
    refusal(lambda: thief.node.undo(mine.encode()), "forged", of="the same order in the thief's name")
    return in_history("vitals", wait_for_refusals(stage, "vitals", thief, 2))


READING = [
    Scene("reading without a permit", "no keys, no parcels, nothing readable on the disk", read_without_permit),
    Scene("a copied permit", "serves its holder alone", read_with_copied_permit),
]
UNDOING = [
    Scene("fake unsubscribe", "needs the holder's own undo token; the doctor still reads", fake_unsubscribe),
    Scene("fake unadvertise", "needs the holder's own undo token; the monitor still publishes", fake_unadvertise),
]
