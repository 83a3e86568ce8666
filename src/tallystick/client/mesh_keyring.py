"""What an identity holds of the mesh: mesh keys of topics, certificates, and the place of its node.

It is kept in the identity's folder (`kept_mesh.py`), since a member must go on where the authority cannot be reached.
The lasting key of its node is not kept: it comes from the signing seed, so that a folder put back from a backup has it
too.

Keys of later epochs may be replaced when somebody is revoked (authority/mesh.py). Those of the next epoch are settled
`notice_ms` before it begins: within that time, at a moment of its own, each member looks again. A member that looks at
other times, or not at all, may come to an epoch with keys that only the revoked and the absent have.

Threat: whoever sees requests to the authority tells publishers from subscribers by what they ask, or how often. Both
send one, of one size, and get one answer of one size. Threat: an authority whose key on the mesh is another tomorrow,
or for one member alone, which marks what that member sends. The first key that came is kept, and no other is taken.
Threat: an old update, sent again: the newest that came counts.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tallystick.authority.client import AuthorityClient
from tallystick.authority.mesh_messages import EPOCHS_MAX, MeshAnswer, MeshRequest, MeshUpdate
from tallystick.carriers.mesh.kit import MeshKit, MeshTopicKeys
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.client.grants import RIGHT_REASONS
from tallystick.client.kept_mesh import Change, HeldTopic, KeptMesh, MeshHoldings
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Forged, Refused, Unavailable
from tallystick.identity.folder import Identity
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.mesh import MeshAuthority, check_member, epoch_at
from tallystick.trust.permit import Operation

log = logging.getLogger(__name__)

_LASTING = "tallystick mesh lasting 1"
_UPDATED = 0.5  # of the notice, after which who awaits updates asks by itself
_SPREAD = 0.75  # of the notice, over which members' moments lie: the rest is for those who must try again


class MeshPlace(NamedTuple):
    """That this identity's node is a member: what its neighbours are shown."""

    key: bytes  # the public half of the node's lasting key
    until_ms: int
    certificate: bytes


