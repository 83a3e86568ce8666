"""What every test shares: a home of its own, seeds that print how to replay them, engines that may be
required, data that may be absent, Hypothesis profiles, and, above pytest's closing line, what was left out and the
time budget.

The suite has two tiers: `make test` runs what is not marked `long`, `make test-long` what is. Called by hand, pytest
runs whatever it is given, of either.

Environment: `TALLY_REQUIRE_ENGINES=1` turns a skipped engine test into a failure; `TALLY_PROFILE=soak` draws
fresh seeds and many examples, `glance` few, where the question is not about the code but about what it stands on;
`TALLY_DATA` names the folder of real data; `TALLY_SETUP_S` is what `make` spent before. Folders of tests are in memory
where there is room, unless `TMPDIR` names another place, and what a failed test left stays there until the next run.
"""

from __future__ import annotations

import ast
import gc
import os
import random
import re
import shutil
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Minutes, for two shared cores, of each tier by its marker expression. Several processes share a tier, so that the
# whole is less than the sum. A row that goes over is shown, never failed: times are not assertions.
BUDGETS_MIN = {
    "not long": {
        "set-up": 6,
        "unit and vectors": 4,
        "simulation": 3,
        "crashes": 4,
        "spark": 6,
        "kafka": 3,
        "chain": 2,
        "fabric": 1,
        "browser": 1,
        "in all": 16,
    },
    "long": {
        "set-up": 4,
        "unit and vectors": 6,
        "simulation": 6,
        "spark": 12,
        "kafka": 14,
        "chain": 4,
        "fabric": 3,
        "browser": 3,
        "fuzz": 2,
        "in all": 28,
    },
}
GROUPS = ("simulation", "crashes", "spark", "kafka", "chain", "fabric", "browser", "fuzz")
ENGINES = (*GROUPS[2:], "witness", "helm")  # all that a test may lack, except in CI

# A folder anywhere on a test file's path gives its tests the marker.
FOLDER_MARKERS = {
    "sim": "simulation",
    "crashes": "crashes",
    "pipeline": "spark",
    "kafka": "kafka",
    "cometbft": "chain",
    "fabric": "fabric",
    "browser": "browser",
    "fuzz": "fuzz",
}

# The name of a test that needs an engine: a folder on its path, a parameter, or a file of commands.
SPARK_NAME = re.compile(r"/pipeline/")
SPARK_WALK = re.compile(r"::test_the_guides_of_an_engine.*\[spark")
BROKER_NAME = re.compile(
    r"/(kafka|cometbft)/|\[[\w-]*\b(kafka|cometbft)\b[\w-]*\]|/test_chain_commands\.py|::test_the_guides.*\[chain"
)

# What several processes share begins with what takes longest, so that none is left with it while the others are done:
# few tests that take minutes.
LONGEST_FIRST = (
    "spark",
    "brokers",
    "walk with spark",
    "tests/test_oldest.py",
    "tests/sim/",
    "tests/crashes/",
    "tests/cli",
    "tests/demo/",
    "tests/scenarios/",
)

# Instances that the tests of a folder share, each under names of its own.
FOLDERS_WORLDS = ("both_gateways", "fleet", "lake", "quickstart", "world")

NO_DATA = "no real data"  # which is no engine: it may not be handed out
REQUIRE_ENGINES = os.environ.get("TALLY_REQUIRE_ENGINES", "") not in ("", "0")
PROFILE = os.environ.get("TALLY_PROFILE", "ci")

# The compiled functions are shared by all tests and by the processes they start, whatever HOME those have: where
# tallystick.kernels.jit would keep them for the user who runs the suite.
if "NUMBA_CACHE_DIR" not in os.environ:
    _VERSIONS = f"{version('tallystick')}-{version('numba')}"
    os.environ["NUMBA_CACHE_DIR"] = str(Path.home() / ".cache" / "tallystick" / "numba" / _VERSIONS)
os.environ.setdefault("TALLY_ENGINES", str(Path.home() / ".cache" / "tallystick" / "engines"))

