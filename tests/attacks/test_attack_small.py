"""Small ones: a name that is another's identifier, numbers that are none, a passage for a topic of others, an offset
beyond everything, what a terminal obeys, and a page that left out what a root signs."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from actors import Topic
from commands import done, tally
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from ledger_world import Bench, World, seed, token
from ledger_world import bench as bench
from ledger_world import world as world
from makers import World as Makers
from makers import entropy, rows
from provers import Anchorage, book, certify, trust_file
from stack import Stack
from without import without

from tallystick import wire
from tallystick.carriers.kafka.notary import is_passed
from tallystick.carriers.kafka.passage import sign_passages
from tallystick.carriers.rules import LedgerRules
from tallystick.carriers.storage import Place
from tallystick.cli.output import shown
from tallystick.cli.rows import Writer
from tallystick.client.names import Names
from tallystick.crypto.merkle import Tree, leaf_hash
from tallystick.errors import Malformed, Misuse, Refused
from tallystick.ledger import entries
from tallystick.ledger.contracts import groups
from tallystick.ledger.contracts.identity import IDENTITIES
from tallystick.ledger.contracts.topics import HOSTS, TOPICS
from tallystick.parcel.prove import prove
from tallystick.parcel.verify import verify_one
from tallystick.pipeline.options import Options
from tallystick.policy.attribute import integer
from tallystick.policy.parse import parse
from tallystick.policy.space import AttributeSpace
from tallystick.record.batch import Batch
from tallystick.runtime.http1 import Words
from tallystick.trust.certificate import ALL_TENANTS, SubjectKind
from tallystick.trust.right import Right

ROOT = Path(__file__).parents[2]

# --- a name that is another's identifier ---

ASKED, TAKEN = "the client's look at a new name", "the authority's look at a new name"


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    with Stack(tmp_path_factory.mktemp("names")) as stack:
        yield Topic(stack, "acme")


def test_a_newcomer_cannot_be_called_as_another_is_identified(topic: Topic) -> None:
    victim = topic.car.identity.principal.hex()
    for name in (victim, victim.upper()):
        with pytest.raises(Misuse, match="looks like an identifier"):
            topic.stack.principal("acme", name)
    with without(ASKED), pytest.raises(Refused):  # without a word, as all newcomers are
        topic.stack.principal("acme", victim)
    with pytest.raises(Misuse, match="looks like an identifier"):
        topic.stack.topic(topic.owner, topic.token.hex(), "seq int64")
    with without(ASKED), pytest.raises(Refused, match="looks like an identifier"):
        topic.stack.topic(topic.owner, topic.token.hex(), "seq int64")


def test_an_identifier_is_read_as_one_before_any_name(topic: Topic) -> None:
    """An instance may have such a newcomer from before."""
    victim = topic.reader.identity.principal
    with without(ASKED, TAKEN):
        thief = topic.stack.principal("acme", victim.hex())
    names = Names(topic.owner)
    assert (thief.identity.principal, victim.hex()) in names.principals
    assert names.principal(victim.hex()) == victim
    with without("the look at an identifier before names"):
        assert names.principal(victim.hex()) == thief.identity.principal


# --- numbers ---


@pytest.mark.parametrize("text", ["²", "1²", "٣", "", "-1", "9" * 21])
def test_what_python_takes_for_a_digit_is_no_number(text: str) -> None:
    assert not wire.is_number(text)
    with pytest.raises(Malformed):
        Words(f"offset={text}").number("offset")
    with pytest.raises(Misuse):
        Options.parse({"home": "h", "topic": "t", "partitionsMax": text})


def test_formulas_and_commands_take_no_other_digits() -> None:
    space = AttributeSpace.of("acme", integer("clearance", 8))
    for text in ("² of (clearance >= 1, clearance >= 2)", "clearance >= ²", "clearance >= ٣"):
        with pytest.raises(Misuse):
            parse(text, space)
    for command in (["subscribe", "t", "--from", "²"], ["group", "reset", "g", "t", "--to", "²"]):
        said = tally(*command, "--home", "nowhere")
        assert said.code == 2, said


def test_without_plain_digits_one_character_of_a_stranger_s_is_a_fault_of_ours() -> None:
    """No refusal, which a peer is told, but an error that nobody expects: the answer of a node is then a 500."""
    with without("numbers of plain digits"):
        with pytest.raises(ValueError, match="invalid literal"):
            Words("offset=²").number("offset")
        with pytest.raises(ValueError, match="invalid literal"):
            Options.parse({"home": "h", "topic": "t", "partitionsMax": "²"})


def test_numbers_are_read_in_one_place() -> None:
    """`isdigit` takes what `int` refuses, and `isdecimal` digits that nobody expects."""
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "src").rglob("*.py"))
        if re.search(r"\.is(digit|decimal|numeric)\(\)", path.read_text(encoding="utf-8"))
    ]
    assert found == ["src/tallystick/runtime/router.py", "src/tallystick/wire.py"]  # the first looks at bytes


# --- a passage of a node that does not carry the topic ---


def test_a_passage_counts_from_a_node_of_the_topic(bench: Bench, world: World) -> None:
    other = world.actor("other node", SubjectKind.NODE, ALL_TENANTS)
    bench.play((other, entries.enrol(other.certificate), None))
    rules = LedgerRules(world.instance, bench.state.row)
    place, parcel = Place(token("heart"), 0), seed("parcel")
    carrier = sign_passages(world.node.id, 1, [parcel], world.node.key)[0].encode()
    foreign = sign_passages(other.id, 1, [parcel], other.key)[0].encode()
    assert rules.read(TOPICS(place.token)) is not None
    assert rules.read(IDENTITIES(other.id)) is not None
    assert is_passed(carrier, parcel, place, rules)
    assert not is_passed(foreign, parcel, place, rules)
    assert not is_passed(carrier, parcel, Place(token("nothing"), 0), rules)
    assert not is_passed(carrier, parcel, Place(place.token, 99), rules)
    with without("the look at who carries what passed"):
        assert is_passed(foreign, parcel, place, rules)
    bench.play((world.doctor, entries.assign(place.token, 0, [other.id]), None))
    assert rules.read(HOSTS(*place)) == [other.id]
    assert is_passed(foreign, parcel, place, rules)
    assert not is_passed(carrier, parcel, place, rules)


# --- an offset beyond everything ---

AIR = token("air")
GROUP, ONE = seed("group")[:16], seed("process 1")[:16]


def test_a_member_moves_its_group_no_further_than_what_may_be_there(bench: Bench, world: World) -> None:
    def commit(fence: int, old: int, new: int) -> bytes:
        return entries.commit_offset(GROUP, ONE, AIR, 0, fence=fence, old=old, new=new)

    bench.play(
        (world.landlord, entries.grant(AIR, world.sensor.id, int(Right.READ | Right.DESCRIBE)), None),
        (world.landlord, entries.grant(AIR, world.landlord.id, int(Right.READ | Right.DESCRIBE)), None),
        (world.landlord, entries.group(GROUP, 10_000, [AIR]), None),
        (world.sensor, entries.join(GROUP, ONE), None),
        (world.authority, entries.activate("groups", 2, bench.height + 7), None),
    )
    found = groups.find(bench.state, GROUP)
    assert found is not None
    fence, most = found.fence, groups.AHEAD_MAX
    tree = Tree([leaf_hash(seed(f"parcel {number}")) for number in range(3)])
    far = (1 << 63) - 1

    def back(old: int, new: int) -> bytes:
        return entries.reset_offset(GROUP, AIR, 0, fence=fence, old=old, new=new)

    bench.play(
        (world.sensor, commit(fence, 0, far - 1), None),  # version 1
        (world.landlord, back(far - 1, 0), None),  # version 1
        (world.sensor, commit(fence, 0, far), "offset-ahead"),
        (world.sensor, commit(fence, 0, most + 1), "offset-ahead"),
        (world.landlord, back(0, far), "offset-ahead"),
        (world.node, entries.anchor(AIR, 0, 3, tree.root()), None),
        (world.sensor, commit(fence, 0, most + 4), "offset-ahead"),
        (world.sensor, commit(fence, 0, most + 3), None),  # read before it is anchored
        (world.landlord, back(most + 3, 2), None),
    )
    with without("the bound on a group's offset"):
        bench.play((world.sensor, commit(fence, 2, far), None))
    assert groups.offset(bench.state, GROUP, AIR, 0) == far


# --- what a terminal obeys ---

OBEYED = "\x1b[2J\x9b1A\r\u202eevil\u2066\u200f\u2028\ud800"


def test_nothing_that_is_printed_moves_a_terminal(tmp_path: Path) -> None:
    """`tally verify` shows the row of a stranger's proof, and the trust file's name."""
    proof, trust = proof_of_one_row(vin=f"a{OBEYED[:-1]}b é")
    (tmp_path / "row.proof").write_bytes(proof)
    (tmp_path / "trust.json").write_text(trust)
    for options in ([], ["--json"]):
        said = done("verify", tmp_path / "row.proof", "--trust", tmp_path / "trust.json", *options)
        assert [one for one in said.out + said.err if one != "\n" and shown(one) != one] == []
        assert "a\\u001b[2J\\u009b1A\\r\\u202eevil" in said.out
        assert "b é" in said.out
    read = done("verify", tmp_path / "row.proof", "--trust", tmp_path / "trust.json", "--json").json["row"]
    assert read["vin"] == f"a{OBEYED[:-1]}b é"
    with without("the escaping of what is printed"):
        said = done("verify", tmp_path / "row.proof", "--trust", tmp_path / "trust.json")
        assert "\u202eevil" in said.out


def test_errors_and_lines_are_escaped_too() -> None:
    said = tally("inspect", f"no{OBEYED[:-1]}\nerror: such file")
    assert said.code != 0
    assert [one for one in said.err if one != "\n" and shown(one) != one] == []
    assert len(said.err.splitlines()) <= 2
    assert shown(OBEYED) == "\\u001b[2J\\u009b1A\\r\\u202eevil\\u2066\\u200f\\u2028\\ud800"


def test_rows_on_a_terminal_are_escaped_and_in_a_file_they_are_what_they_are(capfdbinary: Any) -> None:
    batch = pa.RecordBatch.from_pylist([{"vin": "a\x1b[2J\u202eb é"}])
    for format_, is_terminal, expected in (
        ("csv", True, '"vin"\n"a\\u001b[2J\\u202eb é"\n'),
        ("csv", False, '"vin"\n"a\x1b[2J\u202eb é"\n'),
        ("jsonl", False, '{"vin":"a\\u001b[2J\\u202eb é"}\n'),
    ):
        writer = Writer(format_, is_terminal=is_terminal)
        writer.write(batch, batch.schema)
        writer.close()
        assert capfdbinary.readouterr().out.decode() == expected


def test_only_one_module_writes_for_people() -> None:
    """So nothing can be printed past the escaping."""
    commands = sorted((ROOT / "src/tallystick/cli").glob("*.py"))
    found = [path.name for path in commands if re.search(r"click\.s?echo\(|\bprint\(", path.read_text("utf-8"))]
    assert found == ["output.py"]


# --- the page, followed to the letter ---


def proof_of_one_row(vin: str = "V") -> tuple[bytes, str]:
    """A proof with a receipt, and the trust file's JSON."""
    makers, trust = Makers(), trust_file(witnesses=1)
    lane = makers.lane()
    some = rows(0, 5).data.to_pylist()
    some[3]["vin"] = vin
    batch = Batch.of(lane.schema, pa.RecordBatch.from_pylist(some, schema=lane.schema.arrow))
    parcel = lane.seal(batch, now_ms=1, entropy=entropy(0))
    verified = verify_one(parcel, trust.instance, book(makers, trust))
    receipt = Anchorage(trust, [seed("before"), parcel.hash, seed("after")]).receipt(1)
    permit, authority = makers.permit("car", "brakes").encode(), certify(makers.authority, trust).encode()
    proof = prove(verified, makers.ring("brakes"), lane.schema, 3, 0, permit, authority, receipt)
    return proof.encode(), trust.to_json()


