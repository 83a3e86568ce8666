"""The routing guard of the mesh: what every hop asks of an envelope and of an advertisement before it passes it on.

Threat: neighbours that forge, repeat, delay or flood. Invariant (EventGuard 4.7): a node passes an envelope on only if
it is well-formed, fresh, signed by a publisher whom the authority certified for this pseudonym and epoch, and not seen
before; so what a forger or repeater sends ends at its honest neighbours. Nothing else is asked, and nothing inside is
looked at: a node knows neither topics nor rights, and the publish guard judges the parcel where it is opened.

An envelope counts in the epoch in which it was made. So a publisher that got no certificate for the next epoch is heard
no longer than the delay after this one has ended; no list of the revoked is needed, which would name them.

Memory is bounded, and only what is verified enters it, so junk fills nothing: for each publisher's key a share of the
window, and of everybody together `window_max`, beyond which all have equal shares. A full share refuses its publisher
alone and forgets nothing early. Left out: the window is lost with the process, and an envelope repeated within the
delay passes a restarted node once more, up to its neighbours, who remember.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

from tallystick import wire
from tallystick.carriers.mesh.advertisement import Advertisement, check_chain, check_signed, check_times
from tallystick.carriers.mesh.envelope import CONTEXT, MeshEnvelope
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.crypto.signatures import Verifier, VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.guards.route import Window
from tallystick.trust.mesh import check_publisher, epoch_at

_publisher_key = lru_cache(maxsize=256)(VerifyKey)  # they come again and again


class MeshGuard:
    """That of one node; `authority` certifies publishers."""

    def __init__(self, authority: Verifier, limits: MeshLimits = MeshLimits()) -> None:
        self._authority, self._limits = authority, limits
        self._window = Window(limits.delay_max_ms / 1000, limits.skew_max_ms / 1000, limits.window_share_max)
        self._verified: dict[bytes, None] = {}  # hashes of what holds, the oldest first

    def __len__(self) -> int:
        """Envelopes remembered."""
        return len(self._window)

    def judge(self, data: bytes, now_ms: int, decoded: MeshEnvelope | None = None) -> MeshEnvelope:
        """The envelope, from now on a duplicate. Raises `Refused`. Cheapest first; only what holds is remembered.
        `decoded`: what the data say, if somebody has looked already."""
        self._check_size(data)
        envelope = decoded or MeshEnvelope.decode(data)
        self._check_time(envelope, now_ms)
        if self._window.has(envelope.key, envelope.identifier):
            raise Refused("envelope: seen before", reason="duplicate")
        self._window.check_share(envelope.key, self._limits.window_max, now_ms / 1000)
        self._check_signature(envelope)
        self._window.check(envelope.key, envelope.identifier, now_ms / 1000)
        return envelope

    def check(self, advertisement: Advertisement, h: bytes, now_ms: int) -> int:
        """The steps from `h` to the advertisement's anchor: more are nearer. Raises `Refused` unless it counts now and
        `h` is of its chain."""
        check_times(advertisement, now_ms, self._limits)
        steps = check_chain(advertisement, h)
        self._once(advertisement.encode(), lambda: check_signed(advertisement, self._authority))
        return steps

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._limits.envelope_bytes_max:
            raise Malformed(f"envelope: {len(data)} bytes, at most {self._limits.envelope_bytes_max} expected")

    def _check_time(self, envelope: MeshEnvelope, now_ms: int) -> None:
        """EventGuard 4.7, third step: the signed time is neither too old nor yet to come. It lies in the epoch, too."""
        age_ms = now_ms - envelope.created_ms
        if age_ms > self._limits.delay_max_ms + self._limits.skew_max_ms:
            raise Refused(f"envelope: {age_ms} ms old, accepted are {self._limits.delay_max_ms}", reason="stale")
        if age_ms < -self._limits.skew_max_ms:
            raise Refused(f"envelope: created {-age_ms} ms in the future", reason="future")
        if envelope.epoch != epoch_at(envelope.created_ms, self._limits.epoch_ms):
            raise Refused(f"envelope: it was not made in its epoch {envelope.epoch}", reason="wrong-epoch")

    def _check_signature(self, envelope: MeshEnvelope) -> None:
        """Raise `Refused` unless a certified publisher signed it."""
        named = (envelope.pseudonym, envelope.epoch, envelope.key, envelope.certificate)
        self._once(wire.encode(list(named)), lambda: check_publisher(*named, self._authority))
        _publisher_key(envelope.key).verify(CONTEXT, envelope.signature, envelope.body)

    def _once(self, what: bytes, verify: Callable[[], None]) -> None:
        """Verify what is not known to hold. Who is certified comes again and again, who is not is never kept."""
        name = sha256(what).digest()
        if name not in self._verified:
            verify()
            self._verified[name] = None
            if len(self._verified) > self._limits.verified_max:
                del self._verified[next(iter(self._verified))]
