"""What parity does not mend: asked for at random times, merged, and sent to all at once."""

from __future__ import annotations

from random import Random

import pytest
from fabric_parcels import KEY, parcel, sealed, take
from makers import seed
from without import without

from tallystick.carriers.fabric.fragments import FabricKey
from tallystick.carriers.fabric.reassembly import Reassemblies
from tallystick.carriers.fabric.repair import RepairLimits, RepairTimes, Resent, read_request, seal_request
from tallystick.errors import CannotOpen, Malformed

LABEL = b"first-hop label."
LIMITS = RepairLimits()


def request(handle: bytes, *missing: int) -> bytes:
    return KEY.open(seal_request(KEY, handle, missing, seed("nonce")[:16]))[1]


def test_a_request_names_fragments_to_the_holders_of_the_key_alone() -> None:
    handle = seed("handle")[:16]
    assert read_request(request(handle, 0, 7, 300)) == (handle, {0, 7, 300})
    assert read_request(request(handle)) == (handle, set())
    payload = seal_request(KEY, handle, [3], bytes(16))
    assert handle not in payload
    with pytest.raises(CannotOpen):
        FabricKey.of_mesh(seed("another"), KEY.epoch).open(payload)
    for junk in (b"", b"\x80", b"\x83\x02\x40\x40"):
        with pytest.raises(Malformed):
            read_request(junk)


def test_requests_are_gathered_and_each_fragment_goes_once() -> None:
    sent, made = Resent(LIMITS), sealed(1, 2_000)
    sent.keep(made.handle, made.payloads, 0.0)
    for number in range(100):
        sent.ask(request(made.handle, 3, 5 + number % 2), 0.001)
    assert sent.answers(0.01) == []
    assert sent.answers(0.03) == [made.payloads[at] for at in (3, 5, 6)]
    sent.ask(request(made.handle, 3), 0.031)
    assert sent.answers(0.06) == []  # on its way already
    sent.ask(request(made.handle, 3), 0.2)
    assert len(sent.answers(0.3)) == 1
    with without("the rest between two repairs"):
        sent.ask(request(made.handle, 3), 0.301)
        assert len(sent.answers(0.33)) == 1


def test_a_subscriber_that_asks_without_end_gets_an_end() -> None:
    """Otherwise it has a publisher send everything again and again, to everybody."""
    made = sealed(1, 2_000)

    def ask_on() -> int:
        sent, gone = Resent(LIMITS), 0
        sent.keep(made.handle, made.payloads, 0.0)
        for step in range(1, 40):
            sent.ask(request(made.handle), step * 0.12)
            gone += len(sent.answers(step * 0.12 + 0.05))
        return gone

    assert ask_on() <= LIMITS.rounds_max * len(made.payloads)
    with without("the number of repairs"):
        assert ask_on() > 4 * LIMITS.rounds_max * len(made.payloads)


def test_what_is_kept_is_bounded_by_time_and_bytes() -> None:
    made = [sealed(number, 2_000) for number in range(3)]
    size = sum(map(len, made[0].payloads))
    sent = Resent(RepairLimits(kept_bytes_max=size * 2))
    for one in made:
        sent.keep(one.handle, one.payloads, 0.0)
    sent.ask(request(made[0].handle), 0.0)
    assert sent.refused == 1
    sent.ask(request(made[2].handle, 99_000 % 8_000), 0.0)  # no such fragment: then all of them
    assert len(sent.answers(1.0)) == len(made[2].payloads)
    sent.answers(10.0)
    sent.ask(request(made[2].handle), 10.0)
    assert sent.refused == 2


def test_those_who_miss_the_same_ask_at_different_times_and_not_if_another_did(seed: int) -> None:
    """One of fifty asks; the others hear the repair."""
    made = sealed(1, 2_000, group=0)
    sent = Resent(LIMITS)
    sent.keep(made.handle, made.payloads, 0.0)
    hosts = [(Reassemblies(), RepairTimes[bytes](Random(f"{seed} {number}"), LIMITS)) for number in range(50)]
    whole, asked, now = 0, 0, 0.0

    def hear(payload: bytes) -> None:
        nonlocal whole
        head, piece = KEY.open(payload)
        for into, times in hosts:
            whole += take(into, head, piece, now) == parcel(1, 2_000)
            if head.handle in into.open:
                times.expect(head.handle, LABEL, now)

    for at, payload in enumerate(made.payloads):
        if at not in (4, 9):
            hear(payload)
    while now < 1.0 and whole < len(hosts):
        now += 0.001
        for into, times in hosts:
            for handle, _ in times.due(now):
                if handle in into.open:
                    asked += 1
                    sent.ask(request(handle, *into.open[handle].missing), now)
        for payload in sent.answers(now):
            hear(payload)
    assert whole == len(hosts)
    assert asked <= 25  # those whose time came within the publisher's 20 ms; all 50 without chance


def test_a_parcel_of_which_nothing_came_is_asked_for_a_few_times() -> None:
    times = RepairTimes[bytes](Random(1), LIMITS)
    for number in range(LIMITS.parcels_max + 5):
        times.expect(b"%16d" % number, LABEL, 0.0)
    asked = [handle for step in range(200) for handle, label in times.due(step * 0.05)]
    assert len(set(asked)) == times.lost == LIMITS.parcels_max
    assert {asked.count(one) for one in set(asked)} == {LIMITS.asks_max}
    assert times.next_at is None
    times.expect(asked[0], LABEL, 20.0)  # a late fragment does not begin it anew
    assert times.since == float("inf")
    times.expect(bytes(16), LABEL, 21.0)
    assert times.since == 21.0
    times.came(bytes(16))
    assert times.due(30.0) == []
