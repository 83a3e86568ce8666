"""The engine over a chain: `cometbft://host:port,…`, any of whose validators may lie or be away.

Threat: an endpoint that shows another history, an old one, or none. A checkpoint counts only with the note signatures
of as many validators as the trust file asks for (above two thirds), each fetched from a validator of its own and
checked alone, so one bad answer spoils nothing; receipts and values of the state are held to it, and an endpoint whose
proof fails is passed over. What has no proof (where a transaction lies or why it was refused, what a block changed,
blocks, histories, scans) is believed when f+1 validators signed the same answer with their note keys, of which at least
one is honest: keys are counted, not endpoints, and lists are asked for as of the newest checkpoint, so that honest
validators say the same. Otherwise the next endpoint is asked, and in the end the answer is `Unavailable`, never the
word of one. Threat: a transaction that is lost on the way. `submit` hands it in again, elsewhere, until it lies in a
block or was refused; the number in it makes that harmless.

On a chain a place is known only when the block is decided, so `submit` waits for it, and `wait` until the signed
checkpoint covers it. A thread follows the chain for `on_block`. Heights are watched, not processes: a chain that stands
still is named as such.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar

from tallystick import wire
from tallystick.errors import Forged, Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger.block import Block, Head, parse, read_head
from tallystick.ledger.cometbft import queries
from tallystick.ledger.cometbft.rpc import NOT_AN_ANSWER, Endpoints, RpcEndpoint, no_answer, raise_common
from tallystick.ledger.contracts.state import R, State, Table
from tallystick.ledger.engine import AuditItem, BlockListener, HistoryItem, LedgerStatistics, Query, Submitted
from tallystick.ledger.proofs import StateProof
from tallystick.runtime.counting import Counts
from tallystick.runtime.logs import Lasting
from tallystick.runtime.sources import Clock
from tallystick.trust.notes import Note, NoteSignature, ledger_verifiers
from tallystick.trust.receipt import EntryProof
from tallystick.trust.trustfile import TrustFile

log = logging.getLogger(__name__)

T = TypeVar("T")

UNTOLD_MAX = 1_024  # blocks that may wait for witnesses; beyond that everything is forgotten at once
_BLOCKS_KEPT = 64


@dataclass(frozen=True)
class ClientSettings:
    submit_s: float = 30.0  # from handing in to a block
    answer_s: float = 10.0  # for anything that is only read
    poll_s: float = 0.03  # between two looks for a new block; a block takes four times as long
    again_s: float = 5.0  # a transaction that lies in no block by then is handed in again
    halted_s: float = 20.0  # without a block: the chain stands
    lag_s: float = 0.5  # that validators may be behind the first one which has a new block
    keys_max: int = 65_536  # keys that were asked for, to be forgotten by all after a gap


def chain_id(instance: bytes) -> str:
    """The name of an instance's chain; CometBFT allows 50 letters."""
    return f"tally-{instance.hex()[:32]}"


