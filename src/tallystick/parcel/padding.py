"""Lengths that say little: what is padded is padded to one of these."""

from __future__ import annotations


def padme(length: int) -> int:
    """The Padmé length (Nikitin et al. 2019, algorithm 1): keep as many leading bits as log log asks for."""
    if length < 2:
        return length
    exponent = length.bit_length() - 1
    mask = (1 << (exponent - exponent.bit_length())) - 1
    return (length + mask) & ~mask
