"""`tally mesh keys`: ask the authority for what a member of the mesh needs, and keep it in the identity's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import naming, with_session
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.kept_mesh import HeldTopic
    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.client.session import Session


@click.command("keys")
@click.argument("topic", required=False)
@click.option("--publish", is_flag=True, help="To publish on TOPIC; else to subscribe to it.")
@click.option("--again", is_flag=True, help="Ask also where what is kept will do.")
@with_session
@output.json_option
def keys(session: Session, topic: str | None, publish: bool, again: bool, tell: output.Tell) -> None:
    """Get mesh keys of TOPIC for the coming epochs, and certificates, for the identity in --home.

    Without TOPIC, look again at all that is kept, as far as it is time to. Keys of an epoch may change until shortly
    before it begins, when somebody is revoked: a node of the mesh looks by itself, others do it by this command.

    \b
    Examples:
      tally mesh keys brakes --home reader
      tally mesh keys brakes --publish --home car
      tally mesh keys --home car
    """
    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.trust.permit import Operation

    if topic is None and (publish or again):
        raise Misuse("of which topic?", hint="tally mesh keys TOPIC; without one, all that is kept is looked at again")
    names = Names(session)
    keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
    if topic is None:
        keyring.keep_up()
        held = keyring.topics
    else:
        token, operation = names.topic(topic), Operation.ADVERTISE if publish else Operation.SUBSCRIBE
        with naming(topic):
            held = (keyring.obtain(token, operation, again=again),)
    place = keyring.membership
    until = None if place is None else output.show_time(place.until_ms)
    topics = [_topic(keyring, one, names) for one in held]
    lines = output.table([list(one.values()) for one in topics])
    note = f"the node's certificate ends {until}" if until and lines else ""
    none = "no mesh keys are kept; tally mesh keys TOPIC asks for some"
    tell({"topics": topics, "node_until": until}, *lines, note=note, none=none)


@click.command("terms")
@click.argument("topic")
@output.default_option("--guise", type=click.IntRange(0, 3), default=0, help="Which of the mesh's guises it wears.")
@output.default_option("--k-min", type=click.IntRange(0, 1 << 31), default=0, help="The least crowd to hide in.")
@with_session
@output.json_option
def terms(session: Session, topic: str, guise: int, k_min: int, tell: output.Tell) -> None:
    """Say how TOPIC hides on a mesh, as its owner: by which covers and games, and among how many.

    A guise is a choice of covers and games that all nodes of the mesh know, by mesh_mu, mesh_nu, mesh_lambda (guise 0)
    and mesh_guises in their node.toml; members that hold keys already change with a coming epoch. Members are warned
    where fewer than --k-min principals hold keys of the topic, by the authority's count.

    \b
    Examples:
      tally mesh terms brakes --guise 1 --k-min 20 --home owner
    """
    from tallystick.client.mesh_keyring import MeshKeyring

    token = Names(session).topic(topic)
    with naming(topic):
        MeshKeyring(session.identity, session.authority, session.clock, session.entropy).set_terms(token, guise, k_min)
    told = f"{topic} wears guise {guise}, and should have {output.plural(k_min, 'member')} at least"
    tell({"topic": topic, "guise": guise, "k_min": k_min}, told)


def _topic(keyring: MeshKeyring, held: HeldTopic, names: Names) -> dict[str, str]:
    from tallystick.trust.permit import Operation

    operations = [one for one in Operation if held.operations & one]
    return {
        "topic": names.topic_name(held.token),
        "for": " and ".join("publishing" if one is Operation.ADVERTISE else "reading" for one in operations),
        "epochs": f"{held.first_epoch}-{held.first_epoch + len(held.secrets) - 1}",
        "look_again": output.show_time(keyring.due_ms(held)),
        "crowd": "thin" if held.thin else "",
    }
