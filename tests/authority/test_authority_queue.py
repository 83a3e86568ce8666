"""The queue: many decisions in one transaction, and what becomes of them when the ledger refuses or is away."""

from __future__ import annotations

import threading

import pytest
from authority_world import READ, Person, PromptClient, World

from tallystick.authority.answers import Caller
from tallystick.authority.asks import NONCE_BYTES
from tallystick.errors import Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.block import parse
from tallystick.ledger.contracts.epochs import End
from tallystick.ledger.contracts.permits import Status
from tallystick.trust.permit import Operation, Permit


class Gatekeeper(PromptClient):
    """Holds the first transaction back until it is told to go on."""

    def __init__(self, world: World) -> None:
        super().__init__(world.ledger, world.clock)
        self.counts: list[int] = []  # entries of each transaction
        self.reached, self.go_on = threading.Event(), threading.Event()

    def submit(self, transaction: bytes) -> None:
        self.counts.append(len(parse(transaction).entries))
        self.reached.set()
        self.go_on.wait(30)
        super().submit(transaction)


class Away(PromptClient):
    """A ledger that cannot be reached."""

    def submit(self, transaction: bytes) -> None:
        raise Unavailable("nobody there")


@pytest.fixture
def scene(world: World) -> tuple[Person, Person, bytes]:
    owner, s = world.tenant(), world.member("S")
    token = world.topic(owner)
    world.grant(owner, token, s, READ)
    return owner, s, token


def test_requests_that_arrive_while_one_waits_share_the_next_transaction(
    world: World, scene: tuple[Person, Person, bytes]
) -> None:
    _, s, token = scene
    keeper = Gatekeeper(world)
    world.authority.core.ledger.client = keeper
    granted: list[bytes] = []

    def ask(number: int) -> None:
        caller = Caller(s.id, number.to_bytes(NONCE_BYTES, "big"))
        granted.append(world.ask_permit(caller, Operation.SUBSCRIBE, token))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    threads[0].start()
    assert keeper.reached.wait(30)
    for thread in threads[1:]:
        thread.start()
    gathered = threading.Event()
    while not gathered.is_set():  # until the others' decisions lie in the queue
        if world.authority.statistics().outbox == len(threads):
            gathered.set()
    keeper.go_on.set()
    for thread in threads:
        thread.join()
    assert keeper.counts == [1, 7]
    assert len(granted) == 8
    assert world.authority.statistics().permits_live == 8


def test_one_refused_entry_does_not_take_the_others_with_it(world: World, scene: tuple[Person, Person, bytes]) -> None:
    _, s, token = scene
    core = world.authority.core
    identifier = world.entropy.bytes(16)
    good = entries.issue_permit(identifier, Operation.SUBSCRIBE, token, s.id, world.now_ms + 1_000_000)
    bad = entries.end_epoch(token, 1000, End.REVOCATION, world.now_ms)
    places = [core.queue([bad]), core.queue([good]), core.queue([bad])]
    core.send_queue()
    world.authority.work()
    core.check_sent(places[1])
    for place in (places[0], places[2]):
        with pytest.raises(Refused) as refusal:
            core.check_sent(place)
        assert refusal.value.reason == "wrong-epoch"
    assert world.ledger.query(lambda state: state.get(b"permit/" + identifier)) is not None
    assert world.authority.statistics().outbox == 0


