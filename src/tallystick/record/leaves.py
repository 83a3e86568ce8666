"""A record's bytes, its salted leaf hash, and the Merkle root over the leaves of a batch.

Leaf i is SHA-256(0x00 ‖ salt i ‖ row i), the row in its canonical encoding; the root is RFC 6962's. The salt
(16 secret bytes a record) keeps a leaf from being guessed by whoever sees it beside a proof of its neighbour.

Three engines give the same bytes, and the best one that works is chosen when there are many records; few are hashed
by the last, which needs no loading:

- `lanes`: columns encoded by a compiled kernel, SHA-256 sixteen at a time (AVX-512, or whatever there is);
- `openssl`: the same kernel with OpenSSL's block function, where that is faster or there is no AVX;
- `hashlib`: plain Python, the reference, when numba is missing or its code fails a self-test.

The kernels read raw addresses, so only a `Batch` is accepted: its buffers were validated in full.

The canonical row encoding, here in plain Python, gives the bytes of a record that its leaf hash covers. Under a known
schema, equal bytes mean equal rows and the other way round, down to the bits of a NaN and the sign of a zero. So a leaf
binds the whole row, and a row can be shown alone and read back from its bytes. Arrow's own layout cannot serve:
padding, offsets, slices and the bytes beneath nulls give one row many forms.

docs/formats/rows.md specifies the format. `encode_rows` is what the compiled kernels are tested against and
what serves in their place where they do not work. Input is a batch that has passed `Batch.of`.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallystick.errors import Malformed, Misuse
from tallystick.kernels.demand import OnDemand
from tallystick.record.batch import Batch
from tallystick.record.schema import Schema
from tallystick.record.types import kind_name

if TYPE_CHECKING:
    from tallystick.record.leaf_engine import CompiledLeaves


_U32 = Struct("<I")
_STRUCTS = {
    name: Struct("<" + code)
    for name, code in (
        ("int8", "b"), ("int16", "h"), ("int32", "i"), ("int64", "q"),
        ("uint8", "B"), ("uint16", "H"), ("uint32", "I"), ("uint64", "Q"),
        ("float32", "f"), ("float64", "d"), ("date32", "i"), ("timestamp", "q"),
    )
}  # fmt: skip


def encode_row(arrow_schema: Any, index: int, batch: Any) -> bytes:
    """The canonical bytes of row `index` of `batch`, over the columns of `arrow_schema` (one group)."""
    return encode_rows(batch.select(arrow_schema.names).slice(index, 1))[0]


def encode_rows(batch: Any) -> list[bytes]:
    """The canonical bytes of every row of `batch` (a `pa.RecordBatch`), over all its columns in order."""
    return [_with_bitmap(row) for row in zip(*(_pieces(column) for column in batch.columns), strict=True)]


def _with_bitmap(values: Sequence[bytes | None]) -> bytes:
    """The presence bitmap of `values` and then those that are present."""
    bitmap = bytearray((len(values) + 7) // 8)  # not one integer: a list may have millions of items
    for i, value in enumerate(values):
        bitmap[i >> 3] |= (value is not None) << (i & 7)
    return bytes(bitmap) + b"".join(filter(None, values))


def _pieces(array: Any) -> list[bytes | None]:
    """The encoding of each value of an Arrow array, or None where it is null."""
    kind = kind_name(array.type)
    if kind == "struct":
        children = [_pieces(array.field(i)) for i in range(array.type.num_fields)]
        encoded = [_with_bitmap(row) for row in zip(*children, strict=True)]
    elif kind == "list":
        encoded = _list_pieces(array)
    elif kind in ("string", "binary"):
        encoded = [_U32.pack(len(value)) + value for value in _byte_strings(array)]
    elif kind == "bool":
        encoded = [b"\1" if value else b"\0" for value in array.to_pylist()]
    else:
        encoded = _fixed_pieces(array)
    if array.null_count == 0:
        return list(encoded)
    return [value if valid else None for value, valid in zip(encoded, array.is_valid().to_pylist(), strict=True)]


def _fixed_pieces(array: Any) -> list[bytes]:
    """The values' bytes as they lie in memory: any detour through Python's numbers could change a NaN."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is None:
        return [b""] * len(array)
    view = memoryview(data).cast("B")[array.offset * width : (array.offset + len(array)) * width]
    return [bytes(view[i : i + width]) for i in range(0, len(view), width)]


