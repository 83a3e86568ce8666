"""A mesh for trials: nodes that only forward, all in one process of this machine, for an instance that runs.

    <folder>/mesh/mesh.json      where each of them listens
    <folder>/mesh/contacts       entries of some of them, as other nodes' `mesh_contacts`
    <folder>/mesh/forwarders/1/  the principal behind each

Each is a principal of its own, since a principal has one place in the mesh. In a real mesh they would be everybody's:
one who runs all of them sees every link, and hides nobody from himself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.carriers.mesh.kit import MeshKit, show_entry
from tallystick.carriers.mesh.station import MeshOutside, MeshStation
from tallystick.client.mesh_keyring import MeshKeyring
from tallystick.client.session import Session
from tallystick.errors import Misuse, TallystickError
from tallystick.identity.enrol import enrol_invited
from tallystick.identity.folder import Identity
from tallystick.identity.invitation import Invitation
from tallystick.node.instance import Folders, read_address
from tallystick.node.operator import operating
from tallystick.node.processes import free_ports
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

TENANT = "mesh"  # of those that only forward
RENEW_S = 60.0  # between two looks at whose certificate ends
CONTACTS = 3  # entries that others are told of, and that each one knows of those before it
_FILE, _FORMAT = "mesh.json", "tallystick trial mesh 1"


@dataclass(frozen=True)
class TrialMesh:
    folder: Path
    ports: tuple[int, ...]

    @classmethod
    def prepare(cls, folder: Path, count: int | None) -> TrialMesh:
        """The one in `folder`, or a new one of so many. Raises `Misuse` if it was made otherwise."""
        place = folder / "mesh"
        path = place / _FILE
        if not path.exists():
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = cls(folder, tuple(free_ports(count or 10)))
            path.write_text(json.dumps({"format": _FORMAT, "ports": made.ports}) + "\n")
            return made
        try:
            found = json.loads(path.read_text())
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']!r}")
            ports = tuple(int(port) for port in found["ports"])
        except (ValueError, KeyError, TypeError) as error:
            raise Misuse(f"{path}: not what tally mesh up wrote: {error}") from error
        if count not in (None, len(ports)):
            raise Misuse(f"{path}: it has {len(ports)} nodes", hint="leave --nodes out, or remove the folder mesh")
        return cls(folder, ports)

    @property
    def contacts_file(self) -> Path:
        return self.folder / "mesh" / "contacts"

    def home(self, number: int) -> Path:
        return self.folder / "mesh" / "forwarders" / str(number)

    def kits(self, clock: Clock, entropy: Entropy, on_each: Callable[[int], None]) -> list[MeshKit]:
        """What each of them needs, from the authority that runs; who is missing is enrolled first."""
        missing = [n for n in range(1, len(self.ports) + 1) if not (self.home(n) / "identity.json").exists()]
        if missing:
            self._enrol(missing, clock, entropy)
        found = []
        for number in range(1, len(self.ports) + 1):
            with Session(Identity.load(self.home(number)), clock=clock, entropy=entropy) as session:
                keyring = MeshKeyring(session.identity, session.authority, clock, entropy)
                keyring.join()
                found.append(keyring.kit())
            on_each(number)
        return found

    def renew(self, crew: ForwarderCrew, clock: Clock, entropy: Entropy) -> None:
        """Give later certificates to those whose last epoch runs. Raises `Unavailable` without the authority."""
        for number, station in enumerate(crew.stations, 1):
            if clock.now() * 1000 < station.entry.until_ms - crew.epoch_ms:
                continue
            with Session(Identity.load(self.home(number)), clock=clock, entropy=entropy) as session:
                keyring = MeshKeyring(session.identity, session.authority, clock, entropy)
                keyring.join()
                station.renew(keyring.kit())

    def _enrol(self, numbers: Sequence[int], clock: Clock, entropy: Entropy) -> None:
        folders = Folders(self.folder)
        with operating(self.folder, clock, entropy) as operator:
            if TENANT not in operator.tenants():
                operator.create_tenant(TENANT)
            codes = {number: operator.invite_to(TENANT) for number in numbers}
        urls = read_address(folders.authority).url, (read_address(folders.node).url,)
        trust = TrustFile.parse(folders.trust.read_text())
        for number, code in codes.items():
            invitation = Invitation.of(code, trust, *urls)
            enrol_invited(self.home(number), f"forwarder-{number}", invitation, clock=clock, entropy=entropy)


@dataclass
class ForwarderCrew:
    """Stations that run together, in whoever's event loop."""

    stations: list[MeshStation] = field(default_factory=list)
    epoch_ms: int = 0

    @classmethod
    def gather(cls, kits: Sequence[MeshKit], ports: Sequence[int], outside: MeshOutside) -> ForwarderCrew:
        """Listens at once; each knows some of those before it."""
        made = cls(epoch_ms=kits[0].epoch_ms if kits else 0)
        for kit, port in zip(kits, ports, strict=True):
            known = tuple(one.entry for one in made.stations[-CONTACTS:])
            chosen = replace(outside, listen=f"127.0.0.1:{port}", contacts=known)
            made.stations.append(MeshStation(kit, chosen, lambda publisher, pushed: None))
        return made

    @property
    def contacts(self) -> str:
        return ",".join(show_entry(one.entry) for one in self.stations[:CONTACTS])

    async def run(self, renew: Callable[[], None] = lambda: None) -> None:
        """Until `stop`, and `renew` now and then. Raises what one of them raised."""
        renewing = asyncio.create_task(self._repeat(renew))
        try:
            await asyncio.gather(*(one.run() for one in self.stations))
        finally:
            renewing.cancel()
            self.stop()

    async def _repeat(self, renew: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await asyncio.to_thread(renew)
            except TallystickError as error:
                log.warning("mesh: certificates are not renewed: %s", error)

    def stop(self) -> None:
        """From any thread."""
        for one in self.stations:
            one.stop()
