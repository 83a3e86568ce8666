"""What an instance and a home may have beside topics and a ledger, for the console to show: evidence and an audit's
findings, trips and alerts of a warehouse, scenes of a demo, releases and a campaign, an overlay, a mesh and a fabric.

with contents(tmp_path) as viewer, serving(viewer) as console:
    shown = crawl_parts(console)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import cos, sin
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from console_stack import Browser, Said, crawl
from firmware_world import OTHER_IMAGE, FirmwareWorld
from ledger_world import refusal, request, seed
from overlay_ledger import EDGE, HEART, LEASE_MS, OVERLAY, OverlayWorld
from parts_world import PartsWorld, put

from tallystick import wire
from tallystick.carriers.fabric.direct import way_settings
from tallystick.client.names import Names
from tallystick.client.reader import Finding
from tallystick.console.viewer import Viewer
from tallystick.crypto.hpke import PUBLIC_BYTES
from tallystick.crypto.signatures import SigningKey
from tallystick.identity.choices import CarrierChoice, choose_carrier
from tallystick.ledger import entries
from tallystick.ledger.contracts import plans
from tallystick.pipeline.jobs.audit_findings import SCHEMA
from tallystick.trust.fabric import DispatcherCard
from tallystick.trust.plan import Plan

PARTS = ("findings", "scenes", "trips", "alerts", "updates", "overlay", "mesh", "fabric")
START = datetime(2026, 11, 14, 6, tzinfo=UTC)
TOKEN, CAR = "b1" * 16, "0c" * 16  # of a warehouse's topic, and of who published to it
FACTS: dict[str, Any] = {"frames": 5000, "late": 0, "unscored": 0, "named": {}}
MESH: dict[str, Any] = {
    "mesh": "city",
    "joined": True,
    "address": "10.0.0.7:7000",
    "entry": "abc" * 1000,
    "node": {"neighbours": 3, "topics": 2, "publishers": 1},
    "links": {"bytes_sent": 900, "bytes_spoken": 100},
}
FABRIC: dict[str, Any] = {
    "fabric": "city",
    "joined": True,
    "interface": "eth0",
    "sent": 1,
    "heard": 2,
    "parcels": 3,
    "waiting": 0,
    "dropped": {"late": 7},
}

Words = Callable[[str, str], str]  # `said(what, plain)`: what somebody else chose to call this


def plainly(_what: str, plain: str) -> str:
    return plain


@contextmanager
def contents(folder: Path, said: Words = plainly) -> Iterator[Viewer]:
    """What the doctor sees, who has everything and owns one topic."""
    parts, warehouse = PartsWorld(folder), folder / "warehouse"
    world, fleet = parts.world, bring_fleet(parts)
    parts.accept(fleet.image.sign(fleet.release(OTHER_IMAGE)))
    parts.accept(fleet.image.sign(fleet.withdraw(OTHER_IMAGE)))
    parts.accept(fleet.director.sign(fleet.report(1, 0, 3, 1)))
    parts.accept(fleet.director.sign(fleet.stop()))
    asked = request(world.monitor, world.node, now=int(parts.clock.now()))
    parts.accept(world.node.sign(refusal(world.monitor, asked, reason=said("reason", "no-right"))))
    town = bring_town(parts, said)
    for accuser in town.edge[1:]:
        parts.accept(accuser.sign(entries.suspect(OVERLAY, 1, town.edge[0].id)))
    _fill(warehouse, world.instance, said)
    with own_node() as mesh, own_node() as fabric, parts.viewing(warehouse) as viewer:
        _keep(viewer, said)
        choose(viewer, "mesh", mesh({**MESH, "address": said("mesh", MESH["address"])}), said("way", "heart"))
        choose(viewer, "fabric", fabric({**FABRIC, "interface": said("fabric", "eth0")}), "air", HEART[::-1])
        people = {one.id: one.name for one in (*world.principals, *town.everybody)}
        people |= {world.monitor.id: said("principal", "monitor"), bytes.fromhex(CAR): "car"}
        viewer.names = told_names({HEART: said("topic", "heart"), bytes.fromhex(TOKEN): "telemetry"}, people)
        viewer.scenes = folder / "demo" / "scenes.jsonl"
        _play(viewer.scenes, said)
        yield viewer


def crawl_parts(console: Browser, each: int = 1) -> dict[str, dict[str, Said]]:
    """The pages of what an instance may have, as `crawl` finds them."""
    return {path: found for path, found in crawl(console, each).items() if path.partition("/")[0] in PARTS}


def told_names(topics: Mapping[bytes, str], people: Mapping[bytes, str]) -> Names:
    """As an authority would tell them that holds nobody to a form."""
    page = SimpleNamespace(topics=list(topics.items()), principals=list(people.items()), after=b"")
    session: Any = SimpleNamespace(authority=SimpleNamespace(names=lambda _after: page))
    return Names(session)


# On the ledger.


def bring_fleet(parts: PartsWorld) -> FirmwareWorld:
    """One image released, and one campaign begun."""
    fleet = FirmwareWorld(parts.world)
    for who, written in fleet.founding():
        parts.accept(who.sign(*written))
    parts.accept(fleet.image.sign(fleet.release()))
    parts.accept(fleet.owner.sign(fleet.campaign()))
    return fleet


def bring_town(parts: PartsWorld, said: Words = plainly) -> OverlayWorld:
    """Plan 1 in force, `heart` entrusted, its lease held by the first relay of the edge."""
    town = OverlayWorld(parts.world)
    parts.accept(parts.world.authority.sign(*town.enrolment(), town.founding()))
    first = parts.height + plans.MARGIN_BLOCKS + 2
    parts.accept(town.administrators[0].sign(town.signed(_called(town.plan(), said), first)))
    parts.grow(first - parts.height)
    parts.accept(parts.world.doctor.sign(entries.entrust(HEART, OVERLAY, EDGE, LEASE_MS)))
    parts.accept(town.edge[0].sign(entries.lease(HEART, 0, 1)))
    return town


def _called(plan: Plan, said: Words) -> Plan:
    """The plan, whose first relay is called so."""
    hub, *others = plan.nodes
    one, *relays = hub.relays
    names: dict[str, Any] = {name: said(name, getattr(one, name)) for name in ("address", "operator", "host")}
    return replace(plan, nodes=(replace(hub, relays=(replace(one, **names), *relays)), *others))


# In a warehouse.


def trip(number: int, vehicle: str = "car-1", points: int = 3, events: int = 0, **changes: Any) -> dict[str, Any]:
    start = START + timedelta(hours=number)
    line = ", ".join(f"{13 + n / 1e4:.6f} {52 + number / 1e3 + n / 1e4:.6f}" for n in range(points))
    braked = {"start_ts": start, "acceleration_ms2": -5.0, "latitude": 52.0, "longitude": 13.0}
    told = {"vehicle_id": vehicle, "start_ts": start, "end_ts": start + timedelta(minutes=20), "duration_s": 1200.0}
    figures = {"distance_km": 12.5, "distance_by": "odometer", "harsh_braking": events, "harsh_acceleration": 0}
    return {
        **told,
        **figures,
        "rows": 20,
        "cut": "gap",
        "line": f"LINESTRING ({line})",
        "events": [braked] * events,
    } | changes


def alert(number: int = 0, **changes: Any) -> dict[str, Any]:
    time = START + timedelta(minutes=number)
    what = {"vin": "WVW42", "can_id": 0x1A0, "check": "rate", "signal": "Engine.Speed", "seen": 31.0, "high": 12.0}
    where = {"_partition": 0, "_offset": 7, "_leaf": 3, "_last_partition": 0, "_last_offset": 8, "_last_leaf": 1}
    whose = {"profile": "ab" * 32, "_publisher": CAR, "strength": 2.5, "frames": 44, "first_frame": 1, "last_frame": 9}
    return {"ts_first": time, "ts_last": time + timedelta(seconds=2), **what, **where, **whose} | changes


def audited(**changes: Any) -> dict[str, Any]:
    """A row of an audit's findings."""
    now = datetime(2026, 5, 17, tzinfo=UTC)
    whole = dict.fromkeys(SCHEMA.names) | {"first_time": now, "last_time": now, "count": 3, "evidence": []}
    return {**whole, "rule": "replay", "severity": "warning", "message": "sent again", "next": "look", **changes}


