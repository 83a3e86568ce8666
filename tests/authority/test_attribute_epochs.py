"""Attribute epochs: none lasts longer than it should, and no tenant makes more of them than its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attribute_world import declare, give, take
from authority_world import Person, World

pytest.importorskip("pymcl", reason="extra policy")

REVOKE_S, GATHER_S, BURST = 10, 300, 3
STEP_S = REVOKE_S + 2


@pytest.fixture
def owners(world: World) -> tuple[Person, Person, Person]:
    """The owners of two tenants that declared attributes, and a principal that both grant to."""
    bound(world, burst=BURST)
    owner, other = world.tenant(), world.tenant("city")
    for person, namespace in ((owner, "acme"), (other, "city")):
        declare(person, namespace)
    return world.again(owner), world.again(other), world.member("car")


def bound(world: World, *, burst: int) -> None:
    world.settings = replace(world.settings, revoke_s=REVOKE_S, attribute_burst=burst, attribute_gather_s=GATHER_S)
    world.reopen()


def begun(world: World) -> list[int]:
    """When each epoch began that has, in seconds."""
    epochs = world.authority.attribute_epochs.announced()
    return [one.begins_ms // 1000 for one in epochs if one.begins_ms <= world.now_ms]


def next_in_s(world: World) -> int:
    """In how many seconds the next epoch begins."""
    coming = [one.begins_ms for one in world.authority.attribute_epochs.announced() if one.begins_ms > world.now_ms]
    return (coming[0] - world.now_ms) // 1000


def flap(world: World, owner: Person, member: Person) -> None:
    """Granted, and withdrawn in the next moment."""
    give(world, owner, member, role="garage")
    take(world, owner, member, "role")


def test_after_early_beginnings_the_next_epoch_is_no_more_than_a_day_away(
    world: World, owners: tuple[Person, Person, Person]
) -> None:
    owner, _, member = owners
    for _ in range(BURST):
        flap(world, owner, member)
        world.pass_time(STEP_S)
    day_s = world.settings.attribute_epoch_s
    assert len(begun(world)) == 1 + BURST
    for number in range(1, 4):  # and so it goes on
        assert 0 < next_in_s(world) <= day_s
        world.pass_time(day_s)
        assert len(begun(world)) == 1 + BURST + number
    ahead = [one for one in world.authority.attribute_epochs.announced() if one.begins_ms > world.now_ms]
    assert len(ahead) == world.settings.epochs_ahead


def test_who_withdraws_without_end_is_gathered(world: World, owners: tuple[Person, Person, Person]) -> None:
    owner, _, member = owners
    started = world.now_ms // 1000
    for _ in range(2 * GATHER_S // STEP_S):
        flap(world, owner, member)
        assert next_in_s(world) <= GATHER_S  # the bound on every withdrawal
        world.pass_time(STEP_S)
    early = [second - started for second in begun(world)[1:]]
    assert early[BURST - 1] < 2 * BURST * STEP_S  # its share comes at once
    assert len(early) <= BURST + (world.now_ms // 1000 - started) // GATHER_S + 1


def test_without_the_share_one_tenant_makes_an_epoch_every_few_seconds(
    world: World, owners: tuple[Person, Person, Person]
) -> None:
    owner, _, member = owners
    bound(world, burst=1 << 30)
    owner, rounds = world.again(owner), 2 * GATHER_S // STEP_S
    for _ in range(rounds):
        flap(world, owner, member)
        world.pass_time(STEP_S)
    assert len(begun(world)) > rounds - 2


def test_another_tenant_does_not_wait_and_what_was_gathered_shares_its_beginning(
    world: World, owners: tuple[Person, Person, Person]
) -> None:
    owner, other, member = owners
    for _ in range(BURST):
        flap(world, owner, member)
        world.pass_time(STEP_S)
    flap(world, owner, member)
    assert REVOKE_S < next_in_s(world) <= GATHER_S
    flap(world, other, member)
    assert next_in_s(world) <= REVOKE_S
    world.pass_time(STEP_S)
    assert len(begun(world)) == BURST + 2
    give(world, other, member, role="city")
    take(world, other, member, "role")
    assert next_in_s(world) <= REVOKE_S  # the other has turns of its own left


def test_a_restart_gives_no_new_turns_and_time_does(world: World, owners: tuple[Person, Person, Person]) -> None:
    owner, _, member = owners
    for _ in range(BURST):
        flap(world, owner, member)
        world.pass_time(STEP_S)
    world.reopen()
    owner = world.again(owner)
    flap(world, owner, member)
    assert REVOKE_S < next_in_s(world) <= GATHER_S
    world.pass_time((BURST + 1) * GATHER_S)
    flap(world, owner, member)
    assert next_in_s(world) <= REVOKE_S


def test_what_expires_is_gathered_too(world: World, owners: tuple[Person, Person, Person]) -> None:
    owner, _, member = owners
    for _ in range(BURST):
        flap(world, owner, member)
        world.pass_time(STEP_S)
    give(world, owner, member, until_ms=world.now_ms + 1_000, role="garage")
    world.pass_time(2)
    assert REVOKE_S < next_in_s(world) <= GATHER_S
