"""Guessing by what the authority answers, and by how much it does first: names of topics, invitations, permits.

Nothing here is measured in time. What a request makes the authority do is counted, call by call.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from authority_world import READ, Person, World
from without import without

from tallystick.authority.answers import NOBODY, Caller
from tallystick.authority.asks import AskPermit, ConfirmEnrolment, Enrol, Rekey, Undo
from tallystick.authority.possession import INVITE_BYTES, show_invite, sign_enrolment, sign_rekey
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import TallystickError
from tallystick.ledger.contracts.topics import TOPICS
from tallystick.trust.permit import Operation

NONCE = b"q" * 16
COSTLY = ("execute", "hmac_digest", "LedgerView.raw", "verify_map", "Authority.work")  # statements, derivations, reads


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def stranger(world: World) -> Person:
    """Of the tenant that has the topic "brakes", without any right on it."""
    world.topic(world.tenant())
    return world.member("stranger")


def calls_of(ask: Callable[[], object]) -> tuple[str, Counter[str]]:
    """What is answered, as text, and the calls that it took, by name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[called.__name__] += 1

    answer = "taken"
    sys.setprofile(count)
    try:
        ask()
    except TallystickError as error:
        answer = f"{error} ({error.hint})"
    finally:
        sys.setprofile(None)
    return answer, calls


def permit_by_name(world: World, person: Person, name: str) -> Callable[[], object]:
    caller = Caller(person.id, world.entropy.bytes(16))
    return lambda: world.authority.answer(AskPermit(int(Operation.SUBSCRIBE), name, b"", 0, ""), caller)


def tokens_on_the_ledger(world: World) -> list[str]:
    return [token.hex() for (token,), _ in world.ledger.scan(TOPICS)]


def test_who_guesses_a_name_learns_neither_whether_it_is_there_nor_its_token(world: World, stranger: Person) -> None:
    calls_of(permit_by_name(world, stranger, "warm"))  # nothing is read for the first time below
    (there, work), (absent, other_work) = (
        calls_of(permit_by_name(world, stranger, name)) for name in ("brakes", "breaks")
    )
    assert there == absent.replace("breaks", "brakes")
    assert 'topic "brakes" does not exist' in there
    assert all(work[call] == other_work[call] > 0 for call in COSTLY)


def test_without_it_the_refusal_leads_to_the_topic_on_the_ledger(world: World, stranger: Person) -> None:
    """The ledger is open to all who are enrolled: with its token a topic is there for all to see."""
    with without("a topic refused by the name it was asked for"):
        there, _ = calls_of(permit_by_name(world, stranger, "brakes"))
        absent, _ = calls_of(permit_by_name(world, stranger, "breaks"))
    assert any(token in there for token in tokens_on_the_ledger(world))
    assert not any(token in absent for token in tokens_on_the_ledger(world))


# --- secrets that are compared ---


def test_undo_tokens_are_compared_in_constant_time(world: World) -> None:
    """And after the permit's signature, whether the token is right, wrong or another's."""
    owner = world.tenant()
    reader = world.member("reader")
    world.grant(owner, world.topic(owner), reader, READ)
    granted = reader.client.permit(Operation.SUBSCRIBE, "brakes")
    tries = [
        (reader, bytes(32)),
        (reader, granted.undo_token[:-1] + b"\0"),
        (owner, granted.undo_token),
        (reader, granted.undo_token),
    ]
    for person, token in tries:
        undo = partial(world.authority.answer, Undo(granted.permit, token), Caller(person.id, NONCE))
        answer, calls = calls_of(undo)
        assert (answer == "taken") == ((person, token) == tries[-1])
        assert calls["Permit.verify"] == 1
        assert calls["MasterKey.undo_token"] == 1
        assert calls["compare_digest"] == (person is reader)


def test_challenges_are_compared_in_constant_time_and_invitations_looked_up_by_hash(world: World) -> None:
    authority, instance = world.authority, world.instance
    key, sealing = SigningKey.from_seed(b"s" * 32), hpke.PrivateKey.generate(b"e" * 32)
    public = sealing.public.encode()
    invite = authority.enrolment.create_tenant("acme")
    signature = sign_enrolment(instance, invite, "car", key, public)
    for text in (invite, show_invite(bytes(INVITE_BYTES))):
        _, calls = calls_of(partial(authority.answer, Enrol(text, "car", key.public.raw, public, signature), NOBODY))
        assert calls["secret_hash"] >= 1
    [(principal,)] = authority.core.store.rows("SELECT principal FROM pending")
    answer, calls = calls_of(lambda: authority.answer(ConfirmEnrolment(principal, bytes(32)), NOBODY))
    assert "enrolment refused" in answer
    assert calls["compare_digest"] == 1

    person = world.tenant("rival")
    signed = sign_rekey(instance, person.id, key, public)
    answer, calls = calls_of(
        lambda: authority.answer(Rekey(key.public.raw, public, signed, bytes(32)), Caller(person.id, NONCE))
    )
    assert "the challenge was not opened" in answer
    assert calls["compare_digest"] == 1
