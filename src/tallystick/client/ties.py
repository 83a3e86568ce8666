"""What ties an identity to its instance: its view of the ledger, and writing there in its own name.

`View`: checkpoints that were accepted, and state proved under them. The node is asked and not believed: every
checkpoint goes through the memory (signatures and witnesses that the trust file demands, continuity with the last one),
every value through its proof. A head older than `head_age_max_s` is a withheld tail until the contrary is shown. Where
there are several nodes, what does not hold is asked of the others before it is an error: one that lies, or only lags,
stops nobody. Nor is it accused: as long as the newest head that we know is no older than that, nodes that show an older
one are behind, and nothing more; afterwards the ledger went back.

`Author`: entries under one signature, with numbers that only rise. The numbers of an identity are the microseconds of
its clock. Several processes may write in one name (the members of a group), and their clocks differ: whose number comes
too late asks what the last one was and goes on above it. The ledger judges numbers by the block that is being made and
shows them from one that is published, so the number in the way may not be shown yet. Then the author waits and tries
again, as long as a block may take to be published; after that the world is to blame, and the caller may try again
later.

The answer is not believed far: a node that names a number in the far future would otherwise silence the identity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from tallystick import wire
from tallystick.carriers.carrier import Carrier, Sharing
from tallystick.carriers.remote import RemoteNode
from tallystick.crypto.merkle_map import verify_map
from tallystick.errors import Refused, Unavailable, Withheld
from tallystick.identity.folder import Identity
from tallystick.ledger.block import Head, compose
from tallystick.ledger.contracts.identity import NUMBERS
from tallystick.ledger.contracts.state import Key, R
from tallystick.ledger.proofs import CheckpointMemory, Consistency, Lagging, StateProof
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.receipt import EntryProof, ProvenEntry

if TYPE_CHECKING:
    from tallystick.authority.client import AuthorityClient
    from tallystick.client.grants import Grants, KeySource


log = logging.getLogger(__name__)

T = TypeVar("T")
AskMany = Callable[[Sequence[bytes]], Sequence[StateProof]]

PUBLISHED_S = 15.0  # from a block until the witnesses have cosigned it; one of them may be slow


class LedgerSource(Protocol):
    """Where checkpoints and proofs come from; nothing of it is trusted."""

    def checkpoint(self) -> bytes: ...

    def consistency(self, old: int, new: int) -> Sequence[bytes]: ...

    def state(self, key: bytes) -> StateProof: ...


class View:
    def __init__(
        self,
        source: LedgerSource,
        memory: CheckpointMemory,
        clock: Clock,
        head_age_max_s: float,
        ask_another: Callable[[], int] = lambda: 1,
        nodes: int = 1,
    ) -> None:
        """`ask_another` has another node asked from then on, and tells at how many addresses the `nodes` are."""
        self._source, self._memory, self._clock, self._nodes = source, memory, clock, nodes
        self._head_age_max_s, self._ask_another = head_age_max_s, ask_another

    @property
    def head(self) -> Head | None:
        """The newest accepted checkpoint."""
        return self._memory.head

    @property
    def accepted(self) -> tuple[int, bytes] | None:
        """Its size and root, as headers carry them."""
        head = self.head
        return None if head is None else (head.size, head.root)

    def refresh(self) -> Head:
        """The newest checkpoint. Raises `Withheld` if it contradicts an earlier one, or is too old."""
        return self._of_any(lambda: self._accept(self.height, self._source.checkpoint()))

    def row(self, key: Key[R]) -> R | None:
        """The row under `key` in the newest state, None where it is proved absent."""
        return self.row_at(key)[0]

    def row_at(self, key: Key[R]) -> tuple[R | None, Head]:
        """The row, and the checkpoint under which it was proved."""
        return self.rows_at([key], lambda _: [self._source.state(key)])[0]

    def rows_at(self, keys: Sequence[Key[R]], ask: AskMany) -> list[tuple[R | None, Head]]:
        """The row of each key as `row_at` gives it; `ask` brings their proofs together, and is believed as little. A
        checkpoint that several of them came under is accepted once."""
        return self._of_any(lambda: self._rows_at(keys, ask))

    def _rows_at(self, keys: Sequence[Key[R]], ask: AskMany) -> list[tuple[R | None, Head]]:
        found: list[tuple[R | None, Head]] = []
        heads: dict[bytes, Head] = {}
        since = self.height
        for key, proof in zip(keys, ask(keys), strict=True):
            if proof.note not in heads:
                heads[proof.note] = self._accept(since, proof.note)
            head = heads[proof.note]
            verify_map(head.state_root, key, proof.value, proof.proof)
            row = None if proof.value is None else key.read(wire.decode(proof.value, "state value"))
            found.append((row, head))
        return found

    def remember(self, note: bytes, since: int | None = None) -> Head:
        """A checkpoint's head, however long ago it was made, if it continues what we know, or knew at the height
        `since`. Raises `Refused`, or `Lagging`."""
        known = self._memory.head
        may_lag = self._nodes > 1 and known is not None and self._age_s(known) <= self._head_age_max_s
        return self._memory.accept(note, self._source.consistency, since=since, may_lag=may_lag)

    def entry(self, proof: EntryProof) -> ProvenEntry:
        """An entry that lies under a checkpoint of our own history, at any height: what was written stays true.
        Raises `Refused`."""
        self.remember(proof.note, since=0)
        return proof.verify(self._memory.trust)

    def wait_for(self, key: Key[R], accept: Callable[[R | None], bool]) -> R | None:
        """The row under `key` as soon as it is acceptable: what one has just written may lie in a block that the
        witnesses have yet to cosign."""
        deadline = self._clock.monotonic() + PUBLISHED_S
        while not accept(row := self.row(key)):
            if self._clock.monotonic() > deadline:
                raise Unavailable(
                    f"ledger: what was written is not under a checkpoint after {PUBLISHED_S:g} s",
                    hint="its witnesses may be away",
                )
            self._clock.pause(0.05)
        return row

    def check_seen(
        self, size: int, root: bytes, consistency: Consistency | None = None, head: Head | None = None
    ) -> bool:
        """Hold a checkpoint that a publisher accepted against our own history: `Withheld` if they fork, False where it
        is newer. `consistency` may bring the proof from elsewhere, to this `head`."""
        return self._memory.check_seen(size, root, consistency or self._source.consistency, head)

    @property
    def height(self) -> int:
        """Of the newest checkpoint that we know; to be taken before a newer one is asked for, as another thread may
        bring one while we wait."""
        head = self.head
        return 0 if head is None else head.height

    def _accept(self, since: int, note: bytes) -> Head:
        return self._check_age(self.remember(note, since))

    def _of_any(self, ask: Callable[[], T]) -> T:
        """What one node shows that holds; the last one's refusal where none does."""
        asked = 1
        while True:
            try:
                return ask()
            except (Refused, Lagging) as error:
                if asked >= self._ask_another():
                    raise
                how = logging.INFO if isinstance(error, Lagging) else logging.WARNING
                log.log(how, "what a node shows of the ledger does not hold, another is asked: %s", error)
                asked += 1

    def _check_age(self, head: Head) -> Head:
        age_s = self._age_s(head)
        if age_s > self._head_age_max_s:
            raise Withheld(
                f"ledger: its newest checkpoint is {age_s:.0f} s old, accepted are {self._head_age_max_s:g}",
                reason="stale-head",
                hint="the node withholds newer ones, or the ledger stands still",
            )
        return head

    def _age_s(self, head: Head) -> float:
        return self._clock.now() - head.time_ms / 1000


