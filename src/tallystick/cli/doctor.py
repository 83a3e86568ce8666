"""`tally doctor`: what this machine can do, found by trying it rather than by reading version numbers."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click

from tallystick.cli import output
from tallystick.cli.common import FOLDER
from tallystick.errors import TallystickError, Unavailable
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import SystemClock

LIBRARIES = ("cryptography", "pyarrow", "numpy", "numba", "apsw", "cbor2", "blake3", "uvicorn")
CPU_FEATURES = ("aes", "sha_ni", "avx2", "avx512f")
JAVA_MIN = 17  # Spark 4
SYNCS = 5
FREE_BYTES_MIN = 1 << 30  # below it a node soon refuses publishers


@dataclass(frozen=True)
class Check:
    """One line of a report. `missing` is optional and absent, `none` not wanted; `away` and `bad` fail the command."""

    name: str
    state: Literal["ok", "none", "missing", "away", "bad"]
    found: str
    hint: str | None = None


@click.command("doctor")
@click.option(
    "--home",
    envvar="TALLY_HOME",
    type=FOLDER,
    default=Path(),
    help="The folder whose disk is tried (TALLY_HOME); the current one if not given.",
)
@output.json_option
def command(home: Path, tell: output.Tell) -> None:
    """Check this machine: versions, processor, cryptography, clock, disk, Java and the other engines.

    An engine that is not there is told with what needs it; only what the core needs makes the command fail.

    \b
    Examples:
      tally doctor
      tally doctor --home /var/lib/tally --json
    """
    checks = run_checks(home)
    show_checks(checks, tell)
    bad = [check.name for check in checks if check.state == "bad"]
    if bad:
        raise Unavailable(f"this machine lacks what tallystick needs: {', '.join(bad)}")


def show_checks(checks: list[Check], tell: output.Tell) -> None:
    """Tell the checks: one JSON document, or a line each with the hint behind it."""
    if tell.as_json:
        output.result_json(checks)
        return
    for check in checks:
        output.result(f"{check.state:<8}{check.name:<14}{check.found}")
        if check.hint:
            output.note(f"hint: {check.hint}")


def run_checks(home: Path) -> list[Check]:
    """Every check, in the order in which one would mend things; one that breaks is bad, not a crash."""
    tries: dict[str, Callable[[], Check]] = {
        "versions": check_versions,
        "processor": check_processor,
        "hpke": check_hpke,
        "ml-dsa": check_mldsa,
        "leaf hashing": check_leaves,
        "clock": check_clock,
        "disk": lambda: check_disk(home),
        "java": check_java,
        **{name: partial(check_engine, name) for name in ENGINES},
    }
    return [_tried(name, attempt) for name, attempt in tries.items()]


def _tried(name: str, attempt: Callable[[], Check]) -> Check:
    try:
        return attempt()
    except TallystickError as error:
        return Check(name, "bad", str(error), error.hint)
    except Exception as error:  # whatever a foreign library raises where it is not whole is what we look for
        return Check(name, "bad", f"{type(error).__name__}: {error}")


def check_versions() -> Check:
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    ours = f"tallystick {version('tallystick')}, python {platform.python_version()}"
    return Check("versions", "ok", f"{ours}, {libraries}")


def check_processor() -> Check:
    """The flags that decide how fast AES and SHA-256 run; only Linux tells."""
    path = Path("/proc/cpuinfo")
    flags = set(path.read_text(encoding="ascii", errors="replace").split()) if path.exists() else set()
    found = [name for name in CPU_FEATURES if name in flags]
    return Check("processor", "ok", f"{platform.machine()}, {', '.join(found) or 'no known features'}")


def check_hpke() -> Check:
    """Seal and open once; `cryptography` may have been built without ML-KEM."""
    from tallystick.crypto import hpke

    private = hpke.PrivateKey.generate(bytes(32))
    sealed = hpke.seal(private.public, b"doctor", b"doctor")
    whole = hpke.open_(private, sealed, b"doctor") == b"doctor"
    return Check("hpke", "ok" if whole else "bad", "x25519 with ml-kem-768")


def check_mldsa() -> Check:
    """Sign and verify once with a root key, which needs ML-DSA-65 beside Ed25519."""
    from cryptography.hazmat.backends.openssl import backend

    from tallystick.crypto.signatures import RootKey

    key, context = RootKey.from_seed(bytes(32)), "tallystick doctor 1"
    key.public.verify(context, key.sign(context, b"doctor"), b"doctor")
    return Check("ml-dsa", "ok", f"ml-dsa-65 with ed25519, {backend.openssl_version_text()}")


def check_leaves() -> Check:
    """Which leaf-hash engine this processor gets, and where its compiled code is kept."""
    from numba import config

    from tallystick.kernels import jit
    from tallystick.record import leaves

    engine = leaves.engine()
    if engine.startswith("hashlib"):
        return Check("leaf hashing", "missing", engine, "sealing works, but several times slower: mend numba")
    return Check("leaf hashing", "ok", f"{engine}, compiled code in {config.CACHE_DIR or jit.cache_folder()}")


def check_clock() -> Check:
    """A clock that is behind our own files is wrong, and permits and envelopes would be refused."""
    now = SystemClock().now()
    shown = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < Path(__file__).stat().st_mtime:
        return Check("clock", "bad", f"{shown}, before this package was installed", "set the clock, by ntp if you can")
    return Check("clock", "ok", shown)


def check_disk(home: Path) -> Check:
    """Write and sync for real where the node would; the time says what a group fsync costs."""
    folder = next((place for place in (home, *home.absolute().parents) if place.is_dir()), Path())
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="tally-doctor-", dir=folder) as scratch:
        disk = RealDisk(scratch)
        file = disk.open("sync", create=True)
        times = []
        for number in range(SYNCS):
            started = clock.monotonic()
            file.pwrite(4096 * number, bytes(4096))
            file.sync()
            times.append(clock.monotonic() - started)
        file.close()
        free = disk.free_bytes()
    found = f"sync takes {1000 * sorted(times)[SYNCS // 2]:.1f} ms, {free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return Check("disk", "bad", found, f"free some space below {folder.absolute()}")
    return Check("disk", "ok", found)


def check_java() -> Check:
    """Spark and Kafka run in it; the core runs without."""
    hint = f"tally pipeline and tally dev spark (the spark extra) and tally dev kafka need java {JAVA_MIN} or newer"
    hint += " (debian: apt install openjdk-17-jre-headless)"
    path = shutil.which("java")
    if path is None:
        return Check("java", "missing", "not there", hint)
    told = _say(path, "-version")
    match = re.search(r'version "(\d+)', told)
    if match is None or int(match[1]) < JAVA_MIN:
        first = next(iter(told.splitlines()), "no version")
        return Check("java", "missing", f"{path}: {first}", hint)
    return Check("java", "ok", f"{match[1]} at {path}")


def check_engine(name: str) -> Check:
    """What only some commands need: its version, or what goes without it."""
    find, needed_by = ENGINES[name]
    try:
        return Check(name, "ok", find())
    except TallystickError as error:
        return Check(name, "missing", "not there", f"{needed_by} needs it; {error.hint}")


def _find_kafka() -> str:
    from tallystick.engines.kafka import VERSION, find_jars

    return f"{VERSION} at {find_jars()}"


def _find_cometbft() -> str:
    from tallystick.node.validator import find_cometbft

    path = find_cometbft()
    return f"calls itself {_say(path, 'version')}, at {path}"  # that of v0.40.0 is one behind its module


def _find_librdkafka() -> str:
    from tallystick.carriers.kafka.failures import library

    return f"{library().libversion()[0]}, confluent-kafka {version('confluent-kafka')}"


def _find_pyspark() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError as error:
        raise Unavailable("PySpark is not installed", hint="pip install 'tallystick[spark]'") from error


def _find_go() -> str:
    path = shutil.which("go")
    if path is None:
        raise Unavailable("go is not on the PATH", hint="make engines fetches a Go of its own where there is none")
    return f"{_say(path, 'version').removeprefix('go version ')} at {path}"


def _find_litewitness() -> str:
    from tallystick.node.processes import engines_folder

    for program in sorted(engines_folder().glob("litewitness-*/litewitness"), reverse=True):
        return f"{program.parent.name.partition('-')[2]} at {program}"
    raise Unavailable("litewitness is not here", hint="make engines in a checkout builds it")


# How each engine is found, and what needs it.
ENGINES: dict[str, tuple[Callable[[], str], str]] = {
    "librdkafka": (_find_librdkafka, "a node, notary or client on Kafka (the kafka extra)"),
    "kafka": (_find_kafka, "tally dev kafka"),
    "cometbft": (_find_cometbft, "a validator (tally chain, tally dev chain)"),
    "pyspark": (_find_pyspark, "tally pipeline (the spark extra)"),
    "go": (_find_go, "building cometbft, litewitness and helm (make engines)"),
    "litewitness": (_find_litewitness, "the test of witnesses that are not ours"),
}


def _say(*command: str) -> str:
    """What a program says of itself, wherever it says it."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip()
