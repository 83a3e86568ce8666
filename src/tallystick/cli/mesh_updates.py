"""`tally mesh updates`: publish later keys of the mesh over the mesh, for all members of one's own topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import naming, on_signal, with_session
from tallystick.client.names import Names

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.command("updates")
@click.argument("topics", nargs=-1)
@click.option("--over", required=True, metavar="TOPIC", help="Where they are published; its own keys go with them.")
@click.option("--stay", is_flag=True, help="Go on until SIGINT or SIGTERM: publish anew in each epoch, in time.")
@with_session
@output.json_option
def updates(session: Session, topics: tuple[str, ...], over: str, stay: bool, tell: output.Tell) -> None:
    """Publish mesh keys of coming epochs of TOPICS, which the identity in --home owns, to all their members.

    Each member's are sealed to it alone, and all are of one size. Members read them with tally mesh join --updates.
    Keys of an epoch are settled an hour before it begins (mesh_notice_s): publish once in that time, or use --stay. The
    topic has one column, and is better padded; the identity's own node must be in the mesh, with keys to publish there.

    \b
    Examples:
      tally topic create mesh-keys --schema "update binary not null" --padded --home owner
      tally right grant mesh-keys owner write --home owner
      tally mesh join mesh-keys --publish --home owner
      tally mesh updates brakes --over mesh-keys --home owner
    """
    import threading

    from tallystick.client.mesh_keyring import MeshKeyring
    from tallystick.client.mesh_updates import publish_updates

    names, tokens = Names(session), []
    for topic in dict.fromkeys((*topics, over)):
        with naming(topic):
            tokens.append(names.topic(topic))
    keyring = MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
    enough = threading.Event()
    if stay:
        on_signal(enough.set)
    while True:
        with naming(over):
            count = publish_updates(session, over, tokens)
        tell(
            {"published": count, "topics": len(tokens)},
            f"{output.plural(count, 'update')} published over {over}",
            note="some of them are for nobody, so that they do not tell how many members there are",
        )
        if not stay or enough.wait(keyring.settles_ms() / 1000 - session.clock.now() + 1):
            return
