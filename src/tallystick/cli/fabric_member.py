"""`tally fabric join`, `leave` and `status`: a principal and its own host; `tally fabric directory`: who holds which
attributes, from the topics' owner to its dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import (
    choose_topics,
    home_option,
    leave_topics,
    naming,
    on_signal,
    open_session,
    own_choice,
)
from tallystick.client.names import Names
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.client.session import Session
    from tallystick.policy.space import AttributeSet

DIRECTORY_S = 2.0  # from one look to the next


@click.command("join")
@click.argument("topics", nargs=-1)
@click.option("--publish", is_flag=True, help="To publish on TOPICS; else to subscribe to them.")
@click.option("--node-url", help="Where the identity's own host is, the first time.")
@click.option("--every-topic", is_flag=True, help="Let all topics of the identity go over the fabric, with --node-url.")
@home_option
@output.json_option
def join(
    home: Path | None,
    topics: tuple[str, ...],
    publish: bool,
    node_url: str | None,
    every_topic: bool,
    tell: output.Tell,
) -> None:
    """Give the identity's own host the keys by which it takes part in TOPICS on the fabric.

    The host is a node that tally node add --carrier fabric://… --serves … made. From then on the identity publishes and
    subscribes to TOPICS there, and to its other topics as before. The first time, the tenant's dispatcher, which is the
    identity's node for its other topics, is asked for its card. Keys serve for some epochs: without TOPICS those that
    are kept are looked at again and given to the host, as should be done every day.

    \b
    Examples:
      tally fabric join brakes --publish --node-url http://127.0.0.1:7421 --home car
      tally fabric join --home car
    """
    from dataclasses import replace

    from tallystick.carriers.fabric.direct import ask_card, way_settings

    if every_topic and node_url is None:
        raise Misuse("--every-topic goes with --node-url")
    asked: dict[str, str] = {}
    if node_url is not None:
        with open_session(home) as session:
            asked = way_settings(ask_card(session.node), b"")
    choice = own_choice(home, "fabric", node_url, every_topic=every_topic)
    if choice is not None and asked:
        choice = replace(choice, settings=asked)
    with open_session(home, choice=choice) as session:
        _join(session, asked or (session.way.settings if session.way is not None else {}), topics, publish, tell)


def _join(
    session: Session, settings: Mapping[str, str], topics: tuple[str, ...], publish: bool, tell: output.Tell
) -> None:
    from dataclasses import replace

    from tallystick.carriers.fabric.direct import give_kit, join_fabric, read_way, way_settings
    from tallystick.carriers.fabric.host_kit import FabricKit
    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.client.own_node import ask_fabric
    from tallystick.trust.permit import Operation

    told, names, (card, _) = ask_fabric(session), Names(session), read_way(settings)
    keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
    tokens = [names.topic(topic) for topic in topics]
    for topic, token in zip(topics, tokens, strict=True):
        with naming(topic):
            keyring.obtain(token, Operation.ADVERTISE if publish else Operation.SUBSCRIBE)
    if not topics:
        keyring.keep_up()
    if keyring.membership is None:
        keyring.join()
    key, name = give_kit(session.node, FabricKit(card, keyring.kit())), str(told["fabric"])
    if session.choice is None:
        join_fabric(session.identity.home, name, card, key)
    else:
        chosen = replace(session.choice, carrier=f"fabric://{name}", settings=way_settings(card, key))
        choose_topics(chosen, session.identity.home, names, tokens)
    tell(
        {"fabric": name, "dispatcher": card.node, "topics": len(keyring.topics)},
        f"on fabric {name}, with keys of {output.plural(len(keyring.topics), 'topic')}",
        note="nothing on the fabric is anchored: acks=stored, read=stored",
    )


@click.command("leave")
@click.argument("topics", nargs=-1, required=True)
@home_option
@output.json_option
def leave(home: Path | None, topics: tuple[str, ...], tell: output.Tell) -> None:
    """Take TOPICS off the fabric, for the identity in --home: they go where its other topics go.

    \b
    Examples:
      tally fabric leave brakes --home car
    """
    from tallystick.carriers.fabric.direct import give_kit, read_way
    from tallystick.carriers.fabric.host_kit import FabricKit

    with open_session(home, choice=own_choice(home, "fabric", None)) as session:
        card, _ = read_way({} if session.way is None else session.way.settings)
        keyring = leave_topics(session, Names(session), topics)
        give_kit(session.node, FabricKit(card, keyring.kit()))
        tell({"left": list(topics)}, f"{', '.join(topics)}: no longer on the fabric")


@click.command("status")
@home_option
@output.json_option
def status(home: Path | None, tell: output.Tell) -> None:
    """Say what the identity's own host sent, heard and dropped.

    \b
    Examples:
      tally fabric status --home car
    """
    from tallystick.client.own_node import ask_fabric, fabric_rows

    with open_session(home, choice=own_choice(home, "fabric", None)) as session:
        told = ask_fabric(session)
    if not told["joined"]:
        tell(told, f"fabric {told['fabric']}: the host has no keys yet", note="next: tally fabric join TOPIC")
        return
    tell(told, *output.table(fabric_rows(told)))


@click.command("directory")
@click.option("--stay", is_flag=True, help="Go on until SIGINT or SIGTERM: look again every few seconds.")
@home_option
@output.json_option
def directory(home: Path | None, stay: bool, tell: output.Tell) -> None:
    """Tell the tenant's dispatcher who holds which attributes, as the authority has them.

    By the owner of the topics, whose node the dispatcher is. Publishers' policies then decide whom a flow reaches. What
    is granted, revoked or over afterwards counts with the next time: with --stay within seconds. Where a policy names
    attributes of other tenants, the dispatcher is not told of it, and locks alone decide.

    \b
    Examples:
      tally fabric directory --home owner
      tally fabric directory --stay --home owner
    """
    import threading

    from tallystick.carriers.fabric.direct import give_directory

    enough, told = threading.Event(), None
    if stay:
        on_signal(enough.set)
    with open_session(home) as session:
        while True:
            found = _directory(session)
            if found != told:
                give_directory(session.node, found)
                told = found
                text = f"the dispatcher knows what {output.plural(len(found), 'principal')} hold"
                tell({"principals": len(found)}, text)
            if not stay or enough.wait(DIRECTORY_S):
                return


def _directory(session: Session) -> dict[bytes, AttributeSet]:
    """What the tenant granted, by principal."""
    from tallystick.cli.attribute import typed
    from tallystick.policy.space import AttributeSpace

    space = AttributeSpace.decode(session.authority.attribute_space())
    held: dict[bytes, dict[str, Any]] = {}
    for one in session.authority.attributes():
        held.setdefault(one.principal, {})[one.name] = typed(space[one.name], one.values)
    return {principal: space.values(values) for principal, values in held.items()}
