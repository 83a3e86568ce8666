"""Entries of the switch program as P4Runtime's messages, and back. Numbers and widths come from p4info.

What a peer sends is judged field by field; a `P4Refusal` carries the canonical code that P4Runtime has for the fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

from tallystick.carriers.fabric.entries import MATCH, Entries, NextKey, RouteAction, RouteVerdict, SwitchEntry
from tallystick.carriers.fabric.p4_messages import DecodeError, p4i, p4r, rpc_code, text_format
from tallystick.carriers.fabric.rules import CONTROLLER_PORT, DROP_PORT, GROUP_PORTS_MAX, GROUPS_MAX
from tallystick.errors import Refused

PORT_BITS = 9
_KEY_BITS = (16, 128, PORT_BITS)  # epoch, label; and in `next_labels` the port
_ACTIONS = {  # of each table, and the bits of their parameter
    Entries.PUBLICATIONS: {"drop": 0, "forward": PORT_BITS, "multicast": 16},
    Entries.NEXT_LABELS: {"relabel": 128},
}


class P4Refusal(Refused):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message, reason=rpc_code.Code.Name(code).lower().replace("_", "-"))
        self.code = code


class SwitchProgram:
    """The one program of the fabric, as it was compiled. Tables and actions have numbers."""

    def __init__(self) -> None:
        folder = resources.files("tallystick.carriers.fabric").joinpath("program")
        text, compiled = (folder.joinpath(name).read_bytes() for name in ("pubsub.p4info.txtpb", "pubsub.json"))
        p4info = text_format.Parse(text, p4i.P4Info())
        self.tables = {Entries(one.preamble.alias): one.preamble.id for one in p4info.tables}
        self.kinds = {number: kind for kind, number in self.tables.items()}
        self.actions = {one.preamble.alias: one.preamble.id for one in p4info.actions}
        self.names = {number: name for name, number in self.actions.items()}
        # The cookie says which program runs, without sending it.
        digest = hashlib.sha256(text + compiled).digest()
        cookie = p4r.ForwardingPipelineConfig.Cookie(cookie=int.from_bytes(digest[:8]))
        self.config = p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=compiled, cookie=cookie)


switch_program = cache(SwitchProgram)


def canonical(number: bytes) -> bytes:
    """As few bytes as it needs."""
    return number.lstrip(b"\0") or b"\0"


def to_election(number: int) -> Any:
    return p4r.Uint128(high=number >> 64, low=number & (1 << 64) - 1)


def read_election(number: Any) -> int:
    return int(number.high << 64 | number.low)


def port_metadata(port: int) -> list[Any]:
    """Of a packet in or out: its port, and what fills it up to whole bytes."""
    told = canonical(port.to_bytes(2)), b"\0"
    return [p4r.PacketMetadata(metadata_id=at, value=one) for at, one in enumerate(told, start=1)]


def packet_port(packet: Any) -> int:
    """Raises `P4Refusal`."""
    return read_number({one.metadata_id: one.value for one in packet.metadata}.get(1, b""), PORT_BITS, "port")


def read_number(data: bytes, bits: int, what: str) -> int:
    value = int.from_bytes(data)
    if not data or value >> bits:
        raise P4Refusal(rpc_code.OUT_OF_RANGE, f"{what}: a number of {bits} bits expected")
    return value


def to_entity(entry: SwitchEntry) -> Any:
    """The message that stands for an entry; of one that is to be deleted the value may be None."""
    kind, key, value = entry
    entity = p4r.Entity()
    if kind is Entries.GROUPS:
        group = entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = key
        group.replicas.extend(p4r.Replica(egress_port=port, instance=instance) for port, instance in value or ())
        return entity
    program, table = switch_program(), entity.table_entry
    table.table_id = program.tables[kind]
    match, *port = key if kind is Entries.NEXT_LABELS else (key,)
    for at, one in enumerate((match[:2], match[2:], *(number.to_bytes(2) for number in port)), start=1):
        field = table.match.add()
        field.field_id, field.exact.value = at, canonical(one)
    if value is not None:
        is_label = kind is Entries.NEXT_LABELS
        name, argument = ("relabel", value) if is_label else (value.verdict.name.lower(), value.argument.to_bytes(4))
        table.action.action.action_id = program.actions[name]
        if _ACTIONS[kind][name]:
            param = table.action.action.params.add()
            param.param_id, param.value = 1, canonical(argument)
    return entity


def from_entity(entity: Any, *, is_deleted: bool = False) -> SwitchEntry:
    """Raises `P4Refusal`. Of what is deleted only the key counts, and the value is None."""
    if entity.WhichOneof("entity") == "table_entry":
        return _from_table_entry(entity.table_entry, is_deleted)
    if entity.packet_replication_engine_entry.WhichOneof("type") == "multicast_group_entry":
        return _from_group(entity.packet_replication_engine_entry.multicast_group_entry, is_deleted)
    raise P4Refusal(rpc_code.UNIMPLEMENTED, "entries of tables and multicast groups are all that can be written")


def kind_of_table(table: int) -> Entries:
    """Raises `P4Refusal`."""
    kind = switch_program().kinds.get(table)
    if kind is None:
        raise P4Refusal(rpc_code.NOT_FOUND, f"no table has the number {table}")
    return kind


def key_of_table_entry(entry: Any) -> Any:
    """Raises `P4Refusal`."""
    kind = kind_of_table(entry.table_id)
    found = {one.field_id: one.exact.value for one in entry.match}
    wanted = _KEY_BITS if kind is Entries.NEXT_LABELS else _KEY_BITS[:2]
    if len(entry.match) != len(wanted) or found.keys() != set(range(1, 1 + len(wanted))) or entry.priority:
        raise P4Refusal(rpc_code.INVALID_ARGUMENT, f"{kind.value}: {len(wanted)} exact fields and no priority expected")
    epoch, label, *port = (read_number(found[at], bits, kind.value) for at, bits in enumerate(wanted, 1))
    match = MATCH.pack(epoch, label.to_bytes(16))
    return NextKey(match, *port) if port else match


def tell_unmatched(unmatched: Mapping[int, int]) -> Any:
    """Frames whose label had no rule, by port. The program has no counter for them, but a stream a place for others'
    messages: this one holds counters as if it had."""
    message, told = p4r.StreamMessageResponse(), p4r.ReadResponse()
    for port, count in unmatched.items():
        counter = told.entities.add().counter_entry
        counter.index.index, counter.data.packet_count = port, count
    message.other.Pack(told)
    return message


def read_unmatched(other: Any) -> dict[int, int]:
    """Of another's message nothing is known, and nothing told."""
    told = p4r.ReadResponse()
    with suppress(DecodeError):
        other.Unpack(told)
    counters = [one.counter_entry for one in told.entities]
    return {one.index.index: one.data.packet_count for one in counters if 0 <= one.index.index <= DROP_PORT}


