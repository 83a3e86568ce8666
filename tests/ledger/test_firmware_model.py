"""The contract of updates against a plain model: whatever the three hands and a stranger write, in any order, both
agree on what is accepted, for which reason not, and what stands there afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from examples import examples
from firmware_world import FirmwareWorld
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from ledger_world import Bench, World, seed

from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES
from tallystick.ledger.contracts.state import State
from tallystick.trust.campaign import WHOLE, Phase

IMAGES = [seed(f"image {n}") for n in range(2)]
NAMES = [seed(f"campaign {n}")[:16] for n in range(2)]
SOAK_MS = 10
PLANS = [
    [Phase(WHOLE // 10, 3, 2, 1, SOAK_MS), Phase(WHOLE, 6, 4, 2, SOAK_MS)],
    [Phase(WHOLE // 2, 2, 1, 0, 0), Phase(WHOLE - 1, 2, 1, 1, SOAK_MS), Phase(WHOLE, 4, 3, 1, 0)],
]
HANDS = ("owner", "image", "director", "stranger")
BENCH = Bench()
BENCH.bring_into_force()
for _who, _written in FirmwareWorld(BENCH.world).founding():
    BENCH.accept(_who.sign(*_written))

images, names, counts = st.sampled_from(IMAGES), st.sampled_from(NAMES), st.integers(0, 6)
waits = st.sampled_from([0, 1, SOAK_MS - 1, SOAK_MS])
in_order = st.sampled_from([0, 0, 0, 0, 0, -1, 1])


def mostly(hand: str) -> st.SearchStrategy[str]:
    """The hand whose work it is, or sometimes another: what is refused goes no deeper."""
    return st.sampled_from([hand] * 5 + [*HANDS])


@dataclass(frozen=True)
class Spread:
    """A campaign as one would tell of it."""

    images: tuple[bytes, ...]
    plan: list[Phase]
    opened_ms: int
    state: str = "running"
    phase: int = 0
    reports: int = 0
    succeeded: int = 0
    failed: int = 0
    forgiven: int = 0

    @property
    def open(self) -> Phase:
        return self.plan[self.phase]


class Updates(RuleBasedStateMachine):
    released: dict[bytes, int]
    withdrawn: set[bytes]
    spreads: dict[bytes, Spread]

    @initialize()
    def start(self) -> None:
        self.bench = Bench.__new__(Bench)
        self.bench.world, self.bench.stored = BENCH.world, dict(BENCH.stored)
        self.bench.state = State(self.bench.stored.get)
        self.bench.height, self.bench.time_ms = BENCH.height, BENCH.time_ms
        self.fleet = FirmwareWorld(BENCH.world)
        self.released, self.withdrawn, self.spreads = {}, set(), {}
        self.release("image", IMAGES[0])
        for name, plan in zip(NAMES, PLANS, strict=True):
            self.begin("owner", name, {IMAGES[0]}, plan)

    def write(self, hand: str, entry: bytes, reason: str | None) -> bool:
        """Whether it is accepted, as the model says."""
        world: World = self.fleet.world
        who = world.doctor if hand == "stranger" else getattr(self.fleet, hand)
        result = self.bench.run(who.sign(entry))
        assert result.reason == (reason or ""), (result, reason)
        return reason is None

    def why_not_live(self, image: bytes) -> str | None:
        if image not in self.released:
            return "not-released"
        return "withdrawn" if image in self.withdrawn else None

    @rule(hand=mostly("image"), image=images)
    def release(self, hand: str, image: bytes) -> None:
        reason = "no-right" if hand != "image" else "withdrawn" if image in self.withdrawn else None
        height = self.bench.height
        if self.write(hand, self.fleet.release(image), reason):
            assert height > self.released.get(image, 0), "a counter rises"
            self.released[image] = height

    @rule(hand=mostly("stranger"), image=images)
    def withdraw(self, hand: str, image: bytes) -> None:
        reason = self.why_not_live(image) if hand in ("image", "owner") else "not-owner"
        if self.write(hand, self.fleet.withdraw(image), reason):
            self.withdrawn.add(image)

    @rule(hand=mostly("owner"), name=names, chosen=st.sets(images), plan=st.sampled_from(PLANS))
    def begin(self, hand: str, name: bytes, chosen: set[bytes], plan: list[Phase]) -> None:
        wrong = next(filter(None, map(self.why_not_live, sorted(chosen))), None)
        reason = "not-owner" if hand != "owner" else "campaign-exists" if name in self.spreads else wrong
        if self.write(hand, self.fleet.campaign(name, sorted(chosen), plan), reason):
            self.spreads[name] = Spread(tuple(sorted(chosen)), plan, self.bench.time_ms)

    @rule(hand=mostly("director"), name=names, off=in_order, succeeded=counts, failed=counts)
    def report_at_random(self, hand: str, name: bytes, off: int, succeeded: int, failed: int) -> None:
        self.report(hand, name, off, 0, succeeded, failed)

    @rule(name=names, off=in_order, better=st.integers(0, 3), worse=st.sampled_from([0, 0, 1, 1, -1]), ms=waits)
    def report_more(self, name: bytes, off: int, better: int, worse: int, ms: int) -> None:
        """What goes deep: after a while a report of the Director's that is in order, and mostly fits the phase."""
        self.bench.time_ms += ms
        if (found := self.spreads.get(name)) is not None:
            self.report("director", name, 0, off, found.succeeded + better, max(0, found.failed + worse))

    @rule(name=names, ms=waits)
    def fail_and_go_on(self, name: bytes, ms: int) -> None:
        """One failure too many, resumed, then told the same again, before and after the soak time."""
        if (found := self.spreads.get(name)) is not None:
            self.report_more(name, 0, 0, found.forgiven + found.open.most_failed + 1 - found.failed, 0)
        self.resume("owner", name)
        self.report_more(name, 0, 0, 0, ms)

    def report(self, hand: str, name: bytes, off: int, phase_off: int, succeeded: int, failed: int) -> None:
        found = self.spreads.get(name)
        number, phase = (1, 0) if found is None else (found.reports + 1 + off, max(0, found.phase + phase_off))
        reason = self.why_no_report(found, hand, number, phase, succeeded, failed)
        if self.write(hand, self.fleet.report(number, phase, succeeded, failed, name), reason):
            assert found is not None
            told = replace(found, reports=number, succeeded=succeeded, failed=failed)
            self.spreads[name] = self.judged(told)

    @staticmethod
    def why_no_report(
        found: Spread | None, hand: str, number: int, phase: int, succeeded: int, failed: int
    ) -> str | None:
        if found is None:
            return "unknown-campaign"
        faults = {
            "no-right": hand != "director",
            "not-running": found.state != "running",
            "wrong-number": number != found.reports + 1,
            "wrong-phase": phase != found.phase,
            "beyond-phase": succeeded + failed > found.open.vehicles,
            "counts-fall": failed < found.failed or succeeded + failed < found.succeeded + found.failed,
        }
        return next((reason for reason, holds in faults.items() if holds), None)

    def judged(self, told: Spread) -> Spread:
        if self.withdrawn & {*told.images}:
            return replace(told, state="withdrawn")
        if told.failed > told.forgiven + told.open.most_failed:
            return replace(told, state="failed")
        passed = told.succeeded >= told.open.least_succeeded
        if not passed or self.bench.time_ms - told.opened_ms < told.open.soak_ms:
            return told
        if told.open is told.plan[-1]:
            return replace(told, state="done")
        return replace(told, phase=told.phase + 1, opened_ms=self.bench.time_ms)

    @rule(hand=mostly("stranger"), name=names)
    def stop(self, hand: str, name: bytes) -> None:
        found = self.spreads.get(name)
        may, runs = hand in ("director", "owner"), found is not None and found.state in ("running", "done")
        reason = "unknown-campaign" if found is None else "not-owner" if not may else None if runs else "not-running"
        if self.write(hand, self.fleet.stop(name), reason):
            assert found is not None
            self.spreads[name] = replace(found, state="stopped")

    @rule(hand=mostly("owner"), name=names)
    def resume(self, hand: str, name: bytes) -> None:
        found = self.spreads.get(name)
        if found is None:
            reason: str | None = "unknown-campaign"
        elif hand != "owner":
            reason = "not-owner"
        elif found.state in ("running", "done"):
            reason = "not-stopped"
        else:
            reason = "withdrawn" if self.withdrawn & {*found.images} else None
        if self.write(hand, self.fleet.resume(name), reason):
            assert found is not None
            again = {"state": "running", "opened_ms": self.bench.time_ms, "forgiven": found.failed}
            self.spreads[name] = replace(found, **again)  # type: ignore[arg-type]

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        if not hasattr(self, "bench"):
            return
        read: Any = self.bench.state.row
        for image in IMAGES:
            row = read(RELEASES(self.fleet.releases, image))
            assert (None if row is None else row.height) == self.released.get(image)
            assert (row is not None and row.withdrawn != 0) == (image in self.withdrawn)
        for name in NAMES:
            row, told = read(CAMPAIGNS(self.fleet.campaigns, name)), self.spreads.get(name)
            assert (row is None) == (told is None)
            if told is not None:
                states = ("running", "done", "stopped", "failed", "withdrawn")
                assert (states[row.status], row.phase, row.opened_ms) == (told.state, told.phase, told.opened_ms)
                assert row[5:9] == (told.reports, told.succeeded, told.failed, told.forgiven)
                assert row.share == (told.open.share if told.state in ("running", "done") else 0)


def test_the_contract_does_what_the_model_does() -> None:
    run_state_machine_as_test(Updates, settings=examples(100, stateful_step_count=40))
