"""What hostile people write: `verify.html` and Python refuse it for the same reason, whatever they signed it with."""

from __future__ import annotations

import hashlib
import json
import random
from base64 import b64encode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from makers import rows, seed, token
from provers import LEDGER, ROOT, WITNESSES, Anchorage, Scene, sign_note, state_note, trust_file
from verify_cases import (
    Case,
    agree,
    altered,
    trust_json,
    vectors,
    with_topic,
)
from verify_cases import verify_page as verify_page

from tallystick import wire
from tallystick.crypto import merkle
from tallystick.crypto.merkle_map import MerkleMap
from tallystick.crypto.signatures import RootKey, SigningKey
from tallystick.parcel.prove import Proof
from tallystick.record.schema import Schema
from tallystick.trust.notes import Algorithm, NoteSignature, NoteSigner
from tallystick.trust.receipt import Receipt

if TYPE_CHECKING:
    from playwright.sync_api import Page


LANE = [bytes(16), 1, bytes(32)]
HEADERS: dict[str, dict[int, Any]] = {
    "nothing": {},
    "version 2": {0: 2},
    "version true": {0: True},
    "suite 2": {1: 2},
    "a suite below zero": {1: -1},
    "kind 5": {2: 5},
    "flags 2": {3: 2},
    "an instance of 31 bytes": {4: bytes(31)},
    "no topics": {5: []},
    "a heartbeat with groups": {2: 1},
    "a gap with records": {2: 2},
    "a gap": {2: 2, 13: 0},
    "a commit without its write": {2: 4, 13: 0},
    "a commit": {2: 4, 13: 0, 20: [bytes(32), 1]},
    "a close": {2: 3, 13: 0, 14: [], 15: [0, bytes(32)]},
    "padded with a count": {3: 1},
    "padded": {3: 1, 12: 0, 13: 0},
    "a second parcel without a previous": {7: 1},
    "a second parcel": {7: 1, 8: b"x" * 32},
    "a first parcel with a previous": {8: b"x" * 32},
    "a sequence of 2^63": {7: 1 << 63, 8: b"x" * 32},
    "a first parcel that continues": {9: LANE},
    "a second parcel that continues": {7: 1, 8: b"x" * 32, 9: LANE},
    "a schema version beyond": {10: [(1 << 31) + 1, bytes(32)]},
    "another schema": {10: [1, bytes(32)]},
    "a time as text": {12: "now"},
    "a count beyond": {13: (1 << 20) + 1},
    "another count": {13: 12},
    "groups missing": {14: [], 15: [0, bytes(32)]},
    "a group without locks": {14: [[bytes(32), bytes(32), [], 16]], 15: [16, bytes(32)]},
    "nine locks": {14: [[bytes(32), bytes(32), [bytes(32)] * 9, 16]], 15: [16, bytes(32)]},
    "a short lock": {14: [[bytes(32), bytes(32), [bytes(31)], 16]], 15: [16, bytes(32)]},
    "a section too small": {14: [[bytes(32), bytes(32), [bytes(32)], 15]], 15: [15, bytes(32)]},
    "a section too large": {14: [[bytes(32), bytes(32), [bytes(32)], (1 << 26) + 1]], 15: [1 << 26, bytes(32)]},
    "a body of another size": {14: [[bytes(32), bytes(32), [bytes(32)], 16]], 15: [17, bytes(32)]},
    "thirty-three groups": {14: [[bytes(32), bytes(32), [bytes(32)], 16]] * 33, 15: [33 * 16, bytes(32)]},
    "coded": {16: [1, 4, 8, 1 << 24, bytes(32)]},
    "coded beyond": {16: [256, 4, 8, 1024, bytes(32)]},
    "a checkpoint": {17: [9, bytes(32)], 18: [1, bytes(32)]},
    "a short checkpoint": {17: [9]},
    "a plan below zero": {18: [-1, bytes(32)]},
    "labels": {19: [b"ab", b"cd"]},
    "labels of two lengths": {19: [b"ab", b"c"]},
    "an empty label": {19: [b""]},
    "a label of text": {19: ["ab"]},
    "a label too long": {19: [bytes(33)]},
    "sixty-five labels": {19: [b"a"] * 65},
    "a write of 16 bytes": {20: [bytes(16), 1]},
    "extensions": {21: [[1, False, b"x"], [70, False, b""]]},
    "a critical extension": {21: [[1, False, b"x"], [2, True, b"x"]]},
    "extensions out of order": {21: [[2, True, b"x"], [1, False, b"x"]]},
    "an extension beyond": {21: [[1 << 16, False, b""]]},
    "an extension that is 1": {21: [[1, 1, b""]]},
}


