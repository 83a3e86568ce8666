"""The suite's own rules. Every test belongs to one of the tiers that CI runs, defences are taken away through
tests/without.py, and what cannot fail is found, as far as it shows in the source. Tried on a small suite: engines may
be required, what is left out is said, seeds replay, homes are apart.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent

SUITE = {
    "kafka/test_absent_engine.py": """
        import pytest

        def test_needs_a_broker():
            pytest.skip("no broker here")
        """,
    "pipeline/test_absent_library.py": """
        import pytest

        pytest.importorskip("no_such_library")
        """,
    "test_ordinary.py": """
        import os
        import pytest

        def test_fails_by_its_seed(seed):
            assert seed < 0

        def test_sees_no_home_of_ours():
            assert os.environ["HOME"] != "/home/of/the/caller"
            assert "TALLY_HOME" not in os.environ

        def test_skips_for_another_reason():
            pytest.skip("not on this platform")
        """,
}


def run_suite(folder: Path, *arguments: str, **environment: str) -> str:
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    shutil.copy(HERE / "conftest.py", tests)
    for name, source in SUITE.items():
        file = tests / name
        file.parent.mkdir(exist_ok=True)
        lines = source.strip("\n").splitlines()
        file.write_text("\n".join(line.removeprefix("        ") for line in lines), encoding="utf-8")
    markers = "\n  ".join(["simulation", "crashes", "spark", "kafka", "chain", "long"])
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n  {markers}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, "tests"],
        cwd=folder,
        env={
            **os.environ,
            "HOME": "/home/of/the/caller",
            "TALLY_HOME": "elsewhere",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to import than the small suite to run
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_at_a_desk_an_absent_engine_is_a_skip_and_a_failure_can_be_replayed(tmp_path: Path) -> None:
    told = run_suite(tmp_path, "--seed", "77", "-rN", "-m", "not long", TALLY_REQUIRE_ENGINES="0", TALLY_SETUP_S="600")
    assert "pytest 'tests/test_ordinary.py::test_fails_by_its_seed' --seed 77" in told
    assert "    1  no broker here\n    1  not on this platform\n" in told
    *_, heading, setup, _unit, _sim, _crash, _spark, _kafka, chain, _fabric, _browser, whole, closing = (
        told.splitlines()
    )
    assert heading.split() == ["part", "minutes", "budget"]
    assert setup.split() == ["set-up", "10.0", "6", "over"]
    assert chain.split() == ["chain", "0.0", "2"]
    assert whole.split()[:2] == ["in", "all"]
    assert closing.strip("= ").startswith("1 failed, 1 passed, 3 skipped")


def test_where_engines_are_required_an_absent_one_is_a_failure(tmp_path: Path) -> None:
    told = run_suite(tmp_path, "--continue-on-collection-errors", TALLY_REQUIRE_ENGINES="1")
    assert told.splitlines()[-1].strip("= ").startswith("2 failed, 1 passed, 1 skipped, 1 error")


# --- the tiers ---


def commands_of_ci() -> list[list[str]]:
    """The calls of pytest that CI makes, as make would make them."""
    targets = re.findall(r"^(?:exec )?make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    calls = []
    for target in targets:
        recipe = subprocess.run(
            ["make", "-n", target, "ARGS="], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        [call] = re.findall(r"-m (pytest .*)$", recipe, re.MULTILINE)
        calls.append(shlex.split(call))
    return calls


def collected(call: list[str]) -> set[str]:
    """What a call of pytest would run: file and function of each test."""
    done = subprocess.run(
        [sys.executable, "-m", *call, "-n0", "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    names = (line.partition("[")[0].split("::") for line in done.stdout.splitlines() if "::" in line)
    return {f"{file}::{test}" for file, *_, test in names}


def written() -> set[str]:
    """Every test function in the tree, found by reading."""
    found = set()
    for path in HERE.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        found |= {
            f"{name}::{test}" for test in re.findall(r"^(?:    )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
        }
    return found


@pytest.mark.long
def test_every_test_is_in_a_tier_that_ci_runs() -> None:
    calls = commands_of_ci()
    assert [call[call.index("-m") + 1] for call in calls] == ["not long", "long"]  # so that none is in both
    tiers = [collected(call) for call in calls]
    assert all(tiers)
    assert set.union(*tiers) == written()


# --- the suite itself ---


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Every file of the suite, parsed: for these tests, and not in every process for as long as it runs."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HERE.rglob("*.py"))}


# Functions that tests replace by one that says nothing, and that are no defences.
NO_DEFENCES = {
    "compiled_for": "the machine has no compiler",
    "is_current": "as if there were another epoch",
    "poll": "the notary sleeps",
}


def patches(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str, ast.expr]]:
    """(test or helper, attribute, what is put there) of every `setattr` on something of ours."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "setattr":
                    *place, value = call.args
                    named = place[-1].value if isinstance(place[-1], ast.Constant) else ast.unparse(place[-1])
                    yield function, str(named).rpartition(".")[2], value


