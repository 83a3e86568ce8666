"""Advertisements of the mesh: the chain that holds, what a liar gains, taking one back, times, forgeries.

AnonPubSub 4.3; what the paper's chain lets a liar do stands beside what ours leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers import seed
from mesh_world import AUTHORITY, EPOCH, LIMITS, NOW_MS, advertised, mesh_key, publisher
from without import without

from tallystick import wire
from tallystick.carriers.mesh.advertisement import (
    STEPS_MAX,
    STEPS_MIN,
    Advertisement,
    ChainSecret,
    check,
    step,
    steps_left,
    undo_hash_of,
)
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.runtime.sources import SeededEntropy


def steps(advertisement: Advertisement, h: bytes, now_ms: int = NOW_MS) -> int:
    return check(advertisement, h, now_ms, AUTHORITY.public, LIMITS)


def walked(h: bytes, hops: int) -> bytes:
    for _ in range(hops):
        h = step(h)
    return h


def test_each_hop_is_one_step_further_from_the_publisher() -> None:
    advertisement, chain = advertised()
    found = [steps(advertisement, walked(chain.first, hops)) for hops in range(5)]
    assert found == [chain.length - hops for hops in range(5)]
    assert steps(advertisement, chain.anchor) == 0


def test_lengths_are_drawn_from_64_to_128() -> None:
    lengths = {ChainSecret.draw(SeededEntropy(n)).length for n in range(1500)}
    assert lengths == set(range(STEPS_MIN, STEPS_MAX + 1))


def test_a_refresh_and_a_restart_keep_chain_and_name() -> None:
    """Else each refresh would give neighbours another draw of the distance."""
    by = publisher()
    first, again = (ChainSecret.of(by).advertise(by, NOW_MS + wait) for wait in (600_000, 900_000))
    assert first.identifier == again.identifier
    assert first.anchor == again.anchor
    assert first.encode() != again.encode()


def test_the_same_publisher_has_nothing_in_common_with_itself_in_another_epoch_or_topic() -> None:
    here, later, elsewhere = publisher(), publisher(epoch=EPOCH + 1), publisher(topic="lights")
    for other in (later, elsewhere):
        both = [ChainSecret.of(by).advertise(by, NOW_MS) for by in (here, other)]
        named = [{*wire.listed(one), one.certificate, one.signature, one.identifier} - {EPOCH, NOW_MS} for one in both]
        assert not named[0] & named[1]


# --- liars ---


def test_a_liar_looks_one_hop_nearer_and_no_more() -> None:
    """It passes on what it got. Anything nearer would be a preimage of what it got."""
    advertisement, chain = advertised()
    got = walked(chain.first, 3)  # the liar is the third hop behind the publisher's neighbour
    honest, lying = steps(advertisement, step(got)), steps(advertisement, got)
    assert lying - honest == 1
    for guess in (seed("guess"), bytes(32), advertisement.undo, advertisement.pseudonym * 2):
        with pytest.raises(Forged, match="128 steps"):
            steps(advertisement, guess)


def test_colluders_look_as_near_as_the_nearest_of_them_over_any_distance() -> None:
    """What the chain does not stop, said in `advertisement.py`."""
    advertisement, chain = advertised()
    near, far = walked(chain.first, 1), walked(chain.first, 9)
    assert steps(advertisement, near) - steps(advertisement, far) == 8


def test_a_value_beyond_the_anchor_or_128_steps_before_it_is_refused() -> None:
    advertisement, chain = advertised()
    with pytest.raises(Forged):
        steps(advertisement, step(chain.anchor))
    long = replace(chain, length=STEPS_MAX + 1).advertise(publisher(), NOW_MS + 1000)
    with pytest.raises(Forged) as refused:
        steps(long, chain.first)
    assert refused.value.reason == "wrong-chain"
    assert steps(long, step(chain.first)) == STEPS_MAX


def test_without_the_anchor_anybody_is_a_publisher_next_door() -> None:
    """As in the paper, where the signature covers the pseudonym alone: a nonce of the liar's own counts."""
    advertisement, _ = advertised()
    forged = seed("a liar's own nonce")
    with without("the anchor of an advertisement's chain"):
        assert steps(advertisement, forged) == STEPS_MAX
    with pytest.raises(Forged):
        steps(advertisement, forged)


