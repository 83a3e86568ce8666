"""Carriers by the scheme of their URL. A new carrier is a folder of its own and a line in `_CARRIERS`, which also names
the keys that are its own in `node.toml`.

The folder's `server` has `serve(settings, host, disk)`, which opens the carrier at a node: its front, storage and
anchorer. Where clients have a way of their own, past the node, `direct` has `reach(settings, who)`, and an identity
with such a way has a file `<scheme>.json` in its folder. Nothing of a carrier is imported before it is asked for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tallystick.carriers.carrier import Carrier, Sharing
from tallystick.errors import Misuse

if TYPE_CHECKING:  # clients have no use for a node's parts
    from tallystick.carriers.front import Front
    from tallystick.carriers.remote import RemoteNode
    from tallystick.carriers.rules import LedgerRules
    from tallystick.carriers.scribe import NoteJournal
    from tallystick.carriers.storage import Anchorer, Newest, Place, Storage
    from tallystick.crypto.signatures import SigningKey
    from tallystick.guards.rules import GuardLimits
    from tallystick.ledger.block import Head
    from tallystick.ledger.contracts.state import Key, R
    from tallystick.ledger.engine import NodeLedger
    from tallystick.runtime.conversation import RequestSigner
    from tallystick.runtime.disk import Disk
    from tallystick.runtime.sources import Clock, Entropy


class _Known(NamedTuple):
    folder: str
    keys: tuple[str, ...] = ()
    for_reading: bool = True  # whether a client's own way is for what it reads as well


_TIMES = "overlay_hop_wait_s", "overlay_hop_keep_s"
_OVERLAY_KEYS = "overlay_listen", "overlay_content", "overlay_attempts_max", *_TIMES
_MESH_DIALS = "mesh_dial", "mesh_beat_s", "mesh_beat_cells", "mesh_mu", "mesh_nu", "mesh_lambda", "mesh_pulse_s"
_MESH_KEYS = "mesh_principal", "mesh_home", "mesh_listen", "mesh_contacts", "mesh_guises", *_MESH_DIALS
_FABRIC_KEYS = "fabric_principal", "fabric_interface", "fabric_mtu", "fabric_configurator", "fabric_clustering"
_CARRIERS = {
    "log": _Known("tallystick.carriers.log"),
    "kafka": _Known("tallystick.carriers.kafka", ("kafka_settings", "kafka_client_settings")),
    "overlay": _Known("tallystick.carriers.overlay", _OVERLAY_KEYS, for_reading=False),
    "mesh": _Known("tallystick.carriers.mesh", _MESH_KEYS, for_reading=False),
    "fabric": _Known("tallystick.carriers.fabric", _FABRIC_KEYS, for_reading=False),
}


class Direct(Carrier, Protocol):
    """A client's own way to a carrier; it may bring secrets of lane keys as well."""

    @property
    def sharing(self) -> Sharing | None: ...

    anchors: bool  # whether what it takes will be anchored on the ledger

    def close(self) -> None: ...


class ProvedRows(Protocol):
    """A client's view of the ledger (`client/ties.py`)."""

    def row_at(self, key: Key[R], /) -> tuple[R | None, Head]: ...


@dataclass(frozen=True, repr=False)
class Wayfarer:
    """Who goes its own way to a carrier, and what it has with it. `node` is asked for what the carrier itself does not
    keep; the key signs what the carrier must know to be this principal's."""

    node: RemoteNode
    principal: bytes
    key: SigningKey
    view: ProvedRows | None  # a task that only reads has none
    clock: Clock
    entropy: Entropy


@dataclass(frozen=True, repr=False)
class Way:
    """How somebody reaches a carrier past the node. Its settings may hold a password, so it has no text form."""

    scheme: str
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        """The carrier by its name, as a topic is sent there."""
        return f"{self.scheme}://{self.settings.get(self.scheme, '')}"

    def open(self, who: Wayfarer) -> Direct:
        found: Direct = _module(self.scheme, "direct").reach(self.settings, who)
        return found

    @property
    def for_reading(self) -> Way | None:
        """This way, where who only reads needs it: what an overlay's relays keep is read over ordinary requests."""
        return self if _CARRIERS[self.scheme].for_reading else None


class CarrierSettings(Protocol):
    """What a node's settings say of its carrier."""

    @property
    def carrier(self) -> str: ...  # a scheme, or a URL

    @property
    def carrier_settings(self) -> Mapping[str, str]: ...  # its own keys

    @property
    def gateway(self) -> bool: ...  # whether parcels come and go through the node


class CarrierHost(Protocol):
    """What a node lends to its carrier."""

    ledger: NodeLedger
    rules: LedgerRules
    signer: RequestSigner
    limits: GuardLimits

    def anchors(self) -> dict[Place, Newest]:
        """Each partition's newest anchor on the ledger."""

    def block(self) -> tuple[int, int]:
        """Height and time of the newest block."""

    def write(self, entries: Sequence[bytes]) -> int:
        """Bring entries to the ledger in one transaction. Returns its number."""

    def front(
        self, storage: Storage, journal: NoteJournal, anchors: Mapping[Place, Newest], *, quiet: bool = False
    ) -> Front:
        """`quiet` where no act may come to the ledger."""


@dataclass(frozen=True)
class Served:
    """A carrier at a node; `doors` are requests of its own, by path: from principal and body to an answer. It rings the
    `bell` when its anchorer has work that should not wait for the node's next round."""

    front: Front
    anchorer: Anchorer
    doors: Mapping[str, Callable[[bytes, bytes], bytes]] = field(default_factory=dict)
    bell: threading.Event = field(default_factory=threading.Event)


def check(settings: CarrierSettings) -> None:
    """Raise `Misuse` unless there is such a carrier."""
    if _scheme(settings.carrier) not in _CARRIERS:
        names = " or ".join(f"{name}://…" if name != "log" else name for name in _CARRIERS)
        raise Misuse(f'carrier "{settings.carrier}" is unknown, expected {names}')


def keys() -> frozenset[str]:
    """The keys in `node.toml` that are some carrier's own; each is a text."""
    return frozenset(key for known in _CARRIERS.values() for key in known.keys)


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    """The carrier that the settings name, opened: what an earlier process left on `disk` is recovered."""
    check(settings)
    served: Served = _module(_scheme(settings.carrier), "server").serve(settings, host, disk)
    return served


def own_way(home: Path) -> Way | None:
    """The way past its node that the identity in `home` has, if it has one."""
    for scheme in _CARRIERS:
        path = home / f"{scheme}.json"
        if path.exists():
            try:
                return Way(scheme, json.loads(path.read_text()))
            except ValueError as error:
                raise Misuse(f"{path}: not JSON", hint=f"tally principal {scheme} writes it anew") from error
    return None


def _module(scheme: str, name: str) -> Any:
    return import_module(f"{_CARRIERS[scheme].folder}.{name}")


def _scheme(url: str) -> str:
    return url.partition("://")[0]
