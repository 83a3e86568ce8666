"""The pages, one file a subject. Whoever adds a subject names it here."""

from __future__ import annotations

from importlib import import_module

from tallystick.console.page import Page

# In the order of the menu; the page of one is found as its module.
_SUBJECTS = (
    *("flow", "topics", "ledger", "records", "lanes", "life", "ledger_checks", "happenings", "findings", "scenes"),
    *("trips", "alerts", "updates", "overlay", "members"),
)
PAGES: tuple[Page, ...] = tuple(page for name in _SUBJECTS for page in import_module(f"{__name__}.{name}").PAGES)
