"""The committed vectors of claims, notices and routing state, good and bad, from docs/formats/overlay.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.carriers.overlay.claims import Claim, holders_key, sign_claim
from tallystick.carriers.overlay.frames import FrameKind, OverlayFrame
from tallystick.carriers.overlay.notices import Notice, NoticeKind, RoutingState
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Malformed, Refused
from tallystick.guards.route import RoutingGuard
from tallystick.guards.rules import GuardLimits
from tallystick.trust.certificate import Certificate

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "overlay_routing.json").read_text())
unhex = bytes.fromhex
HOLDER = SigningKey.from_seed(unhex(VECTORS["holder_seed"]))
NOW = VECTORS["created_ms"] / 1000


def guard() -> RoutingGuard:
    certificate = Certificate.decode(unhex(VECTORS["authority"]))
    keys = holders_key({certificate.subject: certificate}.get)
    return RoutingGuard(keys, (), GuardLimits(delay_max_s=60, skew_max_s=5))


@pytest.mark.parametrize("name", VECTORS["claims"])
def test_claims(name: str) -> None:
    claim = Claim.decode(unhex(VECTORS["claims"][name]))
    guard().check(claim.message, NOW)
    assert claim.message.kind.name.lower() == name
    assert claim.edge == unhex(VECTORS["edge"])
    assert claim.permit.encode().hex() == VECTORS["permits"][claim.permit.operation.name.lower()]
    assert (claim.order is None) == (not name.startswith("un"))
    again = sign_claim(
        claim.message.kind,
        claim.edge,
        claim.permit,
        HOLDER,
        claim.message.identifier,
        claim.message.created_ms,
        claim.order,
    )
    assert again == claim.data


@pytest.mark.parametrize("name", VECTORS["bad_claims"])
def test_claims_that_must_be_refused(name: str) -> None:
    expected, text = VECTORS["bad_claims"][name]
    with pytest.raises(Refused) as caught:
        guard().check(Claim.decode(unhex(text)).message, NOW)
    assert caught.value.reason == expected


def test_notices_state_and_frames() -> None:
    for name, text in VECTORS["notices"].items():
        one = Notice.decode(unhex(text))
        assert (one.kind, one.subject, one.plan) == (NoticeKind[name.upper()], b"\x08" * 16, 6)
        assert one.encode().hex() == text
    state = RoutingState.decode(unhex(VECTORS["state"]))
    assert (state.is_last, state.encode().hex()) == (True, VECTORS["state"])
    assert [claim.hex() for claim in state.claims] == [VECTORS["claims"][name] for name in ("subscribe", "advertise")]
    assert RoutingState.decode(unhex(VECTORS["state_empty"])) == RoutingState(False, ())
    contents = {
        "route": VECTORS["claims"]["subscribe"],
        "notice": VECTORS["notices"]["detach"],
        "state": VECTORS["state"],
    }
    for name, text in VECTORS["frames"].items():
        frame = OverlayFrame.decode(unhex(text))
        assert (frame.kind, frame.plan) == (FrameKind[name.upper()], VECTORS["plan"])
        assert (frame.content.hex(), frame.encode().hex()) == (contents[name], text)


@pytest.mark.parametrize("name", VECTORS["bad_notices"])
def test_notices_that_must_be_refused(name: str) -> None:
    with pytest.raises(Malformed):
        Notice.decode(unhex(VECTORS["bad_notices"][name]))


@pytest.mark.parametrize("name", VECTORS["bad_states"])
def test_states_that_must_be_refused(name: str) -> None:
    with pytest.raises(Malformed):
        RoutingState.decode(unhex(VECTORS["bad_states"][name]))