def test_headers_are_held_to_the_same_bounds(verify_page: Page) -> None:
    scene = Scene.of()
    trust, good = scene.trust.to_json(), scene.prove()
    cases = {name: Case(trust, altered(scene, good, changes).encode()) for name, changes in HEADERS.items()}
    fields = wire.decode(good.header)
    topic = fields[5][0]
    for name, topics in {
        "seventeen topics": [[bytes([i]) * 16, *topic[1:]] for i in range(17)],
        "two topics": sorted([topic, [bytes(16), *topic[1:]]]),
        "two topics out of order": sorted([topic, [bytes(16), bytes(16), 1]], reverse=True),
        "one topic twice": [topic, topic],
        "an epoch beyond": [[*topic[:2], 1 << 32]],
        "an epoch before the permit's": [[*topic[:2], 0]],
        "another token": [[bytes(16), *topic[1:]]],
        "another permit": [[topic[0], bytes(16), topic[2]]],
    }.items():
        cases[name] = Case(trust, altered(scene, good, {5: topics}).encode())
    cases["signed by another"] = Case(trust, altered(scene, good, {}, "thief").encode())
    for name, header in {"too few fields": fields[:-1], "too many": [*fields, None], "no array": "header"}.items():
        cases[name] = Case(trust, replace(good, header=wire.encode(header)).encode())
    found = agree(verify_page, cases)
    assert found["nothing"] == ("holds", "")
    assert {"malformed", "forged", "refused", "holds"} == {failure for failure, _ in found.values()}


NODE = ["a", "int8", True]
DEEP = [["a", "list", True], *[["item", "list", True]] * 6, ["item", "int8", True]]
SCHEMAS: dict[str, Any] = {
    "one column": [1, 1, [NODE], [[0]]],
    "version 0": [1, 0, [NODE], [[0]]],
    "version 2^31": [1, 1 << 31, [NODE], [[0]]],
    "format 2": [2, 1, [NODE], [[0]]],
    "format true": [True, 1, [NODE], [[0]]],
    "no columns": [1, 1, [], []],
    "no groups": [1, 1, [NODE], []],
    "an empty group": [1, 1, [NODE], [[0], []]],
    "a group that is no array": [1, 1, [NODE], [0]],
    "a column in no group": [1, 1, [NODE, ["b", "int8", True]], [[0]]],
    "a column in two groups": [1, 1, [NODE, ["b", "int8", True]], [[0, 1], [1]]],
    "columns out of order": [1, 1, [NODE, ["b", "int8", True]], [[1, 0]]],
    "groups out of order": [1, 1, [NODE, ["b", "int8", True]], [[1], [0]]],
    "a column below zero": [1, 1, [NODE], [[-1]]],
    "a column that is false": [1, 1, [NODE], [[False]]],
    "a column beyond": [1, 1, [NODE], [[1]]],
    "a name twice": [1, 1, [NODE, NODE], [[0, 1]]],
    "an empty name": [1, 1, [["", "int8", True]], [[0]]],
    "a name of 255 bytes": [1, 1, [["é" * 127 + "a", "int8", True]], [[0]]],
    "a name of 256 bytes": [1, 1, [["é" * 128, "int8", True]], [[0]]],
    "a name with a line end": [1, 1, [["a\nb", "int8", True]], [[0]]],
    "a name with a space": [1, 1, [["a b", "int8", True]], [[0]]],
    "a name with a hard space": [1, 1, [["a\xa0b", "int8", True]], [[0]]],
    "a name that turns": [1, 1, [["a\u202eb", "int8", True]], [[0]]],
    "a name of private use": [1, 1, [["\ue000", "int8", True]], [[0]]],
    "a name that is no text": [1, 1, [[b"a", "int8", True]], [[0]]],
    "nullable 1": [1, 1, [["a", "int8", 1]], [[0]]],
    "a type of none": [1, 1, [["a", "int7", True]], [[0]]],
    "a type of everything's": [1, 1, [["a", "constructor", True]], [[0]]],
    "a parameter too many": [1, 1, [["a", "int8", True, 1]], [[0]]],
    "a node of two": [1, 1, [["a", "int8"]], [[0]]],
    "a timestamp": [1, 1, [["a", "timestamp", True, "ns", "Europe/Berlin"]], [[0]]],
    "a timestamp in days": [1, 1, [["a", "timestamp", True, "D", None]], [[0]]],
    "a timestamp of everything's unit": [1, 1, [["a", "timestamp", True, "toString", None]], [[0]]],
    "a timestamp without a zone": [1, 1, [["a", "timestamp", True, "s"]], [[0]]],
    "an empty zone": [1, 1, [["a", "timestamp", True, "s", ""]], [[0]]],
    "a zone with a space": [1, 1, [["a", "timestamp", True, "s", "U C"]], [[0]]],
    "a zone too long": [1, 1, [["a", "timestamp", True, "s", "U" * 65]], [[0]]],
    "a decimal": [1, 1, [["a", "decimal128", True, 38, 38]], [[0]]],
    "a decimal of 39": [1, 1, [["a", "decimal128", True, 39, 0]], [[0]]],
    "a decimal of none": [1, 1, [["a", "decimal128", True, 0, 0]], [[0]]],
    "a decimal with a scale beyond": [1, 1, [["a", "decimal128", True, 3, 4]], [[0]]],
    "a decimal with a scale below": [1, 1, [["a", "decimal128", True, 3, -1]], [[0]]],
    "a list": [1, 1, [["a", "list", True], ["item", "int8", False]], [[0]]],
    "a list of another name": [1, 1, [["a", "list", True], ["one", "int8", False]], [[0]]],
    "a list of nothing": [1, 1, [["a", "list", True]], [[0]]],
    "a struct": [1, 1, [["a", "struct", True, 2], ["b", "int8", True], ["c", "int8", True]], [[0]]],
    "a struct of nothing": [1, 1, [["a", "struct", True, 0]], [[0]]],
    "a struct that lacks one": [1, 1, [["a", "struct", True, 2], ["b", "int8", True]], [[0]]],
    "a struct with a name twice": [1, 1, [["a", "struct", True, 2], NODE, NODE], [[0]]],
    "eight levels": [1, 1, DEEP, [[0]]],
    "nine levels": [1, 1, [DEEP[0], DEEP[1], *DEEP[1:]], [[0]]],
    "1,024 fields": [1, 1, [[f"c{i}", "int8", True] for i in range(1024)], [list(range(1024))]],
    "1,025 fields": [1, 1, [[f"c{i}", "int8", True] for i in range(1025)], [list(range(1025))]],
    "three fields": [1, 1, [NODE]],
    "no array": 1,
}


