"""Parcels in fragments: what comes out is what went in, whatever switches do in between, or nothing comes out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from fabric_parcels import KEY, PAYLOAD_BYTES, PLACE, parcel, sealed, take
from hypothesis import given
from hypothesis import strategies as st
from makers import seed
from without import without

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.fragments import (
    COUNT_MAX,
    OVERHEAD_BYTES,
    FabricKey,
    FragmentHead,
    FragmentKind,
    seal_parcel,
)
from tallystick.carriers.fabric.reassembly import Reassemblies, Reassembly, ReassemblyLimits
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse
from tallystick.parcel.parcel import Parcel

MANY = 2_000  # rows: several blocks


def put_together(payloads: Iterable[bytes], into: Reassemblies | None = None, now: float = 0.0) -> list[Pushed]:
    into = Reassemblies() if into is None else into
    found = []
    for payload in payloads:
        with suppress(Forged):
            found.append(take(into, *KEY.open(payload), now))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("count", [1, 60, MANY])
def test_a_parcel_comes_out_with_its_permits_and_locks_in_any_order(count: int, seed: int) -> None:
    payloads = list(sealed(1, count).payloads)
    Random(seed).shuffle(payloads)
    assert put_together(payloads) == [parcel(1, count)]
    assert {len(one) for one in payloads} == {len(payloads[0])}
    assert len(payloads[0]) <= PAYLOAD_BYTES


@pytest.mark.parametrize("payload_bytes", [128, 576, 1_480, 8_980])
def test_fragments_fit_the_mtu(payload_bytes: int) -> None:
    made = seal_parcel(parcel(1, 60), KEY, PLACE, seed("e"), payload_bytes)
    assert max(map(len, made.payloads)) <= payload_bytes
    assert put_together(made.payloads) == [parcel(1, 60)]


def test_what_a_network_puts_behind_a_short_frame_is_left_out() -> None:
    made = sealed(2)
    assert put_together(one + bytes(46) for one in made.payloads) == [parcel(2)]


def test_the_first_fragment_has_the_header_and_blocks_verify_as_they_complete() -> None:
    made = sealed(1, MANY, group=0)
    front = len(Parcel.decode(parcel(1, MANY).parcel).encode_front())
    assert front < 1_024
    head, piece = KEY.open(made.payloads[0])
    one = Reassembly(head, len(piece), 0.0)
    one.add(head, piece)
    assert parcel(1, MANY).parcel[:front] in piece
    before = 0
    for payload in made.payloads[1:-1]:
        one.add(*KEY.open(payload))
        assert len(one.verified) >= before
        before = len(one.verified)
    assert before >= 2  # though the last fragment has not come


def test_what_is_seen_of_two_parcels_has_nothing_in_common_but_numbers() -> None:
    one, other = sealed(1).payloads[0], sealed(2).payloads[0]
    for at in range(26, len(one) - 5):  # behind the head
        assert one[at : at + 5] not in other[26:]
    for name in (
        b"car",
        Parcel.decode(parcel(1).parcel).header.lane,
        Parcel.decode(parcel(1).parcel).header.topics[0].token,
    ):
        assert name not in b"".join(sealed(1).payloads)


def test_a_repeated_random_state_repeats_no_key() -> None:
    made = {seal_parcel(parcel(number), KEY, PLACE, bytes(32), PAYLOAD_BYTES).handle for number in range(3)}
    assert len(made) == 3
    assert seal_parcel(parcel(1), KEY, PLACE, bytes(32), 200).handle not in made  # nor does another MTU


# --- switches that alter, invent, repeat ---


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_fragment_that_was_altered_does_not_open(at: int, bit: int) -> None:
    payload = bytearray(sealed(1, 60).payloads[0])
    payload[at % len(payload)] ^= 1 << bit
    with pytest.raises((CannotOpen, Malformed)):
        KEY.open(bytes(payload))


@given(st.binary(max_size=200))
def test_junk_does_not_open(junk: bytes) -> None:
    with pytest.raises((CannotOpen, Malformed)):
        KEY.open(junk)


def test_whoever_lacks_the_carrier_key_starts_no_reassembly() -> None:
    strange = FabricKey.of_mesh(seed("another mesh key"), KEY.epoch)
    forged = strange.seal(FragmentHead(FragmentKind.PIECE, bytes(16), 1, COUNT_MAX, 0, KEY.sign), bytes(1_000))
    into = Reassemblies()
    with pytest.raises(CannotOpen):
        put_together([forged], into)
    assert not into.open
    with without("the tag on fragments"):
        put_together([forged], into)
    assert next(iter(into.open.values())).bytes_whole == COUNT_MAX * 1_000


def test_a_fragment_counts_for_its_own_place_alone() -> None:
    made = sealed(1, 60)
    head, length = FragmentHead.decode(made.payloads[0])
    numbers = {"index": 1}, {"count": head.count + 1}, {"groups": head.groups + 1}
    for change in (*numbers, {"handle": bytes(16)}, {"kind": FragmentKind.REPAIR}):
        moved = replace(head, **change).encode(length) + made.payloads[0][26:]
        with pytest.raises((CannotOpen, Malformed)):
            KEY.open(moved)


def test_repetitions_bring_nothing_twice() -> None:
    into, made = Reassemblies(), sealed(1, 60)
    assert len(put_together(made.payloads * 3, into)) == 1
    into.give_up(30.0)
    assert put_together(made.payloads, into, 30.0) == []
    assert into.counts["repeated"] > len(made.payloads)
    with without("the memory of finished parcels"):
        assert len(put_together(made.payloads, into, 31.0)) == 1


# --- holders of the carrier key that lie ---


def spoilt(block: int) -> list[bytes]:
    """The fragments of a parcel one of whose blocks is not the header's."""
    honest = parcel(1, MANY)
    data = bytearray(honest.parcel)
    front = len(Parcel.decode(honest.parcel).encode_front())
    good = seal_parcel(honest, KEY, PLACE, seed("x"), PAYLOAD_BYTES, 0)
    pieces = [KEY.open(one)[1] for one in good.payloads]
    stream = bytearray(b"".join(pieces))
    start = stream.index(bytes(data[front : front + 64]))
    stream[start + block * 16_384 + 5] ^= 1
    size = len(pieces[0])
    handle = seed("handle")[:16]
    heads = [FragmentHead(FragmentKind.PIECE, handle, at, len(pieces), 0, KEY.sign) for at in range(len(pieces))]
    return [KEY.seal(head, bytes(stream[head.index * size : (head.index + 1) * size])) for head in heads]


