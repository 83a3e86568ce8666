"""The secrets of share locks that an identity opened, in its folder: relays keep shares for an hour, parcels stay.

Other keys that open are asked for again at each start, and live in memory. These cannot be: so they are kept, wrapped
under the identity's own key, and who holds them opens nothing without the topic's keys beside them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tallystick import wire
from tallystick.crypto.symmetric import unwrap, wrap
from tallystick.errors import CannotOpen, Malformed
from tallystick.identity.folder import Identity
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.runtime.sources import Clock, Entropy

log = logging.getLogger(__name__)

Secrets = dict[tuple[bytes, bytes], bytes]  # by publisher and lock

_FILE, _AAD = "opened", b"tallystick opened shares 1"
SAVE_S = 5.0  # between two times that they are written
KEPT_MAX = 16_384  # some 1.5 MB: at four an hour of each lane, months


class KeptShares:
    def __init__(self, identity: Identity, clock: Clock, entropy: Entropy) -> None:
        self._disk, self._key = RealDisk(identity.home / "shares"), identity.spool_key
        self._clock, self._entropy, self._save_at = clock, entropy, 0.0

    def load(self) -> Secrets:
        if not self._disk.exists(_FILE):
            return {}
        try:
            rows = wire.decode(unwrap(self._key, read_all(self._disk, _FILE), _AAD), "opened shares")
            return {(publisher, lock): secret for publisher, lock, secret in rows}
        except (CannotOpen, Malformed, TypeError, ValueError) as error:
            log.warning("kept shares cannot be read: %s", error)
            return {}

    def save(self, opened: Mapping[tuple[bytes, bytes], bytes], *, now: bool = False) -> None:
        """Keep these beside what others of this identity kept, now and then, or `now`."""
        if not opened or not (now or self._clock.monotonic() >= self._save_at):
            return
        self._save_at = self._clock.monotonic() + SAVE_S
        try:
            with self._disk.held("lock"):
                kept = self.load()
                rows = [[*place, secret] for place, secret in {**kept, **opened}.items()][-KEPT_MAX:]
                if len(rows) > len(kept) or not kept.items() >= opened.items():
                    data = wrap(self._key, wire.encode(rows), _AAD, self._entropy.bytes(32))
                    write_atomic(self._disk, _FILE, data)
        except OSError as error:  # a full disk: relays may have them still
            log.warning("opened shares were not kept: %s", error.strerror)
