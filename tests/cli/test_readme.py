"""The README's quickstart, run as it stands."""

from __future__ import annotations

import re
import subprocess

import pytest


@pytest.mark.slow
def test_the_quickstart_tells_the_whole_story(quickstart: subprocess.Popen[str]) -> None:
    told, aside = quickstart.communicate(timeout=600)
    assert quickstart.returncode == 0, told + aside
    assert "1000 rows in 1 parcel to brakes, anchored" in told
    assert "1000 got.jsonl" in told
    assert 'row: {"vin": "V6", "seq": 41, "speed": 20.5}' in told
    assert "not proved: that the row is true" in told
    assert "changed one bit" in told
    assert re.search(r"^finding: altered: parcel 0 of lane", aside, re.MULTILINE)
    assert "exit code 3" in told
    assert "[{'vin': 'V8', 'seq': 1000, 'speed': 12.5}] ['altered']" in told
    assert "Traceback" not in aside
