"""litewitness, a witness of C2SP's tlog-witness protocol that is not ours, from Go's module proxy: the outside opinion
on our checkpoints. Nothing but tests uses it.

    python -m engines.litewitness     build it if it is not in the cache, and print where the program is

It is built inside its module's own folder, so that the module's `go.sum` holds for everything it needs; some half a
minute of two cores, once. Its companion `witnessctl` is left out: it needs modules of a host that not every proxy hands
out. Where this one is not handed out either, the tests that want it are skipped.
"""

from __future__ import annotations

from pathlib import Path

from engines.cache import Missing, cached
from engines.go import build_in_module

MODULE, VERSION = "filippo.io/torchwood", "v0.9.0"
NAME = f"litewitness-{VERSION}"


def fetch() -> Path:
    """The folder of the program; the first call builds it."""
    return cached(NAME, _build, is_heavy="building litewitness from source, half a minute, once")


def _build(folder: Path) -> None:
    build_in_module(folder, MODULE, VERSION, "litewitness")


if __name__ == "__main__":
    try:
        print(fetch() / "litewitness")
    except Missing as missing:
        raise SystemExit(f"error: {missing}") from missing