PAUSE_S = 0.25  # a few attempts while a block is made, and no flood while one is not
AHEAD_MAX_US = 3_600_000_000  # an hour: how far clocks of one name may differ


class SubmitLedger(Protocol):
    def submit(self, transaction: bytes) -> None: ...

    def state(self, key: bytes) -> StateProof: ...


class Author:
    """Writes entries in the name of an identity, under rising numbers."""

    def __init__(self, identity: Identity, ledger: SubmitLedger, clock: Clock) -> None:
        self._identity, self._ledger, self._clock = identity, ledger, clock
        self._last = 0

    @property
    def principal(self) -> bytes:
        return self._identity.principal

    def write(self, *entry: bytes) -> None:
        """Submit one transaction of these entries, and return when it is in a block.

        Raises `Refused` as the contracts say, and `Unavailable` if others who write in this name stay in the way.
        """
        identity = self._identity
        deadline = self._clock.monotonic() + PUBLISHED_S
        while True:
            now_us = int(self._clock.now() * 1_000_000)
            self._last = max(self._last + 1, now_us)
            transaction = compose(identity.instance, identity.principal, self._last, entry, identity.signing_key)
            try:
                return self._ledger.submit(transaction.data)
            except Refused as error:
                if error.reason != "replayed":
                    raise
                refusal = error
            shown = self._last_on_ledger()
            if shown > now_us + AHEAD_MAX_US:
                raise refusal
            if self._clock.monotonic() >= deadline:
                raise Unavailable(
                    f"ledger: numbers of other processes of this name were in the way for {PUBLISHED_S:g} s",
                    hint="the ledger makes no blocks, its witnesses are away, or too many write in this name",
                ) from refusal
            if shown <= self._last:  # it lies in a block that is not shown yet
                self._clock.pause(PAUSE_S)
            self._last = max(self._last, shown)

    def _last_on_ledger(self) -> int:
        value = self._ledger.state(NUMBERS(self.principal)).value
        number = 0 if value is None else wire.decode(value, "number")
        return number if type(number) is int else 0


class Ties:
    """An identity and its ways to carrier, authority and ledger: a session, or what a Spark task was lent of one."""

    identity: Identity
    node: RemoteNode  # where permits, locks and the ledger are asked for
    carrier: Carrier  # where parcels go and come from: the node, or a way past it
    authority: KeySource
    view: View
    anchors: bool = True  # else no anchor covers what the carrier takes, and groups are kept at the node
    sharing: Sharing | None = None  # where the carrier brings secrets of lane keys
    clock: Clock
    entropy: Entropy
    grants: Grants | None  # keeps permits across starts, where there is one
    author: Author | None  # writes to the ledger, where there is one


class ReaderTies(Ties):
    """Those of a reader, who asks the authority for more than keys."""

    authority: AuthorityClient