def _from_table_entry(entry: Any, is_deleted: bool) -> SwitchEntry:
    kind = kind_of_table(entry.table_id)
    if entry.is_default_action:
        raise P4Refusal(rpc_code.PERMISSION_DENIED, f"{kind.value}: the default action is constant")
    key, action = key_of_table_entry(entry), entry.action.action
    if is_deleted:
        return SwitchEntry(kind, key, None)
    name = switch_program().names.get(action.action_id, "")
    bits = _ACTIONS[kind].get(name)
    params = {one.param_id: one.value for one in action.params}
    if bits is None or set(params) != ({1} if bits else set()):
        raise P4Refusal(rpc_code.INVALID_ARGUMENT, f"{kind.value}: no such action, or other parameters than it has")
    argument = read_number(params[1], bits, name) if bits else 0
    if kind is Entries.NEXT_LABELS:
        return SwitchEntry(kind, key, argument.to_bytes(16))
    if name == "forward":
        _check_port(argument)
    return SwitchEntry(kind, key, RouteAction(RouteVerdict[name.upper()], argument))


def _check_port(port: int) -> int:
    """The compiled program would send publications to the controller, without a header in front: none has use for it,
    and a flood of them would be the controller's."""
    if port == CONTROLLER_PORT or port > DROP_PORT:
        raise P4Refusal(rpc_code.OUT_OF_RANGE, f"port {port}: no publication is sent to the controller")
    return port


def _from_group(group: Any, is_deleted: bool) -> SwitchEntry:
    if not 1 <= group.multicast_group_id <= GROUPS_MAX:
        raise P4Refusal(rpc_code.INVALID_ARGUMENT, f"multicast groups are numbered from 1 to {GROUPS_MAX}")
    if is_deleted:
        return SwitchEntry(Entries.GROUPS, group.multicast_group_id, None)
    if len(group.replicas) > GROUP_PORTS_MAX:
        raise P4Refusal(rpc_code.RESOURCE_EXHAUSTED, f"a group has at most {GROUP_PORTS_MAX} copies")
    copies = tuple((_check_port(_port_of(one)), one.instance) for one in group.replicas)
    if len(set(copies)) != len(copies):
        raise P4Refusal(rpc_code.INVALID_ARGUMENT, "a port and instance twice in one group")
    return SwitchEntry(Entries.GROUPS, group.multicast_group_id, copies)


def _port_of(replica: Any) -> int:
    return read_number(replica.port, PORT_BITS, "port") if replica.port else int(replica.egress_port)
