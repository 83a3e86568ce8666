"""The overlay's benchmark runs, its rows are those that the page needs, and it counts what it says. No times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from chain_world import require_cometbft

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import harness
import overlay
import overlay_counts
import overlay_hops

NAMES = [
    *("hop_plain", "hop_iterative", "hop_redistribution"),
    *("hop_plain_latency", "hop_iterative_latency", "hop_redistribution_latency"),
    *("wire_replicas", "wire_retransmit", "wire_coded"),
    *("reconstruct_10", "shares_10", "shares_10_quiet"),
]
PAUSES = ["attach_pause", "attach_pause_late", "detach_pause"]
CARRIER = ["carrier_publish", "carrier_fetch"]


def short_run(folder: Path, *subjects: str) -> dict[str, harness.Row]:
    command = [sys.executable, overlay.__file__, "--quick", "--into", str(folder)]
    only = [f"--only={subject}" for subject in subjects]
    ran = subprocess.run([*command, *only], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return {row["name"]: row for row in harness.read(folder, overlay.SUITE)}


@pytest.mark.long
def test_a_short_run_has_every_row(tmp_path: Path) -> None:
    rows = short_run(tmp_path, "hops", "wire", "shares")
    assert list(rows) == NAMES
    assert rows["hop_redistribution"]["unit"] == "lane keys/s"
    assert rows["hop_redistribution"]["ratio"] == pytest.approx(
        rows["hop_redistribution"]["ours"] / rows["hop_redistribution"]["peer"]
    )
    assert (rows["shares_10"]["ours"], rows["shares_10"]["peer"]) == (9, 3**10)


@pytest.mark.long
def test_nothing_is_lost_while_a_relay_comes_or_goes_and_a_late_one_is_waited_for(tmp_path: Path) -> None:
    rows = short_run(tmp_path, "pauses")
    assert list(rows) == PAUSES
    assert rows["detach_pause"]["ours"] < rows["attach_pause_late"]["ours"]  # which waits for half a second by design


@pytest.mark.long
@pytest.mark.chain
def test_parcels_go_over_the_overlay_and_through_the_log_in_one_run(tmp_path: Path) -> None:
    require_cometbft()
    rows = short_run(tmp_path, "carrier")
    assert list(rows) == CARRIER
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows.values())


def test_the_peer_of_a_way_carries_as_many_bytes() -> None:
    for make in overlay_hops.WAYS.values():
        ours = overlay_hops.run(make(), 2, 1)
        size = round(ours.bytes / overlay_hops.STAGES / overlay_hops.COUNT)
        assert overlay_hops.run(overlay_hops.plain(size), 2, 1).bytes == pytest.approx(ours.bytes, rel=0.01)


def test_splitting_again_multiplies_shares_and_redistribution_does_not() -> None:
    assert [overlay_counts.shares_at_subscriber(hops, liar=True) for hops in (4, 6)] == [9, 9]
    assert overlay_hops.run(overlay_hops.iterative(), 1, 1).frames == 3 + 9 + 27 + 27


@pytest.mark.long
def test_all_parcels_survive_a_third_of_the_relays_and_not_two_thirds(tmp_path: Path) -> None:
    rows = short_run(tmp_path, "survive", "beyond")
    assert (rows["survive"]["ours"], rows["survive"]["met"]) == (rows["survive"]["peer"], True)
    assert 0 < rows["survive_2_bad"]["ours"] < rows["survive_2_bad"]["peer"]


def test_the_committed_rows_are_those_of_the_suite() -> None:
    rows = harness.read(harness.ROOT / "benchmarks" / "results", overlay.SUITE)
    assert [row["name"] for row in rows] == [*NAMES, "survive", *PAUSES, *CARRIER]
