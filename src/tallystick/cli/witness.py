"""`tally witness`: cosign the checkpoints of ledgers that somebody else runs."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, PORT, folder_argument, machine, on_signal, read_trust
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.trust.notes import NoteSigner

_KEY, _NAME = "key", "name"


@click.group("witness")
def command() -> None:
    """Cosign checkpoints (C2SP tlog-witness): vouch that a ledger shows everybody one history.

    A witness is somebody else than the ledger's operator, on a machine of its own. It needs no identity.

    \b
    Examples:
      tally witness init city --name witness.example
      tally witness run city --trust trust.json
    """


@command.command("init")
@folder_argument
@click.option("--name", required=True, help="The witness's name, by custom a host name that it owns.")
@output.json_option
def init(folder: Path, name: str, tell: output.Tell) -> None:
    """Make a witness's key in DIR and print its verifier key, which goes into a trust file.

    \b
    Examples:
      tally witness init city --name witness.example > witness.vkey
      tally init fleet --witness "$(cat witness.vkey)" --witness-url http://127.0.0.1:7420
    """
    from tallystick.node.instance import write_secret

    if (folder / _KEY).exists():
        raise Misuse(f"{folder}: a witness is here already", hint="choose another folder")
    seed = machine().entropy.bytes(32)
    verifier = _signer(name, seed).verifier.encode()  # a wrong name is found before anything is written
    write_secret(folder / _KEY, seed)
    (folder / _NAME).write_text(name + "\n")
    tell({"name": name, "vkey": verifier}, verifier)


@command.command("run")
@folder_argument
@click.option(
    "--trust",
    "trust_files",
    multiple=True,
    required=True,
    type=KNOWN_FILE,
    help="The trust file of an instance to witness; may be given several times.",
)
@output.default_option("--host", default="127.0.0.1")
@output.default_option("--port", type=PORT, default=7420, help="0: any.")
@click.option("--tls-certificate", default="", help="PEM file; off loopback it is needed.")
@click.option("--tls-key", default="", help="PEM file.")
@click.option("--json-logs", is_flag=True, help="Write logs as JSON lines.")
@output.json_option
def run(
    folder: Path,
    trust_files: tuple[Path, ...],
    host: str,
    port: int,
    tls_certificate: str,
    tls_key: str,
    json_logs: bool,
    tell: output.Tell,
) -> None:
    """Serve POST /add-checkpoint for the ledgers of these trust files, until SIGINT or SIGTERM.

    Anybody may see at the same address which checkpoints it cosigned last: as a page, and under /checkpoints as notes.

    \b
    Examples:
      tally witness run city --trust fleet/trust.json --port 7420
    """
    from tallystick.ledger.witness import REQUEST_BYTES_MAX, Witness
    from tallystick.node.instance import claim, read_secret
    from tallystick.node.witness_pages import WitnessPages
    from tallystick.runtime.address import server_tls
    from tallystick.runtime.disk import RealDisk
    from tallystick.runtime.http1 import Answer
    from tallystick.runtime.logs import configure_logs
    from tallystick.runtime.router import Request, Router
    from tallystick.runtime.server import Server
    from tallystick.trust.notes import ledger_verifiers

    if not (folder / _KEY).exists():
        raise Misuse(f"{folder}: no witness is here", hint=f"tally witness init {folder} --name …")
    configure_logs(json=json_logs, level="info" if json_logs else "warning")
    clock = machine().clock
    signer = _signer((folder / _NAME).read_text().strip(), read_secret(folder / _KEY))
    logs = {trust.origin: ledger_verifiers(trust) for trust in map(read_trust, trust_files)}
    with closing(claim(folder)):  # two on one folder could vouch for two histories
        witness = Witness(signer, logs, RealDisk(folder / "seen"))

        async def add_checkpoint(request: Request) -> Answer:
            told = await asyncio.to_thread(witness.add_checkpoint, await request.body(), int(clock.now()))
            return Answer(told.status, told.body, told.content_type)

        router = Router(body_bytes_max=REQUEST_BYTES_MAX)
        router.add("POST", "/add-checkpoint", add_checkpoint)
        WitnessPages(witness, clock).add_routes(router)
        tls = server_tls(tls_certificate, tls_key) if tls_certificate else None
        server = Server(router, host, port, tls=tls)
        tell({"url": server.url, "vkey": signer.verifier.encode()}, f"witness  {server.url}")
        on_signal(lambda: None)  # the server takes them while it serves
        server.run()


def _signer(name: str, seed: bytes) -> NoteSigner:
    from tallystick.crypto.signatures import SigningKey
    from tallystick.trust.notes import Algorithm, NoteSigner

    return NoteSigner(name, SigningKey.from_seed(seed), Algorithm.COSIGNATURE_V1)
