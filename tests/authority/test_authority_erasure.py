"""Erasure and backups: a destroyed key is gone, those who hold it are named, and no old backup brings it back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyrage
import pytest
from authority_world import READ, WRITE, Person, World, epoch_value

from tallystick.authority.authority import Authority
from tallystick.authority.backup import lost_epochs, restore
from tallystick.authority.client import topic_entries
from tallystick.authority.grant import Grant
from tallystick.crypto import hpke
from tallystick.errors import CannotOpen, Misuse, Refused, Unavailable
from tallystick.ledger.contracts import epochs as contract
from tallystick.ledger.contracts.permits import PERMITS
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.parcel.locks import ErasureLock
from tallystick.trust.permit import Operation, Permit

AGE = pyrage.x25519.Identity.generate()
RECIPIENT, IDENTITY = str(AGE.to_public()), str(AGE)


class Scene:
    """An erasable topic with its owner, a publisher P and a subscriber S."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.owner = world.tenant()
        self.p, self.s = world.member("P"), world.member("S")
        self.token = world.topic(self.owner, flags=ERASABLE)
        world.grant(self.owner, self.token, self.p, WRITE)
        world.grant(self.owner, self.token, self.s, READ)
        self.advertised = self.p.client.permit(Operation.ADVERTISE, self.token)
        self.subscribed = self.s.client.permit(Operation.SUBSCRIBE, self.token)

    def update(self, person: Person, grant: Grant, seen: int = 0) -> Grant:
        news = self.world.again(person).client.keys(Permit.decode(grant.permit).identifier, seen)
        assert news is not None
        return news


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_publisher_gets_public_halves_of_its_own_periods_and_a_subscriber_private_ones(scene: Scene) -> None:
    for_p = {one.period: one for one in scene.advertised.erasure_keys}
    for_s = {one.period: one for one in scene.subscribed.erasure_keys}
    assert for_p.keys() == for_s.keys()
    assert {one.publisher for one in for_p.values()} == {scene.p.id}
    period = min(for_p)
    secret = bytes(range(32))
    place = (scene.world.instance, bytes(16), scene.token, scene.p.id, period)
    lock = ErasureLock.seal(secret, *place, hpke.PublicKey.decode(for_p[period].key))
    private = hpke.PrivateKey.decode(for_s[period].key)
    assert lock.open({(scene.token, scene.p.id, period): private}) == secret


def test_an_erased_key_is_nowhere_in_the_store_and_its_holders_are_named(scene: Scene) -> None:
    world, period = scene.world, scene.advertised.erasure_keys[0].period
    seed = scene.subscribed.erasure_keys[0].key
    store = world.authority.core.store
    wrapped = store.scalar("SELECT secret FROM erasure_keys WHERE period = ?", (period,))
    assert wrapped in files(world.home)
    backup = world.authority.back_up([RECIPIENT])
    erased = scene.owner.client.erase(scene.token, scene.p.id, [period])
    assert erased.periods == ((scene.p.id, period),)
    assert erased.holders == (scene.s.id,)
    assert erased.backups == (backup.identifier,)
    assert store.rows("SELECT id, recipients FROM backups") == [(backup.identifier, RECIPIENT)]
    world.authority.close()
    left = files(world.home)
    assert wrapped not in left
    assert wrapped[32:] not in left
    assert seed not in left
    world.authority = world.open()
    on_ledger = b"erasure/" + scene.token + scene.p.id + period.to_bytes(4, "big")
    assert world.ledger.query(lambda state: state.get(on_ledger)) is not None


def test_readers_hear_of_it_and_the_publisher_goes_on_with_a_fresh_period(scene: Scene) -> None:
    period = scene.advertised.erasure_keys[0].period
    scene.owner.client.erase(scene.token, scene.p.id, [period])
    told = scene.update(scene.p, scene.advertised, scene.advertised.version)
    assert told.erased == ((scene.p.id, period),)
    current = [one for one in told.erasure_keys if one.not_before_ms <= scene.world.now_ms < one.not_after_ms]
    assert len(current) == 1
    assert current[0].period != period
    assert current[0].not_after_ms == scene.advertised.erasure_keys[1].not_before_ms
    fresh = scene.update(scene.s, scene.subscribed)
    assert period not in {one.period for one in fresh.erasure_keys}
    assert current[0].period in {one.period for one in fresh.erasure_keys}


