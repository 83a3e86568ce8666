"""The committed vectors of what members of the mesh and their authority say, from docs/formats/mesh.md."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from tallystick.authority.codec import Versioned, plain
from tallystick.authority.mesh_messages import (
    ANSWER_BYTES,
    EPOCHS_MAX,
    K_MAX,
    REQUEST_BYTES,
    SEALED_UPDATES_BYTES,
    UPDATE_BYTES,
    MeshAnswer,
    MeshRequest,
    MeshUpdate,
    MeshUpdatesPage,
    MeshUpdatesRequest,
    read_answer,
)
from tallystick.crypto import hpke
from tallystick.crypto.signatures import VerifyKey
from tallystick.errors import CannotOpen, Forged, Malformed, Refused
from tallystick.parcel.padding import pad_to, unpad
from tallystick.trust.certificate import ROOT_ID, Certificate, SubjectKind
from tallystick.trust.mesh import MeshAuthority, check_member

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "mesh_keys.json").read_text())
AUTHORITY, MEMBER, REQUEST, ANSWER, UPDATE = (
    VECTORS[name] for name in ("authority", "member", "request", "answer", "update")
)
unhex = bytes.fromhex


def certificate(kind: SubjectKind, subject: str, signing_key: str = "00" * 32) -> Certificate:
    rest = (b"", 0, 1, ROOT_ID)
    return Certificate(unhex(VECTORS["instance"]), kind, unhex(subject), bytes(16), unhex(signing_key), *rest)


ISSUER = certificate(SubjectKind.AUTHORITY, AUTHORITY["subject"], AUTHORITY["signing_key"])


def mesh_key() -> VerifyKey:
    return MeshAuthority.decode(unhex(AUTHORITY["word"])).verify(ISSUER)


def hexed(value: Any) -> Any:
    if isinstance(value, list):
        return [hexed(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def test_the_authoritys_word() -> None:
    word = MeshAuthority.decode(unhex(AUTHORITY["word"]))
    assert word.verify(ISSUER).raw == word.key
    assert [word.key.hex(), word.epoch_ms, word.notice_ms] == AUTHORITY["fields"]


@pytest.mark.parametrize("data", AUTHORITY["bad"].values(), ids=AUTHORITY["bad"])
def test_what_is_not_its_word(data: str) -> None:
    with pytest.raises(Forged):
        MeshAuthority.decode(unhex(data)).verify(ISSUER)


@pytest.mark.parametrize("data", AUTHORITY["malformed"].values(), ids=AUTHORITY["malformed"])
def test_what_is_no_word(data: str) -> None:
    with pytest.raises(Malformed):
        MeshAuthority.decode(unhex(data))


def test_the_member() -> None:
    key, certified = unhex(MEMBER["key"]), unhex(MEMBER["certificate"])
    check_member(key, MEMBER["until_ms"], certified, mesh_key())
    for other in ((key, MEMBER["until_ms"] + 1), (bytes(32), MEMBER["until_ms"])):
        with pytest.raises(Forged):
            check_member(*other, certified, mesh_key())


def test_the_request() -> None:
    private, instance = hpke.PrivateKey.decode(unhex(AUTHORITY["sealing_seed"])), unhex(VECTORS["instance"])
    request = MeshRequest.open(unhex(REQUEST["sealed"]), private, instance, unhex(REQUEST["principal"]))
    assert hexed(plain(request)) == REQUEST["fields"]
    assert request.encode().hex() == REQUEST["bytes"]
    assert MeshRequest(request.token, terms=(1, 20)).encode().hex() == REQUEST["terms"]
    assert len(REQUEST["sealed"]) // 2 == REQUEST_BYTES + hpke.SEAL_BYTES
    with pytest.raises(CannotOpen):
        MeshRequest.open(unhex(REQUEST["sealed"]), private, instance, bytes(16))


def test_the_answer() -> None:
    answer = MeshAnswer.decode(unhex(ANSWER["bytes"]))
    assert answer.authority.hex() == AUTHORITY["word"]
    assert hexed(plain(answer))[1:] == ANSWER["fields"]
    assert answer.encode().hex() == ANSWER["bytes"]


def test_the_refusal() -> None:
    with pytest.raises(Refused) as refusal:
        read_answer(pad_to(unhex(VECTORS["refusal"]["bytes"]), ANSWER_BYTES))
    found = refusal.value
    assert [found.reason, str(found), found.hint] == VECTORS["refusal"]["fields"]
    assert read_answer(pad_to(unhex(ANSWER["bytes"]), ANSWER_BYTES)).encode().hex() == ANSWER["bytes"]


def opened(sealed: str) -> MeshUpdate:
    private = hpke.PrivateKey.decode(unhex(UPDATE["sealing_seed"]))
    member = certificate(SubjectKind.PRINCIPAL, REQUEST["principal"])
    return MeshUpdate.open(unhex(sealed), private, member, mesh_key())


def test_a_page_of_updates_and_the_request_for_it() -> None:
    wanted, page = VECTORS["updates"], MeshUpdatesPage.decode(bytes.fromhex(VECTORS["updates"]["page"]))
    request = MeshUpdatesRequest.decode(bytes.fromhex(wanted["bytes"]))
    assert hexed(plain(request)) == wanted["fields"]
    assert request.encode().hex() == wanted["bytes"]
    assert len(bytes.fromhex(wanted["sealed"])) == SEALED_UPDATES_BYTES
    assert (page.end.hex(), page.updates[0].hex()) == ("08" * 16, UPDATE["sealed"])
    assert MeshUpdatesPage.decode(page.encode()) == page


def test_the_update() -> None:
    update = opened(UPDATE["sealed"])
    assert update.principal.hex() == REQUEST["principal"]
    assert hexed(plain(update))[1:] == UPDATE["fields"]


@pytest.mark.parametrize("sealed", UPDATE["bad"].values(), ids=UPDATE["bad"])
def test_bad_updates(sealed: str) -> None:
    with pytest.raises(CannotOpen):
        opened(sealed)


def test_the_largest_fit() -> None:
    most, word = EPOCHS_MAX, unhex(AUTHORITY["word"])
    request = MeshRequest(bytes(16), 2, most, bytes(32), (3, K_MAX))
    times, leaves = ((1 << 63) - 1, (1 << 32) - 1), ((bytes(32), bytes(64)),) * most
    answer = MeshAnswer(word, *times, (bytes(32),) * most, leaves, times[0], bytes(64), (3,) * most, K_MAX, 1)
    update = MeshUpdate(bytes(16), bytes(16), answer.encode())
    sizes = ((request, REQUEST_BYTES), (answer, ANSWER_BYTES), (update, UPDATE_BYTES - 70))
    for largest, size in sizes:
        assert unpad(pad_to(largest.encode(), size)) == largest.encode()


@given(kind=st.sampled_from([MeshRequest, MeshAnswer, MeshUpdate]), data=st.data())
@examples(200)
def test_whatever_comes_is_read_or_malformed(kind: type[Versioned], data: st.DataObject) -> None:
    good = unhex(data.draw(st.sampled_from([REQUEST["bytes"], ANSWER["bytes"]])))
    at = data.draw(st.integers(0, len(good) - 1))
    altered = good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    with suppress(Malformed):
        assert kind.decode(altered).encode() == altered
