"""The master key: what everything secret at the authority hangs on, itself under a passphrase.

Threat: a stolen disk: the file is locked by Argon2id, and every other secret is wrapped under a key derived here.
Threat: rows moved or altered by whoever can write the store but not open it: what is wrapped is bound to its place
(kind, topic, number and public half), so that it opens nowhere else. Threat: EventGuard's name attack: UST(sbId) is
made with the same keyed hash as K(w), so whoever may name a topic after another's identifier obtains that undo
token. Ours come from keys of their own under labels of their own.

Topic and erasure keys are not derived from the master key but drawn, so that they can be destroyed. Those of attributes
and topic policies are derived: a restored authority makes them again, and what they lock stands under a topic key too.
So are those of the mesh, which open no bodies.
"""

from __future__ import annotations

import os
from pathlib import Path

from tallystick import wire
from tallystick.crypto.passphrase import Cost, lock_secret, unlock_secret
from tallystick.crypto.signatures import SigningKey, VerifyKey
from tallystick.crypto.symmetric import derive, named_hash, unwrap, wrap
from tallystick.errors import CannotOpen, Misuse
from tallystick.runtime.sources import Entropy
from tallystick.trust.mesh import mesh_secret
from tallystick.trust.permit import Operation
from tallystick.wire import Fields

MASTER_FILE = "master.key"
FILE_KIND = "tallystick master key"
MASTER_BYTES = 32

_UNDO_LABELS = {Operation.SUBSCRIBE: "tallystick undo subscribe 1", Operation.ADVERTISE: "tallystick undo advertise 1"}


