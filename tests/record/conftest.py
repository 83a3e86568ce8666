"""Compiled code is what most tests here are about: it is loaded first, as many rows would load it."""

from __future__ import annotations

import pytest

from tallystick.record.warm import warm


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm()
