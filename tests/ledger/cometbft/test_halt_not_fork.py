"""Two of four validators whose contracts say otherwise: the chain stands rather than fork, and goes on when they are
mended.

Four validators, threshold three. Two results with two votes each: neither side has more than two thirds, so no header
that commits to either result is decided, and no checkpoint of either history has enough signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MethodType

import pytest
from chain_world import Chain, ChainWorld, wait_until
from ledger_world import operation_batch, token

from tallystick.errors import Forged, Unavailable
from tallystick.ledger.block import Transaction, read_head
from tallystick.ledger.book import Book
from tallystick.ledger.cometbft.client import ClientSettings
from tallystick.ledger.cometbft.health import ChainHealth, look
from tallystick.ledger.cometbft.rpc import Endpoints
from tallystick.ledger.contracts.execute import Result
from tallystick.ledger.engine import Submitted
from tallystick.node.validator import roll_back_validator
from tallystick.runtime.sources import SystemClock
from tallystick.trust.notes import Note

PATIENT = ClientSettings(submit_s=60)
SOON = ClientSettings(submit_s=4, halted_s=1, answer_s=2)
WRONG = (2, 3)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(ChainWorld(tmp_path, 4))
    try:
        engine = chain.client(PATIENT)
        for transaction in chain.world.founding():
            engine.wait(engine.submit(transaction.data, 0), 60)
        engine.close()
        yield chain
    finally:
        chain.close()


def let_contracts_differ(book: Book) -> None:
    """Every transaction also writes a key that the contracts of the others do not: a release with other rules."""
    run = book.run

    def run_otherwise(self: Book, transaction: Transaction) -> tuple[Result, Submitted]:
        done = run(transaction)
        self.state.put(b"other rules", 1)
        self.state.keep()
        return done

    book.run = MethodType(run_otherwise, book)


def act(chain: Chain) -> bytes:
    world = chain.world
    return world.node.sign(*operation_batch(world, 1, [token("heart")], [world.monitor.id])).data


def health(chain: Chain) -> ChainHealth:
    """What `tally chain status` shows."""
    endpoints = Endpoints.parse(chain.url, SystemClock())
    try:
        return look(endpoints, chain.world.trust)
    finally:
        endpoints.close()


def notes_of(chain: Chain, height: int) -> list[Note]:
    return [Note.decode(one.application.book.reader.note(height)) for one in chain.validators.values()]


@pytest.mark.long
def test_two_that_differ_halt_the_chain_and_go_on_when_rolled_back(chain: Chain) -> None:
    world = chain.world
    engine = chain.client(SOON)
    engine.checkpoint()
    for index in WRONG:
        let_contracts_differ(chain.validators[index].application.book)
    data, more = act(chain), act(chain)
    with suppress(Unavailable):
        engine.submit(data, 0)
    wait_until(lambda: len(set(chain.heights().values())) == 1)
    height = chain.heights()[0]

    # Nobody decides the next block, and no client believes either version of the last one.
    with pytest.raises(Unavailable, match="the chain stands at height"):
        engine.submit(more, 0)
    assert set(chain.heights().values()) == {height}
    assert read_head(engine.checkpoint(), world.trust).height < height
    newcomer = chain.client(SOON)
    with pytest.raises(Unavailable, match="2 of 3 validators signed the checkpoint"):
        newcomer.checkpoint()
    newcomer.close()
    engine.close()

    # Both versions are signed, each by two; a trust file that asked for two would take either: a fork.
    notes = notes_of(chain, height)
    sides = [Note(pair[0].text, pair[0].signatures + pair[1].signatures) for pair in (notes[:2], notes[2:])]
    assert sides[0].text != sides[1].text
    careless = replace(world.trust, number=2, first=world.instance, ledger_threshold=2)
    assert len({read_head(side.encode(), careless).state_root for side in sides}) == 2, "without the two thirds"
    for side in sides:
        with pytest.raises(Forged, match="3 ledger signatures expected, found 2"):
            read_head(side.encode(), world.trust)

    # Who looks is told that it stands, and who stands against whom.
    found, names = health(chain), [card.rpc for card in world.cards]
    assert found.split_height == height
    assert sorted(map(sorted, found.sides)) == sorted([sorted(names[:2]), sorted(names[2:])])
    assert [one.verdict for one in found.validators] == ["differs"] * 4, "two against two: neither is right"
    assert found.verdict.startswith("halted")
    assert f"at height {height} " in found.verdict

    # Mended: the two take their block back, and execute it again as the others did.
    for index in WRONG:
        chain.stop(index)
        assert roll_back_validator(world.folders[index], chain.program) == height - 1
        chain.start(index)
    again = chain.client(PATIENT)
    placed = again.submit(data, 0)
    assert placed.height == height
    again.wait(again.submit(more, 0), 60)
    assert len({note.text for note in notes_of(chain, height)}) == 1
    assert notes_of(chain, height)[0].text == sides[0].text
    again.close()
    wait_until(lambda: health(chain).verdict == "it goes on")
