"""Opening a partition: decide what of the files found is committed, cut the rest, name what is missing.

The journal's mark says how many entries are committed. Below it everything must be there: a missing or
damaged frame is damage, and the partition opens read-only up to it. Above it nothing was ever acknowledged,
whole or torn, and is cut; unless a frame there was written after a group that the journal does not know
(`after`): then it is the journal that has lost its end, and cutting would destroy what was promised.
Nothing is cut, removed or rewritten in a store whose journal is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from tallystick.carriers.log.journal import Mark
from tallystick.carriers.log.partition import Partition, Segment, segment_path
from tallystick.carriers.log.report import Cut, Damage, Recovery
from tallystick.carriers.log.segments import (
    FILE_HEADER_BYTES,
    HEADERS_MAGIC,
    REFERENCE,
    SEGMENT_MAGIC,
    Frame,
    SegmentIndex,
    check_file_header,
    frames,
    unpack_reference,
)
from tallystick.carriers.storage import Damaged
from tallystick.runtime.disk import Disk, read_all, write_atomic
from tallystick.wire import is_number


@dataclass
class Opening:
    """An empty partition that is to be filled from its folder, and what journal and ledger say of it."""

    disk: Disk
    partition: Partition
    mark: Mark
    anchored: int  # the size of the newest anchor, 0 if unknown
    group: int  # the number of the journal's last group
    is_journal_damaged: bool
    recovery: Recovery

    def load(self) -> None:
        """Findings go to `recovery` and `partition.damage`."""
        disk, partition = self.disk, self.partition
        names = set(disk.listdir(partition.folder)) if disk.exists(partition.folder) else set()
        partition.below = self.mark.below
        if not self.is_journal_damaged:
            for name in names:
                if name.endswith(".new"):  # a replacement that the crash overtook
                    disk.remove(f"{partition.folder}/{name}")
        try:
            for base in _bases(names):
                self._load_segment(base, names)
            self._check_end()
        except Damaged as error:
            partition.damage = Damage(str(partition.place), partition.end_offset, str(error))
            self.recovery.damages.append(partition.damage)

    def _check_end(self) -> None:
        end = self.partition.end_offset
        if end < self.mark.end:
            raise Damaged(f"{self.mark.end} entries were promised, {end} are there")
        if end < self.anchored:
            raise Damaged(f"{self.anchored} entries are anchored, {end} are there")
        if end > self.mark.end and not self.is_journal_damaged:
            raise Damaged(f"{end} entries are there, the journal knows {self.mark.end}")

    def _load_segment(self, base: int, names: set[str]) -> None:
        partition = self.partition
        segment, index, headers = (
            segment_path(partition.folder, base, kind) for kind in ("segment", "index", "headers")
        )
        present = {path for path in (segment, index, headers) if path.rpartition("/")[2] in names}
        if base != partition.end_offset:
            raise Damaged(f"the segment with offset {partition.end_offset} is missing, the next is {base}")
        sealed = self._read_index(index, base) if index in present else None
        if headers in present and sealed is not None and sealed.end <= self.mark.below:
            retired = sealed.retired()
            self._check_sealed(headers, HEADERS_MAGIC, retired)
            partition.adopt(Segment(retired, is_sealed=True, is_retired=True))
            if segment in present and not self.is_journal_damaged:
                self._remove(segment)  # the crash interrupted that
        elif segment not in present and headers in present:
            self._adopt_headers(headers, index, base)
        elif segment not in present:
            raise Damaged(f"{segment}: the file is missing")
        elif sealed is not None:
            self._check_sealed(segment, SEGMENT_MAGIC, sealed)
            partition.adopt(Segment(sealed, is_sealed=True))
        elif base >= self.mark.end and not self.is_journal_damaged:
            self._cut_segment(segment, base)
        else:
            is_last = not any(other > base for other in _bases(names))
            self._scan(segment, base)
            if not is_last and partition.damage is None:
                self._rebuild(index)

    def _read_index(self, path: str, base: int) -> SegmentIndex | None:
        """The index, or None if it cannot be used and the segment must be scanned."""
        try:
            return SegmentIndex.decode(read_all(self.disk, path), self.partition.place, base, path)
        except Damaged:
            return None

    def _check_sealed(self, path: str, magic: bytes, index: SegmentIndex) -> None:
        with closing(self.disk.open(path)) as file:
            check_file_header(file.pread(0, FILE_HEADER_BYTES), magic, self.partition.place, index.base, path)
        if self.disk.size(path) < index.file_bytes():
            raise Damaged(f"{path}: {index.file_bytes()} bytes expected, {self.disk.size(path)} found")

    def _adopt_headers(self, headers: str, path: str, base: int) -> None:
        """Take headers whose index is gone."""
        data = read_all(self.disk, headers)
        check_file_header(data, HEADERS_MAGIC, self.partition.place, base, headers)
        index = SegmentIndex(base)
        try:
            for frame in frames(data, base):
                index.add(frame.row, None)
        except Damaged as error:
            raise Damaged(f"{headers}: {error}") from error
        finally:
            self.partition.adopt(Segment(index, is_sealed=True, is_retired=True))
        self._rebuild(path)

    def _scan(self, path: str, base: int) -> None:
        """Take the committed frames of a segment without an index; cut what follows them."""
        data = read_all(self.disk, path)
        check_file_header(data, SEGMENT_MAGIC, self.partition.place, base, path)
        index = SegmentIndex(base)
        rest = frames(data, base)
        try:
            while self.is_journal_damaged or index.end < self.mark.end:
                frame = next(rest, None)
                if frame is None:
                    break
                _add(index, frame)
        except Damaged as error:
            self.partition.adopt(Segment(index))
            raise Damaged(f"{path}: {error}") from error
        uncommitted, is_short = self._uncommitted(rest)
        if is_short:
            for frame in uncommitted:
                _add(index, frame)
        self.partition.adopt(Segment(index))
        if is_short:
            raise Damaged(f"{path}: entries from {self.mark.end} on follow a group that the journal lacks")
        keep = index.file_bytes()
        if len(data) > keep and not self.is_journal_damaged:
            self.recovery.cuts.append(Cut(str(self.partition.place), index.end, len(uncommitted), len(data) - keep))
            with closing(self.disk.open(path)) as file:
                file.truncate(keep)
                file.sync()

    def _uncommitted(self, rest: Iterator[Frame]) -> tuple[list[Frame], bool]:
        """The whole frames that follow, and whether one of them shows that the journal is too short."""
        found: list[Frame] = []
        with suppress(Damaged):
            for frame in rest:
                found.append(frame)
        return found, any(frame.after > self.group for frame in found)

    def _cut_segment(self, path: str, base: int) -> None:
        """Remove a segment that holds nothing committed."""
        data = read_all(self.disk, path)
        uncommitted, is_short = self._uncommitted(frames(data, base))
        if is_short:
            raise Damaged(f"{path}: entries from {base} on follow a group that the journal lacks")
        self.recovery.cuts.append(Cut(str(self.partition.place), base, len(uncommitted), len(data)))
        self._remove(path)

    def _remove(self, path: str) -> None:
        self.disk.remove(path)
        self.disk.sync_dir(self.partition.folder)

    def _rebuild(self, path: str) -> None:
        if self.is_journal_damaged:
            return
        segment = self.partition.newest_segment()
        write_atomic(self.disk, path, segment.index.encode(self.partition.place))
        segment.is_sealed = True
        self.recovery.rebuilt.append(path)


def _bases(names: set[str]) -> list[int]:
    stems = {name.partition(".")[0] for name in names if not name.endswith(".new")}
    return sorted(int(stem) for stem in stems if is_number(stem))


def _add(index: SegmentIndex, frame: Frame) -> None:
    reference = unpack_reference(frame.rest) if frame.row.kind == REFERENCE else None
    index.add(frame.row, reference)
