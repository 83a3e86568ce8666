"""The mesh at a node: `carrier = "mesh://NAME"`, for one principal (`mesh_principal` in node.toml, `own_node.py`).

The node takes part in the mesh by a station in a thread of its own, once it has its principal's kit (`kit.py`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace

from tallystick.carriers.carrier import KIT_PATH, MESH_STATUS_PATH, Can
from tallystick.carriers.mesh.community import CommunityLimits
from tallystick.carriers.mesh.forwarding import GUISES, CoverChoice, Guise
from tallystick.carriers.mesh.kit import MeshKit, read_entry, show_entry
from tallystick.carriers.mesh.link_layer import Dial
from tallystick.carriers.mesh.mesh_node import MeshSettings
from tallystick.carriers.mesh.own_node import StationHolder, Take, serve_own
from tallystick.carriers.mesh.pace import paced
from tallystick.carriers.mesh.sealed_files import SealedFiles
from tallystick.carriers.mesh.station import MeshOutside, MeshStation
from tallystick.carriers.registry import CarrierHost, CarrierSettings, Served
from tallystick.errors import Misuse
from tallystick.runtime.disk import Disk
from tallystick.wire import is_identifier

CAN = Can.GUARD | Can.KNOW
SILENT_PULSES = 2.5  # after which a publisher that is not heard counts as cut off


def serve(settings: CarrierSettings, host: CarrierHost, disk: Disk) -> Served:
    given, name = settings.carrier_settings, settings.carrier.removeprefix("mesh://").rstrip("/")
    principal = given.get("mesh_principal", "")
    if not is_identifier(principal) or not settings.gateway:
        hint = 'mesh_principal = "…", as tally principal show says it'
        raise Misuse("a node of the mesh serves one principal, and none is named", hint=hint)
    outside = read_outside(given)
    mesh = hold_mesh(outside, SealedFiles(disk, host.signer.key, outside.entropy))

    def take_kit(body: bytes) -> bytes:
        return show_entry(mesh.equip(MeshKit.decode(body)).entry).encode()

    def tell_status(_: bytes) -> bytes:
        return json.dumps({"mesh": name, **_status(mesh)}).encode()

    doors = {KIT_PATH: take_kit, MESH_STATUS_PATH: tell_status}
    return serve_own(mesh, bytes.fromhex(principal), host, disk, doors, outside.settings.mesh)


def read_outside(given: Mapping[str, str]) -> MeshOutside:
    """What node.toml says of the mesh. Beats and pulses are the same at all nodes of one. Raises `Misuse`."""
    default = MeshSettings()

    def read(key: str, otherwise: float, least: float, most: float) -> float:
        value = float(given.get(f"mesh_{key}", otherwise))
        if not least <= value <= most:
            raise ValueError(f"mesh_{key} from {least} to {most} expected, found {value}")
        return value

    try:
        dial = Dial[given.get("mesh_dial", "padded").upper()]
        beat_s, cells = (
            read("beat_s", default.mesh.beat_s, 0.05, 60),
            int(given.get("mesh_beat_cells", default.mesh.beat_cells)),
        )
        covers = CoverChoice(read("mu", default.covers.mu, 0, 1), read("nu", default.covers.nu, 0, 1))
        guises = tuple(_guise(one) for one in given.get("mesh_guises", "").split(",") if one.strip())
        if len(guises) >= GUISES:
            raise ValueError(f"mesh_guises: at most {GUISES - 1} beside the first expected, found {len(guises)}")
        decay, pulse_s = (
            read("lambda", default.game.decay, 0, 1e6),
            read("pulse_s", default.community.pulse_s, 0.1, 600),
        )
        if not 2 <= cells <= 256:  # beside a knock, each beat has room for a word
            raise ValueError(f"mesh_beat_cells from 2 to 256 expected, found {cells}")
    except (KeyError, ValueError) as error:
        raise Misuse(
            f"node.toml: {error}", hint="mesh_dial is off, padded or constant, the others are numbers"
        ) from error
    contacts = tuple(read_entry(one.strip()) for one in given.get("mesh_contacts", "").split(",") if one.strip())
    settings = MeshSettings(
        mesh=replace(default.mesh, beat_s=beat_s, beat_cells=cells),
        community=CommunityLimits(pulse_s, SILENT_PULSES * pulse_s),
        covers=covers,
        guises=guises,
        game=replace(default.game, decay=decay),
    )
    return MeshOutside(given.get("mesh_listen", "127.0.0.1:0"), contacts, dial, paced(settings))


def _guise(text: str) -> Guise:
    mu, nu, decay = map(float, text.split("/"))
    if not 0 <= decay <= 1e6:
        raise ValueError(f"mesh_guises: λ of 0 or more expected, found {decay}")
    return Guise(CoverChoice(mu, nu), decay)


class WorkingMeshStation(MeshStation):
    """In a thread of its own, until `stop`."""

    def __init__(self, kit: MeshKit, outside: MeshOutside, take: Take, files: SealedFiles) -> None:
        super().__init__(kit, outside, take, files)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="mesh", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            asyncio.run(self.run())
        except Exception as error:
            self.failure = error

    def under_way(self) -> float:
        """Nobody knows what is still coming."""
        return float("-inf")

    def stop(self) -> None:
        super().stop()
        self._thread.join()


MeshHolder = StationHolder[MeshKit, WorkingMeshStation]


def hold_mesh(outside: MeshOutside, files: SealedFiles) -> MeshHolder:
    def begin(kit: MeshKit, take: Take) -> WorkingMeshStation:
        return WorkingMeshStation(kit, outside, take, files)

    def renew(station: WorkingMeshStation, old: MeshKit, kit: MeshKit) -> bool:
        """Where the node is the same, its links stay up."""
        if old.is_same_node(kit):
            station.renew(kit)
        return old.is_same_node(kit)

    return StationHolder(files, outside.clock, MeshKit.decode, begin, renew)


def _status(mesh: MeshHolder) -> dict[str, object]:
    station, kit = mesh.station, mesh.kit
    if station is None or kit is None:
        return {"joined": False}
    topics = [[one.token.hex(), one.epoch, one.reads, bool(one.certificate)] for one in kit.topics]
    entry = {"entry": show_entry(station.entry), "address": station.entry.address}
    return {"joined": True, **entry, "topics": topics, **asdict(station.statistics())}
