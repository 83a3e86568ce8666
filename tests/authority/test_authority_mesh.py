"""Mesh keys, certificates of publishers and nodes, updates: who gets them, who does not, and what revocation does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pyrage
import pytest
from authority_world import READ, WRITE, Person, World
from without import without

from tallystick.authority.answers import Caller, answer_info
from tallystick.authority.asks import AskMesh
from tallystick.authority.backup import restore
from tallystick.authority.mesh_messages import (
    EPOCHS_MAX,
    SEALED_UPDATES_BYTES,
    UPDATE_BYTES,
    UPDATES_AT_ONCE,
    MeshAnswer,
    MeshRequest,
    MeshUpdate,
    MeshUpdatesRequest,
)
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.crypto import hpke
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import CannotOpen, Forged, Refused
from tallystick.ledger import entries
from tallystick.parcel.padding import unpad
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import MeshAuthority, check_member
from tallystick.trust.permit import Operation

DAY_S = 86_400
SUBSCRIBE, ADVERTISE = int(Operation.SUBSCRIBE), int(Operation.ADVERTISE)


class Made(NamedTuple):
    """A topic, a publisher and two readers, in a folder from which each test begins: to enrol them takes longest."""

    folder: Path
    token: bytes
    people: tuple[Person, ...]

    @classmethod
    def at(cls, folder: Path) -> Made:
        world = World(folder)
        into_s = world.clock.now() % DAY_S
        world.pass_time((DAY_S + DAY_S / 2 - into_s) % DAY_S)  # noon of a mesh epoch
        owner = world.tenant()
        token = world.topic(owner)
        car, reader, other = (world.member(name) for name in ("car", "reader", "other"))
        world.grant(owner, token, car, WRITE)
        for person in (reader, other):
            world.grant(owner, token, person, READ)
        world.authority.close()
        world.ledger.close()
        return cls(folder, token, (owner, car, reader, other))


class Cast:
    def __init__(self, world: World, made: Made) -> None:
        self.world, self.token = world, made.token
        self.owner, self.car, self.reader, self.other = map(world.again, made.people)

    @property
    def epoch(self) -> int:
        return self.world.authority.mesh.epoch

    @property
    def key(self) -> VerifyKey:
        return self.world.authority.mesh.signing.public

    def request(self, operation: int = SUBSCRIBE, epochs: int = 7) -> MeshRequest:
        return MeshRequest(self.token, operation, epochs)

    def keys(self, person: Person, operation: int = SUBSCRIBE, epochs: int = 7) -> dict[int, MeshKey]:
        answer, _ = self.world.again(person).client.mesh(MeshRequest(self.token, operation, epochs))
        return {
            answer.first_epoch + ahead: MeshKey(secret, answer.first_epoch + ahead)
            for ahead, secret in enumerate(answer.secrets)
        }

    def publisher(self, person: Person, key: MeshKey) -> MeshPublisher:
        """That it is in the key's epoch, by what it gets now."""
        answer, _ = self.world.again(person).client.mesh(self.request(ADVERTISE))
        return MeshPublisher(key.pseudonym, key.epoch, *answer.leaves[key.epoch - answer.first_epoch])

    def publish(self, key: MeshKey, by: MeshPublisher) -> bytes:
        """An envelope of this moment."""
        return key.seal(Pushed(b"parcel"), self.world.now_ms, by, self.world.entropy).encode()

    def passes(self, envelope: bytes) -> bool:
        try:
            MeshGuard(self.key).judge(envelope, self.world.now_ms)
        except Refused:
            return False
        return True

    def to_epoch(self, epoch: int) -> None:
        """Noon of this one."""
        self.world.pass_time((epoch - self.epoch) * DAY_S)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made.at(tmp_path_factory.mktemp("mesh"))


@pytest.fixture
def cast(made: Made, tmp_path: Path) -> Iterator[Cast]:
    copytree(made.folder, tmp_path / "world")
    world = World(tmp_path / "world", entropy=SeededEntropy(2))
    world.pass_time(1.0)  # transactions are numbered by the clock
    yield Cast(world, made)
    world.authority.close()
    world.ledger.close()


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refusal:
        call()
    return refusal.value.reason


# --- what members get ---


