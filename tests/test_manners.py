"""The machine keeps the manners: docstrings, links, words, marks in the threat model, the changelog.

Judged are the files under version control, or all files where there is none (an unpacked archive).
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tallystick"
TEXT_SUFFIXES = {".md", ".py", ".toml", ".txt", ".sh", ".json", ".yml", ".yaml", ""}

# Words that users would meet for something that already has a name (docs/glossary.md).
BANNED_WORDS = {
    "consumer": "subscriber",
    "producer": "publisher",
    "blockchain": "ledger",
    "smart contract": "contract",
    "access control list": "right",
    "whitelist": "right",
}
AMERICAN = re.compile(r"\b(behavior|color|defense|honor|favor|center|catalog)s?\b", re.IGNORECASE)

# The module that writes a format, and the page from which a stranger could write another.
FORMATS = {
    "parcel/parcel.py": "parcel.md",
    "crypto/symmetric.py": "keys.md",
    "crypto/abe/capsule.py": "policy-locks.md",
    "trust/shares.py": "overlay.md",
    "objects/layout.py": "object.md",
    "carriers/mesh/envelope.py": "mesh.md",
    "carriers/fabric/fragments.py": "fabric.md",
}

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)`( \*planned\*)?")


@cache
def kept_files() -> tuple[Path, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*")]
    return tuple(sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PYTHON = [path for path in kept_files() if path.suffix == ".py"]
MARKDOWN = [path for path in kept_files() if path.suffix == ".md"]
MODULES = [path for path in PYTHON if path.is_relative_to(SOURCE)]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def spoken(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of every string literal that is not a docstring: what a user may come to read."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_every_module_and_every_folder_opens_with_a_docstring() -> None:
    bare = [named(path) for path in MODULES if not ast.get_docstring(parse(path))]
    assert bare == []


def test_one_public_class_name_has_one_meaning() -> None:
    """CometBFT's own names in `abci/` aside."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if "abci" not in path.parts:
            for node in parse(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(named(path))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_no_constructor_takes_more_than_eight_things() -> None:
    """Frozen dataclasses are records, which have the fields that they have."""
    faults = []
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                taken = len([*node.args.args[1:], *node.args.kwonlyargs])
            elif isinstance(node, ast.ClassDef) and "dataclass" in map(ast.unparse, node.decorator_list):
                fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
                taken = len([one for one in fields if "init=False" not in one and "default_factory" not in one])
            else:
                continue
            if taken > 8:
                faults.append(f"{named(path)}:{node.lineno}: {taken}")
    assert faults == []


def test_every_folder_of_the_package_has_an_init() -> None:
    folders = {path.parent for path in MODULES}
    assert [named(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_test_files_have_names_of_their_own() -> None:
    seen: dict[str, Path] = {}
    for path in PYTHON:
        if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_"):
            other = seen.setdefault(path.name, path)
            assert other == path, f"{named(path)} and {named(other)} share a base name"


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    places = [f"/{name}/" for name in ("root", "tmp", "work", "Users")]
    if ROOT.parent != Path(ROOT.anchor):
        places.append(f"{ROOT.parent.as_posix()}/")
    found = []
    for path in kept_files():
        if path.suffix in TEXT_SUFFIXES:
            text = path.read_text(encoding="utf-8")
            found += [f"{named(path)}: {place}" for place in places if place in text]
    assert found == []


@pytest.mark.parametrize("page", MARKDOWN, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", MARKDOWN, ids=named)
def test_prose_is_spelt_in_british(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [match[0] for match in AMERICAN.finditer(prose)] == []


def test_what_users_read_uses_the_words_of_the_glossary() -> None:
    """Kafka's own words stand where the sentence is about Kafka."""
    any_of_them = re.compile(rf"\b({'|'.join(BANNED_WORDS)})s?\b", re.IGNORECASE)
    found = []
    for path in MODULES:
        for line, text in spoken(parse(path)):
            if (banned := any_of_them.search(text)) and "kafka" not in text.lower():
                ours = BANNED_WORDS[banned[1].lower()]
                found.append(f"{named(path)}:{line}: {banned[1]!r} in {text!r}; say {ours!r}")
    assert found == []


def test_the_threat_model_claims_a_test_only_if_it_exists() -> None:
    """And calls none planned that does."""
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    claims = TEST_NAME.findall(page)
    assert claims
    wrong = [name for name, planned in claims if (ROOT / name).exists() == bool(planned)]
    assert wrong == []


@pytest.mark.parametrize(("module", "page"), FORMATS.items())
def test_a_wire_format_has_its_page(module: str, page: str) -> None:
    assert not (SOURCE / module).exists() or (ROOT / "docs" / "formats" / page).exists()


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_changelog_speaks_of_the_current_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version


def test_the_constraints_pin_versions_and_name_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
