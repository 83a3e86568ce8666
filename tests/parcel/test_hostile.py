"""Hostile bytes into every decoder of parcel/ and trust/, and hostile publishers against their readers.

Only errors of our family may come out, and memory stays bounded by what was declared and allowed. What could hang or
kill the process runs in a process of its own, with its memory and its time limited.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from examples import examples
from hostile import assemble, frame, seal_sections, sign
from hypothesis import example, given
from hypothesis import strategies as st
from makers import INSTANCE, SCHEMA, World, entropy, fetch, rows, seed, token
from provers import Anchorage, certify, sign_note, trust_file

from tallystick import wire
from tallystick.crypto.signatures import SigningKey
from tallystick.errors import CannotOpen, Malformed, TallystickError, Unavailable
from tallystick.parcel.header import Header
from tallystick.parcel.keys import KeyRing
from tallystick.parcel.locks import decode_lock
from tallystick.parcel.open import open_batch, open_content
from tallystick.parcel.parcel import Parcel, decode_section
from tallystick.parcel.prove import Proof, prove, verify_proof
from tallystick.parcel.seal import Gap
from tallystick.parcel.verify import verify_one
from tallystick.record.batch import to_message
from tallystick.record.codec import LZ4, PLANES, ZSTD, compress
from tallystick.record.schema import Schema
from tallystick.trust.certificate import Certificate
from tallystick.trust.envelope import PlainHead, check_evidence, check_time, sign_request, signed_time, verify_head
from tallystick.trust.notes import Checkpoint, Note, NoteVerifier, verify_checkpoint
from tallystick.trust.permit import Permit, UndoOrder
from tallystick.trust.promise import Anchor, Promise
from tallystick.trust.receipt import EntryProof, Receipt
from tallystick.trust.trustfile import TrustFile

WORLD = World()
TRUST = trust_file(witnesses=1)
LANE = WORLD.lane(codec="none")
BOOK, RING = WORLD.book(), WORLD.ring("brakes")
PARCEL = LANE.seal(rows(0, 9), now_ms=1, entropy=entropy(0))
KEY = SigningKey.from_seed(seed("car"))
NODE_ID, PRINCIPAL, NONCE = b"n" * 16, b"p" * 16, b"0" * 16


# --- what there is to decode, with a good example of each ---


def open_parcel(data: bytes) -> Any:
    return open_batch(verify_one(Parcel.decode(data), INSTANCE, BOOK), RING, SCHEMA)


def evidence() -> bytes:
    target: dict[str, Any] = {"method": "POST", "authority": "a:1", "path": "/p", "query": ""}
    headers = sign_request(KEY, PRINCIPAL, NODE_ID, **target, body=b"x", now=5.0, nonce=NONCE)
    return verify_head(PlainHead(**target, headers=headers), {PRINCIPAL: KEY.public}.get, NODE_ID).evidence()


def undo_order() -> bytes:
    permit = WORLD.permit("car", "brakes")
    values = (INSTANCE, permit.identifier, permit.operation, permit.token, permit.tenant, permit.principal, 7)
    return UndoOrder(*values, WORLD.authority.subject).sign(WORLD.authority_key).encode()


def proof() -> bytes:
    verified = verify_one(PARCEL, INSTANCE, BOOK)
    permit, authority = WORLD.permit("car", "brakes").encode(), certify(WORLD.authority, TRUST).encode()
    return prove(verified, RING, SCHEMA, 4, 0, permit, authority, RECEIPT).encode()


RECEIPT = Anchorage(TRUST, [seed("a"), PARCEL.hash], cosigners=1).receipt(1)
NOTE = sign_note(TRUST.origin, 5, seed("root"), cosigners=1)
CERTIFICATE = certify(WORLD.authority, TRUST)

Decoder = Callable[[bytes], Any]
DECODERS: dict[str, tuple[Decoder, bytes]] = {
    "wire": (wire.decode, PARCEL.header.encoded),
    "parcel": (open_parcel, PARCEL.encode()),
    "parcel front": (Parcel.decode_front, PARCEL.encode_front()),
    "header": (Header.decode, PARCEL.header.encoded),
    "lock": (decode_lock, next(iter(WORLD.locks.values()))),
    "section": (lambda data: decode_section(memoryview(data)), frame(bytes(to_message(rows(0, 2).data)))),
    "schema": (Schema.decode, SCHEMA.encode()),
    "permit": (lambda data: Permit.decode(data).verify(WORLD.authority), WORLD.permit("car", "brakes").encode()),
    "undo order": (lambda data: UndoOrder.decode(data).verify(WORLD.authority), undo_order()),
    "certificate": (
        lambda data: Certificate.decode(data).verify(TRUST.root_verifier, instance=INSTANCE),
        CERTIFICATE.encode(),
    ),
    "root signature": (
        lambda data: TRUST.root_verifier.verify("tallystick certificate 1", data, CERTIFICATE.body),
        CERTIFICATE.signature,
    ),
    "promise": (
        lambda data: Promise.decode(data).verify(KEY.public),
        Promise(INSTANCE, NODE_ID, token("brakes"), 0, 1, PARCEL.hash, 2, 3).sign(KEY).encode(),
    ),
    "anchor": (Anchor.decode_entry, RECEIPT.anchor.entry),
    "trust file": (TrustFile.parse, TRUST.to_json().encode()),
    "receipt": (lambda data: Receipt.decode(data).verify(PARCEL.hash, token("brakes"), TRUST), RECEIPT.encode()),
    "entry proof": (lambda data: EntryProof.decode(data).verify(TRUST), RECEIPT.anchor.encode()),
    "proof": (lambda data: verify_proof(data, TRUST), proof()),
    "proof alone": (Proof.decode, proof()),
    "note": (Note.decode, NOTE),
    "checkpoint": (lambda data: verify_checkpoint(data, TRUST), NOTE),
    "checkpoint text": (lambda data: Checkpoint.decode(data.decode("latin-1")), Note.decode(NOTE).text.encode()),
    "verifier key": (lambda data: NoteVerifier.decode(data.decode("latin-1")), TRUST.witnesses[0].encode()),
    "evidence": (lambda data: check_evidence(data, {PRINCIPAL: KEY.public}.get), evidence()),
    "signed time": (lambda data: check_time(data, KEY.public, NODE_ID, NONCE), signed_time(KEY, NODE_ID, NONCE, 5.0)),
}
NAMES = pytest.mark.parametrize("name", list(DECODERS))


def refused_or_read(name: str, data: bytes) -> None:
    """Anything but an error of the family fails the test by itself."""
    with suppress(TallystickError):
        DECODERS[name][0](data)


@NAMES
def test_the_good_example_is_read(name: str) -> None:
    decode, good = DECODERS[name]
    decode(good)


@NAMES
@given(data=st.binary(max_size=300))
@examples(40)
def test_random_bytes(name: str, data: bytes) -> None:
    refused_or_read(name, data)


@st.composite
def mutated(draw: st.DrawFn, good: bytes) -> bytes:
    """Bits flipped, parts cut out, repeated or moved, bytes put in, numbers made large."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        end = min(len(data), at + draw(st.integers(1, 40)))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end]
            case 3:
                data[at:at] = draw(st.binary(max_size=9))
            case 4:
                data[at:end] = b"\xff" * (end - at)
            case _:
                part = data[at:end]
                del data[at:end]
                to = draw(st.integers(0, len(data)))
                data[to:to] = part
    return bytes(data)


