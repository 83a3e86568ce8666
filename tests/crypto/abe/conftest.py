"""What the tests of attribute-based encryption share. Where there is no pymcl they skip, and say that it is pymcl."""

from __future__ import annotations

import sys

import pytest

from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import AttributeMasterKey


@pytest.fixture(scope="session")
def master() -> AttributeMasterKey:
    if not group.available():
        assert sys.version_info >= (3, 13), "pymcl has a wheel for this Python: pip install 'tallystick[policy]'"
        pytest.skip("pymcl has no wheel for Python 3.13")
    return AttributeMasterKey.generate(bytes(32))
