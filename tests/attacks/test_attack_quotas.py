"""One tenant that fills blocks, state, partitions or disk for all, with requests each of which it may make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from actors import Hand, Topic, publish, stored
from chain_world import Node
from ledger_world import HOME, HOSPITAL, Bench, World, seed, token
from stack import Stack
from without import without

from tallystick.abci import messages as m
from tallystick.carriers.accounts import Quota
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.quotas import SPENT, SpentRow
from tallystick.trust.certificate import SubjectKind
from tallystick.trust.right import Right

HEART, AIR = token("heart"), token("air")


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.bring_into_force()
    return bench


def spent(bench: Bench, tenant: bytes) -> SpentRow:
    return bench.state.row(SPENT(tenant)) or SpentRow()


def marks(world: World, first: int, count: int) -> list[bytes]:
    """Entries that stay in the state for ever, each under another key."""
    return [entries.write(HEART, seed("write")[:16], first + n, seed("digest")) for n in range(count)]


def test_a_tenant_s_entries_are_counted_and_the_window_passes(bench: Bench) -> None:
    world = bench.world
    bench.play(
        (world.authority, entries.set_("tenant_entries", 100), None),
        (world.doctor, entries.grant(HEART, world.monitor.id, int(Right.WRITE)), None),
        (world.monitor, marks(world, 0, 99), None),
        (world.monitor, marks(world, 99, 1), "over-quota"),
        (world.doctor, entries.close_topic(HEART), "over-quota"),
        (world.landlord, entries.close_topic(AIR), None),  # of another tenant
        (world.authority, entries.set_("rise_max", 9), None),
    )
    bench.time_ms += 60_000
    bench.play((world.monitor, marks(world, 99, 1), None))
    assert spent(bench, HOSPITAL).entries == 1


def test_one_transaction_is_short_so_that_others_need_not_wait_long(bench: Bench) -> None:
    world = bench.world
    bench.play(
        (world.doctor, entries.grant(HEART, world.monitor.id, int(Right.WRITE)), None),
        (world.monitor, marks(world, 0, 513), "over-quota"),
        (world.monitor, marks(world, 0, 512), None),
    )


def test_without_shares_one_tenant_writes_as_much_as_it_likes(bench: Bench) -> None:
    world = bench.world
    bench.play(
        (world.authority, entries.set_("tenant_entries", 100), None),
        (world.doctor, entries.grant(HEART, world.monitor.id, int(Right.WRITE)), None),
    )
    with without("a tenant's quota on the ledger"):
        bench.play((world.monitor, marks(world, 0, 513), None), (world.monitor, marks(world, 513, 500), None))


def test_what_a_tenant_leaves_in_the_state_is_counted_to_the_byte_and_given_back(bench: Bench) -> None:
    world, read, monitor = bench.world, int(Right.READ), bench.world.monitor.id
    before = sum(len(key) + len(value) for key, value in bench.stored.items())
    bench.play((world.doctor, [entries.grant(HEART, monitor, read, host=f"10.0.0.{n}") for n in range(20)], None))
    row = SPENT(HOSPITAL)
    counters = (
        len(row) + len(bench.stored[row]) + 8
    )  # its own row, and the author's number, which may grow by some bytes
    grown = sum(len(key) + len(value) for key, value in bench.stored.items()) - before
    assert abs(spent(bench, HOSPITAL).state_bytes - grown) <= counters
    full = spent(bench, HOSPITAL).state_bytes
    bench.play((world.doctor, [entries.withdraw(HEART, monitor, read, host=f"10.0.0.{n}") for n in range(20)], None))
    assert spent(bench, HOSPITAL).state_bytes < full / 4
    bench.play(
        (world.authority, entries.set_("tenant_state_bytes", 1 << 20), None),
        (world.authority, entries.set_("transaction_entries", 4_096), None),
        (world.doctor, entries.grant(HEART, world.monitor.id, int(Right.WRITE)), None),
        *((world.monitor, marks(world, 4_000 * n, 4_000), None) for n in range(3)),
        (world.monitor, marks(world, 12_000, 4_000), "over-quota"),
        (world.landlord, entries.grant(AIR, world.sensor.id, read), None),
    )


def test_partitions_are_a_tenant_s_share_and_closing_gives_none_back(bench: Bench) -> None:
    world = bench.world

    def topic(name: str, partitions: int) -> bytes:
        return world.topic(name, world.doctor, HOSPITAL, partitions=partitions, binding=world.bind(name, HOSPITAL))

    first, gas = world.bind("first", HOSPITAL).token, world.bind("gas", HOME)
    bench.play(
        (world.authority, entries.set_("tenant_replicas", 100), None),
        (world.doctor, topic("first", 90), None),
        (world.doctor, topic("second", 11), "over-quota"),
        (world.doctor, entries.close_topic(first), None),
        (world.doctor, topic("third", 11), "over-quota"),
        (world.doctor, topic("fourth", 10), None),
        (
            world.landlord,
            world.topic("gas", world.landlord, HOME, partitions=99, binding=gas),
            None,
        ),
    )


# --- what a validator passes on ---


@pytest.fixture
def validator(tmp_path: Path) -> Iterator[Node]:
    world = World()
    node = Node(tmp_path / "ledger.sqlite", world)
    for transaction in world.founding():
        node.block(transaction)
    yield node
    node.application.close()


def check(node: Node, data: bytes) -> m.ResponseCheckTx:
    return node.application.check_tx(m.RequestCheckTx(data))


def test_a_stranger_s_megabytes_are_not_passed_on(validator: Node) -> None:
    world = validator.world
    honest = world.actor("newcomer", SubjectKind.PRINCIPAL, HOSPITAL)
    forger = World(root=type(world.root).from_seed(seed("another root"))).actor(
        "authority", SubjectKind.AUTHORITY, HOME
    )
    stranger = world.actor("megabytes", SubjectKind.PRINCIPAL, HOSPITAL, issuer=forger)
    padding = entries.trust("x" * 100_000)
    enrolled = check(validator, honest.sign(entries.enrol(honest.certificate)).data)
    assert (enrolled.code, enrolled.codespace) == (0, "")
    uncertified = stranger.sign(entries.enrol(stranger.certificate)).data
    large = honest.sign(entries.enrol(honest.certificate), padding, padding).data
    assert check(validator, uncertified).codespace == "unknown-identity"
    assert check(validator, large).codespace == "too-large"
    with without("the issuer of a stranger who writes"):
        assert check(validator, uncertified).code == 0
        assert check(validator, large).code == 0


def test_an_author_who_is_refused_in_block_after_block_waits(validator: Node) -> None:
    world = validator.world

    def refused() -> bytes:
        return world.sensor.sign(entries.close_topic(HEART)).data  # another's topic: it costs a place in a block

    for _ in range(25):
        some = [refused() for _ in range(8)]
        validator.finalize(*some)
        validator.application.commit(m.RequestCommit())
        validator.height += 1
    told = check(validator, refused())
    assert told.codespace == "slow-down"
    assert check(validator, world.landlord.sign(entries.close_topic(AIR)).data).code == 0, "of the same tenant"
    with without("the patience with who is refused"):
        assert check(validator, refused()).code == 0


# --- what a node stores ---


class Hoarder:
    """A tenant that may store some lanes' locks at the node, and wants to leave more."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.topic = stack, Topic(stack, "hoarder")

    def hoard(self, lanes: int = 40) -> None:
        """Each lane brings a lock of its own, more than a kilobyte."""
        front = self.stack.node.carrier
        front._quotas._by_tenant[self.topic.owner.identity.tenant] = Quota(bytes_stored_max=24_000)
        for _ in range(lanes):
            Hand(self.topic.car, "brakes")
            front._stored_until = 0.0  # as if ten seconds had passed


