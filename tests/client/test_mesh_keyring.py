"""A member's keyring: asked for, kept, looked up again in time, and what it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest
from actors import Topic
from authority_world import READ, WRITE, Person, World
from stack import Stack
from without import without

from tallystick.authority.asks import Ask
from tallystick.authority.client import AuthorityClient
from tallystick.authority.mesh_messages import EPOCHS_MAX, MeshAnswer, MeshUpdate
from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.client.mesh_keyring import MeshKeyring
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import CannotOpen, Forged, Refused, Unavailable
from tallystick.identity.folder import Identity, Keys
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import certify_member, check_member
from tallystick.trust.permit import Operation

DAY_S = 86_400
SUBSCRIBE, ADVERTISE = Operation.SUBSCRIBE, Operation.ADVERTISE


class Way:
    """To the authority, counting; it may be cut."""

    def __init__(self, world: World) -> None:
        self.world, self.is_cut, self.asked = world, False, 0

    def answer(self, ask: Ask[Any], caller: Any) -> Any:
        if self.is_cut:
            raise Unavailable("no way to the authority")
        self.asked += 1
        return self.world.authority.answer(ask, caller)


class Member:
    """A principal with a folder."""

    def __init__(self, world: World, person: Person, keys: Keys, home: Path) -> None:
        self.world, self.way, self.person = world, Way(world), person
        place = (home, home.name, person.certificate, world.authority_certificate, (), (), "")
        self.identity = Identity(*place, world.trust, keys)

    def keyring(self) -> MeshKeyring:
        """As a process has it that starts now."""
        authority = AuthorityClient(self.way, self.world.authority_certificate, self.person.holder, self.world.entropy)
        return MeshKeyring(self.identity, authority, self.world.clock, self.world.entropy)


class Made(NamedTuple):
    """A topic, its publisher and two readers, at noon of a mesh epoch, in a folder from which each test begins."""

    folder: Path
    token: bytes
    owner: Person
    members: dict[str, tuple[Person, Keys]]

    @classmethod
    def at(cls, folder: Path) -> Made:
        world, members = World(folder), {}
        world.pass_time(DAY_S * 1.5 - world.clock.now() % DAY_S)
        owner = world.tenant()
        token = world.topic(owner)
        for name, rights in (("car", WRITE), ("reader", READ), ("other", READ)):
            keys = Keys(world.entropy.bytes(32), hpke.PrivateKey.generate(world.entropy.bytes(32)).encode())
            signing, sealing = SigningKey.from_seed(keys.signing_seed), hpke.PrivateKey.decode(keys.sealing_seed)
            person = world.enrol(world.authority.enrolment.invite_to("acme"), name, signing, sealing)
            world.grant(owner, token, person, rights)
            members[name] = person, keys
        world.authority.close()
        world.ledger.close()
        return cls(folder, token, owner, members)


class Cast:
    def __init__(self, world: World, made: Made, homes: Path) -> None:
        self.world, self.token, self.owner = world, made.token, world.again(made.owner)
        self.car, self.reader, self.other = (
            Member(world, world.again(person), keys, homes / name) for name, (person, keys) in made.members.items()
        )

    @property
    def epoch(self) -> int:
        return self.world.authority.mesh.epoch

    def withdraw(self, member: Member, rights: int = READ) -> None:
        self.world.withdraw(self.owner, self.token, member.person, rights)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made.at(tmp_path_factory.mktemp("mesh"))


@pytest.fixture
def cast(made: Made, tmp_path: Path) -> Iterator[Cast]:
    copytree(made.folder, tmp_path / "world")
    world = World(tmp_path / "world", entropy=SeededEntropy(2))
    world.pass_time(1.0)  # transactions are numbered by the clock
    yield Cast(world, made, tmp_path / "homes")
    world.authority.close()
    world.ledger.close()


def test_what_was_obtained_serves_on_where_nobody_answers(cast: Cast) -> None:
    """Publisher and subscriber meet a week later, without a word from the authority."""
    cast.car.keyring().obtain(cast.token, ADVERTISE)
    cast.reader.keyring().obtain(cast.token, SUBSCRIBE)
    assert cast.car.way.asked == cast.reader.way.asked == 1  # both ask alike
    for member in (cast.car, cast.reader):
        member.way.is_cut = True
    cast.world.pass_time(7 * DAY_S)
    publishing, reading = cast.car.keyring(), cast.reader.keyring()
    key = publishing.obtain(cast.token, ADVERTISE).key(cast.epoch)
    by = publishing.publisher(cast.token, cast.epoch)
    envelope = key.seal(Pushed(b"parcel"), cast.world.now_ms, by, cast.world.entropy).encode()
    judged = MeshGuard(VerifyKey(reading.authority.key)).judge(envelope, cast.world.now_ms)
    assert reading.obtain(cast.token, SUBSCRIBE).key(cast.epoch).open(judged) == Pushed(b"parcel")
    cast.world.pass_time(9 * DAY_S)
    with pytest.raises(Unavailable, match="no mesh key"):
        reading.obtain(cast.token, SUBSCRIBE)


def test_a_node_is_a_member_with_its_keys_and_alone(cast: Cast) -> None:
    keyring = cast.reader.keyring()
    assert keyring.membership is None
    keyring.obtain(cast.token, SUBSCRIBE)
    place = keyring.membership
    assert place is not None
    check_member(keyring.lasting.public, place.until_ms, place.certificate, VerifyKey(keyring.authority.key))
    assert cast.other.keyring().join().until_ms == place.until_ms
    cast.world.pass_time(2 * DAY_S)
    assert keyring.membership is None


def test_it_is_asked_again_in_the_notice_before_each_epoch_and_not_otherwise(cast: Cast) -> None:
    keyring = cast.car.keyring()
    held = keyring.obtain(cast.token, ADVERTISE)
    asked = cast.car.way.asked
    for _ in range(3):
        begins_s = (cast.epoch + 1) * DAY_S
        due_s = keyring.due_ms(held) / 1000
        assert begins_s - 3_600 <= due_s < begins_s - 900
        cast.world.pass_time(due_s - cast.world.clock.now() - 1)
        assert keyring.keep_up() == []
        assert cast.car.way.asked == asked
        cast.world.pass_time(2)
        assert keyring.keep_up() == [cast.token]
        assert cast.car.way.asked == asked + 1  # the node's certificate came with it
        (held,), asked = keyring.topics, cast.car.way.asked
        assert keyring.keep_up() == []
        cast.world.pass_time(DAY_S / 2)
        assert keyring.membership is not None
        assert keyring.publisher(cast.token, cast.epoch)
    assert held.first_epoch + EPOCHS_MAX - 1 > cast.epoch + 13


def test_moments_of_members_differ(cast: Cast) -> None:
    rings = [cast.reader.keyring(), cast.other.keyring()]
    due = [ring.due_ms(ring.obtain(cast.token, SUBSCRIBE)) for ring in rings]
    assert due[0] != due[1]


def test_members_that_look_in_time_part_from_the_revoked_together(cast: Cast) -> None:
    rings = [(cast.car.keyring(), ADVERTISE), (cast.other.keyring(), SUBSCRIBE), (cast.reader.keyring(), SUBSCRIBE)]
    for ring, operation in rings:
        ring.obtain(cast.token, operation)
    cast.withdraw(cast.reader)
    cast.world.pass_time((cast.epoch + 1) * DAY_S - cast.world.clock.now() - 600)
    assert [ring.keep_up() for ring, _ in rings] == [[cast.token], [cast.token], []]
    cast.world.pass_time(1_200)
    publishing, reading = (ring for ring, _ in rings[:2])
    key = publishing.topics[0].key(cast.epoch)
    assert key == reading.topics[0].key(cast.epoch)
    assert publishing.publisher(cast.token, cast.epoch).pseudonym == key.pseudonym
    assert rings[2][0].topics == ()  # forgotten, with the right
    with pytest.raises(Refused):
        rings[2][0].obtain(cast.token, SUBSCRIBE)


def test_who_may_only_read_any_more_keeps_reading(cast: Cast) -> None:
    cast.world.grant(cast.owner, cast.token, cast.car.person, READ)
    keyring = cast.car.keyring()
    for operation in (SUBSCRIBE, ADVERTISE):
        keyring.obtain(cast.token, operation)
    assert keyring.topics[0].operations == 3
    cast.withdraw(cast.car, WRITE)
    cast.world.pass_time(DAY_S)
    keyring.keep_up()
    (held,) = keyring.topics
    assert (held.operations, held.leaves) == (int(SUBSCRIBE), ())
    assert held.key(cast.epoch) == cast.other.keyring().obtain(cast.token, SUBSCRIBE).key(cast.epoch)
    with pytest.raises(Unavailable):
        keyring.publisher(cast.token, cast.epoch)


def test_what_is_kept_opens_for_its_identity_alone(cast: Cast) -> None:
    keyring = cast.reader.keyring()
    held = keyring.obtain(cast.token, SUBSCRIBE)
    kept = (cast.reader.identity.home / "mesh" / "keys").read_bytes()
    assert not any(secret in kept for secret in (*held.secrets, cast.token))
    theirs = cast.other.identity.home / "mesh"
    theirs.mkdir(parents=True)
    (theirs / "keys").write_bytes(kept)
    assert cast.other.keyring().topics == ()


def test_new_keys_of_an_identity_make_do_until_the_old_ones_are_over(cast: Cast) -> None:
    """It publishes on; the certificate of its node is left aside, and the epochs behind the next bring a new one."""
    cast.car.keyring().obtain(cast.token, ADVERTISE)
    seed, sealing = b"n" * 32, hpke.PrivateKey.generate(b"n" * 32)
    key = SigningKey.from_seed(seed)
    certificate = cast.car.person.client.rekey(key, sealing)
    old = cast.car.identity
    keys = Keys(seed, sealing.encode(), old.spool_key, (old.signing_key.public.raw,))
    cast.car.identity = replace(old, certificate=certificate, keys=keys)
    cast.car.person = cast.world.person(
        replace(cast.car.person.holder, signing_key=key, sealing_key=sealing), certificate
    )
    keyring = cast.car.keyring()
    before = keyring.publisher(cast.token, cast.epoch)
    keyring.obtain(cast.token, ADVERTISE, again=True)
    assert keyring.membership is None
    assert keyring.publisher(cast.token, cast.epoch) == before
    cast.world.pass_time(2 * DAY_S)
    keyring.keep_up()
    assert keyring.membership is not None


def test_another_key_of_the_mesh_is_not_taken(cast: Cast) -> None:
    """Certificates under a key of one's own would tell one member's envelopes from all others'."""
    keyring = cast.car.keyring()
    keyring.obtain(cast.token, ADVERTISE)
    mesh = cast.world.authority.mesh
    mesh.signing = SigningKey.from_seed(b"m" * 32)
    del mesh.authority
    with pytest.raises(Forged, match="another key than before"):
        keyring.obtain(cast.token, ADVERTISE, again=True)
    assert keyring.publisher(cast.token, cast.epoch)


