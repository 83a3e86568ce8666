"""Scenes of taking back what is another's (EventGuard 4.5, 4.6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tallystick.carriers.carrier import Fetch, NotStored
from tallystick.client.grants import Held
from tallystick.client.session import Session
from tallystick.demo.evidence import heights, subscription, wait_for_refusals
from tallystick.demo.forgery import phony_order
from tallystick.demo.hand import Hand
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, refusal
from tallystick.demo.stage import READ, WRITE, Stage
from tallystick.demo.traffic import sample
from tallystick.errors import Refused


def fake_unsubscribe(stage: Stage) -> Seen:
    victim, thief = stage.people["doctor"], stage.enrol("hospital", "colleague", "vitals", READ)
    held, own = subscription(victim, "vitals"), subscription(thief, "vitals")
    place = _undo(stage, held, thief, own)
    try:
        fetched = victim.node.fetch(Fetch(held.grant.token, 0, held.permit.identifier, 0, bytes_max=1 << 20))
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
    return Seen(
        f"the authority and the node refuse; the monitor goes on, at offset {outcome.promises[0].offset}", place
    )


def _undo(stage: Stage, victim: Held, thief: Session, own: Held) -> str:
    """Every way there is; where the refusals of the node stand."""
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
    return f"history of vitals, {heights(wait_for_refusals(stage, 'vitals', thief, 2))}"


SCENES = [
    Scene("fake unsubscribe", "needs the holder's own undo token; the doctor still reads", fake_unsubscribe),
    Scene("fake unadvertise", "needs the holder's own undo token; the monitor still publishes", fake_unadvertise),
]
