"""What `revoke_s` promises, end to end and by the instance's own clock: from the block that holds a withdrawal until
nothing is taken any more that the revoked can open.

The whole way is real (owner, ledger, authority, publishers, guards) and one clock is set by hand, so a slow machine
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tallystick.carriers.carrier import NotStored, Stored
from tallystick.carriers.storage import Place
from tallystick.ledger import entries
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.reputation import score
from tallystick.ledger.engine import Query
from tallystick.parcel.header import Header
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.sources import SeededEntropy
from tallystick.sim.sealing import seeded_sealing
from tallystick.sim.world import READ, World

STEP_S = 0.1
TICK_S = 0.5  # how often the authority's service looks at the ledger (node/authority.py)


class Taken(NamedTuple):
    """A parcel that the guards took."""

    block_ms: int  # the newest block then, as the promise has it
    header: Header

    principal: bytes

    @property
    def epoch(self) -> int:
        return self.header.topics[0].epoch


class Scene:
    """Two publishers that never stop, while the spy loses its right."""

    def __init__(self) -> None:
        self.world = world = World(3)
        self.taken: list[Taken] = []
        self.refused: list[str] = []
        self.revoke_s = world.authority.core.settings.revoke_s
        hear = world.host.on_outcomes

        def heard(outcomes: list[object]) -> None:
            hear(outcomes)
            for outcome in outcomes:
                self._note(outcome)

        world.host.on_outcomes = heard
        self._steps = 0

    def _note(self, outcome: object) -> None:
        if isinstance(outcome, NotStored):
            self.refused.append(outcome.reason)
        elif isinstance(outcome, Stored) and not outcome.again:
            [promise] = outcome.promises
            place = Place(promise.token, promise.partition)
            [entry, *_] = self.world.host.open_core.carrier.storage.read(place, promise.offset, 1, headers_only=True)
            header = Parcel.decode_front(entry.header).header
            principal = self.world.host.open_core.carrier.deposits.principal_of(header)
            self.taken.append(Taken(promise.time_ms, header, principal))

    def run(self, seconds: float, *, authority: bool = True) -> None:
        """Let everybody work."""
        for _ in range(round(seconds / STEP_S)):
            self._steps += 1
            self.world.pass_time(STEP_S)
            for publisher in self.world.publishers:
                publisher.produce(1)
                publisher.pump()
                publisher.update_keys()
            self.world.node_works()
            if authority and self._steps % round(TICK_S / STEP_S) == 0:
                self.world.authority_works()

    def withdraw(self) -> int:
        """Take the spy's right away; the time of the block that says so."""
        world, ledger = self.world, self.world.host.open_core.ledger
        spy = world.spy.person.identity.principal
        world.owner.author.write(entries.withdraw(world.token, spy, READ))
        [item] = ledger.audit(Query(kind=int(EntryKind.WITHDRAW)))
        return item.time_ms

    @property
    def is_spotless(self) -> bool:
        """Whether no publisher's name suffered."""
        ledger, names = (
            self.world.host.open_core.ledger,
            [one.person.identity.principal for one in self.world.publishers],
        )
        return ledger.query(lambda state: [score(state, name) for name in names]) == [100, 100]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with seeded_sealing(SeededEntropy("revocation")):
        yield Scene()


def test_nothing_is_sealed_or_taken_under_the_old_epoch_after_revoke_s(scene: Scene) -> None:
    scene.run(1.3)
    withdrawn_ms = scene.withdraw()
    scene.run(scene.revoke_s + 2)
    old = [one for one in scene.taken if one.epoch == 1]
    for last_ms in (max(one.block_ms for one in old), max(one.header.time_ms for one in old)):
        assert 0 < last_ms - withdrawn_ms <= scene.revoke_s * 1000
    assert scene.taken[-1].epoch == 2
    assert scene.is_spotless


def test_the_guards_refuse_what_a_publisher_seals_that_has_not_heard_and_blame_nobody(scene: Scene) -> None:
    """Its way to the authority is cut, and its clock stands still."""
    scene.run(1.3)
    withdrawn_ms = scene.withdraw()
    deaf = scene.world.publishers[0]
    person, way = deaf.person, deaf.person.authority
    way._lost = lambda: 1000  # of a thousand requests
    for _ in range(scene.revoke_s + 2):
        scene.run(1.0)
        person.clock.offset_s -= 1.0
    assert max(one.block_ms for one in scene.taken if one.epoch == 1) - withdrawn_ms <= scene.revoke_s * 1000
    assert "epoch-over" in scene.refused
    assert deaf.publisher is not None  # nothing was lost: it waits, and goes on
    way._lost, person.clock.offset_s = lambda: 0, 0.0
    scene.run(2.0)
    own = [one for one in scene.taken if one.principal == person.identity.principal]
    assert own[-1].epoch == 2
    assert scene.is_spotless


def test_an_authority_that_was_away_ends_the_epoch_as_soon_as_it_hears(scene: Scene) -> None:
    scene.run(1.3)
    scene.withdraw()
    scene.run(scene.revoke_s + 1.0, authority=False)
    assert scene.taken[-1].epoch == 1
    heard_ms = int(scene.world.clock.now() * 1000)
    scene.world.authority_works()
    scene.run(2.0)
    assert max(one.block_ms for one in scene.taken if one.epoch == 1) <= heard_ms
    assert scene.taken[-1].epoch == 2
    assert scene.is_spotless
