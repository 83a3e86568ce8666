"""Two gateways for all tests of this folder that need them: a chain, two nodes and an authority take their time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateways import Gateways, two_gateways


@pytest.fixture(scope="session")
def both_gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    with two_gateways(tmp_path_factory.mktemp("gateways")) as gateways:
        yield gateways


@pytest.fixture
def gateways(both_gateways: Gateways) -> Gateways:
    """Both of them at work, whatever the test before did."""
    both_gateways.first.start()
    return both_gateways
