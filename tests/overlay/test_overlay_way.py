"""Which way an identity goes: linked to an edge of an overlay, if it knows enough of its relays."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sharing_world import chain, key_of

from tallystick.carriers.overlay.content import Strategy
from tallystick.carriers.overlay.direct import reach
from tallystick.carriers.overlay.relay import RelayLimits
from tallystick.carriers.overlay.server import relay_limits
from tallystick.carriers.registry import own_way
from tallystick.errors import Misuse
from tallystick.identity.overlay import join_overlay, leave_overlay

PLAN = chain((3, 3))
EDGE = PLAN.nodes[1]


def identity(home: Path, known: int) -> Any:
    """One that knows so many relays of the edge, and one of another virtual node."""
    relays = [PLAN.nodes[0].relays[0], *EDGE.relays[:known]]
    nodes = [SimpleNamespace(subject=one.identifier, verify_key=key_of(one.identifier).public) for one in relays]
    return SimpleNamespace(
        home=home, nodes=nodes, node_urls=[f"http://127.0.0.1:{7000 + n}" for n in range(len(nodes))]
    )


def test_an_identity_that_knows_enough_relays_joins_and_leaves(tmp_path: Path) -> None:
    me = identity(tmp_path, 2)
    assert join_overlay(me, PLAN, EDGE.identifier) == list(EDGE.relays[:2])
    way = own_way(tmp_path)
    assert way is not None
    assert (way.scheme, dict(way.settings)) == (
        "overlay",
        {"overlay": PLAN.overlay.hex(), "edge": EDGE.identifier.hex()},
    )
    assert way.for_reading is None
    leave_overlay(me)
    assert own_way(tmp_path) is None


def test_one_that_knows_too_few_is_told_which_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="1 of the 3 relays of this virtual node are known, 2 are needed") as caught:
        join_overlay(identity(tmp_path, 1), PLAN, EDGE.identifier)
    assert EDGE.relays[2].identifier.hex() in str(caught.value)
    assert "--node-url" in str(caught.value.hint)
    with pytest.raises(Misuse, match="no virtual node"):
        join_overlay(identity(tmp_path, 3), PLAN, bytes(16))
    assert own_way(tmp_path) is None


def test_who_has_no_view_of_the_ledger_does_not_go_this_way() -> None:
    who: Any = SimpleNamespace(view=None)
    with pytest.raises(Misuse, match="ordinary requests"):
        reach({"overlay": "00" * 16, "edge": "00" * 16}, who)


def test_a_relay_works_by_its_node_s_settings_or_says_what_is_wrong_with_them() -> None:
    slow = {"overlay_hop_wait_s": "2", "overlay_hop_keep_s": "60", "overlay_attempts_max": "4"}
    limits = relay_limits(slow | {"overlay_content": "one copy"})
    assert (limits.secrets.hop_wait_s, limits.secrets.attempts_max, limits.ordering.hop_wait_s) == (2.0, 4, 2.0)
    assert (limits.content.hop_keep_s, limits.content.strategy) == (60.0, Strategy.ONE_COPY)
    assert relay_limits({}) == RelayLimits()
    for key, value in (("hop_wait_s", "40"), ("hop_wait_s", "soon"), ("content", "coded"), ("attempts_max", "9000")):
        with pytest.raises(Misuse, match=r"node\.toml"):
            relay_limits({f"overlay_{key}": value})
