"""Attacks on the authority's answers: whoever stands between a client and its authority, or speaks in its place.

A man in the middle knows every public key, sees every request, and can seal to anybody: HPKE in base mode says nothing
about who sealed. So answers are signed over their requests, what is sealed to is held to the ledger, and what an owner
signs it builds itself. Each defence is shown to hold where the others are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest
from actors import Topic, await_topic, rows
from attribute_actors import Attributes
from policy_world import need_pymcl
from server_thread import ServerThread
from stack import READ, WRITE, Stack, impatient, wait_until
from without import without

from tallystick import wire
from tallystick.authority.answers import Draft, answer_info, authority_hash
from tallystick.authority.asks import DraftTopic, ResolveRights
from tallystick.authority.client import drafted_rules, topic_entries
from tallystick.authority.grant import Grant, GrantPolicies
from tallystick.client.grants import announced_keys
from tallystick.client.lane_keys import open_lane
from tallystick.client.session import Session
from tallystick.crypto import hpke
from tallystick.errors import Forged, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.attributes import ATTRIBUTE_EPOCHS
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.settings import KEYS_CONTRACT, VERSIONS, is_in_force
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.locks import ErasureLock, Lock, TopicLock, TopicPolicyLock, decode_lock
from tallystick.record.schema import Schema
from tallystick.runtime.http1 import Response, answer_error
from tallystick.trust.permit import Operation

ATTACKER = hpke.PrivateKey.generate(b"a" * 32)
SIGNATURE, KEYS, BUILT = (
    "the signature on an answer",
    "the comparison of keys with the ledger",
    "entries built by who signs them",
)
REQUEST = "the request in an answer's signature"

Pass = Callable[[], Response]
Lie = Callable[[str, bytes, Pass], Response]  # path, body, and what passes the request on


class Middle:
    """Stands before the authority and passes everything on, until it is told to lie."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.lie: Lie = lambda path, body, pass_on: pass_on()
        self.alter: Callable[[bytes], bytes] = lambda body: body  # of requests, on their way

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        path = scope["path"]
        answer = await asyncio.to_thread(self.lie, path, body, lambda: self._pass_on(path, scope["headers"], body))
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def _pass_on(self, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
        connection = HTTPConnection("127.0.0.1", self._stack.authority.server.port)
        connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name.decode(), value)
        connection.endheaders(self.alter(body))
        answer = connection.getresponse()
        found = Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return found


class Scene:
    def __init__(self, stack: Stack, url: str, middle: Middle) -> None:
        self.stack, self.middle, self._url = stack, middle, url
        self.topic = Topic(stack, "acme")
        self.owner, self.car = self.behind(self.topic.owner), self.behind(self.topic.car)

    def behind(self, session: Session) -> Session:
        """The same principal, with the man in the middle before its authority."""
        return self.stack.session(replace(session.identity, authority_url=self._url))

    @contextmanager
    def lying(self, lie: Lie) -> Iterator[None]:
        honest, self.middle.lie = self.middle.lie, lie
        try:
            with impatient(self.owner, self.car):
                yield
        finally:
            self.middle.lie = honest

    def forge_grant(self, grant: Grant) -> Lie:
        """Answer with this grant, sealed as the authority would seal it: it takes public keys alone."""
        identity = self.car.identity

        def answer(path: str, body: bytes, pass_on: Pass) -> Response:
            nonce = wire.decode(body, "request")[0]
            info = answer_info(identity.instance, identity.principal, nonce)
            sealed = hpke.seal(identity.sealing_key.public, grant.encode(), info)
            return plain(wire.encode([sealed]))

        return answer


def plain(body: bytes, status: int = 200) -> Response:
    return Response(status, {"content-length": str(len(body))}, body)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Stack(tmp_path_factory.mktemp("answers")) as stack:
        middle = Middle(stack)
        with ServerThread(middle) as server:
            yield Scene(stack, server.url, middle)


# --- a forged key ---


def forged_epochs(scene: Scene) -> Grant:
    """A grant under the car's own permit, which the node shows to whoever asks, with the attacker's key in it."""
    honest = scene.topic.car.authority.permit(Operation.ADVERTISE, "brakes")
    public = ATTACKER.public.encode()
    return replace(honest, epochs=tuple(replace(one, public=public) for one in honest.epochs))