class MeshKeyring:
    def __init__(self, identity: Identity, authority: AuthorityClient, clock: Clock, entropy: Entropy) -> None:
        self._identity, self._client, self._clock = identity, authority, clock
        self._kept = KeptMesh(identity, entropy)
        self._lock = threading.RLock()
        self.awaits_updates = False  # whether keys come over the mesh: then it is asked late, for those that did not
        self._moments = identity.signing_key.derive("tallystick mesh moments 1")
        self.lasting = ExchangeKey(identity.signing_key.derive(_LASTING))

    # --- what is held ---

    @property
    def authority(self) -> MeshAuthority:
        """Epochs, and the key under which all certificates of the mesh hold. Raises `Unavailable` before the first
        answer, and `Forged` if it is not our authority's word."""
        kept = self._kept.load()
        if not kept.authority:
            raise Unavailable("nothing is known of the mesh yet", hint="ask for keys of a topic: tally mesh keys TOPIC")
        authority = MeshAuthority.decode(kept.authority)
        authority.verify(self._identity.authority)
        return authority

    @property
    def epoch(self) -> int:
        """The current one."""
        return epoch_at(self._now_ms, self.authority.epoch_ms)

    @property
    def membership(self) -> MeshPlace | None:
        """None where our node is no member, or its time is over."""
        kept = self._kept.load()
        if not kept.authority or kept.until_ms <= self._now_ms:
            return None
        try:
            check_member(self.lasting.public, kept.until_ms, kept.member, self.authority.verify_key)
        except Forged:  # of a key that the identity had before
            return None
        return MeshPlace(self.lasting.public, kept.until_ms, kept.member)

    @property
    def topics(self) -> tuple[HeldTopic, ...]:
        return self._kept.load().topics

    def publisher(self, token: bytes, epoch: int) -> MeshPublisher:
        """Raises `Unavailable` where no key is certified for this epoch."""
        held = self._kept.load().topic(token)
        leave = None if held is None else held.leave(epoch)
        if held is None or leave is None:
            raise Unavailable(f"no leave to publish in mesh epoch {epoch}", hint="tally mesh keys TOPIC --publish")
        return MeshPublisher(held.key(epoch).pseudonym, epoch, *leave)

    def kit(self) -> MeshKit:
        """All that our node needs. Raises `Unavailable` where it is no member."""
        place, authority = self.membership, self.authority
        if place is None:
            raise Unavailable("our node is no member of the mesh", hint="tally mesh join")
        lasting = self._identity.signing_key.derive(_LASTING)
        topics = tuple(self._for_node(held, key) for held in self.topics for key in held.keys)
        return MeshKit(authority.key, authority.epoch_ms, lasting, place.until_ms, place.certificate, topics)

    def _for_node(self, held: HeldTopic, key: MeshKey) -> MeshTopicKeys:
        reads = int(bool(held.operations & Operation.SUBSCRIBE))
        leave = held.leave(key.epoch) or (b"", b"")
        return MeshTopicKeys(held.token, key.epoch, key.secret, reads, *leave, held.guise(key.epoch))

    # --- asking ---

    def obtain(self, token: bytes, operation: Operation, *, again: bool = False) -> HeldTopic:
        """What is kept of the topic, looked up again where it is time to, or where it is asked for `again`.

        Where the authority cannot be reached, what is kept must do. Raises `Refused` where the right is gone."""
        with self._lock:
            kept = self._kept.load()
            held = kept.topic(token)
            if held is not None and not again and self._suffices(held, operation):
                return held
            try:
                return self._ask(token, operation)
            except Unavailable as error:
                if held is None or not held.operations & operation:
                    raise
                held.key(self.epoch)  # `Unavailable` if this was the last
                log.warning("going on with the mesh keys at hand: %s", error)
                return held
            except Refused as error:
                if error.reason in RIGHT_REASONS:
                    self._kept.change(lambda now: now.without(token, operation))
                raise

    def keep_up(self) -> list[bytes]:
        """Look again at whatever it is time for; call it every minute or so. Returns the topics of which new keys came.

        Topics to which the right is gone are forgotten."""
        before = {held.token: held for held in self.topics}
        for token, held in before.items():
            for operation in Operation:
                if held.operations & operation:
                    self._look(token, operation)
        kept = self._kept.load()
        if kept.authority and self._now_ms >= self._member_due_ms(kept):
            try:
                self.join()
            except (Unavailable, Refused) as error:
                log.warning("mesh: our node is not certified anew: %s", error)
        return [held.token for held in self.topics if held != before.get(held.token)]

    def _look(self, token: bytes, operation: Operation) -> None:
        try:
            self.obtain(token, operation)
        except Unavailable as error:
            log.warning("mesh: topic %s waits for its keys: %s", token.hex(), error)
        except Refused as error:
            if error.reason not in RIGHT_REASONS:
                raise
            log.warning("mesh: topic %s is left: %s", token.hex(), error)

    def forget(self, token: bytes) -> None:
        """Hold nothing of the topic any more; the authority counts us among its holders until the last epoch ends."""
        for operation in Operation:
            self._kept.change(partial(MeshHoldings.without, token=token, operation=operation))

    def set_terms(self, token: bytes, guise: int, k_min: int) -> None:
        """As the topic's owner: which guise it wears, and the least crowd that it should hide in. Raises `Refused`."""
        self._client.mesh(MeshRequest(token, terms=(guise, k_min)))

    def warning(self, token: bytes) -> str:
        """What the authority said of the topic's crowd, where it is thin."""
        held = self._kept.load().topic(token)
        return "" if held is None else held.warning

    def join(self) -> MeshPlace:
        """Make our node a member, also where it has nothing to do with any topic. Raises `Refused` while another of
        this principal is."""
        answer, authority = self._client.mesh(MeshRequest(lasting=self.lasting.public))
        self._keep(answer, authority, lambda kept: kept)
        return MeshPlace(self.lasting.public, answer.until_ms, answer.member)

    def receive(self, update: bytes) -> bytes:
        """Take an update that came over the mesh. Returns the topic's token. Raises `CannotOpen` if it is not for us,
        and `Refused` if it is no newer than what we have, or of a topic that we never asked for."""
        found = MeshUpdate.open(
            update, self._identity.sealing_key, self._identity.certificate, self.authority.verify_key
        )
        answer = found.given

        def taken(kept: MeshHoldings) -> MeshHoldings:
            held = kept.topic(found.token)
            if held is None or answer.issued_ms <= held.issued_ms:
                raise Refused("mesh update: nothing new", reason="stale")
            return kept.with_topic(held.renewed(answer))

        self._keep(answer, answer.check(self._identity.authority), taken)
        return found.token

    def _ask(self, token: bytes, operation: Operation) -> HeldTopic:
        request = MeshRequest(token, operation, EPOCHS_MAX, self.lasting.public)
        try:
            answer, authority = self._client.mesh(request)
        except Refused as error:
            if error.reason != "another-node":
                raise
            log.warning("mesh: %s", error)
            answer, authority = self._client.mesh(replace(request, lasting=b""))

        def merged(kept: MeshHoldings) -> MeshHoldings:
            held = kept.topic(token) or HeldTopic(token, operation)
            return kept.with_topic(replace(held, operations=held.operations | operation).renewed(answer))

        self._keep(answer, authority, merged)
        return next(one for one in self.topics if one.token == token)

    # --- when to look ---

    def settles_ms(self) -> int:
        """When the keys of an epoch are settled next: from then on the owners of topics publish them."""
        epoch_ms, notice_ms = self.authority.epoch_ms, self.authority.notice_ms
        return (epoch_at(self._now_ms + notice_ms, epoch_ms) + 1) * epoch_ms - notice_ms

    def due_ms(self, held: HeldTopic) -> int:
        """When to look again: in the notice before the first epoch for which nobody looked yet."""
        return self._moment(held.issued_ms, held.token)

    def _member_due_ms(self, kept: MeshHoldings) -> int:
        """Behind the moments of all topics, which bring our node's certificate along."""
        share = self._share(b"", kept.until_ms)
        return kept.until_ms - int(self.authority.notice_ms * (1 - _SPREAD) * (1 - share))

    def _moment(self, issued_ms: int, what: bytes) -> int:
        epoch_ms, notice_ms = self.authority.epoch_ms, self.authority.notice_ms
        settled = epoch_at(issued_ms + notice_ms, epoch_ms)  # the last epoch whose keys cannot change any more
        first = _UPDATED if self.awaits_updates else 0.0
        part = first + (_SPREAD - first) * self._share(what, settled)
        return (settled + 1) * epoch_ms - notice_ms + int(notice_ms * part)

    def _share(self, what: bytes, when: int) -> float:
        """From 0 to 1, our own: so that not all ask at once."""
        drawn = named_hash("tallystick mesh moment 1", self._moments + what + when.to_bytes(8, "big"))
        return int.from_bytes(drawn[:4], "big") / (1 << 32)

    def _suffices(self, held: HeldTopic, operation: Operation) -> bool:
        if not held.operations & operation or self._now_ms >= self.due_ms(held):
            return False
        if operation is Operation.ADVERTISE:
            try:
                for epoch in (self.epoch, self.epoch + 1):
                    self.publisher(held.token, epoch)
            except Unavailable:
                return False
        return True

    @property
    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    # --- the folder ---

    def _keep(self, answer: MeshAnswer, authority: MeshAuthority, change: Change) -> None:
        def changed(kept: MeshHoldings) -> MeshHoldings:
            if kept.authority and MeshAuthority.decode(kept.authority).key != authority.key:
                raise Forged(
                    "mesh: the authority signs with another key than before",
                    reason="wrong-key",
                    hint="ask its operator; then remove the folder mesh of this identity",
                )
            kept = replace(kept, authority=authority.encode())
            if answer.until_ms >= kept.until_ms and answer.is_place_of(self.lasting.public, authority.verify_key):
                kept = replace(kept, until_ms=answer.until_ms, member=answer.member)
            return change(kept)

        self._kept.change(changed)
