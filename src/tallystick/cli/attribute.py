"""`tally attribute`: what principals are, for policies to ask for; by the owner of a tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, home_option, open_session, wait_for_authority, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.attribute import Attribute
    from tallystick.policy.space import AttributeSpace

_DAY_CHARACTERS = len("2026-12-31")


@click.group("attribute")
def command() -> None:
    """Declare attributes, grant and revoke them, show who holds which; drop and refuse what others grant.

    \b
    Examples:
      tally attribute declare acme.toml --home owner
      tally attribute grant analyst role=insurer clearance=3 --until 2027-06-30 --home owner
    """


@command.command("declare")
@click.argument("file", type=KNOWN_FILE)
@home_option
@output.json_option
def declare(file: Path, home: Path | None, tell: output.Tell) -> None:
    """Declare the attributes of the tenant, as FILE has them (TOML).

    Attributes may be added later, and values to categories; what is declared stays.

    \b
    Examples:
      tally attribute declare acme.toml --home owner
    """
    from tallystick.policy.space import AttributeSpace

    space = AttributeSpace.read(file.read_text(encoding="utf-8", errors="replace"))
    with open_session(home) as session:
        session.authority.declare_attributes(space.encode())
    told = {"namespace": space.namespace, "attributes": space.names()}
    tell(told, f"declared {output.plural(len(space.attributes), 'attribute')} of {space.namespace}")


@command.command("grant")
@click.argument("principal")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE…")
@click.option("--until", default=None, help="The last day (2027-06-30), or the moment (2027-06-30T12:00), in UTC.")
@home_option
@output.json_option
def grant(principal: str, values: tuple[str, ...], until: str | None, home: Path | None, tell: output.Tell) -> None:
    """Give PRINCIPAL attributes; one that it holds already gets the new value and end.

    PRINCIPAL may be of any tenant; by its identifier where its name is not known. Several values are written with
    commas between them.

    \b
    Examples:
      tally attribute grant analyst role=insurer region=EU,KR --home owner
      tally attribute grant analyst clearance=3 --until 2027-06-30 --home owner
    """
    from tallystick.authority.client import grant_entries
    from tallystick.cli.entries import write
    from tallystick.policy.space import AttributeSpace

    not_after_ms = 0 if until is None else _end_ms(until)
    with open_session(home) as session:
        space = AttributeSpace.decode(session.authority.attribute_space())
        held = space.grant(dict(_typed(space, one) for one in values))
        names, tenant = Names(session), session.identity.tenant
        identifier = names.principal(principal)
        salt = session.entropy.bytes(32)
        write(session, names, *grant_entries(session.authority, tenant, identifier, held, salt, not_after_ms))
        wanted = {
            (name, value if isinstance(value, tuple) else (space[name].show(value),)) for name, value in held.values
        }
        wait_for_authority(session, lambda: wanted <= {*_held(session, identifier)}, "the attributes")
    granted = {name: list(shown) for name, shown in sorted(wanted)}
    told = {"principal": identifier, "granted": granted, "not_after_ms": not_after_ms or None}
    end = f" {_end(not_after_ms)}" if not_after_ms else ""
    tell(told, f"granted {', '.join(values)} to {principal}{end}")


@command.command("revoke")
@click.argument("principal")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@with_session
@output.json_option
def revoke(session: Session, principal: str, names: tuple[str, ...], tell: output.Tell) -> None:
    """Take attributes from PRINCIPAL: a new attribute epoch begins in some seconds, and its keys do not open it.

    \b
    Examples:
      tally attribute revoke analyst role --home owner
    """
    from tallystick.authority.client import withdraw_entries
    from tallystick.cli.entries import write

    known = Names(session)
    identifier = known.principal(principal)
    write(session, known, *withdraw_entries(session.authority, session.identity.tenant, identifier, list(names)))
    gone = {name.rpartition(".")[2] for name in names}

    def has_followed() -> bool:
        return not gone & {name.partition(".")[2] for name, _ in _held(session, identifier)}

    wait_for_authority(session, has_followed, "the revocation")
    tell({"principal": identifier, "revoked": list(names)}, f"revoked {', '.join(names)} from {principal}")


@command.command("list")
@click.argument("principal", required=False)
@with_session
@output.json_option
def list_(session: Session, principal: str | None, tell: output.Tell) -> None:
    """List what the tenant granted, to PRINCIPAL or to all; for anybody but its owner, what the identity itself holds.

    \b
    Examples:
      tally attribute list --home owner
      tally attribute list --home analyst
    """
    names = Names(session)
    found = session.authority.attributes(b"" if principal is None else names.principal(principal))
    rows = [
        [names.principal_name(one.principal), one.name, ", ".join(one.values), _end(one.not_after_ms)] for one in found
    ]
    tell(found, *output.table(rows), none="no attributes; tally attribute grant PRINCIPAL NAME=VALUE gives one")


@command.command("held")
@click.argument("principal", required=False)
@with_session
@output.json_option
def held(session: Session, principal: str | None, tell: output.Tell) -> None:
    """List what the identity itself holds, whoever granted it; or what PRINCIPAL holds, by the owner of its tenant.

    \b
    Examples:
      tally attribute held --home analyst
      tally attribute held analyst --home owner
    """
    found = session.authority.attributes_held(_holder(session, principal))
    rows = [[one.name, ", ".join(one.values), one.tenant.hex(), _end(one.not_after_ms)] for one in found]
    tell(found, *output.table(rows), none="no attributes; who owns a tenant grants them: tally attribute grant")


@command.command("drop")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--of", "principal", default=None, help="A principal of the tenant that the identity owns.")
@with_session
@output.json_option
def drop(session: Session, names: tuple[str, ...], principal: str | None, tell: output.Tell) -> None:
    """Let go of attributes that the identity holds, whoever granted them, by their full names.

    \b
    Examples:
      tally attribute drop rival.role --home analyst
      tally attribute drop rival.role --of analyst --home owner
    """
    from tallystick.authority.client import drop_entries
    from tallystick.cli.entries import write

    holder = _holder(session, principal)
    write(session, Names(session), *drop_entries(session.authority, holder, names))

    def has_followed() -> bool:
        return not {one.name for one in session.authority.attributes_held(holder)} & set(names)

    wait_for_authority(session, has_followed, "the drop")
    tell({"principal": holder, "dropped": list(names)}, f"dropped {', '.join(names)}")


@command.command("refuse")
@click.argument("tenant")
@click.option("--again", is_flag=True, help="Take them again.")
@with_session
@output.json_option
def refuse(session: Session, tenant: str, again: bool, tell: output.Tell) -> None:
    """Take no attributes of TENANT from now on; by the owner of a tenant, for all of its principals.

    TENANT is an identifier, or the namespace of an attribute that the identity holds. What that tenant granted before
    enters no key any more.

    \b
    Examples:
      tally attribute refuse rival --home analyst
      tally attribute refuse 8d5f0c3e7a914b26b1f20c9d3e6a7b58 --again --home owner
    """
    from tallystick.cli.entries import write
    from tallystick.ledger import entries
    from tallystick.ledger.contracts.identity import TENANTS

    own = session.view.row(TENANTS(session.identity.tenant))
    is_owner = own is not None and own.owner == session.identity.principal
    holder = session.identity.tenant if is_owner else session.identity.principal
    refused = _tenant(session, tenant)
    write(session, Names(session), entries.refuse_attributes(holder, refused, refused=not again))
    told = {"holder": holder, "tenant": refused, "refused": not again}
    tell(told, f"{'takes' if again else 'refuses'} attributes of {tenant}")


def _holder(session: Session, principal: str | None) -> bytes:
    return session.identity.principal if principal is None else Names(session).principal(principal)


def _tenant(session: Session, text: str) -> bytes:
    for one in session.authority.attributes_held(session.identity.principal):
        if one.name.partition(".")[0] == text:
            return one.tenant
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != len(session.identity.tenant):
        hint = "tally attribute held shows the tenants of what is held"
        raise Misuse(f'tenant "{text}": neither an identifier nor the namespace of what is held here', hint=hint)
    return found


def _held(session: Session, principal: bytes) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.name, one.values) for one in session.authority.attributes(principal)]


def _typed(space: AttributeSpace, text: str) -> tuple[str, Any]:
    """NAME=VALUE as the attribute's type has it."""
    name, sign, value = text.partition("=")
    if not sign or not value:
        raise Misuse(f'"{text}": expected NAME=VALUE', hint="role=insurer, clearance=3, region=EU,KR")
    attribute = space.resolve(name)
    return attribute.name, typed(attribute, value.split(",") if attribute.many else [value])


def typed(attribute: Attribute, texts: Sequence[str]) -> Any:
    """What people write, as the attribute's type has it."""
    from tallystick.wire import is_number

    if attribute.many:
        return list(texts)
    return int(texts[0]) if not attribute.is_text and is_number(texts[0].removeprefix("-")) else texts[0]


def _end_ms(text: str) -> int:
    """The end of a day, or a moment."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Misuse(f'--until "{text}": expected a day or a time', hint="2027-06-30, or 2027-06-30T12:00") from None
    if len(text) == _DAY_CHARACTERS:
        moment += timedelta(days=1)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _end(not_after_ms: int) -> str:
    return f"until {output.show_time(not_after_ms)}" if not_after_ms else "without end"
