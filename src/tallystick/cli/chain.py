"""`tally chain`: the validators of a ledger that no single operator can rewrite."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli import common, output
from tallystick.cli.common import KNOWN_FILE, folder_argument, machine, now_ms, on_signal, read_trust
from tallystick.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from tallystick.node.validator import ValidatorCard

cards_argument = click.argument("cards", nargs=-1, required=True, type=KNOWN_FILE)


@click.group("chain")
def command() -> None:
    """Make, run, watch and mend validators of a CometBFT chain; each belongs to another operator.

    \b
    Examples:
      tally chain init v0 --rpc 10.0.0.1:26657 --p2p 10.0.0.1:26656
      tally chain status cometbft://10.0.0.1:26657,10.0.0.2:26657 --trust trust.json
    """


@command.command("init")
@folder_argument
@click.option("--rpc", required=True, metavar="HOST:PORT", help="Where nodes reach this validator.")
@click.option("--p2p", required=True, metavar="HOST:PORT", help="Where other validators do.")
@output.json_option
def init(folder: Path, rpc: str, p2p: str, tell: output.Tell) -> None:
    """Draw a validator's keys in DIR and write DIR/validator.json, which is handed to the others.

    \b
    Examples:
      tally chain init v0 --rpc 10.0.0.1:26657 --p2p 10.0.0.1:26656
    """
    from tallystick.ledger.cometbft.home import NodeAddresses
    from tallystick.node.validator import create_validator
    from tallystick.wire import is_number

    for address in (rpc, p2p):
        if not address.rpartition(":")[0] or not is_number(address.rpartition(":")[2]):
            raise Misuse(f'"{address}": expected HOST:PORT')
    card = create_validator(folder, NodeAddresses(rpc, p2p), machine().entropy)
    advice = f"next: hand {folder / 'validator.json'} to the others; tally init --validator … lists them all"
    tell(asdict(card), f"validator {card.node_id} in {folder}", note=advice)


@command.command("successor")
@folder_argument
@cards_argument
@output.json_option
def successor(folder: Path, cards: tuple[Path, ...], tell: output.Tell) -> None:
    """Hand the ledger of the stopped instance in DIR over to these validators.

    Signs, with the root key, the successor of the trust file that lists their note keys, puts it on the ledger, and
    lets node and authority of DIR go by it. There is no way back: only the validators can sign then. The ledger is the
    embedded one, or a chain that runs, whose validators are then to be stopped: a chain's set changes by going on as
    another chain.

    \b
    Examples:
      tally chain successor fleet v*/validator.json
      tally chain genesis v*/validator.json --trust fleet/trust.json --ledger fleet/node/ledger.sqlite -o genesis.json
    """
    from tallystick.node.handover import hand_over
    from tallystick.node.instance import find_passphrase, open_root

    folders = common.require_instance(folder)
    root = open_root(folder, find_passphrase(folder))
    trust = hand_over(folder, _read_cards(cards), root, now_ms())
    told = {"trust": str(folders.trust), "number": trust.number, "threshold": trust.ledger_threshold}
    tell(told, f"{folders.trust}: number {trust.number}, {trust.ledger_threshold} of {len(cards)} validators sign")
    output.note("next: tally chain genesis --ledger, then hand trust file and ledger.sqlite to every validator")


@command.command("genesis")
@cards_argument
@click.option("--trust", "trust_file", required=True, type=KNOWN_FILE, help="The instance's trust file.")
@click.option("-o", "--output", "file", required=True, type=common.FILE)
@click.option("--ledger", type=KNOWN_FILE, default=None, help="The ledger.sqlite that the chain goes on from.")
@output.json_option
def genesis(cards: tuple[Path, ...], trust_file: Path, file: Path, ledger: Path | None, tell: output.Tell) -> None:
    """Write the genesis of a chain with these validators; made once, by one of them, and handed to all.

    With --ledger the chain goes on with the tree, origin and heights of a ledger that was stopped, embedded or another
    chain's; each validator begins with a copy of that file as its own ledger.sqlite.

    \b
    Examples:
      tally chain genesis v*/validator.json --trust trust.json -o genesis.json
      tally chain genesis v*/validator.json --trust trust.json --ledger fleet/node/ledger.sqlite -o genesis.json
    """
    from tallystick.node.validator import make_genesis

    if file.exists():
        raise Misuse(f"{file} exists already", hint="a chain has one genesis: name another file")
    text = make_genesis(read_trust(trust_file), _read_cards(cards), now_ms(), ledger)
    height = int(json.loads(text)["initial_height"])
    file.write_text(text)
    told = {"file": str(file), "validators": len(cards), "height": height}
    tell(told, f"genesis of {len(cards)} validators in {file}, their first block has height {height}")


@command.command("join")
@folder_argument
@click.argument("cards", nargs=-1, type=KNOWN_FILE)
@click.option("--trust", "trust_file", required=True, type=KNOWN_FILE)
@click.option("--genesis", "genesis_file", required=True, type=KNOWN_FILE)
@click.option("--sync", is_flag=True, help="Begin with a snapshot of the peers, which run already.")
@output.json_option
def join(
    folder: Path, cards: tuple[Path, ...], trust_file: Path, genesis_file: Path, sync: bool, tell: output.Tell
) -> None:
    """Make the validator in DIR one of the chain of a genesis, with the peers of these cards.

    \b
    Examples:
      tally chain join v0 v*/validator.json --trust trust.json --genesis genesis.json
      tally chain join v4 v*/validator.json --trust trust.json --genesis genesis.json --sync
    """
    from tallystick.node.validator import find_sync, join_chain

    trust, peers = read_trust(trust_file), _read_cards(cards)
    begin = find_sync([peer.rpc for peer in peers], trust) if sync else None
    join_chain(folder, trust, genesis_file.read_text(), peers, sync=begin)
    tell({"folder": str(folder), "peers": len(cards)}, f"{folder} belongs to the chain")
    output.note(f"next: tally chain run {folder}")


@command.command("run")
@folder_argument
@output.json_option
def run(folder: Path, tell: output.Tell) -> None:
    """Run the validator in DIR until SIGINT or SIGTERM: application and CometBFT, which is started again if it ends.

    \b
    Examples:
      tally chain run v0
    """
    from tallystick.node.validator import Validator
    from tallystick.runtime.logs import configure_logs

    configure_logs(json=False, level="warning")
    validator = Validator(folder)
    on_signal(validator.pair.ask_to_stop)
    validator.start()
    tell({"validator": validator.rpc}, f"validator  {validator.rpc}")
    validator.pair.wait()
    validator.stop()


@command.command("status")
@click.argument("url")
@click.option("--trust", "trust_file", required=True, type=KNOWN_FILE)
@output.json_option
def status(url: str, trust_file: Path, tell: output.Tell) -> None:
    """Show heights and rounds of every validator that URL names, and name who is away, behind or differs.

    Exits with 4 where fewer than the trust file's threshold are well.

    \b
    Examples:
      tally chain status cometbft://127.0.0.1:26657,127.0.0.1:26667 --trust trust.json
    """
    from tallystick.ledger.cometbft.health import look
    from tallystick.ledger.cometbft.rpc import Endpoints

    with closing(Endpoints.parse(url, machine().clock)) as endpoints:
        health = look(endpoints, read_trust(trust_file))
    rows = [["validator", "key", "height", "round", "peers", "state"]]
    for one in health.validators:
        known = (one.name, output.show_value(one.key), output.show_value(one.height))
        rows.append([*known, one.round, str(one.peers), one.verdict])
    tell({**asdict(health), "verdict": health.verdict}, *output.table(rows), health.verdict)
    if health.verdict.startswith("halted"):
        raise Unavailable("the chain does not go on", hint="start the validators that are away; docs/guides/chain.md")


@command.command("verify")
@click.argument("url")
@click.option("--trust", "trust_file", required=True, type=KNOWN_FILE)
@click.option("--header", metavar="HEIGHT:HASH", help="One that you trust: what this command told you the last time.")
@output.json_option
def verify(url: str, trust_file: Path, header: str | None, tell: output.Tell) -> None:
    """Hold the checkpoint of the note keys to the votes of the chain's validators, from a header that you trust.

    The note keys sign what clients believe, the votes decide what the chain is; both must commit to one tree and one
    state. Without --header it begins with one on which as many validators agree now as must sign a checkpoint. It tells
    the newest header that it believes: keep that for the next time, within a week.

    \b
    Examples:
      tally chain verify cometbft://127.0.0.1:26657,127.0.0.1:26667 --trust trust.json
    """
    from tallystick.ledger.cometbft.client import CometbftLedger, chain_id
    from tallystick.ledger.cometbft.light import LightBlock, LightClient
    from tallystick.ledger.cometbft.rpc import Endpoints, RpcEndpoint
    from tallystick.node.validator import find_sync

    trust, clock = read_trust(trust_file), machine().clock
    with closing(Endpoints.parse(url, clock)) as endpoints, closing(CometbftLedger(url, trust, clock)) as ledger:
        if header is not None:
            trusted = _read_header(header)
        else:
            agreed = find_sync([one.name for one in endpoints.all], trust)
            trusted = agreed.height, bytes.fromhex(agreed.hash)
        block = ledger.block(max(0, ledger.height - 1))  # the next header commits to it

        def hold(primary: RpcEndpoint) -> LightBlock:
            witnesses = [one for one in endpoints.all if one is not primary]
            light = LightClient(chain_id(trust.instance), trusted, primary, witnesses, clock)
            return light.verify_roots(block.height, block.size, block.root, block.state_root)

        found = endpoints.attempt(hold, 10)
    kept = f"{found.height}:{found.hash.hex()}"
    told = {"height": block.height, "transactions": block.size, "header": kept}
    tell(
        told, f"height {block.height}: votes and note keys commit to the same {block.size} transactions, and one state"
    )
    output.note(f"next time: --header {kept}")


@command.command("snapshot")
@folder_argument
@click.option("--now", is_flag=True, help="Cut one of the newest block first; the validator may run meanwhile.")
@output.json_option
def snapshot(folder: Path, now: bool, tell: output.Tell) -> None:
    """List the snapshots that the validator in DIR offers to nodes that join, and where they lie.

    A running validator cuts one every thousand blocks and keeps the newest two; they outlive a restart.

    \b
    Examples:
      tally chain snapshot v0
      tally chain snapshot v0 --now
    """
    from tallystick.node.validator import open_shelf

    shelf = open_shelf(folder)
    if now:
        shelf.take()
    found = shelf.held()
    told = {"folder": str(shelf.folder), "snapshots": [asdict(one) for one in found]}
    rows = [[str(one.height), str(one.chunks), str(one.size_bytes), one.hash.hex()[:16]] for one in found]
    lines = output.table([["height", "chunks", "bytes", "hash"], *rows])
    tell(told, *lines, note=f"note: they lie in {shelf.folder}")


@command.command("rollback")
@folder_argument
@output.json_option
def rollback(folder: Path, tell: output.Tell) -> None:
    """Take the newest block of the stopped validator in DIR back, so that it is executed again.

    For a validator that stopped following because its application was wrong about its last block (`differs`, or
    CONSENSUS FAILURE in comet.log), after what was wrong has been mended.

    \b
    Examples:
      tally chain rollback v0
    """
    from tallystick.node.validator import roll_back_validator

    height = roll_back_validator(folder)
    tell({"height": height}, f"{folder} is at height {height}")
    output.note(f"next: tally chain run {folder}")


def _read_header(written: str) -> tuple[int, bytes]:
    from tallystick.wire import is_number

    height, _, digest = written.partition(":")
    if not is_number(height) or len(digest) != 64:
        raise Misuse(f'--header "{written}": expected HEIGHT:HASH', hint="without it, the command tells you one")
    try:
        return int(height), bytes.fromhex(digest)
    except ValueError as error:
        raise Misuse(f'--header "{written}": the hash is not 64 hex digits') from error


def _read_cards(paths: tuple[Path, ...]) -> list[ValidatorCard]:
    from tallystick.node.validator import ValidatorCard

    return [ValidatorCard.decode(path.read_text()) for path in paths]