@NAMES
@given(data=st.data())
@examples(40)
def test_mutated_examples(name: str, data: st.DataObject) -> None:
    refused_or_read(name, data.draw(mutated(DECODERS[name][1])))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, -1, 40, 255, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63)]),
    st.sampled_from([b"", bytes(16), bytes(32), bytes(64), b"\xff" * 32, bytes(3373)]),
    st.text(max_size=4),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5), max_leaves=12)


@st.composite
def retyped(draw: st.DrawFn, good: bytes) -> bytes:
    """The wire object with one field, at any depth and also inside of encoded ones, made something else."""
    value = wire.decode(good)

    def change(value: Any) -> Any:
        if isinstance(value, bytes) and value[:1] > b"\x80" and draw(st.booleans()):
            try:
                return wire.encode(change(wire.decode(value)))
            except Malformed:
                return draw(VALUES)
        if isinstance(value, list) and value and draw(st.integers(0, 4)):
            at = draw(st.integers(0, len(value) - 1))
            return [*value[:at], change(value[at]), *value[at + 1 :]]
        return draw(VALUES)

    return wire.encode(change(value))


WIRE = [name for name in DECODERS if DECODERS[name][1][:1] > b"\x80" and name not in ("parcel front",)]


@pytest.mark.parametrize("name", WIRE)
@given(data=st.data())
@examples(60)
def test_fields_of_other_types(name: str, data: st.DataObject) -> None:
    refused_or_read(name, data.draw(retyped(DECODERS[name][1])))


