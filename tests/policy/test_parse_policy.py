"""Reading formulas: mistakes are named with their place and a remedy, and hostile texts cost little."""

from __future__ import annotations

from random import Random

import pytest
from formulas import ACME, CONTENT, some_formula
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Misuse
from tallystick.policy import parse as parse_module
from tallystick.policy.parse import parse
from tallystick.policy.show import show

ALPHABET = "trainedolcsu ()&|:,.<>=!\"'0123456789-_of"


@pytest.mark.parametrize(
    ("text", "position", "told", "hint"),
    [
        ("rol::insurer", 1, 'unknown attribute "rol"', 'did you mean "role"?'),
        ("trained && role::insuror", 18, 'has no value "insuror"', 'did you mean "insurer"?'),
        ("clearance >= 300", 14, "300 is out of range", "it reaches from 0 to 255"),
        ("height >= -501", 11, "-501 is out of range", "it reaches from -500 to 3595"),
        ("clearance >= 3.5", 14, "expected a whole number", None),
        ("clearance", 1, "is not a flag", "compare it: clearance >= 127"),
        ("role > insurer", 1, "has no order", "compare it: role::city"),
        ("role in city..police", 1, "has no order", "compare it: role::city"),
        ("clearance::3", 1, "is a number", "compare it: clearance >= 127"),
        ("since > 2026-02-30", 9, "is not a day of any year", None),
        ("since > 3", 9, "expected a date", None),
        ("clearance in 5..3", 14, "the range 5..3 is empty", None),
        ("role in", 8, 'expected ".."', None),
        ("clearance in (3,", 17, 'expected ")"', None),
        ("clearance >=", 13, "expected a whole number", None),
        ("3 of (trained, role::city)", 1, "3 of 2: the count lies between 1 and 2", None),
        ("0 of (trained)", 1, "the count lies", None),
        ("trained role::city", 9, "expected && or ||", "join comparisons by && and ||"),
        ("trained &&", 11, "expected a comparison, found the end", None),
        ("(trained", 9, 'expected ")", found the end', None),
        ("", 1, "expected a comparison, found the end", None),
        ("trained & role::city", 9, "unexpected '&'", "values with spaces or signs go into double quotes"),
        ("role::", 7, "expected a value, found the end", None),
        ("5", 1, "expected a comparison", "attributes begin with a letter"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, position: int, told: str, hint: str | None) -> None:
    with pytest.raises(Misuse) as caught:
        parse(text, ACME, "policy")
    message = str(caught.value)
    assert message.startswith(f"policy, position {position}: ")
    assert told in message
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!trained", "negation cannot be enforced"),
        ("not role::city", "negation cannot be enforced"),
        ('vin != "A1"', "its other values cannot be listed"),
        ("region != EU", "may hold many values"),
    ],
)
def test_what_no_lock_can_enforce_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Misuse, match=reason) as caught:
        parse(text, ACME, "policy")
    assert "a key cannot show what its holder lacks" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("speed > 120 && road::motorway", "road::motorway && speed > 120"),
        ("speed >= 120.5", "speed >= 120.5"),
        ("speed < 0", "speed < 0"),
        ("10 < speed <= 20", "(speed > 10 && speed <= 20)"),
        ("rain && gear != 3", "rain && (gear <= 2 || gear >= 4)"),
        ('vin in ("A 1", "B\\"2", C3)', 'vin in ("A 1", "B\\"2", C3)'),
    ],
)
def test_interests_speak_of_content(text: str, printed: str) -> None:
    assert show(parse(text, CONTENT, "interest")) == printed


HOSTILE = {
    "long": "trained || " * 2000 + "trained",
    "many leaves": " || ".join(["trained"] * 1000),
    "deep": "(" * 500 + "trained" + ")" * 500,
    "deep thresholds": "1 of (" * 40 + "trained" + ")" * 40,
    "alternatives": " && ".join(["vin::A"] * 400 + [f"vin in ({', '.join(map(str, range(500)))})"] * 5),
    "a number without end": "clearance == " + "9" * 16_000,
    "exponent": "clearance == 1e999999999",
    "quotes": '"' * 16_000,
    "signs": "<" * 16_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused(name: str) -> None:
    with pytest.raises(Misuse):
        parse(HOSTILE[name], ACME)


def test_the_largest_texts_that_are_taken_take_bounded_work() -> None:
    """Counted in Python calls, since times say nothing here: far below a second even on a slow machine."""
    import sys

    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    nested = "trained"
    for number in range(15):
        nested = f"({nested} && vin::v{number} || clearance == {number})"
    wide = " || ".join(f"(vin::v{number} && clearance == {number % 200})" for number in range(255))
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(nested, ACME)
        parse(wide, ACME)
    finally:
        sys.setprofile(before)
    assert calls < 200_000


@given(st.text(alphabet=ALPHABET, max_size=60))
def test_any_text_is_a_formula_or_a_misuse(text: str) -> None:
    check_text(text)


def test_a_formula_with_a_slip_is_another_one_or_a_misuse() -> None:
    told = [check_text(with_slip(show(some_formula(Random(seed), ACME)), Random(seed))) for seed in range(500)]
    assert min(told.count(True), told.count(False)) > 20, "both happen"


def check_text(text: str) -> bool:
    """Whether it is a formula, which then reads as the same when it is shown."""
    try:
        formula = parse(text, ACME)
    except Misuse:
        return False
    assert parse(show(formula), ACME) == formula
    return True


def with_slip(text: str, random: Random) -> str:
    """One sign is another, or is missing."""
    at = random.randrange(len(text))
    return text[:at] + random.choice(["", random.choice(ALPHABET)]) + text[at + 1 :]


def test_a_text_beyond_the_bound_is_not_read() -> None:
    with pytest.raises(Misuse, match="characters, at most"):
        parse(" " * (parse_module.TEXT_MAX + 1), ACME)
