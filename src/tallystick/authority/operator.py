"""The operator's side: requests to a running authority, signed by a key that the master key gives.

The store belongs to the running process alone. Who holds the master key file and its passphrase is the operator and
can ask over HTTP instead; nothing else is needed, also after a restore.
"""

from __future__ import annotations

from pathlib import Path

from tallystick import wire
from tallystick.authority.backup import BYTES_MAX, Backup
from tallystick.authority.client import NONCE_BYTES
from tallystick.authority.master import MASTER_FILE, open_master, operator_id
from tallystick.errors import Malformed
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import Identity
from tallystick.runtime.entropy import Entropy
from tallystick.trust.signed import Fields

_TENANTS_MAX = 1 << 20
_BACKUP_S = 600.0  # a store of gigabytes is copied and encrypted before the answer comes


def operator_identity(folder: Path, passphrase: bytes) -> Identity:
    """Who signs the operator's requests; `CannotOpen` for a wrong passphrase."""
    key = open_master((folder / MASTER_FILE).read_bytes(), passphrase).operator_key
    return Identity(operator_id(key.public), key)


class OperatorClient:
    """The operator's requests; `http` signs with `operator_identity`."""

    def __init__(self, http: HttpClient, entropy: Entropy) -> None:
        self._http = http
        self._entropy = entropy

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation for its owner."""
        return self._ask("/v1/operator/tenants", 1, name).text()

    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return [str(name) for name in self._ask("/v1/operator/tenants/list", 1).items(_TENANTS_MAX)]

    def invite_to(self, tenant: str, *, owns: bool = False) -> str:
        return self._ask("/v1/operator/invites", 1, tenant, int(owns)).text()

    def back_up(self, recipients: list[str]) -> Backup:
        answer = self._ask("/v1/operator/backup", 2, recipients, timeout_s=_BACKUP_S)
        identifier, size = answer.octets(16), answer.number(BYTES_MAX)
        data = bytearray()
        while len(data) < size:
            part = self._ask("/v1/operator/backup/part", 1, identifier, len(data)).octets(at_most=size - len(data))
            if not part:
                raise Malformed(f"backup {identifier.hex()}: {size} bytes expected, found {len(data)}")
            data += part
        return Backup(identifier, bytes(data))

    def _ask(self, path: str, length: int, *fields: object, timeout_s: float | None = None) -> Fields:
        body = wire.encode([self._entropy.bytes(NONCE_BYTES), *fields])
        # Once: a tenant that was made without our hearing of it is made, and asking again says so.
        response = self._http.request("POST", path, body=body, attempts_max=1, timeout_s=timeout_s)
        return Fields.parse(response.body, f"answer of {path}", length)
