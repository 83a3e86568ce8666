"""Proofs of several rows of a node's ledger, where a block comes while they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from stack import Stack, wait_until

from tallystick.errors import Unavailable
from tallystick.ledger.contracts.identity import NUMBERS
from tallystick.ledger.proofs import StateProof

KEYS = [NUMBERS(bytes(16)), NUMBERS(bytes([1]) * 16)]  # which nobody else asks for


@contextmanager
def making(stack: Stack, blocks: int) -> Iterator[list[StateProof]]:
    """A block comes behind each of the first answers, all of which are listed."""
    ledger, answer, answers = stack.node.ledger, stack.node.ledger.state, list[StateProof]()

    def state(key: bytes) -> StateProof:
        found = answer(key)
        if key in KEYS:
            answers.append(found)
            if len(answers) <= blocks:
                wait_until(lambda: ledger.checkpoint() != found.note)
        return found

    with patch.object(ledger, "state", state):
        yield answers


def test_proofs_are_asked_for_again_where_a_block_comes_between_them(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        node = stack.tenant("acme").node
        with making(stack, blocks=1) as answers:
            together = node.states_together(KEYS)
        assert (together, len(answers)) == (answers[2:], 4)
        once = patch("tallystick.carriers.remote.TOGETHER_MAX", 1)
        with making(stack, blocks=1), once, pytest.raises(Unavailable, match="a block came between"):
            node.states_together(KEYS)
