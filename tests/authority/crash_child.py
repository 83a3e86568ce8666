"""An authority with its ledger in one process, doing the same few things over and over until it is killed.

    python crash_child.py FOLDER

Each line on standard output is a fact that somebody was told: `permit <id>`, `undone <id>`, `erased <period>`,
`epoch <number> <hash of its private half>`. What was told must hold after any number of kills.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from authority_world import READ, WRITE, Person, World

from tallystick.authority.client import Holder
from tallystick.crypto import hpke
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Refused
from tallystick.ledger.contracts.topics import ERASABLE
from tallystick.runtime.sources import SystemEntropy
from tallystick.trust.certificate import Certificate, subject_id
from tallystick.trust.permit import Operation, Permit

NAMES = ("owner", "P", "S")


def keys(name: str) -> tuple[SigningKey, hpke.PrivateKey]:
    digest = hashlib.sha256(name.encode()).digest()
    return SigningKey.from_seed(digest), hpke.PrivateKey.generate(digest)


def person(world: World, name: str) -> Person | None:
    """The principal of that name, if it is enrolled."""
    key, sealing = keys(name)
    principal = subject_id(world.instance, key.public.raw)
    row = world.authority.core.store.row("SELECT certificate FROM subjects WHERE id = ?", (principal,))
    if row is None:
        return None
    certificate = Certificate.decode(row[0])
    return world.person(Holder(world.instance, principal, key, sealing, certificate.tenant), certificate)


def scene(world: World) -> tuple[Person, Person, Person, bytes]:
    """Owner, publisher, subscriber and topic, made as far as an earlier run has not."""
    people = []
    for name in NAMES:
        found = person(world, name)
        if found is None:
            tenants = world.authority.statistics().tenants
            invite = (
                world.authority.enrolment.invite_to("acme", owns=name == "owner")
                if tenants
                else world.authority.enrolment.create_tenant("acme")
            )
            found = world.enrol(invite, name, *keys(name))
        people.append(found)
    owner, p, s = people
    token = world.authority.core.keys.master.token(owner.certificate.tenant, "brakes")
    if world.ledger.query(lambda state: state.get(b"topic/" + token)) is None:
        world.topic(owner, "brakes", flags=ERASABLE)
    world.authority.work()
    for who, rights in ((p, WRITE), (s, READ)):
        try:
            world.grant(owner, token, who, rights)
        except Refused as refusal:
            if refusal.reason != "rule-exists":
                raise
    return owner, p, s, token


def tell(*words: object) -> None:
    print(*words, flush=True)


def main(folder: Path) -> None:
    world = World(folder, entropy=SystemEntropy())
    owner, p, s, token = scene(world)
    while True:
        world.pass_time(world.settings.revoke_s)
        granted = s.client.permit(Operation.SUBSCRIBE, token)
        tell("permit", Permit.decode(granted.permit).identifier.hex())
        for number, seed in granted.private_keys:
            tell("epoch", number, hashlib.sha256(seed).hexdigest())
        advertised = p.client.permit(Operation.ADVERTISE, token)
        tell("permit", Permit.decode(advertised.permit).identifier.hex())
        period = advertised.erasure_keys[0].period
        owner.client.erase(token, p.id, [period])
        tell("erased", period)
        p.client.undo(advertised.permit, advertised.undo_token)
        tell("undone", Permit.decode(advertised.permit).identifier.hex())
        owner.client.rotate(token)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
