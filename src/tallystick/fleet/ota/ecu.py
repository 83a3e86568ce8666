"""One ECU of a vehicle: it judges an order itself, fetches into the slot that does not run, tries, confirms or returns.

Threat: a primary that was taken over, servers of any kind, power that fails. Invariant: an ECU stages only what its own
judge let through, whoever told it to; it boots a staged image only on the primary's word, confirms only an image whose
health it has checked, and what it says is signed. Everything that must last lies in its slots: an ECU that lost its
power is told again by the primary and hashes what lies there.

    Order(record, patch, offer) ─► judge ─► patch, old chunks, servers ─► staged
    Install ─► read back, point, restart ─► on trial ─► Confirm, or GiveUp and restart

The words of the primary are not signed: whoever speaks in its place inside the car can delay or take back a trial, and
can have nothing installed that no judge took. Images travel sealed; the record's key is in the clear inside the car.

It is a role without sockets and clocks; its disk is the seam below `Slots`. After `RestartWanted` the driver makes it
anew from that disk, as a boot loader would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Refused, TallystickError
from tallystick.fleet.ota.delta import PATCH_BYTES_MAX, PatchRecord, apply_patch
from tallystick.fleet.ota.diagnosis import CODE_LENGTH_MAX, CODES_MAX, EcuDiagnosis
from tallystick.fleet.ota.judging import OFFER_BYTES_MAX, Assignment, OfferJudge, UpdateOffer
from tallystick.fleet.ota.landing import MemoryKeeper, SlotKeeper
from tallystick.fleet.ota.manifest import NOTHING, EcuReport, Trial
from tallystick.fleet.ota.record import RECORD_BYTES_MAX, ReleaseRecord
from tallystick.fleet.ota.slots import BootRecord, Slots
from tallystick.objects.asking import FetchLimits
from tallystick.objects.fetch import ObjectFetch
from tallystick.objects.outcomes import FetchGivenUp, ObjectWhole
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, Woken


class Word(IntEnum):
    """What a primary tells its ECUs."""

    ORDER = 0
    INSTALL = 1
    CONFIRM = 2
    GIVE_UP = 3
    REPORT = 4
    DIAGNOSE = 5


@dataclass(frozen=True)
class Order:
    """One word of the primary, about one image."""

    word: Word
    image: bytes = NOTHING  # or the campaign that asks for a diagnosis, filled up with zeros
    record: bytes = b""
    patch: bytes | None = None
    offer: bytes = b""

    def encode(self) -> bytes:
        return wire.encode([1, int(self.word), self.image, self.record, self.patch, self.offer])

    @classmethod
    def decode(cls, data: bytes) -> Order:
        """Raises `Malformed`."""
        fields = wire.Fields.parse(data, "order", 6)
        fields.version(1)
        word, image, record = (
            Word(fields.number(Word.DIAGNOSE)),
            fields.octets(32),
            fields.octets(at_most=RECORD_BYTES_MAX),
        )
        return cls(word, image, record, fields.optional_octets(1024), fields.octets(at_most=OFFER_BYTES_MAX))


class EcuName(NamedTuple):
    vehicle: bytes
    ecu: str
    hardware: str
    primary: str  # the party whose word counts


@dataclass(frozen=True, slots=True)
class RestartWanted:
    """Delivered: the boot record has changed, or is to be read again."""


class Ecu:
    def __init__(
        self,
        name: EcuName,
        key: SigningKey,
        slots: Slots,
        judge: OfferJudge,
        servers: Sequence[str],
        is_healthy: Callable[[BootRecord], bool],
        limits: FetchLimits = FetchLimits(),
        trouble_codes: Callable[[], Sequence[str]] = list,
    ) -> None:
        self._name, self._key, self._slots, self._judge = name, key, slots, judge
        self._servers, self._is_healthy, self._limits = servers, is_healthy, limits
        self._trouble_codes = trouble_codes
        self._record: BootRecord | None = None
        self._trial = Trial.NONE
        self._assigned: Assignment | None = None  # what it was ordered
        self._patch: PatchRecord | None = None
        self._fetch: ObjectFetch | None = None
        self._keeper: SlotKeeper | MemoryKeeper | None = None
        self._is_staged = False
        self._refused, self._told = NOTHING, ""
        self._number = 0

    def receive(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._record is None:
            self._boot()
            effects.append(self._report(now))
        if isinstance(event, Arrived) and event.sender == self._name.primary:
            try:
                return [*effects, *self._obey(Order.decode(event.message), now)]
            except TallystickError as error:  # not an order, or a disk that fails: it is told again
                self._told = str(error)[:256]
                return [*effects, self._report(now)]
        return [*effects, *self._go_on(event, now)]

    # --- the boot loader's part ---

    def _boot(self) -> None:
        self._record = self._slots.boot()
        if self._record.on_trial:
            self._trial = Trial.HEALTHY if self._is_healthy(self._record) else Trial.ILL

    # --- what the primary says ---

    def _obey(self, order: Order, now: float) -> list[Effect]:
        assert self._record is not None
        running = self._record.image.root
        match order.word:
            case Word.ORDER if running != order.image and not self._has(order.image):
                return self._take_order(order, now)
            case Word.INSTALL if self._is_staged and self._has(order.image):
                return self._install(now)
            case Word.CONFIRM if running == order.image and self._trial is Trial.HEALTHY:
                self._record, self._trial = self._slots.confirm(), Trial.NONE
            case Word.GIVE_UP if running == order.image and self._record.on_trial:
                self._slots.give_up()
                return [Deliver(RestartWanted())]
            case Word.GIVE_UP if self._has(order.image):
                self._drop("")
            case Word.DIAGNOSE:
                return [self._diagnose(order.image[:16], now)]
        return [self._report(now)]

    def _has(self, image: bytes) -> bool:
        return self._assigned is not None and self._assigned.docket.root == image

    def _take_order(self, order: Order, now: float) -> list[Effect]:
        """Judge it, and begin to fetch. What was on its way for another image is dropped."""
        self._drop("")
        self._refused = NOTHING
        try:
            record = ReleaseRecord.decode(order.record)
            offer = UpdateOffer.decode(order.offer)
            judged = self._judge.judge(
                offer, lambda root: record if root == record.image else None, int(now * 1000), 1e9
            )
            if [(one.ecu, one.docket.root) for one in judged] != [(self._name.ecu, order.image)]:
                raise Refused(f"{self._name.ecu}: the Director does not assign this image", reason="not-assigned")
            self._assigned = judged[0]
            self._patch = None if order.patch is None else PatchRecord.decode(order.patch)
        except TallystickError as error:
            return self._fail(error, now, order.image)
        return self._begin(Woken(), now)

    def _begin(self, event: Event, now: float) -> list[Effect]:
        """The patch first, if there is one to what runs here; it is no error if there is none."""
        assert self._assigned is not None
        assert self._record is not None
        docket, patch = self._assigned.docket, self._patch
        if patch is not None:
            try:
                docket = patch.check(self._record.image.root, docket.root, PATCH_BYTES_MAX)
                self._keeper = MemoryKeeper(patch.key)
            except Refused as error:
                self._told, self._patch, patch = str(error), None, None
        if patch is None:
            self._keeper = SlotKeeper(self._slots, self._assigned, self._patched())
        assert self._keeper is not None
        self._fetch = ObjectFetch(docket, self._servers, self._keeper.kept, limits=self._limits)
        return self._go_on(event, now)

    def _patched(self) -> bytes | None:
        """What the patch that has come makes of the running image."""
        if not isinstance(self._keeper, MemoryKeeper) or self._assigned is None:
            return None
        length = self._assigned.docket.plain_length
        record = self._record
        if record is None or max(length, record.image.length) > PATCH_BYTES_MAX:
            return None
        try:
            return apply_patch(self._slots.read(0, record.image.length), self._keeper.data, length)
        except Malformed as error:
            self._told = str(error)
            return None

    def _install(self, now: float) -> list[Effect]:
        """Read it back, and let the boot record point to it."""
        assert isinstance(self._keeper, SlotKeeper)
        assert self._keeper.staging is not None
        try:
            self._keeper.staging.finish()
        except Refused as error:
            return self._fail(error, now)
        except TallystickError as error:  # whether it was pointed to, the disk knows
            self._told = str(error)
        self._drop(self._told)
        return [Deliver(RestartWanted())]

    # --- fetching ---

    def _go_on(self, event: Event, now: float) -> list[Effect]:
        if self._fetch is None or self._keeper is None:
            return []
        effects: list[Effect] = []
        try:
            for effect in self._fetch.receive(event, now):
                match effect:
                    case StoreEffect(key, bytes(value)):
                        self._keeper.store(key, value)
                    case Deliver(ObjectWhole()) | Deliver(FetchGivenUp()):
                        effects += self._ended(effect.value, now)
                    case _:
                        effects.append(effect)
        except TallystickError as error:
            return [*effects, *self._fail(error, now)]
        return effects

    def _ended(self, outcome: ObjectWhole | FetchGivenUp, now: float) -> list[Effect]:
        if isinstance(self._keeper, MemoryKeeper):  # the patch, or what there is of it
            if isinstance(outcome, FetchGivenUp):
                self._keeper = None
            self._patch = None
            return self._begin(Woken(), now)
        self._fetch = None
        if isinstance(outcome, FetchGivenUp):
            self._drop(outcome.why)  # it is ordered again
        else:
            self._is_staged = True
        return [self._report(now)]

    def _fail(self, error: TallystickError, now: float, image: bytes = NOTHING) -> list[Effect]:
        """Say why. What the world is to blame for is tried again; what was refused is not."""
        if isinstance(error, Refused):
            self._refused = image if self._assigned is None else self._assigned.docket.root
        self._drop(str(error))
        return [self._report(now)]

    def _drop(self, why: str) -> None:
        if isinstance(self._keeper, SlotKeeper):
            self._keeper.close()
        self._assigned = self._patch = self._fetch = self._keeper = None
        self._is_staged, self._told = False, why[:256]

    def _report(self, now: float) -> Send:
        assert self._record is not None
        image, name = self._record.image, self._name
        self._count(now)
        staged = self._assigned.docket.root if self._assigned is not None and self._is_staged else NOTHING
        report = EcuReport(
            *(name.vehicle, name.ecu, self._number, name.hardware, image.root, self._record.counter, staged),
            *(int(self._trial), self._refused, self._told, self._record.boots, self._record.returns),
        )
        return Send(name.primary, report.sign(self._key).encode())

    def _diagnose(self, campaign: bytes, now: float) -> Send:
        """Read the slot again. Raises `Unavailable` where the disk does not answer."""
        assert self._record is not None
        try:
            self._slots.check()
            slot_ok = 1
        except Refused:
            slot_ok = 0
        self._count(now)
        codes = tuple(code[:CODE_LENGTH_MAX] for code in self._trouble_codes()[:CODES_MAX])
        told = self._name.vehicle, self._name.ecu, self._number, campaign, self._record.image.root, slot_ok
        answer = EcuDiagnosis(*told, self._record.boots, self._record.returns, codes)
        return Send(self._name.primary, answer.sign(self._key).encode())

    def _count(self, now: float) -> None:
        self._number = max(self._number + 1, int(now * 1000))
