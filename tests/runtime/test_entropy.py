from __future__ import annotations

from tallystick.runtime.sources import SeededEntropy, SystemEntropy


def test_a_seed_replays_however_the_bytes_are_drawn() -> None:
    whole = SeededEntropy(7).bytes(100)
    parts = SeededEntropy(7)
    assert b"".join(parts.bytes(n) for n in (0, 1, 31, 32, 33, 3)) == whole
    assert len(whole) == 100


def test_seeds_differ() -> None:
    assert len({SeededEntropy(seed).bytes(32) for seed in (1, 2, "1", "two")}) == 4


def test_system_entropy_does_not_repeat() -> None:
    entropy = SystemEntropy()
    assert len(entropy.bytes(33)) == 33
    assert entropy.bytes(16) != entropy.bytes(16)
