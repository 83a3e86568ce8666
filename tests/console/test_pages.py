"""Every page of the registry: bounded, marked, and whole without scripts."""

from __future__ import annotations

from console_stack import Browser

from tallystick.console.pages import PAGES


def test_every_page_without_parameters_is_shown(console: Browser) -> None:
    for page in PAGES:
        if "{" not in page.path:
            said = console.get(page.path)
            assert said.status == 200, (page.path, said.text[-2000:])
