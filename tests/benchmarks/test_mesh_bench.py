"""The mesh's benchmark runs, its rows are those that the page needs, and its attacker is one. No times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import harness
import mesh_timing
from mesh_nodes import Seen, Shape

from tallystick.sim.anonymity.graph import Numbers
from tallystick.sim.anonymity.traffic import regress

NAMES = [
    *("notify", "hop_ms", "bytes_off", "bytes_padded", "bytes_constant"),
    *("timing_off", "timing_padded", "timing_constant", "sim_100000"),
]


@pytest.mark.long
def test_a_short_run_has_every_row_and_the_dial_does_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, str(harness.ROOT / "benchmarks" / "mesh.py"), "--quick", "--into", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = {row["name"]: row for row in harness.read(tmp_path, "mesh")}
    assert list(rows) == NAMES
    assert rows["bytes_off"]["ratio"] > rows["bytes_padded"]["ratio"] > 0
    assert rows["bytes_constant"]["ratio"] > 0
    for dial in ("off", "padded", "constant"):  # a handful of names on real sockets: whether it is one is tested below
        assert 0 <= rows[f"timing_{dial}"]["ours"] <= 1


SHAPE = Shape(nodes=6, topics=2, beat_s=1.0)
LINKS = [(a, b) for a in range(6) for b in range(6) if a != b]


def traffic(windows: int, carried: Numbers, published: Numbers, hidden: bool) -> list[Seen]:
    """A cell on every link in each of two beats of a window; and for a publication one more on each link between nodes
    that carry the topic, which takes the place of another where it is hidden."""
    seen = []
    for number in range(windows):
        beats = [Seen(2 * number + beat + 0.1 * a / 6, a, b, 1200) for beat in range(2) for a, b in LINKS]
        more = [
            Seen(2 * number + 0.5, a, b, 1200)
            for topic in np.flatnonzero(published[number])
            for a, b in LINKS
            if carried[topic, a] and carried[topic, b]
        ]
        seen += beats if hidden else beats + more
    return seen


def test_the_attacker_finds_who_sends_more_when_a_topic_publishes_and_nobody_where_nobody_does() -> None:
    windows, random = 12, np.random.default_rng(4)
    carried = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]], dtype=bool)
    published = random.permuted(np.tile(np.arange(windows)[:, None] % 2 == 0, (1, 2)), axis=0)
    starts = [2.0 * number - 0.01 for number in range(windows)]

    def shown(hidden: bool) -> Numbers:
        seen = traffic(windows, carried, published, hidden)
        return regress(mesh_timing.features(seen, starts, 2.0 * windows, SHAPE), published)

    for topic in range(2):
        count = int(carried[topic].sum())
        named = np.argsort(-shown(hidden=False)[topic])[:count]
        assert carried[topic, named].all()
    assert shown(hidden=True).max() < 1e-6


def test_the_committed_rows_are_those_of_the_suite() -> None:
    rows = harness.read(harness.ROOT / "benchmarks" / "results", "mesh")
    assert [row["name"] for row in rows] == NAMES
