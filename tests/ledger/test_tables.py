"""The ledger's state by type: contracts declare their tables, and nobody else knows a prefix or a position."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tallystick.ledger import contracts
from tallystick.ledger.contracts.state import HASH, ID, U8, U32, U64, Table

SOURCE = Path(contracts.__file__).parents[2]
OWN = Path(contracts.__file__).parent


def tables() -> dict[str, Table[object]]:
    found = {}
    for module in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Table):
                found[f"{module.name}.{name}"] = value
    return found


@pytest.fixture(scope="module")
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in SOURCE.rglob("*.py") if OWN not in path.parents]


def test_the_parts_of_a_key_are_those_that_it_was_made_of() -> None:
    table = Table("some", tuple, ID, HASH, U8, U32, U64)
    parts = b"i" * 16, b"h" * 32, 7, 1 << 31, 1 << 63
    key = table(*parts)
    assert table.parts(key) == parts
    assert key == b"some/" + parts[0] + parts[1] + b"\x07" + (1 << 31).to_bytes(4, "big") + (1 << 63).to_bytes(8, "big")
    assert key.startswith(table.prefix(*parts[:2]))
    assert (hash(key), {bytes(key): 1}[key]) == (hash(bytes(key)), 1)


def test_a_row_reads_what_earlier_versions_wrote() -> None:
    class Grown(NamedTuple):
        first: int
        later: int = 5

    table = Table("some", Grown, ID)
    assert table(bytes(16)).read([1]) == Grown(1, 5)
    assert table(bytes(16)).read([1, 2]) == Grown(1, 2)
    assert table(bytes(16)).read(None) is None


def test_no_two_tables_share_a_family() -> None:
    prefixes = {id(table): table.prefix() for table in tables().values()}
    assert len(prefixes) > 20
    assert len(set(prefixes.values())) == len(prefixes)


def test_no_prefix_of_the_state_outside_the_contracts(trees: list[tuple[Path, ast.Module]]) -> None:
    families = tuple({table.prefix() for table in tables().values() if table.prefix().endswith(b"/")})
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.value!r}"
        for path, tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value.startswith(families)
    ]
    assert found == []


def positional(tree: ast.AST) -> Iterator[ast.Subscript]:
    """Where a row is read by position: `x.row(…)[1]`, or `y[1]` where `y = x.row(…)`."""
    rows = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.NamedExpr) and _asks_for_row(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant | ast.Slice)
            and (_asks_for_row(node.value) or (isinstance(node.value, ast.Name) and node.value.id in rows))
        ):
            yield node


def _asks_for_row(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "row"


@pytest.mark.parametrize(
    ("text", "found"),
    [("view.row(KEY)[3]", 1), ("a = view.row(KEY)\nb = a[1:]", 1), ("a = view.row(KEY)\nb = a.size", 0)],
)
def test_a_read_by_position_is_found(text: str, found: int) -> None:
    assert len(list(positional(ast.parse(text)))) == found


def test_no_row_is_read_by_position_outside_the_contracts(trees: list[tuple[Path, ast.Module]]) -> None:
    found = []
    for path, tree in trees:
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                found += [f"{path.relative_to(SOURCE)}:{node.lineno}" for node in positional(function)]
    # The authority's store has rows of its own, which are SQLite's.
    assert [one for one in found if not one.startswith("authority/")] == []
