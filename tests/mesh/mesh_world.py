"""A small mesh for tests: its authority, the mesh keys of topics, and certified publishers, all by name."""

from __future__ import annotations

from makers import seed, token

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import Advertisement, ChainSecret
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.crypto.signatures import SigningKey
from tallystick.runtime.sources import SeededEntropy
from tallystick.trust.mesh import certify_publisher, epoch_at, mesh_secret

LIMITS = MeshLimits()
NOW_MS = 1_700_000_000_000
EPOCH = epoch_at(NOW_MS, LIMITS.epoch_ms)
AUTHORITY = SigningKey.from_seed(seed("mesh authority"))


def mesh_key(topic: str = "brakes", epoch: int = EPOCH, renewal: int = 0) -> MeshKey:
    return MeshKey(mesh_secret(seed("mesh root"), token(topic), epoch, renewal), epoch)


def publisher(
    who: str = "anna", topic: str = "brakes", epoch: int = EPOCH, authority: SigningKey = AUTHORITY
) -> MeshPublisher:
    pseudonym, own = mesh_key(topic, epoch).pseudonym, seed(f"mesh key {who} {topic} {epoch}")
    key = SigningKey.from_seed(own).public.raw
    return MeshPublisher(pseudonym, epoch, own, certify_publisher(pseudonym, epoch, key, authority))


def advertised(who: str = "anna", topic: str = "brakes", in_ms: int = 600_000) -> tuple[Advertisement, ChainSecret]:
    """An advertisement, and what its publisher keeps of it."""
    by = publisher(who, topic)
    chain = ChainSecret.of(by)
    return chain.advertise(by, NOW_MS + in_ms), chain


def enveloped(parcel: bytes = b"parcel", who: str = "anna", created_ms: int = NOW_MS) -> bytes:
    """The bytes of an envelope of the topic "brakes"."""
    epoch = epoch_at(created_ms, LIMITS.epoch_ms)
    by, entropy = publisher(who, epoch=epoch), SeededEntropy(f"{parcel.hex()} {created_ms}")
    return mesh_key(epoch=epoch).seal(Pushed(parcel), created_ms, by, entropy).encode()
