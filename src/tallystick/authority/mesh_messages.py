"""What members of a mesh and their authority say to each other: one request, one answer, and the update.

Threat: whoever stands between a principal and its authority (a proxy that ends TLS, whoever keeps its logs) and wants
to know which key on the mesh is whose, which topic a member is about, and whether it publishes. So the request is
sealed to the authority as answers are sealed to principals, refusals too, and each has one size, whatever is in it.
What is seen is that somebody is a member, when it asks, and how often: of how many topics, at most.

An **update** is the answer to a member that did not ask: a topic's keys of coming epochs, and a later certificate of
its node. The topic's owner gets those of all its members and publishes them over the mesh (client/mesh_updates.py),
where each is one among many of one size. It is sealed to the member and signed inside, since anybody can seal to a
public key. Its time says which of two is newer: one that somebody kept and sends again brings nothing back. Owners get
them by the page, always as many: what nobody needs is sealed to nobody.

A publisher's keys are the authority's to draw (`leaves`): it certifies them, so that it could publish on the mesh under
a key of its own anyway, and it knows whose each is. What it cannot do is sign the parcel inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from tallystick import wire
from tallystick.authority.codec import Identifier, Number, Octets, Versioned, items, number, octets, row, specs, text
from tallystick.crypto import hpke
from tallystick.crypto.signatures import Signer, SigningKey, Verifier, split_signed
from tallystick.errors import CannotOpen, Forged, Malformed, Refused
from tallystick.parcel.padding import pad_to, unpad
from tallystick.trust.certificate import Certificate
from tallystick.trust.mesh import EPOCH_MAX, MeshAuthority, check_member, check_publisher, mesh_pseudonym

EPOCHS_MAX = 16  # whose keys one answer has: a car is offline for two weeks
REQUEST_BYTES = 128
SEALED_REQUEST_BYTES = REQUEST_BYTES + hpke.SEAL_BYTES
ANSWER_BYTES = 2_560  # sixteen secrets, and as many seeds and certificates
UPDATE_BYTES = 2_816  # an answer, whom it is for, and a signature
UPDATES_AT_ONCE = 16  # on a page
UPDATES_REQUEST_BYTES = 64
SEALED_UPDATES_BYTES = UPDATES_REQUEST_BYTES + hpke.SEAL_BYTES
K_MAX = (1 << 32) - 1
UPDATE_CONTEXT = "tallystick mesh update 1"

_Epoch = Annotated[int, number(at_most=EPOCH_MAX)]
Secrets = Annotated[tuple[bytes, ...], items(octets(32), at_most=EPOCHS_MAX)]
Leaves = Annotated[tuple[tuple[bytes, bytes], ...], items(row(octets(32), octets(64)), at_most=EPOCHS_MAX)]
Guises = Annotated[tuple[int, ...], items(number(at_most=3), at_most=EPOCHS_MAX)]


@dataclass(frozen=True)
class MeshRequest(Versioned):
    """All that a member asks for. What it does not want is empty or 0."""

    what = "mesh request"
    token: Annotated[bytes, octets(at_most=16)] = b""
    operation: Annotated[int, number(at_most=2)] = 0  # 1 subscribe, 2 advertise
    epochs: Number = 0  # whose keys are wanted, from the current one on
    lasting: Annotated[bytes, octets(at_most=32)] = b""  # the lasting key of the principal's node
    terms: Annotated[tuple[int, ...], items(number(at_most=K_MAX), at_most=2)] = ()  # its owner's: guise and k_min

    def seal(self, authority: Certificate, principal: bytes) -> bytes:
        public = hpke.PublicKey.decode(authority.sealing_key)
        return hpke.seal(public, pad_to(self.encode(), REQUEST_BYTES), _request_info(authority.instance, principal))

    @classmethod
    def open(cls, sealed: bytes, private: hpke.PrivateKey, instance: bytes, principal: bytes) -> MeshRequest:
        """What this principal sealed. Raises `CannotOpen` or `Malformed`."""
        return cls.decode(unpad(hpke.open_(private, sealed, _request_info(instance, principal))))


@dataclass(frozen=True)
class MeshAnswer(Versioned):
    """What the authority gives of it."""

    what = "mesh answer"
    authority: Octets  # a `MeshAuthority`
    issued_ms: Number
    first_epoch: _Epoch  # the current one
    secrets: Secrets = field(repr=False)  # the topic's mesh keys, from the first epoch on
    leaves: Leaves = field(repr=False)  # to publish, in each of them: the seed of a key, and its certificate; or none
    until_ms: Number  # of the lasting key's certificate; 0 where none was asked for
    member: Annotated[bytes, octets(at_most=64)] = field(repr=False)  # that certificate
    guises: Guises = ()  # of the topic, by epoch
    k_min: Annotated[int, number(at_most=K_MAX)] = 0  # what its owner holds for the least crowd to hide in
    thin: Annotated[int, number(at_most=1)] = 0  # whether fewer than that hold the topic's keys

    def check(self, by: Certificate) -> MeshAuthority:
        """The word on the mesh in it. Raises `Forged` unless it is this authority's, and every leaf holds under it."""
        authority = MeshAuthority.decode(self.authority)
        key = authority.verify(by)
        if len(self.guises) != len(self.secrets) or len(self.leaves) not in (0, len(self.secrets)):
            raise Forged("mesh: keys, guises and leaves are of different epochs", reason="wrong-answer")
        for ahead, (seed, certificate) in enumerate(self.leaves):
            epoch = self.first_epoch + ahead
            own = SigningKey.from_seed(seed).public.raw
            check_publisher(mesh_pseudonym(self.secrets[ahead], epoch), epoch, own, certificate, key)
        return authority

    def is_place_of(self, lasting: bytes, key: Verifier) -> bool:
        """Whether it has a certificate of the node with this lasting key."""
        try:
            check_member(lasting, self.until_ms, self.member, key)
        except Forged:
            return False
        return True