@given(data=st.data())
@examples(60)
def test_headers_of_other_types_in_signed_parcels(data: st.DataObject) -> None:
    """A publisher signs whatever header it likes; its signature does not make it well-formed."""
    header = data.draw(retyped(PARCEL.header.encoded))
    if len(header) < 1 << 16:
        refused_or_read("parcel", assemble(header, sign(header), bytes(PARCEL.body)))


@given(header=st.integers(0, 0xFFFF), marks=st.integers(0, 0xFFFF), cut=st.integers(0, 3000))
@examples(60)
def test_lengths_that_lie(header: int, marks: int, cut: int) -> None:
    data = PARCEL.encode()
    lied = data[:4] + header.to_bytes(2, "little") + marks.to_bytes(2, "little") + data[8 : 8 + cut]
    refused_or_read("parcel", lied)


# --- hostile publishers ---


def opens_or_refuses(parcel: Parcel, schema: Schema = SCHEMA) -> bool:
    verified = verify_one(Parcel.decode(parcel.encode()), INSTANCE, BOOK)
    try:
        open_batch(verified, RING, schema)
    except CannotOpen:
        return False
    return True


@given(plaintext=st.binary(max_size=200))
@examples(60)
def test_sealed_noise(plaintext: bytes) -> None:
    assert not opens_or_refuses(seal_sections(LANE, [plaintext]))


@given(
    codec=st.integers(0, 4),
    count=st.sampled_from([0, 1, 2, 1 << 20, (1 << 32) - 1]),
    raw=st.sampled_from([0, 1, 100, 512, 1 << 20, 1 << 28, (1 << 28) + 1, (1 << 32) - 1]),
    content=st.binary(max_size=100),
    lied=st.sampled_from([0, 1, 90, 1 << 31]),
    padding=st.binary(max_size=20),
)
@examples(80)
def test_sealed_frames_whose_sizes_lie(
    codec: int, count: int, raw: int, content: bytes, lied: int, padding: bytes
) -> None:
    plaintext = frame(content, codec=codec, count=count, raw_bytes=raw, content_bytes=lied, padding=padding)
    assert not opens_or_refuses(seal_sections(LANE, [plaintext], padded=True, count=0))


MESSAGE = bytes(to_message(rows(0, 2).data))
NESTED = Schema.parse("xs list<struct<a string, b list<int32>>>, d decimal128(9, 2), flag bool, b binary not null")
NESTED_LANE = WORLD.lane(schema=NESTED, lane=b"nested lane-----")
NESTED_MESSAGE = bytes(
    to_message(
        pa.RecordBatch.from_pylist(
            [{"xs": [{"a": "x", "b": [1, None]}, None], "flag": True, "b": b"1"}, {"xs": None, "b": b""}],
            schema=NESTED.arrow,
        )
    )
)