# Spark's drivers and Kafka's brokers live for seconds or minutes here, on cores that others want too: compiling
# everything a second time, and better, takes more than it gives back.
for _name in ("SPARK_SUBMIT_OPTS", "KAFKA_OPTS"):
    os.environ.setdefault(_name, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


def _folder_in_memory(needed: int = 6 << 30) -> str | None:
    """Where there is one with room for what tests leave, and memory for the suite beside. What thousands of small
    ledgers and logs sync to a disk takes longer than all that they compute."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    told, memory = os.statvfs(folder), Path("/proc/meminfo").read_text()
    available = int(memory.partition("MemAvailable:")[2].split()[0]) << 10
    has_room = told.f_bavail * told.f_frsize >= needed and available >= 2 * needed
    return str(folder) if has_room and not told.f_flag & os.ST_NOEXEC else None


if "TMPDIR" not in os.environ and (_folder := _folder_in_memory()) is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = _folder

# The machine may be shared and slow: neither deadlines nor slow generation say anything about the code.
settings.register_profile(
    "ci",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=5000,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("glance", settings.get_profile("ci"), max_examples=10)
settings.load_profile(PROFILE)

_SHOWN_LINES = 40  # of a first attempt's trace
_STACK_LINES = 250  # of a process that ended: the thread at fault, or that of the test, comes last

_spent_s: dict[str, float] = {}
_started = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="seed for the tests that take one; replays a failure")


# --- fixtures ---


@pytest.fixture(scope="session", autouse=True)
def _isolated_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the home, identity or caches of whoever runs the suite."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TALLY_HOME"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def tally_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh identity folder, not yet made; TALLY_HOME names it for this test and its processes."""
    home = tmp_path / "tally-home"
    monkeypatch.setenv("TALLY_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data that is never committed; the test is skipped where there is none."""
    folder = Path(os.environ.get("TALLY_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"{NO_DATA}: neither TALLY_DATA nor ../shared/data is a folder")
    return folder


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed: `--seed`, else a fresh one in a soak, else one fixed by the test's name."""
    chosen = request.config.getoption("--seed")
    if chosen is not None:
        return int(chosen)
    if PROFILE == "soak":
        return random.SystemRandom().getrandbits(32)
    return zlib.crc32(request.node.nodeid.encode())


# --- markers, seeds and required engines ---


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for part in item.path.relative_to(ROOT).parts[:-1]:
            if part in FOLDER_MARKERS:
                item.add_marker(FOLDER_MARKERS[part])


def _undisturbed(parse: Callable[..., Any]) -> Callable[..., Any]:
    """CPython 3.11 has one count of depth for all syntax trees. Where one is made while another is, as by the traceback
    of something that the collector ends, that one is told of a mismatch, and a test that fails ends the whole run
    (python/cpython#106905, pytest#10763). The collector waits; it would also take most of the time."""

    @wraps(parse)
    def parse_undisturbed(*given: Any, **named: Any) -> Any:
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            return parse(*given, **named)
        finally:
            if was_collecting:
                gc.enable()

    return parse_undisturbed


ast.parse = _undisturbed(ast.parse)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that is run once more finds a new world: what its first attempt left in its module's, or in that of its
    folder, is in the way. Engines go on."""
    if getattr(item, "execution_count", 1) == 1:
        return
    from pytest_rerunfailures import suspended_finalizers  # of everything above the test, which it means to keep

    ending: list[Callable[[], object]] = []
    for node, (finalizers, _) in [*suspended_finalizers.items()]:
        if isinstance(node, pytest.Module | pytest.Class):
            ending += finalizers
            del suspended_finalizers[node]
        else:
            ending += [one for one in finalizers if _ended_fixture(one) in FOLDERS_WORLDS]  # twice does no harm
    for end in reversed(ending):
        with suppress(Exception):  # what a failed attempt left may not end well; how it failed is told
            end()


def _ended_fixture(finalizer: Callable[[], object]) -> str | None:
    """The name of the fixture that this ends."""
    return getattr(getattr(getattr(finalizer, "func", None), "__self__", None), "argname", None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that skips itself (`importorskip`) hides its markers, so where engines are required none may."""
    report = yield
    if REQUIRE_ENGINES and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: skipped, and TALLY_REQUIRE_ENGINES is set: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties = [*report.user_properties, ("budget", _group(item))]
    is_left_out = report.skipped and not hasattr(report, "wasxfail") and NO_DATA not in str(report.longrepr)
    if REQUIRE_ENGINES and is_left_out and _is_engine_test(item):
        report.outcome = "failed"
        report.longrepr = f"an engine is missing, and TALLY_REQUIRE_ENGINES is set: {report.longrepr}"
    chosen = getattr(item, "funcargs", {}).get("seed")
    if report.failed and chosen is not None:
        report.sections.append(("replay", f"pytest '{item.nodeid}' --seed {chosen}"))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    group = str(dict(report.user_properties).get("budget", "crashed"))  # xdist reports a dead worker's test itself
    _spent_s[group] = _spent_s.get(group, 0.0) + report.duration


def _group(item: pytest.Item) -> str:
    return next((name for name in GROUPS if item.get_closest_marker(name)), "unit and vectors")


def _is_engine_test(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ENGINES)


# --- several processes ---


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files run whole, beside one another. All that needs Spark runs in one process, one after the other, and so does
    all that needs a broker or a chain, so that each engine starts once; where a test needs both, one process has all
    of them. The commands share an instance, and a process too. The walk with Spark starts its own, which takes long."""
    from xdist.scheduler import LoadScopeScheduling  # only where `-n` asks for it

    class Scheduling(LoadScopeScheduling):
        def schedule(self) -> None:
            names = next(iter(self.registered_collections.values()), [])
            self._together = any(SPARK_NAME.search(name) and BROKER_NAME.search(name) for name in names)
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            if SPARK_WALK.search(nodeid):
                return "walk with spark"
            if SPARK_NAME.search(nodeid):
                return "spark"
            if BROKER_NAME.search(nodeid):
                return "spark" if self._together else "brokers"
            return "tests/cli" if nodeid.startswith("tests/cli/") else nodeid.split("::")[0]

        def _assign_work_unit(self, node: Any) -> None:
            self.workqueue.move_to_end(min(self.workqueue, key=_turn), last=False)
            super()._assign_work_unit(node)

        def mark_test_pending(self, item: str) -> None:  # type: ignore[override]
            """A test that ended its process waits again with the rest of its part, and is run once more as any other
            that failed."""

    return Scheduling(config, log)


def _turn(scope: str) -> int:
    """When a part of the suite has its turn, the least first; among equals xdist begins with the most tests."""
    places = (place for place, begin in enumerate(LONGEST_FIRST) if scope.startswith(begin))
    return next(places, len(LONGEST_FIRST))


@pytest.hookimpl(trylast=True)  # the plugin has opened its own file
def pytest_configure(config: pytest.Config) -> None:
    """Where threads stood when a process ended of a fault, or of a test that stood still, goes into a file for each
    process: what it says itself may be lost with it."""
    from _pytest.faulthandler import fault_handler_stderr_fd_key

    if not hasattr(config, "workerinput"):
        os.environ["TALLY_STACKS"] = tempfile.mkdtemp(prefix="tally-stacks-")
    elif fault_handler_stderr_fd_key in config.stash:
        with (Path(os.environ["TALLY_STACKS"]) / config.workerinput["workerid"]).open("wb") as file:
            os.dup2(file.fileno(), config.stash[fault_handler_stderr_fd_key])


# --- above the closing line ---


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out and why, and how a test ended that was run once more. Under `make`, which measures the
    set-up, add the minutes used of the budget."""
    if hasattr(config, "workerinput"):
        return
    stacks = Path(os.environ["TALLY_STACKS"])
    for file in sorted(stacks.glob("*")):
        if text := file.read_text(errors="replace"):
            terminalreporter.section(f"where {file.name} stood")
            for line in text.splitlines()[-_STACK_LINES:]:
                terminalreporter.write_line(line)
    shutil.rmtree(stacks, ignore_errors=True)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first attempt: {report.nodeid}")
        for line in report.longreprtext.splitlines()[-_SHOWN_LINES:]:
            terminalreporter.write_line(line)
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("left out")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:>5}  {reason.removeprefix('Skipped: ')}")
    budgets, setup_s = BUDGETS_MIN.get(config.option.markexpr), os.environ.get("TALLY_SETUP_S")
    if budgets is None or setup_s is None:
        return
    whole_s = float(setup_s) + time.monotonic() - _started
    spent_s = {**_spent_s, "set-up": float(setup_s), "in all": whole_s}
    terminalreporter.section("time budget")
    terminalreporter.write_line(f"{'part':<18}{'minutes':>8}{'budget':>8}")
    for part, budget in budgets.items():
        minutes = spent_s.get(part, 0.0) / 60
        over = "  over" if minutes > budget else ""
        terminalreporter.write_line(f"{part:<18}{minutes:>8.1f}{budget:>8}{over}")
