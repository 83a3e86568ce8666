"""Leaf hashes: every engine against the reference and against hashlib, in threads, on slices, at odd sizes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from strategies import FLAT_TYPES, batches, schemas

from tallystick.errors import Misuse
from tallystick.record import leaves
from tallystick.record.batch import Batch
from tallystick.record.leaf_engine import CompiledLeaves
from tallystick.record.leaves import encode_rows, leaf_hashes, leaf_root, reference_hashes, reference_root
from tallystick.record.schema import Schema

ENGINES = [pytest.param(0, id="lanes")]
if leaves.openssl_transform():
    ENGINES.append(pytest.param(leaves.openssl_transform(), id="openssl"))


def salts_for(rows: int) -> bytes:
    return hashlib.shake_128(b"salts").digest(16 * rows)


def rfc_6962(hashes: list[bytes]) -> bytes:
    """Section 2.1, word for word."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1 << (len(hashes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + rfc_6962(hashes[:k]) + rfc_6962(hashes[k:])).digest()


def test_a_leaf_is_what_the_format_says() -> None:
    schema = Schema.parse("a int16 not null")
    batch = Batch.of(schema, pa.record_batch([pa.array([258], pa.int16())], schema=schema.arrow))
    salt = bytes(range(16))
    leaf = hashlib.sha256(b"\0" + salt + b"\x01" + b"\x02\x01").digest()
    assert leaf_hashes(batch, salt).tobytes() == leaf
    assert leaf_root(batch, salt) == leaf


@pytest.mark.parametrize("transform", ENGINES)
@examples(60)
@given(batch=batches(rows_max=70))
def test_compiled_engines_equal_the_reference(transform: int, batch: Batch) -> None:
    engine = CompiledLeaves(transform)
    salts = salts_for(batch.rows)
    expected = reference_hashes(batch, salts)
    if batch.rows:
        assert engine.hashes(batch, salts).tobytes() == b"".join(expected)
        assert engine.root(batch, salts) == rfc_6962(expected)
    assert leaf_root(batch, salts) == rfc_6962(expected)


@examples(20)
@given(batch=schemas(FLAT_TYPES, columns_max=40).flatmap(lambda schema: batches(schema, rows_max=300)))
def test_many_flat_columns(batch: Batch) -> None:
    salts = salts_for(batch.rows)
    assert leaf_hashes(batch, salts).tobytes() == b"".join(reference_hashes(batch, salts))


@pytest.mark.parametrize("transform", ENGINES)
def test_every_length_around_the_block_boundaries(transform: int) -> None:
    """Lengths 0 to 200 in one batch: lanes of unequal length, every amount of padding."""
    schema = Schema.parse("data binary not null")
    values = [bytes([i % 256]) * i for i in range(201)]
    batch = Batch.of(schema, pa.record_batch([pa.array(values, pa.binary())], schema=schema.arrow))
    salts = salts_for(batch.rows)
    expected = reference_hashes(batch, salts)
    assert expected == [
        hashlib.sha256(b"\0" + salts[16 * i : 16 * i + 16] + row).digest()
        for i, row in enumerate(encode_rows(batch.data))
    ]
    assert CompiledLeaves(transform).hashes(batch, salts).tobytes() == b"".join(expected)


@pytest.mark.parametrize("transform", ENGINES)
def test_roots_of_every_small_size(transform: int) -> None:
    engine = CompiledLeaves(transform)
    schema = Schema.parse("n int32")
    whole = pa.record_batch([pa.array(range(300), pa.int32())], schema=schema.arrow)
    for rows in [*range(1, 70), 127, 128, 129, 255, 256, 257, 300]:
        batch = Batch.of(schema, whole.slice(300 - rows))
        salts = salts_for(rows)
        assert engine.root(batch, salts) == rfc_6962(reference_hashes(batch, salts)), rows


def test_long_values_need_more_scratch_than_is_kept() -> None:
    schema = Schema.parse("data binary, n int8")
    values = [b"x" * 100_000, None, b"y" * 3_000_000, b""]
    columns = [pa.array(values, pa.binary()), pa.array([1, 2, None, 4], pa.int8())]
    batch = Batch.of(schema, pa.record_batch(columns, schema=schema.arrow))
    salts = salts_for(4)
    for _ in range(2):
        assert leaf_root(batch, salts) == reference_root(reference_hashes(batch, salts))


