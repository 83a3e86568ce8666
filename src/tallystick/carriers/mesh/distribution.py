"""Envelopes on their way: they flood a topic's mesh over all its links, in both directions, except back (AnonPubSub
4.6).

Both directions, so that a publisher reaches everybody from whatever place a game gave it. A mesh has circles, and a
swap doubles links for a moment: an envelope may come as often as a node has links, is passed on once and delivered
once. The guard says what may pass: well-formed, fresh, signed by a publisher whom the authority certified, not seen
before.

Threat: losses. A message is lost, a neighbour crashes with it, a swap moves a link from under it. The paper names
gossip as the remedy (3.1), and this is one: each node keeps what it passed on for `keep_s`, and tells the neighbours on
a topic the names of what they have not shown to have; they ask for what they lack. So whoever is a member throughout
gets everything, as long as the mesh is whole again in half that time. What is kept is bounded; older ones give way, and
it is memory alone.

Threat: neighbours that are not in the mesh, or that ask for everything again and again. Frames of a topic count only
from neighbours on that topic, and each name is answered once per neighbour in `again_s`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tallystick.carriers.mesh.envelope import MeshEnvelope
from tallystick.carriers.mesh.frames import FRAME_BYTES_MAX, MeshFrame, MeshKind, framed, tell
from tallystick.carriers.mesh.matching import Matching
from tallystick.errors import Refused
from tallystick.runtime.effects import Deliver, Send
from tallystick.trust.mesh import PSEUDONYM_BYTES

NAME_BYTES = 16


@dataclass(frozen=True)
class DistributionLimits:
    keep_s: float = 60.0  # envelopes are kept; half of it, their names are told
    kept_max: int = 4_096
    kept_bytes_max: int = 32 * 1024 * 1024
    told_s: float = 1.0  # between two tellings of names on a link
    told_max: int = 64  # names in one: a cell
    again_s: float = 2.0  # before which a name is neither asked for nor answered again


@dataclass
class Kept:
    data: bytes
    pseudonym: bytes
    time: float
    shown_by: set[bytes] = field(default_factory=set)  # neighbours that have it by their own account
    sent: dict[bytes, float] = field(default_factory=dict)  # when it went to whom


class Distribution:
    """What one node passes on. `judge` is the guard's word on an envelope, `is_wanted` whether a topic is delivered."""

    def __init__(
        self, matching: Matching, judge: Callable[[bytes, float, MeshEnvelope | None], MeshEnvelope],
        is_wanted: Callable[[bytes], bool], limits: DistributionLimits = DistributionLimits(),
    ) -> None:  # fmt: skip
        self._matching, self._judge, self._is_wanted, self._limits = matching, judge, is_wanted, limits
        self.kept: OrderedDict[bytes, Kept] = OrderedDict()  # by identifier, oldest first
        self._bytes = 0
        self._asked: dict[bytes, float] = {}
        self._told_at = 0.0
        self.duplicates = 0

    def publish(self, data: bytes, now: float) -> tuple[MeshEnvelope, list[Send | Deliver]]:
        """Let our own go. Raises `Refused` as the guards of others would."""
        envelope = self._judge(data, now, None)
        return envelope, self._pass_on(envelope, data, None, now)

    def receive(self, frame: MeshFrame, sender: bytes, now: float) -> tuple[MeshEnvelope | None, list[Send | Deliver]]:
        """The envelope, where a new one came. Raises `Refused`."""
        if frame.kind is MeshKind.NOTIFY:
            return self._take(frame.fields(1).octets(at_most=FRAME_BYTES_MAX), sender, now)
        fields = frame.fields(3 if frame.kind is MeshKind.HAVE else 2)
        pseudonym = fields.octets(PSEUDONYM_BYTES)
        names = [one.octets(NAME_BYTES) for one in fields.each(self._limits.told_max)]
        self._check_neighbour(pseudonym, sender)
        if frame.kind is MeshKind.HAVE:
            return None, list(self._told(pseudonym, names, bool(fields.number(1)), sender, now))
        return None, list(self._answer(pseudonym, names, sender, now))

    def _check_neighbour(self, pseudonym: bytes, sender: bytes) -> None:
        if sender not in self._matching.links(pseudonym):
            raise Refused("distribution: not a neighbour on this topic", reason="not-in-mesh")

    def _take(self, data: bytes, sender: bytes, now: float) -> tuple[MeshEnvelope | None, list[Send | Deliver]]:
        envelope = MeshEnvelope.decode(data)
        self._check_neighbour(envelope.pseudonym, sender)
        if (kept := self.kept.get(envelope.identifier)) is not None:
            kept.shown_by.add(sender)
            self.duplicates += 1
            return None, []
        envelope = self._judge(data, now, envelope)
        return envelope, self._pass_on(envelope, data, sender, now)

    def _pass_on(self, envelope: MeshEnvelope, data: bytes, sender: bytes | None, now: float) -> list[Send | Deliver]:
        kept = self.kept[envelope.identifier] = Kept(data, envelope.pseudonym, now)
        self._bytes += len(data)
        self._asked.pop(envelope.identifier, None)
        self._make_room(now)
        if sender is not None:
            kept.shown_by.add(sender)
        others = self._onward(envelope.pseudonym, sender)
        kept.sent = dict.fromkeys(others, now)
        message = framed(MeshKind.NOTIFY, data)
        effects: list[Send | Deliver] = [Send(one.hex(), message) for one in others]
        if self._is_wanted(envelope.pseudonym):
            effects.append(Deliver(envelope))
        return effects

    def _onward(self, pseudonym: bytes, sender: bytes | None) -> list[bytes]:
        """Everybody on the topic but the one it came from."""
        return [one for one in self._matching.links(pseudonym) if one != sender]

    def _make_room(self, now: float) -> None:
        while self.kept:
            oldest = next(iter(self.kept.values()))
            is_small = len(self.kept) <= self._limits.kept_max and self._bytes <= self._limits.kept_bytes_max
            if is_small and now - oldest.time < self._limits.keep_s:
                return
            self._bytes -= len(self.kept.popitem(last=False)[1].data)

    # --- what was lost ---

    def tick(self, now: float) -> list[Send]:
        """Tell the neighbours on each topic what they may lack."""
        self._make_room(now)
        if now < self._told_at:
            return []
        self._told_at = now + self._limits.told_s
        self._asked = {name: at for name, at in self._asked.items() if now - at < self._limits.again_s}
        lacking: dict[tuple[bytes, bytes], list[bytes]] = {}
        for name, kept in self.kept.items():
            if now - kept.time < self._limits.keep_s / 2:
                for one in self._matching.links(kept.pseudonym):
                    if one not in kept.shown_by and now - kept.sent.get(one, 0.0) > self._limits.told_s / 2:
                        lacking.setdefault((kept.pseudonym, one), []).append(name)
        told = [(place, names[-self._limits.told_max :]) for place, names in lacking.items()]
        return [tell(one, MeshKind.HAVE, pseudonym, names, 0) for (pseudonym, one), names in told]

    def _told(self, pseudonym: bytes, names: list[bytes], is_reply: bool, sender: bytes, now: float) -> list[Send]:
        """Ask for what we lack, and show what we have, so that it is not told again."""
        same = [name for name in names if name in self.kept and self.kept[name].pseudonym == pseudonym]
        for name in same:
            self.kept[name].shown_by.add(sender)
        lacking = [name for name in names if name not in self.kept and name not in self._asked]
        if len(self._asked) < self._limits.kept_max:
            self._asked |= dict.fromkeys(lacking, now)
        sends = [tell(sender, MeshKind.WANT, pseudonym, lacking)] if lacking else []
        return [*sends, tell(sender, MeshKind.HAVE, pseudonym, same, 1)] if same and not is_reply else sends

    def _answer(self, pseudonym: bytes, names: list[bytes], sender: bytes, now: float) -> list[Send]:
        sends = []
        for name in names:
            kept = self.kept.get(name)
            if kept is None or kept.pseudonym != pseudonym:
                continue
            if now - kept.sent.get(sender, float("-inf")) < self._limits.told_s / 2:
                continue
            kept.sent[sender] = now
            kept.shown_by.discard(sender)
            sends.append(tell(sender, MeshKind.NOTIFY, kept.data))
        return sends
