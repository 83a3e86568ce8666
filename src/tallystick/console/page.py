"""What a page is: an address, a title, and a function from a visit to markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tallystick.console.visit import Visit
from tallystick.page.html import Html


class Download(NamedTuple):
    """A file instead of a page."""

    name: str
    data: bytes


class Page(NamedTuple):
    path: str  # behind the console's own; parts in braces are parameters
    title: str
    show: Callable[[Visit], Html | Download]  # raises what is wrong, as a sentence with the remedy
    in_menu: bool = False
    live: bool = True  # shown again with every change of the mirror; False where looking has an effect or takes long
    is_there: Callable[[Visit], bool] = lambda _visit: True  # whether the menu has it: parts that this instance lacks