def test_schemas_are_held_to_the_same_bounds(verify_page: Page) -> None:
    """One that is read is not the header's, and so is forged; one that is not read is malformed."""
    scene = Scene.of()
    good = scene.prove()
    cases = {
        name: Case(scene.trust.to_json(), replace(good, schema=wire.encode(schema)).encode())
        for name, schema in SCHEMAS.items()
    }
    found = agree(verify_page, cases)
    assert {("forged", "wrong-schema"), ("malformed", "malformed")} == set(found.values())


ROWS: dict[str, tuple[str, bytes]] = {
    "a number": ("a int8", b"\1\x80"),
    "bits beyond the last": ("a int8", b"\3\x80"),
    "a byte too many": ("a int8", b"\1\x80\0"),
    "a byte too few": ("a int16", b"\1\x80"),
    "nothing at all": ("a int8", b""),
    "absent": ("a int8", b"\0"),
    "absent but not nullable": ("a int8 not null", b"\0"),
    "true": ("a bool", b"\1\1"),
    "more than true": ("a bool", b"\1\2"),
    "text": ("a string", b"\1\2\0\0\0\xc3\xa9"),
    "text cut short": ("a string", b"\1\3\0\0\0\xc3\xa9"),
    "text that is none": ("a string", b"\1\1\0\0\0\xff"),
    "a surrogate": ("a string", b"\1\3\0\0\0\xed\xa0\x80"),
    "a byte order mark": ("a string", b"\1\3\0\0\0\xef\xbb\xbf"),
    "999": ("a decimal128(3, 1)", b"\1\xe7\3" + bytes(14)),
    "1000 in three digits": ("a decimal128(3, 1)", b"\1\xe8\3" + bytes(14)),
    "-1000 in three digits": ("a decimal128(3, 1)", b"\1\x18\xfc" + b"\xff" * 14),
    "a list": ("a list<int8>", b"\1\2\0\0\0\1\7"),
    "a list without its bits": ("a list<int8>", b"\1\xff\xff\xff\xff"),
    "a list of many nulls": ("a list<int8>", b"\1\0\0\1\0" + bytes(1 << 13)),
    "a list with bits beyond": ("a list<int8>", b"\1\1\0\0\0\2"),
    "a null in a list of none": ("a list<int8 not null>", b"\1\1\0\0\0\0"),
    "a struct": ("a struct<b int8, c bool>", b"\1\2\1"),
    "a struct with bits beyond": ("a struct<b int8, c bool>", b"\1\6\1"),
}


def test_rows_are_read_as_strictly(verify_page: Page) -> None:
    """A publisher hashes what it likes, and signs it."""
    cases = {}
    for name, (columns, row) in ROWS.items():
        schema = Schema.parse(columns)
        scene = Scene.of()
        good = scene.prove()
        fields = wire.decode(good.header)
        group = [merkle.leaf_hash(good.salt + row), *fields[14][0][1:]]
        proof = altered(
            *(scene, good, {10: [1, schema.hash], 13: 1, 14: [group]}),
            row=row,
            schema=schema.encode(),
            leaf=0,
            count=1,
            path=(),
        )
        cases[name] = Case(scene.trust.to_json(), proof.encode())
    found = agree(verify_page, cases)
    assert sum(one == ("holds", "") for one in found.values()) == 9


