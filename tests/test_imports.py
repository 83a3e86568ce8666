"""The import directions of the design, the purity of what stands above the line, the front door, and what processes
start without.

Read from the syntax trees, so that imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tallystick
from tallystick.crypto.passphrase import Cost
from tallystick.node.instance import create_instance
from tallystick.node.settings import NodeSettings
from tallystick.runtime.sources import SystemEntropy

PACKAGE = Path(tallystick.__file__).parent

# A folder imports only from itself and from those before it.
ORDER = [
    *("errors", "later", "wire", "kernels", "policy", "record", "crypto", "page", "trust", "parcel"),
    *("runtime", "abci", "guards", "ledger", "authority", "carriers", "objects", "identity", "client", "fleet"),
    *("pipeline", "console", "node", "engines", "sim", "demo", "cli"),
]

# Time and entropy are arguments here.
PURE = ("errors", "later", "wire", "policy", "record", "crypto", "trust", "parcel", "guards", "ledger.contracts")
NO_RUNTIME = ("guards", "ledger.contracts")

IMPURE_MODULES = {"time", "random", "secrets", "uuid"}
IMPURE_NAMES = {
    *("os.urandom", "os.getrandom", "os.times", "numpy.random", "np.random"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}

PUBLIC_NAMES = {
    "Batch",
    "Identity",
    "Misuse",
    "Parcel",
    "Proof",
    "Publisher",
    "Refused",
    "Schema",
    "Session",
    "Subscriber",
    "TallystickError",
    "TrustFile",
    "Unavailable",
    "VerifiedParcel",
    "verify_proof",
}


def module_name(path: Path) -> str:
    """`ledger/contracts/access.py` → `ledger.contracts.access`; the package itself is the empty name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def within(module: str, folders: tuple[str, ...]) -> bool:
    return any(module == folder or module.startswith(folder + ".") for folder in folders)


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, relative ones resolved."""
    is_folder = module not in MODULES or MODULES[module].name == "__init__.py"
    here = ["tallystick", *filter(None, module.split("."))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            up = node.level - 1 if is_folder else node.level
            base = here[: len(here) - up] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def within_package(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name below `tallystick.`) of every import of ours."""
    for line, name in imports(module, tree):
        if name.split(".")[0] == "tallystick":
            yield line, name.removeprefix("tallystick").removeprefix(".")


@cache
def parse(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def direction_faults(module: str, tree: ast.AST) -> list[str]:
    own = module.split(".")[0]
    faults = []
    for line, target in within_package(module, tree):
        folder = target.split(".")[0]
        if folder not in ORDER:
            faults.append(f"{module}:{line}: imports {target!r} through the front door")
        elif ORDER.index(folder) > ORDER.index(own):
            faults.append(f"{module}:{line}: {own} must not import {target}, which stands below it")
        elif folder == "runtime" and within(module, NO_RUNTIME):
            faults.append(f"{module}:{line}: must not import runtime")
    return faults


def purity_faults(module: str, tree: ast.AST) -> list[str]:
    faults = [
        f"{module}:{line}: imports {name}"
        for line, name in imports(module, tree)
        if name.split(".")[0] in IMPURE_MODULES or name in IMPURE_NAMES
    ]
    last = {name.rpartition(".")[2] for name in IMPURE_NAMES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in last:
            dotted = ast.unparse(node)
            if any(dotted == name or dotted.endswith("." + name) for name in IMPURE_NAMES):
                faults.append(f"{module}:{node.lineno}: uses {dotted}")
    return faults


def float_faults(module: str, tree: ast.AST) -> list[str]:
    """Contracts compute in integers: replicas must agree to the last bit."""
    faults = []
    for node in ast.walk(tree):
        is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
        is_division = isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div)
        if is_float or is_division:
            faults.append(f"{module}:{getattr(node, 'lineno', '?')}: {ast.unparse(node)} is not integer arithmetic")
    return faults


INNER = [name for name in MODULES if name]


@pytest.mark.parametrize("module", INNER)
def test_a_folder_imports_only_from_those_above_it(module: str) -> None:
    assert module.split(".")[0] in ORDER
    assert direction_faults(module, parse(module)) == []


@pytest.mark.parametrize("module", [name for name in INNER if within(name, PURE)])
def test_above_the_line_time_and_entropy_are_arguments(module: str) -> None:
    assert purity_faults(module, parse(module)) == []


@pytest.mark.parametrize("module", [name for name in INNER if within(name, ("ledger.contracts",))])
def test_contracts_compute_in_integers(module: str) -> None:
    assert float_faults(module, parse(module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("crypto", "from tallystick.runtime import sources"),
        ("crypto", "def f():\n    import tallystick.runtime.sources"),
        ("errors", "from . import wire"),
        ("guards", "from ..runtime.clock import Clock"),
        ("ledger.contracts", "from tallystick.runtime.sources import Clock"),
        ("node", "from tallystick.cli import output"),
        ("node", "from tallystick import Publisher"),
    ],
)
def test_the_direction_check_sees_a_fault(module: str, source: str) -> None:
    assert direction_faults(module, ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "def f():\n    from time import monotonic",
        "import os\nos.urandom(16)",
        "from os import urandom",
        "import datetime\ndatetime.datetime.now()",
        "import numpy as np\nnp.random.default_rng()",
    ],
)
def test_the_purity_check_sees_a_fault(source: str) -> None:
    assert purity_faults("crypto", ast.parse(source))