_Said = Annotated[str, text(at_most=400)]


@dataclass(frozen=True)
class MeshRefusal(Versioned):
    """Why nothing of it is given, in place of an answer: it would tell others which topic it was about."""

    what = "mesh refusal"
    reason: _Said
    message: _Said
    hint: _Said

    @classmethod
    def of(cls, error: Refused) -> MeshRefusal:
        return cls(error.reason[:400], str(error)[:400], (error.hint or "")[:400])


def read_answer(opened: bytes) -> MeshAnswer:
    """What an answer says. Raises `Refused` where it says why not, and `Malformed`."""
    data = unpad(opened)
    fields = wire.decode(data, MeshAnswer.what)
    if isinstance(fields, list) and len(fields) == 1 + len(specs(MeshRefusal)):
        refusal = MeshRefusal.decode(data)
        raise Refused(refusal.message, reason=refusal.reason, hint=refusal.hint or None)
    return MeshAnswer.decode(data)


@dataclass(frozen=True)
class MeshUpdate(Versioned):
    """What a member would be answered that asked for a topic's keys once more."""

    what = "mesh update"
    principal: Identifier
    token: Identifier
    answer: Annotated[bytes, octets(at_most=ANSWER_BYTES)] = field(repr=False)

    @cached_property
    def given(self) -> MeshAnswer:
        return MeshAnswer.decode(self.answer)

    def seal(self, member: Certificate, signer: Signer) -> bytes:
        """For this member alone: always as many bytes."""
        body = self.encode()
        signed = wire.encode([body, signer.sign(UPDATE_CONTEXT, body)])
        public = hpke.PublicKey.decode(member.sealing_key)
        return hpke.seal(public, pad_to(signed, UPDATE_BYTES), _update_info(member.instance))

    @classmethod
    def open(cls, sealed: bytes, private: hpke.PrivateKey, member: Certificate, key: Verifier) -> MeshUpdate:
        """What was sealed to this member. Raises `CannotOpen`, whatever the reason."""
        if len(sealed) != hpke.SEAL_BYTES + UPDATE_BYTES:
            raise CannotOpen
        try:
            body, signature = split_signed(unpad(hpke.open_(private, sealed, _update_info(member.instance))), cls.what)
            _check_update(body, signature, key)
            update = cls.decode(body)
            _ = update.given
        except (Malformed, Forged) as error:
            raise CannotOpen from error
        if update.principal != member.subject:
            raise CannotOpen
        return update


def update_for_nobody(entropy: bytes, instance: bytes) -> bytes:
    """What nobody can tell from an update, and nobody opens: its key is forgotten."""
    return hpke.seal(hpke.PrivateKey.generate(entropy).public, bytes(UPDATE_BYTES), _update_info(instance))


@dataclass(frozen=True)
class MeshUpdatesRequest(Versioned):
    """A page of a topic's updates, for its owner."""

    what = "mesh updates request"
    token: Identifier
    after: Identifier  # zeros, or what the last page ended with

    def seal(self, authority: Certificate, principal: bytes) -> bytes:
        public = hpke.PublicKey.decode(authority.sealing_key)
        padded = pad_to(self.encode(), UPDATES_REQUEST_BYTES)
        return hpke.seal(public, padded, _request_info(authority.instance, principal))

    @classmethod
    def open(cls, sealed: bytes, private: hpke.PrivateKey, instance: bytes, principal: bytes) -> MeshUpdatesRequest:
        """What this principal sealed. Raises `CannotOpen` or `Malformed`."""
        return cls.decode(unpad(hpke.open_(private, sealed, _request_info(instance, principal))))


@dataclass(frozen=True)
class MeshUpdatesPage(Versioned):
    what = "mesh updates"
    end: Identifier  # for the next page; zeros behind the last
    updates: Annotated[tuple[bytes, ...], items(octets(hpke.SEAL_BYTES + UPDATE_BYTES), at_most=UPDATES_AT_ONCE)]


def _request_info(instance: bytes, principal: bytes) -> bytes:
    return wire.encode(["tallystick mesh request 1", instance, principal])


def _update_info(instance: bytes) -> bytes:
    return wire.encode([UPDATE_CONTEXT, instance])


def _check_update(body: bytes, signature: bytes, key: Verifier) -> None:
    key.verify(UPDATE_CONTEXT, signature, body)
