"""The way of a batch into a parcel and out again, and what every tampering gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from makers import GROUPED, INSTANCE, SCHEMA, World, entropy, rows, seed, token

from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse, Refused, TallystickError, Withheld
from tallystick.parcel.header import Header, ParcelKind, check_equivocation, lane_partition
from tallystick.parcel.keys import KeyRing, LaneKey
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.open import open_batch, open_content, open_group
from tallystick.parcel.padding import padme
from tallystick.parcel.parcel import Parcel, VerifiedParcel
from tallystick.parcel.seal import Gap, Lane, pack
from tallystick.parcel.verify import verify_headers, verify_named, verify_one, verify_run


@pytest.fixture
def world() -> World:
    return World()


def run(world: World, count: int = 3, **options: object) -> list[Parcel]:
    lane = world.lane(**options)  # type: ignore[arg-type]
    return [lane.seal(rows(10 * i, 10), now_ms=1000 + i, entropy=entropy(i)) for i in range(count)]


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("padded", [False, True])
def test_round_trip(world: World, codec: str, padded: bool) -> None:
    lane = world.lane(codec=codec, padded=padded)
    sent = [rows(0, 1), rows(1, 64), rows(65, 500)]
    wire = [lane.seal(batch, now_ms=5, entropy=entropy(i)).encode() for i, batch in enumerate(sent)]
    verified = verify_run([Parcel.decode(data) for data in wire], INSTANCE, token("brakes"), world.book(), None)
    ring = world.ring("brakes")
    for batch, parcel in zip(sent, verified, strict=True):
        assert open_batch(parcel, ring, SCHEMA).data.equals(batch.data)
        assert open_batch(parcel, ring, SCHEMA, fast=True).data.equals(batch.data)
        assert (parcel.header.count, parcel.header.time_ms) == ((0, 0) if padded else (batch.rows, 5))


@pytest.mark.parametrize("count", [10, 4_000])
def test_a_batch_that_was_packed_before_makes_the_same_parcel(world: World, count: int) -> None:
    lane, batch = world.lane(), rows(0, count)
    twin = replace(lane)
    parcel = lane.seal(batch, now_ms=5, entropy=entropy(0))
    assert twin.seal(pack(batch, "planes"), now_ms=5, entropy=entropy(0)).encode() == parcel.encode()


def test_one_topic_header_fits_a_frame(world: World) -> None:
    lane = world.lane()
    parcel = lane.seal(rows(0, 4096), now_ms=1 << 41, entropy=entropy(0), checkpoint=(1 << 40, bytes(32)))
    assert len(parcel.header.encoded) + 64 < 1024


def test_padding_hides_small_differences(world: World) -> None:
    sizes = set()
    for count in range(1000, 1040):
        parcel = world.lane(padded=True, codec="none").seal(rows(0, count), now_ms=1, entropy=entropy(count))
        sizes.add(parcel.header.body_bytes)
    assert len(sizes) <= 3
    assert [padme(n) for n in (1, 2, 9, 1000, 1025)] == [1, 2, 10, 1024, 1088]


def test_every_flipped_byte_is_found(world: World) -> None:
    data = world.lane(codec="none").seal(rows(0, 2), now_ms=1, entropy=entropy(0)).encode()
    ring, book = world.ring("brakes"), world.book()
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 0x01
        with pytest.raises(TallystickError):
            open_batch(verify_one(Parcel.decode(bytes(bad)), INSTANCE, book), ring, SCHEMA)


def test_truncated_and_extended_parcels_are_malformed(world: World) -> None:
    data = world.lane().seal(rows(0, 2), now_ms=1, entropy=entropy(0)).encode()
    for bad in [b"", data[:7], data[:100], data[:-1], data + b"\0", b"{}" + data, b"TLY\x02" + data[4:]]:
        with pytest.raises(Malformed):
            Parcel.decode(bad)


def test_missing_repeated_reordered_and_foreign_parcels_are_named(world: World) -> None:
    a, b, c = run(world)
    book = world.book()

    def verify(parcels: list[Parcel], head: tuple[int, bytes] | None = None) -> list[VerifiedParcel]:
        return verify_run(parcels, INSTANCE, token("brakes"), book, head)

    assert len(verify([a, b, c])) == 3
    assert len(verify([c], (1, b.hash))) == 1
    for parcels, reason in [([a, c], "missing"), ([b], "missing"), ([a, a], "repeated"), ([b, a], "missing")]:
        with pytest.raises(Withheld) as caught:
            verify(parcels)
        assert caught.value.reason == reason
    with pytest.raises(Withheld) as caught:
        verify([b], (0, bytes(32)))
    assert caught.value.reason == "broken-chain"
    with pytest.raises(Malformed) as malformed:
        verify_run([a], INSTANCE, token("other"), book, None)
    assert malformed.value.reason == "wrong-topic"
    with pytest.raises(Forged) as forged:
        verify_run([a], bytes(32), token("brakes"), book, None)
    assert forged.value.reason == "wrong-instance"


def test_one_signature_vouches_for_the_run(world: World) -> None:
    a, b, c = run(world)
    junk = Parcel(b.header, bytes(64), b.body)  # a middle signature is not looked at: c's covers b's header
    assert len(verify_run([a, junk, c], INSTANCE, token("brakes"), world.book(), None)) == 3
    with pytest.raises(Forged):
        verify_run([a, b, Parcel(c.header, bytes(64), c.body)], INSTANCE, token("brakes"), world.book(), None)
    with pytest.raises(Forged):  # a guard verifies each
        verify_one(junk, INSTANCE, world.book())


def test_a_header_is_verified_without_its_body_and_the_body_by_the_headers_name(world: World) -> None:
    """As driver and executor share the work: neither half alone makes a `VerifiedParcel`."""
    a, b, c = run(world)
    fronts = [Parcel.decode_front(parcel.encode_front()) for parcel in (a, b, c)]
    headers = verify_headers(fronts, INSTANCE, token("brakes"), world.book(), None)
    assert [one.header.hash for one in headers] == [a.hash, b.hash, c.hash]
    assert not any(isinstance(one, VerifiedParcel) for one in headers)
    with pytest.raises(Withheld):
        verify_headers(fronts[1:], INSTANCE, token("brakes"), world.book(), None)
    assert isinstance(verify_named(b, headers[1].header.hash), VerifiedParcel)
    for bad in (a, Parcel(b.header, b.signature, a.body)):
        with pytest.raises(Refused) as caught:
            verify_named(bad, headers[1].header.hash)
        assert caught.value.reason == "altered"


def test_a_body_from_elsewhere_is_found(world: World) -> None:
    a, b, _ = run(world)
    with pytest.raises(Forged) as caught:
        verify_one(Parcel(a.header, a.signature, b.body), INSTANCE, world.book())
    assert caught.value.reason in ("altered", "forged")


def test_publishers_open_nothing_of_one_another(world: World) -> None:
    """Another publisher of the topic holds its own lane's key, and may well read other topics and other epochs; the one
    private half that it lacks is what opens."""
    lanes = [world.lane(who) for who in ("car", "truck")]
    theirs, own = (
        verify_one(lane.seal(rows(0, 3), now_ms=1, entropy=entropy(0)), INSTANCE, world.book()) for lane in lanes
    )
    assert open_batch(own, OwnKeys(lanes[1]), SCHEMA).rows == 3
    with pytest.raises(CannotOpen):
        open_batch(theirs, OwnKeys(lanes[1]), SCHEMA)
    ring = world.ring("tyres", epochs=(1, 2, 3))
    for epoch in (2, 3):
        ring.add_topic_key(token("brakes"), epoch, world.topic_key("brakes", epoch))
    with pytest.raises(MissingKey):
        open_batch(theirs, ring, SCHEMA)
    for wrong in (world.topic_key("brakes", 2), hpke.PrivateKey.generate(seed("truck"))):
        ring.add_topic_key(token("brakes"), 1, wrong)
        with pytest.raises(CannotOpen):
            open_batch(theirs, ring, SCHEMA)
    ring.add_topic_key(token("brakes"), 1, world.topic_key("brakes"))
    assert open_batch(theirs, ring, SCHEMA).rows == 3


class OwnKeys(KeyRing):
    """A publisher's ring: the keys of its own lane, whatever it is asked for."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lambda name: b"")
        self._lane = lane

    def lane_key(self, header: Header, group: int) -> LaneKey:
        return self._lane.keys[group]


