from __future__ import annotations

import asyncio

import pytest

from tallystick.errors import Misuse
from tallystick.runtime.sources import ManualClock, SystemClock


def test_the_system_clock_moves_forward() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    asyncio.run(clock.sleep(0))
    clock.pause(0)
    assert clock.monotonic() >= first
    assert clock.now() > 1_700_000_000


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)
    clock.pause(1.5)
    assert (clock.now(), clock.monotonic()) == (104.0, 4.0)
    with pytest.raises(Misuse, match="cannot go back"):
        clock.advance(-1)


def test_sleepers_wake_in_order_of_their_time() -> None:
    async def story() -> list[str]:
        clock, woken = ManualClock(), []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(name)

        tasks = [asyncio.create_task(sleeper(n, s)) for n, s in [("late", 5), ("early", 1), ("cancelled", 2)]]
        await asyncio.sleep(0)
        tasks[2].cancel()
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(10)
        await asyncio.gather(*tasks, return_exceptions=True)
        await clock.sleep(0)
        return woken

    assert asyncio.run(story()) == ["early", "late"]
