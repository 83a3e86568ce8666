"""`tally principal`: who takes part, each with a folder of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tallystick.cli import output
from tallystick.cli.common import (
    Names,
    home_option,
    invitation,
    open_operator,
    open_session,
    show_time,
    table,
    url_options,
)
from tallystick.errors import Misuse, Refused


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
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(file_okay=False, path_type=Path))
@home_option
@url_options
@output.json_option
def invite(
    tenant: str | None,
    folder: Path | None,
    home: Path | None,
    authority_url: str | None,
    node_urls: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print an invitation: by a tenant's owner (--home), or to TENANT by the operator of the instance in DIR.

    \b
    Examples:
      tally principal invite --home owner > car.invite
      tally principal invite acme fleet > car.invite
    """
    from tallystick.identity.invitation import Invitation

    if tenant is not None:
        if folder is None:
            raise Misuse("the operator names tenant and folder", hint="tally principal invite TENANT DIR")
        with open_operator(folder) as operator:
            text = invitation(folder, operator.invite_to(tenant), authority_url, node_urls).encode()
    else:
        with open_session(home) as session:
            identity = session.identity
            urls = node_urls or identity.node_urls
            text = Invitation.of(
                session.authority.invite(), identity.trust, authority_url or identity.authority_url, urls
            ).encode()
    if as_json:
        output.result_json({"invitation": text})
        return
    output.result(text)
    output.note("note: it works once, for a week; whoever reads it can use it")


@command.command("enrol")
@click.argument("invite", metavar="INVITATION")
@home_option
@click.option("--name", default=None, help="How the owner will know it; the folder's name if not given.")
@click.option(
    "--trust",
    "trust_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A trust file that came another way; the invitation must agree with it.",
)
@output.json_option
def enrol(invite: str, home: Path | None, name: str | None, trust_file: Path | None, as_json: bool) -> None:
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
    from tallystick.runtime.sources import SystemClock, SystemEntropy
    from tallystick.trust.trustfile import TrustFile

    folder = find_home(home)
    if (folder / "identity.json").exists():
        raise Misuse(f"{folder}: an identity is here already", hint="choose another folder")
    invited = Invitation.decode(_read_invite(invite))
    if trust_file is not None:
        invited.check_trust(TrustFile.parse(trust_file.read_text()))
    name = name or folder.resolve().name
    try:
        identity = enrol_invited(folder, name, invited, clock=SystemClock(), entropy=SystemEntropy())
    except RefusedByPeer as refusal:
        raise Refused(
            "the authority refused the invitation",
            reason=refusal.reason,
            hint="it works once, and expires: ask for a new one",
        ) from refusal
    if as_json:
        output.result_json({"principal": identity.principal, "name": identity.name, "home": str(folder)})
    else:
        output.result(f'principal {identity.principal.hex()} "{identity.name}" in {folder}')


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
def show(home: Path | None, as_json: bool) -> None:
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
        "valid_until": show_time(identity.certificate.not_after_ms),
    }
    if as_json:
        output.result_json(facts)
        return
    shown = {key: ", ".join(value) if isinstance(value, list) else str(value) for key, value in facts.items()}
    for line in table([[key.replace("_", " "), value] for key, value in shown.items()]):
        output.result(line)


@command.command("list")
@home_option
@output.json_option
def list_(home: Path | None, as_json: bool) -> None:
    """List the principals of the tenant that --home owns.

    \b
    Examples:
      tally principal list --home owner
    """
    from tallystick.ledger.contracts.identity import IDENTITIES

    with open_session(home) as session:
        found = []
        for principal, name in Names(session).principals:
            identity = session.view.row(IDENTITIES(principal))
            revoked = identity is not None and bool(identity.revoked)
            found.append({"principal": principal.hex(), "name": name, "state": "revoked" if revoked else "enrolled"})
    if as_json:
        output.result_json(found)
        return
    for line in table([[one["principal"], one["state"], one["name"]] for one in found]):
        output.result(line)


