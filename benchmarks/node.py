"""`node_publish_N`, `node_fetch_N`: records through a node over HTTP, N records a parcel, against the plain peer.

The peer is the same server (uvicorn, our router) without any security: a request posts N records as orjson lines, the
server appends them to a file, syncs it and answers; a request fetches N lines back, and the client parses each with
orjson. Ours is everything: sealing from columns, spool, signed requests, six guards, log, promises checked, operations
and anchors on the ledger; and on the way back fetching, range proofs, chains, signatures, opening with full
verification into Arrow. Both servers, and our authority, run in processes of their own; both sync before they answer.

What a request carries is not the same on both sides: our publisher puts all parcels that wait into one request, and our
subscriber fetches a mebibyte, as they do in life; the peer's client sends N records, waits, and sends the next. So
beside these stand

    node_request_publish_N, …_fetch_N    parcels that one request carried, on average; the peer's carries one batch
    node_publish_one_N, node_fetch_one_N          one parcel a request on both sides
    node_publish_joined_N, node_fetch_joined_N    ours as in life, and a request of the peer carries as much as ours did
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import data
import harness
import orjson

from tallystick.carriers.carrier import Carrier, Fetch, Fetched, Outcome
from tallystick.client.publish import Publisher
from tallystick.client.session import Session
from tallystick.client.subscribe import Subscriber
from tallystick.identity.folder import Identity

ROOT = Path(__file__).resolve().parent.parent
SIZES = {8: 16_384, 64: 65_536, 512: 262_144, 4096: 524_288}  # records a parcel → records a run
BESIDE = (64, 4096)  # where requests that carry the same on both sides are measured too
ROUNDS_MAX = 5
TARGETS = {"node_publish_64": 1.0, "node_fetch_64": 1.0, "node_publish_4096": 2.0, "node_fetch_4096": 2.0}


def cases() -> Iterator[harness.Case | harness.Result]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ours = stack.enter_context(Ours(Path(folder) / "ours"))
        peer = stack.enter_context(_Plain(Path(folder) / "plain"))
        for size, records in SIZES.items():
            carried = {}
            for act in ("publish", "fetch"):
                mine, theirs = getattr(ours, act), getattr(peer, act)
                ours.carried(act)  # what was counted before is of other rows
                yield _case(f"node_{act}_{size}", partial(mine, size, records), partial(theirs, size, records), records)
                carried[act] = ours.carried(act)
                told = (f"node_request_{act}_{size}", carried[act], 1.0, "parcels/request")
                yield harness.Result(*told, ratio=None, target=None, runs=ROUNDS_MAX)
            if size not in BESIDE:
                continue
            for act in carried:
                mine, theirs = partial(getattr(ours, act), size, records, one=True), getattr(peer, act)
                yield _case(f"node_{act}_one_{size}", mine, partial(theirs, size, records), records)
            for act, parcels in carried.items():
                mine, theirs = partial(getattr(ours, act), size, records), getattr(peer, act)
                joined = partial(theirs, min(size * round(parcels), records), records)
                yield _case(f"node_{act}_joined_{size}", mine, joined, records)


def _case(name: str, ours: harness.Work, peer: harness.Work, records: int) -> harness.Case:
    return harness.Case(name, ours, peer, records, target=TARGETS.get(name), waits=True, rounds_max=ROUNDS_MAX)


class _Counted:
    """A carrier whose requests with parcels are counted."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier, self.parcels, self.requests = carrier, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def publish(self, token: bytes, parcels: Sequence[bytes]) -> list[Outcome]:
        self._count(parcels)
        return self._carrier.publish(token, parcels)

    def fetch(self, wanted: Fetch) -> Fetched:
        fetched = self._carrier.fetch(wanted)
        self._count(fetched.parcels)
        return fetched

    def _count(self, parcels: Sequence[object]) -> None:
        self.parcels += len(parcels)
        self.requests += bool(parcels)


