"""What a switch is programmed to do, and who may program it. Decisions only; frames and messages are elsewhere.

Threat: a controller that was replaced, and does not know it yet, goes on writing. Invariant: whoever once showed the
greatest election number is the only one that writes, and a smaller number never leads again, also when the greatest
has gone: the number is the fencing number of the controllers' lease. Tables are bounded as the program declares; an
entry beyond is refused with an honest error, and all others go on working.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from tallystick.carriers.fabric.entries import DataPlane, Entries, no_entries
from tallystick.carriers.fabric.p4_entities import P4Refusal, from_entity, key_of_table_entry, kind_of_table, to_entity
from tallystick.carriers.fabric.p4_messages import p4r, rpc_code
from tallystick.carriers.fabric.rules import GROUPS_MAX, TABLE_MAX
from tallystick.errors import Unavailable

S = TypeVar("S")

SIZES = {Entries.PUBLICATIONS: TABLE_MAX, Entries.NEXT_LABELS: TABLE_MAX, Entries.GROUPS: GROUPS_MAX}


class SwitchState:
    """The tables of a plane, as messages fill and read them."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane, self._tables = plane, plane.tables
        self._entities = no_entries()  # what stands there as messages, made once: counters are asked for every second

    def update(self, kind: int, entity: Any) -> None:
        """Carry one update of a write out. Raises `P4Refusal`, and then nothing has changed."""
        if kind not in (p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE):
            raise P4Refusal(rpc_code.INVALID_ARGUMENT, "insert, modify or delete expected")
        entry = from_entity(entity, is_deleted=kind == p4r.Update.DELETE)
        table, name = self._tables[entry.kind], entry.kind.value
        if kind != p4r.Update.INSERT and entry.key not in table:
            raise P4Refusal(rpc_code.NOT_FOUND, f"{name}: there is no such entry")
        if kind == p4r.Update.INSERT and entry.key in table:
            raise P4Refusal(rpc_code.ALREADY_EXISTS, f"{name}: there is such an entry")
        if kind == p4r.Update.INSERT and len(table) >= SIZES[entry.kind]:
            raise P4Refusal(rpc_code.RESOURCE_EXHAUSTED, f"{name}: full with {len(table)} entries")
        if kind == p4r.Update.DELETE:
            self._plane.delete(entry.kind, entry.key)
            del self._entities[entry.kind][entry.key]
            return
        try:
            self._plane.put(entry)
        except Unavailable as error:
            raise P4Refusal(rpc_code.RESOURCE_EXHAUSTED, str(error)) from error
        self._entities[entry.kind][entry.key] = to_entity(entry)

    def read(self, asked: Any) -> Iterator[Any]:
        """The entities that one of a read request asks for, with what they counted if that was asked too. Raises
        `P4Refusal`."""
        kind = asked.WhichOneof("entity")
        if kind == "table_entry":
            counters = self._counters() if asked.table_entry.HasField("counter_data") else {}
            for table, key in self._asked(asked.table_entry):
                found = p4r.Entity(table_entry=self._entities[table][key].table_entry)
                if key in counters:
                    found.table_entry.counter_data.CopyFrom(counters[key])
                yield found
        elif kind == "direct_counter_entry":
            counters = self._counters()
            for table, key in self._asked(asked.direct_counter_entry.table_entry):
                if table is Entries.PUBLICATIONS:
                    entry = self._entities[table][key].table_entry
                    told = p4r.DirectCounterEntry(table_entry=entry, data=counters[key])
                    yield p4r.Entity(direct_counter_entry=told)
        elif asked.packet_replication_engine_entry.WhichOneof("type") == "multicast_group_entry":
            group = asked.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
            yield from (one for number, one in self._entities[Entries.GROUPS].items() if group in (0, number))
        # meters, clone sessions, digests: the program has none

    def _counters(self) -> dict[bytes, Any]:
        found = self._plane.counters().items()
        return {key: p4r.CounterData(packet_count=packets, byte_count=total) for key, (packets, total) in found}

    def _asked(self, asked: Any) -> list[tuple[Entries, Any]]:
        """The tables and keys of the entries that match."""
        kinds = [kind_of_table(asked.table_id)] if asked.table_id else [Entries.PUBLICATIONS, Entries.NEXT_LABELS]
        if asked.match:
            key = key_of_table_entry(asked)
            return [(kinds[0], key)] if key in self._tables[kinds[0]] else []
        return [(kind, key) for kind in kinds if not asked.is_default_action for key in self._tables[kind]]

    def clear(self) -> None:
        """Labels before what they lead to."""
        for kind in (Entries.PUBLICATIONS, Entries.NEXT_LABELS, Entries.GROUPS):
            for key in list(self._tables[kind]):
                self._plane.delete(kind, key)
            self._entities[kind].clear()


class Arbitration(Generic[S]):
    """Which of the connected controllers is the primary: the one with the greatest election number ever shown."""

    def __init__(self) -> None:
        self.greatest = -1
        self.elections: dict[S, int | None] = {}  # by stream; None until it has claimed one

    def claim(self, stream: S, election: int) -> None:
        """Raises `P4Refusal` if another stream has this number."""
        if any(held == election for other, held in self.elections.items() if other is not stream):
            raise P4Refusal(rpc_code.INVALID_ARGUMENT, f"election number {election} is another's")
        self.elections[stream] = election
        self.greatest = max(self.greatest, election)

    @property
    def primary(self) -> S | None:
        return next((stream for stream, election in self.elections.items() if election == self.greatest), None)

    def check(self, election: int) -> None:
        """Raises `P4Refusal` unless this is the primary's number, and it is here."""
        if election != self.greatest or self.primary is None:
            raise P4Refusal(rpc_code.PERMISSION_DENIED, "only the primary controller writes")
