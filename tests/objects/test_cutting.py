"""Chunks follow from the bytes alone: however they are fed, by numpy or compiled, and around what was inserted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_world import noise

from tallystick.errors import Misuse
from tallystick.kernels.gear import gear_ends
from tallystick.objects.cutting import cut_chunks, gear_ends_plain, gear_table
from tallystick.objects.layout import FIXED, GEAR, SPREAD, TARGET

DATA = noise(1, 300_000)


def cut(data: bytes, kind: int = GEAR, target: int = 4096) -> list[bytes]:
    return [bytes(chunk) for chunk in cut_chunks([data], kind, target)]


@pytest.mark.parametrize("kind", [FIXED, GEAR])
def test_chunks_are_the_bytes_within_their_bounds(kind: int) -> None:
    chunks = cut(DATA, kind)
    assert b"".join(chunks) == DATA
    least, most = (1024, 16_384) if kind == GEAR else (4096, 4096)
    assert all(least <= len(chunk) <= most for chunk in chunks[:-1])
    assert len(chunks[-1]) <= most
    assert cut(b"", kind) == [b""]
    assert cut(b"x", kind) == [b"x"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 60_000), max_size=8), st.sampled_from([FIXED, GEAR]), st.integers(1, 200_000))
def test_how_the_bytes_are_fed_does_not_matter(lengths: list[int], kind: int, feed: int) -> None:
    blocks, at = [], 0
    for length in [*lengths, len(DATA)]:
        blocks.append(DATA[at : at + length])
        at += length
    fed = b"".join(blocks)
    assert [bytes(chunk) for chunk in cut_chunks(blocks, kind, 4096, feed)] == cut(fed, kind)


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=20_000), st.integers(0, 40_000), st.integers(0, 255), st.integers(12, 14))
def test_compiled_and_plain_find_the_same_ends(some: bytes, run: int, filler: int, bits: int) -> None:
    data = np.frombuffer(bytearray(some + bytes([filler]) * run + DATA[:100_000] + some), np.uint8)
    target = 1 << bits
    asked = (data, gear_table(), target // SPREAD, target, target * SPREAD, bits + 1, bits - 1)
    assert gear_ends(*asked).tolist() == gear_ends_plain(*asked)


def test_what_was_inserted_changes_the_chunks_around_it_only() -> None:
    changed = DATA[:100_000] + b"a few bytes" + DATA[100_000:]
    old, new = set(cut(DATA)), set(cut(changed))
    assert len(new - old) <= 3
    assert len(set(cut(changed, FIXED)) - set(cut(DATA, FIXED))) > 40  # fixed places share nothing behind it


def test_the_average_is_near_the_target() -> None:
    chunks = cut(noise(2, 8 << 20), target=TARGET)
    assert 0.75 * TARGET < (8 << 20) / len(chunks) < 1.35 * TARGET


def test_zeros_are_cut_at_the_most() -> None:
    assert [len(chunk) for chunk in cut(bytes(40_000))][:-1] in ([16_384, 16_384], [1024] * 39)


@pytest.mark.parametrize(("kind", "target"), [(2, 4096), (GEAR, 5000), (FIXED, 1024), (GEAR, 1 << 20)])
def test_other_cuts_are_refused(kind: int, target: int) -> None:
    with pytest.raises(Misuse):
        next(cut_chunks([b"x"], kind, target))
