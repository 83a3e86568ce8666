"""Groups of the one principal that a node serves, kept at the node: for carriers of which nothing comes to the ledger.

Threat: a group's entries on the ledger tell everybody who reads which topic, when its processes come and go, and how
far they are. On a mesh that is what nobody may learn. So the rows lie here, under the ledger's own rules: the contract
(`ledger/contracts/groups.py`) runs on them, with rights and topics as the ledger has them. What is given up: these
offsets are the node's word, and not proved. The node is the principal's own, its door is open to that principal alone,
and an offset moves only within the node's log.

A question is [1, [entry, …], [key, …]], the answer the values under those keys after the entries, all of which count or
none. What the entries changed is on disk before the answer goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tallystick import wire
from tallystick.carriers.storage import Place
from tallystick.errors import Malformed, Refused
from tallystick.ledger.contracts import groups
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.state import Call, Handler, State
from tallystick.ledger.engine import NodeLedger
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.sources import Clock
from tallystick.trust.certificate import SubjectKind
from tallystick.wire import Fields

FILE = "groups"
ROWS_MAX = 4_096  # groups, and offsets of their partitions; some 0.5 MB
AT_ONCE_MAX = 256  # entries of a question, and keys
_FAMILIES = groups.GROUPS.prefix(), groups.OFFSETS.prefix()
_RULES: dict[int, Handler] = {
    EntryKind.GROUP: groups.create,
    EntryKind.JOIN: groups.join,
    EntryKind.LEAVE: groups.leave,
    EntryKind.COMMIT_OFFSET: groups.commit,
    EntryKind.RESET_OFFSET: groups.reset,
}
_MOVES = (EntryKind.COMMIT_OFFSET, EntryKind.RESET_OFFSET)


class KeptGroups:
    def __init__(
        self, ledger: NodeLedger, disk: Disk, owner: bytes, instance: bytes, clock: Clock, end: Callable[[Place], int]
    ) -> None:
        """`end` tells how far the log of a partition goes."""
        self._ledger, self._disk, self._owner, self._instance = ledger, disk, owner, instance
        self._clock, self._end, self._lock = clock, end, threading.Lock()
        self._rows: dict[bytes, bytes] = {}
        if disk.exists(FILE):
            self._rows = {bytes(key): bytes(value) for key, value in wire.decode(read_all(disk, FILE), "groups")}

    def answer(self, body: bytes) -> bytes:
        """Raises `Refused` as the contract does."""
        fields = Fields.parse(body, "group question", 3)
        fields.version(1)
        entries, keys = fields.items(AT_ONCE_MAX), fields.items(AT_ONCE_MAX)
        if not all(type(one) is bytes for one in (*entries, *keys)):
            raise Malformed("group question: entries and keys expected")
        with self._lock:
            if entries:
                self._change([wire.decode(one, "entry") for one in entries])
            return wire.encode([self._read(key) for key in keys])

    def _read(self, key: bytes) -> object:
        value = self._rows.get(key)
        return None if value is None else wire.decode(value, "state value")

    def _change(self, entries: list[object]) -> None:
        state = State(self._load)
        row = state.row(IDENTITIES(self._owner))
        author = self._owner, SubjectKind.PRINCIPAL, b"" if row is None else row.tenant
        call = Call(state, self._instance, *author, self._ledger.height, int(self._clock.now() * 1000), 0)
        for entry in entries:
            if not isinstance(entry, list) or not entry or (rule := _RULES.get(entry[0])) is None:
                raise Malformed("group question: an entry of a group expected")
            rule(call, entry)
            if entry[0] in _MOVES and entry[7] > self._end(Place(entry[3], entry[4])):
                raise Refused(f"offset {entry[7]} lies beyond the log of this node", reason="offset-ahead")
        state.keep()
        changed = {key: value for key, value in state.changes().items() if value is not None}
        rows = self._rows | changed
        if len(rows) > ROWS_MAX:
            raise Refused(f"at most {ROWS_MAX} groups and offsets at one node", reason="groups-full")
        write_atomic(self._disk, FILE, wire.encode([[key, value] for key, value in rows.items()]))
        self._rows = rows

    def _load(self, key: bytes) -> bytes | None:
        if key.startswith(_FAMILIES):
            return self._rows.get(key)
        value = self._ledger.query(lambda state: state.get(key))
        return None if value is None else wire.encode(value)
