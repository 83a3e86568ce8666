"""Faults that a node must survive, one at a time, on the seeded disk and a clock that jumps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from without import without

from tallystick import wire
from tallystick.carriers.carrier import NotStored
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.scribe import AGAIN_MS, Accusation, ActNote, Numbers, Scribe, ScribeSettings
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import compose, parse
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.operations import OperatorRole
from tallystick.ledger.engine import Query, Submitted
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.seeded_disk import SeededDisk
from tallystick.runtime.sources import SeededEntropy
from tallystick.sim.sealing import seeded_sealing
from tallystick.sim.world import World
from tallystick.trust.promise import Anchor


@pytest.fixture
def world() -> Iterator[World]:
    with seeded_sealing(SeededEntropy("faults")):
        yield World(2)


def work(world: World, rounds: int = 3) -> None:
    for _ in range(rounds):
        world.pass_time(1.0)
        world.node_works()
        for publisher in world.publishers:
            publisher.pump()


def test_a_clock_that_was_set_back_while_the_node_was_off_keeps_nothing_from_the_ledger(world: World) -> None:
    world.node_clock.offset_s = 4.0
    world.publishers[0].produce(4)
    work(world)
    world.host.stop()
    world.node_clock.offset_s = -4.0
    world.host.start()
    before = len(world.host.open_core.ledger.history(world.token))
    world.publishers[0].produce(4)
    world.publishers[0].pump()
    world.node_works()
    core = world.host.open_core
    assert core.carrier.statistics().operations_waiting == 0
    assert len(core.ledger.history(world.token)) > before
    assert all(anchored == end for anchored, end in (core.carrier.ends(world.token, p) for p in range(2)))


def test_a_transaction_from_before_the_power_went_is_followed_by_higher_numbers(world: World) -> None:
    """It comes to the ledger from the journal, by a clock that went back since."""
    world.node_clock.offset_s = 4.0
    world.publishers[0].produce(4)
    world.publishers[0].pump()
    world.host.is_slow = True
    world.node_works()  # in the journal, and in no block
    world.host.crash()
    world.host.is_slow = False
    world.node_clock.offset_s = -4.0
    world.host.start()
    world.publishers[0].produce(4)
    work(world)
    core = world.host.open_core
    assert core.carrier.statistics().operations_waiting == 0
    assert all(anchored == end for anchored, end in (core.carrier.ends(world.token, p) for p in range(2)))


NOTE = ActNote(bytes(16), OperatorRole.PUBLISHER, b"t" * 16, 2, "", "host", 0, 0, 1, 1_000, bytes(32), b"")


def scribe_on(disk: SeededDisk, settings: ScribeSettings = ScribeSettings()) -> tuple[LogStore, Scribe]:
    """A scribe that took up what an earlier one left, and the store that it writes to."""
    store = LogStore(disk)
    signer = RequestSigner(b"n" * 16, SigningKey.from_seed(bytes(32)))
    scribe = Scribe(bytes(32), signer, store.journal, lambda _: Submitted(bytes(32), 0, 1, 0), Numbers(0), settings)
    scribe.recover()
    return store, scribe


def notes(count: int) -> list[ActNote]:
    """Acts of different people: an entry each."""
    return [NOTE._replace(operator=bytes([n] * 16)) for n in range(1, count + 1)]


def told(transaction: bytes | None) -> list[bytes]:
    """Whose acts a transaction tells of."""
    assert transaction is not None
    return [wire.decode(entry, "entry")[1] for entry in parse(transaction).entries]


def test_a_quiet_scribe_remembers_acts_for_a_while_and_tells_nobody() -> None:
    disk, quiet = SeededDisk(1), ScribeSettings(quiet=True, keep_s=70.0)
    store, scribe = scribe_on(disk, quiet)
    for note in notes(3):
        scribe.note(note)
    scribe.count_junk("malformed", 2)
    store.sync()
    assert scribe.prepare([Anchor(b"t" * 16, 0, 1, bytes(32))], 2_000) is None
    assert scribe.waiting == 0
    store, scribe = scribe_on(disk, quiet)
    assert len(store.journal.replay()) == 3  # so that a request counts once, also after a restart
    assert scribe.prepare([], 100_000) is None
    assert store.journal.replay() == []


@pytest.mark.parametrize("isolating", [False, True])
def test_a_number_that_is_refused_costs_no_entry(isolating: bool) -> None:
    _, scribe = scribe_on(SeededDisk(1))
    for note in notes(2):
        scribe.note(note)
    first = scribe.prepare([], 1_000)
    if isolating:  # one of them was refused for what it says
        scribe.refused(Refused("no", reason="no-right"), 1_000)
        first = scribe.prepare([], 1_000)
    assert first is not None
    with pytest.raises(Unavailable, match="a number above"):
        scribe.refused(Refused("a number above 7 expected", reason="replayed"), 500)
    again = scribe.prepare([], 500)
    assert again is not None
    assert parse(again).entries == parse(first).entries
    assert parse(again).number > parse(first).number
    scribe.finish(1_000)
    assert scribe.waiting == (1 if isolating else 0)


def test_the_one_that_the_ledger_refuses_is_found_by_halves_and_an_anchor_stands_aside_for_a_while() -> None:
    _, scribe = scribe_on(SeededDisk(1))
    for note in notes(200):
        scribe.note(note)
    anchors = [Anchor(bytes([n]) * 16, 0, 1, bytes(32)) for n in range(1, 9)]
    bad = {anchors[5].encode_entry(), notes(150)[-1].operator}
    tries, left = 0, anchors
    while (transaction := scribe.prepare(left, 1_000)) is not None:
        tries += 1
        written = parse(transaction).entries
        if bad & {*written, *told(transaction)}:
            scribe.refused(Refused("no", reason="not-host"), 1_000)
        else:
            left = [one for one in left if one.encode_entry() not in written]
            scribe.finish(1_000)
    assert left == [anchors[5]]
    assert scribe.aside == {(anchors[5].token, 0)}
    assert tries < 50
    again = scribe.prepare(left, 1_000 + AGAIN_MS)
    assert again is not None
    assert parse(again).entries == (left[0].encode_entry(),)


def test_after_a_restart_what_is_on_the_ledger_is_not_told_again() -> None:
    """The journal still has it, for the duplicate window; a refusal of what is behind it does not bring it back."""
    disk = SeededDisk(1)
    store, scribe = scribe_on(disk)
    one, two, three = notes(3)
    scribe.note(one)
    scribe.prepare([], 1_000)
    scribe.finish(1_000)
    for note in (two, three):
        scribe.note(note)
    assert told(scribe.prepare([], 2_000)) == [two.operator, three.operator]
    store.sync()
    _, later = scribe_on(disk)
    assert later.waiting == 2
    later.refused(Refused("no", reason="no-right"), 3_000)
    assert told(later.prepare([], 3_000)) == [two.operator]


def test_a_transaction_that_is_durable_outlives_a_sync_that_fails_behind_it() -> None:
    """While the ledger works on it, another request meets a full disk."""
    disk = SeededDisk(1)
    store = LogStore(disk)
    submitted: list[bytes] = []

    def submit(transaction: bytes) -> Submitted:
        submitted.append(transaction)
        return Submitted(bytes(32), 0, 1, 0)

    signer = RequestSigner(bytes(16), SigningKey.from_seed(bytes(32)))
    scribe = Scribe(bytes(32), signer, store.journal, submit, Numbers(0), ScribeSettings())
    note = ActNote(bytes(16), OperatorRole.PUBLISHER, bytes(16), 2, "", "host", 0, 0, 1, 1_000, bytes(32), bytes(16))
    scribe.note(note)
    transaction = scribe.prepare([], 1_000)
    assert transaction is not None
    store.sync()
    scribe.submit(transaction)
    scribe.note(note)
    disk.fill(0)
    with pytest.raises(Unavailable):
        store.sync()
    scribe.revert()
    scribe.finish(1_000)
    disk.fill(None)
    assert scribe.waiting == 0


def contradict(world: World, time_ms: int) -> None:
    """Send another parcel of a stored one's lane and sequence, signed by its publisher."""
    world.network._watch = lambda attempt: None  # the checker stands for honest publishers
    actor = world.publishers[0]
    [place] = world.host.open_core.carrier.storage.places()
    [entry, *_] = world.host.open_core.carrier.storage.read(place, 0, 1 << 20)
    told = Parcel.decode(entry.header + (entry.body or b""))
    header = replace(told.header, time_ms=time_ms)
    other = Parcel(header, actor.person.identity.signing_key.sign(SIGNATURE_CONTEXT, header.encoded), told.body)
    [outcome] = actor.person.node.publish(world.token, [other.encode()])
    assert isinstance(outcome, NotStored)
    assert outcome.reason == "equivocation"