def test_publishers_and_subscribers_of_a_topic_meet_by_keys_of_the_authority(cast: Cast) -> None:
    mine, theirs = cast.keys(cast.car, ADVERTISE), cast.keys(cast.reader)
    assert mine == theirs
    assert sorted(mine) == list(range(cast.epoch, cast.epoch + 7))
    assert len({key.pseudonym for key in mine.values()}) == 7
    for epoch in (cast.epoch, cast.epoch + 3):
        cast.to_epoch(epoch)
        envelope = cast.publish(mine[epoch], cast.publisher(cast.car, mine[epoch]))
        judged = MeshGuard(cast.key).judge(envelope, cast.world.now_ms)
        assert theirs[epoch].open(judged) == Pushed(b"parcel")


def test_the_epochs_are_those_of_the_nodes(cast: Cast) -> None:
    authority = cast.world.authority.mesh.authority
    assert authority.epoch_ms == MeshLimits().epoch_ms
    assert authority.verify(cast.world.authority_certificate) == cast.key


def test_the_key_of_the_mesh_is_the_authoritys_word_and_serves_nothing_else(cast: Cast) -> None:
    authority, certificate = cast.world.authority.mesh.authority, cast.world.authority_certificate
    assert authority.key != certificate.signing_key
    MeshAuthority.decode(authority.encode()).verify(certificate)
    liar = SigningKey.from_seed(bytes(32))
    for forged in (authority.sign(liar), replace(authority, authority=bytes(16)).sign(liar)):
        with pytest.raises(Forged):
            forged.verify(certificate)
    with pytest.raises(Forged):  # somebody else who has a certificate of the instance
        authority.verify(cast.car.certificate)


def test_what_was_asked_for_comes_checked(cast: Cast) -> None:
    """An authority's answer in which a certificate is another's, or something is missing, is none."""
    honest = cast.world.authority
    request = cast.request(ADVERTISE, 2)

    class Between:
        def answer(self, ask: AskMesh, caller: Caller) -> bytes:
            sealed = honest.answer(ask, caller)
            info = answer_info(cast.world.instance, caller.principal, caller.nonce)
            opened = hpke.open_(cast.car.holder.sealing_key, sealed, info)
            answer = self.changed(MeshAnswer.decode(unpad(opened)))
            public = hpke.PublicKey.decode(cast.car.certificate.sealing_key)
            return hpke.seal(public, answer.encode() + b"\x80", info)

        changed: Callable[[MeshAnswer], MeshAnswer]

    cast.car.client._transport = between = Between()  # type: ignore[assignment]
    between.changed = lambda answer: answer
    assert len(cast.car.client.mesh(request)[0].secrets) == 2
    changes: list[Callable[[MeshAnswer], MeshAnswer]] = [
        lambda answer: replace(answer, leaves=answer.leaves[::-1]),
        lambda answer: replace(answer, leaves=((answer.leaves[0][0], bytes(64)), answer.leaves[1])),
        lambda answer: replace(answer, leaves=()),
        lambda answer: replace(answer, guises=()),
        lambda answer: replace(answer, secrets=answer.secrets[:1]),
        lambda answer: replace(answer, authority=answer.authority[:-1] + bytes([answer.authority[-1] ^ 1])),
    ]
    for change in changes:
        between.changed = change
        with pytest.raises(Forged):
            cast.car.client.mesh(request)


# --- who does not ---


def test_who_has_no_right_gets_no_keys(cast: Cast) -> None:
    stranger = cast.world.member("stranger")
    assert reason(lambda: cast.keys(stranger)) == "unknown-topic"
    assert reason(lambda: cast.keys(cast.reader, ADVERTISE)) == "no-right"
    assert reason(lambda: cast.keys(cast.car, SUBSCRIBE)) == "no-right"
    with without("the right behind mesh keys"):
        assert cast.keys(stranger) == cast.keys(cast.reader)


def test_a_reader_gets_no_leave_to_publish(cast: Cast) -> None:
    key = cast.keys(cast.reader)[cast.epoch]
    assert reason(lambda: cast.publisher(cast.reader, key)) == "no-right"
    assert cast.reader.client.mesh(cast.request())[0].leaves == ()
    with without("the right behind mesh keys"):
        assert cast.passes(cast.publish(key, cast.publisher(cast.reader, key)))


def test_a_closed_topic_has_no_more_publishers(cast: Cast) -> None:
    cast.world.act(cast.owner, entries.close_topic(cast.token))
    assert reason(lambda: cast.keys(cast.car, ADVERTISE)) == "topic-closed"
    assert reason(lambda: cast.keys(cast.world.member("stranger"), ADVERTISE)) == "unknown-topic"
    assert cast.keys(cast.reader)


