"""Rows from a publisher to a subscriber over real interfaces: hosts on packet sockets, switches in namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lab
import pytest

WHY_NOT = lab.why_not()
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.mark.parametrize("plane", ["ebpf", "packet"])
def test_rows_published_at_one_host_are_opened_at_another(plane: str, tmp_path: Path) -> None:
    """Authority, dispatcher, controller, P4Runtime, switches and both agents are the real ones."""
    script, tests = Path(__file__).with_name("packet_town.py"), Path(__file__).parents[1]
    command = ["unshare", "-n", sys.executable, str(script), str(tmp_path), plane]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tests.parent / "src", tests)))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["is_whole"]
    assert told["findings"] == []
    assert told["interface"] == "packet:s1-100"
    assert told["heard"] > told["parcels"] >= 20
    assert not {"cannot-open", "altered", "late", "lost"} & set(told["dropped"])
