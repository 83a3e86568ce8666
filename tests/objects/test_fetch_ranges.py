"""What is asked and answered: every form that is not one is refused, and a server does no more than it is asked."""

from __future__ import annotations

import contextlib

import pytest
from fetch_world import made_object
from hypothesis import given
from hypothesis import strategies as st
from server_role import ObjectServer

from tallystick import wire
from tallystick.crypto.merkle import cut
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.objects.dealing import Stretches, without_kept
from tallystick.objects.layout import COUNT_MAX, FIXED, PLAIN, SLIP_BYTES, TARGET_MIN, Docket
from tallystick.objects.ranges import (
    ASK_BYTES_MAX,
    DEPTH_MAX,
    SEED_BYTES_MAX,
    SUBTREE_BYTES_MAX,
    RangeAnswer,
    RangeAsk,
    Seed,
    depth_for,
)
from tallystick.objects.serving import make_seed
from tallystick.runtime.effects import Arrived, Send, Woken

MADE = made_object(2, 33)
SEED = make_seed(MADE.docket, MADE.slips, ["a", "b", "c"], fence=7)


def test_they_travel() -> None:
    ask = RangeAsk(5, "x.slips", 0, ASK_BYTES_MAX)
    assert RangeAsk.decode(ask.encode()) == ask
    assert RangeAnswer.decode(RangeAnswer(5, b"bytes").encode()) == (5, b"bytes")
    assert RangeAnswer.decode(RangeAnswer(5, None).encode()) == (5, None)
    assert Seed.decode(SEED.encode()) == SEED


def test_a_seed_deals_each_subtree_and_its_uncles_give_the_root() -> None:
    assert SEED.depth == 2
    assert MADE.docket.check_uncles(SEED.depth, SEED.uncles) == cut(33, 2)
    assert [SEED.servers[place] for place in SEED.dealt] == ["a", "b", "c"]  # of 33 leaves the last stands alone


def test_every_flipped_byte_of_a_seed_is_found_or_is_advice() -> None:
    data = SEED.encode()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            seed = Seed.decode(flipped)
            MADE.docket.check_uncles(seed.depth, seed.uncles)
        except (Malformed, Forged):
            continue
        assert (seed.depth, seed.uncles) == (SEED.depth, SEED.uncles)


@given(st.binary(max_size=300))
def test_noise_is_malformed(noise: bytes) -> None:
    for kind in (RangeAsk, RangeAnswer, Seed):
        with contextlib.suppress(Malformed):
            kind.decode(noise)


@pytest.mark.parametrize(
    "fields",
    [
        [2, 0, "x", 0, 1],
        [1, -1, "x", 0, 1],
        [1, 0, b"x", 0, 1],
        [1, 0, "x" * 129, 0, 1],
        [1, 0, "x", -1, 1],
        [1, 0, "x", 0, 0],
        [1, 0, "x", 0, ASK_BYTES_MAX + 1],
        [1, 0, "x", 0],
    ],
)
def test_bad_asks_get_no_answer(fields: list[object]) -> None:
    with pytest.raises(Malformed):
        RangeAsk.decode(wire.encode(fields))
    assert ObjectServer({"x": b"data"}).receive(Arrived("car", wire.encode(fields)), 0.0) == []


def test_bad_answers_and_seeds() -> None:
    whole = RangeAnswer(1, b"").encode()
    for data in (b"", whole[:-1], b"\2" + whole[1:], RangeAnswer(1, None).encode() + b"x", None, "text"):
        with pytest.raises(Malformed):
            RangeAnswer.decode(data)
    with pytest.raises(Malformed):
        RangeAnswer.decode(RangeAnswer(1, bytes(ASK_BYTES_MAX + 1)).encode())
    root, layer = SEED.root, b"".join(SEED.uncles)
    for fields in (
        [1, root, 7, DEPTH_MAX + 1, layer, ["a"], bytes(3)],
        [1, root, 7, 2, layer, [], bytes(3)],
        [1, root, 7, 2, layer, ["a"], b"\0\0\1"],
        [1, root, 7, 2, layer, ["a"], bytes(4)],
        [1, root[:-1], 7, 2, layer, ["a"], bytes(3)],
        [1, root, 7, 2, layer, ["a"] * 65, bytes(3)],
    ):
        with pytest.raises(Malformed):
            Seed.decode(wire.encode(fields))
    with pytest.raises(Malformed, match="at most"):
        Seed.decode(bytes(SEED_BYTES_MAX + 1))


def test_a_server_answers_what_it_has() -> None:
    server = ObjectServer({"x": b"0123456789"})

    def answer(*ask: object) -> object:
        [effect] = server.receive(Arrived("car", RangeAsk(9, *ask).encode()), 0.0)  # type: ignore[arg-type]
        assert isinstance(effect, Send)
        assert effect.to == "car"
        number, data = RangeAnswer.decode(effect.message)
        assert number == 9
        return None if data is None else bytes(data)

    assert answer("x", 2, 3) == b"234"
    assert answer("x", 8, 5) == b"89"
    assert answer("x", 10, 1) is None
    assert answer("y", 0, 1) is None
    assert server.receive(Woken(), 0.0) == []


def test_of_damaged_slips_no_seed_is_made() -> None:
    with pytest.raises(Forged, match="another root"):
        make_seed(MADE.docket, bytes(len(MADE.slips)), ["a"], 1)
    with pytest.raises(Misuse, match="servers"):
        make_seed(MADE.docket, MADE.slips, [], 1)


def test_the_largest_object_s_subtrees_fit_into_one_ask_and_its_seed_into_its_bound() -> None:
    length = COUNT_MAX * TARGET_MIN
    docket = Docket(FIXED, TARGET_MIN, PLAIN, COUNT_MAX, length, length + COUNT_MAX * 16, bytes(32))
    for servers in (1, 64):
        depth = depth_for(docket, servers)
        assert depth == 8
        assert max(end - first for first, end in cut(COUNT_MAX, depth)) * SLIP_BYTES <= SUBTREE_BYTES_MAX
    names = tuple("n" * 128 for _ in range(64))
    seed = Seed(bytes(32), 1 << 60, DEPTH_MAX, (bytes(32),) * (1 << DEPTH_MAX), names, bytes(1 << DEPTH_MAX))
    assert len(seed.encode()) < SEED_BYTES_MAX
    assert Seed.decode(seed.encode()) == seed


# --- dealing ---


def test_own_work_first_then_half_of_the_longest() -> None:
    left = Stretches([(0, 8), (8, 20)], lambda first: "a" if first < 8 else "b", divisible=True)

    def one(first: int, end: int) -> int:
        return first + 1

    assert left.take("a", one) == (0, 1)
    assert left.take("c", one) == (14, 15)  # b's back half
    assert left.take("b", one) == (8, 9)
    assert left.take("c", one) == (15, 16)
    left.deal_again(lambda first: "d")
    assert left.take("d", one) == (1, 2)


@given(st.data())
def test_everything_is_taken_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    kept = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    left = Stretches(without_kept(cut(count, 2), kept), lambda first: "ab"[first % 2], divisible=True)
    taken: list[int] = []
    while (run := left.take(data.draw(st.sampled_from("abc")), lambda first, end: min(end, first + 3))) is not None:
        if data.draw(st.booleans()):
            left.give_back(*run, "a")
        else:
            taken += range(*run)
    assert sorted(taken) == [number for number in range(count) if not kept[number]]
