"""Looking for secrets, in any spelling, in whatever an attacker might get hold of."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def spellings(secret: bytes) -> list[bytes]:
    """Plain, in hexadecimal digits, in base64 wherever it begins in what was coded, as numbers, as Python prints it."""
    whole = [secret[start : start + (len(secret) - start) // 3 * 3] for start in range(3)]
    coded = [code(part) for part in whole for code in (base64.b64encode, base64.urlsafe_b64encode)]
    numbers = [list(secret), [byte - 256 if byte > 127 else byte for byte in secret]]
    listed = [separator.join(map(str, one)).encode() for one in numbers for separator in (",", ", ")]
    return [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode(), *coded, *listed]


def found(secrets: dict[str, bytes], data: bytes) -> set[str]:
    return {name for name, secret in secrets.items() if any(one in data for one in spellings(secret))}


def read(pid: int, name: str) -> bytes:
    with suppress(OSError):  # it may have ended
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from descendants(int(child))


def memory_of(pid: int) -> bytes:
    """What a process has written into its memory."""
    parts = []
    with suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            start, end = (int(number, 16) for number in span.split("-"))
            if rights.startswith("rw") and end - start < 1 << 28:
                try:
                    memory.seek(start)
                    parts.append(memory.read(end - start))
                except OSError:
                    continue
    return b"".join(parts)


def files_under(folder: Path) -> bytes:
    """What a disk holds; files and folders may go while they are read."""
    parts = []
    for parent, _, names in os.walk(folder):  # which passes over folders that are gone
        for name in names:
            with suppress(OSError):
                parts.append(Path(parent, name).read_bytes())
    return b"".join(parts)
