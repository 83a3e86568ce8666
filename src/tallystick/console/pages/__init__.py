"""The pages, one file a subject. Whoever adds a subject adds a line here."""

from __future__ import annotations

from tallystick.console.page import Page
from tallystick.console.pages import (
    alerts,
    findings,
    flow,
    happenings,
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

PAGES: tuple[Page, ...] = (
    *flow.PAGES,
    *topics.PAGES,
    *ledger.PAGES,
    *records.PAGES,
    *life.PAGES,
    *ledger_checks.PAGES,
    *happenings.PAGES,
    *findings.PAGES,
    *scenes.PAGES,
    *trips.PAGES,
    *alerts.PAGES,
    *updates.PAGES,
    *overlay.PAGES,
    *members.PAGES,
)
