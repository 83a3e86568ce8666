"""Signals that come while the kernel's verifier judges a program: it gives up then, and that is no refusal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import lab
import pytest

from tallystick.carriers.fabric.bpf import Assembler, load_program
from tallystick.errors import Unavailable

WHY_NOT = lab.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

SOON_S = 0.002


@pytest.fixture
def heard() -> Iterator[list[int]]:
    signals: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: signals.append(number))
    yield signals
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def long_to_judge() -> bytes:
    """The verifier goes through every round, which takes it a hundred times as long as the signal does to come."""
    program, counter = Assembler(), 6
    program.move(counter, 0)
    program.place("again")
    program.add(counter, 1)
    program.jump_unless(counter, 200_000, "again")
    program.leave(0)
    return program.code()


def test_a_signal_while_a_program_is_judged_does_not_refuse_it(heard: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, SOON_S)
    os.close(load_program(long_to_judge()))
    assert len(heard) == 1


def test_signals_without_end_do_not_keep_it_for_ever(heard: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, SOON_S, SOON_S)
    with pytest.raises(Unavailable, match="temporarily unavailable"):
        load_program(long_to_judge())
    assert heard