def test_keys_come_for_so_many_epochs_and_no_more(cast: Cast) -> None:
    assert len(cast.keys(cast.reader, epochs=EPOCHS_MAX)) == EPOCHS_MAX
    assert reason(lambda: cast.keys(cast.reader, epochs=EPOCHS_MAX + 1)) == "too-many-epochs"


# --- another's request ---


def test_a_request_counts_for_who_sealed_it(cast: Cast) -> None:
    """Whoever stands before the authority and is a principal itself sends another's request as its own: opened, the
    answer would show which keys are the other's."""
    spy = cast.world.member("spy")
    cast.world.grant(cast.owner, cast.token, spy, WRITE)
    request = cast.request(ADVERTISE)
    sealed = request.seal(cast.world.authority_certificate, cast.car.id)
    assert cast.token not in sealed

    def ask() -> bytes:
        return spy.client._ask_sealed(AskMesh(sealed))

    assert reason(ask) == "cannot-open"
    with without("the principal in a request about the mesh"):
        sealed = request.seal(cast.world.authority_certificate, cast.car.id)
        assert MeshAnswer.decode(unpad(ask())).leaves


def test_requests_and_answers_have_one_size(cast: Cast) -> None:
    lasting = ExchangeKey(bytes(32)).public
    sizes = set()
    for person, request in (
        (cast.reader, MeshRequest()),
        (cast.reader, MeshRequest(lasting=lasting)),
        (cast.reader, cast.request(epochs=1)),
        (cast.car, replace(cast.request(ADVERTISE, EPOCHS_MAX), lasting=lasting)),
    ):
        sealed = request.seal(cast.world.authority_certificate, person.id)
        answer = cast.world.authority.answer(AskMesh(sealed), Caller(person.id, bytes(16)))
        sizes.add((len(sealed), len(answer)))
    assert len(sizes) == 1


def test_a_refusal_looks_like_any_other_answer(cast: Cast) -> None:
    """Who stands between would learn from it which topic somebody asked for in vain."""
    stranger, sealed = cast.world.member("stranger"), {}
    for person in (stranger, cast.reader):
        request = cast.request().seal(cast.world.authority_certificate, person.id)
        sealed[person.id] = AskMesh(request)
    caller, other = Caller(stranger.id, bytes(16)), Caller(cast.reader.id, bytes(16))
    refused, given = (cast.world.authority.answer(sealed[one.principal], one) for one in (caller, other))
    assert len(refused) == len(given)
    assert cast.token.hex().encode() not in refused
    with without("refusals under the seal of an answer"), pytest.raises(Refused, match=cast.token.hex()):
        cast.world.authority.answer(sealed[stranger.id], caller)


# --- one key, one node ---


def test_a_publisher_has_one_key_in_an_epoch(cast: Cast) -> None:
    key = cast.keys(cast.car, ADVERTISE)[cast.epoch]
    first = cast.publisher(cast.car, key)
    cast.world.reopen()
    assert cast.publisher(cast.car, key) == first  # asked again
    with without("one key of a publisher on the mesh"):
        many = [cast.publisher(cast.car, key) for _ in range(8)]
    assert len({one.key for one in many}) == 8
    assert all(cast.passes(cast.publish(key, one)) for one in many)


def test_publishers_have_keys_of_their_own(cast: Cast) -> None:
    """Else each could sign as the others, and spend what nodes remember of them."""
    other = cast.world.member("another car")
    cast.world.grant(cast.owner, cast.token, other, WRITE)
    keys = cast.keys(cast.car, ADVERTISE)
    found = {cast.publisher(one, keys[epoch]).key for one in (cast.car, other) for epoch in keys}
    assert len(found) == 2 * len(keys)


def admitted(person: Person, seed: int) -> tuple[int, bytes]:
    answer, _ = person.client.mesh(MeshRequest(lasting=ExchangeKey(bytes([seed]) * 32).public))
    return answer.until_ms, answer.member


def test_a_principal_has_one_node_at_a_time(cast: Cast) -> None:
    until_ms, certificate = admitted(cast.car, 1)
    check_member(ExchangeKey(b"\x01" * 32).public, until_ms, certificate, cast.key)
    assert admitted(cast.car, 1) == (until_ms, certificate)
    assert reason(lambda: admitted(cast.car, 2)) == "another-node"
    cast.to_epoch(cast.epoch + 1)
    assert admitted(cast.car, 1)[0] == until_ms + DAY_S * 1000  # renewed: no gap
    assert reason(lambda: admitted(cast.car, 2)) == "another-node"
    with without("one node of a principal on the mesh"):
        ends = [admitted(cast.car, seed) for seed in range(2, 20)]
    assert len(set(ends)) == 18
    cast.to_epoch(cast.epoch + 2)
    admitted(cast.car, 50)  # that one's certificate has ended


