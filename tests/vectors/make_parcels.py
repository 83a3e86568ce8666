"""Writes parcels.json beside itself: `PYTHONPATH=tests:tests/parcel python tests/vectors/make_parcels.py`.

The file was made once and is kept: HPKE draws its own randomness, so a second run seals new locks, and with them every
parcel changes. Run it only to add vectors, and say so in the commit; that the old bytes still give the old verdicts is
what they are for.

Each vector has all that a reader needs: the parcel, the topic it was fetched under, the permits and locks that can be
fetched by name, the head of the lane before it, the private seeds of the reader's keys, and a schema. A good one says
which rows come out, as canonical bytes (docs/formats/rows.md) and in words; a bad one the kind of failure, its reason
code and, where the outer error hides it, words of the cause.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hostile import IDENTIFIER, alter_header, assemble, compressed_message, frame, resign, seal_sections, sign
from makers import GROUPED, INSTANCE, SCHEMA, World, entropy, rows, seed, token
from test_commitment import two_faced

from tallystick import wire
from tallystick.crypto import hpke
from tallystick.crypto.blocks import body_root
from tallystick.crypto.signatures import SigningKey
from tallystick.parcel.header import COUNT_MAX, LaneRef
from tallystick.parcel.keys import LaneKey, ParcelKeys
from tallystick.parcel.locks import ErasureLock, TopicLock, lock_hash
from tallystick.parcel.parcel import RAW_BYTES_MAX, Parcel
from tallystick.parcel.seal import Gap, Lane
from tallystick.record.batch import Batch, to_message
from tallystick.record.codec import LZ4, PLANES, ZSTD, compress
from tallystick.record.leaves import decode_row, encode_rows, leaf_root
from tallystick.record.planes import regions_of
from tallystick.record.schema import Schema
from tallystick.trust.permit import Operation

PATH = Path(__file__).parent / "parcels.json"
NOW_MS = 1_700_000_000_123
TYPES = Schema.parse(
    "d decimal128(38, 4), e decimal128(3, 0), f float64, g float32, t timestamp[ns], day date32, b binary, flag bool,"
    " big uint64, xs list<int16>, deep list<struct<a string not null, b list<float64>>>, s struct<a string, b bool>"
)
PUBLISHER = World().permit("car", "brakes").principal
ERASURE_SEED = seed("erasure key")
GOOD: list[Callable[[], Case]] = []
BAD: list[Callable[[], Case]] = []


@dataclass
class Case:
    """One vector, still in our types."""

    world: World
    parcel: bytes
    schema: Schema = SCHEMA
    batch: Batch | None = None
    content: bytes | None = None
    topic: str = "brakes"
    keys: tuple[str, ...] = ("brakes",)  # topics whose private half the reader has
    key_of: str = ""  # whose seeds these are, where a lie is told
    erasure: bool = False  # and whether it has the erasure key
    head: tuple[int, bytes] | None = None
    failure: str = ""
    reason: str = ""
    cause: str = ""
    locks: dict[bytes, bytes] = field(default_factory=dict)  # bytes shown under a name in place of the right ones

    def __post_init__(self) -> None:
        # Permits of one name are overwritten by later cases of the same world: keep what this one needs.
        self.permits = dict(self.world.permits)

    def encode(self, name: str) -> dict[str, Any]:
        expected: dict[str, Any] = {}
        if self.batch is not None:
            parts = [self.batch.only(group).data for group in range(len(self.schema.groups))]
            expected["rows"] = [[text(row) for row in encode_rows(part)] for part in parts]
            expected["values"] = [
                {key: show(value) for key, value in decode_row(self.batch.schema.arrow, row).items()}
                for row in encode_rows(self.batch.data)
            ]
        if self.content is not None:
            expected["content"] = text(self.content)
        if self.failure:
            expected = {"failure": self.failure, "reason": self.reason, "cause": self.cause}
        locks = {**self.world.locks, **self.locks}
        return {
            "name": name,
            "parcel": text(self.parcel),
            "token": token(self.topic).hex(),
            "head": None if self.head is None else [self.head[0], self.head[1].hex()],
            "permits": {key.hex(): text(permit) for key, permit in self.permits.items()},
            "locks": {key.hex(): text(lock) for key, lock in locks.items()},
            "topic_keys": [[token(key).hex(), 1, text(topic_seed(self.key_of or key))] for key in self.keys],
            "erasure_keys": [[token("brakes").hex(), PUBLISHER.hex(), 9, text(ERASURE_SEED)]] if self.erasure else [],
            "schema": {"text": str(self.schema), "groups": self.schema.groups, "encoded": text(self.schema.encode())},
            **expected,
        }


def text(data: bytes) -> str:
    return b64encode(data).decode()


def show(value: Any) -> Any:
    """JSON that loses nothing: floats in hexadecimal, decimals as text, bytes as hex."""
    match value:
        case float():
            return value.hex()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case list():
            return [show(item) for item in value]
        case dict():
            return {key: show(item) for key, item in value.items()}
    return value


def topic_seed(topic: str) -> bytes:
    return seed(f"topic key {topic} 1")


def good(make: Callable[[], Case]) -> Callable[[], Case]:
    GOOD.append(make)
    return make


def bad(failure: str, reason: str = "", cause: str = "") -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        def judged() -> Case:
            return replace(make(), failure=failure, reason=reason or failure, cause=cause)

        judged.__name__ = make.__name__
        BAD.append(judged)
        return judged

    return register


def sealed(world: World | None = None, count: int = 3, **options: Any) -> tuple[World, Lane, Parcel, Batch]:
    """A small honest parcel, the first of its lane."""
    world = world or World()
    lane = world.lane(**options)
    batch = rows(0, count, lane.schema)
    return world, lane, lane.seal(batch, now_ms=NOW_MS, entropy=entropy(0)), batch


def message(batch: Batch) -> bytes:
    return bytes(to_message(batch.data))


# --- good ---


def of_codec(codec: str, padded: bool = False) -> Case:
    world, _, parcel, batch = sealed(codec=codec, padded=padded, count=40)
    return Case(world, parcel.encode(), batch=batch)


@good
def data_uncompressed() -> Case:
    return of_codec("none")


@good
def data_lz4() -> Case:
    return of_codec("lz4")


@good
def data_zstd() -> Case:
    return of_codec("zstd")


@good
def data_planes() -> Case:
    """Made by hand: a lane would take planes only for larger messages."""
    world = World()
    lane = world.lane()
    batch = rows(0, 40)
    raw = message(batch)
    content = bytes(compress(raw, PLANES, regions_of(memoryview(raw), SCHEMA)))
    section = frame(content, codec=PLANES, count=40, raw_bytes=len(raw))
    root = leaf_root(batch, ParcelKeys.of(lane.keys[0], 0, IDENTIFIER).salts(40))
    return Case(world, seal_sections(lane, [section], root, count=40).encode(), batch=batch)


@good
def data_padded() -> Case:
    return of_codec("lz4", padded=True)


@good
def data_of_two_groups() -> Case:
    world, _, parcel, batch = sealed(schema=GROUPED)
    return Case(world, parcel.encode(), GROUPED, batch)


@good
def data_of_two_topics_opened_by_the_second() -> Case:
    world, _, parcel, batch = sealed(topics=("brakes", "tyres"))
    return Case(world, parcel.encode(), batch=batch, topic="tyres", keys=("tyres",))


@good
def data_of_many_types() -> Case:
    values = [
        {
            "d": Decimal("-9999999999999999999999999999999999.9999"),
            "e": Decimal(-7),
            "f": -0.0,
            "g": float("nan"),
            "t": -1,
            "day": -719_162,
            "b": b"\0\xff",
            "flag": False,
            "big": 2**64 - 1,
            "xs": [-1, None, 32767],
            "deep": [{"a": "", "b": [float("inf"), None]}, None, {"a": "\u00e9\U0001f980", "b": None}],
            "s": {"a": None, "b": True},
        },
        dict.fromkeys(TYPES.arrow.names),
        {
            "d": Decimal("0.0001"),
            "e": Decimal(999),
            "f": 5e-324,
            "g": 0.1,
            "t": 2**63 - 1,
            "day": 2**31 - 1,
            "b": b"",
            "flag": True,
            "big": 0,
            "xs": [],
            "deep": [],
            "s": None,
        },
    ]
    world = World()
    lane = world.lane(schema=TYPES)
    batch = Batch.of(TYPES, pa.RecordBatch.from_pylist(values, schema=TYPES.arrow))
    return Case(world, lane.seal(batch, now_ms=NOW_MS, entropy=entropy(0)).encode(), TYPES, batch)


@good
def data_second_of_its_lane() -> Case:
    world, lane, first, _ = sealed()
    batch = rows(3, 2)
    second = lane.seal(batch, now_ms=NOW_MS, entropy=entropy(1))
    return Case(world, second.encode(), batch=batch, head=(0, first.hash))


@good
def data_with_every_optional_field() -> Case:
    world = World()
    lane = world.lane(continues=LaneRef(b"an older lane---", 41, seed("its last head")))
    batch = rows(0, 2)
    parcel = lane.seal(
        batch,
        now_ms=NOW_MS,
        entropy=entropy(0),
        checkpoint=(99, seed("checkpoint")),
        labels=(b"label--1", b"label--2"),
        write=(seed("write"), 3),
    )
    parcel = resign(parcel, extensions=((7, False, b"may be ignored"),), plan=(1, seed("plan")))
    return Case(world, parcel.encode(), batch=batch)


@good
def data_with_marks() -> Case:
    world, _, parcel, batch = sealed()
    return Case(world, replace(parcel, marks=b"outside the signature").encode(), batch=batch)


def erasable() -> tuple[World, Lane]:
    world = World()
    lane = world.lane()
    public = hpke.PrivateKey.generate(ERASURE_SEED).public
    lock = ErasureLock.seal(seed("erasure secret"), INSTANCE, lane.lane, token("brakes"), PUBLISHER, 9, public).encode()
    world.locks[lock_hash(lock)] = lock
    names = [*lane.keys[0].locks, lock_hash(lock)]
    secrets = [seed(f"secret car 1 {lane.lane.hex()}"), seed("erasure secret")]
    permits = [topic.permit for topic in lane.topics]
    lane.keys = (LaneKey.of(secrets, names, instance=INSTANCE, lane=lane.lane, group=0, permits=permits),)
    return world, lane


@good
def data_under_an_erasure_lock() -> Case:
    world, lane = erasable()
    batch = rows(0, 2)
    return Case(world, lane.seal(batch, now_ms=NOW_MS, entropy=entropy(0)).encode(), batch=batch, erasure=True)


@good
def heartbeat() -> Case:
    world = World()
    return Case(world, world.lane().seal_heartbeat(now_ms=NOW_MS, entropy=entropy(0)).encode())


@good
def gap() -> Case:
    world, said = World(), Gap(rows=12, from_ms=1, to_ms=9, reason="spool full")
    parcel = world.lane().seal_gap(said, now_ms=NOW_MS, entropy=entropy(0))
    return Case(world, parcel.encode(), content=said.encode())


@good
def close() -> Case:
    world = World()
    return Case(world, world.lane().seal_close(now_ms=NOW_MS, entropy=entropy(0)).encode())


@good
def commit() -> Case:
    world = World()
    write = (seed("write"), 3)
    parcel = world.lane(padded=True).seal_commit(b"lanes that count", now_ms=NOW_MS, entropy=entropy(0), write=write)
    return Case(world, parcel.encode(), content=b"lanes that count")


# --- bad: bytes that are no parcel ---


def changed(change: Callable[[list[Any]], None], **options: Any) -> Case:
    world, _, parcel, _ = sealed(**options)
    return Case(world, alter_header(parcel, change), GROUPED if options.get("schema") is GROUPED else SCHEMA)


def put(index: int, value: Any) -> Callable[[list[Any]], None]:
    def change(fields: list[Any]) -> None:
        fields[index] = value

    return change


def honest_bytes() -> tuple[World, bytes]:
    world, _, parcel, _ = sealed()
    return world, parcel.encode()


@bad("malformed", "plain")
def plain_record() -> Case:
    return Case(World(), b'{"vin": "VIN0000", "speed": 1.0}')


@bad("malformed")
def empty() -> Case:
    return Case(World(), b"")


@bad("malformed")
def truncated() -> Case:
    world, data = honest_bytes()
    return Case(world, data[:-1])


@bad("malformed")
def truncated_in_the_header() -> Case:
    world, data = honest_bytes()
    return Case(world, data[:100])


@bad("malformed")
def extended() -> Case:
    world, data = honest_bytes()
    return Case(world, data + b"\0")


@bad("malformed", "version")
def wrong_format_version() -> Case:
    world, data = honest_bytes()
    return Case(world, b"TLY\x02" + data[4:])


@bad("malformed", "version")
def wrong_header_version() -> Case:
    return changed(put(0, 2))


@bad("malformed", "version")
def unknown_suite() -> Case:
    return changed(put(1, 2))


@bad("malformed", "version")
def unknown_kind() -> Case:
    return changed(put(2, 5))


@bad("malformed", "version")
def unknown_flag() -> Case:
    return changed(put(3, 2))


@bad("malformed", "version")
def unknown_critical_extension() -> Case:
    return changed(put(21, [[7, True, b""]]))


@bad("malformed")
def extensions_not_sorted() -> Case:
    return changed(put(21, [[7, False, b""], [6, False, b""]]))


@bad("malformed")
def integer_not_in_its_shortest_form() -> Case:
    world, _, parcel, _ = sealed()
    header = parcel.header.encoded[:1] + b"\x18\x01" + parcel.header.encoded[2:]
    return Case(world, assemble(header, sign(header), bytes(parcel.body)))


@bad("malformed")
def array_of_indefinite_length() -> Case:
    world, _, parcel, _ = sealed()
    header = b"\x9f" + parcel.header.encoded[1:] + b"\xff"
    return Case(world, assemble(header, sign(header), bytes(parcel.body)))


@bad("malformed")
def shared_values_that_unfold_without_end() -> Case:
    """Tags 28 and 29: seven levels of sixteen references each stand for 16^7 items, in 340 bytes."""
    header = b"".join(b"\xd8\x1c\x90" for _ in range(7)) + b"\xd8\x1c\x80"
    header += b"".join(b"\xd8\x1d" + bytes([level]) for level in range(7, 0, -1) for _ in range(15))
    return Case(World(), assemble(header, sign(header), b""))


@bad("malformed")
def tokens_not_sorted() -> Case:
    def change(fields: list[Any]) -> None:
        fields[5].reverse()

    return changed(change, topics=("brakes", "tyres"))


@bad("malformed")
def token_twice() -> Case:
    def change(fields: list[Any]) -> None:
        fields[5].append(fields[5][0])

    return changed(change)


@bad("malformed")
def first_parcel_with_a_previous_hash() -> Case:
    return changed(put(8, seed("previous")))


@bad("malformed")
def padded_with_a_count_in_the_clear() -> Case:
    return changed(put(3, 1))


@bad("malformed")
def heartbeat_with_groups() -> Case:
    return changed(put(2, 1))


@bad("malformed")
def too_many_records() -> Case:
    return changed(put(13, COUNT_MAX + 1))


@bad("malformed")
def sections_do_not_sum_to_the_body() -> Case:
    def change(fields: list[Any]) -> None:
        fields[14][0][3] += 1

    return changed(change)


@bad("malformed", "wrong-topic")
def fetched_under_another_topic() -> Case:
    world, data = honest_bytes()
    return Case(world, data, topic="tyres")


# --- bad: not the publisher's, not permitted, not where it says ---


@bad("forged", "bad-signature")
def signature_of_nobody() -> Case:
    world, _, parcel, _ = sealed()
    return Case(world, replace(parcel, signature=bytes(64)).encode())


@bad("forged", "bad-signature")
def signature_of_another_publisher() -> Case:
    world, _, parcel, _ = sealed()
    return Case(world, replace(parcel, signature=sign(parcel.header.encoded, "thief")).encode())


@bad("forged", "wrong-instance")
def another_instance() -> Case:
    return changed(put(4, seed("staging")))


@bad("forged", "altered")
def body_altered() -> Case:
    world, data = honest_bytes()
    return Case(world, data[:-1] + bytes([data[-1] ^ 1]))


@bad("forged", "unknown-permit")
def another_permit_is_sent_than_asked_for() -> Case:
    world, _, parcel, _ = sealed()
    named, other = parcel.header.topics[0].permit, world.permit("thief", "brakes")
    world.permits[named] = other.encode()
    return Case(world, parcel.encode())


@bad("refused", "wrong-permit")
def permit_for_another_topic() -> Case:
    world, _, parcel, _ = sealed()
    permit = world.permit("car", "tyres").identifier
    return Case(world, resign(parcel, topics=(replace(parcel.header.topics[0], permit=permit),)).encode())


@bad("refused", "wrong-permit")
def permit_to_subscribe() -> Case:
    world, _, parcel, _ = sealed()
    permit = world.permit("car", "brakes", Operation.SUBSCRIBE).identifier
    return Case(world, resign(parcel, topics=(replace(parcel.header.topics[0], permit=permit),)).encode())


@bad("refused", "wrong-epoch")
def permit_for_another_epoch() -> Case:
    world, _, parcel, _ = sealed()
    world.permit("car", "brakes", first_epoch=2)
    return Case(world, parcel.encode())


@bad("forged")
def permit_signed_by_another_key() -> Case:
    world, _, parcel, _ = sealed()
    permit = world.permit("car", "brakes").sign(SigningKey.from_seed(seed("another authority")))
    world.permits[permit.identifier] = permit.encode()
    return Case(world, parcel.encode())


@bad("forged", "unknown-authority")
def permit_of_another_authority() -> Case:
    world, _, parcel, _ = sealed()
    world.permit("car", "brakes", authority=b"another--------a")
    return Case(world, parcel.encode())


@bad("forged", "wrong-instance")
def permit_of_another_instance() -> Case:
    world, _, parcel, _ = sealed()
    world.permit("car", "brakes", instance=seed("staging"))
    return Case(world, parcel.encode())


@bad("forged", "wrong-permit")
def permits_of_two_publishers() -> Case:
    world, _, parcel, _ = sealed(topics=("brakes", "tyres"))
    other = world.permit("thief", "tyres").identifier
    topics = tuple(replace(t, permit=other) if t.token == token("tyres") else t for t in parcel.header.topics)
    return Case(world, resign(parcel, topics=topics).encode())


@bad("withheld", "missing")
def parcel_missing_before() -> Case:
    world, lane, first, _ = sealed()
    lane.seal(rows(3, 2), now_ms=NOW_MS, entropy=entropy(1))
    third = lane.seal(rows(5, 2), now_ms=NOW_MS, entropy=entropy(2))
    return Case(world, third.encode(), head=(0, first.hash))


@bad("withheld", "repeated")
def parcel_repeated() -> Case:
    world, _, first, _ = sealed()
    return Case(world, first.encode(), head=(0, first.hash))


@bad("withheld", "broken-chain")
def parcel_of_another_chain() -> Case:
    world, lane, _, _ = sealed()
    second = lane.seal(rows(3, 2), now_ms=NOW_MS, entropy=entropy(1))
    return Case(world, second.encode(), head=(0, seed("another head")))


# --- bad: locks and keys ---


@bad("missing-key")
def topic_key_missing() -> Case:
    world, data = honest_bytes()
    return Case(world, data, keys=())


@bad("missing-key")
def erasure_key_missing() -> Case:
    world, lane = erasable()
    return Case(world, lane.seal(rows(0, 2), now_ms=NOW_MS, entropy=entropy(0)).encode())


@bad("cannot-open")
def topic_key_of_another_topic() -> Case:
    """The seed of `tyres` under the name of `brakes`: what a confused or lying key service hands out."""
    world, data = honest_bytes()
    return Case(world, data, key_of="tyres")


@bad("cannot-open", cause="lock: its bytes do not hash")
def lock_altered() -> Case:
    world, lane, parcel, _ = sealed()
    name = lane.keys[0].locks[0]
    return Case(world, parcel.encode(), locks={name: world.locks[name][:-1] + b"\0"})


@bad("cannot-open")
def lock_of_another_lane() -> Case:
    world = World()
    victim, thief = world.lane("victim"), world.lane(lane=b"the thief's lane")
    thief.keys = (LaneKey(thief.keys[0].key, victim.keys[0].locks),)
    return Case(world, thief.seal(rows(0, 2), now_ms=NOW_MS, entropy=entropy(0)).encode())


@bad("cannot-open", cause="share lock: expected an array")
def share_lock_of_another_form() -> Case:
    world = World()
    lane = world.lane()
    lock = wire.encode([1, 3, INSTANCE, lane.lane, b"share"])
    world.locks[lock_hash(lock)] = lock
    lane.keys = (LaneKey(lane.keys[0].key, (lock_hash(lock),)),)
    return Case(world, lane.seal(rows(0, 2), now_ms=NOW_MS, entropy=entropy(0)).encode())


@bad("cannot-open")
def commitment_to_another_key() -> Case:
    world, _, parcel, _ = sealed()
    groups = (replace(parcel.header.groups[0], commitment=seed("another key")),)
    return Case(world, resign(parcel, groups=groups).encode())


@bad("cannot-open")
def one_ciphertext_for_two_keys() -> Case:
    """The readers of two topics would see two contents; the header commits to one of the two keys."""
    world, lane, parcel, _ = sealed(topics=("brakes", "tyres"))
    by_token = {token(name): world.topic_key(name).public for name in ("brakes", "tyres")}
    tokens = [topic.token for topic in lane.topics]
    wraps: list[tuple[bytes, int, bytes]] = []
    for number, one in enumerate(tokens):
        wraps += TopicLock.seal(seed(f"two {number}"), INSTANCE, lane.lane, {one: (1, by_token[one])}).wraps
    lock = TopicLock(INSTANCE, lane.lane, tuple(wraps)).encode()
    name = lock_hash(lock)
    world.locks[name] = lock

    def keys(number: int) -> ParcelKeys:
        permits = [topic.permit for topic in lane.topics]
        lane_key = LaneKey.of(
            [seed(f"two {number}")], [name], instance=INSTANCE, lane=lane.lane, group=0, permits=permits
        )
        return ParcelKeys.of(lane_key, 0, parcel.header.identifier)

    body = two_faced(keys(0).body_key, keys(1).body_key, 64)
    group = replace(parcel.header.groups[0], locks=(name,), commitment=keys(0).commitment, section_bytes=len(body))
    second = "brakes" if tokens[1] == token("brakes") else "tyres"
    two = resign(replace(parcel, body=body), groups=(group,), body_bytes=len(body), body_root=body_root(body))
    return Case(world, two.encode(), topic=second, keys=(second,))


@bad("cannot-open")
def section_sizes_shifted() -> Case:
    world, _, parcel, _ = sealed(schema=GROUPED)
    one, two = parcel.header.groups
    groups = (replace(one, section_bytes=one.section_bytes + 1), replace(two, section_bytes=two.section_bytes - 1))
    return Case(world, resign(parcel, groups=groups).encode(), GROUPED)


# --- bad: what a hostile publisher seals ---


def hostile(plaintext: bytes, count: int = 3, schema: Schema = SCHEMA, **changes: Any) -> Case:
    world = World()
    return Case(world, seal_sections(world.lane(schema=schema), [plaintext], count=count, **changes).encode(), schema)


@bad("cannot-open", cause="section: truncated")
def section_too_short() -> Case:
    return hostile(b"short")


@bad("cannot-open", cause="section: a declared size")
def content_longer_than_the_section() -> Case:
    return hostile(frame(message(rows(0, 3)), count=3, content_bytes=1 << 20))


@bad("cannot-open", cause="section: a declared size")
def raw_size_beyond_the_bound() -> Case:
    content = bytes(compress(bytes(1 << 20), ZSTD))
    return hostile(frame(content, codec=ZSTD, count=3, raw_bytes=RAW_BYTES_MAX + 1))


@bad("cannot-open", cause="batch: does not decompress")
def raw_size_smaller_than_the_content_zstd() -> Case:
    return hostile(frame(bytes(compress(bytes(1 << 22), ZSTD)), codec=ZSTD, count=3, raw_bytes=1024))


@bad("cannot-open", cause="batch: does not decompress")
def raw_size_smaller_than_the_content_lz4() -> Case:
    return hostile(frame(bytes(compress(bytes(1 << 22), LZ4)), codec=LZ4, count=3, raw_bytes=1024))


@bad("cannot-open", cause="batch: does not decompress")
def raw_size_larger_than_the_content_lz4() -> Case:
    content = message(rows(0, 3))
    return hostile(frame(bytes(compress(content, LZ4)), codec=LZ4, count=3, raw_bytes=len(content) + 8))


@bad("cannot-open", cause="batch: does not decompress")
def content_is_not_compressed() -> Case:
    return hostile(frame(message(rows(0, 3)), codec=ZSTD, count=3))


def planes(*regions: tuple[int, int, int, int]) -> Case:
    raw = message(rows(0, 3))
    front = struct.pack("<I", len(regions)) + b"".join(struct.pack("<IIHH", *region) for region in regions)
    return hostile(frame(front + bytes(compress(raw, LZ4)), codec=PLANES, count=3, raw_bytes=len(raw)))


@bad("cannot-open", cause="planes:")
def plane_beyond_the_content() -> Case:
    return planes((8, 1 << 30, 8, 0))


@bad("cannot-open", cause="planes:")
def planes_overlap() -> Case:
    return planes((0, 4, 8, 0), (16, 4, 8, 0))


@bad("cannot-open", cause="planes:")
def plane_of_an_odd_width() -> Case:
    return planes((0, 4, 3, 0))


@bad("cannot-open", cause="planes:")
def planes_without_end() -> Case:
    return hostile(frame(b"\xff\xff\xff\xff", codec=PLANES, count=3, raw_bytes=512))


@bad("cannot-open", cause="codec 99")
def unknown_codec() -> Case:
    return hostile(frame(message(rows(0, 3)), codec=99, count=3))


@bad("cannot-open", cause="section: padding is not zero")
def padding_not_zero() -> Case:
    return hostile(frame(message(rows(0, 3)), count=3, padding=b"\0\0\1\0"))


@bad("cannot-open", cause="count or time differ")
def count_differs_from_the_header() -> Case:
    return hostile(frame(message(rows(0, 3)), count=4))


@bad("cannot-open", cause="count or time differ")
def time_differs_from_the_header() -> Case:
    return hostile(frame(message(rows(0, 3)), count=3, time_ms=5))


@bad("cannot-open", cause="batch: expected 4 records")
def count_differs_from_the_batch() -> Case:
    return hostile(frame(message(rows(0, 3)), count=4), count=4)


@bad("cannot-open", cause="batch: not an Arrow IPC message")
def content_is_no_message() -> Case:
    return hostile(frame(b"no message at all", count=3))


@bad("cannot-open", cause="batch: inner compression")
def message_compressed_inside() -> Case:
    return hostile(frame(compressed_message(rows(0, 3).data), count=3))


@bad("cannot-open", cause="batch: not a valid record batch")
def string_offsets_forged() -> Case:
    """Such a message passes Arrow's reading and its plain validation, and kills the process on access."""
    honest = message(rows(0, 3))
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 7, 14, 21))
    forged = offsets[:8] + (0x7FFF_FFF0).to_bytes(4, "little") + offsets[12:]
    assert honest.count(offsets) == 1
    return hostile(frame(honest.replace(offsets, forged), count=3))