@given(data=st.data(), codec=st.sampled_from([0, LZ4, ZSTD, PLANES]), nested=st.booleans())
@examples(150)
def test_sealed_messages_that_were_mutated(data: st.DataObject, codec: int, nested: bool) -> None:
    """Whatever Arrow is led to read was checked before; and the root, being zeros, lets nothing pass in the end."""
    message = data.draw(mutated(NESTED_MESSAGE if nested else MESSAGE))
    lane = NESTED_LANE if nested else LANE
    section = frame(bytes(compress(message, codec)), codec=codec, count=2, raw_bytes=len(message))
    assert not opens_or_refuses(seal_sections(lane, [section], count=2), lane.schema)


@given(data=st.data(), codec=st.sampled_from([LZ4, ZSTD, PLANES]))
@examples(60)
def test_sealed_streams_that_were_mutated(data: st.DataObject, codec: int) -> None:
    content = data.draw(mutated(bytes(compress(MESSAGE, codec))))
    section = frame(content, codec=codec, count=2, raw_bytes=len(MESSAGE))
    assert not opens_or_refuses(seal_sections(LANE, [section], count=2))


@given(content=st.binary(max_size=60))
@example(Gap(1, 2, 3, "x").encode())
@examples(20)
def test_the_content_of_control_parcels_is_only_bytes(content: bytes) -> None:
    lane = WORLD.lane()
    parcel = lane.seal_commit(content, now_ms=1, entropy=entropy(0), write=(bytes(32), 0))
    assert open_content(verify_one(parcel, INSTANCE, BOOK), RING) == content


def test_a_lock_out_of_reach_is_no_hostile_parcel() -> None:
    """The network's fault stays the network's: the caller tries again instead of blaming the publisher."""

    def unreachable(_: bytes) -> bytes:
        raise Unavailable("node: unreachable")

    verified = verify_one(PARCEL, INSTANCE, BOOK)
    ring = KeyRing(unreachable)
    with pytest.raises(Unavailable):
        open_batch(verified, ring, SCHEMA)
    with pytest.raises(CannotOpen):  # a node that answers, and has no such lock
        open_batch(verified, KeyRing(lambda name: fetch({}, name)), SCHEMA)


# --- bombs ---

# The second argument is what to do, the third how many megabytes more than it has by then the process may take.
LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from hostile import assemble, frame, seal_sections, sign
from makers import INSTANCE, SCHEMA, World
from tallystick import wire
from tallystick.errors import TallystickError
from tallystick.parcel.open import open_batch
from tallystick.parcel.parcel import Parcel
from tallystick.parcel.verify import verify_one
from tallystick.record.codec import LZ4, PLANES, ZSTD, compress
from tallystick.trust.trustfile import TrustFile

def refuses(act):
    try:
        act()
    except TallystickError as error:
        return print("refused:", error)
    sys.exit("it was taken")

DATA = sys.stdin.buffer.read()
with open("/proc/self/statm") as file:
    held = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_AS, (held + (int(sys.argv[3]) << 20),) * 2)
exec(sys.argv[2])
"""


def limited(act: str, data: bytes = b"", megabytes: int = 200) -> None:
    """Run `act` in a process with limits on memory and CPU time; what it must refuse it hands to `refuses`."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux's limits on memory")
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).parents[1]), dedent(act), str(megabytes)]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:].decode()
    assert done.stdout.startswith(b"refused:")


def shared_values(levels: int) -> bytes:
    """CBOR tags 28 and 29: each level refers fifteen times to the one below, so 16 ** levels items in all."""
    closed = b"".join(b"\xd8\x1d" + bytes([level]) for level in range(levels, 0, -1) for _ in range(15))
    return b"\xd8\x1c\x90" * levels + b"\xd8\x1c\x80" + closed


def repeated_strings(count: int) -> bytes:
    """CBOR tags 256 and 25: one string of 64 KiB, and three bytes for each further time it stands there."""
    first = b"\xd9\x01\x00\x9a" + (count + 1).to_bytes(4, "big") + b"\x59\xff\xff" + bytes(65535)
    return first + b"\xd8\x19\x00" * count


