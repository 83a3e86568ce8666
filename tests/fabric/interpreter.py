"""An interpreter of the compiled switch program (pubsub.json, the format of the BMv2 behavioural model): the oracle.

It knows nothing of publications: it walks parser states, conditions, tables and actions as the file has them. Around
them stands what v1model's architecture does and the file does not say: the drop port, multicast copies, and that
`mcast_grp` 0 is none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

DROP_PORT = 511
REPLICATED = 5

Frames = list[tuple[int, bytes]]


@dataclass
class Packet:
    """Header fields by (header, field), which headers are valid, and what was not parsed."""

    rest: bytes
    fields: dict[tuple[str, str], int] = field(default_factory=dict)
    valid: set[str] = field(default_factory=set)

    def copy(self) -> Packet:
        return Packet(self.rest, dict(self.fields), set(self.valid))


class Interpreter:
    def __init__(self) -> None:
        program = resources.files("tallystick.carriers.fabric").joinpath("program/pubsub.json").read_text()
        self.program: dict[str, Any] = json.loads(program)
        types = {one["name"]: one["fields"] for one in self.program["header_types"]}
        self.layout = {one["name"]: types[one["header_type"]] for one in self.program["headers"]}
        self.actions = {one["id"]: one for one in self.program["actions"]}
        self.entries: dict[str, dict[tuple[int, ...], tuple[str, list[int]]]] = {}
        self.groups: dict[int, tuple[int, ...]] = {}
        self.counters: dict[tuple[int, ...], list[int]] = {}

    def put(self, table: str, key: tuple[int, ...], action: str, *arguments: int) -> None:
        self.entries.setdefault(table, {})[key] = action, list(arguments)

    def process(self, port: int, frame: bytes) -> Frames:
        """What leaves the switch, by port, when this arrives at a port (510: with the controller's header)."""
        packet = Packet(frame)
        standard = "standard_metadata"
        for name, _bits, _signed in self.layout[standard]:
            packet.fields[standard, name] = 0
        packet.fields[standard, "ingress_port"] = port
        packet.fields[standard, "packet_length"] = len(frame)
        self._parse(packet)
        self._run("ingress", packet)
        group = packet.fields[standard, "mcast_grp"]
        if group:
            copies = [packet.copy() for _ in self.groups.get(group, ())]
            for copy, to in zip(copies, self.groups.get(group, ()), strict=True):
                copy.fields[standard, "egress_port"] = to
                copy.fields[standard, "instance_type"] = REPLICATED
        elif packet.fields[standard, "egress_spec"] == DROP_PORT:
            copies = []
        else:
            packet.fields[standard, "egress_port"] = packet.fields[standard, "egress_spec"]
            copies = [packet]
        out = []
        for copy in copies:
            copy.fields[standard, "egress_spec"] = 0
            self._run("egress", copy)
            if copy.fields[standard, "egress_spec"] != DROP_PORT:
                out.append((copy.fields[standard, "egress_port"], self._deparse(copy)))
        return out

    # --- parser and deparser ---

    def _parse(self, packet: Packet) -> None:
        parser = self.program["parsers"][0]
        states = {one["name"]: one for one in parser["parse_states"]}
        state = parser["init_state"]
        while state is not None:
            for operation in states[state]["parser_ops"]:
                assert operation["op"] == "extract"
                if not self._extract(packet, operation["parameters"][0]["value"]):
                    return  # PacketTooShort: what was parsed so far goes to the pipeline
            keys = states[state]["transition_key"]
            value = packet.fields[tuple(keys[0]["value"])] if keys else None
            state = self._next_state(states[state]["transitions"], value)

    @staticmethod
    def _next_state(transitions: list[dict[str, Any]], value: int | None) -> Any:
        for one in transitions:
            if one["type"] == "default" or int(one["value"], 16) == value:
                return one["next_state"]
        raise AssertionError("every state of this program has a default")

    def _extract(self, packet: Packet, header: str) -> bool:
        bits = sum(width for _name, width, _signed in self.layout[header])
        if len(packet.rest) * 8 < bits:
            return False
        value = int.from_bytes(packet.rest[: bits // 8])
        packet.rest = packet.rest[bits // 8 :]
        for name, width, _signed in reversed(self.layout[header]):
            packet.fields[header, name] = value & ((1 << width) - 1)
            value >>= width
        packet.valid.add(header)
        return True

    def _deparse(self, packet: Packet) -> bytes:
        out = b""
        for header in self.program["deparsers"][0]["order"]:
            if header in packet.valid:
                value = bits = 0
                for name, width, _signed in self.layout[header]:
                    value = value << width | packet.fields[header, name]
                    bits += width
                out += value.to_bytes(bits // 8)
        return out + packet.rest

    # --- pipelines ---

    def _run(self, name: str, packet: Packet) -> None:
        (pipeline,) = (one for one in self.program["pipelines"] if one["name"] == name)
        tables = {one["name"]: one for one in pipeline["tables"]}
        conditions = {one["name"]: one for one in pipeline["conditionals"]}
        node = pipeline["init_table"]
        while node is not None:
            if node in conditions:
                holds = self._value(conditions[node]["expression"], packet)
                node = conditions[node]["true_next" if holds else "false_next"]
            else:
                node = self._apply(tables[node], packet)

    def _apply(self, table: dict[str, Any], packet: Packet) -> Any:
        key = tuple(packet.fields[tuple(one["target"])] for one in table["key"])
        found = self.entries.get(table["name"], {}).get(key) if table["key"] else None
        if found is None:
            default = table["default_entry"]
            action, arguments = self.actions[default["action_id"]], [int(one, 16) for one in default["action_data"]]
        else:
            (action,) = (self.actions[one] for one in table["action_ids"] if self.actions[one]["name"] == found[0])
            arguments = found[1]
            if table["with_counters"]:
                counter = self.counters.setdefault(key, [0, 0])
                counter[0] += 1
                counter[1] += packet.fields["standard_metadata", "packet_length"]
        for step in action["primitives"]:
            self._step(step["op"], step["parameters"], arguments, packet)
        return table["next_tables"][action["name"]]

    def _step(self, operation: str, parameters: list[dict[str, Any]], arguments: list[int], packet: Packet) -> None:
        if operation == "assign":
            source = parameters[1]
            value = arguments[source["value"]] if source["type"] == "runtime_data" else self._value(source, packet)
            packet.fields[tuple(parameters[0]["value"])] = value
        elif operation == "mark_to_drop":
            packet.fields["standard_metadata", "egress_spec"] = DROP_PORT
            packet.fields["standard_metadata", "mcast_grp"] = 0
        elif operation == "add_header":
            packet.valid.add(parameters[0]["value"])
        else:
            assert operation == "remove_header"
            packet.valid.discard(parameters[0]["value"])

    def _value(self, term: Any, packet: Packet) -> int:
        kind, value = term["type"], term["value"]
        if kind == "hexstr":
            return int(value, 16)
        if kind == "field":
            header, name = value
            return int(header in packet.valid) if name == "$valid$" else packet.fields.get((header, name), 0)
        assert kind == "expression"
        operation, right = value["op"], value["right"]
        if operation == "d2b":
            return int(bool(self._value(right, packet)))
        left = self._value(value["left"], packet)
        if operation == "and":
            return int(bool(left) and bool(self._value(right, packet)))
        assert operation == "=="
        return int(left == self._value(right, packet))