PATCHES_MAX = 20


def test_few_tests_reach_into_what_they_test(trees: dict[Path, ast.Module]) -> None:
    """Whatever a test has to choose is better a parameter, a disk, or a node in between."""
    found = [f"{path.name}: {attribute}" for path, tree in trees.items() for _, attribute, _ in patches(tree)]
    assert len(found) <= PATCHES_MAX, found


def lets_pass(value: ast.expr) -> bool:
    """Whether it is a function that answers everybody alike."""
    return isinstance(value, ast.Lambda) and isinstance(value.body, ast.Constant)


def taken_away_by_hand(tree: ast.Module) -> list[str]:
    return [
        f"{function.name}: {attribute}"
        for function, attribute, value in patches(tree)
        if attribute not in NO_DEFENCES
        and (lets_pass(value) or ("without" in function.name and isinstance(value, (ast.Lambda, ast.Name))))
    ]


def test_defences_are_taken_away_by_name(trees: dict[Path, ast.Module]) -> None:
    """By hand, a renamed guard would leave a test that shows nothing."""
    found = {path.relative_to(HERE).as_posix(): taken_away_by_hand(tree) for path, tree in trees.items()}
    assert {name: by_hand for name, by_hand in found.items() if by_hand} == {}, "see tests/without.py"


@pytest.mark.parametrize(
    ("patch", "is_found"),
    [
        ("monkeypatch.setattr(Window, 'check', lambda *_: None)", True),
        ("monkeypatch.setattr('tallystick.client.reader.verify_range', lambda *_: None)", True),
        ("patch.setattr(rules, 'allows', lambda *_: True)", True),
        ("patch.setattr(carrier, 'publish', accept_anything)", True),
        ("monkeypatch.setattr(author, 'PAUSE_S', 0.0)", False),
        ("patch.setattr(notary, 'poll', lambda *_: False)", False),
    ],
)
def test_what_is_taken_away_by_hand_is_found(patch: str, is_found: bool) -> None:
    source = f"def test_without_the_guard(monkeypatch, patch):\n    {patch}\n"
    assert bool(taken_away_by_hand(ast.parse(source))) == is_found


# Tests that fail by an error alone: nothing but one of our own may come out of a decoder.
ONLY_ERRORS = {"test_the_good_example_is_read", "test_random_bytes"}


def cannot_fail(tree: ast.Module) -> list[str]:
    """Assertions and conditions that hold whatever happens, and refusals by just anything."""
    found = [node for node in ast.walk(tree) if _holds_always(node)]
    return [f"line {getattr(node, 'lineno', '?')}: {ast.unparse(node)[:80]}" for node in found]


def _holds_always(node: ast.AST) -> bool:
    match node:
        case ast.BoolOp(op=ast.Or(), values=[*_, ast.Constant(value=True)]):
            return True
        case ast.Assert(test=ast.Tuple() | ast.Constant() | ast.Lambda() | ast.JoinedStr()):
            return True
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.GtE() | ast.LtE()], comparators=[right]):
            return isinstance(left, ast.Name | ast.Attribute) and ast.dump(left) == ast.dump(right)
        case ast.Call(
            func=ast.Attribute(attr="raises"), args=[ast.Name(id="Exception" | "BaseException")], keywords=[]
        ):
            return True
    return False


