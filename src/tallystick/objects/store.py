"""Objects in a folder: two plain files each, and beside them whose they are.

    <root>.slips, <root>.chunks     what is served, by us or by any web server that knows byte ranges
    own/<root>                      the tenant that the bytes count for, and the docket; who frees space deletes it last

Threat: a server that is read out, and a tenant that fills it. Invariants: keys and plain bytes never come here, only to
whoever holds the reference; what a tenant stores stays below its quota, and is counted from the files that lie here, so
that nothing is forgotten over a crash. An object's slips get their name last, so that one which was not finished is not
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple

from blake3 import blake3

from tallystick import wire
from tallystick.carriers.accounts import Quotas
from tallystick.crypto.symmetric import Buffer
from tallystick.errors import Malformed, Misuse, blame
from tallystick.objects import layout
from tallystick.objects.cutting import check_cut, cut_chunks
from tallystick.objects.layout import Docket, ObjectKey, ObjectReference, chunks_file, slips_file
from tallystick.objects.sealing import LEVEL, ChunkSealer
from tallystick.runtime.disk import Disk, File, read_all, write_atomic

Blocks = Callable[[], Iterable[Buffer]]  # the bytes of an object, from the beginning each time

_OWN, _PUT, _LOCK = "own", "own/put.chunks", "own/lock"


class Wish(NamedTuple):
    """How an object is cut and compressed; a level of 0 compresses nothing."""

    cut: int = layout.GEAR
    target_bytes: int = layout.TARGET
    level: int = LEVEL


class KeptObject(NamedTuple):
    """An object that lies here, or is about to."""

    tenant: bytes
    docket: Docket

    @property
    def stored_bytes(self) -> int:
        return self.docket.sealed_length + self.docket.count * layout.SLIP_BYTES


class ObjectStore:
    def __init__(self, disk: Disk, quotas: Quotas | None = None) -> None:
        """Without quotas nobody is held to any."""
        self._disk, self._quotas = disk, quotas
        disk.mkdir(_OWN)

    def put(
        self, blocks: Blocks, secret: bytes, entropy: bytes, tenant: bytes, now: float, wish: Wish = Wish()
    ) -> tuple[Docket, ObjectReference]:
        """Seal the bytes, which are read twice: once for the key, which follows from all of them, and once to be
        sealed. Raises `Misuse` where they were others the second time, `Refused` where the quota is too small."""
        check_cut(wish.cut, wish.target_bytes)
        content, length = _digest(blocks())
        if length > layout.LENGTH_MAX:
            raise Misuse(f"an object of {length} bytes: at most {layout.LENGTH_MAX} are allowed")
        key = ObjectKey.draw(secret, entropy, content, *wish)
        with _translated(), self._disk.held(_LOCK):  # so that a half-written one is nobody's, and is written over
            try:
                with closing(self._disk.open(_PUT, create=True)) as file:
                    file.truncate(0)
                    sealer = self._seal(file, blocks, key, wish, content)
                    file.sync()
                compression = layout.ZSTD if wish.level else layout.PLAIN
                lengths = sealer.count, sealer.plain_length, sealer.sealed_length
                docket = Docket(wish.cut, wish.target_bytes, compression, *lengths, layout.slips_root(sealer.slips))
                self._count(KeptObject(tenant, docket), now)
                self._disk.rename(_PUT, chunks_file(docket.root))
                self._disk.sync_dir("")  # or the slips could be there after a crash, and the chunks not
                write_atomic(self._disk, slips_file(docket.root), sealer.slips)
            except BaseException:
                with suppress(OSError):
                    self._disk.remove(_PUT)
                raise
        return docket, ObjectReference(docket.root, key.key, length)

    def admit(self, docket: Docket, tenant: bytes, now: float) -> None:
        """Count an object for a tenant before its bytes come; again and again is once. Raises `Refused` where that is
        more than its quota, `Unavailable` where it is too much at once."""
        with _translated(), self._disk.held(_LOCK):
            self._count(KeptObject(tenant, docket), now)

    def kept(self) -> Iterator[tuple[bytes, KeptObject]]:
        """What is counted here, by root. A file that nobody of ours wrote counts for nobody."""
        for name in self._disk.listdir(_OWN):
            if len(name) != 64:
                continue
            with suppress(Malformed, ValueError, FileNotFoundError):
                fields = wire.Fields.parse(read_all(self._disk, f"{_OWN}/{name}"), "owner of an object", 3)
                fields.version(1)
                kept = KeptObject(fields.octets(16), Docket.decode(fields.octets(at_most=200)))
                if kept.docket.root == bytes.fromhex(name):
                    yield kept.docket.root, kept

    def _count(self, new: KeptObject, now: float) -> None:
        known = dict(self.kept())
        if known.get(new.docket.root) == new:
            return
        if self._quotas is not None:
            stored = sum(one.stored_bytes for one in known.values() if one.tenant == new.tenant)
            self._quotas.charge(new.tenant, new.stored_bytes, stored, now)
        write_atomic(self._disk, _owner(new.docket.root), wire.encode([1, new.tenant, new.docket.encode()]))

    def _seal(self, file: File, blocks: Blocks, key: ObjectKey, wish: Wish, content: bytes) -> ChunkSealer:
        sealer, again = ChunkSealer(key, wish.level), blake3()
        for chunk in cut_chunks(blocks(), wish.cut, wish.target_bytes):
            again.update(chunk)
            if sealer.count == layout.COUNT_MAX:
                raise Misuse("an object of too many chunks", hint="cut it into larger ones: --chunk-bytes")
            offset = sealer.sealed_length
            file.pwrite(offset, sealer.seal(chunk))
        if again.digest() != content:
            raise Misuse("the bytes changed while they were read", hint="try again when nobody writes to them")
        return sealer


def _owner(root: bytes) -> str:
    return f"{_OWN}/{root.hex()}"


def _digest(blocks: Iterable[Buffer]) -> tuple[bytes, int]:
    content, length = blake3(), 0
    for block in blocks:
        content.update(block)
        length += len(block)
    return bytes(content.digest()), length


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise blame(error, "objects: ") from error
