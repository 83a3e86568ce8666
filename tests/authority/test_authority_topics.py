"""Topics, schemas and patterns of rights."""

from __future__ import annotations

import pytest
from authority_world import READ, SCHEMA, WRITE, Person, World

from tallystick.authority.answers import FORGET, REMEMBER
from tallystick.authority.client import topic_entries
from tallystick.authority.settings import AuthorityLimits
from tallystick.authority.topics import matches
from tallystick.errors import Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import access
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation, Permit

WIDER = Schema.parse("vin string not null, speed float32, gear int8", 2)


def rights(world: World, person: Person, token: bytes) -> int:
    return world.ledger.query(lambda state: access.granted(state, person.id, token))


def test_a_topic_is_the_owners_act_and_its_name_stays_here(world: World) -> None:
    owner = world.tenant()
    draft = owner.client.create_topic("brakes/front", SCHEMA.encode(), partitions=4)
    again = owner.client.create_topic("brakes/front", SCHEMA.encode(), partitions=4)
    assert again == draft  # until it is on the ledger it may be asked for as often as one likes
    assert world.authority.statistics().topics == 0
    world.act(owner, *topic_entries(draft, owner.holder))
    assert world.authority.statistics().topics == 1
    epoch = world.ledger.query(lambda state: state.get(b"epoch/" + draft.token + (1).to_bytes(4, "big")))
    assert epoch is not None
    with pytest.raises(Refused) as refusal:
        owner.client.create_topic("brakes/front", SCHEMA.encode())
    assert refusal.value.reason == "topic-exists"
    world.ledger.close()
    seen = (world.folder / "ledger.db").read_bytes()
    assert b"brakes" not in seen
    assert b"speed" not in seen  # column names give a topic away
    from tallystick.ledger.sqlite import SqliteLedger

    world.ledger = SqliteLedger(str(world.folder / "ledger.db"), world.trust, world.ledger_key, world.now_ms)


def test_of_two_drafts_the_first_on_the_ledger_wins(world: World) -> None:
    one, other = world.tenant(), world.member("other")
    drafts = [person.client.create_topic("brakes", SCHEMA.encode()) for person in (one, other)]
    assert drafts[0].token == drafts[1].token
    assert drafts[0].public != drafts[1].public
    world.act(other, *topic_entries(drafts[1], other.holder))
    world.grant(other, drafts[1].token, one, READ)
    granted = one.client.permit(Operation.SUBSCRIBE, "brakes")
    assert granted.epochs[0].public == drafts[1].public
    with pytest.raises(Refused) as refusal:
        world.act(one, *topic_entries(drafts[0], one.holder))
    assert refusal.value.reason == "topic-exists"


def test_one_name_in_two_tenants_is_two_topics(world: World) -> None:
    acme, rival = world.tenant("acme"), world.tenant("rival")
    one, other = world.topic(acme, "brakes"), world.topic(rival, "brakes")
    assert one != other
    world.grant(rival, other, acme, READ)
    with pytest.raises(Refused):  # a name means one's own tenant's topic
        acme.client.permit(Operation.SUBSCRIBE, "brakes")
    assert acme.client.permit(Operation.SUBSCRIBE, other).token == other


@pytest.mark.parametrize("name", ["", "a b", "*", "-a", "ä", "a\n", "a" * 201, "../etc"])
def test_bad_names_are_misuse(world: World, name: str) -> None:
    owner = world.tenant()
    with pytest.raises(Misuse):
        owner.client.create_topic(name, SCHEMA.encode())


def test_drafts_are_bounded(world: World) -> None:
    owner = world.tenant()
    world.authority.core.limits = AuthorityLimits(drafts_max=3)
    for number in range(3):
        owner.client.create_topic(f"t{number}", SCHEMA.encode())
    with pytest.raises(Refused) as refusal:
        owner.client.create_topic("t3", SCHEMA.encode())
    assert refusal.value.reason == "too-many-topics"


def test_permits_are_bounded(world: World) -> None:
    owner = world.tenant()
    token = world.topic(owner)
    world.grant(owner, token, owner, READ)
    world.authority.core.limits = AuthorityLimits(permits_max=2)
    kept = [owner.client.permit(Operation.SUBSCRIBE, token) for _ in range(2)]
    with pytest.raises(Refused) as refusal:
        owner.client.permit(Operation.SUBSCRIBE, token)
    assert refusal.value.reason == "too-many-permits"
    owner.client.undo(kept[0].permit, kept[0].undo_token)
    owner.client.permit(Operation.SUBSCRIBE, token)


def test_a_new_schema_version_reaches_permit_holders_when_it_is_on_the_ledger(world: World) -> None:
    owner, s = world.tenant(), world.member("S")
    token = world.topic(owner)
    world.grant(owner, token, s, READ)
    granted = s.client.permit(Operation.SUBSCRIBE, token)
    identifier = Permit.decode(granted.permit).identifier
    version, schema_hash = owner.client.propose_schema(token, WIDER.encode())
    seen = s.client.keys(identifier, granted.version)
    assert seen is None or seen.schemas in ((), granted.schemas)
    key = owner.holder.signing_key
    world.act(owner, entries.schema(world.instance, token, version, schema_hash, key))
    news = s.client.keys(identifier, granted.version if seen is None else seen.version)
    assert news is not None
    assert news.schemas == (SCHEMA.encode(), WIDER.encode())


