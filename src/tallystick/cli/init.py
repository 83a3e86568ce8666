"""`tally init`: a new instance on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tallystick.cli import output
from tallystick.cli.common import KNOWN_FILE, PORT, folder_argument, machine, now_ms
from tallystick.errors import Misuse

if TYPE_CHECKING:
    from tallystick.node.settings import NodeSettings
    from tallystick.trust.trustfile import TrustFile

PASSPHRASE_BYTES = 20


@click.command("init")
@folder_argument
@click.option("--name", default=None, help="What the trust file calls the instance; the folder's name if not given.")
@output.default_option("--host", default="127.0.0.1", help="Where node and authority listen.")
@output.default_option("--port", type=PORT, default=7411, help="The node's; 0: any.")
@output.default_option("--authority-port", type=PORT, default=7412, help="0: any.")
@click.option("--witness", "witnesses", multiple=True, metavar="VKEY", help="A witness's key (tally witness init).")
@click.option("--witness-url", "witness_urls", multiple=True, metavar="URL", help="Where the node finds a witness.")
@click.option("--ledger", default="", metavar="URL", help="cometbft://host:port,… instead of the embedded ledger.")
@click.option(
    "--validator",
    "validators",
    multiple=True,
    metavar="CARD",
    type=KNOWN_FILE,
    help="A validator of that chain: the validator.json that tally chain init wrote.",
)
@click.option("--quorum", type=click.IntRange(0), default=None, help="Cosignatures to demand; by default all.")
@output.json_option
def command(
    folder: Path,
    name: str | None,
    host: str,
    port: int,
    authority_port: int,
    witnesses: tuple[str, ...],
    witness_urls: tuple[str, ...],
    ledger: str,
    validators: tuple[Path, ...],
    quorum: int | None,
    tell: output.Tell,
) -> None:
    """Make a new instance in DIR: root key, trust file, authority, node and ledger.

    The passphrase that locks the root and master keys comes from TALLY_PASSPHRASE, or from the file that
    TALLY_PASSPHRASE_FILE names; without either one is made and written to DIR/passphrase.

    \b
    Examples:
      tally init fleet
      tally init fleet --port 8411 --authority-port 8412
      tally init fleet --ledger cometbft://127.0.0.1:26657 --validator v0/validator.json
      tally init fleet --witness "$(cat witness.vkey)" --witness-url http://127.0.0.1:7420
    """
    from tallystick.node.instance import Folders
    from tallystick.node.settings import NodeSettings
    from tallystick.node.validator import ValidatorCard

    if bool(ledger) != bool(validators):
        raise Misuse("--ledger and --validator go together", hint="the trust file must list the validators' keys")
    cards = [ValidatorCard.decode(path.read_text()) for path in validators]
    settings = NodeSettings(
        host=host, port=port, authority_port=authority_port, ledger=ledger, witness_urls=witness_urls
    )
    trust, made = make_instance(
        folder,
        name,
        settings,
        witnesses=witnesses,
        quorum=len(witnesses) if quorum is None else quorum,
        validators=tuple(bytes.fromhex(card.note_key) for card in cards),
    )
    folders = Folders(folder)
    told = {"instance": trust.instance, "folder": str(folder), "passphrase_written": made}
    tell(told, f"instance {trust.instance.hex()} in {folder}")
    if made:
        output.note(f"note: a passphrase was made and written to {folders.passphrase}, readable by you alone")
        output.note("note: for anything but a trial keep it elsewhere, and name it by TALLY_PASSPHRASE_FILE")
    output.note(f"note: {folders.root_key} is needed again only for new certificates: move it off this machine")
    output.note(f"next: tally up {folder}")


def make_instance(folder: Path, name: str | None, settings: NodeSettings, **options: Any) -> tuple[TrustFile, bool]:
    """Make an instance. Returns its trust file, and whether a passphrase was made for it.

    `options` are those of `create_instance`.
    """
    from tallystick.node.instance import Folders, create_instance, write_secret

    folders, entropy = Folders(folder), machine().entropy
    if folders.trust.exists():
        raise Misuse(f"{folder}: an instance is here already", hint=f"tally up {folder}, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    passphrase = _given_passphrase()
    made = passphrase is None
    if passphrase is None:
        passphrase = entropy.bytes(PASSPHRASE_BYTES).hex().encode()
        folders.passphrase.unlink(missing_ok=True)  # of an attempt that was cut short
        write_secret(folders.passphrase, passphrase + b"\n")
    name = name or folder.resolve().name
    return create_instance(folder, name, passphrase, settings, now_ms(), entropy, **options), made


def _given_passphrase() -> bytes | None:
    """The passphrase of the environment, if there is one."""
    from tallystick.node.instance import PASSPHRASE_FILE_VARIABLE, PASSPHRASE_VARIABLE

    if text := os.environ.get(PASSPHRASE_VARIABLE):
        return text.encode()
    named = os.environ.get(PASSPHRASE_FILE_VARIABLE)
    if named is None:
        return None
    try:
        passphrase = Path(named).read_bytes().strip()
    except OSError as error:
        raise Misuse(f"{PASSPHRASE_FILE_VARIABLE}: {named}: {error.strerror}") from error
    if not passphrase:
        raise Misuse(f"{PASSPHRASE_FILE_VARIABLE}: {named}: the file is empty")
    return passphrase