def test_lanes_of_several_topics_open_by_either(world: World) -> None:
    lane = world.lane(topics=("brakes", "tyres"))
    parcel = lane.seal(rows(0, 3), now_ms=1, entropy=entropy(0))
    verified = verify_one(parcel, INSTANCE, world.book())
    for topic in ("brakes", "tyres"):
        assert open_batch(verified, world.ring(topic), SCHEMA).rows == 3
    with pytest.raises(MissingKey):
        open_batch(verified, world.ring("engine"), SCHEMA)


def test_a_lock_moved_into_another_lane_opens_nothing(world: World) -> None:
    victim = world.lane("car")
    thief = world.lane("thief", lane=b"L" * 16)
    thief.keys = tuple(type(key)(key.key, victim.keys[0].locks) for key in thief.keys)
    parcel = thief.seal(rows(0, 3), now_ms=1, entropy=entropy(0))
    with pytest.raises(CannotOpen):
        open_batch(verify_one(parcel, INSTANCE, world.book()), world.ring("brakes"), SCHEMA)


def test_groups_open_alone_and_verify_in_full(world: World) -> None:
    lane = world.lane(schema=GROUPED)
    batch = rows(0, 20, GROUPED)
    verified = verify_one(lane.seal(batch, now_ms=1, entropy=entropy(0)), INSTANCE, world.book())
    ring = world.ring("brakes")
    assert open_batch(verified, ring, GROUPED).data.equals(batch.data)
    position = open_group(verified, ring, GROUPED, 1).batch
    assert position.data.schema.names == ["lat", "lon"]
    assert open_batch(verified, ring, GROUPED, groups=(0,)).data.schema.names == ["vin", "speed"]


