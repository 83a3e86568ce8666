"""Signed profiles and models: what must not be believed is refused by name, and passes without the check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from without import without

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import Forged, Malformed, Misuse, Refused
from tallystick.fleet.detect.checks import begin, step
from tallystick.fleet.detect.frames import Frames
from tallystick.fleet.detect.model import (
    BYTES_MAX,
    MODEL,
    PROFILE,
    DetectionFile,
    IssueMemory,
    open_file,
    pack,
    sign_file,
    unpack,
)
from tallystick.fleet.detect.profile import Profile, learn

MAKER, STRANGER = SigningKey.from_seed(b"\x01" * 32), SigningKey.from_seed(b"\x02" * 32)
CAR = "WVWZZZ1KZ6W000001"


def profile(issue: int = 2, vehicle: str = CAR, key: SigningKey = MAKER, content: bytes = b"usual") -> DetectionFile:
    return sign_file(PROFILE, content, key, issue=issue, vehicle=vehicle, sources=[("drive.log", bytes(32))])


def unsigned() -> bytes:
    return wire.encode([profile().body, b""])


def altered() -> bytes:
    found = profile()
    return wire.encode([found.body.replace(b"usual", b"crash"), found.signature])


def of_version_2() -> bytes:
    fields = wire.decode(profile().body)
    body = wire.encode([2, *fields[1:]])
    return wire.encode([body, MAKER.sign(DetectionFile.context, body)])


def test_a_signed_file_is_what_was_signed() -> None:
    made = profile()
    found = open_file(made.encode(), PROFILE, CAR, [STRANGER.public, MAKER.public])
    assert (found, found.hash, found.content, found.issue) == (made, made.hash, b"usual", 2)
    assert profile() == made  # and signing repeats to equal bytes


@pytest.mark.parametrize(
    ("make", "reason", "check"),
    [
        (unsigned, "unsigned", "the signature on a profile"),
        (altered, "forged", "the signature on a profile"),
        (lambda: profile(key=STRANGER).encode(), "forged", "the signature on a profile"),
        (lambda: profile(vehicle="another").encode(), "wrong-vehicle", "the vehicle of a profile"),
        (of_version_2, "version", "the version of an object"),
    ],
)
def test_a_file_that_must_not_be_believed_is_refused_by_name(
    make: Callable[[], bytes], reason: str, check: str
) -> None:
    with pytest.raises(Refused) as refused:
        open_file(make(), PROFILE, CAR, [MAKER.public])
    assert refused.value.reason == reason
    with without(check):
        open_file(make(), PROFILE, CAR, [MAKER.public])


def test_an_older_issue_is_refused_once_a_later_one_was_held(tmp_path: Path) -> None:
    memory = tmp_path / "held.json"
    for issue in (2, 2, 3):
        IssueMemory(memory).hold(profile(issue))
    for older in (profile(2), profile(3, content=b"other")):
        with pytest.raises(Refused, match="held before") as refused:
            IssueMemory(memory).hold(older)
        assert refused.value.reason == "rolled-back"
        with without("the issue of a profile"):
            IssueMemory(memory).hold(older)
    IssueMemory(memory).hold(profile(1, vehicle="another"))  # counts by itself


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"tallystick issues 1": {"profile/x": 3}}'])
def test_a_memory_that_cannot_be_read_is_no_empty_one(told: str, tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text(told)
    with pytest.raises(Malformed, match="not a memory of issues"):
        IssueMemory(tmp_path / "held.json")


def test_a_model_serves_every_vehicle_and_no_profile_does() -> None:
    model = sign_file(MODEL, pack({"limit": 0.5, "onnx": b"", "figures": {"f1": 0.9}}), MAKER, seed=7)
    found = open_file(model.encode(), MODEL, CAR, [MAKER.public])
    assert (unpack(found.content)["limit"], found.seed) == (0.5, 7)
    with pytest.raises(Refused, match="profile expected, found a model"):
        open_file(model.encode(), PROFILE, CAR, [MAKER.public])
    with pytest.raises(Refused, match="of vehicle"):
        open_file(profile(vehicle="").encode(), PROFILE, CAR, [MAKER.public])


@pytest.mark.parametrize(
    "content", [b"", b"\x80", b"\xa2\x61b\x01\x61a\x01", b"\xa1\x61a\xc2\x41\x01", b"\xbf\xff", b"\xa1"]
)
def test_a_model_whose_content_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed, match="model: its content"):
        unpack(content)


def test_nothing_larger_than_its_bound_is_signed_or_read() -> None:
    with pytest.raises(Misuse, match="at most"):
        profile(content=bytes(BYTES_MAX))
    with pytest.raises(Malformed, match="at most"):
        open_file(bytes(BYTES_MAX + 1), PROFILE, CAR, [MAKER.public])
    with pytest.raises(Forged, match="not believed"):
        open_file(profile().encode(), PROFILE, CAR, [])


def test_an_attacker_who_drifts_teaches_nothing_without_the_signer() -> None:
    usual, attacked = swinging(0), swinging(8000)
    learnt = learn([usual])
    before = learnt.encode()
    state, hits = step(learnt, begin(learnt), attacked)
    again = step(learnt, state, swinging(8000, start_s=60))[1]
    assert learnt.encode() == before  # watching changed nothing
    assert min(len(hits), len(again)) > 0  # and what was seen for a minute is still not usual
    poisoned = profile(key=STRANGER, content=learn([usual, attacked]).encode())
    with pytest.raises(Forged, match="not believed"):
        open_file(poisoned.encode(), PROFILE, CAR, [MAKER.public])
    with without("the signature on a profile"):
        taught = Profile.decode(open_file(poisoned.encode(), PROFILE, CAR, [MAKER.public]).content)
    assert not len(step(taught, begin(taught), swinging(8000, start_s=60))[1])


def swinging(leap: int, start_s: int = 0) -> Frames:
    """A minute of two messages, whose numbers swing, and leap for two seconds of every five."""
    at = np.arange(12_000)
    seconds = at * 0.005
    values = 30_000 + 2000 * np.sin(seconds / (1 + at % 2)) + leap * (seconds % 5 > 3)
    can_id, length = (7 + at % 2).astype(np.uint32), np.full(12_000, 2, np.uint8)
    return Frames(start_s * 1_000_000 + at * 5000, can_id, length, values.astype(np.uint64) << np.uint64(48))