def test_an_update_over_the_mesh_takes_the_place_of_a_request(cast: Cast) -> None:
    publishing, reading = cast.car.keyring(), cast.reader.keyring()
    publishing.obtain(cast.token, ADVERTISE)
    reading.obtain(cast.token, SUBSCRIBE)
    cast.other.keyring().obtain(cast.token, SUBSCRIBE)
    cast.withdraw(cast.other)
    cast.world.pass_time(3_600)
    mesh, asked = cast.world.authority.mesh, cast.reader.way.asked
    updates = [mesh.update(member.person.id, cast.token) for member in (cast.car, cast.reader)]
    for update in updates[::-1]:  # whoever they are for, all members see them all
        if update is updates[1]:
            assert reading.receive(update) == cast.token
        else:
            with pytest.raises(CannotOpen):
                reading.receive(update)
    assert publishing.receive(updates[0]) == cast.token
    assert cast.reader.way.asked == asked
    assert publishing.topics[0].keys == reading.topics[0].keys
    for epoch in (cast.epoch, cast.epoch + EPOCHS_MAX - 1):  # the later pseudonym is another now
        assert publishing.publisher(cast.token, epoch).pseudonym == reading.topics[0].key(epoch).pseudonym


def test_a_reader_that_publishes_too_keeps_its_leave_when_it_asks_as_a_reader(cast: Cast) -> None:
    cast.world.grant(cast.owner, cast.token, cast.car.person, READ)
    keyring = cast.car.keyring()
    keyring.obtain(cast.token, ADVERTISE)
    keyring.obtain(cast.token, SUBSCRIBE)
    assert len(keyring.topics[0].leaves) == EPOCHS_MAX


