"""What an identity keeps of the mesh in its folder, wrapped under its own key. It opens envelopes, and no bodies.

Processes of one identity share the file and take turns to change it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

from tallystick.authority.codec import Identifier, Number, Octets, Versioned, items, number, octets, record, row
from tallystick.authority.mesh_messages import EPOCHS_MAX, Guises, MeshAnswer, Secrets
from tallystick.carriers.mesh.mesh_keys import MeshKey
from tallystick.crypto.symmetric import unwrap, wrap
from tallystick.errors import CannotOpen, Malformed, Misuse, Unavailable
from tallystick.identity.folder import Identity
from tallystick.runtime.disk import RealDisk, read_all, write_atomic
from tallystick.runtime.sources import Entropy
from tallystick.trust.permit import Operation

log = logging.getLogger(__name__)

FOLDER, _FILE, _AAD = "mesh", "keys", b"tallystick mesh keyring 1"
TOPICS_MAX = 1_024  # in one folder, some 2 MB


@dataclass(frozen=True)
class HeldTopic:
    """What is kept of one topic."""

    token: Identifier
    operations: Annotated[int, number(at_most=3, at_least=1)]  # what it was asked for: 1 subscribe, 2 advertise, added
    issued_ms: Number = 0
    first_epoch: Number = 0
    secrets: Secrets = field(default=(), repr=False)
    leaves: Annotated[
        tuple[tuple[int, bytes, bytes], ...], items(row(number(), octets(32), octets(64)), at_most=EPOCHS_MAX)
    ] = field(default=(), repr=False)  # epoch, seed of a publisher's key, and its certificate
    guises: Guises = ()  # by epoch
    k_min: Number = 0  # what the owner holds for the least crowd
    thin: Annotated[int, number(at_most=1)] = 0  # whether fewer held keys when this was issued, the authority says

    def guise(self, epoch: int) -> int:
        return self.guises[epoch - self.first_epoch]

    @property
    def warning(self) -> str:
        """What is to be said of a thin crowd, or nothing."""
        if not self.thin:
            return ""
        return f"anonymity is thin: fewer than {self.k_min} principals hold its mesh keys, the authority says"

    @property
    def keys(self) -> list[MeshKey]:
        return [MeshKey(secret, self.first_epoch + ahead) for ahead, secret in enumerate(self.secrets)]

    def key(self, epoch: int) -> MeshKey:
        """Raises `Unavailable` where there is none."""
        for one in self.keys:
            if one.epoch == epoch:
                return one
        raise Unavailable(f"no mesh key of epoch {epoch}", hint="the authority must be reached for it: tally mesh keys")

    def leave(self, epoch: int) -> tuple[bytes, bytes] | None:
        """The seed and the certificate of a publisher's key, where we have them."""
        return next(((seed, certificate) for of, seed, certificate in self.leaves if of == epoch), None)

    def renewed(self, answer: MeshAnswer) -> HeldTopic:
        """With what was answered instead. Where that has no leaves, ours stay where the mesh key, and so the pseudonym,
        is the same."""
        came = answer.issued_ms, answer.first_epoch, answer.secrets
        fresh = HeldTopic(self.token, self.operations, *came, (), answer.guises, answer.k_min, answer.thin)
        same = {one.epoch for one in fresh.keys if one in self.keys}
        given = [(answer.first_epoch + ahead, *leave) for ahead, leave in enumerate(answer.leaves)]
        return replace(fresh, leaves=tuple(given or (one for one in self.leaves if one[0] in same)))


@dataclass(frozen=True)
class MeshHoldings(Versioned):
    what = "mesh keyring"
    authority: Octets = b""  # a `MeshAuthority`; empty before the first answer
    until_ms: Number = 0
    member: Annotated[bytes, octets(at_most=64)] = b""
    topics: Annotated[tuple[HeldTopic, ...], items(record(HeldTopic), at_most=TOPICS_MAX)] = ()

    def topic(self, token: bytes) -> HeldTopic | None:
        return next((one for one in self.topics if one.token == token), None)

    def with_topic(self, held: HeldTopic) -> MeshHoldings:
        others = tuple(one for one in self.topics if one.token != held.token)
        if len(others) >= TOPICS_MAX:
            raise Misuse(f"mesh keys of {TOPICS_MAX} topics are kept already", hint="use another identity")
        return replace(self, topics=(*others, held))

    def without(self, token: bytes, operation: Operation) -> MeshHoldings:
        """Without what was asked for to do this."""
        held, others = self.topic(token), tuple(one for one in self.topics if one.token != token)
        left = 0 if held is None else held.operations & ~operation
        if held is None or not left:
            return replace(self, topics=others)
        leaves = held.leaves if left & Operation.ADVERTISE else ()
        return replace(self, topics=(*others, replace(held, operations=left, leaves=leaves)))


Change = Callable[[MeshHoldings], MeshHoldings]


class KeptMesh:
    def __init__(self, identity: Identity, entropy: Entropy) -> None:
        self._disk, self._key, self._entropy = RealDisk(identity.home / FOLDER), identity.spool_key, entropy

    def change(self, change: Change) -> None:
        with self._disk.held("lock"):
            data = change(self.load()).encode()
            write_atomic(self._disk, _FILE, wrap(self._key, data, _AAD, self._entropy.bytes(32)))

    def load(self) -> MeshHoldings:
        if not self._disk.exists(_FILE):
            return MeshHoldings()
        try:
            return MeshHoldings.decode(unwrap(self._key, read_all(self._disk, _FILE), _AAD))
        except (CannotOpen, Malformed) as error:
            log.warning("kept mesh keys cannot be read, asking anew: %s", error)
            return MeshHoldings()
