"""The keys of a link of the mesh: how two nodes that never met come to speak under keys that nobody else ever has.

Threat: an observer who records everything and later gets hold of a node's keys; strangers who pretend to be neighbours;
old datagrams, sent once more. Nothing on a link is in the clear but 32 bytes at the front of each datagram that look
random, so every message looks different on each hop (AnonPubSub 4.2).

Each node has one lasting key, whose hash is its mesh identity, and draws a fresh one for each link. A **knock** brings
the sender's lasting and fresh key, and tells which fresh key of the receiver it heard. It is sealed twice, to the
receiver's lasting key and to what both lasting keys agree on: nobody but the two can have made it. Fresh and lasting
keys together give a **session**, with a key for each direction. It counts at one end when a cell of it was opened
there, since that took the fresh keys of both: what was recorded earlier opens nothing. Fresh keys are drawn anew from
time to time, and with the old ones goes what could open the recorded. A knock also shows what makes its sender a
member of the mesh, so that outsiders never have a link.

Left out: hiding that a knock is one. Its first 32 bytes are a point of the curve, as half of all random bytes are, so
after some knocks an observer tells that a link is new; it sees the new pair of addresses anyway. An old knock that is
sent once more while a session is made delays that by a beat. Quantum computers: see `crypto/exchange.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from tallystick.carriers.mesh.cells import PLAIN_BYTES
from tallystick.crypto.exchange import EXCHANGE_BYTES, ExchangeKey
from tallystick.crypto.symmetric import (
    SALT_BYTES,
    TAG_BYTES,
    decrypt,
    derive,
    encrypt,
    extract,
    named_hash,
    unwrap,
    wrap,
)
from tallystick.errors import Malformed
from tallystick.runtime.sources import Entropy

LIFE_BYTES = 8
SHOWN_BYTES_MAX = 254
NOBODY = bytes(EXCHANGE_BYTES)  # heard from nobody yet

_SALT = b"tallystick mesh link 1"
_INNER = struct.Struct(f"<{EXCHANGE_BYTES}s{EXCHANGE_BYTES}s{LIFE_BYTES}sH{SHOWN_BYTES_MAX}s")


class Knock(NamedTuple):
    fresh: bytes  # the sender's key for this link
    heard: bytes  # the receiver's, as the sender knows it
    life: bytes  # which process of the sender: another one forgot what came
    shown: bytes = b""  # what makes the sender a member


def identity_of(key: bytes) -> bytes:
    """The mesh identity of the node with this lasting key: nobody else can speak as it."""
    return named_hash("tallystick mesh identity 1", key)[:16]


def agree_lasting(own: ExchangeKey, peer: bytes) -> bytes:
    """What the lasting keys of two nodes give. Raises `Malformed` if the peer's is none."""
    return extract(_SALT, own.agree(peer))


def seal_knock(
    knock: Knock, own: ExchangeKey, peer: bytes, agreed: bytes, entropy: Entropy, *, padded: bool = True
) -> bytes:
    """The datagram of a knock for `peer`, with whom this node's lasting key agrees on `agreed`."""
    once = ExchangeKey(entropy.bytes(EXCHANGE_BYTES))
    place = (once.public, own.public, peer)
    told = _INNER.pack(knock.fresh, knock.heard, knock.life, len(knock.shown), knock.shown)
    plain = own.public + encrypt(derive(agreed, "tallystick mesh knock 1", *place), told)
    padding = bytes(PLAIN_BYTES - len(plain)) if padded else b""
    return once.public + encrypt(_outer_key(once.agree(peer), once.public, peer), plain + padding)


class SealedKnock(NamedTuple):
    """Opened as far as says who sent it, by its own account."""

    sender: bytes
    once: bytes
    inner: bytes

    @classmethod
    def open_outer(cls, own: ExchangeKey, data: bytes) -> SealedKnock:
        """Raises `CannotOpen` or `Malformed`."""
        once = data[:EXCHANGE_BYTES]
        plain = decrypt(_outer_key(own.agree(once), once, own.public), data[EXCHANGE_BYTES:])
        end = EXCHANGE_BYTES + _INNER.size + TAG_BYTES
        if len(plain) < end:
            raise Malformed("knock: too short")
        return cls(plain[:EXCHANGE_BYTES], once, plain[EXCHANGE_BYTES:end])

    def open(self, own: ExchangeKey, agreed: bytes) -> Knock:
        """The knock, which its sender made. Raises `CannotOpen`."""
        key = derive(agreed, "tallystick mesh knock 1", self.once, self.sender, own.public)
        fresh, heard, life, length, shown = _INNER.unpack(decrypt(key, self.inner))
        return Knock(fresh, heard, life, shown[:length])


def _outer_key(agreed: bytes, once: bytes, receiver: bytes) -> bytes:
    return derive(extract(_SALT, agreed), "tallystick mesh knock 1", once, receiver)


@dataclass
class LinkSession:
    """Keys of both directions between two fresh keys."""

    fresh: bytes  # the other end's
    life: bytes  # the other end's
    is_answered: bool  # whether the other end heard our fresh key
    _out: bytes = field(repr=False)
    _in: bytes = field(repr=False)

    @classmethod
    def between(cls, own: ExchangeKey, peer: bytes, agreed: bytes, fresh: ExchangeKey, knock: Knock) -> LinkSession:
        """Raises `Malformed` if the knock's fresh key is none."""
        root = extract(agreed, fresh.agree(knock.fresh))
        out, into = (derive(root, "tallystick mesh link 1", *pair) for pair in ((own.public, peer), (peer, own.public)))
        return cls(knock.fresh, knock.life, knock.heard == fresh.public, out, into)

    def seal(self, plain: bytes, entropy: Entropy) -> bytes:
        return wrap(self._out, plain, b"", entropy.bytes(SALT_BYTES))

    def open(self, data: bytes) -> bytes:
        """Raises `CannotOpen`."""
        return unwrap(self._in, data, b"")
