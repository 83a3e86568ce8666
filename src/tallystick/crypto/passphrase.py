"""A secret at rest under a passphrase: Argon2id (RFC 9106), then AES-256-GCM.

Threat: a stolen disk and a guessed passphrase; the cost of a guess is stored with the secret, so that it can
rise over the years. Threat: a file planted to make its reader allocate everything; the cost is bounded
before it is paid. The whole head, cost included, is authenticated. The stretched passphrase wraps the secret
as a key that serves often, so that a repeated random state encrypts no second secret under the same key.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from tallystick import wire
from tallystick.crypto.symmetric import derive, unwrap, wrap
from tallystick.errors import Malformed, Misuse

SALT_BYTES = 32

MEMORY_KIB_MIN = 8 * 4  # RFC 9106 asks for 8 KiB a lane
MEMORY_KIB_MAX = 1 << 20  # 1 GiB: a reader can spare it once
ITERATIONS_MAX = 16  # at 1 GiB some ten seconds
LANES_MAX = 4


@dataclass(frozen=True)
class Cost:
    """What one guess costs; the default is RFC 9106's second recommendation, 64 MiB and three passes."""

    memory_kib: int = 64 * 1024
    iterations: int = 3
    lanes: int = 4

    def is_bounded(self) -> bool:
        return (
            MEMORY_KIB_MIN <= self.memory_kib <= MEMORY_KIB_MAX
            and 1 <= self.iterations <= ITERATIONS_MAX
            and 1 <= self.lanes <= LANES_MAX
        )


def lock_secret(secret: bytes, passphrase: bytes, entropy: bytes, cost: Cost = Cost()) -> bytes:
    """The secret, encrypted; `entropy` is 32 fresh bytes, `cost` is cheaper only in tests."""
    if len(entropy) < SALT_BYTES:
        raise Misuse(f"locking a secret needs {SALT_BYTES} bytes of entropy, found {len(entropy)}")
    if not cost.is_bounded():
        raise Misuse(f"passphrase cost out of bounds: {cost}")
    salt = entropy[:SALT_BYTES]
    head = wire.encode([1, cost.memory_kib, cost.iterations, cost.lanes, salt])
    return wire.encode([head, wrap(_key(passphrase, salt, cost), secret, head, entropy)])


def unlock_secret(data: bytes, passphrase: bytes) -> bytes:
    """The secret. Raises `CannotOpen` for a wrong passphrase, `Malformed` for what is no locked secret."""
    match wire.decode(data, "locked secret"):
        case [bytes(head), bytes(wrapped)]:
            pass
        case _:
            raise Malformed("locked secret: expected head and wrapped secret")
    match wire.decode(head, "locked secret's head"):
        case [int(version), int(memory_kib), int(iterations), int(lanes), bytes(salt)]:
            pass
        case _:
            raise Malformed("locked secret: expected version, memory, iterations, lanes and salt")
    if type(version) is not int or version != 1:
        raise Malformed(f"locked secret: expected version 1, found {version}")
    cost = Cost(memory_kib, iterations, lanes)
    if not cost.is_bounded() or len(salt) != SALT_BYTES:
        raise Malformed(f"locked secret: cost or salt out of bounds: {cost}, {len(salt)} bytes of salt")
    return unwrap(_key(passphrase, salt, cost), wrapped, head)


def _key(passphrase: bytes, salt: bytes, cost: Cost) -> bytes:
    stretched = Argon2id(
        salt=salt, length=32, iterations=cost.iterations, lanes=cost.lanes, memory_cost=cost.memory_kib
    ).derive(passphrase)
    return derive(stretched, "tallystick passphrase 1")
