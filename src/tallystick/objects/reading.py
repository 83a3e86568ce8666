"""Reading an object through its reference: seekable, every range verified, in bounded memory.

Threat: sources that are dead, slow or lying; all of them may be. Invariant: no byte is handed out that does not follow
from the reference. Slips are compared with the root before one of them is read, a sealed chunk with its slip before it
is opened, a plain one with its keyed hash before it is shown. Who sends something else is named to `on_fault` and asked
no more by this reader; the next source goes on with the chunk that was missing.

Whoever keeps objects finds rot with `find_faults` before a vehicle does, and learns which chunk it is.

In memory are the slips (72 bytes and two numbers a chunk) and the plain chunks of the last request.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tallystick.errors import CannotOpen, Forged, Malformed, Misuse, Refused, TallystickError, Unavailable
from tallystick.objects import layout
from tallystick.objects.layout import SLIP_BYTES, ObjectKey, ObjectReference, Slip, Slips
from tallystick.objects.sealing import ChunkOpener
from tallystick.objects.sources import REQUEST_BYTES_MAX, Source, read_file

AHEAD_BYTES = 4 << 20  # plain bytes of one request: what compresses well would be too many else

OnFault = Callable[[str, TallystickError], None]  # a source's name, and what it did
T = TypeVar("T")

_HINT = "name a folder or a web server that has it"


def load_slips(source: Source, root: bytes, count_max: int) -> Slips:
    """The slips of an object at one source. Raises `Forged` where they are others, and `Malformed` for what the
    object's own author must not write."""
    data = read_file(source, layout.slips_file(root), count_max * SLIP_BYTES)
    if not data or len(data) % SLIP_BYTES or layout.slips_root(data) != root:
        raise Forged(f"{source.name}: not the slips of object {root.hex()}")
    return Slips(data)


def run_end(slips: Slips, first: int, end: int) -> int:
    """The end of the chunks from `first` on that one request takes, at least one, none from `end` on."""
    sealed = bisect_right(slips.sealed, slips.sealed[first] + REQUEST_BYTES_MAX) - 1
    plain = bisect_right(slips.plain, slips.plain[first] + AHEAD_BYTES) - 1
    return max(first + 1, min(end, sealed, plain))


def fetched(source: Source, root: bytes, slips: Slips, first: int, end: int) -> Iterator[tuple[int, Slip, memoryview]]:
    """Number, slip and sealed bytes, not checked yet, of chunks that are asked for in one request."""
    begin = slips.sealed[first]
    data = memoryview(source.read(layout.chunks_file(root), begin, slips.sealed[end] - begin)[0])
    for number in range(first, end):
        yield number, slips[number], data[slips.sealed[number] - begin : slips.sealed[number + 1] - begin]


def find_faults(source: Source, root: bytes, key: ObjectKey | None = None) -> Iterator[TallystickError]:
    """Whether a place holds an object whole: an error for each chunk that is not what it should be, with the key also
    inside, or for what keeps the rest from being looked at."""
    opener, first = ChunkOpener(key) if key is not None else None, 0
    try:
        slips = load_slips(source, root, layout.COUNT_MAX)
        while first < len(slips):
            end = run_end(slips, first, len(slips))
            for number, slip, sealed in fetched(source, root, slips, first, end):
                what = f"{source.name}: chunk {number}"
                try:
                    slip.check(sealed, what)
                    if opener is not None:
                        opener.open(number, slip, sealed, what)
                except Refused as error:
                    yield error
            first = end
    except (Refused, Unavailable) as error:
        yield error


class ObjectReader(io.RawIOBase):
    """The plain bytes of an object as a file; not for two threads at once.

    with session.objects.open(reference, "https://images.example/fleet") as image:
        image.seek(1 << 30)
        header = image.read(4096)
    """

    def __init__(
        self,
        reference: ObjectReference,
        sources: Sequence[Source],
        on_fault: OnFault = lambda source, error: None,
        *,
        closes: bool = True,
    ) -> None:
        """Raises what its sources raise where none has the slips, and `Malformed` for what the object's author must not
        write. It `closes` its sources with itself, unless they serve others too."""
        super().__init__()
        self.reference, self._on_fault = reference, on_fault
        self._sources, self._to_close = list(sources), list(sources) if closes else []
        self._opener = ChunkOpener(ObjectKey(reference.key))
        self._at = 0
        self._first, self._plain = 0, list[bytes]()  # chunks of the last request, opened
        count_max = min(layout.COUNT_MAX, reference.length // layout.CHUNK_BYTES_MIN + 1)
        self.slips = self._ask(lambda source: load_slips(source, reference.root, count_max))
        if self.slips.plain[-1] != reference.length:
            raise Malformed(f"object {reference.name}: {self.slips.plain[-1]} bytes, {reference.length} were announced")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.reference.length}[whence]
        if start + offset < 0:
            raise Misuse(f"seeking to {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, short only at the end of the object. Raises `Refused` or `Unavailable`."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self.reference.length)
        done = 0
        while self._at < end:
            number = bisect_right(self.slips.plain, self._at) - 1
            plain = self._chunk(number, bisect_right(self.slips.plain, end - 1))
            offset = self._at - self.slips.plain[number]
            part = memoryview(plain)[offset : offset + end - self._at]
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done

    def readall(self) -> bytes:
        return self.read(max(0, self.reference.length - self._at)) or b""

    def chunks(self) -> Iterator[bytes]:
        """All plain chunks in order."""
        for number in range(len(self.slips)):
            yield self._chunk(number, len(self.slips))

    def close(self) -> None:
        while self._to_close:
            self._to_close.pop().close()
        super().close()

    def _chunk(self, number: int, end: int) -> bytes:
        """The plain chunk of this number, with those up to `end` in the same request, or more where somebody reads one
        after the other."""
        behind = self._first + len(self._plain)
        if not self._first <= number < behind:
            end = run_end(self.slips, number, len(self.slips) if number == behind else end)
            self._first, self._plain = number, []
            try:
                self._ask(lambda source: self._fetch(source, end))
            except (Refused, Unavailable):
                if not self._plain:
                    raise  # else: what is wrong with the others of this request is told when they are wanted
        return self._plain[number - self._first]

    def _fetch(self, source: Source, end: int) -> None:
        """What is missing of the request that ends there."""
        begin = self._first + len(self._plain)
        for number, slip, sealed in fetched(source, self.reference.root, self.slips, begin, end):
            what = f"{source.name}: chunk {number} of object {self.reference.name}"
            slip.check(sealed, what)
            self._plain.append(self._opener.open(number, slip, sealed, what))

    def _ask(self, ask: Callable[[Source], T]) -> T:
        """What comes of asking each source until one does it. Raises what may be better later, if there is any."""
        errors: list[TallystickError] = []
        for source in list(self._sources):
            try:
                return ask(source)
            except (CannotOpen, Malformed):
                raise  # the object's own author wrote it: no other source has a better one
            except (Refused, Unavailable) as error:
                errors.append(error)
                # Who was away, or lacks a file, is asked last from now on; who lied is not asked again.
                self._sources.remove(source)
                self._sources += [] if isinstance(error, Forged) else [source]
                self._on_fault(source.name, error)
        if not errors:
            raise Misuse(f"object {self.reference.name}: nobody is left to ask", hint=_HINT)
        raise next((error for error in errors if isinstance(error, Unavailable)), errors[0])
