"""Codes of topics, label keys for publishers, labels in permits."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from authority_world import READ, SCHEMA, WRITE, Person, World

from tallystick.authority.client import topic_entries
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse, Refused
from tallystick.ledger import entries
from tallystick.parcel.labels import Labeller, Wanted
from tallystick.policy.content import read_interest
from tallystick.policy.topic_code import TopicCode
from tallystick.record.schema import Schema
from tallystick.trust.permit import LABELS_MAX, Operation, Permit

CODE = TopicCode.read(["speed:4:0..200"], SCHEMA.arrow)


class Cast:
    """An owner's topic with a code, a publisher and a reader."""

    def __init__(self, world: World) -> None:
        self.world, self.owner = world, world.tenant()
        self.token = world.topic(self.owner)
        self.car, self.reader = world.member("car"), world.member("reader")
        world.grant(self.owner, self.token, self.car, WRITE)
        world.grant(self.owner, self.token, self.reader, READ)

    def declare(self, code: TopicCode = CODE, by: Person | None = None) -> TopicCode:
        return TopicCode.decode((by or self.owner).client.labels(self.token, code.encode()))

    def permit(self, interest: str, person: Person | None = None) -> Permit:
        grant = (person or self.reader).client.permit(Operation.SUBSCRIBE, self.token, 1, interest)
        assert grant.labels is None  # the keys are the publishers'
        return Permit.decode(grant.permit)


@pytest.fixture
def cast(world: World) -> Cast:
    return Cast(world)


def test_publishers_get_code_and_keys_and_subscribers_get_labels(cast: Cast) -> None:
    assert cast.permit("speed > 120").labels == ()
    assert cast.owner.client.labels(cast.token) == b""
    code = cast.declare()
    assert code == replace(CODE, version=1)
    grant = cast.car.client.permit(Operation.ADVERTISE, cast.token)
    assert grant.labels is not None
    assert TopicCode.decode(grant.labels.code) == code
    assert [epoch for epoch, _ in grant.labels.keys] == [one.number for one in grant.epochs]
    keys = dict(grant.labels.keys)
    assert len(set(keys.values())) == len(keys)
    labels = cast.permit("speed > 120").labels
    assert len(labels) <= LABELS_MAX
    assert Wanted(labels).newest == (7, 1)
    covers = code.covers(read_interest("speed > 120", SCHEMA.arrow), 32, 0.1)
    for epoch in range(1, 8):
        mine = {Labeller(code, keys[epoch]).label(0, string) for string in covers[0]}
        assert {epoch.to_bytes(4, "big") + label for label in mine} <= set(labels)


def test_the_number_of_labels_says_nothing_of_the_interest(cast: Cast) -> None:
    cast.declare()
    counts = {len(cast.permit(text).labels) for text in ("speed > 120", "speed == 3", "speed in 5..190")}
    assert len(counts) == 1


@pytest.mark.parametrize(("bound", "cells"), [(0.0, 7), (0.9, 8)])
def test_how_much_is_sent_in_vain_is_a_setting(cast: Cast, bound: float, cells: int) -> None:
    """Of sixteen cells 12.5 wide the last seven hold what is wanted; a looser bound asks for the half above 100."""
    world = cast.world
    world.settings = replace(world.settings, label_false_positives_max=bound)
    world.reopen()
    cast.owner, cast.car, cast.reader = map(world.again, (cast.owner, cast.car, cast.reader))
    code = cast.declare()
    grant = cast.car.client.permit(Operation.ADVERTISE, cast.token)
    assert grant.labels is not None
    labeller, asked = Labeller(code, dict(grant.labels.keys)[1]), set(cast.permit("speed > 120").labels)
    kind = SCHEMA.arrow.field("speed").type
    sent = 0
    for cell in range(16):
        labels = labeller.labels({"speed": pa.array([12.5 * cell + 6], kind)}, world.entropy.bytes)
        sent += not asked.isdisjoint((1).to_bytes(4, "big") + label for label in labels)
    assert sent == cells


def test_an_interest_that_the_code_tells_nothing_about_has_marks_alone(cast: Cast) -> None:
    cast.declare()
    wanted = Wanted(cast.permit("vin::WVW1").labels)
    assert (bool(wanted), wanted.newest) == (False, (7, 1))
    assert cast.permit("").labels == ()


