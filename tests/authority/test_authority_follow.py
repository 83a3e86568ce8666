"""Following a ledger that lies: nothing left out, invented, forked or taken back goes unnoticed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from authority_world import READ, Person, PromptClient, World

from tallystick import wire
from tallystick.errors import Forged, Refused, Unavailable, Withheld
from tallystick.ledger import entries
from tallystick.ledger.proofs import StateProof
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.trust.permit import Operation, Permit


class Liar(PromptClient):
    """A client in the hands of a bad node; honest until told otherwise."""

    def __init__(self, world: World) -> None:
        super().__init__(world.ledger, world.clock)
        self.hidden: set[int] = set()  # heights whose transactions are left out
        self.claims: dict[bytes, bytes | None] = {}  # values that are claimed instead of the true ones
        self.frozen: bytes | None = None  # a checkpoint shown instead of the newest
        world.ledger_client = self
        world.authority.core.ledger.client = self
        self._honest = world.ledger

        def blocks(first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
            found = self._honest.blocks(first, most)
            return [
                (block, [] if first + at in self.hidden else transactions)
                for at, (block, transactions) in enumerate(found)
            ]

        def state(key: bytes) -> StateProof:
            answer = self._honest.state(key)
            return replace(answer, value=self.claims[key]) if key in self.claims else answer

        self.blocks, self.state = blocks, state
        self.checkpoint = lambda: self.frozen or self._honest.checkpoint()


@pytest.fixture
def scene(world: World) -> tuple[Liar, Person, Person, bytes]:
    owner, s = world.tenant(), world.member("S")
    token = world.topic(owner)
    return Liar(world), owner, s, token


def test_a_revocation_that_is_left_out_of_its_block_is_noticed(
    world: World, scene: tuple[Liar, Person, Person, bytes]
) -> None:
    liar, owner, s, token = scene
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    world.submit(owner.holder.signing_key, owner.id, [entries.withdraw(token, s.id, int(READ))])
    liar.hidden = {world.ledger.height}
    with pytest.raises(Withheld):
        world.authority.work()
    with pytest.raises(Unavailable):  # and it serves nothing while it cannot follow
        s.client.keys(Permit.decode(granted.permit).identifier, 0)
    liar.hidden = set()
    world.authority.work()
    with pytest.raises(Refused):
        s.client.keys(Permit.decode(granted.permit).identifier, 0)


def test_a_right_that_is_invented_is_noticed(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    liar, _, s, token = scene
    right = b"right/" + token + s.id
    liar.claims[right] = wire.encode([world.now_ms, [[1, int(READ), "*"]]])
    with pytest.raises(Forged):
        s.client.permit(Operation.SUBSCRIBE, token)


def test_a_right_that_is_hidden_is_noticed(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    liar, owner, s, token = scene
    world.grant(owner, token, s, READ)
    liar.claims[b"right/" + token + s.id] = None
    with pytest.raises(Forged):
        s.client.permit(Operation.SUBSCRIBE, token)


def test_a_frozen_ledger_stops_the_service(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    """Withholding every block, honestly signed, buys the revoked at most `head_age_max_s`."""
    liar, owner, s, token = scene
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    liar.frozen = world.ledger.checkpoint()
    world.clock.advance(world.settings.head_age_max_s + 1)
    world.authority.work()
    with pytest.raises(Unavailable, match="checkpoint is 301 s old"):
        s.client.keys(Permit.decode(granted.permit).identifier, 0)


def test_yesterdays_ledger_is_refused_and_kept_as_evidence(
    world: World, scene: tuple[Liar, Person, Person, bytes]
) -> None:
    liar, owner, s, token = scene
    old = world.ledger.checkpoint()
    world.grant(owner, token, s, READ)
    liar.frozen = old
    with pytest.raises(Withheld) as refusal:
        world.authority.work()
    assert refusal.value.reason == "rollback"
    assert list((world.home / "checkpoints").glob("evidence-*"))


def test_a_fork_is_noticed_after_a_restart_too(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    _, owner, s, token = scene
    world.ledger.close()
    shutil.copy(world.folder / "ledger.db", world.folder / "fork.db")
    key, now_ms = world.ledger_key, world.now_ms
    world.ledger = SqliteLedger(str(world.folder / "ledger.db"), world.trust, key, now_ms)
    world.ledger_client = world.authority.core.ledger.client = PromptClient(world.ledger, world.clock)
    world.grant(owner, token, s, READ)
    fork = SqliteLedger(str(world.folder / "fork.db"), world.trust, key, now_ms)
    world.authority.close()
    world.clock.advance(1)
    for _ in range(3):  # longer than the history that the authority knows, but another one
        fork.flush(world.now_ms)
    world.ledger_client = PromptClient(fork, world.clock)
    with pytest.raises(Withheld):
        world.open()
    fork.close()
    world.ledger_client = PromptClient(world.ledger, world.clock)
    world.authority = world.open()


def test_long_absences_are_caught_up_in_steps(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    _, owner, s, token = scene
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    for number in range(40):
        rule = entries.grant(token, s.id, 8, host=f"host-{number}")
        world.submit(owner.holder.signing_key, owner.id, [rule])
    world.authority.core.limits = replace(world.limits, blocks_max=7)
    world.authority.work()
    world.authority.check_ready()
    assert world.authority.core.ledger.position.height == world.ledger.height
    assert s.client.keys(Permit.decode(granted.permit).identifier, 0) is not None


def test_a_new_trust_file_is_followed(world: World, scene: tuple[Liar, Person, Person, bytes]) -> None:
    _, owner, _, _ = scene
    newer = replace(world.trust, number=2, first=world.instance, name="renamed", signatures=()).sign(world.root)
    world.act(owner, entries.trust(newer.to_json()))
    assert world.authority.core.trust.number == 2
    world.reopen()
    assert world.authority.core.trust.name == "renamed"
