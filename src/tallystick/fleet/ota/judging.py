"""What a vehicle holds an offer to, before a byte of an image is fetched. Uptane 5.4.4 gives the order, the ledger the
last word.

    checkpoint ─► its time ─► Director's targets ─► the same dockets at the Image repository
    docket's root ─► a live release on the ledger ─► its record ─► hardware, campaign

Threat: somebody with the key of one role, of several, or of all; a Director that lies, sends to one car what no other
car sees, or begins before a campaign reached the car; yesterday's ledger. Invariant: an image is installed only if the
Director names it for this vehicle and this ECU, the Image repository has the same docket, and the ledger proves it to
be a live release, whose record names the ECU's hardware. So with every signing key of the metadata an attacker still
has to release the image where everybody sees it, and a withdrawal holds as soon as a checkpoint is younger than it.
The height of the release is the counter that slots never go below: nobody chooses it.

Full verification does all of this. Partial verification (`PartialJudge`) is for small ECUs: the Director's targets
under the factory's root, and the ledger's proof, which costs a hash or two more; it leaves out the Image repository,
the campaign and the history of checkpoints, which the primary has checked, and needs what other ECUs run for nothing.

An offer is what the Director sends, or a stick brings: the same files. It holds no key of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tallystick import wire
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Malformed, Refused, Unavailable, blamed
from tallystick.fleet.ota.metadata import AcceptedTargets, PinnedTargets, ReadFile, TrustedRepository, check_name
from tallystick.fleet.ota.record import ReleaseRecord
from tallystick.fleet.ota.released import require_reached, require_spread
from tallystick.ledger.block import Head, read_head
from tallystick.ledger.contracts.firmware import require_live
from tallystick.ledger.contracts.state import Key, R
from tallystick.ledger.proofs import Consistency, StateProof
from tallystick.objects.layout import Docket
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.trust.notes import NOTE_BYTES_MAX
from tallystick.trust.trustfile import TrustFile

OFFER_BYTES_MAX = 8 << 20
_FILES_MAX, _STATES_MAX, _PATH_MAX = 256, 65, 64
_FILE_BYTES_MAX = 1 << 20

Files = Mapping[str, bytes]
Records = Callable[[bytes], ReleaseRecord | None]  # by the image's root: rows of the topic that this vehicle may open


@dataclass(frozen=True)
class UpdateOffer:
    """What the Director sends a vehicle: metadata, and the ledger's proofs under one checkpoint."""

    director: Files
    images: Files  # dockets among them, as `targets/<name>`
    campaign: bytes | None
    note: bytes
    states: Sequence[tuple[bytes, bytes | None, bytes]]  # key, value, proof
    consistency: Sequence[bytes] = ()  # from the checkpoint that the vehicle said it knew

    @classmethod
    def gather(
        cls,
        director: Files,
        images: Files,
        states: Sequence[StateProof],
        consistency: Sequence[bytes] = (),
        campaign: bytes | None = None,
    ) -> UpdateOffer:
        """Raises `Unavailable` where the proofs came under two checkpoints: ask for them again."""
        if len({one.note for one in states}) != 1:
            raise Unavailable("offer: the proofs are not of one checkpoint")
        proofs = [(one.key, one.value, one.proof) for one in states]
        return cls(director, images, campaign, states[0].note, proofs, consistency)

    def encode(self) -> bytes:
        files = [[[name, data] for name, data in sorted(part.items())] for part in (self.director, self.images)]
        return wire.encode([1, *files, self.campaign, self.note, self.states, self.consistency])

    @classmethod
    def decode(cls, data: bytes) -> UpdateOffer:
        """Raises `Malformed`."""
        if len(data) > OFFER_BYTES_MAX:
            raise Malformed(f"offer: {len(data)} bytes, at most {OFFER_BYTES_MAX} are allowed")
        fields = wire.Fields.parse(data, "offer", 7)
        fields.version(1)
        director, images = _read_files(fields), _read_files(fields)
        campaign, note = fields.optional_octets(16), fields.octets(at_most=NOTE_BYTES_MAX)
        proofs = [one.array(3) for one in fields.each(_STATES_MAX)]
        states = [(one.octets(at_most=256), one.optional_octets(1 << 16), one.octets()) for one in proofs]
        return cls(director, images, campaign, note, states, [one.octets(32) for one in fields.each(_PATH_MAX)])

    def row(self, head: Head, key: Key[R]) -> R | None:
        """A row of the ledger under the checkpoint. Raises `Refused` without a proof of it."""
        for found, value, proof in self.states:
            if found == key:
                verify_map(head.state_root, key, value, proof)
                return None if value is None else key.read(wire.decode(value, "state value"))
        raise Refused("offer: no proof of what the ledger says", reason="no-proof")


