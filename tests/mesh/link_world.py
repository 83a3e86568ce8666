"""Nodes that say what they are told to say, over real link layers and a seeded network that is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from makers import seed

from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.link_keys import identity_of
from tallystick.carriers.mesh.link_layer import Dial, LinkLayer
from tallystick.carriers.mesh.linked import LinkLost, MeshEnd, MeshPass
from tallystick.crypto.exchange import ExchangeKey
from tallystick.errors import Refused
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, WakeAt, Woken
from tallystick.runtime.network import Link, Network
from tallystick.runtime.sources import SeededEntropy

LIMITS = replace(MeshLimits(), message_beats_max=40)
SMOOTH = Link()


class End(NamedTuple):
    identity: bytes
    key: bytes
    address: str


@cache
def lasting(who: str) -> ExchangeKey:
    return ExchangeKey(seed(f"lasting key {who}"))


def name_of(who: str) -> str:
    return end_of(who).identity.hex()


@cache
def end_of(who: str) -> End:
    """What others know of it; of "nobody" a key of small order."""
    key = lasting(who).public if who != "nobody" else bytes(32)
    return End(identity_of(key), key, identity_of(key).hex())


def check_member(key: bytes, shown: bytes, now: float) -> None:
    if shown != b"a member":
        raise Refused("mesh: not a member", reason="not-a-member")


MEMBER = MeshPass(b"a member", check_member)


def is_urgent(message: bytes) -> bool:
    return message.startswith(b"notify")


@dataclass
class Talker:
    """Says each (time, to, message) of its script when its time comes, and delivers what it hears or knows lost."""

    neighbours: Sequence[str]
    script: Sequence[tuple[float, str, bytes]] = ()
    said: int = 0

    def entries(self) -> Sequence[MeshEnd]:
        return [end_of(who) for who in self.neighbours]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Arrived(sender, LinkLost() as lost):
                return [Deliver(("lost", sender, lost))]
            case Arrived(sender, message):
                return [Deliver(("heard", sender, message))]
            case Woken():
                due = [one for one in self.script[self.said :] if one[0] <= now]
                self.said += len(due)
                later: list[Effect] = [WakeAt(one[0]) for one in self.script[self.said : self.said + 1]]
                return [Send(name_of(to), message) for _, to, message in due] + later


class Seen(NamedTuple):
    """What an observer notes of a datagram."""

    time: float
    sender: str
    to: str
    size: int


@dataclass
class LinkWorld:
    seed: int = 7
    dial: Dial = Dial.PADDED
    link: Link = SMOOTH
    limits: MeshLimits = LIMITS
    lives: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = Watched(self.seed, self.link)

    def add(self, who: str, *neighbours: str, script: Sequence[tuple[float, str, bytes]] = ()) -> None:
        def make(_: Mapping[str, bytes]) -> LinkLayer:
            life = self.lives[who] = self.lives.get(who, 0) + 1
            entropy = SeededEntropy(f"{self.seed} {who} {life}")
            talker = Talker(neighbours, script if life == 1 else ())
            return LinkLayer(talker, lasting(who), entropy, MEMBER, is_urgent, self.dial, self.limits)

        self.network.add(name_of(who), make)

    def run(self, until: float) -> LinkWorld:
        self.network.run(until)
        return self

    def layer(self, who: str) -> LinkLayer:
        role = self.network.role(name_of(who))
        assert isinstance(role, LinkLayer)
        return role

    def heard(self, who: str, by: str | None = None) -> list[bytes]:
        found = [value for _, name, value in self.network.delivered if name == name_of(who) and value[0] == "heard"]
        return [message for _, sender, message in found if by is None or sender == name_of(by)]

    def losses(self, who: str) -> list[LinkLost]:
        return [value[2] for _, name, value in self.network.delivered if name == name_of(who) and value[0] == "lost"]

    def datagrams(self, sender: str, to: str) -> list[bytes]:
        return self.network.sent.get((name_of(sender), name_of(to)), [])


class Watched(Network):
    """With an observer of all links."""

    def __init__(self, seed: int, link: Link) -> None:
        super().__init__(seed, link)
        self.seen: list[Seen] = []
        self.sent: dict[tuple[str, str], list[bytes]] = {}

    def send(self, sender: str, to: str, message: Any) -> None:
        self.seen.append(Seen(self.clock.now(), sender, to, len(message)))
        self.sent.setdefault((sender, to), []).append(message)
        super().send(sender, to, message)