def test_new_keys_of_a_principal_bring_no_second_node(cast: Cast) -> None:
    admitted(cast.car, 1)
    key, sealing = SigningKey.from_seed(b"n" * 32), hpke.PrivateKey.generate(b"n" * 32)
    certificate = cast.car.client.rekey(key, sealing)
    holder = replace(cast.car.holder, signing_key=key, sealing_key=sealing)
    assert reason(lambda: admitted(cast.world.person(holder, certificate), 2)) == "another-node"


def test_a_nodes_certificate_names_nobody_and_no_time_of_its_own(cast: Cast) -> None:
    """Two who asked at different times of one epoch have ends that tell neither who nor when."""
    until_ms, certificate = admitted(cast.car, 1)
    cast.world.pass_time(3_600)
    assert admitted(cast.reader, 2)[0] == until_ms
    assert until_ms % (DAY_S * 1000) == 0
    check_member(ExchangeKey(b"\x01" * 32).public, until_ms, certificate, cast.key)  # nothing else is covered
    with pytest.raises(Forged):
        check_member(ExchangeKey(b"\x01" * 32).public, until_ms + 1, certificate, cast.key)


def test_keys_of_small_order_are_refused(cast: Cast) -> None:
    assert reason(lambda: cast.car.client.mesh(MeshRequest(lasting=bytes(32)))) == "malformed"


# --- revocation ---


def revoke_reader(cast: Cast) -> None:
    cast.world.withdraw(cast.owner, cast.token, cast.reader, READ)


def test_a_revoked_reader_opens_nothing_from_the_next_epoch_on(cast: Cast) -> None:
    old = cast.keys(cast.reader)
    before = cast.keys(cast.car, ADVERTISE)
    revoke_reader(cast)
    assert reason(lambda: cast.keys(cast.reader)) == "unknown-topic"
    after = cast.keys(cast.car, ADVERTISE)
    assert after[cast.epoch] == before[cast.epoch]  # this epoch stays, and it is said
    assert all(after[epoch].pseudonym != old[epoch].pseudonym for epoch in list(after)[1:])
    assert after == cast.keys(cast.other)
    cast.to_epoch(cast.epoch + 1)
    envelope = cast.publish(after[cast.epoch], cast.publisher(cast.car, after[cast.epoch]))
    judged = MeshGuard(cast.key).judge(envelope, cast.world.now_ms)
    with pytest.raises(CannotOpen):
        old[cast.epoch].open(judged)


def test_without_renewal_a_revoked_reader_opens_on(cast: Cast) -> None:
    old = cast.keys(cast.reader)
    with without("the renewal of mesh keys"):
        revoke_reader(cast)
    assert cast.keys(cast.car, ADVERTISE)[cast.epoch + 6] == old[cast.epoch + 6]


def test_a_revoked_publisher_speaks_to_nobody_from_the_next_epoch_on(cast: Cast) -> None:
    """Nodes pass its certificate on until the epoch ends; but no subscriber has its pseudonym."""
    keys = cast.keys(cast.car, ADVERTISE)
    certified = cast.publisher(cast.car, keys[cast.epoch + 1])
    cast.world.withdraw(cast.owner, cast.token, cast.car, WRITE)
    assert reason(lambda: cast.keys(cast.car, ADVERTISE)) == "unknown-topic"
    assert reason(lambda: cast.publisher(cast.car, keys[cast.epoch])) == "unknown-topic"
    cast.to_epoch(cast.epoch + 1)
    assert cast.passes(cast.publish(keys[cast.epoch], certified))
    assert cast.keys(cast.reader)[cast.epoch].pseudonym != certified.pseudonym


def test_who_keeps_reading_and_may_not_write_any_more_loses_its_certificates(cast: Cast) -> None:
    """It had asked for keys as a reader and for certificates as a publisher."""
    both = cast.world.member("both")
    for rights in (READ, WRITE):
        cast.world.grant(cast.owner, cast.token, both, rights)
    keys = cast.keys(both)
    certified = cast.publisher(both, keys[cast.epoch + 1])
    cast.world.withdraw(cast.owner, cast.token, both, WRITE)
    assert cast.keys(both)[cast.epoch + 1].pseudonym != certified.pseudonym


