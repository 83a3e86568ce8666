"""The committed vectors of the mesh, good and bad, from docs/formats/mesh.md and mesh-frames.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listening import hear, listener, sizes

from tallystick.carriers.carrier import Pushed
from tallystick.carriers.mesh.advertisement import Advertisement, ChainSecret
from tallystick.carriers.mesh.cells import CELL_BYTES, Cell, Piece
from tallystick.carriers.mesh.envelope import MeshEnvelope
from tallystick.carriers.mesh.frames import MeshFrame, MeshKind, framed
from tallystick.carriers.mesh.guard import MeshGuard
from tallystick.carriers.mesh.link_keys import Knock, LinkSession, SealedKnock, agree_lasting, identity_of
from tallystick.carriers.mesh.mesh_keys import MeshKey, MeshPublisher
from tallystick.crypto.exchange import ExchangeKey
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import Malformed, Refused
from tallystick.trust.mesh import check_publisher, mesh_secret

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "mesh.json").read_text())
KEYS, ADVERTISEMENTS, ENVELOPES = VECTORS["keys"], VECTORS["advertisements"], VECTORS["envelopes"]
CELLS, LINKS, FRAMES, NOW_MS = (VECTORS[name] for name in ("cells", "links", "frames", "now_ms"))
unhex = bytes.fromhex


def guard() -> MeshGuard:
    return MeshGuard(VerifyKey(unhex(KEYS["authority"])))


def named(one: Any) -> str:
    return str(one["name"])


def test_keys() -> None:
    secret = mesh_secret(unhex(KEYS["root"]), unhex(KEYS["token"]), KEYS["epoch"], KEYS["renewal"])
    key = MeshKey(secret, KEYS["epoch"])
    assert secret == unhex(KEYS["mesh key"])
    assert key.pseudonym == unhex(KEYS["pseudonym"])
    by = MeshPublisher(key.pseudonym, KEYS["epoch"], unhex(KEYS["publisher's seed"]), unhex(KEYS["certificate"]))
    assert (by.key.hex(), by.chain_seed.hex()) == (KEYS["publisher's key"], KEYS["chain seed"])
    check_publisher(by.pseudonym, by.epoch, by.key, by.certificate, VerifyKey(unhex(KEYS["authority"])))


def test_the_advertisement() -> None:
    chain, good = ADVERTISEMENTS["chain"], ADVERTISEMENTS["good"]
    secret = ChainSecret.from_seed(unhex(chain["seed"]))
    found = (secret.first.hex(), secret.length, secret.undo.hex(), secret.anchor.hex())
    assert found == (chain["first"], chain["length"], chain["undo"], chain["anchor"])
    advertisement = Advertisement.decode(unhex(good["bytes"]))
    assert (advertisement.identifier.hex(), advertisement.expiry_ms) == (good["identifier"], good["expiry_ms"])
    assert [guard().check(advertisement, unhex(h), NOW_MS) for h, _ in good["steps"]] == [n for _, n in good["steps"]]
    advertisement.check_undo(secret.undo)


@pytest.mark.parametrize("bad", ADVERTISEMENTS["bad"], ids=named)
def test_bad_advertisements(bad: Any) -> None:
    with pytest.raises(Refused) as refused:
        guard().check(Advertisement.decode(unhex(bad["bytes"])), unhex(bad["h"]), NOW_MS)
    assert refused.value.reason == bad["reason"]


@pytest.mark.parametrize("data", ADVERTISEMENTS["malformed"].values(), ids=ADVERTISEMENTS["malformed"])
def test_malformed_advertisements(data: str) -> None:
    with pytest.raises(Malformed):
        Advertisement.decode(unhex(data))


def test_the_envelope() -> None:
    good = ENVELOPES["good"]
    envelope = guard().judge(unhex(good["bytes"]), NOW_MS)
    assert (envelope.identifier.hex(), envelope.created_ms) == (good["identifier"], good["created_ms"])
    permits, locks = (tuple(map(unhex, good[kind])) for kind in ("permits", "locks"))
    opened = MeshKey(unhex(KEYS["mesh key"]), KEYS["epoch"]).open(envelope)
    assert opened == Pushed(unhex(good["parcel"]), permits, locks)
    assert MeshEnvelope.decode(unhex(good["bytes"])).encode().hex() == good["bytes"]


@pytest.mark.parametrize("bad", ENVELOPES["bad"], ids=named)
def test_bad_envelopes(bad: Any) -> None:
    with pytest.raises(Refused) as refused:
        guard().judge(unhex(bad["bytes"]), NOW_MS)
    assert refused.value.reason == bad["reason"]


def test_the_cell() -> None:
    good = CELLS["good"]
    pieces = tuple(Piece(message, part, parts, unhex(data)) for message, part, parts, data in good["pieces"])
    number, oldest, highest, came = good["fields"]
    cell = Cell(number, oldest, highest, came, pieces)
    assert Cell.decode(unhex(good["bytes"])) == cell
    assert cell.encode(padded=False).hex() == good["bytes"]


@pytest.mark.parametrize("data", CELLS["bad"].values(), ids=CELLS["bad"])
def test_bad_cells(data: str) -> None:
    with pytest.raises(Malformed):
        Cell.decode(unhex(data))


def test_knock_and_session() -> None:
    anna, bert, fresh_anna, fresh_bert = (ExchangeKey(unhex(seed)) for seed in LINKS["seeds"].values())
    assert identity_of(anna.public).hex() == LINKS["identity of anna"]
    agreed = agree_lasting(bert, anna.public)
    for kind in ("knock", "padded knock"):
        sealed = SealedKnock.open_outer(bert, unhex(LINKS[kind]))
        assert sealed.sender == anna.public
        knock = sealed.open(bert, agreed)
        assert knock == Knock(fresh_anna.public, fresh_bert.public, unhex(LINKS["life"]))
    assert len(unhex(LINKS["padded knock"])) == CELL_BYTES
    session = LinkSession.between(bert, anna.public, agreed, fresh_bert, knock)
    assert session.is_answered
    assert session.open(unhex(LINKS["cell"])).hex() == CELLS["good"]["bytes"]


def test_frames_of_every_kind_are_written_so_and_understood() -> None:
    node, kinds = listener(), set()
    for one in FRAMES["good"]:
        frame, kind = unhex(one["bytes"]), MeshKind(one["number"])
        found = MeshFrame.decode(frame)
        assert (found.kind, found.kind.name, hexed(found.content)) == (kind, one["kind"], one["fields"])
        assert framed(kind, *found.content) == frame
        assert hear(node, frame) == {}, one["kind"]
        kinds.add(kind)
    assert kinds == set(MeshKind)


def hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [hexed(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("bad", FRAMES["bad"], ids=named)
def test_bad_frames_are_counted_and_have_no_effect(bad: Any) -> None:
    node = listener()
    before = sizes(node)
    assert hear(node, unhex(bad["bytes"])) == {bad["reason"]: 1}
    assert sizes(node) == before


@given(st.data())
def test_a_damaged_frame_is_refused_or_another_frame(data: st.DataObject) -> None:
    """A byte is changed, left out or put in, anywhere: nothing but our own refusals comes of it, and no table grows."""
    node = listener()
    frame = bytearray(unhex(data.draw(st.sampled_from(FRAMES["good"]))["bytes"]))
    at, how = data.draw(st.integers(0, len(frame) - 1)), data.draw(st.sampled_from(("change", "cut", "add")))
    if how == "change":
        frame[at] ^= data.draw(st.integers(1, 255))
    else:
        frame[at : at + (how == "cut")] = b"" if how == "cut" else data.draw(st.binary(min_size=1, max_size=3))
    hear(node, bytes(frame))
    assert max(sizes(node)) <= 4
