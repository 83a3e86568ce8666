"""`tally fabric join`, `leave`, `status` and `directory`: rows over a fabric whose every key is the authority's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from actors import SCHEMA, await_topic, read_rows, rows
from attribute_actors import Attributes
from commands import done, refused
from fabric_town import FabricTown, fabric_of, station_of
from stack import READ, WRITE, wait_until

from tallystick.carriers.fabric.direct import FabricWay
from tallystick.identity.choices import read_choices
from tallystick.identity.folder import Identity

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FabricTown]:
    with fabric_of(tmp_path_factory.mktemp("fabric")) as town:
        yield town


def test_rows_travel_over_a_fabric_with_keys_from_the_authority(town: FabricTown) -> None:
    car, at_car = town.plug("cli-car", "s0")
    reader, at_reader = town.plug("cli-reader", "s1")
    token = town.stack.topic(town.owner, "brakes", SCHEMA)
    town.stack.grant(town.owner, token, car, WRITE)
    town.stack.grant(town.owner, token, reader, READ)
    await_topic(town.stack, token)
    car_home, reader_home = car.identity.home, reader.identity.home
    joined = done("fabric", "join", "brakes", "--publish", "--node-url", at_car.url, "--home", car_home)
    assert "on fabric city, with keys of 1 topic" in joined.out
    done("fabric", "join", "brakes", "--node-url", at_reader.url, "--home", reader_home)
    done("fabric", "join", "--home", reader_home)
    wait_until(lambda: all(town.controller.topology.is_host(one, time.time()) for one in town.places.values()))
    with town.stack.session(Identity.load(reader_home)).subscriber("brakes") as subscriber:
        done("publish", "brakes", "-", "--acks", "stored", "--home", car_home, stdin=b'{"vin": "V", "seq": 7}\n')
        assert read_rows(subscriber, 1) == [7]
    told = done("fabric", "status", "--home", reader_home).out
    assert "city" in told
    assert "datagrams:" in told


def test_topics_go_over_the_fabric_one_by_one(town: FabricTown) -> None:
    """The identity's others go where they went, and so does one that leaves."""
    car, at_car = town.plug("choosing-car", "s0")
    home, tokens = car.identity.home, [town.stack.topic(town.owner, name, SCHEMA) for name in ("chosen", "plain")]
    for token in tokens:
        town.stack.grant(town.owner, token, car, WRITE)
        await_topic(town.stack, token)
    done("fabric", "join", "chosen", "--publish", "--node-url", at_car.url, "--home", home)
    assert {name: set(one.topics) for name, one in read_choices(home).items()} == {"fabric://city": {"chosen"}}
    with town.stack.session(Identity.load(home)) as session:
        over = session.over("chosen")
        assert over is not session
        assert isinstance(over.carrier, FabricWay)
        assert not over.anchors
        assert session.over("plain") is session
        assert over.identity.node_urls == (at_car.url,)
    assert "1 topic" in done("fabric", "join", "--home", home).out
    assert "interface" in done("fabric", "status", "--home", home).out
    done("fabric", "leave", "chosen", "--home", home)
    assert all(not one.topics for one in read_choices(home).values())
    assert refused(2, "fabric", "join", "--every-topic", "--home", home) == [
        "error: --every-topic goes with --node-url"
    ]


def test_policies_are_asked_of_what_the_authority_says_that_principals_hold(town: FabricTown) -> None:
    """By the owner's command; nobody gets a flow whose policy it does not meet, and nobody who does is left out."""
    car, police, garage = (town.member(name, f"s{n % 2}") for n, name in enumerate(("pcar", "police", "garage")))
    town.topic("patrol", car, police, garage)
    attributes = Attributes(town.stack, town.owner)
    attributes.give(police, role="police", clearance=3)
    attributes.give(garage, role="garage")
    told = done("fabric", "directory", "--home", town.owner.identity.home)
    assert "2 principals" in told.out
    with police.subscriber("patrol") as subscriber, garage.subscriber("patrol"):
        with car.publisher("patrol", policy="role::police && clearance > 2") as publisher:
            publisher.send(rows(1))
            assert publisher.flush(30) == 0
            assert read_rows(subscriber, 1) == [1]
        assert station_of(town.node_of(garage)).require().statistics().parcels == 0
    assert "owner tells" in refused(3, "fabric", "directory", "--home", police.identity.home)[0]


def test_a_node_that_is_no_host_is_named(town: FabricTown) -> None:
    lines = refused(2, "fabric", "status", "--home", town.owner.identity.home)
    assert "no host of a fabric" in lines[0]
