"""Epochs: by schedule, by revocation, by the owner; without a restart, and at most one per `revoke_s`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from authority_world import READ, WRITE, Person, World, epoch_value

from tallystick.authority.grant import Grant
from tallystick.authority.ledger_view import LedgerView
from tallystick.errors import Refused
from tallystick.ledger import entries
from tallystick.ledger.block import Block
from tallystick.ledger.contracts import epochs as contract
from tallystick.ledger.contracts.epochs import End
from tallystick.trust.permit import Operation, Permit

DAY_S = 86_400


def identifier(grant: Grant) -> bytes:
    return Permit.decode(grant.permit).identifier


def on_ledger(world: World, token: bytes) -> int | None:
    return world.ledger.query(lambda state: contract.current(state, token, world.now_ms))


def last_announced(world: World, token: bytes) -> int:
    return world.ledger.query(lambda state: contract.last_announced(state, token))


@pytest.fixture
def topic(world: World) -> tuple[Person, bytes]:
    owner = world.tenant()
    return owner, world.topic(owner)


def subscriber(world: World, topic: tuple[Person, bytes], name: str) -> tuple[Person, Grant]:
    owner, token = topic
    person = world.member(name)
    world.grant(owner, token, person, READ)
    return person, person.client.permit(Operation.SUBSCRIBE, token)


def test_epochs_are_announced_ahead_and_begin_by_the_clock(world: World, topic: tuple[Person, bytes]) -> None:
    _, token = topic
    s, granted = subscriber(world, topic, "S")
    assert last_announced(world, token) == 1 + world.settings.epochs_ahead
    seen = granted.version
    for day in range(2, 5):
        world.pass_time(DAY_S)
        assert on_ledger(world, token) == day
        news = s.client.keys(identifier(granted), seen)
        assert news is not None
        assert [number for number, _ in news.private_keys] == [day]
        assert last_announced(world, token) == day + world.settings.epochs_ahead
        seen = news.version
        assert s.client.keys(identifier(granted), seen) is None


def test_the_private_half_comes_when_its_epoch_begins_not_before(world: World, topic: tuple[Person, bytes]) -> None:
    s, granted = subscriber(world, topic, "S")
    world.pass_time(DAY_S - 60)
    assert s.client.keys(identifier(granted), granted.version) is None
    world.pass_time(60)
    news = s.client.keys(identifier(granted), granted.version)
    assert news is not None
    assert [number for number, _ in news.private_keys] == [2]


def test_a_new_subscriber_reads_from_the_epoch_it_asks_for(world: World, topic: tuple[Person, bytes]) -> None:
    _, token = topic
    world.pass_time(DAY_S)
    world.pass_time(DAY_S)
    s, granted = subscriber(world, topic, "S")
    assert [number for number, _ in granted.private_keys] == [3]
    older = s.client.permit(Operation.SUBSCRIBE, token, first_epoch=2)
    assert [number for number, _ in older.private_keys] == [2, 3]


def test_rotation_reaches_publishers_and_subscribers_without_a_restart(
    world: World, topic: tuple[Person, bytes]
) -> None:
    owner, token = topic
    s, granted = subscriber(world, topic, "S")
    p = world.member("P")
    world.grant(owner, token, p, WRITE)
    advertised = p.client.permit(Operation.ADVERTISE, token)
    rotation = owner.client.rotate(token)
    assert rotation.epoch == 2
    assert rotation.begins_ms == world.now_ms + world.settings.revoke_s * 1000
    told = p.client.keys(identifier(advertised), advertised.version)
    assert told is not None
    by_number = {one.number: one for one in told.epochs}
    assert by_number[1].not_after_ms == by_number[2].not_before_ms == rotation.begins_ms
    assert by_number[2].public == advertised.epochs[1].public  # it had it all along
    world.pass_time(world.settings.revoke_s)
    news = s.client.keys(identifier(granted), granted.version)
    assert news is not None
    assert 2 in dict(news.private_keys)
    assert on_ledger(world, token) == 2
    with pytest.raises(Refused):
        s.client.rotate(token)


def test_a_revocation_ends_the_late_epochs_too(world: World, topic: tuple[Person, bytes]) -> None:
    """The revoked holds their keys as well, and the guards would still take what is sealed under them."""
    owner, token = topic
    s, _ = subscriber(world, topic, "S")
    world.pass_time(DAY_S)
    world.withdraw(owner, token, s, READ)
    end_ms = world.now_ms + world.settings.revoke_s * 1000
    for epoch in (1, 2):
        value = world.ledger.query(partial(epoch_value, token, epoch))
        assert value[3:] == [end_ms, int(End.REVOCATION)]


@pytest.mark.parametrize(
    ("heard_after_s", "lie_s", "ends_after_s"),
    [(0, 0, 10), (4, 0, 10), (30, 0, 30), (4, 3600, 14), (4, -3600, 4)],
    ids=["at once", "late", "too late", "a block from the future", "a block from the past"],
)
def test_the_end_counts_from_the_block_of_the_revocation(
    world: World, topic: tuple[Person, bytes], heard_after_s: int, lie_s: int, ends_after_s: int
) -> None:
    """However late the authority hears of it; a node that lies about the time of a block brings it forward at most."""
    owner, token = topic
    s, _ = subscriber(world, topic, "S")
    honest, withdrawn_ms = world.ledger_client.blocks, world.now_ms

    def blocks(first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        shown = [(Block.decode(block), parts) for block, parts in honest(first, most)]
        return [(replace(block, time_ms=block.time_ms + lie_s * 1000).encoded, parts) for block, parts in shown]

    world.submit(owner.holder.signing_key, owner.id, [entries.withdraw(token, s.id, int(READ))])
    world.ledger_client.blocks = blocks
    world.pass_time(heard_after_s)
    value = world.ledger.query(partial(epoch_value, token, 1))
    assert value[3:] == [withdrawn_ms + ends_after_s * 1000, int(End.REVOCATION)]


def test_revocations_within_revoke_s_share_one_new_epoch_and_all_are_outside(
    world: World, topic: tuple[Person, bytes]
) -> None:
    owner, token = topic
    people = [subscriber(world, topic, f"S{n}") for n in range(3)]
    for person, _ in people:
        world.withdraw(owner, token, person, READ)
        world.pass_time(world.settings.revoke_s / 4)
    assert on_ledger(world, token) == 1
    world.pass_time(world.settings.revoke_s / 4)
    assert on_ledger(world, token) == 2
    _, granted = subscriber(world, topic, "stays")
    assert [number for number, _ in granted.private_keys] == [2]
    for person, grant in people:
        with pytest.raises(Refused):
            person.client.keys(identifier(grant), 0)


def test_unsubscribing_opens_a_new_epoch_and_unadvertising_does_not(world: World, topic: tuple[Person, bytes]) -> None:
    owner, token = topic
    p = world.member("P")
    world.grant(owner, token, p, WRITE)
    advertised = p.client.permit(Operation.ADVERTISE, token)
    p.client.undo(advertised.permit, advertised.undo_token)
    world.pass_time(world.settings.revoke_s)
    assert on_ledger(world, token) == 1  # a publisher holds no private half
    s, granted = subscriber(world, topic, "S")
    s.client.undo(granted.permit, granted.undo_token)
    world.pass_time(world.settings.revoke_s)
    assert on_ledger(world, token) == 2


def test_an_authority_that_slept_for_months_goes_on(world: World, topic: tuple[Person, bytes]) -> None:
    _, token = topic
    world.pass_time(100 * DAY_S)
    world.pass_time(1)
    _, granted = subscriber(world, topic, "S")
    current = on_ledger(world, token)
    assert current is not None
    assert [number for number, _ in granted.private_keys] == [current]
    assert last_announced(world, token) >= current + world.settings.epochs_ahead


def test_an_expired_permit_gets_no_more_keys(world: World, topic: tuple[Person, bytes]) -> None:
    s, granted = subscriber(world, topic, "S")
    world.pass_time(world.settings.permit_s)
    with pytest.raises(Refused) as refusal:
        s.client.keys(identifier(granted), granted.version)
    assert refusal.value.reason == "permit-expired"


def test_after_a_restart_everything_is_as_it_was(world: World, topic: tuple[Person, bytes]) -> None:
    s, granted = subscriber(world, topic, "S")
    before = replace(world.authority.statistics(), disk_free_bytes=0)
    world.reopen()
    assert isinstance(world.authority.core.ledger, LedgerView)
    assert replace(world.authority.statistics(), disk_free_bytes=0) == before
    again = world.again(s).client.keys(identifier(granted), 0)
    assert again is not None
    assert again.private_keys == granted.private_keys