def test_without_refusing_tags_a_few_bytes_unfold() -> None:
    """What the library reads by default: 150 bytes are 4,096 items, 700 would be more than a walk ever ends with."""

    def count(value: Any) -> int:
        return sum(map(count, value)) if value else 1

    assert len(shared_values(3)) < 160
    assert count(cbor2.loads(shared_values(3))) == 16**3
    assert len(cbor2.dumps(cbor2.loads(repeated_strings(15)))) > 16 * 65535


@pytest.mark.parametrize("bomb", [shared_values(12), repeated_strings(60_000)], ids=["shared values", "strings"])
def test_wire_objects_do_not_unfold(bomb: bytes) -> None:
    act = """
    refuses(lambda: wire.decode(DATA))
    refuses(lambda: wire.decode(b"\\x81" + DATA))
    header = DATA[:16000]
    refuses(lambda: Parcel.decode(assemble(header, sign(header), b"")))
    """
    limited(act, bomb)


def test_tags_maps_floats_and_long_forms_are_refused() -> None:
    for tag in (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 1004, 43000, 55799, 99999):
        for inner in (b"\x80", b"\x00", b"\x41\x01", b"\x82\x01\x02"):
            with pytest.raises(Malformed):
                wire.decode(cbor2.dumps(cbor2.CBORTag(tag, 0))[:-1] + inner)
    for bad in (b"\xa0", b"\xa1\x01\x02", b"\xf9\x3c\x00", b"\xf7", b"\x18\x01", b"\x9f\xff", b"\x5f\xff", b"\x00\x00"):
        with pytest.raises(Malformed):
            wire.decode(bad)


def test_a_few_bytes_claim_no_memory() -> None:
    act = """
    for start in (b"\\x9a", b"\\x5a", b"\\x7a"):
        refuses(lambda: wire.decode(start + b"\\x7f\\xff\\xff\\xff"))
    for start in (b"\\x9b", b"\\x5b", b"\\x7b"):
        refuses(lambda: wire.decode(start + b"\\x00\\x00\\x0f" + bytes(5)))
    refuses(lambda: wire.decode(b"\\x81" * 1_000_000))
    refuses(lambda: wire.decode(b"\\xc1" * 1_000_000))
    refuses(lambda: wire.decode(b"\\xc5\\x82\\x1b\\x00\\x00\\x00\\x10" + bytes(4) + b"\\x03"))  # 3 · 2^(2^36)
    refuses(lambda: TrustFile.parse("[" * 200_000))
    """
    limited(act)


def test_sealed_bombs_take_no_more_than_they_declare() -> None:
    """A gibibyte of zeros behind a small number; behind a number beyond the bound; and no codec by which it works."""
    act = """
    world = World()
    lane, book, ring = world.lane(), world.book(), world.ring("brakes")

    def opens(section):
        parcel = seal_sections(lane, [section])
        open_batch(verify_one(Parcel.decode(parcel.encode()), INSTANCE, book), ring, SCHEMA)

    zstd, lz4 = DATA[: int(DATA[-8:])], DATA[int(DATA[-8:]) : -8]
    for codec, content in ((ZSTD, zstd), (LZ4, lz4), (PLANES, bytes(4) + lz4)):
        for raw_bytes in (0, 1000, 1 << 20, (1 << 28) + 1, (1 << 32) - 1):
            refuses(lambda: opens(frame(content, codec=codec, raw_bytes=raw_bytes)))
    """
    zeros = bytes(1 << 28)
    zstd, lz4 = bytes(compress(zeros, ZSTD)), bytes(compress(zeros, LZ4))
    limited(act, zstd + lz4 + b"%8d" % len(zstd))


def test_padding_without_end_is_read_quickly_enough() -> None:
    act = """
    world = World()
    lane, book, ring = world.lane(), world.book(), world.ring("brakes")
    parcel = seal_sections(lane, [frame(b"", padding=bytes(40 << 20))])
    refuses(lambda: open_batch(verify_one(parcel, INSTANCE, book), ring, SCHEMA))
    """
    limited(act, megabytes=500)
