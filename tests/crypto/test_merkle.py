"""RFC 6962 trees against a naive reading of the RFC and the published vectors."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.errors import Forged, Malformed, Misuse

LEAVES = [merkle.leaf_hash(bytes([number])) for number in range(48)]
ROUND = 40  # every size up to this one is tried

# The certificate-transparency test tree.
CT_INPUTS = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = naive_split(len(leaves))
    return hashlib.sha256(b"\x01" + naive_root(leaves[:split]) + naive_root(leaves[split:])).digest()


def naive_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """RFC 6962, section 2.1.1."""
    if len(leaves) == 1:
        return []
    split = naive_split(len(leaves))
    if index < split:
        return [*naive_path(index, leaves[:split]), naive_root(leaves[split:])]
    return [*naive_path(index - split, leaves[split:]), naive_root(leaves[:split])]


def naive_subproof(old: int, leaves: list[bytes], whole: bool) -> list[bytes]:
    """RFC 6962, section 2.1.2."""
    if old == len(leaves):
        return [] if whole else [naive_root(leaves)]
    split = naive_split(len(leaves))
    if old <= split:
        return [*naive_subproof(old, leaves[:split], whole), naive_root(leaves[split:])]
    return [*naive_subproof(old - split, leaves[split:], False), naive_root(leaves[:split])]


def naive_split(size: int) -> int:
    split = 1
    while split * 2 < size:
        split *= 2
    return split


def test_certificate_transparency_tree() -> None:
    leaves = [merkle.leaf_hash(bytes.fromhex(text)) for text in CT_INPUTS]
    tree = merkle.Tree(leaves)
    assert [tree.root(size).hex() for size in range(1, 9)] == CT_ROOTS
    assert [naive_root(leaves[:size]).hex() for size in range(1, 9)] == CT_ROOTS
    # Paths of the same test suite: leaf 5 of 8 and leaf 2 of 3; consistency 1 → 8 and 6 → 8.
    assert [node.hex()[:16] for node in tree.inclusion(5, 8)] == [
        "bc1a0643b12e4d2d",
        "ca854ea128ed050b",
        "d37ee418976dd957",
    ]
    assert [node.hex()[:16] for node in tree.inclusion(2, 3)] == ["fac54203e7cc696c"]
    assert [node.hex()[:16] for node in tree.consistency(1, 8)] == [
        "96a296d224f285c6",
        "5f083f0a1a33ca07",
        "6b47aaf29ee3c2af",
    ]
    assert [node.hex()[:16] for node in tree.consistency(6, 8)] == [
        "0ebc5d3437fbe2db",
        "ca854ea128ed050b",
        "d37ee418976dd957",
    ]


def test_roots_of_all_sizes_and_forms() -> None:
    tree, frontier = merkle.Tree(), merkle.Frontier()
    for size in range(len(LEAVES) + 1):
        expected = naive_root(LEAVES[:size])
        joined = b"".join(LEAVES[:size])
        assert merkle.root(LEAVES[:size]) == expected
        assert merkle.root(joined) == expected
        assert merkle.root(np.frombuffer(joined, np.uint8).reshape(-1, 32)) == expected
        assert merkle.Tree(joined).root() == tree.root() == frontier.root() == expected
        assert frontier.size == tree.size == size
        if size < len(LEAVES):
            assert tree.append(LEAVES[size]) == frontier.append(LEAVES[size]) == size
    assert [tree.root(size) for size in range(49)] == [naive_root(LEAVES[:size]) for size in range(49)]


def test_inclusion_of_every_leaf_in_every_tree() -> None:
    tree = merkle.Tree(LEAVES)
    for size in range(1, ROUND + 1):
        root = naive_root(LEAVES[:size])
        for index in range(size):
            proof = tree.inclusion(index, size)
            assert proof == naive_path(index, LEAVES[:size])
            merkle.verify_inclusion(LEAVES[index], index, size, proof, root)


def test_inclusion_refuses_every_change() -> None:
    tree = merkle.Tree(LEAVES)
    for size in range(1, 20):
        root = tree.root(size)
        for index in range(size):
            proof = tree.inclusion(index, size)
            for bad in [*_damaged(proof), *([proof[::-1]] if len(proof) > 1 else [])]:
                _forged_inclusion(LEAVES[index], index, size, bad, root)
            _forged_inclusion(LEAVES[index + 1], index, size, proof, root)
            _forged_inclusion(LEAVES[index], index, size, proof, bytes(32))
            for other in {0, index - 1, index + 1, size, -1} - {index}:
                _forged_inclusion(LEAVES[index], other, size, proof, root)


def test_consistency_of_all_pairs_of_sizes() -> None:
    tree = merkle.Tree(LEAVES)
    for new in range(1, ROUND + 1):
        new_root = tree.root(new)
        for old in range(1, new + 1):
            proof = tree.consistency(old, new)
            assert proof == naive_subproof(old, LEAVES[:new], True)
            old_root = tree.root(old)
            merkle.verify_consistency(old, old_root, new, new_root, proof)
            bad_proofs = _damaged(proof) if new < 20 else []
            for bad in bad_proofs:
                _forged_consistency(old, old_root, new, new_root, bad)
            _forged_consistency(old, bytes(32), new, new_root, proof)
            _forged_consistency(old, old_root, new, bytes(32), proof)
        assert tree.consistency(0, new) == []
        merkle.verify_consistency(0, merkle.EMPTY_ROOT, new, new_root, [])
        _forged_consistency(0, new_root, new, new_root, [])
        _forged_consistency(0, merkle.EMPTY_ROOT, new, new_root, [new_root])
        _forged_consistency(new, new_root, new - 1, tree.root(new - 1), [])


def test_a_rewritten_history_has_no_consistency_proof() -> None:
    honest, rewritten = merkle.Tree(LEAVES[:20]), merkle.Tree([*LEAVES[:7], LEAVES[30], *LEAVES[8:30]])
    for old in range(8, 21):
        _forged_consistency(old, honest.root(old), 30, rewritten.root(), rewritten.consistency(old, 30))


def test_ranges_of_every_tree() -> None:
    tree = merkle.Tree(LEAVES)
    for size in range(1, ROUND + 1):
        root = tree.root(size)
        for first in range(size):
            for end in range(first + 1, size + 1):
                proof = tree.range_proof(first, end, size)
                merkle.verify_range(LEAVES[first:end], first, size, proof, root)
                if end == first + 1:
                    assert sorted(proof) == sorted(naive_path(first, LEAVES[:size]))


def test_a_range_refuses_every_change() -> None:
    tree = merkle.Tree(LEAVES)
    size = 13
    root = tree.root(size)
    for first in range(size):
        for end in range(first + 1, size + 1):
            proof, leaves = tree.range_proof(first, end, size), LEAVES[first:end]
            for bad in _damaged(proof):
                _forged_range(leaves, first, size, bad, root)
            _forged_range(leaves[:-1], first, size, proof, root)  # one left out
            _forged_range([*leaves[:-1], LEAVES[40]], first, size, proof, root)
            _forged_range(leaves, first + 1, size, proof, root)
            _forged_range([*leaves, LEAVES[end]], first, size, proof, root)


@given(st.integers(0, 2**64), st.integers(-1, 2**64), st.lists(st.binary(max_size=33), max_size=70))
def test_hostile_proofs_are_forged_in_bounded_work(index: int, size: int, proof: list[bytes]) -> None:
    _forged_inclusion(LEAVES[0], index, size, proof, bytes(32))
    _forged_consistency(index, bytes(32), size, b"\x01" * 32, proof)
    _forged_range(LEAVES[:3], index, size, proof, bytes(32))


def test_proofs_in_the_largest_tree_are_bounded() -> None:
    for length in (63, 64, 65, 1000):
        _forged_inclusion(LEAVES[0], 5, merkle.SIZE_MAX, [LEAVES[0]] * length, bytes(32))
        _forged_range(LEAVES[:2], 2**62 - 1, merkle.SIZE_MAX, [LEAVES[0]] * length, bytes(32))


@given(st.lists(st.integers(0, 48), max_size=6), st.integers(0, 48))
def test_extend_in_any_steps_and_truncate(cuts: list[int], keep: int) -> None:
    tree = merkle.Tree()
    for low, high in pairwise([0, *sorted(cuts), len(LEAVES)]):
        tree.extend(LEAVES[low:high])
    assert tree.root() == merkle.root(LEAVES)
    tree.truncate(keep)
    assert (tree.size, tree.root()) == (keep, naive_root(LEAVES[:keep]))
    tree.extend(LEAVES[keep:])
    assert tree.root() == merkle.root(LEAVES)


def test_a_frontier_goes_on_where_it_was_written() -> None:
    for size in range(20):
        frontier = merkle.Frontier()
        for leaf in LEAVES[:size]:
            frontier.append(leaf)
        resumed = merkle.Frontier.decode(frontier.encode())
        for leaf in LEAVES[size:]:
            resumed.append(leaf)
        assert resumed.root() == merkle.root(LEAVES)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [2, 0, []],
        [True, 0, []],
        [1, True, [LEAVES[0]]],
        [1, 1, []],
        [1, 3, [LEAVES[0]]],
        [1, 1, [b"short"]],
        [1, 1, ["text"]],
        [1, -1, []],
        [1, 2**63, [LEAVES[0]]],
        [1, 0, [], 0],
    ],
)
def test_what_is_no_frontier_is_malformed(value: object) -> None:
    with pytest.raises(Malformed):
        merkle.Frontier.decode(wire.encode(value))


def test_misuse_is_named() -> None:
    tree = merkle.Tree(LEAVES[:5])
    for call in (
        lambda: tree.leaf(5),
        lambda: tree.root(6),
        lambda: tree.truncate(6),
        lambda: tree.inclusion(5, 5),
        lambda: tree.inclusion(0, 6),
        lambda: tree.consistency(3, 2),
        lambda: tree.range_proof(2, 2, 5),
        lambda: tree.append(b"short"),
        lambda: tree.append(LEAVES[0] * 2),
        lambda: merkle.root([b"short"]),
        lambda: merkle.root(b"short"),
        lambda: merkle.root(np.zeros((2, 31), np.uint8)),
        lambda: merkle.Frontier().append(b""),
    ):
        with pytest.raises(Misuse):
            call()
    assert tree.leaf(4) == LEAVES[4]


def test_a_node_does_not_pass_for_a_leaf() -> None:
    # Without the first bytes 00 and 01 the two children of a node could be shown as one leaf's data.
    two = merkle.Tree(LEAVES[:2])
    assert merkle.leaf_hash(LEAVES[0] + LEAVES[1]) != two.root()


def _damaged(proof: list[bytes]) -> list[list[bytes]]:
    flipped = [[*proof[:at], bytes([node[0] ^ 1]) + node[1:], *proof[at + 1 :]] for at, node in enumerate(proof)]
    cut = [[*proof[:at], *proof[at + 1 :]] for at in range(len(proof))]
    return [*flipped, *cut, [*proof, bytes(32)], [bytes(32), *proof]]


def _forged_inclusion(leaf: bytes, index: int, size: int, proof: list[bytes], root: bytes) -> None:
    with pytest.raises(Forged):
        merkle.verify_inclusion(leaf, index, size, proof, root)


def _forged_consistency(old: int, old_root: bytes, new: int, new_root: bytes, proof: list[bytes]) -> None:
    with pytest.raises(Forged):
        merkle.verify_consistency(old, old_root, new, new_root, proof)


def _forged_range(leaves: list[bytes], first: int, size: int, proof: list[bytes], root: bytes) -> None:
    with pytest.raises(Forged):
        merkle.verify_range(leaves, first, size, proof, root)
