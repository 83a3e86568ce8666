"""What the Director decides: which vehicle is offered which images, and what the ledger is told of a campaign.

Threat: a car that replays a manifest, says it succeeded or failed many times, or speaks for another; an owner who stops
a campaign while cars still wait with what it brought; ten thousand cars of which one has news. Invariant: a vehicle is
offered only what is live, what a running campaign spreads, and what that campaign's open phase reaches: it would refuse
anything else (`judging`). One that was counted is not asked again in the same campaign, and what it must refuse, an
image below its counter, is never sent. When a campaign stops, those it was offered to hear of it at once, by an offer
of nothing. Counts come from `counting`; after a restart all of this follows from the parcels and the ledger again.

Whether a vehicle fetches a patch or the image is its own to see: patches are rows of a topic. What the Director knows
is which bases are left without one.

Here is no I/O and no clock: `directing` brings what there is to know, and carries out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tallystick.errors import Refused
from tallystick.fleet.ota.counting import CampaignCount
from tallystick.fleet.ota.manifest import EcuReport, EnrolledVehicle, Inventory, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.ledger.contracts.firmware import CampaignRow, CampaignStatus, ReleaseRow
from tallystick.trust.campaign import is_member

RENEW_S = 6 * 3600.0  # then an offer is made again: vehicles take no checkpoint that is older than a day
RETRY_S = 60.0  # to a vehicle that refused, and knows another size of the ledger now
REPORT_S = 10.0  # between two reports of a campaign
_STATES_MAX = 64  # of one vehicle, that are remembered
_EARLY_MAX = 256  # manifests of vehicles that are not enrolled yet, of at most 256 KiB


class Proposal(NamedTuple):
    """What a vehicle is to be offered. Without targets: a diagnosis, or that it is to forget what it was offered."""

    vehicle: bytes
    campaign: bytes
    targets: tuple[tuple[str, bytes], ...]  # ECU and image
    size: int  # of the ledger, as the vehicle knows it


class CampaignReport(NamedTuple):
    campaign: bytes
    number: int
    phase: int
    succeeded: int
    failed: int
    manifests: bytes


class Director:
    def __init__(self, report_s: float = REPORT_S) -> None:
        self._report_s = report_s
        self.vehicles: dict[bytes, EnrolledVehicle] = {}
        self.inventory = Inventory(self.vehicles.get)
        self.records: dict[bytes, ReleaseRecord] = {}
        self.patches: dict[tuple[bytes, bytes], bytes] = {}  # by base and image
        self.campaigns: dict[bytes, CampaignRow] = {}
        self.releases: dict[bytes, ReleaseRow] = {}
        self.counts: dict[bytes, CampaignCount] = {}
        self.manifests: dict[bytes, VehicleManifest] = {}  # the newest of each vehicle
        # Every state of a vehicle with the manifest that first showed it: campaigns that begin later count by them.
        self._states: dict[bytes, deque[tuple[VehicleManifest, dict[str, EcuReport]]]] = {}
        self._early = deque[bytes](maxlen=_EARLY_MAX)
        self._offered: dict[bytes, tuple[Proposal, float]] = {}
        self._look_at: dict[bytes, float] = {}  # when a vehicle is to be looked at again
        self._reported_at: dict[bytes, float] = {}

    # --- what there is to know ---

    def enrol(self, vehicle: bytes, enrolled: EnrolledVehicle) -> None:
        self.vehicles[vehicle] = enrolled
        self._look_at[vehicle] = 0.0

    def take_early(self) -> None:
        """Take manifests that came before their vehicles were enrolled; it would not say the same again."""
        early, self._early = self._early, deque(maxlen=_EARLY_MAX)
        for data in early:
            with suppress(Refused):
                self.take_manifest(data)

    def take_record(self, record: ReleaseRecord) -> None:
        if not self.is_known(record.image):  # else it is somebody's word against the ledger's
            self.records[record.image] = record
            self._look_at = dict.fromkeys(self.vehicles, 0.0)

    def take_manifest(self, data: bytes) -> None:
        """Raises `Refused`, and counts nothing of it then."""
        try:
            manifest, reports = self.inventory.take(data)
        except Refused as error:
            if error.reason == "unknown-vehicle":
                self._early.append(data)
            raise
        vehicle = manifest.vehicle
        states = self._states.setdefault(vehicle, deque(maxlen=_STATES_MAX))
        if not states or _shape(states[-1][1]) != _shape(reports):
            states.append((manifest, reports))
        self.manifests[vehicle] = manifest
        for count in self.counts.values():
            count.take(manifest, reports, self.vehicles[vehicle])
        self._look_at[vehicle] = 0.0

    def take_ledger(self, campaigns: Mapping[bytes, CampaignRow], releases: Mapping[bytes, ReleaseRow]) -> None:
        """All campaigns and the releases of their images, as the ledger has them now. Records come before."""
        before = {one: _reach(row, self.releases) for one, row in self.campaigns.items()}
        self.campaigns, self.releases = dict(campaigns), dict(releases)
        for campaign, row in campaigns.items():
            images = [image for _, image in row.images]
            if campaign not in self.counts and all(map(self.is_known, images)):
                hardware = {image: self.records[image].hardware for image in images}
                self.counts[campaign] = count = CampaignCount(campaign, hardware)
                for vehicle, states in self._states.items():
                    for state in states:
                        count.take(*state, self.vehicles[vehicle])
        if before != {one: _reach(row, self.releases) for one, row in self.campaigns.items()}:
            self._look_at = dict.fromkeys(self.vehicles, 0.0)

    # --- what is to be done ---

    def offers(self, now: float) -> list[Proposal]:
        """What is to be offered now. Only those vehicles are looked at that have news or an offer that grows old."""
        looked = sorted(one for one, at in self._look_at.items() if now >= at)
        return [found for one in looked if (found := self._propose(one, now)) is not None]

    def sent(self, proposal: Proposal, now: float) -> None:
        """It is out. What is not is proposed again."""
        self._offered[proposal.vehicle], self._look_at[proposal.vehicle] = (proposal, now), now + RENEW_S

    def reports(self, now: float, time_ms: int) -> list[CampaignReport]:
        """What the ledger is to be told now, by its time: counts that changed, that an image was withdrawn, or that a
        phase has soaked."""
        found = []
        for campaign, row in self.campaigns.items():
            count = self.counts.get(campaign)
            is_early = now < self._reported_at.get(campaign, 0.0) + self._report_s
            if count is None or row.status != CampaignStatus.RUNNING or is_early:
                continue
            succeeded, failed, root = count.tell(row.current.share, row.current.vehicles)
            if failed < row.failed or succeeded + failed < row.succeeded + row.failed:
                continue  # a vehicle is not enrolled here any more: the ledger takes nothing back
            soaked = time_ms >= row.opened_ms + row.current.soak_ms and succeeded >= row.current.least_succeeded
            withdrawn = any(self.releases[image].withdrawn for _, image in row.images)
            if soaked or withdrawn or (succeeded, failed) != (row.succeeded, row.failed):
                found.append(CampaignReport(campaign, row.reports + 1, row.phase, succeeded, failed, root))
                self._reported_at[campaign] = now
        return found

    def unpatched(self, image: bytes) -> Counter[bytes]:
        """The bases that vehicles run on the image's hardware and no patch leads from, and how many ECUs do."""
        ecus = [one for running in self.inventory.running.values() for one in running.values()]
        bases = (one.image for one in ecus if one.hardware == self.records[image].hardware)
        return Counter(base for base in bases if base != image and (base, image) not in self.patches)

    # --- decisions ---

    def _propose(self, vehicle: bytes, now: float) -> Proposal | None:
        manifest, (last, at) = self.manifests.get(vehicle), self._offered.get(vehicle, (None, 0.0))
        chosen = None if manifest is None else self._choose(vehicle)
        if chosen is None and last is not None and last.targets and not self._is_counted(last.campaign, vehicle):
            chosen = last.campaign, ()  # it may still wait with what it was offered
        if manifest is None or chosen is None:  # without a manifest nobody knows what it runs
            self._look_at.pop(vehicle)
            return None
        wanted = Proposal(vehicle, *chosen, manifest.size)
        refused = manifest.outcome.startswith("refused:") and last is not None and manifest.size != last.size
        due = at + (RETRY_S if refused else RENEW_S)
        if last is None or wanted[:3] != last[:3] or now >= due:
            return wanted
        self._look_at[vehicle] = due
        return None

    def _choose(self, vehicle: bytes) -> tuple[bytes, tuple[tuple[str, bytes], ...]] | None:
        """The newest campaign that has something for it."""
        for campaign, row in sorted(self.campaigns.items(), key=lambda one: -one[1].height):
            if not is_member(campaign, vehicle, row.share) or self._is_counted(campaign, vehicle):
                continue
            targets = self._targets(vehicle, row)
            if targets or (targets is not None and not row.images):
                return campaign, targets
        return None

    def _targets(self, vehicle: bytes, row: CampaignRow) -> tuple[tuple[str, bytes], ...] | None:
        """Of all ECUs that the campaign has an image for; None where one of them is not to be had."""
        images = [image for _, image in row.images]
        if not all(map(self._is_live, images)):
            return None
        fitting = {self.records[image].hardware: image for image in images}
        running, found = self.inventory.running[vehicle], []
        for ecu, one in sorted(self.vehicles[vehicle].ecus.items()):
            if one.hardware in fitting:
                image = fitting[one.hardware]
                if ecu not in running or running[ecu].counter > self.releases[image].height:
                    return None
                found.append((ecu, image))
        return tuple(found)

    def _is_counted(self, campaign: bytes, vehicle: bytes) -> bool:
        count = self.counts.get(campaign)
        return count is None or vehicle in count.failed or vehicle in count.succeeded

    def is_known(self, image: bytes) -> bool:
        """Whether it was released, and its record is the one that was released with it."""
        record, release = self.records.get(image), self.releases.get(image)
        return record is not None and release is not None and record.contents == release.contents

    def _is_live(self, image: bytes) -> bool:
        return self.is_known(image) and not self.releases[image].withdrawn


def _shape(reports: Mapping[str, EcuReport]) -> list[tuple[str, bytes, int]]:
    return sorted((ecu, one.image, one.trial) for ecu, one in reports.items())


def _reach(row: CampaignRow, releases: Mapping[bytes, ReleaseRow]) -> tuple[int, list[int]]:
    """What of a row decides who is offered what."""
    return row.share, [releases[image].withdrawn for _, image in row.images if image in releases]
