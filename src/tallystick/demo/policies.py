"""The scene of one stream for several readers: each has the columns that its attributes open, and no two have more.

Vehicles publish one topic. Speed is the insurer's, fuel the garage's, positions are the city's; the vehicle's number is
everybody's. Who pools attributes with others gains nothing: that is what the keys' randomness is for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tallystick.authority.client import grant_entries
from tallystick.client.opening import AttributeHolder, add_keys
from tallystick.client.session import Session
from tallystick.crypto.abe import group
from tallystick.crypto.abe.keys import AttributeKey
from tallystick.demo.evidence import subscription
from tallystick.demo.scene import AttackSucceeded, NotObserved, Scene, Seen
from tallystick.demo.stage import READ, WRITE, Stage
from tallystick.errors import CannotOpen
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import NotEntitled
from tallystick.parcel.open import open_group
from tallystick.policy.space import AttributeSpace
from tallystick.record.schema import Schema

TENANT, TOPIC = "hospital", "drives"
SPACE = """
namespace = "hospital"
[service]
kind = "category"
values = ["city", "garage", "insurer"]
[clearance]
kind = "integer"
bits = 8
"""
COLUMNS = Schema.parse(
    "vin string not null, speed float32, fuel float32, lat float64, lon float64",
    groups=(("vin",), ("speed",), ("fuel",), ("lat", "lon")),
)
POLICIES = {"speed": "service::insurer", "fuel": "service::garage", "lat": "service::city && clearance >= 3"}
POSITION = 3  # the column group
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "insurer": {"service": "insurer", "clearance": 5},
    "garage": {"service": "garage"},
    "city": {"service": "city", "clearance": 3},
    "clerk": {"service": "city", "clearance": 1},  # of the city, and without the clearance that the insurer has
}
SEEN = {"insurer": ["vin", "speed"], "garage": ["vin", "fuel"], "city": ["vin", "lat", "lon"], "clerk": ["vin"]}
ROWS = [{"vin": f"D{n}", "speed": 40.0 + n, "fuel": 9.5 - n, "lat": 52.5 + n, "lon": 13.25} for n in range(3)]


def pool_attributes(stage: Stage) -> Seen:
    readers = _set_out(stage)
    vehicle = stage.enrol(TENANT, "vehicle", TOPIC, WRITE)
    with vehicle.publisher(TOPIC, acks="anchored", policy=POLICIES, hide_policy=True) as publisher:
        publisher.send(ROWS)
    for name, session in readers.items():
        _check_columns(stage, name, session)
    clerk, insurer, city = (readers[name] for name in ("clerk", "insurer", "city"))
    mine, another = _key(stage, clerk), _key(stage, insurer)
    if _opens(clerk, replace(mine, parts={**another.parts, **mine.parts})):
        raise AttackSucceeded("the clerk opens positions with a part of the insurer's key")
    if not _opens(city, _key(stage, city)):
        raise NotObserved("the city's own key does not open positions either")
    return Seen(
        "insurer, garage and city each have their columns of the same parcel and the vehicle's number; the clerk's key"
        " with the insurer's clearance in it opens nothing",
        f"topic {TOPIC}, offset 0",
    )


def _set_out(stage: Stage) -> dict[str, Session]:
    """The tenant's attributes and topic, and who holds what."""
    owner, space = stage.people[TENANT], AttributeSpace.read(SPACE)
    owner.authority.declare_attributes(space.encode())
    stage.make_topic(TOPIC, TENANT, COLUMNS)
    readers = {name: stage.enrol(TENANT, name, TOPIC, READ) for name in ATTRIBUTES}
    for name, session in readers.items():
        answered = session.authority.attribute_key
        held, salt = space.grant(ATTRIBUTES[name]), stage.entropy.bytes(32)
        principal, tenant = session.identity.principal, owner.identity.tenant
        owner.author.write(*grant_entries(owner.authority, tenant, principal, held, salt))
        stage.wait_until(lambda: bool(answered().identifier), f"the authority to see what {name} holds")  # noqa: B023
    return readers


def _check_columns(stage: Stage, name: str, session: Session) -> None:
    """That it reads its columns, of every row, and only those."""
    rows: list[dict[str, Any]] = []
    with session.subscriber(TOPIC) as subscriber:

        def came() -> bool:
            rows.extend(row for received in subscriber.poll(0) for row in received.to_pylist())
            return len(rows) >= len(ROWS)

        stage.wait_until(came, f"what {name} may read")
    if any(set(row) - set(SEEN[name]) for row in rows):
        raise AttackSucceeded(f"{name} reads {', '.join(sorted(set(rows[0]) - set(SEEN[name])))}")
    if rows != [{column: row[column] for column in SEEN[name]} for row in ROWS]:
        raise NotObserved(f"{name} does not read what is its own")


def _key(stage: Stage, session: Session) -> AttributeKey:
    """What the authority gives it, for every attribute epoch so far."""
    key = AttributeHolder(session.authority, stage.clock, 0.0, lambda epoch: None).whole()
    if key is None:
        raise NotObserved("the authority gives no attribute key")
    return key


def _opens(session: Session, key: AttributeKey) -> bool:
    """Whether positions open to whoever has this reader's keys of the topic and that attribute key."""
    with session.subscriber(TOPIC) as subscriber:
        verified, schema = subscriber.find(0, 0)
    ring = KeyRing(session.node.lock, lambda epoch: key)
    add_keys(ring, session.identity.instance, subscription(session, TOPIC).grant)
    try:
        open_group(verified, ring, schema, POSITION)
    except (CannotOpen, NotEntitled):
        return False
    return True


def scenes() -> list[Scene]:
    """None where there is no library for it (`tallystick[policy]`)."""
    if not group.available():
        return []
    expected = "each reads its columns of one stream; pooled keys open no more"
    return [Scene("readers who pool their attributes", expected, pool_attributes)]
