"""Floods of publications and of guesses; and who of several controllers leads."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fabric_world import KEY, advertise, line, name, subscribe
from test_fabric_configurator import FabricWorld, SimController, started

from tallystick.carriers.fabric.floods import FlowExcess, GuessingPort, RateWatch
from tallystick.carriers.fabric.known_flows import DOWN
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.leases import NOBODY, ControllerLease, LeaseFile
from tallystick.errors import Malformed, Misuse
from tallystick.runtime.disk import RealDisk

# --- rates ---


def watched(rate: int = 100) -> tuple[FabricWorld, SimController, RateWatch]:
    world, controller = started(line(3))
    controller.ask(advertise(name(1), "s0", 100, rate=rate))
    controller.ask(*(subscribe(name(10 + n), "s2", 100 + n, name(1)) for n in range(3)))
    watch = RateWatch()
    poll(world, controller, watch)
    return world, controller, watch


def poll(world: FabricWorld, controller: SimController, watch: RateWatch) -> list[FlowExcess | GuessingPort]:
    counters = {one: driver.counters() for one, driver in controller.drivers.items()}
    return watch.poll(controller.configurator.book, counters, world.now, {})


def send(world: FabricWorld, switch: str, label: bytes, frames: int) -> None:
    """As the data plane counts: at this switch, and nothing where there is no rule."""
    key = 1, label
    if key in world.switches[switch].table:
        counts = world.switches[switch].counts
        counts[key] = (counts.get(key, (0, 0))[0] + frames, 0)


def test_a_flow_above_its_rate_is_stopped_at_its_first_switch() -> None:
    world, controller, watch = watched(rate=100)
    book = controller.configurator.book
    [(_, first)] = book.answer(name(1)).send
    for _ in range(5):  # what its permit allows
        send(world, "s0", first, 100)
        world.now += 1
        assert poll(world, controller, watch) == []
    send(world, "s0", first, 5_000)
    world.now += 1
    [excess] = poll(world, controller, watch)
    assert isinstance(excess, FlowExcess)
    assert (excess.flow, excess.what, excess.frames, excess.ports) == (name(1), DOWN, 5_000, 3)
    assert excess.reaction_s == 1.0
    controller.configurator.stop(excess.flow, excess.what)
    assert (1, first) not in world.tables()["s0"]
    # Said again it stays so; another request, with another permit, takes its place.
    controller.ask(advertise(name(1), "s0", 100, rate=100))
    assert (1, first) not in world.tables()["s0"]
    controller.ask(advertise(name(1), "s0", 100, rate=200))
    assert (1, first) in world.tables()["s0"]


def test_a_label_up_that_is_flooded_is_stopped_where_it_is_used() -> None:
    world, controller, watch = watched(rate=100)
    book = controller.configurator.book
    [(_, up)] = book.answer(name(10)).send
    send(world, "s2", up, 500)
    world.now += 1
    [excess] = poll(world, controller, watch)
    assert isinstance(excess, FlowExcess)
    assert (excess.flow, excess.what) == (name(1), "s2")
    controller.configurator.stop(excess.flow, excess.what)
    assert (1, up) not in world.tables()["s2"]
    assert len(world.reached(name(1))) == 3  # down it goes on


def guesses_that_hit(world: FabricWorld, bits: int, guesses: int) -> int:
    """Labels at s0 that a host hits which counts through the last `bits` of them."""
    known = {label for _, label in world.tables()["s0"]}
    last = {int.from_bytes(label[-2:]) for label in known} if bits == 16 else set()
    if bits == 16:
        return sum(guess in last for guess in range(guesses))
    random = Random(3)
    return sum(random.randbytes(16) in known for _ in range(guesses))


def test_a_label_of_16_bits_is_hit_and_one_of_128_is_not() -> None:
    world, _, _ = watched()
    assert guesses_that_hit(world, 16, 1 << 16) >= 1
    assert guesses_that_hit(world, 128, 1 << 20) == 0


def test_random_numbers_of_16_bits_collide_by_301_advertisements() -> None:
    """The thesis's choice: one chance in two. Ours do not collide."""
    labels = RouteLabels(KEY)
    trials = [{labels.first(name(trial * 1000 + n), "s0", 1)[:2] for n in range(301)} for trial in range(30)]
    collided = sum(len(one) < 301 for one in trials)
    assert 6 <= collided <= 24
    assert len({labels.first(name(n), "s0", 1) for n in range(9_030)}) == 9_030


# --- leases ---


def test_a_lease_is_kept_by_its_holder_and_its_number_rises_with_every_other() -> None:
    one = NOBODY.taken(b"one", 1000, 500)
    assert one == ControllerLease(1, b"one", 1500)
    assert one.taken(b"other", 1499, 500) is None
    assert one.taken(b"one", 1499, 500) == ControllerLease(1, b"one", 1999)
    other = one.taken(b"other", 1500, 500)
    assert other == ControllerLease(2, b"other", 2000)
    assert one.taken(b"one", 1500, 500) == ControllerLease(2, b"one", 2000)  # late: it may have been another's
    assert ControllerLease.decode(other.encode()) == other


def test_controllers_that_share_a_file_take_turns(tmp_path: Path) -> None:
    one, other = (LeaseFile(RealDisk(tmp_path), holder, lease_ms=500) for holder in (b"one", b"other"))
    assert (one.take(1000), other.take(1000), one.take(1400)) == (1, None, 1)
    assert (other.take(1901), one.take(1902)) == (2, None)
    (tmp_path / "other" / "controller.lease").mkdir(parents=True)
    with pytest.raises(Misuse):
        LeaseFile(RealDisk(tmp_path / "other"), b"one").take(0)
    (tmp_path / "controller.lease").write_bytes(b"torn")
    with pytest.raises(Malformed):
        one.take(5000)


def test_two_that_believe_they_lead_do_not_both_write(tmp_path: Path) -> None:
    """The first's clock stands still; the switches refuse it."""
    world, controller = started(line(2))
    one, other = (LeaseFile(RealDisk(tmp_path), holder, lease_ms=500) for holder in (b"one", b"other"))
    fence = one.take(0)
    assert fence is not None
    controller.configurator.lead(fence)
    successor = world.controller(other.take(1000) or 0)
    successor.configurator.gathered()
    successor.ask(advertise(name(1), "s0"), subscribe(name(10), "s1", 100, name(1)))
    before = world.tables()
    controller.configurator.is_gathering = False
    with pytest.raises(Exception, match="another leads"):
        controller.ask(advertise(name(2), "s0"), subscribe(name(11), "s1", 101, name(2)))
    assert world.tables() == before