# What stands behind the tenant in a topic's row: of all that is decoded only this may be any value of wire.
VALUES: dict[str, str] = {
    "23": "17",
    "24": "1818",
    "23 in two bytes": "1817",
    "255": "18ff",
    "255 in three bytes": "1900ff",
    "65535 in five bytes": "1a0000ffff",
    "2^32 - 1 in nine bytes": "1b00000000ffffffff",
    "2^64 - 1": "1b" + "ff" * 8,
    "-1": "20",
    "-2^63": "3b7fffffffffffffff",
    "-2^63 - 1": "3b8000000000000000",
    "a large number": "c249010000000000000000",
    "bytes": "4161",
    "bytes of a length in two": "580161",
    "bytes without an end": "5f4161ff",
    "bytes beyond": "5b7fffffffffffffff",
    "text": "62c3a9",
    "text that is none": "61ff",
    "text without an end": "7f6161ff",
    "a surrogate": "63eda080",
    "an array": "83f4f5f6",
    "an array without an end": "9fff",
    "an array of a length in two": "980100",
    "an array beyond": "9bffffffffffffffff",
    "a map": "a0",
    "a tag": "c000",
    "a tag of itself": "d9d9f700",
    "a float": "f90000",
    "a double": "fb" + "00" * 8,
    "undefined": "f7",
    "a simple value": "e0",
    "a simple value in two": "f8ff",
    "false in two": "f814",
    "a reserved length": "1c",
    "a break": "ff",
    "sixteen levels": "81" * 14 + "80",
    "twenty levels": "81" * 18 + "80",
    "a byte behind": "0000",
    "nothing": "",
}


def test_wire_is_read_as_strictly(verify_page: Page) -> None:
    scene = Scene.of()
    tenant = scene.world.permit("car", "brakes").tenant
    key, proof = b"topic/" + token("brakes"), scene.prove()
    cases = {}
    for name, value in VALUES.items():
        row = b"\x82\x50" + tenant + bytes.fromhex(value)
        state = MerkleMap({})
        state.update({key: row})
        shown = wire.encode([1, key, row, state.prove(key), state_note(scene.trust, state.root)])
        cases[name] = Case(scene.trust.to_json(), replace(proof, topic=shown).encode())
    found = agree(verify_page, cases)
    good = {name for name, verdict in found.items() if verdict == ("holds", "")}
    numbers = {"23", "24", "255", "2^64 - 1", "-1", "-2^63"}
    assert good == numbers | {"bytes", "text", "an array", "sixteen levels"}


def test_a_topic_s_row_is_held_to_the_state(verify_page: Page) -> None:
    scene = Scene.of()
    good = with_topic(scene)
    version, key, value, path, note = wire.decode(good.topic or b"")
    _, siblings, _ = wire.decode(path)
    other = [bytes(32), bytes(32)]
    rows = {
        "as it is": [version, key, value, path, note],
        "version 2": [2, key, value, path, note],
        "another topic": [version, b"topic/" + bytes(16), value, path, note],
        "a key too long": [version, bytes(65), value, path, note],
        "another row": [version, key, wire.encode([bytes(16)]), path, note],
        "no row": [version, key, None, path, note],
        "another's note": [version, key, value, path, state_note(trust_file(), bytes(32))],
        "another leaf": [version, key, value, wire.encode([1, siblings, other]), note],
        "another leaf, cut short": [version, key, value, wire.encode([1, siblings, [bytes(32), b""]]), note],
        "a path of version 2": [version, key, value, wire.encode([2, siblings, None]), note],
        "a path that is cut": [version, key, value, wire.encode([1, siblings[:-1], None]), note],
        "a path with zeros": [version, key, value, wire.encode([1, [bytes(32), *siblings[1:]], None]), note],
        "a path of 257": [version, key, value, wire.encode([1, [b""] * 257, None]), note],
        "a path of 256": [version, key, value, wire.encode([1, [b""] * 256, None]), note],
        "a path of text": [version, key, value, wire.encode([1, ["a"], None]), note],
    }
    cases = {
        name: Case(scene.trust.to_json(), replace(good, topic=wire.encode(row)).encode()) for name, row in rows.items()
    }
    stranger = b"the thief's own."
    permit = scene.world.permit("car", "brakes", tenant=stranger).encode()
    cases["another tenant's"] = Case(scene.trust.to_json(), replace(good, permit=permit).encode())
    found = agree(verify_page, cases)
    assert found["as it is"] == ("holds", "")
    assert found["another tenant's"] == ("forged", "wrong-tenant")


