"""What `make soak` draws: a schedule of each kind."""

from __future__ import annotations

import pytest
import soak


@pytest.mark.parametrize("seed", range(len(soak.KINDS)))
def test_a_schedule_holds(seed: int) -> None:
    soak.run(seed)
