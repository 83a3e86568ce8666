"""Training the network: it repeats, serves a car that it never saw, and refuses what cannot work."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tallystick.errors import Misuse
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import network
from tallystick.fleet.detect.attacks import FAMILIES, inject
from tallystick.fleet.detect.network import BusNetwork
from tallystick.fleet.detect.profile import learn
from tallystick.fleet.detect.train import Example, apply, simulated, train

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
numpy_helper = pytest.importorskip("onnx.numpy_helper")

STEPS = 120


@cache
def examples(layout: int) -> tuple[Example, ...]:
    """A minute of a car: what it is calibrated on, a benign part, and a part with frames repeated."""
    drive = simulate_bus(layout, 1.5, 5)
    learnt, calm, watched = (drive[(drive.ts >= a * 10**6) & (drive.ts < (a + 30) * 10**6)] for a in (0, 30, 60))
    profile = learn([learnt])
    attacked = inject("replay", watched, 75_000_000, 10.0, 0)
    return Example(profile, calm, np.zeros(len(calm), np.bool_)), Example(profile, *attacked, "replay")


def ranks(body: dict[str, object], example: Example) -> float:
    """How often an attacker's frame has a higher score than an honest one."""
    scores = BusNetwork(body).scores(example.profile, network.begin(example.profile), example.frames)[1]
    honest: npt.NDArray[np.float32] = np.sort(scores[~example.attack])
    return float(np.searchsorted(honest, scores[example.attack]).mean() / len(honest))


@cache
def body() -> dict[str, Any]:
    return train(examples(0), 1, steps=STEPS)


def test_training_repeats_to_equal_bytes() -> None:
    assert train(examples(0), 1, steps=STEPS) == body()


def test_onnx_is_held_to_the_trained_outputs() -> None:
    profile, frames = examples(1)[1].profile, examples(1)[1].frames
    values = [numpy_helper.to_array(one) for one in onnx.load_from_string(body()["onnx"]).graph.initializer]
    rows = network.features(profile, network.begin(profile), frames)[1]
    expected = np.asarray(apply(list(zip(values[::2], values[1::2], strict=True)), rows))[:, 0]
    found = BusNetwork(body()).scores(profile, network.begin(profile), frames)[1]
    known = network.judged(rows)
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-3, atol=1e-3)
    assert (found[~known] == -np.inf).all()


def test_one_network_serves_a_car_that_it_never_saw() -> None:
    assert ranks(body(), examples(1)[1]) > 0.95


@pytest.mark.long
def test_labels_that_are_few_or_in_part_wrong_still_teach_and_turned_ones_do_not() -> None:
    calm, attacked = examples(0)
    assert ranks(train(examples(0), 1, labels=0.01, steps=STEPS), examples(1)[1]) > 0.9
    draw = np.random.default_rng(0)
    wrong = replace(attacked, attack=attacked.attack ^ (draw.random(len(attacked.attack)) < 0.01))
    assert ranks(train([calm, wrong], 1, steps=STEPS), examples(1)[1]) > 0.9
    turned = replace(attacked, attack=~attacked.attack)
    assert ranks(train([calm, turned], 1, steps=STEPS), examples(1)[1]) < 0.5


@pytest.mark.long
def test_another_seed_gives_another_network() -> None:
    assert train(examples(0), 2, steps=STEPS)["onnx"] != body()["onnx"]


@pytest.mark.parametrize("kept", [0, 1])
def test_benign_drives_and_attacks_are_both_needed(kept: int) -> None:
    with pytest.raises(Misuse, match="benign drives and labelled attacks"):
        train([examples(0)[kept]], 1, steps=1)


def test_a_share_that_leaves_no_label_is_refused() -> None:
    with pytest.raises(Misuse, match="leaves no labelled rows"):
        train(examples(0), 1, labels=1e-9, steps=1)


@pytest.mark.parametrize("library", ["jax", "optax", "onnx"])
def test_without_its_libraries_the_extra_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Misuse, match="not installed") as refused:
        train(examples(0), 1, steps=1)
    assert "tallystick[train]" in str(refused.value.hint)


@pytest.mark.long
def test_simulated_cars_give_benign_drives_and_every_family_that_sends() -> None:
    found = simulated(0, (0,), 4.0)
    assert {one.name for one in found} == {"benign"} | {n for n, one in FAMILIES.items() if one.kind != "suspension"}
    assert all(one.attack.any() == (one.name != "benign") for one in found)