def _fill(warehouse: Path, instance: bytes, said: Words) -> None:
    """One row of each table has other people's words in all its texts."""
    places = [{"height": 3, "index": 0}, {"height": 4, "index": None}]
    audit = {"rule": "rule", "message": "message", "next": "next-step", "name": "called"}
    odd = {name: said(what, audited()[name] or "the old pump") for name, what in audit.items()}
    found = [
        audited(severity="alarm", token=HEART.hex(), principal=CAR, evidence=places, **odd),
        audited(rule="silent", severity="notice", token=HEART.hex(), partition=0),
        audited(rule="late", message="anchored a minute after it was sealed", count=1),
    ]
    put(warehouse, "findings", found, SCHEMA)
    whose = {"format": 1, "instance": instance.hex(), "topic": "telemetry", "token": TOKEN}
    (warehouse / "warehouse.json").write_text(json.dumps(whose))
    more: dict[str, Any] = {"idle_s": 61.5, "fuel_l": 1.25, "speed_max_kmh": 97.0, "suspect": False}
    trips = [trip(n, f"car-{n % 7}", **more) | _way(n) for n in range(60)]
    odd = {name: said(what, trip(0)[name]) for name, what in {"distance_by": "measured", "cut": "ended-by"}.items()}
    trips.append(trip(61, said("vehicle", "car-7"), **more | odd | {"suspect": True}) | _way(61))
    put(warehouse, "trips", trips)
    where = {"_partition": 2, "_publisher": CAR}
    rows = [{**where, "ts": trips[-1]["start_ts"] + timedelta(minutes=n), "_offset": n, "_leaf": n} for n in range(9)]
    put(warehouse, "signals", [{**row, "vehicle_id": trips[-1]["vehicle_id"]} for row in rows])
    frame = {"can_id": 0x1A0, "bus": 1, "_publisher": CAR, "_partition": 0, "_offset": 7}
    odd = {name: said(name, alert()[name]) for name in ("vin", "signal", "profile")}
    alerts = [alert(low=None), alert(1, check="jump", low=3.0), alert(2, check=said("check", "silence"), low=9.0)]
    put(warehouse, "alerts", [*alerts, alert(3, low=None, **odd)], **FACTS | {"unscored": 70, "late": 3})
    times = [(one["vin"], one["ts_first"]) for one in (*alerts, alert(3, **odd))]
    vehicles = [{"vin": vin, "ts": begin + timedelta(milliseconds=20 * n)} for vin, begin in times for n in range(100)]
    put(warehouse, "bronze", [{**frame, **one, "_leaf": n} for n, one in enumerate(vehicles)])


