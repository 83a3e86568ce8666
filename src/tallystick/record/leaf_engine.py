"""The compiled engine of `leaves`: the kernel, its scratch memory, and how a batch is handed to it.

Importing this module imports numba. The kernel reads the addresses that a batch exports, so `run` must only
ever get a `Batch`: its buffers were validated in full, and the export keeps them alive during the call.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallystick.record.batch import Batch
from tallystick.record.encode_columns import BOOL, PREFIXED, RAW, ROWS_AT_ONCE, hash_batch
from tallystick.record.rows import pieces
from tallystick.record.schema import Schema
from tallystick.record.sha256_lanes import DIGEST_BYTES, LANES, SPARE_BYTES
from tallystick.record.types import FIELDS_MAX, kind_name

KEPT_BYTES_MAX = 4 << 20  # scratch that a thread keeps for its next batch; a larger need is met and forgotten


class Compiled:
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
        digests = np.empty((batch.rows + LANES) * DIGEST_BYTES, np.uint8)
        self._run(batch, salts, digests.ctypes.data, fold=False)
        return digests[: batch.rows * DIGEST_BYTES].reshape(-1, DIGEST_BYTES)

    def _run(self, batch: Batch, salts: Any, digests_at: int, fold: bool) -> None:
        plan = _plan(batch.schema)
        scratch = self._scratch()
        held = _describe_nested(plan, batch.data, scratch.columns) if plan.nested else []
        salts_buffer = pa.py_buffer(salts)
        with _Exported(batch.data) as exported:
            while True:
                needed = hash_batch(
                    exported,
                    plan.kinds_at,
                    scratch.columns_at,
                    plan.width,
                    batch.rows,
                    salts_buffer.address,
                    scratch.messages_at,
                    scratch.room,
                    scratch.starts_at,
                    scratch.blocks_at,
                    scratch.cursors_at,
                    scratch.spare_at,
                    digests_at,
                    self._transform,
                    fold,
                )
                if needed == 0:
                    break
                scratch.reserve_messages(needed)
        del held

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = _Scratch()
        return scratch


class _Scratch:
    """Fresh memory costs page faults, more than the work on a small batch: each thread keeps its own."""

    def __init__(self) -> None:
        self._starts = np.empty(ROWS_AT_ONCE, np.int64)
        self._cursors = np.empty(ROWS_AT_ONCE, np.int64)
        self._blocks = np.empty(ROWS_AT_ONCE, np.int32)
        self._spare = np.empty(SPARE_BYTES, np.uint8)
        self.spare_at = self._spare.ctypes.data
        self.columns = np.empty(4 * FIELDS_MAX, np.int64)
        self.columns_at = self.columns.ctypes.data
        self.starts_at = self._starts.ctypes.data
        self.cursors_at = self._cursors.ctypes.data
        self.blocks_at = self._blocks.ctypes.data
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
        self.messages_at = (self._messages.ctypes.data + 63) & -64
        self.room = room

    def reserve_digests(self, rows: int) -> None:
        size = (rows + LANES) * DIGEST_BYTES
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
    """What the kernel needs to know of a schema."""

    def __init__(self, schema: Schema) -> None:
        self.width = len(schema.arrow)
        self._kinds = np.array([_kind(field.type) for field in schema.arrow], np.int64)
        self.kinds_at = self._kinds.ctypes.data
        self.nested = [i for i, kind in enumerate(self._kinds) if kind == RAW]


@lru_cache(maxsize=256)
def _plan(schema: Schema) -> _Plan:
    return _Plan(schema)


def _kind(type_: Any) -> int:
    name = kind_name(type_)
    if name in ("list", "struct"):
        return RAW
    if name in ("string", "binary"):
        return PREFIXED
    return BOOL if name == "bool" else int(type_.bit_width) // 8


def _describe_nested(plan: _Plan, data: Any, columns: NDArray[np.int64]) -> list[Any]:
    """Encode nested columns by the reference and describe the results; returns what must outlive the call."""
    held = []
    for i in plan.nested:
        encoded = pa.array(pieces(data.column(i)), pa.binary())
        validity, offsets, values = encoded.buffers()
        columns[4 * i : 4 * i + 4] = (
            values.address if values is not None else 0,
            offsets.address,
            validity.address if encoded.null_count else 0,
            0,
        )
        held.append(encoded)
    return held
