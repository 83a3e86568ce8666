"""One cluster for all tests of this folder: three JVMs take their time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from tallystick.engines.spark import SparkCluster
from tallystick.errors import Unavailable


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    try:
        with SparkCluster.create(tmp_path_factory.mktemp("cluster")) as started:
            yield started
    except Unavailable as error:
        pytest.skip(f"no Spark cluster here: {error}")