def test_a_node_that_says_no_to_a_revocation_cannot_make_it_forgotten(
    world: World, scene: tuple[Person, Person, bytes]
) -> None:
    owner, s, token = scene
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    permit = b"permit/" + Permit.decode(granted.permit).identifier

    class Censor(PromptClient):
        def submit(self, transaction: bytes) -> None:
            raise Refused("entry 0: permit is ended already, believe me", reason="permit-ended")

    world.authority.core.ledger.client = Censor(world.ledger, world.clock)
    world.submit(owner.holder.signing_key, owner.id, [entries.withdraw(token, s.id, int(READ))])
    for _ in range(2):
        world.authority.work()
    assert world.authority.statistics().outbox == 2  # the permit's end and the epoch's
    with pytest.raises(Refused):  # here it counts at once
        s.client.keys(Permit.decode(granted.permit).identifier, 0)
    assert world.ledger.query(lambda state: state.get(permit))[5] == Status.ISSUED
    world.authority.core.ledger.client = world.ledger_client
    world.authority.work()
    assert world.authority.statistics().outbox == 0
    assert world.ledger.query(lambda state: state.get(permit))[5] == Status.REVOKED
    assert world.ledger.query(lambda state: state.get(b"epoch/" + token + (1).to_bytes(4, "big")))[3]


def test_of_a_decision_in_part_done_already_the_rest_is_still_done(
    world: World, scene: tuple[Person, Person, bytes]
) -> None:
    _, _, token = scene
    core = world.authority.core
    ends = [entries.end_epoch(token, number, End.REVOCATION, world.now_ms) for number in (1, 2)]
    core.queue(ends[:1])
    core.send_queue()
    core.queue(ends)
    for _ in range(2):
        core.send_queue()
    assert world.authority.statistics().outbox == 0
    assert world.ledger.query(lambda state: state.get(b"epoch/" + token + (2).to_bytes(4, "big")))[3]


def test_while_the_ledger_is_away_nothing_is_granted_and_nothing_is_lost(
    world: World, scene: tuple[Person, Person, bytes]
) -> None:
    _, s, token = scene
    core = world.authority.core
    core.ledger.client = Away(world.ledger, world.clock)
    caller = Caller(s.id, b"n" * NONCE_BYTES)
    for _ in range(3):
        with pytest.raises(Unavailable):
            world.ask_permit(caller, Operation.SUBSCRIBE, token)
    assert world.authority.statistics().permits_live == 0
    core.ledger.client = world.ledger_client
    world.authority.work()
    assert world.ask_permit(caller, Operation.SUBSCRIBE, token)
    assert world.authority.statistics().permits_live == 1


def test_a_permit_that_the_ledger_refuses_is_forgotten(world: World, scene: tuple[Person, Person, bytes]) -> None:
    """The right went between our look and the ledger's."""
    owner, s, token = scene

    class Withdrawing(PromptClient):
        def submit(self, transaction: bytes) -> None:
            entry = entries.withdraw(token, s.id, int(READ))
            world.submit(owner.holder.signing_key, owner.id, [entry])
            super().submit(transaction)

    world.authority.core.ledger.client = Withdrawing(world.ledger, world.clock)
    caller = Caller(s.id, b"n" * NONCE_BYTES)
    with pytest.raises(Refused) as refusal:
        world.ask_permit(caller, Operation.SUBSCRIBE, token)
    assert refusal.value.reason == "no-right"
    world.authority.core.ledger.client = world.ledger_client
    world.authority.work()
    assert world.authority.core.store.row("SELECT 1 FROM permits") is None
    world.grant(owner, token, s, READ)
    assert world.ask_permit(caller, Operation.SUBSCRIBE, token)


def test_a_machine_whose_random_state_repeats_issues_no_identifier_twice(
    world: World, scene: tuple[Person, Person, bytes]
) -> None:
    _, s, token = scene

    class Stuck:
        """Yields the same bytes a few times before it goes on."""

        def __init__(self) -> None:
            self.left = 3

        def bytes(self, n: int) -> bytes:
            if n == 16 and self.left:
                self.left -= 1
                return b"r" * 16
            return world.entropy.bytes(n)

    identifiers = set()
    for number in range(2):
        world.authority.core.entropy = Stuck()
        grant = s.client.permit(Operation.SUBSCRIBE, token)
        identifiers.add(Permit.decode(grant.permit).identifier)
        assert number == 0 or len(identifiers) == 2