class Assignment(NamedTuple):
    """One image for one ECU, of which everything was checked."""

    ecu: str
    docket: Docket
    counter: int  # the height of its release
    record: ReleaseRecord


class OfferJudge(Protocol):
    """`Judge`, or `PartialJudge`."""

    standing: VehicleStanding

    def judge(self, offer: UpdateOffer, records: Records, now_ms: int, age_max_s: float) -> list[Assignment]: ...


class Checkpoints(Protocol):
    """`CheckpointMemory`, or `LeastHead`."""

    def accept(self, note: bytes, consistency: Consistency) -> Head: ...


class LeastHead:
    """Of the ledger's checkpoints an ECU remembers the height of the last. It keeps no history: the primary does."""

    def __init__(self, disk: Disk, trust: TrustFile) -> None:
        self._disk, self._trust = disk, trust

    def accept(self, note: bytes, consistency: Consistency) -> Head:
        """Raises `Forged`, or `Refused` for one below the last."""
        head = read_head(note, self._trust)
        least = _read_number(self._disk, "head")
        if head.height < least:
            raise Refused(f"ledger: height {least} was seen, {head.height} is shown", reason="rollback")
        if head.height > least:
            _write_number(self._disk, "head", head.height)
        return head


class VehicleStanding(NamedTuple):
    """Who judges: what the factory, or whoever owns the vehicle, told it."""

    vehicle: bytes
    hardware: Mapping[str, str]  # of each ECU
    releases: bytes  # token of the topic of release records
    campaigns: bytes | None = None  # token; with it, nothing is installed outside of a campaign's open phase
    ecu: str | None = None  # who judges for itself alone

    def concerns(self, name: str) -> bool:
        """Whether a Director's target is to be looked at. A primary looks at all, and refuses what is not its own."""
        return self.ecu is None or name.split("/")[1:2] == [self.ecu]


class Judge:
    """Full verification. `age_max_s` bounds how long ago the ledger was heard, by the vehicle's own clock."""

    def __init__(
        self,
        standing: VehicleStanding,
        director: TrustedRepository,
        images: TrustedRepository,
        checkpoints: Checkpoints,
    ) -> None:
        self.standing, self._director, self._images, self._checkpoints = standing, director, images, checkpoints
        self.head: Head | None = None  # the checkpoint of the last offer that was judged

    def judge(self, offer: UpdateOffer, records: Records, now_ms: int, age_max_s: float) -> list[Assignment]:
        """What the offer assigns, ECU by ECU. Raises `Refused`, saying why nothing of it is installed, and
        `Unavailable` where something did not come."""
        head = self._checkpoints.accept(offer.note, lambda _old, _new: offer.consistency)
        self._check_age(head, now_ms, age_max_s)
        self.head = head
        director = self._director.refresh(_reading(offer.director), head.time_ms)
        images = self._images.refresh(_reading(offer.images), head.time_ms)
        names = filter(self.standing.concerns, director.names())
        found = [self._assign(name, offer, head, director, images, records) for name in names]
        if len({one.ecu for one in found}) != len(found):
            raise Refused("director: two images for one ECU", reason="two-images")
        return found

    def asks_diagnosis(self, offer: UpdateOffer) -> bool:
        """Whether an offer that was judged, and assigns nothing, is of a campaign without images. Raises `Refused` for
        one that does not reach this vehicle."""
        token, head = self.standing.campaigns, self.head
        if token is None or offer.campaign is None or head is None:
            return False
        campaign = token, offer.campaign
        return not require_reached(lambda key: offer.row(head, key), campaign, self.standing.vehicle).images

    def _assign(
        self,
        name: str,
        offer: UpdateOffer,
        head: Head,
        director: AcceptedTargets,
        images: AcceptedTargets,
        records: Records,
    ) -> Assignment:
        ecu, target = check_addressee(self.standing, name)
        docket = offer.images.get(f"targets/{target}", b"")
        director.check(name, docket)
        self._check_image(images, target, docket)
        assigned = assign(self.standing, offer, head, ecu, target, docket, records)
        self._check_campaign(offer, head, assigned)
        return assigned

    def _check_image(self, images: AcceptedTargets, target: str, docket: bytes) -> None:
        """The Director chooses among what the Image repository has; it invents nothing."""
        images.check(target, docket)

    def _check_age(self, head: Head, now_ms: int, age_max_s: float) -> None:
        if now_ms - head.time_ms > age_max_s * 1000:
            raise Refused(f"ledger: last heard {(now_ms - head.time_ms) // 1000} s ago", reason="stale-head")

    def _check_campaign(self, offer: UpdateOffer, head: Head, assigned: Assignment) -> None:
        """A Director sends nothing before the open phase of a campaign has reached this vehicle."""
        if self.standing.campaigns is None:
            return
        if offer.campaign is None:
            raise Refused("director: an image outside of any campaign", reason="no-campaign")
        release, campaign = (self.standing.releases, assigned.docket.root), (self.standing.campaigns, offer.campaign)
        require_spread(lambda key: offer.row(head, key), release, campaign, self.standing.vehicle)


