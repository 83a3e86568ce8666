"""Settings of a node and of an authority: one frozen value each, read from `node.toml` and `authority.toml` here.

A mistake names file, key, value and remedy. Numbers carry their unit in the name; each default has its reason here or
where the part it belongs to declares it.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tallystick.authority.settings import AuthoritySettings
from tallystick.carriers import registry
from tallystick.errors import Misuse

log = logging.getLogger(__name__)

FORMAT = 1
FILE, AUTHORITY_FILE = "node.toml", "authority.toml"

# Keys of earlier releases that decide nothing any more, and what to do instead.
GONE = dict.fromkeys(
    ("retention_bytes", "retention_s"),
    "what is kept belongs to each topic's owner: tally topic retain NAME --keep 30d; remove the line",
)
_IDENTIFIER = re.compile("[0-9a-f]{32}")

S = TypeVar("S", "NodeSettings", AuthoritySettings)


@dataclass(frozen=True)
class NodeSettings:
    host: str = "127.0.0.1"
    port: int = 7411
    authority_port: int = 7412
    tls_certificate: str = ""  # PEM files; needed off loopback
    tls_key: str = ""
    insecure: bool = False  # plain HTTP off loopback, where something else protects the network
    carrier: str = "log"  # or kafka://host:port,…
    carrier_settings: Mapping[str, str] = field(default_factory=dict)  # by keys that are the carrier's own
    gateway: bool = True  # False: a notary alone, beside clients that go to Kafka themselves
    commit_ms: int = 100  # how long an operation waits for company before it goes to the ledger
    block_ms: int = 2_000  # an empty block at least this often
    window_ms: int = 20  # how long a transaction waits for its block
    block_entries: int = 512  # BPS Fig. 7
    operations: str = "aggregate"  # or each: one entry per act
    late_epochs: int = 1  # epochs that ended by schedule and are still taken
    tenants: tuple[str, ...] = ()  # whose topics this node carries, by identifier; none named: everybody's
    tenant_bytes_stored_max: int = 64 << 30
    tenant_bytes_per_s: int = 64 << 20
    connection_bytes_per_s: int = 64 << 20  # of one connection, before anybody is asked who it is
    connection_requests_per_s: int = 2_000
    connections_max: int = 1_024
    address_connections_max: int = 256  # of these; clients behind one proxy or NAT share them
    principal_requests_max: int = 128  # under way, long polls among them
    principal_requests_per_s: int = 2_000  # whatever connections it uses
    ledger: str = ""  # cometbft://host:port,…: a chain instead of the embedded ledger
    witness_urls: tuple[str, ...] = ()
    json_logs: bool = False

    def __post_init__(self) -> None:
        if self.operations not in ("aggregate", "each"):
            raise Misuse(f'operations "{self.operations}" is unknown, expected aggregate or each')
        for tenant in self.tenants:
            if not _IDENTIFIER.fullmatch(tenant):
                hint = "tally topic show names the tenant of a topic"
                raise Misuse(f'tenants: "{tenant}" is no identifier of 32 hexadecimal digits', hint=hint)
        registry.check(self)


def read_settings(folder: Path) -> NodeSettings:
    """The settings in a node's folder; what is not there has its default."""
    path = folder / FILE
    if not path.exists():
        raise Misuse(f"{path}: missing", hint="name the folder of an instance; tally init makes one")
    return _read(path, NodeSettings, registry.keys())


def read_authority_settings(folder: Path) -> AuthoritySettings:
    """The settings in an authority's folder, where there is a file; what is not there has its default."""
    path = folder / AUTHORITY_FILE
    return _read(path, AuthoritySettings) if path.exists() else AuthoritySettings()


def _read(path: Path, kind: type[S], of_carriers: Collection[str] = ()) -> S:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise Misuse(f"{path}: {error}") from error
    found = data.pop("format", None)
    if found != FORMAT:
        raise Misuse(f"{path}: format {FORMAT} expected, found {found!r}", hint="upgrade tallystick to read it")
    known = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    known |= dict.fromkeys(of_carriers, "")
    values: dict[str, Any] = {}
    for key in data.keys() & GONE.keys():
        log.warning("%s: %s = %r has no effect: %s", path, key, data.pop(key), GONE[key])
    for key, value in data.items():
        if key not in known:
            raise Misuse(f'{path}: unknown key "{key}"', hint=f"known are {', '.join(sorted(known))}")
        default = known[key]
        values[key] = tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
        if type(values[key]) is not type(default):
            raise Misuse(f"{path}: {key} = {value!r}: expected a {type(default).__name__}")
    if of_carriers:
        values["carrier_settings"] = {key: values.pop(key) for key in of_carriers if key in values}
    return kind(**values)


def write_settings(folder: Path, settings: NodeSettings) -> None:
    """Write what differs from the defaults, and the addresses."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [f"format = {FORMAT}"]
    for one in fields(NodeSettings):
        value = getattr(settings, one.name)
        if one.name == "carrier_settings":
            lines += [f"{key} = {_toml(text)}" for key, text in sorted(value.items())]
        elif value != one.default or one.name in ("host", "port", "authority_port"):
            lines.append(f"{one.name} = {_toml(value)}")
    (folder / FILE).write_text("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return str(value)
