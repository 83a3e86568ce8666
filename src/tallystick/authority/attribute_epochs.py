"""Attribute epochs: one row of numbers for all attributes of an authority, announced ahead, brought forward in need.

Threat: a principal that lost an attribute but not the key for it. Every policy is joined with an attribute epoch, and
a key opens only the epochs it has a part for; whoever asks for the part of the next epoch gets it for the attributes it
holds then. A withdrawal, or an attribute that expired, lets the next epoch begin `revoke_s` later, on the ledger; all
that happen until then share that one beginning, so there is at most one epoch per `revoke_s`.

Threat: a tenant that grants and withdraws without end, so that everybody needs new keys every few seconds. Each tenant
causes `attribute_burst` early epochs at once, and one per `attribute_gather_s` in the long run; what it withdraws
beyond that is gathered until its next turn, or shares the beginning that another caused. So a tenant delays its own
withdrawals only, by `attribute_gather_s` at most.

An epoch has no key of its own to draw or to lose: it is a number under the attribute authority's one key, which is
derived from the master key. So publishers are told of epochs long before they begin, and a restored authority goes on
where the ledger stands.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tallystick.authority.answers import authority_hash
from tallystick.authority.core import Core
from tallystick.errors import Misuse
from tallystick.ledger import entries
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS

if TYPE_CHECKING:
    from tallystick.crypto.abe.keys import AttributeMasterKey

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttributeEpoch:
    number: int
    begins_ms: int
    ends_ms: int
    changed: int


class AttributeEpochs:
    def __init__(self, core: Core) -> None:
        self._core, self._store = core, core.store
        self._told = False

    @cached_property
    def key(self) -> AttributeMasterKey:
        """The attribute authority's key."""
        from tallystick.crypto.abe.keys import AttributeMasterKey

        self.require_library()
        return AttributeMasterKey.decode(self._core.keys.master.abe_seed)

    def require_library(self) -> None:
        """Raises `Misuse` by name where there is nothing to make keys with."""
        from tallystick.crypto.abe import group

        group.require()

    @property
    def in_use(self) -> bool:
        """Whether a tenant has declared attributes, and keys can be made for them."""
        if self._store.row("SELECT 1 FROM attribute_spaces") is None:
            return False
        try:
            self.require_library()
        except Misuse as error:
            if not self._told:
                log.warning("attributes are declared, but %s", error)
                self._told = True
            return False
        return True

    def announced(self) -> list[AttributeEpoch]:
        """In order."""
        known = "SELECT epoch, not_before_ms, changed FROM attribute_epochs WHERE announced = 1 ORDER BY epoch"
        rows = self._store.rows(known)
        last_ms = rows[-1][1] + self._core.settings.attribute_epoch_s * 1000 if rows else 0
        ends = [*(row[1] for row in rows[1:]), last_ms]
        return [AttributeEpoch(row[0], row[1], end, row[2]) for row, end in zip(rows, ends, strict=False)]

    def current(self) -> int | None:
        """The newest epoch that has begun: the last one that keys are made for."""
        begun = "SELECT max(epoch) FROM attribute_epochs WHERE announced = 1 AND not_before_ms <= ?"
        number: int | None = self._store.scalar(begun, (self._core.now_ms,))
        return number

    def last(self) -> int:
        """The last one announced, or 0 before the first."""
        return self._store.scalar("SELECT max(epoch) FROM attribute_epochs WHERE announced = 1") or 0

    def tick(self) -> None:
        """Announce what is due."""
        core, epoch_ms = self._core, self._core.settings.attribute_epoch_s * 1000
        if not self.in_use:
            return
        with core.store.transaction():
            last = core.store.row("SELECT epoch, not_before_ms FROM attribute_epochs ORDER BY epoch DESC LIMIT 1")
            number, begins_ms = last or (0, core.now_ms - epoch_ms)
            wanted = (self.current() or max(number, 1)) + core.settings.epochs_ahead
            group = []
            while number < wanted:
                number, begins_ms = number + 1, max(begins_ms + epoch_ms, core.now_ms)
                core.store.insert("attribute_epochs", epoch=number, not_before_ms=begins_ms, changed=core.touch_all())
                public_hash = authority_hash(self.key.public.encode())
                group.append(entries.attribute_epoch(number, public_hash, begins_ms))
            if group:
                core.queue(group)
            self._keep_pace()

    def _keep_pace(self) -> None:
        """After an early beginning the next one lies too far ahead: no epoch lasts longer than it should."""
        settings, announced = self._core.settings, self.announced()
        coming = [one for one in announced if one.begins_ms > self._core.now_ms]
        if not coming or len(coming) == len(announced):
            return
        due_ms = announced[-len(coming) - 1].begins_ms + settings.attribute_epoch_s * 1000
        if due_ms < coming[0].begins_ms:
            self._bring_forward(coming[0], max(due_ms, self._core.now_ms + settings.revoke_s * 1000))

    def rotate(self, tenant: bytes | None = None) -> None:
        """Let the next epoch begin `revoke_s` after what revokes, unless it begins before that; in the caller's
        transaction.

        `tenant` causes it, and may have to wait for its turn; None is the authority itself, which need not.
        """
        core, gather_ms = self._core, self._core.settings.attribute_gather_s * 1000
        # Until when the turns that the tenant took would last, were they taken one per `attribute_gather_s`.
        paid_ms = core.store.scalar("SELECT paid_ms FROM attribute_turns WHERE tenant = ?", (tenant,)) or 0
        # Long ago while the tenant, or the authority, has turns left.
        turn_ms = paid_ms - (core.settings.attribute_burst - 1) * gather_ms
        begins_ms = max(core.revoked_ms, turn_ms)
        coming = [one for one in self.announced() if one.begins_ms > core.now_ms]
        if not coming or coming[0].begins_ms <= begins_ms:
            return
        if tenant is not None:
            taken = (tenant, max(paid_ms, begins_ms) + gather_ms)
            core.store.write("INSERT OR REPLACE INTO attribute_turns VALUES (?, ?)", taken)
        self._bring_forward(coming[0], begins_ms)

    def _bring_forward(self, epoch: AttributeEpoch, begins_ms: int) -> None:
        core = self._core
        values = {"not_before_ms": begins_ms, "changed": core.touch_all()}
        core.store.update("attribute_epochs", {"epoch": epoch.number}, **values)
        # The hash that the ledger has: an authority whose library is missing still takes away what must go.
        announced = core.ledger.row(ATTRIBUTE_EPOCHS(core.keys.certificate.subject, epoch.number))
        assert announced is not None  # or nobody could have brought it forward
        core.queue([entries.attribute_epoch(epoch.number, announced.key_hash, begins_ms)])

    def apply(self, number: int) -> None:
        """Take over what the ledger holds of one epoch of ours."""
        core = self._core
        found = core.ledger.row(ATTRIBUTE_EPOCHS(core.keys.certificate.subject, number))
        if found is None:
            return
        known = core.store.row("SELECT not_before_ms, announced FROM attribute_epochs WHERE epoch = ?", (number,))
        # A beginning that was brought forward here, and is on its way to the ledger, stays.
        begins_ms = found.not_before_ms if known is None else min(found.not_before_ms, known[0])
        if known != (begins_ms, 1):
            values = (number, begins_ms, core.touch_all())
            core.store.write("INSERT OR REPLACE INTO attribute_epochs VALUES (?, ?, 1, ?)", values)
