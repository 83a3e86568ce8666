"""A fleet's updates on a ledger for tests: topics of releases and of campaigns, and three hands that share the work.

The landlord owns both topics; the sensor is the Image repository, which may write the releases, and the monitor, a
principal of another tenant's, is the Director, who may write the campaigns. One image is released, and one campaign of
two phases runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger_world import HOME, Actor, Bench, World, seed

from tallystick.ledger import entries
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES, CampaignRow, ReleaseRow
from tallystick.trust.campaign import WHOLE, Phase
from tallystick.trust.right import Right

IMAGE, OTHER_IMAGE = seed("image"), seed("another image")
CAMPAIGN, OTHER_CAMPAIGN = seed("campaign")[:16], seed("another campaign")[:16]
CONTENTS, MANIFESTS = seed("release record"), seed("manifests")
SOAK_MS = 60_000
PHASES = (Phase(WHOLE // 10, 20, 5, 1, SOAK_MS), Phase(WHOLE, 200, 100, 3, SOAK_MS))


class FirmwareWorld:
    def __init__(self, world: World) -> None:
        self.world, self.owner, self.image, self.director = world, world.landlord, world.sensor, world.monitor
        self._bound = [world.bind(name, HOME) for name in ("releases", "campaigns")]
        self.releases, self.campaigns = (one.token for one in self._bound)

    def stand(self, bench: Bench) -> None:
        """One image released, and one campaign begun; the contracts are in force."""
        for who, written in self.founding():
            bench.accept(who.sign(*written))
        bench.accept(self.image.sign(self.release()))
        bench.accept(self.owner.sign(self.campaign()))

    def founding(self) -> list[tuple[Actor, Sequence[bytes]]]:
        """The topics, and who may write them."""
        owner, may = self.owner, [(self.releases, self.image.id), (self.campaigns, self.director.id)]
        return [
            (owner, [self.world.topic("", owner, HOME, binding=one) for one in self._bound]),
            (owner, [entries.grant(*one, int(Right.WRITE)) for one in may]),
        ]

    def release(self, image: bytes = IMAGE) -> bytes:
        return entries.release_image(self.releases, image, CONTENTS)

    def withdraw(self, image: bytes = IMAGE) -> bytes:
        return entries.withdraw_image(self.releases, image)

    def campaign(
        self, campaign: bytes = CAMPAIGN, images: Sequence[bytes] = (IMAGE,), phases: Sequence[Phase] = PHASES
    ) -> bytes:
        return entries.campaign(self.campaigns, campaign, [(self.releases, one) for one in images], phases)

    def report(
        self,
        number: int,
        phase: int,
        succeeded: int,
        failed: int,
        campaign: bytes = CAMPAIGN,
        manifests: bytes = MANIFESTS,
    ) -> bytes:
        where = self.campaigns, campaign, number, phase
        return entries.report_campaign(*where, succeeded=succeeded, failed=failed, manifests=manifests)

    def stop(self, campaign: bytes = CAMPAIGN) -> bytes:
        return entries.stop_campaign(self.campaigns, campaign)

    def resume(self, campaign: bytes = CAMPAIGN) -> bytes:
        return entries.resume_campaign(self.campaigns, campaign)

    def good(self) -> list[bytes]:
        """One of each kind, for the state of `stand`."""
        started = self.campaign(OTHER_CAMPAIGN)
        return [
            self.release(OTHER_IMAGE),
            self.withdraw(),
            started,
            self.report(1, 0, 5, 0),
            self.stop(),
            self.resume(),
        ]

    def found_release(self, bench: Bench, image: bytes = IMAGE) -> ReleaseRow:
        row = bench.state.row(RELEASES(self.releases, image))
        assert row is not None
        return row

    def found(self, bench: Bench, campaign: bytes = CAMPAIGN) -> CampaignRow:
        row = bench.state.row(CAMPAIGNS(self.campaigns, campaign))
        assert row is not None
        return row