class Page:
    """docs/formats/keys.md, "A proof, checked from this page alone", with SHA-256 and two signatures."""

    def __init__(self, trust: str) -> None:
        self.trust = json.loads(trust)
        self.instance = bytes.fromhex(self.trust["instance"])

    @staticmethod
    def read(data: bytes) -> Any:
        """wire"""

        def one(at: int) -> tuple[Any, int]:
            major, short = data[at] >> 5, data[at] & 31
            width = {24: 1, 25: 2, 26: 4, 27: 8}.get(short, 0)
            number = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else short
            at += 1 + width
            if major in (2, 3):
                found = data[at : at + number]
                return (found if major == 2 else found.decode()), at + number
            if major == 4:
                items = []
                for _ in range(number):
                    item, at = one(at)
                    items.append(item)
                return items, at
            return {0: number, 1: -1 - number, 7: {20: False, 21: True, 22: None}.get(number)}[major], at

        value, end = one(0)
        assert end == len(data)
        return value

    @staticmethod
    def written(head: bytes, signature: bytes) -> bytes:
        """wire [head, signature]"""

        def octets(data: bytes) -> bytes:
            assert 24 <= len(data) < 1 << 16
            size = bytes([0x58, len(data)]) if len(data) < 256 else b"\x59" + len(data).to_bytes(2, "big")
            return size + data

        return b"\x82" + octets(head) + octets(signature)

    @staticmethod
    def folds(data: bytes, index: int, size: int, path: list[bytes], root: bytes) -> bool:
        so_far, last = sha256(b"\x00" + data).digest(), size - 1
        for other in path:
            if index % 2 or index == last:
                so_far = sha256(b"\x01" + other + so_far).digest()
                while index % 2 == 0 and index:
                    index, last = index // 2, last // 2
            else:
                so_far = sha256(b"\x01" + so_far + other).digest()
            index, last = index // 2, last // 2
        return last == 0 and so_far == root

    @staticmethod
    def signed(context: str, message: bytes) -> bytes:
        return bytes([len(context)]) + context.encode() + message

    @staticmethod
    def root_prefix(root: bytes) -> bytes:
        return sha256(root).digest()

    def check(self, data: bytes) -> bytes:
        """The row that the proof shows, or an exception."""
        _, row, salt, group, leaf, count, path, schema, header, signature, permit, authority, receipt, *_ = self.read(
            data
        )
        by = self.authority(authority)
        body, permit_signature = self.read(permit)
        Ed25519PublicKey.from_public_bytes(by[5]).verify(permit_signature, self.signed("tallystick permit 1", body))
        granted = self.read(body)
        assert (granted[1], granted[3], granted[12]) == (self.instance, 2, by[3])
        assert by[4] in (granted[5], bytes(16))
        publisher = Ed25519PublicKey.from_public_bytes(granted[7])
        publisher.verify(signature, self.signed("tallystick parcel 1", header))
        fields = self.read(header)
        assert (fields[2], fields[4]) == (0, self.instance)
        assert any(
            (one[0], one[1]) == (granted[4], granted[2]) and granted[8] <= one[2] <= granted[9] for one in fields[5]
        )
        assert fields[10][1] == sha256(b"\x13tallystick schema 1" + schema).digest()
        assert fields[3] & 1 or fields[13] == count
        assert self.folds(salt + row, leaf, count, path, fields[14][group][0])
        self.receipt(receipt, sha256(b"tallystick parcel 1\x00" + header).digest(), granted[4])
        return bytes(row)

    def authority(self, data: bytes) -> list[Any]:
        body, signatures = self.read(data)
        found = self.read(signatures)
        for index, signature in found:
            root = b64decode(self.trust["roots"]["keys"][index])
            message = self.signed("tallystick certificate 1", self.root_prefix(root) + body)
            Ed25519PublicKey.from_public_bytes(root[:32]).verify(signature[:64], message)
            MLDSA65PublicKey.from_public_bytes(root[32:]).verify(signature[64:], message)
        assert len(found) >= self.trust["roots"]["threshold"]
        certificate: list[Any] = self.read(body)
        assert (certificate[1], certificate[2], certificate[9]) == (self.instance, 1, bytes(16))
        return certificate

    def receipt(self, data: bytes, parcel: bytes, topic: bytes) -> None:
        _, offset, path, anchor, index, entry_path, head, signature, number, over, note = self.read(data)
        kind, token_, _, size, root = self.read(anchor)
        assert (kind, token_) == (40, topic)
        assert self.folds(parcel, offset, size, path, root)
        _, instance, _, _, entries_root, count = self.read(head)
        assert instance == self.instance
        assert self.folds(anchor, index, count, entry_path, entries_root)
        text, _, lines = note.decode().partition("\n\n")
        text += "\n"
        origin, tree_size, tree_root, *_ = text.split("\n")
        assert origin == f"tallystick/{self.instance.hex()}"
        assert self.folds(self.written(head, signature), number, int(tree_size), over, b64decode(tree_root))
        keys = [b64decode(key) for key in self.trust["ledger"]["keys"]]
        named = {sha256(origin.encode() + b"\n\x01" + key).digest()[:4]: key for key in keys}
        signers = set()
        for line in lines.splitlines():
            shown_ = b64decode(line.rpartition(" ")[2])
            if shown_[:4] in named:
                Ed25519PublicKey.from_public_bytes(named[shown_[:4]]).verify(shown_[4:], text.encode())
                signers.add(shown_[:4])
        assert len(signers) >= self.trust["ledger"]["threshold"]


class PageOfBefore(Page):
    """As the page was: a root signs the message."""

    @staticmethod
    def root_prefix(root: bytes) -> bytes:
        return b""


def test_a_proof_is_checked_from_the_page_alone() -> None:
    """The root's halves sign SHA-256(its public half) ‖ message, which the page did not say.

    A sentence on a page is no function that could be taken away; instead, whoever follows the page of before refuses
    an honest proof.
    """
    proof, trust = proof_of_one_row()
    page = Page(trust)
    assert page.check(proof) == wire.decode(proof)[1]
    with pytest.raises(InvalidSignature):
        PageOfBefore(trust).check(proof)
    said = (ROOT / "docs/formats/keys.md").read_text("utf-8")
    assert "SHA-256(the root's public half, all 1,984 bytes) ‖ message" in said
    for field, changed in ((1, b"another row"), (2, bytes(16)), (4, 2), (9, bytes(64))):
        altered = wire.decode(proof)
        altered[field] = changed
        with pytest.raises((AssertionError, InvalidSignature)):
            page.check(wire.encode(altered))
