"""Roles on UDP sockets: what arrives, what is dropped, and who loses by it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from link_parties import Teller, run, until
from without import without

from tallystick.errors import Misuse, Unavailable
from tallystick.runtime.datagrams import OTHERS, DatagramLimits, DatagramQueue, Datagrams, numeric_place
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Role, Send, Woken
from tallystick.runtime.network import Link, Network

KEPT = 100 + 4  # what a message of four bytes weighs in a queue


class Party:
    def __init__(self, role: Role, **options: Any) -> None:
        self.delivered: list[Any] = []
        self.datagrams = Datagrams(role, deliver=self.delivered.append, **options)
        self.address = f"127.0.0.1:{self.datagrams.port}"


@asynccontextmanager
async def running(*parties: Party) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.datagrams.run()) for one in parties]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for one in parties:
            one.datagrams.stop()
        await asyncio.gather(*tasks)


class Stranger:
    """Somebody with a socket."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def send(self, to: Party, *messages: bytes) -> None:
        for message in messages:
            self.socket.sendto(message, ("127.0.0.1", to.datagrams.port))

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_the_same_roles_deliver_the_same_on_sockets_and_in_simulation() -> None:
    said = {"a": [("b", b"one"), ("b", b"two")], "b": [("a", b"three")]}
    network = Network(1, Link(delay_min_s=0.001, delay_max_s=0.001))
    for name, says in said.items():
        network.add(name, lambda stored, says=says: Teller(*says))  # type: ignore[misc]
    network.run(until=1.0)

    async def story() -> None:
        parties = {name: Party(Teller(*says)) for name, says in said.items()}
        for one in parties.values():
            one.datagrams.set_names({name: party.address for name, party in parties.items()})
        async with running(*parties.values()):
            await until(lambda: sum(len(one.delivered) for one in parties.values()) == 3)
        for name, one in parties.items():
            assert one.delivered == [value for _, to, value in network.delivered if to == name]

    run(story)


def test_who_has_no_name_is_known_by_its_address() -> None:
    async def story() -> None:
        with Stranger() as stranger:
            party = Party(Teller((stranger.address, b"hello")))
            async with running(party):
                assert await asyncio.to_thread(stranger.socket.recvfrom, 100) == (
                    b"hello",
                    ("127.0.0.1", party.datagrams.port),
                )
                stranger.send(party, b"and you")
                await until(lambda: party.delivered)
            assert party.delivered == [(stranger.address, b"and you")]

    run(story)


def test_what_is_too_long_is_dropped_and_counted_for_its_sender() -> None:
    async def story() -> None:
        party = Party(Teller())
        async with running(party):
            with Stranger() as stranger:
                stranger.send(party, bytes(1_201), bytes(9_000), bytes(1_200))
                await until(lambda: party.delivered)
            statistics = party.datagrams.statistics()
        assert (statistics.messages_in, statistics.dropped) == (1, {"oversized": 2})
        assert statistics.dropped_by == {stranger.address: 2}

    run(story)


def test_what_the_role_sends_wrongly_is_counted_and_goes_nowhere() -> None:
    async def story() -> None:
        wrong = ("224.0.0.1:9", "0.0.0.0:9", "255.255.255.255:9", "example.org:9", "127.0.0.1:0", "[::1]:9", "nobody")
        party = Party(Teller(*((to, b"x") for to in wrong), ("127.0.0.1:9", bytes(2_000))))
        async with running(party):
            await until(lambda: party.datagrams.statistics().unsent.get("oversized"))
        assert party.datagrams.statistics().unsent == {"unknown": len(wrong), "oversized": 1}
        assert party.datagrams.statistics().messages_out == 0

    run(story)


def test_numeric_addresses_of_both_kinds() -> None:
    assert numeric_place("192.0.2.1:7001") == ("192.0.2.1", 7001)
    assert numeric_place("[2001:db8::1]:7001", is_six=True) == ("2001:db8::1", 7001)
    for wrong in ("2001:db8::1:7001", "[192.0.2.1]:7001", "[ff02::1]:7001", "[::]:1", "a:²", ""):
        assert numeric_place(wrong, is_six=True) is None


