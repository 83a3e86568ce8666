"""Envelopes of the mesh: what is inside comes out again, and nothing of it shows outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers import World, entropy, rows, seed, token
from mesh_world import AUTHORITY, EPOCH, NOW_MS, enveloped, mesh_key, publisher

from tallystick import wire
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.envelope import MeshEnvelope, join_pushed, split_pushed
from tallystick.errors import CannotOpen, Malformed, Misuse, Refused
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import check_publisher, mesh_pseudonym

SHORT = st.binary(max_size=40)


def sealed(pushed: Pushed, who: str = "anna", drawn: str = "e") -> MeshEnvelope:
    return mesh_key().seal(pushed, NOW_MS, publisher(who), SeededEntropy(drawn))


@given(SHORT, st.lists(SHORT, max_size=3), st.lists(SHORT, max_size=3))
def test_what_is_inside_comes_out(parcel: bytes, permits: list[bytes], locks: list[bytes]) -> None:
    pushed = Pushed(parcel, tuple(permits), tuple(locks))
    envelope = MeshEnvelope.decode(sealed(pushed).encode())
    assert mesh_key().open(envelope) == pushed


def test_another_topic_epoch_or_renewal_opens_nothing() -> None:
    envelope = sealed(Pushed(b"parcel"))
    for other in (mesh_key("lights"), mesh_key(epoch=EPOCH + 1), mesh_key(renewal=1)):
        with pytest.raises(CannotOpen):
            other.open(envelope)
        with pytest.raises(CannotOpen):  # nor where the envelope claims to be of that topic
            other.open(replace(envelope, pseudonym=other.pseudonym, epoch=other.epoch))


def test_what_was_sealed_is_bound_to_publisher_and_time() -> None:
    envelope = sealed(Pushed(b"parcel"))
    for changed in (
        replace(envelope, created_ms=NOW_MS + 1),
        replace(envelope, key=publisher("bert").key),
        replace(envelope, nonce=bytes(32)),
        replace(envelope, sealed=b""),
    ):
        with pytest.raises(CannotOpen):
            mesh_key().open(changed)


def test_a_publisher_of_another_topic_is_a_misuse() -> None:
    with pytest.raises(Misuse):
        mesh_key("lights").seal(Pushed(b"parcel"), NOW_MS, publisher(), SeededEntropy(1))


def test_a_real_parcel_leaves_no_name_outside() -> None:
    """Token, permit, lane and principal stand in the header, and so do not in what forwarders hold."""
    world = World()
    permit = world.permit("anna", "brakes")
    lane = world.lane("anna")
    parcel = lane.seal(rows(0, 5), now_ms=NOW_MS, entropy=entropy(0))
    pushed = Pushed(parcel.encode(), (permit.encode(),), tuple(world.locks.values()))
    names = [token("brakes"), permit.identifier, permit.principal, permit.signing_key, lane.lane]
    assert all(name in pushed.parcel + pushed.permits[0] for name in names)
    envelope = sealed(pushed)
    assert not any(name in envelope.encode() for name in names)
    assert mesh_key().open(envelope) == pushed


def test_its_name_is_that_of_what_was_signed() -> None:
    envelope = sealed(Pushed(b"parcel"))
    assert replace(envelope, signature=bytes(64), certificate=bytes(64)).identifier == envelope.identifier
    assert sealed(Pushed(b"parcel"), drawn="f").identifier != envelope.identifier
    assert sealed(Pushed(b"parcel"), "bert").identifier != envelope.identifier


def test_repeated_entropy_hides_different_parcels_all_the_same() -> None:
    one, other = (sealed(Pushed(parcel)) for parcel in (b"one", b"two"))
    assert one.nonce != other.nonce


def test_lengths_are_padded() -> None:
    lengths = {len(sealed(Pushed(bytes(n))).sealed) for n in range(2000, 2100)}
    assert len(lengths) <= 3


NOTHING = [b"", [], []]


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x00", b"\x80", wire.encode([1, *NOTHING]), wire.encode([2, *NOTHING]) + b"\x80"]
)
def test_what_a_member_sealed_wrongly_cannot_be_opened(data: bytes) -> None:
    with pytest.raises(CannotOpen):
        split_pushed(data)


def test_too_many_locks_cannot_be_opened() -> None:
    with pytest.raises(CannotOpen):
        split_pushed(join_pushed(Pushed(b"", (), (b"",) * 65)))


@given(st.binary(max_size=600))
def test_junk_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        MeshEnvelope.decode(data)


def test_a_damaged_envelope_is_never_opened_as_another() -> None:
    data, original = enveloped(), MeshEnvelope.decode(enveloped())
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            found = MeshEnvelope.decode(damaged)
            opened = mesh_key().open(found)
        except Refused:
            continue
        assert opened == Pushed(b"parcel")
        assert found.identifier == original.identifier  # only certificate or signature was hit, which the guard checks


# --- keys ---


def test_a_certificate_covers_pseudonym_epoch_and_key() -> None:
    by = publisher()
    check_publisher(by.pseudonym, by.epoch, by.key, by.certificate, AUTHORITY.public)
    for pseudonym, epoch, key in (
        (bytes(16), by.epoch, by.key),
        (by.pseudonym, by.epoch + 1, by.key),
        (by.pseudonym, by.epoch, publisher("bert").key),
    ):
        with pytest.raises(Refused):
            check_publisher(pseudonym, epoch, key, by.certificate, AUTHORITY.public)


def test_pseudonyms_change_with_epoch_and_renewal_and_are_not_the_token() -> None:
    keys = [mesh_key(), mesh_key(epoch=EPOCH + 1), mesh_key(renewal=1), mesh_key("lights")]
    names = {key.pseudonym for key in keys} | {token("brakes")}
    assert len(names) == 5
    assert mesh_pseudonym(keys[0].secret, EPOCH) == keys[0].pseudonym
    assert keys[0].secret.hex() not in repr(keys[0])
    assert seed("mesh secret anna").hex() not in repr(publisher())
