"""Grants as their holders keep them: which epoch, period and schema count now."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.authority.grant import Grant, GrantEpoch, GrantErasureKey
from tallystick.errors import Refused, TallystickError, Unavailable
from tallystick.ledger.contracts.topics import ERASABLE, PADDED
from tallystick.record.schema import Schema
from tallystick.trust.permit import Permit

# Refusals after which a client asks no more: whoever goes on without the right ends on the blacklist.
RIGHT_REASONS = ("no-right", "unknown-topic", "blacklisted")
RIGHT_HINT = "the topic's owner gives rights: tally right grant; then start again"


def without_right(error: TallystickError) -> Refused | None:
    """The refusal to end with and what to do about it, if that is what the error means."""
    if isinstance(error, Refused) and error.reason in RIGHT_REASONS:
        return Refused(str(error), reason=error.reason, hint=RIGHT_HINT)
    return None


@dataclass(frozen=True)
class Held:
    """A grant as its holder keeps it: the first one, with every update folded in."""

    grant: Grant
    permit: Permit
    schemas: tuple[Schema, ...]

    @classmethod
    def of(cls, grant: Grant) -> Held:
        return cls(grant, Permit.decode(grant.permit), tuple(Schema.decode(text) for text in grant.schemas))

    def updated(self, update: Grant) -> Held:
        """Fold an update in: what it names replaces or adds, the rest stays."""
        schemas = tuple(Schema.decode(text) for text in update.schemas) if update.schemas else self.schemas
        return Held(self.grant.updated(update), self.permit, schemas)

    def epoch(self, now_ms: int) -> GrantEpoch:
        """The epoch to seal under now."""
        for one in reversed(self.grant.epochs):
            if one.not_before_ms <= now_ms and (not one.not_after_ms or now_ms < one.not_after_ms):
                return one
        raise Unavailable("no epoch of the topic is current", hint="the authority must be reached for its keys")

    def erasure_key(self, publisher: bytes, now_ms: int) -> GrantErasureKey:
        """The key of this publisher's current period."""
        for one in reversed(self.grant.erasure_keys):
            if one.publisher == publisher and one.not_before_ms <= now_ms < one.not_after_ms:
                return one
        raise Unavailable("no erasure period of the topic is current")

    @property
    def is_erasable(self) -> bool:
        return bool(self.grant.settings.flags & ERASABLE)

    @property
    def is_padded(self) -> bool:
        return bool(self.grant.settings.flags & PADDED)
