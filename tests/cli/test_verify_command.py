"""`tally verify` takes proofs, receipts and checkpoints: each is told in the words that its own module has for it, and
one that was altered, cut or made elsewhere is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from commands import done, refused, tally
from makers import INSTANCE, seed, token
from provers import HEIGHT, ROOT, TIME_MS, Scene, sign_note, trust_file

from tallystick.parcel.prove import PROOF_BYTES_MAX, verify_proof
from tallystick.trust.notes import NOTE_BYTES_MAX, verify_checkpoint
from tallystick.trust.receipt import RECEIPT_BYTES_MAX, Receipt

BRAKES, ELSEWHERE = token("brakes"), seed("elsewhere")
BYTES_MAX = {"proof": PROOF_BYTES_MAX, "receipt": RECEIPT_BYTES_MAX, "checkpoint": NOTE_BYTES_MAX}
KINDS = tuple(BYTES_MAX)


@dataclass
class Files:
    """A trust file that asks for two witnesses, and what lies under it."""

    folder: Path
    scene: Scene

    @property
    def trust(self) -> Path:
        (self.folder / "trust.json").write_text(self.scene.trust.to_json())
        return self.folder / "trust.json"

    def data(self, kind: str, cosigners: int = 2) -> bytes:
        if kind == "checkpoint":
            return sign_note(self.scene.trust.origin, 9, seed("root"), cosigners=cosigners)
        receipt = self.scene.anchorage(cosigners=cosigners).receipt(1)
        return receipt.encode() if kind == "receipt" else self.scene.prove(receipt=receipt).encode()

    def write(self, data: bytes) -> Path:
        (self.folder / "file").write_bytes(data)
        return self.folder / "file"

    def verify(self, kind: str, data: bytes | None = None) -> tuple[object, ...]:
        """The command for these bytes, or for good ones."""
        file = self.write(self.data(kind) if data is None else data)
        parcel = ("--parcel", self.scene.verified.parcel.hash.hex()) if kind == "receipt" else ()
        return ("verify", file, "--trust", self.trust, *parcel)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, Scene.of(witnesses=2))


def words(files: Files, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is proved and what is not, as the library says it."""
    trust, data = files.scene.trust, files.data(kind)
    if kind == "proof":
        proven = verify_proof(data, trust)
        return proven.statements, proven.not_proven
    if kind == "receipt":
        at = Receipt.decode(data).verify(files.scene.verified.parcel.hash, BRAKES, trust)
        return at.statements, at.not_proven
    accepted = verify_checkpoint(data, trust)
    return accepted.statements(trust), accepted.not_proven(trust)


@pytest.mark.parametrize("kind", KINDS)
def test_what_holds_is_told_with_what_it_does_not_prove(files: Files, kind: str) -> None:
    proved, not_proved = words(files, kind)
    lines = done(*files.verify(kind)).out.splitlines()
    assert lines[0] == f"the {kind} holds, under the trust file of instance {INSTANCE.hex()} (test)"
    assert [one for one in lines if one.startswith("proved: ")] == [f"proved: {one}" for one in proved]
    assert [one for one in lines if one.startswith("not proved: ")] == [f"not proved: {one}" for one in not_proved]
    assert len(not_proved) >= 3
    shown = done(*files.verify(kind), "--json").json
    assert (shown["holds"], shown["kind"], shown["instance"]) == (True, kind, INSTANCE.hex())
    assert (shown["proved"], shown["not_proved"]) == ([*proved], [*not_proved])
    place = shown if kind == "checkpoint" else shown["anchored"]
    assert (place["height"], place["time_ms"]) == (HEIGHT, TIME_MS)
    assert place["cosigners"] == ["witness-0.example", "witness-1.example"]
    assert place["time"].endswith("UTC")


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_witness_cosigned_that_is_not_proved(tmp_path: Path, kind: str) -> None:
    files = Files(tmp_path, Scene.of())
    told = done(*files.verify(kind, files.data(kind, cosigners=0))).out
    assert "not proved: that the operator showed everybody the same history: no witness cosigned" in told
    assert "the operator alone vouches for this history" in told


