"""Opening a partition: decide what of the files found is committed, cut the rest, name what is missing.

The journal's mark says how many entries are committed. Below it everything must be there: a missing or
damaged frame is damage, and the partition opens read-only up to it. Above it nothing was ever acknowledged,
whole or torn, and is cut; unless a frame there was written after a group that the journal does not know
(`after`): then it is the journal that has lost its end, and cutting would destroy what was promised.
Nothing is cut, removed or rewritten in a store whose journal is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True)
class Known:
    """What the journal and the ledger say of a partition."""

    mark: Mark
    anchored: int  # the size of the newest anchor, 0 if unknown
    group: int  # the number of the journal's last group
    is_journal_damaged: bool


def load(disk: Disk, partition: Partition, known: Known, recovery: Recovery) -> None:
    """Fill an empty partition from its folder; findings go to `recovery` and `partition.damage`."""
    names = set(disk.listdir(partition.folder)) if disk.exists(partition.folder) else set()
    partition.below = known.mark.below
    if not known.is_journal_damaged:
        for name in names:
            if name.endswith(".new"):  # a replacement that the crash overtook
                disk.remove(f"{partition.folder}/{name}")
    try:
        for base in _bases(names):
            _load_segment(disk, partition, base, names, known, recovery)
        _check_end(partition, known)
    except Damaged as error:
        partition.damage = Damage(str(partition.place), partition.end_offset, str(error))
        recovery.damages.append(partition.damage)


def _bases(names: set[str]) -> list[int]:
    stems = {name.partition(".")[0] for name in names if not name.endswith(".new")}
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _check_end(partition: Partition, known: Known) -> None:
    end = partition.end_offset
    if end < known.mark.end:
        raise Damaged(f"{known.mark.end} entries were promised, {end} are there")
    if end < known.anchored:
        raise Damaged(f"{known.anchored} entries are anchored, {end} are there")
    if end > known.mark.end and not known.is_journal_damaged:
        raise Damaged(f"{end} entries are there, the journal knows {known.mark.end}")


def _load_segment(
    disk: Disk, partition: Partition, base: int, names: set[str], known: Known, recovery: Recovery
) -> None:
    segment, index, headers = (segment_path(partition.folder, base, kind) for kind in ("segment", "index", "headers"))
    present = {path for path in (segment, index, headers) if path.rpartition("/")[2] in names}
    if base != partition.end_offset:
        raise Damaged(f"the segment with offset {partition.end_offset} is missing, the next is {base}")
    sealed = _read_index(disk, partition, index, base) if index in present else None
    if headers in present and sealed is not None and sealed.end <= known.mark.below:
        _adopt_retired(disk, partition, segment, headers, sealed, present, known)
    elif segment not in present and headers in present:
        _adopt_headers(disk, partition, headers, index, base, known, recovery)
    elif segment not in present:
        raise Damaged(f"{segment}: the file is missing")
    elif sealed is not None:
        _check_sealed(disk, partition, segment, sealed)
        partition.adopt(Segment(sealed, is_sealed=True))
    elif base >= known.mark.end and not known.is_journal_damaged:
        _cut_segment(disk, partition, segment, base, known, recovery)
    else:
        is_last = not any(other > base for other in _bases(names))
        _scan(disk, partition, segment, base, known, recovery)
        if not is_last and partition.damage is None:
            _rebuild(disk, partition, index, known, recovery)


def _read_index(disk: Disk, partition: Partition, path: str, base: int) -> SegmentIndex | None:
    """The index, or None if it cannot be used and the segment must be scanned."""
    try:
        return SegmentIndex.decode(read_all(disk, path), partition.place, base, path)
    except Damaged:
        return None


def _check_sealed(disk: Disk, partition: Partition, path: str, index: SegmentIndex) -> None:
    _check_header(disk, partition, path, SEGMENT_MAGIC, index.base)
    if disk.size(path) < index.file_bytes():
        raise Damaged(f"{path}: {index.file_bytes()} bytes expected, {disk.size(path)} found")


def _check_header(disk: Disk, partition: Partition, path: str, magic: bytes, base: int) -> None:
    file = disk.open(path)
    try:
        check_file_header(file.pread(0, FILE_HEADER_BYTES), magic, partition.place, base, path)
    finally:
        file.close()


def _adopt_retired(
    disk: Disk,
    partition: Partition,
    segment: str,
    headers: str,
    sealed: SegmentIndex,
    present: set[str],
    known: Known,
) -> None:
    """Take the headers that outlive a segment, and finish a removal that the crash interrupted."""
    retired = sealed.retired()
    _check_header(disk, partition, headers, HEADERS_MAGIC, sealed.base)
    if disk.size(headers) < retired.file_bytes():
        raise Damaged(f"{headers}: {retired.file_bytes()} bytes expected, {disk.size(headers)} found")
    partition.adopt(Segment(retired, is_sealed=True, is_retired=True))
    if segment in present and not known.is_journal_damaged:
        disk.remove(segment)
        disk.sync_dir(partition.folder)


def _adopt_headers(
    disk: Disk, partition: Partition, headers: str, path: str, base: int, known: Known, recovery: Recovery
) -> None:
    """Take headers whose index is gone."""
    data = read_all(disk, headers)
    check_file_header(data, HEADERS_MAGIC, partition.place, base, headers)
    index = SegmentIndex(base)
    try:
        for frame in frames(data, base):
            index.add(frame.row, None)
    except Damaged as error:
        raise Damaged(f"{headers}: {error}") from error
    finally:
        partition.adopt(Segment(index, is_sealed=True, is_retired=True))
    _rebuild(disk, partition, path, known, recovery)


def _scan(disk: Disk, partition: Partition, path: str, base: int, known: Known, recovery: Recovery) -> None:
    """Take the committed frames of a segment without an index; cut what follows them."""
    data = read_all(disk, path)
    check_file_header(data, SEGMENT_MAGIC, partition.place, base, path)
    index = SegmentIndex(base)
    rest = frames(data, base)
    try:
        while known.is_journal_damaged or index.end < known.mark.end:
            frame = next(rest, None)
            if frame is None:
                break
            _add(index, frame)
    except Damaged as error:
        partition.adopt(Segment(index))
        raise Damaged(f"{path}: {error}") from error
    uncommitted, is_short = _uncommitted(rest, known.group)
    if is_short:
        for frame in uncommitted:
            _add(index, frame)
        partition.adopt(Segment(index))
        raise Damaged(f"{path}: entries from {known.mark.end} on follow a group that the journal lacks")
    partition.adopt(Segment(index))
    keep = index.file_bytes()
    if len(data) > keep and not known.is_journal_damaged:
        recovery.cuts.append(Cut(str(partition.place), index.end, len(uncommitted), len(data) - keep))
        file = disk.open(path)
        file.truncate(keep)
        file.sync()
        file.close()


def _uncommitted(rest: Iterator[Frame], group: int) -> tuple[list[Frame], bool]:
    """The whole frames that follow, and whether one of them shows that the journal is too short."""
    found: list[Frame] = []
    try:
        for frame in rest:
            found.append(frame)
    except Damaged:
        pass
    return found, any(frame.after > group for frame in found)


def _cut_segment(disk: Disk, partition: Partition, path: str, base: int, known: Known, recovery: Recovery) -> None:
    """Remove a segment that holds nothing committed."""
    if disk.exists(path):
        data = read_all(disk, path)
        uncommitted, is_short = _uncommitted(frames(data, base), known.group)
        if is_short:
            raise Damaged(f"{path}: entries from {base} on follow a group that the journal lacks")
        recovery.cuts.append(Cut(str(partition.place), base, len(uncommitted), len(data)))
        disk.remove(path)
        disk.sync_dir(partition.folder)


def _rebuild(disk: Disk, partition: Partition, path: str, known: Known, recovery: Recovery) -> None:
    if known.is_journal_damaged:
        return
    segment = partition.newest_segment()
    write_atomic(disk, path, segment.index.encode(partition.place))
    segment.is_sealed = True
    recovery.rebuilt.append(path)


def _add(index: SegmentIndex, frame: Frame) -> None:
    reference = unpack_reference(frame.rest) if frame.row.kind == REFERENCE else None
    index.add(frame.row, reference)
