"""`tally mesh join` and `tally mesh status`: a principal and its own node of the mesh."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import (
    choose_topics,
    home_option,
    leave_topics,
    machine,
    naming,
    on_signal,
    open_session,
    own_choice,
)
from tallystick.client.names import Names
from tallystick.errors import Misuse, Refused, Unavailable

if TYPE_CHECKING:
    from tallystick.client.session import Session

log = logging.getLogger(__name__)


@click.command("join")
@click.argument("topics", nargs=-1)
@click.option("--publish", is_flag=True, help="To publish on TOPICS; else to subscribe to them.")
@click.option("--node-url", help="Where the identity's own node is, the first time.")
@click.option("--updates", metavar="TOPIC", help="Where later keys come over the mesh; kept for the next times.")
@click.option("--stay", is_flag=True, help="Go on until SIGINT or SIGTERM: look at the keys again in time.")
@click.option("--every-topic", is_flag=True, help="Let all topics of the identity go over the mesh, with --node-url.")
@home_option
@output.json_option
def join(
    home: Path | None,
    topics: tuple[str, ...],
    publish: bool,
    node_url: str | None,
    updates: str | None,
    stay: bool,
    every_topic: bool,
    tell: output.Tell,
) -> None:
    """Give the identity's own node what it needs to be in the mesh, and to read TOPICS there or publish on them.

    The node is one that tally node add --serves made. From then on the identity publishes and subscribes to TOPICS
    there, over the mesh, and to its other topics as before. Keys serve for some epochs: without TOPICS those that are
    kept are looked at again and given to the node, as should be done every day. With --stay this command does so by
    itself; a node whose node.toml has mesh_home needs nobody. With --updates keys come over the mesh, as tally mesh
    updates publishes them, and the authority is asked for nothing that comes in time.

    \b
    Examples:
      tally mesh join brakes --publish --node-url http://127.0.0.1:7421 --home car
      tally mesh join brakes --updates mesh-keys --home reader
      tally mesh join --stay --home car
    """
    if every_topic and node_url is None:
        raise Misuse("--every-topic goes with --node-url")
    enough = threading.Event()
    if stay:
        on_signal(enough.set)
    with open_session(home, choice=own_choice(home, "mesh", node_url, every_topic=every_topic)) as session:
        _join(session, topics, publish, updates, every_topic, tell)
    if stay:
        _stay(home, enough)


def _stay(home: Path | None, enough: threading.Event) -> None:
    from tallystick.client.mesh_updates import CARE_S, MeshCare
    from tallystick.identity.folder import find_home
    from tallystick.runtime.logs import Lasting

    trouble = Lasting(log, "mesh keys")
    care = MeshCare(find_home(home), machine()[0])
    try:
        while not enough.wait(CARE_S):
            try:
                care.round()
                if trouble.text:
                    trouble.tell("")
            except (Unavailable, Refused) as error:
                trouble.tell(str(error))
    finally:
        care.close()


def _join(
    session: Session, topics: tuple[str, ...], publish: bool, updates: str | None, every_topic: bool, tell: output.Tell
) -> None:
    from dataclasses import replace

    from tallystick.carriers.mesh.direct import give_kit, join_mesh
    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.client.mesh_updates import choose_updates
    from tallystick.client.own_node import ask_mesh
    from tallystick.trust.permit import Operation

    told = ask_mesh(session)
    keyring, names = MeshKeyring(session.identity, session.authority, session.clock, session.entropy), Names(session)
    operation = Operation.ADVERTISE if publish else Operation.SUBSCRIBE
    wanted = [*((topic, operation) for topic in topics), *([] if updates is None else [(updates, Operation.SUBSCRIBE)])]
    tokens = {topic: names.topic(topic) for topic, _ in wanted}
    for topic, operation in wanted:
        with naming(topic):
            keyring.obtain(tokens[topic], operation)
    if not topics:
        keyring.keep_up()
    if keyring.membership is None:
        keyring.join()
    if every_topic:
        join_mesh(session.identity.home, str(told["mesh"]))
    elif (choice := session.choice) is not None:
        named = replace(choice, carrier=f"mesh://{told['mesh']}")
        choose_topics(named, session.identity.home, names, list(tokens.values()))
    if updates is not None:
        choose_updates(session.identity.home, updates)
    # Last: what fails here leaves topics that go nowhere, and none that goes out for everybody to see.
    entry = give_kit(session.node, keyring.kit().encode())
    thin = [f"topic {names.topic_name(one.token)}: {one.warning}" for one in keyring.topics if one.warning]
    for one in thin:
        output.note(f"note: {one}")
    tell(
        {"mesh": told["mesh"], "entry": entry, "topics": len(keyring.topics), "thin": thin},
        f"in mesh {told['mesh']}, with keys of {output.plural(len(keyring.topics), 'topic')}",
        note="nothing on the mesh is anchored: acks=stored, read=stored",
    )


@click.command("leave")
@click.argument("topics", nargs=-1, required=True)
@home_option
@output.json_option
def leave(home: Path | None, topics: tuple[str, ...], tell: output.Tell) -> None:
    """Take TOPICS off the mesh, for the identity in --home; its node stays in the mesh.

    From then on they go where the identity's other topics go, for everybody to see.

    \b
    Examples:
      tally mesh leave brakes --home car
    """
    from tallystick.carriers.mesh.direct import give_kit

    with open_session(home, choice=own_choice(home, "mesh", None)) as session:
        keyring = leave_topics(session, Names(session), topics)
        give_kit(session.node, keyring.kit().encode())
        tell(
            {"left": list(topics)},
            f"{', '.join(topics)}: no longer on the mesh, with keys of {len(keyring.topics)} left",
        )


@click.command("status")
@home_option
@output.json_option
def status(home: Path | None, tell: output.Tell) -> None:
    """Say how the identity's own node is in the mesh: neighbours, topics, what it sent and what that was worth.

    The entry is by what others know the node: they may put it into mesh_contacts. Topics whose crowd is thin are named:
    fewer principals held keys when this identity last asked for its own than their owners want (tally mesh terms).

    \b
    Examples:
      tally mesh status --home car
    """
    from tallystick.client.own_node import ask_mesh, mesh_rows, thin_topics

    with open_session(home, choice=own_choice(home, "mesh", None)) as session:
        told = ask_mesh(session)
        if not told["joined"]:
            tell(told, f"mesh {told['mesh']}: the node has no keys yet", note="next: tally mesh join TOPIC")
            return
        tell({**told, "thin": thin_topics(session)}, *output.table(mesh_rows(session, told)))
