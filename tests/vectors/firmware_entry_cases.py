"""What came with updates, for `make_entries.py`: as in `entry_cases.py`, on a state of its own: phases take time."""

from __future__ import annotations

from entry_cases import HEART, NONE, Case, extended
from firmware_world import CAMPAIGN, IMAGE, OTHER_CAMPAIGN, OTHER_IMAGE, PHASES, SOAK_MS, FirmwareWorld
from ledger_world import NOW_MS, Bench, World, seed

from tallystick import wire
from tallystick.ledger import entries
from tallystick.trust.campaign import WHOLE, Phase
from tallystick.trust.right import Right

GONE, NEW = seed("a withdrawn image"), seed("a new image")
FAILING, ENDING, LOST, BEGUN, CHECKED = (
    seed(f"campaign {name}")[:16] for name in ("failing", "ending", "lost", "begun", "checked")
)


def standing_fleet(bench: Bench) -> None:
    """What there is before, for a soak time: two live images and a withdrawn one; campaigns in their first phase with
    one failure, in their last phase, stopped, failed, of the withdrawn image, and done. The doctor may delete there."""
    fleet = FirmwareWorld(bench.world)
    bench.time_ms = NOW_MS - 2 * SOAK_MS
    bench.bring_into_force()
    fleet.stand(bench)
    bench.accept(fleet.owner.sign(entries.grant(fleet.releases, bench.world.doctor.id, int(Right.DELETE))))
    bench.accept(fleet.image.sign(fleet.release(OTHER_IMAGE), fleet.release(GONE)))
    last = [Phase(WHOLE, 20, 5, 1, SOAK_MS)]
    at_once = [Phase(WHOLE, 20, 5, 1, 0)]
    begun = [fleet.campaign(OTHER_CAMPAIGN), fleet.campaign(FAILING), fleet.campaign(ENDING, phases=last)]
    begun += [fleet.campaign(LOST, [IMAGE, GONE]), fleet.campaign(CHECKED, (), at_once)]
    bench.accept(fleet.owner.sign(*begun))
    told = [fleet.report(1, 0, 4, 1), fleet.report(1, 0, 0, 2, FAILING), fleet.report(1, 0, 5, 0, CHECKED)]
    bench.accept(fleet.director.sign(*told, fleet.stop(OTHER_CAMPAIGN)))
    bench.accept(fleet.image.sign(fleet.withdraw(GONE)))
    bench.time_ms = NOW_MS


class FirmwareCases:
    def __init__(self, world: World) -> None:
        self.world, self.fleet = world, FirmwareWorld(world)

    def good(self) -> list[Case]:
        fleet, owner, image, director = self.fleet, self.fleet.owner, self.fleet.image, self.fleet.director
        return [
            ("100 a new one", image, fleet.release(NEW)),
            ("100 again, to go back", image, fleet.release()),
            ("101 by who released it", image, fleet.withdraw()),
            ("101 by the owner", owner, fleet.withdraw(OTHER_IMAGE)),
            ("101 by who may delete", self.world.doctor, fleet.withdraw()),
            ("102 two images", owner, fleet.campaign(BEGUN, [IMAGE, OTHER_IMAGE])),
            ("102 a diagnosis", owner, fleet.campaign(BEGUN, ())),
            ("103 the next phase", director, fleet.report(2, 0, 5, 1)),
            ("103 too few successes", director, fleet.report(2, 0, 4, 1)),
            ("103 a success that failed", director, fleet.report(2, 0, 3, 2)),
            ("103 one failure too many", director, fleet.report(2, 0, 18, 2)),
            ("103 the end", director, fleet.report(1, 0, 20, 0, ENDING)),
            ("103 of a withdrawn image", director, fleet.report(1, 0, 5, 0, LOST)),
            ("104 by the director", director, fleet.stop()),
            ("104 by the owner", owner, fleet.stop()),
            ("104 what is done", director, fleet.stop(CHECKED)),
            ("105 what was stopped", owner, fleet.resume(OTHER_CAMPAIGN)),
            ("105 what failed", owner, fleet.resume(FAILING)),
        ]

    def bad(self) -> list[Case]:
        fleet, owner, image, director = self.fleet, self.fleet.owner, self.fleet.image, self.fleet.director
        node, doctor, pair = self.world.node, self.world.doctor, [fleet.releases, IMAGE]
        twice = wire.encode([102, fleet.campaigns, BEGUN, [pair, pair], [[*one] for one in PHASES]])
        return [
            ("100 by the director", director, fleet.release(NEW)),
            ("100 by the owner", owner, fleet.release(NEW)),
            ("100 what was withdrawn", image, fleet.release(GONE)),
            ("100 on no topic", image, entries.release_image(NONE, NEW, IMAGE)),
            ("100 a chosen height", image, extended(fleet.release(NEW))),
            ("101 by the director", director, fleet.withdraw()),
            ("101 again", image, fleet.withdraw(GONE)),
            ("101 no release", image, fleet.withdraw(NEW)),
            ("101 of another topic", doctor, entries.withdraw_image(HEART, IMAGE)),
            ("102 by the director", director, fleet.campaign(BEGUN)),
            ("102 the same", owner, fleet.campaign()),
            ("102 no release", owner, fleet.campaign(BEGUN, [NEW])),
            ("102 what was withdrawn", owner, fleet.campaign(BEGUN, [GONE])),
            ("102 an image twice", owner, twice),
            ("102 of no vehicles", owner, fleet.campaign(BEGUN, phases=[Phase(WHOLE, 0, 0, 0, 0)])),
            ("102 without phases", owner, fleet.campaign(BEGUN, phases=())),
            ("102 that nothing stops", owner, fleet.campaign(BEGUN, phases=[Phase(WHOLE, 20, 5, 20, 0)])),
            ("102 shares that fall", owner, fleet.campaign(BEGUN, phases=PHASES[::-1])),
            ("103 by the owner", owner, fleet.report(2, 0, 5, 1)),
            ("103 by a node", node, fleet.report(2, 0, 5, 1)),
            ("103 again", director, fleet.report(1, 0, 4, 1)),
            ("103 one left out", director, fleet.report(3, 0, 5, 1)),
            ("103 of a phase to come", director, fleet.report(2, 1, 5, 1)),
            ("103 beyond the phase", director, fleet.report(2, 0, 20, 1)),
            ("103 a failure less", director, fleet.report(2, 0, 5, 0)),
            ("103 a vehicle less", director, fleet.report(2, 0, 3, 1)),
            ("103 of what failed", director, fleet.report(2, 0, 18, 2, FAILING)),
            ("103 of what is done", director, fleet.report(2, 0, 6, 0, CHECKED)),
            ("103 of no campaign", director, fleet.report(1, 0, 5, 1, BEGUN)),
            ("104 by a stranger", doctor, fleet.stop()),
            ("104 again", director, fleet.stop(OTHER_CAMPAIGN)),
            ("105 by the director", director, fleet.resume(FAILING)),
            ("105 what runs", owner, fleet.resume(CAMPAIGN)),
            ("105 of no campaign", owner, fleet.resume(BEGUN)),
        ]
