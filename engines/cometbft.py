"""CometBFT, built by Go from a pinned version of its module.

    python -m engines.cometbft        build it if it is not in the cache, and print where the program is

The first build takes some two minutes of two cores and fetches 250 modules; later calls take nothing. Beside the
program lie the protocol descriptions of the same module, against which our own are tested. The version is that of the
module: the program of v0.40.0 calls itself 0.39.0.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from engines.cache import Missing, cached
from engines.go import module_source, run_go

MODULE, VERSION = "github.com/cometbft/cometbft", "v0.40.0"
NAME = f"cometbft-{VERSION}"


def fetch() -> Path:
    """The folder of the program; the first call builds it."""
    return cached(NAME, _build, is_heavy="building CometBFT from source, some minutes, once")


def _build(folder: Path) -> None:
    run_go(folder, "install", f"{MODULE}/cmd/cometbft@{VERSION}", GOBIN=str(folder))
    shutil.copytree(module_source(folder, MODULE, VERSION) / "proto", folder / "proto", copy_function=shutil.copyfile)
    for path in (folder / "proto").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # the module cache is read-only


if __name__ == "__main__":
    try:
        print(fetch() / "cometbft")
    except Missing as missing:
        raise SystemExit(f"error: {missing}") from missing