def test_the_front_door_offers_these_names_and_no_others() -> None:
    assert set(tallystick.__all__) == PUBLIC_NAMES
    assert set(dir(tallystick)) >= PUBLIC_NAMES
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tallystick.no_such_name


@pytest.mark.parametrize("name", [name for name, home in tallystick._HOMES.items() if home in MODULES])
def test_a_public_name_resolves_to_where_it_lives(name: str) -> None:
    found = getattr(tallystick, name)
    assert found.__module__ == f"tallystick.{tallystick._HOMES[name]}"


def test_type_checkers_are_told_the_same_as_the_interpreter() -> None:
    told = {name for _line, name in within_package("", parse(""))}
    assert told <= {f"{home}.{name}" for name, home in tallystick._HOMES.items()}


# --- what processes start without ---

# Much of a second of a core together, and a hundred megabytes: for those who look at columns.
COLUMNS = ("numpy", "pyarrow", "pandas", "polars", "numba", "llvmlite", "pyspark")
SERVERS = ("uvicorn", "apsw", "prometheus_client", "confluent_kafka", "tallystick.ledger.sqlite")
ENGINES = ("confluent_kafka", "tallystick.carriers.kafka.client", "tallystick.ledger.cometbft", "tallystick.abci")

NODE = """
from tallystick.node.node import Node
from tallystick.runtime.sources import SystemClock
node = Node(folder / "node", SystemClock())
node.start()
node.stop()
"""
AUTHORITY = """
from tallystick.node.authority import AuthorityProcess
from tallystick.node.instance import open_node_keys
from tallystick.runtime.address import Address
from tallystick.runtime.sources import SystemClock
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.trustfile import TrustFile
keys = open_node_keys(folder / "node", TrustFile.parse((folder / "trust.json").read_text()))
nodes = [Address("http://127.0.0.1:9", keys.certificate.subject, keys.certificate.verify_key)]
AuthorityProcess(folder / "authority", b"correct horse", nodes, SystemClock(), SystemEntropy()).authority.close()
"""
HELP = """
from tallystick.cli import main
assert main.run(["--help"]) == 0
assert [main.run([name, "--help"]) for name in main.COMMANDS] == [0] * len(main.COMMANDS)
"""

# What is run in a process of its own, and what it may not have loaded by then.
STARTS = {
    "the package": (
        "import tallystick",
        ("numpy", "pyarrow", "numba", "cryptography", "cbor2", "click", "asyncio", "ssl"),
    ),
    "the help of every command": (HELP, (*COLUMNS, *SERVERS, "cryptography", "cbor2", "tallystick.client.session")),
    "a command that asks": ("import tallystick.client.session", (*COLUMNS, *SERVERS, "tallystick.authority.core")),
    "a command of the operator": (
        "import tallystick.node.operator",
        (*COLUMNS, "uvicorn", "tallystick.authority.core"),
    ),
    "a supervisor": ("import tallystick.node.supervisor", (*COLUMNS, *SERVERS, "tallystick.authority.authority")),
    "a node": (NODE, (*COLUMNS, *ENGINES, "prometheus_client", "tallystick.authority.authority")),
    "an authority": (AUTHORITY, (*COLUMNS, *ENGINES, "prometheus_client", "tallystick.client")),
    "a publisher": ("import tallystick.client.publish", ("numba", "pandas", "pyarrow.compute", *SERVERS)),
    "a subscriber": ("import tallystick.client.subscribe", ("numba", "pandas", "pyarrow.compute", *SERVERS)),
    "a check of a proof": ("import tallystick.parcel.prove", ("numba", "pandas", "pyarrow.compute", "asyncio", "ssl")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instance that has not run yet."""
    folder = tmp_path_factory.mktemp("instance")
    settings, entropy = NodeSettings(port=0), SystemEntropy()
    create_instance(folder, "test", b"correct horse", settings, 1_700_000_000_000, entropy, cost=Cost(32, 1, 1))
    return folder


@pytest.mark.parametrize("who", STARTS)
def test_nobody_loads_to_start_what_others_need(who: str, folder: Path) -> None:
    script, without = STARTS[who]
    asked = f"print([name for name in {without!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, pathlib\nfolder = pathlib.Path(sys.argv[1])\n{script}\n{asked}", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, ["[]"]), done.stderr


def test_what_comes_later_is_there_when_it_is_used() -> None:
    script = "from tallystick.later import np, pa, pc; print(np.int8(7), pa.int8(), pc.sum(pa.array([1, 2])))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "7 int8 3"
