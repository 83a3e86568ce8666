"""An authority as a process of its own: its folder, its view of the ledger through a node, its HTTP face."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tallystick.authority.authority import MASTER_FILE, STORE_FILE, open_authority
from tallystick.authority.http import Service
from tallystick.authority.master import open_master
from tallystick.authority.settings import AuthoritySettings
from tallystick.authority.store import AuthorityStore
from tallystick.carriers.remote import RemoteNode
from tallystick.crypto.signatures import SigningKey
from tallystick.runtime.address import Address, Listen
from tallystick.runtime.client import HttpClient
from tallystick.runtime.conversation import ClientLimits, RequestSigner
from tallystick.runtime.server import Server, ServerLimits
from tallystick.runtime.sources import Clock, Entropy
from tallystick.trust.certificate import Certificate


class AuthorityProcess:
    """Opens the authority in `folder` and serves it; the node is asked for the ledger and not believed."""

    def __init__(
        self,
        folder: Path,
        passphrase: bytes,
        nodes: Sequence[Address],
        clock: Clock,
        entropy: Entropy,
        *,
        settings: AuthoritySettings = AuthoritySettings(),
        listen: Listen = Listen(),
    ) -> None:
        """`nodes` are those of the instance, asked in turn where the first does not answer."""
        signer = open_signer(folder, passphrase)
        # Whoever asks the authority waits meanwhile, and asks again itself: a node that is away is named soon.
        limits = ClientLimits(connect_s=2.0, attempts_max=len(nodes) + 2)
        self._http = HttpClient(nodes, signer, clock, entropy, insecure=listen.insecure, limits=limits)
        node = RemoteNode(self._http)
        self.authority = open_authority(folder, passphrase, node, clock, entropy, settings)
        self.service = Service(self.authority, clock, ask_node=node.trouble)
        self.server = Server(
            self.service.app,
            listen.host,
            listen.port,
            tls=listen.tls,
            insecure=listen.insecure,
            limits=ServerLimits(
                connections_max=settings.connections_max, address_connections_max=settings.address_connections_max
            ),
            on_stop=self.service.end_polls,
        )
        self.url = self.server.url

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


def open_signer(folder: Path, passphrase: bytes) -> RequestSigner:
    """Whose word the authority's requests to a node are."""
    master = open_master((folder / MASTER_FILE).read_bytes(), passphrase)
    with closing(AuthorityStore(str(folder / STORE_FILE))) as store:
        certificate = Certificate.decode(store.meta("certificate") or b"")
        key = SigningKey.from_seed(master.unwrap_own("signing", store.meta("signing") or b""))
    return RequestSigner(certificate.subject, key)
