"""An update of 59 MB in bytes that a vehicle fetches: numpy 2.2.5 to 2.2.6, two wheels, unpacked.

    delta_patch     our patch (bsdiff4), sealed as an object, against `zstd --patch-from`
    delta_detools   the same patch against detools with hdiffpatch, a peer that has no wheels
    delta_chunks    the same patch against the sealed chunks that the old image does not have: what a base without a
                    patch costs
    delta_first     a first install in chunks, against one zstd stream of the whole
    delta_make, delta_apply   seconds that making and applying the patch take

The wheels are fetched once, into the user's cache. Everybody compresses at level 19.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import harness

from tallystick.fleet.ota.delta import apply_patch, make_patch
from tallystick.objects.cutting import cut_chunks
from tallystick.objects.layout import GEAR, SLIP_BYTES, TARGET, ObjectKey, Slips
from tallystick.objects.sealing import ChunkSealer

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tallystick" / "ota"
VERSIONS = "2.2.5", "2.2.6"
PLATFORM = "--platform=manylinux2014_x86_64", "--python-version=3.13", "--implementation=cp"
LEVEL, TARGET_RATIO = 19, 2.5
QUICK_BYTES = 1 << 20  # of each image, in a short run


class CannotMeasure(Exception):
    """Something is missing that is no fault of ours."""


def image(version: str, cache: Path = CACHE) -> bytes:
    """All files of a wheel, one behind the other, in the order of their names."""
    found = list((cache / version).glob("*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *PLATFORM]
        got = subprocess.run(
            [*command, "-d", str(cache / version), f"numpy=={version}"], capture_output=True, text=True
        )
        found = list((cache / version).glob("*.whl"))
        if got.returncode or not found:
            raise CannotMeasure(f"numpy {version} cannot be fetched: {got.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(found[0]) as wheel:
        return b"".join(wheel.read(name) for name in sorted(wheel.namelist()))


def sealed(data: bytes, key: ObjectKey, level: int) -> Slips:
    sealer = ChunkSealer(key, level)
    for chunk in cut_chunks([data], GEAR, TARGET):
        sealer.seal(chunk)
    return Slips(bytes(sealer.slips))


def stored(slips: Slips) -> int:
    return int(slips.sealed[-1]) + len(slips) * SLIP_BYTES


def zstd(new: bytes, old: bytes | None = None) -> int:
    """The bytes that zstd makes of an image, by itself or from an old one."""
    if shutil.which("zstd") is None:
        raise CannotMeasure("the program zstd is not installed")
    with TemporaryDirectory(prefix="tally-ota-") as at:
        folder = Path(at)
        (folder / "new").write_bytes(new)
        (folder / "old").write_bytes(old or b"")
        base = [] if old is None else [f"--patch-from={folder / 'old'}"]
        command = ["zstd", "-q", f"-{LEVEL}", "--long=27", *base, str(folder / "new"), "-o", str(folder / "out")]
        subprocess.run(command, check=True)
        return (folder / "out").stat().st_size


def detools(old: bytes, new: bytes) -> int | None:
    """The bytes of its patch, or None where it cannot be installed."""
    target = CACHE / "detools"
    if not target.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "detools"]
        if subprocess.run(command, capture_output=True).returncode:
            shutil.rmtree(target, ignore_errors=True)
            return None
    with TemporaryDirectory(prefix="tally-ota-") as at:
        for name, data in (("old", old), ("new", new)):
            (Path(at) / name).write_bytes(data)
        command = [
            *("-m", "detools", "create_patch", "-c", "lzma", "-t", "hdiffpatch", "-a", "hdiffpatch"),
            "old",
            "new",
            "patch",
        ]
        environment = {**os.environ, "PYTHONPATH": str(target)}
        done = subprocess.run([sys.executable, *command], cwd=at, capture_output=True, env=environment)
        return None if done.returncode else (Path(at) / "patch").stat().st_size


def rows(quick: bool, rounds: int | None, cache: Path = CACHE) -> Iterator[harness.Figure]:
    try:
        yield from _rows(
            *(image(version, cache)[: QUICK_BYTES if quick else None] for version in VERSIONS), quick=quick
        )
    except CannotMeasure as error:
        print(f"delta: {error}: its rows are left as they were", file=sys.stderr, flush=True)


def _rows(old: bytes, new: bytes, quick: bool) -> Iterator[harness.Figure]:
    key = ObjectKey(bytes(32))
    started = time.perf_counter()
    patch = make_patch(old, new)
    made_s = time.perf_counter() - started
    assert patch is not None
    started = time.perf_counter()
    assert apply_patch(old, patch, len(new)) == new
    applied_s = time.perf_counter() - started
    ours = stored(sealed(patch, key, 0))
    yield harness.Figure("delta_patch", ours, zstd(new, old), "bytes", TARGET_RATIO)
    theirs = None if quick else detools(old, new)
    if theirs is not None:
        yield harness.Figure("delta_detools", ours, theirs, "bytes")
    elif not quick:
        print("delta: detools cannot be installed or run here: its row is left as it was", file=sys.stderr, flush=True)
    has = {key.plain_hash(chunk) for chunk in cut_chunks([old], GEAR, TARGET)}
    slips = sealed(new, key, LEVEL)
    missing = sum(slip.sealed_length for slip in slips if slip.plain_hash not in has) + len(slips) * SLIP_BYTES
    yield harness.Figure("delta_chunks", ours, missing, "bytes")
    yield harness.Figure("delta_first", stored(slips), zstd(new), "bytes")
    yield harness.Figure("delta_make", made_s, None, "s")
    yield harness.Figure("delta_apply", applied_s, None, "s")
