"""A tenant that grants attributes to another's principal, more than a key can hold: without bounds the victim gets no
attribute key at all, and opens nothing of its own any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attribute_world import declare, give, key_of
from authority_world import Person
from authority_world import World as AuthorityWorld
from ledger_world import HOME, HOSPITAL, ROLES, Bench, seed
from without import without

pytest.importorskip("pymcl", reason="extra policy")

from tallystick.authority.client import drop_entries
from tallystick.errors import Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts.attributes import ATTRIBUTES
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.settings import SETTINGS

MOST = SETTINGS["foreign_attributes_max"].default
WIDE = range(9)  # attributes of a thousand values each: more than the 8,192 traits of a key
KEY, DRAFT = "the share of others' grants in a key", "the share of others' grants in a draft"


def name(number: int) -> bytes:
    return seed(f"pseudonym {number}")[:16]


# --- on the ledger ---


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.bring_into_force()
    return bench


def test_a_tenant_grants_so_much_to_another_s_principal_and_no_more(bench: Bench) -> None:
    doctor, sensor, monitor = bench.world.doctor, bench.world.sensor.id, bench.world.monitor.id
    bench.play(
        *((doctor, entries.grant_attribute(HOSPITAL, sensor, name(n), seed("c")), None) for n in range(MOST)),
        (doctor, entries.grant_attribute(HOSPITAL, sensor, name(MOST), seed("c")), "too-many-attributes"),
        (doctor, entries.grant_attribute(HOSPITAL, sensor, name(0), seed("another value")), None),
        (doctor, entries.withdraw_attribute(HOSPITAL, sensor, name(0)), None),
        (doctor, entries.grant_attribute(HOSPITAL, sensor, name(MOST), seed("c")), None),
        (doctor, entries.grant_attribute(HOSPITAL, sensor, name(0), seed("c")), "too-many-attributes"),
        (bench.world.authority, entries.set_("foreign_attributes_max", MOST + 1), None),
        (doctor, entries.grant_attribute(HOSPITAL, sensor, name(0), seed("c")), None),
        # To its own it grants what it likes.
        *((doctor, entries.grant_attribute(HOSPITAL, monitor, name(n), seed("c")), None) for n in range(MOST + 2)),
    )


@pytest.mark.parametrize("role", ROLES)
def test_an_attribute_is_dropped_by_its_holder_or_its_tenant_s_owner(bench: Bench, role: str) -> None:
    world = bench.world
    bench.play((world.doctor, entries.grant_attribute(HOSPITAL, world.sensor.id, name(0), seed("c")), None))
    dropping = entries.drop_attribute(HOSPITAL, world.sensor.id, name(0))
    bench.play(world.row(role, "sensor landlord", dropping, "not-holder"))
    if role in ("sensor", "landlord"):
        assert bench.state.get(ATTRIBUTES(HOSPITAL, world.sensor.id, name(0))) is None
        bench.play((world.sensor, dropping, "unknown-attribute"))


@pytest.mark.parametrize("role", ROLES)
def test_attributes_of_a_tenant_are_refused_for_oneself_or_for_a_whole_tenant(bench: Bench, role: str) -> None:
    world, doctor = bench.world, bench.world.doctor
    for_all, for_one = (entries.refuse_attributes(holder, HOSPITAL) for holder in (HOME, world.sensor.id))
    bench.play(
        world.row(role, "landlord", for_all, "not-holder"),
        world.row(role, "sensor", for_one, "not-holder"),
    )
    granting = entries.grant_attribute(HOSPITAL, world.sensor.id, name(0), seed("c"))
    if role not in ("landlord", "sensor"):
        bench.play((doctor, granting, None))
        return
    who, holder = (world.landlord, HOME) if role == "landlord" else (world.sensor, world.sensor.id)
    bench.play(
        (doctor, granting, "attributes-refused"),
        (who, entries.refuse_attributes(holder, HOSPITAL), "no-change"),
        (who, entries.refuse_attributes(holder, HOSPITAL, refused=False), None),
        (who, entries.refuse_attributes(holder, HOSPITAL, refused=False), "no-change"),
        (doctor, granting, None),
    )


def test_the_new_kinds_are_unknown_before_version_2() -> None:
    bench = Bench()
    world = bench.world
    bench.play(
        (world.sensor, entries.drop_attribute(HOSPITAL, world.sensor.id, name(0)), "unknown-kind"),
        (world.sensor, entries.refuse_attributes(world.sensor.id, HOSPITAL), "unknown-kind"),
    )


# --- at the authority ---


class Scene:
    """Acme with a member that holds something of its own tenant, and the city, which means it harm."""

    def __init__(self, world: AuthorityWorld) -> None:
        coming = [entries.activate(*one, world.ledger.height + 2) for one in newest().items()]
        world.authority.settle(world.authority.core.queue(coming))
        self.world, self.owner, self.rogue = world, world.tenant(), world.tenant("city")
        self.member = world.member("car")
        declare(self.owner)
        values = ", ".join(f'"v{number}"' for number in range(1000))
        declare(
            self.rogue, "city", "".join(f'[w{n}]\nkind = "category"\nmany = true\nvalues = [{values}]\n' for n in WIDE)
        )
        give(world, self.owner, self.member, role="garage")

    def flood(self) -> None:
        for number in WIDE:
            values: dict[str, Any] = {f"w{number}": [f"v{value}" for value in range(1000)]}
            give(self.world, self.rogue, self.member, **values)

    def own_key_works(self) -> bool:
        return any(b"acme.role" in trait for trait in key_of(self.member).parts)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    world = AuthorityWorld(tmp_path)
    yield Scene(world)
    world.authority.close()
    world.ledger.close()


def test_whoever_grants_more_than_its_share_hears_of_it(scene: Scene) -> None:
    with pytest.raises(Refused) as caught:
        scene.flood()
    assert caught.value.reason == "too-many-attributes"
    give(scene.world, scene.rogue, scene.member, role="city")  # what is reasonable goes on
    assert len(scene.member.client.attributes_held(scene.member.id)) == 2
    assert scene.own_key_works()


def test_what_was_granted_before_leaves_room_for_the_key(scene: Scene) -> None:
    with without(DRAFT):
        scene.flood()
    assert scene.own_key_works()
    assert len(key_of(scene.member).parts) == 1  # none of the thousands fits the share
    with without(KEY), pytest.raises(Misuse, match="8192 traits"):
        key_of(scene.member)


def test_the_holder_or_its_owner_drops_what_others_granted(scene: Scene) -> None:
    world, rogue, member, owner = scene.world, scene.rogue, scene.member, scene.owner
    give(world, rogue, member, role="city", clearance=3)
    assert {one.name for one in owner.client.attributes_held(member.id)} == {
        "acme.role",
        "city.clearance",
        "city.role",
    }
    world.act(member, *drop_entries(member.client, member.id, ["city.role"]))
    world.act(owner, *drop_entries(owner.client, member.id, ["city.clearance"]))
    assert [one.name for one in member.client.attributes_held(member.id)] == ["acme.role"]
    with pytest.raises(Misuse, match=r"city\.role"):
        drop_entries(member.client, member.id, ["city.role"])
    for stranger, holder in ((rogue, member), (member, owner)):
        with pytest.raises(Refused, match="only the owner"):
            stranger.client.attributes_held(holder.id)


def test_what_a_refused_tenant_granted_before_enters_no_key(scene: Scene) -> None:
    world, rogue, owner, member = scene.world, scene.rogue, scene.owner, scene.member
    give(world, rogue, member, role="city")
    city = rogue.certificate.tenant

    def traits() -> int:
        return len(key_of(member).parts)

    assert traits() == 2
    for who, holder in ((owner, owner.certificate.tenant), (member, member.id)):
        refuse(world, who, holder, city)
        assert traits() == 1
        assert scene.own_key_works()
        assert len(member.client.attributes_held(member.id)) == 2, "it is still there to be dropped"
        refuse(world, who, holder, city, refused=False)
        assert traits() == 2


def refuse(world: AuthorityWorld, who: Person, holder: bytes, tenant: bytes, *, refused: bool = True) -> None:
    world.act(who, entries.refuse_attributes(holder, tenant, refused=refused))
