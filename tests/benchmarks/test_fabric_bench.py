"""The fabric's benchmark runs, and its rows are those that the page needs. Nothing that it asks for is
refused. No times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fabric
import fabric_controller
import harness

PACKETS = [
    *(
        "ebpf_200",
        "packet_whole_200",
        "packet_200",
        "ebpf_1400",
        "ebpf_fanout_200",
        "ebpf_latency_200",
        "flooding_200",
        "topic_group_200",
    ),
    *(
        "afpacket_200",
        "afpacket_packet_whole_200",
        "afpacket_packet_200",
        "afpacket_1400",
        "afpacket_fanout_200",
        "afpacket_latency_200",
        "rules",
        "counters",
    ),
]


@pytest.mark.long
@pytest.mark.fabric
def test_a_short_run_has_every_row(tmp_path: Path) -> None:
    """The benchmark counts what arrives by itself, and ends with an error where a frame is missing."""
    command = [sys.executable, fabric.__file__, "--quick", "--only", "packets", "--into", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if "no network namespace" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    assert [row["name"] for row in harness.read(tmp_path, fabric.SUITE)] == PACKETS


def test_the_controller_s_rows_do_what_they_say() -> None:
    bench = fabric_controller.Bench()
    flow = bench.advertise()
    names = [bench.subscribe(flow) for _ in range(50)]
    for one in names[:20]:
        bench.withdraw(one)
    statistics = bench.configurator.statistics()
    assert (statistics.flows, statistics.subscriptions, bench.refused) == (1, 30, 0)
    assert statistics.rules == 3 * fabric_controller.SWITCHES - 1  # down, up from hosts, up from the switch below
    cases = fabric_controller._by_flows([20])
    for case in cases:
        case.ours()
    names_ = [case.name for case in fabric_controller._by_subscribers([5])]
    assert names_ == ["controller_subscribe_5", "controller_withdraw_5"]