def small(**options: int) -> DatagramQueue:
    return DatagramQueue(DatagramLimits(**{"input_bytes_max": 10 * KEPT, "strangers_bytes_max": 64 * KEPT, **options}))


def drain(queue: DatagramQueue) -> list[str]:
    taken = []
    while (one := queue.take()) is not None:
        taken.append(one[0])
    return taken


def test_a_flood_of_strangers_drowns_strangers_only() -> None:
    queue = small()
    queue.know("friend")
    dropped = [queue.put(f"stranger {number}", b"four") for number in range(1_000)]
    assert dropped.count("strangers") == 1_000 - 64
    assert queue.put("friend", b"four") == ""
    assert "friend" in drain(queue)[:2]  # and it does not wait for them


def test_without_a_room_of_their_own_strangers_drown_everybody() -> None:
    queue = small()
    with without("the strangers' own room"):
        for number in range(1_000):
            queue.put(f"stranger {number}", b"four")
        queue.put("friend", b"four")
        assert drain(queue).index("friend") == 1_000


def test_one_stranger_leaves_room_for_the_others() -> None:
    queue = small()
    dropped = [queue.put("one", b"four") for _ in range(100)]
    assert dropped.count("") == 4  # a sixteenth
    assert queue.put("another", b"four") == ""


def test_a_neighbour_that_floods_loses_its_own() -> None:
    queue = small()
    for name in ("loud", "quiet"):
        queue.know(name)
    lost = [queue.put("loud", b"four") for _ in range(100)]
    assert 0 < lost.count("") < 15
    assert queue.put("quiet", b"four") == ""
    assert set(drain(queue)[:2]) == {"loud", "quiet"}


def test_strangers_are_heard_while_neighbours_never_stop() -> None:
    queue = small()
    queue.know("busy")
    queue.put("stranger", b"four")
    heard = []
    for _ in range(8):
        queue.put("busy", b"four")
        taken = queue.take()
        assert taken is not None
        heard.append(taken[0])
    assert "stranger" in heard


def test_only_the_latest_count_as_known() -> None:
    queue = small(known_max=2)
    for name in ("a", "b", "c"):
        queue.know(name)
    assert list(queue._known) == ["b", "c"]


def test_the_table_of_those_who_were_dropped_is_bounded() -> None:
    async def story() -> None:
        party = Party(Teller(), limits=DatagramLimits(counted_max=2))
        async with running(party):
            for number in range(5):
                party.datagrams._take(f"127.0.0.1:{number + 1}", bytes(2_000))
        assert party.datagrams.statistics().dropped_by == {"127.0.0.1:1": 1, "127.0.0.1:2": 1, OTHERS: 3}

    run(story)


class Awoken:
    def __init__(self) -> None:
        self.told: list[str] = []

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return [Deliver(list(self.told))] if isinstance(event, Woken) else []


def test_another_thread_hands_something_in() -> None:
    async def story() -> None:
        role = Awoken()
        party = Party(role)
        async with running(party):
            await until(lambda: party.delivered == [[]])
            threading.Thread(target=lambda: party.datagrams.wake(lambda: role.told.append("it"))).start()
            await until(lambda: party.delivered == [[], ["it"]])

    run(story)


class Broken:
    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            raise Misuse("broken")
        return [Send("127.0.0.1:9", b"x")]


def test_a_broken_role_ends_the_run_and_frees_the_port() -> None:
    async def story() -> None:
        party = Party(Broken())
        with Stranger() as stranger:
            task = asyncio.create_task(party.datagrams.run())
            await until(lambda: party.datagrams.statistics().messages_out)
            with pytest.raises(Unavailable, match="cannot listen"):
                Datagrams(Broken(), port=party.datagrams.port, deliver=print)
            stranger.send(party, b"x")
            with pytest.raises(Misuse, match="broken"):
                await task
        Datagrams(Broken(), port=party.datagrams.port, deliver=print).stop()

    run(story)