def test_leave_is_held_to_the_root(verify_page: Page) -> None:
    scene = Scene.of()
    trust, good = scene.trust, scene.prove()
    root, authority = trust.root_signer(ROOT), scene.world.authority_key

    def changed(data: bytes, context: str, signer: Any, changes: dict[int, Any]) -> bytes:
        fields = wire.decode(wire.decode(data)[0])
        body = wire.encode([changes.get(i, field) for i, field in enumerate(fields)])
        return wire.encode([body, signer.sign(context, body)])

    permits: dict[str, dict[int, Any]] = {
        "as it is": {},
        "version 2": {0: 2},
        "another instance": {1: bytes(32)},
        "another identifier": {2: bytes(16)},
        "operation 1": {3: 1},
        "operation 3": {3: 3},
        "another token": {4: bytes(16)},
        "another tenant": {5: bytes(16)},
        "another key": {7: scene.world.authority_key.public.raw},
        "a key of small order": {7: bytes(32)},
        "from epoch 2": {8: 2},
        "to epoch 0": {9: 0},
        "to epoch 2^32": {9: 1 << 32},
        "a time too late": {11: 1 << 63},
        "another authority": {12: bytes(16)},
        "256 labels": {14: [b"a"] * 256},
        "257 labels": {14: [b"a"] * 257},
        "a label too long": {14: [bytes(33)]},
        "a label of text": {14: ["a"]},
    }
    certificates: dict[str, dict[int, Any]] = {
        "as it is": {},
        "version 2": {0: 2},
        "another instance": {1: bytes(32)},
        "a node": {2: 2},
        "kind 4": {2: 4},
        "kind 0": {2: 0},
        "another subject": {3: bytes(16)},
        "another tenant": {4: b"x" * 16},
        "its tenant": {4: b"t" * 16},
        "another key": {5: LEDGER[0].public.raw},
        "a key of small order": {5: b"\1" + bytes(31)},
        "a sealing key of 2,048": {6: bytes(2048)},
        "a sealing key of 2,049": {6: bytes(2049)},
        "by another": {9: b"x" * 16},
    }
    cases = {}
    for name, changes in permits.items():
        permit = changed(good.permit, "tallystick permit 1", authority, changes)
        cases[f"permit: {name}"] = Case(trust.to_json(), replace(good, permit=permit).encode())
    for name, changes in certificates.items():
        certificate = changed(good.authority, "tallystick certificate 1", root, changes)
        cases[f"certificate: {name}"] = Case(trust.to_json(), replace(good, authority=certificate).encode())
    body, signed = wire.decode(good.authority)
    [[_, one]] = wire.decode(signed)
    for name, parts in {
        "nobody": [],
        "of another key": [[1, one]],
        "twice": [[0, one], [0, one]],
        "a key beyond": [[32, one]],
        "cut short": [[0, one[:-1]]],
        "no Ed25519 half": [[0, bytes(64) + one[64:]]],
        "no ML-DSA half": [[0, one[:64] + bytes(3309)]],
        "no array": 1,
        "a triple": [[0, one, 1]],
    }.items():
        certificate = wire.encode([body, wire.encode(parts)])
        cases[f"root: {name}"] = Case(trust.to_json(), replace(good, authority=certificate).encode())
    cases["certificate: too long"] = Case(
        trust.to_json(), replace(good, authority=wire.encode([body, bytes(1 << 17)])).encode()
    )
    cases["permit: too long"] = Case(trust.to_json(), replace(good, permit=bytes(16_385)).encode())
    found = agree(verify_page, cases)
    holding = {"permit: as it is", "permit: 256 labels", "certificate: as it is", "certificate: its tenant"}
    assert {name for name, one in found.items() if one[0] == "holds"} == holding | {
        "certificate: a sealing key of 2,048",
        "permit: another tenant",  # of an authority that serves all
    }


