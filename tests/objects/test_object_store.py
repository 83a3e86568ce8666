"""Objects in a folder: sealed and opened again, every flipped byte found and named, quotas, and no key at a server."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from blake3 import blake3
from object_world import SECRET, SMALL, TENANT, FolderLiar, flipped, noise, put
from without import without

from tallystick.carriers.accounts import Quota, Quotas
from tallystick.errors import CannotOpen, Forged, Malformed, Misuse, Refused, Unavailable
from tallystick.objects.layout import (
    FIXED,
    GEAR,
    SLIP_BYTES,
    TARGET,
    ZSTD,
    Docket,
    ObjectKey,
    ObjectReference,
    Slip,
    Slips,
    chunks_file,
    slips_file,
    slips_root,
)
from tallystick.objects.reading import ObjectReader, find_faults
from tallystick.objects.sealing import ChunkOpener, ChunkSealer
from tallystick.objects.sources import FolderSource
from tallystick.objects.store import ObjectStore, Wish
from tallystick.runtime.disk import RealDisk
from tallystick.runtime.seeded_disk import SeededDisk

DATA = noise(3, 50_000)
TEXT = b"the same words again and again, " * 2000


def read(folder: Path, reference: ObjectReference) -> bytes:
    with ObjectReader(reference, [FolderLiar(folder, "here")]) as reader:
        return reader.read()


@pytest.mark.parametrize("data", [b"", b"x", DATA, TEXT, DATA + bytes(100_000)], ids=len)
@pytest.mark.parametrize("wish", [SMALL, Wish(FIXED, 4096, 3), Wish(GEAR, 4096, 0), Wish(), Wish(level=19)], ids=str)
def test_what_was_put_is_read(tmp_path: Path, data: bytes, wish: Wish) -> None:
    docket, reference = put(tmp_path, data, wish)
    assert reference.length == docket.plain_length == len(data)
    assert read(tmp_path, reference) == data
    slips = (tmp_path / slips_file(docket.root)).read_bytes()
    assert docket.check_uncles(0, [slips_root(slips)]) == [(0, docket.count)]
    docket.check_lengths(docket.check_slips(0, docket.count, docket.root, slips))
    assert (tmp_path / chunks_file(docket.root)).stat().st_size == docket.sealed_length
    assert list(find_faults(FolderLiar(tmp_path, "here"), docket.root, ObjectKey(reference.key))) == []


def test_sealing_costs_little(tmp_path: Path) -> None:
    data = noise(4, 4 << 20)
    for cut in (FIXED, GEAR):
        docket, _ = put(tmp_path, data, Wish(cut, TARGET, 3))
        assert docket.sealed_length + docket.count * SLIP_BYTES <= len(data) * 1.005
    docket, _ = put(tmp_path, TEXT * 20, Wish())
    assert docket.compression == ZSTD
    assert docket.sealed_length < len(TEXT)


@pytest.mark.parametrize("wish", [SMALL, Wish(FIXED, 4096, 3)], ids=str)
def test_every_flipped_byte_of_a_chunk_is_found_and_named(tmp_path: Path, wish: Wish) -> None:
    docket, reference = put(tmp_path, DATA[:10_000] + TEXT[:2000], wish)
    slips = Slips((tmp_path / slips_file(docket.root)).read_bytes())
    sealed = (tmp_path / chunks_file(docket.root)).read_bytes()
    opener, begin = ChunkOpener(ObjectKey(reference.key)), 0
    for number, slip in enumerate(slips):
        chunk = sealed[begin : begin + slip.sealed_length]
        begin += slip.sealed_length
        opener.open(number, slip, chunk)
        for at in range(len(chunk)):
            with pytest.raises(Forged, match=f"chunk {number}"):
                slip.check(flipped(chunk, at), f"chunk {number}")
        with pytest.raises(Forged, match=f"chunk {number}: expected"):
            slip.check(chunk[:-1], f"chunk {number}")
        with pytest.raises(
            CannotOpen, match=f"chunk {number}"
        ):  # also without the slip's hash, which tells whose doing
            opener.open(number, slip, flipped(chunk, len(chunk) // 2))


def test_every_flipped_byte_of_the_slips_is_found(tmp_path: Path) -> None:
    _, reference = put(tmp_path, DATA[:10_000])
    for at in range(3 * SLIP_BYTES):

        def change(file: str, _first: int, data: bytes, at: int = at) -> bytes:
            return flipped(data, at) if file.endswith(".slips") else data

        with pytest.raises(Forged, match="liar: not the slips"):
            ObjectReader(reference, [FolderLiar(tmp_path, "liar", change)])


def test_rot_is_found_without_a_key_and_every_chunk_named(tmp_path: Path) -> None:
    docket, _ = put(tmp_path, DATA)
    path = tmp_path / chunks_file(docket.root)
    good = path.read_bytes()
    path.write_bytes(flipped(flipped(good, 5000), 40_000))
    assert [str(error) for error in find_faults(FolderLiar(tmp_path, "shelf"), docket.root)] == [
        f"shelf: chunk {number}: not the sealed chunk that its slip names" for number in (1, 9)
    ]
    path.write_bytes(good[:-1])
    assert [str(error)[:15] for error in find_faults(FolderLiar(tmp_path, "shelf"), docket.root)] == ["shelf: chunk 12"]
    (tmp_path / slips_file(docket.root)).unlink()
    assert ["no file" in str(error) for error in find_faults(FolderLiar(tmp_path, "shelf"), docket.root)] == [True]


def test_no_key_and_no_plain_byte_lies_at_a_server(tmp_path: Path) -> None:
    """A canary in the content, the key, the secret and the entropy: none of them is in any file of the folder."""
    canary = b"canary-in-the-image!"
    data = canary * 3000
    _, reference = put(tmp_path, data, Wish(FIXED, 4096, 0), entropy=b"canary entropy, thirty-two bytes")
    told = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(told) >= 3
    key = ObjectKey(reference.key)
    for secret in (canary, reference.key, SECRET, b"canary entropy", key.plain_hash(data), blake3(data).digest()):
        for form in (secret, secret.hex().encode()):
            assert not any(form in one for one in told)
    # What a server could try: the hash of a chunk that it knows. The slips' hashes are keyed.
    assert not any(blake3(data[:4096]).digest() in one for one in told)


def test_without_sealing_a_server_reads_what_it_serves(tmp_path: Path) -> None:
    """Eavesdropping (Uptane 2.1)."""
    canary = b"canary-in-the-image!"
    with without("the sealing of chunks"):
        put(tmp_path, canary * 3000, Wish(FIXED, 4096, 0))
    assert any(canary in path.read_bytes() for path in tmp_path.glob("*.chunks"))


def test_one_object_opens_under_one_key_only(tmp_path: Path) -> None:
    _, reference = put(tmp_path, DATA)
    wrong = replace(reference, key=b"w" * 32)
    with ObjectReader(wrong, [FolderLiar(tmp_path, "here")]) as reader, pytest.raises(CannotOpen, match="chunk 0"):
        reader.read(10)


def crafted(folder: Path, chunks: list[tuple[bytes, int]], key: ObjectKey) -> ObjectReference:
    """An object whose author lies: chunks of packed bytes that claim to become so many."""
    cipher, slips, sealed = key.cipher(), bytearray(), bytearray()
    for number, (packed, claimed) in enumerate(chunks):
        chunk = cipher.seal(number, packed)
        slips += Slip(blake3(chunk).digest(), len(chunk), claimed, bytes(32)).encode()
        sealed += chunk
    root = slips_root(slips)
    (folder / slips_file(root)).write_bytes(slips)
    (folder / chunks_file(root)).write_bytes(sealed)
    return ObjectReference(root, key.key, sum(claimed for _, claimed in chunks))


def test_bombs_are_refused(tmp_path: Path) -> None:
    """A chunk that becomes more than it says, less, or nothing at all; one that says more than any chunk has."""
    key, codec = ObjectKey(b"k" * 32), pa.Codec("zstd")
    bomb = codec.compress(bytes(64 << 20), asbytes=True)
    for packed, claimed in ((bomb, 100_000), (codec.compress(bytes(5000), asbytes=True), 5001), (b"no zstd", 5000)):
        reference = crafted(tmp_path, [(packed, claimed)], key)
        with ObjectReader(reference, [FolderLiar(tmp_path, "here")]) as reader, pytest.raises(CannotOpen):
            reader.read(10)
    for chunks in ([(bomb, 64 << 20)], [(b"x", 5), (b"x" * 5000, 5000)]):
        reference = crafted(tmp_path, chunks, key)
        with pytest.raises(Malformed, match="slip 0"):
            ObjectReader(reference, [FolderLiar(tmp_path, "here")])


def test_without_the_bound_of_a_chunk_a_few_bytes_become_many(tmp_path: Path) -> None:
    sealer = ChunkSealer(ObjectKey(b"k" * 32))
    sealed = sealer.seal(bytes(32 << 20))
    assert len(sealed) < 4096
    with pytest.raises(Malformed, match="slip 0"):
        Slips(sealer.slips)
    with without("the bound of a chunk"):
        (slip,) = Slips(sealer.slips)
        assert len(ChunkOpener(ObjectKey(b"k" * 32)).open(0, slip, sealed)) == 32 << 20


def test_without_a_key_in_the_hash_a_server_knows_a_known_image(tmp_path: Path) -> None:
    """Whoever has the image that somebody may store cuts it as well, and looks for its hashes."""

    def is_known() -> bool:
        docket, _ = put(tmp_path, DATA)
        return blake3(DATA[:4096]).digest() in (tmp_path / slips_file(docket.root)).read_bytes()

    assert not is_known()
    with without("the key of plain hashes"):
        assert is_known()


def test_a_flipped_bit_of_a_docket_is_refused_or_does_not_fit_the_object(tmp_path: Path) -> None:
    """Only its words on how the object was cut and compressed are nothing to the slips: signed metadata covers them."""
    docket, _ = put(tmp_path, DATA, Wish(GEAR, 4096, 3))
    slips, data = (tmp_path / slips_file(docket.root)).read_bytes(), docket.encode()
    for bit in range(8 * len(data)):
        try:
            other = Docket.decode(flipped(data, bit // 8, 1 << bit % 8))
            other.check_lengths(other.check_slips(0, other.count, other.root, slips))
        except (Malformed, Forged):
            continue
        assert replace(other, cut=GEAR, target_bytes=4096, compression=ZSTD) == docket


def test_a_reference_of_another_length_is_refused(tmp_path: Path) -> None:
    _, reference = put(tmp_path, DATA)
    with pytest.raises(Malformed, match="were announced"):
        ObjectReader(replace(reference, length=len(DATA) + 1), [FolderLiar(tmp_path, "here")])
    with pytest.raises(Refused, match="at most 72 were expected"):  # no more slips are read than the length allows
        ObjectReader(replace(reference, length=10), [FolderLiar(tmp_path, "here")])


def test_a_repeated_random_state_repeats_the_same_object_or_no_key(tmp_path: Path) -> None:
    (first, one), (second, other) = put(tmp_path, DATA), put(tmp_path, DATA)
    assert (first, one) == (second, other)
    assert put(tmp_path, DATA + b"x")[1].key != one.key
    assert put(tmp_path, DATA, Wish(GEAR, 4096, 0))[1].key != one.key  # its first chunk is another


def test_bytes_that_change_meanwhile_are_refused(tmp_path: Path) -> None:
    versions = iter([DATA, DATA[:-1] + b"x"])
    store = ObjectStore(RealDisk(tmp_path))
    with pytest.raises(Misuse, match="changed while"):
        store.put(lambda: [next(versions)], SECRET, b"e" * 32, TENANT, 0.0, SMALL)
    assert list(store.kept()) == []
    assert list(tmp_path.rglob("*.chunks")) == []


def test_a_tenant_stores_no_more_than_its_quota(tmp_path: Path) -> None:
    store = ObjectStore(RealDisk(tmp_path), Quotas(Quota(bytes_stored_max=110_000)))

    def keep(seed: int, tenant: bytes = TENANT) -> bytes:
        data = noise(seed, 50_000)
        return store.put(lambda: [data], SECRET, b"e" * 32, tenant, 0.0, SMALL)[0].root

    first = keep(1)
    keep(2)
    keep(2)  # the same again takes nothing
    with pytest.raises(Refused, match="the tenant stores 102") as refused:
        keep(3)
    assert refused.value.reason == "quota"
    keep(4, b"u" * 16)  # another tenant has its own
    assert len(list(tmp_path.glob("*.chunks"))) == len(list(tmp_path.glob("*.slips"))) == 3
    store = ObjectStore(RealDisk(tmp_path), Quotas(Quota(bytes_stored_max=110_000)))  # after a restart
    with pytest.raises(Refused):
        keep(3)
    (tmp_path / "own" / first.hex()).unlink()
    assert first not in dict(store.kept())
    keep(3)


def test_without_a_quota_one_tenant_fills_the_disk(tmp_path: Path) -> None:
    for seed in range(5):
        put(tmp_path, noise(seed, 50_000))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.chunks")) > 250_000


def test_what_is_counted_is_read_with_care(tmp_path: Path) -> None:
    store = ObjectStore(RealDisk(tmp_path))
    docket, _ = put(tmp_path, DATA)
    for name in ("f" * 64, "x" * 64, "short"):
        (tmp_path / "own" / name).write_bytes((tmp_path / "own" / docket.root.hex()).read_bytes())
    (tmp_path / "own" / ("0" * 64)).write_bytes(b"junk")
    assert [root for root, _ in store.kept()] == [docket.root]


def test_a_full_disk_leaves_nothing_half_written() -> None:
    disk = SeededDisk(1)
    disk.fill(30_000)
    with pytest.raises(Unavailable, match="space"):
        ObjectStore(disk).put(lambda: [DATA], SECRET, b"e" * 32, TENANT, 0.0, SMALL)
    assert [name for name in disk.listdir("") if name != "own"] == []
    assert "put.chunks" not in disk.listdir("own")


@pytest.mark.parametrize("seed", range(4))
def test_an_object_is_there_whole_or_not_at_all_wherever_the_power_fails(seed: int) -> None:
    data, changes = DATA[:9000], 0
    while True:
        changes += 1
        disk = SeededDisk(seed)
        store = ObjectStore(disk)
        disk.power_off_after(changes)
        try:
            store.put(lambda: [data], SECRET, b"e" * 32, TENANT, 0.0, SMALL)
            disk.disarm()
            break
        except Unavailable:
            disk.crash()
        here = FolderSource(disk, "here")
        for name in disk.listdir(""):
            if name.endswith(".slips"):
                assert list(find_faults(here, bytes.fromhex(name[:64]))) == []
        docket, reference = ObjectStore(disk).put(lambda: [data], SECRET, b"e" * 32, TENANT, 0.0, SMALL)
        with ObjectReader(reference, [here]) as reader:
            assert reader.read() == data
        assert [root for root, _ in ObjectStore(disk).kept()] == [docket.root]
    assert changes > 12


def test_a_sealer_counts_what_the_docket_says() -> None:
    sealer = ChunkSealer(ObjectKey(b"k" * 32))
    chunks = [sealer.seal(TEXT[:5000]), sealer.seal(noise(5, 5000))]
    first, second = Slips(sealer.slips)
    assert (first.compressed, second.compressed) == (True, False)
    assert (sealer.count, sealer.plain_length, sealer.sealed_length) == (2, 10_000, sum(map(len, chunks)))


def test_streams_are_put_from_their_beginning(tmp_path: Path) -> None:
    from tallystick.client.objects import _blocks

    stream = io.BytesIO(DATA)
    stream.seek(100)
    assert b"".join(map(bytes, _blocks(stream))) == b"".join(map(bytes, _blocks(DATA))) == DATA
