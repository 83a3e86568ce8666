"""Flows and subscriptions become rules: a path at a time, as if made from nothing (Algorithms 1 and 2, put right)."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from fabric_world import HOST_PORTS, KEY, advertise, line, name, random_wiring, subscribe, withdraw

from tallystick.carriers.fabric.flows import FlowBook, FlowLimits, Tables
from tallystick.carriers.fabric.labels import RouteLabels
from tallystick.carriers.fabric.planning import difference, follow, make_plan, share
from tallystick.carriers.fabric.requests import FlowAnswer, FlowKind, FlowRequest
from tallystick.carriers.fabric.rules import FlowRule, RuleKey
from tallystick.carriers.fabric.trees import PortPlace, TreeKind, Wiring
from tallystick.errors import Malformed, Refused

LABELS = RouteLabels(KEY)


def book_over(wiring: Wiring, kind: TreeKind = TreeKind.SPANNING, **limits: int) -> FlowBook:
    return FlowBook(LABELS, wiring.trees(kind), 1, FlowLimits(**limits))


def made_from_nothing(book: FlowBook) -> Tables:
    """Algorithm 1 for every flow: the union of the paths to its subscribers."""
    tables: dict[str, dict[RuleKey, FlowRule]] = {}
    for flow, it in book.flows.items():
        tree = book._tree(it.request.switch)
        ways: dict[str, dict[int, bytes]] = {}
        for epoch in book.epochs:
            ways = {}
            at_port: dict[PortPlace, set[bytes]] = {}
            for one in it.pairs:
                place = book.subscriptions[one].place
                if tree.covers(place.switch) and place != it.place:
                    at_port.setdefault(place, set()).add(one)
                    path = tree.path(place.switch)
                    for parent, child in pairwise(path):
                        next_label = LABELS.down(flow, child, epoch, tree.identifier)
                        ways.setdefault(parent, {})[tree.steps[child].down] = next_label
            for place, held in at_port.items():
                ways.setdefault(place.switch, {})[place.port] = LABELS.last(held, *place, epoch)
            for switch, out in ways.items():
                label = LABELS.first(flow, switch, epoch)
                if switch != tree.root:
                    label = LABELS.down(flow, switch, epoch, tree.identifier)
                rules = [FlowRule(epoch, label, tuple(sorted(out.items())))]
                upwards = (it.request.port, LABELS.repair(flow, switch, epoch))
                if switch != tree.root:
                    step = tree.steps[switch]
                    upwards = (step.up, LABELS.up(flow, step.parent, epoch, tree.identifier, step.down))
                hosts = {place.port for place in at_port if place.switch == switch}
                came = {0 if port in hosts else port for port in out}
                rules += [FlowRule(epoch, LABELS.up(flow, switch, epoch, tree.identifier, c), (upwards,)) for c in came]
                tables.setdefault(switch, {}).update({rule.key: rule for rule in rules})
    return tables


def filled(tables: Tables) -> Tables:
    return {switch: table for switch, table in tables.items() if table}


def act_at_random(random: Random, book: FlowBook, wiring: Wiring) -> None:
    flows, subscriptions = [name(n) for n in range(6)], [name(n) for n in range(100, 120)]
    switch, port = random.choice(sorted(wiring.switches)), random.choice(HOST_PORTS)
    match random.randrange(5):
        case 0:
            matches = random.sample(subscriptions, random.randrange(6))
            book.apply("d", advertise(random.choice(flows), switch, port, *matches))
        case 1 | 2:
            matches = random.sample(flows, random.randrange(4))
            book.apply("d", subscribe(random.choice(subscriptions), switch, port, *matches))
        case 3:
            book.apply("d", withdraw(random.choice(flows + subscriptions)))
        case 4:
            links = sorted(wiring.links)
            kept = random.sample(links, random.randrange(len(links) // 2, len(links) + 1))
            book.rewire(Wiring.of(wiring.switches, kept).trees(TreeKind.SPANNING))


@pytest.mark.parametrize("number", range(6))
def test_a_path_at_a_time_gives_what_is_made_from_nothing(number: int, seed: int) -> None:
    random = Random(f"{seed}/{number}")
    wiring = random_wiring(random, switches=7, extra=4)
    book = book_over(wiring)
    standing: Tables = {}
    for _ in range(80):
        act_at_random(random, book, wiring)
        for switch, changed in book.take_changes().items():
            for key, rule in changed.items():
                if rule is None:
                    standing.get(switch, {}).pop(key, None)
                else:
                    standing.setdefault(switch, {})[key] = rule
        assert filled(book.tables) == filled(standing) == made_from_nothing(book)


def test_a_frame_reaches_whoever_matched_and_nobody_else() -> None:
    wiring = line(4)
    book = book_over(wiring)
    book.apply("d", advertise(name(1), "s0"))
    book.apply("d", advertise(name(2), "s3"))
    book.apply("d", subscribe(name(10), "s2", 100, name(1)))
    book.apply("d", subscribe(name(11), "s3", 101, name(1), name(2)))
    book.apply("d", subscribe(name(12), "s3", 102, name(2)))
    [(_, first)] = book.answer(name(1)).send
    trace = follow(book.tables, wiring.far_ends, "s0", 1, first)
    assert [place for place, _ in trace.delivered] == [("s2", 100), ("s3", 101)]
    assert trace.faults == ()
    [own] = book.answer(name(11)).receive
    assert dict(trace.delivered)[PortPlace("s3", 101)] == own
    [(_, other)] = book.answer(name(2)).send
    trace = follow(book.tables, wiring.far_ends, "s3", 1, other)
    assert dict(trace.delivered) == {("s3", 101): own, ("s3", 102): book.answer(name(12)).receive[0]}


def test_algorithm_2_as_printed_would_send_what_nobody_asked_for() -> None:
    """It updates every rule for a new subscription, matched or not."""
    wiring = line(3)
    printed, ours = book_over(wiring), book_over(wiring)
    for book in (printed, ours):
        book.apply("d", advertise(name(1), "s0"))
        book.apply("d", advertise(name(2), "s0"))
    ours.apply("d", subscribe(name(10), "s2", 100, name(1)))
    printed.apply("d", subscribe(name(10), "s2", 100, *printed.flows))
    for book, expected in ((ours, []), (printed, [("s2", 100)])):
        [(_, first)] = book.answer(name(2)).send
        trace = follow(book.tables, wiring.far_ends, "s0", 1, first)
        assert [place for place, _ in trace.delivered] == expected


def test_a_request_for_repair_goes_up_to_the_publisher_and_to_nobody_else() -> None:
    wiring = line(4)
    book = book_over(wiring)
    book.apply("d", advertise(name(1), "s1", 103))
    book.apply("d", subscribe(name(10), "s3", 100, name(1)))
    book.apply("d", subscribe(name(11), "s0", 100, name(1)))
    [(flow, up)] = book.answer(name(10)).send
    trace = follow(book.tables, wiring.far_ends, "s3", 1, up)
    assert (flow, trace.faults) == (name(1), ())
    assert trace.delivered == ((PortPlace("s1", 103), book.answer(name(1)).receive[0]),)


def test_two_subscriptions_of_one_port_share_a_copy_whose_label_stands_for_both() -> None:
    wiring = line(2)
    book = book_over(wiring)
    book.apply("d", advertise(name(1), "s0"))
    book.apply("d", subscribe(name(10), "s1", 100, name(1)))
    before = book.answer(name(10))
    book.take_heard()
    book.apply("d", subscribe(name(11), "s1", 100, name(1)))
    assert book.take_heard() == {name(10), name(11)}
    both = set(book.answer(name(10)).receive) & set(book.answer(name(11)).receive)
    [(_, first)] = book.answer(name(1)).send
    [(_, label)] = follow(book.tables, wiring.far_ends, "s0", 1, first).delivered
    assert both == {label}
    book.apply("d", withdraw(name(11)))
    assert book.answer(name(10)) == before


def test_what_a_publisher_sends_does_not_come_back_to_its_own_port() -> None:
    book = book_over(line(1))
    book.apply("d", advertise(name(1), "s0", 100))
    book.apply("d", subscribe(name(10), "s0", 100, name(1)))
    assert filled(book.tables) == {}


# --- owners and bounds ---


def test_nobody_touches_what_is_anothers() -> None:
    wiring = line(2)
    book = book_over(wiring)
    book.apply("one", advertise(name(1), "s0"))
    book.apply("one", subscribe(name(10), "s1", 100, name(1)))
    standing = filled(book.tables)
    for request in (withdraw(name(1)), withdraw(name(10)), advertise(name(1), "s1"), subscribe(name(10), "s1", 101)):
        with pytest.raises(Refused, match="another dispatcher's"):
            book.apply("other", request)
    book.apply("other", subscribe(name(11), "s1", 102, name(1)))  # it knows the identifier
    assert filled(book.tables) == standing
    with pytest.raises(Refused, match="no subscription"):
        book.apply("one", subscribe(name(1), "s1", 100))


def test_an_owner_has_so_many_and_no_more() -> None:
    book = book_over(line(2), flows_max=2, subscriptions_max=2, pairs_max=3)
    for number in (1, 2):
        book.apply("d", advertise(name(number), "s0"))
    with pytest.raises(Refused, match="has 2"):
        book.apply("d", advertise(name(3), "s0"))
    book.apply("other", advertise(name(3), "s0"))
    book.apply("d", subscribe(name(10), "s1", 100, name(1), name(2)))
    with pytest.raises(Refused, match="4 pairs"):
        book.apply("d", subscribe(name(11), "s1", 100, name(1), name(2)))
    book.apply("d", subscribe(name(11), "s1", 100, name(1)))
    with pytest.raises(Refused, match="has 2"):
        book.apply("d", subscribe(name(12), "s1", 100))
    book.apply("d", withdraw(name(10)))
    book.apply("d", subscribe(name(12), "s1", 100, name(1)))


def test_what_a_request_took_it_gives_back() -> None:
    book = book_over(line(3))
    book.apply("d", advertise(name(1), "s0"))
    book.apply("d", subscribe(name(10), "s2", 100, name(1)))
    standing = {switch: dict(table) for switch, table in filled(book.tables).items()}
    for request in (
        subscribe(name(10), "s1", 100, name(1)),
        subscribe(name(11), "s2", 105, name(1)),
        withdraw(name(1)),
    ):
        back = book.apply("d", request)
        assert filled(book.tables) != standing
        book.apply("d", back)
        assert filled(book.tables) == standing


# --- sharing rules, and the bound ---


def test_flows_that_go_the_same_way_share_rules_and_deliveries_stay_the_same() -> None:
    wiring = line(4)
    book = book_over(wiring)
    for number in range(20):
        book.apply("d", advertise(name(number), "s0"))
    flows = [name(number) for number in range(20)]
    book.apply("d", subscribe(name(100), "s3", 100, *flows))
    book.apply("d", subscribe(name(101), "s3", 101, *flows[:5]))
    held = {(switch, rule.key) for switch, rule, meaning in book.placed() if meaning is not None}
    merged = share(book.tables, held, LABELS, wiring.far_ends)
    for one in flows:
        first = LABELS.first(one, "s0", 1)
        plain, shared = (follow(t, wiring.far_ends, "s0", 1, first) for t in (book.tables, merged))
        assert shared.delivered == plain.delivered
        assert shared.faults == ()
    # Two sets of subscribers; up, a rule for each flow where somebody holds its label, and below that where it leads.
    assert {switch: len(table) for switch, table in book.tables.items()} == dict.fromkeys(("s0", "s1", "s2", "s3"), 40)
    assert {switch: len(table) for switch, table in merged.items()} == {"s0": 40, "s1": 22, "s2": 22, "s3": 22}
    plan = make_plan(book.tables, difference(book.tables, merged), wiring.far_ends, {})
    assert plan.installing[-1].switch == "s0"  # the publishers' rules are changed last


def test_a_full_table_is_said_before_anything_is_written() -> None:
    rules = {}
    for number in range(65_534 // 2):
        rule = FlowRule(1, name(number), ((1, name(1)), (2, name(2))))
        rules[rule.key] = rule
    one = FlowRule(2, name(1), ((1, name(1)), (2, name(2))))
    two = FlowRule(2, name(2), ((1, name(1)),))
    filled = {"s0": 65_534}
    make_plan({"s0": rules}, {"s0": {one.key: one}}, {}, filled)
    with pytest.raises(Refused, match="65537 entries needed, 65536 fit") as refused:
        make_plan({"s0": rules}, {"s0": {one.key: one, two.key: two}}, {}, filled)
    assert refused.value.reason == "table-full"
    # What is removed makes room only afterwards.
    gone = dict.fromkeys(list(rules)[:10])
    with pytest.raises(Refused):
        make_plan({"s0": rules}, {"s0": {one.key: one, two.key: two, **gone}}, {}, filled)


# --- labels ---


def test_a_label_is_worth_nothing_elsewhere() -> None:
    tree = bytes(16)
    found = {
        LABELS.down(flow, switch, epoch, tree)
        for flow in (name(1), name(2))
        for switch in ("s1", "s2")
        for epoch in (1, 2)
    }
    found |= {RouteLabels(bytes(32)).down(name(1), "s1", 1, tree), LABELS.down(name(1), "s1", 1, b"t" * 16)}
    found |= {LABELS.up(name(1), "s1", 1, tree), LABELS.first(name(1), "s1", 1), LABELS.repair(name(1), "s1", 1)}
    found |= {LABELS.last([name(1)], "s1", 1, 1), LABELS.last([name(1)], "s1", 2, 1), LABELS.shared(name(1), "s1", 1)}
    assert len(found) == 8 + 2 + 3 + 3
    assert {len(one) for one in found} == {16}


# --- bytes ---


def test_requests_and_answers_are_read_as_they_were_written() -> None:
    for request in (advertise(name(1), "s0", 3, name(7), name(8)), subscribe(name(2), "s1", 9), withdraw(name(1))):
        assert FlowRequest.decode(request.encode()) == request
    answer = FlowAnswer(name(1), 7, ((name(1), name(2)),), (name(3), name(4)))
    assert FlowAnswer.decode(answer.encode()) == answer
    assert FlowAnswer.decode(FlowAnswer(name(1), refused="table-full").encode()).refused == "table-full"


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.__setitem__(1, 5),
        lambda fields: fields.__setitem__(2, b"short"),
        lambda fields: fields.__setitem__(3, "s" * 65),
        lambda fields: fields.__setitem__(4, 510),
        lambda fields: fields.__setitem__(4, 0),
        lambda fields: fields.__setitem__(7, [name(2), name(1)]),
        lambda fields: fields.__setitem__(7, [name(1), name(1)]),
        lambda fields: fields.append(1),
    ],
)
def test_a_request_that_is_none_is_refused(change: object) -> None:
    from tallystick import wire

    fields = wire.decode(FlowRequest(FlowKind.ADVERTISE, name(1), "s0", 1, 1, 1, frozenset({name(1)})).encode())
    change(fields)  # type: ignore[operator]
    with pytest.raises(Malformed):
        FlowRequest.decode(wire.encode(fields))
    with pytest.raises(Malformed):
        FlowRequest.decode(bytes(600_000))