def claims_nothing(trees: Iterable[ast.Module]) -> list[str]:
    """Tests that neither assert nor expect an error, themselves or by a helper of the suite."""
    calls: dict[str, set[str]] = {}
    claiming = {"raises", "fail", "warns", "run_state_machine_as_test", *ONLY_ERRORS}  # a machine's rules assert
    for function in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        calls.setdefault(function.name, set()).update(_called(function))
        if any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)):
            claiming.add(function.name)
    while found := {name for name, called in calls.items() if name not in claiming and called & claiming}:
        claiming |= found
    return sorted(name for name in calls if name.startswith("test_") and name not in claiming)


def _called(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name


def test_every_test_claims_something_that_may_not_be_so(trees: dict[Path, ast.Module]) -> None:
    found = {path.relative_to(HERE).as_posix(): cannot_fail(tree) for path, tree in trees.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert claims_nothing(trees.values()) == []


@pytest.mark.parametrize(
    "line",
    [
        "wait_until(lambda: bool(subscriber.poll(0)) or True)",
        "assert (got, [1, 2])",
        "assert one.hash == one.hash",
        "with pytest.raises(Exception): act()",
    ],
)
def test_what_cannot_fail_is_found(line: str) -> None:
    assert len(cannot_fail(ast.parse(line))) == 1


def test_a_test_that_claims_nothing_is_found() -> None:
    helper, bare = "def check(x):\n    assert x\n", "def test_bare():\n    act()\n"
    assert claims_nothing([ast.parse(helper + "def test_it():\n    check(1)\n" + bare)]) == ["test_bare"]


TWICE = """
        import pytest

        @pytest.fixture(scope="{scope}")
        def world():
            yield (names := [])
            names.append("ended")

        def test_leaves_something_behind(world):
            world.append(1)

        def test_wants_a_world_of_its_own(world):
            world.append(2)
            assert world == [2], "somebody was here"
        """


@pytest.mark.parametrize("scope", ["module", "session"])
def test_what_is_run_once_more_finds_a_new_world_and_its_first_attempt_is_told(tmp_path: Path, scope: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_twice.py").write_text(dedent(TWICE.format(scope=scope)), encoding="utf-8")
    rerun = ("-p", "pytest_rerunfailures", "--reruns", "1", "-k", "test_twice")
    said = run_suite(tmp_path, *rerun, TALLY_REQUIRE_ENGINES="")
    assert "2 passed" in said
    assert "1 rerun" in said
    told = said.partition("first attempt: tests/test_twice.py::test_wants_a_world_of_its_own")[2]
    assert "somebody was here" in told


FAULT = """
        import faulthandler
        from pathlib import Path

        def test_stands_still_the_first_time():
            if not (mark := Path("was-here")).exists():
                mark.touch()
                faulthandler._sigsegv()

        def test_comes_after_it():
            assert Path("was-here").exists()
        """


def test_a_test_that_ends_its_process_is_run_once_more_and_where_it_stood_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_fault.py").write_text(dedent(FAULT), encoding="utf-8")
    several = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "TALLY_REQUIRE_ENGINES": ""}
    said = run_suite(tmp_path, "-n", "1", "--reruns", "1", "-k", "test_fault", **several)
    assert "2 passed" in said
    assert "1 rerun" in said
    assert "failed" not in said.splitlines()[-1]
    stood = said.partition("where gw0 stood")[2].partition("first attempt")[0]
    assert "in test_stands_still_the_first_time" in stood


class Left:
    """What a test left behind: the collector ends it in the midst of something else, and its traceback is made."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("x = 1")


def test_a_syntax_tree_is_made_though_another_is_made_meanwhile() -> None:
    """Python 3.11 raises `SystemError` in nine of ten such tries, but for what `conftest.py` does."""
    source = "\n".join(f"a{number} = [{number}, ({number} + 1) * {number}]" for number in range(3000))
    for _ in range(5):
        left = [Left() for _ in range(50)]
        del left
        assert len(ast.parse(source).body) == 3000
