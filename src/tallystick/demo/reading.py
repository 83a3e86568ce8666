"""Scenes of reading what one may not."""

from __future__ import annotations

from functools import partial

from tallystick.carriers.carrier import Fetch
from tallystick.demo.evidence import heights, subscription, wait_for_refusals
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen, refusal
from tallystick.demo.stage import READ, Stage
from tallystick.errors import Unavailable
from tallystick.trust.permit import Operation

_FETCH_BYTES = 1 << 20


def read_without_permit(stage: Stage) -> Seen:
    """Somebody of the other tenant asks the authority for keys, the node for parcels, and then takes the disk."""
    spy, token = stage.enrol("homes", "spy"), stage.tokens["telemetry"]
    refusal(lambda: spy.authority.permit(Operation.SUBSCRIBE, token), "unknown-topic", of="a permit")
    fetch = partial(spy.node.fetch, Fetch(token, 0, bytes(16), 0, bytes_max=_FETCH_BYTES))
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
        f"history of telemetry, {heights(acts)}",
    )


def read_with_copied_permit(stage: Stage) -> Seen:
    """A nurse who may read vitals herself shows the doctor's permit instead of her own."""
    nurse, doctor = stage.enrol("hospital", "nurse", "vitals", READ), stage.people["doctor"]
    stolen, token = subscription(doctor, "vitals"), stage.tokens["vitals"]
    own = subscription(nurse, "vitals")
    refusal(lambda: nurse.node.subscribe(stolen.grant.permit), "not-yours", of="the copied permit")

    def fetch(permit: bytes) -> int:
        return len(nurse.node.fetch(Fetch(token, 0, permit, 0, bytes_max=_FETCH_BYTES)).parcels)

    reason = refusal(lambda: fetch(stolen.permit.identifier), "not-subscribed", of="parcels under the copied permit")
    if not fetch(own.permit.identifier):
        raise Unavailable("nurse: nothing came under her own permit either")
    acts = wait_for_refusals(stage, "vitals", nurse)
    return Seen(
        f"the copy is refused as not-yours, fetching under it as {reason}; her own permit serves her",
        f"history of vitals, {heights(acts)}",
    )


SCENES = [
    Scene("reading without a permit", "no keys, no parcels, nothing readable on the disk", read_without_permit),
    Scene("a copied permit", "serves its holder alone", read_with_copied_permit),
]
