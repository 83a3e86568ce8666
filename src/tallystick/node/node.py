"""A node as a process: its core (core.py) on the real disk, threads that drive it, and its HTTP face.

Five threads besides the server's: one makes blocks when they are due, one writes operations and anchors to the
ledger and applies retention, one stores what is published, one watches whether all this goes on, and one looks how far
groups are behind. Another asks witnesses, where there are any, and another the authority for keys of a mesh, in the
name of the node's principal, where its folder is named. Stopping finishes the requests under way, commits what waits,
and closes the files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.carriers.carrier import KIT_PATH
from tallystick.carriers.desk import CarrierService, Desk, ServiceLimits
from tallystick.errors import Misuse, TallystickError
from tallystick.ledger.block import Block
from tallystick.ledger.engine import NodeLedger, Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.core import NodeCore, ledger_settings
from tallystick.node.instance import claim, open_node_keys
from tallystick.node.lags import PAUSE_S as LAGS_PAUSE_S
from tallystick.node.lags import Lags
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.runtime.address import server_tls
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.http1 import Answer
from tallystick.runtime.logs import Lasting
from tallystick.runtime.router import Buckets, Gate, Rate, Request, Router
from tallystick.runtime.server import Server, ServerLimits
from tallystick.runtime.sources import Clock
from tallystick.trust.certificate import Certificate
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.client.mesh_updates import MeshCare
    from tallystick.node.witnessing import Witnessing

log = logging.getLogger(__name__)

WITNESS_PAUSE_S = 0.05  # between two rounds: what a published checkpoint lags behind, beside the witnesses' own time
CARE_PAUSE_S = 30.0  # between two looks at keys of a mesh, which are settled an hour before they count
SUBMIT_S = 30.0  # how long a transaction may wait for its block
READY_AGE_S = 10.0  # an older newest block means that the ledger stands still; there is an empty one every 2 s
BLOCKS_LATE = 5  # or so many times the time between two blocks, where that is longer
WATCH_S = 1.0  # between two looks at how it goes
CONNECTIONS_MAX = 65_536  # whose rates are remembered; the oldest are forgotten, with a full allowance


class Node:
    """A node over the folder that `create_instance` made: `run` it, or `start` and `stop` it."""

    def __init__(self, folder: Path, clock: Clock, settings: NodeSettings | None = None) -> None:
        self._lock_file = claim(folder)
        self.settings = settings or read_settings(folder)
        self.clock = clock
        self.trust = TrustFile.parse((folder / "trust.json").read_text())
        self.keys = open_node_keys(folder, self.trust)
        self.identifier = self.keys.certificate.subject
        self.core = self._open_core(folder)
        self.ledger, self.rules, self.carrier = self.core.ledger, self.core.rules, self.core.carrier
        self._lags = Lags(self.ledger, self.carrier.storage)
        self._witnessing, self._care = self._find_witnesses(), self._find_care()
        self._trouble = Lasting(log, "node")
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        desk = Desk(
            self.carrier, self.ledger, clock, self._wait_for_block, self.core.served.doors, self.settings.gateway
        )
        gate = Gate(
            *(self.identifier, self.keys.key, self.rules.verify_key, clock),
            on_junk=self._count_junk,
            at_hand=self.core.has_key,
        )
        settings = self.settings
        limits = ServiceLimits(settings.principal_requests_max, settings.principal_requests_per_s)
        if settings.ledger:  # a chain's: to submit is to wait for its block
            limits = limits._replace(submissions=limits.waits)
        self.service = CarrierService(self.carrier, desk, gate, clock, self.rules.share_of, limits)
        self.server = self._server()
        self.url = self.server.url

    # Running.

    def start(self) -> None:
        """Start the threads; the server is run by `run`, or by whoever has the event loop."""
        bells = {"commits": self.core.served.bell}
        for name, work, pause_s in [
            ("blocks", self._make_block, self.settings.window_ms / 2000),
            ("commits", self._commit, self.settings.commit_ms / 1000),
            ("watch", self._watch, WATCH_S),
            ("lags", self._lags.look, LAGS_PAUSE_S),
            *([("witnesses", self._witnessing.round, WITNESS_PAUSE_S)] if self._witnessing is not None else []),
            *([("mesh keys", self._care_for_keys, CARE_PAUSE_S)] if self._care is not None else []),
        ]:
            args = work, pause_s, bells.get(name, self._stopping)
            thread = threading.Thread(target=self._repeat, args=args, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def run(self) -> None:
        """Serve until a signal or `stop`."""
        self.start()
        try:
            self.server.run()
        finally:
            self.stop()

    def stop(self) -> None:
        """Finish what is under way and close; may be called twice."""
        if self._stopping.is_set():
            return
        self.server.stop()
        self.service.stop()
        self._stopping.set()
        self.core.served.bell.set()
        try:
            with self._making_blocks():
                for thread in self._threads:
                    thread.join()
                self._commit_once_more()
        finally:
            for one in (self._witnessing, self._care):
                if one is not None:
                    one.close()
            self.core.close()
            self._lock_file.close()

    def _repeat(self, work: Callable[[], None], pause_s: float, bell: threading.Event) -> None:
        """Work, again and again after a pause, which ends when the bell rings."""
        lasting = Lasting(log, threading.current_thread().name)
        while not self._stopping.is_set():
            if bell.wait(pause_s) and self._stopping.is_set():
                return
            if bell is not self._stopping:
                bell.clear()
            try:
                work()
                if lasting.text:
                    lasting.tell("")
            except TallystickError as error:
                lasting.tell(str(error))
            except Exception:
                log.exception("fault in %s", threading.current_thread().name)

    def _make_block(self) -> None:
        self.ledger.tick(self._now_ms)

    def _watch(self) -> None:
        trouble = self.trouble()
        if trouble or self._trouble.text:
            self._trouble.tell(trouble)

    def _care_for_keys(self) -> None:
        if self._care is not None:
            self._care.round()

    def _commit(self) -> None:
        self.core.work(lambda: not self._stopping.is_set())

    @contextmanager
    def _making_blocks(self) -> Iterator[None]:
        """At the end, when the block maker is gone: what is being written, and what is left to write, waits for one."""
        enough = threading.Event()

        def tick() -> None:
            while not enough.wait(0.005):
                self._make_block()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()

    def _commit_once_more(self) -> None:
        """Write what still waits at the end."""
        try:
            self.core.commit()
        except TallystickError as error:
            log.warning("not everything reached the ledger; it will after the next start: %s", error)

    # What it tells of itself.

    def statistics(self) -> dict[str, dict[str, Any]]:
        ledger = self.ledger.statistics()
        age_s = max(0.0, self.clock.now() - ledger.time_ms / 1000)
        return {
            "node": {"disk_free_bytes": self.carrier.storage.disk.free_bytes()},
            "requests": self._router.statistics(),
            "ledger": {**asdict(ledger), "head_age_s": age_s, "commit_s": self.core.commit_s.whole()},
            "log": asdict(self.carrier.storage.statistics()),
            "carrier": {**asdict(self.carrier.statistics()), "store_s": self.service.store_s.whole()},
            "anchorer": dict(self.core.anchorer.statistics()),
            "groups": self._lags.snapshot(),
        }

    async def _answer_metrics(self, _request: Request) -> Answer:
        from tallystick.runtime.metrics import CONTENT_TYPE, render

        return Answer(body=render(self.statistics()), content_type=CONTENT_TYPE)

    async def _answer_live(self, _request: Request) -> Answer:
        return Answer(body=b"live\n", content_type="text/plain")

    def trouble(self) -> str:
        """Return what keeps the ledger from vouching for what is stored here, empty where nothing does. Takes no lock,
        and asks nobody."""
        if self._witnessing is not None and self._witnessing.trouble:
            return self._witnessing.trouble
        snapshot = self.ledger.statistics()
        if snapshot.published_height is None:
            return "the ledger has published no checkpoint yet"
        age_s = self.clock.now() - snapshot.time_ms / 1000
        if age_s <= max(READY_AGE_S, BLOCKS_LATE * self.settings.block_ms / 1000):
            return ""
        since = f"no block since {age_s:.0f} s, the newest is {snapshot.height}"
        if self.settings.ledger:
            return f"chain halted: {since}; tally chain status shows which validators are away"
        return f"ledger halted: {since}; the node's log says why"

    async def _answer_ready(self, _request: Request) -> Answer:
        if trouble := self.trouble():
            return Answer(503, f"{trouble}\n".encode(), "text/plain")
        return Answer(body=b"ready\n", content_type="text/plain")

    async def _answer_certificate(self, _request: Request) -> Answer:
        """Who this is, on the root's word: for clients that know an address and a trust file."""
        return Answer(body=self.keys.certificate.encode())

    # Wiring.

    def _find_witnesses(self) -> Witnessing | None:
        """Returns who is asked for cosignatures, or None where nobody is named and none is demanded."""
        if not self.settings.witness_urls and not self.trust.quorum:
            return None
        from tallystick.node.witnessing import Witnessing

        return Witnessing(self.ledger, self.trust, self.settings.witness_urls)

    def _find_care(self) -> MeshCare | None:
        """Returns who keeps up the keys of a node on a mesh, or None where its principal does so itself."""
        home = self.settings.carrier_settings.get("mesh_home")
        if not home:
            return None
        from tallystick.client.mesh_updates import MeshCare
        from tallystick.identity.folder import Identity

        door, owner = self.core.served.doors.get(KIT_PATH), Identity.load(home).principal
        if door is None or owner.hex() != self.settings.carrier_settings.get("mesh_principal"):
            raise Misuse(f"mesh_home: {home} is not that of the principal whom this node serves on a mesh")
        return MeshCare(Path(home), self.clock, lambda kit: door(owner, kit))

    def _open_core(self, folder: Path) -> NodeCore:
        authority = folder / "authority.certificate"
        return NodeCore(
            self.trust,
            self.keys,
            self._open_ledger(folder),
            RealDisk(folder / "log"),
            self.clock,
            self.settings,
            settle=self._wait_for_block,
            introduce=[Certificate.decode(authority.read_bytes())] if authority.exists() else [],
        )

    def _open_ledger(self, folder: Path) -> NodeLedger:
        if self.settings.ledger:
            from tallystick.ledger.cometbft.client import CometbftLedger

            return CometbftLedger(self.settings.ledger, self.trust, self.clock)
        settings = ledger_settings(self.settings)
        return SqliteLedger(str(folder / "ledger.sqlite"), self.trust, self.keys.ledger_key, self._now_ms, settings)

    def _wait_for_block(self, submitted: Submitted) -> Block:
        return self.ledger.wait(submitted, SUBMIT_S)

    def _count_junk(self, method: str, reason: str) -> None:
        self.carrier.scribe.count_junk(reason, int(Right.READ if method == "GET" else Right.WRITE))

    def _server(self) -> Server:
        settings = self.settings
        rates = ConnectionRates(self.clock, settings.connection_bytes_per_s, settings.connection_requests_per_s)
        self._router = router = Router(charge=rates.charge)
        self.service.add_routes(router)
        router.add("GET", "/v1/certificate", self._answer_certificate)
        router.add("GET", "/metrics", self._answer_metrics)
        router.add("GET", "/health/live", self._answer_live)
        router.add("GET", "/health/ready", self._answer_ready)
        tls = server_tls(settings.tls_certificate, settings.tls_key) if settings.tls_certificate else None
        return Server(
            router,
            settings.host,
            settings.port,
            tls=tls,
            insecure=settings.insecure,
            limits=ServerLimits(
                connections_max=settings.connections_max, address_connections_max=settings.address_connections_max
            ),
            on_stop=self.service.end_polls,
        )

    @property
    def _now_ms(self) -> int:
        return int(self.clock.now() * 1000)


class ConnectionRates:
    """The rate of a connection, for bytes and for requests; a burst of one second is allowed.

    Charged before anybody is asked who it is: the first and cheapest of the guards' checks.
    """

    def __init__(self, clock: Clock, bytes_per_s: int, requests_per_s: int) -> None:
        self._clock = clock
        self._bytes_rate, self._requests_rate = Rate(bytes_per_s, bytes_per_s), Rate(requests_per_s, requests_per_s)
        self._bytes: Buckets[tuple[str, int]] = Buckets(CONNECTIONS_MAX)
        self._requests: Buckets[tuple[str, int]] = Buckets(CONNECTIONS_MAX)

    def charge(self, connection: tuple[str, int], n_bytes: int) -> float:
        """Returns the seconds to wait before this request may come, 0 to go on."""
        now = self._clock.monotonic()
        # A body larger than one second's worth is let in once and paid for afterwards.
        wait_s = self._bytes.wait_s(connection, self._bytes_rate, 0, now)
        wait_s = max(wait_s, self._requests.wait_s(connection, self._requests_rate, 1, now))
        if wait_s == 0:
            self._bytes.take(connection, self._bytes_rate, n_bytes, now)
            self._requests.take(connection, self._requests_rate, 1, now)
        return wait_s
