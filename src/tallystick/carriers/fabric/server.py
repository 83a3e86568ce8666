"""The fabric at a node: `carrier = "fabric://NAME"`, as one principal's host or as a tenant's dispatcher.

A **host** (`fabric_principal`, `fabric_interface`) owns an interface. It serves one principal, as a node of the mesh
does (`mesh/own_node.py`): what the principal publishes lies in the node's log and leaves in frames, and what comes in
frames is kept there. Labels come from the dispatcher, and are asked for whenever a client shows a permit.

A **dispatcher** (`fabric_configurator`) is the node that the ledger names for the tenant's topics, so that it may write
their operations. It keeps no parcels, and the permits that stand lie in files beside its log. Its doors: the card that
hosts need, open to all who are enrolled; the frames of the operator's configurator, and of nobody else; and the
directory of attributes, which the topics' owner (`fabric_principal`) brings.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

from tallystick.carriers import carrier as paths
from tallystick.carriers.carrier import Can, join_frames, split_frames
from tallystick.carriers.fabric.dispatcher import Dispatcher, DispatcherKeys, DispatcherLimits
from tallystick.carriers.fabric.exchanging import AgentLimits
from tallystick.carriers.fabric.host_kit import FabricKit, FabricOrder
from tallystick.carriers.fabric.host_station import HostOutside, HostStation
from tallystick.carriers.fabric.matcher import read_directory
from tallystick.carriers.fabric.standing import Asker
from tallystick.carriers.front import Front
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.mesh.arrivals import ArrivalLimits
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.own_node import StationHolder, Take, only, serve_own
from tallystick.carriers.mesh.sealed_files import SealedFiles
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.carriers.storage import Growth, Taken
from tallystick.errors import Misuse, Refused
from tallystick.guards.permits import is_live
from tallystick.policy.clustering import read_cuttings
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.runtime.effects import Arrived, Effect, Send, StoreEffect, Woken
from tallystick.runtime.sources import Clock, SystemClock
from tallystick.wire import is_identifier, is_number

CAN = Can.GUARD | Can.KNOW
LIMITS = MeshLimits(window_share_max=1 << 20)  # nobody's guards count frames here: the switches' rates do
ARRIVALS = ArrivalLimits(hold_s=1.0)  # repairs take less
ANSWER_S = 8.0  # how long a client waits for its dispatcher
STANDING_FOLDER, DIRECTORY_FILE = "standing", "fabric.directory"
LEAVING_MAX = 262_144  # frames that a configurator has not fetched


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    name, given = settings.carrier.removeprefix("fabric://").rstrip("/"), settings.carrier_settings
    for key in ("fabric_principal", "fabric_configurator"):
        if key in given and not is_identifier(given[key]):
            raise Misuse(f"node.toml: {key} is a principal's identifier", hint="as tally principal show says it")
    if "fabric_configurator" in given:
        return serve_dispatcher(given, host, disk)
    if "fabric_principal" not in given or not settings.gateway:
        raise Misuse("a host of the fabric serves one principal, and none is named", hint='fabric_principal = "…"')
    return _serve_host(name, given, host, disk)


def _serve_host(name: str, given: Mapping[str, str], host: CarrierHost, disk: Disk) -> Served:
    owner, mtu = bytes.fromhex(given["fabric_principal"]), given.get("fabric_mtu", "1500")
    if not is_number(mtu) or not 576 <= int(mtu) <= 9_000:
        raise Misuse(f"node.toml: fabric_mtu from 576 to 9000 expected, found {mtu}")
    outside = HostOutside(given.get("fabric_interface", ""), AgentLimits(mtu=int(mtu)))
    fabric = hold_fabric(outside, SealedFiles(disk, host.signer.key, outside.entropy, "fabric"))

    def take_kit(body: bytes) -> bytes:
        """Refuse one whose card is no word of a node on the ledger."""
        kit = FabricKit.decode(body)
        key = host.rules.node_key(kit.card.node)
        if key is None or kit.card.instance != host.rules.instance:
            raise Refused("dispatcher card: of no node of this instance", reason="unknown-node")
        kit.card.check(key)
        return fabric.equip(kit).agent.keys.public

    def ask(body: bytes) -> bytes:
        return fabric.require().ask(FabricOrder.decode(body), ANSWER_S).encode()

    def tell_status(_: bytes) -> bytes:
        station = fabric.station
        told = {"joined": False} if station is None else {"joined": True, **asdict(station.statistics())}
        return json.dumps({"fabric": name, "interface": outside.interface, **told}).encode()

    doors = {paths.FABRIC_KIT_PATH: take_kit, paths.FABRIC_ASK_PATH: ask, paths.FABRIC_STATUS_PATH: tell_status}
    return serve_own(fabric, owner, host, disk, doors, LIMITS, ARRIVALS)


FabricHolder = StationHolder[FabricKit, HostStation]


def hold_fabric(outside: HostOutside, files: SealedFiles) -> FabricHolder:
    def begin(kit: FabricKit, take: Take) -> HostStation:
        return HostStation(kit, outside, files, lambda pushed: take(b"", pushed))

    def renew(station: HostStation, old: FabricKit, kit: FabricKit) -> bool:
        is_same = (old.card, old.mesh.epoch_ms) == (kit.card, kit.mesh.epoch_ms)
        if is_same:
            station.set_kit(kit)
        return is_same

    return StationHolder(files, outside.clock, FabricKit.decode, begin, renew)


# --- a dispatcher ---


class NoParcels(LogStore):
    """A log that takes permits, orders and locks, and no parcels."""

    def carry(self, parcels: Sequence[Taken]) -> None:
        for one in parcels:
            hint = "publish at the principal's own host: tally fabric join"
            one.error = Refused("a dispatcher stores no parcels", reason="not-carried", hint=hint)


def serve_dispatcher(given: Mapping[str, str], host: CarrierHost, disk: Disk, clock: Clock = SystemClock()) -> Served:
    store = NoParcels(disk)
    front = host.front(store, store.journal, host.anchors())
    limits = DispatcherLimits(cuttings=read_cuttings(given.get("fabric_clustering", "")))
    station = DispatcherStation(front, host, disk, clock, limits)
    owner, configurator = (bytes.fromhex(given.get(key, "")) for key in ("fabric_principal", "fabric_configurator"))
    doors = {
        paths.FABRIC_CARD_PATH: lambda _, __: station.card,
        paths.FABRIC_FRAMES_PATH: only(configurator, station.exchange, "only the fabric's configurator speaks here"),
        paths.FABRIC_DIRECTORY_PATH: only(owner, station.take_directory, "only the topics' owner tells who holds what"),
    }
    return Served(front, station, doors)


class DispatcherStation(Growth):
    """The dispatcher behind its doors; the node's rounds are its clock. Thread-safe."""

    def __init__(self, front: Front, host: CarrierHost, disk: Disk, clock: Clock, limits: DispatcherLimits) -> None:
        super().__init__(front.anchored)
        self._disk, self._clock, self._lock = disk, clock, threading.Lock()
        disk.mkdir(STANDING_FOLDER)
        keys = DispatcherKeys(host.rules.instance, host.signer.principal, host.signer.key)
        is_standing = partial(is_live, front.rules, front.deposits.is_undone)
        self.role = Dispatcher(keys, front, host.rules.verify_key, is_standing, limits)
        for name in disk.listdir(STANDING_FOLDER):
            self.role.standing.enter(Asker.decode(read_all(disk, f"{STANDING_FOLDER}/{name}")))
        self.card = keys.card.encode()
        self._leaving: deque[bytes] = deque(maxlen=LEAVING_MAX)
        if disk.exists(DIRECTORY_FILE):
            self.role.standing.policies.set_principals(read_directory(read_all(disk, DIRECTORY_FILE)))
        self._carry_out(self.role.repeat())

    def statistics(self) -> Mapping[str, int]:
        told = asdict(self.role.statistics()).items()
        return {f"fabric_{name}": sum(it.values()) if isinstance(it, dict) else it for name, it in told}

    def exchange(self, body: bytes) -> bytes:
        """Take a configurator's frames. Returns those for it. Raises `Malformed`."""
        with self._lock:
            for frame in split_frames(body):
                self._carry_out(self.role.receive(Arrived("configurator", frame), self._clock.now()))
            leaving = [self._leaving.popleft() for _ in range(len(self._leaving))]
        return join_frames(leaving)

    def take_directory(self, body: bytes) -> bytes:
        principals = read_directory(body)
        with self._lock:
            write_atomic(self._disk, DIRECTORY_FILE, body)
            self._carry_out(self.role.set_principals(principals))
        return b""

    def work(self, now_ms: int) -> bool:
        """Look at what the ledger does not stand behind any more."""
        with self._lock:
            self._carry_out(self.role.receive(Woken(), self._clock.now()))
        return False

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreEffect):
                path = f"{STANDING_FOLDER}/{effect.key}"
                if effect.value is not None:
                    write_atomic(self._disk, path, effect.value)
                elif self._disk.exists(path):
                    self._disk.remove(path)
            elif isinstance(effect, Send):
                self._leaving.append(effect.message)
