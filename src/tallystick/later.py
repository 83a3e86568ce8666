"""numpy and pyarrow, imported when they are first used.

Together they take a quarter of a second of a core and fifty megabytes. Whoever carries parcels, keeps the ledger or the
keys, or asks one question over HTTP never looks at a column, and starts without them. A module that those processes
load, and that looks at columns only sometimes, takes its names from here; any other imports them as usual:

    from tallystick.later import np, pa, pc

`tests/test_imports.py` holds which processes start without which library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["np", "pa", "pc"]


class Later:
    """A module that is imported when it is first asked for a name. Not for the hot loops that numba compiles."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        self.__dict__[name] = value  # from now on found as in the module itself
        return value


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    np, pa, pc = Later("numpy"), Later("pyarrow"), Later("pyarrow.compute")
