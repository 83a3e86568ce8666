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

The ledger knows virtual nodes by their identifiers, which are hashes of their names; so a file may give 32 hexadecimal
digits in a name's place, as one that `write_plan` made from the ledger does.

Threat: somebody alters plan or signatures on their way from one administrator to the next. So every administrator makes
the plan from the file again, with the keys that the ledger names, and signs only what is byte for byte what the others
signed. The signatures themselves are the ledger's to judge.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.errors import Malformed, Misuse
from tallystick.trust.plan import Plan, Relay, VirtualNode, node_id
from tallystick.wire import is_identifier

_TOP, _NODE = {"overlay", "version", "nodes"}, {"name", "parent", "relays"}
_RELAY = {"principal", "address", "link_key", "operator", "host"}
_OPTIONAL = {"version", "parent", "operator", "host"}

PrincipalKey = Callable[[bytes], bytes]  # what a principal signs with, by the ledger


def find_node(overlay: bytes, text: str) -> bytes:
    """The identifier of a virtual node that `text` names, or that it is."""
    return bytes.fromhex(text) if is_identifier(text) else node_id(overlay, text)


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
        top = table(read_document(path), path, "the plan", _TOP)
        if top.get("version") is not None and type(top["version"]) is not int:
            raise Misuse(f'{path}: version "{top["version"]}" is no whole number', hint="leave it out: it is the next")
        return cls(path, str(top["overlay"]), top.get("version"), tables(top["nodes"], path, "nodes", _NODE))

    def names(self, overlay: bytes) -> dict[bytes, str]:
        """What the file calls the virtual nodes of this overlay."""
        return {find_node(overlay, str(node["name"])): str(node["name"]) for node in self.nodes}

    def plan(self, overlay: bytes, version: int, find: Callable[[str], bytes], key: PrincipalKey) -> Plan:
        """The plan, with `find` for the identifier of a principal and `key` for what it signs with. Raises `Misuse`."""
        if self.version not in (None, version):
            raise Misuse(f"{self.path}: version {self.version}, the next is {version}", hint="leave the version out")
        nodes = []
        for node in self.nodes:
            relays = tables(node["relays"], self.path, f'relays of "{node["name"]}"', _RELAY)
            parent = find_node(overlay, str(node["parent"])) if node.get("parent") else b""
            seats = tuple(read_relay(self.path, one, find(str(one["principal"])), key) for one in relays)
            nodes.append(VirtualNode(find_node(overlay, str(node["name"])), parent, seats))
        try:
            return Plan.decode(Plan(overlay, version, tuple(nodes)).encode())  # held to its bounds as on the ledger
        except Malformed as error:
            raise Misuse(f"{self.path}: {error}") from error


def read_relay(path: Path, told: Mapping[str, Any], principal: bytes, key: PrincipalKey) -> Relay:
    """The relay that a table of the file says. Raises `Misuse`."""
    link_key = read_link_key(str(told["link_key"]))
    if link_key is None:
        raise Misuse(f"{path}: relay {told['principal']}: a link_key of 64 hexadecimal digits expected")
    address, operator, host = (str(told.get(name, "")) for name in ("address", "operator", "host"))
    return Relay(principal, key(principal), link_key, address, operator, host)


def read_link_key(text: str) -> bytes | None:
    """The key that `text` is in hexadecimal digits, or None."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return None
    return found if len(found) == 32 else None


def write_plan(path: Path, overlay: str, plan: Plan, names: Mapping[bytes, str]) -> None:
    """Write the file from which everybody makes this plan. It names the version, so that it is none other."""

    def named(node: bytes) -> str:
        return names.get(node) or node.hex()

    nodes: list[dict[str, Any]] = []
    for node in plan.nodes:
        place = {"name": named(node.identifier)} | ({"parent": named(node.parent)} if node.parent else {})
        nodes.append(place | {"relays": [_told(relay) for relay in node.relays]})
    told = {"overlay": overlay, "version": plan.version, "nodes": nodes}
    text = json.dumps(told, indent=1) if path.suffix == ".json" else "\n".join(_toml(told))
    path.write_text(text + "\n", encoding="utf-8")


def _told(relay: Relay) -> dict[str, str]:
    told = {"principal": relay.identifier.hex(), "address": relay.address, "link_key": relay.link_key.hex()}
    return told | {name: value for name in ("operator", "host") if (value := getattr(relay, name))}


def _toml(table: Mapping[str, Any], within: str = "") -> Iterator[str]:
    for name, value in table.items():
        if not isinstance(value, list):
            yield f"{name} = {_toml_value(value)}"
            continue
        for one in value:
            yield from ("", f"[[{within}{name}]]", *_toml(one, f"{within}{name}."))


def _toml_value(value: str | int) -> str:
    """Operators choose what relays are called, so nothing in it may end the string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


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


def read_document(path: Path) -> Any:
    """What a file says in TOML or JSON. Raises `Misuse`."""
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (UnicodeDecodeError, ValueError) as error:
        raise Misuse(f"{path}: {error}", hint="TOML expected, or JSON in a file that ends in .json") from error


def tables(
    found: Any, path: Path, what: str, names: Iterable[str], optional: Iterable[str] = _OPTIONAL
) -> list[dict[str, Any]]:
    """A list of tables with these keys, of which some may be missing. Raises `Misuse`, naming the place."""
    if not isinstance(found, list) or not found:
        raise Misuse(f"{path}: {what}: a list expected, such as [[nodes]] or [[nodes.relays]] in TOML")
    return [table(one, path, f"{what}, number {number}", names, optional) for number, one in enumerate(found, 1)]


def table(
    found: Any, path: Path, what: str, names: Iterable[str], optional: Iterable[str] = _OPTIONAL
) -> dict[str, Any]:
    """A table with these keys, of which some may be missing. Raises `Misuse`."""
    if not isinstance(found, dict):
        raise Misuse(f"{path}: {what}: a table expected")
    if unknown := sorted(found.keys() - {*names}):
        raise Misuse(f'{path}: {what}: unknown key "{unknown[0]}"', hint=f"known are {', '.join(sorted(names))}")
    if missing := sorted({*names} - {*optional} - found.keys()):
        raise Misuse(f"{path}: {what}: {missing[0]} is missing")
    return found
