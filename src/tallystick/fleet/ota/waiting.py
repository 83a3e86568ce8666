"""When a bundle that is whole may go in: one function says why it waits, and that is what is reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class CarState(NamedTuple):
    """How the car stands, as it says itself."""

    parked: bool
    consents: bool
    charge_percent: int
    minute: int  # of the day, local


@dataclass(frozen=True)
class VehicleRules:
    """When a vehicle installs, and how long it waits for what."""

    charge_least_percent: int = 30
    window: tuple[int, int] = (0, 1440)  # minutes of the day; it may cross midnight
    needs_consent: bool = True
    head_age_max_s: float = 24 * 3600.0  # since the ledger was heard: how late a withdrawal may be
    stick_age_max_s: float = 30 * 24 * 3600.0
    install_s: float = 900.0  # from the first ECU's restart to the last one's health
    tick_s: float = 5.0  # between two words to an ECU that does not answer
    check_s: float = 7 * 24 * 3600.0  # between two diagnoses that nobody asked for
    diagnose_s: float = 60.0  # for every ECU's answer


def reason_to_wait(car: CarState, rules: VehicleRules, *, is_fresh: bool) -> str:
    """Why a bundle that is whole does not go in now; nothing, if it may."""
    first, end = rules.window
    is_open = first <= car.minute < end if first <= end else car.minute >= first or car.minute < end
    if rules.needs_consent and not car.consents:
        return "waits for consent"
    if not car.parked:
        return "waits until the car is parked"
    if car.charge_percent < rules.charge_least_percent:
        return f"waits for {rules.charge_least_percent} % of charge, has {car.charge_percent}"
    if not is_open:
        return f"waits for its window, from minute {first} to {end}"
    if not is_fresh:
        return "waits for a word of the ledger"
    return ""