@pytest.mark.parametrize("way", ["revoked", "rekeyed"])
def test_what_a_principal_held_ends_with_it_and_with_its_keys(cast: Cast, way: str) -> None:
    old = cast.keys(cast.reader)
    if way == "revoked":
        cast.owner.client.revoke(cast.reader.id)
    else:
        cast.reader.client.rekey(SigningKey.from_seed(b"n" * 32), hpke.PrivateKey.generate(b"n" * 32))
    assert cast.keys(cast.other)[cast.epoch + 1] != old[cast.epoch + 1]


def test_who_held_nothing_renews_nothing(cast: Cast) -> None:
    """A right that comes and goes costs the others no keys."""
    before = cast.keys(cast.car, ADVERTISE)
    revoke_reader(cast)
    assert cast.keys(cast.car, ADVERTISE) == before
    cast.keys(cast.other, epochs=1)  # of this epoch alone
    cast.world.withdraw(cast.owner, cast.token, cast.other, READ)
    assert cast.keys(cast.car, ADVERTISE) == before


def test_each_revocation_of_an_epoch_renews_for_those_who_asked_since(cast: Cast) -> None:
    cast.keys(cast.reader)
    stale = cast.keys(cast.other)
    revoke_reader(cast)
    first = cast.keys(cast.car, ADVERTISE)
    second = cast.world.member("second")
    cast.world.grant(cast.owner, cast.token, second, READ)
    assert cast.keys(second) == first
    cast.world.withdraw(cast.owner, cast.token, second, READ)
    last = cast.keys(cast.car, ADVERTISE)
    assert last[cast.epoch + 1] not in (first[cast.epoch + 1], stale[cast.epoch + 1])
    cast.world.withdraw(cast.owner, cast.token, cast.other, READ)  # it holds none of the keys that serve then
    assert cast.keys(cast.car, ADVERTISE) == last


def test_all_who_look_in_the_last_hour_come_to_the_next_epoch_with_the_same_keys(cast: Cast) -> None:
    cast.keys(cast.reader)
    cast.world.pass_time(DAY_S / 2 - 1_800)
    early = cast.keys(cast.car, ADVERTISE)
    revoke_reader(cast)
    late = cast.keys(cast.other)
    assert late[cast.epoch + 1] == early[cast.epoch + 1]
    assert late[cast.epoch + 2] != early[cast.epoch + 2]


def test_without_notice_those_who_looked_early_are_left_alone(cast: Cast) -> None:
    cast.keys(cast.reader)
    cast.world.pass_time(DAY_S / 2 - 1_800)
    early = cast.keys(cast.car, ADVERTISE)
    with without("the mesh keys' stay before an epoch"):
        revoke_reader(cast)
    assert cast.keys(cast.other)[cast.epoch + 1] != early[cast.epoch + 1]


def test_leave_for_a_pseudonym_that_was_renewed_is_for_the_new_one(cast: Cast) -> None:
    old = cast.keys(cast.car, ADVERTISE)
    cast.keys(cast.reader)
    revoke_reader(cast)
    new = cast.keys(cast.car, ADVERTISE)
    cast.to_epoch(cast.epoch + 1)
    by = cast.publisher(cast.car, new[cast.epoch])
    assert cast.passes(cast.publish(new[cast.epoch], by))
    assert not cast.passes(cast.publish(old[cast.epoch], replace(by, pseudonym=old[cast.epoch].pseudonym)))


def withdraw_between(cast: Cast) -> None:
    """Let the reader's right be withdrawn, and that be followed, after the authority read it and before it answers."""
    client, honest = cast.world.ledger_client, cast.world.ledger_client.state
    moments = iter([lambda: revoke_reader(cast)])

    def state(key: bytes) -> object:
        if key.startswith(b"reputation/"):  # asked for behind the right
            next(moments, lambda: None)()
        return honest(key)

    client.state = state  # type: ignore[assignment]


def test_a_revocation_that_is_followed_while_rights_are_read_is_not_missed(cast: Cast) -> None:
    withdraw_between(cast)
    assert reason(lambda: cast.keys(cast.reader)) == "unknown-topic"


def test_without_a_second_look_the_revoked_has_keys_that_nothing_takes_back(cast: Cast) -> None:
    withdraw_between(cast)
    with without("what was followed while rights were read"):
        held = cast.keys(cast.reader)
    assert held == cast.keys(cast.car, ADVERTISE)
    assert reason(lambda: cast.keys(cast.reader)) == "unknown-topic"