def _way(number: int) -> dict[str, Any]:
    """Where a trip went, and where it braked."""
    places = [(13.4 + 0.05 * cos(number + n / 9), 52.5 + 0.03 * sin(2 * number + n / 7)) for n in range(40)]
    where = {"longitude": places[9][0], "latitude": places[9][1]}
    braked = {"start_ts": START + timedelta(hours=number, minutes=5), "acceleration_ms2": -5.0, **where}
    line = ", ".join(f"{longitude:.6f} {latitude:.6f}" for longitude, latitude in places)
    return {"line": f"LINESTRING ({line})", "events": [braked], "harsh_braking": 1}


# In a home, and beside it.


def _keep(viewer: Viewer, said: Words) -> None:
    """Evidence of readers and of the memory, and a file that is no evidence any more."""
    home, head = viewer.identity.home, viewer.mirror.at.head
    assert head is not None
    Finding("altered", said("found", "body does not match"), HEART, 0, 2, b"\x07" * 16, evidence=(head.note,)).keep(
        home
    )
    Finding("gap", "parcels 3 to 5 were not shown", HEART, 0, 3, evidence=(b"\x01" * 70, bytes(32))).keep(home)
    Finding.retired(HEART, 0, 3, 9).keep(home)
    kept = Finding(said("kept", "silent"), "nobody spoke", HEART, 0).encode()
    (home / "evidence" / "silent-0").write_bytes(kept)
    (home / "evidence" / "altered-0").write_bytes(b"junk")
    (home / "ledger").mkdir(exist_ok=True)
    (home / "ledger" / "evidence-00").write_bytes(wire.encode(["rollback", head.note, head.note]))


def _play(file: Path, said: Words) -> None:
    (file.parent / "evidence").mkdir(parents=True)
    (file.parent / "evidence" / "forked").write_bytes(b"12345678")
    scene = {"expected": "few entries", "verdict": "stopped", "happened": "it was", "evidence": "heights 1 to 2"}
    odd = {name: said(f"scene-{name}", text) for name, text in {"attack": "framing", **scene}.items()}
    scenes = [
        {**scene, "attack": "flooding"},
        {**scene, "attack": "forking", "verdict": "SUCCEEDED", "evidence": "evidence/forked"},
        {**scene, "attack": "silence", "verdict": "UNCLEAR"},
        odd,
    ]
    told = [json.dumps({**one, "time_ms": 1_791_000_000_000 + number}) for number, one in enumerate(scenes)]
    file.write_text("".join(f"{line}\n" for line in told))


@contextmanager
def own_node() -> Iterator[Callable[[object], str]]:
    """A node that tells of itself what the test says; the function gives its address."""
    told: list[bytes] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(told[-1])))
            self.end_headers()
            self.wfile.write(told[-1])

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

        def tell(what: object) -> str:
            told.append(what if isinstance(what, bytes) else json.dumps(what).encode())
            return f"http://127.0.0.1:{server.server_port}"

        yield tell
        server.shutdown()


def choose(viewer: Viewer, scheme: str, url: str, topic: str, token: bytes = HEART) -> None:
    """The identity's topic goes over a mesh or a fabric from now on, by its own node at `url`."""
    certificate = viewer.identity.nodes[0]
    card = DispatcherCard(viewer.identity.instance, certificate.subject, bytes(32), bytes(PUBLIC_BYTES)).sign(
        SigningKey.from_seed(seed("dispatcher"))
    )
    settings = way_settings(card, bytes(32)) if scheme == "fabric" else {}
    topics = {topic: token.hex()}
    choose_carrier(viewer.identity.home, CarrierChoice(f"{scheme}://city", url, certificate, topics, settings))
