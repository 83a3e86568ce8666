"""`tally overlay plan`: what relays an overlay has, written by a person, signed by its administrators.

The plan is a file that people hand one another, with the file of signatures beside it (`client/plan_file.py`). Each
administrator's command makes the plan from it anew and says what it signs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.plan_file import SignedPlan
    from tallystick.client.session import Session
    from tallystick.ledger.contracts.plans import OverlayRow
    from tallystick.trust.plan import Plan

_LATER = 1_000  # blocks from now: time for the others to sign

_plan_file = click.argument("file", type=KNOWN_FILE)
first_option = click.option(
    "--from", "first", type=click.IntRange(1), help=f"The height it counts from; by default {_LATER} ahead."
)


@click.group("plan")
def command() -> None:
    """Show, sign and submit plans: which nodes are relays, and how their virtual nodes hang together.

    \b
    Examples:
      tally overlay plan show city --home administrator
      tally overlay plan sign city.toml --home administrator
      tally overlay plan submit city.toml --home administrator
    """


@command.command("show")
@click.argument("target", metavar="OVERLAY|FILE")
@with_session
@output.json_option
def show(session: Session, target: str, tell: output.Tell) -> None:
    """Show the plan in force of OVERLAY, or what FILE would make of it, and who has signed that.

    \b
    Examples:
      tally overlay plan show city --home administrator
      tally overlay plan show city.toml --home administrator
    """
    from tallystick.client.plan_file import SignedPlan
    from tallystick.ledger.contracts.plans import plan_at

    names = Names(session)
    if Path(target).is_file():
        plan, row, _ = _made(session, names, Path(target))
        signed = SignedPlan.read(Path(target))
        told = _described(plan) | {"signed": [] if signed is None else [*map(bytes.hex, signed.signatures)]}
        lines = _lines(plan, names)
        if signed is not None:
            lines.append(f"signed by {len(signed.signatures)} of {row.threshold}, from height {signed.first} on")
        tell(told, *lines)
        return
    identifier = overlay_of(session, target)
    row, height = overlay_row(session, identifier, target)
    found = plan_at(session.view.row, identifier, height)
    if found is None:
        raise Misuse(f'overlay "{target}" has no plan in force', hint=f"its newest is {row.version or 'still to come'}")
    tell(_described(found), *_lines(found, names))


@command.command("sign")
@_plan_file
@first_option
@with_session
@output.json_option
def sign(session: Session, file: Path, first: int | None, tell: output.Tell) -> None:
    """Sign the plan in FILE as an administrator; the signature goes to FILE.signatures, for the next one.

    Whoever signs first names the height from which the plan counts.

    \b
    Examples:
      tally overlay plan sign city.toml --home administrator
      tally overlay plan sign city.toml --from 120000 --home administrator
    """
    told, line = sign_file(session, Names(session), file, first)
    tell(told, line)
    more = f"hand both files to the next: {told['missing']} more must sign"
    output.note(f"next: {more if told['missing'] else f'tally overlay plan submit {file}'}")


@command.command("submit")
@_plan_file
@with_session
@output.json_option
def submit(session: Session, file: Path, tell: output.Tell) -> None:
    """Write the plan in FILE to the ledger, once enough administrators have signed it. Anybody may.

    \b
    Examples:
      tally overlay plan submit city.toml --home administrator
    """
    tell(*submit_file(session, Names(session), file))


def sign_file(session: Session, names: Names, file: Path, first: int | None) -> tuple[dict[str, Any], str]:
    """Sign the plan as this identity, and put the signature beside it. Returns what there is to tell, and its line."""
    from tallystick.client.plan_file import SignedPlan
    from tallystick.ledger import entries
    from tallystick.trust.plan import shared_fates

    me = session.identity
    plan, row, height = _made(session, names, file)
    if me.principal not in row.administrators:
        shown = ", ".join(map(names.principal_name, row.administrators))
        raise Misuse(f"{me.home} is no administrator of the overlay", hint=f"these are: {shown}")
    signed = SignedPlan.read(file) or SignedPlan(plan.encode(), first or height + _LATER)
    _check_same(file, plan, signed, first)
    for node, name in shared_fates(plan):
        output.note(f"note: {name} has more relays of virtual node {node.identifier.hex()} than may fail")
    output.note(f"signing plan {plan.version} of {_counted(plan)}, from height {signed.first} on")
    administrator, signature = entries.sign_plan(me.instance, plan, signed.first, me.principal, me.signing_key)
    signed.signatures[administrator] = signature
    path = signed.write(file)
    missing = max(0, row.threshold - len(signed.signatures))
    told = {"signatures": str(path), "signed": len(signed.signatures), "missing": missing, "first_height": signed.first}
    return told, f"{path}: {output.plural(len(signed.signatures), 'signature')} of {row.threshold}"


def submit_file(session: Session, names: Names, file: Path) -> tuple[dict[str, Any], str]:
    """Write the plan to the ledger with the signatures beside it. Returns what there is to tell, and its line."""
    from tallystick.cli.entries import write
    from tallystick.client.plan_file import SignedPlan
    from tallystick.ledger import entries
    from tallystick.ledger.contracts.plans import MARGIN_BLOCKS

    plan, row, height = _made(session, names, file)
    signed = SignedPlan.read(file)
    if signed is None:
        raise Misuse(f"{file}: nobody has signed it", hint=f"tally overlay plan sign {file}")
    _check_same(file, plan, signed, None)
    counted = [(name, one) for name, one in signed.signatures.items() if name in row.administrators]
    if len(counted) < row.threshold:
        others = [one for one in row.administrators if one not in signed.signatures]
        raise Misuse(
            f"{file}: {len(counted)} of {row.threshold} signatures are there",
            hint=f"tally overlay plan sign {file}, by {', '.join(map(names.principal_name, others))}",
        )
    if signed.first <= height + MARGIN_BLOCKS:
        hint = f"remove {SignedPlan.path_of(file)}, and let all sign again"
        raise Misuse(f"{file}: height {signed.first} is too near, the ledger is at {height}", hint=hint)
    write(session, names, entries.plan(plan, signed.first, counted))
    told = {"overlay": plan.overlay, "version": plan.version, "first_height": signed.first}
    return told, f"plan {plan.version} counts from height {signed.first} on; the ledger is at {height}"


def overlay_of(session: Session, text: str) -> bytes:
    """The overlay that `text` names, or its identifier."""
    from tallystick.trust.plan import overlay_id
    from tallystick.wire import is_identifier

    return bytes.fromhex(text) if is_identifier(text) else overlay_id(session.identity.instance, text)


def overlay_row(session: Session, identifier: bytes, name: str) -> tuple[OverlayRow, int]:
    """The overlay, and the ledger's height."""
    from tallystick.ledger.contracts.plans import OVERLAYS

    row, head = session.view.row_at(OVERLAYS(identifier))
    if row is None:
        raise Misuse(f'overlay "{name}" does not exist', hint="the operator founds one: tally overlay found")
    return row, head.height


