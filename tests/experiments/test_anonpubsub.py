"""AnonPubSub's figures, shrunken: the rules that Figs 3 to 7 show, where Figs 8 to 17 land, and which attacker gets
past which defence, each time with the defence and without."""

from __future__ import annotations

import csv
import importlib
import importlib.util
from collections import deque
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = [
    *("fig08", "fig09", "fig10", "fig13", "fig14", "fig15", "fig16", "fig17"),
    *("rounds", "inside", "timing", "late", "scale", "tradeoff"),
]


SIMULATOR = ("entering", "graph", "mesh", "games", "scene", "measures", "observers", "rewinding")


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        home = "tallystick.sim.anonymity" if name in SIMULATOR else "experiments.anonpubsub"
        return importlib.import_module(f"{home}.{name}")


def pairs(*ends: tuple[int, int]) -> Any:
    return np.array(ends, dtype=int).reshape(-1, 2)


@cache
def rows_of(name: str) -> list[Any]:
    """The shrunken figure of seed 4."""
    return list(load(name).run(4, True))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_lands_in_its_band(name: str) -> None:
    assert load(name).misses(rows_of(name)) == []
    assert load(name).plot(rows_of(name)).lines


def test_a_figure_is_written_and_drawn(tmp_path: Path) -> None:
    assert load("fig16").main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / "fig16.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(rows_of("fig16"))


def test_a_figure_is_a_function_of_its_seed() -> None:
    figure = load("fig13")
    assert list(figure.run(4, True)) == rows_of("fig13") != list(figure.run(6, True))
    for name in ("fig11", "fig12"):  # other plots of the same rows
        assert load(name).run is load("fig10").run
        assert load(name).plot(rows_of("fig10")).lines


def test_a_sweep_takes_the_rows_with_what_some_runs_leave_out() -> None:
    sweep = importlib.import_module("experiments.sweep")
    rows = [{"seed": 4, **asdict(row)} for row in rows_of("fig14") if row.mark == 100]
    assert {row["rewound"] is None for row in rows} == {True, False}
    (told,) = sweep.summary(rows, ["mark"])
    assert told["leaf_ratio_least"] < told["leaf_ratio_mean"] < told["rewound_mean"] <= 1
    nowhere = [{**row, "mark": 50, "rewound": None} for row in rows]
    both = sweep.summary([*nowhere, *rows], ["mark"])
    assert [one["rewound_mean"] for one in both] == [None, told["rewound_mean"]]  # the same columns for all marks


