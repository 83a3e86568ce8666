"""Kits and entries as they travel, and what a station does with keys whose time comes and goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_stack import LIMITS, SETTINGS, KeyMaker

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.arrivals import Arrivals
from tallystick.carriers.mesh.kept_view import KeptView
from tallystick.carriers.mesh.kit import MeshKit, read_entry, show_entry
from tallystick.carriers.mesh.mesh_node import MeshSettings
from tallystick.carriers.mesh.pace import paced
from tallystick.carriers.mesh.sealed_files import SealedFiles
from tallystick.carriers.mesh.server import hold_mesh
from tallystick.carriers.mesh.station import WAITING_MAX, MeshOutside, MeshStation, is_notification
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Malformed, Misuse, Unavailable
from tallystick.runtime.disk import read_all
from tallystick.runtime.effects import Woken
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import ManualClock, SystemEntropy

TOKEN = b"t" * 16
CLOCK = ManualClock()
MAKER = KeyMaker(bytes(32), CLOCK)
READS = MAKER.topic("anna", TOKEN, reads=True, publishes=False)
BOTH = MAKER.topic("anna", TOKEN, reads=True, publishes=True)


def test_a_kit_comes_back_as_it_was() -> None:
    kit = MAKER.kit("anna", READS, replace(BOTH, token=b"u" * 16))
    again = MeshKit.decode(kit.encode())
    assert again == kit
    assert again.topics[1].publication is not None
    assert again.entry("127.0.0.1:7").identity == kit.entry("127.0.0.1:7").identity
    assert "secret" not in repr(again)


def test_what_is_no_kit_is_refused() -> None:
    kit = MAKER.kit("anna", BOTH)
    for wrong in (
        kit.encode()[:-1],
        kit.encode() + b"\0",
        replace(kit, topics=(replace(BOTH, seed=b"short"),)).encode(),
        replace(kit, certificate=b"short").encode(),
        bytes(2 << 20),
    ):
        with pytest.raises(Malformed):
            MeshKit.decode(wrong)


@given(st.binary(max_size=400))
def test_no_bytes_make_a_kit_fail_otherwise(data: bytes) -> None:
    with pytest.raises(Malformed):
        MeshKit.decode(data)


def test_an_entry_is_text_for_people_to_hand_on() -> None:
    entry = MAKER.kit("anna").entry("[2001:db8::1]:7001")
    assert read_entry(show_entry(entry)) == entry
    for wrong in ("", "nobody", show_entry(entry)[:-9], show_entry(entry) + "A" * 400, "é"):
        with pytest.raises(Misuse):
            read_entry(wrong)


@pytest.fixture
def station() -> MeshStation:
    made = MeshStation(MAKER.kit("anna", BOTH), MeshOutside(settings=SETTINGS, clock=CLOCK), lambda *_: None)
    made.stop()
    return made


def test_keys_are_followed_while_their_epoch_counts(station: MeshStation) -> None:
    pseudonym, now = BOTH.key.pseudonym, CLOCK.now()
    station.receive(Woken(), now)
    assert pseudonym in station.node.community.subscribed
    assert station.may_publish(TOKEN, int(now * 1000))
    later = (BOTH.epoch + 1) * LIMITS.epoch_ms / 1000
    station.receive(Woken(), later + 1)
    assert pseudonym in station.node.community.subscribed  # envelopes of before may come yet
    assert not station.may_publish(TOKEN, int(later * 1000))
    for after in (later + 200, later + 202):
        station.receive(Woken(), after)
    assert pseudonym not in station.node.community.subscribed


def test_keys_of_the_next_epoch_are_taken_up_before_it_begins(station: MeshStation) -> None:
    coming = MAKER.topic("anna", TOKEN, reads=True, publishes=False, ahead=1)
    station.change([BOTH, coming])
    begins = coming.epoch * LIMITS.epoch_ms / 1000
    station.receive(Woken(), begins - LIMITS.early_ms_max / 1000 - 10)
    assert coming.key.pseudonym not in station._followed
    station.receive(Woken(), begins - LIMITS.early_ms_max / 1000 + 10)
    assert coming.key.pseudonym in station._followed


def test_what_waits_to_leave_is_bounded_and_without_a_key_it_is_counted(station: MeshStation) -> None:
    for _ in range(WAITING_MAX):
        station.publish(b"x" * 16, Pushed(b"parcel"))
    with pytest.raises(Unavailable):
        station.publish(b"x" * 16, Pushed(b"parcel"))
    station.receive(Woken(), CLOCK.now())
    assert station.statistics().dropped == {"no-key": WAITING_MAX}


def test_a_later_certificate_leaves_the_links_as_they_are(station: MeshStation) -> None:
    kit = MAKER.kit("anna", READS)
    later = replace(kit, until_ms=kit.until_ms + 1, certificate=bytes(64))
    assert kit.is_same_node(later)
    assert not kit.is_same_node(MAKER.kit("bert"))
    layer, before = station.layer, station.entry
    station.renew(later)
    assert (station.layer, station.entry) == (layer, replace(before, until_ms=later.until_ms, certificate=bytes(64)))
    station.receive(Woken(), CLOCK.now())
    assert station.node.membership.me == station.entry
    assert station.node.community.subscribed == {READS.key.pseudonym}


# --- on the node's disk ---

KEY = SigningKey.from_seed(bytes(32))


def test_what_a_node_keeps_is_closed_to_whoever_has_the_disk_alone() -> None:
    disk, kit = SeededDisk(1), MAKER.kit("anna", BOTH)
    files = SealedFiles(disk, KEY, SystemEntropy())
    assert files.read("kit") is None
    assert KeptView.decode(files.items()["view"]) == KeptView()
    files.write("kit", kit.encode())
    view = KeptView(topics=((BOTH.key.pseudonym, ()),))
    files.put([("view", view.encode())])
    assert MeshKit.decode(files.read("kit") or b"") == kit
    assert files.items() == {"view": view.encode()}
    for name, secret in (("mesh.kit", TOKEN), ("mesh.kit", kit.lasting), ("mesh.view", BOTH.key.pseudonym)):
        assert secret not in read_all(disk, name)


def test_a_disk_that_takes_nothing_is_no_reason_to_leave_the_mesh() -> None:
    disk = SeededDisk(1)
    files = SealedFiles(disk, KEY, SystemEntropy())
    disk.fill(0)
    files.put([("view", KeptView().encode())])
    disk.fill(None)
    assert files.read("view") is None


def test_files_of_another_node_or_in_each_other_s_place_are_not_taken() -> None:
    disk = SeededDisk(1)
    SealedFiles(disk, KEY, SystemEntropy()).write("kit", MAKER.kit("anna").encode())
    other = SealedFiles(disk, SigningKey.from_seed(b"1" * 32), SystemEntropy())
    with pytest.raises(CannotOpen):
        other.read("kit")
    with pytest.raises(Misuse, match=r"mesh\.kit"):
        hold_mesh(MeshOutside(), other).open(Arrivals(lambda header: None))
    disk.rename("mesh.kit", "mesh.view")
    assert SealedFiles(disk, KEY, SystemEntropy()).items() == {}


def test_only_numeric_addresses_are_listened_at() -> None:
    for wrong in ("localhost:1", "127.0.0.1", "0.0.0.0:1", "[::1]", ""):
        with pytest.raises(Misuse):
            MeshStation(MAKER.kit("anna"), MeshOutside(listen=wrong), lambda *_: None)


def test_only_frames_with_envelopes_are_notifications() -> None:
    assert not is_notification(b"")
    assert not is_notification(b"\x83\x01\x05rest")
    assert is_notification(b"\x83\x01\x0arest")


def test_waits_for_words_are_counted_in_link_beats() -> None:
    default = MeshSettings()
    assert paced(default) == default
    short, long = (paced(replace(default, mesh=replace(default.mesh, beat_s=beat_s))) for beat_s in (0.1, 10.0))
    assert short.game == default.game
    assert long.game.lock_s == 10 * default.game.lock_s
    assert long.matching.lease_s > 2 * long.matching.refresh_s > long.mesh.beat_s
    assert long.view.lost_s > 3 * long.view.alive_s >= 30
    assert long.game.wait_s == default.game.wait_s  # how often it plays is the paper's, and no wait for a word