def test_erasing_without_a_period_takes_them_all_and_again_is_harmless(scene: Scene) -> None:
    erased = scene.owner.client.erase(scene.token, scene.p.id, [])
    assert {period for _, period in erased.periods} == {one.period for one in scene.advertised.erasure_keys}
    assert scene.owner.client.erase(scene.token, scene.p.id, []) == erased


def test_only_the_owner_erases_and_only_on_an_erasable_topic(scene: Scene) -> None:
    with pytest.raises(Refused) as refusal:
        scene.s.client.erase(scene.token, scene.p.id, [])
    assert refusal.value.reason == "unknown-topic"
    plain = scene.world.topic(scene.owner, "plain")
    with pytest.raises(Refused) as refusal:
        scene.owner.client.erase(plain, scene.p.id, [])
    assert refusal.value.reason == "not-erasable"
    with pytest.raises(Refused) as refusal:
        scene.owner.client.erase(scene.token, scene.p.id, [7])
    assert refusal.value.reason == "unknown-period"


# --- backups ---


def restored(scene: Scene, data: bytes, tmp_path: Path) -> Authority:
    """The world with its authority replaced by the backup's."""
    world = scene.world
    world.authority.close()
    restore(data, IDENTITY, tmp_path / "restored")
    world.authority = world.open(tmp_path / "restored")
    return world.authority


def test_a_backup_needs_identity_and_passphrase_and_holds_neither(scene: Scene, tmp_path: Path) -> None:
    world = scene.world
    backup = world.authority.back_up([RECIPIENT])
    with pytest.raises(CannotOpen):
        restore(backup.data, str(pyrage.x25519.Identity.generate()), tmp_path / "one")
    with pytest.raises(Misuse):
        restore(backup.data, "no identity", tmp_path / "one")
    with pytest.raises(Misuse):
        world.authority.back_up([])
    with pytest.raises(Misuse):
        world.authority.back_up(["age1nonsense"])
    restore(backup.data, IDENTITY, tmp_path / "two")
    with pytest.raises(Misuse):
        restore(backup.data, IDENTITY, tmp_path / "two")
    with pytest.raises(CannotOpen):
        world.open(tmp_path / "two", passphrase=b"another")
    content = pyrage.decrypt(backup.data, [AGE])
    assert b"correct horse" not in content
    assert scene.subscribed.private_keys[0][1] not in content


def test_a_restored_authority_serves_nothing_before_it_has_followed_a_ledger_of_today(
    scene: Scene, tmp_path: Path
) -> None:
    world = scene.world
    backup = world.authority.back_up([RECIPIENT])
    world.clock.advance(world.settings.head_age_max_s + 1)  # and no block since
    authority = restored(scene, backup.data, tmp_path)
    with pytest.raises(Unavailable, match="restored"):
        authority.check_ready()
    with pytest.raises(Unavailable):
        world.again(scene.s).client.keys(Permit.decode(scene.subscribed.permit).identifier, 0)
    world.ledger.flush(world.now_ms)
    authority.work()
    authority.check_ready()


def test_a_restored_authority_applies_the_ledgers_erasures_first(scene: Scene, tmp_path: Path) -> None:
    world, period = scene.world, scene.advertised.erasure_keys[0].period
    backup = world.authority.back_up([RECIPIENT])
    scene.owner.client.erase(scene.token, scene.p.id, [period])
    restored(scene, backup.data, tmp_path)
    update = scene.update(scene.s, scene.subscribed)
    assert (scene.p.id, period) in update.erased
    assert period not in {one.period for one in update.erasure_keys}


