"""A reader's attribute key: when the authority is asked, and what becomes of the key at hand."""

from __future__ import annotations

import pytest
from formulas import ACME
from makers import seed
from policy_world import need_pymcl

from tallystick.authority.answers import AttributeAnswer
from tallystick.client.opening import SKEW_MS, AttributeHolder
from tallystick.crypto.abe.keys import AttributeKey, AttributeMasterKey
from tallystick.errors import Unavailable
from tallystick.policy.traits import traits_of

AGAIN_S = 30.0


class Authority:
    """Answers as authority/attributes.py does, with real keys, and counts the questions."""

    def __init__(self) -> None:
        need_pymcl()
        self.master, self.current, self.held = AttributeMasterKey.generate(seed("attributes")), 3, {"role": "police"}
        self.asked: list[tuple[bytes, int]] = []
        self.away, self.at_most = False, 1_024

    def attribute_key(self, known: bytes = b"", first: int = 0) -> AttributeAnswer:
        if self.away:
            raise Unavailable("the authority cannot be reached")
        self.asked.append((known, first))
        traits = traits_of(ACME.values(self.held), ACME)
        if not traits:
            return AttributeAnswer(b"", b"", (), self.current)
        identifier = seed(repr(sorted(traits)))[:16]
        epochs = range(first or self.current, min(self.current, first + self.at_most - 1) + 1)
        if known != identifier:
            return AttributeAnswer(identifier, self.master.issue(b"p", traits, epochs).encode(), (), self.current)
        parts = tuple((epoch, self.master.refresh(b"p", traits, epoch)) for epoch in epochs)
        return AttributeAnswer(identifier, b"", parts, self.current)


class Clock:
    seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    now = monotonic


def holder(authority: Authority, clock: Clock, begins_ms: dict[int, int] | None = None) -> AttributeHolder:
    return AttributeHolder(authority, clock, AGAIN_S, (begins_ms or {}).get)  # type: ignore[arg-type]


def key_of(mine: AttributeHolder, epoch: int) -> AttributeKey:
    key = mine.key(epoch)
    assert key is not None
    return key


def test_the_authority_is_asked_once_an_epoch_and_again_after_a_while() -> None:
    authority, clock = Authority(), Clock()
    mine = holder(authority, clock)
    first = key_of(mine, 3)
    for _ in range(100):
        assert mine.key(3) is first  # the same object: what was refused is still refused
    assert len(authority.asked) == 1
    clock.seconds += AGAIN_S
    assert mine.key(3) is first
    assert len(authority.asked) == 2
    assert authority.asked[1][0] != b""  # and a whole key travels once


def test_other_attributes_bring_another_key_and_none_brings_none() -> None:
    authority, clock = Authority(), Clock()
    mine = holder(authority, clock)
    first = key_of(mine, 3)
    authority.held = {"role": "garage"}
    clock.seconds += AGAIN_S
    assert mine.key(3) is not first
    authority.held = {}
    clock.seconds += AGAIN_S
    assert mine.key(3) is None


def test_epochs_are_taken_on_one_part_at_a_time() -> None:
    authority, clock = Authority(), Clock()
    mine = holder(authority, clock)
    key_of(mine, 3)
    authority.current = 4
    assert set(key_of(mine, 4).epochs) == {3, 4}
    assert set(key_of(mine, 1).epochs) == {1, 2, 3, 4}


def test_while_the_authority_is_away_the_key_at_hand_serves() -> None:
    authority, clock = Authority(), Clock()
    mine = holder(authority, clock)
    first = key_of(mine, 3)
    authority.away = True
    clock.seconds += AGAIN_S
    assert mine.key(3) is first
    with pytest.raises(Unavailable):  # and what it does not reach is waited for, not refused
        mine.key(4)


def test_an_epoch_that_is_only_just_beginning_is_waited_for() -> None:
    """A publisher's clock may be ahead of the authority's: the column is not closed for good because of it."""
    authority, clock = Authority(), Clock()
    begins_ms = {4: int(clock.seconds * 1000) + SKEW_MS // 2, 5: int(clock.seconds * 1000) + 10 * SKEW_MS}
    mine = holder(authority, clock, begins_ms)
    with pytest.raises(Unavailable, match="just beginning"):
        mine.key(4)
    assert 5 not in key_of(mine, 5).epochs  # one far ahead, or made up, stalls nobody
    assert 99 not in key_of(mine, 99).epochs
    authority.current = 4
    assert 4 in key_of(mine, 4).epochs


def test_a_whole_key_has_every_epoch_however_many_answers_it_takes() -> None:
    authority, clock = Authority(), Clock()
    authority.current, authority.at_most = 7, 3
    mine = holder(authority, clock)
    key = mine.whole()
    assert key is not None
    assert set(key.epochs) == set(range(1, 8))
    assert len(authority.asked) == 3
    assert mine.whole() is key
    authority.current = 8
    clock.seconds += AGAIN_S
    key = mine.whole()
    assert key is not None
    assert set(key.epochs) == set(range(1, 9))
    authority.held = {}
    clock.seconds += AGAIN_S
    assert mine.whole() is None
