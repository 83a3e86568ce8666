"""What a relay keeps behind its log: each place once, whatever is shown again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from carrying_world import CarryingWorld, promised, sealed
from makers import token
from sharing_world import NOW, chain, relay_name

from tallystick.carriers.log.store import LogStore
from tallystick.carriers.overlay.carried import ContentMessage
from tallystick.carriers.overlay.content_forwarding import CarriedParcel, ContentLimits
from tallystick.carriers.overlay.keeping import OverlayStorage, weight
from tallystick.carriers.storage import Place, select
from tallystick.crypto import merkle
from tallystick.errors import Unavailable
from tallystick.parcel.header import Header
from tallystick.parcel.labels import Wanted
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.effects import Arrived, Deliver, Woken
from tallystick.runtime.seeded_disk import SeededDisk

PLACE = Place(token("brakes"), 0)


def storage() -> OverlayStorage:
    return OverlayStorage(LogStore(SeededDisk(1)))


def test_an_old_message_that_is_shown_again_is_delivered_again_and_stored_once() -> None:
    world, (parcel,), kept = CarryingWorld((3, 3)), sealed(1), storage()
    relay, promise = world.relay(2, 1), promised(world.plans[1], parcel, 0)
    message = ContentMessage(promise.encode(), parcel.encode_front(), None, bytes(parcel.body))
    shown, later = Arrived(relay_name(1, 1).hex(), message.frame(1)), NOW + ContentLimits().hop_keep_s
    told = [*relay.receive(shown, NOW), *relay.receive(shown, NOW), *relay.receive(Woken(), later)]
    told += relay.receive(shown, later)
    carried = [one.value for one in told if isinstance(one, Deliver) and isinstance(one.value, CarriedParcel)]
    assert len(carried) == 2
    for one in carried:
        kept.keep(*one, is_own=False)
    assert [one.hash for one in kept.tail(PLACE)] == [parcel.hash]
    assert kept._tail_bytes == weight(parcel)
    kept.grow(PLACE, kept.tail(PLACE), 1)
    assert kept.let_go(PLACE) == []
    kept.keep(*carried[0], is_own=False)
    assert (kept.tail(PLACE), kept.end(PLACE), kept._tail_bytes) == ([], 1, 0)


def test_a_promise_of_an_older_fence_does_not_take_the_place_of_a_newer_one() -> None:
    kept, (first, second), plan = storage(), sealed(2), chain((3, 3))
    older = promised(plan, first, 0)
    newer = replace(promised(plan, second, 0), fence=2)
    for promise, parcel in ((older, first), (newer, second), (older, first)):
        kept.keep(promise, parcel, is_own=False)
    assert [one.hash for one in kept.tail(PLACE)] == [second.hash]
    assert kept._tail_bytes == weight(second)


def with_a_hole() -> tuple[OverlayStorage, tuple[Parcel, ...], list[tuple[int, int]]]:
    """A log of three parcels, of whose second only the front came; and what readers miss."""
    kept, parcels, missed = storage(), sealed(3), list[tuple[int, int]]()
    kept.on_missing = lambda place, first, below: missed.append((first, below))
    for offset, parcel in enumerate(parcels):
        kept.keep(
            promised(chain((3, 3)), parcel, offset), replace(parcel, body=b"") if offset == 1 else parcel, is_own=False
        )
    kept.grow(PLACE, kept.tail(PLACE), 1)
    assert kept.tree(PLACE).root(3) == merkle.root([merkle.leaf_hash(one.hash) for one in parcels])
    return kept, parcels, missed


def test_a_reader_waits_for_a_body_that_nobody_wanted_before_and_nobody_else_does() -> None:
    kept, parcels, missed = with_a_hole()
    assert [entry.offset for entry in kept.read(PLACE, 0, 1 << 20)] == [0]
    assert [entry.offset for entry in kept.read(PLACE, 0, 1 << 20, headers_only=True)] == [0, 1, 2]
    assert [entry.offset for entry in kept.read(PLACE, 2, 1 << 20)] == [2]
    assert not missed
    with pytest.raises(Unavailable, match="on its way"):
        kept.read(PLACE, 1, 1 << 20)
    assert missed == [(1, 3)]
    kept.fill(PLACE, 0, parcels)
    for there in (kept, OverlayStorage(LogStore(kept.disk))):  # as it is after a restart
        found = there.read(PLACE, 0, 1 << 20)
        assert [bytes(entry.parcel) for entry in found] == [parcel.encode() for parcel in parcels]
        assert len(there.read(PLACE, 0, len(found[0].parcel) + len(found[1].parcel))) == 2
    kept.retire(PLACE, kept.retirable(PLACE, 3))
    assert kept.disk.listdir(f"bodies/{PLACE.token.hex()}/0") == []


def test_who_reads_by_labels_is_served_what_it_wants_around_a_body_that_is_not_here() -> None:
    kept, parcels, missed = with_a_hole()

    class Even(Wanted):
        def asks_for(self, header: Header) -> bool:
            return header != parcels[1].header

    found = select(kept, PLACE, Even(()), 0, 3, 1 << 20)
    assert [len(entry.parcel) for entry in found] == [
        len(parcels[0].encode()), len(parcels[1].encode_front()), len(parcels[2].encode()),
    ]  # fmt: skip
    assert not missed
