"""Salted leaf hashes of a batch's records, and the Merkle root over them.

Leaf i is SHA-256(0x00 ‖ salt i ‖ row i), the row in its canonical encoding; the root is RFC 6962's. The salt
(16 secret bytes a record) keeps a leaf from being guessed by whoever sees it beside a proof of its neighbour.

Three engines give the same bytes, and the best one that works is chosen when there are many records; few are hashed
by the last, which needs no loading:

- `lanes`: columns encoded by a compiled kernel, SHA-256 sixteen at a time (AVX-512, or whatever there is);
- `openssl`: the same kernel with OpenSSL's block function, where that is faster or there is no AVX;
- `hashlib`: plain Python, the reference, when numba is missing or its code fails a self-test.

The kernels read raw addresses, so only a `Batch` is accepted: its buffers were validated in full.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallystick.errors import Misuse
from tallystick.record.batch import Batch
from tallystick.record.demand import OnDemand
from tallystick.record.rows import encode_rows
from tallystick.record.schema import Schema

if TYPE_CHECKING:
    from tallystick.record.leaf_engine import CompiledLeaves

SALT_BYTES = 16
DIGEST_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()  # RFC 6962, section 2.1


def leaf_hashes(batch: Batch, salts: Any) -> NDArray[np.uint8]:
    """The leaf hashes of `batch` as an array of (rows, 32) bytes; `salts` is a buffer of 16 · rows bytes."""
    _check(batch, salts)
    compiled = _compiled_for(batch.rows)
    if compiled is None or batch.rows == 0:
        return np.frombuffer(b"".join(reference_hashes(batch, salts)), np.uint8).reshape(-1, DIGEST_BYTES)
    return compiled.hashes(batch, salts)


def leaf_root(batch: Batch, salts: Any) -> bytes:
    """The RFC 6962 root over the leaf hashes of `batch`; `salts` is a buffer of 16 · rows bytes."""
    _check(batch, salts)
    if batch.rows == 0:
        return EMPTY_ROOT
    compiled = _compiled_for(batch.rows)
    if compiled is None:
        return reference_root(reference_hashes(batch, salts))
    return compiled.root(batch, salts)


def engine() -> str:
    """Which engine hashes many records here, and why, in words; loads it."""
    return _engine.now().name


def _check(batch: Batch, salts: Any) -> None:
    if not isinstance(batch, Batch):
        raise Misuse(f"leaves are made of a Batch, not of {type(batch).__name__}", hint="check it with Batch.of")
    found = memoryview(salts).nbytes
    if found != SALT_BYTES * batch.rows:
        raise Misuse(f"{batch.rows} records need {SALT_BYTES * batch.rows} bytes of salts, found {found}")


def reference_hashes(batch: Batch, salts: Any) -> list[bytes]:
    """The leaf hashes by hashlib, one by one."""
    view = memoryview(salts).cast("B")
    return [
        hashlib.sha256(b"\0" + view[SALT_BYTES * i : SALT_BYTES * (i + 1)].tobytes() + row).digest()
        for i, row in enumerate(encode_rows(batch.data))
    ]


def reference_root(level: list[bytes]) -> bytes:
    """Pairs from the left, an odd one carried up unchanged: the same tree as RFC 6962's split at powers of two."""
    if not level:
        return EMPTY_ROOT
    while len(level) > 1:
        odd = level[len(level) & ~1 :]
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs] + odd
    return level[0]


class _Engine(NamedTuple):
    name: str
    compiled: CompiledLeaves | None


def _load() -> _Engine:
    try:
        from tallystick.record.leaf_engine import CompiledLeaves

        transform = best_transform()
        compiled = CompiledLeaves(transform)
        self_test(compiled)
    except Exception as error:  # whatever numba or the compiler does, plain Python still works
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return _Engine(f"hashlib ({reason})", None)
    if transform:
        return _Engine("openssl (one record at a time, no avx-512)", compiled)
    width = next((name for name in ("avx512f", "avx2") if _features().get(name)), "no avx")
    return _Engine(f"lanes (sha-256 on 16 lanes, {width})", compiled)


_engine = OnDemand(_load, enough=4_096)  # records, hashed by hashlib in less than a tenth of the time of loading


def _compiled_for(rows: int) -> CompiledLeaves | None:
    engine = _engine.after(rows)
    return engine.compiled if engine is not None else None


def best_transform() -> int:
    """How `sha256_lanes` hashes fastest here: 0 on its lanes, else the address of OpenSSL's block function.

    Measured, ns a record: lanes 111 with AVX-512, 236 with AVX2, 1,057 with neither; SHA instructions 207.
    """
    features = _features()
    lanes_are_best = features.get("avx512f") or (features.get("avx2") and not features.get("sha"))
    return 0 if lanes_are_best else openssl_transform()


def _features() -> Any:
    from llvmlite import binding

    return binding.get_host_cpu_features()


def openssl_transform() -> int:
    """The address of SHA256_Transform in the libcrypto that Python itself has loaded; 0 if it shows none."""
    try:
        import _hashlib

        function = ctypes.CDLL(_hashlib.__file__).SHA256_Transform
    except (ImportError, OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def self_test(compiled: CompiledLeaves) -> None:
    """Compare a small batch with the reference; raises RuntimeError. Compiles everything on the way."""
    schema = Schema.parse("text string, number int64, small int16, flag bool, tags list<int8>")
    rows = [
        {"text": "x" * i, "number": i if i % 3 else None, "small": -i, "flag": i % 2 == 0, "tags": [i]}
        for i in range(37)
    ]
    batch = Batch.of(schema, pa.RecordBatch.from_pylist(rows, schema=schema.arrow))
    salts = bytes(range(SALT_BYTES)) * batch.rows
    if compiled.root(batch, salts) != reference_root(reference_hashes(batch, salts)):
        raise RuntimeError("the compiled kernel disagrees with the reference")
