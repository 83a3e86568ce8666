"""A node of the mesh at work: its roles on a UDP socket, and the keys of whoever it serves.

Whoever only forwards has a kit without topics: then nothing here names a topic, a permit, a lane or a principal, and
nothing of the kind ever comes in, since envelopes are opened only where the kit has their key.

Other threads hand in what to publish (`publish`) and other keys (`change`); the role, which belongs to the socket's
loop, takes it up in its next turn. `take` gets what was opened, in the loop's thread, and must be quick.

Keys of an epoch are taken up a while before it begins, so that its paths stand when it does, and let go when its last
envelope would be stale.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Any

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.cells import CELL_BYTES
from tallystick.carriers.mesh.envelope import MeshEnvelope
from tallystick.carriers.mesh.frames import MeshKind
from tallystick.carriers.mesh.kit import MeshKit, MeshTopicKeys
from tallystick.carriers.mesh.link_layer import Dial, LinkLayer, MeshLinkStatistics
from tallystick.carriers.mesh.members import MemberEntry, member_pass
from tallystick.carriers.mesh.mesh_node import MeshNode, MeshSettings, MeshStatistics
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import CannotOpen, Misuse, Unavailable
from tallystick.runtime.datagrams import DatagramLimits, Datagrams, DatagramStatistics, numeric_place
from tallystick.runtime.effects import Effect, Event, StoreEffect
from tallystick.runtime.role_store import RoleStore
from tallystick.runtime.sources import Clock, Entropy, SystemClock, SystemEntropy
from tallystick.trust.mesh import epoch_at

FOLLOW_S = 1.0  # between two looks at which epochs count
WAITING_MAX = 512  # envelopes to be made, of 200 KiB at most


@dataclass(frozen=True)
class MeshOutside:
    """Where a node of the mesh stands in the world: where it listens, whom it knows, how much it hides."""

    listen: str = "127.0.0.1:0"  # also what others are told; port 0: any
    contacts: tuple[MemberEntry, ...] = ()
    dial: Dial = Dial.PADDED
    settings: MeshSettings = field(default_factory=MeshSettings)
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    random: Random = field(default_factory=SystemRandom)


@dataclass(frozen=True)
class StationStatistics:
    node: MeshStatistics
    links: MeshLinkStatistics
    datagrams: DatagramStatistics
    dropped: Mapping[str, int]  # own ones that did not leave, and others' that did not open, by reason


class MeshStation:
    """Listens at once, and works while `run` does."""

    def __init__(
        self,
        kit: MeshKit,
        outside: MeshOutside,
        take: Callable[[bytes, Pushed], None],
        store: RoleStore | None = None,
    ) -> None:
        """`take` gets the key under which a publisher signed, and what it published; `store` has the view of earlier
        processes, and else it is forgotten."""
        self._outside, self._take, self._has_store = outside, take, store is not None
        self._limits = replace(outside.settings.mesh, epoch_ms=kit.epoch_ms)
        host, port = _listening(outside.listen)
        cells = DatagramLimits(datagram_bytes_max=CELL_BYTES)
        self.datagrams = Datagrams(self, host, port, store, deliver=self._opened, clock=outside.clock, limits=cells)
        bound = f"[{host}]" if ":" in host else host
        self.entry = kit.entry(f"{bound}:{self.datagrams.port}")
        settings = replace(outside.settings, mesh=self._limits)
        identity = self.entry, outside.contacts, VerifyKey(kit.authority)
        kept = {} if store is None else store.items()
        self.node = MeshNode(*identity, outside.random, outside.entropy, settings, kept)
        membership = member_pass(self.entry, VerifyKey(kit.authority))
        entropy, dial = outside.entropy, outside.dial
        self.layer = LinkLayer(self.node, kit.link_key, entropy, membership, is_notification, dial, self._limits)
        self._topics: Sequence[MeshTopicKeys] = kit.topics
        self._followed: dict[bytes, MeshTopicKeys] = {}  # by pseudonym
        self._follow_at = 0.0
        self._leaving: deque[tuple[bytes, Pushed]] = deque()
        self._dropped: Counter[str] = Counter()

    async def run(self) -> None:
        """Until `stop`; raises what the role raised."""
        await self.datagrams.run()

    def stop(self) -> None:
        self.datagrams.stop()

    @property
    def room(self) -> int:
        """How many more may wait to leave."""
        return WAITING_MAX - len(self._leaving)

    def publish(self, token: bytes, pushed: Pushed) -> None:
        """From any thread: let it go into the mesh of a topic. Raises `Unavailable` where too much waits."""
        if self.room <= 0:
            raise Unavailable("too many envelopes wait", retry_after_s=1.0)
        self._leaving.append((token, pushed))
        self.datagrams.wake()

    def change(self, topics: Sequence[MeshTopicKeys]) -> None:
        """From any thread: these are the keys from now on."""

        def act() -> None:
            self._topics, self._follow_at = topics, 0.0

        self.datagrams.wake(act)

    def renew(self, kit: MeshKit) -> None:
        """From any thread: the same node has other keys, or a later certificate. Its links stay up."""

        def act() -> None:
            self.entry = kit.entry(self.entry.address)
            self.node.renew(self.entry)
            self.layer.show(member_pass(self.entry, VerifyKey(kit.authority)))
            self.layer.stir()

        if kit.until_ms != self.entry.until_ms:
            self.datagrams.wake(act)
        self.change(kit.topics)

    def may_publish(self, token: bytes, now_ms: int) -> bool:
        """Whether there is a publisher's key of this topic for the epoch that runs."""
        return self._current(token, now_ms) is not None

    def statistics(self) -> StationStatistics:
        parts = self.node.statistics(), self.layer.statistics(), self.datagrams.statistics()
        return StationStatistics(*parts, dict(self._dropped))

    # --- the role ---

    def receive(self, event: Event, now: float) -> list[Effect]:
        if now >= self._follow_at:
            self._follow_at = now + FOLLOW_S
            self._follow(int(now * 1000))
        is_asked = bool(self._leaving)
        while self._leaving:
            token, pushed = self._leaving.popleft()
            keys = self._current(token, int(now * 1000))
            if keys is None or keys.publication is None:
                self._dropped["no-key"] += 1
                continue
            self.node.publish(keys.publication, pushed)
        if is_asked:
            self.layer.stir()
        effects = self.layer.receive(event, now)
        return effects if self._has_store else [one for one in effects if not isinstance(one, StoreEffect)]

    def _follow(self, now_ms: int) -> None:
        """Be where the keys lead, and nowhere else."""
        counting = {one.key.pseudonym: one for one in self._topics if self._counts(one.epoch, now_ms)}
        self.node.guises.own = {pseudonym: keys.guise for pseudonym, keys in counting.items()}
        for pseudonym, keys in counting.items():
            before = self._followed.get(pseudonym)
            if keys == before:
                continue
            if keys.reads and not (before and before.reads):
                self.node.subscribe(pseudonym)
            if keys.publication is not None and not (before and before.publication):
                self.node.advertise(keys.publication)
        for pseudonym, keys in self._followed.items():
            still = counting.get(pseudonym)
            if keys.reads and not (still and still.reads):
                self.node.unsubscribe(pseudonym)
            is_over = epoch_at(now_ms, self._limits.epoch_ms) > keys.epoch  # then it ends by itself
            if keys.publication is not None and not (still and still.publication) and not is_over:
                self.node.unadvertise(keys.publication)
        self._followed = counting

    def _counts(self, epoch: int, now_ms: int) -> bool:
        limits = self._limits
        begins, ends = (number * limits.epoch_ms for number in (epoch, epoch + 1))
        return begins - limits.early_ms_max <= now_ms < ends + limits.delay_max_ms + limits.skew_max_ms

    def _current(self, token: bytes, now_ms: int) -> MeshTopicKeys | None:
        epoch = epoch_at(now_ms, self._limits.epoch_ms)
        found = (one for one in self._topics if (one.token, one.epoch) == (token, epoch) and one.certificate)
        return next(found, None)

    def _opened(self, value: Any) -> None:
        assert isinstance(value, MeshEnvelope)  # nothing else is delivered
        keys = self._followed.get(value.pseudonym)
        try:
            pushed = None if keys is None else keys.key.open(value)
        except CannotOpen:  # a certified publisher sealed nonsense
            pushed = None
        if pushed is None:
            self._dropped["not-opened"] += 1
        elif pushed.parcel:  # the others say only that the mesh is whole
            self._take(value.key, pushed)


def is_notification(frame: bytes) -> bool:
    """Whether a frame brings an envelope; the kind stands behind the array's head and the version."""
    return frame[2:3] == bytes([MeshKind.NOTIFY])


def _listening(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    place = numeric_place(listen if port != "0" else f"{host}:1", is_six=listen.startswith("["))
    if place is None:
        raise Misuse(f'mesh_listen = "{listen}": a numeric address and a port expected', hint="192.0.2.1:7421")
    return place[0], int(port)