# --- what a crash, a restart and a restore leave ---


def test_a_restarted_authority_gives_the_same(cast: Cast) -> None:
    cast.keys(cast.reader)
    revoke_reader(cast)
    before, node = cast.keys(cast.car, ADVERTISE), admitted(cast.car, 1)
    cast.world.reopen()
    assert cast.keys(cast.car, ADVERTISE) == before
    car = cast.world.again(cast.car)
    assert admitted(car, 1) == node
    assert reason(lambda: admitted(car, 2)) == "another-node"


AGE = pyrage.x25519.Identity.generate()


def restored(cast: Cast, backup: bytes, folder: Path) -> None:
    cast.world.authority.close()
    restore(backup, str(AGE), folder)
    cast.world.authority = cast.world.open(folder)


def test_a_restored_authority_gives_no_key_that_somebody_revoked_since_may_hold(cast: Cast, tmp_path: Path) -> None:
    signing = cast.world.authority.mesh.signing.public
    backup = cast.world.authority.back_up([str(AGE.to_public())]).data
    old = cast.keys(cast.reader)  # which the backup does not know
    revoke_reader(cast)
    restored(cast, backup, tmp_path / "restored")
    assert cast.world.authority.mesh.signing.public == signing
    after = cast.keys(cast.car, ADVERTISE)
    assert not set(after.values()) & set(old.values())
    assert after == cast.keys(cast.other)


def test_without_renewal_after_a_restore_the_revoked_opens_on(cast: Cast, tmp_path: Path) -> None:
    backup = cast.world.authority.back_up([str(AGE.to_public())]).data
    old = cast.keys(cast.reader)
    revoke_reader(cast)
    with without("the renewal of mesh keys"):
        restored(cast, backup, tmp_path / "restored")
    assert cast.keys(cast.car, ADVERTISE) == old


def test_what_is_over_is_forgotten(cast: Cast) -> None:
    cast.publisher(cast.car, cast.keys(cast.car, ADVERTISE)[cast.epoch])
    for person in (cast.reader, cast.other):
        cast.keys(person)
        cast.world.withdraw(cast.owner, cast.token, person, READ)
        cast.to_epoch(cast.epoch + 1)
    admitted(cast.car, 1)
    keys = cast.world.authority.mesh._secret(cast.token, cast.epoch + 30)
    cast.to_epoch(cast.epoch + 30)
    store = cast.world.authority.core.store
    counts = [store.scalar(f"SELECT count(*) FROM mesh_{name}") for name in ("holders", "nodes", "renewals")]
    assert counts == [0, 0, 1]
    assert cast.world.authority.mesh._secret(cast.token, cast.epoch) == keys


# --- updates ---


def opened(cast: Cast, sealed: bytes, person: Person) -> MeshUpdate:
    return MeshUpdate.open(sealed, person.holder.sealing_key, person.certificate, cast.key)


def given(cast: Cast, person: Person) -> MeshAnswer:
    """What an update brings that is made now."""
    return opened(cast, cast.world.authority.mesh.update(person.id, cast.token), person).given


def answer_with(cast: Cast, count: int, secret: bytes = bytes(32)) -> bytes:
    word = cast.world.authority.mesh.authority.encode()
    leaves = ((bytes(32), bytes(64)),) * count
    return MeshAnswer(word, cast.world.now_ms, cast.epoch, (secret,) * count, leaves, 0, b"", (0,) * count).encode()


def test_an_update_brings_keys_to_one_member_and_tells_nobody_else_anything(cast: Cast) -> None:
    cast.keys(cast.reader, epochs=1)
    cast.keys(cast.other, epochs=1)
    update = cast.world.authority.mesh.update(cast.reader.id, cast.token)
    assert len(update) == hpke.SEAL_BYTES + UPDATE_BYTES
    found = opened(cast, update, cast.reader)
    assert (found.token, found.given.first_epoch, len(found.given.secrets)) == (cast.token, cast.epoch, EPOCHS_MAX)
    assert MeshKey(found.given.secrets[0], cast.epoch) == cast.keys(cast.car, ADVERTISE)[cast.epoch]
    for wrong in (update[:-1], update + b"\x00", bytes(len(update)), update[:-1] + bytes([update[-1] ^ 1])):
        with pytest.raises(CannotOpen):
            opened(cast, wrong, cast.reader)
    with pytest.raises(CannotOpen):
        opened(cast, update, cast.other)