def test_a_restored_authority_reissues_no_epoch_identifier_or_period(scene: Scene, tmp_path: Path) -> None:
    world, token = scene.world, scene.token
    backup = world.authority.back_up([RECIPIENT])
    # What happens after the backup: days of epochs, a new principal with a permit, a revocation, a new topic.
    for _ in range(3):
        world.pass_time(86_400)
    late = world.member("late")
    world.grant(scene.owner, token, late, READ)
    granted = late.client.permit(Operation.SUBSCRIBE, token)
    undone = scene.p.client.permit(Operation.ADVERTISE, token)
    scene.p.client.undo(undone.permit, undone.undo_token)
    doors = world.topic(scene.owner, "doors")
    world.pass_time(1)
    announced = world.ledger.query(lambda state: contract.last_announced(state, token))
    issued = {identifier for (identifier,), _ in world.ledger.scan(PERMITS)}
    before = {epoch: world.ledger.query(partial(epoch_value, token, epoch)) for epoch in range(1, announced + 1)}
    periods = {one.period for one in scene.update(scene.s, scene.subscribed).erasure_keys}

    world.clock.advance(60)
    world.ledger.flush(world.now_ms)
    authority = restored(scene, backup.data, tmp_path)
    authority.check_ready()
    assert [epoch for of, epoch in lost_epochs(authority.core.store) if of == token] == [16, 17, 18]
    world.pass_time(world.settings.revoke_s)

    # No epoch has another key than before; those that were lost are ended, and fresh numbers follow.
    for epoch, value in before.items():
        now = world.ledger.query(partial(epoch_value, token, epoch))
        assert now[:3] == value[:3]
    assert world.ledger.query(lambda state: contract.last_announced(state, token)) > announced
    assert world.ledger.query(lambda state: contract.current(state, token, world.now_ms)) is not None

    # The permit issued since is known, the one undone since is not live, and new identifiers are new.
    late = world.again(late)
    assert scene.update(late, granted).private_keys
    with pytest.raises(Refused):
        world.again(scene.p).client.keys(Permit.decode(undone.permit).identifier, 0)
    fresh = late.client.permit(Operation.SUBSCRIBE, token)
    assert Permit.decode(fresh.permit).identifier not in issued

    # Periods drawn after the restore have numbers that none had before.
    with world.authority.core.store.transaction():
        world.authority.core.store.write("UPDATE erasure_keys SET ends_ms = 0")
    again = scene.update(scene.p, scene.advertised)
    drawn = {one.period for one in again.erasure_keys if one.not_after_ms > world.now_ms}
    assert drawn
    assert not drawn & periods

    # The topic made since lives on under fresh keys once its owner hands its schema in again.
    owner = world.again(scene.owner)
    world.grant(scene.owner, doors, late, READ)
    with pytest.raises(Refused) as refusal:
        late.client.permit(Operation.SUBSCRIBE, doors)
    assert refusal.value.reason == "schema-missing"
    owner.client.create_topic("doors", scene.subscribed.schemas[0])
    assert late.client.permit(Operation.SUBSCRIBE, "doors").private_keys


def test_a_permit_issued_after_the_backup_still_reads_from_the_beginning(scene: Scene, tmp_path: Path) -> None:
    """The ledger says that it was issued, and not from which epoch on: its holder loses no key by the restoring."""
    world = scene.world
    world.pass_time(2 * 86_400)
    backup = world.authority.back_up([RECIPIENT])
    granted = scene.s.client.permit(Operation.SUBSCRIBE, scene.token, 1)
    before = dict(granted.private_keys)
    assert min(before) == 1
    restored(scene, backup.data, tmp_path)
    assert before.items() <= dict(scene.update(scene.s, granted).private_keys).items()


def test_what_a_backup_holds_of_a_topic_made_since_is_used_again(scene: Scene, tmp_path: Path) -> None:
    """The draft was in the backup: name, schema and the first key pair are not lost. A new tenant's name is."""
    world = scene.world
    draft = scene.owner.client.create_topic("doors", scene.subscribed.schemas[0])
    backup = world.authority.back_up([RECIPIENT])
    world.act(scene.owner, *topic_entries(draft, scene.owner.holder))
    world.grant(scene.owner, draft.token, scene.s, READ)
    world.tenant("rival")
    authority = restored(scene, backup.data, tmp_path)
    granted = world.again(scene.s).client.permit(Operation.SUBSCRIBE, "doors")
    assert granted.epochs[0].public == draft.public
    assert (draft.token, 1) not in lost_epochs(authority.core.store)
    assert world.enrol(authority.enrolment.invite_to("rival"), "car").certificate.tenant
    assert sorted(authority.enrolment.tenants()) == ["acme", "rival"]
