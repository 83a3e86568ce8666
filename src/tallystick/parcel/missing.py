"""What a reader's own ring lacks: local news, never shown to a peer, and never held against a publisher."""

from __future__ import annotations

from tallystick.errors import Refused


class MissingKey(Refused):
    """The reader's own ring lacks the key for a lock: local news, never shown to a peer."""

    reason = "missing-key"

    def __init__(self, token: bytes, *, epoch: int | None = None, publisher: bytes = b"", period: int = 0) -> None:
        what = f"epoch {epoch}" if epoch is not None else f"erasure period {period}"
        super().__init__(f"no key for topic {token.hex()[:8]}, {what}", hint="ask the authority for its keys")
        self.token, self.epoch, self.publisher, self.period = token, epoch, publisher, period


class NotEntitled(Refused):
    """The reader's attributes do not satisfy a policy, or the lock cannot be tried for want of `pymcl`: the columns
    behind it are closed to it, as their publisher or the topic's owner wants."""

    reason = "not-entitled"

    def __init__(self, epoch: int) -> None:
        super().__init__(
            f"the attributes held in attribute epoch {epoch} do not satisfy the policy",
            hint="attributes are granted by the tenant that declared them: tally attribute grant",
        )
        self.epoch = epoch
