"""Training of the network: drives with their profiles come in, and out goes the body of a model file.

Self-taught first: parts of benign rows are hidden, and the network learns to tell them from the rest, which needs no
labels. A head is then trained on rows that are labelled, with what was learnt before as its beginning. The limit is set
on benign time that neither step saw. Nothing here names a device: JAX takes an accelerator where it finds one. JAX
stands for the seed's TensorFlow (decision 81). The same examples and seed give the same bytes on one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tallystick.errors import Misuse
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import network
from tallystick.fleet.detect.attacks import FAMILIES, inject
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import Profile, learn

if TYPE_CHECKING:
    from onnx import ModelProto

Rows = npt.NDArray[np.float32]
Layers = list[tuple[Any, Any]]  # weights and bias of each

HIDDEN = (64, 32)
BATCH = 512
STEPS = 3_000  # of each kind of training
RATE = 1e-3
DECAY = 1e-4
HIDE = 0.3  # share of a row's features that pre-training hides
EACH = 4  # attacks of a family on a simulated car
BEFORE_US, LASTS_S, AFTER_US = 30_000_000, 10.0, 15_000_000  # around the beginning of each
KEPT = 0.25  # share at the end of each benign drive on which the limit is set
OPSET, IR = 17, 8  # old enough for every onnxruntime of the extra


@dataclass(frozen=True)
class Example:
    """A drive, the profile of its car, learnt from other drives, and which of its frames are an attacker's."""

    profile: Profile
    frames: Frames
    attack: npt.NDArray[np.bool_]
    name: str = "benign"


def simulated(seed: int, layouts: Sequence[int] = (0, 1), minutes: float = 10.0) -> list[Example]:
    """Of each simulated car a benign drive, and minutes of another with an attack of each family that sends frames."""
    found = []
    for layout in layouts:
        drives = [simulate_bus(layout, minutes, 4 * seed + number) for number in range(4)]
        profile = learn(drives[:2])
        found.append(Example(profile, drives[2], np.zeros(len(drives[2]), np.bool_)))
        begins = np.linspace(drives[3].ts[0], drives[3].ts[-1], EACH + 2).astype(np.int64)[1:-1]
        for name in [name for name, family in FAMILIES.items() if family.kind != "suspension"]:
            for number, begin_us in enumerate(begins.tolist()):
                first, last = np.searchsorted(drives[3].ts, [begin_us - BEFORE_US, begin_us + AFTER_US])
                with suppress(Misuse):  # a car that stands has nothing to attack
                    attacked = inject(name, drives[3][first:last], begin_us, LASTS_S, seed + number)
                    found.append(Example(profile, *attacked, name))
    return found


def fit(
    loss: Callable[..., Any],
    params: Any,
    pools: Sequence[Rows],
    key: Any,
    optimiser: Any,
    steps: int,
    batch: int = BATCH,
) -> Any:
    """Parameters after so many steps, each on a batch from every pool: `loss(params, key, *batches)`. A pool that is
    smaller than a batch is taken whole."""
    import jax
    import optax

    def draw(pool: Any, key: Any) -> Any:
        return pool if len(pool) <= batch else pool[jax.random.randint(key, (batch,), 0, len(pool))]

    def advance(pools: Any, carried: Any, key: Any) -> Any:
        params, state = carried
        keys = jax.random.split(key, len(pools) + 1)
        batches = map(draw, pools, keys[:-1])
        slope = jax.grad(loss)(params, keys[-1], *batches)
        change, state = optimiser.update(slope, state, params)
        return (optax.apply_updates(params, change), state), None

    run = jax.jit(lambda pools, first, keys: jax.lax.scan(lambda *now: advance(pools, *now), first, keys)[0][0])
    return run(
        [jax.numpy.asarray(pool) for pool in pools], (params, optimiser.init(params)), jax.random.split(key, steps)
    )


def layers(key: Any, sizes: Sequence[int]) -> Layers:
    """Weights drawn after He, and no bias."""
    import jax

    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes, sizes[1:], strict=False)
    return [(jax.random.normal(one, (a, b)) * (2 / a) ** 0.5, jax.numpy.zeros(b)) for one, a, b in shapes]


def apply(params: Layers, rows: Any) -> Any:
    """The network's output: ReLU between the layers, none behind the last."""
    import jax

    for weights, bias in params[:-1]:
        rows = jax.nn.relu(rows @ weights + bias)
    return rows @ params[-1][0] + params[-1][1]


