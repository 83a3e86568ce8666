"""What every hop of the mesh asks: forged, repeated, old and early envelopes end there, and nobody fills its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from makers import seed
from mesh_world import AUTHORITY, EPOCH, LIMITS, NOW_MS, advertised, enveloped, mesh_key, publisher
from without import without

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import step
from tallystick.carriers.mesh.envelope import MeshEnvelope
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.limits import MeshLimits
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Refused
from tallystick.runtime.sources import SeededEntropy


def guard(limits: MeshLimits = LIMITS) -> MeshGuard:
    return MeshGuard(AUTHORITY.public, limits)


def reason(guard: MeshGuard, data: bytes, now_ms: int = NOW_MS) -> str:
    try:
        guard.judge(data, now_ms)
    except Refused as error:
        return error.reason
    return ""


def test_an_envelope_passes_once() -> None:
    hop, data = guard(), enveloped()
    assert hop.judge(data, NOW_MS) == MeshEnvelope.decode(data)
    assert reason(hop, data, NOW_MS + LIMITS.delay_max_ms) == "duplicate"
    with without("the mesh guard's memory", "the window of envelopes"):
        assert reason(hop, data) == ""


def test_a_repetition_is_refused_by_age_when_the_memory_has_let_it_go() -> None:
    hop, data = guard(), enveloped()
    hop.judge(data, NOW_MS - LIMITS.skew_max_ms)  # as early as may be
    late = NOW_MS + LIMITS.delay_max_ms + LIMITS.skew_max_ms
    assert [reason(hop, data, late + more) for more in (0, 1)] == ["duplicate", "stale"]
    assert reason(guard(), data, late) == ""  # whoever did not see it takes it up to then
    with without("the age of the mesh's envelopes"):
        hop.judge(enveloped(b"other"), late + 1)  # which lets go of what is old
        assert reason(hop, data, late + LIMITS.epoch_ms) == ""


def test_what_is_to_come_is_refused() -> None:
    assert reason(guard(), enveloped(), NOW_MS - LIMITS.skew_max_ms - 1) == "future"


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, created_ms=NOW_MS + 1),
        lambda one: replace(one, nonce=bytes(32)),
        lambda one: replace(one, sealed=one.sealed[::-1]),
        lambda one: replace(one, pseudonym=mesh_key("lights").pseudonym),
        lambda one: replace(one, key=publisher("bert").key, certificate=publisher("bert").certificate),
        lambda one: replace(one, certificate=bytes(64)),
        lambda one: replace(one, signature=bytes(64)),
    ],
)
def test_what_was_changed_is_forged_and_burns_nothing(change: Callable[[MeshEnvelope], MeshEnvelope]) -> None:
    hop, envelope = guard(), MeshEnvelope.decode(enveloped())
    assert reason(hop, change(envelope).encode()) == "forged"
    assert len(hop) == 0
    assert reason(hop, envelope.encode()) == ""


def test_whom_nobody_certified_is_heard_nowhere() -> None:
    stranger = publisher(authority=SigningKey.from_seed(seed("another authority")))
    data = mesh_key().seal(Pushed(b"spam"), NOW_MS, stranger, SeededEntropy(1)).encode()
    hop = guard()
    assert reason(hop, data) == "forged"
    with without("the signature on the mesh's envelopes"):
        assert reason(hop, data) == ""


def test_who_was_revoked_is_heard_until_its_epoch_ends() -> None:
    """A certificate of this epoch signs nothing of the next, and what it signed ages."""
    ends = (EPOCH + 1) * LIMITS.epoch_ms
    revoked, entropy = publisher(), SeededEntropy(1)
    made = [mesh_key().seal(Pushed(b"late"), at, revoked, entropy).encode() for at in (ends - 1, ends)]
    assert [reason(guard(), data, ends) for data in made] == ["", "wrong-epoch"]


def test_a_flood_of_signed_envelopes_fills_its_publishers_share_alone() -> None:
    hop = guard(replace(LIMITS, window_share_max=3))
    flood = [reason(hop, enveloped(bytes([n]))) for n in range(5)]
    assert flood == ["", "", "", "too-many-requests", "too-many-requests"]
    assert reason(hop, enveloped(who="bert")) == ""
    later = NOW_MS + LIMITS.delay_max_ms + 2 * LIMITS.skew_max_ms + 1000
    assert reason(hop, enveloped(created_ms=later), later) == ""
    assert len(hop) == 1


def test_where_the_window_is_full_each_publisher_has_an_equal_share() -> None:
    hop = guard(replace(LIMITS, window_max=4))
    assert [reason(hop, enveloped(bytes([n]))) for n in range(5)] == ["", "", "", "", "too-many-requests"]
    assert [reason(hop, enveloped(bytes([n]), "bert")) for n in range(5)] == ["", *["", *["too-many-requests"] * 3]]
    assert reason(hop, enveloped(who="carl")) == ""


def test_junk_and_oversized_envelopes_are_malformed() -> None:
    hop = guard(replace(LIMITS, envelope_bytes_max=1000))
    for data in (b"", b"junk", enveloped(bytes(1000)), enveloped()[:-1]):
        with pytest.raises(Malformed):
            hop.judge(data, NOW_MS)
    assert len(hop) == 0


def test_advertisements_are_verified_once_and_their_chain_each_time() -> None:
    hop, (advertisement, chain) = guard(), advertised()
    assert hop.check(advertisement, chain.first, NOW_MS) == chain.length
    assert hop.check(advertisement, step(chain.first), NOW_MS) == chain.length - 1
    for changed, h in ((advertisement, seed("guess")), (replace(advertisement, signature=bytes(64)), chain.first)):
        with pytest.raises(Forged):
            hop.check(changed, h, NOW_MS)
    with pytest.raises(Refused, match="expired"):
        hop.check(advertisement, chain.first, NOW_MS + LIMITS.epoch_ms)


def test_what_is_known_to_hold_is_bounded() -> None:
    hop = guard(replace(LIMITS, verified_max=2))
    for who in ("anna", "bert", "carl"):
        assert reason(hop, enveloped(who=who)) == ""
    assert reason(hop, enveloped(b"again", "anna")) == ""
    assert len(hop._verified) == 2
