"""An authority as a process of its own: its folder, its view of the ledger through a node, its HTTP face."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tallystick.authority.authority import MASTER_FILE, STORE_FILE, Authority, open_authority
from tallystick.authority.http import Service
from tallystick.authority.master import open_master
from tallystick.authority.settings import Settings
from tallystick.authority.store import Store
from tallystick.carriers.remote import RemoteNode
from tallystick.crypto.signatures import SigningKey
from tallystick.runtime.address import Address, server_tls
from tallystick.runtime.client import HttpClient
from tallystick.runtime.clock import Clock
from tallystick.runtime.conversation import Identity as Signer
from tallystick.runtime.entropy import Entropy
from tallystick.runtime.server import Server
from tallystick.trust.certificate import Certificate


class AuthorityProcess:
    """Opens the authority in `folder` and serves it; the node is asked for the ledger and not believed."""

    def __init__(
        self,
        folder: Path,
        passphrase: bytes,
        node_urls: Sequence[str],
        node: Certificate,
        clock: Clock,
        entropy: Entropy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: Settings = Settings(),
        insecure: bool = False,
        tls_files: tuple[str, str] = ("", ""),
        others: Sequence[Address] = (),
    ) -> None:
        """`others` are further nodes of the instance, asked in turn where `node` does not answer; `tls_files` the PEM
        files of certificate and key, needed off loopback."""
        signer = open_signer(folder, passphrase)
        addresses = [*(Address(url, node.subject, node.verify_key) for url in node_urls), *others]
        self._http = HttpClient(addresses, signer, clock, entropy, insecure=insecure)
        ledger = RemoteNode(self._http)
        self.authority: Authority = open_authority(folder, passphrase, ledger, clock, entropy, settings)
        self.service = Service(self.authority, clock)
        tls = server_tls(*tls_files) if tls_files[0] else None
        self.server = Server(
            self.service.app,
            host,
            port,
            tls=tls,
            insecure=insecure,
            on_stop=self.service.end_polls,
        )

    @property
    def url(self) -> str:
        return self.server.url

    def run(self) -> None:
        """Serve, and follow ledger and clock beside, until a signal or `stop`."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        following = asyncio.ensure_future(self.service.run())
        try:
            await self.server.serve()
        finally:
            following.cancel()
            self.service.close()
            self.authority.close()
            self._http.close()

    def stop(self) -> None:
        self.server.stop()


def open_signer(folder: Path, passphrase: bytes) -> Signer:
    """Whose word the authority's requests to a node are."""
    master = open_master((folder / MASTER_FILE).read_bytes(), passphrase)
    store = Store(str(folder / STORE_FILE))
    try:
        certificate = Certificate.decode(store.meta("certificate") or b"")
        key = SigningKey.from_seed(master.unwrap_own("signing", store.meta("signing") or b""))
    finally:
        store.close()
    return Signer(certificate.subject, key)
