"""A plan as people write it, in TOML or JSON, and the file of signatures beside it.

    overlay = "city"

    [[nodes]]
    name = "hub"
    [[nodes.relays]]
    principal = "6f0c0d3b8a1e4f5d9c7b2a1908f7e6d5"   # or its name, where the identity knows it
    address = "relay-1.example:7443"
    link_key = "…"                                    # 64 hexadecimal digits: of its TLS certificate
    operator = "acme"                                 # what it shares a fate with
    host = "rack-1"

    [[nodes]]
    name = "edge"
    parent = "hub"                                    # stands before it
    …

Threat: somebody alters plan or signatures on their way from one administrator to the next. So every administrator makes
the plan from the file again, with the keys that the ledger names, and signs only what is byte for byte what the others
signed. The signatures themselves are the ledger's to judge.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.errors import Malformed, Misuse
from tallystick.trust.plan import Plan, Relay, VirtualNode, node_id

_TOP, _NODE = {"overlay", "version", "nodes"}, {"name", "parent", "relays"}
_RELAY = {"principal", "address", "link_key", "operator", "host"}
_OPTIONAL = {"version", "parent", "operator", "host"}


@dataclass(frozen=True)
class PlanFile:
    """What a file says, its names not looked up yet."""

    path: Path
    overlay: str
    version: int | None  # None: the one after the newest
    nodes: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> PlanFile:
        """Raises `Misuse`, naming file and place."""
        try:
            text = path.read_text()
            found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except (UnicodeDecodeError, ValueError) as error:
            raise Misuse(f"{path}: {error}", hint="a plan is TOML, or JSON in a file that ends in .json") from error
        top = _table(found, path, "the plan", _TOP)
        if top.get("version") is not None and type(top["version"]) is not int:
            raise Misuse(f'{path}: version "{top["version"]}" is no whole number', hint="leave it out: it is the next")
        return cls(path, str(top["overlay"]), top.get("version"), _tables(top["nodes"], path, "nodes", _NODE))

    def plan(self, overlay: bytes, version: int, find: Callable[[str], bytes], key: Callable[[bytes], bytes]) -> Plan:
        """The plan, with `find` for the identifier of a principal and `key` for what it signs with. Raises `Misuse`."""
        if self.version not in (None, version):
            raise Misuse(f"{self.path}: version {self.version}, the next is {version}", hint="leave the version out")
        nodes = []
        for node in self.nodes:
            relays = _tables(node["relays"], self.path, f'relays of "{node["name"]}"', _RELAY)
            parent = node_id(overlay, str(node["parent"])) if node.get("parent") else b""
            seats = tuple(self._relay(one, find(str(one["principal"])), key) for one in relays)
            nodes.append(VirtualNode(node_id(overlay, str(node["name"])), parent, seats))
        try:
            return Plan.decode(Plan(overlay, version, tuple(nodes)).encode())  # held to its bounds as on the ledger
        except Malformed as error:
            raise Misuse(f"{self.path}: {error}") from error

    def _relay(self, told: Mapping[str, Any], principal: bytes, key: Callable[[bytes], bytes]) -> Relay:
        try:
            link_key = bytes.fromhex(str(told["link_key"]))
        except ValueError:
            link_key = b""
        if len(link_key) != 32:
            raise Misuse(f"{self.path}: relay {told['principal']}: a link_key of 64 hexadecimal digits expected")
        address, operator, host = (str(told.get(name, "")) for name in ("address", "operator", "host"))
        return Relay(principal, key(principal), link_key, address, operator, host)


@dataclass
class SignedPlan:
    """What administrators have signed so far: a plan, the height from which it counts, and their signatures."""

    plan: bytes
    first: int
    signatures: dict[bytes, bytes] = field(default_factory=dict)  # by administrator

    @staticmethod
    def path_of(plan_file: Path) -> Path:
        return plan_file.with_name(plan_file.name + ".signatures")

    @classmethod
    def read(cls, plan_file: Path) -> SignedPlan | None:
        """What lies beside the plan, or None. Raises `Misuse`."""
        path = cls.path_of(plan_file)
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            signed = {bytes.fromhex(name): bytes.fromhex(signature) for name, signature in found["signatures"].items()}
            return cls(bytes.fromhex(found["plan"]), int(found["first_height"]), signed)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Misuse(f"{path}: not a file of signatures", hint="remove it, and let all sign again") from error

    def write(self, plan_file: Path) -> Path:
        """Put it beside the plan. Returns where."""
        signed = {name.hex(): signature.hex() for name, signature in sorted(self.signatures.items())}
        told = {"first_height": self.first, "signatures": signed, "plan": self.plan.hex()}
        path = self.path_of(plan_file)
        path.write_text(json.dumps(told, indent=1) + "\n")
        return path


def _tables(found: Any, path: Path, what: str, names: set[str]) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not found:
        raise Misuse(f"{path}: {what}: a list expected, [[nodes]] or [[nodes.relays]] in TOML")
    return [_table(one, path, f"{what}, number {number}", names) for number, one in enumerate(found, 1)]


def _table(found: Any, path: Path, what: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Misuse(f"{path}: {what}: a table expected")
    if unknown := sorted(found.keys() - names):
        raise Misuse(f'{path}: {what}: unknown key "{unknown[0]}"', hint=f"known are {', '.join(sorted(names))}")
    if missing := sorted(names - _OPTIONAL - found.keys()):
        raise Misuse(f"{path}: {what}: {missing[0]} is missing")
    return found
