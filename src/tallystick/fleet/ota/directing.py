"""The Director at work: rows and the ledger are read, offers go out as rows, reports go to the ledger.

`FleetView` reads what anybody may who has the rights: manifests, release records, patches, campaigns by proof. The
`Directing` that stands on it signs the Director's metadata, one folder a vehicle, and only for vehicles that
`director` named; what is the same for many, proofs under one checkpoint and the files of the Image repository, is
brought once for all of them. Those files it reads as a vehicle does (`metadata`): it sends nothing on that a vehicle
would refuse.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.errors import Refused, Unavailable
from tallystick.fleet.ota.director import REPORT_S, CampaignReport, Director, Proposal
from tallystick.fleet.ota.fleetfile import FleetFile, VehicleFile
from tallystick.fleet.ota.judging import UpdateOffer
from tallystick.fleet.ota.metadata import TrustedRepository
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.repository import Repository, load_keys, load_roots
from tallystick.ledger import entries
from tallystick.ledger.block import Head
from tallystick.ledger.contracts.firmware import CAMPAIGNS, RELEASES
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.proofs import StateProof
from tallystick.objects.layout import DOCKET_BYTES_MAX, Docket
from tallystick.objects.sources import Source, read_file
from tallystick.runtime.disk import RealDisk
from tallystick.wire import Fields

FLUSH_S = 60.0
_AT_ONCE = 1000  # campaigns that a node lists, and offers that go out in one round

log = logging.getLogger(__name__)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """A row that does not count is told, and those behind it count."""
    try:
        yield
    except Refused as error:
        log.warning("%s: %s", what, error)


class FleetView:
    """What is known of a fleet's updates. `vehicles` is a folder of `VehicleFile`s."""

    def __init__(self, session: Session, fleet: FleetFile, vehicles: Path, report_s: float = REPORT_S) -> None:
        self.session, self.fleet, self._vehicles = session, fleet, vehicles
        self.director, self._enrolled = Director(report_s), set[str]()
        self._campaigns: dict[bytes, None] = {}
        self._height = 0  # up to which campaigns were looked for
        self._readers: dict[str, Subscriber] = {}

    def read(self, wait_ms: int = 0) -> Head:
        """Read what is new, waiting so long for a manifest. Returns the checkpoint under which it was read."""
        self.read_plans()
        head = self.session.view.refresh()
        for row in self.rows("manifests", wait_ms):
            with _logged("manifests"):
                self.director.take_manifest(row["manifest"])
        return head

    def read_plans(self) -> None:
        """Read all but the manifests: vehicles, releases, patches and campaigns."""
        for file in sorted(self._vehicles.glob("*.json")):
            if file.name not in self._enrolled:
                self._enrolled.add(file.name)
                with _logged("vehicles"):
                    found = VehicleFile.read(file)
                    self.director.enrol(found.vehicle, found.enrolled)
        self.director.take_early()
        for row in self.rows("releases"):
            with _logged("releases"):
                self.director.take_record(ReleaseRecord.of_row(row))
        self.director.patches |= {(row["base"], row["image"]): row["patch"] for row in self.rows("patches")}
        self._read_ledger()

    def rows(self, what: str, wait_ms: int = 0) -> Iterator[dict[str, Any]]:
        """The new rows of a topic."""
        if what not in self._readers:
            found = partial(log.warning, "%s: %s", what)
            self._readers[what] = self.session.subscriber(self.fleet[what].name, on_bad="report", on_finding=found)
        while received := self._readers[what].poll(wait_ms):
            wait_ms = 0
            for one in received:
                yield from one.to_pylist()

    def _read_ledger(self) -> None:
        """Which campaigns there are is the node's word, what is said of each is proved."""
        node, view, token = self.session.node, self.session.view, self.fleet["campaigns"].token
        found = node.audit(kind=int(EntryKind.CAMPAIGN), first=self._height, most=_AT_ONCE)
        for height, *_, entry in found:
            self._height, fields = height, Fields.parse(entry, "campaign", 5)
            if fields.number() == EntryKind.CAMPAIGN and fields.octets(16) == token:
                self._campaigns[fields.octets(16)] = None
        begun = list(self._campaigns)
        rows = view.rows_at([CAMPAIGNS(token, one) for one in begun], node.states) if begun else []
        campaigns = {one: row for one, (row, _) in zip(begun, rows, strict=True) if row is not None}
        released = {(self.fleet["releases"].token, image) for image in self.director.records}
        named = sorted(released | {(token, image) for row in campaigns.values() for token, image in row.images})
        live = view.rows_at([RELEASES(*one) for one in named], node.states) if named else []
        releases = {image: row for (_, image), (row, _) in zip(named, live, strict=True) if row is not None}
        self.director.take_ledger(campaigns, releases)

    def close(self) -> None:
        for one in self._readers.values():
            one.close()


class _Shared(NamedTuple):
    """What the offers of one campaign have in common."""

    images: dict[str, bytes]
    states: Sequence[StateProof]
    head: Head
    consistency: dict[int, list[bytes]]  # by the size that it begins with