def test_an_update_is_as_long_whatever_is_in_it(cast: Cast) -> None:
    signing = cast.world.authority.mesh.signing
    few, many = (MeshUpdate(cast.reader.id, cast.token, answer_with(cast, count)) for count in (0, EPOCHS_MAX))
    assert len(few.seal(cast.reader.certificate, signing)) == len(many.seal(cast.reader.certificate, signing))


def test_an_update_is_the_authoritys_and_its_members_own(cast: Cast) -> None:
    """Anybody can seal to a member's public key."""
    planted = MeshUpdate(cast.reader.id, cast.token, answer_with(cast, 1, b"p" * 32))
    forged = planted.seal(cast.reader.certificate, SigningKey.from_seed(bytes(32)))
    with pytest.raises(CannotOpen):
        opened(cast, forged, cast.reader)
    with without("the signature on a mesh update"):
        assert opened(cast, forged, cast.reader) == planted
    resealed = replace(planted, principal=cast.other.id).seal(
        cast.reader.certificate, cast.world.authority.mesh.signing
    )
    with pytest.raises(CannotOpen):  # another member sends its own on
        opened(cast, resealed, cast.reader)


def test_no_update_goes_to_who_did_not_ask_or_was_revoked(cast: Cast) -> None:
    mesh = cast.world.authority.mesh
    assert reason(lambda: mesh.update(cast.reader.id, cast.token)) == "unknown-topic"
    cast.keys(cast.reader)
    revoke_reader(cast)
    assert reason(lambda: mesh.update(cast.reader.id, cast.token)) == "unknown-topic"


def test_an_owner_gets_the_updates_of_its_topics_members_among_others_for_nobody(cast: Cast) -> None:
    cast.keys(cast.car, ADVERTISE)
    cast.keys(cast.reader)
    updates = cast.owner.client.mesh_updates(cast.token)
    assert len(updates) == UPDATES_AT_ONCE
    assert {len(one) for one in updates} == {hpke.SEAL_BYTES + UPDATE_BYTES}

    def own(person: Person) -> int:
        count = 0
        for one in updates:
            with suppress(CannotOpen):
                count += opened(cast, one, person).token == cast.token
        return count

    assert [own(person) for person in (cast.owner, cast.car, cast.reader, cast.other)] == [0, 1, 1, 0]
    with without("updates for nobody"):  # their number is that of members
        assert len(cast.owner.client.mesh_updates(cast.token)) == 2


def test_updates_come_by_the_page_and_pages_are_as_long_whatever_is_on_them(cast: Cast) -> None:
    mesh, store = cast.world.authority.mesh, cast.world.authority.core.store
    for person in (cast.car, cast.reader, cast.other):
        cast.keys(person, ADVERTISE if person is cast.car else SUBSCRIBE)
    with store.transaction():  # many more, of whom nobody knows any more
        for number in range(20):
            mesh._note(bytes([255, number]) * 8, cast.token, SUBSCRIBE, cast.epoch + 5)
    assert len(cast.owner.client.mesh_updates(cast.token)) == 2 * UPDATES_AT_ONCE
    lengths = set()
    for after in (bytes(16), b"\xff" * 16):
        sealed = MeshUpdatesRequest(cast.token, after).seal(cast.world.authority_certificate, cast.owner.id)
        assert len(sealed) == SEALED_UPDATES_BYTES
        lengths.add(len(mesh.updates(Caller(cast.owner.id, bytes(16)), sealed)))
    assert len(lengths) == 1


def test_nobody_but_the_owner_gets_the_updates_of_a_topic(cast: Cast) -> None:
    cast.keys(cast.reader)
    assert reason(lambda: cast.reader.client.mesh_updates(cast.token)) == "unknown-topic"
    sealed = MeshUpdatesRequest(cast.token, bytes(16)).seal(cast.world.authority_certificate, cast.owner.id)
    with pytest.raises(CannotOpen):  # the owner's, sent on
        cast.world.authority.mesh.updates(Caller(cast.reader.id, bytes(16)), sealed)


def test_an_update_prolongs_the_certificate_of_a_member_s_node(cast: Cast) -> None:
    cast.keys(cast.reader)
    assert given(cast, cast.reader).member == b""
    admitted(cast.reader, 1)
    cast.to_epoch(cast.epoch + 1)
    found = given(cast, cast.reader)
    assert found.until_ms == (cast.epoch + 2) * DAY_S * 1000
    check_member(ExchangeKey(b"\x01" * 32).public, found.until_ms, found.member, cast.key)


