"""The operator's side: requests to a running authority, signed by a key that the master key gives.

The store belongs to the running process alone. Who holds the master key file and its passphrase is the operator and
can ask over HTTP instead; nothing else is needed, also after a restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from tallystick.authority.answers import Caller, RulesInForce
from tallystick.authority.asks import (
    NONCE_BYTES,
    Ask,
    BeginBackup,
    ChangeRules,
    CreateTenant,
    InviteTo,
    ListTenants,
    ReadBackup,
    ReadRules,
)
from tallystick.authority.backup import BYTES_MAX, Backup
from tallystick.authority.client import OverHttp
from tallystick.authority.master import MASTER_FILE, open_master, operator_id
from tallystick.errors import Malformed
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import RequestSigner
from tallystick.runtime.sources import Entropy

A = TypeVar("A")


def operator_identity(folder: Path, passphrase: bytes) -> RequestSigner:
    """Who signs the operator's requests. Raises `CannotOpen` for a wrong passphrase."""
    key = open_master((folder / MASTER_FILE).read_bytes(), passphrase).operator_key
    return RequestSigner(operator_id(key.public), key)


class OperatorClient:
    """The operator's requests; `http` signs with `operator_identity`."""

    def __init__(self, http: HttpClient, entropy: Entropy) -> None:
        self._service, self._entropy = OverHttp(http), entropy

    def create_tenant(self, name: str) -> str:
        """A new tenant; the invitation for its owner."""
        return self._ask(CreateTenant(name))

    def tenants(self) -> tuple[str, ...]:
        """The names of all tenants."""
        return self._ask(ListTenants())

    def invite_to(self, tenant: str, *, owns: bool = False) -> str:
        return self._ask(InviteTo(tenant, int(owns)))

    def rules(self) -> RulesInForce:
        """The ledger's settings, and the versions of its contracts."""
        return self._ask(ReadRules())

    def change_rules(self, entries: Sequence[bytes]) -> None:
        """Write these entries. Raises `Refused` with the ledger's word."""
        self._ask(ChangeRules(tuple(entries)))

    def back_up(self, recipients: list[str]) -> Backup:
        identifier, size = self._ask(BeginBackup(tuple(recipients)))
        if size > BYTES_MAX:
            raise Malformed(f"backup {identifier.hex()}: {size} bytes, at most {BYTES_MAX} are taken")
        data = bytearray()
        while len(data) < size:
            part = self._ask(ReadBackup(identifier, len(data)))
            if not 0 < len(part) <= size - len(data):
                raise Malformed(f"backup {identifier.hex()}: {size} bytes expected, found {len(data)}")
            data += part
        return Backup(identifier, bytes(data))

    def _ask(self, ask: Ask[A]) -> A:
        return self._service.answer(ask, Caller(b"", self._entropy.bytes(NONCE_BYTES)))  # `http` says whose it is
