"""Where an object's two files are read: a folder, or a web server that knows byte ranges. Nobody here is trusted.

A source answers with the bytes of a range and the length of the whole file, or with an error; it never sees a key. A
web server is held to what was asked for: exactly the range, no redirect, within a time that follows from the number of
bytes, so that who drips is as good as away.
"""

from __future__ import annotations

from contextlib import closing
from typing import Protocol
from urllib.parse import quote, urlsplit

from tallystick.errors import Misuse, Refused, Unavailable
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import ClientLimits
from tallystick.runtime.disk import Disk
from tallystick.runtime.sources import Clock, Entropy

REQUEST_BYTES_MAX = 1 << 20  # of one range: all that a liar can waste
GRACE_S = 5.0  # for a first byte
FLOOR_BYTES_PER_S = 32 * 1024  # below that a source is as good as away

_NOBODY = bytes(16)  # a web server has no identifier: what it sends proves itself


class Source(Protocol):
    name: str  # for people, and to say who lied

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        """Up to `n` bytes from `first`, fewer only at the end of the file, and the length of the whole file. Raises
        `Unavailable`, or `Refused` where the source has no such file or does not answer as it should."""

    def close(self) -> None: ...


class FolderSource:
    """Objects in a folder."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk, self.name = disk, name

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        try:
            with closing(self._disk.open(file)) as opened:
                return opened.pread(first, n), opened.size()
        except FileNotFoundError:
            raise Refused(f"{self.name}: no file {file}", reason="not-found") from None
        except OSError as error:
            raise Unavailable(f"{self.name}: {file}: {error.strerror or error}") from error

    def close(self) -> None:
        pass


class WebSource:
    """Objects below a URL: `https://images.example/fleet/`."""

    def __init__(self, url: str, clock: Clock, entropy: Entropy, *, insecure: bool = False) -> None:
        parts = urlsplit(url)
        if parts.query or parts.fragment:
            raise Misuse(f"{url}: expected a URL without a query")
        self.name = url
        self._path = quote(parts.path.rstrip("/"), safe="/%")
        address = Address(f"{parts.scheme}://{parts.netloc}", _NOBODY)
        limits = ClientLimits(answer_s=GRACE_S, attempts_max=1)
        self._http = HttpClient([address], None, clock, entropy, insecure=insecure, limits=limits)

    def read(self, file: str, first: int, n: int) -> tuple[bytes, int]:
        timeout_s = GRACE_S + n / FLOOR_BYTES_PER_S
        return self._http.read_range(f"{self._path}/{file}", first, n, timeout_s=timeout_s)

    def close(self) -> None:
        self._http.close()


def read_file(source: Source, file: str, bytes_max: int) -> bytes:
    """A whole file, in requests of `REQUEST_BYTES_MAX`. Raises `Refused` where it is longer than `bytes_max`."""
    data = bytearray()
    while True:
        part, total = source.read(file, len(data), min(REQUEST_BYTES_MAX, bytes_max + 1))
        if total > bytes_max:
            raise Refused(f"{source.name}: {file} has {total} bytes, at most {bytes_max} were expected")
        data += part
        if len(data) >= total or not part:
            return bytes(data)
