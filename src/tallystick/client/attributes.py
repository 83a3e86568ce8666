"""A reader's attribute key: asked for when a lock needs it, taken on from epoch to epoch, and kept in memory only.

A closed column group brings the question up with every parcel, so the authority is asked once for each attribute epoch
and again after `again_s`: attributes may have been granted, or withdrawn, since. While they stay as they are the key at
hand stays the very same object, which is how a key ring knows that what it was refused is still refused.

Clocks differ: a publisher may seal under an epoch that has just begun, or is about to, and the authority not hand out
its part yet. Within `SKEW_MS` of an epoch's beginning its absence is no refusal, it is waited out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tallystick.authority.client import AuthorityClient
from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.errors import Unavailable
from tallystick.runtime.clock import Clock

log = logging.getLogger(__name__)

SKEW_MS = 10_000


class AttributeHolder:
    def __init__(
        self, authority: AuthorityClient, clock: Clock, again_s: float, begins_ms: Callable[[int], int | None]
    ) -> None:
        """`begins_ms` tells when an attribute epoch begins, as far as that was announced."""
        self._authority, self._clock, self._again_s, self._begins_ms = authority, clock, again_s, begins_ms
        self._identifier = b""
        self._key: AttributeKey | None = None
        self._asked: dict[int, float] = {}  # attribute epoch: when
        self._whole_to, self._whole_at = 0, float("-inf")  # up to which epoch the key has every part, asked for when
        self._told = False

    def key(self, epoch: int) -> AttributeKey | None:
        """Our key, with the part of this attribute epoch where it has begun and we hold any attribute."""
        if not group.available():
            if not self._told:
                log.warning("columns under policies stay closed: they need pymcl (pip install 'tallystick[policy]')")
            self._told = True
            return None
        now = self._clock.monotonic()
        if now >= self._asked.get(epoch, float("-inf")) + self._again_s:
            try:
                self._ask(epoch)
            except Unavailable:  # what we have still opens what it opened
                if self._key is None or epoch not in self._key.epochs:
                    raise
            self._check_begun(epoch)
            self._asked[epoch] = now
        return self._key

    def whole(self) -> AttributeKey | None:
        """Our key with the part of every epoch that has begun: what a driver lends to those who cannot ask."""
        now = self._clock.monotonic()
        if group.available() and now >= self._whole_at + self._again_s:
            while True:
                before = self._whole_to
                current = self._ask(before + 1)
                if self._whole_to in (before, current):
                    break
            self._whole_at = now
        return self._key

    def _check_begun(self, epoch: int) -> None:
        begins_ms = self._begins_ms(epoch)
        if self._key is None or epoch in self._key.epochs or begins_ms is None:
            return
        if abs(self._clock.now() * 1000 - begins_ms) < SKEW_MS:
            raise Unavailable(f"attribute epoch {epoch} is only just beginning", retry_after_s=1.0)

    def _ask(self, epoch: int) -> int:
        """The current epoch, and with it our key in the epochs from this one on, as many as one answer has."""
        answer = self._authority.attribute_key(self._identifier, epoch)
        if not answer.identifier:
            self._identifier, self._key, self._whole_to = b"", None, answer.epoch
        elif answer.key:  # another set of attributes: parts of the old key do not fit
            self._identifier, self._key, self._whole_to = answer.identifier, AttributeKey.decode(answer.key), 0
            self._asked.clear()
        else:
            for number, part in answer.parts:
                if self._key is not None and number not in self._key.epochs:
                    self._key = self._key.with_epoch(number, part)
                    self._asked.setdefault(number, self._clock.monotonic())
        while self._key is not None and self._whole_to + 1 in self._key.epochs:
            self._whole_to += 1
        return answer.epoch
