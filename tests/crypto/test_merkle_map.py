"""The sparse Merkle map against a computation from scratch."""

from __future__ import annotations

import hashlib

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.crypto import merkle_map
from tallystick.crypto.merkle_map import EMPTY, MerkleMap, verify_map
from tallystick.errors import Forged, Malformed, Refused

KEYS = [b"right/%d" % number for number in range(24)]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([None, b"a", b"b"]), max_size=12)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def naive_root(contents: dict[bytes, bytes]) -> bytes:
    """The definition: an empty subtree, a key alone, or a node over both halves."""

    def subtree(leaves: list[tuple[str, bytes]], depth: int) -> bytes:
        if not leaves:
            return bytes(32)
        if len(leaves) == 1:
            return leaves[0][1]
        halves = [subtree([leaf for leaf in leaves if leaf[0][depth] == bit], depth + 1) for bit in "01"]
        return sha256(b"\x01" + halves[0] + halves[1])

    return subtree(
        [
            (f"{int.from_bytes(sha256(key), 'big'):0256b}", sha256(b"\x00" + sha256(key) + sha256(value)))
            for key, value in contents.items()
        ],
        0,
    )


def reachable(nodes: dict[bytes, bytes], root: bytes) -> set[bytes]:
    if root == EMPTY:
        return set()
    data = nodes[root]
    if data[0] == 0:
        return {root}
    return {root} | reachable(nodes, data[1:33]) | reachable(nodes, data[33:])


@examples(150)
@given(st.lists(CHANGES, max_size=8))
def test_any_order_of_updates_gives_the_root_of_the_contents(
    batches: list[dict[bytes, bytes | None]],
) -> None:
    nodes: dict[bytes, bytes] = {}
    state = MerkleMap(nodes)
    contents: dict[bytes, bytes] = {}
    for batch in batches:
        before = reachable(nodes, state.root)
        change = state.update(batch)
        for key, value in batch.items():
            if value is None:
                contents.pop(key, None)
            else:
                contents[key] = value
        assert state.root == change.root == naive_root(contents)
        after = reachable(nodes, state.root)
        assert before - after == change.stale
        assert after - before <= set(change.added) <= after
        assert all(sha256(data) == node for node, data in change.added.items())
    for key in KEYS:
        value = contents.get(key)
        assert state.value_hash(key) == (None if value is None else sha256(value))
        verify_map(state.root, key, value, state.prove(key))
        for wrong in {None, b"a", b"b", b"c"} - {value}:
            with pytest.raises(Forged):
                verify_map(state.root, key, wrong, state.prove(key))


def test_an_update_that_changes_nothing_touches_nothing() -> None:
    nodes: dict[bytes, bytes] = {}
    state = MerkleMap(nodes)
    state.update(dict.fromkeys(KEYS, b"a"))
    root = state.root
    change = state.update({KEYS[0]: b"a", KEYS[1]: b"a", b"absent": None})
    assert (change.root, change.added, change.stale) == (root, {}, set())
    assert state.update({}).root == root


def test_removing_everything_gives_the_empty_map() -> None:
    state = MerkleMap({})
    state.update(dict.fromkeys(KEYS, b"a"))
    change = state.update(dict.fromkeys(KEYS))
    assert change.root == EMPTY
    assert change.added == {}
    verify_map(EMPTY, KEYS[0], None, state.prove(KEYS[0]))


def test_old_versions_prove_until_they_are_pruned() -> None:
    nodes: dict[bytes, bytes] = {}
    state = MerkleMap(nodes)
    old = state.update(dict.fromkeys(KEYS, b"a")).root
    change = state.update({KEYS[0]: None, KEYS[1]: b"b"})
    verify_map(old, KEYS[0], b"a", MerkleMap(nodes, old).prove(KEYS[0]))
    for node in change.stale:
        del nodes[node]
    for key in KEYS:
        value = {KEYS[0]: None, KEYS[1]: b"b"}.get(key, b"a")
        verify_map(state.root, key, value, state.prove(key))
    with pytest.raises(Malformed, match="missing from the store"):
        MerkleMap(nodes, old).prove(KEYS[0])


def test_deep_neighbours() -> None:
    # Two keys whose hashes begin alike sit at the end of a chain of inner nodes with empty siblings.
    by_prefix: dict[bytes, bytes] = {}
    number = 0
    while True:
        key = b"%d" % number
        twin = by_prefix.setdefault(sha256(key)[:2], key)
        if twin != key:
            break
        number += 1
    state = MerkleMap({})
    state.update({key: b"a", twin: b"b"})
    assert state.root == naive_root({key: b"a", twin: b"b"})
    assert len(wire.decode(state.prove(key))[1]) > 16
    verify_map(state.root, key, b"a", state.prove(key))
    state.update({twin: None})
    assert state.root == naive_root({key: b"a"})
    verify_map(state.root, twin, None, state.prove(twin))  # absence shown by the other leaf


def test_one_key_s_proof_is_not_another_s() -> None:
    state = MerkleMap({})
    state.update(dict.fromkeys(KEYS[:12], b"a"))
    proofs = {key: state.prove(key) for key in KEYS}
    for key in KEYS:
        for other, proof in proofs.items():
            if other != key and proof != proofs[key]:
                with pytest.raises(Forged):
                    verify_map(state.root, key, b"a" if key in KEYS[:12] else None, proof)


def test_a_leaf_beside_the_path_does_not_prove_absence() -> None:
    # The attack: answer "absent" with some other leaf, a real one of the tree, that does not lie on the path.
    state = MerkleMap({})
    state.update(dict.fromkeys(KEYS, b"a"))
    for victim in KEYS:
        for decoy in KEYS:
            _, siblings, _ = wire.decode(state.prove(decoy))
            forged = wire.encode([1, siblings, [sha256(decoy), sha256(b"a")]])
            with pytest.raises(Forged):
                verify_map(state.root, victim, None, forged)


def test_every_flipped_byte_of_a_proof_is_refused() -> None:
    state = MerkleMap({})
    state.update(dict.fromkeys(KEYS[:12], b"a"))
    for key in KEYS:
        proof, value = state.prove(key), b"a" if key in KEYS[:12] else None
        for at in range(len(proof)):
            with pytest.raises(Refused):
                verify_map(state.root, key, value, proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :])


@pytest.mark.parametrize(
    "value",
    [
        [],
        [2, [], None],
        [True, [], None],
        [1, [b""] * 257, None],
        [1, [bytes(32)], None],
        [1, [b"short"], None],
        [1, ["text"], None],
        [1, [], [b"", b""]],
        [1, [], [bytes(32)]],
        [1, [], False],
        [1, [], None, None],
    ],
)
def test_what_is_no_proof_is_malformed(value: object) -> None:
    with pytest.raises(Malformed):
        verify_map(EMPTY, b"key", None, wire.encode(value))


def test_a_node_s_bytes_are_its_preimage() -> None:
    nodes: dict[bytes, bytes] = {}
    MerkleMap(nodes).update(dict.fromkeys(KEYS, b"a"))
    assert all(sha256(data) == node and len(data) == 65 for node, data in nodes.items())
    assert merkle_map.DEPTH_MAX == 256