def opened_by_the_attacker(scene: Scene) -> bytes:
    """The secret of a lane that the car opens with the keys it was given."""
    held = scene.car.grants.obtain(Operation.ADVERTISE, "brakes", again=True)
    now_ms = int(scene.car.clock.now() * 1000)
    _, secrets = open_lane(scene.car.identity, [held], now_ms, scene.car.entropy, codec="lz4")
    lock = decode_lock(secrets.locks[0])
    assert isinstance(lock, TopicLock)
    return lock.open({(held.grant.token, held.epoch(now_ms).number): ATTACKER})


def test_nothing_is_sealed_to_a_key_that_the_authority_did_not_send(scene: Scene) -> None:
    with (
        scene.lying(scene.forge_grant(forged_epochs(scene))),
        pytest.raises(Unavailable, match="not signed by") as told,
    ):
        opened_by_the_attacker(scene)
    assert "upgrade the authority first" in str(told.value.hint)


def test_nothing_is_sealed_to_a_key_that_the_ledger_does_not_announce(scene: Scene) -> None:
    """As if the attacker had the authority's key, and signed."""
    forged = scene.forge_grant(forged_epochs(scene))
    with scene.lying(forged), without(SIGNATURE), pytest.raises(Forged, match="another key than the ledger") as told:
        opened_by_the_attacker(scene)
    assert told.value.reason == "wrong-key"


def test_without_signature_and_comparison_a_publisher_seals_to_the_attacker(scene: Scene) -> None:
    with scene.lying(scene.forge_grant(forged_epochs(scene))), without(SIGNATURE, KEYS):
        assert len(opened_by_the_attacker(scene)) == 32


def test_a_running_publisher_takes_no_forged_key_either(scene: Scene) -> None:
    with scene.car.publisher("brakes", background=False) as publisher:
        forged = replace(forged_epochs(scene), permit=b"", undo_token=b"", version=1 << 40)
        with scene.lying(scene.forge_grant(forged)):
            with pytest.raises(Unavailable):
                publisher.update_keys()
            with without(SIGNATURE), pytest.raises(Forged) as told:
                publisher.update_keys()
            assert told.value.reason == "wrong-key"
            elsewhere = replace(forged, token=b"another topic---")
            scene.middle.lie = scene.forge_grant(elsewhere)
            with without(SIGNATURE), pytest.raises(Forged, match="another topic"):
                publisher.update_keys()
        assert publisher.update_keys() in (True, False)  # and goes on with what the ledger announces


def test_a_publisher_that_is_given_a_forged_key_stops_and_says_so(scene: Scene) -> None:
    forged = replace(forged_epochs(scene), permit=b"", undo_token=b"", version=1 << 40)
    publisher = scene.car.publisher("brakes", keys_wait_ms=10)

    def has_stopped() -> bool:
        try:
            publisher.send(rows(1))
        except Forged as error:
            return error.reason == "wrong-key"
        return False

    with scene.lying(scene.forge_grant(forged)), without(SIGNATURE):
        wait_until(has_stopped)
    publisher.stop()
    assert has_stopped()


def test_the_attribute_authority_is_held_to_the_ledger_too(scene: Scene) -> None:
    issuer = scene.car.identity.authority.subject
    honest = scene.topic.car.authority.permit(Operation.ADVERTISE, "brakes")
    policies = GrantPolicies(b"public", b"space", ((3, 0), (4, 9)), ())
    before = replace(honest, policies=policies)
    forged = replace(before, policies=replace(policies, public=b"attacker's"))
    *epochs, (place, expected, _) = announced_keys(forged, None, issuer)
    assert len(epochs) == len(honest.epochs)
    assert (place, expected) == (ATTRIBUTE_EPOCHS(issuer, 4), authority_hash(b"attacker's"))
    assert announced_keys(before, before, issuer) == []
    assert [hashed for _, hashed, _ in announced_keys(forged, before, issuer)] == [expected]


# --- a forged key beside an epoch's ---


def in_force(scene: Scene) -> None:
    def is_so() -> bool:
        versions, head = scene.topic.car.view.row_at(VERSIONS())
        return is_in_force(versions, KEYS_CONTRACT, head.height)

    wait_until(is_so)


