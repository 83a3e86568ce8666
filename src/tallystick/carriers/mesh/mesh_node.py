"""One node of the mesh: its roles put together, without I/O.

A frame from a neighbour goes to the role of its kind, and time comes in ticks. Between them the roles share three
tables: the neighbours (`membership.py`), the publishers (`localisation.py`) and the links of topics (`matching.py`).
The link layer stands outside and carries frames between neighbours; `entries` says with whom it needs a link, and how.

Threat: neighbours that send anything at all. What is malformed, forged, or not theirs to say is counted and goes no
further; a neighbour that sends more than `frames_max` frames in `window_s` is not heard for the rest of it; strangers
may knock and say that they hold us, and no more. Nothing here names a topic, a permit, a lane or a principal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import ChainSecret
from tallystick.carriers.mesh.community import Community, CommunityLimits
from tallystick.carriers.mesh.distribution import Distribution, DistributionLimits
from tallystick.carriers.mesh.envelope import OPEN_BYTES_MAX, join_pushed
from tallystick.carriers.mesh.forwarding import CoverChoice, Guise, Guises
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.kept_view import KeptView
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.linked import LinkLost
from tallystick.carriers.mesh.localisation import Localisation, LocalisationLimits
from tallystick.carriers.mesh.matching import Matching, MatchingLimits
from tallystick.carriers.mesh.members import MemberEntry
from tallystick.carriers.mesh.membership import Membership, ViewLimits
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.carriers.mesh.shell_game import ShellGame, ShellGameLimits
from tallystick.crypto.signatures import Verifier
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.runtime.effects import Arrived, Effect, Event, StoreEffect, WakeAt
from tallystick.runtime.sources import Entropy

MEMBERSHIP = {MeshKind.JOIN, MeshKind.HOLD, MeshKind.LEAVE, MeshKind.ALIVE}
LOCALISATION = {MeshKind.ADVERTISE, MeshKind.UNADVERTISE, MeshKind.LOST}
MATCHING = {MeshKind.SUBSCRIBE, MeshKind.UNSUBSCRIBE}
DISTRIBUTION = {MeshKind.NOTIFY, MeshKind.HAVE, MeshKind.WANT}
VIEW = "view"  # under which name the view is stored
NOTHING: Mapping[str, bytes] = {}
OPEN_TO_STRANGERS = {MeshKind.JOIN, MeshKind.HOLD, MeshKind.ALIVE}


@dataclass(frozen=True)
class MeshSettings:
    """The bounds and choices of a node's roles."""

    mesh: MeshLimits = field(default_factory=MeshLimits)
    view: ViewLimits = field(default_factory=ViewLimits)
    localisation: LocalisationLimits = field(default_factory=LocalisationLimits)
    matching: MatchingLimits = field(default_factory=MatchingLimits)
    community: CommunityLimits = field(default_factory=CommunityLimits)
    distribution: DistributionLimits = field(default_factory=DistributionLimits)
    game: ShellGameLimits = field(default_factory=ShellGameLimits)
    covers: CoverChoice = field(default_factory=CoverChoice)
    guises: tuple[Guise, ...] = ()  # besides the first, which `covers` and `game.decay` are; the same at all nodes
    tick_s: float = 0.25  # how exactly waits are kept
    keep_s: float = 20.0  # how often the view is stored, if it changed
    window_s: float = 10.0
    frames_max: int = 5_000  # from one neighbour in a window: envelopes, and a full table of advertisements
    strangers_max: int = 200  # frames from all strangers together in a window


@dataclass(frozen=True)
class MeshStatistics:
    """The first four are sizes, the others counts since the start."""

    neighbours: int
    publishers: int
    topics: int
    kept: int
    duplicates: int
    swaps: int
    refused: Mapping[str, int]  # by reason


@dataclass
class Publication:
    """A topic that this node publishes on, in one epoch."""

    publisher: MeshPublisher
    key: MeshKey
    chain: ChainSecret = field(init=False)
    handle: bytes = field(init=False)
    refresh_at: float = field(default=0.0, init=False)
    pulse_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.publisher.pseudonym != self.key.pseudonym:
            raise Misuse("mesh: key and publisher of one topic expected")
        self.chain = ChainSecret.of(self.publisher)
        self.handle = self.chain.advertise(self.publisher, 0).identifier