@command.command("address")
@home_option
@click.option("--authority-url", default=None, help="Where the authority is now.")
@click.option("--node-url", "node_urls", multiple=True, help="Where the node is now; several are tried in turn.")
@output.json_option
def address(home: Path | None, authority_url: str | None, node_urls: tuple[str, ...], as_json: bool) -> None:
    """Change where the identity in --home looks for its authority and its node; whom it trusts stays as it is.

    \b
    Examples:
      tally principal address --node-url https://node.example:7411 --home car
    """
    from dataclasses import replace

    from tallystick.identity.folder import Identity
    from tallystick.identity.nodes import ask_nodes
    from tallystick.runtime.address import Address, parse_address
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    identity = Identity.load(home)
    moved = replace(
        identity, authority_url=authority_url or identity.authority_url, node_urls=node_urls or identity.node_urls
    )
    for url in (moved.authority_url, *moved.node_urls):
        parse_address(Address(url, bytes(16)))
    if len(moved.node_urls) > 1 or len(moved.nodes) > 1:  # else the one node is at the one address
        nodes = ask_nodes(moved.node_urls, moved.nodes, moved.trust, SystemClock(), SystemEntropy(), insecure=False)
        moved = replace(moved, nodes=nodes)
    moved.save()
    if as_json:
        output.result_json({"authority": moved.authority_url, "nodes": list(moved.node_urls)})
    else:
        output.result(f"authority {moved.authority_url}, node {', '.join(moved.node_urls)}")


@command.command("rekey")
@home_option
@output.json_option
def rekey(home: Path | None, as_json: bool) -> None:
    """Give the identity in --home new keys. The old ones count for what they signed, and for nothing more.

    The principal stays, and so do its rights. Its permits end: start its publishers and subscribers again.

    \b
    Examples:
      tally principal rekey --home car
    """
    from tallystick.identity.folder import Identity
    from tallystick.identity.rekey import rekey as replace_keys
    from tallystick.runtime.sources import SystemClock, SystemEntropy

    identity = replace_keys(Identity.load(home), clock=SystemClock(), entropy=SystemEntropy())
    if as_json:
        output.result_json({"principal": identity.principal, "valid_until": identity.certificate.not_after_ms})
        return
    output.result(f"principal {identity.principal.hex()} has new keys")
    output.note("next: start its publishers and subscribers again")


@command.command("kafka")
@home_option
@click.option("--off", is_flag=True, help="Go through the node again.")
@output.json_option
def kafka(home: Path | None, off: bool, as_json: bool) -> None:
    """Let the identity in --home speak to Kafka itself: a user and password of its own, in HOME/kafka.json.

    What it may do there is what the ledger grants. Asking again gives another password, and ends the old one.

    \b
    Examples:
      tally principal kafka --home car
      tally principal kafka --off --home car
    """
    from tallystick.identity.kafka import go_direct, go_through_the_node

    with open_session(home) as session:
        if off:
            go_through_the_node(session.identity)
        else:
            go_direct(session.identity, session.node)
        way = "through the node" if off else "straight to Kafka"
    if as_json:
        output.result_json({"principal": session.identity.principal, "direct": not off})
    else:
        output.result(f"principal {session.identity.principal.hex()} goes {way}")


@command.command("revoke")
@click.argument("principal")
@home_option
@output.json_option
def revoke(principal: str, home: Path | None, as_json: bool) -> None:
    """Revoke PRINCIPAL, by the owner of its tenant (--home): its key counts no more, its permits end.

    \b
    Examples:
      tally principal revoke car --home owner
    """
    with open_session(home) as session:
        identifier = Names(session).principal(principal)
        session.authority.revoke(identifier)
    if as_json:
        output.result_json({"revoked": identifier})
    else:
        output.result(f"revoked {identifier.hex()}")
