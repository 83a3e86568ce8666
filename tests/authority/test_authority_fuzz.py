"""Hostile bodies: whatever a caller sends, the authority answers with an error of ours and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authority_world import World
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tallystick import wire
from tallystick.authority.answers import Caller
from tallystick.authority.asks import ASKS, Ask
from tallystick.authority.codec import specs
from tallystick.authority.grant import Grant
from tallystick.authority.master import open_master
from tallystick.errors import TallystickError

VALUES = st.recursive(
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.sampled_from([0, 1, 2, 15, 16, 1 << 32])
    | st.binary(max_size=40)
    | st.sampled_from([bytes(16), bytes(32), bytes(64), bytes(1216)])
    | st.text(max_size=12)
    | st.booleans()
    | st.none(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, bytes]]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    world = World(folder)
    owner = world.tenant()
    world.topic(owner, "a")
    yield world, owner.id
    world.authority.close()
    world.ledger.close()


@given(ask=st.sampled_from(ASKS), data=st.data())
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_body_is_answered_or_refused_in_our_words(
    served: tuple[World, bytes], ask: type[Ask[Any]], data: st.DataObject
) -> None:
    world, principal = served
    length = len(specs(ask)) + int(ask.signed)
    fields: list[Any] = data.draw(st.lists(VALUES, min_size=length, max_size=length))
    _serve(world, principal, ask, wire.encode(fields))
    _serve(world, principal, ask, data.draw(st.binary(max_size=64)))
    assert world.authority.statistics().permits_live == 0


def _serve(world: World, principal: bytes, kind: type[Ask[Any]], body: bytes) -> None:
    try:
        ask, nonce = kind.decode(body, world.authority.core.limits)
        ask.encode_answer(world.authority.answer(ask, Caller(principal, nonce)))
    except TallystickError:
        pass


@given(st.binary(max_size=200) | VALUES.map(wire.encode))
def test_decoders_raise_our_errors_only(data: bytes) -> None:
    for decode in (Grant.decode, lambda content: open_master(content, b"passphrase")):
        with pytest.raises(TallystickError):
            decode(data)