def convictions(world: World) -> int:
    ledger = world.host.open_core.ledger
    return len(ledger.audit(Query(kind=int(EntryKind.EQUIVOCATION))))


@pytest.mark.parametrize("journalled", [True, False])
def test_evidence_that_the_ledger_has_not_yet_outlives_the_power(world: World, journalled: bool) -> None:
    """Who equivocates and then has the node killed goes free, unless the evidence is durable with the answer."""
    world.publishers[0].produce(1)
    work(world, 1)
    with nullcontext() if journalled else without("the journal of evidence"):
        contradict(world, 1)
    world.host.crash()
    world.host.start()
    assert convictions(world) == 0
    work(world)
    assert convictions(world) == journalled
    assert world.host.open_core.rules.blacklisted(world.publishers[0].person.identity.principal) == journalled


def test_many_stories_make_one_accusation(world: World) -> None:
    """A flood of evidence: the first blacklists, the others would only fill the journal and the ledger."""
    world.publishers[0].produce(1)
    work(world, 1)
    for time_ms in range(1, 6):
        contradict(world, time_ms)
    core = world.host.open_core
    work(world)
    assert convictions(world) == 1
    principal = world.publishers[0].person.identity.principal
    lift = compose(
        *(world.instance.trust.instance, world.instance.authority_certificate.subject, 1 << 60),
        *([entries.lift(principal)], world.instance.authority_key),
    )
    core.ledger.submit(lift.data, int(world.node_clock.now() * 1000))
    work(world)
    assert not core.rules.blacklisted(principal)
    contradict(world, 7)  # pardoned once, and what was pardoned is no news
    assert not any(isinstance(one, Accusation) for _, one in core.carrier.scribe._waiting)


@pytest.mark.parametrize("change", range(1, 40, 3))
def test_a_node_that_loses_power_anywhere_between_parcels_and_anchor_forgets_nothing(world: World, change: int) -> None:
    world.publishers[0].produce(10)
    world.host.disk.power_off_after(change)
    work(world, 1)
    while not world.host.is_up:
        with suppress(Unavailable):
            world.host.disk.power_off_after(change)  # and once more, in the middle of the recovery
            world.host.start()
        world.host.disk.disarm()
        if not world.host.is_up:
            world.host.start()
    world.host.disk.disarm()
    work(world, 4)
    for _ in range(3):
        world.alone.poll()
    assert world.alone.rows == set(range(10))
    world.check_ledger_file()