def test_values_at_the_end_of_a_mapped_page() -> None:
    """A string that ends where its memory ends is read without a byte beyond."""
    script = """
import mmap, pyarrow as pa
from tallystick.record.batch import Batch
from tallystick.record.leaves import engine, leaf_root, reference_hashes, reference_root
from tallystick.record.schema import Schema
import ctypes
engine()
page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None)
assert libc.mprotect(ctypes.c_void_p(base + page), page, 0) == 0
for length in range(1, 20):
    value = bytes(range(length))
    ctypes.memmove(base + page - length, value, length)
    data = pa.foreign_buffer(base + page - length, length)
    offsets = pa.py_buffer((0).to_bytes(4, "little") + length.to_bytes(4, "little"))
    schema = Schema.parse("data binary")
    column = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    batch = Batch.of(schema, pa.record_batch([column], schema=schema.arrow))
    assert leaf_root(batch, bytes(16)) == reference_root(reference_hashes(batch, bytes(16)))
import os; os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_threads_do_not_share_scratch() -> None:
    schema = Schema.parse("text string, n int64")
    made = []
    for seed in range(8):
        texts = pa.array([f"{seed}-{i}" * (i % 5) for i in range(500)])
        data = pa.record_batch([texts, pa.array(range(seed, seed + 500))], schema=schema.arrow)
        made.append(Batch.of(schema, data))
    salts = salts_for(500)
    expected = [reference_root(reference_hashes(batch, salts)) for batch in made]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            assert list(pool.map(lambda batch: leaf_root(batch, salts), made)) == expected


def test_without_numba_the_reference_serves() -> None:
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "import pyarrow as pa\n"
        "from tallystick.record import leaves\n"
        "from tallystick.record.batch import Batch\n"
        "from tallystick.record.schema import Schema\n"
        "schema = Schema.parse('a int8')\n"
        "batch = Batch.of(schema, pa.record_batch([pa.array([1, None, 3], pa.int8())], schema=schema.arrow))\n"
        "print(leaves.engine().split()[0], leaves.leaf_root(batch, bytes(48)).hex())"
    )
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    schema = Schema.parse("a int8")
    batch = Batch.of(schema, pa.record_batch([pa.array([1, None, 3], pa.int8())], schema=schema.arrow))
    assert result.stdout.split() == ["hashlib", leaf_root(batch, bytes(48)).hex()]


def test_only_a_checked_batch_reaches_the_kernel() -> None:
    schema = Schema.parse("a int8")
    data = pa.record_batch([pa.array([1], pa.int8())], schema=schema.arrow)
    with pytest.raises(Misuse, match="Batch"):
        leaf_root(data, bytes(16))
    with pytest.raises(Misuse, match="need 16 bytes of salts, found 15"):
        leaf_root(Batch.of(schema, data), bytes(15))


def test_an_empty_batch_has_the_empty_root() -> None:
    schema = Schema.parse("a int8")
    batch = Batch.of(schema, pa.RecordBatch.from_pylist([], schema=schema.arrow))
    assert leaf_root(batch, b"") == hashlib.sha256(b"").digest()
    assert leaf_hashes(batch, b"").shape == (0, 32)


def test_a_salt_keeps_a_leaf_from_being_guessed() -> None:
    """Whoever knows the few possible rows finds the one behind a leaf, unless its salt is secret."""
    schema = Schema.parse("diagnosis string")
    guesses = ["healthy", "ill"]
    secret = Batch.of(schema, pa.record_batch([pa.array(["ill"])], schema=schema.arrow))

    def guess(salt: bytes, seen: bytes) -> list[str]:
        made = [Batch.of(schema, pa.record_batch([pa.array([text])], schema=schema.arrow)) for text in guesses]
        return [text for text, batch in zip(guesses, made, strict=True) if leaf_root(batch, salt) == seen]

    assert guess(bytes(16), leaf_root(secret, bytes(16))) == ["ill"]
    assert guess(bytes(16), leaf_root(secret, os.urandom(16))) == []