@bad("cannot-open", cause="batch:")
def columns_of_another_schema() -> Case:
    other = Schema.parse("vin string")
    data = pa.RecordBatch.from_pylist([{"vin": "x"}] * 3, schema=other.arrow)
    return hostile(frame(bytes(to_message(data)), count=3))


@bad("cannot-open", cause="declared not null")
def null_in_a_column_that_has_none() -> Case:
    loose = Schema.parse("vin string, ts timestamp[ms, UTC], speed float32")
    data = pa.RecordBatch.from_pylist([{"vin": "x", "ts": None, "speed": 1.0}] * 3, schema=loose.arrow)
    return hostile(frame(bytes(to_message(data)), count=3))


@bad("cannot-open")
def schema_is_not_the_one_named() -> Case:
    world, data = honest_bytes()
    return Case(world, data, Schema.parse("vin string, ts timestamp[ms, UTC] not null, speed float32", version=2))


@bad("cannot-open", cause="leaves do not match")
def leaves_do_not_match() -> Case:
    return hostile(frame(message(rows(0, 3)), count=3), root=seed("another root"))


@bad("cannot-open", cause="leaves do not match")
def rows_reordered_under_the_root() -> Case:
    world = World()
    lane = world.lane()
    batch, swapped = rows(0, 2), Batch.of(SCHEMA, rows(0, 2).data.take(pa.array([1, 0])))
    salts = ParcelKeys.of(lane.keys[0], 0, IDENTIFIER).salts(2)
    parcel = seal_sections(lane, [frame(message(swapped), count=2)], leaf_root(batch, salts), count=2)
    return Case(world, parcel.encode())