class Directing(FleetView):
    """`folder` has the Director's keys, and the metadata that it signed; `images` is where the Image repository's
    files are read."""

    def __init__(
        self,
        session: Session,
        fleet: FleetFile,
        vehicles: Path,
        folder: Path,
        images: Source,
        report_s: float = REPORT_S,
    ) -> None:
        super().__init__(session, fleet, vehicles, report_s)
        self._disk, self._images = RealDisk(folder), images
        self._keys, self._roots = load_keys(self._disk), load_roots(self._disk)
        self._publisher = session.publisher(fleet["offers"].name, acks=session.acks_most)

    def tick(self, wait_ms: int = 0) -> tuple[int, int]:
        """Do what there is to do. Returns how many offers and how many reports went out."""
        head, clock = self.read(wait_ms), self.session.clock
        reported = sum(map(self._report, self.director.reports(clock.monotonic(), head.time_ms)))
        alike = defaultdict[tuple[bytes, frozenset[bytes]], list[Proposal]](list)
        for one in self.director.offers(clock.monotonic())[:_AT_ONCE]:  # the others with the next round
            alike[one.campaign, frozenset(image for _, image in one.targets)].append(one)
        offered = sum(self._offer(*what, some) for what, some in alike.items())
        if offered and self._publisher.flush(FLUSH_S):
            raise Unavailable("offers: still in the spool", hint="is the node running? they are sent when it is")
        return offered, reported

    def send(self, vehicle: bytes, offer: UpdateOffer) -> None:
        self._publisher.produce({"vehicle": vehicle, "offer": offer.encode()})

    def close(self) -> None:
        self._publisher.close()
        self._images.close()
        super().close()

    def _report(self, one: CampaignReport) -> bool:
        token = self.fleet["campaigns"].token
        _, number, phase, good, bad, root = one
        told = entries.report_campaign(token, one.campaign, number, phase, succeeded=good, failed=bad, manifests=root)
        try:
            self.session.author.write(told)
        except Refused as error:  # somebody stopped it meanwhile
            log.warning("campaign %s: %s", one.campaign.hex(), error)
            return False
        key = CAMPAIGNS(token, one.campaign)
        self.session.view.wait_for(key, lambda row: row is not None and row.reports >= one.number)
        return True

    def _offer(self, campaign: bytes, images: frozenset[bytes], some: Sequence[Proposal]) -> int:
        try:
            shared = self._share(campaign, images, some)
        except (Refused, Unavailable) as error:  # it is proposed again
            log.warning("campaign %s: %s", campaign.hex(), error)
            return 0
        for one in some:
            told = shared.states, shared.consistency.get(one.size, []), campaign
            offer = UpdateOffer.gather(self._metadata(one, shared), shared.images, *told)
            self.send(one.vehicle, offer)
            self.director.sent(one, self.session.clock.monotonic())
        return len(some)

    def _share(self, campaign: bytes, images: frozenset[bytes], some: Sequence[Proposal]) -> _Shared:
        node, fleet, since = self.session.node, self.fleet, self.session.view.height
        keys = [CAMPAIGNS(fleet["campaigns"].token, campaign)]
        states = node.states_together([*keys, *(RELEASES(fleet["releases"].token, image) for image in sorted(images))])
        head = self.session.view.remember(states[0].note, since)
        sizes = sorted({one.size for one in some if 0 < one.size < head.size})
        consistency = dict(zip(sizes, node.consistencies(sizes, head.size), strict=True)) if sizes else {}
        targets = {self.director.records[image].target: image for image in images}
        files = read_image_files(self._images, fleet.images_root, targets, head.time_ms)
        return _Shared(files, states, head, consistency)

    def _metadata(self, one: Proposal, shared: _Shared) -> dict[str, bytes]:
        """What the Director says to one vehicle, signed."""
        name, records = one.vehicle.hex(), self.director.records
        repository = Repository(self._disk, f"offers/{name}", self._keys, has_dockets=False)
        targets = {f"{name}/{ecu}/{records[image].target}": records[image].target for ecu, image in one.targets}
        dockets = {mine: shared.images[f"targets/{theirs}"] for mine, theirs in targets.items()}
        repository.publish(dockets, shared.head.time_ms, parts=5)
        return {**repository.files(), **self._roots}


def read_image_files(source: Source, root: bytes, targets: Mapping[str, bytes], time_ms: int) -> dict[str, bytes]:
    """All that a vehicle needs of the Image repository for these images, by target. Raises `Refused` for what it would
    refuse, and `Unavailable`."""
    files: dict[str, bytes] = {}

    def read(name: str, most: int) -> bytes | None:
        try:
            files[name] = read_file(source, name, most)
        except Refused:
            return None
        return files[name]

    with TemporaryDirectory(prefix="tally-") as folder:
        accepted = TrustedRepository(RealDisk(folder), "images", root).refresh(read, time_ms)
        for target, image in targets.items():
            docket = read(f"targets/{target}", DOCKET_BYTES_MAX) or b""
            accepted.check(target, docket)
            if Docket.decode(docket).root != image:
                raise Refused(f"{target}: the Image repository has another image now", reason="wrong-image")
    return files
