"""What a topic's owner says of its mesh: the guise that it wears, and the least crowd that it should hide in.

It stays at the authority: on the ledger everybody would see which topics are on a mesh. A guise is one of the four that
all nodes of a mesh know (`carriers/mesh/forwarding.py`). Another one counts when a renewal of keys would, so that all
members change with the epoch; where nobody holds keys, at once.

The crowd is *thin* where fewer than `k_min` principals hold keys of the topic that serve in the current epoch, the one
who asks among them. It is this authority's word alone: certificates name nobody, so nobody else can count. It is true
of the moment in which it was said, and too high if anything: holders may be away, and an owner who gives rights to many
principals of one hand makes a crowd of them. Forwarders and covers are not in it: they hide a member's place, and not
that the topic has few. Members are told whether it is thin, and not how many there are: that number serves an observer
who wants to know when to stop looking (AnonPubSub 4.7).
"""

from __future__ import annotations

from tallystick.authority.mesh_messages import MeshRequest
from tallystick.authority.store import AuthorityStore
from tallystick.authority.subjects import Subjects
from tallystick.authority.topics import Topics, unknown
from tallystick.errors import Malformed

_GUISE_MAX = 3


class MeshTerms:
    def __init__(self, store: AuthorityStore, subjects: Subjects, topics: Topics) -> None:
        self._store, self._subjects, self._topics = store, subjects, topics

    def check(self, principal: bytes, request: MeshRequest) -> None:
        """Raise `Refused` unless the principal owns the topic or its tenant; to others it does not exist."""
        who, topic = self._subjects.find(principal), self._topics.find(request.token)
        if who is None or topic is None or topic.tenant != who.tenant:
            raise unknown(request.token)
        if topic.owner != principal and not self._subjects.is_admin(who):
            raise unknown(request.token)
        if len(request.terms) != 2 or request.terms[0] > _GUISE_MAX or request.operation:
            raise Malformed("mesh request: a guise from 0 to 3 and a number expected, and nothing else")

    def put(self, token: bytes, guise: int, k_min: int, epoch: int, renewed: int) -> None:
        """Keep both; the guise from this epoch on, or from the one for which keys would be renewed."""
        if guise != self.guise(token, renewed):
            held = "SELECT count(*) FROM mesh_holders WHERE token = ?"
            first = renewed if self._store.scalar(held, (token,)) else epoch
            self._store.write("INSERT OR REPLACE INTO mesh_guises VALUES (?, ?, ?)", (token, first, guise))
        self._store.write("INSERT OR REPLACE INTO mesh_floors VALUES (?, ?)", (token, k_min))

    def guise(self, token: bytes, epoch: int) -> int:
        known = "SELECT guise FROM mesh_guises WHERE token = ? AND epoch <= ? ORDER BY epoch DESC LIMIT 1"
        return int(self._store.scalar(known, (token, epoch)) or 0)

    def crowd(self, token: bytes, epoch: int) -> tuple[int, int]:
        """`k_min` of a topic, and whether fewer hold its keys."""
        k_min = int(self._store.scalar("SELECT k_min FROM mesh_floors WHERE token = ?", (token,)) or 0)
        held = "SELECT count(*) FROM mesh_holders WHERE token = ? AND last_epoch >= ?"
        return k_min, int(int(self._store.scalar(held, (token, epoch)) or 0) < k_min)

    def tidy(self, epoch: int) -> None:
        """Forget guises that are over; in the caller's transaction."""
        self._store.write(
            "DELETE FROM mesh_guises WHERE epoch < (SELECT max(epoch) FROM mesh_guises AS later"
            " WHERE later.token = mesh_guises.token AND later.epoch <= ?)",
            (epoch,),
        )
