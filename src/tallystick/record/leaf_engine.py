"""The compiled engine of `leaves`: the kernel, its scratch memory, and how a batch is handed to it.

Importing this module imports numba. The kernel reads the addresses that a batch exports, so it must only ever
get a `Batch`: its buffers were validated in full, and the export keeps them alive during the call.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallystick.kernels.encode_columns import BOOL, LIST, NODE_BYTES, PREFIXED, ROWS_AT_ONCE, STRUCT, Places, hash_batch
from tallystick.kernels.sha256_lanes import DIGEST_BYTES, SPARE_BYTES, SPARE_DIGESTS
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.record.types import FIELDS_MAX, kind_name

_KINDS = {"bool": BOOL, "string": PREFIXED, "binary": PREFIXED, "list": LIST, "struct": STRUCT}

KEPT_BYTES_MAX = 4 << 20  # scratch that a thread keeps for its next batch; a larger need is met and forgotten


class CompiledLeaves:
    """The kernel with one set of scratch memory per thread. `transform` is OpenSSL's block function, or 0."""

    def __init__(self, transform: int) -> None:
        self._transform = transform
        self._local = threading.local()

    def root(self, batch: Batch, salts: Any) -> bytes:
        scratch = self._scratch()
        scratch.reserve_digests(batch.rows)
        self._run(batch, salts, scratch.digests_at, fold=True)
        root = scratch.digests[:DIGEST_BYTES].tobytes()
        scratch.forget_excess()
        return root

    def hashes(self, batch: Batch, salts: Any) -> NDArray[np.uint8]:
        digests = np.empty((batch.rows + SPARE_DIGESTS) * DIGEST_BYTES, np.uint8)
        self._run(batch, salts, digests.ctypes.data, fold=False)
        self._scratch().forget_excess()
        return digests[: batch.rows * DIGEST_BYTES].reshape(-1, DIGEST_BYTES)

    def _run(self, batch: Batch, salts: Any, digests_at: int, fold: bool) -> None:
        plan = _plan(batch.schema)
        scratch = self._scratch()
        salts_buffer = pa.py_buffer(salts)
        with _Exported(batch.data) as exported:
            while True:
                shape = plan.nodes_at, plan.size, plan.width, batch.rows
                places = scratch.places
                needed = hash_batch(exported, *shape, salts_buffer.address, places, digests_at, self._transform, fold)
                if needed == 0:
                    break
                scratch.reserve_messages(needed)

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch()
        return scratch


class _Scratch:
    """Fresh memory costs page faults, more than the work on a small batch: each thread keeps its own."""

    def __init__(self) -> None:
        sizes = {"columns": NODE_BYTES * FIELDS_MAX, "spare": SPARE_BYTES}
        sizes |= {"starts": 8 * ROWS_AT_ONCE, "blocks": 4 * ROWS_AT_ONCE, "cursors": 8 * ROWS_AT_ONCE}
        self._kept = {name: np.empty(size, np.uint8) for name, size in sizes.items()}
        self.forget()

    def forget(self) -> None:
        self.reserve_messages(1 << 16)
        self.digests = np.empty(0, np.uint8)
        self.reserve_digests(4096)

    def forget_excess(self) -> None:
        if self._messages.nbytes + self.digests.nbytes > KEPT_BYTES_MAX:
            self.forget()

    def reserve_messages(self, room: int) -> None:
        self._messages = np.empty(room + 64, np.uint8)
        kept = {name: memory.ctypes.data for name, memory in self._kept.items()}
        self.places = Places(messages=(self._messages.ctypes.data + 63) & -64, room=room, **kept)

    def reserve_digests(self, rows: int) -> None:
        size = (rows + SPARE_DIGESTS) * DIGEST_BYTES
        if size > self.digests.nbytes:
            self.digests = np.empty(size, np.uint8)
            self.digests_at = self.digests.ctypes.data


class _Exported:
    """A record batch lent through the Arrow C data interface: all its addresses by one call."""

    def __init__(self, data: Any) -> None:
        self._array = (ctypes.c_int64 * 10)()  # struct ArrowArray
        self._at = ctypes.addressof(self._array)
        data._export_to_c(self._at)

    def __enter__(self) -> int:
        return self._at

    def __exit__(self, *_: object) -> None:
        _release_function(self._array[8])(self._at)


@cache
def _release_function(address: int) -> Any:
    """The array's release callback; pyarrow has one for all, so it is made once."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


class _Plan:
    """What the kernel needs to know of a schema: see PLAN_BYTES in `encode_columns`."""

    def __init__(self, schema: Schema) -> None:
        self.width = len(schema.arrow)
        types = [field.type for field in schema.arrow]
        nodes = []
        for type_ in types:  # grows while it is walked: level by level, siblings side by side
            children = [type_.field(i).type for i in range(type_.num_fields)]
            nodes.append((_kind(type_), len(types), len(children)))
            types.extend(children)
        self.size = len(nodes)
        self._nodes = np.array(nodes, np.int64)
        self.nodes_at = self._nodes.ctypes.data


@lru_cache(maxsize=256)
def _plan(schema: Schema) -> _Plan:
    return _Plan(schema)


def _kind(type_: Any) -> int:
    name = kind_name(type_)
    if name in _KINDS:
        return _KINDS[name]
    return int(type_.bit_width) // 8