class CometbftLedger:
    """An `Engine`; threads may share it."""

    def __init__(self, url: str, trust: TrustFile, clock: Clock, settings: ClientSettings = ClientSettings()) -> None:
        self.instance, self.origin = trust.instance, trust.origin
        self._trust, self._clock, self._settings = trust, clock, settings
        self._endpoints = Endpoints.parse(url, clock)
        if len(self._endpoints.all) < trust.ledger_threshold:
            raise Misuse(
                f'ledger "{url}": {trust.ledger_threshold} validators must sign a checkpoint, it names fewer',
                hint="name more of them, behind commas",
            )
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        self._listeners: list[BlockListener] = []
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._fetch_block = lru_cache(maxsize=_BLOCKS_KEPT)(self._ask_block)
        self._newest: tuple[int, Note] | None = None  # signed by enough validators
        self._published: Head | None = None  # and, where that is asked for, by witnesses
        self._untold: deque[tuple[Block, list[bytes]]] = deque()  # blocks above the published checkpoint
        self._telling = threading.RLock()
        self._collecting = threading.Lock()
        self._seen, self._seen_at = -1, clock.monotonic()  # the height up to which the chain was followed
        self._turn = 0
        self._entries, self._refusals = 0, Counts()
        self._stopping = threading.Event()
        try:
            self._endpoints.attempt(self._connect, settings.answer_s)
        except BaseException:
            self._endpoints.close()
            raise
        self._follower = threading.Thread(target=self._follow, name="chain", daemon=True)
        self._follower.start()

    def close(self) -> None:
        self._stopping.set()
        self._follower.join()
        self._endpoints.close()

    # --- writing ---

    def submit(self, data: bytes, now_ms: int) -> Submitted:
        transaction = parse(data)
        leaf, deadline = transaction.leaf, self._clock.monotonic() + self._settings.submit_s
        found = self._find(leaf)
        refused_before = found.height if isinstance(found, _Refusal) else -1  # it is tried again: that does not count
        again_at = 0.0
        while True:
            if isinstance(found, Submitted):
                self._entries += len(transaction.entries)
                return found
            if found is not None and found.height > refused_before:
                self._refusals.add(found.reason)
                raise Refused(found.message, reason=found.reason)
            now = self._clock.monotonic()
            if now >= deadline:
                raise self._not_placed()
            if now >= again_at:
                if again_at:
                    self._endpoints.turn()  # whoever took it before may have dropped it
                again_at = now + self._settings.again_s
                self._hand_in(data, deadline)
            with self._lock:
                height = self._seen
                self._grown.wait_for(lambda: self._seen > height, min(again_at, deadline) - now)  # noqa: B023
            found = self._find(leaf)

    def wait(self, submitted: Submitted, timeout_s: float) -> Block:
        """As every engine's; listeners hear of it later only where its checkpoint waits for witnesses. So nobody is
        told that a right is withdrawn while the guards of this node still go by it."""
        height, deadline = submitted.height, self._clock.monotonic() + timeout_s
        while self._signed(at_least=height)[0] < height or self._seen < height:
            if self._clock.monotonic() >= deadline:
                raise Unavailable(f"ledger: block {height} lacks the validators' signatures, or was not followed yet")
            self._clock.pause(self._settings.poll_s)
        self._tell()  # the thread that follows may be in the middle of it
        return self._fetch_block(height)

    def tick(self, now_ms: int) -> Block | None:
        """The validators make the blocks."""
        return None

    def flush(self, now_ms: int) -> Block | None:
        """Nothing waits here: `submit` returns when its transaction lies in a block."""
        return None

    def on_block(self, listener: BlockListener) -> None:
        self._listeners.append(listener)

    # --- checkpoints and proofs ---

    def checkpoint(self) -> bytes:
        return self._head().note

    def newest_note(self) -> bytes:
        return self._signed()[1].encode()

    def cosign(self, note: bytes) -> Head:
        head = read_head(note, self._trust)
        with self._lock:
            if self._published is None or head.height > self._published.height:
                self._published = head
        self._tell()
        return head

    def consistency(self, old: int, new: int) -> list[bytes]:
        return self._agreed("consistency", old, new, read=_octets_list)

    def receipt(self, number: int, entry: int) -> EntryProof:
        head = self._head()

        def believe(answer: Any) -> EntryProof:
            proof = replace(EntryProof.decode(answer), note=head.note)
            if (proof.number, proof.index) != (number, entry):
                raise Forged("receipt: it proves another entry")
            check(proof, self._trust)
            return proof

        return self._ask("receipt", number, entry, head.size, read=believe)

    def state(self, key: bytes) -> StateProof:
        head = self._head()

        def believe(answer: Any) -> StateProof:
            proof = replace(StateProof.decode(answer), note=head.note)
            if proof.key != key:
                raise Forged("state proof: it proves another key")
            check(proof, self._trust)
            return proof

        proof = self._ask("state", key, head.height, read=believe)
        with self._lock:
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._settings.keys_max:
                self._keys.popitem(last=False)
        return proof

    # --- reading ---

    @property
    def height(self) -> int:
        return self._head().height

    def block(self, height: int) -> Block:
        head = self._head()
        if height > head.height:
            raise Misuse(f"ledger: no block at height {height}, the newest is {head.height}")
        block = self._fetch_block(height)
        # The newest one is held to what the validators signed; the fields that only link blocks are asked for.
        signed, found = ((one.size, one.root, one.state_root, one.time_ms) for one in (head, block))
        if height == head.height and found != signed:
            raise Forged(f"ledger: block {height} is not the one that the validators signed")
        return block

    def blocks(self, first: int, most: int) -> list[tuple[bytes, list[bytes]]]:
        found: list[tuple[bytes, list[bytes]]] = []
        end = min(first + most, self.height + 1)
        while (at := first + len(found)) < end:
            page = self._agreed("blocks", at, end - at, read=_read_blocks, at_least=end - 1)
            if not page:
                break
            found += page
        return found

    def history(self, token: bytes, most: int = 1000, before: tuple[int, int] | None = None) -> list[HistoryItem]:
        top = self._head().height
        place = [top + 1, 0] if before is None else list(before)

        def items(found: Any) -> list[HistoryItem]:
            return [HistoryItem(*item) for item in found]

        return self._agreed("history", token, most, place, read=items, at_least=top)

    def audit(self, query: Query) -> list[AuditItem]:
        end = self._head().height + 1
        query = query._replace(end_height=end if query.end_height is None else min(query.end_height, end))
        return self._agreed("audit", *query, read=queries.read_audit, at_least=end - 1)

    def query(self, read: Callable[[State], T]) -> T:
        """`read` on the state under the newest checkpoint; every value that it looks at is proved."""
        return read(State(lambda key: self.state(key).value))

    def scan(self, table: Table[R], *parts: bytes | int, most: int = 1000) -> list[tuple[tuple[Any, ...], R]]:
        found: list[tuple[bytes, Any]] = []
        page, prefix, height = [(b"", None)], table.prefix(*parts), self._head().height
        while page and len(found) < most:
            question = (prefix, most - len(found), page[-1][0], height)
            page = self._agreed("scan", *question, read=_read_values, at_least=height)
            found += page
        return [(table.parts(key), table.read(value)) for key, value in found]

    def statistics(self) -> LedgerStatistics:
        with self._lock:
            head = self._published
        counted = self._entries, self._refusals.snapshot()
        if head is None:
            return LedgerStatistics(max(0, self._seen), 0, 0, 0, None, *counted)
        return LedgerStatistics(head.height, head.time_ms, head.size, 0, head.height, *counted)

    # --- within ---

    def _ask(self, name: str, *arguments: Any, read: Callable[[Any], T]) -> T:
        """What `read` makes of the first answer that it takes; an endpoint whose answer fails is as good as away."""

        def fetch(endpoint: RpcEndpoint) -> T:
            answer = endpoint.ask(name, *arguments)
            try:
                return read(answer)
            except (Refused, TypeError, ValueError, LookupError) as error:
                log.warning("%s: its answer to %s does not hold: %s", endpoint.name, name, error)
                raise Unavailable(f"{endpoint.name}: its answer does not hold: {error}") from error

        return self._endpoints.attempt(fetch, self._settings.answer_s)

    def _agreed(
        self,
        name: str,
        *arguments: Any,
        read: Callable[[Any], T],
        at_least: int = 0,
        timeout_s: float | None = None,
    ) -> T:
        """What `read` makes of the answer that f+1 validators signed, each when it had block `at_least`."""
        deadline = self._clock.monotonic() + (self._settings.answer_s if timeout_s is None else timeout_s)
        while True:
            try:
                return read(wire.decode(self._count(name, list(arguments), at_least), "answer"))
            except Unavailable:
                if self._clock.monotonic() + self._settings.poll_s >= deadline:
                    raise
            self._clock.pause(self._settings.poll_s)

    def _count(self, name: str, arguments: list[Any], at_least: int) -> bytes:
        """One round: the first endpoint sends the answer, the others what they signed of theirs, until it is enough."""
        needed, troubles = queries.voices_needed(self._trust), list[TallystickError]()
        voices: dict[bytes, set[bytes]] = {}  # by the answer's hash, the keys of those who signed it
        sent: dict[bytes, tuple[bytes, int]] = {}  # by its hash, the answer and whose it is

        def hear(endpoint: RpcEndpoint, which: int, *, whole: bool) -> bytes | None:
            said = endpoint.ask("vouch", name, arguments, at_least, whole)
            if said is None:
                troubles.append(Unavailable(f"{endpoint.name}: it has no height {at_least} yet"))
                return None
            key, signature, answer = said
            digest = sha256(answer).digest() if whole else answer
            statement = queries.vouched(self.instance, name, arguments, at_least, digest)
            queries.check_vouch(self._trust, key, signature, statement)
            voices.setdefault(digest, set()).add(key)
            if whole:
                sent[digest] = (answer, which)
            return digest

        for which, endpoint in self._endpoints.in_turn():
            try:
                digest = hear(endpoint, which, whole=not sent)
                if digest is None:
                    continue
                if len(voices[digest]) >= needed and digest not in sent:
                    hear(endpoint, which, whole=True)
            except (TallystickError, *NOT_AN_ANSWER) as error:
                self._endpoints.rest(which)
                level = logging.INFO if isinstance(error, Unavailable) else logging.WARNING  # away is no lie
                log.log(level, "%s: its answer to %s does not hold: %s", endpoint.name, name, error)
                told = error if isinstance(error, Misuse | Unavailable) else Unavailable(f"{endpoint.name}: {error}")
                troubles.append(told)
                continue
            if len(voices[digest]) >= needed and digest in sent:
                for other, (_, whose) in sent.items():
                    (self._endpoints.served if other == digest else self._endpoints.rest)(whose)
                return sent[digest][0]
        raise_common(troubles, len(self._endpoints.all))
        most = max(map(len, voices.values()), default=0)
        raise no_answer(f"ledger: {needed} validators must sign one answer to {name}, {most} did", troubles)

    def _find(self, leaf: bytes) -> Submitted | _Refusal | None:
        def read(found: Any) -> Submitted | _Refusal | None:
            match found:
                case None:
                    return None
                case [int(number), int(height), int(first)]:
                    return Submitted(leaf, number, height, first)
                case [int(height), str(reason), str(message)]:
                    return _Refusal(height, reason, message)
            raise Malformed("neither a place nor a refusal")

        return self._agreed("find", leaf, read=read, at_least=max(0, self._seen))

    def _connect(self, endpoint: RpcEndpoint) -> None:
        """Raise `Misuse` if the endpoint's application is not that of our chain."""
        try:
            network = str(endpoint.call("status")["node_info"]["network"])
            instance, *_ = endpoint.ask("status")
        except NOT_AN_ANSWER as error:
            raise Unavailable(f"{endpoint.name}: not an answer: {error}") from error
        expected = chain_id(self.instance)
        if network != expected:
            raise Misuse(
                f"{endpoint.name}: it serves chain {network}, expected {expected}",
                hint="the trust file is of another instance, or the address of another chain",
            )
        if instance != self.instance:
            raise Misuse(f"{endpoint.name}: its application is of another instance than {self.instance.hex()}")

    def _hand_in(self, data: bytes, deadline: float) -> None:
        """Bring a transaction into the mempool. Raises `Refused` if f+1 validators would not let it in."""

        def hand(endpoint: RpcEndpoint) -> list[str] | None:
            try:
                endpoint.broadcast(data)
            except Refused as refusal:
                said: list[str] | None = self._agreed("check", data, read=_read_refusal)
                if said is None:
                    raise Unavailable(f"{endpoint.name}: it alone refuses the transaction: {refusal}") from refusal
                return said
            return None

        refused = self._endpoints.attempt(hand, max(0.0, deadline - self._clock.monotonic()))
        # A number that is taken may be this transaction's own, handed in before and in a block by now.
        if refused is not None and (refused[0] != "replayed" or self._find(parse(data).leaf) is None):
            self._refusals.add(refused[0])
            raise Refused(refused[1], reason=refused[0])

    def _not_placed(self) -> Unavailable:
        stands_s = self._clock.monotonic() - self._seen_at
        if stands_s >= self._settings.halted_s:
            return Unavailable(
                f"ledger: the chain stands at height {self._seen} since {stands_s:.0f} s",
                hint="more than a third of its validators are away or differ: tally chain status",
            )
        return Unavailable("ledger: the transaction lies in no block yet", hint="submit the same bytes again")

    def _ask_block(self, height: int) -> Block:
        def read(answer: Any) -> Block:
            block = Block.decode(answer)
            if block.height != height:
                raise Forged(f"block {height} expected, found {block.height}")
            return block

        return self._agreed("block", height, read=read, at_least=height)

    # --- checkpoints of two thirds ---

    def _head(self) -> Head:
        """The newest checkpoint that may be shown: signed by the validators, and cosigned where that is asked for."""
        if self._trust.quorum == 0:
            self._signed()
        with self._lock:
            if self._published is None:
                raise Unavailable("ledger: no checkpoint has the witnesses' quorum yet", hint="start the witnesses")
            return self._published

    def _signed(self, at_least: int | None = None) -> tuple[int, Note]:
        """Height and note of the newest checkpoint with enough validators; collected again when the chain has grown."""
        with self._lock:
            known, wanted = self._newest, self._seen if at_least is None else at_least
        if known is not None and known[0] >= wanted:
            return known
        with self._collecting:
            with self._lock:
                known = self._newest
            if known is not None and known[0] >= wanted:
                return known
            deadline = self._clock.monotonic() + self._settings.answer_s
            while True:
                try:
                    found = self._collect()
                    break
                except Unavailable:
                    if known is not None:
                        return known
                    if self._clock.monotonic() >= deadline:
                        raise
                self._clock.pause(self._settings.poll_s)  # nothing is known yet: validators may be starting
            if known is not None and known[0] >= found[0]:
                return known
            head = read_head(found[1].encode(), self._trust) if self._trust.quorum == 0 else None
            with self._lock:
                self._newest = found
                self._published = head or self._published
        self._tell()
        return found

    def _collect(self) -> tuple[int, Note]:
        threshold = self._trust.ledger_threshold
        heights: dict[RpcEndpoint, int] = {}
        troubles: list[str] = []
        awake = self._endpoints.awake()
        for which, endpoint in awake if len(awake) >= threshold else self._endpoints.in_turn():
            try:
                heights[endpoint] = self._height_of(endpoint)
            except Unavailable as error:
                self._endpoints.rest(which)
                troubles.append(str(error))
        if len(heights) < threshold:
            raise Unavailable(
                f"ledger: {threshold} validators must sign a checkpoint, {len(heights)} answer"
                + (f": {'; '.join(troubles)}" if troubles else ""),
                hint="tally chain status shows who is away",
            )
        height = sorted(heights.values(), reverse=True)[threshold - 1]
        texts: dict[str, dict[bytes, NoteSignature]] = {}
        for endpoint in [one for one, reached in heights.items() if reached >= height]:
            with suppress(TallystickError, *NOT_AN_ANSWER):
                self._add_signatures(endpoint, endpoint.ask("note", height), texts)
        text, signatures = max(texts.items(), key=lambda item: len(item[1]), default=("", {}))
        if len(signatures) < threshold:
            raise Unavailable(
                f"ledger: {len(signatures)} of {threshold} validators signed the checkpoint of {height}",
                hint="they differ, or the trust file names other keys than theirs: tally chain status",
            )
        return height, Note(text, tuple(signatures.values()))

    def _height_of(self, endpoint: RpcEndpoint) -> int:
        try:
            return int(endpoint.ask("status", timeout_s=self._settings.answer_s / 4)[1])
        except (Misuse, Refused, *NOT_AN_ANSWER) as error:
            raise Unavailable(f"{endpoint.name}: it does not say its height: {error}") from error

    def _add_signatures(self, endpoint: RpcEndpoint, data: bytes, texts: dict[str, dict[bytes, NoteSignature]]) -> None:
        """The good ones of one endpoint's note."""
        verifiers = {(one.name, one.key_id): one for one in ledger_verifiers(self._trust)}
        try:
            note = Note.decode(data)
            for signature in note.signatures:
                verifier = verifiers.get((signature.name, signature.key_id))
                if verifier is not None:
                    verifier.verify(note.text, signature.signature)
                    texts.setdefault(note.text, {})[verifier.key.raw] = signature
        except (Forged, Malformed) as error:
            log.warning("%s: its checkpoint does not verify: %s", endpoint.name, error)

    # --- following ---

    def _follow(self) -> None:
        lasting = Lasting(log, "the chain cannot be followed")
        while not self._stopping.wait(self._settings.poll_s):
            try:
                page = self._look()
            except TallystickError as error:
                lasting.tell(str(error))
                continue
            if page and lasting.text:
                lasting.tell("")
            if page:
                self._pass_on(page)
                with suppress(Unavailable):
                    self._signed()  # before anybody waits for it

    def _look(self) -> list[tuple[Block, list[bytes] | None]]:
        """Return the blocks that are new, each with the keys that it changed, or None where nobody knows them any
        more.

        Every endpoint has its turn to say that there is something new, so none can hide it; what it is, f+1 say.
        """
        awake = self._endpoints.awake() or self._endpoints.in_turn()
        self._turn += 1
        which, endpoint = awake[self._turn % len(awake)]
        try:
            newest = self._height_of(endpoint)
            begins = self._seen < 0  # then what came before is not told: whatever was asked for is to be forgotten
            first = newest if begins else self._seen + 1
            end = min(newest, first + queries.BLOCKS_MAX - 1) + 1
            if first >= end:
                return []
            with suppress(Unavailable):
                return self._changes(first, end, with_keys=not begins)
            # Who was restarted has forgotten the keys, and differs from the others in that alone.
            return self._changes(first, end, with_keys=False)
        except TallystickError:
            self._endpoints.rest(which)  # it does not answer, or promised more than there is
            raise

    def _changes(self, first: int, end: int, *, with_keys: bool) -> list[tuple[Block, list[bytes] | None]]:
        def read(answer: Any) -> list[tuple[Block, list[bytes] | None]]:
            found = [(Block.decode(block), None if keys is None else _octets_list(keys)) for block, keys in answer]
            if [block.height for block, _ in found] != list(range(first, end)):
                raise Malformed("not the blocks that were asked for")
            return found

        question, lag_s = (first, end, with_keys), self._settings.lag_s
        return self._agreed("changes", *question, read=read, at_least=end - 1, timeout_s=lag_s)

    def _pass_on(self, page: list[tuple[Block, list[bytes] | None]]) -> None:
        with self._lock:
            everything = list(self._keys)  # after a gap whatever was asked for is to be forgotten
            self._seen, self._seen_at = page[-1][0].height, self._clock.monotonic()
            self._grown.notify_all()
            self._untold += [(block, everything if keys is None else keys) for block, keys in page]
            if len(self._untold) > UNTOLD_MAX:  # witnesses are away
                self._untold = deque([(page[-1][0], everything)])
        self._tell()

    def _tell(self) -> None:
        """Listeners hear of a block once the published checkpoint covers it: before, whatever they forgot would be read
        again as it was, and kept."""
        with self._telling:
            while True:
                with self._lock:
                    published = -1 if self._published is None else self._published.height
                    if not self._untold or self._untold[0][0].height > published:
                        return
                    told = self._untold.popleft()
                for listener in self._listeners:
                    listener(*told)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A block came by, and the contracts did not take the transaction."""

    height: int
    reason: str
    message: str


def check(proof: EntryProof | StateProof, trust: TrustFile) -> None:
    """Raise `Forged` unless the proof holds under the checkpoint in it."""
    proof.verify(trust)


def _octets_list(answer: Any) -> list[bytes]:
    if not isinstance(answer, list) or not all(type(one) is bytes for one in answer):
        raise Malformed("not a list of byte strings")
    return answer


def _read_blocks(answer: Any) -> list[tuple[bytes, list[bytes]]]:
    return [(Block.decode(block).encoded, _octets_list(rows)) for block, rows in answer]


def _read_refusal(answer: Any) -> list[str] | None:
    match answer:
        case None | [str(), str()]:
            return answer
    raise Malformed("neither a refusal nor none")


def _read_values(answer: Any) -> list[tuple[bytes, Any]]:
    return [(key, wire.decode(value)) for key, value in answer]