def test_locks_and_headers_count_and_so_they_do_after_a_restart(tmp_path: Path) -> None:
    """A sum that is made anew from the partitions alone would forget the locks every few seconds; one that is kept in
    memory would forget them with every restart."""
    with Stack(tmp_path) as stack:
        hoarder, neighbour = Hoarder(stack), Topic(stack, "neighbour", "steps")
        with pytest.raises(Refused) as refusal:
            hoarder.hoard()
        assert refusal.value.reason == "quota"
        restart(stack)
        with pytest.raises(Refused) as refusal:
            hoarder.hoard(1)
        assert refusal.value.reason == "quota"
        publish(neighbour.car, "steps", [1])
        hand = Hand(neighbour.car, "steps")
        empty = hand.seal(0)
        assert len(empty.encode()) > 1.2 * empty.header.body_bytes, "a heartbeat is mostly header"
        charged: list[int] = []
        stack.node.carrier._quotas.charge = lambda tenant, n_bytes, stored, now: charged.append(n_bytes)
        stored(hand.send(empty)[0])
        assert charged == [len(empty.encode())]


def test_without_the_count_a_tenant_hoards_locks_anew_with_every_restart_or_at_once(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        hoarder = Hoarder(stack)
        with pytest.raises(Refused):
            hoarder.hoard()
        with without("the count of locks from before a restart"):
            restart(stack)
            hoarder.hoard(10)
        with without("a tenant's share of a disk"):
            hoarder.hoard()


def restart(stack: Stack) -> None:
    stack.stop_node()
    stack.start_node()
