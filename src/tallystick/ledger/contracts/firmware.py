"""Firmware: which images are released, and how far campaigns may have spread them.

Threat: an image that is signed with stolen keys and shown to one car alone; a vulnerable image of last year, brought
again; a release number so high that no later one is ever taken (fast-forward); a Director that went bad, which begins
where nobody watches, reports what did not happen, reports twice, or goes on after a campaign stopped itself.

Invariant: an image is released here or nowhere, and the height of its release is the counter that no ECU goes below.
Nobody chooses it. Going back on purpose is a new release of the old image, at a new height. What was withdrawn never
comes back; sealed anew it is another image.

Three hands hold a fleet's updates, and none of them does the work of another. Who may write the topic of the release
records releases and withdraws (the Image repository). The owner of the campaigns' topic, or of its tenant, begins and
resumes campaigns. Who may write that topic reports and stops (the Director). So a Director's key alone spreads nothing
that was not released, begins nothing, and undoes no stop. Its report is a word: the contract holds it to its order, to
counts that the phase can have and that never take a failure back, and to the soak time. With it goes the root of the
manifests that it counted, so that whoever recounts them from the parcels can show the lie before the next phase opens.

A phase opens the next one when a report shows enough successes, few enough failures, and the soak time has passed. With
one failure too many the campaign stops itself, and so it does when one of its images was withdrawn. A campaign without
images only asks vehicles for a diagnosis. Which vehicles a share means is told in `trust/campaign.py`.

    firmware/<token><image>       [height of the release, root of the record, author, height of withdrawal or 0]
    campaign/<token><campaign>    [[[token of the release, image], …], [[share, vehicles, least succeeded, most failed,
                                   soak ms], …], status, phase from 0, its opening ms, reports, succeeded, failed,
                                   forgiven, root of the manifests, height]
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import access, reputation, topics
from tallystick.ledger.contracts.state import HASH, ID, Call, RowReader, Table, fields_of
from tallystick.trust.campaign import PHASES_MAX, VEHICLES_MAX, WHOLE, Phase
from tallystick.trust.right import Right
from tallystick.wire import Fields

CONTRACT = "firmware"
IMAGES_MAX = 32  # in one campaign: the ECUs of a car that are updated together


class CampaignStatus(IntEnum):
    RUNNING = 0
    DONE = 1  # later vehicles still fall in
    STOPPED = 2  # by somebody's word
    FAILED = 3  # stopped itself: one failure too many
    WITHDRAWN = 4  # stopped itself: an image was withdrawn


class ReleaseRow(NamedTuple):
    """An image that was released. It is live until it is withdrawn."""

    height: int  # the rollback counter
    contents: bytes  # root of the release record: hardware, dependencies, hashes of the files inside
    author: bytes
    withdrawn: int  # height, or 0


class CampaignRow(NamedTuple):
    images: list[list[bytes]]  # [token of the release, image], rising; none: a diagnosis
    phases: list[list[int]]
    status: int
    phase: int  # the one that is open, from 0
    opened_ms: int
    reports: int  # so many
    succeeded: int
    failed: int
    forgiven: int  # failures before the owner resumed it
    manifests: bytes  # root of those that the last report counted
    height: int

    @property
    def current(self) -> Phase:
        return Phase(*self.phases[self.phase])

    @property
    def share(self) -> int:
        """Of all vehicles, in millionths: who may install now. None while it is stopped."""
        return self.current.share if self.status in (CampaignStatus.RUNNING, CampaignStatus.DONE) else 0


RELEASES = Table("firmware", ReleaseRow, ID, HASH)
CAMPAIGNS = Table("campaign", CampaignRow, ID, ID)


def require_live(read: RowReader, token: bytes, image: bytes) -> ReleaseRow:
    """A live release, or `Refused`. `read` brings a row of the state: the ledger's, or one that came with a proof."""
    row = read(RELEASES(token, image))
    if row is None:
        raise Refused(f"image {image.hex()} is no release of topic {token.hex()}", reason="not-released")
    _check_not_withdrawn(row, image)
    return row


