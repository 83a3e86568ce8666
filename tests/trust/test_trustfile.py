"""Trust files: what they demand of their keys, how one replaces another, and hostile JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from makers import seed

from tallystick import wire
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.errors import Forged, Malformed, Misuse
from tallystick.ledger import entries
from tallystick.ledger.block import compose
from tallystick.ledger.contracts import identity
from tallystick.ledger.contracts.execute import execute
from tallystick.ledger.contracts.state import State
from tallystick.trust.certificate import ALL_TENANTS, ROOT_ID, Certificate, SubjectKind, subject_id
from tallystick.trust.notes import Algorithm, NoteSigner
from tallystick.trust.trustfile import BYTES_MAX, KEYS_MAX, TrustFile

ROOTS = [RootKey.from_seed(seed(f"root {i}")) for i in range(4)]
LEDGER = SigningKey.from_seed(seed("ledger")).public.raw


def witness(name: str, key: str = "", kind: Algorithm = Algorithm.COSIGNATURE_V1) -> str:
    return NoteSigner(name, SigningKey.from_seed(seed(key or name)), kind).verifier.encode()


def make(roots: list[RootKey], threshold: int, *, number: int = 1, first: bytes = b"", **changes: Any) -> TrustFile:
    values: dict[str, Any] = {
        "name": "fleet",
        "ledger_keys": (LEDGER,),
        "ledger_threshold": 1,
        "witnesses": (witness("w0.example"), witness("w1.example")),
        "quorum": 1,
    }
    keys = tuple(key.public.raw for key in roots)
    return TrustFile(number, first, roots=keys, threshold=threshold, **{**values, **changes})


def test_what_is_written_is_read() -> None:
    trust = make(ROOTS[:3], 2).sign(ROOTS[2], ROOTS[0])
    read = TrustFile.parse(trust.to_json())
    assert read == trust
    assert (read.instance, read.origin) == (trust.instance, f"tallystick/{trust.instance.hex()}")
    assert TrustFile.parse(trust.to_json().encode()) == trust


def test_a_threshold_of_roots_must_have_signed() -> None:
    trust = make(ROOTS[:3], 2)
    for signed in (trust, trust.sign(ROOTS[1])):
        with pytest.raises(Forged):
            TrustFile.parse(signed.to_json())
    with pytest.raises(Misuse):
        trust.sign(ROOTS[3])
    forged = replace(trust.sign(ROOTS[0]), signatures=((0, bytes(3373)), (1, bytes(3373))))
    with pytest.raises(Forged):
        TrustFile.parse(forged.to_json())
    unlisted = replace(trust.sign(ROOTS[0]), signatures=((7, bytes(3373)),))
    with pytest.raises(Forged):
        TrustFile.parse(unlisted.to_json())


def test_one_key_signing_twice_counts_once() -> None:
    trust = make(ROOTS[:3], 2).sign(ROOTS[0])
    twice = json.loads(trust.to_json())
    twice["signatures"] *= 2
    with pytest.raises(Forged):
        TrustFile.parse(json.dumps(twice))


def test_the_content_names_the_instance() -> None:
    data = json.loads(make(ROOTS[:1], 1).sign(ROOTS[0]).to_json())
    with pytest.raises(Forged):
        TrustFile.parse(json.dumps({**data, "instance": bytes(32).hex()}))
    with pytest.raises(Forged):  # another name is another content
        TrustFile.parse(json.dumps({**data, "name": "another"}))


def test_a_successor_needs_the_old_threshold_and_its_own() -> None:
    old = make(ROOTS[:3], 2).sign(*ROOTS[:2])
    new = make(ROOTS[1:4], 2, number=2, first=old.instance)
    old.check_successor(new.sign(ROOTS[1], ROOTS[2]))
    with pytest.raises(Forged):  # its own threshold, and of the old roots only one
        old.check_successor(new.sign(ROOTS[2], ROOTS[3]))
    elsewhere = replace(new, first=bytes(32)).sign(ROOTS[1], ROOTS[2])
    skipped = replace(new, number=3).sign(ROOTS[1], ROOTS[2])
    for wrong in (elsewhere, skipped, old):
        with pytest.raises(Forged):
            old.check_successor(wrong)
    assert new.instance == old.instance


def test_keys_replaced_altogether_take_signatures_of_the_old_ones() -> None:
    old = make(ROOTS[:2], 2).sign(*ROOTS[:2])
    new = make(ROOTS[2:], 2, number=2, first=old.instance).sign(*ROOTS[2:])
    with pytest.raises(Forged):
        old.check_successor(new)
    by_old = {i: ROOTS[i].sign("tallystick trust file 1", new.content) for i in range(2)}
    old.check_successor(new, by_old)


@pytest.mark.parametrize(
    "changes",
    [
        {"quorum": 3},
        {"quorum": -1},
        {"ledger_threshold": 0},
        {"ledger_threshold": 2},
        {"ledger_keys": (LEDGER, LEDGER)},
        {"number": 0},
        {"number": 2},
        {"number": 1 << 70, "first": bytes(32)},
        {"first": bytes(32)},
        {"name": "x" * 300},
        {"name": "\x1b[2J"},  # would clear the terminal of whoever prints it
        {"witnesses": (witness("w0.example"), witness("w0.example"))},
        {"witnesses": ("not a key",)},
    ],
)
def test_senseless_files_are_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        make(ROOTS[:1], 1, **changes)
    with pytest.raises(Malformed):
        make(ROOTS[:1], 2)


def test_a_quorum_is_of_different_parties_and_none_is_the_operator() -> None:
    same = (witness("one.example", "key"), witness("two.example", "key"))  # one party under two names
    itself = (witness("witness.example", "ledger"),)
    plain = (witness("witness.example", kind=Algorithm.ED25519),)
    for witnesses in (same, itself, plain):
        with pytest.raises(Malformed):
            make(ROOTS[:1], 1, witnesses=witnesses)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        '{"format":' * 30_000,
        '{"format": "tallystick trust file 2"}',
        b"\xff\xfe",
        " " * (BYTES_MAX + 1),
    ],
    ids=lambda text: repr(text)[:20],
)
def test_hostile_json_is_malformed(text: str | bytes) -> None:
    with pytest.raises(Malformed):
        TrustFile.parse(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 1e999),
        ("number", None),
        ("number", "9" * 5000),
        ("number", "1"),
        ("number", 1.0),
        ("number", True),
        ("instance", "zz"),
        ("instance", 7),
        ("name", "\ud800"),
        ("roots", []),
        ("roots", {"threshold": 1, "keys": ["AA=="]}),
        ("roots", {"threshold": 1, "keys": [7]}),
        ("roots", {"threshold": 1e300, "keys": []}),
        ("witnesses", {"quorum": 0, "keys": ["\ud800+00000000+AA=="]}),
        ("witnesses", {"quorum": 0, "keys": [None]}),
        ("signatures", {"root": 0}),
        ("signatures", [{"root": 0, "signature": "é"}]),
    ],
)
def test_hostile_fields_are_refused(field: str, value: Any) -> None:
    data = json.loads(make(ROOTS[:1], 1).sign(ROOTS[0]).to_json())
    with pytest.raises((Malformed, Forged)):
        TrustFile.parse(json.dumps({**data, field: value}))


def test_the_root_signs_by_threshold() -> None:
    trust = make(ROOTS[:3], 2).sign(*ROOTS[:2])
    signature = trust.root_signer(ROOTS[2], ROOTS[0]).sign("tallystick test 1", b"message")
    trust.root_verifier.verify("tallystick test 1", signature, b"message")
    for context, message in (("tallystick test 2", b"message"), ("tallystick test 1", b"other")):
        with pytest.raises(Forged):
            trust.root_verifier.verify(context, signature, message)
    alone = trust.root_signer(ROOTS[0]).sign("tallystick test 1", b"message")
    with pytest.raises(Forged):
        trust.root_verifier.verify("tallystick test 1", alone, b"message")


def test_as_many_roots_as_a_trust_file_may_list_can_sign() -> None:
    """All of them under the file, a certificate and a revocation, which an entry of the ledger has to hold."""
    roots = [RootKey.from_seed(bytes([number]) * 32) for number in range(KEYS_MAX)]
    trust = TrustFile.parse(make(roots, KEYS_MAX).sign(*roots).to_json())
    key = SigningKey.from_seed(bytes(32))
    subject = subject_id(trust.instance, key.public.raw)
    unsigned = Certificate(
        trust.instance, SubjectKind.AUTHORITY, subject, ALL_TENANTS, key.public.raw, bytes(1216), 0, 1 << 50, ROOT_ID
    )
    root = trust.root_signer(*roots)
    certificate = Certificate.decode(unsigned.sign(root).encode())
    state = State(identity.genesis(trust.to_json()).get)
    enrol, revoke = entries.enrol(certificate), entries.revoke_by_root(trust.instance, subject, root)
    for number, entry in enumerate((enrol, revoke), 1):
        result = execute(state, compose(trust.instance, subject, number, [entry], key), number, 1)
        assert result.accepted, result
    assert identity.require(state, subject).revoked == 2


def test_a_root_signature_has_one_form() -> None:
    trust = make(ROOTS[:3], 2).sign(*ROOTS[:2])
    pairs = wire.decode(trust.root_signer(ROOTS[0], ROOTS[1]).sign("tallystick test 1", b"message"))
    for bad in (
        [],
        pairs[:1],
        [pairs[0], pairs[0]],
        pairs[::-1],
        [pairs[0], [1, 1 << 40]],  # bytes(1 << 40) would allocate a terabyte
        [pairs[0], [1, None]],
        [pairs[0], [9, pairs[1][1]]],
        [[0, b""]] * 100,
        7,
        None,
    ):
        with pytest.raises((Malformed, Forged)):
            trust.root_verifier.verify("tallystick test 1", wire.encode(bad), b"message")
