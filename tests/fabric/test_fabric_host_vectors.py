"""The committed vectors of the fabric's hosts, good and bad, from docs/formats/fabric.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fabric_parcels import take

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.fabric.control import ControlPiece, split_message
from tallystick.carriers.fabric.fragments import FabricKey, FlowPlace, seal_parcel
from tallystick.carriers.fabric.reassembly import Reassemblies
from tallystick.carriers.fabric.repair import read_request, seal_request
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Malformed
from tallystick.trust.fabric import FabricAnswer

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "fabric_hosts.json").read_text())
unhex = bytes.fromhex
KEY = FabricKey.of_mesh(unhex(VECTORS["mesh key"]), VECTORS["epoch"])


def test_keys_and_single_fragments() -> None:
    assert KEY.secret == unhex(VECTORS["carrier key"])
    one = VECTORS["piece"]
    head, plaintext = KEY.open(unhex(one["fragment"]))
    assert (head.handle.hex(), plaintext.hex()) == (one["handle"], one["plaintext"])
    assert (head.index, head.count, head.groups, head.epoch) == (2, 3, 1, VECTORS["epoch"] & 0xFF)
    assert KEY.seal(head, plaintext) == unhex(one["fragment"])


def test_a_parcel_in_fragments() -> None:
    one = VECTORS["parcel"]
    pushed = Pushed(unhex(one["parcel"]), *(tuple(map(unhex, one[what])) for what in ("permits", "locks")))
    place = FlowPlace(unhex(one["flow"]), unhex(one["previous"]))
    made = seal_parcel(pushed, KEY, place, unhex(one["entropy"]), one["payload bytes"], one["group"])
    assert made.handle == unhex(one["handle"])
    assert [payload.hex() for payload in made.payloads] == one["fragments"]
    into = Reassemblies()
    assert [take(into, *KEY.open(unhex(payload)), 0.0) for payload in one["fragments"]].count(pushed) == 1


def test_a_request_for_repair() -> None:
    one = VECTORS["repair"]
    payload = seal_request(KEY, unhex(one["handle"]), one["missing"], unhex(one["nonce"]))
    assert payload.hex() == one["payload"]
    assert read_request(KEY.open(payload)[1]) == (unhex(one["handle"]), set(one["missing"]))


@pytest.mark.parametrize("one", VECTORS["bad fragments"], ids=lambda one: one["name"])
def test_bad_fragments_do_not_open(one: dict[str, str]) -> None:
    with pytest.raises((Malformed, CannotOpen)):
        KEY.open(unhex(one["payload"]))


def test_control_pieces_and_answers() -> None:
    one = VECTORS["control"]
    pieces = split_message(16, unhex(one["dispatcher"]), unhex(one["message"]), 200)
    assert [piece.hex() for piece in pieces] == one["pieces"]
    assert b"".join(ControlPiece.decode(piece).data for piece in pieces) == unhex(one["message"])
    signer = SigningKey.from_seed(unhex(VECTORS["answer"]["signer"]))
    answer = FabricAnswer.decode(unhex(VECTORS["answer"]["encoded"]))
    answer.verify_by(signer.public)
    assert answer.sign(signer).encode().hex() == VECTORS["answer"]["encoded"]