def test_receipts_are_held_to_the_same_bounds(verify_page: Page) -> None:
    parcels = [seed(f"parcel {number}") for number in range(5)]
    place = Anchorage(trust_file(), parcels)
    good = wire.decode(place.receipt(3).encode())
    tree = merkle.Tree([merkle.leaf_hash(parcel) for parcel in parcels])
    here = [token("brakes"), 3, 5, tree.root()]
    anchors: dict[str, list[Any]] = {
        "40": [40, *here],
        "41": [41, *here],
        "40 with more": [40, *here, 0],
        "partition 65,536": [40, here[0], 1 << 16, *here[2:]],
        "43": [43, *here, 2, []],
        "43 refusing": [43, *here, 2, [[2, 3, "a"], [4, 5, "b"]]],
        "43 before": [43, *here, 2, [[1, 3, "a"]]],
        "43 beyond": [43, *here, 2, [[2, 6, "a"]]],
        "43 of nothing": [43, *here, 2, [[2, 2, "a"]]],
        "43 out of order": [43, *here, 2, [[3, 4, "a"], [2, 3, "b"]]],
        "43 without a reason": [43, *here, 2, [[2, 3, ""]]],
        "43 with a long one": [43, *here, 2, [[2, 3, "é" * 33]]],
        "43 with 32": [43, *here, 2, [[2, 3, "\U0001f697" * 32]]],
        "94": [94, *here, 2, 4, 1, [[1, bytes(64)], [7, bytes(64)]]],
        "94 of nobody": [94, *here, 2, 4, 1, []],
        "94 of an eighth": [94, *here, 2, 4, 1, [[8, bytes(64)]]],
        "94 out of order": [94, *here, 2, 4, 1, [[2, bytes(64)], [1, bytes(64)]]],
        "true": [True, *here],
        "nothing": [],
    }
    data = {
        name: Receipt(3, tuple(tree.inclusion(3, 5)), place.entry_proof(wire.encode(anchor))).encode()
        for name, anchor in anchors.items()
    }
    head = wire.decode(good[6])
    data |= {
        f"head: {name}": wire.encode([*good[:6], wire.encode(changed), *good[7:]])
        for name, changed in {
            "version 2": [2, *head[1:]],
            "another instance": [1, bytes(32), *head[2:]],
            "no entries": [*head[:5], 0],
            "4,097 entries": [*head[:5], 4097],
            "another count": [*head[:5], 4],
            "too short": head[:5],
        }.items()
    }
    data |= {
        f"field {i}: {name}": wire.encode([*good[:i], value, *good[i + 1 :]])
        for i, name, value in [
            (1, "2^63", 1 << 63),
            (1, "the size", 5),
            (2, "no hashes", []),
            (2, "65 hashes", [bytes(32)] * 65),
            (2, "a short hash", [bytes(31)]),
            (3, "257 bytes", bytes(257)),
            (4, "4,096", 4096),
            (4, "3", 3),
            (5, "text", "a"),
            (6, "257 bytes", bytes(257)),
            (7, "63 bytes", bytes(63)),
            (8, "2^63", 1 << 63),
            (8, "7", 7),
            (10, "no note", b""),
            (10, "a long note", bytes((1 << 18) + 1)),
        ]
    }
    cases = {
        name: Case(trust_file().to_json(), receipt, parcel=parcels[3].hex(), topic=token("brakes").hex())
        for name, receipt in data.items()
    }
    found = agree(verify_page, cases)
    assert {name for name, one in found.items() if one[0] == "holds"} == {"40", "43", "43 refusing", "43 with 32", "94"}


def note(text: str, *lines: str, key: SigningKey = LEDGER[0]) -> bytes:
    """A text of any form under a signature that holds, and signature lines behind it."""
    origin = trust_file().origin
    signer = NoteSigner(origin, key)
    one = NoteSignature(origin, signer.verifier.key_id, key.sign_raw(text.encode())).encode()
    return (text + "\n" + one + "".join(lines)).encode()


