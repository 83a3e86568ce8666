from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from tallystick.errors import Misuse
from tallystick.runtime.effects import Arrived, Deliver, Effect, Event, Send, StoreEffect, WakeAt, Woken
from tallystick.runtime.network import Link, Network, SimClock

ROUGH = Link(loss=0.2, duplicate=0.2, reorder=0.3)


class Sender:
    """Sends numbers until each is acknowledged; remembers through crashes which were."""

    def __init__(self, stored: Mapping[str, bytes], total: int) -> None:
        self.waiting = [n for n in range(total) if str(n) not in stored]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Arrived):
            if event.message in self.waiting:
                self.waiting.remove(event.message)
            return [StoreEffect(str(event.message), b"")]
        if not self.waiting:
            return []
        return [*(Send("receiver", n) for n in self.waiting), WakeAt(now + 0.2)]


class Receiver:
    """Delivers each number once, whatever arrives; stores before it answers."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self.seen = {int(key) for key in stored}

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            return []
        n = event.message
        if n in self.seen:
            return [Send(event.sender, n)]
        self.seen.add(n)
        return [StoreEffect(str(n), b""), Deliver(n), Send(event.sender, n)]


def story(seed: int, link: Link = ROUGH) -> Network:
    network = Network(seed, link)
    network.add("receiver", Receiver)
    network.add("sender", lambda stored: Sender(stored, 20))
    network.clock.at(0.3, lambda: network.crash("receiver"))
    network.clock.at(0.9, lambda: network.restart("receiver"))
    network.clock.at(1.1, lambda: network.crash("sender"))
    network.clock.at(1.2, lambda: network.restart("sender"))
    network.clock.at(1.5, lambda: network.partition(["sender"], ["receiver"]))
    network.clock.at(2.5, network.heal)
    network.run(until=30.0)
    return network


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_delivered_once_under_every_fault(seed: int) -> None:
    network = story(seed)
    assert sorted(value for _, _, value in network.delivered) == list(range(20))
    assert network.clock.now() == 30.0


def test_a_seed_replays_exactly_and_another_does_not() -> None:
    first, again, other = story(5), story(5), story(6)
    assert first.trace_hash() == again.trace_hash()
    assert first.delivered == again.delivered
    assert first.trace_hash() != other.trace_hash()


class Hasty(Receiver):
    """Answers before it stores: wrong, and the network must be able to show it."""

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return list(reversed(super().receive(event, now)))


def test_a_crash_midway_finds_the_role_that_answers_before_it_stores() -> None:
    def lost(make: type[Receiver], seed: int) -> bool:
        network = Network(seed)
        network.add("receiver", make)
        network.add("sender", lambda stored: Sender(stored, 1))
        network.clock.at(0.0005, lambda: network.crash_midway("receiver"))
        network.clock.at(0.1, lambda: network.restart("receiver"))
        network.run(until=5.0)
        sender, receiver = network.role("sender"), network.role("receiver")
        assert isinstance(sender, Sender)
        assert isinstance(receiver, Receiver)
        return not sender.waiting and not receiver.seen

    assert any(lost(Hasty, seed) for seed in range(20))
    assert not any(lost(Receiver, seed) for seed in range(20))


class Recorder:
    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self.woken = 0

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if isinstance(event, Woken):
            self.woken += 1
            return []
        return [Deliver(event.message)]


def received(link: Link, count: int = 200) -> list[int]:
    network = Network(1, link)
    network.add("a", Recorder)
    for n in range(count):
        network.clock.at(n / 100, partial(network.send, "test", "a", n))
    network.run(until=100.0)
    return [value for _, _, value in network.delivered]


def test_links_lose_repeat_and_reorder_only_as_told() -> None:
    every = list(range(200))
    calm = Link(delay_min_s=0.001, delay_max_s=0.002)
    assert received(calm) == every
    lossy = received(Link(delay_min_s=0.001, delay_max_s=0.002, loss=0.5))
    assert 50 < len(lossy) < 150
    assert lossy == sorted(lossy)
    doubled = received(Link(delay_min_s=0.001, delay_max_s=0.002, duplicate=1.0))
    assert len(doubled) == 400
    shuffled = received(Link(delay_min_s=0.001, delay_max_s=0.002, reorder=0.3))
    assert sorted(shuffled) == every
    assert shuffled != every


def test_traffic_on_one_link_changes_no_fate_on_another() -> None:
    def fates(noise: bool) -> list[int]:
        network = Network(3, Link(loss=0.5))
        network.add("a", Recorder)
        network.add("b", Recorder)
        for n in range(50):
            network.send("test", "a", n)
            if noise:
                network.send("test", "b", n)
        network.run(until=10.0)
        return sorted(value for _, name, value in network.delivered if name == "a")

    assert fates(noise=False) == fates(noise=True)


def test_partitions_are_between_sides_and_one_direction_can_be_cut() -> None:
    network = Network(1)
    for name in "abc":
        network.add(name, Recorder)
    network.partition("ab", "c")
    network.send("a", "b", "within")
    network.send("a", "c", "across")
    network.run(until=1.0)
    network.heal()
    network.set_link("a", "b", Link(loss=1.0))
    network.send("a", "b", "cut")
    network.send("b", "a", "open")
    network.run(until=2.0)
    assert [value for _, _, value in network.delivered] == ["within", "open"]


def test_a_crash_forgets_wake_ups_and_loses_messages() -> None:
    class Sleeper(Recorder):
        def receive(self, event: Event, now: float) -> Sequence[Effect]:
            super().receive(event, now)
            return [WakeAt(5.0)] if now < 1 else []

    network = Network(1)
    network.add("a", Sleeper)
    network.run(until=2.0)
    network.crash("a")
    assert not network.alive("a")
    network.send("test", "a", "lost")
    network.run(until=3.0)
    network.restart("a")
    network.run(until=10.0)
    role = network.role("a")
    assert isinstance(role, Sleeper)
    assert role.woken == 1
    assert network.delivered == []


def test_misuse_is_named() -> None:
    network = Network(1)
    network.add("a", Recorder)
    with pytest.raises(Misuse, match="exists"):
        network.add("a", Recorder)
    with pytest.raises(Misuse, match="does not exist"):
        network.send("a", "nobody", 1)
    network.crash("a")
    with pytest.raises(Misuse, match="crashed"):
        network.role("a")
    clock = SimClock()
    with pytest.raises(Misuse, match="inside a simulation"):
        clock.pause(1)

    def again() -> None:
        clock.at(clock.now(), again)

    again()
    with pytest.raises(Misuse, match="in circles"):
        clock.run(until=1.0, events_max=100)