@pytest.fixture(scope="module")
def guarded(scene: Scene) -> str:
    """A topic whose parcels can be erased, and are for the police alone."""
    need_pymcl()
    in_force(scene)
    stack, owner = scene.stack, scene.topic.owner
    token = stack.topic(owner, "guarded", "vin string", flags=ERASABLE)
    await_topic(stack, token)
    stack.grant(owner, token, scene.topic.car, WRITE)
    attributes = Attributes(stack, owner)
    attributes.give(scene.topic.reader, role="police")
    attributes.set_policy(token, 0, "role::police")
    return "guarded"


def forged_beside(scene: Scene, name: str, kind: type[Lock]) -> Grant:
    """The epoch's key is the true one; the key that erases, or that asks for attributes, is the attacker's."""
    honest, public = scene.topic.car.authority.permit(Operation.ADVERTISE, name), ATTACKER.public.encode()
    if kind is ErasureLock:
        return replace(honest, erasure_keys=tuple(replace(one, key=public) for one in honest.erasure_keys))
    assert honest.policies is not None
    topics = tuple(replace(one, public=public) for one in honest.policies.topics)
    return replace(honest, policies=replace(honest.policies, topics=topics))


def opened_beside(scene: Scene, name: str, kind: type[Lock]) -> bytes:
    """The secret beside the epoch's of a lane that the car opens with the keys it was given."""
    held = scene.car.grants.obtain(Operation.ADVERTISE, name, again=True)
    now_ms = int(scene.car.clock.now() * 1000)
    _, secrets = open_lane(scene.car.identity, [held], now_ms, scene.car.entropy, codec="lz4")
    [lock] = [one for one in map(decode_lock, secrets.locks) if isinstance(one, kind)]
    if isinstance(lock, ErasureLock):
        return lock.open({(lock.token, lock.publisher, lock.period): ATTACKER})
    assert isinstance(lock, TopicPolicyLock)
    return hpke.open_(ATTACKER, lock.sealed, lock._info())


@pytest.mark.parametrize("kind", [ErasureLock, TopicPolicyLock])
def test_no_key_beside_an_epoch_s_is_another_s_either(scene: Scene, guarded: str, kind: type[Lock]) -> None:
    """Who holds the epoch's key, as every subscriber does, and such a one, could open what was erased, or what asks for
    attributes that it lacks. As if the attacker had the authority's key, and signed."""
    assert scene.car.grants.obtain(Operation.ADVERTISE, guarded, again=True).grant.erasure_keys
    with scene.lying(scene.forge_grant(forged_beside(scene, guarded, kind))):
        with without(SIGNATURE), pytest.raises(Forged, match="another key than the ledger") as told:
            opened_beside(scene, guarded, kind)
        assert told.value.reason == "wrong-key"
        with without(SIGNATURE, "the comparison of erasure and policy keys"):
            assert len(opened_beside(scene, guarded, kind)) == 32


# --- an answer of another request ---


def revoke_by_replay(scene: Scene, first: str, second: str) -> bool:
    """Whether the owner is told that `second` was revoked, by the answer to the revocation of `first`."""
    recorded: list[Response] = []

    def answer(path: str, body: bytes, pass_on: Pass) -> Response:
        recorded.append(pass_on() if not recorded else recorded[0])
        return recorded[-1]

    one, other = scene.topic.member(first), scene.topic.member(second)
    with scene.lying(answer):
        scene.owner.authority.revoke(one.identity.principal)
        scene.owner.authority.revoke(other.identity.principal)
    row = scene.topic.owner.view.row(IDENTITIES(other.identity.principal))
    return row is not None and not row.revoked


def test_an_answer_serves_one_request(scene: Scene) -> None:
    with pytest.raises(Unavailable, match="for this request"):
        revoke_by_replay(scene, "one", "other")


def test_without_the_signature_an_old_answer_hides_that_nobody_was_revoked(scene: Scene) -> None:
    with without(SIGNATURE):
        assert revoke_by_replay(scene, "third", "fourth")


def test_a_signature_over_the_answer_alone_would_not_do(scene: Scene) -> None:
    with without(REQUEST):
        assert revoke_by_replay(scene, "fifth", "sixth")


# --- an entry to be signed ---


def slip_in(scene: Scene, thief: Session) -> Lie:
    """The rights that the owner asked for, and one for the thief."""

    def answer(path: str, body: bytes, pass_on: Pass) -> Response:
        ask = ResolveRights("brakes", thief.identity.principal, 1, int(READ), "*", 0)
        honest = ask.decode_answer(pass_on().body)
        slipped = entries.grant(scene.topic.token, thief.identity.principal, int(READ))
        return plain(ask.encode_answer(replace(honest, entries=(*honest.entries, slipped))))

    return answer


