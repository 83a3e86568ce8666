"""What the tests of `verify.html` share: two files and what is expected, told by the page and by Python; and files that
a hostile hand signed."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from makers import INSTANCE, seed, token
from provers import LEDGER, ROOT, Scene, state_note, trust_file

import tallystick
from tallystick import wire
from tallystick.crypto.merkle_map import MerkleMap
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.crypto.symmetric import named_hash
from tallystick.errors import Refused
from tallystick.parcel.header import SIGNATURE_CONTEXT
from tallystick.parcel.prove import Proof, verify_proof
from tallystick.trust.notes import verify_checkpoint
from tallystick.trust.receipt import Receipt
from tallystick.trust.trustfile import CONTEXT, TrustFile

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


FILE = Path(tallystick.__file__).parent / "console" / "verify.html"
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ledger.json").read_text(encoding="utf-8"))
KINDS = ("proof", "receipt", "checkpoint")
OTHER_PLACES = {"transaction", "block", "state proof", "entry proof"}  # kinds that the page does not take

CALL = """async cases => {
    const bytes = text => Uint8Array.from(atob(text), one => one.charCodeAt(0));
    const plain = (key, value) => typeof value === "bigint" ? Number(value) : value;
    const found = [];
    for (const [trust, file, options] of cases) {
        if (options.parcel_file) options.parcel = bytes(options.parcel_file);
        found.push(JSON.parse(JSON.stringify(await tallyVerify(bytes(trust), bytes(file), options), plain)));
    }
    return found;
}"""


@dataclass(frozen=True)
class Case:
    """Two files, and what is expected of them."""

    trust: str
    data: bytes
    publisher: str = ""
    topic: str = ""
    parcel: str = ""
    parcel_file: str = ""

    def packed(self) -> list[Any]:
        options = {name: getattr(self, name) for name in ("publisher", "topic", "parcel", "parcel_file")}
        return [b64encode(self.trust.encode()).decode(), b64encode(self.data).decode(), options]


def told(page: Page, cases: Iterable[Case]) -> list[dict[str, Any]]:
    """What the page says of each."""
    found: list[dict[str, Any]] = page.evaluate(CALL, [case.packed() for case in cases])
    return found


Words = tuple[list[str], list[str]]  # what is proved, and what is not


def said(case: Case) -> tuple[str, str, Words]:
    """What Python says: "holds" and in which words, or the failure and its reason."""
    try:
        trust = TrustFile.parse(case.trust)
        if case.data[:1] == b"\x8b":
            topic = bytes.fromhex(case.topic) or None
            at = Receipt.decode(case.data).verify(bytes.fromhex(case.parcel), topic, trust)
            words = at.statements, at.not_proven
        elif 0x80 <= (case.data or b"\0")[0] <= 0x9F:
            expected = {name: bytes.fromhex(getattr(case, name)) or None for name in ("publisher", "topic")}
            proven = verify_proof(case.data, trust, **expected)
            words = proven.statements, proven.not_proven
        else:
            accepted = verify_checkpoint(case.data, trust)
            words = accepted.statements(trust), accepted.not_proven(trust)
    except Refused as error:
        return type(error).__name__.lower(), error.reason, ([], [])
    return "holds", "", ([*words[0]], [*words[1]])


def agree(page: Page, cases: dict[str, Case]) -> dict[str, tuple[str, str]]:
    """Both implementations say the same of every case, word for word where it holds; their verdicts, by its name."""
    ours = {name: said(case) for name, case in cases.items()}
    answers = zip(cases, told(page, cases.values()), strict=True)
    theirs = {
        name: (
            *(one.get("failure", one.get("verdict")), one.get("refused", "")),
            (one.get("proved", []), one.get("notProved", [])),
        )
        for name, one in answers
    }
    assert theirs == ours
    return {name: (verdict, reason) for name, (verdict, reason, _) in ours.items()}


def expect(locator: Locator) -> Any:
    """Playwright's own, found when a browser is there."""
    from playwright.sync_api import expect

    return expect(locator)


@pytest.fixture
def verify_page(page: Page) -> Page:
    page.goto(FILE.as_uri())
    return page


def vectors(which: str) -> dict[str, Case]:
    return {
        one["name"]: Case(
            VECTORS["trusts"][one["trust"]],
            b64decode(one["data"]),
            parcel=one.get("parcel", ""),
            topic=one.get("token", ""),
        )
        for one in VECTORS[which]
        if one["kind"] in KINDS
    }


def with_topic(scene: Scene) -> Proof:
    """With a state proof of the topic's row, and so whose topic it is."""
    key = b"topic/" + token("brakes")
    value = wire.encode([scene.world.permit("car", "brakes").tenant, bytes(16), 1])
    state = MerkleMap({})
    state.update({key: value} | {b"topic/" + bytes([i]) * 16: b"row" for i in range(9)})
    row = wire.encode([1, key, value, state.prove(key), state_note(scene.trust, state.root)])
    return scene.prove(receipt=scene.anchorage().receipt(1), topic=row)


def altered(scene: Scene, proof: Proof, changes: dict[int, Any], key: str = "car", **others: Any) -> Proof:
    """The proof under a header with other fields, which the publisher signed; more are changed beside it."""
    fields = wire.decode(proof.header)
    header = wire.encode([changes.get(i, field) for i, field in enumerate(fields)])
    signature = SigningKey.from_seed(seed(key)).sign(SIGNATURE_CONTEXT, header)
    return replace(proof, header=header, signature=signature, **others)


def trust_json(changes: dict[str, Any], sign: tuple[RootKey, ...] = (ROOT,), **others: Any) -> str:
    """A trust file of these fields, signed whatever they are; more is changed after the signature."""
    made = trust_file(witnesses=2)
    fields: dict[str, Any] = {
        "number": 2, "first": INSTANCE, "name": "test", "roots": [ROOT.public.raw], "threshold": 1,
        "ledger": [LEDGER[0].public.raw], "ledger_threshold": 1, "witnesses": list(made.witnesses), "quorum": 0,
    } | changes  # fmt: skip
    content = wire.encode([1, *fields.values()])
    instance = fields["first"] or named_hash("tallystick instance 1", content)
    shown = {
        "format": "tallystick trust file 1",
        "number": fields["number"],
        "instance": instance.hex(),
        "name": fields["name"],
        "roots": {"threshold": fields["threshold"], "keys": [b64encode(key).decode() for key in fields["roots"]]},
        "ledger": {
            "threshold": fields["ledger_threshold"],
            "keys": [b64encode(key).decode() for key in fields["ledger"]],
        },
        "witnesses": {"quorum": fields["quorum"], "keys": fields["witnesses"]},
        "signatures": [
            {"root": i, "signature": b64encode(key.sign(CONTEXT, content)).decode()} for i, key in enumerate(sign)
        ],
    }
    return json.dumps(shown | others)
