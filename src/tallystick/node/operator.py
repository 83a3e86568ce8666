"""The operator of an instance: whoever has its folder and its passphrase, speaking to the running authority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tallystick.authority.operator import OperatorClient, operator_identity
from tallystick.errors import Unavailable, name_cause
from tallystick.node.instance import Folders, find_passphrase, read_address
from tallystick.runtime.address import Address
from tallystick.runtime.client import HttpClient
from tallystick.runtime.sources import Clock, Entropy


@contextmanager
def operating(folder: Path, clock: Clock, entropy: Entropy) -> Iterator[OperatorClient]:
    """The operator of the instance in `folder`."""
    folders = Folders(folder)
    listening = read_address(folders.authority)
    identity = operator_identity(folders.authority, find_passphrase(folder))
    address = Address(listening.url, listening.certificate.subject, listening.certificate.verify_key)
    with HttpClient([address], identity, clock, entropy) as http:
        try:
            yield OperatorClient(http, entropy)
        except Unavailable as error:
            name_cause(error, http.trouble("authority"))
            error.hint = error.hint or f"start it: tally up {folder}"
            raise