@bad("cannot-open", cause="parts of a batch")
def groups_of_unequal_length() -> Case:
    """Each group is valid under its own root, in a padded parcel whose header says no count."""
    world = World()
    lane = world.lane(schema=GROUPED, padded=True)
    parts = [rows(0, 2, GROUPED).only(0), rows(0, 3, GROUPED).only(1)]
    frames = [frame(message(part), count=part.rows) for part in parts]
    parcel = seal_sections(lane, frames, count=0, padded=True)
    groups = []
    for number, part in enumerate(parts):
        salts = ParcelKeys.of(lane.keys[number], 0, parcel.header.identifier).salts(part.rows)
        groups.append(replace(parcel.header.groups[number], root=leaf_root(part, salts)))
    return Case(world, resign(parcel, groups=tuple(groups)).encode(), GROUPED)


@bad("cannot-open", cause="content does not match")
def gap_content_does_not_match() -> Case:
    world = World()
    parcel = world.lane().seal_gap(Gap(1, 2, 3, "x"), now_ms=NOW_MS, entropy=entropy(0))
    groups = (replace(parcel.header.groups[0], root=seed("another root")),)
    return Case(world, resign(parcel, groups=groups).encode())


def main() -> None:
    made = {
        "about": "parcels of format version 1 and the verdict on each: docs/formats/parcel.md",
        "instance": INSTANCE.hex(),
        "authority": text(World().authority.encode()),
        "good": [make().encode(make.__name__) for make in GOOD],
        "bad": [make().encode(make.__name__) for make in BAD],
    }
    PATH.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(GOOD)} good and {len(BAD)} bad vectors, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
