"""Which links belong to which topic's mesh: subscriptions by pseudonym, matched byte for byte (AnonPubSub 4.4).

A subscription names a pseudonym and nothing else: no publisher, no permit, no subscriber. It needs none, on purpose
(4.7): it tells a neighbour to pass envelopes on, which are sealed, and a permit would say who asks. What it can do is
bounded instead: a pseudonym counts only where an advertisement for it is known, there is one entry per (pseudonym,
link), and a neighbour has at most `topics_max` of them. An entry has a lease, and both ends repeat their word while
they want it.

Stances. FORWARD: carry it on towards the publishers, I get it through you. COVER: you are in this mesh because I drew
you (`forwarding.py`); go no further up. PEER: I know, and stay. All have one form and one length, so that a link's
observer learns nothing; a neighbour knows its stance, and has to, since covers draw with a probability of their own.
With the stance goes the number of the topic's guise (`forwarding.py`), times `STANCES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tallystick.carriers.mesh.forwarding import Guise, Guises
from tallystick.carriers.mesh.frames import MeshKind, tell
from tallystick.errors import Refused
from tallystick.runtime.effects import Send


class Stance(IntEnum):
    FORWARD = 1
    COVER = 2
    PEER = 3


STANCES = 4


@dataclass(frozen=True)
class MatchingLimits:
    topics_max: int = 1_024  # entries of one link
    links_max: int = 64  # of one topic: a view, those who hold us, and what a swap adds for a moment
    refresh_s: float = 2.0  # after which a word is repeated
    lease_s: float = 9.0  # after which an entry that nobody repeats ends: four in a row
    doubt_s: float = 9.0  # how long an entry waits for the first word of a new neighbour


@dataclass
class TopicLink:
    """One entry: what a neighbour and we are to each other on one topic."""

    until: float
    is_up: bool = False  # we get it through the neighbour
    is_down: bool = False  # the neighbour gets it through us
    is_cover: bool = False  # for no other reason than that one of us drew the other
    is_heard: bool = False  # the neighbour said a word about it
    is_old: bool = False  # in a swap it goes to somebody else; it serves until the neighbour lets go
    replaces: bytes = b""  # the neighbour whose place it takes, once it says a word

    @property
    def needs_us(self) -> bool:
        """Whether somebody behind it counts on us to reach the publishers."""
        return self.is_down and not self.is_cover

    @property
    def stance(self) -> Stance:
        if self.is_up and not self.is_cover:
            return Stance.FORWARD
        return Stance.COVER if self.is_down and self.is_cover else Stance.PEER


class Matching:
    """The table of one node: links by pseudonym."""

    def __init__(self, limits: MatchingLimits = MatchingLimits(), guises: Guises | None = None) -> None:
        self.limits, self.guises = limits, guises or Guises([Guise()])
        self.topics: dict[bytes, dict[bytes, TopicLink]] = {}
        self._refresh_at = 0.0

    def links(self, pseudonym: bytes) -> dict[bytes, TopicLink]:
        return self.topics.get(pseudonym, {})

    def link(self, pseudonym: bytes, neighbour: bytes, now: float) -> TopicLink:
        """The entry, made if need be. Raises `Refused` if there is no room."""
        if (found := self.links(pseudonym).get(neighbour)) is not None:
            return found
        if not self.has_room(pseudonym, neighbour):
            raise Refused("subscription: too many links of a topic, or topics of a link", reason="tables-full")
        made = self.topics.setdefault(pseudonym, {})[neighbour] = TopicLink(now + self.limits.doubt_s)
        return made

    def has_room(self, pseudonym: bytes, neighbour: bytes) -> bool:
        """Whether one more entry is within the bounds."""
        is_small = len(self.links(pseudonym)) < self.limits.links_max
        return is_small and sum(neighbour in links for links in self.topics.values()) < self.limits.topics_max

    def drop(self, pseudonym: bytes, neighbour: bytes) -> TopicLink | None:
        """Take an entry out. Returns it, or None if there was none."""
        links = self.topics.get(pseudonym, {})
        dropped = links.pop(neighbour, None)
        if not links:
            self.topics.pop(pseudonym, None)
        return dropped

    def say(self, pseudonym: bytes, neighbour: bytes) -> Send:
        """Our word on an entry."""
        stance = self.topics[pseudonym][neighbour].stance + STANCES * self.guises.number(pseudonym)
        return tell(neighbour, MeshKind.SUBSCRIBE, pseudonym, stance)

    def refresh(self, now: float) -> list[Send]:
        """All our words, where it is time."""
        if now < self._refresh_at:
            return []
        self._refresh_at = now + self.limits.refresh_s
        return [self.say(pseudonym, one) for pseudonym, links in self.topics.items() for one in links]

    def ended(self, now: float) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose lease is over."""
        for pseudonym, links in list(self.topics.items()):
            yield from [(pseudonym, one) for one, link in list(links.items()) if link.until <= now]