def test_a_false_block_ends_the_parcel_before_the_rest_has_come() -> None:
    into = Reassemblies()
    payloads = spoilt(0)
    assert put_together(payloads[: len(payloads) // 2], into) == []
    assert not into.open
    assert put_together(payloads, into) == []
    with without("the hashes of blocks"):
        [whole] = put_together(payloads)
    with pytest.raises(Exception, match="body does not match"):
        Parcel.decode(whole.parcel).check_body()


def test_fragments_that_do_not_fit_together_end_the_parcel() -> None:
    into = Reassemblies()
    head = FragmentHead(FragmentKind.PIECE, seed("h")[:16], 0, 4, 0, KEY.sign)
    take(into, replace(head, index=1), bytes(100), 0.0)
    with pytest.raises(Malformed, match="do not fit together"):
        take(into, replace(head, index=2, count=5), bytes(100), 0.0)
    assert not into.open


def test_lengths_beyond_all_fragments_and_missing_padding_are_malformed() -> None:
    for stream in (bytes(32) + b"\xff" * 12 + bytes(72), bytes(100), bytes(32) + bytes(12) + b"\x80" + bytes(71)):
        into = Reassemblies()
        with pytest.raises(Malformed):
            take(into, FragmentHead(FragmentKind.PIECE, bytes(16), 0, 1, 0, KEY.sign), stream, 0.0)
        assert not into.open


# --- bounds ---


def test_parcels_on_their_way_are_bounded_by_number_bytes_and_time() -> None:
    def begin(into: Reassemblies, number: int, count: int, now: float) -> None:
        take(into, FragmentHead(FragmentKind.PIECE, b"%16d" % number, 1, count, 0, KEY.sign), bytes(1_000), now)

    limits = ReassemblyLimits(parcels_max=10, bytes_max=1_000_000, wait_s=5.0)
    into = Reassemblies(limits)
    for number in range(50):
        begin(into, number, 2, 0.0)
    assert len(into.open) == 10
    assert into.counts["no-room"] == 40
    begin(into, 100, 995, 1.0)
    assert into._bytes <= limits.bytes_max
    assert b"%16d" % 100 in into.open
    begin(into, 101, 1_001, 1.0)
    assert into.counts["too-large"] == 1
    into.give_up(6.0)
    assert not into.open
    assert into._bytes == 0


def test_misuse_of_sizes_is_told() -> None:
    with pytest.raises(Misuse):
        seal_parcel(parcel(1), KEY, PLACE, bytes(32), 100)
    with pytest.raises(Misuse, match="fragments"):
        seal_parcel(Pushed(parcel(1).parcel, (), (bytes(800_000),)), KEY, PLACE, bytes(32), 128)
    with pytest.raises(Malformed):
        FragmentHead.decode(bytes(OVERHEAD_BYTES + 2))


# --- parity ---


def test_one_loss_in_each_group_and_a_run_of_losses_cost_nothing(seed: int) -> None:
    made = sealed(1, MANY)
    head, _ = KEY.open(made.payloads[0])
    assert head.groups > 3
    random = Random(seed)
    one_each = {random.choice(range(group, head.count, head.groups)) for group in range(head.groups)}
    start = random.randrange(head.count - head.groups)
    for lost in (one_each, set(range(start, start + head.groups))):
        assert put_together(p for at, p in enumerate(made.payloads) if at not in lost) == [parcel(1, MANY)]


def test_without_parity_each_loss_is_one() -> None:
    made = sealed(1, MANY, group=0)
    assert put_together(made.payloads[1:]) == []
