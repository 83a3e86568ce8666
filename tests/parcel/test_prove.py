"""One record proved alone: what holds, what is refused, what is said not to be proved, and what stays hidden."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from math import isnan
from typing import Any

import pyarrow as pa
import pytest
from makers import GROUPED, INSTANCE, SCHEMA, entropy, rows, seed, token
from provers import ROOT, Scene, book, certify

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Refused, TallystickError
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.keys import ParcelKeys
from tallystick.parcel.locks import MissingKey
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.prove import Proof, verify_proof
from tallystick.parcel.seal import Gap
from tallystick.parcel.verify import verify_one, verify_run
from tallystick.record.batch import Batch
from tallystick.record.leaves import encode_rows, leaf_hashes
from tallystick.record.schema import Schema
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.permit import Operation
from tallystick.trust.trustfile import TrustFile


def test_a_record_is_proved_with_a_trust_file_alone() -> None:
    scene = Scene.of()
    for leaf in range(11):
        proven = scene.check(scene.prove(leaf))
        assert proven.row == {"vin": f"VIN{leaf % 7:04}", "ts": 1_700_000_000_000 + leaf, "speed": float(leaf)}
        assert (proven.leaf, proven.group, proven.columns) == (leaf, 0, ("vin", "ts", "speed"))
    assert proven.publisher == scene.verified.publisher
    assert (proven.token, proven.tokens) == (token("brakes"), (token("brakes"),))
    assert (proven.lane, proven.sequence, proven.parcel) == (
        scene.verified.header.lane,
        0,
        scene.verified.parcel.hash,
    )
    assert (proven.claimed_time_ms, proven.anchored) == (1234, None)
    assert proven.publisher.hex() in proven.statements[0]


def test_it_says_what_it_does_not_prove() -> None:
    bare = "\n".join(Scene.of().check(Scene.of().prove()).not_proven)
    for gap in ("that the row is true", "no other row", "revoked", "claim", "ever stored"):
        assert gap in bare
    alone = Scene.of()
    told = "\n".join(alone.check(alone.prove(receipt=alone.anchorage().receipt(1))).not_proven)
    assert "ever stored" not in told
    assert "same history" in told
    watched = Scene.of(witnesses=1)
    proven = watched.check(watched.prove(receipt=watched.anchorage(cosigners=1).receipt(1)))
    assert "same history" not in "\n".join(proven.not_proven)
    assert proven.anchored is not None
    assert proven.anchored.offset == 1
    assert "at or before height" in proven.statements[-1]
    assert "witness-0.example" in proven.statements[-1]


def test_with_padding_place_and_number_are_not_claimed() -> None:
    scene = Scene.of(padded=True)
    proof = scene.prove(10)
    proven = scene.check(proof)
    assert proven.row["speed"] == 10.0
    assert proven.claimed_time_ms is None
    assert "its place among the parcel's rows" in "\n".join(proven.not_proven)
    # Why: the last of eleven folds like the last of six, and the header does not say which.
    assert scene.check(replace(proof, leaf=5, count=6)).row == proven.row
    clear = Scene.of()
    with pytest.raises(Forged):
        clear.check(replace(clear.prove(10), leaf=5, count=6))


def test_groups_are_proved_apart_and_show_no_values_of_others() -> None:
    batch = rows(0, 5, GROUPED)
    scene = Scene.of(batch)
    proof = scene.prove(3, 1)
    proven = scene.check(proof)
    assert (proven.row, proven.columns) == ({"lat": 55.0, "lon": 16.0}, ("lat", "lon"))
    assert b"VIN0003" not in proof.encode()
    assert b"vin" in proof.encode()  # names of columns do show
    assert "names and types" in "\n".join(proven.not_proven)


def test_any_topic_of_the_lane_may_be_named() -> None:
    scene = Scene.of(topics=("brakes", "tyres"))
    for topic in ("brakes", "tyres"):
        scene.topic = topic
        proven = scene.check(scene.prove(receipt=scene.anchorage().receipt(1)))
        assert (proven.token, len(proven.tokens)) == (token(topic), 2)
        assert "other topics" in "\n".join(proven.not_proven)
    with pytest.raises(Forged):  # a receipt of the one does not serve for the other
        scene.check(scene.prove(permit=scene.permit("brakes"), receipt=scene.anchorage().receipt(1)))


def test_values_come_back_to_the_bit() -> None:
    schema = Schema.parse("d decimal128(38, 4), f float64, g float32, xs list<int16>, s struct<a string, b bool>")
    large = Decimal("-1234567890123456789012345678901234.5678")
    data = [
        {"d": large, "f": -0.0, "g": float("nan"), "xs": [1, None], "s": None},
        {"d": None, "f": None, "g": None, "xs": [], "s": {"a": "é", "b": None}},
    ]
    scene = Scene.of(Batch.of(schema, pa.RecordBatch.from_pylist(data, schema=schema.arrow)))
    first, second = scene.check(scene.prove(0)).row, scene.check(scene.prove(1)).row
    assert (first["d"], str(first["f"]), first["xs"], first["s"]) == (large, "-0.0", [1, None], None)
    assert isnan(first["g"])
    assert second == data[1]


def test_control_parcels_hold_no_records() -> None:
    scene = Scene.of()
    lane = scene.world.lane()
    gap = Gap(1, 2, 3, "spool full")
    made = [
        lane.seal_heartbeat(now_ms=1, entropy=entropy(0)),
        lane.seal_gap(gap, now_ms=1, entropy=entropy(1)),
        lane.seal_commit(b"", now_ms=1, entropy=entropy(2), write=(bytes(32), 0)),
        lane.seal_close(now_ms=1, entropy=entropy(3)),
    ]
    for parcel in made:
        scene.verified = verify_one(parcel, INSTANCE, book(scene.world, scene.trust))
        with pytest.raises(Misuse):
            scene.prove(0)


def test_a_gap_s_content_is_no_row() -> None:
    """Gap parcels have leaves too: a hostile publisher could choose a reason that reads as a row."""
    scene = Scene.of()
    good = scene.prove(0)
    row = wire.decode(good.encode())[1]
    lane = scene.world.lane()
    parcel = lane.seal_commit(row, now_ms=1, entropy=entropy(9), write=(bytes(32), 0))
    keys = lane.keys[0]
    salt = ParcelKeys.of(keys, 0, parcel.header.identifier).salts(1)
    fake = replace(
        good, header=parcel.header.encoded, signature=parcel.signature, salt=salt, leaf=0, count=1, path=(), row=row
    )
    with pytest.raises(Malformed):
        scene.check(fake)


def test_there_is_no_such_record_or_group() -> None:
    scene = Scene.of()
    for leaf, group in [(11, 0), (-1, 0), (0, 1), (0, -1)]:
        with pytest.raises(Misuse):
            scene.prove(leaf, group)
    scene.ring = scene.world.ring()
    with pytest.raises(MissingKey):
        scene.prove()


def test_inside_a_run_a_parcel_needs_its_own_signature() -> None:
    scene = Scene.of()
    lane = scene.world.lane()
    first, last = (lane.seal(rows(i, 3), now_ms=1, entropy=entropy(i)) for i in range(2))
    unsigned = Parcel(first.header, bytes(64), first.body)
    run = verify_run([unsigned, last], INSTANCE, token("brakes"), book(scene.world, scene.trust), None)
    scene.verified = run[0]
    with pytest.raises(Forged):
        scene.prove(0)


def test_a_record_too_large_for_a_proof_is_refused_when_proving() -> None:
    schema = Schema.parse("b binary")
    data = pa.RecordBatch.from_pylist([{"b": bytes(1_100_000)}, {"b": b"small"}], schema=schema.arrow)
    scene = Scene.of(Batch.of(schema, data))
    with pytest.raises(Misuse):
        scene.prove(0)
    assert scene.check(scene.prove(1)).row == {"b": b"small"}


# --- forgeries ---


def resign(proof: Proof, scene: Scene, key: str = "car", **changes: Any) -> Proof:
    """The proof under an altered header that `key` signs."""
    header = replace(scene.verified.header, **changes)
    signature = SigningKey.from_seed(seed(key)).sign(SIGNATURE_CONTEXT, header.encoded)
    return replace(proof, header=header.encoded, signature=signature)


def test_no_field_can_be_exchanged() -> None:
    scene = Scene.of()
    good = scene.prove(4, receipt=scene.anchorage().receipt(1))
    neighbour = scene.prove(5)
    stranger = scene.world.permit("thief", "brakes")
    bad = [
        replace(good, row=neighbour.row),
        replace(good, row=good.row + b"\0"),
        replace(good, row=b""),
        replace(good, salt=neighbour.salt),
        replace(good, leaf=5),
        replace(good, count=12),
        replace(good, path=neighbour.path),
        replace(good, group=1),
        replace(good, schema=GROUPED.encode()),
        replace(good, schema=Schema.parse("vin string, ts timestamp[ms, UTC] not null, pace float32").encode()),
        replace(good, signature=bytes(64)),
        replace(good, permit=stranger.encode()),
        replace(good, permit=scene.world.permit("car", "tyres").encode()),
        replace(good, authority=scene.world.authority.encode()),  # signed by itself, not by the root
        replace(good, receipt=scene.anchorage().receipt(0).encode()),
        resign(good, scene, "thief"),
        resign(good, scene, instance=bytes(32)),
        resign(good, scene, schema_hash=bytes(32)),
    ]
    for proof in bad:
        with pytest.raises(Refused):
            scene.check(proof)


def test_the_chain_of_leave_is_held_to_the_root() -> None:
    scene = Scene.of()
    good, authority = scene.prove(), scene.world.authority
    wrong = [
        certify(authority, scene.trust, kind=SubjectKind.NODE),
        certify(authority, scene.trust, instance=bytes(32)),
        certify(authority, scene.trust, tenant=b"another tenant--"),
        certify(authority, scene.trust, issuer=b"not the root----"),
        certify(authority, scene.trust, signing_key=SigningKey.from_seed(seed("other")).public.raw),
    ]
    for certificate in wrong:
        with pytest.raises(Forged):
            scene.check(replace(good, authority=certificate.encode()))
    elsewhere: list[dict[str, Any]] = [
        {"operation": Operation.SUBSCRIBE},
        {"first_epoch": 2},
        {"token": token("tyres")},
    ]
    for changes in elsewhere:
        permit = scene.world.permit("car", "brakes", identifier=seed("p")[:16], **changes)
        topics = (replace(scene.verified.header.topics[0], permit=permit.identifier),)
        with pytest.raises(Refused):
            scene.check(replace(resign(good, scene, topics=topics), permit=permit.encode()))


def test_another_trust_file_accepts_nothing() -> None:
    scene = Scene.of()
    other = TrustFile(1, b"", "other", (ROOT.public.raw,), 1, scene.trust.ledger_keys, 1, (), 0).sign(ROOT)
    with pytest.raises(Forged) as caught:
        verify_proof(scene.prove().encode(), other)
    assert caught.value.reason == "wrong-instance"


def test_the_row_bytes_are_read_strictly() -> None:
    """A publisher that hashes something that is no row of its schema gets no proof accepted."""
    scene = Scene.of()
    good = scene.prove(0)
    for row in (b"", b"\xff" * 40, good.row[:-1]):
        root = merkle.leaf_hash(good.salt + row)
        groups = (replace(scene.verified.header.groups[0], root=root),)
        with pytest.raises(Malformed):
            scene.check(replace(resign(good, scene, groups=groups, count=1), row=row, leaf=0, count=1, path=()))


def test_proofs_are_bounded_and_strict() -> None:
    data = Scene.of().prove().encode()
    fields = wire.decode(data)
    for bad in [
        b"",
        data[:-1],
        data + b"\0",
        wire.encode([2, *fields[1:]]),
        wire.encode([True, *fields[1:]]),  # which equals 1
        wire.encode([*fields[:2], b"short", *fields[3:]]),
        wire.encode([*fields[:6], [bytes(32)] * 65, *fields[7:]]),
        wire.encode([*fields[:1], bytes(2 << 20), *fields[2:]]),
        bytes(16 << 20),
    ]:
        with pytest.raises(Malformed):
            Proof.decode(bad)


@pytest.mark.parametrize("witnesses", [0, 1])
def test_every_flipped_byte_of_a_proof_is_found(witnesses: int) -> None:
    scene = Scene.of(rows(0, 2), witnesses=witnesses)
    data = scene.prove(1, receipt=scene.anchorage(cosigners=witnesses).receipt(1)).encode()
    step = max(1, len(data) // 400)  # the root's signature alone is 3,373 bytes; every part is hit
    for at in range(witnesses, len(data), step):
        bad = bytearray(data)
        bad[at] ^= 0x04
        with pytest.raises(TallystickError):
            verify_proof(bytes(bad), scene.trust)


# --- neighbours ---


def guesses(schema: Schema) -> list[bytes]:
    """Every row that the neighbour might be: who wants to know it knows all but the speed, and that is one of 300."""
    data = [{"vin": "VIN0005", "ts": 1_700_000_000_005, "speed": float(speed)} for speed in range(300)]
    return encode_rows(pa.RecordBatch.from_pylist(data, schema=schema.arrow))


def test_without_salts_a_neighbour_is_guessed_from_the_path() -> None:
    batch = rows(0, 11)
    tree = merkle.Tree(leaf_hashes(batch, bytes(16 * 11)).tobytes())
    path = tree.inclusion(4, 11)
    found = [row for row in guesses(SCHEMA) if merkle.leaf_hash(bytes(16) + row) == path[0]]
    assert found == [encode_rows(batch.data)[5]]  # record 5 is read off the proof of record 4


def test_with_salts_it_is_not() -> None:
    scene = Scene.of()
    proof = scene.prove(4)
    neighbour = scene.prove(5)
    assert merkle.leaf_hash(neighbour.salt + neighbour.row) == proof.path[0]  # it is there, and hidden
    for salt in (bytes(16), proof.salt, b""):
        assert all(merkle.leaf_hash(salt + row) != proof.path[0] for row in guesses(SCHEMA))


def test_a_proof_holds_no_other_row_and_no_key() -> None:
    scene = Scene.of()
    data = scene.prove(4).encode()
    keys = ParcelKeys.of(scene.ring.lane_key(scene.verified.header, 0), 0, scene.verified.header.identifier)
    salts = [keys.salts(11)[16 * i : 16 * (i + 1)] for i in range(11)]
    hidden = [row for i, row in enumerate(encode_rows(rows(0, 11).data)) if i != 4]
    hidden += [salt for i, salt in enumerate(salts) if i != 4]
    hidden += [keys.body_key, keys.salt_key, scene.ring.lane_key(scene.verified.header, 0).key]
    assert salts[4] in data
    assert not any(secret in data for secret in hidden)
