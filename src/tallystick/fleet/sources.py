"""Recordings as files, packed or not: a path comes in, and out go its files by name, each with what reads it.

A source is one file, a folder of them, or a tar archive of them (`.tar`, `.tar.xz`, `.tar.gz`), which is unpacked once
to a temporary file, because compressed archives cannot be read in another order than their own. A file may be packed by
itself: `.xz`, or a `.zip` with one member. What a file holds when it is unpacked is bounded.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from tallystick.errors import Malformed, Misuse, Unavailable
from tallystick.wire import is_number

FILE_BYTES_MAX = 256 << 20  # of one file, unpacked; the largest real one has 27 MB
SUFFIXES = (".csv", ".csv.xz", ".log", ".log.xz", ".zip")

Source = dict[str, Callable[[], bytes]]  # what reads each file, by name, in the order of replay


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """The recordings of a file, a folder or an archive. Raises `Misuse`, `Malformed`, `Unavailable`."""
    if not path.exists():
        raise Misuse(f"{path}: there is no such file or folder")
    with ExitStack() as stack:
        if path.is_dir() or path.name.endswith(SUFFIXES):
            paths = path.iterdir() if path.is_dir() else [path]
            found: Source = {one.name: partial(_read_file, one) for one in paths if one.name.endswith(SUFFIXES)}
        else:
            archive = stack.enter_context(tarfile.open(fileobj=stack.enter_context(_unpacked(path))))
            members = [member for member in archive if member.isfile() and member.name.endswith(SUFFIXES[::2])]
            found = {member.name: partial(_read_member, archive, member) for member in members}
        if not found:
            raise Misuse(f"{path}: holds no CSV file and no log")
        yield {name: found[name] for name in sorted(found, key=_place)}


def _read_file(path: Path) -> bytes:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                if len(archive.infolist()) != 1:
                    raise Misuse(f"{path}: holds {len(archive.infolist())} files, expected one")
                with archive.open(archive.infolist()[0]) as file:
                    return _bounded(file, path.name)
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            return _bounded(file, path.name)
    except (lzma.LZMAError, zlib.error, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        raise Malformed(f"{path}: cannot be unpacked: {error}") from error
    except OSError as error:
        raise Unavailable(f"{path}: cannot be read: {error}") from error


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return _bounded(file, member.name)


def _bounded(file: IO[bytes], name: str) -> bytes:
    data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise Misuse(f"{name}: has more than {FILE_BYTES_MAX} bytes, which is the most that is read at once")
    return data


@contextmanager
def _unpacked(path: Path) -> Iterator[Any]:
    """The members of an archive as a tar file without compression."""
    with tempfile.TemporaryFile() as file:
        try:
            with tarfile.open(path, "r|*") as packed, tarfile.open(fileobj=file, mode="w") as plain:
                for member in packed:
                    if member.isfile():
                        plain.addfile(member, packed.extractfile(member))
        except tarfile.TarError as error:
            hint = "a CSV file, a candump log, a folder of them or a tar archive of them is expected"
            raise Malformed(f"{path}: not a tar archive: {error}", hint=hint) from error
        except OSError as error:
            raise Unavailable(f"{path}: cannot be unpacked: {error}") from error
        file.seek(0)
        yield file


def _place(name: str) -> list[int | str]:
    """Of a file in its order: by name, numbers by value, so that days are in order, and drive2 is before drive10."""
    return [int(part) if is_number(part) else part for part in re.split(r"(\d+)", name)]
