"""EventGuard 4.2 to 4.6 as one story: subscribe, advertise, publish, unsubscribe, unadvertise."""

from __future__ import annotations

import pytest
from authority_world import READ, SCHEMA, WRITE, World

from tallystick.crypto import hpke
from tallystick.errors import Refused
from tallystick.ledger.contracts.permits import Status
from tallystick.parcel.locks import MissingKey, TopicLock
from tallystick.trust.permit import Operation, Permit


def test_subscribe_advertise_publish_unsubscribe_unadvertise(world: World) -> None:
    owner = world.tenant()
    s, p = world.member("S"), world.member("P")
    w = world.topic(owner, "brakes")
    world.grant(owner, w, s, READ)
    world.grant(owner, w, p, WRITE)

    # 4.2: S asks for topic w by name and gets sb(w): key, token, permit, unsubscribe token.
    subscribed = s.client.permit(Operation.SUBSCRIBE, "brakes")
    permit = Permit.decode(subscribed.permit)
    assert subscribed.token == w
    assert (permit.operation, permit.token, permit.principal) == (Operation.SUBSCRIBE, w, s.id)
    assert len(subscribed.undo_token) == 32
    assert [epoch for epoch, _ in subscribed.private_keys] == [1]
    assert subscribed.schemas == (SCHEMA.encode(),)

    # 4.3: P gets ad(w): it may seal for the current epoch and a fortnight of coming ones, and open nothing.
    advertised = p.client.permit(Operation.ADVERTISE, "brakes")
    assert advertised.private_keys == ()
    assert [one.number for one in advertised.epochs] == list(range(1, 2 + world.settings.epochs_ahead))

    # 4.4: P publishes under w; S opens with its key, P itself holds none.
    current = advertised.epochs[0]
    lane = bytes(16)
    public = hpke.PublicKey.decode(current.public)
    lock = TopicLock.seal(b"k" * 32, world.instance, lane, {w: (current.number, public)})
    ring, of_p = (
        {(w, epoch): hpke.PrivateKey.decode(seed) for epoch, seed in granted.private_keys}
        for granted in (subscribed, advertised)
    )
    assert lock.open(ring) == b"k" * 32
    with pytest.raises(MissingKey):
        lock.open(of_p)

    # 4.5: S shows permit and token to the authority and gets usb(w), which the guards check.
    order = s.client.undo(subscribed.permit, subscribed.undo_token)
    assert (order.identifier, order.operation, order.token) == (permit.identifier, Operation.SUBSCRIBE, w)
    assert world.ledger_client.state(b"permit/" + permit.identifier).value is not None
    assert _status(world, permit.identifier) == Status.UNDONE
    with pytest.raises(Refused) as refusal:
        s.client.undo(subscribed.permit, subscribed.undo_token)
    assert refusal.value.reason == "permit-ended"

    # S has left: the next epoch begins revoke_s later and S gets no key of it.
    world.pass_time(world.settings.revoke_s)
    with pytest.raises(Refused) as refusal:
        s.client.keys(permit.identifier, subscribed.version)
    assert refusal.value.reason == "permit-ended"
    news = p.client.keys(Permit.decode(advertised.permit).identifier, advertised.version)
    assert news is not None
    assert news.epochs[0].number == 2
    assert news.epochs[0].not_before_ms == world.now_ms

    # 4.6: the unadvertise request shows the advertise permit and its token.
    order = p.client.undo(advertised.permit, advertised.undo_token)
    assert order.operation is Operation.ADVERTISE
    assert _status(world, Permit.decode(advertised.permit).identifier) == Status.UNDONE


def _status(world: World, identifier: bytes) -> Status:
    value = world.ledger.query(lambda state: state.get(b"permit/" + identifier))
    return Status(value[5])
