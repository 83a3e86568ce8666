"""A node as a process: its core (core.py) on the real disk, threads that drive it, and its HTTP face.

Three threads besides the server's: one makes blocks when they are due, one writes operations and anchors to the
ledger and applies retention, one stores what is published; a fourth asks witnesses, where there are any. Stopping
finishes the requests under way, commits what waits, and closes the files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tallystick.carriers.desk import CarrierService, Desk
from tallystick.errors import TallystickError, Unavailable
from tallystick.ledger.block import Block
from tallystick.ledger.engine import NodeLedger, Submitted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.node.core import NodeCore, ledger_settings
from tallystick.node.health import add_health
from tallystick.node.instance import open_node_keys
from tallystick.node.rates import ConnectionRates
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.runtime.address import server_tls
from tallystick.runtime.clock import Clock
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.gate import Gate
from tallystick.runtime.router import Router
from tallystick.runtime.server import Server
from tallystick.trust.certificate import Certificate
from tallystick.trust.right import Right
from tallystick.trust.trustfile import TrustFile

if TYPE_CHECKING:
    from tallystick.node.witnessing import Witnessing

log = logging.getLogger(__name__)

WITNESS_PAUSE_S = 0.05  # between two rounds: what a published checkpoint lags behind, beside the witnesses' own time
SUBMIT_S = 30.0  # how long a transaction may wait for its block


class Node:
    """A node over the folder that `create_instance` made; `start`, then `run` or use it as a context."""

    def __init__(self, folder: Path, clock: Clock, settings: NodeSettings | None = None) -> None:
        self._lock_file = _claim(folder)
        self.settings = settings or read_settings(folder)
        self.clock = clock
        self.trust = TrustFile.parse((folder / "trust.json").read_text())
        self.keys = open_node_keys(folder, self.trust)
        self.core = self._open_core(folder)
        self.ledger, self.rules, self.carrier = self.core.ledger, self.core.rules, self.core.carrier
        self._witnessing = self._find_witnesses()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        desk = Desk(
            self.carrier, self.ledger, clock, self._wait_for_block, self.core.served.doors, self.settings.gateway
        )
        self.service = CarrierService(self.carrier, desk, self._gate(), clock)
        self.server = self._server()

    @property
    def identifier(self) -> bytes:
        return self.keys.certificate.subject

    @property
    def url(self) -> str:
        return self.server.url

    # Running.

    def start(self) -> None:
        """Start the threads; the server is run by `run`, or by whoever has the event loop."""
        for name, work, pause_s in [
            ("blocks", self._make_blocks, self.settings.window_ms / 2000),
            ("commits", self._commit, self.settings.commit_ms / 1000),
            *([("witnesses", self._witnessing.round, WITNESS_PAUSE_S)] if self._witnessing is not None else []),
        ]:
            thread = threading.Thread(target=self._repeat, args=(work, pause_s), name=name, daemon=True)
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
        try:
            with self._making_blocks():
                for thread in self._threads:
                    thread.join()
                self._commit_once_more()
        finally:
            if self._witnessing is not None:
                self._witnessing.close()
            self.core.close()
            self._lock_file.close()

    def _repeat(self, work: Callable[[], None], pause_s: float) -> None:
        while not self._stopping.wait(pause_s):
            try:
                work()
            except TallystickError as error:
                log.warning("%s: %s", threading.current_thread().name, error)
            except Exception:
                log.exception("fault in %s", threading.current_thread().name)

    def _make_blocks(self) -> None:
        self.ledger.tick(self._now_ms)

    def _commit(self) -> None:
        self.core.work(lambda: not self._stopping.is_set())

    @contextmanager
    def _making_blocks(self) -> Iterator[None]:
        """At the end, when the block maker is gone: what is being written, and what is left to write, waits for one."""
        enough = threading.Event()

        def tick() -> None:
            while not enough.wait(0.005):
                self._make_blocks()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()

    def _commit_once_more(self) -> None:
        """What waits at the end."""
        try:
            self.core.commit()
        except TallystickError as error:
            log.warning("not everything reached the ledger; it will after the next start: %s", error)

    # Wiring.

    def _find_witnesses(self) -> Witnessing | None:
        """Who is asked for cosignatures; None where nobody is named and none is demanded."""
        if not self.settings.witness_urls and not self.trust.quorum:
            return None
        from tallystick.node.witnessing import Witnessing

        return Witnessing(self.ledger, self.trust, self.settings.witness_urls)

    def _open_core(self, folder: Path) -> NodeCore:
        ledger = self._open_ledger(folder)
        authority = folder / "authority.certificate"
        return NodeCore(
            self.trust,
            self.keys,
            ledger,
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

    def _gate(self) -> Gate:
        return Gate(self.identifier, self.keys.key, self.rules.verify_key, self.clock, on_junk=self._count_junk)

    def _count_junk(self, method: str, reason: str) -> None:
        self.carrier.scribe.count_junk(reason, int(Right.READ if method == "GET" else Right.WRITE))

    def _server(self) -> Server:
        rates = ConnectionRates(
            self.clock, self.settings.connection_bytes_per_s, self.settings.connection_requests_per_s
        )
        router = Router(charge=rates.charge)
        self.service.add_routes(router)
        add_health(router, self)
        tls = (
            server_tls(self.settings.tls_certificate, self.settings.tls_key) if self.settings.tls_certificate else None
        )
        settings = self.settings
        return Server(
            router,
            settings.host,
            settings.port,
            tls=tls,
            insecure=settings.insecure,
            on_stop=self.service.end_polls,
        )

    @property
    def _now_ms(self) -> int:
        return int(self.clock.now() * 1000)


def _claim(folder: Path) -> IO[str]:
    """One process a folder: the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Unavailable(f"{folder}: another process serves this folder") from None
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
