"""The contracts as an application of CometBFT: one file, the same book as the embedded engine, blocks from consensus.

Threat: validators who differ. `finalize_block` is a function of file and block alone: it parses and executes every
transaction again, whatever was checked before, and gives the app hash over tree and state; a validator with another
result cannot follow the chain. Threat: a crash anywhere. Nothing is kept before `commit`, which is one synced
transaction of the file; what was finalised and not committed comes again. Threat: junk. `check_tx` lets in what parses
and is signed by a live author with a new number, which costs one signature and no contract; who certified a stranger is
asked first, and an author whose transactions are refused in blocks again and again waits; a proposal that holds what
does not even parse is refused, because no honest mempool does.

A block's checkpoint is signed by this validator's own note key and stored with the block; two thirds of such notes make
a checkpoint that clients believe. A key may therefore sign one text for a height only: `commit` signs what consensus
decided. The same key signs, in a context of its own, what `vouch` answers from committed blocks. The genesis names the
first trust file; validators that were told of another instance refuse to begin.

Queries read through a connection of their own; only proofs, which are quick, take the lock of the consensus methods.
Snapshots are cut by a thread of its own, from a version of the file that its connection holds fast.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from tallystick import wire
from tallystick.abci import messages as m
from tallystick.abci.application import Application
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Refused, TallystickError
from tallystick.ledger.block import Transaction, checkpoint_text, compiled, parse, sign_checkpoint
from tallystick.ledger.book import Book, SealedBlock, found
from tallystick.ledger.cometbft import queries
from tallystick.ledger.cometbft.roots import STORE, app_hash_of, prove, value_of
from tallystick.ledger.cometbft.snapshot import FORMAT, Description, Restore, Shelf
from tallystick.ledger.contracts.execute import admit, released
from tallystick.ledger.engine import Query
from tallystick.ledger.sqlite_store import LedgerReader, LedgerStore
from tallystick.runtime.router import Buckets, Rate
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

APP_VERSION = 1  # genesis and `info` agree on it; it changes when old nodes could not follow
REFUSED_RATE = Rate(1.0, 100)  # of an author's transactions in blocks: a node that looks for a bad entry sends some ten
REFUSED = 1  # the code of a transaction that the contracts do not take
_INITIAL = "initial height"  # of the chain, in the file: what lies below came from elsewhere


@dataclass(frozen=True)
class ChainSettings:
    versions_max: int = 128  # blocks whose state can be proved; some 300 bytes for each changed key
    follow_max: int = 1_024  # blocks whose changed keys are remembered for those who follow
    refusals_max: int = 16_384  # refused transactions whose reason is remembered
    parsed_bytes_max: int = 32 << 20  # of transactions that are held parsed: eight full blocks
    snapshot_blocks: int = 1_000  # a snapshot every so many; 0: none
    snapshots_kept: int = 2  # the one that is being fetched, and the next


class _Window:
    """A reader with a connection of its own, for one of the node's connections."""

    def __init__(self, path: str) -> None:
        self._reader = LedgerReader(LedgerStore(path))
        self._lock = threading.Lock()
        self.changed: deque[tuple[bytes, ...]] = deque()  # keys, for each block that was stored since it was used

    @contextmanager
    def open(self) -> Iterator[LedgerReader]:
        with self._lock:
            self.refresh()
            yield self._reader

    def refresh(self) -> None:
        """Forget what blocks have changed; for whoever has it open."""
        while self.changed:
            self._reader.view.refresh(self.changed.popleft())

    def close(self) -> None:
        with self._lock:
            self._reader.store.close()


