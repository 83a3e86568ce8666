"""Engines in the user's cache, by name and version: made once, whole or not at all, by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


class Missing(Exception):
    """The engine cannot be had here; the text says why and what would help."""


def cache_folder() -> Path:
    """`~/.cache/tallystick/engines`, or what TALLY_ENGINES names."""
    return Path(os.environ.get("TALLY_ENGINES") or "~/.cache/tallystick/engines").expanduser()


def cached(name: str, make: Callable[[Path], None], *, is_heavy: str = "") -> Path:
    """The folder `name` of the cache; where it is missing, `make` fills it, and `is_heavy` is told to the user."""
    folder = cache_folder() / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # another process made it while we waited
            return folder
        if is_heavy:
            print(f"{name}: {is_heavy} …", file=sys.stderr, flush=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            make(partial)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def run_quietly(command: Sequence[str], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run to the end; its output is shown only if it fails, as a `Missing`."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise Missing(f"{command[0]} failed with {done.returncode}:\n{tail}")
    return done.stdout
