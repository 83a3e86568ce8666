"""The mesh: who may hold a topic's mesh keys, publish there, and be a node (AnonPubSub 4.2, with an authority for TTP).

Threat: keys without a right behind them. Rights are read from the proven state of the ledger each time. Threat: a
member that is revoked and holds keys of epochs to come. Every topic has a *renewal*, a number that goes into its mesh
keys; it rises when somebody loses what it was given, and so the keys and pseudonyms of later epochs are others.
A revocation counts from the next epoch; in the last `mesh_notice_s` of an epoch from the one after, so that all who
look in that time come to the next epoch with the same keys. What remains: a member that does not look goes on under the
old keys with those who did not either, the revoked among them, until its last epoch ends. Bodies stay closed: they are
sealed under topic keys, of which the revoked gets no more.

Threat: one publisher with many keys, each with a share of every node's memory; one principal with many nodes, which
surround others (a Sybil). A publisher's key is drawn here, from its principal, the pseudonym and the epoch, so that
there is one, whoever asks how often. A node has one lasting key until its certificate ends, also if its principal gets
other keys meanwhile. Nobody is asked to show that a lasting key is its own: certificates name no holder, so one for
another's key serves only that other, and whoever asks has spent its own place. A refusal of keys that others have
would tell who they are.

Threat: an authority restored from a backup, which lacks the renewals since. Renewals are times, so none is drawn twice,
and after a restore all topics are renewed from the current epoch on: until the next, whoever asks after the restore
does not meet whoever asked before. Keys of nodes that were certified since the backup are forgotten: a principal may
have a second one beside them until they end.

Updates (`update`) are answers for those who did not ask; the owner of a topic gets those of all its members, sealed,
and publishes them. They go to whoever has the rights still, and so does a place that they prolong: a principal that
wants another node says so by asking, and its old one ends.

Left out: a blacklisted principal gets nothing more, but what it has is not renewed for others. A revoked principal's
node stays a member until its certificate ends, at the end of the epoch after the one in which it asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeVar

from tallystick.authority.answers import Caller
from tallystick.authority.core import Core
from tallystick.authority.mesh_messages import (
    ANSWER_BYTES,
    EPOCHS_MAX,
    UPDATES_AT_ONCE,
    MeshAnswer,
    MeshRefusal,
    MeshRequest,
    MeshUpdate,
    MeshUpdatesPage,
    MeshUpdatesRequest,
    update_for_nobody,
)
from tallystick.authority.mesh_terms import MeshTerms
from tallystick.authority.subjects import Subjects
from tallystick.authority.topics import NEEDED, Topics, unknown
from tallystick.crypto import hpke
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Refused, Unavailable
from tallystick.ledger.contracts import reputation
from tallystick.ledger.contracts.state import State
from tallystick.parcel.padding import pad_to
from tallystick.trust.mesh import MeshAuthority, certify_member, certify_publisher, epoch_at, mesh_pseudonym
from tallystick.trust.permit import Operation

T = TypeVar("T")

_EVERY_TOPIC = b""  # in `mesh_renewals`
_MEMBER_EPOCHS = 2  # the current one and the next: who comes once an epoch is never without a certificate
_ATTEMPTS = 5  # to read rights between two blocks
_PROBE = ExchangeKey(bytes(range(32)))


class Mesh:
    def __init__(self, core: Core, subjects: Subjects, topics: Topics) -> None:
        self._core, self._store, self._subjects, self._topics = core, core.store, subjects, topics
        self._epoch_ms, self._notice_ms = core.settings.mesh_epoch_s * 1000, core.settings.mesh_notice_s * 1000
        self._terms = MeshTerms(core.store, subjects, topics)
        self._tidied = -1  # the epoch in which what is over was last forgotten
        self._moving: set[bytes] = set()  # principals that want another node: updates do not prolong the one they have

    @cached_property
    def signing(self) -> SigningKey:
        return self._core.keys.master.mesh_signing

    @cached_property
    def _sealing(self) -> hpke.PrivateKey:
        return hpke.PrivateKey.decode(self._core.keys.master.unwrap_own("sealing", self._store.meta("sealing") or b""))

    @cached_property
    def authority(self) -> MeshAuthority:
        """By which key certificates of the mesh hold, on this authority's word."""
        core = self._core
        named = core.instance, core.keys.certificate.subject, self.signing.public.raw
        return MeshAuthority(*named, self._epoch_ms, self._notice_ms).sign(core.keys.signing)

    @property
    def epoch(self) -> int:
        return epoch_at(self._core.now_ms, self._epoch_ms)

    # --- requests ---

    def answer(self, caller: Caller, sealed: bytes, look: Callable[[], None]) -> bytes:
        """What a member asked for, or why it gets nothing of it, in one size. `look` has the ledger followed: a right
        may be there for a moment only. Raises `Refused` where it is not known who asks, or what."""
        principal = self._subjects.require_caller(caller).subject
        request = MeshRequest.open(sealed, self._sealing, self._core.instance, principal)
        try:
            return pad_to(self._answer(principal, request, look).encode(), ANSWER_BYTES)
        except Refused as error:
            return self._refuse(error)

    def _refuse(self, error: Refused) -> bytes:
        return pad_to(MeshRefusal.of(error).encode(), ANSWER_BYTES)

    def _answer(self, principal: bytes, request: MeshRequest, look: Callable[[], None]) -> MeshAnswer:
        def check() -> None:
            self._check(principal, request)

        def give() -> MeshAnswer:
            return self._give(principal, request)

        try:
            return self._at_one_height(check, give)
        except Refused as error:
            if error.reason not in ("unknown-topic", "no-right"):
                raise
            look()
            return self._at_one_height(check, give)

    def _at_one_height(self, check: Callable[[], None], give: Callable[[], T]) -> T:
        """Hold it to the ledger without the store's lock, for which all others wait, and give it with the lock.

        Threat: a revocation that is followed in between. It would find nothing to take back. So what was checked at
        another height is checked again."""
        for _ in range(_ATTEMPTS):
            position = self._store.meta("position")
            check()
            with self._store.transaction():
                if self._store.meta("position") == position:
                    return give()
        raise Unavailable("the ledger moves faster than rights are read", retry_after_s=1.0)

    def _give(self, principal: bytes, request: MeshRequest) -> MeshAnswer:
        if request.terms:
            self._terms.put(request.token, request.terms[0], request.terms[1], self.epoch, self._first_renewed())
        wanted = request.operation if request.token and not request.terms else 0
        return self._answered(principal, request.token, wanted, request.epochs if wanted else 0, request.lasting)

    def _answered(self, principal: bytes, token: bytes, operations: int, epochs: int, lasting: bytes) -> MeshAnswer:
        """What somebody gets that may have it: a topic's keys of some epochs, and a place for its node."""
        ahead = range(self.epoch, self.epoch + epochs)
        if operations:
            self._note(principal, token, operations, self.epoch + epochs - 1)
        secrets = tuple(self._secret(token, epoch) for epoch in ahead)
        publishes = operations & Operation.ADVERTISE
        leaves = tuple(map(partial(self._leave, principal), secrets, ahead)) if publishes else ()
        place = self._admit(principal, lasting) if lasting else (0, b"")
        guises = tuple(self._terms.guise(token, epoch) for epoch in ahead)
        given = secrets, leaves, *place, guises
        crowd = self._terms.crowd(token, self.epoch)
        return MeshAnswer(self.authority.encode(), self._core.now_ms, self.epoch, *given, *crowd)

    def _check(self, principal: bytes, request: MeshRequest) -> None:
        """Raise `Refused` unless the ledger lets the principal have it."""
        if request.terms:
            self._terms.check(principal, request)
        elif request.token:
            self._check_wanted(principal, request)
        self._check_reputation(principal)

    def _check_reputation(self, principal: bytes) -> None:
        if reputation.is_blacklisted(State(self._core.ledger.raw), principal):
            raise Refused(f"principal {principal.hex()} is blacklisted", reason="blacklisted")

    def _check_wanted(self, principal: bytes, request: MeshRequest) -> None:
        token = request.token
        if len(token) != 16 or not request.operation:
            raise Malformed("mesh request: a token of 16 bytes and what to do there expected")
        operation = Operation(request.operation)
        topic = self._topics.require_right(self._topics.granted(principal, token), operation, token, token)
        if operation is Operation.ADVERTISE and topic.closed:
            raise Refused(f"topic {token.hex()} is closed", reason="topic-closed")
        if request.epochs > EPOCHS_MAX:
            raise Refused(
                f"mesh keys of {request.epochs} epochs, at most {EPOCHS_MAX} at once",
                reason="too-many-epochs",
                hint="ask again before the last of them ends",
            )

    def _note(self, principal: bytes, token: bytes, operations: int, last: int) -> None:
        """Remember what somebody was given, and for how long it serves."""
        self._store.write(
            "INSERT INTO mesh_holders VALUES (?, ?, ?, ?, ?) ON CONFLICT (token, principal) DO UPDATE SET"
            " operations = operations | excluded.operations, last_epoch = max(last_epoch, excluded.last_epoch),"
            " renewal = excluded.renewal",
            (token, principal, operations, last, self._renewal(token)),
        )

    def _leave(self, principal: bytes, secret: bytes, epoch: int) -> tuple[bytes, bytes]:
        """To publish under the pseudonym of this mesh key: the seed of a key, and its certificate."""
        pseudonym = mesh_pseudonym(secret, epoch)
        seed = self._publisher_seed(principal, pseudonym, epoch)
        return seed, certify_publisher(pseudonym, epoch, SigningKey.from_seed(seed).public.raw, self.signing)

    def _publisher_seed(self, principal: bytes, pseudonym: bytes, epoch: int) -> bytes:
        return self._core.keys.master.mesh_publisher(principal, pseudonym, epoch)

    def _admit(self, principal: bytes, key: bytes) -> tuple[int, bytes]:
        """Make the node with this lasting key the principal's. Returns until when, and the certificate."""
        _PROBE.agree(key)  # `Malformed` for what is none
        self._check_only_node(principal, key)
        self._moving.discard(principal)
        until_ms = (self.epoch + _MEMBER_EPOCHS) * self._epoch_ms
        self._store.write("INSERT OR REPLACE INTO mesh_nodes VALUES (?, ?, ?)", (principal, key, until_ms))
        return until_ms, certify_member(key, until_ms, self.signing)

    def _check_only_node(self, principal: bytes, key: bytes) -> None:
        row = self._store.row("SELECT key, until_ms FROM mesh_nodes WHERE principal = ?", (principal,))
        if row is not None and row[0] != key and self._core.now_ms < row[1]:
            self._moving.add(principal)
            raise Refused(
                "the principal has another node on the mesh",
                reason="another-node",
                hint="its certificate ends within two epochs of the mesh; then another key gets one",
            )

    # --- without being asked ---

    def update(self, principal: bytes, token: bytes) -> bytes:
        """What one who has asked for a topic's keys would get now, as it travels over the mesh. Raises `Refused` where
        they are not its any more."""
        member = self._subjects.find(principal)
        operations = self._operations(principal, token)
        if member is None:
            raise unknown(token)

        def check() -> None:
            if not operations or not self._has_kept(principal, token, operations):
                raise unknown(token)
            self._check_reputation(principal)

        def give() -> MeshAnswer:
            key = self._store.scalar("SELECT key FROM mesh_nodes WHERE principal = ?", (principal,))
            lasting = key if key is not None and self._is_prolonged(principal) else b""
            return self._answered(principal, token, operations, EPOCHS_MAX, lasting)

        answer = self._at_one_height(check, give).encode()
        return MeshUpdate(principal, token, answer).seal(member, self.signing)

    def _is_prolonged(self, principal: bytes) -> bool:
        """Not where it waits for the end of its node, to have another."""
        return principal not in self._moving

    def updates(self, caller: Caller, sealed: bytes) -> bytes:
        """A page of the updates for all members of a topic, for its owner to publish: as many on every page. Raises
        `Refused` for another's topic."""
        principal = self._subjects.require_caller(caller).subject
        request = MeshUpdatesRequest.open(sealed, self._sealing, self._core.instance, principal)
        self._topics.require_owned(caller, request.token)
        known = "SELECT principal FROM mesh_holders WHERE token = ? AND principal > ? ORDER BY principal LIMIT ?"
        holders = [bytes(one) for (one,) in self._store.rows(known, (request.token, request.after, UPDATES_AT_ONCE))]
        found = []
        for holder in holders:
            try:
                found.append(self.update(holder, request.token))
            except Refused:  # its right is gone, and it hears of nothing more
                continue
        end = holders[-1] if len(holders) == UPDATES_AT_ONCE else bytes(16)
        return MeshUpdatesPage(end, tuple(sorted([*found, *self._for_nobody(UPDATES_AT_ONCE - len(found))]))).encode()

    def _for_nobody(self, count: int) -> list[bytes]:
        return [update_for_nobody(self._core.entropy.bytes(32), self._core.instance) for _ in range(count)]

    def _operations(self, principal: bytes, token: bytes) -> int:
        """For what it was given mesh keys of the topic."""
        held = "SELECT operations FROM mesh_holders WHERE token = ? AND principal = ?"
        return int(self._store.scalar(held, (token, principal)) or 0)

    # --- renewal ---

    def _secret(self, token: bytes, epoch: int) -> bytes:
        return self._core.keys.master.mesh_secret(token, epoch, self._renewal(token, epoch))

    def _renewal(self, token: bytes, epoch: int = (1 << 62)) -> int:
        """The number that counts in an epoch, or the newest."""
        known = "SELECT max(renewal) FROM mesh_renewals WHERE token IN (?, ?) AND epoch <= ?"
        return int(self._store.scalar(known, (token, _EVERY_TOPIC, epoch)) or 0)

    def _renew(self, token: bytes, epoch: int) -> None:
        """Give the topic other keys from this epoch on."""
        number = max(self._core.now_ms, 1 + int(self._store.scalar("SELECT max(renewal) FROM mesh_renewals") or 0))
        self._store.write("INSERT OR REPLACE INTO mesh_renewals VALUES (?, ?, ?)", (token, epoch, number))

    def recheck(self, principal: bytes, token: bytes | None = None, *, all_of_them: bool = False) -> None:
        """Take back what the principal was given (on one topic, or everywhere) and has no ground for any more; in the
        caller's transaction."""
        rows = self._store.rows(
            "SELECT token, operations, last_epoch, renewal FROM mesh_holders"
            " WHERE principal = ? AND (? IS NULL OR token = ?)",
            (principal, token, token),
        )
        first = self._first_renewed()
        for of, operations, last, renewal in rows:
            if not all_of_them and self._has_kept(principal, of, operations):
                continue
            if last >= first and renewal >= self._renewal(of):  # else it has none of the keys that would serve then
                self._renew(of, first)
            self._store.write("DELETE FROM mesh_holders WHERE token = ? AND principal = ?", (of, principal))

    def _first_renewed(self) -> int:
        """The epoch from which on a revocation counts that is heard of now."""
        return epoch_at(self._core.now_ms + self._notice_ms, self._epoch_ms) + 1

    def _has_kept(self, principal: bytes, token: bytes, operations: int) -> bool:
        granted = self._topics.granted(principal, token)
        return all(granted & NEEDED[one] == NEEDED[one] for one in Operation if operations & one)

    def renew_after_restore(self) -> None:
        """Let no key serve that somebody may hold who was revoked since the backup."""
        self._renew(_EVERY_TOPIC, self.epoch)

    def tick(self) -> None:
        """Forget what is over, once an epoch."""
        if self._tidied == self.epoch:
            return
        self._tidied = self.epoch
        with self._store.transaction():
            self._store.write("DELETE FROM mesh_holders WHERE last_epoch < ?", (self.epoch,))
            self._store.write("DELETE FROM mesh_nodes WHERE until_ms <= ?", (self._core.now_ms,))
            self._store.write(
                "DELETE FROM mesh_renewals WHERE epoch < (SELECT max(epoch) FROM mesh_renewals AS later"
                " WHERE later.token = mesh_renewals.token AND later.epoch <= ?)",
                (self.epoch,),
            )
            self._terms.tidy(self.epoch)
