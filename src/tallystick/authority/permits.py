"""Permits: leave to subscribe or advertise (EventGuard 4.2, 4.3), the keys that follow it, and taking it back
(4.5, 4.6).

Threat: a permit without a right behind it. The right is read from the proven state of the ledger before a permit is
drawn, the ledger's contract checks it again when the identifier is written there, and every time keys are handed
out the permit is held to the ledger once more: a row edited in the store hands out nothing. Threat: a copied permit;
ours names its principal, and requests count only with that principal's signature. Threat: fake unsubscribing, also
by S' that holds a permit for the same topic: the undo token is a function of the one permit's identifier under a key
that only the authority has, shown to nobody else, and works once.

A request that arrives twice (its answer was lost, or somebody replays it) is answered with the same permit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from hmac import compare_digest

from tallystick.authority.answers import Caller
from tallystick.authority.core import Core
from tallystick.authority.epochs import Epoch, Epochs
from tallystick.authority.erasure import Erasure
from tallystick.authority.grant import Grant, GrantEpoch, GrantErasureKey, GrantSettings
from tallystick.authority.labels import Labels
from tallystick.authority.policies import Policies
from tallystick.authority.subjects import Subjects
from tallystick.authority.topics import NEEDED, TopicRecord, Topics, unknown
from tallystick.errors import Forged, Malformed, Misuse, Refused, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts import reputation
from tallystick.ledger.contracts.access import RIGHTS
from tallystick.ledger.contracts.permits import PERMITS, PermitRow, Status
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import Certificate
from tallystick.trust.permit import LAST_EPOCH, Operation, Permit, UndoOrder, undo_hash

DRAWN = 0  # the status of a permit whose identifier is not on the ledger yet
_DRAWS_MAX = 1_000  # as many as were issued since the snapshot whose random state comes back

# identifier, operation, token, principal, signing key, first epoch, not after, status; none handed yet; the permit
_KEEP = "INSERT INTO permits VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"


class Permits:
    def __init__(
        self,
        core: Core,
        subjects: Subjects,
        topics: Topics,
        epochs: Epochs,
        erasure: Erasure,
        labels: Labels,
        policies: Policies,
    ) -> None:
        self._core, self._store, self._subjects, self._topics, self._epochs = core, core.store, subjects, topics, epochs
        self._erasure, self._labels, self._policies = erasure, labels, policies

    # --- asking for one ---

    def prepare(
        self, caller: Caller, operation: Operation, topic: str | bytes, first_epoch: int, interest: str = ""
    ) -> tuple[bytes, int | None]:
        """Draw a permit and queue it for the ledger. Returns its identifier and its place in the queue, None where the
        ledger has it already.

        Threat: whoever asks for permits in a loop while the node is slow. So the ledger is asked before the store's
        lock is taken, for which all others wait. A right that ends meanwhile the ledger itself refuses."""
        core = self._core
        certificate = self._subjects.require_caller(caller)
        token = topic if isinstance(topic, bytes) else self._topics.token(certificate.tenant, topic)
        granted = self._topics.granted(certificate.subject, token)
        is_blacklisted = reputation.is_blacklisted(State(core.ledger.raw), certificate.subject)
        identifier = self._fresh_identifier()
        with core.store.transaction():
            known = self._answered(b"permit", caller)
            if known is not None:
                if core.store.scalar("SELECT status FROM permits WHERE id = ?", (known,)) != DRAWN:
                    return known, None
                if core.store.row("SELECT 1 FROM outbox"):
                    raise Unavailable("the ledger has not taken the permit yet", retry_after_s=1.0)
                self.abandon(caller, known)  # it was refused after a crash, when nobody waited any more
            found = self._topics.require_right(granted, operation, token, topic)
            current = self._require_open(found, operation)
            if is_blacklisted:
                raise Refused(f"principal {certificate.subject.hex()} is blacklisted", reason="blacklisted")
            self._check_number(certificate, found)
            if interest and operation is not Operation.SUBSCRIBE:
                raise Misuse("only a subscriber has an interest")
            labels = self._labels.cover(found, interest, current.number) if interest else ()
            first_epoch = min(first_epoch or current.number, current.number)
            permit = self._sign(identifier, certificate, operation, found, first_epoch, labels)
            whose = (permit.identifier, int(operation), permit.token, permit.principal, permit.signing_key)
            core.store.write(_KEEP, (*whose, first_epoch, permit.not_after_ms, DRAWN, permit.encode()))
            self._remember(b"permit", caller, permit.identifier)
            named = permit.identifier, operation, permit.token, permit.principal, permit.not_after_ms
            if found.erasable and operation is Operation.ADVERTISE:  # the ledger hears of its keys in the same block
                self._erasure.prepare(permit.token, permit.principal)
            return permit.identifier, core.queue([entries.issue_permit(*named)])

    def abandon(self, caller: Caller, identifier: bytes) -> None:
        """Forget a permit that the ledger refused: nobody has seen it."""
        with self._store.transaction():
            self._store.write("DELETE FROM permits WHERE id = ? AND status = ?", (identifier, DRAWN))
            answers = "DELETE FROM answers WHERE principal = ? AND answer = ?"
            self._store.write(answers, (caller.principal, identifier))

    def _require_open(self, topic: TopicRecord, operation: Operation) -> Epoch:
        """The current epoch of a topic on which the operation makes sense."""
        if topic.closed and operation is Operation.ADVERTISE:
            raise Refused(f"topic {topic.token.hex()} is closed", reason="topic-closed")
        self._topics.require_text(topic)
        known = self._epochs.announced(topic.token)
        current = self._epochs.current(topic.token, known) or (known[-1] if topic.closed and known else None)
        if current is None:
            raise Unavailable(f"topic {topic.token.hex()} has no epoch yet", retry_after_s=1.0)
        return current

    def _check_number(self, certificate: Certificate, topic: TopicRecord) -> None:
        count = self._store.scalar(
            "SELECT count(*) FROM permits WHERE token = ? AND principal = ? AND status = ? AND not_after_ms > ?",
            (topic.token, certificate.subject, int(Status.ISSUED), self._core.now_ms),
        )
        if count >= self._core.limits.permits_max:
            raise Refused(
                f"{count} live permits for one principal and topic",
                reason="too-many-permits",
                hint="keep a permit and ask for its keys, or undo those no longer used",
            )

    def _sign(
        self,
        identifier: bytes,
        certificate: Certificate,
        operation: Operation,
        topic: TopicRecord,
        first_epoch: int,
        labels: tuple[bytes, ...],
    ) -> Permit:
        core = self._core
        head = core.ledger.head
        return Permit(
            instance=core.instance,
            identifier=identifier,
            operation=operation,
            token=topic.token,
            tenant=topic.tenant,
            principal=certificate.subject,
            signing_key=certificate.signing_key,
            first_epoch=first_epoch,
            last_epoch=LAST_EPOCH,
            # Guards judge by block time, which may lag behind our clock.
            not_before_ms=core.now_ms if head is None else min(core.now_ms, head.time_ms),
            not_after_ms=core.now_ms + core.settings.permit_s * 1000,
            authority=core.keys.certificate.subject,
            undo_hash=undo_hash(core.keys.master.undo_token(operation, identifier)),
            labels=labels,
        ).sign(core.keys.signing)

    def _fresh_identifier(self) -> bytes:
        """One that neither store nor ledger has seen, even where a restored machine repeats its random state."""
        for _ in range(_DRAWS_MAX):
            identifier = self._core.entropy.bytes(16)
            drawn = self._store.row("SELECT 1 FROM permits WHERE id = ?", (identifier,))
            if drawn is None and self._core.ledger.raw(PERMITS(identifier)) is None:
                return identifier
        raise Unavailable("identifiers repeat", hint="the machine's source of randomness is broken")

    # --- keys ---

    def grant(self, caller: Caller, identifier: bytes) -> bytes:
        """The grant of a permit that the ledger holds."""
        grant = self._build(caller, identifier, 0)
        assert grant is not None
        return grant.encode()

    def update(self, caller: Caller, identifier: bytes, seen: int) -> bytes | None:
        """What changed since version `seen`, or None where nothing did."""
        grant = self._build(caller, identifier, seen, update=True)
        return None if grant is None else grant.encode()

    def _build(self, caller: Caller, identifier: bytes, seen: int, *, update: bool = False) -> Grant | None:
        core = self._core
        certificate = self._subjects.require_caller(caller)
        with self._asked_ahead(caller, identifier, seen, update), core.store.transaction():
            operation, token, first_epoch, permit = self._require_live(caller, identifier)
            self._epochs.tick_topic(token)
            topic = self._require_topic(token, operation, caller.principal)
            if update and topic.version <= seen:
                return None
            self._check_on_ledger(caller, identifier)
            epochs, private_keys = self._epoch_keys(operation, token, first_epoch, seen)
            erasure_keys, handed, version = self._erasure_keys(operation, topic, caller.principal, seen)
            announced = self._epochs.announced(token)
            if operation is Operation.ADVERTISE:
                open_ones = [one for one in announced if not one.is_lost and one.ends_ms > core.now_ms]
                labels = self._labels.grant(token, open_ones, seen)
                policies = self._policies.for_publisher(topic, certificate.tenant, seen)
            else:
                labels, begins = None, [one.begins_ms for one in announced if one.number >= first_epoch]
                since_ms = min(begins, default=0)
                policies, version = self._policies.for_subscriber(topic, since_ms, seen, version)
            core.store.write("UPDATE permits SET handed = ? WHERE id = ? AND handed < ?", (handed, identifier, handed))
            return Grant(
                permit=b"" if update else permit or b"",
                undo_token=b"" if update else core.keys.master.undo_token(operation, identifier),
                token=token,
                epochs=epochs,
                private_keys=private_keys,
                schemas=tuple(self._topics.schemas(topic, seen)),
                settings=GrantSettings(
                    topic.partitions, topic.flags, core.settings.late_epochs, core.settings.revoke_s * 1000
                ),
                erasure_keys=erasure_keys,
                erased=tuple(self._erasure.erased(token, seen)),
                policies=policies,
                labels=labels,
                version=version,
            )

    def _asked_ahead(self, caller: Caller, identifier: bytes, seen: int, update: bool) -> AbstractContextManager[None]:
        """With what `_check_on_ledger` asks for at hand, where it will ask."""
        _, token, _, _ = self._require_live(caller, identifier)
        topic = self._topics.find(token)
        if topic is None or (update and topic.version <= seen):
            return nullcontext()
        return self._core.ledger.ahead([PERMITS(identifier), RIGHTS(token, caller.principal)])

    def _require_topic(self, token: bytes, operation: Operation, principal: bytes) -> TopicRecord:
        """The topic; on an erasable one the publisher's periods are drawn first."""
        topic = self._topics.find(token)
        if topic is not None and topic.erasable and operation is Operation.ADVERTISE and not topic.closed:
            self._erasure.prepare(token, principal)
            topic = self._topics.find(token)
        if topic is None:
            raise unknown(token)
        return topic

    def _require_live(self, caller: Caller, identifier: bytes) -> tuple[Operation, bytes, int, bytes | None]:
        kept = "SELECT operation, token, first_epoch, permit, status, not_after_ms FROM permits"
        row = self._store.row(f"{kept} WHERE id = ? AND principal = ?", (identifier, caller.principal))
        if row is None:
            raise Refused(f"permit {identifier.hex()} does not exist", reason="unknown-permit")
        operation, token, first_epoch, permit, status, not_after_ms = row
        if status == DRAWN:  # in a block, but under no checkpoint with enough signatures yet
            raise Unavailable("the ledger has not published the permit yet", retry_after_s=1.0)
        if status != Status.ISSUED:
            raise Refused(f"permit {identifier.hex()} is {Status(status).name.lower()}", reason="permit-ended")
        if not_after_ms <= self._core.now_ms:
            raise Refused(f"permit {identifier.hex()} has expired", reason="permit-expired", hint="ask for a new one")
        return Operation(operation), token, first_epoch, permit

    def _check_on_ledger(self, caller: Caller, identifier: bytes) -> None:
        """Hold the permit to the ledger: what the store says of it is not enough to hand out keys."""
        row = self._core.ledger.row(PERMITS(identifier))
        if row is None or row.principal != caller.principal or row.status != Status.ISSUED:
            raise Refused(f"permit {identifier.hex()} does not count on the ledger", reason="permit-ended")
        needed = NEEDED[Operation(row.operation)]
        if self._topics.granted(caller.principal, row.token) & needed != needed:
            raise Refused("the right behind the permit was withdrawn", reason="no-right")

    def _epoch_keys(
        self, operation: Operation, token: bytes, first_epoch: int, seen: int
    ) -> tuple[tuple[GrantEpoch, ...], tuple[tuple[int, bytes], ...]]:
        """Public halves from the current epoch on; private ones, for subscribers, of epochs that have begun."""
        now_ms = self._core.now_ms
        known = [one for one in self._epochs.announced(token) if one.changed > seen and not one.is_lost]
        publics = tuple(
            GrantEpoch(one.number, self._epochs.check_public(token, one), one.begins_ms, one.ends_ms)
            for one in known
            if one.ends_ms > now_ms
        )
        if operation is not Operation.SUBSCRIBE:
            return publics, ()
        return publics, tuple(
            (one.number, self._epochs.seed(token, one))
            for one in known
            if one.number >= first_epoch and one.begins_ms <= now_ms
        )

    def _erasure_keys(
        self, operation: Operation, topic: TopicRecord, principal: bytes, seen: int
    ) -> tuple[tuple[GrantErasureKey, ...], int, int]:
        """The keys to hand out, the highest number among private ones, and the version this brings the holder to."""
        if not topic.erasable:
            return (), 0, topic.version
        publishes = operation is Operation.ADVERTISE
        keys = self._erasure.keys(topic.token, seen, principal if publishes else None)
        seeds = [self._erasure.seed(topic.token, one) for one in keys]  # also holds the public half to its row
        found = tuple(
            GrantErasureKey(one.publisher, one.period, one.public if publishes else seed, one.begins_ms, one.ends_ms)
            for one, seed in zip(keys, seeds, strict=True)
        )
        handed = 0 if publishes else max((one.number for one in keys), default=0)
        cut = len(keys) >= self._core.limits.erasure_keys_max
        return found, handed, keys[-1].changed if cut else topic.version

    # --- taking it back ---

    def undo(self, caller: Caller, permit_bytes: bytes, undo_token: bytes) -> tuple[bytes, int | None]:
        """Check permit and undo token, end the permit. Returns the signed order and its place in the queue."""
        core = self._core
        self._subjects.require_caller(caller)
        try:
            permit = Permit.decode(permit_bytes)
            permit.verify(core.keys.certificate)
        except (Malformed, Forged):
            raise Refused("undo: not a permit of this authority", reason="wrong-permit") from None
        expected = core.keys.master.undo_token(permit.operation, permit.identifier)
        if permit.principal != caller.principal or not compare_digest(expected, undo_token):
            raise Refused("undo: the token is not that of a permit of yours", reason="wrong-undo-token")
        with core.store.transaction():
            known = self._answered(b"undo", caller)
            if known is not None:
                return known, None
            status = core.store.scalar("SELECT status FROM permits WHERE id = ?", (permit.identifier,))
            if status != Status.ISSUED:
                raise Refused(f"permit {permit.identifier.hex()} does not count any more", reason="permit-ended")
            order = UndoOrder(
                instance=core.instance,
                identifier=permit.identifier,
                operation=permit.operation,
                token=permit.token,
                tenant=permit.tenant,
                principal=permit.principal,
                time_ms=core.now_ms,
                authority=core.keys.certificate.subject,
            ).sign(core.keys.signing)
            self._remember(b"undo", caller, order.encode())
            place = core.queue([entries.undo_permit(permit.identifier)])
            self._end(permit.identifier, permit.operation, permit.token, Status.UNDONE)
            return order.encode(), place

    def recheck(self, principal: bytes, token: bytes | None = None, *, all_of_them: bool = False) -> None:
        """Revoke the principal's permits (on one topic, or everywhere) that have lost their ground."""
        core = self._core
        rows = core.store.rows(
            "SELECT id, operation, token FROM permits WHERE principal = ? AND status = ? AND (? IS NULL OR token = ?)",
            (principal, int(Status.ISSUED), token, token),
        )
        for identifier, number, of in rows:
            operation = Operation(number)
            if all_of_them or self._topics.granted(principal, of) & NEEDED[operation] != NEEDED[operation]:
                core.queue([entries.revoke_permit(identifier)])
                self._end(identifier, operation, of, Status.REVOKED)

    def _end(self, identifier: bytes, operation: Operation, token: bytes, status: Status) -> None:
        self._store.write("UPDATE permits SET status = ? WHERE id = ?", (int(status), identifier))
        if operation is Operation.SUBSCRIBE:  # a publisher holds no private half: there is nothing to renew
            self._epochs.rekey(token)

    # --- what the ledger says ---

    def apply(self, identifier: bytes) -> None:
        """Take over what the ledger holds of a permit."""
        core = self._core
        row = core.ledger.row(PERMITS(identifier))
        if row is None or row.authority != core.keys.certificate.subject:
            return
        known = core.store.scalar("SELECT status FROM permits WHERE id = ?", (identifier,))
        if known is None:
            self._recover(identifier, row)
        elif known in (DRAWN, Status.ISSUED) and row.status != known:
            core.store.update("permits", {"id": identifier}, status=row.status)
            if known == Status.ISSUED:
                self._end(identifier, Operation(row.operation), row.token, Status(row.status))

    def _recover(self, identifier: bytes, row: PermitRow) -> None:
        """A permit that was issued after the backup this store came from.

        Its first epoch is not on the ledger. The holder chose it, and with the same right may choose any: so it is
        the first of all, or whoever reads from the beginning would no longer open what it opened before.
        """
        certificate = self._subjects.find(row.principal)
        key = b"" if certificate is None else certificate.signing_key
        whose = (identifier, row.operation, row.token, row.principal, key)
        self._store.write(_KEEP, (*whose, 1, row.not_after_ms, row.status, None))

    # --- requests that arrive twice ---

    def _answered(self, what: bytes, caller: Caller) -> bytes | None:
        remembered = "SELECT answer FROM answers WHERE principal = ? AND nonce = ?"
        answer: bytes | None = self._store.scalar(remembered, (caller.principal, what + caller.nonce))
        return answer

    def _remember(self, what: bytes, caller: Caller, answer: bytes) -> None:
        of = {"principal": caller.principal, "nonce": what + caller.nonce}
        self._store.insert("answers", **of, answer=answer, time_ms=self._core.now_ms)