def test_a_member_that_gets_updates_asks_the_authority_for_nothing_more(cast: Cast) -> None:
    """For more than sixteen days, while others are revoked: keys, leave to publish and the certificates of nodes come
    over the mesh."""
    members = ((cast.car, ADVERTISE), (cast.reader, SUBSCRIBE))
    rings = [member.keyring() for member, _ in members]
    for ring, (_, operation) in zip(rings, members, strict=True):
        ring.awaits_updates = True
        ring.obtain(cast.token, operation)
    cast.world.pass_time(DAY_S / 2 - 3_600 + 10)  # the notice of the next epoch begins
    asked = [member.way.asked for member, _ in members]
    for day in range(17):
        if day == 3:
            cast.other.keyring().obtain(cast.token, SUBSCRIBE)
            cast.withdraw(cast.other)
        for ring, (member, _) in zip(rings, members, strict=True):
            ring.keep_up()
            assert ring.receive(cast.world.authority.mesh.update(member.person.id, cast.token)) == cast.token
        cast.world.pass_time(DAY_S)
    assert [member.way.asked for member, _ in members] == asked
    publishing, reading = rings
    assert all(ring.membership for ring in rings)
    key, by = publishing.topics[0].key(cast.epoch), publishing.publisher(cast.token, cast.epoch)
    envelope = key.seal(Pushed(b"parcel"), cast.world.now_ms, by, cast.world.entropy).encode()
    judged = MeshGuard(VerifyKey(reading.authority.key)).judge(envelope, cast.world.now_ms)
    assert reading.topics[0].key(cast.epoch).open(judged) == Pushed(b"parcel")