def release(call: Call, entry: list[Any]) -> None:
    """[100, token, image, root of the record]: by who may write the topic of the release records."""
    fields = fields_of(entry, "release image", 4)
    token, image, contents = fields.octets(16), fields.octets(32), fields.octets(32)
    _check_open(call, token)
    _require_writer(call, token)
    old = call.state.row(RELEASES(token, image))
    if old is not None:
        _check_not_withdrawn(old, image)
    call.state.put(RELEASES(token, image), [call.height, contents, call.author, 0])


def withdraw(call: Call, entry: list[Any]) -> None:
    """[101, token, image]: no car installs it any more; by who may write or delete there, or the owner."""
    fields = fields_of(entry, "withdraw image", 3)
    token, image = fields.octets(16), fields.octets(32)
    _require_brake(call, token, Right.WRITE | Right.DELETE)
    row = require_live(call.state.row, token, image)
    call.state.put(RELEASES(token, image), [*row._replace(withdrawn=call.height)])


def begin(call: Call, entry: list[Any]) -> None:
    """[102, token, campaign, [[token of the release, image], …], [[share, vehicles, least succeeded, most failed, soak
    ms], …]]: by the owner of the campaigns' topic. Its first phase is open at once."""
    fields = fields_of(entry, "campaign", 5)
    token, campaign = fields.octets(16), fields.octets(16)
    pairs = [one.array(2) for one in fields.each(IMAGES_MAX)]
    images = [[one.octets(16), one.octets(32)] for one in pairs]
    phases = _read_phases(fields)
    _check_open(call, token)
    _require_planner(call, token)
    if call.state.row(CAMPAIGNS(token, campaign)) is not None:
        raise Refused(f"campaign {campaign.hex()} exists already", reason="campaign-exists")
    if any(after <= before for before, after in pairwise(images)):
        raise Malformed("campaign: images in order expected, each once")
    _check_images(call, images)
    row = CampaignRow(images, phases, CampaignStatus.RUNNING, 0, call.time_ms, 0, 0, 0, 0, bytes(32), call.height)
    _store(call, token, campaign, row)


def report(call: Call, entry: list[Any]) -> None:
    """[103, token, campaign, number from 1, phase, succeeded, failed, root of the manifests]: by the Director.

    Counts are of vehicles, each counted once. One that failed stays failed in this campaign.
    """
    fields = fields_of(entry, "report campaign", 8)
    token, campaign, number, phase = fields.octets(16), fields.octets(16), fields.number(), fields.number()
    succeeded, failed, manifests = fields.number(VEHICLES_MAX), fields.number(VEHICLES_MAX), fields.octets(32)
    row = _require(call, token, campaign)
    _require_writer(call, token)
    _check_running(row, campaign)
    _check_order(row, number, phase)
    _check_counts(row, succeeded, failed)
    row = row._replace(reports=number, succeeded=succeeded, failed=failed, manifests=manifests)
    _store(call, token, campaign, _judge(call, row))


def stop(call: Call, entry: list[Any]) -> None:
    """[104, token, campaign]: by the Director or the owner; also when it is done, and later vehicles fall in."""
    token, campaign, row = _enter(call, entry, "stop campaign")
    _require_brake(call, token, Right.WRITE)
    if not row.share:
        raise Refused(f"campaign {campaign.hex()} is stopped already", reason="not-running")
    _store(call, token, campaign, row._replace(status=CampaignStatus.STOPPED))


def resume(call: Call, entry: list[Any]) -> None:
    """[105, token, campaign]: by the owner alone, who forgives what failed so far. The phase soaks anew."""
    token, campaign, row = _enter(call, entry, "resume campaign")
    _require_planner(call, token)
    if row.status in (CampaignStatus.RUNNING, CampaignStatus.DONE):
        raise Refused(f"campaign {campaign.hex()} is not stopped", reason="not-stopped")
    _check_images(call, row.images)
    row = row._replace(status=CampaignStatus.RUNNING, opened_ms=call.time_ms, forgiven=row.failed)
    _store(call, token, campaign, row)


def _judge(call: Call, row: CampaignRow) -> CampaignRow:
    """What a report leads to: it stops the campaign, opens the next phase, ends the last, or nothing of this."""
    phase = row.current
    if any(_is_withdrawn(call, *image) for image in row.images):
        return row._replace(status=CampaignStatus.WITHDRAWN)
    if row.failed - row.forgiven > phase.most_failed:
        return row._replace(status=CampaignStatus.FAILED)
    if row.succeeded < phase.least_succeeded or not _has_soaked(row, call.time_ms):
        return row
    if row.phase + 1 == len(row.phases):
        return row._replace(status=CampaignStatus.DONE)
    return row._replace(phase=row.phase + 1, opened_ms=call.time_ms)


