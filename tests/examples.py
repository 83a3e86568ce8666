"""How many examples Hypothesis draws: a share of what the profile says, so that a soak draws more of everything."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(percent: int, **more: Any) -> settings:
    """So many for each hundred of the profile's."""
    return settings(max_examples=max(1, percent * settings().max_examples // 100), **more)
