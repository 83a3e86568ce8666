"""A defence that cannot be taken away, or that nobody asks, fails the test that meant to show its worth."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from without import DEFENCES, NotTakenAway, Removal, processes_without, without

HALL = "hall_with_a_door"


def refuse(visitor: str) -> str:
    return f"{visitor} stays outside"


def admit(visitor: str, *, greeting: str = "welcome", honest: Any = None) -> str:
    return f"{greeting}, {visitor}; {honest(visitor)}"


class House:
    @classmethod
    def check(cls, visitor: str) -> str:
        return f"{cls.__name__}: {visitor} stays outside"


@pytest.fixture
def hall(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module with a guard, and the guard in the table."""
    hall = types.ModuleType(HALL)
    hall.guard, hall.House = refuse, House  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, HALL, hall)
    guard = Removal(f"{HALL}:guard", f"{__name__}:refuse", admit)
    monkeypatch.setitem(DEFENCES, "the door", [guard])
    return hall


@pytest.mark.parametrize("name", DEFENCES)
def test_every_defence_is_where_it_was_taken_for(name: str) -> None:
    for removal in DEFENCES[name]:
        removal.find()


def test_what_stands_in_its_place_is_asked_and_the_guard_comes_back(hall: Any) -> None:
    with without("the door", greeting="come in"):
        assert hall.guard("thief") == "come in, thief; thief stays outside"
    assert hall.guard is refuse


def test_a_class_method_is_taken_away_as_one(hall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_house(cls: type, visitor: str) -> str:
        return f"{cls.__name__} is open to {visitor}"

    monkeypatch.setitem(DEFENCES, "the house", [Removal(f"{HALL}:House.check", f"{__name__}:House.check", open_house)])
    with without("the house"):
        assert House.check("thief") == "House is open to thief"
    assert House.check("thief") == "House: thief stays outside"


def test_a_guard_that_is_not_asked_fails_the_test(hall: Any) -> None:
    with pytest.raises(NotTakenAway, match="nothing asked hall_with_a_door:guard"), without("the door"):
        pass


def test_a_failure_of_the_test_itself_is_not_hidden(hall: Any) -> None:
    with pytest.raises(AssertionError, match="its own"), without("the door"):
        raise AssertionError("its own")
    assert hall.guard is refuse


def test_a_renamed_guard_fails_the_test(hall: Any) -> None:
    hall.warden = hall.guard
    del hall.guard
    with pytest.raises(NotTakenAway, match="no function is there"), without("the door"):
        pass


def test_another_function_under_its_name_fails_the_test(hall: Any) -> None:
    hall.guard = admit
    with pytest.raises(NotTakenAway, match="refuse expected, found"), without("the door"):
        pass


def test_a_guard_that_takes_other_arguments_fails_the_test(hall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_at_night(visitor: str, hour: int) -> str:
        return f"{visitor} stays outside"

    refuse_at_night.__qualname__ = "refuse"
    hall.guard = refuse_at_night
    with pytest.raises(NotTakenAway, match=r"takes \['visitor', 'hour'\]"), without("the door"):
        pass


def test_an_unknown_name_fails_the_test() -> None:
    with pytest.raises(NotTakenAway, match="no such defence"), without("the moat"):
        pass


# --- in other processes ---

FORGE = """
from tallystick.ledger.cometbft import light
print(light.follows(None, None))
"""


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_in_processes_started_meanwhile_too(tmp_path: Path) -> None:
    with processes_without(tmp_path, "the step from a trusted header"):
        assert run(FORGE) == "True\n"
    with pytest.raises(subprocess.CalledProcessError):
        run(FORGE)  # the guard itself, which has something against two headers that are none


def test_and_there_it_must_be_asked_as_well(tmp_path: Path) -> None:
    with pytest.raises(NotTakenAway, match="nothing asked"), processes_without(tmp_path, "the trusting period"):
        run("import tallystick")