def test_without_updates_who_awaits_them_asks_late_in_the_notice(cast: Cast) -> None:
    reading = cast.reader.keyring()
    held = reading.obtain(cast.token, SUBSCRIBE)
    settled_ms = reading.settles_ms()
    assert settled_ms == (cast.epoch + 1) * DAY_S * 1000 - 3_600_000
    assert settled_ms <= reading.due_ms(held) <= settled_ms + 2_700_000
    reading.awaits_updates = True
    assert settled_ms + 1_800_000 <= reading.due_ms(held) <= settled_ms + 2_700_000
    asked = cast.reader.way.asked
    cast.world.pass_time(DAY_S / 2 - 600)
    reading.keep_up()
    assert cast.reader.way.asked > asked


def test_an_update_with_the_certificate_of_earlier_keys_leaves_our_own_node_as_it_is(cast: Cast) -> None:
    reading, mesh = cast.reader.keyring(), cast.world.authority.mesh
    reading.obtain(cast.token, SUBSCRIBE)
    place = reading.membership
    until_ms = (cast.epoch + 9) * DAY_S * 1000
    strange = certify_member(b"k" * 32, until_ms, mesh.signing)
    secret = mesh._secret(cast.token, cast.epoch)
    told = mesh.authority.encode(), cast.world.now_ms + 1, cast.epoch
    answer = MeshAnswer(*told, (secret,), (), until_ms, strange, (0,))
    update = MeshUpdate(cast.reader.person.id, cast.token, answer.encode())
    reading.receive(update.seal(cast.reader.person.certificate, mesh.signing))
    assert reading.membership == place


def test_an_old_update_sent_again_brings_nothing_back(cast: Cast) -> None:
    reading = cast.reader.keyring()
    reading.obtain(cast.token, SUBSCRIBE)
    cast.other.keyring().obtain(cast.token, SUBSCRIBE)
    cast.world.pass_time(60)
    old = cast.world.authority.mesh.update(cast.reader.person.id, cast.token)
    cast.withdraw(cast.other)
    cast.world.pass_time(60)
    reading.receive(cast.world.authority.mesh.update(cast.reader.person.id, cast.token))
    fresh = reading.topics
    with pytest.raises(Refused, match="nothing new"):
        reading.receive(old)
    assert reading.topics == fresh


def test_a_planted_update_is_not_taken(cast: Cast) -> None:
    reading = cast.reader.keyring()
    reading.obtain(cast.token, SUBSCRIBE)
    told = cast.world.authority.mesh.authority.encode(), cast.world.now_ms + 1, cast.epoch
    answer = MeshAnswer(*told, (b"p" * 32,), (), 0, b"", (0,))
    planted = MeshUpdate(cast.reader.person.id, cast.token, answer.encode())
    sealed = planted.seal(cast.reader.person.certificate, SigningKey.from_seed(bytes(32)))
    with pytest.raises(CannotOpen):
        reading.receive(sealed)
    with without("the signature on a mesh update"):
        reading.receive(sealed)
    assert reading.topics[0].secrets == (b"p" * 32,)


def test_over_http(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        topic = Topic(stack, "acme")
        rings = {
            session: MeshKeyring(session.identity, session.authority, session.clock, session.entropy)
            for session in (topic.car, topic.reader)
        }
        mine = rings[topic.car].obtain(topic.token, ADVERTISE)
        assert mine.keys == rings[topic.reader].obtain(topic.token, SUBSCRIBE).keys
        assert len(mine.leaves) == EPOCHS_MAX
        with pytest.raises(Refused) as refusal:
            rings[topic.reader].obtain(topic.token, ADVERTISE)
        assert refusal.value.reason == "no-right"


def test_the_kit_has_the_guise_of_each_epoch_and_a_thin_crowd_is_told(cast: Cast) -> None:
    mesh = cast.world.authority.mesh
    keyring = cast.reader.keyring()
    keyring.obtain(cast.token, SUBSCRIBE)
    assert keyring.warning(cast.token) == ""
    mesh._terms.put(cast.token, 2, 5, mesh.epoch, mesh.epoch + 1)
    held = keyring.obtain(cast.token, SUBSCRIBE, again=True)
    assert [one.guise for one in keyring.kit().topics[:3]] == [0, 2, 2]
    assert keyring.warning(cast.token) == (
        "anonymity is thin: fewer than 5 principals hold its mesh keys, the authority says"
    )
    assert held.issued_ms == cast.world.now_ms
    cast.world.pass_time(DAY_S)
    mesh._terms.put(cast.token, 2, 0, mesh.epoch, mesh.epoch + 1)
    keyring.receive(mesh.update(cast.reader.identity.principal, cast.token))
    assert {one.guise for one in keyring.kit().topics} == {2}
    assert keyring.warning(cast.token) == ""
