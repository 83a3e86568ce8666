"""`tally policy`: read a policy or an interest before anything is sealed under it.

Offline a formula is read with a space from a file. As an owner it is read with what the tenant declared, and counted
over the principals that the owner sees: those of its tenant, and all whom it granted attributes. What other tenants
granted is not seen, and a principal without the right to read opens nothing, whatever it satisfies.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, home_option, naming, open_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.formula import Formula
    from tallystick.policy.matching import PrincipalIndex
    from tallystick.policy.space import AttributeSpace


_SPACE_HELP = "The attribute space: a TOML file that declares it."
_SHOWN_MAX = 20  # names on a line
_formula = click.argument("text", metavar="FORMULA")
_interest = click.option("--interest", "is_interest", is_flag=True, help="An interest: over content, not keys.")


@click.group("policy")
def command() -> None:
    """Check and explain policies and interests: offline, or as an owner over those whom it sees.

    \b
    Examples:
      tally policy check 'role::insurer && clearance >= 3' --space acme.toml
      tally policy explain 'role::insurer && clearance >= 3' --topic drives --home owner
      tally policy explain 'speed > 120 && road::motorway' --space drives.toml --interest
    """


@command.command("check")
@_formula
@click.option("--space", "space_file", type=KNOWN_FILE, required=True, help=_SPACE_HELP)
@_interest
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
@_formula
@click.option("--space", "space_file", type=KNOWN_FILE, default=None, help=_SPACE_HELP)
@_interest
@click.option("--topic", default=None, help="Compare with the policies of this topic.")
@home_option
@output.json_option
def explain(
    text: str, space_file: Path | None, is_interest: bool, topic: str | None, home: Path | None, tell: output.Tell
) -> None:
    """Say FORMULA in words and, for a policy, what a lock and a key under each encoding of numbers would cost.

    Without --space it is read as the owner in --home would set it: how many principals satisfy it is told, and with
    --topic whom it would admit, and whom shut out.

    \b
    Examples:
      tally policy explain '2 of (role::police, trained, clearance >= 3)' --space acme.toml
      tally policy explain 'role::police && clearance >= 3' --topic drives --home owner
      tally policy explain 'speed > 120' --space drives.toml --interest --json
    """
    from tallystick.policy.formula import leaves
    from tallystick.policy.show import in_words, show

    seen: dict[str, Any] = {}
    seen_lines: list[str] = []
    if space_file is not None:
        if topic is not None:
            raise Misuse("--topic is compared with what the tenant declared", hint="leave --space out, and name --home")
        _space, formula = _read(text, space_file, is_interest)
    elif is_interest:
        raise Misuse("--interest needs --space: no tenant declares content")
    else:
        with open_session(home) as session:
            formula = read_policy(session, text)
            seen, seen_lines = _seen(session, formula, topic)
    words = in_words(formula)
    count, size = sum(1 for _ in leaves(formula.root)), len(formula.encode())
    costs = [] if is_interest else _costs(formula)
    told = {"formula": show(formula), "words": words, "comparisons": count, "bytes": size, "encodings": costs, **seen}
    tell(told, show(formula), *words, f"comparisons {count}, bytes {size}", *map(_cost_line, costs), *seen_lines)


def read_policy(session: Session, text: str) -> Formula:
    """The policy as the identity's tenant would set it. Raises `Misuse`."""
    from tallystick.policy.check import check_policy
    from tallystick.policy.parse import parse
    from tallystick.policy.space import AttributeSpace

    formula = parse(text, AttributeSpace.decode(session.authority.attribute_space()), "policy")
    check_policy(formula)
    return formula


def _seen(session: Session, formula: Formula, topic: str | None) -> tuple[dict[str, Any], list[str]]:
    """Who satisfies the policy and, group by group of a topic, what it would change there."""
    from tallystick.record.schema import Schema

    names = Names(session)
    index = principals(session, names)
    if index is None:
        return {}, [NOT_SEEN]
    found = _names(names, index.satisfying(formula))
    told: dict[str, Any] = {"principals": len(index), "satisfied_by": found}
    lines = [f"satisfied by {len(found)} of {output.plural(len(index), 'principal')}{_listed(found)}"]
    if topic is not None:
        with naming(topic):
            token = names.topic(topic)
            groups = Schema.decode(session.authority.schemas(token)[-1]).groups
            changes = changed(session, names, index, token, list(range(len(groups))), formula)
        told["changes"] = [{"columns": list(groups[one["group"]]), **one} for one in changes]
        lines += [f"{', '.join(groups[one['group']])}: {change_line(one)}" for one in changes]
    return told, lines


NOT_SEEN = "who satisfies it is not known here: only the owner of the tenant sees who holds which attributes"


def principals(session: Session, names: Names) -> PrincipalIndex | None:
    """Everybody whom the owner of a tenant sees, with what it granted them; None for anybody else."""
    from tallystick.cli.attribute import typed
    from tallystick.ledger.contracts.identity import TENANTS
    from tallystick.policy.matching import PrincipalIndex
    from tallystick.policy.space import AttributeSpace

    tenant = session.view.row(TENANTS(session.identity.tenant))
    if tenant is None or tenant.owner != session.identity.principal:
        return None
    space = AttributeSpace.decode(session.authority.attribute_space())
    held: dict[bytes, dict[str, Any]] = {identifier: {} for identifier, _ in names.principals}
    for one in session.authority.attributes():
        held.setdefault(one.principal, {})[one.name] = typed(space[one.name], one.values)
    return PrincipalIndex((principal, space.values(values)) for principal, values in held.items())


def changed(
    session: Session, names: Names, index: PrincipalIndex, token: bytes, groups: list[int], formula: Formula | None
) -> list[dict[str, Any]]:
    """For each of these column groups whom the formula, or its lifting, would admit and shut out, by name."""
    from tallystick.policy.formula import Formula

    standing = {one.group: one.formula for one in session.authority.topic_policies(token)}
    found = []
    for group in groups:
        old = Formula.decode(standing[group]) if standing.get(group) else None
        admits, shuts_out = (_names(names, some) for some in index.change(old, formula))
        found.append({"group": group, "admits": admits, "shuts_out": shuts_out})
    return found


def _names(names: Names, identifiers: list[Hashable]) -> list[str]:
    return [names.principal_name(one) for one in identifiers if isinstance(one, bytes)]


def change_line(one: dict[str, Any]) -> str:
    both = (("admits", one["admits"]), ("shuts out", one["shuts_out"]))
    said = [f"{word} {len(some)}{_listed(some)}" for word, some in both if some]
    return "; ".join(said) or "admits and shuts out nobody"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f": {', '.join(names[:_SHOWN_MAX])}{more}" if names else ""


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