def _has_soaked(row: CampaignRow, time_ms: int) -> bool:
    return time_ms >= row.opened_ms + row.current.soak_ms


def _check_order(row: CampaignRow, number: int, phase: int) -> None:
    if number != row.reports + 1:
        raise Refused(f"report {row.reports + 1} expected, found {number}", reason="wrong-number")
    if phase != row.phase:
        raise Refused(f"phase {row.phase} is open, found {phase}", reason="wrong-phase")


def _check_counts(row: CampaignRow, succeeded: int, failed: int) -> None:
    """Raise `Refused` for counts that the phase cannot have, or that take back what was reported."""
    if succeeded + failed > row.current.vehicles:
        message = f"{succeeded + failed} vehicles reported, the phase has at most {row.current.vehicles}"
        raise Refused(message, reason="beyond-phase")
    if failed < row.failed or succeeded + failed < row.succeeded + row.failed:
        raise Refused("a report takes back no failure and no vehicle", reason="counts-fall")


def _read_phases(fields: Fields) -> list[list[int]]:
    """Phases that reach somebody, each more than the one before, and that can end either way."""
    phases = []
    for one in fields.each(PHASES_MAX, 1):
        read = one.array(5)
        share, vehicles = read.number(WHOLE, 1), read.number(VEHICLES_MAX, 1)
        least, most = read.number(vehicles, 1), read.number(vehicles - 1)
        phases.append([share, vehicles, least, most, read.number()])
    if any(after[0] <= before[0] or after[1] < before[1] for before, after in pairwise(phases)):
        raise Malformed("campaign: every phase reaches more vehicles than the one before it")
    return phases


def _check_not_withdrawn(row: ReleaseRow, image: bytes) -> None:
    if row.withdrawn:
        raise Refused(f"image {image.hex()} was withdrawn at height {row.withdrawn}", reason="withdrawn")


def _check_images(call: Call, images: list[list[bytes]]) -> None:
    for token, image in images:
        require_live(call.state.row, token, image)


def _is_withdrawn(call: Call, token: bytes, image: bytes) -> bool:
    row = call.state.row(RELEASES(token, image))
    return row is None or row.withdrawn != 0


def _check_open(call: Call, token: bytes) -> None:
    if topics.require(call.state, token).closed:
        raise Refused(f"topic {token.hex()} is closed", reason="topic-closed")


def _require_writer(call: Call, token: bytes) -> None:
    """The Image repository, or the Director: whom the topic's owner lets write there."""
    if not access.granted(call.state, call.author, token) & Right.WRITE:
        raise Refused(f"no right to write to topic {token.hex()}", reason="no-right")
    if reputation.is_blacklisted(call.state, call.author):
        raise Refused("the author is blacklisted", reason="blacklisted")


def _require_planner(call: Call, token: bytes) -> None:
    topics.require_owner(call, token)


def _require_brake(call: Call, token: bytes, rights: Right) -> None:
    """Whoever may drive may brake, and the owner."""
    if not access.granted(call.state, call.author, token) & rights:
        topics.require_owner(call, token)


def _enter(call: Call, entry: list[Any], what: str) -> tuple[bytes, bytes, CampaignRow]:
    fields = fields_of(entry, what, 3)
    token, campaign = fields.octets(16), fields.octets(16)
    return token, campaign, _require(call, token, campaign)


def _require(call: Call, token: bytes, campaign: bytes) -> CampaignRow:
    row = call.state.row(CAMPAIGNS(token, campaign))
    if row is None:
        raise Refused(f"topic {token.hex()} has no campaign {campaign.hex()}", reason="unknown-campaign")
    return row


def _check_running(row: CampaignRow, campaign: bytes) -> None:
    if row.status != CampaignStatus.RUNNING:
        told = CampaignStatus(row.status).name.lower()
        raise Refused(f"campaign {campaign.hex()} does not run: {told}", reason="not-running")


def _store(call: Call, token: bytes, campaign: bytes, row: CampaignRow) -> None:
    call.state.put(CAMPAIGNS(token, campaign), [*row._replace(status=int(row.status))])
