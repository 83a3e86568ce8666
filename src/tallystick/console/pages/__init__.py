"""The pages, one file a subject. Whoever adds a subject adds a line here."""

from __future__ import annotations

from tallystick.console.page import Page
from tallystick.console.pages import findings, happenings, ledger, scenes

PAGES: tuple[Page, ...] = (
    *ledger.PAGES,
    *happenings.PAGES,
    *findings.PAGES,
    *scenes.PAGES,
)
