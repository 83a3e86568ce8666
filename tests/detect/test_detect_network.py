"""The network's features and scores: the same however frames are cut, refused where they would be misread."""

from __future__ import annotations

import sys
from copy import copy
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tallystick.errors import Malformed, Misuse
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import network
from tallystick.fleet.detect.checks import CHECKS
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.network import BusNetwork, FeatureState, features
from tallystick.fleet.detect.profile import Profile, learn
from tallystick.fleet.detect.train import to_onnx

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SEED = 3
UNKNOWN = 0x7FE


@cache
def drive() -> Frames:
    return simulate_bus(0, 0.5, SEED)


@cache
def car() -> tuple[Profile, Frames]:
    """A calibrated car, and a later part of its drive, with an unknown identifier and a clock that leaps."""
    watched = drive()[40_000:50_000]
    ts, can_id = watched.ts.copy(), watched.can_id.copy()
    ts[5_000:] += 2 * network.CLOCK_US
    can_id[::997] = UNKNOWN
    return learn([drive()[:40_000]]), Frames(ts, can_id, watched.length, watched.word)


@cache
def body() -> dict[str, object]:
    """A network that nobody trained."""
    draw = np.random.default_rng(SEED)
    sizes = (network.WIDTH, 16, 1)
    params = [
        (draw.normal(size=(a, b)).astype(np.float32), draw.normal(size=b).astype(np.float32))
        for a, b in pairwise(sizes)
    ]
    onnx = to_onnx(params).SerializeToString(deterministic=True)
    return {"features": network.FEATURES, "onnx": onnx, "limit": 1.0, "enabled": False}


cuts = some.lists(some.integers(0, 3_000), max_size=8).map(lambda places: [0, *sorted(places), 3_000])


@given(cuts)
def test_any_cut_gives_equal_features_hits_and_state(places: list[int]) -> None:
    profile, watched = car()[0], car()[1][3_500:6_500]
    model = BusNetwork(body())
    whole, rows = features(profile, network.begin(profile), watched)
    end, hits = model.step(profile, network.begin(profile), watched)
    assert len(hits)
    assert end.to_bytes() == whole.to_bytes()
    state, found, told = network.begin(profile), [], []
    for first, last in pairwise(places):
        found.append(features(profile, state, watched[first:last])[1])
        state, some_hits = model.step(profile, state, watched[first:last])
        told.append(some_hits)
        state = FeatureState.from_bytes(state.to_bytes(), profile)
    assert np.concatenate(found).tobytes() == rows.tobytes()
    assert np.concatenate(told).tobytes() == hits.tobytes()
    assert state.to_bytes() == whole.to_bytes()


def test_the_state_handed_in_is_not_changed() -> None:
    profile, watched = car()
    state = features(profile, network.begin(profile), watched[:500])[0]
    before = state.to_bytes()
    features(profile, state, watched[500:1_000])
    assert state.to_bytes() == before


def test_features_are_finite_and_describe_habits_not_identifiers() -> None:
    """Two cars with other identifiers and the same habits look the same."""
    profile, watched = car()
    rows = features(profile, network.begin(profile), watched)[1]
    assert np.isfinite(rows).all()
    assert not network.judged(rows)[watched.can_id == UNKNOWN].any()
    assert network.judged(rows).mean() > 0.9
    renamed = Frames(watched.ts, watched.can_id + 1, watched.length, watched.word)
    other = copy(profile)
    other.__dict__["ids"] = profile.ids + 1
    again = features(other, network.begin(other), renamed)[1]
    assert again.tobytes() == rows.tobytes()


def test_after_a_leap_of_the_clock_nothing_is_remembered() -> None:
    profile, watched = car()
    fresh = features(profile, network.begin(profile), watched[5_000:])[1]
    state = features(profile, network.begin(profile), watched[:5_000])[0]
    assert features(profile, state, watched[5_000:])[1].tobytes() == fresh.tobytes()


def test_hits_name_the_frame_the_check_and_the_band() -> None:
    profile, watched = car()
    model = BusNetwork(body())
    scores = model.scores(profile, network.begin(profile), watched)[1]
    hits = model.step(profile, network.begin(profile), watched)[1]
    assert (hits["frame"] == np.flatnonzero(scores >= model.limit)).all()
    assert (hits["ts"] == watched.ts[hits["frame"]]).all()
    assert set(hits["check"]) == {CHECKS.index("network")}
    assert (hits["strength"] >= 1).all()
    assert (hits["seen"] >= hits["high"]).all()
    assert not model.enabled
    assert len(model.step(profile, network.begin(profile), watched[:0])[1]) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"features": network.FEATURES + 1}, f"version {network.FEATURES + 1}"),
        ({"features": None}, "version None"),
        ({"onnx": b"no network"}, "cannot be read"),
        ({"onnx": bytes(network.ONNX_BYTES_MAX + 1)}, "at most"),
        ({"limit": float("nan")}, "limit"),
        ({"limit": None}, "limit"),
    ],
)
def test_a_network_of_another_kind_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(Malformed, match=told):
        BusNetwork({**body(), **change})


def test_a_network_that_reads_other_rows_is_refused() -> None:
    other = [(np.ones((network.WIDTH + 1, 1), np.float32), np.zeros(1, np.float32))]
    with pytest.raises(Malformed, match="rows"):
        BusNetwork({**body(), "onnx": to_onnx(other).SerializeToString()})


def test_a_state_of_another_profile_is_refused() -> None:
    profile, _ = car()
    state = network.begin(profile).to_bytes()
    with pytest.raises(Malformed, match="state"):
        FeatureState.from_bytes(state[:-8], profile)


def test_without_its_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Misuse, match="not installed") as refused:
        BusNetwork(body())
    assert "tallystick[detect]" in str(refused.value.hint)
