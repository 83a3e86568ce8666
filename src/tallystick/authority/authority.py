"""The authority: the meta-service of EventGuard. Its parts decide and remember; this is what holds them together.

It opens no socket and reads no clock of its own. Every request (`asks.py`) comes in by `answer`, from `http.py` or from
a client in this process, and is served by the parts. What changes something goes the way that `core` describes; nothing
is served while the view of the ledger is not current, above all after a restore. `work` follows the ledger and does
what time demands.

An authority can read everything of its tenants. What it cannot do is grant without the owner's right on the ledger,
or unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tallystick import wire
from tallystick.authority.answers import Caller, RulesInForce
from tallystick.authority.asks import Ask
from tallystick.authority.attribute_epochs import AttributeEpochs
from tallystick.authority.attributes import LIVE, Attributes, AttributeSpaces
from tallystick.authority.backup import Backup, back_up, lay_out, read_part
from tallystick.authority.core import KEYS_IN_FORCE, AuthorityKeys, Core
from tallystick.authority.enrolment import Enrolment
from tallystick.authority.epochs import Epochs
from tallystick.authority.erasure import Erasure
from tallystick.authority.follow import Touched
from tallystick.authority.labels import Labels
from tallystick.authority.ledger_view import Found, LedgerClient, LedgerView, Position
from tallystick.authority.master import MASTER_FILE as MASTER_FILE
from tallystick.authority.master import create_master, open_master, operator_id, write_private
from tallystick.authority.mesh import Mesh
from tallystick.authority.permits import Permits
from tallystick.authority.policies import Policies
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
from tallystick.ledger.contracts.identity import IDENTITIES, TRUST
from tallystick.ledger.contracts.kinds import EntryKind
from tallystick.ledger.contracts.permits import Status
from tallystick.ledger.contracts.settings import CHOSEN, KEYS_CONTRACT, SETTINGS, VERSIONS, is_in_force
from tallystick.ledger.proofs import CheckpointMemory
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.trust.trustfile import TrustFile

A = TypeVar("A")

CHECKPOINT_FOLDER = "checkpoints"

_ANSWERS_KEPT_S = 600  # beyond the freshness of any signed request
_SOON_BLOCKS = 2  # an activation must name a height that is yet to come when it is executed, so each try waits longer
_SOON_BLOCKS_MAX = 1 << 10
_OPERATORS_KINDS = (
    *(EntryKind.SET, EntryKind.ACTIVATE, EntryKind.WITHDRAW_ACTIVATION, EntryKind.LIFT, EntryKind.ASSIGN),
    *(EntryKind.OVERLAY, EntryKind.ENTRUST),
)


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
    outbox: int  # decisions in the queue; a metric, so the name stays
    backups: int
    disk_free_bytes: int  # where its store lies


class Authority:
    def __init__(self, core: Core, folder: Path) -> None:
        self.core, self.folder = core, folder
        self._is_restored = core.store.meta("restored") is not None  # and has not caught up since
        self._soon_blocks = _SOON_BLOCKS
        self.subjects = Subjects(core)
        self.enrolment = Enrolment(core, self.subjects)
        self.epochs = Epochs(core)
        self.topics = Topics(core, self.subjects, self.epochs)
        self.erasure = Erasure(core, self.topics)
        self.labels = Labels(core, self.topics)
        self.attribute_epochs = AttributeEpochs(core)
        self.spaces = AttributeSpaces(core, self.subjects, self.attribute_epochs)
        self.attributes = Attributes(core, self.subjects, self.spaces, self.attribute_epochs)
        self.policies = Policies(core, self.topics, self.spaces, self.attribute_epochs)
        self.permits = Permits(core, self.subjects, self.topics, self.epochs, self.erasure, self.labels, self.policies)
        self.mesh = Mesh(core, self.subjects, self.topics)

    @property
    def certificate(self) -> Certificate:
        return self.core.keys.certificate

    def resolve_key(self, principal: bytes) -> VerifyKey | None:
        """The key under which requests of this principal, or of the operator, count."""
        operator = self.core.keys.master.operator_key.public
        return operator if principal == operator_id(operator) else self.subjects.resolve_key(principal)

    def answer(self, ask: Ask[A], caller: Caller) -> A:
        """Serve a request whose signature, where it needs one, was verified; a secret answer is sealed to the caller.

        Raises `Unavailable` while nothing may be served, and `Refused` for another's request in the operator's name.
        """
        if not ask.by_operator:
            self.check_ready()
        elif caller.principal != operator_id(self.core.keys.master.operator_key.public):
            raise Refused("only the authority's operator may do this", reason="not-operator")
        answer: Any = ask.serve(self, caller)
        if ask.is_sealed:
            certificate = self.subjects.require_caller(caller)
            answer = b"" if answer is None else self.core.seal_for(certificate, caller, answer)
        served: A = answer
        return served

    # --- what the driver calls ---

    def work(self) -> None:
        """Follow the ledger, do what time demands, bring what waits to the ledger. Call it every second or so."""
        self.follow()
        self._finish_restore()
        if self._is_restored:
            return  # nothing is decided on a view that may be yesterday's
        self._enrol_itself()
        self._bring_into_force()
        self._tick()
        self.core.send_queue()
        self.follow()
        self._tick()
        with self.core.store.transaction():
            old_ms = self.core.now_ms - _ANSWERS_KEPT_S * 1000
            self.core.store.write("DELETE FROM answers WHERE time_ms < ?", (old_ms,))

    def _tick(self) -> None:
        """Do what time demands."""
        self._announce_keys()
        self.epochs.tick()
        self.attributes.tick()
        self.attribute_epochs.tick()
        self.policies.tick()
        self.mesh.tick()

    def _announce_keys(self) -> None:
        """Once the ledger takes hashes of erasure periods' and policies' keys, announce those from before."""
        core, head = self.core, self.core.ledger.head
        if core.store.meta(KEYS_IN_FORCE) is not None or head is None:
            return
        if is_in_force(core.ledger.row(VERSIONS()), KEYS_CONTRACT, head.height):
            with core.store.transaction():
                core.store.set_meta(KEYS_IN_FORCE, b"\x01")
                self.erasure.announce_all()
                self.policies.announce_all()

    def check_ready(self) -> None:
        """Raise `Unavailable` unless requests may be served. It waits for nobody: the store's lock may be held long."""
        head = self.core.ledger.followed
        if head is None or not self.core.ledger.is_caught_up:
            raise Unavailable("the authority has not followed the ledger yet", retry_after_s=1.0)
        if self._is_restored:
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
        if not self._is_restored or not core.ledger.is_caught_up:
            return
        head = core.ledger.head
        if head is None or core.now_ms - head.time_ms > core.settings.head_age_max_s * 1000:
            return  # an old ledger would not know what was erased and issued since
        with core.store.transaction():
            core.store.write("UPDATE topics SET due_ms = 0")
            self.erasure.skip_after_restore()
            self.attribute_epochs.rotate()  # what was withdrawn since the backup may have been granted since
            self.mesh.renew_after_restore()
            core.store.set_meta("restored", None)
        self._is_restored = False

    def _enrol_itself(self) -> None:
        """The first transaction of an authority carries its own certificate."""
        core = self.core
        with core.store.transaction():
            if core.store.meta("enrolled") is not None:
                return
            if core.ledger.raw(IDENTITIES(core.keys.certificate.subject)) is None:
                core.queue([entries.enrol(core.keys.certificate)])
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
                core.queue([entries.activate(*one, head.height + self._soon_blocks) for one in missing])
                self._soon_blocks = min(2 * self._soon_blocks, _SOON_BLOCKS_MAX)
            else:
                core.store.set_meta("founding", None)

    def settle(self, place: int | None) -> None:
        """Bring a queued decision to the ledger and take over what it did there.

        None stands for one that was made by an earlier request, whose answer may have been lost on the way.
        """
        self.core.send_queue()
        self.follow()
        if place is not None:
            self.core.check_sent(place)
        self._tick()

    # --- following the ledger ---

    def follow(self) -> None:
        """Take over everything up to the newest checkpoint. Raises `Withheld` if the ledger contradicts itself.

        Many requests want this at once, each for its own entry: whoever waited while another began to look and came to
        the end has what it wants."""
        core, ledger = self.core, self.core.ledger
        looks = core.looks
        with core.following:  # and not the store's lock, for which all others wait
            if core.looks > looks and ledger.is_caught_up:
                return
            core.looks += 1
            while True:
                found = ledger.look(core.limits.blocks_max)
                if found.position != ledger.position:
                    try:
                        self._take_over(found)
                    except BaseException:
                        ledger.followed = None
                        raise
                ledger.take(found)
                if ledger.is_caught_up:
                    return

    def _take_over(self, found: Found) -> None:
        core, touched = self.core, Touched.by(found.transactions)
        with core.ledger.ahead(touched.keys(core.keys.certificate.subject)), core.store.transaction():
            core.since_ms = touched.revoked_ms
            try:
                self._apply(touched)
                core.store.set_meta("position", found.position.encode())
            finally:
                core.since_ms = None

    def _apply(self, touched: Touched) -> None:
        places = touched.places
        for text in touched.trust:
            self._apply_trust(text)
        for (tenant,) in places["tenants"]:
            self.subjects.apply_tenant(tenant)
        shaken = [
            subject
            for (subject,) in places["subjects"]
            if self.subjects.apply_identity(subject, touched.certificates.get(subject))
        ]
        for (token,) in places["topics"]:
            self.topics.apply(token)
        for (number,) in places["attribute epochs"]:
            self.attribute_epochs.apply(number)
        for place in places["attributes"]:
            self.attributes.apply(*place)
        for name, part in (("policies", self.policies), ("epochs", self.epochs), ("erasures", self.erasure)):
            for token, *rest in places[name]:
                if self.topics.find(token) is not None:
                    part.apply(token, *rest)
        for (identifier,) in places["permits"]:
            self.permits.apply(identifier)
        for subject in shaken:
            self.attributes.recheck(subject)
            self.permits.recheck(subject, all_of_them=True)
            self.mesh.recheck(subject, all_of_them=True)
        for token, principal in places["rights"]:
            self.permits.recheck(principal, token)
            self.mesh.recheck(principal, token)

    def _apply_trust(self, text: str) -> None:
        """A newer trust file counts if the one before it agrees; the contracts asked the same."""
        core = self.core
        if core.ledger.raw(TRUST()) is None:
            return
        new = TrustFile.parse(text)
        if new.number != core.trust.number + 1:
            return
        core.trust.check_successor(new)
        core.ledger.use_trust(new)
        core.store.set_meta("trust", text.encode())

    # --- the ledger's rules, by the operator ---

    def rules(self) -> RulesInForce:
        ledger = self.core.ledger
        chosen = {name: ledger.row(CHOSEN(name.encode())) for name in SETTINGS}
        values = tuple((name, SETTINGS[name].default if value is None else value) for name, value in chosen.items())
        versions = tuple((name, version, height) for name, version, height in ledger.row(VERSIONS()) or [])
        return RulesInForce(ledger.position.height, values, versions)

    def change_rules(self, changes: Sequence[bytes]) -> None:
        """Write what the operator says, of the kinds that are an operator's, in the authority's name."""
        for change in changes:
            entry = wire.decode(change, "entry")
            if not isinstance(entry, list) or not entry or entry[0] not in _OPERATORS_KINDS:
                raise Refused(
                    "an operator writes settings, activations, pardons, hosts and overlays", reason="unknown-kind"
                )
        self.settle(self.core.queue(changes))

    # --- backups ---

    def back_up(self, recipients: list[str]) -> Backup:
        """The whole store, encrypted to age recipients."""
        return back_up(self.core.store, self.folder, recipients, self.core.now_ms, self.core.entropy)

    def begin_backup(self, recipients: list[str]) -> tuple[bytes, int]:
        """Make a backup, to be fetched in parts. Returns its identifier and size."""
        backup = self.back_up(recipients)
        lay_out(backup, self.folder)
        return backup.identifier, len(backup.data)

    def backup_part(self, identifier: bytes, offset: int) -> bytes:
        return read_part(self.folder, identifier, offset, self.core.limits.backup_part_bytes)

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
            attribute_epoch=self.attribute_epochs.current() or 0,
            epochs=count("epochs WHERE announced = 1"),
            erased=count("erasure_keys WHERE erased != 0"),
            outbox=count("outbox"),
            backups=count("backups"),
            disk_free_bytes=RealDisk(self.folder).free_bytes(),
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
    return Authority(Core(AuthorityKeys(own, key, master), store, view, clock, entropy, settings, limits), folder)
