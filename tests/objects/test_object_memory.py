"""Putting and reading an object takes the same memory whatever its length: a process for each, and its peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import os, sys
from pathlib import Path
from tallystick.objects.reading import ObjectReader
from tallystick.objects.sources import FolderSource
from tallystick.objects.store import ObjectStore
from tallystick.runtime.disk import RealDisk

disk, blocks = RealDisk(Path(sys.argv[1])), int(sys.argv[2])
block = os.urandom(1 << 20)
data = lambda: (number.to_bytes(8, "big") + block[8:] for number in range(blocks))
_, reference = ObjectStore(disk).put(data, bytes(32), bytes(32), bytes(16), 0.0)
with ObjectReader(reference, [FolderSource(disk, "here")]) as reader:
    assert all(len(reader.read(1 << 20)) == 1 << 20 for _ in range(blocks))
# Not getrusage: what it says is at least the peak of whoever started this process.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.long
def test_memory_does_not_follow_the_length(tmp_path: Path) -> None:
    def peak_kib(name: str, blocks: int) -> int:
        asked = [sys.executable, "-c", CHILD, str(tmp_path / name), str(blocks)]
        return int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)

    assert peak_kib("long", 512) < peak_kib("short", 64) * 1.15
