"""What relays tell one another about themselves and their tables: the contents of NOTICE and STATE frames.

Neither is signed: the link says who speaks, and what it says is held to the plan (a notice) or counts by what is signed
inside (state). docs/formats/overlay.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from tallystick import wire
from tallystick.crypto.signatures import SIGNED_BYTES_MAX
from tallystick.wire import Fields, Number, Octets16

STATE_CLAIMS_MAX = 256
STATE_BYTES_MAX = 64 * 1024  # of the claims in one frame, so that others come between


class NoticeKind(IntEnum):
    ATTACH = 1  # the subject, a relay, is named by a version of the plan and asks for routing state
    DETACH = 2  # the subject, a relay, is not named any more
    ACKNOWLEDGE = 3  # of a detachment: nothing more comes
    REFUSE = 4  # the subject, a permit, has no place in the sender's tables


def _kind(fields: Fields) -> NoticeKind:
    return NoticeKind(fields.number(max(NoticeKind), min(NoticeKind)))


@dataclass(frozen=True, slots=True)
class Notice:
    kind: Annotated[NoticeKind, _kind]
    subject: Octets16
    plan: Number  # the first version that names the relay, or no longer does

    def encode(self) -> bytes:
        return wire.encode([1, int(self.kind), self.subject, self.plan])

    @classmethod
    def decode(cls, content: bytes) -> Notice:
        """Raises `Malformed`."""
        return wire.read_as(cls, content, "notice")


@dataclass(frozen=True, slots=True)
class RoutingState:
    """Claims, and whether they are the last that the sender has."""

    is_last: bool
    claims: tuple[bytes, ...]

    def encode(self) -> bytes:
        return wire.encode([1, int(self.is_last), list(self.claims)])

    @classmethod
    def decode(cls, content: bytes) -> RoutingState:
        """Raises `Malformed`."""
        fields = Fields.parse(content, "routing state", 3)
        fields.version(1)
        is_last = fields.number(1) == 1
        claims = [one.octets(at_most=SIGNED_BYTES_MAX) for one in fields.each(STATE_CLAIMS_MAX)]
        return cls(is_last, tuple(claims))


def states(claims: Iterable[bytes]) -> Iterator[RoutingState]:
    """All of these claims, in as many frames as it takes; one at the least, and the last says so."""
    chosen: list[bytes] = []
    size = 0
    for claim in claims:
        if chosen and (len(chosen) == STATE_CLAIMS_MAX or size + len(claim) > STATE_BYTES_MAX):
            yield RoutingState(False, tuple(chosen))
            chosen, size = [], 0
        chosen.append(claim)
        size += len(claim)
    yield RoutingState(True, tuple(chosen))