def test_a_sweep_of_one_world_for_each_seed_is_drawn_with_the_figure_s_own_lines(tmp_path: Path) -> None:
    sweep = importlib.import_module("experiments.sweep")
    rows = [row for seed in (4, 5) for row in sweep.run_seed("anonpubsub.fig13", seed, True, runs=1)]
    assert {(row["seed"], row["run"]) for row in rows} == {(4, 0), (5, 0)}
    assert sweep.show("anonpubsub.fig13", rows, (), tmp_path) == []
    with (tmp_path / "fig13-sweep-summary.csv").open(encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert [row["seeds"] for row in told] == ["2"] * 40  # twenty publications, drawn once and anew
    assert (tmp_path / "fig13-sweep.png").exists() or importlib.util.find_spec("matplotlib") is None


# --- Figs 3 and 4: loops, duplicates and shorter paths are found by hashing alone ---


def flood(links: list[tuple[int, int]], publisher: int) -> dict[int, bytes]:
    """An advertisement on its way, first by the longest way round: a node keeps the value that others hash into."""

    def is_nearer(one: bytes, other: bytes) -> bool:
        return any(one == other for _ in range(10) if (one := sha256(one).digest()))

    kept = {publisher: b"h"}
    queue = deque([publisher])
    while queue:
        node = queue.pop()
        value = sha256(kept[node]).digest()
        for neighbour in [b if a == node else a for a, b in links if node in (a, b)]:
            if neighbour not in kept or is_nearer(value, kept[neighbour]):
                kept[neighbour] = value
                queue.append(neighbour)
    return kept


def test_figs_3_and_4_the_hash_chain_finds_shortest_paths_through_loops_and_duplicates() -> None:
    graphs = load("graph")
    links = [(0, 1), (1, 2), (2, 3), (3, 1), (0, 4), (4, 5), (5, 6), (6, 2), (6, 0)]
    kept = flood(links, 0)
    tree = graphs.advertise(graphs.joined(7, pairs(*links)), 0, np.random.default_rng(4))
    for node, hops in enumerate(tree.hops):
        value = b"h"
        for _ in range(hops):
            value = sha256(value).digest()
        assert kept[node] == value
        assert node == 0 or tree.hops[tree.parent[node]] == hops - 1


def test_the_arrays_say_what_a_walk_along_the_paths_says() -> None:
    graphs, meshes = load("graph"), load("mesh")
    random = np.random.default_rng(4)
    graph = graphs.small_world(60, 4, random)
    tree = graphs.advertise(graph, 0, random)
    subscribers = np.array([7, 19, 31, 44])
    mesh = meshes.grow(60, [tree], np.array([0]), subscribers)
    walked = set()
    for node in subscribers.tolist():
        while node:
            walked.add((int(tree.parent[node]), node))
            node = int(tree.parent[node])
    assert {tuple(ends) for ends in mesh.node[mesh.links].tolist()} == walked
    assert len(mesh.links) <= tree.hops.max() * len(subscribers)  # 4.7: diameter(G) × |S|
    assert (load("inside").all_distances(graph)[0] == tree.hops).all()
    assert (graph.has(mesh.node[mesh.links])).all()


def test_fig_5_publishers_that_subscribe_to_each_other_connect_the_mesh() -> None:
    graphs, meshes = load("graph"), load("mesh")
    graph = graphs.joined(7, pairs((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)))  # subscriber, publisher … and again
    publishers, subscribers = np.array([1, 5]), np.array([0, 6])
    trees = [graphs.advertise(graph, int(one), np.random.default_rng(4)) for one in publishers]
    mesh = meshes.grow(7, trees, publishers, subscribers)
    assert mesh.size == 7
    assert (graphs.distances(mesh.around(), 0) >= 0).all()
    apart = meshes.grow(7, trees[:1], publishers[:1], np.array([0]))
    assert apart.size == 2


# --- Fig. 6: a game exchanges two nodes and keeps all places ---


def fig_6() -> Any:
    """p; f1, f2 below it; f3 below f1 with s3 and s4; s1 and s2 below f2."""
    links = pairs((0, 1), (0, 2), (1, 3), (3, 4), (3, 5), (2, 6), (2, 7))
    role = np.array([2, 0, 0, 0, 1, 1, 1, 1])
    return load("mesh").TopicMesh(np.arange(8), role, np.zeros(8, dtype=int), links)


def test_fig_6_a_forwarder_that_plays_becomes_the_leaf() -> None:
    mesh = fig_6()
    seats = np.arange(8)
    seats[[3, 5]] = seats[[5, 3]]  # f3 and s4
    moved = mesh.seated(seats)
    assert moved.subscribers[mesh.leaves].sum() == mesh.subscribers[mesh.leaves].sum() - 1
    assert moved.node[3] == 5
    assert (moved.links == mesh.links).all()


def test_games_permute_nodes_lock_neighbours_and_cost_what_the_paper_counts() -> None:
    games, scenes = load("games"), load("scene")
    world = scenes.draw(scenes.MeshScene(nodes=200, rules=games.GameRules(games_max=300)), np.random.default_rng(4))
    played = world.played
    assert played.games == 300
    assert sorted(played.seats) == list(range(world.mesh.size))
    assert played.refused > 0
    assert played.messages == played.estimated  # every player has one neighbour that it receives from
    around = world.first.around()
    for now in np.unique(played.at_s):
        locked: list[int] = []
        for ends in played.swaps[played.at_s == now]:
            locked += np.unique(around.links(ends)[1]).tolist()
        assert len(locked) == len(set(locked))
    ratio = games.leaf_ratios(world.first, played)[-1]
    assert ratio == pytest.approx(world.mesh.subscribers[world.mesh.leaves].mean())


def test_a_publisher_that_plays_is_heard_by_all_only_if_notifications_go_both_ways() -> None:
    games, scenes = load("games"), load("scene")
    rules = games.GameRules(games_max=500, publishers_play=True)
    worlds = [scenes.draw(scenes.MeshScene(rules=rules), np.random.default_rng(seed)) for seed in range(6)]
    assert all(scenes.heard(world.mesh, True) == 1 for world in worlds)
    assert np.mean([scenes.heard(world.mesh, False) for world in worlds]) < 0.5


# --- Fig. 7: .8, .43 and .5 ---


def test_fig_7_the_leaf_rule_before_and_after_covers() -> None:
    """p to f1 and s3; s1 and s2 below f1, s4 below s3. Then s1 and s3 add covers, and one of these adds another."""
    meshes, measures = load("mesh"), load("measures")
    links, role = [(0, 1), (1, 2), (1, 3), (0, 4), (4, 5)], [2, 0, 1, 1, 1, 1]

    def accuracy() -> float:
        mesh = meshes.TopicMesh(np.arange(len(role)), np.array(role), np.zeros(len(role), dtype=int), pairs(*links))
        found: float = measures.judge(mesh, mesh.leaves, 100).accuracy
        return found

    assert accuracy() == 0.8
    links, role = [*links, (2, 6), (4, 7)], [*role, 0, 0]
    assert accuracy() == pytest.approx(0.43, abs=0.005)
    links, role = [*links, (7, 8)], [*role, 0]
    assert accuracy() == 0.5


# --- measures ---


def test_a_rule_that_is_mostly_wrong_is_a_good_rule_the_other_way_round() -> None:
    meshes, measures = load("mesh"), load("measures")
    mesh = meshes.TopicMesh(np.arange(11), np.array([2] + [1] * 2 + [0] * 8), np.zeros(11, dtype=int), pairs())
    score = measures.judge(mesh, ~mesh.subscribers, 101)
    assert (score.accuracy, score.better, score.precision, score.recall) == (0, 1, 0, 0)
    assert score.accuracy_all == 0.9
    assert score.entropy == 0  # it knows that its rule is always wrong
    nobody = measures.judge(mesh, np.zeros(11, dtype=bool), 101)
    assert (nobody.accuracy, nobody.precision, nobody.named) == (0.8, 0.2, 0)
    assert nobody.entropy == pytest.approx(measures.entropy(np.array([0.2]))[0])
    assert measures.entropy(np.array([0.0, 0.5, 1.0])).tolist() == [0, 1, 0]
    assert measures.top(np.array([0.1, 0.9, 0.5]), 2, np.random.default_rng(4)).tolist() == [False, True, True]


# --- what gets past what ---


@cache
def seen(**setting: Any) -> dict[str, dict[str, float]]:
    """What each attacker gets: means over a few worlds."""
    scenes, observers = load("scene"), load("observers")
    scene = scenes.MeshScene(**setting)
    table = observers.learn(scene, 10, np.random.default_rng(99))
    worlds = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        worlds.append(observers.observe(scenes.draw(scene, random), table, random))
    names = ("precision", "recall", "base_rate")
    return {
        attacker: {name: float(np.mean([getattr(one[attacker], name) for one in worlds])) for name in names}
        for attacker in worlds[0]
    }


def scores(attacker: str, **setting: Any) -> dict[str, float]:
    return seen(**setting)[attacker]


def test_covers_drawn_once_fall_to_one_peeled_layer_and_covers_of_covers_do_not() -> None:
    assert scores("leaf", mu=0.7)["precision"] < 0.1
    assert scores("peel 1", mu=0.7)["precision"] > 0.9
    assert scores("peel 1", mu=0.7, again=0.2)["precision"] < 0.6


def test_games_fall_to_the_shortest_paths_of_the_graph_and_games_with_covers_do_not() -> None:
    rules = load("games").GameRules(games_max=800)
    played = scores("leaf", rules=rules)
    assert abs(played["precision"] - played["base_rate"]) < 0.15
    assert scores("rebuild", rules=rules)["precision"] == 1
    assert scores("rebuild", rules=rules, mu=0.7, again=0.3)["precision"] < 0.25
    assert scores("scheme, counted", rules=rules)["recall"] > 0.6
    assert scores("scheme, counted", rules=rules, mu=0.7, again=0.3)["recall"] < 0.3


def test_games_are_taken_back_by_a_record_of_links_and_not_without_it() -> None:
    games, scenes, rewinding = load("games"), load("scene"), load("rewinding")
    random = np.random.default_rng(4)
    world = scenes.draw(scenes.MeshScene(nodes=300, rules=games.GameRules(games_max=40)), random)
    view = scenes.watch(world.graph, world.mesh)
    first = {name: place for place, name in enumerate(world.first.node.tolist())}
    began = np.array([first[name] for name in world.mesh.node.tolist()])
    moved = began != np.arange(world.mesh.size)
    changes = rewinding.record(world, closes=True)
    assert moved.sum() > 30
    assert (rewinding.rewind(view, changes, random) == began).mean() > 0.9
    assert (rewinding.rewind(view, [], random)[moved] != began[moved]).all()
    assert len(rewinding.record(world)) < len(changes)


def test_dominance_names_everybody_where_subscribers_are_the_most() -> None:
    many = scores("dominance", ratio=0.4, rules=load("games").GameRules(games_max=300))
    assert many["recall"] == 1
    assert many["precision"] == pytest.approx(many["base_rate"])
    assert many["base_rate"] > 0.55


def test_observers_are_not_told_roles() -> None:
    assert set(load("scene").LinkView.__dataclass_fields__) == {"graph", "node", "flow", "source"}


def test_as_built_a_node_knows_only_the_members_that_it_has_links_with() -> None:
    graphs, meshes = load("graph"), load("mesh")
    graph = graphs.joined(4, pairs((0, 1), (1, 2), (0, 3), (3, 2)))  # 2 may be drawn by 3, which does not know it
    mesh = meshes.TopicMesh(
        np.array([0, 1, 2, 3]), np.array([2, 0, 1, 1]), np.zeros(4, dtype=int), pairs((0, 1), (1, 2), (0, 3))
    )
    random = np.random.default_rng(4)
    assert len(meshes.cover(graph, mesh, 1.0, random).links) == 3
    tree = graphs.PathTree(np.array([0, 0, 1, 0]), np.array([0, 1, 2, 1]))
    entering = load("entering").Entering(graph, [tree], random, mu=np.array([0, 0, 0, 1.0]))
    entering.subscribe(np.array([2, 3]))
    drawn = entering.mesh(np.array([0]), np.array([2, 3]))
    assert {tuple(ends) for ends in drawn.links.tolist()} == {(0, 1), (1, 2), (0, 3), (3, 2)}
    view = load("scene").watch(graph, drawn, both_ways=True)
    assert not view.leaves.any()


def test_subscribers_that_stay_while_covers_change_are_found_unless_forwarders_stay_too() -> None:
    def last(sticky: bool) -> Any:
        *_, row = (
            row for row in rows_of("rounds") if (row.event, row.sticky, row.defence) == ("restart", sticky, "PF+")
        )
        return row

    assert last(False).scheme > 0.9
    assert last(False).presence > 0.35
    assert last(True).presence < 0.3
    assert last(True).scheme < 0.8  # a first look is not taken back
    assert last(True).size > 480


def test_two_insiders_with_the_hash_chain_know_more_than_four_without() -> None:
    inside = load("inside")
    rows = rows_of("inside")
    with_chain = inside.value(rows, "anonymity_set", "publisher", 2, "chain")
    assert with_chain < inside.value(rows, "anonymity_set", "publisher", 4, "branch")
    assert all(row.anonymity_set >= 1 for row in rows)


def test_sizes_give_a_flow_away_and_cells_of_one_size_blur_it() -> None:
    rows = [row for row in rows_of("timing") if (row.topics, row.attacker) == (16, "flow")]
    found = {
        dial: np.mean([row.precision for row in rows if row.dial == dial]) for dial in ("off", "padded", "constant")
    }
    assert found["off"] == 1 > found["padded"] > found["constant"]
