"""Two gateways of one instance, on one Kafka and one chain: one in a process of its own, to be flooded and killed, and
the next, which is the stack's node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from actors import SCHEMA, Hand, await_topic
from broker import broker, node_settings
from chain_stack import chain_of
from stack import PASSPHRASE, READ, WRITE, Stack, wait_until

from tallystick.client.session import Session
from tallystick.node.instance import Folders, NodeKeys, create_node, open_node_keys
from tallystick.node.settings import NodeSettings
from tallystick.node.supervisor import Child, is_ready
from tallystick.runtime.http1 import PARCELS

FLOOD = Path(__file__).parent / "kafka" / "flood_child.py"


class Gateway:
    """A node as `tally up --node-only` runs it; `kill` is kill -9, `start` goes on with what is on its disk."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        settings = NodeSettings(**{**stack._node_settings, "port": 0})
        create_node(stack.folders.root, folder, PASSPHRASE, settings, int(stack.clock.now() * 1000), stack.entropy)
        self._clock = stack.clock
        self.keys: NodeKeys = open_node_keys(Folders(folder).node, stack.node.trust)
        up = ["up", str(folder), "--supervised", "--json", "--node-only", "--port", "0"]
        self._child = Child("gateway", up, with_passphrase=False, log=folder / "log")
        self.start()
        self._child.arguments[-1] = self.address.rpartition(":")[2]  # and from now on there

    @property
    def url(self) -> str:
        return self._child.url

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def identifier(self) -> bytes:
        return self.keys.certificate.subject

    def start(self) -> None:
        """Where it does not run; it serves when this returns."""
        if self._child.process is None:
            self._child.start(self._clock)
            wait_until(lambda: is_ready(self.url))

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._child.stop()
        self._child.process = None

    def kill(self) -> None:
        assert self._child.process is not None
        self._child.process.kill()
        self.stop()


class Gateways:
    """Principals that know both, the one in a process first; what the other has can be looked at."""

    def __init__(self, stack: Stack, first: Gateway) -> None:
        self.stack, self.first = stack, first
        self.urls = stack.node_urls = (first.url, stack.node.url)
        self.owner = stack.tenant("acme")

    def principal(self, name: str, node_urls: tuple[str, ...] = ()) -> Session:
        return self.stack.principal("acme", name, node_urls)

    def moved(self, session: Session) -> Session:
        """The same principal in another process, which goes to the next gateway."""
        again = self.stack.again(session)
        again._node_http._conversation._preferred = 1
        return again

    def topic(self, name: str, writer: Session, reader: Session) -> bytes:
        token = self.stack.topic(self.owner, name, SCHEMA)
        self.stack.grant(self.owner, token, writer, WRITE)
        self.stack.grant(self.owner, token, reader, READ)
        await_topic(self.stack, token)
        return token


@contextmanager
def two_gateways(folder: Path) -> Iterator[Gateways]:
    with chain_of(folder / "instance", 1, **node_settings(broker())) as (prepared, _), prepared as stack:
        first = Gateway(stack, folder / "gateway")
        try:
            wait_until(lambda: len(stack.authority.authority.subjects.nodes()) == 2)
            yield Gateways(stack, first)
        finally:
            first.stop()


def moved_hand(gateways: Gateways, hand: Hand) -> Hand:
    """The same publisher with its lane, at the next gateway."""
    session = gateways.moved(hand.session)
    moved = Hand.__new__(Hand)
    moved.__dict__.update(hand.__dict__, node=session.node, session=session)
    return moved


def signed_publish(session: Session, token: bytes, body: bytes) -> bytes:
    """The bytes with which the principal's client would ask the gateway that it prefers to store parcels."""
    path = f"/v1/topics/{token.hex()}/parcels"
    attempt = next(session._node_http._conversation.converse("POST", path, "", body, PARCELS))
    return attempt.head + attempt.body  # type: ignore[union-attr]


@contextmanager
def flood(url: str, silent: int, junk: int) -> Iterator[subprocess.Popen[str]]:
    """Another process holds so many silent connections to a gateway and sends junk over others, until it is ended or
    the gateway is gone. It says `connected` first; how much junk was answered it says in the end."""
    command = [sys.executable, str(FLOOD), urlsplit(url).netloc, str(silent), str(junk)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "connected"
        try:
            yield process
        finally:
            process.kill()
