"""A node: the log carrier, the embedded ledger and their HTTP face, wired into one process.

Three threads besides the server's: one makes blocks when they are due, one writes operations and anchors to the
ledger and applies retention, one stores what is published. Stopping finishes the requests under way, commits what
waits, and closes the files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tallystick.carriers.log.carrier import LogCarrier, LogSettings
from tallystick.carriers.log.segments import Place
from tallystick.carriers.log.store import LogStore
from tallystick.carriers.quotas import Quota, Quotas
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.scribe import Scribe, ScribeSettings
from tallystick.carriers.service import CarrierService
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.guards.rules import GuardLimits
from tallystick.ledger import entries
from tallystick.ledger.block import Block
from tallystick.ledger.cache import RightsCache
from tallystick.ledger.engine import Submitted
from tallystick.ledger.sqlite import LedgerSettings, SqliteLedger
from tallystick.ledger.transaction import compose, parse
from tallystick.node.health import add_health
from tallystick.node.instance import open_node_keys
from tallystick.node.rates import ConnectionRates
from tallystick.node.settings import NodeSettings, read_settings
from tallystick.parcel.parcel import Parcel
from tallystick.runtime.address import server_tls
from tallystick.runtime.clock import Clock
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.gate import Gate
from tallystick.runtime.router import Router
from tallystick.runtime.server import Server, ServerLimits
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import Permit
from tallystick.trust.promise import ANCHOR_ENTRY, Anchor
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

SUBMIT_S = 30.0  # how long the node waits for a block of its own ledger


class Node:
    """A node over the folder that `create_instance` made; `start`, then `run` or use it as a context."""

    def __init__(self, folder: Path, clock: Clock, settings: NodeSettings | None = None) -> None:
        self._lock_file = _claim(folder)
        self.settings = settings or read_settings(folder)
        self.clock = clock
        self.trust = TrustFile.parse((folder / "trust.json").read_text())
        self.keys = open_node_keys(folder, self.trust)
        self.ledger = self._open_ledger(folder)
        self._enrol(folder)
        self._cache = RightsCache(self._state_value)
        self._cache_lock = threading.Lock()
        self.ledger.on_block(self._forget_changed)
        self.rules = LedgerRules(self.trust.instance, self._read, self.settings.late_epochs)
        self.carrier = self._open_carrier(folder)
        self._evidence: list[tuple[Permit, Parcel, Parcel]] = []
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.service = CarrierService(self.carrier, self.ledger, self._gate(), clock)
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
        for thread in self._threads:
            thread.join()
        try:
            self._commit_once_more()
        finally:
            self.carrier.close()
            self.ledger.close()
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
        """Write operations, anchors and evidence; then let go of what retention allows."""
        while self.carrier.commit(self.clock.now()) and not self._stopping.is_set():
            pass
        while self._evidence:
            permit, first, second = self._evidence[0]
            self._write_evidence(permit, first, second)
            self._evidence.pop(0)
        for place, below, root in self.carrier.retirable(
            self._now_ms, self.settings.retention_bytes or None, self.settings.retention_s * 1000 or None
        ):
            self._submit(self._compose(entries.retire(place.token, place.partition, below, root)))
            self.carrier.retire(place, below)

    def _commit_once_more(self) -> None:
        """What waits at the end: the block maker is gone, so make the block here."""
        ticking = threading.Event()

        def tick() -> None:
            while not ticking.wait(0.005):
                self.ledger.tick(self._now_ms)

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            self.carrier.commit(self.clock.now())
        except TallystickError as error:
            log.warning("not everything reached the ledger; it will after the next start: %s", error)
        finally:
            ticking.set()
            thread.join()

    # Wiring.

    def _open_ledger(self, folder: Path) -> SqliteLedger:
        settings = LedgerSettings(
            block_entries=self.settings.block_entries,
            window_ms=self.settings.window_ms,
            block_ms=self.settings.block_ms,
        )
        return SqliteLedger(str(folder / "ledger.sqlite"), self.trust, self.keys.ledger_key, self._now_ms, settings)

    def _open_carrier(self, folder: Path) -> LogCarrier:
        disk = RealDisk(folder / "log")
        anchors = self._anchors()
        store = LogStore(disk, anchored={place: size for place, (size, _, _) in anchors.items()})
        for line in store.recovery.lines():
            log.warning("log: %s", line)
        limits = GuardLimits()
        keep_s = limits.delay_max_s + 2 * limits.skew_max_s
        scribe = Scribe(
            self.trust.instance,
            self.identifier,
            self.keys.key,
            store.journal,
            self._submit,
            ScribeSettings(each=self.settings.operations == "each", keep_s=keep_s),
        )
        quota = Quota(self.settings.tenant_bytes_stored_max, float(self.settings.tenant_bytes_per_s))
        return LogCarrier(
            disk,
            store,
            self.rules,
            scribe,
            self._newest_block,
            self.identifier,
            self.keys.key,
            limits=limits,
            quotas=Quotas(quota),
            settings=LogSettings(),
            evidence=lambda permit, first, second: self._evidence.append((permit, first, second)),
            anchored=anchors,
            entry_proof=self._entry_proof,
        )

    def _gate(self) -> Gate:
        return Gate(self.identifier, self.keys.key, self.rules.verify_key, self.clock)

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
        limits = ServerLimits(stop_s=2)  # long polls may be cut: their callers ask again
        settings = self.settings
        return Server(router, settings.host, settings.port, tls=tls, insecure=settings.insecure, limits=limits)

    # The ledger.

    def _enrol(self, folder: Path) -> None:
        """The node's first transaction carries its own certificate, and that of the authority made with it: without
        it nobody could sign a request that this node would read."""
        wanted = [self.keys.certificate]
        if (folder / "authority.certificate").exists():
            wanted.append(Certificate.decode((folder / "authority.certificate").read_bytes()))
        missing = [one for one in wanted if self._state_value(b"identity/" + one.subject) is None]
        if missing:
            transaction = self._compose(*(entries.enrol(certificate) for certificate in missing))
            self.ledger.submit(transaction, self._now_ms)
            self.ledger.flush(self._now_ms)

    def _state_value(self, key: bytes) -> object:
        return self.ledger.query(lambda state: state.get(key))

    def _submit(self, transaction: bytes) -> Submitted:
        submitted = self.ledger.submit(transaction, self._now_ms)
        self.ledger.wait(submitted, SUBMIT_S)
        return submitted

    def _compose(self, *entry: bytes) -> bytes:
        number = int(self.clock.now() * 1_000_000)
        return compose(self.trust.instance, self.identifier, number, entry, self.keys.key).data

    def _write_evidence(self, permit: Permit, first: Parcel, second: Parcel) -> None:
        entry = entries.equivocation(
            permit.principal,
            permit.signing_key,
            first.header.encoded,
            first.signature,
            second.header.encoded,
            second.signature,
        )
        try:
            self._submit(self._compose(entry))
        except Refused as error:
            log.info("evidence was not taken: %s", error)

    def _anchors(self) -> dict[Place, tuple[int, int, int]]:
        """Each partition's newest anchor and where its entry lies: (size, transaction, entry)."""
        found: dict[Place, tuple[int, int, int]] = {}
        most = 1 << 20
        for key, value in self.ledger.scan(b"anchor/", most):
            place = Place(key[7:23], int.from_bytes(key[23:27], "big"))
            number, index = self._find_anchor(place, value[2])
            found[place] = (value[0], number, index)
        return found

    def _find_anchor(self, place: Place, height: int) -> tuple[int, int]:
        encoded, transactions = self.ledger.blocks(height, 1)[0]
        first = Block.decode(encoded).first
        for number, data in reversed(list(enumerate(transactions, first))):
            for index, entry in reversed(list(enumerate(parse(data).entries))):
                if entry[1:3] == b"\x18" + bytes([ANCHOR_ENTRY]):
                    anchor = Anchor.decode_entry(entry)
                    if (anchor.token, anchor.partition) == place:
                        return number, index
        raise Misuse(f"ledger: the anchor of {place} is not in block {height}", hint="run tally ledger fsck")

    def _entry_proof(self, number: int, index: int) -> EntryProof:
        receipt = self.ledger.receipt(number, index)
        return EntryProof(**{name: getattr(receipt, name) for name in EntryProof.__dataclass_fields__})

    def _newest_block(self) -> tuple[int, int]:
        height = self.ledger.height
        return height, self.ledger.block(height).time_ms

    def _read(self, key: bytes) -> object:
        with self._cache_lock:
            return self._cache.get(key, self._now_ms)

    def _forget_changed(self, block: Block, keys: object) -> None:
        with self._cache_lock:
            self._cache.invalidate(block, keys)  # type: ignore[arg-type]

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