class MeshNode:
    """The role inside the link layer.

    `publish`, `subscribe` and the others say what is wanted; it happens with the next event. A driver that does not
    want to wait gives a `Woken`.
    """

    def __init__(
        self,
        me: MemberEntry,
        contacts: Sequence[MemberEntry],
        authority: Verifier,
        random: Random,
        entropy: Entropy,
        settings: MeshSettings = MeshSettings(),
        kept: Mapping[str, bytes] = NOTHING,
    ) -> None:
        """`random` decides about walks, waits and covers: a predictable one betrays them (`SystemRandom` is none).
        `kept` is what an earlier process stored."""
        self._settings, self._entropy, self._random = settings, entropy, random
        before = KeptView.decode(kept[VIEW]) if VIEW in kept else KeptView()
        guard = MeshGuard(authority, settings.mesh)
        self.membership = Membership(
            *(me, contacts, lambda entry, now: entry.check(int(now * 1000), authority), random, settings.view),
            earlier=before.members,
        )
        self._kept, self._keep_at, self._earlier = b"", 0.0, dict(before.topics)
        graph: Callable[[], Sequence[bytes]] = lambda: self.membership.neighbours  # noqa: E731
        self.localisation = Localisation(guard.check, graph, settings.localisation)
        self.guises = Guises([Guise(settings.covers, settings.game.decay), *settings.guises])
        self.matching = Matching(settings.matching, self.guises)
        self.community = Community(self.matching, self.localisation, graph, random, settings.community)
        self.distribution = Distribution(
            self.matching,
            lambda data, now, decoded: guard.judge(data, int(now * 1000), decoded),
            self.community.subscribed.__contains__,
            settings.distribution,
        )
        self.game = ShellGame(self.membership, self.matching, self.community, random, entropy.bytes, settings.game)
        self._publications: dict[bytes, Publication] = {}
        self._outbox: list[Callable[[float], Sequence[Effect]]] = []
        self._refused: Counter[str] = Counter()
        self._frames: Counter[bytes] = Counter()  # by neighbour, in this window
        self._window_ends = self._tick_at = 0.0
        self._is_over = False

    # --- what is wanted ---

    def subscribe(self, pseudonym: bytes) -> None:
        """Deliver the envelopes of a topic from now on."""
        self._outbox.append(lambda now: self.community.subscribe(pseudonym, now))

    def unsubscribe(self, pseudonym: bytes) -> None:
        self._outbox.append(lambda now: self.community.unsubscribe(pseudonym))

    def advertise(self, publication: Publication) -> None:
        """Be a publisher of a topic from now on."""
        self._publications[publication.handle] = publication

    def unadvertise(self, publication: Publication) -> None:
        """Take it back, for good in this epoch."""
        self._publications.pop(publication.handle, None)
        undo = publication.chain.undo
        self._outbox.append(lambda now: self.localisation.unadvertise(publication.handle, undo, now))

    def publish(self, publication: Publication, pushed: Pushed) -> None:
        """Let a parcel go. Raises `Refused` for one that no node would pass on."""
        if len(join_pushed(pushed)) + OPEN_BYTES_MAX > self._settings.mesh.envelope_bytes_max:
            raise Refused(
                f"mesh: an envelope has at most {self._settings.mesh.envelope_bytes_max} bytes",
                reason="too-large",
                hint="seal smaller parcels for topics on a mesh",
            )
        self._outbox.append(lambda now: self._publish(publication, pushed, now))

    def renew(self, me: MemberEntry) -> None:
        """Be the same member, by another certificate."""
        self._outbox.append(lambda now: self.membership.renew(me))

    def leave(self) -> None:
        """Say goodbye to all neighbours, and nothing after that."""
        self._outbox.append(lambda now: self._leave())

    def _leave(self) -> Sequence[Effect]:
        self._is_over = True
        goodbyes = [send for one in list(self.community.states) for send in self.community.leave(one)]
        return goodbyes + self.membership.leave()

    def entries(self) -> list[MemberEntry]:
        """All with whom the link layer needs a link."""
        return [it.entry for it in self.membership.known.values()]

    def statistics(self) -> MeshStatistics:
        sizes = len(self.membership.neighbours), len(self.localisation.known), len(self.matching.topics)
        counts = self.distribution.duplicates, self.game.swaps, dict(self._refused)
        return MeshStatistics(*sizes, len(self.distribution.kept), *counts)

    # --- events ---

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        if self._is_over:
            return effects
        if isinstance(event, Arrived):
            try:
                effects += self._arrived(event, now)
            except Refused as error:
                self._refused[error.reason] += 1
        wanted, self._outbox = self._outbox, []
        for act in wanted:
            try:
                effects += act(now)
            except Refused as error:
                self._refused[error.reason] += 1
        if now >= self._tick_at and not self._is_over:
            self._tick_at = now + self._settings.tick_s
            effects += self._tick(now)
            effects.append(WakeAt(self._tick_at))
        return effects

    def _arrived(self, event: Arrived, now: float) -> Sequence[Effect]:
        sender = _identity(event.sender)
        if isinstance(event.message, LinkLost):
            # What did not arrive is said again in time: all that we say has a lease or is asked for.
            if event.message.is_silent:
                self.membership.forget(sender)
            return self._follow_changes(now)
        is_known = sender in self.membership.known
        self._check_patience(sender if is_known else b"", now)
        frame = MeshFrame.decode(event.message)
        if not is_known and frame.kind not in OPEN_TO_STRANGERS:
            raise Refused(f"mesh: {frame.kind.name} of a stranger", reason="stranger")
        self.membership.heard_from(sender, now)
        if frame.kind in MEMBERSHIP:
            return [*self.membership.receive(frame, sender, now), *self._follow_changes(now)]
        if frame.kind in LOCALISATION:
            if sender not in self.membership.neighbours:
                raise Refused("localisation: not a neighbour in the graph", reason="stranger")
            return self.localisation.receive(frame, sender, now)
        if frame.kind in MATCHING:
            return [*self._learn(frame, sender, now), *self.community.receive(frame, sender, now)]
        if frame.kind in DISTRIBUTION:
            envelope, effects = self.distribution.receive(frame, sender, now)
            if envelope is not None:
                self.community.heard(envelope.pseudonym, envelope.key, now)
            return effects
        return self.game.receive(frame, sender, now)

    def _learn(self, frame: MeshFrame, sender: bytes, now: float) -> Sequence[Effect]:
        """A word on a topic may be the first sign of how a swap was decided."""
        fields = frame.fields(2)
        pseudonym, number = fields.octets(at_most=64), fields.number(15)
        is_sign = number if frame.kind is MeshKind.UNSUBSCRIBE else sender not in self.matching.links(pseudonym)
        return self.game.learn(pseudonym, sender, now) if is_sign else []

    def _check_patience(self, sender: bytes, now: float) -> None:
        if now >= self._window_ends:
            self._window_ends = now + self._settings.window_s
            self._frames.clear()
        self._frames[sender] += 1
        if self._frames[sender] > (self._settings.frames_max if sender else self._settings.strangers_max):
            raise Refused("mesh: too many frames of one neighbour", reason="too-many-requests")

    def _tick(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for links in self.matching.topics.values():
            for one in links:
                self.membership.keep(one, now + self._settings.matching.lease_s)
        effects += self.membership.tick(now)
        effects += self._follow_changes(now)
        effects += self.localisation.tick(now)
        effects += self._rejoin(now)  # before covers are drawn
        effects += self.community.tick(now)
        effects += self.distribution.tick(now)
        effects += self.game.tick(now)
        for publication in list(self._publications.values()):
            effects += self._refresh(publication, now)
        return [*effects, *self._keep_view(now)]

    def _rejoin(self, now: float) -> Sequence[Effect]:
        """Be with our earlier neighbours on our own topics, as soon as those are known to be published."""
        effects: list[Effect] = []
        known = [one for one in self._earlier if self.localisation.publishers(one)]
        for pseudonym in [one for one in known if self.community.is_ours(one)]:
            neighbours = [one for one in self._earlier.pop(pseudonym) if one in self.membership.known]
            effects += self.community.rejoin(pseudonym, neighbours, now)
        return effects

    def _keep_view(self, now: float) -> Sequence[Effect]:
        self._keep_at = self._keep_at or now + self._settings.keep_s  # until we found our way, what was kept holds
        if now < self._keep_at:
            return []
        self._keep_at, self._earlier = now + self._settings.keep_s, {}
        wanted = [(one, tuple(links)) for one, links in self.matching.topics.items() if self.community.is_ours(one)]
        before, self._kept = self._kept, self.membership.kept(wanted).encode()
        return [] if self._kept == before else [StoreEffect(VIEW, self._kept)]

    def _follow_changes(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        gained, ungained, gone = self.membership.changes()
        for one in gained:
            effects += self.localisation.gain(one)
        for one in ungained:
            effects += self.localisation.lose(one)
        for one in gone:
            effects += self.community.lose(one, now)
        return effects

    # --- publishing ---

    def _refresh(self, publication: Publication, now: float) -> Sequence[Effect]:
        """Advertise again in time, and be heard on the mesh now and then."""
        effects: list[Effect] = []
        mesh, pulse_s = self._settings.mesh, self._settings.community.pulse_s
        now_ms, ends_ms = int(now * 1000), (publication.publisher.epoch + 1) * mesh.epoch_ms
        if now_ms >= ends_ms:
            del self._publications[publication.handle]
            return []
        if now >= publication.refresh_at:
            publication.refresh_at = now + mesh.advertised_ms_max / 2000
            expiry_ms = min(now_ms + mesh.advertised_ms_max, ends_ms)
            advertisement = publication.chain.advertise(publication.publisher, expiry_ms)
            effects += self.localisation.advertise(advertisement, publication.chain.first, now)
        if now >= publication.pulse_at and self.matching.links(publication.key.pseudonym):
            effects += self._publish(publication, Pushed(b""), now)
        publication.pulse_at = publication.pulse_at or now + pulse_s * self._random.uniform(0.0, 0.1)
        return effects

    def _publish(self, publication: Publication, pushed: Pushed, now: float) -> Sequence[Effect]:
        spread = self._random.uniform(0.6, 1.0)  # when the next empty one goes says nothing of when this one did
        publication.pulse_at = now + self._settings.community.pulse_s * spread
        envelope = publication.key.seal(pushed, int(now * 1000), publication.publisher, self._entropy)
        return self.distribution.publish(envelope.encode(), now)[1]


def _identity(name: str) -> bytes:
    try:
        return bytes.fromhex(name)
    except ValueError as error:
        raise Malformed("mesh: the sender has no identity") from error
