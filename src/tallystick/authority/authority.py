"""The authority: the meta-service of EventGuard, as one class whose methods are its requests.

It decides and remembers; it opens no socket and reads no clock of its own. `http.py` serves these methods to signed
requests, `client.InProcess` calls them directly. A method that changes something goes the way that `core` describes;
every method refuses while the view of the ledger is not current, above all after a restore.

An authority can read everything of its tenants. What it cannot do is grant without the owner's right on the ledger,
or unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick import wire
from tallystick.authority.answers import Caller, Draft, Erased, Resolved, Rotation
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attribute_keys import AttributeKeys
from tallystick.authority.attribute_spaces import AttributeSpaces
from tallystick.authority.attributes import LIVE, Attributes
from tallystick.authority.backup import Backup, back_up, lay_out, read_part
from tallystick.authority.core import Core
from tallystick.authority.enrolment import Enrolment
from tallystick.authority.epochs import Epochs
from tallystick.authority.erasure import Erasure
from tallystick.authority.follow import Follower
from tallystick.authority.labels import Labels
from tallystick.authority.ledger_view import LedgerClient, LedgerView, Position
from tallystick.authority.master import MASTER_FILE as MASTER_FILE
from tallystick.authority.master import create_master, open_master, operator_id, write_private
from tallystick.authority.names import NameBook
from tallystick.authority.permits import Permits
from tallystick.authority.policies import Policies
from tallystick.authority.possession import Enrolled
from tallystick.authority.rekey import Rekeying
from tallystick.authority.settings import AuthorityLimits, AuthoritySettings
from tallystick.authority.store import STORE_FILE as STORE_FILE
from tallystick.authority.store import AuthorityStore
from tallystick.authority.subjects import Subjects
from tallystick.authority.topics import Topics
from tallystick.crypto import hpke
from tallystick.crypto.passphrase import Cost
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.errors import Misuse, Refused, TallystickError, Unavailable
from tallystick.ledger import entries
from tallystick.ledger.contracts.execute import newest
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.permits import Status
from tallystick.ledger.contracts.settings import VERSIONS
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.permit import Operation
from tallystick.trust.trustfile import TrustFile

CHECKPOINT_FOLDER = "checkpoints"

_ANSWERS_KEPT_S = 600  # beyond the freshness of any signed request
_SOON_BLOCKS = 2  # an activation must name a height that is yet to come when it is executed


@dataclass(frozen=True)
class AuthorityStatistics:
    """A snapshot for console, metrics and command line."""

    ready: bool
    height: int  # of the newest checkpoint taken over; -1 before the first
    head_age_s: float
    tenants: int
    principals: int
    topics: int
    permits_live: int
    attributes: int  # that principals hold
    attribute_epoch: int  # the current one; 0 before the first
    epochs: int
    erased: int
    outbox: int  # decisions that wait for the ledger
    backups: int


class Authority:
    def __init__(self, core: Core) -> None:
        self.core = core
        self._subjects = Subjects(core)
        self._enrolment = Enrolment(core, self._subjects)
        self._rekeying = Rekeying(core, self._subjects, self._enrolment)
        self._epochs = Epochs(core)
        self._topics = Topics(core, self._subjects, self._epochs)
        self._erasure = Erasure(core, self._subjects, self._topics)
        self._labels = Labels(core, self._subjects, self._topics)
        self._attribute_epochs = AttributeEpochs(core)
        self._spaces = AttributeSpaces(core, self._subjects, self._attribute_epochs)
        self._attributes = Attributes(core, self._subjects, self._spaces, self._attribute_epochs)
        self._attribute_keys = AttributeKeys(
            core, self._subjects, self._spaces, self._attributes, self._attribute_epochs
        )
        self._policies = Policies(core, self._subjects, self._topics, self._spaces, self._attribute_epochs)
        self._permits = Permits(
            core, self._subjects, self._topics, self._epochs, self._erasure, self._labels, self._policies
        )
        self._names = NameBook(core, self._subjects)
        self._follower = Follower(
            core,
            self._subjects,
            self._topics,
            self._permits,
            self._attribute_epochs,
            self._attributes,
            {"policies": self._policies.apply, "epochs": self._epochs.apply, "erasures": self._erasure.apply},
        )

    @property
    def certificate(self) -> Certificate:
        return self.core.certificate

    @property
    def key(self) -> SigningKey:
        return self.core.key

    @property
    def trust(self) -> TrustFile:
        return self.core.trust

    @property
    def limits(self) -> AuthorityLimits:
        return self.core.limits

    @property
    def version(self) -> int:
        """Rises with everything that a waiting caller may want to know."""
        return self.core.version

    def resolve_key(self, principal: bytes) -> VerifyKey | None:
        """The key under which requests of this principal, or of the operator, count."""
        operator = self.core.master.operator_key.public
        return operator if principal == operator_id(operator) else self._subjects.resolve_key(principal)

    # --- what the driver calls ---

    def work(self) -> None:
        """Follow the ledger, do what time demands, bring what waits to the ledger. Call it every second or so."""
        self._follower.follow()
        self._finish_restore()
        if self.core.store.meta("restored") is not None:
            return  # nothing is decided on a view that may be yesterday's
        self._enrol_itself()
        self._bring_into_force()
        self._tick()
        self.core.send_outbox()
        self._follower.follow()
        self._tick()
        with self.core.store.transaction():
            old_ms = self.core.now_ms - _ANSWERS_KEPT_S * 1000
            self.core.store.write("DELETE FROM answers WHERE time_ms < ?", (old_ms,))

    def _tick(self) -> None:
        """Do what time demands."""
        self._epochs.tick()
        self._attributes.tick()
        self._attribute_epochs.tick()
        self._policies.tick()

    def check_ready(self) -> None:
        """Raise `Unavailable` unless requests may be served."""
        head = self.core.ledger.followed
        if head is None or not self.core.ledger.is_caught_up:
            raise Unavailable("the authority has not followed the ledger yet", retry_after_s=1.0)
        if self.core.store.meta("restored") is not None:
            raise Unavailable("the authority was restored and is still catching up", retry_after_s=1.0)
        age_s = (self.core.now_ms - head.time_ms) / 1000
        if age_s > self.core.settings.head_age_max_s:
            raise Unavailable(
                f"the ledger's newest checkpoint is {age_s:.0f} s old,"
                f" accepted are {self.core.settings.head_age_max_s}",
                hint="check that the node runs and its clock is right",
            )

    def _finish_restore(self) -> None:
        """After the ledger was taken over: lost epochs are replaced and numbers skipped, then serving may begin."""
        core = self.core
        if core.store.meta("restored") is None or not core.ledger.is_caught_up:
            return
        head = core.ledger.head
        if head is None or core.now_ms - head.time_ms > core.settings.head_age_max_s * 1000:
            return  # an old ledger would not know what was erased and issued since
        with core.store.transaction():
            core.store.write("UPDATE topics SET due_ms = 0")
            self._erasure.skip_after_restore()
            self._attribute_epochs.rotate()  # what was withdrawn since the backup may have been granted since
            core.store.set_meta("restored", None)

    def _enrol_itself(self) -> None:
        """The first transaction of an authority carries its own certificate."""
        core = self.core
        with core.store.transaction():
            if core.store.meta("enrolled") is not None:
                return
            if core.ledger.raw(IDENTITIES(core.certificate.subject)) is None:
                core.queue([entries.enrol(core.certificate)])
            core.store.set_meta("enrolled", b"\x01")

    def _bring_into_force(self) -> None:
        """The authority with which an instance began activates the contracts of its release that do not run from
        genesis on. When an older instance goes over to a release, its operator says."""
        core, head = self.core, self.core.ledger.head
        if core.store.meta("founding") is None or head is None:
            return
        active = {name: version for name, version, _ in core.ledger.row(VERSIONS()) or []}
        missing = [(name, version) for name, version in newest().items() if active.get(name, 0) < version]
        with core.store.transaction():
            if missing:
                core.queue([entries.activate(*one, head.height + _SOON_BLOCKS) for one in missing])
            else:
                core.store.set_meta("founding", None)

    def _settle(self, place: int | None) -> None:
        """Bring a queued decision to the ledger and take over what it did there.

        None stands for one that was made by an earlier request, whose answer may have been lost on the way.
        """
        self.core.send_outbox()
        self._follower.follow()
        if place is not None:
            self.core.check_sent(place)
        self._tick()

    # --- the operator's ---

    def require_operator(self, caller: Caller) -> None:
        """Raise `Refused` unless the request was signed with the key that the master key yields."""
        if caller.principal != operator_id(self.core.master.operator_key.public):
            raise Refused("only the authority's operator may do this", reason="not-operator")

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation for its owner."""
        return self._enrolment.create_tenant(name)

    def invite_to(self, tenant: str, *, owns: bool = False) -> str:
        return self._enrolment.invite_to(tenant, owns=owns)

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return [name for (name,) in self.core.store.rows("SELECT name FROM tenants ORDER BY name")]

    def back_up(self, recipients: list[str]) -> Backup:
        """The whole store, encrypted to age recipients."""
        return back_up(self.core.store, self.core.folder, recipients, self.core.now_ms, self.core.entropy)

    def begin_backup(self, recipients: list[str]) -> tuple[bytes, int]:
        """Make a backup, to be fetched in parts: its identifier and size."""
        backup = self.back_up(recipients)
        lay_out(backup, self.core.folder)
        return backup.identifier, len(backup.data)

    def backup_part(self, identifier: bytes, offset: int) -> bytes:
        return read_part(self.core.folder, identifier, offset, self.core.limits.backup_part_bytes)

    # --- requests ---

    def enrol(self, invite: str, name: str, signing_key: bytes, sealing_key: bytes, signature: bytes) -> bytes:
        """Begin to enrol: the sealed challenge."""
        self.check_ready()
        return self._enrolment.begin(invite, name, signing_key, sealing_key, signature)

    def confirm_enrolment(self, principal: bytes, challenge: bytes) -> Enrolled:
        self.check_ready()
        self._settle(self._enrolment.prepare(principal, challenge))
        return self._enrolment.finish(principal)

    def invite(self, caller: Caller) -> bytes:
        """An invitation to the caller's tenant, sealed; by the tenant's owner."""
        self.check_ready()
        code = self._enrolment.invite(caller).encode()
        return self.core.seal_for(self._subjects.require_caller(caller), caller, code)

    def revoke(self, caller: Caller, principal: bytes) -> None:
        """Revoke a principal of the caller's tenant; by the tenant's owner."""
        self.check_ready()
        admin = self._subjects.require_admin(caller)
        certificate = self._subjects.find(principal)
        if certificate is None or certificate.tenant != admin.tenant or certificate.kind is not SubjectKind.PRINCIPAL:
            raise Refused("the tenant has no such principal", reason="no-such-principal")
        with self.core.store.transaction():
            place = self.core.queue([entries.revoke(principal)])
        self._settle(place)
        self.work()

    def rekey(
        self, caller: Caller, signing_key: bytes, sealing_key: bytes, signature: bytes, challenge: bytes
    ) -> tuple[bytes, bytes]:
        """Replace the caller's keys: without an opened challenge the sealed one, with it the new certificate."""
        self.check_ready()
        sealed = self._rekeying.begin(caller, signing_key, sealing_key, signature)
        if sealed is not None and not challenge:
            return sealed, b""
        if sealed is not None:
            self._settle(self._rekeying.prepare(caller, signing_key, sealing_key, challenge))
            self.work()  # the permits of the old key end
        return b"", self._rekeying.finish(caller, signing_key)

    def create_topic(self, caller: Caller, name: str, schema: bytes, partitions: int, flags: int) -> Draft:
        self.check_ready()
        return self._topics.create(caller, name, schema, partitions, flags)

    def propose_schema(self, caller: Caller, token: bytes, schema: bytes) -> tuple[int, bytes]:
        self.check_ready()
        return self._topics.propose_schema(caller, token, schema)

    def schemas(self, caller: Caller, token: bytes) -> bytes:
        """Every version of a topic's schema, sealed; for who owns the topic or may describe it."""
        self.check_ready()
        certificate = self._subjects.require_caller(caller)
        topic = self._topics.require_described(certificate, token)
        return self.core.seal_for(certificate, caller, wire.encode(self._topics.schemas(topic)))

    def resolve_rights(
        self, caller: Caller, pattern: str, principal: bytes, allow: bool, operations: int, host: str, mode: int
    ) -> Resolved:
        self.check_ready()
        return self._topics.resolve(caller, pattern, principal, allow, operations, host, mode)

    def labels(self, caller: Caller, token: bytes, code: bytes) -> bytes:
        """The code of a topic's labels, sealed; declared anew where `code` is not empty."""
        self.check_ready()
        return self._labels.declare(caller, token, code)

    def permit(
        self, caller: Caller, operation: Operation, topic: str | bytes, first_epoch: int = 0, interest: str = ""
    ) -> bytes:
        """A permit and everything that goes with it: the sealed grant. `first_epoch` 0 means the current one. To
        subscribe with an `interest` brings the labels that cover it, where the topic has labels."""
        self.check_ready()
        try:
            identifier, place = self._permits.prepare(caller, operation, topic, first_epoch, interest)
        except Refused as error:
            if error.reason not in ("unknown-topic", "no-right"):
                raise
            self.work()  # the topic, or the right, may be on the ledger for a moment only: look before saying no
            identifier, place = self._permits.prepare(caller, operation, topic, first_epoch, interest)
        try:
            self._settle(place)
        except Refused:
            self._permits.abandon(caller, identifier)
            raise
        return self._permits.grant(caller, identifier)

    def keys(self, caller: Caller, permit: bytes, seen: int) -> bytes | None:
        """The sealed update of a grant since version `seen`, or None; the service makes a long poll of it."""
        self.check_ready()
        return self._permits.update(caller, permit, seen)

    def undo(self, caller: Caller, permit: bytes, undo_token: bytes) -> bytes:
        """The signed undo order of a permit, against its undo token."""
        self.check_ready()
        order, place = self._permits.undo(caller, permit, undo_token)
        self._settle(place)
        return order

    def erase(self, caller: Caller, token: bytes, publisher: bytes, periods: list[int]) -> Erased:
        self.check_ready()
        erased, place = self._erasure.destroy(caller, token, publisher, periods)
        self._settle(place)
        return erased

    def rotate(self, caller: Caller, token: bytes) -> Rotation:
        """Let the topic's next epoch begin `revoke_s` from now; by its owner."""
        self.check_ready()
        topic = self._topics.require_owned(self._subjects.require_caller(caller), token)
        with self.core.store.transaction():
            self._epochs.rekey(topic.token)
        self.core.send_outbox()
        self._follower.follow()
        coming = [one for one in self._epochs.announced(token) if one.begins_ms > self.core.now_ms]
        if not coming:
            raise Unavailable("the topic has no epoch prepared", retry_after_s=1.0)
        return Rotation(coming[0].number, coming[0].begins_ms)

    # --- attributes and policies ---

    def declare_attributes(self, caller: Caller, space: bytes) -> None:
        """Keep the attribute space of the caller's tenant; by the tenant's owner."""
        self.check_ready()
        self._spaces.declare(caller, space)
        self.work()  # the first epochs are announced

    def attribute_space(self, caller: Caller) -> bytes:
        """The attribute space of the caller's tenant, sealed."""
        self.check_ready()
        certificate = self._subjects.require_caller(caller)
        return self.core.seal_for(certificate, caller, self._spaces.require(certificate.tenant).encode())

    def draft_attributes(self, caller: Caller, principal: bytes, attributes: bytes, salt: bytes) -> list[bytes]:
        """Keep what is to be granted. Returns the pseudonyms that the tenant's owner writes on the ledger."""
        self.check_ready()
        return self._attributes.draft(caller, principal, attributes, salt)

    def attribute_pseudonyms(self, caller: Caller, principal: bytes, names: list[str]) -> list[bytes]:
        self.check_ready()
        return self._attributes.pseudonyms(caller, principal, names)

    def attributes(self, caller: Caller, principal: bytes, after: bytes = b"") -> bytes:
        """What was granted, one sealed page: wire [[[principal, name, [value, …], not after ms], …], after]."""
        self.check_ready()
        found, after = self._attributes.listed(caller, principal, after)
        page = wire.encode([[one.fields() for one in found], after])
        return self.core.seal_for(self._subjects.require_caller(caller), caller, page)

    def attribute_key(self, caller: Caller, known: bytes, first: int) -> bytes:
        """The caller's attribute key, or the parts that take it further; sealed."""
        self.check_ready()
        answer = self._attribute_keys.answer(caller, known, first)
        return self.core.seal_for(self._subjects.require_caller(caller), caller, answer.encode())

    def draft_policy(self, caller: Caller, token: bytes, group: int, formula: bytes, salt: bytes) -> int:
        """Keep a column group's next policy. Returns the version that the topic's owner writes on the ledger."""
        self.check_ready()
        return self._policies.draft(caller, token, group, formula, salt)

    def topic_policies(self, caller: Caller, token: bytes) -> bytes:
        """The policies of a topic, to its owner, sealed: wire [[group, version, formula], …]."""
        self.check_ready()
        found = [list(one) for one in self._policies.listed(caller, token)]
        return self.core.seal_for(self._subjects.require_caller(caller), caller, wire.encode(found))

    def names(self, caller: Caller, after: bytes = b"") -> bytes:
        """One sealed page of the names that the caller may know."""
        self.check_ready()
        page = self._names.page(caller, after)
        return self.core.seal_for(self._subjects.require_caller(caller), caller, page.encode())

    # --- telling ---

    def statistics(self) -> AuthorityStatistics:
        core, count = self.core, self._count
        try:
            self.check_ready()
            ready = True
        except TallystickError:
            ready = False
        head = core.ledger.head
        live = "permits WHERE status = ? AND not_after_ms > ?"
        return AuthorityStatistics(
            ready=ready,
            height=core.ledger.position.height,
            head_age_s=0.0 if head is None else (core.now_ms - head.time_ms) / 1000,
            tenants=count("tenants"),
            principals=count("subjects WHERE kind = ? AND revoked = 0", int(SubjectKind.PRINCIPAL)),
            topics=count("topics WHERE closed = 0"),
            permits_live=count(live, int(Status.ISSUED), core.now_ms),
            attributes=count("attributes WHERE state = ?", LIVE),
            attribute_epoch=self._attribute_epochs.current() or 0,
            epochs=count("epochs WHERE announced = 1"),
            erased=count("erasure_keys WHERE erased != 0"),
            outbox=count("outbox"),
            backups=count("backups"),
        )

    def _count(self, what: str, *values: int) -> int:
        return int(self.core.store.scalar(f"SELECT count(*) FROM {what}", values))  # noqa: S608

    def close(self) -> None:
        self.core.store.close()


