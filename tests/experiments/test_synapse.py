"""SYNAPSE's figures, shrunken: which schemes fail, to whom, and which of the paper's numbers follow."""

from __future__ import annotations

import csv
import importlib
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

KEY = b"a key of 24 bytes, or so"
ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return importlib.import_module(f"experiments.synapse.{name}")


@pytest.mark.parametrize("name", ["propagation", "fig09", "fig13", "placement", "detach", "attempts"])
def test_a_figure_lands_in_its_band(name: str, tmp_path: Path) -> None:
    assert load(name).main(["--small", "--out", str(tmp_path)]) == 0
    with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file))


@pytest.fixture(scope="module")
def sent() -> dict[tuple[str, str, int], Any]:
    return {(row.scheme, row.attack, row.nodes): row for row in load("propagation").run(4, True)}


def test_algorithm_1_as_printed_gives_every_receiver_k_shares_and_nobody_lies() -> None:
    propagation = load("propagation")
    received = propagation.forward({1: {1}, 2: {2}, 3: {3}}, True, "none", 1, 1)
    assert received == {1: {1, 2}, 2: {1, 2}, 3: {1, 2}}
    assert propagation.forward({1: {1}, 2: {2}, 3: {3}}, False, "none", 1, 1) == {1: {1}, 2: {2}, 3: {3}}


def test_algorithm_1_repaired_falls_to_the_attack_of_fig_5(sent: dict[tuple[str, str, int], Any]) -> None:
    """The third broker of the first virtual node sends its share to the second one of the next."""
    propagation = load("propagation")
    outcome = propagation.send_once("repaired", "misroute", (3, 2), KEY, Random(4))
    assert outcome == (True, True, False)
    assert sent["repaired", "pool", 2].liars_open == 6  # of nine: all but the three with both liars at one place
    assert sent["repaired", "drop", 2].subscriber_opens == 3
    assert sent["repaired", "misroute", 1].liars_open == 0


def test_network_coding_loses_the_key_to_one_dropper_and_gives_it_to_three_liars() -> None:
    send = load("propagation").send_once
    assert send("coding", "none", (1,), KEY, Random(4)) == (False, False, True)
    assert send("coding", "drop", (1,), KEY, Random(4)) == (False, False, False)
    assert send("coding", "misroute", (3, 2, 1), KEY, Random(4)) == (
        True,
        True,
        False,
    )  # Fig. 6


def test_algorithm_2_withstands_any_two_liars_of_five_in_each_of_two_virtual_nodes() -> None:
    propagation = load("propagation")
    shares = propagation.split_iteratively(KEY, 2, Random(4), 3, 5)
    for first, second in product(combinations(range(1, 6), 2), repeat=2):
        liars = [set(first), set(second)]
        seen = {path: share for path, share in shares.items() if path[-1] in liars[len(path) - 1]}
        assert propagation.rebuild(seen, 2, (), 3, 5) is None
        reached = {path: shares[path] for path in propagation.arriving(shares, liars)}
        assert len(reached) == (5 - 2) ** 2 != 5**2 - (5 - 2) ** 2
        assert propagation.rebuild(reached, 2, (), 3, 5) == KEY


def test_with_a_third_liar_of_five_the_key_is_opened_and_cut_off() -> None:
    propagation = load("propagation")
    shares = propagation.split_iteratively(KEY, 2, Random(4), 3, 5)
    seen = {path: share for path, share in shares.items() if path[-1] <= 3}
    assert propagation.rebuild(seen, 2, (), 3, 5) == KEY
    reached = propagation.arriving(shares, [{1, 2, 3}] * 2)
    assert propagation.rebuild({path: shares[path] for path in reached}, 2, (), 3, 5) is None


def test_splitting_grows_with_the_path_and_redistribution_does_not() -> None:
    rows = [row for row in load("fig09").run(4, True) if row.replicas == 3]
    assert [row.most for row in rows] == [3, 9, 27, 81]
    assert [row.redistributed for row in rows] == [3, 9, 9, 9]
    assert [row.least for row in rows] == [2, 4, 8, 16]
    assert [row.least_printed for row in rows] == [1, 5, 19, 65]
    assert [row.series_iterative for row in rows] == [0, 1, 4, 13]
    assert [row.series_redistributed for row in rows] == [0, 1, 4, 7]


def test_shares_on_400_brokers_land_in_the_band_and_fan_out_5_needs_the_other_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fig11 = load("fig11")
    monkeypatch.setenv("TALLY_DATA", str(tmp_path))
    rows = list(fig11.run(4, True))
    assert "no real traces" in capsys.readouterr().err
    assert fig11.misses(rows) == []
    assert fig11.value(rows, "mean_nodes", "even", 5, 0.5) > 3 * 939
    assert fig11.value(rows, "redistributed", "even", 2, 0.5) < 9
    assert fig11.value(rows, "out_of_band_gb", "even", 5, 0.5) < 1


def test_real_interactions_need_a_key_for_each_pair_however_rarely_it_writes(shared_data: Path) -> None:
    traces = {trace.name: trace for trace in load("overlay").social_traces()}
    assert {name: len(trace.senders) for name, trace in traces.items()} == {"CollegeMsg": 59_835, "facebook": 176_468}
    messages = traces["CollegeMsg"]
    places = load("fig11")._places_in_pair(messages.senders * messages.people + messages.receivers)
    assert 0.3 < (places % 10 == 0).mean() < 0.4  # of the keys stay, not a tenth


def test_the_papers_ten_replicas_and_a_pack_only_once() -> None:
    placement = load("placement")
    assert list(placement.run(4, True)) == list(placement.run(4, True))  # a function of the seed
    assert placement.apportion(10, [2, 3, 5]) == [2, 3, 5]
    given = {1: [2, 2, 2], 2: [1, 2], 3: [1]}
    assert placement.once(given) == {1: 4, 2: 3, 3: 3}
