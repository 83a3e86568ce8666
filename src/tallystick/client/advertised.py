"""The permits under which a publisher seals: obtained, shown to the node, and kept up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from tallystick.authority.grant import Grant
from tallystick.carriers.carrier import Carrier
from tallystick.client.grants import Grants
from tallystick.client.keeper import Held
from tallystick.errors import Unavailable
from tallystick.parcel.header import TopicRef
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

log = logging.getLogger(__name__)


class KeySource(Protocol):
    """Where permits and keys come from: an authority, or who has them from one."""

    def permit(self, operation: Operation, topic: str | bytes) -> Grant: ...

    def keys(self, permit: bytes, seen: int, wait_ms: int = 0) -> Grant | None: ...


class Advertised:
    """The grants of one publisher, in the order of their tokens, which is that of a lane's topics."""

    def __init__(
        self,
        topics: str | Sequence[str],
        carrier: Carrier,
        authority: KeySource,
        grants: Grants | None,
        lock: threading.RLock,
    ) -> None:
        """`grants` keeps permits across starts, where given; grants are replaced under the publisher's `lock`."""
        self._carrier, self._authority, self._grants, self._lock = carrier, authority, grants, lock
        names = [topics] if isinstance(topics, str) else list(topics)
        obtained = [(self._obtain(name), name) for name in names]
        obtained.sort(key=lambda pair: pair[0].grant.token)
        self.held, self._names = [held for held, _ in obtained], [name for _, name in obtained]
        self.closed = False  # then what comes late is not kept: another process may have taken over
        try:
            self.show()
        except Unavailable as error:  # rows gather in the spool until the node can be reached
            if grants is None:
                raise
            log.warning("not advertised yet: %s", error)

    def _obtain(self, name: str) -> Held:
        if self._grants is not None:
            return self._grants.obtain(Operation.ADVERTISE, name)
        return Held.of(self._authority.permit(Operation.ADVERTISE, name))

    def obtain_again(self) -> None:
        """New permits, where those at hand ended; `Refused` if the right is gone."""
        self.held = [self._obtain(name) for name in self._names]

    def show(self) -> None:
        """Show our permits to the node."""
        for held in self.held:
            self._carrier.advertise(held.grant.permit)

    def update(self, wait_ms: int = 0) -> bool:
        """Ask the authority for news of epochs and schemas; whether there was any."""
        news = False
        for number, held in enumerate(self.held):
            update = self._authority.keys(held.permit.identifier, held.grant.version, wait_ms)
            if update is not None:
                with self._lock:
                    self.held[number] = held.updated(update)
                if self._grants is not None and not self.closed:
                    self._grants.save(self.held[number], self._names[number])
                news = True
        return news

    @property
    def tokens(self) -> list[bytes]:
        return [held.grant.token for held in self.held]

    @property
    def schema(self) -> Schema:
        """The newest version of the topics' schema, as far as the authority's news have come."""
        return self.held[0].schemas[-1]

    def is_current(self, topics: Sequence[TopicRef], now_ms: int) -> bool:
        """Whether these epochs are the ones to seal under now."""
        epochs = {held.grant.token: held.epoch(now_ms).number for held in self.held}
        return all(epochs[topic.token] == topic.epoch for topic in topics)

    def covers(self, topics: Sequence[TopicRef]) -> bool:
        """Whether the permits of these topics are the ones we hold."""
        held = {one.permit.identifier for one in self.held}
        return all(topic.permit in held for topic in topics)
