"""*Mesh* and *fabric*: what the identity's own node of such a carrier tells of itself, asked when the page is."""

from __future__ import annotations

from functools import partial

from tallystick.carriers.registry import own_way
from tallystick.client.own_node import ask_fabric, ask_mesh, fabric_rows, mesh_rows
from tallystick.client.session import Session
from tallystick.console.layout import command, facts, heading, nothing
from tallystick.console.marks import cut, told
from tallystick.console.page import Page
from tallystick.console.visit import Visit
from tallystick.errors import Malformed, Misuse
from tallystick.identity.choices import choice_of
from tallystick.page.html import Html, join

ASKED_S = 3.0  # a node that is away costs the page no more


def show_mesh(visit: Visit) -> Html:
    return _show(visit, "mesh")


def show_fabric(visit: Visit) -> Html:
    return _show(visit, "fabric")


def _show(visit: Visit, scheme: str) -> Html:
    title, join_it = heading(scheme.capitalize()), command(f"tally {scheme} join TOPIC")
    if not _goes_over(visit, scheme):
        return join(title, nothing(f"No topic of this identity goes over a {scheme}.", join_it))
    viewer = visit.viewer
    own = choice_of(viewer.identity.home, scheme)
    with (
        viewer.asking,
        Session(viewer.identity, clock=viewer.clock, entropy=viewer.session.entropy, choice=own) as session,
        session.within(ASKED_S),
    ):
        name, url = session.way.url if session.way else "", session.identity.node_urls[0]
        try:
            found = _ask(session, scheme)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Malformed(f"the own node of {name} tells what this release does not know: {error!r}") from None
    by = told("told by your own node", by=f"the node at {url}")
    first = heading(scheme.capitalize(), (name, ", ", by, ". Reload the page to ask again."))
    if found is None:
        return join(first, nothing("The node has no keys yet.", join_it))
    topics = [("your topic", name) for name in sorted(own.topics)] if own else [("your topics", "all")]
    return join(first, facts([*topics, *((name, cut(value, 300)) for name, value in found)]))


def _ask(session: Session, scheme: str) -> list[list[str]] | None:
    """What the node tells; None where it has no keys yet."""
    said = ask_mesh(session) if scheme == "mesh" else ask_fabric(session)
    if not said["joined"]:
        return None
    return mesh_rows(session, said) if scheme == "mesh" else fabric_rows(said)


def _goes_over(visit: Visit, scheme: str) -> bool:
    """Whether some of the identity's topics do, or all."""
    home = visit.viewer.identity.home
    way = own_way(home)
    return choice_of(home, scheme) is not None or (way is not None and way.scheme == scheme)


def _is_there(visit: Visit, scheme: str) -> bool:
    try:
        return _goes_over(visit, scheme)
    except Misuse:
        return True  # the page says what is wrong with the file


PAGES = (
    Page("mesh", "Mesh", show_mesh, in_menu=True, live=False, is_there=partial(_is_there, scheme="mesh")),
    Page("fabric", "Fabric", show_fabric, in_menu=True, live=False, is_there=partial(_is_there, scheme="fabric")),
)