def test_checkpoints_are_held_to_the_same_bounds(verify_page: Page) -> None:
    trust = trust_file(witnesses=2)
    text = sign_note(trust.origin, 9, seed("root of nine")).decode().split("\n\n")[0] + "\n"
    origin, size, root, height, time, state = text.splitlines()
    texts = {
        "as it is": text,
        "size 0": text.replace("\n9\n", "\n0\n"),
        "size 2^63": text.replace("\n9\n", f"\n{1 << 63}\n"),
        "size 2^63 - 1": text.replace("\n9\n", f"\n{(1 << 63) - 1}\n"),
        "size -1": text.replace("\n9\n", "\n-1\n"),
        "a size in other digits": text.replace("\n9\n", "\n٩\n"),
        "another origin": text.replace("tallystick/", "tallystack/"),
        "a root with spare bits": text.replace(root, root[:-2] + chr(ord(root[-2]) + 1) + "="),
        "a short root": text.replace(root, "AAAA"),
        "a root with spaces": text.replace(root, f"{root[:4]} {root[4:]}"),
        "no height": text.replace(height + "\n", ""),
        "two heights": text.replace(height, f"{height}\n{height}"),
        "lines out of order": "\n".join([origin, size, root, time, height, state, ""]),
        "one line more": text + "more\n",
        "a height with a zero": text.replace("height ", "height 0"),
        "a height and a space": text.replace(height, height + " "),
        "a time beyond": text.replace(time, f"time {1 << 63}"),
        "a short state": text.replace(state, "state AAAA"),
        "a state with spare bits": text.replace(state, state[:-2] + chr(ord(state[-2]) + 1) + "="),
        "33 lines more": text + "more\n" * 33,
        "an empty line": text.replace(height, "\n" + height),
        "a tab": text.replace("height ", "height\t"),
        "a carriage return": text.replace("\n", "\r\n"),
        "a zero": text + "\0\n",
        "a byte order mark": "\ufeff" + text,
        "a long line": text + "x" * 8193 + "\n",
        "much text": text + ("x" * 8000 + "\n") * 33,
    }
    cases = {f"text: {name}": Case(trust.to_json(), note(changed)) for name, changed in texts.items()}
    witnesses = [witness.sign(text, 1_700_000_101) for witness in WITNESSES]
    stranger = NoteSigner("stranger", LEDGER[3]).sign(text)
    own = witnesses[0]
    lines = {
        "a witness": [own.encode()],
        "a stranger": [stranger.encode()],
        "a witness that the file has not": [witnesses[2].encode()],
        "a witness twice": [own.encode(), own.encode()],
        "a witness whose word fails": [replace(own, signature=own.signature[:-1] + b"\0").encode()],
        "a witness of 71 bytes": [replace(own, signature=own.signature[:-1]).encode()],
        "a witness of no time": [replace(own, signature=b"\xff" * 8 + own.signature[8:]).encode()],
        "a line of four bytes": [replace(stranger, signature=b"").encode()],
        "no dash": [stranger.encode().replace("— ", "- ")],
        "two spaces": [stranger.encode().replace("stranger ", "stranger  ")],
        "no name": [stranger.encode().replace("stranger", "")],
        "a line end in it": [stranger.encode()[:-1]],
        "an empty line behind": ["\n"],
        **{
            f"a name with {ord(mark):x}": [replace(stranger, name=f"a{mark}b").encode()]
            for mark in "+\x7f\x85\xa0\u2028\u3000\ufeff"
        },
        "a long name": [replace(stranger, name="é" * 128).encode()],
        "a name of 254 bytes": [replace(stranger, name="é" * 127).encode()],
        "64 signatures": [replace(stranger, name=f"s{i}").encode() for i in range(63)],
        "65 signatures": [replace(stranger, name=f"s{i}").encode() for i in range(64)],
        "a long signature": [replace(stranger, signature=bytes(8192)).encode()],
    }
    cases |= {f"lines: {name}": Case(trust.to_json(), note(text, *more)) for name, more in lines.items()}
    good = note(text)
    for name, data in {
        "nothing": b"",
        "no signature": good.split(b"\n\n")[0] + b"\n\n",
        "no UTF-8": good + b"\xff\n",
        "a kind of 04": own_line(text),
        "much of everything": good + b"x" * (1 << 18),
        "another's": note(text, key=LEDGER[1]),
    }.items():
        cases[f"note: {name}"] = Case(trust.to_json(), data)
    for name, asked in {"2 of 3 keys": (3, 2), "1 of 3 keys": (3, 1)}.items():
        chain = trust_file(ledger=asked[0], ledger_threshold=asked[1])
        cases[f"chain: {name}"] = Case(chain.to_json(), good)
    found = agree(verify_page, cases)
    assert {one for one in found.values() if one[0] == "holds"}
    assert found["lines: a witness whose word fails"] == ("forged", "forged")
    assert found["chain: 2 of 3 keys"] == ("forged", "forged")


def own_line(text: str) -> bytes:
    """A note that the ledger's key signed as a witness would."""
    signer = NoteSigner(trust_file().origin, LEDGER[0], Algorithm.COSIGNATURE_V1)
    return (text + "\n" + signer.sign(text, 7).encode()).encode()


# --- trust files ---


def witness(name: str, key: bytes, kind: int = 4) -> str:
    raw = bytes([kind]) + key
    identifier = hashlib.sha256(name.encode() + b"\n" + raw).hexdigest()[:8]
    return f"{name}+{identifier}+{b64encode(raw).decode()}"