class Served:
    """A server of this file in a process of its own; it prints its address."""

    def __init__(self, kind: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, [str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, __file__, kind, str(folder), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.read_line()
        self.pid = self._process.pid

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


class Ours(Served):
    """A node, an authority, one publisher and one reader for each size."""

    def __init__(self, folder: Path, **settings: str) -> None:
        from tallystick.crypto.passphrase import Cost
        from tallystick.node.instance import Folders, create_instance
        from tallystick.node.settings import NodeSettings
        from tallystick.runtime.sources import SystemClock, SystemEntropy

        self._folders = Folders(folder)
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        now_ms = int(self._clock.now() * 1000)
        limits = {"tenant_bytes_per_s": 1 << 40, "connection_requests_per_s": 1 << 30}
        node = NodeSettings(port=0, **limits, **settings)  # type: ignore[arg-type]
        self._trust = create_instance(folder, "bench", b"p", node, now_ms, self._entropy, cost=Cost(32, 1, 1))
        super().__init__("node", self.node_folder)

    @property
    def node_folder(self) -> Path:
        return self._folders.node

    def __enter__(self) -> Ours:
        self._authority = Served("authority", self._folders.authority, self.url)
        self._sessions: list[Session] = []
        self._owner = self._enrol("owner", self._authority.read_line())
        self.car = self._enrol("car", self._authority.read_line())
        self.reader = self._enrol("reader", self._authority.read_line())
        self._publishers: dict[str, Publisher] = {}
        self._subscribers: dict[str, Subscriber] = {}
        self._counted = {"publish": _Counted(self.car.carrier), "fetch": _Counted(self.reader.carrier)}
        self.car.carrier, self.reader.carrier = self._counted.values()
        return self

    def __exit__(self, *_: object) -> None:
        for publisher in self._publishers.values():
            publisher.stop()
        for session in self._sessions:
            session.close()
        self._authority.__exit__()
        super().__exit__()

    def publish(self, size: int, records: int, *, one: bool = False) -> None:
        """Seal, spool, send and have promised; with `one`, in requests of one parcel."""
        name = f"bench{size}one" if one else f"bench{size}"
        if name not in self._publishers:
            self.create(name)
            settings = {"request_parcels_max": 1} if one else {}
            self._publishers[name] = self.car.publisher(name, batch_rows_max=size, heartbeat_s=3600.0, **settings)
        self._publishers[name].send(_columns(records))
        if left := self._publishers[name].flush(120):
            raise RuntimeError(f"{left} parcels were not stored")

    def fetch(self, size: int, records: int, *, one: bool = False) -> None:
        """Fetch, verify in full and open what `publish` stored first; with `one`, a parcel a request."""
        name = f"bench{size}one" if one else f"bench{size}"
        if name not in self._subscribers:
            self._subscribers[name] = self.reader.subscriber(name, fetch_bytes_max=1 if one else 1 << 20)
            self._subscribers[name].poll(0)
        subscriber, found = self._subscribers[name], 0
        subscriber.seek(0, 0)
        while found < records:
            found += sum(received.batch.rows for received in subscriber.poll(0))

    def carried(self, act: str) -> float:
        """Parcels that a request to publish or to fetch carried, on average since this was asked last."""
        counted = self._counted[act]
        mean = counted.parcels / max(1, counted.requests)
        counted.parcels = counted.requests = 0
        return mean

    def create(self, name: str, partitions: int = 1) -> None:
        """A topic that the car writes and the reader reads."""
        from tallystick.ledger import entries

        token = self._owner.create_topic(name, data.SCHEMA.encode(), partitions)
        self._owner.author.write(
            entries.grant(token, self.car.identity.principal, 6),
            entries.grant(token, self.reader.identity.principal, 5),
        )
        while not self._is_known(name):  # to the authority, which follows the ledger
            time.sleep(0.05)

    def _is_known(self, name: str) -> bool:
        from tallystick.errors import Refused
        from tallystick.trust.permit import Operation

        try:
            self.car.authority.permit(Operation.ADVERTISE, name)
            self.reader.authority.permit(Operation.SUBSCRIBE, name)
        except Refused:
            return False
        return True

    def _enrol(self, name: str, invite: str) -> Session:
        from tallystick.identity.enrol import enrol

        identity = enrol(
            self._folders.root / name,
            name,
            invite,
            trust=self._trust,
            authority_url=self._authority.url,
            node_urls=(self.url,),
            clock=self._clock,
            entropy=self._entropy,
        )
        return self.open(identity)

    def open(self, identity: Identity) -> Session:
        """A session that ends with this server."""
        self._sessions.append(Session(identity))
        return self._sessions[-1]


class _Plain(Served):
    """The peer."""

    def __init__(self, folder: Path) -> None:
        super().__init__("plain", folder)

    def __enter__(self) -> _Plain:
        from tallystick.runtime.address import Address
        from tallystick.runtime.client import HttpClient
        from tallystick.runtime.sources import SystemClock, SystemEntropy

        self._http = HttpClient([Address(self.url, bytes(16))], None, SystemClock(), SystemEntropy())
        self._stored: set[int] = set()
        return self

    def publish(self, size: int, records: int) -> None:
        rows = _dicts(records)
        for first in range(0, records, size):
            body = b"\n".join(orjson.dumps(row) for row in rows[first : first + size])
            self._http.request("POST", f"/lines/{size}", body=body)
        self._stored.add(size)

    def fetch(self, size: int, records: int) -> None:
        if size not in self._stored:  # in the turn that does not count
            self.publish(size, records)
        for number in range(-(-records // size)):
            body = self._http.request("GET", f"/lines/{size}", f"number={number}").body
            for line in body.split(b"\n"):
                orjson.loads(line)


_ROWS: dict[int, object] = {}


def _columns(records: int):  # type: ignore[no-untyped-def]
    key = records
    if key not in _ROWS:
        _ROWS[key] = data.columns(records)
    return _ROWS[key]


def _dicts(records: int):  # type: ignore[no-untyped-def]
    key = -records
    if key not in _ROWS:
        _ROWS[key] = data.dicts(_columns(records))
    return _ROWS[key]


def _serve_node(folder: Path) -> None:
    from tallystick.node.node import Node
    from tallystick.runtime.sources import SystemClock

    node = Node(folder, SystemClock())
    print(node.url, flush=True)
    node.run()


def _serve_authority(folder: Path, node_url: str, *tenants: str) -> None:
    """Prints invitations for three principals of each new tenant, the owner's first, and serves."""
    from tallystick.errors import Unavailable
    from tallystick.node.authority import AuthorityProcess
    from tallystick.runtime.address import Address
    from tallystick.runtime.sources import SystemClock, SystemEntropy
    from tallystick.trust.certificate import Certificate

    node = Certificate.decode((folder.parent / "node" / "certificate").read_bytes())
    address = Address(node_url, node.subject, node.verify_key)
    process = AuthorityProcess(folder, b"p", [address], SystemClock(), SystemEntropy())
    while True:
        try:
            process.authority.work()
            process.authority.check_ready()
            break
        except Unavailable:
            time.sleep(0.05)
    print(process.url)
    enrolment = process.authority.enrolment
    for tenant in tenants or ("bench",):
        print(enrolment.create_tenant(tenant), *(enrolment.invite_to(tenant) for _ in range(2)), sep="\n", flush=True)
    process.run()


def _serve_plain(folder: Path) -> None:
    """Lines in, synced, lines out; nothing else."""
    from tallystick.runtime.http1 import Answer
    from tallystick.runtime.router import Request, Router
    from tallystick.runtime.server import Server

    places: dict[str, list[tuple[int, int]]] = {}
    files: dict[str, int] = {}

    def append(size: str, body: bytes) -> None:
        if size not in files:
            files[size] = os.open(folder / size, os.O_RDWR | os.O_CREAT)
            places[size] = []
        position = sum(places[size][-1]) if places[size] else 0
        os.pwrite(files[size], body, position)
        os.fdatasync(files[size])
        places[size].append((position, len(body)))

    async def put(request: Request) -> Answer:
        await asyncio.to_thread(append, request.parameters["size"], await request.body())
        return Answer(body=b"ok")

    async def get(request: Request) -> Answer:
        size = request.parameters["size"]
        position, length = places[size][int(request.query.partition("=")[2])]
        return Answer(body=await asyncio.to_thread(os.pread, files[size], length, position))

    router = Router()
    router.add("POST", "/lines/{size}", put)
    router.add("GET", "/lines/{size}", get)
    server = Server(router)
    print(server.url, flush=True)
    server.run()


if __name__ == "__main__":
    serve = {"node": _serve_node, "authority": _serve_authority, "plain": _serve_plain}[sys.argv[1]]
    serve(Path(sys.argv[2]), *sys.argv[3:])
