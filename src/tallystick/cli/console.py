"""`tally console`: pages instead of commands, for one identity, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import FILE, FOLDER, KNOWN_FILE, PORT, machine, on_signal, with_session

if TYPE_CHECKING:
    from tallystick.client.session import Session


@click.command("console")
@click.option("--host", type=click.Choice(["127.0.0.1", "::1"]), default="127.0.0.1", help="Loopback, of either kind.")
@click.option("--port", type=PORT, default=None, help="As last time; a free one the first time, or with 0.")
@click.option("--warehouse", type=FOLDER, default=None, help="A warehouse of tally pipeline, for trips and alerts.")
@click.option("--genesis", type=KNOWN_FILE, default=None, help="The first trust file, if you hold a later one.")
@click.option("--scenes", type=FILE, default=None, help="Outcomes as tally demo writes them.")
@with_session
@output.json_option
def command(
    session: Session,
    host: str,
    port: int | None,
    warehouse: Path | None,
    genesis: Path | None,
    scenes: Path | None,
    tell: output.Tell,
) -> None:
    """Serve the console of the identity in --home to one browser on this machine, until SIGINT or SIGTERM.

    It replays the ledger and believes nobody; what it shows says how it is known. It changes nothing. Open the address
    that it prints: it is good once.

    \b
    Examples:
      tally console --home owner
      tally console --warehouse tables --home owner
    """
    from contextlib import closing

    from tallystick.console.app import Console
    from tallystick.console.door import Door
    from tallystick.console.mirror import Mirror
    from tallystick.console.viewer import Viewer
    from tallystick.identity.folder import first_trust_file
    from tallystick.node.instance import claim
    from tallystick.runtime.logs import configure_logs

    configure_logs(json=False, level="warning")
    clock, entropy = machine()
    first = first_trust_file(session.identity.trust, genesis)
    folder = session.identity.home / "console"
    folder.mkdir(mode=0o700, exist_ok=True)
    address = _Address(folder)
    with closing(claim(folder)), closing(Mirror(folder, first, lambda: int(clock.now() * 1000))) as mirror:
        viewer = Viewer(session, mirror, warehouse, scenes)
        door = Door(address.path(entropy.bytes(16)), entropy)
        console = Console(viewer, door, host, address.port if port is None else port)
        address.keep(console.server.port, console.url)
        on_signal(console.stop)  # from here on: who has read the address may end it before it serves
        tell({"url": console.url}, f"console  {console.url}", note="note: the address is good once, for one browser")
        viewer.start()
        try:
            console.run()
        finally:
            viewer.stop()


class _Address:
    """Where this home's console is, kept so that bookmarks hold: `path` and `port`; and `url`, with the token, for who
    cannot read the terminal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, fresh: bytes) -> str:
        return "/" + self._read("path", "[0-9a-f]{32}", fresh.hex())

    @property
    def port(self) -> int:
        """The last one, if it is free."""
        import socket

        port = min(int(self._read("port", "[0-9]{1,5}", "0")), 65535)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return 0
        return port

    def keep(self, port: int, url: str) -> None:
        self._write("port", str(port))
        self._write("url", url)

    def _read(self, name: str, form: str, default: str) -> str:
        """What was kept, if it has this form."""
        import re

        file = self._folder / name
        kept = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
        if not re.fullmatch(form, kept):
            self._write(name, default)
            return default
        return kept

    def _write(self, name: str, text: str) -> None:
        from tallystick.runtime.disk import RealDisk, write_atomic

        write_atomic(RealDisk(self._folder), name, f"{text}\n".encode())  # the owner's alone