def test_a_receipt_is_held_to_its_parcel_and_topic(files: Files) -> None:
    parcel = files.scene.verified.parcel.hash.hex()
    told = done(*files.verify("receipt"), "--topic", BRAKES.hex()).out
    assert f"as expected: parcel {parcel}\nas expected: topic {BRAKES.hex()}\n" in told
    other = token("tyres").hex()
    assert refused(3, *files.verify("receipt"), "--topic", other) == [
        f"error: receipt: its anchor is of another topic: {other} expected, found {BRAKES.hex()}"
    ]
    assert "another root" in refused(3, *files.verify("receipt"), "--parcel", "00" * 32)[0]
    for wrong in ("brakes", parcel[1:], parcel.upper()):
        error, hint = refused(2, *files.verify("receipt"), "--parcel", wrong)
        assert error == "error: a receipt speaks of one parcel: --parcel must be its hash, 64 hex digits"
        assert "--origin" in hint
    assert refused(2, "verify", files.write(files.data("receipt")), "--trust", files.trust) == [error, hint]


@pytest.mark.parametrize(
    ("kind", "option"),
    [("proof", "parcel"), ("receipt", "publisher"), *(("checkpoint", one) for one in ("publisher", "topic", "parcel"))],
)
def test_an_expectation_that_a_kind_cannot_meet_is_misuse(files: Files, kind: str, option: str) -> None:
    assert refused(2, *files.verify(kind), f"--{option}", "00" * 16) == [
        f"error: --{option} means nothing for a {kind}",
        f"hint: leave --{option} out",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_one_byte_changed_anywhere_is_refused(files: Files, kind: str) -> None:
    data = files.data(kind)
    for place in {*range(0, len(data), 97), len(data) - 2}:
        changed = bytearray(data)
        changed[place] ^= 1
        assert refused(3, *files.verify(kind, bytes(changed))), place


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "all but the last byte": lambda data: data[:-1],
    "a byte more": lambda data: data + b"x",
    "twice": lambda data: data * 2,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_file_that_is_not_whole_is_named(files: Files, kind: str, cut: str) -> None:
    error, hint = refused(3, *files.verify(kind, CUTS[cut](files.data(kind))))
    assert error.startswith(f"error: {files.folder / 'file'}: not a whole proof, receipt or checkpoint: ")
    assert "tally ledger receipt" in hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_too_large_says_how_large_it_may_be(files: Files, kind: str) -> None:
    data = files.data(kind)
    larger = data + b"x" * (BYTES_MAX[kind] + 1 - len(data))
    assert f"at most {BYTES_MAX[kind]} " in refused(3, *files.verify(kind, larger))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_witnesses_are_refused(files: Files, kind: str) -> None:
    [error] = refused(3, *files.verify(kind, files.data(kind, cosigners=1)))
    assert error == "error: checkpoint: 2 cosignatures expected, found 1"


@pytest.mark.parametrize("kind", KINDS)
def test_the_trust_file_of_another_instance_is_named_with_both_instances(files: Files, kind: str) -> None:
    command = files.verify(kind)
    trust = replace(trust_file(), first=ELSEWHERE, signatures=()).sign(ROOT)
    (files.folder / "trust.json").write_text(trust.to_json())
    error, hint = refused(3, *command)
    for part in (str(files.folder / "trust.json"), ELSEWHERE.hex(), INSTANCE.hex(), f"the {kind} in"):
        assert part in error
    assert hint.startswith("hint: --trust names the file of that instance")


def test_a_checkpoint_of_another_log_is_of_no_instance(files: Files) -> None:
    note = sign_note("log.example/2026", 9, seed("root"), cosigners=2)
    assert "is of instance log.example/2026" in tally(*files.verify("checkpoint", note)).err
