"""Fifty nodes on loopback sockets: rows come where somebody subscribes and nowhere else; forwarders hold no name."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import pytest
from actors import read_rows, rows
from mesh_stack import MeshTown, mesh_of
from stack import wait_until

from tallystick.carriers.mesh.station import MeshStation
from tallystick.carriers.storage import Place
from tallystick.client.session import Session
from tallystick.parcel.parcel import Parcel

FORWARDERS, COUNT = 45, 12


class Told(NamedTuple):
    """A town in which rows were published and read."""

    town: MeshTown
    car: Session
    readers: list[Session]
    stranger: Session  # with a node in the mesh, and no key of the topic
    token: bytes


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with mesh_of(tmp_path_factory.mktemp("fifty"), FORWARDERS, beat_s=1.0) as town:
        car, *readers, stranger = (town.member(name) for name in ("car", "anna", "boris", "clara", "stranger"))
        token = town.topic("brakes", car, *readers)
        wait_until(lambda: town.is_whole(token, car, *readers))
        with car.publisher("brakes") as publisher:
            for number in range(COUNT):
                publisher.send(rows(number))
            assert publisher.flush(60) == 0
        for reader in readers:
            with reader.subscriber("brakes") as subscriber:
                assert read_rows(subscriber, COUNT) == list(range(COUNT))
                assert subscriber.findings == []
        yield Told(town, car, readers, stranger, token)


def test_rows_come_to_the_subscribers_and_nothing_to_the_others(told: Told) -> None:
    town = told.town
    assert len(town.forwarders.stations) + len(town.nodes) == 50
    assert town.forwarders.taken == [[] for _ in range(FORWARDERS)]
    stranger = town.node_of(told.stranger)
    assert stranger.carrier.storage.places() == []
    assert stranger.station.statistics().dropped == {}
    carriers = [one for one in town.forwarders.stations if one.node.distribution.kept]
    assert carriers  # somebody carried them, and nobody took them out
    for reader in told.readers:
        assert town.node_of(reader).carrier.storage.end(Place(told.token, 0)) >= COUNT


# --- what a forwarder's memory has ---


def held(root: object, beside: Iterable[object]) -> Iterator[object]:
    """Everything that an object leads to, but for code and what lies beside."""
    code = (ModuleType, FunctionType, BuiltinFunctionType, type)
    seen = {id(one) for one in beside}
    waiting: list[Any] = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, code):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, MethodType):
            waiting.append(one.__self__)
        waiting.extend(gc.get_referents(one))


def found_in(station: MeshStation, names: dict[str, bytes]) -> set[str]:
    """Which of the names occur in what a station holds, as bytes or in hex."""
    found: set[str] = set()
    for one in held(station, [station._take, station._outside.clock]):
        data = one.encode(errors="replace") if isinstance(one, str) else one
        if isinstance(data, (bytes, bytearray)):
            found |= {what for what, name in names.items() if name in data or name.hex().encode() in data}
    return found


def names_of(told: Told) -> dict[str, bytes]:
    log = told.town.node_of(told.readers[0]).carrier.storage
    header = Parcel.decode_front(log.read(Place(told.token, 0), 0, 1)[0].header).header
    return {
        "token": told.token,
        "permit": header.topics[0].permit,
        "lane": header.lane,
        "lock": header.groups[0].locks[0],
        "publisher": told.car.identity.principal,
        "subscriber": told.readers[0].identity.principal,
        "signing key": told.car.identity.certificate.signing_key,
        "tenant": told.car.identity.tenant,
        "topic name": b"brakes",
    }


def test_no_token_permit_lane_or_principal_is_in_a_forwarders_memory(told: Told) -> None:
    names = names_of(told)
    carriers = [one for one in told.town.forwarders.stations if one.node.distribution.kept]
    for station in carriers:
        pseudonym = told.town.pseudonym(told.token)
        assert found_in(station, {**names, "pseudonym": pseudonym}) == {"pseudonym"}  # by which it forwards


def test_the_search_finds_names_where_they_are(told: Told) -> None:
    """The same search at a subscriber's node, whose kit has the token; and with an open parcel in its hands."""
    names = names_of(told)
    station = told.town.node_of(told.readers[0]).station
    assert "token" in found_in(station, names)
    forwarder = told.town.forwarders.stations[0]
    parcel = told.town.node_of(told.car).carrier.storage.read(Place(told.token, 0), 0, 1)[0].parcel
    vars(forwarder)["planted"] = bytes(parcel)
    try:
        assert {"token", "permit", "lane", "lock"} <= found_in(forwarder, names)
    finally:
        del vars(forwarder)["planted"]
