"""Helm, by which the chart of `operations/` is checked, from Go's module proxy. Nothing but a test uses it.

    python -m engines.helm     build it if it is not in the cache, and print where the program is

It is built inside its module's own folder, so that the module's `go.sum` holds for everything it needs, and without
what only debuggers read. The first build takes some four minutes of one core and fetches 140 modules, 100 MB; the
program has 59 MB.
"""

from __future__ import annotations

from pathlib import Path

from engines.cache import Missing, cached
from engines.go import build_in_module

MODULE, VERSION = "helm.sh/helm/v3", "v3.16.4"
NAME = f"helm-{VERSION}"


def fetch() -> Path:
    """The program; the first call builds it. Raises `Missing`."""
    return cached(NAME, _build, is_heavy="building Helm from source, some minutes, once") / "helm"


def _build(folder: Path) -> None:
    build_in_module(folder, MODULE, VERSION, "helm", "-trimpath", "-ldflags", "-s -w")


if __name__ == "__main__":
    try:
        print(fetch())
    except Missing as missing:
        raise SystemExit(f"error: {missing}") from missing
