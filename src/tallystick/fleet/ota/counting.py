"""How manifests become the counts of a campaign. The Director counts so, and whoever recounts it (job `campaign`).

A vehicle succeeded when one manifest shows that every ECU which it was enrolled with, and for whose hardware the
campaign has an image, runs such an image, confirmed, by the ECU's own signed report. What the primary says of them
counts for nothing, and an ECU that it leaves out is no success: so a manifest proves its success alone, and it does not
matter what else was read. In a campaign without images a vehicle succeeded when it says `diagnosed`. It failed when it
says so of this campaign: that word costs only itself.

Each vehicle is counted once, by the manifest that decided. A success may turn into a failure; a failure never into a
success, and nobody is uncounted: the ledger would take no such report. Only those whom the open phase reaches count.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from tallystick.fleet.ota.diagnosis import DIAGNOSED
from tallystick.fleet.ota.manifest import EcuReport, EnrolledVehicle, Trial, VehicleManifest
from tallystick.trust.campaign import VEHICLES_MAX, hashes_root, is_member

FAILED = ("failed", "refused by")  # outcomes begin so, as a primary tells them


def has_succeeded(
    campaign: bytes,
    hardware: Mapping[bytes, str],
    manifest: VehicleManifest,
    reports: Mapping[str, EcuReport],
    enrolled: EnrolledVehicle,
) -> bool | None:
    """What a manifest that an `Inventory` took says of a campaign, with the reports in it: the vehicle succeeded, it
    failed (False), or neither (None). `hardware` has that of each image of the campaign, by root."""
    is_of_it = manifest.campaign == campaign
    if is_of_it and manifest.outcome.startswith(FAILED):
        return False
    if not hardware:
        return True if is_of_it and manifest.outcome == DIAGNOSED else None
    concerned = [name for name, one in enrolled.ecus.items() if one.hardware in hardware.values()]
    shown = [reports[name] for name in concerned if name in reports]
    runs = [one.trial == Trial.NONE and hardware.get(one.image) == one.hardware for one in shown]
    return True if concerned and len(shown) == len(concerned) and all(runs) else None


class CampaignCount:
    """Of one campaign. `hardware` has that of each of its images, by root."""

    def __init__(self, campaign: bytes, hardware: Mapping[bytes, str]) -> None:
        self.campaign, self._hardware = campaign, hardware
        self.succeeded: dict[bytes, bytes] = {}  # hash of the manifest that decided, by vehicle
        self.failed: dict[bytes, bytes] = {}

    def take(self, manifest: VehicleManifest, reports: Mapping[str, EcuReport], enrolled: EnrolledVehicle) -> bool:
        """Count a manifest that an `Inventory` took, with its own reports by ECU. Returns whether anything changed."""
        vehicle, found = manifest.vehicle, has_succeeded(self.campaign, self._hardware, manifest, reports, enrolled)
        if found is None or vehicle in self.failed or (found and vehicle in self.succeeded):
            return False
        if not found:
            self.succeeded.pop(vehicle, None)
        (self.succeeded if found else self.failed)[vehicle] = sha256(manifest.encode()).digest()
        return True

    def tell(self, share: int, most: int = VEHICLES_MAX) -> tuple[int, int, bytes]:
        """Succeeded, failed and the root of the manifests, of those whom a phase of this share reaches. Where it has
        room for fewer, failures go before successes, and then names in their order."""
        counted = self.failed | self.succeeded
        reached = sorted((one in self.succeeded, one) for one in counted if is_member(self.campaign, one, share))[:most]
        failed = sum(not succeeded for succeeded, _ in reached)
        return len(reached) - failed, failed, hashes_root({one: counted[one] for _, one in reached})