def _byte_strings(array: Any) -> list[bytes]:
    return [value or b"" for value in array.view(pa.binary()).to_pylist()]  # as they lie: a cast takes longer


def _list_pieces(array: Any) -> list[bytes]:
    if len(array) == 0:
        return []
    bounds = array.offsets.to_pylist()
    base = bounds[0]
    elements = _pieces(array.values.slice(base, bounds[-1] - base))
    return [
        _U32.pack(end - first) + _with_bitmap(elements[first - base : end - base]) for first, end in pairwise(bounds)
    ]


def decode_row(arrow_schema: Any, data: bytes) -> dict[str, Any]:
    """The row whose canonical bytes are `data`. Raises `Malformed` unless every byte is accounted for.

    Dates and timestamps come as integers (days; units since the epoch), since Python's own types cannot hold
    them all; decimals as `Decimal`.
    """
    reader = _Reader(bytes(data))
    row = reader.fields(list(arrow_schema))
    if reader.at != len(reader.data):
        raise Malformed(f"row: {len(reader.data) - reader.at} bytes too many")
    return row


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise Malformed(f"row: ends at byte {len(self.data)}, expected {end - len(self.data)} more")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def presence(self, count: int) -> list[bool]:
        bitmap = self.take((count + 7) // 8)
        if count % 8 and bitmap[-1] >> count % 8:
            raise Malformed("row: a presence bitmap has bits beyond its last value")
        return [bool(bitmap[i >> 3] >> (i & 7) & 1) for i in range(count)]

    def fields(self, fields: list[Any]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for field, present in zip(fields, self.presence(len(fields)), strict=True):
            row[field.name] = self.field(field, present)
        return row

    def field(self, field: Any, present: bool) -> Any:
        if present:
            return self.value(field.type)
        if not field.nullable:
            raise Malformed(f'row: field "{field.name}" is absent but not nullable')
        return None

    def value(self, type_: Any) -> Any:
        kind = kind_name(type_)
        if kind in _STRUCTS:
            return _STRUCTS[kind].unpack(self.take(_STRUCTS[kind].size))[0]
        if kind == "bool":
            byte = self.take(1)
            if byte not in (b"\0", b"\1"):
                raise Malformed(f"row: a bool must be 0 or 1, found {byte[0]}")
            return byte == b"\1"
        if kind == "binary":
            return self.take(self.count())
        if kind == "string":
            return self.text()
        if kind == "decimal128":
            return self.decimal(type_)
        if kind == "struct":
            return self.fields(list(type_))
        # Each element costs at least its bit of the bitmap, so the input's length bounds the work.
        return [self.field(type_.value_field, present) for present in self.presence(self.count())]

    def count(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def text(self) -> str:
        try:
            return self.take(self.count()).decode()
        except UnicodeDecodeError as error:
            raise Malformed("row: a string is not UTF-8") from error

    def decimal(self, type_: Any) -> Decimal:
        number = int.from_bytes(self.take(16), "little", signed=True)
        digits = str(abs(number))
        if len(digits) > type_.precision:
            raise Malformed(f"row: {number} has more digits than decimal128 of precision {type_.precision} holds")
        # Built from its digits: arithmetic would round to the context's precision.
        return Decimal((int(number < 0), tuple(map(int, digits)), -type_.scale))


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
    """The address of SHA256_Transform in the libcrypto that Python itself has loaded, or 0 if it shows none."""
    try:
        import _hashlib

        function = ctypes.CDLL(_hashlib.__file__).SHA256_Transform
    except (ImportError, OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def self_test(compiled: CompiledLeaves) -> None:
    """Compare a small batch with the reference. Raises RuntimeError. Compiles everything on the way."""
    schema = Schema.parse("text string, number int64, small int16, flag bool, tags list<int8>")
    rows = [
        {"text": "x" * i, "number": i if i % 3 else None, "small": -i, "flag": i % 2 == 0, "tags": [i]}
        for i in range(37)
    ]
    batch = Batch.of(schema, pa.RecordBatch.from_pylist(rows, schema=schema.arrow))
    salts = bytes(range(SALT_BYTES)) * batch.rows
    if compiled.root(batch, salts) != reference_root(reference_hashes(batch, salts)):
        raise RuntimeError("the compiled kernel disagrees with the reference")
