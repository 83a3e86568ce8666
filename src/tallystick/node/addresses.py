"""Where a process of an instance listens now: a file beside its data, for commands of the same machine.

Written when the socket is bound, so that port 0 and a port given on the command line are known to the operator's
commands as well. It holds nothing secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tallystick.errors import Misuse
from tallystick.trust.certificate import Certificate

FILE = "address.json"
FORMAT = "tallystick address 1"


@dataclass(frozen=True)
class Listening:
    url: str
    certificate: Certificate


def write_address(folder: Path, url: str, certificate: Certificate) -> None:
    content = {"format": FORMAT, "url": url, "certificate": certificate.encode().hex()}
    temporary = folder / (FILE + ".new")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(folder / FILE)


def read_address(folder: Path) -> Listening:
    """Where the process of `folder` listens, or listened last."""
    path = folder / FILE
    if not path.exists():
        raise Misuse(f"{folder}: nothing was ever started here", hint="tally up starts node and authority")
    data = json.loads(path.read_text())
    if data.get("format") != FORMAT:
        raise Misuse(f'{path}: format "{FORMAT}" expected, found {data.get("format")!r}')
    return Listening(data["url"], Certificate.decode(bytes.fromhex(data["certificate"])))
