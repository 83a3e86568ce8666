"""`campaign`: the manifests of vehicles, counted once more, against what the Director told the ledger.

Threat: a Director that went bad, or whose key was stolen, reports successes that nobody had or keeps failures to
itself, so that a bad image reaches the next phase. The contract cannot know. Invariant: every manifest is verified here
anew (`Inventory`: enrolled keys, rising numbers) and counted by the Director's own rule (`fleet/ota/counting.py`), and
a report that no honest Director could have made is a finding, with the vehicles that were counted wrong.

Of every phase the last report is looked at, the one that moved the campaign on. A Director reads what is anchored, and
a little later: what was anchored in the last `settle_s` before a report it may have counted or not. Counts that lie
between both are no lie; where both are the same, the root of the manifests must be theirs as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from hashlib import sha256
from typing import Any

import pyarrow as pa

from tallystick.fleet.ota.counting import CampaignCount, has_succeeded
from tallystick.fleet.ota.director import CampaignReport
from tallystick.ledger.contracts.firmware import CampaignStatus
from tallystick.pipeline.jobs import audit_findings, updates
from tallystick.pipeline.jobs.audit_findings import ALARM, NOTICE, WARNING
from tallystick.pipeline.jobs.run import JobRun
from tallystick.trust.campaign import Phase

CAMPAIGNS, FINDINGS, RELEASES = "campaigns", "campaign_findings", "releases"  # tables
_REFUSED = {"replayed": NOTICE, "unknown-vehicle": WARNING}  # any other is an alarm
_ASK = "ask whoever publishes this; a vehicle that lost a key is enrolled anew"
_STOP = "stop the campaign, withdraw the director's right to write its topic, keep the manifests: they are signed"
_TEXT, _COUNT = pa.string(), pa.int64()
FOUND = pa.schema(
    [("campaign", pa.binary()), ("us", _COUNT), ("name", pa.binary()), ("failed", pa.bool_()), ("hash", pa.binary())]
    + [(name, _TEXT) for name in ("vehicle", "rule", "severity", "principal", "message", "next")]
)
CAMPAIGN_COLUMNS = pa.schema(
    [("campaign", _TEXT), ("status", _TEXT), ("images", pa.list_(_TEXT)), ("agrees", pa.bool_())]
    + [(name, _COUNT) for name in ("phase", "phases", "told_succeeded", "told_failed", "succeeded", "failed")]
)
RELEASE_COLUMNS = pa.schema([("image", _TEXT), ("target", _TEXT), ("height", _COUNT), ("withdrawn", _COUNT)])

Decided = list[tuple[int, bytes, bool, bytes]]  # when its manifest was anchored, vehicle, whether it failed, hash


def run(run: JobRun) -> dict[str, Any]:
    settle_us = run.options["settle_s"] * 1_000_000
    return updates.in_rounds(run, "campaign", lambda known: _recount(known, settle_us))


def look(rows: updates.VehicleRows, wanted: dict[bytes, dict[bytes, str]]) -> Iterable[dict[str, Any]]:
    """Of each campaign the vehicle's first manifest that says success, and the first that says failure; and what was
    refused. `wanted` has the hardware of each image of each campaign."""
    first: dict[tuple[bytes, bool], dict[str, Any]] = {}
    for row, manifest, reports in rows.taken:
        hashed = {"hash": sha256(row["manifest"]).digest(), "us": row["us"], "name": rows.vehicle}
        for campaign, hardware in wanted.items():
            assert rows.enrolled is not None  # else nothing is taken
            succeeded = has_succeeded(campaign, hardware, manifest, reports, rows.enrolled)
            if succeeded is not None:
                first.setdefault((campaign, succeeded), {"campaign": campaign, "failed": not succeeded, **hashed})
    yield from first.values()
    for row, error in rows.refused:
        told = {"rule": f"manifest-{error.reason}", "severity": _REFUSED.get(error.reason, ALARM), "next": _ASK}
        yield {**told, "principal": row["_publisher"], "message": str(error), "vehicle": rows.vehicle.hex()}


def counted(campaign: bytes, rows: Decided, until_us: int) -> CampaignCount:
    """As somebody counts who read what was anchored by then."""
    count = CampaignCount(campaign, {})
    known = [row for row in rows if row[0] <= until_us]
    count.failed = {vehicle: hashed for _, vehicle, failed, hashed in known if failed}
    count.succeeded = {one: hashed for _, one, failed, hashed in known if not failed and one not in count.failed}
    return count


def disagreement(
    told: CampaignReport, row: dict[str, Any], phase: Phase, rows: Decided, settle_us: int
) -> updates.Finding | None:
    """What is wrong with a report; nothing, where an honest Director can have made it. `row` is its row of the table
    `ledger`."""
    counts = [counted(told.campaign, rows, until_us) for until_us in (row["us"] - settle_us, row["us"])]
    least, most = (one.tell(phase.share, phase.vehicles) for one in counts)
    total = told.succeeded + told.failed
    is_between = least[1] <= told.failed <= most[1] and sum(least[:2]) <= total <= sum(most[:2])
    if (told.succeeded, told.failed, told.manifests) in (least, most) or (is_between and least != most):
        return None
    says = (
        f"report {told.number} of campaign {told.campaign.hex()} says {told.succeeded} succeeded, {told.failed} failed"
    )
    true = (
        "; so do the manifests, not those under its root" if is_between else f", the manifests {most[0]} and {most[1]}"
    )
    hidden = counts[1].failed if told.failed < most[1] else counts[1].succeeded
    facts = {"principal": row["author"], "last_time": row["time"], "severity": ALARM, "next": _STOP}
    return {
        **facts,
        "rule": "campaign-other-manifests" if is_between else "campaign-miscounted",
        "count": max(1, abs(told.succeeded - most[0]) + abs(told.failed - most[1])),
        "evidence": [{"height": row["height"], "index": row["index"]}],
        "message": updates.naming(says + true, sorted(one.hex() for one in hidden)),
    }


def _recount(known: updates.FleetUpdates, settle_us: int) -> dict[str, Any]:
    """Write what is known now."""
    campaigns, records, decided = known.director.campaigns, known.records, dict[bytes, Decided]()
    images = {name: [image for _, image in row.images] for name, row in campaigns.items()}
    read = {name: of_it for name, of_it in images.items() if records.keys() >= set(of_it)}
    wanted = {name: {image: records[image].hardware for image in of_it} for name, of_it in read.items()}
    frame = known.look_at(partial(look, wanted=wanted), FOUND).persist()
    columns = ("campaign", "us", "name", "failed", "hash")
    for row in frame.where("campaign is not null").select(*columns).toArrow().to_pylist():
        decided.setdefault(row.pop("campaign"), []).append(tuple(row.values()))
    findings, shown = updates.tell(frame.where("rule is not null")), list[dict[str, Any]]()
    frame.unpersist()
    for name, row in campaigns.items():
        rows = decided.get(name, [])
        moved = {told.phase: (told, entry) for told, entry in known.reports if told.campaign == name and name in read}
        judged = [disagreement(*one, Phase(*row.phases[phase]), rows, settle_us) for phase, one in moved.items()]
        findings += (lies := [lie for lie in judged if lie is not None])
        succeeded, failed, _ = counted(name, rows, known.now_us).tell(row.current.share)
        counts = {"told_succeeded": row.succeeded, "told_failed": row.failed, "succeeded": succeeded, "failed": failed}
        about = {"status": CampaignStatus(row.status).name.lower(), "phase": row.phase + 1, "phases": len(row.phases)}
        named = {"campaign": name.hex(), "images": [known.name_of(image) for image in images[name]]}
        shown.append({**named, "agrees": not lies if name in read else None, **about, **counts})
    released = [
        {"image": image.hex(), "target": known.name_of(image), "height": row.height, "withdrawn": row.withdrawn}
        for image, row in known.director.releases.items()
    ]
    known.write(RELEASES, released, RELEASE_COLUMNS)
    known.write(CAMPAIGNS, shown, CAMPAIGN_COLUMNS)
    known.write(FINDINGS, findings, audit_findings.SCHEMA)
    return {"campaigns": len(shown), "findings": len(findings)}
