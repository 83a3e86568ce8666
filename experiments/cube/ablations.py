"""Sigmoid or ReLU, which optimiser, dropout, which recurrent cell, and what pre-training saves in labels (CUBE).

Claims ("AI deep learning layer"): ReLU instead of "a vanishing sigmoid"; full batches are slow, SGD is done rather than
perfect, Adam is better, and NAG could be attached to it (that is NAdam); dropout against overfitting; for "sequential
data … a recurrent neural network (RNN) or long short-term memory (LSTM)"; self-taught learning. The paper has no
numbers. JAX and optax stand for its TensorFlow.

The task: is the last of 16 successive frames of an identifier an attacker's? A window's features are those of the
detector's own network without its decaying means, so that time must be learnt. Learnt on the cars of layouts 0 and 1,
judged on layout 2 by the area under the ROC curve (0.5: chance). Attacks of every family that puts frames on the bus.

Every study changes one thing of the same plain network: ReLU, Adam, no dropout, all labels, the window flat. Optimisers
see equally many examples, and each has the best of three rates, by the loss in training. Of dropout and pre-training
labels are few, where they should help. A row is one network of one seed.

Expected band, over the means of the seeds. By the loss in training, where underfitting and slowness show: ReLU below
sigmoid in six layers; Adam below SGD below full batches. By the area: pre-training above none with 1 % of the labels;
LSTM and GRU above the plain RNN by 0.02 at most, windows being short. NAdam and dropout: no expectation.

Seed 0, five seeds in a run. `python -m experiments.cube [--seed N] [--quick]` writes ablations.csv and .png below
build/experiments/cube/. Needs the extra `train`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from experiments import results
from experiments.results import Plot, spread
from tallystick.fleet.detect import network, train

LENGTH = 16  # frames of a window
WIDTH = network.OFFS  # features of a frame: all before the decaying means
Rows = npt.NDArray[np.float32]

BY = ("study", "variant", "labels")


@dataclass(frozen=True)
class Size:
    seeds: int = 5
    minutes: float = 4.0  # of each drive
    windows: int = 10_000
    steps: int = 1_000
    hidden: int = 64


QUICK = Size(seeds=2, minutes=2.0, windows=2_000, steps=300, hidden=32)


@dataclass(frozen=True)
class Row:
    study: str
    variant: str
    labels: float  # share that was used
    seed: int
    loss: float  # in training
    area: float  # under the ROC curve, on a car that was not trained on


@dataclass(frozen=True)
class Variant:
    """What a study changes."""

    activation: str = "relu"
    layers: int = 2
    optimiser: str = "adam"
    rates: tuple[float, ...] = (1e-3,)
    batch: int = 128
    dropout: float = 0.0
    cell: str = ""
    labels: float = 1.0
    pretrain: bool = False


_STEEP, _ADAPTIVE = (1.0, 0.3, 0.1), (3e-3, 1e-3, 3e-4)
STUDIES: dict[str, dict[str, Variant]] = {
    "activation": {f"{name}, {deep} layers": Variant(name, deep) for deep in (2, 6) for name in ("sigmoid", "relu")},
    "optimiser": {
        "full batch": Variant(optimiser="sgd", rates=_STEEP, batch=1 << 30),
        "SGD": Variant(optimiser="sgd", rates=_STEEP),
        "Adam": Variant(optimiser="adam", rates=_ADAPTIVE),
        "NAdam": Variant(optimiser="nadam", rates=_ADAPTIVE),
    },
    "dropout": {f"dropout {drop:g}": Variant(dropout=drop, labels=0.02) for drop in (0.0, 0.2, 0.5)},
    "cell": {"flat": Variant()} | {name: Variant(cell=name) for name in ("RNN", "LSTM", "GRU")},
    "labels": {
        f"{'pre-trained' if taught else 'from nothing'}, {labels:.0%}": Variant(labels=labels, pretrain=taught)
        for labels in (0.01, 0.1, 1.0)
        for taught in (False, True)
    },
}
CLAIMS = (  # by which column the first is better than the second, and how much worse it may be
    ("loss", "relu, 6 layers", "sigmoid, 6 layers", 0.0),
    ("loss", "SGD", "full batch", 0.0),
    ("loss", "Adam", "SGD", 0.0),
    ("area", "RNN", "LSTM", 0.02),
    ("area", "RNN", "GRU", 0.02),
    ("area", "pre-trained, 1%", "from nothing, 1%", 0.0),
)


# --- windows ---


def windows(seed: int, layouts: Sequence[int], size: Size) -> tuple[Rows, Rows]:
    """Windows with their labels in the last column, half of them an attacker's; and those of benign drives."""
    draw, calm, lies, free = np.random.default_rng([seed, *layouts]), [], [], []
    for example in train.simulated(seed, layouts, size.minutes):
        rows = network.features(example.profile, network.begin(example.profile), example.frames)[1][:, :WIDTH]
        order = np.argsort(example.frames.can_id, kind="stable")
        ids = example.frames.can_id[order]
        ends = np.flatnonzero(ids[LENGTH - 1 :] == ids[: 1 - LENGTH]) + LENGTH - 1
        attack = example.attack[order[ends]]
        for found, into in ((ends[~attack], calm if attack.any() else free), (ends[attack], lies)):
            chosen = draw.permutation(found)[: size.windows, None]
            into.append(rows[order[chosen - np.arange(LENGTH)[::-1]]].reshape(len(chosen), LENGTH * WIDTH))
    taken = [draw.permutation(np.concatenate(each))[: size.windows // 2] for each in (calm, lies)]
    marked = [np.column_stack([rows, np.full(len(rows), label, np.float32)]) for label, rows in enumerate(taken)]
    return draw.permutation(np.concatenate(marked)), draw.permutation(np.concatenate(free))[: size.windows]


def scene(seed: int, size: Size) -> tuple[Rows, Rows, Rows]:
    """Labelled and benign windows of two cars, and labelled ones of a third, all by the scale of the benign."""
    (marked, free), (judged, _) = windows(seed, (0, 1), size), windows(seed, (2,), size)
    middle, scale = (np.append(one, last) for one, last in ((free.mean(0), 0), (free.std(0) + 0.05, 1)))
    labelled = [((rows - middle) / scale).astype(np.float32) for rows in (marked, judged)]
    return labelled[0], ((free - middle[:-1]) / scale[:-1]).astype(np.float32), labelled[1]


def area(scores: Rows, labels: Rows) -> float:
    """Under the ROC curve: how often an attacker's window has the higher score. Equal scores count half."""
    values, places = np.unique(scores, return_inverse=True)
    counts = [np.bincount(places[labels == kind], minlength=len(values)) for kind in (0, 1)]
    below = np.cumsum(counts[0]) - counts[0] / 2
    return float(counts[1] @ below / (counts[0].sum() * counts[1].sum()))


# --- networks ---


def flat(params: Any, rows: Any, key: Any, variant: Variant) -> Any:
    """Layers of one activation. Dropout is in force where there is a key."""
    squash = getattr(jax.nn, variant.activation)
    for at, (weights, bias) in enumerate(params[:-1]):
        rows = squash(rows @ weights + bias)
        if key is not None and variant.dropout:
            kept = jax.random.bernoulli(jax.random.fold_in(key, at), 1 - variant.dropout, rows.shape)
            rows = rows * kept / (1 - variant.dropout)
    return rows @ params[-1][0] + params[-1][1]


def recurrent(params: Any, rows: Any, key: Any, variant: Variant) -> Any:
    """A cell that goes along the window, and a line through its last state."""
    (inward, bias), (onward, _), (out, last) = params
    size = len(onward)

    def cell(carried: Any, row: Any) -> Any:
        state, held = carried
        if variant.cell == "RNN":
            return (jnp.tanh(row @ inward + bias + state @ onward), held), None
        new, old = (jnp.split(one, onward.shape[1] // size, 1) for one in (row @ inward + bias, state @ onward))
        if variant.cell == "GRU":
            keep, reset = jax.nn.sigmoid(new[0] + old[0]), jax.nn.sigmoid(new[1] + old[1])
            return (keep * state + (1 - keep) * jnp.tanh(new[2] + reset * old[2]), held), None
        forget, enter, show = (jax.nn.sigmoid(new[at] + old[at] + (at == 0)) for at in range(3))
        held = forget * held + enter * jnp.tanh(new[3] + old[3])
        return (show * jnp.tanh(held), held), None

    begun = jnp.zeros((len(rows), size))
    along = rows.reshape(len(rows), LENGTH, WIDTH).transpose(1, 0, 2)
    return jax.lax.scan(cell, (begun, begun), along)[0][0] @ out + last


def begin(variant: Variant, hidden: int, key: Any) -> Any:
    """The parameters before training."""
    if not variant.cell:
        return train.layers(key, (LENGTH * WIDTH, *[hidden] * variant.layers, 1))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[variant.cell]
    sizes = ((WIDTH, gates * hidden), (hidden, gates * hidden), (hidden, 1))
    return [train.layers(jax.random.fold_in(key, number), one)[0] for number, one in enumerate(sizes)]


def learn(variant: Variant, seed: int, size: Size, marked: Rows, free: Rows) -> tuple[Any, float]:
    """The parameters, and the loss in training."""
    forward = partial(recurrent if variant.cell else flat, variant=variant)
    keys = jax.random.split(jax.random.key(seed), 4)

    def told(params: Any, key: Any, rows: Any) -> Any:
        return jax.nn.softplus((1 - 2 * rows[:, -1]) * forward(params, rows[:, :-1], key)[:, 0]).mean()

    def hidden(params: Any, key: Any, rows: Any) -> Any:
        shown = rows * jax.random.bernoulli(key, 1 - train.HIDE, rows.shape)
        return ((forward(params, shown, None) - rows) ** 2).mean()

    chosen = marked[: round(variant.labels * len(marked))]
    params = begin(variant, size.hidden, keys[0])
    if variant.pretrain:
        wide = params[:-1] + train.layers(keys[1], (size.hidden, LENGTH * WIDTH))
        wide = train.fit(hidden, wide, [free], keys[2], optax.adam(1e-3), size.steps, variant.batch)
        params = wide[:-1] + params[-1:]
    steps = size.steps * Variant.batch // len(marked) if variant.batch > len(marked) else size.steps
    tries = []
    for rate in variant.rates:
        optimiser = getattr(optax, variant.optimiser)(rate)
        found = train.fit(told, params, [chosen], keys[3], optimiser, steps, variant.batch)
        tries.append((found, float(told(found, None, chosen))))
    return min(tries, key=lambda one: np.nan_to_num(one[1], nan=np.inf))  # a rate that diverges is passed over


def run(seed: int = 0, small: bool = False, only: Sequence[str] = tuple(STUDIES)) -> Iterator[Row]:
    size = QUICK if small else Size()
    for number in range(seed, seed + size.seeds):
        yield from compare(number, size, scene(number, size), only)


def compare(seed: int, size: Size, scene: tuple[Rows, Rows, Rows], only: Sequence[str]) -> Iterator[Row]:
    marked, free, judged = scene
    for study in only:
        for name, variant in STUDIES[study].items():
            params, loss = learn(variant, seed, size, marked, free)
            scores = np.asarray((recurrent if variant.cell else flat)(params, judged[:, :-1], None, variant))[:, 0]
            yield Row(study, name, variant.labels, seed, loss, area(scores, judged[:, -1]))


def misses(rows: Sequence[Row]) -> list[str]:
    """Claims that did not come, over the means of the seeds."""
    found = []
    for column, *names, worse_by in CLAIMS:
        own = [[getattr(row, column) for row in rows if row.variant == name] for name in names]
        if all(own):
            better, other = map(mean, own)
            if (other - better if column == "area" else better - other) > worse_by:
                found.append(f"{column}: {names[0]} {better:.3f}, {names[1]} {other:.3f}")
    return found


def table(rows: Sequence[Row]) -> str:
    """The means and bands, as the README has them."""
    lines = ["| study | variant | loss in training | area under ROC, car left out |", "|---|---|---|---|"]
    for study, variant in dict.fromkeys((row.study, row.variant) for row in rows):
        own = [row for row in rows if (row.study, row.variant) == (study, variant)]
        bands = [spread([getattr(row, name) for row in own], ".3f") for name in ("loss", "area")]
        lines.append(f"| {study} | {variant} | {' | '.join(bands)} |")
    return "\n".join(lines)


def plot(rows: Sequence[Row]) -> Plot:
    names = {name: number for number, name in enumerate(dict.fromkeys(row.variant for row in rows))}
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(f"{names[row.variant]}: {row.variant}", []).append((names[row.variant], row.area))
    return Plot("One change at a time", "variant", "area under ROC", points)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m experiments.cube")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller runs")
    parser.add_argument("--only", nargs="*", choices=STUDIES, default=list(STUDIES), help="studies; all unless said")
    parser.add_argument("--out", type=Path, default=results.OUT / "cube", help="folder of the results")
    options = parser.parse_args(arguments)
    rows = list(run(options.seed, options.quick, options.only))
    print(table(rows))
    return results.report("ablations", rows, plot, misses, options.out)
