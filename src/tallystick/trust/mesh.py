"""What the authority gives to members of a mesh: the key of a topic in one epoch, and leave to publish in it.

Threat: every node of a mesh checks what it passes on, so what it checks must not say whom it serves. A certificate
that named its holder, its time of issue or a number would link a publisher's epochs, or the publisher to its principal.
Ours covers a topic's pseudonym, an epoch and a key, and nothing else. A publisher has a new key in each epoch, the
pseudonym changes with the topic's mesh key, and the authority's key is the same for all: two certificates of one
publisher have no more in common than those of two (AnonPubSub 4.2, whose certificate is for one key for good).

On the wire a certificate is its 64-byte signature, since whatever it covers stands in the message that it comes with.

Epochs of the mesh are periods of one length, counted from 1970, the same for all topics: every node knows from its
clock alone which are over, and an epoch's number tells no topic from another. They are not the epochs of topic keys.
Whoever is revoked gets no keys of later epochs, and those that it holds already serve nobody once the authority renews
the others' (`renewal`): the pseudonym changes, and no subscription leads to what is published under the old one. What
remains is that nodes pass on a revoked publisher's advertisements until its last certified epoch has ended.

Nodes have certificates, too: a member is a node whose lasting key the authority signed, with an end. The end is that of
an epoch, so that all who asked in one epoch have the same, and it says nothing about who asked when.

All of these are signed by one key that serves nothing else (`MeshAuthority`). The authority's certified key vouches for
it, and says how long epochs are. So whoever meets a certificate of the mesh learns no more than that it is one, and
whoever is enrolled can prove which key it must hold under.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tallystick import wire
from tallystick.crypto.signatures import SignedObject, Signer, Verifier, VerifyKey
from tallystick.crypto.symmetric import derive
from tallystick.errors import Forged
from tallystick.trust.certificate import Certificate, SubjectKind
from tallystick.wire import Octets16, Octets32, number

CONTEXT = "tallystick mesh certificate 1"
MEMBER_CONTEXT = "tallystick mesh member 1"
PSEUDONYM_BYTES = 16
EPOCH_MAX = (1 << 32) - 1


def mesh_secret(root: bytes, token: bytes, epoch: int, renewal: int = 0) -> bytes:
    """A topic's mesh key of one epoch. Nobody learns one from others, of other epochs, topics or renewals."""
    return derive(root, "tallystick mesh key 1", token, epoch, renewal)


def mesh_pseudonym(secret: bytes, epoch: int) -> bytes:
    """t_a: how nodes of the mesh know a topic in one epoch. It comes from the mesh key, not from the token, so who
    knows the topic by another name learns nothing from it (AnonPubSub 4.3)."""
    return derive(secret, "tallystick mesh pseudonym 1", epoch)[:PSEUDONYM_BYTES]


def epoch_at(time_ms: int, epoch_ms: int) -> int:
    return time_ms // epoch_ms


def certify_publisher(pseudonym: bytes, epoch: int, key: bytes, authority: Signer) -> bytes:
    """The certificate of a publisher's key of one epoch."""
    return authority.sign(CONTEXT, _body(pseudonym, epoch, key))


def check_publisher(pseudonym: bytes, epoch: int, key: bytes, certificate: bytes, authority: Verifier) -> None:
    """Raise `Forged` unless the authority lets the holder of `key` publish under this pseudonym in this epoch."""
    authority.verify(CONTEXT, certificate, _body(pseudonym, epoch, key))


def _body(pseudonym: bytes, epoch: int, key: bytes) -> bytes:
    return wire.encode([1, pseudonym, epoch, key])


def certify_member(key: bytes, until_ms: int, authority: Signer) -> bytes:
    """The certificate of a node's lasting key, for one enrolled principal."""
    return authority.sign(MEMBER_CONTEXT, _member_body(key, until_ms))


def check_member(key: bytes, until_ms: int, certificate: bytes, authority: Verifier) -> None:
    """Raise `Forged` unless the authority made the holder of `key` a member until then."""
    authority.verify(MEMBER_CONTEXT, certificate, _member_body(key, until_ms))


def _member_body(key: bytes, until_ms: int) -> bytes:
    return wire.encode([1, key, until_ms])


_Length = Annotated[int, number(at_most=366 * 86_400_000, at_least=1)]


@dataclass(frozen=True)
class MeshAuthority(SignedObject):
    """Under which key certificates of the mesh hold; the word of an authority that the root certified."""

    what = "mesh authority"
    context = "tallystick mesh authority 1"
    instance: Octets32
    authority: Octets16
    key: Octets32
    epoch_ms: _Length  # how long an epoch is
    notice_ms: _Length  # keys of the next epoch stay as they are for so long before it begins

    @property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(self.key)

    def verify(self, authority: Certificate) -> VerifyKey:
        """The key. Raises `Forged` unless it is this authority's word."""
        if authority.kind is not SubjectKind.AUTHORITY or (self.instance, self.authority) != (
            authority.instance,
            authority.subject,
        ):
            raise Forged("mesh authority: the word of another", reason="wrong-authority")
        self.verify_by(authority.verify_key)
        return self.verify_key
