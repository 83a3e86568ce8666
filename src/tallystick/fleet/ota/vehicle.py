"""The primary of a vehicle: it judges an offer, has its ECUs stage a bundle, and lets it in whole or not at all.

Threat: half an update. Images that need one another run together or not at all, whatever fails between: a server, an
ECU, the power, the health of one image (partial bundle, Uptane 2.1). A withdrawal that comes while a bundle waits.

Invariant: nothing is pointed to before every ECU has its image whole, and nothing is confirmed before every new image
was found healthy; the decision is stored before the first ECU hears it. Until it is stored any ECU may fail, and all
return to what they ran. Afterwards an ECU that returned by itself is given its image again. So a vehicle that rests
between two steps goes on from the one that it stored:

    PREPARE ─ all staged, nothing to wait for ─► INSTALL ─ all healthy ─► CONFIRM ─ all confirmed ─► done
       └ one refuses ─► done, nothing changed       └ one ill, or too late ─► GIVE_UP ─ all returned ─► done

A bundle that waits, for consent or a parking place, is judged again with every offer; it goes in only if the ledger was
heard within `head_age_max_s`, so that what is withdrawn meanwhile stays out. A bundle that failed is not tried again in
the same campaign. An offer from a stick may be older, and counts within the expiry of its metadata.

Every step is told in a manifest. The role has no sockets and no clock; what it stores, it stores as effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Malformed, Refused, TallystickError
from tallystick.fleet.ota.delta import PatchRecord
from tallystick.fleet.ota.diagnosis import DIAGNOSED, NO_CAMPAIGN, DiagnosisRounds, Surfaces
from tallystick.fleet.ota.ecu import Order, Word
from tallystick.fleet.ota.judging import Assignment, Judge, Records, UpdateOffer, check_needs
from tallystick.fleet.ota.manifest import NOTHING, EcuReport, Trial, VehicleManifest
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.waiting import CarState, VehicleRules, reason_to_wait
from tallystick.objects.layout import Docket
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, WakeAt

STICK = "stick"  # the sender of an offer that somebody brought by hand
BUNDLE, FAILED, OUTCOME, ROUNDS = "bundle", "failed", "outcome", "rounds"  # keys of what is stored


class BundlePhase(IntEnum):
    PREPARE = 0
    INSTALL = 1
    CONFIRM = 2
    GIVE_UP = 3


@dataclass
class _Bundle:
    """What is on its way in, and how far it is."""

    phase: BundlePhase
    campaign: bytes
    assigned: dict[str, Assignment]
    offer: bytes  # for ECUs, which judge it themselves

    @property
    def name(self) -> bytes:
        images = [(ecu, one.docket.root, one.counter) for ecu, one in sorted(self.assigned.items())]
        return named_hash("tallystick bundle 1", wire.encode([self.campaign, images]))

    def encode(self) -> bytes:
        listed = [[one.ecu, one.docket.encode(), one.counter, one.record.encode()] for one in self.assigned.values()]
        return wire.encode([1, int(self.phase), self.campaign, listed, self.offer])

    @classmethod
    def decode(cls, data: bytes) -> _Bundle:
        _, phase, campaign, listed, offer = wire.decode(data, "bundle")  # our own
        found = [Assignment(ecu, Docket.decode(a), height, ReleaseRecord.decode(b)) for ecu, a, height, b in listed]
        return cls(BundlePhase(phase), campaign, {one.ecu: one for one in found}, offer)


class VehicleKnows(NamedTuple):
    """What the driver keeps for the primary."""

    records: Records  # rows of the topic of releases, by image
    patch: Callable[[bytes, bytes], PatchRecord | None]  # by base and image
    car: Callable[[], CarState]
    size: Callable[[], int]  # of the ledger, as it is known here: from there the next offer's proof goes on
    surfaces: Callable[[], Surfaces] = Surfaces  # that the car opens to the outside


class PrimaryStatistics(NamedTuple):
    """How it stands."""

    phase: str = ""  # of the bundle on its way
    waiting: str = ""
    outcome: str = ""
    campaign: bytes = NO_CAMPAIGN
    is_quiet: bool = False  # nothing is on its way, or what is waits; and that was told


class Primary:
    """ECUs are parties by their own names. `stored` is what earlier lives stored."""

    def __init__(
        self,
        key: SigningKey,
        director: str,
        judge: Judge,
        knows: VehicleKnows,
        stored: Mapping[str, bytes],
        rules: VehicleRules = VehicleRules(),
    ) -> None:
        self._key, self._director, self._judge, self._knows, self._rules = key, director, judge, knows, rules
        self._standing = judge.standing
        self._bundle = _Bundle.decode(stored[BUNDLE]) if BUNDLE in stored else None
        self._failed = stored.get(FAILED, b"")
        self._reports: dict[str, EcuReport] = {}
        self._signed: dict[str, bytes] = {}  # reports as they came, for the next manifest
        self._good_until_ms = 0.0  # the last offer: until the ledger must have been heard again
        self._late_at = self._next_at = self._changed_at = 0.0
        self._waiting, self._told = "", ("", "", bytes(16), -2)
        kept: tuple[bytes, str] = wire.decode(stored[OUTCOME], "outcome") if OUTCOME in stored else (NO_CAMPAIGN, "")
        self._campaign, self._outcome = kept
        vehicle, ecus = self._standing.vehicle, self._standing.hardware
        self._rounds = DiagnosisRounds(vehicle, ecus, rules.check_s, stored.get(ROUNDS, b""))
        self._number = 0

    def receive(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, Arrived) and event.sender in (self._director, STICK):
            effects += self._take_offer(event, now)
        elif isinstance(event, Arrived) and event.sender in self._standing.hardware:
            self._take_report(event.sender, event.message)
        effects += self._go_on(now)
        effects += self._diagnose(now)
        effects += self._speak(now)
        effects += self._manifest(now)
        return effects

    def statistics(self) -> PrimaryStatistics:
        told = self._shown()
        phase = "" if self._bundle is None else self._bundle.phase.name.lower()
        is_quiet = told == self._told and (not phase or bool(self._waiting)) and not self._rounds.is_open
        return PrimaryStatistics(phase, *told[:3], is_quiet)

    # --- offers and reports ---

    def _take_offer(self, event: Arrived, now: float) -> list[Effect]:
        """Judge it. One that is refused takes back what was only prepared, since it may say why that must stay out."""
        age_s = self._rules.stick_age_max_s if event.sender == STICK else self._rules.head_age_max_s
        try:
            offer = UpdateOffer.decode(event.message)
            assigned = self._judge.judge(offer, self._knows.records, int(now * 1000), age_s)
            running = {ecu: (report.hardware, report.image) for ecu, report in self._reports.items()}
            self._check_needs(assigned, running)
            asks_diagnosis = not assigned and self._judge.asks_diagnosis(offer)
        except Refused as error:
            return self._end(f"refused: {error}") if self._is_preparing else self._note(f"refused: {error}")
        except TallystickError as error:
            return self._note(str(error))
        new = {one.ecu: one for one in assigned if not self._runs(one)}
        bundle = _Bundle(BundlePhase.PREPARE, offer.campaign or bytes(16), new, event.message)
        if self._bundle is not None and not self._is_preparing:
            return []  # what began ends first
        assert self._judge.head is not None
        self._good_until_ms = self._judge.head.time_ms + age_s * 1000
        if asks_diagnosis:
            self._rounds.ask(bundle.campaign, now)
            self._next_at = 0.0
        if not new or bundle.name == self._failed:
            return self._end(self._outcome) if self._is_preparing else []
        if self._bundle is not None and self._bundle.name == bundle.name:
            self._bundle.offer = event.message
            return [StoreEffect(BUNDLE, self._bundle.encode())]
        self._outcome = ""
        self._reports = {
            ecu: replace(report, refused=NOTHING) for ecu, report in self._reports.items()
        }  # that was then
        return self._enter(bundle, BundlePhase.PREPARE)

    def _check_needs(self, assigned: list[Assignment], running: dict[str, tuple[str, bytes]]) -> None:
        check_needs(assigned, running)

    def _take_report(self, ecu: str, message: bytes) -> None:
        """Its signature is for the Director; that it came through this ECU's link is the driver's word."""
        try:
            report = EcuReport.decode(message)
        except Malformed:
            self._take_answer(ecu, message)
            return
        if report.ecu == ecu and (ecu not in self._reports or report.number > self._reports[ecu].number):
            self._reports[ecu], self._signed[ecu] = report, message

    def _take_answer(self, ecu: str, message: bytes) -> None:
        with suppress(Malformed):
            self._rounds.take(ecu, message)

    # --- from one phase to the next ---

    def _go_on(self, now: float) -> list[Effect]:
        bundle = self._bundle
        if bundle is None or any(ecu not in self._reports for ecu in bundle.assigned):
            return []
        pairs = [(self._reports[ecu], one.docket.root) for ecu, one in bundle.assigned.items()]
        match bundle.phase:
            case BundlePhase.PREPARE:
                if refused := [report for report, root in pairs if report.refused == root]:
                    return self._end(f"refused by {refused[0].ecu}: {refused[0].told}")
                if all(root in (report.staged, report.image) for report, root in pairs):
                    is_fresh = now * 1000 <= self._good_until_ms
                    self._waiting = reason_to_wait(self._knows.car(), self._rules, is_fresh=is_fresh)
                    if not self._waiting:
                        return self._enter(bundle, BundlePhase.INSTALL)
            case BundlePhase.INSTALL:
                self._late_at = self._late_at or now + self._rules.install_s
                if self._are_all_healthy(pairs):
                    return self._enter(bundle, BundlePhase.CONFIRM)
                failed = [report.ecu for report, root in pairs if _has_failed(report, root)]
                if failed or now >= self._late_at:
                    self._outcome = f"failed: {failed[0] if failed else 'not all in time'}"
                    return self._enter(bundle, BundlePhase.GIVE_UP)
            case BundlePhase.CONFIRM:
                if all(report.image == root and report.trial == Trial.NONE for report, root in pairs):
                    return self._end("installed")
            case BundlePhase.GIVE_UP:
                if all(report.trial == Trial.NONE and root != report.staged for report, root in pairs):
                    self._failed = bundle.name
                    return [StoreEffect(FAILED, bundle.name), *self._end(self._outcome or "failed")]
        return []

    def _are_all_healthy(self, pairs: list[tuple[EcuReport, bytes]]) -> bool:
        return all(report.image == root and report.trial != Trial.ILL for report, root in pairs)

    def _runs(self, one: Assignment) -> bool:
        report = self._reports.get(one.ecu)
        return report is not None and report.image == one.docket.root and report.trial == Trial.NONE

    @property
    def _is_preparing(self) -> bool:
        return self._bundle is not None and self._bundle.phase is BundlePhase.PREPARE

    def _enter(self, bundle: _Bundle, phase: BundlePhase) -> list[Effect]:
        bundle.phase, self._bundle, self._late_at, self._next_at = phase, bundle, 0.0, 0.0
        return [StoreEffect(BUNDLE, bundle.encode())]

    def _end(self, outcome: str) -> list[Effect]:
        """The bundle is over. What was only staged is forgotten by its ECUs."""
        bundle, self._bundle, self._waiting = self._bundle, None, ""
        assert bundle is not None
        words = [Send(ecu, Order(Word.GIVE_UP, one.docket.root).encode()) for ecu, one in bundle.assigned.items()]
        kept = [*self._conclude(bundle.campaign, outcome), StoreEffect(BUNDLE, None)]
        return [*kept, *(words if bundle.phase is BundlePhase.PREPARE else [])]

    def _conclude(self, campaign: bytes, outcome: str) -> list[Effect]:
        """What became of a campaign here. It is stored: a crash before it was told must not keep it from anybody."""
        self._campaign, self._outcome = campaign, outcome[:256]
        return [StoreEffect(OUTCOME, wire.encode([self._campaign, self._outcome]))]

    def _note(self, outcome: str) -> list[Effect]:
        """An offer is not taken, which is no failure of the campaign that went before."""
        self._campaign, self._outcome = NO_CAMPAIGN, outcome[:256]
        return []

    def _diagnose(self, now: float) -> list[Effect]:
        """End a round that every ECU answered, or that waited long enough."""
        silent = sorted(self._rounds.open(now))
        found = self._rounds.end(self._key, now, self._rules.diagnose_s, self._knows.surfaces)
        if found is None:
            return []
        effects: list[Effect] = [Deliver(found), StoreEffect(ROUNDS, self._rounds.ended())]  # rather twice than never
        if found.campaign == NO_CAMPAIGN:
            return effects
        return [*effects, *self._conclude(found.campaign, f"failed: {silent[0]} is silent" if silent else DIAGNOSED)]

    # --- what is said ---

    def _speak(self, now: float) -> list[Effect]:
        """Tell every ECU what it has not done yet, or ask how it is."""
        if now < self._next_at:
            return []
        self._next_at = now + self._rules.tick_s
        words = [(ecu, self._word(ecu)) for ecu in self._standing.hardware]
        words += [(ecu, Order(Word.DIAGNOSE, one.ljust(32, b"\0"))) for ecu, one in self._rounds.open(now).items()]
        return [*(Send(ecu, word.encode()) for ecu, word in words), WakeAt(self._next_at)]

    def _word(self, ecu: str) -> Order:
        bundle, report = self._bundle, self._reports.get(ecu)
        one = bundle.assigned.get(ecu) if bundle is not None else None
        if report is not None and report.trial != Trial.NONE and (one is None or report.image != one.docket.root):
            return Order(Word.GIVE_UP, report.image)  # it lost its power while the others returned
        if bundle is None or one is None or report is None:
            return Order(Word.REPORT)
        root = one.docket.root
        if bundle.phase is BundlePhase.GIVE_UP:
            return Order(Word.GIVE_UP, root)
        if report.image == root:
            return Order(Word.CONFIRM if bundle.phase is BundlePhase.CONFIRM else Word.REPORT, root)
        if report.staged == root:
            return Order(Word.REPORT if bundle.phase is BundlePhase.PREPARE else Word.INSTALL, root)
        if bundle.phase is BundlePhase.INSTALL:
            return Order(Word.REPORT)
        patch = self._knows.patch(report.image, root)
        encoded = None if patch is None else patch.encode()
        return Order(Word.ORDER, root, one.record.encode(), encoded, bundle.offer)

    def _shown(self) -> tuple[str, str, bytes, int]:
        """What a manifest is about: a change of it is told."""
        bundle = self._bundle
        campaign, phase = (self._campaign, -1) if bundle is None else (bundle.campaign, int(bundle.phase))
        return self._waiting, self._outcome, campaign, phase

    def _manifest(self, now: float) -> list[Effect]:
        """When something changed that the Director should know. ECUs are waited for, and then left out."""
        told = self._shown()
        if told == self._told or not self._changed_at:
            self._changed_at = now
        all_spoke = self._signed.keys() >= self._standing.hardware.keys()
        if told == self._told or not (all_spoke or now > self._changed_at + 3 * self._rules.tick_s):
            return []
        self._told, self._number = told, max(self._number + 1, int(now * 1000))
        waiting, outcome, campaign, _ = told
        about = self._standing.vehicle, self._number, self._knows.size(), campaign, waiting, outcome
        manifest = VehicleManifest(*about, tuple(self._signed.values()))
        self._signed = {}
        return [Deliver(manifest.sign(self._key))]


def _has_failed(report: EcuReport, root: bytes) -> bool:
    """An ECU that has the image neither staged nor running has returned, or lost its power before it was pointed to."""
    return report.trial == Trial.ILL or root not in (report.image, report.staged)