def test_an_incompatible_or_foreign_schema_is_refused(world: World) -> None:
    owner, s = world.tenant(), world.member("S")
    token = world.topic(owner)
    for bad in ("vin string not null", "vin string not null, velocity float32", "vin int8 not null, speed float32"):
        with pytest.raises(Misuse):
            owner.client.propose_schema(token, Schema.parse(bad, 2).encode())
    with pytest.raises(Misuse):
        owner.client.propose_schema(token, Schema.parse("a string", 1).encode())
    for attempt in (lambda: s.client.propose_schema(token, WIDER.encode()), lambda: s.client.schemas(token)):
        with pytest.raises(Refused) as refusal:
            attempt()
        assert refusal.value.reason == "unknown-topic"
    assert owner.client.schemas(token) == [SCHEMA.encode()]
    world.grant(owner, token, s, READ)
    assert s.client.schemas(token) == [SCHEMA.encode()]


def test_patterns_are_expanded_now_and_for_topics_to_come(world: World) -> None:
    owner, s = world.tenant(), world.member("S")
    front, rear = (world.topic(owner, f"brakes/{name}") for name in ("front", "rear"))
    doors = world.topic(owner, "doors")
    resolved = owner.client.resolve_rights("brakes/*", s.id, int(READ), mode=REMEMBER)
    assert set(resolved.tokens) == {front, rear}
    world.act(owner, *resolved.entries)
    assert rights(world, s, front) == rights(world, s, rear) == READ
    assert rights(world, s, doors) == 0
    assert owner.client.resolve_rights("brakes/*", s.id, int(READ)).entries == ()  # nothing left to do
    hand = world.topic(owner, "brakes/hand")
    assert rights(world, s, hand) == READ

    withdrawn = owner.client.resolve_rights("brakes/*", s.id, int(READ), mode=FORGET)
    world.act(owner, *withdrawn.entries)
    assert [rights(world, s, token) for token in (front, rear, hand)] == [0, 0, 0]
    assert rights(world, s, world.topic(owner, "brakes/foot")) == 0


def test_a_pattern_sees_ones_own_topics_only(world: World) -> None:
    admin, member, stranger = world.tenant(), world.member("M"), world.tenant("rival")
    world.topic(admin, "brakes")
    mine = world.topic(member, "brakes/mine")
    assert member.client.resolve_rights("*", member.id, int(READ)).tokens == (mine,)
    assert len(admin.client.resolve_rights("*", member.id, int(READ)).tokens) == 2
    assert stranger.client.resolve_rights("*", stranger.id, int(READ)).tokens == ()


def test_the_tenants_pattern_meets_a_members_new_topic_and_a_members_does_not_meet_others(world: World) -> None:
    admin, member, s = world.tenant(), world.member("M"), world.member("S")
    admin.client.resolve_rights("fleet/*", s.id, int(READ), mode=REMEMBER)
    member.client.resolve_rights("fleet/*", member.id, int(WRITE), mode=REMEMBER)
    token = world.topic(member, "fleet/car")
    assert (rights(world, s, token), rights(world, member, token)) == (READ, WRITE)
    token = world.topic(admin, "fleet/van")
    assert (rights(world, s, token), rights(world, member, token)) == (READ, 0)


def test_matching() -> None:
    assert matches("brakes", "brakes")
    assert not matches("brakes", "brakes/front")
    assert matches("brakes*", "brakes/front")
    assert matches("*", "anything")


def test_a_closed_topic_may_still_be_read(world: World) -> None:
    owner = world.tenant()
    token = world.topic(owner)
    world.grant(owner, token, owner, READ | WRITE)
    world.act(owner, entries.close_topic(token))
    assert owner.client.permit(Operation.SUBSCRIBE, token).private_keys
    with pytest.raises(Refused) as refusal:
        owner.client.permit(Operation.ADVERTISE, token)
    assert refusal.value.reason == "topic-closed"


def test_names_are_told_to_those_who_may_know_them(world: World) -> None:
    owner, s, stranger = world.tenant(), world.member("S"), world.tenant("rival")
    brakes, doors = world.topic(owner, "brakes"), world.topic(owner, "doors")
    theirs = world.topic(stranger, "brakes")
    world.grant(owner, brakes, s, READ)
    assert owner.client.names().topics == ((brakes, "brakes"), (doors, "doors"))
    assert dict(owner.client.names().principals) == {owner.id: "acme owner", s.id: "S"}
    assert s.client.names().topics == ((brakes, "brakes"),)
    assert s.client.names().principals == ((s.id, "S"),)
    assert stranger.client.names().topics == ((theirs, "brakes"),)


def test_names_come_in_pages(world: World) -> None:
    owner = world.tenant()
    people = {owner.id} | {world.member(f"M{number}").id for number in range(4)}
    world.authority.core.limits = AuthorityLimits(names_max=2)
    found: list[bytes] = []
    after = b""
    while True:
        page = owner.client.names(after)
        found += [principal for principal, _ in page.principals]
        after = page.after
        if not after:
            break
    assert len(found) == len(people)
    assert set(found) == people
