"""Be the attacker who owns the broker's disk: change one byte of a stored parcel and mend the checksums.

    python scripts/tamper.py fleet

The log's checksums find accidents, and this is none: afterwards the node serves the altered parcel without noticing.
Subscribers notice, because what they read must hash to what was anchored on the ledger.
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

FILE_HEADER = struct.Struct("<8sII16sIQ")
FRAME = struct.Struct("<IIIQQQB32sII")  # crc of head and header, length, crc of the rest, …, header and body length


def main(instance: Path) -> None:
    alter(max((instance / "node" / "log" / "topics").rglob("*.segment"), key=lambda path: path.stat().st_size))


def alter(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    start = FILE_HEADER.size
    *_, header_bytes, body_bytes = FRAME.unpack_from(data, start)
    header_end = start + FRAME.size + header_bytes
    data[header_end + body_bytes // 2] ^= 1
    struct.pack_into("<I", data, start + 8, zlib.crc32(data[header_end : header_end + body_bytes]))
    struct.pack_into("<I", data, start, zlib.crc32(data[start + 4 : header_end]))
    segment.write_bytes(data)
    print(f"changed one bit of the first parcel in {segment}, and both checksums")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