def train(
    examples: Sequence[Example], seed: int, labels: float = 1.0, pretrain: bool = True, steps: int = STEPS
) -> dict[str, Any]:
    """The body of a model: ONNX, the limit, the version of its features and its figures. `labels` is the share of
    labelled rows that the head may see. Raises `Misuse` without JAX, and without benign time or attacks."""
    try:
        import jax
        import onnx  # asked for before the work, not after it
        import optax
    except ImportError as error:
        hint = "pip install 'tallystick[train]'"
        raise Misuse("networks are trained by JAX, optax and onnx, which are not installed", hint=hint) from error
    known, kept, calm, lies = [], [], [], []
    for example in examples:
        rows = network.features(example.profile, network.begin(example.profile), example.frames)[1]
        attack, rows = example.attack[network.judged(rows)], rows[network.judged(rows)]
        if attack.any():
            calm.append(rows[~attack])
            lies.append(rows[attack])
        else:
            cut = int(len(rows) * (1 - KEPT))
            known.append(rows[:cut])
            kept.append(rows[cut:])
    if not known or not lies:
        raise Misuse(
            "a network needs benign drives and labelled attacks", hint="give both, or leave it to simulated cars"
        )
    draw = np.random.default_rng(seed)
    benign, asides, honest, attacks = (np.concatenate(one) for one in (known, kept, calm, lies))
    seen = [rows[draw.random(len(rows)) < labels] for rows in (np.concatenate([benign, honest]), attacks)]
    if not all(map(len, seen)):
        raise Misuse(f"a share of {labels:g} leaves no labelled rows", hint="give more attacks, or a larger share")
    mean, scale = benign.mean(0), benign.std(0) + 0.1
    keys = jax.random.split(jax.random.key(seed), 4)
    body = layers(keys[0], (network.WIDTH, *HIDDEN, network.WIDTH))
    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, steps), weight_decay=DECAY)

    def hidden(params: Layers, key: Any, rows: Any) -> Any:
        shown = rows * jax.random.bernoulli(key, 1 - HIDE, rows.shape)
        return ((apply(params, shown) - rows) ** 2).mean()

    def told(params: Layers, key: Any, calm: Any, lies: Any) -> Any:
        return jax.nn.softplus(apply(params, calm)).mean() + jax.nn.softplus(-apply(params, lies)).mean()

    if pretrain:
        body = fit(hidden, body, [(benign - mean) / scale], keys[1], optimiser, steps)
    head = body[:-1] + layers(keys[2], (HIDDEN[-1], 1))
    head = fit(told, head, [(rows - mean) / scale for rows in seen], keys[3], optimiser, steps)
    plain = [(np.asarray(weights), np.asarray(bias)) for weights, bias in head]
    first = plain[0][0] / scale[:, None]
    plain[0] = (first, plain[0][1] - mean @ first)
    scores = np.asarray(apply(plain, asides))
    limit = float(scores.max() + 0.5 * (scores.max() - np.quantile(scores, 0.999)))
    figures = {
        "rows": len(benign),
        "attacks": len(attacks),
        "found": float((np.asarray(apply(plain, attacks)) >= limit).mean()),
    }
    onnx = to_onnx(plain).SerializeToString(deterministic=True)
    return {"features": network.FEATURES, "onnx": onnx, "limit": limit, "enabled": False, "figures": figures}


def to_onnx(params: Sequence[tuple[Rows, Rows]]) -> ModelProto:
    """The same network for onnxruntime: rows come in as `rows`, scores go out."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, values, name = [], [], "rows"
    for at, (weights, bias) in enumerate(params):
        values += [numpy_helper.from_array(one, f"{kind}{at}") for kind, one in (("weights", weights), ("bias", bias))]
        last = at == len(params) - 1
        nodes.append(helper.make_node("Gemm", [name, f"weights{at}", f"bias{at}"], ["scores" if last else f"sum{at}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"sum{at}"], [name := f"layer{at}"]))
    shapes = [("rows", len(params[0][0])), ("scores", 1)]
    ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, ["n", width]) for one, width in shapes]
    graph = helper.make_graph(nodes, "detect", ends[:1], ends[1:], values)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="tallystick"
    )