@dataclass(frozen=True)
class KeyRequest:
    """The public halves that the root certifies."""

    signing_key: bytes
    sealing_key: bytes


def create(folder: Path, passphrase: bytes, entropy: Entropy, cost: Cost = Cost()) -> KeyRequest:
    """A new authority's folder; its keys wait for a certificate (`install`)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / MASTER_FILE, create_master(passphrase, entropy, cost))
    master = open_master((folder / MASTER_FILE).read_bytes(), passphrase)
    (folder / STORE_FILE).touch(0o600)
    store = AuthorityStore(str(folder / STORE_FILE))
    signing, sealing = entropy.bytes(32), hpke.PrivateKey.generate(entropy.bytes(32))
    with store.transaction():
        store.set_meta("signing", master.wrap_own("signing", signing, entropy))
        store.set_meta("sealing", master.wrap_own("sealing", sealing.encode(), entropy))
    store.close()
    return KeyRequest(SigningKey.from_seed(signing).public.raw, sealing.public.encode())


def install(folder: Path, certificate: Certificate, trust: TrustFile, *, founding: bool = False) -> None:
    """Give an authority the certificate that the root signed for it; the instance begins with a `founding` one."""
    certificate.verify(trust.root_verifier, instance=trust.instance)
    if certificate.kind is not SubjectKind.AUTHORITY:
        raise Misuse("the certificate is not an authority's")
    store = AuthorityStore(str(folder / STORE_FILE))
    with store.transaction():
        store.set_meta("certificate", certificate.encode())
        store.set_meta("trust", trust.to_json().encode())
        if founding:
            store.set_meta("founding", b"\x01")
    store.close()


def open_authority(
    folder: Path,
    passphrase: bytes,
    ledger: LedgerClient,
    clock: Clock,
    entropy: Entropy,
    settings: AuthoritySettings = AuthoritySettings(),
    limits: AuthorityLimits = AuthorityLimits(),
) -> Authority:
    """The authority in `folder`; it serves once `work` has followed the ledger."""
    if settings.epochs_ahead < 1:
        raise Misuse(f"epochs_ahead: at least 1 expected, found {settings.epochs_ahead}")
    if not (folder / MASTER_FILE).exists():
        raise Misuse(f"{folder.name}: no authority is here", hint="tally init creates one")
    master = open_master((folder / MASTER_FILE).read_bytes(), passphrase)
    store = AuthorityStore(str(folder / STORE_FILE))
    certificate, trust = store.meta("certificate"), store.meta("trust")
    if certificate is None or trust is None:
        store.close()
        raise Misuse(f"{folder.name}: the authority has no certificate yet", hint="the root signs one: tally init")
    key = SigningKey.from_seed(master.unwrap_own("signing", store.meta("signing") or b""))
    trust_file = TrustFile.parse(trust)
    own = Certificate.decode(certificate)
    own.verify(trust_file.root_verifier, instance=trust_file.instance)
    if own.signing_key != key.public.raw:
        raise Misuse(f"{folder.name}: the certificate is for another key")
    stored = store.meta("position")
    memory = CheckpointMemory(trust_file, RealDisk(folder / CHECKPOINT_FOLDER))
    view = LedgerView(ledger, memory, None if stored is None else Position.decode(stored))
    return Authority(Core(folder, own, key, master, store, view, trust_file, clock, entropy, settings, limits))
