"""The watch at the edge: in slices or all at once, stopped and resumed, the alerts are the same."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_bus import BEGAN_US, FIRST_ID, STRANGER, attacked, small_bus

from tallystick.errors import Malformed
from tallystick.fleet.detect.edge import BusWatch, slices
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.profile import Profile, learn
from tallystick.fleet.schemas import schema


@cache
def profile() -> Profile:
    return learn([small_bus(20, seed=1)])


@cache
def drive() -> Frames:
    return attacked(small_bus(14, seed=2), BEGAN_US + 4_000_000)


def watch(known: Profile | None = None) -> BusWatch:
    known = known or profile()
    return BusWatch("V", known, sha256(known.encode()).digest())


def told(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@cache
def whole() -> tuple[list[dict[str, Any]], bytes]:
    one = watch()
    return told(list(one.batches([drive()]))), one.to_bytes()


def test_slices_give_rows_of_the_schema_that_name_the_attack() -> None:
    one = watch()
    batches = list(one.batches(slices(drive())))
    assert all(batch.schema == schema("alerts").arrow for batch in batches)
    assert told(batches) == whole()[0]
    assert {row["can_id"] for row in told(batches)} >= {FIRST_ID, STRANGER}
    assert all(row["ts_first"].timestamp() * 1e6 > BEGAN_US + 3_900_000 for row in told(batches))
    assert {row["profile"] for row in told(batches)} == {one.profile_hash.hex()}
    assert max(len(part) for part in slices(drive())) < 12
    assert sum(len(part) for part in slices(drive())) == len(drive()) == one.frames
    assert list(one.batches([drive()[:0]])) == []


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, len(drive())), max_size=6))
def test_stopped_and_resumed_anywhere_the_alerts_are_the_same(cuts: list[int]) -> None:
    found, state = list[pa.RecordBatch](), watch().to_bytes()
    for first, end in pairwise([0, *sorted(cuts), len(drive())]):
        one = watch().resume(state)  # a process of its own
        found += one.batches([drive()[first:end]])
        state = one.to_bytes()
    assert (told(found), state) == whole()


def test_a_watch_that_forgets_tells_something_else() -> None:
    """What the state is for: cut in the middle of the attack, without it the alerts are torn."""
    middle = len(drive()) // 2
    found = [batch for part in (drive()[:middle], drive()[middle:]) for batch in watch().batches([part])]
    assert told(found) != whole()[0]


def test_a_state_of_another_profile_is_refused_by_name_and_so_is_half_a_state() -> None:
    other = watch(learn([small_bus(15, seed=3)]))
    with pytest.raises(Malformed, match="of another profile") as caught:
        other.resume(whole()[1])
    assert caught.value.reason == "other-profile"
    with pytest.raises(Malformed):
        watch().resume(whole()[1][:-1])
    assert told(list(other.batches([drive()])))  # it stands at its beginning, and works


def test_a_network_s_alerts_are_its_own_and_survive_a_stop() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tallystick.fleet.detect.network import WIDTH, BusNetwork
    from tallystick.fleet.detect.train import to_onnx

    weights = np.random.default_rng(0).normal(size=(WIDTH, 1)).astype(np.float32)  # it knows nothing, and says much
    onnx = to_onnx([(weights, np.zeros(1, np.float32))]).SerializeToString()
    network, known = BusNetwork({"features": 1, "onnx": onnx, "limit": 1.0, "enabled": True}), profile()

    def scoring() -> BusWatch:
        return BusWatch("V", known, sha256(known.encode()).digest(), network=network)

    at_once, halves, middle = scoring(), scoring(), len(drive()) // 2
    found = told(list(at_once.batches([drive()])))
    parts = [*halves.batches([drive()[:middle]])]
    parts += scoring().resume(halves.to_bytes()).batches([drive()[middle:]])
    scored = [row for row in found if row["check"] == "network"]
    assert scored
    assert [row for row in told(parts) if row["check"] == "network"] == scored
    for rows in (found, told(parts)):
        assert [row for row in rows if row["check"] != "network"] == whole()[0]
    with pytest.raises(Malformed):  # of a watch that had no network
        scoring().resume(whole()[1])
