"""The pages, one file a subject. Whoever adds a subject adds a line here."""

from __future__ import annotations

from tallystick.console.page import Page
from tallystick.console.pages import findings, flow, happenings, ledger, life, records, scenes, topics

PAGES: tuple[Page, ...] = (
    *flow.PAGES,
    *topics.PAGES,
    *ledger.PAGES,
    *records.PAGES,
    *life.PAGES,
    *happenings.PAGES,
    *findings.PAGES,
    *scenes.PAGES,
)
