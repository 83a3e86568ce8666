"""What came out of envelopes is put in the order of its lanes again, and nothing waits for ever."""

from __future__ import annotations

from random import Random

from mesh_parcels import pushed, sequences
from without import without

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.arrivals import ArrivalLimits, Arrivals

ANNA, BORIS = b"anna" * 8, b"boris" * 8
LIMITS = ArrivalLimits(hold_s=10.0, bytes_max=100_000, lanes_max=4)


def fresh(limits: ArrivalLimits = LIMITS, due: int | None = None) -> Arrivals:
    return Arrivals(lambda header: due, limits)


def test_parcels_that_overtook_each_other_come_in_order() -> None:
    arrivals = fresh()
    order = list(range(20))
    Random(7).shuffle(order)
    taken = []
    for number in order:
        arrivals.put(ANNA, pushed("one", number), 0.0)
        taken += arrivals.take(0.0)
    assert sequences(taken) == list(range(20))


def test_without_it_what_was_overtaken_is_behind_the_head() -> None:
    arrivals = fresh()
    with without("the order of arrivals"):
        for number in (1, 0):
            arrivals.put(ANNA, pushed("one", number), 0.0)
        assert sequences(arrivals.take(0.0)) == [1, 0]  # and the log keeps nothing before the head of a lane


def test_what_does_not_come_is_given_up() -> None:
    arrivals = fresh()
    for number in (0, 2, 3, 5):
        arrivals.put(ANNA, pushed("one", number), 0.0)
    assert sequences(arrivals.take(9.9)) == [0]
    assert sequences(arrivals.take(10.0)) == [2, 3]
    assert sequences(arrivals.take(20.0)) == [5]
    arrivals.put(ANNA, pushed("one", 1), 21.0)
    assert sequences(arrivals.take(21.0)) == [1]  # late: the guard judges it


def test_where_nothing_is_under_way_what_does_not_come_is_not_waited_for() -> None:
    """On the fabric, what an interest leaves out; however many gaps there are."""
    oldest = [0.5]
    arrivals = Arrivals(lambda header: None, LIMITS, lambda: oldest[0])
    for number in (0, 2, 4, 6):
        arrivals.put(ANNA, pushed("one", number), 1.0)
    assert sequences(arrivals.take(1.5)) == [0]  # something older is coming still
    oldest[0] = 1.2
    arrivals.put(ANNA, pushed("one", 8), 1.49)
    assert sequences(arrivals.take(1.5)) == [2, 4, 6]
    assert sequences(arrivals.take(9.0)) == []  # it may be of use to this one
    oldest[0] = float("inf")
    assert sequences(arrivals.take(9.0)) == [8]


def test_a_lane_goes_on_where_the_log_has_it() -> None:
    arrivals = fresh(due=7)
    arrivals.put(ANNA, pushed("one", 7), 0.0)
    assert sequences(arrivals.take(0.0)) == [7]


def test_a_lane_that_began_before_us_waits_for_earlier_ones_a_while() -> None:
    arrivals = fresh()
    for number in (9, 8):
        arrivals.put(ANNA, pushed("one", number), 0.0)
    assert arrivals.take(5.0) == []
    assert sequences(arrivals.take(10.0)) == [8, 9]


def test_nobody_stands_in_the_way_of_anothers_lane() -> None:
    arrivals = fresh()
    arrivals.put(BORIS, pushed("one", 1_000), 0.0)
    arrivals.put(ANNA, pushed("one", 0), 0.0)
    arrivals.put(ANNA, pushed("one", 1), 0.0)
    assert sequences(arrivals.take(0.0)) == [0, 1]


def test_what_waits_is_bounded_in_bytes_and_lanes() -> None:
    arrivals = fresh()
    for number in range(1, 1_000):
        arrivals.put(ANNA, pushed("one", 2 * number), 0.0)
    assert arrivals.dropped
    assert arrivals._bytes <= 2 * LIMITS.bytes_max
    assert arrivals.take(0.0)
    many = fresh()
    for number in range(10):
        many.put(ANNA, pushed(f"lane {number}", 5), 0.0)
    assert len(many.take(0.0)) == 6
    assert len(many._lanes) == LIMITS.lanes_max


def test_junk_is_dropped_and_nothing_of_it_stays() -> None:
    arrivals = fresh()
    arrivals.put(ANNA, Pushed(b"junk"), 0.0)
    arrivals.put(ANNA, pushed("one", 3), 0.0)
    arrivals.put(ANNA, pushed("one", 3), 0.0)
    assert arrivals.take(0.0) == []
    assert sequences(arrivals.take(11.0)) == [3]
    assert arrivals._bytes == 0