class PartialJudge:
    """Partial verification, for one ECU. Which of the Director's roots and targets it accepted last, its disk keeps."""

    def __init__(self, standing: VehicleStanding, root: bytes, disk: Disk, checkpoints: Checkpoints) -> None:
        self.standing, self._disk, self._checkpoints = standing, disk, checkpoints
        self._pinned = PinnedTargets(root, _read_number(disk, "director"), _read_number(disk, "director-root"))

    def judge(self, offer: UpdateOffer, records: Records, now_ms: int, age_max_s: float) -> list[Assignment]:
        """As `Judge.judge` does, for the ECUs that this one knows."""
        head = self._checkpoints.accept(offer.note, lambda _old, _new: offer.consistency)
        files = [data for name, data in offer.director.items() if name.endswith(".targets.json")]
        if len(files) != 1:
            raise Refused("director: one file of targets is expected", reason="no-targets")
        self._pinned.follow(offer.director)
        targets = self._pinned.accept(files[0], head.time_ms)
        _write_number(self._disk, "director-root", self._pinned.root_version)
        _write_number(self._disk, "director", targets.version)
        found = []
        for name in filter(self.standing.concerns, targets.targets):
            ecu, target = check_addressee(self.standing, name)
            docket = offer.images.get(f"targets/{target}", b"")
            self._pinned.check(targets, name, docket)
            found.append(assign(self.standing, offer, head, ecu, target, docket, records))
        return found


def assign(
    standing: VehicleStanding, offer: UpdateOffer, head: Head, ecu: str, target: str, docket: bytes, records: Records
) -> Assignment:
    """What the ledger says of a docket, and the record to it. Raises `Refused`."""
    read = Docket.decode(docket)
    release = require_release(standing, offer, head, read.root)
    record = records(read.root)
    if record is None:
        raise Unavailable(f"{target}: its release record has not come, or is not for us to open")
    record.check(read.root, read.plain_length, release[1])
    _check_hardware(standing, ecu, target, record)
    return Assignment(ecu, read, release[0], record)


def require_release(standing: VehicleStanding, offer: UpdateOffer, head: Head, root: bytes) -> tuple[int, bytes]:
    """Height and contents of a live release. Raises `Refused`."""
    row = require_live(lambda key: offer.row(head, key), standing.releases, root)
    return row.height, row.contents


def check_addressee(standing: VehicleStanding, name: str) -> tuple[str, str]:
    """ECU and image of a Director's target. Raises `Refused` where it is not for this vehicle."""
    vehicle, ecu, *target = check_name(name, 5)
    if vehicle != standing.vehicle.hex() or ecu not in standing.hardware:
        raise Refused(f"director: {name} is not for this vehicle", reason="wrong-vehicle")
    return ecu, "/".join(target)


def check_needs(assigned: Sequence[Assignment], running: Mapping[str, tuple[str, bytes]]) -> None:
    """Raise `Refused` unless everything that the images need runs beside them, or comes with them. `running` has the
    hardware and the image of each ECU."""
    after = {**running} | {one.ecu: (one.record.hardware, one.docket.root) for one in assigned}
    for one in assigned:
        for hardware, images in one.record.needs:
            found = [image for other, image in after.values() if other == hardware]
            if not found or not set(found) <= set(images):
                raise Refused(f"{one.record.target}: needs another image on {hardware}", reason="mix-and-match")


def _check_hardware(standing: VehicleStanding, ecu: str, target: str, record: ReleaseRecord) -> None:
    if record.target != target or record.hardware != standing.hardware[ecu]:
        raise Refused(f"{ecu}: {target} is not for hardware {standing.hardware[ecu]}", reason="wrong-hardware")


def _read_number(disk: Disk, name: str) -> int:
    with blamed(name):
        return int.from_bytes(read_all(disk, name), "big") if disk.exists(name) else 0


def _write_number(disk: Disk, name: str, number: int) -> None:
    with blamed(name):
        write_atomic(disk, name, number.to_bytes(8, "big"))


def _reading(files: Files) -> ReadFile:
    return lambda name, _most: files.get(name)


def _read_files(fields: wire.Fields) -> dict[str, bytes]:
    read = [one.array(2) for one in fields.each(_FILES_MAX)]
    return {one.text(): one.octets(at_most=_FILE_BYTES_MAX) for one in read}