# --- forgeries and times ---


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, anchor=step(one.anchor)),
        lambda one: replace(one, undo=undo_hash_of(b"mine")),
        lambda one: replace(one, expiry_ms=one.expiry_ms + 1),
        lambda one: replace(one, pseudonym=mesh_key("lights").pseudonym),
        lambda one: replace(one, signature=bytes(64)),
        lambda one: replace(one, certificate=publisher("bert").certificate),
        lambda one: replace(one, certificate=publisher(epoch=EPOCH + 1).certificate),
        lambda one: replace(one, key=publisher("bert").key, certificate=publisher("bert").certificate),
        lambda one: replace(one, key=bytes(32)),
    ],
)
def test_what_was_changed_is_refused(change: Callable[[Advertisement], Advertisement]) -> None:
    advertisement, chain = advertised()
    with pytest.raises((Forged, Malformed)):
        steps(change(advertisement), chain.first)


def test_whom_nobody_certified_advertises_nothing() -> None:
    stranger = publisher(authority=SigningKey.from_seed(seed("another authority")))
    chain = ChainSecret.of(stranger)
    own = chain.advertise(stranger, NOW_MS + 1000)
    with pytest.raises(Forged):
        steps(own, chain.first)
    with without("the certificates of the mesh's publishers"):
        assert steps(own, chain.first) == chain.length


@pytest.mark.parametrize(
    ("in_ms", "later_ms", "reason"),
    [
        (600_000, 600_000 + LIMITS.skew_max_ms, "expired"),
        (LIMITS.advertised_ms_max + LIMITS.skew_max_ms + 1, 0, "lasts-too-long"),
        (LIMITS.epoch_ms, 0, "wrong-epoch"),
        (600_000, -LIMITS.epoch_ms, "future"),
    ],
)
def test_times_are_held(in_ms: int, later_ms: int, reason: str) -> None:
    advertisement, chain = advertised(in_ms=in_ms)
    with pytest.raises(Refused) as refused:
        steps(advertisement, chain.first, NOW_MS + later_ms)
    assert refused.value.reason == reason


def test_the_next_epoch_is_advertised_shortly_before_it_begins() -> None:
    begins = (EPOCH + 1) * LIMITS.epoch_ms
    by = publisher(epoch=EPOCH + 1)
    chain = ChainSecret.of(by)
    assert steps(chain.advertise(by, begins + 600_000), chain.first, begins - LIMITS.early_ms_max) == chain.length


# --- undo ---


def test_only_the_publisher_takes_it_back() -> None:
    advertisement, chain = advertised()
    advertisement.check_undo(chain.undo)
    others = ChainSecret.of(publisher("bert"))  # another publisher of the same topic
    for guess in (others.undo, advertisement.undo, chain.first, b""):
        with pytest.raises(Forged) as refused:
            advertisement.check_undo(guess)
        assert refused.value.reason == "wrong-undo"
    with without("the value that takes an advertisement back"):
        advertisement.check_undo(others.undo)


# --- form ---


def test_it_is_read_as_it_was_written_and_fits_a_cell() -> None:
    advertisement, chain = advertised()
    data = advertisement.encode()
    assert Advertisement.decode(data) == advertisement
    assert Advertisement.decode(data).identifier == advertisement.identifier
    assert len(data) < 350
    assert steps_left(chain.first, advertisement.anchor) == chain.length


@given(st.binary(max_size=600))
def test_junk_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Advertisement.decode(data)


def test_a_damaged_one_is_malformed_or_refused() -> None:
    advertisement, chain = advertised()
    data = advertisement.encode()
    for at in range(0, len(data), 3):
        with pytest.raises(Refused):
            steps(Advertisement.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]), chain.first)
    parts = wire.decode(data)
    for bad in (data + b"\x00", data[:-1], wire.encode([*parts, 0]), wire.encode([b"", *parts[1:]])):
        with pytest.raises(Malformed):
            Advertisement.decode(bad)


def test_secrets_are_not_shown() -> None:
    chain = ChainSecret.draw(SeededEntropy(1))
    assert chain.first.hex() not in repr(chain)
    assert "length" not in repr(chain)
    with pytest.raises(Misuse):
        ChainSecret.from_seed(b"short")