def grant_to(scene: Scene, principal: bytes) -> None:
    resolved = scene.owner.authority.resolve_rights("brakes", principal, 8)
    scene.owner.author.write(*resolved.entries)


def test_an_owner_signs_no_grant_that_it_did_not_ask_for(scene: Scene) -> None:
    friend, thief = scene.topic.member("friend"), scene.topic.member("thief")
    place = RIGHTS(scene.topic.token, thief.identity.principal)
    with scene.lying(slip_in(scene, thief)):
        with pytest.raises(Unavailable):
            grant_to(scene, friend.identity.principal)
        with without(SIGNATURE), pytest.raises(Forged, match="nobody asked for"):
            grant_to(scene, friend.identity.principal)
        assert scene.topic.owner.view.row(place) is None
        with without(SIGNATURE, BUILT):
            grant_to(scene, friend.identity.principal)
    assert scene.topic.owner.view.wait_for(place, lambda row: row is not None)


def test_a_new_topic_is_as_its_owner_asked(scene: Scene) -> None:
    """Partitions, flags and schema of the answer do not count, and what comes with it can only be rights on it."""
    schema, thief = Schema.parse("vin string"), b"thief-----------"

    def answer(path: str, body: bytes, pass_on: Pass) -> Response:
        ask = DraftTopic("seats", schema.encode(), 2, 0)
        honest = ask.decode_answer(pass_on().body)
        assert isinstance(honest, Draft)
        forged = replace(honest, partitions=1, flags=1, schema_hash=b"x" * 32, rights=tuple(slipped))
        return plain(ask.encode_answer(forged))

    slipped = [entries.grant(scene.topic.token, thief, int(READ))]
    with scene.lying(answer), without(SIGNATURE):
        with pytest.raises(Forged, match="nobody asked for"):
            scene.owner.authority.create_topic("seats", schema.encode(), 2)
        slipped.clear()
        draft = scene.owner.authority.create_topic("seats", schema.encode(), 2)
    create, *rights = topic_entries(draft, scene.owner.holder)
    built = wire.decode(create, "entry")
    assert (built[4], built[6], built[8], rights) == (2, 0, schema.hash, [])
    slipped.append(entries.grant(draft.token, thief, int(READ)))
    assert drafted_rules(replace(draft, rights=tuple(slipped))) == [(thief, True, int(READ), "*")]  # and are shown


# --- a refusal ---


def refuse(path: str, body: bytes, pass_on: Pass) -> Response:
    answer = answer_error(Refused("you have no right", reason="no-right"))
    return plain(answer.body, answer.status)


def test_nobody_else_refuses_in_the_authoritys_name(scene: Scene) -> None:
    """The publisher goes on with the keys it has, as if the line were cut."""
    kept = scene.car.grants.obtain(Operation.ADVERTISE, "brakes", again=True)
    with scene.lying(refuse):
        assert scene.car.grants.obtain(Operation.ADVERTISE, "brakes").permit == kept.permit
        with without(SIGNATURE), pytest.raises(Refused, match="you have no right"):
            scene.car.grants.obtain(Operation.ADVERTISE, "brakes")


def test_a_request_altered_on_its_way_brings_no_refusal_of_the_authoritys(scene: Scene) -> None:
    """The authority refuses what was altered, to a stranger and without a word; that is no answer to the car."""
    scene.middle.alter = lambda body: body[:-1] + bytes([body[-1] ^ 1])
    try:
        with impatient(scene.car):
            with pytest.raises(Unavailable, match="not signed by"):
                scene.car.authority.permit(Operation.ADVERTISE, "brakes")
            with without(SIGNATURE), pytest.raises(Refused, match="refused without a word"):
                scene.car.authority.permit(Operation.ADVERTISE, "brakes")
    finally:
        scene.middle.alter = lambda body: body


def test_the_authoritys_own_refusals_are_believed(scene: Scene) -> None:
    with pytest.raises(Refused, match="does not exist"):
        scene.car.authority.keys(b"no such permit--", 0)
    gone = scene.behind(scene.topic.member("gone"))
    scene.owner.authority.revoke(gone.identity.principal)
    with pytest.raises(Refused, match="refused without a word"):
        gone.authority.names()