class MasterKey:
    """Derivations and wrapping; shows nothing of itself."""

    __slots__ = ("_attribute_key", "_label_key", "_mesh_key", "_token_key", "_undo_key", "_wrap_key", "operator_key")

    def __init__(self, secret: bytes) -> None:
        self._token_key = derive(secret, "tallystick master token 1")
        self._undo_key = derive(secret, "tallystick master undo 1")
        self._wrap_key = derive(secret, "tallystick master wrap 1")
        self._attribute_key = derive(secret, "tallystick master attribute 1")
        self._label_key = derive(secret, "tallystick master label 1")
        self._mesh_key = derive(secret, "tallystick master mesh 1")
        # Whoever holds the file and the passphrase is the operator, also beside the running process.
        self.operator_key = SigningKey.from_seed(derive(secret, "tallystick master operator 1"))

    def token(self, tenant: bytes, name: str) -> bytes:
        """The pseudonym of a topic of version 1: T(w) of EventGuard 4.2, but not a function of the topic's key."""
        return derive(self._token_key, "tallystick token 1", tenant, name.encode())[:16]

    def word(self, tenant: bytes, name: str) -> bytes:
        """What the token of a bound topic is made of; the ledger shows it, and it tells nothing of the name."""
        return derive(self._token_key, "tallystick topic word 1", tenant, name.encode())

    def undo_token(self, operation: Operation, identifier: bytes) -> bytes:
        """UST(sbId) and UAT(adId) of EventGuard 4.5 and 4.6."""
        return derive(self._undo_key, _UNDO_LABELS[operation], identifier)

    def label_key(self, token: bytes, epoch: int) -> bytes:
        """The key of a topic's labels in one epoch, announced or not: publishers may be told of coming ones."""
        return derive(self._label_key, "tallystick label key 1", token, epoch)

    def mesh_secret(self, token: bytes, epoch: int, renewal: int) -> bytes:
        """A topic's mesh key of one epoch."""
        return mesh_secret(derive(self._mesh_key, "tallystick mesh root 1"), token, epoch, renewal)

    def mesh_publisher(self, principal: bytes, pseudonym: bytes, epoch: int) -> bytes:
        """The seed of a publisher's key under a topic's pseudonym: always the same one."""
        return derive(self._mesh_key, "tallystick mesh publisher 1", principal, pseudonym, epoch)

    @property
    def mesh_signing(self) -> SigningKey:
        """The key that signs certificates of the mesh, and nothing else."""
        return SigningKey.from_seed(derive(self._mesh_key, "tallystick mesh authority 1"))

    @property
    def abe_seed(self) -> bytes:
        """The attribute authority's own seed."""
        return derive(self._attribute_key, "tallystick attribute authority 1")

    def pseudonym(self, principal: bytes, name: str) -> bytes:
        """What the ledger shows of a principal's attribute; another for every principal."""
        return derive(self._attribute_key, "tallystick attribute pseudonym 1", principal, name.encode())[:16]

    def policy_seeds(self, token: bytes, group: int, version: int, epoch: int, formula: bytes) -> tuple[bytes, bytes]:
        """The seed of a topic policy's key pair in one attribute epoch, and the entropy of its capsule."""
        place = (token, group, version, epoch, formula)
        labels = ("tallystick topic policy seed 1", "tallystick topic policy capsule 1")
        return derive(self._attribute_key, labels[0], *place), derive(self._attribute_key, labels[1], *place)

    def rekey_challenge(self, principal: bytes, signing_key: bytes, sealing_key: bytes) -> bytes:
        """What a principal must open with the sealing key that it brings."""
        return derive(self._wrap_key, "tallystick rekey challenge 1", principal, signing_key, sealing_key)

    def wrap_own(self, name: str, secret: bytes, entropy: Entropy) -> bytes:
        """One of the authority's own secrets, for its store."""
        return wrap(self._wrap_key, secret, wire.encode(["own", name]), entropy.bytes(32))

    def unwrap_own(self, name: str, wrapped: bytes) -> bytes:
        return unwrap(self._wrap_key, wrapped, wire.encode(["own", name]))

    def wrap_key_pair(self, token: bytes, place: list[bytes | int | str], seed: bytes, entropy: Entropy) -> bytes:
        """A topic's or an erasure key's seed; `place` is where it belongs, its public half included."""
        return wrap(self._topic_key(token), seed, wire.encode(place), entropy.bytes(32))

    def unwrap_key_pair(self, token: bytes, place: list[bytes | int | str], wrapped: bytes) -> bytes:
        return unwrap(self._topic_key(token), wrapped, wire.encode(place))

    def wrap_schema(self, token: bytes, version: int, text: bytes, entropy: Entropy) -> bytes:
        key = derive(self._wrap_key, "tallystick schema key 1", token)
        return wrap(key, text, wire.encode(["schema", version]), entropy.bytes(32))

    def unwrap_schema(self, token: bytes, version: int, wrapped: bytes) -> bytes:
        key = derive(self._wrap_key, "tallystick schema key 1", token)
        return unwrap(key, wrapped, wire.encode(["schema", version]))

    def wrap_at(self, place: list[bytes | int | str], content: bytes, entropy: Entropy) -> bytes:
        """Names, values and formulas for the store; they open at their own place only."""
        return wrap(self._place_key, content, wire.encode(place), entropy.bytes(32))

    def unwrap_at(self, place: list[bytes | int | str], wrapped: bytes) -> bytes:
        return unwrap(self._place_key, wrapped, wire.encode(place))

    @property
    def _place_key(self) -> bytes:
        return derive(self._wrap_key, "tallystick attribute wrap 1")

    def _topic_key(self, token: bytes) -> bytes:
        return derive(self._wrap_key, "tallystick topic key wrap 1", token)

    def __repr__(self) -> str:
        return "MasterKey(…)"


def tenant_id(instance: bytes, name: str) -> bytes:
    """The identifier of a tenant."""
    return named_hash("tallystick tenant 1", instance + name.encode())[:16]


def operator_id(key: VerifyKey) -> bytes:
    """The name under which the operator signs."""
    return named_hash("tallystick operator 1", key.raw)[:16]


def create_master(passphrase: bytes, entropy: Entropy, cost: Cost = Cost()) -> bytes:
    """The content of a new master key file; `cost` is cheaper only in tests."""
    if not passphrase:
        raise Misuse("the authority's passphrase is empty", hint="give one by a file or the environment")
    locked = lock_secret(entropy.bytes(MASTER_BYTES), passphrase, entropy.bytes(32), cost)
    return wire.encode([1, FILE_KIND, locked])


def open_master(data: bytes, passphrase: bytes) -> MasterKey:
    """The master key. Raises `CannotOpen` for a wrong passphrase, `Malformed` for what is no master key file."""
    fields = Fields.parse(data, "master key file", 3)
    fields.version(1)
    if fields.text() != FILE_KIND:
        raise Misuse("master key file: it is a file of another kind")
    try:
        return MasterKey(unlock_secret(fields.octets(), passphrase))
    except CannotOpen:
        raise CannotOpen("master key: cannot open", hint="check the passphrase: its file, or the environment") from None


def write_private(path: Path, data: bytes) -> None:
    """Create a file that only its owner may read, durably; an existing one is never replaced."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Misuse(f"{path.name} exists already", hint="an authority is created once; name another folder") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
