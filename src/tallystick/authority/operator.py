"""The operator's side: requests to a running authority, signed by a key that the master key gives.

The store belongs to the running process alone. Who holds the master key file and its passphrase is the operator and
can ask over HTTP instead; nothing else is needed, also after a restore.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallystick.authority.asks import NONCE_BYTES, Ask, BeginBackup, CreateTenant, InviteTo, ListTenants, ReadBackup
from tallystick.authority.backup import BYTES_MAX, Backup
from tallystick.authority.master import MASTER_FILE, open_master, operator_id
from tallystick.errors import Malformed
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.sources import Entropy

_BACKUP_S = 600.0  # a store of gigabytes is copied and encrypted before the answer comes


def operator_identity(folder: Path, passphrase: bytes) -> RequestSigner:
    """Who signs the operator's requests; `CannotOpen` for a wrong passphrase."""
    key = open_master((folder / MASTER_FILE).read_bytes(), passphrase).operator_key
    return RequestSigner(operator_id(key.public), key)


class OperatorClient:
    """The operator's requests; `http` signs with `operator_identity`."""

    def __init__(self, http: HttpClient, entropy: Entropy) -> None:
        self._http = http
        self._entropy = entropy

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation for its owner."""
        return str(self._ask(CreateTenant(name)))

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return list(self._ask(ListTenants()))

    def invite_to(self, tenant: str, *, owns: bool = False) -> str:
        return str(self._ask(InviteTo(tenant, int(owns))))

    def back_up(self, recipients: list[str]) -> Backup:
        identifier, size = self._ask(BeginBackup(tuple(recipients)), timeout_s=_BACKUP_S)
        if size > BYTES_MAX:
            raise Malformed(f"backup {identifier.hex()}: {size} bytes, at most {BYTES_MAX} are taken")
        data = bytearray()
        while len(data) < size:
            part = self._ask(ReadBackup(identifier, len(data)))
            if not 0 < len(part) <= size - len(data):
                raise Malformed(f"backup {identifier.hex()}: {size} bytes expected, found {len(data)}")
            data += part
        return Backup(identifier, bytes(data))

    def _ask(self, ask: Ask, timeout_s: float | None = None) -> Any:
        body = ask.encode(self._entropy.bytes(NONCE_BYTES))
        # Once: a tenant that was made without our hearing of it is made, and asking again says so.
        response = self._http.request("POST", ask.path, body=body, attempts_max=1, timeout_s=timeout_s)
        return ask.decode_answer(response.body)