def newest_plan(session: Session, text: str) -> tuple[Plan, OverlayRow, int]:
    """The newest plan of the overlay that `text` names, whether it counts already or not: the next one follows it, or
    what it changed would be taken back. Its overlay, and the ledger's height."""
    from tallystick.ledger.contracts.plans import find_plan

    identifier = overlay_of(session, text)
    row, height = overlay_row(session, identifier, text)
    found = find_plan(session.view.row, identifier, row.version)
    if found is None:
        raise Misuse(f'overlay "{text}" has no plan yet', hint="write the first by hand: tally overlay plan sign FILE")
    return found, row, height


def key_of(session: Session, principal: bytes, where: str) -> bytes:
    """What a principal signs with, by the ledger. Raises `Misuse`, saying where it is named."""
    from tallystick.ledger.contracts.identity import IDENTITIES

    known = session.view.row(IDENTITIES(principal))
    if known is None:
        raise Misuse(f"{where}: {principal.hex()} is not enrolled", hint="a relay is a node: tally node add")
    return known.key


def _made(session: Session, names: Names, file: Path) -> tuple[Plan, OverlayRow, int]:
    """The next plan, as the file and the ledger say; its overlay; and the ledger's height."""
    from tallystick.client.plan_file import PlanFile

    told = PlanFile.read(file)
    identifier = overlay_of(session, told.overlay)
    row, height = overlay_row(session, identifier, told.overlay)
    key = partial(key_of, session, where=str(file))
    return told.plan(identifier, row.version + 1, names.principal, key), row, height


def _check_same(file: Path, plan: Plan, signed: SignedPlan, first: int | None) -> None:
    if signed.plan != plan.encode() or first not in (None, signed.first):
        raise Misuse(
            f"{file}: not what the others signed, which counts from height {signed.first} on",
            hint=f"if it is meant to be another, remove {signed.path_of(file)}, and let all sign again",
        )


def _counted(plan: Plan) -> str:
    relays = sum(len(node.relays) for node in plan.nodes)
    nodes = output.plural(len(plan.nodes), "virtual node")
    return f"overlay {plan.overlay.hex()}: {nodes}, {output.plural(relays, 'relay')}"


def _described(plan: Plan) -> dict[str, Any]:
    return {
        "overlay": plan.overlay,
        "version": plan.version,
        "hash": plan.hash,
        "nodes": [
            {
                "identifier": node.identifier,
                "parent": node.parent,
                "needed": node.need,
                "relays": [{"principal": relay.identifier, "address": relay.address} for relay in node.relays],
            }
            for node in plan.nodes
        ],
    }


def _lines(plan: Plan, names: Names) -> list[str]:
    rows = [
        [f"  {names.principal_name(relay.identifier)}", relay.address, relay.operator, relay.host]
        for node in plan.nodes
        for relay in node.relays
    ]
    table, lines = iter(output.table(rows)), [f"plan {plan.version} of {_counted(plan)}"]
    for node in plan.nodes:
        behind = f" behind {node.parent.hex()}" if node.parent else ", the root"
        lines.append(f"virtual node {node.identifier.hex()}{behind}: {node.need} of {len(node.relays)} are needed")
        lines += [next(table) for _ in node.relays]
    return lines
