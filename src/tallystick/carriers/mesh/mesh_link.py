"""One end of a link of the mesh: whom it leads to, under which session it speaks, what waits and what came.

It speaks under the session that counts; where there is none, or nothing came for long, it knocks. A knock from who has
not heard our fresh key is answered by one knock, so that whoever writes another's address on a datagram cannot have
more sent there than it sends. While a new session is being made, one datagram of each beat is for that, and the others
go under the old one: whoever disturbs it delays fresh keys and nothing else. When the other end began a new life, it
forgot everything: what was not acknowledged whole goes again from its beginning.
"""

from __future__ import annotations

from tallystick.carriers.mesh.cells import Cell, CellsIn
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.link_keys import NOBODY, Knock, LinkSession, agree_lasting, seal_knock
from tallystick.carriers.mesh.resending import CellsOut
from tallystick.crypto.exchange import EXCHANGE_BYTES, ExchangeKey
from tallystick.errors import CannotOpen, Refused
from tallystick.runtime.sources import Entropy

OVER_MAX = 64  # sessions that are remembered: a neighbour is rarely restarted more often in an hour
CAME_MAX = 64  # cells that come between beats before they are acknowledged outside of one: a quarter of what may be


class MeshLink:
    """`beat` is the beat in which the link begins."""

    def __init__(
        self, own: ExchangeKey, peer: bytes, address: str, beat: int, limits: MeshLimits, entropy: Entropy
    ) -> None:
        self.peer, self.address = peer, address
        self.agreed = agree_lasting(own, peer)
        self.waiting = CellsOut(limits.waiting_bytes_max)
        self.heard = beat  # the last beat in which a cell came
        self.is_lost = False  # whether that was said
        self.owes = False  # an answer to a knock
        self.came = 0  # cells since we last acknowledged any
        self.knocks = 0  # in this beat
        self._opened = 0  # cells in this beat
        self._own, self._limits, self._entropy = own, limits, entropy
        self._current: LinkSession | None = None  # counts
        self._candidate: LinkSession | None = None  # will count when a cell of it comes
        self._over: set[bytes] = set()  # the other end's fresh keys of sessions with our fresh key that counted once
        self._is_tried = True  # the candidate, in this beat
        self._trials = 0  # beats in which it was
        self._fresh, self._renewed = self._draw(), beat
        self._into = self._new_into()
        self._their_life = b""

    @property
    def is_up(self) -> bool:
        """Whether the other end proved who it is, in this life of ours."""
        return self._current is not None

    @property
    def is_trying(self) -> bool:
        """Whether a session is being made, for which one datagram of each beat is needed."""
        return self._candidate is not None

    def is_silent(self, beat: int) -> bool:
        return beat - self.heard >= self._limits.silent_beats

    def speaks(self, beat: int) -> bool:
        """Whether a cell could be sent now."""
        return self._session(beat) is not None

    def on_beat(self, beat: int) -> None:
        """Begin a beat. In time the fresh key is drawn anew."""
        self.knocks = self._opened = 0
        self._is_tried, self._trials = False, self._trials + 1
        if self._current is not None and self._trials > self._limits.silent_beats:
            self._candidate = None  # it came of an old knock, sent once more
        waits = 1 if self._candidate is None else 2  # a session that is being made has some more time
        if beat - self._renewed >= waits * self._limits.session_beats:
            self._renewed, self._candidate = beat, None
            self._renew()
            if self._current is not None:
                self._try(Knock(self._current.fresh, NOBODY, self._current.life))

    def hear_knock(self, knock: Knock) -> None:
        """Take a knock of the other end's up, to be answered if need be. Raises `Refused` for one of a session that is
        over: it was sent once more, and so would be what was said then."""
        if knock.fresh in self._over:
            raise Refused("knock: of a session that is over", reason="duplicate")
        self.owes = not self._try(knock).is_answered

    def open(self, data: bytes, beat: int) -> list[bytes]:
        """The messages that a cell of this link makes whole. Raises `Refused`, and `CannotOpen` if it is of another."""
        if self._opened >= self._limits.cells_max:
            raise Refused("cell: too many in one beat", reason="too-many-cells")
        for session in (self._current, self._candidate):
            if session is not None and (plain := _opened(session, data)) is not None:
                break
        else:
            raise CannotOpen
        self._opened += 1
        cell = Cell.decode(plain)
        if session is self._candidate:
            self._promote(session)
        self.heard, self.is_lost = beat, False
        self.came += bool(cell.pieces)
        self.waiting.acknowledge(cell.highest, cell.came)
        return self._into.receive(cell)

    def datagram(self, beat: int, life: bytes, shown: bytes, *, padded: bool) -> bytes:
        """The next one: a knock where one is owed or cells could not be opened, else a cell. `life` names this process,
        and `shown` makes this node a member."""
        session, heard = self._session(beat), self._candidate or self._current
        is_trial, self._is_tried = not self._is_tried and self._candidate is not None, True
        if is_trial and self._candidate is not None and self._candidate.is_answered:
            session = self._candidate
        elif is_trial or self.owes or session is None:
            self.owes = False
            knock = Knock(self._fresh.public, heard.fresh if heard else NOBODY, life, shown)
            return seal_knock(knock, self._own, self.peer, self.agreed, self._entropy, padded=padded)
        told = (self._into.highest, self._into.came) if session.life == self._their_life else (0, 0)
        self.came = 0
        return session.seal(self.waiting.cell(beat, *told).encode(padded=padded), self._entropy)

    def _session(self, beat: int) -> LinkSession | None:
        if self._current is not None and not self.is_silent(beat):
            return self._current
        return self._candidate if self._candidate is not None and self._candidate.is_answered else None

    def _try(self, knock: Knock) -> LinkSession:
        session = LinkSession.between(self._own, self.peer, self.agreed, self._fresh, knock)
        if session != self._candidate:
            self._candidate, self._trials = session, 0
        return session

    def _promote(self, session: LinkSession) -> None:
        if self._current is not None and self._current.fresh != session.fresh:
            self._end(self._current)
        self._current, self._candidate = session, None
        if session.life != self._their_life:
            if self._their_life:
                self.waiting.restart()
            self._into, self._their_life = self._new_into(), session.life

    def _end(self, session: LinkSession) -> None:
        self._over.add(session.fresh)
        if len(self._over) > OVER_MAX:
            self._renew()

    def _renew(self) -> None:
        """Draw a fresh key: under it no earlier session can be made again."""
        self._fresh = self._draw()
        self._over.clear()

    def _draw(self) -> ExchangeKey:
        return ExchangeKey(self._entropy.bytes(EXCHANGE_BYTES))

    def _new_into(self) -> CellsIn:
        return CellsIn(self._limits.message_bytes_max, self._limits.unfinished_bytes_max)


def _opened(session: LinkSession, data: bytes) -> bytes | None:
    try:
        return session.open(data)
    except CannotOpen:
        return None
