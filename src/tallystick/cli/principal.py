"""`tally principal`: who takes part, each with a folder of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.cli.common import home_option, invitation, machine, open_operator, open_session, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse, Refused

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.group("principal")
def command() -> None:
    """Invite, enrol, show, rekey and revoke principals.

    \b
    Examples:
      tally principal invite --home owner > car.invite
      tally principal enrol car.invite --home car
    """


@command.command("invite")
@click.argument("tenant", required=False)
@click.argument("folder", metavar="[DIR]", required=False, type=common.FOLDER)
@home_option
@common.url_options
@output.json_option
def invite(
    tenant: str | None,
    folder: Path | None,
    home: Path | None,
    authority_url: str | None,
    node_urls: tuple[str, ...],
    tell: output.Tell,
) -> None:
    """Print an invitation: by a tenant's owner (--home), or to TENANT by the operator of the instance in DIR.

    \b
    Examples:
      tally principal invite --home owner > car.invite
      tally principal invite acme fleet > car.invite
    """
    from tallystick.identity.invitation import Invitation

    if tenant is None:
        with open_session(home) as session:
            identity, code = session.identity, session.authority.invite()
        urls = authority_url or identity.authority_url, node_urls or identity.node_urls
        invited = Invitation.of(code, identity.trust, *urls)
    elif folder is None:
        raise Misuse("the operator names tenant and folder", hint="tally principal invite TENANT DIR")
    else:
        with open_operator(folder) as operator:
            invited = invitation(folder, operator.invite_to(tenant), authority_url, node_urls)
    text = invited.encode()
    tell({"invitation": text}, text, note="note: it works once, for a week; whoever reads it can use it")


@command.command("enrol")
@click.argument("invite", metavar="INVITATION")
@home_option
@click.option("--name", default=None, help="How the owner will know it; the folder's name if not given.")
@click.option(
    "--trust",
    "trust_file",
    type=common.KNOWN_FILE,
    help="A trust file that came another way; the invitation must agree with it.",
)
@output.json_option
def enrol(invite: str, home: Path | None, name: str | None, trust_file: Path | None, tell: output.Tell) -> None:
    """Make the identity folder --home from INVITATION: its text, a file that holds it, or - for stdin.

    \b
    Examples:
      tally principal enrol car.invite --home car
      tally principal enrol tally-invite-gwFx… --home car --name car-17
    """
    from tallystick.identity.enrol import enrol_invited
    from tallystick.identity.folder import find_home
    from tallystick.identity.invitation import Invitation
    from tallystick.runtime.http1 import RefusedByPeer

    folder = find_home(home)
    if (folder / "identity.json").exists():
        raise Misuse(f"{folder}: an identity is here already", hint="choose another folder")
    invited = Invitation.decode(_read_invite(invite))
    if trust_file is not None:
        invited.check_trust(common.read_trust(trust_file))
    clock, entropy = machine()
    try:
        identity = enrol_invited(folder, name or folder.resolve().name, invited, clock=clock, entropy=entropy)
    except RefusedByPeer as refusal:
        raise Refused(
            "the authority refused the invitation",
            reason=refusal.reason,
            hint="it works once, and expires: ask for a new one",
        ) from refusal
    told = {"principal": identity.principal, "name": identity.name, "home": str(folder)}
    tell(told, f'principal {identity.principal.hex()} "{identity.name}" in {folder}')


def _read_invite(text: str) -> str:
    from tallystick.identity.invitation import PREFIX

    if text == "-":
        return sys.stdin.read()
    if text.startswith(PREFIX):
        return text
    path = Path(text)
    if not path.is_file():
        raise Misuse(f"{text}: neither an invitation nor a file that holds one", hint=f"an invitation begins {PREFIX}")
    return path.read_text(errors="replace")


@command.command("show")
@home_option
@output.json_option
def show(home: Path | None, tell: output.Tell) -> None:
    """Show the identity in --home.

    \b
    Examples:
      tally principal show --home car
    """
    from tallystick.identity.folder import Identity

    identity = Identity.load(home)
    facts = {
        "name": identity.name,
        "principal": identity.principal.hex(),
        "tenant": identity.tenant.hex(),
        "instance": identity.instance.hex(),
        "authority": identity.authority_url,
        "nodes": list(identity.node_urls),
        "witnesses": len(identity.trust.witnesses),
        "quorum": identity.trust.quorum,
        "valid_until": output.show_time(identity.certificate.not_after_ms),
    }
    tell(facts, *output.fact_lines(facts))


@command.command("list")
@with_session
@output.json_option
def list_(session: Session, tell: output.Tell) -> None:
    """List the principals of the tenant that --home owns.

    \b
    Examples:
      tally principal list --home owner
    """
    from tallystick.ledger.contracts.identity import IDENTITIES

    found = []
    for principal, name in Names(session).principals:
        identity = session.view.row(IDENTITIES(principal))
        state = "revoked" if identity is not None and identity.revoked else "enrolled"
        found.append({"principal": principal.hex(), "name": name, "state": state})
    rows = [[one["principal"], one["state"], one["name"]] for one in found]
    none = "no principals: the owner of a tenant sees its own, and brings others in by tally principal invite"
    tell(found, *output.table(rows), none=none)


@command.command("address")
@home_option
@click.option("--authority-url", default=None, help="Where the authority is now.")
@click.option("--node-url", "node_urls", multiple=True, help="Where the node is now; several are tried in turn.")
@output.json_option
def address(home: Path | None, authority_url: str | None, node_urls: tuple[str, ...], tell: output.Tell) -> None:
    """Change where the identity in --home looks for its authority and its node; whom it trusts stays as it is.

    \b
    Examples:
      tally principal address --node-url https://node.example:7411 --home car
    """
    from dataclasses import replace

    from tallystick.identity.folder import Identity
    from tallystick.identity.nodes import ask_nodes
    from tallystick.runtime.address import Address, parse_address

    identity = Identity.load(home)
    moved = replace(
        identity, authority_url=authority_url or identity.authority_url, node_urls=node_urls or identity.node_urls
    )
    for url in (moved.authority_url, *moved.node_urls):
        parse_address(Address(url, bytes(16)))
    if len(moved.node_urls) > 1 or len(moved.nodes) > 1:  # else the one node is at the one address
        nodes = ask_nodes(moved.node_urls, moved.nodes, moved.trust, *machine(), insecure=False)
        moved = replace(moved, nodes=nodes)
    moved.save()
    told = {"authority": moved.authority_url, "nodes": list(moved.node_urls)}
    tell(told, f"authority {moved.authority_url}, node {', '.join(moved.node_urls)}")


@command.command("rekey")
@home_option
@output.json_option
def rekey(home: Path | None, tell: output.Tell) -> None:
    """Give the identity in --home new keys. The old ones count for what they signed, and for nothing more.

    The principal stays, and so do its rights. Its permits end: start its publishers and subscribers again.

    \b
    Examples:
      tally principal rekey --home car
    """
    from tallystick.identity.folder import Identity
    from tallystick.identity.rekey import rekey as replace_keys

    clock, entropy = machine()
    identity = replace_keys(Identity.load(home), clock=clock, entropy=entropy)
    told = {"principal": identity.principal, "valid_until": identity.certificate.not_after_ms}
    line = f"principal {identity.principal.hex()} has new keys"
    tell(told, line, note="next: start its publishers and subscribers again")


@command.command("kafka")
@with_session
@click.option("--off", is_flag=True, help="Go through the node again.")
@output.json_option
def kafka(session: Session, off: bool, tell: output.Tell) -> None:
    """Let the identity in --home speak to Kafka itself: a user and password of its own, in HOME/kafka.json.

    What it may do there is what the ledger grants. Asking again gives another password, and ends the old one.

    \b
    Examples:
      tally principal kafka --home car
      tally principal kafka --off --home car
    """
    from tallystick.identity.kafka import go_direct, go_through_the_node

    identity = session.identity
    if off:
        go_through_the_node(identity)
    else:
        go_direct(identity, session.node)
    way = "through the node" if off else "straight to Kafka"
    told = {"principal": identity.principal, "direct": not off}
    tell(told, f"principal {identity.principal.hex()} goes {way}")


@command.command("overlay")
@click.argument("overlay", required=False)
@click.argument("edge", required=False)
@with_session
@click.option("--repositories", help="The virtual node that keeps shares of keys out of band, for all of a topic.")
@click.option("--off", is_flag=True, help="Ask one node at a time again.")
@output.json_option
def overlay(
    session: Session, overlay: str | None, edge: str | None, repositories: str | None, off: bool, tell: output.Tell
) -> None:
    """Link the identity in --home to the virtual node EDGE of OVERLAY, both by name or identifier.

    Its node addresses are those of the edge's relays (tally principal address): parcels and permits go to all of them,
    and count when more take them than may be bad.

    \b
    Examples:
      tally principal overlay city edge --home car
      tally principal overlay city edge --repositories vault --home car
      tally principal overlay --off --home car
    """
    from tallystick.carriers.registry import own_way
    from tallystick.cli.overlay_plan import overlay_of
    from tallystick.identity.overlay import join_overlay, leave_overlay
    from tallystick.ledger.contracts.plans import OVERLAYS, plan_at
    from tallystick.trust.plan import node_id
    from tallystick.wire import is_identifier

    identity = session.identity
    if off:
        leave_overlay(identity)
        tell({"principal": identity.principal, "edge": None}, f"principal {identity.principal.hex()} asks its node")
        return
    if overlay is None or edge is None:
        raise Misuse("which overlay, and which virtual node of it?", hint="tally principal overlay OVERLAY EDGE")
    way = own_way(identity.home)
    if way is not None and way.scheme != "overlay":
        raise Misuse(f"this identity goes its own way to {way.scheme}", hint=f"tally principal {way.scheme} --off")
    identifier = overlay_of(session, overlay)
    _, head = session.view.row_at(OVERLAYS(identifier))
    plan = plan_at(session.view.row, identifier, head.height)
    if plan is None:
        raise Misuse(f'overlay "{overlay}" has no plan in force', hint="tally overlay plan submit brings one")
    names = [edge] if repositories is None else [edge, repositories]
    place, *kept = [bytes.fromhex(name) if is_identifier(name) else node_id(identifier, name) for name in names]
    known, relays = join_overlay(identity, plan, place, *kept), plan.node(place).relays
    told = {"principal": identity.principal, "overlay": identifier, "edge": place}
    lines = [f"  {relay.identifier.hex()}{'' if relay in known else ', not known here'}" for relay in relays]
    line = (
        f"principal {identity.principal.hex()} is linked to {edge} of {overlay}, {len(known)} of {len(relays)} relays:"
    )
    tell(told | {"known": [relay.identifier for relay in known]}, line, *lines)


@command.command("revoke")
@click.argument("principal")
@with_session
@output.json_option
def revoke(session: Session, principal: str, tell: output.Tell) -> None:
    """Revoke PRINCIPAL, by the owner of its tenant (--home): its key counts no more, its permits end.

    \b
    Examples:
      tally principal revoke car --home owner
    """
    identifier = Names(session).principal(principal)
    session.authority.revoke(identifier)
    tell({"revoked": identifier}, f"revoked {identifier.hex()}")
