"""The pages, one file a subject. Whoever adds a subject names it here."""

from __future__ import annotations

from tallystick.console.page import Page
from tallystick.console.pages import (
    alerts,
    findings,
    flow,
    happenings,
    lanes,
    ledger,
    ledger_checks,
    life,
    members,
    overlay,
    records,
    scenes,
    topics,
    trips,
    updates,
)

# In the order of the menu.
_SUBJECTS = (
    *(flow, topics, ledger, records, lanes, life, ledger_checks, happenings, findings, scenes, trips, alerts),
    *(updates, overlay, members),
)
PAGES: tuple[Page, ...] = tuple(page for subject in _SUBJECTS for page in subject.PAGES)