def test_updates_do_not_hold_a_place_for_a_node_that_was_replaced(cast: Cast) -> None:
    """A principal with new keys could never have another node, as long as updates go on."""
    cast.keys(cast.reader)
    admitted(cast.reader, 1)
    assert reason(lambda: admitted(cast.reader, 2)) == "another-node"
    assert given(cast, cast.reader).member == b""
    cast.to_epoch(cast.epoch + 2)
    admitted(cast.reader, 2)
    assert given(cast, cast.reader).member
    with without("the end of a node that was replaced"):
        for _ in range(4):
            assert reason(lambda: admitted(cast.reader, 3)) == "another-node"
            cast.world.authority.mesh.update(cast.reader.id, cast.token)
            cast.to_epoch(cast.epoch + 1)


def test_an_update_is_what_its_member_would_be_answered(cast: Cast) -> None:
    """A publisher's leaves come with it, the topic's guise, and its crowd."""
    set_terms(cast, cast.owner, 2, 20)
    request = MeshRequest(cast.token, ADVERTISE, EPOCHS_MAX, ExchangeKey(b"\x01" * 32).public)
    answer, _ = cast.car.client.mesh(request)
    assert (len(answer.leaves), answer.guises, answer.thin) == (EPOCHS_MAX, (2,) * EPOCHS_MAX, 1)
    assert given(cast, cast.car) == answer
    cast.keys(cast.reader)
    assert given(cast, cast.reader).leaves == ()


def test_keys_that_an_update_brought_are_renewed_as_well(cast: Cast) -> None:
    cast.keys(cast.reader, epochs=1)
    held = given(cast, cast.reader)
    revoke_reader(cast)
    assert cast.keys(cast.car, ADVERTISE)[cast.epoch + 1].secret != held.secrets[1]


# --- terms ---


def told(cast: Cast, person: Person, operation: int = SUBSCRIBE) -> MeshAnswer:
    return cast.world.again(person).client.mesh(MeshRequest(cast.token, operation, 4))[0]


def set_terms(cast: Cast, person: Person, guise: int, k_min: int) -> None:
    cast.world.again(person).client.mesh(MeshRequest(cast.token, terms=(guise, k_min)))


def test_members_are_told_whether_fewer_hold_keys_than_the_owner_wants(cast: Cast) -> None:
    assert (told(cast, cast.reader).k_min, told(cast, cast.reader).thin) == (0, 0)
    set_terms(cast, cast.owner, 0, 3)
    assert (told(cast, cast.car, ADVERTISE).k_min, told(cast, cast.car, ADVERTISE).thin) == (3, 1)
    assert told(cast, cast.other).thin == 0  # the third
    assert told(cast, cast.reader).thin == 0
    cast.to_epoch(cast.epoch + EPOCHS_MAX)
    assert told(cast, cast.reader).thin == 1  # what the others held is over


def test_another_guise_counts_for_all_from_an_epoch_for_which_nobody_looked_yet(cast: Cast) -> None:
    set_terms(cast, cast.owner, 2, 0)
    assert told(cast, cast.reader).guises == (2, 2, 2, 2)  # nobody held keys
    set_terms(cast, cast.owner, 1, 0)
    assert told(cast, cast.reader).guises == told(cast, cast.other).guises == (2, 1, 1, 1)
    cast.to_epoch(cast.epoch + 1)
    cast.world.authority.mesh.tick()
    assert told(cast, cast.reader).guises == (1, 1, 1, 1)


def test_terms_are_the_owners(cast: Cast) -> None:
    for person in (cast.reader, cast.car):
        assert reason(partial(set_terms, cast, person, 0, 1)) == "unknown-topic"
    for wrong in ((4, 1), (1,)):
        assert reason(partial(cast.owner.client.mesh, MeshRequest(cast.token, terms=wrong))) == "malformed"
    both = MeshRequest(cast.token, SUBSCRIBE, 1, terms=(0, 1))
    assert reason(lambda: cast.owner.client.mesh(both)) == "malformed"
    assert told(cast, cast.reader).k_min == 0


def test_without_that_a_reader_takes_the_warning_away(cast: Cast) -> None:
    set_terms(cast, cast.owner, 0, 9)
    with without("the owner's word on a mesh's terms"):
        set_terms(cast, cast.reader, 0, 0)
    assert told(cast, cast.other).thin == 0
