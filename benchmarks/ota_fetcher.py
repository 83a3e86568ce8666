"""A process that fetches an object into a file and prints its peak in KiB: `ota_fetcher.py FOLDER DOCKET KEY URL…`. It
loads nothing besides, so that what a long object needs more is seen."""

from __future__ import annotations

import sys
from pathlib import Path

from tallystick.objects.fetching import Fetching, PlainKeeper
from tallystick.objects.layout import Docket, ObjectKey
from tallystick.objects.sources import WebSource
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock, SystemEntropy

if __name__ == "__main__":
    folder, docket, key, *urls = sys.argv[1:]
    keeper = PlainKeeper(RealDisk(folder), "fetched", ObjectKey(bytes.fromhex(key)))
    sources = {url: WebSource(url, SystemClock(), SystemEntropy()) for url in urls}
    Fetching(Docket.decode(bytes.fromhex(docket)), sources, keeper, SystemClock()).run()
    # Not getrusage: what it says is at least the peak of whoever started this process.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
