"""p4runtime-shell, a P4Runtime client that is not ours: the outside opinion on our switches. Nothing but tests uses it.

    python -m engines.p4shell     install it if it is not in the cache, and print where its Python is

It needs an old protobuf, and so an environment of its own. Where the package cannot be had, the tests that want it are
skipped.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engines.cache import Missing, cached, run_quietly

VERSION = "0.0.6"
NAME = f"p4shell-{VERSION}-{sys.version_info[0]}.{sys.version_info[1]}"


def fetch() -> Path:
    """The Python that has it; the first call installs it. Raises `Missing`."""
    return cached(NAME, _install, is_heavy="installing p4runtime-shell, half a minute, once") / "bin" / "python"


def _install(folder: Path) -> None:
    run_quietly([sys.executable, "-m", "venv", str(folder)], folder)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_quietly([*install, f"p4runtime-shell=={VERSION}"], folder)


if __name__ == "__main__":
    try:
        print(fetch())
    except Missing as missing:
        raise SystemExit(f"error: {missing}") from missing