def test_trust_files_are_held_to_the_same_bounds(verify_page: Page) -> None:
    other = RootKey.from_seed(seed("another root"))
    roots, key = [ROOT.public.raw, other.public.raw], seed("x")
    one, two = trust_file(witnesses=2).witnesses
    fields: dict[str, dict[str, Any]] = {
        "as it is": {},
        "number 0": {"number": 0},
        "number 2^32": {"number": 1 << 32},
        "number 2^32 - 1": {"number": (1 << 32) - 1},
        "a first of 31 bytes": {"first": bytes(31)},
        "a first one": {"number": 1, "first": b""},
        "a name of 256": {"name": "\U0001f697" * 256},
        "a name of 257": {"name": "a" * 257},
        "no name": {"name": ""},
        "a name that turns": {"name": "a\u202eb"},
        "a name in two lines": {"name": "a\nb"},
        "a hard space": {"name": "a\xa0b"},
        "threshold 0": {"threshold": 0},
        "threshold 2 of 1": {"threshold": 2},
        "2 of 2, one signed": {"roots": roots, "threshold": 2},
        "a root twice": {"roots": [roots[0]] * 2},
        "33 roots": {"roots": [bytes([i]) * 1984 for i in range(33)]},
        "ledger threshold 0": {"ledger_threshold": 0},
        "ledger threshold 2": {"ledger_threshold": 2},
        "no ledger": {"ledger": []},
        "a ledger key twice": {"ledger": [LEDGER[0].public.raw] * 2},
        "a short ledger key": {"ledger": [bytes(31)]},
        "quorum 3 of 2": {"quorum": 3},
        "quorum -1": {"quorum": -1},
        "no witnesses": {"witnesses": []},
        "a witness twice": {"witnesses": [one, one]},
        "a key under two names": {"witnesses": [witness("a", key), witness("b", key)]},
        "the ledger as witness": {"witnesses": [witness("a", LEDGER[0].public.raw)]},
        "a witness of kind 01": {"witnesses": [witness("a", key, 1)]},
        "a witness of kind 02": {"witnesses": [witness("a", key, 2)]},
        "a witness of small order": {"witnesses": [witness("a", bytes(32))]},
        "a short witness": {"witnesses": [witness("a", key[:31])]},
        "another identifier": {"witnesses": [one.replace("+", "+0", 1)]},
        "a witness in capitals": {"witnesses": [two.partition("+")[0] + two[len(two.partition("+")[0]) :].upper()]},
        "a witness without a name": {"witnesses": [witness("", key)]},
        "a witness with a space": {"witnesses": [witness("a b", key)]},
        "no witness at all": {"witnesses": ["witness"]},
        "an unknown root": {"roots": [other.public.raw]},
        "a short root": {"roots": [bytes(1983)]},
        "a root of small order": {"roots": [bytes(32) + ROOT.public.raw[32:]]},
    }
    proof = Scene.of().prove().encode()
    cases = {f"signed: {name}": Case(trust_json(changes), proof) for name, changes in fields.items()}
    small = Case(trust_json({"ledger": [bytes(32)], "witnesses": []}), sign_note(trust_file().origin, 9, seed("root")))
    cases["a ledger key of small order"] = small
    good = json.loads(trust_json({}))
    [signature] = good["signatures"]
    keys = {"threshold": 1, "keys": [good["roots"]["keys"][0] + "\n"]}
    wrong: dict[str, dict[str, Any]] = {
        "another format": {"format": "tallystick trust file 2"},
        "another instance": {"instance": "00" * 32},
        "no hex": {"instance": "0"},
        "capitals": {"instance": good["instance"].upper()},
        "nobody": {"signatures": []},
        "a line end in a key": {"roots": keys},
        "twice": {"signatures": [signature] * 2},
        "of a key beyond": {"signatures": [signature | {"root": 1}]},
        "of a key below": {"signatures": [signature | {"root": -1}]},
        "no number": {"number": None},
        "a word": {"number": "two"},
        "no roots": {"roots": None},
        "roots in a list": {"roots": []},
        "signatures of words": {"signatures": ["a"]},
        "something more": {"more": [1]},
        "of no key": {"signatures": [{"signature": ""}]},
        "cut": {"signatures": [signature | {"signature": "AAAA"}]},
    }
    cases |= {f"json: {name}": Case(json.dumps(good | changes), proof) for name, changes in wrong.items()}
    for name, text in {
        "nothing": "",
        "a list": "[]",
        "null": "null",
        "a number": "7",
        "no format": "{}",
        "cut": json.dumps(good)[:-1],
        "deep": "[" * 100_000,
        "much": json.dumps(good) + " " * (1 << 18),
        "a space": " " + json.dumps(good),
    }.items():
        cases[f"text: {name}"] = Case(text, proof)
    found = agree(verify_page, cases)
    holding = {name for name, one in found.items() if one[0] == "holds"}
    assert {"signed: as it is", "json: something more", "text: a space", "json: capitals"} <= holding
    assert len(holding) == 10, holding


# --- one byte ---


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def test_a_proof_with_any_byte_changed_is_refused_for_the_same_reason(verify_page: Page) -> None:
    scene = Scene.of(rows(0, 2), witnesses=1)
    proof = witnessed(scene).encode()
    trust = scene.trust.to_json()
    step = len(proof) // 200
    found = agree(verify_page, {str(at): Case(trust, flipped(proof, at, 0x04)) for at in range(1, len(proof), step)})
    assert len(found) >= 200
    assert ("holds", "") not in found.values()


def witnessed(scene: Scene) -> Proof:
    return scene.prove(receipt=scene.anchorage(cosigners=1).receipt(1), leaf=1)


@pytest.mark.long
def test_thousands_of_changes_are_told_alike(verify_page: Page, seed: int) -> None:
    """Bytes changed, left out, put in and repeated, of all three kinds and of the trust file."""
    scene = Scene.of()
    topic = Case(scene.trust.to_json(), with_topic(scene).encode())
    drawn, good = random.Random(seed), [*vectors("good").values(), topic]
    for _ in range(20):
        cases = {}
        for number in range(150):
            case = drawn.choice(good)
            of_trust = drawn.random() < 0.1
            data = case.trust.encode() if of_trust else case.data
            at, size = drawn.randrange(len(data)), drawn.choice((0, 0, 1, 1, 1, 4))
            data = data[:at] + drawn.randbytes(drawn.choice((0, 1, 1, 1, 3))) + data[at + size :]
            text = data.decode(errors="replace")
            cases[f"{number} at {at}"] = replace(case, trust=text) if of_trust else replace(case, data=data)
        agree(verify_page, cases)
