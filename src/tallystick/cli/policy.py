"""`tally policy`: read a policy or an interest before anything is sealed under it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.policy.formula import Formula
    from tallystick.policy.space import AttributeSpace


_SPACE_HELP = "The attribute space: a TOML file that declares it."
_formula_options = output.options(
    click.argument("text", metavar="FORMULA"),
    click.option("--space", "space_file", type=KNOWN_FILE, required=True, help=_SPACE_HELP),
    click.option("--interest", "is_interest", is_flag=True, help="An interest: over content, not keys."),
)


@click.group("policy")
def command() -> None:
    """Check and explain policies and interests, offline.

    \b
    Examples:
      tally policy check 'role::insurer && clearance >= 3' --space acme.toml
      tally policy explain 'speed > 120 && road::motorway' --space drives.toml --interest
    """


@command.command("check")
@_formula_options
@click.option("--attributes", help="JSON of what a principal holds (or an event): say whether it satisfies FORMULA.")
@output.json_option
def check(text: str, space_file: Path, is_interest: bool, attributes: str | None, tell: output.Tell) -> None:
    """Check FORMULA and print its canonical form; the exit code is 2 if it is wrong.

    A policy that nobody can satisfy, that everybody satisfies, or that no key can be made for is wrong.

    \b
    Examples:
      tally policy check 'role::insurer && (region::EU || region::KR)' --space acme.toml
      tally policy check 'clearance >= 3' --space acme.toml --attributes '{"clearance": 4}'
    """
    from tallystick.policy.evaluate import holds
    from tallystick.policy.show import show

    space, formula = _read(text, space_file, is_interest)
    told: dict[str, Any] = {"formula": show(formula), "bytes": formula.encode()}
    lines = [show(formula)]
    if attributes is not None:
        told["satisfied"] = holds(formula, space.values(_json(attributes)))
        lines.append("satisfied" if told["satisfied"] else "not satisfied")
    tell(told, *lines)


@command.command("explain")
@_formula_options
@output.json_option
def explain(text: str, space_file: Path, is_interest: bool, tell: output.Tell) -> None:
    """Say FORMULA in words and, for a policy, what a lock and a key under each encoding of numbers would cost.

    \b
    Examples:
      tally policy explain '2 of (role::police, trained, clearance >= 3)' --space acme.toml
      tally policy explain 'speed > 120' --space drives.toml --interest --json
    """
    from tallystick.policy.formula import leaves
    from tallystick.policy.show import in_words, show

    _space, formula = _read(text, space_file, is_interest)
    words = in_words(formula)
    count, size = sum(1 for _ in leaves(formula.root)), len(formula.encode())
    costs = [] if is_interest else _costs(formula)
    told = {"formula": show(formula), "words": words, "comparisons": count, "bytes": size, "encodings": costs}
    tell(told, show(formula), *words, f"comparisons {count}, bytes {size}", *map(_cost_line, costs))


def _cost_line(cost: dict[str, Any]) -> str:
    mark = " (as declared)" if cost["declared"] else ""
    told = cost["refused"] or (
        f"rows {cost['rows']}, pairings at most {cost['pairings']}, bytes {cost['capsule_bytes']}, "
        f"traits of a key {cost['key_traits']}"
    )
    return f"{cost['encoding']}{mark}: {told}"


def _read(text: str, space_file: Path, is_interest: bool) -> tuple[AttributeSpace, Formula]:
    from tallystick.policy.check import check_interest, check_policy
    from tallystick.policy.parse import parse
    from tallystick.policy.space import AttributeSpace

    space = AttributeSpace.read(space_file.read_text(encoding="utf-8", errors="replace"))
    formula = parse(text, space, "interest" if is_interest else "policy")
    (check_interest if is_interest else check_policy)(formula)
    return space, formula


def _costs(formula: Formula) -> list[dict[str, Any]]:
    """Under the encodings as declared, and with all numbers in each of the three."""
    from tallystick.policy.attribute import Encoding
    from tallystick.policy.traits import with_encoding

    found = [{"encoding": "lock and key", "declared": True, **_cost(formula)}]
    if not all(attribute.is_text for attribute in formula.space.attributes):
        for encoding in Encoding:
            cost = _cost(with_encoding(formula, encoding))
            found.append({"encoding": encoding.name.lower(), "declared": False, **cost})
    return found


def _cost(formula: Formula) -> dict[str, Any]:
    from tallystick.crypto.abe.capsule import capsule_bytes, program_for
    from tallystick.policy.traits import number_traits

    traits = sum(1 if one.is_text else len(set(number_traits(one, 0))) for one in formula.space.attributes)
    try:
        program, size = program_for(formula, 0), capsule_bytes(formula)
    except Misuse as error:
        return {"refused": str(error), "key_traits": traits}
    return {
        "refused": None,
        "rows": len(program.rows),
        "pairings": 2 + program.occurrences,
        "capsule_bytes": size,
        "key_traits": traits,
    }


def _json(text: str) -> dict[str, Any]:
    try:
        held = json.loads(text)
    except ValueError as error:
        raise Misuse(f"--attributes: not JSON ({error})") from error
    if not isinstance(held, dict):
        raise Misuse("--attributes: expected an object that maps names to values")
    return held
