"""How often a partition is anchored: as its topic's owner chose, and never so slowly that a promise breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.carriers.rules import LedgerRules
from tallystick.ledger.contracts.anchors import ANCHORS
from tallystick.ledger.contracts.settings import CHOSEN
from tallystick.ledger.contracts.state import Key
from tallystick.ledger.contracts.topics import TOPICS

TOKEN, PLACE = b"t" * 16, (b"t" * 16, 3)
LAST_MS = 1_000_000


@pytest.mark.parametrize(
    ("pace_ms", "anchor_ms", "waits_ms"),
    [(0, None, 0), (500, None, 500), (30_000, None, 30_000), (30_000, 2_000, 1_000)],
)
def test_a_partition_is_anchored_again_after_its_pace(pace_ms: int, anchor_ms: int | None, waits_ms: int) -> None:
    topic = [b"", b"", 4, 1, 0, [], 1, b"", 1, 0, b"authority", 0, 0, pace_ms]
    stored: dict[bytes, Any] = {TOPICS(TOKEN): topic, ANCHORS(*PLACE): [5, b"", 7, LAST_MS, b""]}
    if anchor_ms is not None:
        stored[CHOSEN(b"anchor_ms")] = anchor_ms

    def read(key: Key[Any], /) -> Any:
        return key.read(stored.get(key))

    rules = LedgerRules(bytes(32), read)
    assert rules.may_anchor(*PLACE, LAST_MS + waits_ms)
    assert rules.may_anchor(*PLACE, LAST_MS + waits_ms - 1) == (waits_ms == 0)
    assert rules.may_anchor(TOKEN, 0, LAST_MS)  # never anchored yet
