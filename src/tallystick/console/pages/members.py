"""*Mesh* and *fabric*: what the identity's own node of such a carrier tells of itself, asked when the page is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tallystick.client.own_node import ask_fabric, ask_mesh, fabric_rows, mesh_rows
from tallystick.client.session import Session
from tallystick.console.layout import command, facts, heading, nothing, told
from tallystick.console.page import Page
from tallystick.console.viewer import Visit
from tallystick.errors import Malformed, Misuse
from tallystick.identity.choices import choice_of
from tallystick.page.html import Html, join

ASKED_S = 3.0  # a node that is away costs the page no more
_TEXT_MAX = 300  # of what it tells


def show_mesh(visit: Visit) -> Html:
    return _show(visit, "mesh", ask_mesh, mesh_rows)


def show_fabric(visit: Visit) -> Html:
    return _show(visit, "fabric", ask_fabric, lambda _session, said: fabric_rows(said))


def _show(
    visit: Visit,
    scheme: str,
    ask: Callable[[Session], dict[str, Any]],
    rows: Callable[[Session, Mapping[str, Any]], list[list[str]]],
) -> Html:
    own, join_it = choice_of(visit.viewer.identity.home, scheme), command(f"tally {scheme} join TOPIC")
    if own is None:
        return join(heading(scheme.capitalize()), nothing(f"No topic of this identity goes over a {scheme}.", join_it))
    viewer = visit.viewer
    with (
        viewer.asking,
        Session(viewer.identity, clock=viewer.clock, entropy=viewer.session.entropy, choice=own) as session,
        session.within(ASKED_S),
    ):
        try:
            said = ask(session)
            found = rows(session, said) if said["joined"] else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Malformed(f"the own node of {own.carrier} tells what this release does not know: {error!r}") from None
    by = told("told by your own node", by=f"the node at {own.url}")
    first = heading(scheme.capitalize(), (own.carrier, ", ", by, ". Reload the page to ask again."))
    if found is None:
        return join(first, nothing("The node has no keys yet.", join_it))
    topics = [("your topic", name) for name in sorted(own.topics)]
    return join(first, facts([*topics, *((name, value[:_TEXT_MAX]) for name, value in found)]))


def _is_there(scheme: str) -> Callable[[Visit], bool]:
    def is_there(visit: Visit) -> bool:
        try:
            return choice_of(visit.viewer.identity.home, scheme) is not None
        except Misuse:
            return True  # the page says what is wrong with the file

    return is_there


PAGES = (
    Page("mesh", "Mesh", show_mesh, in_menu=True, live=False, is_there=_is_there("mesh")),
    Page("fabric", "Fabric", show_fabric, in_menu=True, live=False, is_there=_is_there("fabric")),
)
