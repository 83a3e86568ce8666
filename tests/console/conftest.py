"""One instance for all tests of this folder, and what of it the console shows its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from console_stack import Browser, ConsoleStack, visit_of

from tallystick.console.viewer import Viewer
from tallystick.console.visit import Visit


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleStack]:
    with ConsoleStack(tmp_path_factory.mktemp("console")) as world:
        yield world


@pytest.fixture(scope="session")
def viewer(world: ConsoleStack) -> Iterator[Viewer]:
    """The reader, who followed once; no thread follows for it (`console_stack.look` does)."""
    with world.viewing(world.reader) as viewer:
        yield viewer


@pytest.fixture
def visit(viewer: Viewer) -> Callable[..., Visit]:
    """`visit(path, **query)`: the visit that the request for this address makes."""
    return lambda path, **query: visit_of(viewer, path, **query)


@pytest.fixture
def console(world: ConsoleStack, viewer: Viewer) -> Iterator[Browser]:
    """A console on a thread; `console.get(path, **query)` asks as the browser that was let in."""
    with world.serving(viewer) as browser:
        yield browser
