"""How the processes that an identity asks are, by their own word: node and authority, `/health` and `/metrics`.

They are asked at most every few seconds, whoever looks at a page, and whoever does not answer holds a page up for two
seconds. Nothing here is proved, and nothing is decided by it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tallystick.client.counts import by_label, read_counts
from tallystick.console.viewer import Viewer
from tallystick.errors import TallystickError
from tallystick.identity.nodes import addresses
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient

PAUSE_S = 5.0
_PATIENCE_S = 2.0
_COUNTS_MAX, _SHOWN_MAX = 100, 300  # numbers, and characters of each


@dataclass(frozen=True)
class Health:
    """What was told of one process."""

    name: str
    url: str
    trouble: str = ""  # why it does not serve; empty where it does
    since_ms: int = 0  # of the trouble
    counts: Mapping[str, str] = field(default_factory=dict)


class _Asked:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: list[Health] = []
        self.at = float("-inf")


_KEPT: WeakKeyDictionary[Viewer, _Asked] = WeakKeyDictionary()


def ask_health(viewer: Viewer) -> list[Health]:
    """The nodes and the authority of the viewer's identity, as they last said they are."""
    asked = _KEPT.setdefault(viewer, _Asked())
    with asked.lock:
        if viewer.clock.monotonic() - asked.at > PAUSE_S:
            identity, before = viewer.identity, {one.url: one for one in asked.found}
            authority = Address(identity.authority_url, identity.authority.subject, identity.authority.verify_key)
            known = [("node", one) for one in addresses(identity)] + [("authority", authority)]
            asked.found = [_ask(viewer, name, one, before.get(one.url)) for name, one in known]
            asked.at = viewer.clock.monotonic()
        return asked.found


def _ask(viewer: Viewer, name: str, address: Address, before: Health | None) -> Health:
    trouble, counts = "", dict[str, str]()
    try:
        with HttpClient([address], None, viewer.clock, viewer.session.entropy) as http, http.within(_PATIENCE_S):
            trouble = http.trouble(f"the {name}")
            if not trouble:
                text = http.request("GET", "/metrics", attempts_max=1).body.decode(errors="replace")
                counts = {key: str(by_label(value))[:_SHOWN_MAX] for key, value in read_counts(text, name).items()}
    except (TallystickError, ValueError, KeyError) as error:  # whatever it says that is no /metrics
        trouble = trouble or f"the {name}: {error}"
    since_ms = before.since_ms if before is not None and before.trouble else viewer.now_ms
    return Health(name, address.url, trouble, since_ms if trouble else 0, dict(list(counts.items())[:_COUNTS_MAX]))
