"""The model that comes with the package: signed, small, of this version, and switched off."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Forged
from tallystick.fleet.bus import simulate_bus
from tallystick.fleet.detect import network
from tallystick.fleet.detect.model import BYTES_MAX, MODEL, open_file, unpack
from tallystick.fleet.detect.profile import learn

pytest.importorskip("onnxruntime")

FOLDER = files("tallystick.fleet.detect")
DATA = FOLDER.joinpath("model.cbor").read_bytes()
KEY = VerifyKey(bytes.fromhex(FOLDER.joinpath("model.key.pub").read_text(encoding="utf-8").strip()))


def test_it_opens_by_its_key_and_scores_what_it_was_not_trained_on() -> None:
    assert len(DATA) < BYTES_MAX
    body = unpack(open_file(DATA, MODEL, "any", [KEY]).content)
    assert body["enabled"] is False
    one, frames = network.BusNetwork(body), simulate_bus(2, 0.5, seed=9)
    profile = learn([frames])
    _, scores = one.scores(profile, network.begin(profile), frames)
    assert np.isfinite(scores).mean() > 0.9


def test_one_byte_changed_and_it_is_forged() -> None:
    changed = bytearray(DATA)
    changed[len(changed) // 2] ^= 1
    with pytest.raises(Forged):
        open_file(bytes(changed), MODEL, "any", [KEY])
