"""How the processes that an identity asks are, by their own word: node and authority, `/health` and `/metrics`.

They are asked at most every few seconds, whoever looks at a page, and whoever does not answer holds a page up for two
seconds. Nothing here is proved, and nothing is decided by it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.client.counts import by_label, read_counts
from tallystick.errors import TallystickError
from tallystick.identity.folder import Identity
from tallystick.identity.nodes import addresses
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Clock, Entropy

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


class HealthDesk:
    """Asks the nodes and the authority of an identity, and keeps what they said."""

    def __init__(self, identity: Identity, clock: Clock, entropy: Entropy) -> None:
        self._identity, self._clock, self._entropy = identity, clock, entropy
        self._lock, self._found, self._at = threading.Lock(), list[Health](), float("-inf")

    def ask(self) -> list[Health]:
        """How they last said they are."""
        with self._lock:
            if self._clock.monotonic() - self._at > PAUSE_S:
                identity, before = self._identity, {one.url: one for one in self._found}
                authority = Address(identity.authority_url, identity.authority.subject, identity.authority.verify_key)
                known = [("node", one) for one in addresses(identity)] + [("authority", authority)]
                self._found = [self._ask(name, one, before.get(one.url)) for name, one in known]
                self._at = self._clock.monotonic()
            return self._found

    def _ask(self, name: str, address: Address, before: Health | None) -> Health:
        trouble, counts = "", dict[str, str]()
        try:
            with HttpClient([address], None, self._clock, self._entropy) as http, http.within(_PATIENCE_S):
                trouble = http.trouble(f"the {name}")
                if not trouble:
                    text = http.request("GET", "/metrics", attempts_max=1).body.decode(errors="replace")
                    counts = {key: str(by_label(value))[:_SHOWN_MAX] for key, value in read_counts(text, name).items()}
        except (TallystickError, ValueError, KeyError) as error:  # whatever it says that is no /metrics
            trouble = trouble or f"the {name}: {error}"
        since_ms = before.since_ms if before is not None and before.trouble else int(self._clock.now() * 1000)
        return Health(name, address.url, trouble, since_ms if trouble else 0, dict(list(counts.items())[:_COUNTS_MAX]))