class LedgerApplication(Application):
    """One validator's ledger in the file `path`; `key` is its note key."""

    def __init__(
        self,
        path: str,
        trust: TrustFile,
        key: SigningKey,
        settings: ChainSettings = ChainSettings(),
        agreed_block: Callable[[int], bytes] | None = None,
        first_height: int | None = None,
    ) -> None:
        """`agreed_block` asks the validators for the block of a height; without it no snapshot is taken in.

        `first_height` is that of the genesis: a file that ends below it, be it that of another chain, has nothing of
        this one yet. Without it the file alone says where its chain began.
        """
        self._agreed_block, self._first_height = agreed_block, first_height
        self._restore: Restore | None = None
        self.shelf = Shelf(path, settings.snapshot_blocks, settings.snapshots_kept)
        self.instance, self.origin = trust.instance, trust.origin
        self._path, self._key, self._settings = path, key, settings
        self._lock = threading.RLock()
        self._store = LedgerStore(path)
        self._book: Book | None = None
        self._asked: _Window | None = None
        self._checked: _Window | None = None
        self._sealed: SealedBlock | None = None
        self._transactions: OrderedDict[bytes, Transaction] = OrderedDict()  # parsed, the oldest first
        self._transactions_bytes = 0
        self._parsing = threading.Lock()
        self._refused_now: dict[bytes, list[Any]] = {}
        self._refusals: OrderedDict[bytes, list[Any]] = OrderedDict()
        self._refused_by: Buckets[bytes] = Buckets(settings.refusals_max)
        self._changes: deque[tuple[int, tuple[bytes, ...]]] = deque(maxlen=settings.follow_max)
        questions = [name for name in dir(self) if name.startswith("_ask_")]
        self._methods = {name.removeprefix("_ask_"): getattr(self, name) for name in questions}
        compiled()  # now, not in the first large block
        height = self._store.last_height()
        self.shelf.forget_above(-1 if height is None else height)
        if height is not None:
            self._load()

    def close(self) -> None:
        self.shelf.close()
        for window in (self._asked, self._checked):
            if window is not None:
                window.close()  # before the lock is taken: a question that has the window may wait for the lock
        with self._lock:
            self._store.close()

    @property
    def book(self) -> Book:
        if self._book is None:
            raise Misuse("ledger: the chain has not begun")
        return self._book

    def info(self, request: m.RequestInfo) -> m.ResponseInfo:
        with self._lock:
            known = m.ResponseInfo(data="tallystick", version=version("tallystick"), app_version=APP_VERSION)
            initial = self._first_height or self._store.meta(_INITIAL)
            if self._book is None or initial is None or self._book.last.height < initial:
                return known  # height 0: the node begins with `init_chain`
            last = self._book.last
            return replace(known, last_block_height=last.height, last_block_app_hash=app_hash_of(last))

    # --- consensus ---

    def init_chain(self, request: m.RequestInitChain) -> m.ResponseInitChain:
        with self._lock:
            trust, checkpoint = _read_genesis(request.app_state_bytes)
            if trust.instance != self.instance:
                raise Misuse(f"genesis: of instance {trust.instance.hex()}, this validator is of {self.instance.hex()}")
            time_ms = request.time.ms if request.time is not None else 0
            if self._book is None:
                found(self._store, trust, time_ms, self._key)
                self._load()
            last, initial = self.book.last, request.initial_height
            if last.height != initial - 1:
                raise Misuse(
                    f"genesis: the chain begins at height {initial}, the ledger here is at {last.height}",
                    hint="begin with the snapshot that the genesis names, or with an empty folder",
                )
            if checkpoint != (checkpoint_text(self.origin, last) if last.height else ""):
                raise Forged(
                    f"genesis: the ledger here is not at the checkpoint that it names for height {last.height}"
                )
            self._store.set_meta(_INITIAL, initial)
            return m.ResponseInitChain(app_hash=app_hash_of(last))

    def process_proposal(self, request: m.RequestProcessProposal) -> m.ResponseProcessProposal:
        for data in request.txs:
            try:
                self._parsed(data)
            except Refused as refusal:
                log.warning("a proposal for height %d is refused: %s", request.height, refusal)
                return m.ResponseProcessProposal(m.Verdict.REJECT)
        return m.ResponseProcessProposal(m.Verdict.ACCEPT)

    def finalize_block(self, request: m.RequestFinalizeBlock) -> m.ResponseFinalizeBlock:
        with self._lock:
            book = self.book
            if book.open is not None:
                book.drop()  # finalised before a crash of the node, and never committed
            if request.height != book.last.height + 1:
                raise Misuse(f"height {book.last.height + 1} expected, found {request.height}")
            book.begin(request.time.ms if request.time is not None else 0)
            self._refused_now = {}
            results = tuple(self._run(book, data) for data in request.txs)
            self._sealed = book.seal()
            return m.ResponseFinalizeBlock(tx_results=results, app_hash=app_hash_of(self._sealed.block))

    def _run(self, book: Book, data: bytes) -> m.ExecTxResult:
        try:
            transaction = self._parsed(data)
        except Refused as refusal:
            return m.ExecTxResult(code=REFUSED, codespace=refusal.reason, log=str(refusal))
        result, submitted = book.run(transaction)
        if result.accepted:
            return m.ExecTxResult()
        self._refused_now[submitted.leaf] = [submitted.height, result.reason, result.told]
        self._refused_by.take(transaction.author, REFUSED_RATE, 1, book.last.time_ms / 1000)
        return m.ExecTxResult(code=REFUSED, codespace=result.reason, log=result.told)

    def commit(self, request: m.RequestCommit) -> m.ResponseCommit:
        with self._lock:
            book, sealed = self.book, self._sealed
            if sealed is None:
                raise Misuse("commit: no block was finalised")
            book.keep(sign_checkpoint(self.origin, sealed.block, self._key), can_undo=True)
            self._sealed = None
            book.forget_before(sealed.block.height - self._settings.versions_max)
            keys = tuple(sealed.changes)
            self._changes.append((sealed.block.height, keys))
            for window in (self._asked, self._checked):
                if window is not None and keys:
                    window.changed.append(keys)
            self._refusals.update(self._refused_now)
            while len(self._refusals) > self._settings.refusals_max:
                self._refusals.popitem(last=False)
            self.shelf.committed(sealed.block)
            return m.ResponseCommit()

    # --- snapshots ---

    def list_snapshots(self, request: m.RequestListSnapshots) -> m.ResponseListSnapshots:
        return self.shelf.offered()

    def load_snapshot_chunk(self, request: m.RequestLoadSnapshotChunk) -> m.ResponseLoadSnapshotChunk:
        return m.ResponseLoadSnapshotChunk(self.shelf.chunk(request.height, request.format, request.chunk))

    def offer_snapshot(self, request: m.RequestOfferSnapshot) -> m.ResponseOfferSnapshot:
        offered = request.snapshot
        if offered is None or self._book is not None or self._agreed_block is None:
            return m.ResponseOfferSnapshot(m.OfferResult.ABORT)
        if offered.format != FORMAT:
            return m.ResponseOfferSnapshot(m.OfferResult.REJECT_FORMAT)
        try:
            description = Description.decode(offered.metadata)
            if (description.block.height, description.chunks) != (offered.height, offered.chunks):
                raise Forged("snapshot: height and chunks are not those of its description")
            self._restore = Restore(description, request.app_hash, self._agreed_block(offered.height))
        except TallystickError as error:
            log.warning("a snapshot of height %d is refused: %s", offered.height, error)
            return m.ResponseOfferSnapshot(m.OfferResult.REJECT)
        return m.ResponseOfferSnapshot(m.OfferResult.ACCEPT)

    def apply_snapshot_chunk(self, request: m.RequestApplySnapshotChunk) -> m.ResponseApplySnapshotChunk:
        restore = self._restore
        if restore is None:
            return m.ResponseApplySnapshotChunk(m.ApplyResult.ABORT)
        try:
            restore.apply(request.index, request.chunk)
        except Refused as error:
            log.warning("chunk %d of %s is refused: %s", request.index, request.sender, error)
            return m.ResponseApplySnapshotChunk(m.ApplyResult.RETRY, (request.index,), (request.sender,))
        if restore.is_whole:
            self._take_in(restore)
            self._restore = None
        return m.ResponseApplySnapshotChunk(m.ApplyResult.ACCEPT)

    def _take_in(self, restore: Restore) -> None:
        block = restore.description.block
        with self._lock:
            note = sign_checkpoint(self.origin, block, self._key)
            self._store.restore(block.height, block.encoded, note, restore.leaves(), restore.items())
            self._store.set_meta(_INITIAL, block.height)
            self._load()

    # --- mempool ---

    def check_tx(self, request: m.RequestCheckTx) -> m.ResponseCheckTx:
        if self._checked is None:
            return m.ResponseCheckTx(code=REFUSED, codespace="not-begun", log="the chain has not begun")
        try:
            with self._parsing:
                known = self._transactions.get(request.tx)
            transaction = known or parse(request.tx)
            with self._checked.open() as reader:
                last = self.book.last
                self._check_patience(transaction.author, last.time_ms / 1000)
                admit(reader.view, transaction, last.height + 1, last.time_ms)
            self._remember(transaction)
        except Refused as refusal:
            return m.ResponseCheckTx(code=REFUSED, codespace=refusal.reason, log=str(refusal))
        return m.ResponseCheckTx()

    def _check_patience(self, author: bytes, now_s: float) -> None:
        """Refused transactions leave no trace that could be counted on the ledger; each validator counts for itself."""
        wait_s = self._refused_by.wait_s(author, REFUSED_RATE, 1, now_s)
        if wait_s:
            raise Refused(f"too many of the author's were refused: {wait_s:.0f} s to wait", reason="slow-down")

    # --- queries ---

    def query(self, request: m.RequestQuery) -> m.ResponseQuery:
        if self._asked is None:
            return m.ResponseQuery(code=2, log="the chain has not begun", info="wait for its first block")
        with self._asked.open() as reader:
            if request.path == f"/store/{STORE.decode()}/key":
                return self._query_root(reader, request)
            return queries.answer(request.path, request.data, self._methods, reader)

    def _query_root(self, reader: LedgerReader, request: m.RequestQuery) -> m.ResponseQuery:
        """For CometBFT's own light client: the header that commits to a block is the next one, so prove the one before
        the newest."""
        try:
            block = reader.block(request.height or max(0, self.book.last.height - 1))
            value = value_of(block, request.data)
            ops = prove(block, request.data) if request.prove else None
            return m.ResponseQuery(key=request.data, value=value, proof_ops=ops, height=block.height)
        except TallystickError as error:
            return m.ResponseQuery(code=3, log=str(error), key=request.data)

    # What may be asked (`queries`): each gets a reader of the stored ledger and the arguments of the question.

    def _ask_status(self, _: LedgerReader) -> list[Any]:
        last = self.book.last
        contracts = [[*one] for one in released().items()]
        return [self.instance, last.height, last.size, last.time_ms, self._key.public.raw, contracts]

    def _ask_vouch(
        self, reader: LedgerReader, name: str, arguments: list[Any], at_least: int, whole: bool
    ) -> list[Any] | None:
        """This validator's key, its signature under the answer to `name`, and the answer, or its hash if not `whole`.

        None if the block of height `at_least` is not here yet.
        """
        if name not in queries.VOUCHED:
            raise Misuse(f"{name[:80]}: no answer that is vouched for")
        with self._lock:  # so that of a block which counts here everything is known
            height = self.book.last.height
        if height < at_least:
            return None
        assert self._asked is not None
        self._asked.refresh()
        value = wire.encode(self._methods[name](reader, *arguments))
        digest = sha256(value).digest()
        statement = queries.vouched(self.instance, name, arguments, at_least, digest)
        return [self._key.public.raw, self._key.sign(queries.VOUCH, statement), value if whole else digest]

    def _ask_note(self, reader: LedgerReader, height: int) -> bytes:
        return reader.note(height)

    def _ask_find(self, reader: LedgerReader, leaf: bytes) -> list[Any] | None:
        """`[number, height, first]`, `[height, reason, message]` of the last refusal that is remembered, or None."""
        placed = reader.store.find(leaf)
        return self._refusals.get(leaf) if placed is None else [placed.number, placed.height, placed.first]

    def _ask_check(self, _: LedgerReader, data: bytes) -> list[str] | None:
        """`[reason, message]` if the transaction would not be let in now, or None."""
        checked = self.check_tx(m.RequestCheckTx(data))
        return None if checked.code == m.OK else [checked.codespace, checked.log]

    def _ask_follow(self, reader: LedgerReader, since: int) -> list[Any]:
        """The newest height, and what `changes` says of those above `since`."""
        newest = self.book.last.height
        return [newest, self._ask_changes(reader, since + 1, newest + 1, True)]

    def _ask_changes(self, reader: LedgerReader, first: int, end: int, with_keys: bool) -> list[Any]:
        """Block and changed keys of these heights; keys are null where forgotten, or not asked for."""
        changes = dict(self._changes) if with_keys else {}
        heights = range(max(first, 0), min(end, first + queries.BLOCKS_MAX))
        return [[reader.block(height).encoded, changes.get(height)] for height in heights]

    def _ask_block(self, reader: LedgerReader, height: int) -> bytes:
        return reader.block(height).encoded

    def _ask_blocks(self, reader: LedgerReader, first: int, most: int) -> list[Any]:
        found: list[Any] = []
        size = 0
        for height in range(first, first + min(most, queries.BLOCKS_MAX)):
            page = reader.blocks(height, 1)
            size += sum(len(data) for _, rows in page for data in rows)
            if not page or (found and size > queries.ANSWER_BYTES_MAX // 2):
                break
            found += page
        return found

    def _ask_receipt(self, _: LedgerReader, number: int, entry: int, size: int) -> bytes:
        with self._lock:
            return self.book.receipt(number, entry, size, b"").encode()

    def _ask_state(self, _: LedgerReader, key: bytes, height: int) -> bytes:
        with self._lock:
            return self.book.prove(key, height, b"").encode()

    def _ask_consistency(self, _: LedgerReader, old: int, new: int) -> list[bytes]:
        with self._lock:
            return self.book.tree.consistency(old, new)

    def _ask_history(self, reader: LedgerReader, token: bytes, most: int, before: list[int] | None) -> list[Any]:
        place = None if before is None else (before[0], before[1])
        found = reader.history(token, min(most, queries.ITEMS_MAX), place)
        return [[item.height, item.index, item.entry] for item in found]

    def _ask_audit(self, reader: LedgerReader, *fields: Any) -> list[Any]:
        query = Query(*fields)
        return queries.write_audit(reader.audit(query._replace(most=min(query.most, queries.ITEMS_MAX))))

    def _ask_scan(
        self, reader: LedgerReader, prefix: bytes, most: int, after: bytes, height: int | None = None
    ) -> list[Any]:
        most = max(0, min(most, queries.VALUES_MAX))
        if height is None:  # clients of older releases
            return list(reader.store.values(prefix, most, after))
        with self._lock:
            return self.book.scan(prefix, most, after, height)

    # --- within ---

    def _parsed(self, data: bytes) -> Transaction:
        """`parse`, once for check, proposal and block: it is a function of the bytes alone."""
        with self._parsing:
            known = self._transactions.get(data)
        transaction = known or parse(data)
        self._remember(transaction)
        return transaction

    def _remember(self, transaction: Transaction) -> None:
        data = transaction.data
        with self._parsing:
            if data not in self._transactions:
                self._transactions_bytes += len(data)
            self._transactions[data] = transaction
            self._transactions.move_to_end(data)
            while self._transactions_bytes > self._settings.parsed_bytes_max:
                oldest, _ = self._transactions.popitem(last=False)
                self._transactions_bytes -= len(oldest)

    def _load(self) -> None:
        self._book = Book(self._store, self.instance)
        self._asked, self._checked = _Window(self._path), _Window(self._path)


def genesis_state(trust: TrustFile, checkpoint: str = "") -> dict[str, str]:
    """What a genesis file holds as `app_state`; `checkpoint` is the text of the one that the chain goes on from, which
    names tree and state root of a ledger that every validator has."""
    return {"trust": trust.to_json(), "checkpoint": checkpoint}


def _read_genesis(data: bytes) -> tuple[TrustFile, str]:
    try:
        state = json.loads(data)
        return TrustFile.parse(state["trust"]), str(state["checkpoint"])
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed("genesis: its app_state does not name a trust file") from error