@pytest.mark.parametrize("interest", ["sped > 3", "speed >", "speed > 5 && speed < 4"])
def test_an_interest_that_makes_no_sense_is_the_askers_mistake(cast: Cast, interest: str) -> None:
    with pytest.raises(Misuse):
        cast.permit(interest)
    with pytest.raises(Misuse, match="only a subscriber"):
        cast.car.client.permit(Operation.ADVERTISE, cast.token, 0, "speed > 3")


def test_only_the_owner_declares_and_only_who_may_describe_sees(cast: Cast) -> None:
    cast.declare()
    stranger = cast.world.member("stranger")
    for person in (cast.reader, stranger):
        with pytest.raises(Refused, match="does not exist"):
            cast.declare(by=person)
    assert TopicCode.decode(cast.reader.client.labels(cast.token)) == replace(CODE, version=1)
    with pytest.raises(Refused, match="does not exist"):
        stranger.client.labels(cast.token)


def test_a_code_over_other_columns_is_refused(cast: Cast) -> None:
    with pytest.raises(Misuse, match="not over the columns"):
        cast.declare(TopicCode.read(["gear:3"], pa.schema([("gear", pa.int8())])))
    with pytest.raises(Malformed):
        cast.owner.client.labels(cast.token, b"\x80")


def test_news_reach_publishers_as_updates(cast: Cast) -> None:
    grant = cast.car.client.permit(Operation.ADVERTISE, cast.token)
    assert grant.labels is None
    identifier = Permit.decode(grant.permit).identifier
    cast.declare()
    update = cast.car.client.keys(identifier, grant.version)
    assert update is not None
    assert update.labels is not None
    grant = grant.updated(update)
    again = cast.car.client.keys(identifier, grant.version)
    assert again is None or again.labels is None
    last = max(epoch for epoch, _ in update.labels.keys)
    cast.world.pass_time(86_401)
    update = cast.car.client.keys(identifier, grant.version)
    assert update is not None
    assert update.labels is not None
    assert (update.labels.code, update.labels.keys[-1][0]) == (b"", last + 1)
    grant = grant.updated(update)
    cast.declare(TopicCode(()))  # no labels any more
    update = cast.car.client.keys(identifier, grant.version)
    assert update is not None
    assert update.labels is not None
    assert TopicCode.decode(update.labels.code) == TopicCode((), version=2)
    assert update.labels.keys == ()
    assert cast.permit("speed > 120").labels == ()


def test_a_widened_column_ends_what_the_code_tells(cast: Cast) -> None:
    world = cast.world
    schema = Schema.parse("vin string not null, gear int8")
    draft = cast.owner.client.create_topic("gears", schema.encode())
    world.act(cast.owner, *topic_entries(draft, cast.owner.holder))
    world.grant(cast.owner, draft.token, cast.reader, READ)
    cast.token = draft.token
    cast.declare(TopicCode.read(["gear:3:0..7"], schema.arrow))
    assert cast.permit("gear > 3").labels
    wider = Schema.parse("vin string not null, gear int16", 2)
    version, digest = cast.owner.client.propose_schema(draft.token, wider.encode())
    entry = entries.schema(world.instance, draft.token, version, digest, cast.owner.holder.signing_key)
    world.act(cast.owner, entry)
    assert cast.permit("gear > 3").labels == ()  # its cells mean other values now


def test_labels_are_under_the_authoritys_signature(cast: Cast) -> None:
    """A reader cannot add labels to its permit, and has no key to make any."""
    cast.declare()
    permit = cast.permit("speed > 120")
    certificate = cast.world.authority_certificate
    permit.verify(certificate)
    wider = replace(permit, labels=(*permit.labels, bytes(14)))
    forged = wider.sign(cast.reader.holder.signing_key)
    with pytest.raises(Forged):
        forged.verify(certificate)


def test_codes_lie_wrapped_in_the_store(cast: Cast) -> None:
    cast.declare(TopicCode.read(["speed:4:0..200"], SCHEMA.arrow))
    cast.world.authority.core.store.write("UPDATE labels SET token = ?", (b"x" * 16,))
    stored = (cast.world.home / "authority.db").read_bytes()
    assert b"speed" not in stored
    other = cast.world.topic(cast.owner, "windows")
    cast.world.authority.core.store.write("UPDATE labels SET token = ?", (other,))
    with pytest.raises(CannotOpen):  # moved to another topic it means nothing
        cast.owner.client.labels(other)


def test_a_code_outlives_the_process(cast: Cast) -> None:
    cast.declare()
    cast.world.reopen()
    reader = cast.world.again(cast.reader)
    assert cast.permit("speed > 120", reader).labels