def test_control_parcels(world: World) -> None:
    lane = world.lane()
    gap = Gap(rows=12, from_ms=1, to_ms=9, reason="spool full")
    parcels = [
        lane.seal_heartbeat(now_ms=1, entropy=entropy(0)),
        lane.seal_gap(gap, now_ms=2, entropy=entropy(1)),
        lane.seal_commit(b"list", now_ms=3, entropy=entropy(2), write=(bytes(32), 7)),
        lane.seal_close(now_ms=4, entropy=entropy(3)),
    ]
    decoded = [Parcel.decode(parcel.encode()) for parcel in parcels]
    verified = verify_run(decoded, INSTANCE, token("brakes"), world.book(), None)
    assert [v.header.kind for v in verified] == [
        ParcelKind.HEARTBEAT,
        ParcelKind.GAP,
        ParcelKind.COMMIT,
        ParcelKind.CLOSE,
    ]
    assert open_content(verified[1], world.ring("brakes")) == gap.encode()
    assert open_content(verified[2], world.ring("brakes")) == b"list"
    with pytest.raises(Misuse):
        open_content(verified[0], world.ring("brakes"))


def test_pending_data_names_its_write(world: World) -> None:
    parcel = world.lane().seal(rows(0, 1), now_ms=1, entropy=entropy(0), write=(b"w" * 32, 3))
    assert Header.decode(parcel.header.encoded).pending
    assert not world.lane().seal_commit(b"", now_ms=1, entropy=entropy(0), write=(b"w" * 32, 3)).header.pending


def test_equivocation_is_two_signed_headers_of_one_sequence(world: World) -> None:
    one = world.lane().seal(rows(0, 1), now_ms=1, entropy=entropy(0))
    two = world.lane().seal(rows(5, 1), now_ms=1, entropy=entropy(0))
    key = SigningKey.from_seed(seed("car")).public
    lane, sequence = check_equivocation(one.header.encoded, one.signature, two.header.encoded, two.signature, key)
    assert (lane, sequence) == (one.header.lane, 0)
    for bad in [(one, one), (one, Parcel(two.header, bytes(64), two.body))]:
        with pytest.raises(Forged):
            check_equivocation(bad[0].header.encoded, bad[0].signature, bad[1].header.encoded, bad[1].signature, key)


def test_a_repeated_random_state_repeats_no_key(world: World) -> None:
    """A restored snapshot: same lane, sequence and entropy, another batch. Identifier and so every key differ."""
    one = world.lane().seal(rows(0, 5), now_ms=1, entropy=entropy(0)).header
    two = world.lane().seal(rows(1, 5), now_ms=1, entropy=entropy(0)).header
    same = world.lane().seal(rows(0, 5), now_ms=1, entropy=entropy(0)).header
    assert one.identifier != two.identifier
    assert one.groups[0].commitment != two.groups[0].commitment
    assert one.identifier == same.identifier  # the very same parcel, and only then


def test_permits_must_cover_what_is_sealed(world: World) -> None:
    parcel = world.lane(epoch=3).seal(rows(0, 1), now_ms=1, entropy=entropy(0))
    world.permit("car", "brakes", last_epoch=2)
    with pytest.raises(Refused) as caught:
        verify_one(parcel, INSTANCE, world.book())
    assert caught.value.reason == "wrong-epoch"


def test_a_verified_parcel_cannot_be_made_by_hand(world: World) -> None:
    with pytest.raises(Misuse):
        VerifiedParcel(run(world)[0], (), object())


def test_lanes_spread_over_partitions() -> None:
    found = {lane_partition(bytes([i]) * 16, 8) for i in range(200)}
    assert found == set(range(8))


def test_every_flipped_byte_of_a_lock_is_found(world: World) -> None:
    parcel = world.lane().seal(rows(0, 2), now_ms=1, entropy=entropy(0))
    verified = verify_one(parcel, INSTANCE, world.book())
    (name,) = parcel.header.groups[0].locks
    lock = world.locks[name]
    assert open_batch(verified, world.ring("brakes"), SCHEMA).rows == 2
    for at in range(len(lock)):
        world.locks[name] = lock[:at] + bytes([lock[at] ^ 0x01]) + lock[at + 1 :]
        with pytest.raises(CannotOpen):
            open_batch(verified, world.ring("brakes"), SCHEMA)
