"""`tally mesh attack`: each defence is shown beside its absence, and what is asked for cannot be nonsense."""

from __future__ import annotations

from functools import cache
from typing import Any

from commands import done, refused

SMALL = ("--nodes", "120", "--degree", "4", "--subscribers", "12", "--seeds", "3", "--seed", "7", "--play", "20")


@cache
def attacked(*options: str) -> dict[str, Any]:
    """The findings by attacker."""
    told = done("mesh", "attack", *SMALL, "--epochs", "2", "--json", *options).json
    return {one["attacker"]: one for one in told["attackers"]}


def test_covers_and_games_take_the_leaves_from_an_observer() -> None:
    bare, defended = attacked("--mu", "0", "--nu", "0", "--play", "0"), attacked("--mu", "0.5", "--nu", "0.2")
    assert bare["leaf"]["precision"] > 0.9
    assert bare["leaf"]["base_rate"] < 0.5
    assert defended["leaf"]["precision"] < bare["leaf"]["base_rate"]
    assert "rewind" in defended
    assert "rewind" not in bare


def test_subscriptions_are_seen_where_the_dial_is_off_and_only_there() -> None:
    assert attacked("--dial", "off")["first asker"]["precision"] == 1
    assert "first asker" not in attacked()


def test_at_a_constant_rate_a_guess_is_left_and_links_that_games_open() -> None:
    found = attacked("--dial", "constant")
    assert attacked()["first sender"]["precision"] == 1
    assert set(found) == {"guess", "far links", "2 false subscribers", "publisher and 2 relays"}
    assert found["guess"]["base_rate"] == 12 / 119
    assert found["far links"]["recall"] > 0.5
    assert "far links" not in attacked("--dial", "constant", "--play", "0")


def test_a_seed_draws_the_same_meshes_again() -> None:
    constant = "mesh", "attack", *SMALL, "--dial", "constant", "--json"
    again = done(*constant).json["attackers"]
    assert again == list(attacked("--dial", "constant").values())
    assert again != done(*constant, "--seed", "8").json["attackers"]


def test_people_get_a_table_and_what_it_comes_to() -> None:
    run = done("mesh", "attack", *SMALL, "--dial", "constant", "--insiders", "0", "--progress")
    head, *rows = run.out.splitlines()
    assert head.split()[:4] == ["seeks", "attacker", "precision", "recall"]
    assert [row.split()[0] for row in rows] == ["subscribers"] * 2
    assert "meshes: 3 of 3" in run.err
    assert "where a guess is in 10%" in run.err


def test_more_members_than_nodes_is_misuse() -> None:
    error, hint = refused(2, "mesh", "attack", "--nodes", "20", "--subscribers", "20")
    assert error == "error: 20 subscribers and 1 publisher do not fit into 20 nodes"
    assert "--nodes" in hint
    assert "neighbours" in refused(2, "mesh", "attack", "--nodes", "10", "--subscribers", "2", "--degree", "10")[0]
